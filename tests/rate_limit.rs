//! Eight processes at one key: together they are admitted what the quota allows, no more, and hardly
//! less. The test binary runs itself as the other processes.

#[path = "behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use portcullis::{LockError, Portcullis, Quota, RateLimiter};

use support::Server;

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
    let (seconds, micros): (u64, u64) = leftovers::ask(connection, &["TIME"]);
    seconds * 1_000_000 + micros
}

/// Another process. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_process() {
    let Ok(url) = std::env::var("PORTCULLIS_TEST_URL") else {
        return;
    };
    // Connected, and not at the key that is judged.
    let limiter = limiter(&url);
    limiter.keyed("warm").peek().await.expect("answered");
    say("ready");
    assert_eq!(std::io::stdin().read(&mut [0]).ok(), Some(1), "a start");
    // Who started us holds the other end open for as long as it lives.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let mut admitted = 0_u32;
    let begun = Instant::now();
    while begun.elapsed() < ASKING {
        match limiter.check().await {
            Ok(_) => admitted += 1,
            // Not until it would be admitted alone: others are as quick. All eight ask at once.
            Err(LockError::Refused(_)) => tokio::time::sleep(Duration::from_micros(500)).await,
            Err(error) => panic!("{error}"),
        }
    }
    say(&admitted.to_string());
}

fn say(words: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "@{words}").expect("who started us listens");
    output.flush().expect("who started us listens");
}

/// Killed when dropped.
struct Other(Child, BufReader<std::process::ChildStdout>);

impl Other {
    fn start(server: &Server) -> Self {
        let myself = std::env::current_exe().expect("a running test has a binary");
        let mut child = Command::new(myself)
            .args([
                "--exact",
                "other_process",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("PORTCULLIS_TEST_URL", server.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test's own binary runs");
        let output = child.stdout.take().expect("it is piped");
        Self(child, BufReader::new(output))
    }

    /// The next that it says: what follows an `@`, because the test harness writes on the same lines.
    fn hear(&mut self) -> String {
        let mut lines = self.1.by_ref().lines().map_while(Result::ok);
        let said = lines.find_map(|line| Some(line.split_once('@')?.1.to_owned()));
        said.expect("it says something")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn eight_processes_are_admitted_what_one_would_be() {
    let server = Server::start();
    let mut connection = server.connection();
    let mut others: Vec<Other> = (0..PROCESSES).map(|_| Other::start(&server)).collect();
    for other in &mut others {
        assert_eq!(other.hear(), "ready");
    }
    let first = time_us(&mut connection);
    for other in &mut others {
        let start = other.0.stdin.as_mut().expect("it is piped");
        start.write_all(b"!").expect("it listens");
    }
    let counts: Vec<u32> = others
        .iter_mut()
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
