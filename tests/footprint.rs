//! What gates in memory take, and that all of it comes back: of keys that were used once nothing
//! stays.
//!
//! Each test runs in a process of its own, in which nothing else takes memory, and looks at what is
//! resident there. What was given back need not leave the process: glibc returns to the system what
//! lies at the end of its heap, and one block there that anybody still uses, or that a thread keeps
//! at hand, keeps all below it resident. So where more stays resident than is allowed, the free
//! blocks are filled before judging: what others can use has come back.
//!
//! With `PORTCULLIS_SLOW=1` there are a million keys everywhere, at once too. Without it some tests
//! take fewer, and allow as much less. `--nocapture` shows the figures.

#![cfg(target_os = "linux")]

#[path = "behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
mod support;

use std::time::{Duration, Instant};

use portcullis::test_util::MemoryServer;
use portcullis::{LeaseMode, Mutex, RefusalKind};
use tokio::task::JoinSet;
use tokio::time::advance;

use common::{LIMIT, queue, refusal, served, take, until_waiting, waiting};
use support::{in_use, is_slow, resident, wait_for};

const MILLION: u64 = 1_000_000;
/// 20 MB of a million.
const ALLOWED_PER_KEY: u64 = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// So many that a debug build holds them at once in a few seconds.
fn at_once() -> u64 {
    if is_slow() { MILLION } else { MILLION / 5 }
}

/// Runs `measure` as the test `name` in a process of its own, on a paused clock.
fn alone(name: &str, measure: impl AsyncFnOnce()) {
    let mut paused = tokio::runtime::Builder::new_current_thread();
    support::alone(name, paused.enable_time().start_paused(true), measure);
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// What was in use at the beginning, to which it has to come back.
struct Before {
    in_use: u64,
    allowed: u64,
}

impl Before {
    /// Before `keys` are used.
    fn now(keys: u64) -> Self {
        Self {
            in_use: in_use(),
            allowed: keys * ALLOWED_PER_KEY,
        }
    }

    /// Tells what each of `count` takes now, and panics if that is more than `most`.
    #[track_caller]
    fn each_takes(&self, what: &str, count: u64, most: u64) {
        let each = (resident() - self.in_use) / count;
        println!("{what}: {each} bytes each");
        assert!(each <= most, "{what}: {each} bytes each");
    }

    /// Waits until all is back but what is allowed.
    async fn is_back(&self, what: &str) {
        let goal = self.in_use + self.allowed;
        let mut seen = String::new();
        wait_for(&format!("{what}: memory is back"), LIMIT, async || {
            let resident = resident();
            let used = if resident > goal { in_use() } else { resident };
            let now = format!(
                "{what}: {:.1} MB resident, {:.1} of them in use; {:.1} before",
                megabytes(resident),
                megabytes(used),
                megabytes(self.in_use),
            );
            if seen.is_empty() {
                println!("{now}");
            }
            seen = now;
            used <= goal
        })
        .await;
        println!("{seen}");
    }
}

/// Starts what is started once: the keeper, tables for what is in use, the buffer of the output.
async fn warm_up(mutex: &Mutex) {
    let fixed = mutex.clone().lease(LeaseMode::Fixed).expect("in range");
    for number in 0..1_000_u32 {
        drop(take(&fixed.keyed(number)).await);
    }
}

#[test]
fn a_million_keys_that_are_used_once_leave_nothing() {
    alone(
        "a_million_keys_that_are_used_once_leave_nothing",
        async || {
            let server = MemoryServer::new();
            let handle = server.handle();
            let renewed = handle.mutex("once");
            // So long that what waits for its end would be seen.
            let fixed = renewed.clone().ttl(60 * MINUTE);
            let fixed = fixed.and_then(|fixed| fixed.lease(LeaseMode::Fixed));
            let fixed = fixed.expect("in range");
            warm_up(&renewed).await;
            let before = Before::now(MILLION);
            for number in 0..MILLION {
                let mutex = if number % 2 == 0 { &renewed } else { &fixed };
                drop(mutex.keyed(number).lock().await.expect("it is free"));
            }
            before.is_back("one after another").await;
            server.assert_idle();
        },
    );
}

/// Some that stay, and stand between those that go: they pin their own and no more.
#[test]
fn a_million_keys_that_are_held_at_once_leave_nothing() {
    alone(
        "a_million_keys_that_are_held_at_once_leave_nothing",
        async || {
            let server = MemoryServer::on_tokio_time();
            let handle = server.handle();
            let (short, long) = (handle.mutex("short").ttl(MINUTE), handle.mutex("long"));
            let short = short
                .and_then(|short| short.lease(LeaseMode::Fixed))
                .expect("in range");
            warm_up(&short).await;
            let keys = at_once();
            let before = Before::now(keys);
            let mut pins = Vec::new();
            let mut guards = Vec::new();
            for number in 0..keys {
                guards.push(short.keyed(number).lock().await.expect("it is free"));
                if number % (keys / 8) == keys / 10 {
                    let held = take(&long.keyed(number)).await;
                    let unused = short.keyed(format!("unused {number}"));
                    pins.push((held, unused));
                }
            }
            before.each_takes("held by a fixed lease, with its guard", keys, 1_500);
            let last = tokio::spawn(guards.last().expect("one is held").lost());
            advance(MINUTE).await;
            wait_for("the last one is lost", LIMIT, async || last.is_finished()).await;
            assert!(guards.iter().all(|guard| !guard.is_held()));
            before.each_takes("lost, with its guard", keys, 1_700);
            drop(guards);
            before.is_back("while some stay").await;
            assert!(pins.iter().all(|(held, ..)| held.is_held()));
            drop(pins);
            before.is_back("when all are gone").await;
            server.assert_idle();
        },
    );
}

#[test]
fn a_million_renewed_leases_leave_nothing() {
    alone("a_million_renewed_leases_leave_nothing", async || {
        let server = MemoryServer::on_tokio_time();
        let mutex = server.handle().mutex("renewed");
        warm_up(&mutex).await;
        let keys = at_once();
        let before = Before::now(keys);
        let gates: Vec<_> = (0..keys).map(|number| mutex.keyed(number)).collect();
        before.each_takes("a mutex that nobody holds", keys, 1_000);
        let mut guards = Vec::new();
        for gate in gates {
            guards.push(gate.lock().await.expect("it is free"));
        }
        before.each_takes("held by a renewed lease, with its guard", keys, 1_200);
        let told = guards.iter().filter(|guard| guard.is_held()).count();
        assert_eq!(told as u64, keys);
        before.each_takes("likewise, asked whether it is held", keys, 1_500);
        // The other way around, so that neither order matters.
        while guards.pop().is_some() {}
        drop(guards);
        before.is_back("all at once").await;
        server.assert_idle();
    });
}

/// However many were held at one place, one who stays does not pin their room.
#[test]
fn permits_that_are_given_back_leave_nothing_beside_one_that_stays() {
    alone(
        "permits_that_are_given_back_leave_nothing_beside_one_that_stays",
        async || {
            let server = MemoryServer::on_tokio_time();
            let slots = server.handle().semaphore("slots", u32::MAX);
            // With an end that does not come, though the clock moves while memory is waited for.
            let limited = slots.and_then(|slots| slots.lease(LeaseMode::MaxHold(60 * MINUTE)));
            let limited = limited.expect("in range");
            warm_up(&server.handle().mutex("other")).await;
            let count = at_once();
            let before = Before::now(count);
            let mut permits = Vec::new();
            for _ in 0..count {
                permits.push(limited.acquire().await.expect("one is free"));
            }
            before.each_takes("a permit with an end", count, 400);
            let stays = permits.pop();
            drop(permits);
            before.is_back("beside one that stays").await;
            assert!(stays.is_some_and(|stays| stays.is_held()));
            server.assert_idle();
        },
    );
}

/// All give up in one moment, behind a holder who stays, and again behind a waiter who does.
#[test]
fn a_hundred_thousand_waiters_that_give_up_leave_nothing() {
    alone(
        "a_hundred_thousand_waiters_that_give_up_leave_nothing",
        async || {
            const WAITERS: u32 = 100_000;
            let server = MemoryServer::on_tokio_time();
            let mutex = server.handle().mutex("crowd").max_waiters(2 * WAITERS);
            warm_up(&mutex).await;
            let holder = take(&mutex).await;
            // 2 MB, of what are 80 with their tasks.
            let before = Before::now(u64::from(WAITERS));
            let crowd = gather(&mutex, WAITERS).await;
            before.each_takes("a waiter, with its task", u64::from(WAITERS), 1_500);
            disperse("behind a holder", crowd).await;
            before.is_back("behind a holder").await;
            let patient = queue(&mutex);
            until_waiting(&mutex, 1).await;
            let crowd = gather(&mutex, WAITERS / 5).await;
            disperse("behind a waiter", crowd).await;
            before.is_back("behind a waiter").await;
            assert!(holder.is_held());
            drop(holder);
            drop(served(patient).await);
            server.assert_idle();
        },
    );
}

type Crowd = JoinSet<RefusalKind>;

/// Has many wait for a minute at most.
async fn gather(mutex: &Mutex, count: u32) -> Crowd {
    let others = waiting(mutex).await.expect("a position");
    let limited = mutex.clone().max_wait(MINUTE);
    let mut crowd = JoinSet::new();
    for _ in 0..count {
        let limited = limited.clone();
        crowd.spawn(async move { refusal(limited.lock().await).kind() });
    }
    until_waiting(mutex, others + u64::from(count)).await;
    crowd
}

/// Lets the minute pass.
async fn disperse(what: &str, mut crowd: Crowd) {
    let begun = Instant::now();
    advance(MINUTE).await;
    while let Some(kind) = crowd.join_next().await {
        assert_eq!(kind.expect("no panic"), RefusalKind::WaitedTooLong);
    }
    println!("{what}: all gave up within {:?}", begun.elapsed());
}
