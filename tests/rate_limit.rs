//! Eight processes at one key: together they are admitted what the quota allows, no more, and hardly
//! less. The test binary runs itself as the other processes.

#[path = "behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
mod support;

use std::time::{Duration, Instant};

use portcullis::{LockError, Portcullis, Quota, RateLimiter};

use leftovers::ask;
use support::{Other, Server, my_role, say};

const PROCESSES: usize = 8;
const PER_SECOND: u32 = 500;
const BURST: u32 = 50;
/// How long each asks.
const ASKING: Duration = Duration::from_secs(5);

fn limiter(url: &str) -> RateLimiter {
    let builder = Portcullis::builder().url(url).prefix("suite");
    // Generous: a test machine may be busy.
    let handle = builder.command_timeout(Duration::from_secs(5)).build();
    let quota = Quota::per_second(PER_SECOND).burst(BURST);
    let handle = handle.expect("a valid configuration");
    handle.rate_limiter("shared", quota).expect("in range")
}

fn time_us(connection: &mut redis::Connection) -> u64 {
    let (seconds, micros): (u64, u64) = ask(connection, &["TIME"]);
    seconds * 1_000_000 + micros
}

/// Another process; its role is the server's address. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_process() {
    let Some(url) = my_role() else {
        return;
    };
    let client = redis::Client::open(url.as_str()).expect("a valid URL");
    let mut starter = client.get_connection().expect("the server is there");
    // Connected, and not at the key that is judged.
    let limiter = limiter(&url);
    limiter.keyed("warm").peek().await.expect("answered");
    say("ready");
    while ask::<i64>(&mut starter, &["EXISTS", "start"]) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut admitted = 0_u32;
    let begun = Instant::now();
    while begun.elapsed() < ASKING {
        match limiter.check().await {
            Ok(_) => admitted += 1,
            Err(LockError::Refused(_)) => tokio::time::sleep(Duration::from_micros(500)).await,
            Err(error) => panic!("{error}"),
        }
    }
    say(&admitted.to_string());
    std::future::pending::<()>().await;
}

#[test]
fn eight_processes_are_admitted_what_one_would_be() {
    let server = Server::start();
    let mut connection = server.connection();
    let start = |_| Other::start("other_process", &server.url(), |_| ());
    let others: Vec<Other> = (0..PROCESSES).map(start).collect();
    let first = time_us(&mut connection);
    let _: String = ask(&mut connection, &["SET", "start", "now"]);
    let counts: Vec<u32> = others
        .iter()
        .map(|other| other.hear().parse().expect("a number"))
        .collect();
    let last = time_us(&mut connection);
    let admitted = counts.iter().sum::<u32>();
    let elapsed = last - first;
    let bound = u64::from(BURST) + elapsed * u64::from(PER_SECOND) / 1_000_000;
    println!("{admitted} of {bound} in {elapsed} us: {counts:?}");
    assert!(u64::from(admitted) <= bound, "{admitted} of {bound}");
    assert!(
        u64::from(admitted) * 100 >= bound * 98,
        "{admitted} of {bound}"
    );
}
