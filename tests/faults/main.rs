//! Faults of one server, of the network in front of it, of its clients and of clocks, one by one.
//! README.md in this folder says which fault is shown where, in this suite and in others.
//!
//! `PORTCULLIS_FAULTS_SEED` chooses the moments at which some of them happen, and is printed. With
//! `PORTCULLIS_FAULTS_KEEP=1` processes keep permits, and hand locks on among their own requests. What
//! takes long, or a tool that not every machine has, is ignored unless `scripts/test --faults` asks
//! for it.

#[path = "../behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
#[path = "../behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
#[path = "../chaos/random.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod random;
#[path = "../behavior/rig.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod rig;
#[path = "../support/mod.rs"]
mod support;

mod client_life;
mod clocks;
mod connections;
mod flood;
mod memory_pressure;
mod pubsub;
mod replies;
mod rights;
mod server_life;
mod skew;

use std::time::{Duration, Instant};

use portcullis::{
    BackendError, BackendErrorKind, Builder, Keeping, Mutex, Portcullis, Semaphore, SemaphorePermit,
};

use self::common::{LIMIT, LONG};
use self::leftovers::ask;
use self::random::Random;
use self::rig::ServerRig;
use self::support::{Proxy, Server, wait_for};

/// What a push is worth until its process has spoken, and a heartbeat.
const CLAIM: Duration = Duration::from_secs(3);
/// The most that a push which nobody hears may cost: its claim and a question after it, twice over.
const UNHEARD: Duration = Duration::from_secs(12);

/// What a store does that refuses a fencing token smaller than one it has seen.
const FENCED_STORE: &str = "local seen = tonumber(redis.call('GET', KEYS[1]) or 0) \
     if tonumber(ARGV[1]) < seen then return 0 end \
     redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000) return 1";

/// Whether a fenced store accepts a write.
fn write(connection: &mut redis::Connection, fence: u64) -> bool {
    let words = ["EVAL", FENCED_STORE, "1", "store", &fence.to_string()];
    ask::<i64>(connection, &words) == 1
}

/// What chooses the moments of one test, by the suite's seed.
fn random(test: u64) -> Random {
    const SEED: u64 = 20_260_801;
    let seed = std::env::var("PORTCULLIS_FAULTS_SEED").unwrap_or_default();
    let seed = if seed.is_empty() {
        SEED
    } else {
        seed.parse().expect("PORTCULLIS_FAULTS_SEED is a number")
    };
    println!("PORTCULLIS_FAULTS_SEED={seed}");
    Random::stream(seed, test)
}

/// Whether the gates are such that their processes keep permits, and hand locks on among their own
/// requests.
fn keeps() -> bool {
    std::env::var_os("PORTCULLIS_FAULTS_KEEP").is_some_and(|value| value == "1")
}

fn mutex(handle: &Portcullis, ttl: Duration) -> Mutex {
    let handoffs = if keeps() { 4 } else { 0 };
    let mutex = plain_mutex(handle, ttl).local_handoffs(handoffs);
    mutex.expect("it is renewed")
}

/// One that is never kept. What it tells of who waits the server says, and not its own process.
fn plain_mutex(handle: &Portcullis, ttl: Duration) -> Mutex {
    handle.mutex("withdraw").ttl(ttl).expect("in range")
}

/// The same of a semaphore.
fn plain_semaphore(handle: &Portcullis, limit: u32, ttl: Duration) -> Semaphore {
    let semaphore = handle.semaphore("reports", limit).expect("in range");
    semaphore.ttl(ttl).expect("in range")
}

fn semaphore(handle: &Portcullis, limit: u32, ttl: Duration) -> Semaphore {
    let semaphore = plain_semaphore(handle, limit, ttl);
    if keeps() {
        let kept = semaphore.keep_permits(Keeping::default());
        kept.expect("they are renewed")
    } else {
        semaphore
    }
}

fn through(proxy: &Proxy) -> Builder {
    Portcullis::builder().url(proxy.url()).prefix("suite")
}

/// A later permit of a [`semaphore`] has a greater fencing token, or where permits are kept, and are
/// in no order, the one that whoever compares refuses.
fn assert_later(later: &SemaphorePermit, earlier: u64) {
    let fence = later.fencing_token().get();
    if keeps() {
        assert_eq!(fence, 0);
    } else {
        assert!(fence > earlier, "{fence}, after {earlier}");
    }
}

/// The two ways in which a call can tell that it got no answer.
fn assert_unanswered(error: &BackendError) {
    let kinds = [BackendErrorKind::Unreachable, BackendErrorKind::TimedOut];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

/// The key of ours of one kind: `m` a mutex, `mq` its queue, and so on.
async fn key(rig: &ServerRig, letters: &str) -> Option<String> {
    let keys = rig.server.keys_with("suite:").await;
    let part = format!("}}:{letters}:");
    keys.into_iter().find(|key| key.contains(&part))
}

/// Who holds the only mutex that is held: its token, and its fence.
async fn holder(rig: &ServerRig) -> Option<(String, u64)> {
    let key = key(rig, "m").await?;
    let value: Option<String> = ask(&mut rig.server.connection(), &["GET", &key]);
    let (token, fence) = value.as_deref()?.split_once(' ')?;
    Some((token.to_owned(), fence.parse().ok()?))
}

/// How many stand in the only queue.
async fn queued(rig: &ServerRig) -> i64 {
    match key(rig, "mq").await {
        Some(key) => ask(&mut rig.server.connection(), &["ZCARD", &key]),
        None => 0,
    }
}

/// The inboxes that are open.
fn inboxes(server: &Server) -> Vec<String> {
    ask(
        &mut server.connection(),
        &["PUBSUB", "CHANNELS", "suite:inbox:*"],
    )
}

/// How many connections the server sees besides the one that asks.
fn clients(server: &Server) -> usize {
    let clients: String = ask(&mut server.connection(), &["CLIENT", "LIST"]);
    clients.lines().count() - 1
}

/// Watches for `time` that something stays true.
async fn throughout(time: Duration, what: &str, truth: impl Fn() -> bool) {
    let begun = Instant::now();
    wait_for("the time passes", time + LIMIT, async || {
        assert!(truth(), "after {:?}: {what}", begun.elapsed());
        begun.elapsed() >= time
    })
    .await;
}

/// The other process, in the role that it was started for. As a test of its own it does nothing.
#[test]
fn other_process() {
    let Some(role) = support::my_role() else {
        return;
    };
    let url = std::env::var("PORTCULLIS_TEST_URL").expect("set along with the role");
    match role.as_str() {
        "go in order" => client_life::go_in_order(&url),
        "go at once" => client_life::go_at_once(&url),
        "use many keys" => flood::use_many_keys(&url),
        "hold by a wrong clock" => clocks::hold_by_a_wrong_clock(&url),
        other => panic!("no such role: {other}"),
    }
}

/// Starts another process that plays `role`, and waits until it is ready.
fn start(
    server: &Server,
    role: &str,
    dress: impl FnOnce(&mut std::process::Command),
) -> support::Other {
    support::Other::start("other_process", role, |command| {
        command.env("PORTCULLIS_TEST_URL", server.url());
        dress(command);
    })
}

/// A handle in another process.
fn handle(url: &str) -> Portcullis {
    let builder = Portcullis::builder().url(url).prefix("suite");
    // Generous: a test machine may be busy.
    builder
        .command_timeout(Duration::from_secs(2))
        .build()
        .expect("a valid configuration")
}

/// A TTL that is renewed each 2 s: what the next renewal tells is told long before it would expire.
const SOON: Duration = Duration::from_secs(6);

const _: () = assert!(SOON.as_secs() < LONG.as_secs());

/// All tests that the table names are there: it would else say that something is shown which is not.
#[test]
fn the_table_names_tests_that_exist() {
    fn sources(folder: &std::path::Path, all: &mut String) {
        let entries = std::fs::read_dir(folder).expect("a folder of the tests");
        for entry in entries {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                sources(&path, all);
            } else if path.extension().is_some_and(|end| end == "rs") {
                all.push_str(&std::fs::read_to_string(path).expect("text"));
            }
        }
    }
    let mut all = String::new();
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    sources(&tests, &mut all);
    let table = include_str!("README.md");
    let mut named = 0;
    for name in table.split('`').skip(1).step_by(2) {
        if name.contains('_') && !name.contains(['/', '.', ' ', '-']) {
            named += 1;
            let made = [format!("fn {name}("), format!("fn {name}<")];
            assert!(made.iter().any(|made| all.contains(made)), "{name}");
        }
    }
    assert!(named > 60, "{named}");
}
