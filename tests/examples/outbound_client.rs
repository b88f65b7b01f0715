//! A client and a job runner behind gates.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use portcullis::{Portcullis, Semaphore};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::example::{Example, LONG};
use crate::support::Server;

const NAME: &str = "outbound_client";

/// The two numbers of a line as `20 calls answered, 0 refused here; most inside at once: 3 of 3`:
/// the first and the last but one.
fn count_and_most(line: &str) -> (u32, u32) {
    let numbers = line.split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<u32> = numbers.filter_map(|digits| digits.parse().ok()).collect();
    (numbers[0], numbers[numbers.len() - 2])
}

/// Where the example's calls go, if not to an upstream of its own.
async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// The example's gate, as another process of the fleet has it.
fn gate(server: &Server) -> Semaphore {
    let gates = Portcullis::builder().url(server.url()).build();
    let gate = gates.and_then(|gates| gates.semaphore("upstream", 1));
    gate.expect("a valid configuration")
}

#[tokio::test]
async fn no_more_calls_or_jobs_are_under_way_at_once_than_their_caps_say() {
    let mut example = Example::start(NAME, &[("CALLS", "12"), ("CAP", "2")]);
    example.hear("upstream on http://127.0.0.1:").await;
    let ended = example.end().await;
    ended.assert_well_and_in_memory();
    let [calls, jobs] = &ended.output[..] else {
        panic!("not two lines: {:?}", ended.output);
    };
    for (line, all) in [(calls, 12), (jobs, 8)] {
        let (done, most) = count_and_most(line);
        assert_eq!(done, all, "{line}");
        assert!((1..=2).contains(&most), "{line}");
    }
}

#[tokio::test]
async fn calls_of_two_processes_are_capped_together() {
    let inside = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let answer = async move || {
        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
        seen.fetch_max(now, Ordering::SeqCst);
        sleep(Duration::from_millis(20)).await;
        inside.fetch_sub(1, Ordering::SeqCst);
        now.to_string()
    };
    let upstream = serve(Router::new().route("/", get(answer))).await;
    let server = Server::start();
    let (url, settings) = (server.url(), [("UPSTREAM", &*upstream), ("CALLS", "10")]);
    let settings = [settings[0], settings[1], ("REDIS_URL", &url)];
    let (one, other) = (
        Example::start(NAME, &settings),
        Example::start(NAME, &settings),
    );
    for ended in [one.end().await, other.end().await] {
        assert!(ended.status.success(), "{}", ended.errors);
        assert_eq!(count_and_most(&ended.output[1]).0, 10, "{:?}", ended.output);
    }
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

#[tokio::test]
async fn a_call_whose_turn_does_not_come_is_refused_without_leaving() {
    let server = Server::start();
    let _taken = gate(&server).acquire().await.expect("a free permit");
    let url = server.url();
    let settings = [
        ("REDIS_URL", &*url),
        ("CAP", "1"),
        ("CALLS", "3"),
        ("MAX_WAIT_MS", "0"),
    ];
    let mut example = Example::start(NAME, &settings);
    example.hear("upstream on ").await;
    let line = example.hear("0 calls answered, 3 refused here").await;
    assert!(line.ends_with("most inside at once: 0 of 1"), "{line}");
    assert!(example.end().await.status.success());
}

#[tokio::test]
async fn told_to_end_it_has_given_its_permit_back_before_it_ends() {
    let (enter, mut entered) = mpsc::unbounded_channel();
    let stuck = async move || {
        let _ = enter.send(());
        std::future::pending::<()>().await;
    };
    let upstream = serve(Router::new().route("/", get(stuck))).await;
    let server = Server::start();
    let url = server.url();
    let settings = [("REDIS_URL", &*url), ("UPSTREAM", &upstream), ("CAP", "1")];
    let example = Example::start(NAME, &settings);
    let inside = timeout(LONG, entered.recv()).await.expect("in time");
    inside.expect("a call has come");
    assert!(gate(&server).try_acquire().await.is_err());
    example.terminate().await;
    let ended = example.end().await;
    assert!(ended.status.success(), "{}", ended.errors);
    assert!(gate(&server).try_acquire().await.is_ok());
}
