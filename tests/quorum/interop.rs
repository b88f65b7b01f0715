//! A lock at an exact key, shared with a plain Redlock client: in Python, with redis-py.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{LONG, note, within};
use crate::servers::Servers;
use crate::support::history::cap_kept;
use crate::support::{History, Hold};

#[path = "../interop/redis_py.rs"]
mod redis_py;

const KEY: &str = "payment_processing";
const ROUNDS: usize = 40;
/// How long a run may take, whose every hand-over waits for the other side's next look.
const RUN: Duration = Duration::from_secs(300);

#[tokio::test]
async fn a_plain_redlock_client_and_ours_keep_each_other_out() {
    let servers = Servers::start(3);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/quorum/redlock.py");
    let ports = servers
        .servers
        .iter()
        .map(|server| server.port().to_string());
    let child = Command::new("python3")
        .arg(script)
        .args([KEY, &ROUNDS.to_string()])
        .args(ports)
        .env("PYTHONPATH", redis_py::folder())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("these tests need python3 on the PATH");
    let history = History::default();
    let mutex = servers.handle().mutex_at(KEY).ttl(LONG).expect("in range");
    let ours = async {
        for _ in 0..ROUNDS {
            let moment = tokio::time::sleep(Duration::from_millis(1));
            let guard = note(&history, 1, mutex.lock(), moment).await;
            drop(guard.expect("its turn comes"));
        }
    };
    let theirs = tokio::task::spawn_blocking(move || child.wait_with_output());
    let ((), theirs) = within(RUN, "both are served", async { tokio::join!(ours, theirs) }).await;
    let theirs = theirs.expect("no panic").expect("it is our child");
    assert!(theirs.status.success(), "the client failed");
    let lines = String::from_utf8(theirs.stdout).expect("it prints numbers");
    assert_eq!(lines.lines().count(), ROUNDS);
    for line in lines.lines() {
        let times: Vec<u64> = line
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let (acquired, ended) = (times[0], times[1]);
        history.held(Hold {
            asked: acquired,
            acquired,
            ended,
            fence: 0,
            weight: 1,
        });
    }
    cap_kept(&history.holds(), 1).expect("one at a time");
    servers.settled().await;
}
