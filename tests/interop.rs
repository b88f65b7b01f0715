//! The lock at an exact key, shared with clients of other languages: redis-py's `Lock`, and the
//! plain script that everybody writes.
//!
//! They need Python 3 and redis-py, which is fetched into `target/` when it is not there; without
//! them the tests fail. 100 rounds each, or 1,000 with `PORTCULLIS_SLOW=1`.

#[path = "behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
#[path = "behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
#[path = "interop/redis_py.rs"]
mod redis_py;
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use portcullis::{Mutex, Portcullis, RefusalKind};
use tokio::task::JoinSet;

use common::{LIMIT, LONG, give_back, promptly, refusal, take};
use leftovers::leftovers;
use support::history::{cap_kept, most_inside};
use support::{History, Hold, Server, wait_for};

const KEY: &str = "payment_processing";
/// How long a run may take, whose every hand-over waits for the other side's next look.
const RUN: Duration = Duration::from_secs(600);

fn rounds() -> u32 {
    let slow = std::env::var_os("PORTCULLIS_SLOW").is_some_and(|value| value == "1");
    if slow { 1_000 } else { 100 }
}

/// A Python process that goes in and out as often as it is told, in one of the ways of
/// `clients.py`.
struct Client {
    child: Child,
    way: &'static str,
}

impl Client {
    fn start(server: &Server, way: &'static str, rounds: u32) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/clients.py");
        let child = Command::new("python3")
            .arg(script)
            .args([way, &server.port().to_string(), KEY, &rounds.to_string()])
            .env("PYTHONPATH", redis_py::folder())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("these tests need python3 on the PATH");
        Self { child, way }
    }

    /// Waits for its end, and writes down when it was inside.
    fn finish(mut self, history: &History) -> u32 {
        let output = self.child.stdout.take().expect("it is piped");
        let mut count = 0;
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let times: Vec<u64> = line
                .split(' ')
                .filter_map(|word| word.parse().ok())
                .collect();
            let [acquired, ended] = times[..] else {
                panic!("{}: {line}", self.way)
            };
            history.held(Hold {
                asked: acquired,
                acquired,
                ended,
                fence: 0,
                weight: 1,
            });
            count += 1;
        }
        assert!(
            self.child.wait().expect("it is our child").success(),
            "{} failed",
            self.way
        );
        count
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mutex(handle: &Portcullis) -> Mutex {
    handle.mutex_at(KEY).ttl(LONG).expect("in range")
}

fn handle(server: &Server) -> Portcullis {
    Portcullis::builder()
        .url(server.url())
        .build()
        .expect("a valid configuration")
}

async fn visit(mutex: &Mutex, history: &History) {
    let asked = History::now();
    let guard = mutex.lock().await.expect("its turn comes");
    let acquired = History::now();
    // Long enough that somebody could get in between if that were possible.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let ended = History::now();
    history.held(Hold {
        asked,
        acquired,
        ended,
        fence: 0,
        weight: 1,
    });
    drop(guard);
}

/// `ways` of others and two handles of ours go in and out at one key.
async fn exclude_each_other(ways: &[&'static str]) {
    let server = Server::start();
    let history = History::default();
    let clients: Vec<_> = ways
        .iter()
        .map(|way| Client::start(&server, way, rounds()))
        .collect();
    let others = tokio::task::spawn_blocking({
        let history = history.clone();
        move || {
            clients
                .into_iter()
                .map(|client| client.finish(&history))
                .collect::<Vec<_>>()
        }
    });
    let mut tasks = JoinSet::new();
    for handle in [handle(&server), handle(&server)] {
        let (mutex, history) = (mutex(&handle), history.clone());
        tasks.spawn(async move {
            for _ in 0..rounds() {
                visit(&mutex, &history).await;
                // They look by a timer only: leave them a chance.
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        });
    }
    let ours = async { tasks.join_all().await.len() };
    let both = async { tokio::join!(ours, others) };
    let (ours, others) = common::within(RUN, "all rounds are done", both).await;
    assert_eq!(others.expect("no panic"), vec![rounds(); ways.len()]);
    assert_eq!(ours, 2);
    let holds = history.holds();
    assert_eq!(holds.len(), (2 + ways.len()) * rounds() as usize);
    assert_eq!(cap_kept(&holds, 1), Ok(()));
    assert_eq!(most_inside(&holds), 1);
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

#[tokio::test]
async fn redis_pys_lock_and_ours_exclude_each_other() {
    exclude_each_other(&["redis-py", "redis-py"]).await;
}

#[tokio::test]
async fn a_plain_script_and_ours_exclude_each_other() {
    exclude_each_other(&["plain", "plain"]).await;
}

#[tokio::test]
async fn each_is_refused_while_the_other_holds() {
    let server = Server::start();
    let mutex = mutex(&handle(&server));
    // They try once, and fail.
    let guard = take(&mutex).await;
    let history = History::default();
    for way in ["redis-py-try", "plain-try"] {
        let client = Client::start(&server, way, 3);
        let history = history.clone();
        let finish = tokio::task::spawn_blocking(move || client.finish(&history));
        assert_eq!(finish.await.expect("no panic"), 0, "{way} came in");
    }
    assert!(guard.is_held());
    give_back(guard).await;
    // And held by one of them, it is busy for us, until it is let go: which nobody tells us.
    let holder = Client::start(&server, "redis-py-hold", 1);
    wait_for("it holds", LIMIT, async || {
        !server.keys_with(KEY).await.is_empty()
    })
    .await;
    assert_eq!(refusal(mutex.try_lock().await).kind(), RefusalKind::Busy);
    let next = common::queue(&mutex);
    common::until_waiting(&mutex, 1).await;
    server.command(&["SET", "let go", "1", "PX", "60000"]).await;
    let finish = tokio::task::spawn_blocking(move || holder.finish(&History::default()));
    assert_eq!(finish.await.expect("no panic"), 1);
    give_back(
        promptly("its turn comes", next)
            .await
            .expect("no panic")
            .expect("its turn"),
    )
    .await;
}

/// redis-py has no release for a lock that it does not own: it tells so, as ours does.
#[tokio::test]
async fn one_that_expired_can_not_release_the_others() {
    let server = Server::start();
    let mutex = mutex(&handle(&server));
    let client = Client::start(&server, "redis-py-expire", 1);
    wait_for("it holds", LIMIT, async || {
        !server.keys_with(KEY).await.is_empty()
    })
    .await;
    let guard = common::served(common::queue(&mutex)).await;
    server.command(&["SET", "let go", "1", "PX", "60000"]).await;
    let finish = tokio::task::spawn_blocking(move || client.finish(&History::default()));
    // Zero: it says that its release was refused.
    assert_eq!(finish.await.expect("no panic"), 0);
    assert_eq!(refusal(mutex.try_lock().await).kind(), RefusalKind::Busy);
    assert!(guard.is_held());
    give_back(guard).await;
}
