//! One connection for commands: how it is opened, and what is done when it is made.

use std::fmt;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, RedisError,
    ServerError, Value, make_extension_error,
};
use tokio::time::timeout;

use super::Settings;
use super::origin::{Origin, Reached, Term};
use super::reply::{self, Failure, failure};
use super::script::{Publish, Script};
use super::wire::Wire;

/// The system asks over a connection that has been quiet for so long whether the other side is
/// there: what is between them would else forget it, and its death be found by who uses it next.
const WATCH: TcpKeepalive = TcpKeepalive::new();
const QUIET: Duration = Duration::from_secs(15);

/// A connection that has just been made.
pub(in crate::backend) struct Fresh {
    pub(in crate::backend) connection: Wire,
    pub(in crate::backend) term: Term,
    /// The server's clock, read during the handshake.
    pub(in crate::backend) us: u64,
    /// How its scripts tell of grants.
    pub(super) publish: Publish,
    /// The policy by which the server may drop keys that are in use, if it has one.
    pub(in crate::backend) evicts: Option<String>,
}

impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh")
            .field("term", &self.term)
            .field("us", &self.us)
            .field("evicts", &self.evicts)
            .finish_non_exhaustive()
    }
}

/// Opens a connection, reads the server's clock over it and loads the scripts that it lacks, unless
/// somebody else does.
///
/// Fails where it would not serve: at a replica, which takes connections as a master does, and while
/// the server loads its data or is busy.
pub(in crate::backend) async fn connect<S>(
    origin: &Origin,
    settings: &Settings,
    probe: &str,
    in_cluster: bool,
    scripts: impl FnOnce(Publish) -> S,
) -> Result<Fresh, RedisError>
where
    S: Iterator<Item = &'static Script>,
{
    let Reached {
        mut connection,
        term,
    } = origin.connect(settings).await?;
    let publish = if in_cluster {
        // Known before the scripts are loaded: it chooses which.
        let mut info = Cmd::new();
        info.arg("INFO").arg("server");
        let info = timeout(
            settings.connect_timeout,
            connection.send_packed_command(&info),
        );
        publishes(&info.await.map_err(|_| timed_out())??)
    } else {
        Publish::Plain
    };
    let scripts: Vec<&Script> = if settings.preloaded {
        Vec::new()
    } else {
        scripts(publish).collect()
    };
    let greeting = greeting(probe, &scripts);
    let handshake = timeout(
        settings.connect_timeout,
        connection.send_packed_commands(&greeting, 0, greeting.len()),
    );
    let handshake = async { handshake.await.map_err(|_| timed_out())? };
    let answers = origin.within(term, Box::pin(handshake)).await?;
    let us = answers
        .first()
        .and_then(|time| reply::time(time).ok())
        .ok_or_else(|| {
            let what = answers
                .first()
                .cloned()
                .and_then(|answer| answer.extract_error().err());
            what.unwrap_or_else(|| {
                (
                    ErrorKind::UnexpectedReturnType,
                    "TIME was not answered with a time",
                )
                    .into()
            })
        })?;
    if let Some(answer) = answers.get(1) {
        serves(answer.clone())?;
    }
    if answers.get(2).is_some_and(is_replica) {
        let replica = "You can't write against a read only replica.".to_owned();
        return Err(make_extension_error("READONLY".to_owned(), Some(replica)));
    }
    load(
        &connection,
        missing(&scripts, answers.get(GREETING..).unwrap_or_default()),
        settings.connect_timeout,
    );
    Ok(Fresh {
        connection,
        term,
        us,
        publish,
        evicts: answers.get(3).and_then(evicting_policy),
    })
}

/// How many commands a greeting begins with, before it asks for scripts.
const GREETING: usize = 4;
/// How many scripts one command asks for: to who has not given its credentials a server closes the
/// connection for a command of more than ten words, and its answer to the others would be lost,
/// which says what is wrong.
const ASKED: usize = 8;

/// `TIME` first: it is the one answer that is needed. It is given while the server loads, too: hence
/// the probe. Last, which of the scripts the server has.
fn greeting(probe: &str, scripts: &[&Script]) -> Pipeline {
    let mut greeting = Pipeline::new();
    greeting.cmd("TIME").cmd("GET").arg(probe);
    greeting.cmd("INFO").arg("replication");
    greeting.cmd("INFO").arg("memory");
    for some in scripts.chunks(ASKED) {
        greeting.cmd("SCRIPT").arg("EXISTS");
        for script in some {
            greeting.arg(&script.sha);
        }
    }
    greeting
}

/// Those that the server did not say it has.
fn missing<'a>(scripts: &'a [&'static Script], answers: &'a [Value]) -> Vec<&'static Script> {
    let told = answers.iter().map(Some).chain(std::iter::repeat(None));
    let chunks = scripts.chunks(ASKED).zip(told);
    let missing = chunks.flat_map(|(some, answer)| {
        let known = match answer {
            Some(Value::Array(known)) => known.as_slice(),
            // A user without the right to ask may have that to load.
            _ => &[],
        };
        let known = known.iter().map(Some).chain(std::iter::repeat(None));
        let lacks = |(_, known): &(_, Option<&Value>)| *known != Some(&Value::Int(1));
        some.iter()
            .zip(known)
            .filter(lacks)
            .map(|(script, _)| *script)
    });
    missing.collect()
}

/// Loads scripts, ahead of whatever is sent over the connection from here on.
///
/// Nobody waits for that. They are many times as large as all else that is sent over a fresh
/// connection: a server that is short of time, and that a whole fleet comes back to, would get
/// nothing done but to load what it has already, for connections that are given up before it is
/// through. Scripts that can't be loaded (a user without that right) are sent whole when they are
/// needed.
fn load(connection: &Wire, missing: Vec<&'static Script>, patience: Duration) {
    if missing.is_empty() {
        return;
    }
    let mut connection = connection.clone();
    tokio::spawn(async move {
        let pipeline = scripts(missing.into_iter());
        let _ = timeout(
            patience,
            connection.send_packed_commands(&pipeline, 0, pipeline.len()),
        )
        .await;
    });
}

/// Asks for a key that nobody has: answered by a server that serves, with whatever.
pub(in crate::backend) async fn probe(
    connection: &mut Wire,
    key: &str,
    patience: Duration,
) -> Result<(), RedisError> {
    let mut get = Cmd::new();
    get.arg("GET").arg(key);
    match timeout(patience, connection.send_packed_command(&get)).await {
        Ok(answer) => serves(answer?),
        Err(_) => Err(timed_out()),
    }
}

/// Fails if the server says that it can't serve now; any other no is a service.
fn serves(answer: Value) -> Result<(), RedisError> {
    let Err(error) = answer.extract_error() else {
        return Ok(());
    };
    match ServerError::try_from(error).map(Failure::of_server) {
        Ok(Failure::NotNow(_, error)) | Err(error) => Err(error),
        Ok(_) => Ok(()),
    }
}

fn is_replica(info: &Value) -> bool {
    field(info, "role:").is_some_and(|role| role == "slave")
}

/// What loads all scripts of a server.
pub(super) fn all_scripts(publish: Publish) -> Pipeline {
    scripts(Script::all(publish))
}

/// What loads scripts.
pub(in crate::backend) fn scripts(all: impl Iterator<Item = &'static Script>) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for script in all {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.code);
    }
    pipeline
}

/// What connects to a server, with our settings of its socket: small requests must not wait for the
/// acknowledgement of earlier ones.
fn client(info: ConnectionInfo) -> Result<Client, RedisError> {
    let mut tcp = info.tcp_settings().clone().set_nodelay(true);
    if tcp.keepalive().is_none() {
        tcp = tcp.set_keepalive(WATCH.with_time(QUIET).with_interval(QUIET / 2));
    }
    Client::open(info.set_tcp_settings(tcp))
}

/// A connection of our own, for commands.
pub(super) async fn open(
    info: ConnectionInfo,
    settings: &Settings,
    config: AsyncConnectionConfig,
) -> Result<MultiplexedConnection, RedisError> {
    let client = client(info)?;
    // Each batch has a timer of its own, so none is needed for each command; and this attempt has
    // one, too.
    let config = config
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let opening = client.get_multiplexed_async_connection_with_config(&config);
    opened(client.get_connection_info(), settings, opening).await
}

/// A connection of our own, to listen.
pub(super) async fn open_to_listen(
    info: ConnectionInfo,
    settings: &Settings,
) -> Result<PubSub, RedisError> {
    let client = client(info)?;
    let opening = client.get_async_pubsub();
    opened(client.get_connection_info(), settings, opening).await
}

/// Waits for a connection, and says more of why there is none than the system does.
async fn opened<T>(
    info: &ConnectionInfo,
    settings: &Settings,
    opening: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let opened = timeout(settings.connect_timeout, opening).await;
    let opened = opened.unwrap_or_else(|_| Err(timed_out()));
    opened.map_err(|error| failure::suspect(error, info.addr()))
}

pub(in crate::backend) fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// The eviction policy in `INFO memory`, if there is a limit at which it would act.
fn evicting_policy(info: &Value) -> Option<String> {
    let policy = field(info, "maxmemory_policy:")?;
    let acts = policy != "noeviction" && field(info, "maxmemory:") != Some("0");
    acts.then(|| policy.to_owned())
}

/// How scripts tell of grants on a node of a cluster that answers this to `INFO server`: by channels
/// for each slot if it knows them, which every server that does not tell its version is taken to do.
pub(super) fn publishes(info: &Value) -> Publish {
    let version = field(info, "redis_version:");
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match major {
        Some(..7) => Publish::Plain,
        Some(7..) | None => Publish::Sharded,
    }
}

/// What an answer to `INFO` says behind `name`.
pub(in crate::backend) fn field<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    let text = match info {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?,
        Value::VerbatimString { text, .. } => text,
        _ => return None,
    };
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found.map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn nodes_before_redis_7_know_no_channels_of_slots() {
        let of = |version: &str| publishes(&info(&format!("redis_version:{version}\r\n")));
        assert_eq!(of("6.2.14"), Publish::Plain);
        for version in ["7.0.15", "10.0.0", "unstable"] {
            assert_eq!(of(version), Publish::Sharded);
        }
        assert_eq!(publishes(&Value::Nil), Publish::Sharded);
    }

    #[test]
    fn only_scripts_that_the_server_lacks_are_loaded() {
        let all: Vec<&Script> = Script::all(Publish::Plain).collect();
        assert!(all.len() > ASKED);
        let lacks = |answers: &[Value]| missing(&all, answers).len();
        let known = |count: usize| Value::Array(vec![Value::Int(1); count]);
        let rest = all.len() - ASKED;
        assert_eq!(lacks(&[known(ASKED), known(rest)]), 0);
        assert_eq!(lacks(&[known(ASKED), known(rest - 1)]), 1);
        let mut first = vec![Value::Int(1); ASKED];
        first[3] = Value::Int(0);
        let lacking = missing(&all, &[Value::Array(first), known(rest)]);
        assert_eq!(lacking.len(), 1);
        assert_eq!(lacking[0].sha, all[3].sha);
        // Who may not ask loads all.
        assert_eq!(lacks(&[Value::Nil, Value::Nil]), all.len());
        assert_eq!(lacks(&[]), all.len());
    }

    #[test]
    fn nothing_in_a_greeting_is_too_long_for_who_has_not_given_its_credentials() {
        let all: Vec<&Script> = Script::all(Publish::Plain).collect();
        let greeting = greeting("probe", &all);
        assert_eq!(greeting.len(), GREETING + all.len().div_ceil(ASKED));
        for command in greeting.cmd_iter() {
            assert!(command.args_iter().count() <= 10);
        }
    }

    #[test]
    fn a_policy_is_told_of_only_where_it_can_act() {
        let evicting = info("used_memory:1\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n");
        assert_eq!(evicting_policy(&evicting).as_deref(), Some("allkeys-lru"));
        assert_eq!(
            evicting_policy(&info("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n")),
            None
        );
        assert_eq!(
            evicting_policy(&info("maxmemory:100\r\nmaxmemory_policy:noeviction\r\n")),
            None
        );
        assert_eq!(evicting_policy(&Value::Nil), None);
    }
}
