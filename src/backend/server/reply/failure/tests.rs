//! What real servers say, and what it is taken for: `corpus.txt`.
//!
//! It is collected by playing each failure on a server. To renew the part of the server at hand, run
//! these tests with `BLESS=1`; to renew all of it, `BLESS=1 scripts/test --servers all`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::{Connection, Value};

use super::*;
use crate::backend::server::script::tests::support::Server;
use crate::snapshot;

const CORPUS: &str = "src/backend/server/reply/failure/corpus.txt";

/// What a failure is taken for: the kind's name, or what is done instead of telling of it.
fn taken_for(code: &str, details: Option<&str>) -> String {
    let error = make_extension_error(code.to_owned(), details.map(str::to_owned));
    let error = ServerError::try_from(error).expect("an error of a server");
    match Failure::of_server(error) {
        Failure::NoScript => "no-script".to_owned(),
        Failure::NotNow(kind, _) | Failure::Final(kind, _) => kind.to_string(),
        other => panic!("{other:?}"),
    }
}

/// A server on which failures are played.
struct Stage {
    connection: Connection,
    heard: Vec<(&'static str, &'static str, String)>,
}

impl Stage {
    fn new(server: &Server) -> Self {
        Self {
            connection: server.connection(),
            heard: Vec::new(),
        }
    }

    fn order(&mut self, words: &[&str]) {
        command(&mut self.connection, words).unwrap_or_else(|error| panic!("{words:?}: {error:?}"));
    }

    /// Notes what the server says to a command that it must refuse.
    fn refused(&mut self, situation: &'static str, kind: &'static str, words: &[&str]) {
        let error = command(&mut self.connection, words);
        self.note(situation, kind, &error.expect_err(situation));
    }

    /// The same of a command on its own, and as a script's only one.
    fn refused_both_ways(
        &mut self,
        situations: [&'static str; 2],
        kind: &'static str,
        words: &[&str],
    ) {
        self.refused(situations[0], kind, words);
        let words: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let script = format!("return redis.call({})", words.join(","));
        self.refused(situations[1], kind, &["EVAL", &script, "0"]);
    }

    fn note(&mut self, situation: &'static str, kind: &'static str, error: &RedisError) {
        let (code, details) = (error.code().expect(situation), error.detail());
        assert_eq!(
            taken_for(code, details),
            kind,
            "{situation}: {code} {details:?}"
        );
        let text = format!("{code} {}", details.unwrap_or_default());
        self.heard
            .push((situation, kind, without_digest(text.trim())));
    }
}

fn command(connection: &mut Connection, words: &[&str]) -> Result<Value, RedisError> {
    let mut command = redis::Cmd::new();
    command.arg(words);
    command.query(connection)
}

/// Scripts are named by their digests, which differ from release to release.
fn without_digest(text: &str) -> String {
    let words = text.split_inclusive(|letter: char| !letter.is_ascii_hexdigit());
    words
        .map(|word| {
            if word.len() > 40 {
                format!("(sha){}", &word[40..])
            } else {
                word.to_owned()
            }
        })
        .collect()
}

/// `redis 7.0`, as `INFO` tells it.
fn version(connection: &mut Connection) -> String {
    let info = command(connection, &["INFO", "server"]).expect("it tells of itself");
    let info: String = redis::from_redis_value(info).expect("a text");
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    let (name, version) = match field("valkey_version:") {
        Some(version) => ("valkey", version),
        None => ("redis", field("redis_version:").expect("it has a version")),
    };
    let major = version.rsplit_once('.').map_or(version, |(major, _)| major);
    format!("{name} {major}")
}

fn play_refusals(server: &Server, stage: &mut Stage) {
    stage.order(&["CONFIG", "SET", "maxmemory", "1"]);
    stage.refused_both_ways(
        ["out of memory", "out of memory, in a script"],
        "refused",
        &["SET", "a", "1"],
    );
    stage.order(&["CONFIG", "SET", "maxmemory", "0"]);
    stage.order(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    stage.refused_both_ways(
        ["no replicas", "no replicas, in a script"],
        "refused",
        &["SET", "a", "1"],
    );
    stage.order(&["CONFIG", "SET", "min-replicas-to-write", "0"]);

    // What can't be saved, since a folder stands where the file should.
    let folder = command(&mut stage.connection, &["CONFIG", "GET", "dir"]).expect("it has one");
    let folder: Vec<String> = redis::from_redis_value(folder).expect("a name and a value");
    fs::create_dir(format!("{}/dump.rdb", folder[1])).expect("the folder is the server's own");
    stage.order(&["CONFIG", "SET", "save", "3600 1"]);
    stage.order(&["SET", "b", "1"]);
    stage.order(&["BGSAVE"]);
    until("saving has failed", || {
        let info = command(&mut stage.connection, &["INFO", "persistence"]).expect("it tells");
        format!("{info:?}").contains("rdb_last_bgsave_status:err")
    });
    stage.refused_both_ways(
        ["can't persist", "can't persist, in a script"],
        "refused",
        &["SET", "a", "1"],
    );
    stage.order(&["CONFIG", "SET", "save", ""]);

    stage.order(&["RPUSH", "list", "1"]);
    stage.refused_both_ways(
        ["another type", "another type, in a script"],
        "foreign-data",
        &["GET", "list"],
    );
    stage.refused_both_ways(
        ["unknown command", "unknown command, in a script"],
        "unsupported",
        &["FOO", "secret"],
    );
    stage.refused(
        "a script that fails",
        "protocol",
        &["EVAL", "error('no')", "0"],
    );
    stage.refused(
        "an unknown script",
        "no-script",
        &["EVALSHA", &"0".repeat(40), "0"],
    );
    stage.refused("no such database", "unsupported", &["SELECT", "99"]);

    stage.order(&["CONFIG", "SET", "lua-time-limit", "10"]);
    let mut other = server.connection();
    let endless = std::thread::spawn(move || {
        command(&mut other, &["EVAL", "while true do end", "0"]).expect_err("it is ended")
    });
    until("the script runs for long", || {
        command(&mut stage.connection, &["TIME"]).is_err()
    });
    stage.refused(
        "a busy script",
        "server-busy",
        &["EVALSHA", &"0".repeat(40), "0"],
    );
    stage.order(&["SCRIPT", "KILL"]);
    let error = endless.join().expect("no panic");
    stage.note("a script that was ended", "server-busy", &error);
}

fn play_rights(server: &Server, stage: &mut Stage) {
    let rights = ["+@all", "-zadd", "-evalsha", "-script", "-time"];
    let user = [
        "ACL",
        "SETUSER",
        "u",
        "on",
        ">secret",
        "~a",
        "resetchannels",
    ];
    stage.order(&[&user[..], &rights].concat());
    stage.refused(
        "a wrong password",
        "unauthenticated",
        &["AUTH", "u", "wrong"],
    );
    stage.refused(
        "a wrong password, in HELLO",
        "unauthenticated",
        &["HELLO", "3", "AUTH", "u", "no"],
    );
    stage.refused(
        "a password where none is set",
        "unauthenticated",
        &["AUTH", "secret"],
    );
    stage.order(&["AUTH", "u", "secret"]);
    for (situation, words) in [
        ("no right to a command", &["ZADD", "a", "1", "1"][..]),
        ("no right to TIME", &["TIME"]),
        ("no right to SCRIPT LOAD", &["SCRIPT", "LOAD", "return 1"]),
        ("no right to EVALSHA", &["EVALSHA", "0", "0"]),
        ("no right to a key", &["GET", "b"]),
        ("no right to a channel", &["SUBSCRIBE", "c"]),
        (
            "no right to a command, in a script",
            &["EVAL", "redis.call('ZADD','a',1,1)", "0"],
        ),
        (
            "no right to a key, in a script",
            &["EVAL", "redis.call('GET','b')", "0"],
        ),
        (
            "no right to a channel, in a script",
            &["EVAL", "redis.call('PUBLISH','c','')", "0"],
        ),
    ] {
        stage.refused(situation, "not-permitted", words);
    }
    stage.connection = server.connection();
    let mut nobody = server.connection();
    stage.order(&["ACL", "SETUSER", "default", "resetpass", ">secret"]);
    // Who is in stays in: only a connection without credentials is asked for them.
    command(&mut nobody, &["RESET"]).expect("it forgets who it is");
    for (situation, words) in [
        ("no credentials", &["TIME"][..]),
        ("no credentials, in HELLO", &["HELLO", "3"]),
    ] {
        stage.note(
            situation,
            "unauthenticated",
            &command(&mut nobody, words).expect_err(situation),
        );
    }
    stage.order(&["ACL", "SETUSER", "default", "nopass"]);

    stage.order(&["CONFIG", "SET", "maxclients", "1"]);
    let _full = (TcpStream::connect(("127.0.0.1", server.port())), ());
    let one_more = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    let mut line = String::new();
    BufReader::new(one_more)
        .read_line(&mut line)
        .expect("it says why");
    let details = line
        .trim()
        .strip_prefix("-ERR ")
        .expect("an error")
        .to_owned();
    let error = make_extension_error("ERR".to_owned(), Some(details));
    stage.note("too many clients", "not-serving", &error);
    stage.order(&["CONFIG", "SET", "maxclients", "100"]);
}

fn play_replica(stage: &mut Stage) {
    stage.order(&["REPLICAOF", "127.0.0.1", "1"]);
    stage.refused_both_ways(
        ["a replica", "a replica, in a script"],
        "not-serving",
        &["SET", "a", "1"],
    );
    stage.order(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    stage.refused(
        "a replica without its master",
        "not-serving",
        &["EVAL", "return 1", "0"],
    );
}

/// A server that takes some seconds to load what it has saved.
fn play_loading(stage: &mut Stage) {
    let server = Server::start_with(&["--rdbcompression", "no", "--key-load-delay", "50000"]);
    stage.connection = server.connection();
    let megabyte = "x".repeat(1 << 20);
    for key in 0..40 {
        stage.order(&["SET", &key.to_string(), &megabyte]);
    }
    stage.order(&["SAVE"]);
    server.restart();
    stage.connection = server.connection();
    stage.refused("loading", "not-serving", &["EVALSHA", &"0".repeat(40), "0"]);
}

fn play_cluster(stage: &mut Stage) {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    stage.connection = server.connection();
    stage.refused("a cluster without slots", "not-serving", &["GET", "a"]);
    let all: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    stage.order(&[&["CLUSTER", "ADDSLOTS"], &all[..]].concat());
    until("the cluster serves", || {
        command(&mut stage.connection, &["GET", "a"]).is_ok()
    });
    stage.refused(
        "keys in two slots",
        "unsupported",
        &["EVAL", "return 1", "2", "a", "b"],
    );
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

type Corpus = BTreeMap<String, Vec<(String, String, String)>>;

/// Version by version: situation, kind, text.
fn corpus() -> Corpus {
    let text = snapshot::read(CORPUS);
    let mut corpus = Corpus::new();
    let mut version = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("# ") {
            version = Some(corpus.entry(name.to_owned()).or_default());
        } else {
            let mut parts = line.splitn(3, " | ").map(str::to_owned);
            let mut next = || parts.next().expect("three parts");
            version
                .as_mut()
                .expect("a version first")
                .push((next(), next(), next()));
        }
    }
    corpus
}

fn written(corpus: &Corpus) -> String {
    let mut text = String::new();
    for (version, entries) in corpus {
        let _ = writeln!(text, "# {version}");
        for (situation, kind, said) in entries {
            let _ = writeln!(text, "{situation} | {kind} | {said}");
        }
        text.push('\n');
    }
    text
}

#[test]
fn what_this_server_says_is_taken_for_what_it_is() {
    let server = Server::start();
    let mut stage = Stage::new(&server);
    let version = version(&mut stage.connection);
    play_refusals(&server, &mut stage);
    play_rights(&server, &mut stage);
    play_replica(&mut stage);
    play_loading(&mut stage);
    play_cluster(&mut stage);
    let own = |(situation, kind, text): (&str, &str, String)| {
        (situation.to_owned(), kind.to_owned(), text)
    };
    let heard: Vec<_> = stage.heard.into_iter().map(own).collect();
    let mut corpus = corpus();
    // Of a version that nobody has collected yet, the kinds alone are judged.
    if snapshot::is_blessed() || corpus.contains_key(&version) {
        corpus.insert(version, heard);
        snapshot::assert(CORPUS, &written(&corpus));
    }
}

/// All servers' texts, whichever is at hand; among them five that are known by heart.
#[test]
fn what_any_server_says_is_taken_for_what_it_is() {
    let corpus = corpus();
    for name in [
        "redis 6.2",
        "redis 7.0",
        "redis 8.2",
        "valkey 8.1",
        "valkey 9.1",
    ] {
        assert!(corpus.contains_key(name), "{name}");
    }
    for (version, entries) in corpus {
        for (situation, kind, text) in entries {
            let (code, details) = text.split_once(' ').expect("a code and more");
            assert_eq!(
                taken_for(code, Some(details)),
                kind,
                "{version}: {situation}"
            );
        }
    }
}

/// By the servers' documentation: these need a neighbor, another machine or a moment.
#[test]
fn codes_that_no_single_server_gives_are_known() {
    for (code, kind) in [
        ("MOVED", "unsupported"),
        ("ASK", "unsupported"),
        ("TRYAGAIN", "not-serving"),
        ("DENIED", "not-permitted"),
        ("NOPROTO", "unsupported"),
        ("SOMETHING", "protocol"),
    ] {
        assert_eq!(taken_for(code, Some("words")), kind);
        assert_eq!(taken_for(code, None), kind);
    }
}

#[test]
fn a_script_that_a_moving_slot_ended_half_way_is_unknown_in_any_wording() {
    for details in [
        "Error running script (call to f_1): @user_script:1: @user_script: 1: Lua script attempted \
         to access a non local key in a cluster node",
        "Script attempted to access a non local key in a cluster node script: f_1, on @user_script:1.",
        "Attempted to access a non local key in a cluster node script: on @user_script:1.",
    ] {
        let error = make_extension_error("ERR".to_owned(), Some(details.to_owned()));
        let failure = Failure::of_server(ServerError::try_from(error).expect("a server's"));
        let failure = failure.of_moving_slot();
        assert!(matches!(failure, Failure::Unknown(None)), "{failure:?}");
    }
}

#[test]
fn what_quotes_a_request_or_names_a_server_is_not_told() {
    for (code, details) in [
        (
            "ERR",
            "unknown command 'AUTH', with args beginning with: 'secret' ",
        ),
        (
            "ERR",
            "unknown command `AUTH`, with args beginning with: `secret`, ",
        ),
        ("MOVED", "3999 secret:6381"),
        ("ASK", "3999 secret:6381"),
        ("REDIRECT", "secret:6381"),
        ("NEWS", "from a proxy about secret"),
    ] {
        let error = make_extension_error(code.to_owned(), Some(details.to_owned()));
        let trouble = Trouble::of(error.clone());
        let failure = Failure::of_server(ServerError::try_from(error).expect("a server's"));
        let told = format!("{failure:?} {trouble:?}");
        assert!(!told.contains("secret"), "{told}");
        assert!(told.contains(code), "{told}");
    }
}

#[test]
fn causes_of_connections_are_told_in_words_of_ours() {
    let io = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
    let resolver = io::Error::other("failed to lookup address information: unknown");
    for (error, cause) in [
        (io(io::ErrorKind::ConnectionRefused), "connection refused"),
        (io(io::ErrorKind::TimedOut), "timed out"),
        (io(io::ErrorKind::NotFound), "no such socket"),
        (resolver.into(), "DNS: the host name has no address"),
        (io::Error::other("secret").into(), "connection failed"),
        (
            (ErrorKind::Io, "the pool gave no connection").into(),
            "connection lost",
        ),
    ] {
        let trouble = Trouble::of(error);
        assert_eq!(trouble.cause, cause);
        assert_eq!(trouble.kind, BackendErrorKind::Unreachable);
    }
}
