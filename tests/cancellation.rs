//! Futures that are dropped at every point: whatever they had begun, nothing of it is left (C119,
//! C125, K2; fault 13).

#![allow(
    clippy::async_yields_async,
    reason = "what is prepared is one step, and the future that is dropped another"
)]

#[path = "behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
#[path = "behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
mod support;

use std::cell::Cell;
use std::future::Future;
use std::time::Duration;

use portcullis::{LostReason, Mutex, Portcullis, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use common::{LIMIT, LONG, all_done, promptly, queue, served, take, until_waiting, within};
use leftovers::leftovers;
use support::history::{cap_kept, fences_rise};
use support::{History, Hold, Mode, Proxy, Server, poll_k_times, poll_k_times_and_wake, wait_for};

/// More permits than one, so that what leaks one does not hide behind what leaks all.
const PERMITS: u32 = 3;

/// A server, a handle on it by some path, and another one that looks at what is left.
struct Scene {
    server: Server,
    proxy: Proxy,
    handle: Portcullis,
    other: Portcullis,
}

impl Scene {
    fn new(mode: Mode) -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        proxy.set(mode);
        let handle = handle(&proxy.url());
        let other = handle_of(&server);
        Self {
            server,
            proxy,
            handle,
            other,
        }
    }

    /// The ways from a handle to its server.
    fn paths() -> [Self; 3] {
        let slow = Duration::from_millis(10);
        let late_replies = Mode::Flows {
            requests: support::Flow::Pass,
            replies: support::Flow::Delay(Duration::from_millis(25)),
        };
        [
            Self::new(Mode::Pass),
            Self::new(Mode::Delay(slow)),
            Self::new(late_replies),
        ]
    }

    /// Neither keys tell of anything, nor is any permit missing.
    async fn assert_nothing_left(&self, what: &str) {
        let mut connection = self.server.connection();
        for round in 0..2 {
            let mut left = Vec::new();
            wait_for(&format!("{what} leaves nothing"), LIMIT, async || {
                let now = leftovers(&mut connection);
                if now != left {
                    left = now;
                    eprintln!("{what}: left {left:#?}");
                }
                left.is_empty()
            })
            .await;
            if round == 0 {
                // Not by a wait in the queue. But a request that was on its way when its future was
                // dropped may arrive only now: it holds until its end, right behind it, arrives
                // too.
                let mut lock = None;
                wait_for(
                    &format!("{what} leaves a lock that can be had"),
                    LIMIT,
                    async || {
                        lock = mutex(&self.other).try_lock().await.ok();
                        lock.is_some()
                    },
                )
                .await;
                let permits = semaphore(&self.other);
                let all = promptly("all are there", permits.acquire_many(PERMITS)).await;
                assert!(all.is_ok(), "{what}: {all:?}");
            }
        }
    }
}

fn handle(url: &str) -> Portcullis {
    let builder = Portcullis::builder().url(url).prefix("suite");
    builder
        .command_timeout(Duration::from_secs(2))
        .build()
        .expect("a valid configuration")
}

fn handle_of(server: &Server) -> Portcullis {
    handle(&server.url())
}

fn mutex(handle: &Portcullis) -> Mutex {
    handle.mutex("withdraw").ttl(LONG).expect("in range")
}

fn semaphore(handle: &Portcullis) -> Semaphore {
    handle
        .semaphore("reports", PERMITS)
        .expect("in range")
        .ttl(LONG)
        .expect("in range")
}

/// Polls futures of `make` one time, two times and so on, and drops them, until one is done.
/// `beside` runs along with each, and is told when its future is done or dropped.
async fn at_every_poll<F: Future>(
    scene: &Scene,
    what: &str,
    make: impl AsyncFn() -> F,
    beside: impl AsyncFn(&Cell<bool>),
) {
    for woken in [false, true] {
        for k in 0.. {
            let what = format!("{what}, polled {k} times, woken: {woken}");
            let future = make().await;
            let over = Cell::new(false);
            let polled = async {
                let output = if woken {
                    poll_k_times_and_wake(future, k).await
                } else {
                    poll_k_times(future, k).await
                };
                over.set(true);
                output.is_some()
            };
            let (done, ()) =
                within(LIMIT, &what, async { tokio::join!(polled, beside(&over)) }).await;
            scene.assert_nothing_left(&what).await;
            if done {
                break;
            }
        }
    }
}

async fn nothing(_: &Cell<bool>) {}

#[tokio::test]
async fn a_try_can_be_dropped_at_every_poll() {
    for scene in Scene::paths() {
        let lock = mutex(&scene.handle);
        at_every_poll(&scene, "try_lock", async || lock.try_lock(), nothing).await;
        let permits = semaphore(&scene.handle);
        at_every_poll(
            &scene,
            "try_acquire",
            async || permits.try_acquire(),
            nothing,
        )
        .await;
    }
}

#[tokio::test]
async fn an_acquire_of_what_is_free_can_be_dropped_at_every_poll() {
    for scene in Scene::paths() {
        let lock = mutex(&scene.handle);
        at_every_poll(&scene, "lock", async || lock.lock(), nothing).await;
        let permits = semaphore(&scene.handle);
        at_every_poll(
            &scene,
            "acquire_many",
            async || permits.acquire_many(2),
            nothing,
        )
        .await;
    }
}

/// Gives a place back when the future beside it stands in the queue, or is over already.
async fn release_for_a_waiter<T>(scene: &Scene, held: &Cell<Option<T>>, over: &Cell<bool>) {
    let mut connection = scene.server.connection();
    wait_for("it waits, or is over", LIMIT, async || {
        let keys: Vec<String> = leftovers::ask(&mut connection, &["KEYS", "suite:*q:*"]);
        over.get() || !keys.is_empty()
    })
    .await;
    drop(held.take());
}

#[tokio::test]
async fn an_acquire_that_waits_and_is_granted_can_be_dropped_at_every_poll() {
    for scene in Scene::paths() {
        let (lock, others) = (mutex(&scene.handle), mutex(&scene.other));
        let held = Cell::new(None);
        at_every_poll(
            &scene,
            "a lock that waits",
            async || {
                held.set(Some(take(&others).await));
                lock.lock()
            },
            async |over| release_for_a_waiter(&scene, &held, over).await,
        )
        .await;
        let (permits, others) = (semaphore(&scene.handle), semaphore(&scene.other));
        let held = Cell::new(None);
        at_every_poll(
            &scene,
            "an acquire_many that waits",
            async || {
                held.set(Some(take(&others).await));
                permits.acquire_many(PERMITS)
            },
            async |over| release_for_a_waiter(&scene, &held, over).await,
        )
        .await;
    }
}

#[tokio::test]
async fn a_wait_that_ends_can_be_dropped_at_every_poll() {
    for scene in Scene::paths() {
        let lock = mutex(&scene.handle).max_wait(Duration::from_millis(100));
        let held = Cell::new(None);
        at_every_poll(
            &scene,
            "a lock that waits too long",
            async || {
                held.set(Some(take(&mutex(&scene.other)).await));
                lock.lock()
            },
            async |over| {
                wait_for("it is over", LIMIT, async || over.get()).await;
                drop(held.take());
            },
        )
        .await;
    }
}

#[tokio::test]
async fn a_release_can_be_dropped_at_every_poll() {
    for scene in Scene::paths() {
        let (lock, permits) = (mutex(&scene.handle), semaphore(&scene.handle));
        at_every_poll(
            &scene,
            "release",
            async || take(&lock).await.release(),
            nothing,
        )
        .await;
        let many = async || permits.acquire_many(2).await.expect("it is free").release();
        at_every_poll(&scene, "release of many", many, nothing).await;
    }
}

#[tokio::test]
async fn a_shutdown_can_be_dropped_at_every_poll() {
    for scene in Scene::paths() {
        let held = Cell::new(None);
        let waiting = Cell::new(None);
        at_every_poll(
            &scene,
            "shutdown",
            async || {
                let ending = handle(&scene.proxy.url());
                held.set(Some(take(&mutex(&ending)).await));
                waiting.set(Some(queue(&mutex(&ending))));
                until_waiting(&mutex(&scene.other), 1).await;
                async move { ending.shutdown(Duration::ZERO).await }
            },
            async |over| {
                wait_for("it is over", LIMIT, async || over.get()).await;
                let (guard, waiter) = (held.take().expect("held"), waiting.take().expect("waits"));
                // Never polled, it never began; and a shutdown that was dropped goes on.
                let reason = tokio::time::timeout(Duration::from_millis(300), guard.lost()).await;
                assert!(
                    matches!(reason, Err(_) | Ok(LostReason::ShutDown)),
                    "{reason:?}"
                );
                drop(guard);
                let turn = promptly("its wait ends", waiter).await.expect("no panic");
                assert_eq!(turn.is_ok(), reason.is_err());
            },
        )
        .await;
    }
}

/// By where the request is when its future is dropped: not sent, on its way, run without an answer,
/// on its way for too long.
#[tokio::test]
async fn an_acquire_can_be_dropped_wherever_its_request_is() {
    for mode in [
        Mode::Cut,
        Mode::BlackHole,
        Mode::EatReplies,
        Mode::EatRequests,
        Mode::HoldRequests,
        Mode::HoldReplies,
        Mode::HalfOpen,
    ] {
        let scene = Scene::new(Mode::Pass);
        let (lock, permits) = (mutex(&scene.handle), semaphore(&scene.handle));
        drop(take(&lock).await);
        scene.assert_nothing_left("a first use").await;
        for pause in [0, 5, 60] {
            scene.proxy.set(mode);
            tokio::select! {
                biased;
                taken = lock.lock() => panic!("{mode:?}: {taken:?}"),
                taken = permits.acquire_many(2) => panic!("{mode:?}: {taken:?}"),
                taken = lock.try_lock() => panic!("{mode:?}: {taken:?}"),
                () = sleep(Duration::from_millis(pause)) => {}
            }
            scene.proxy.set(Mode::Pass);
            scene
                .assert_nothing_left(&format!("{mode:?}, dropped after {pause} ms"))
                .await;
        }
    }
}

/// Any sequence of numbers will do, if it is the same again for the same seed.
struct Dice(u64);

impl Dice {
    /// A number below `sides`: xorshift64*, of G. Marsaglia and S. Vigna.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    }
}

/// One acquire that is dropped at a random time, or its holding that is.
async fn begin_and_drop(lock: &Mutex, permits: &Semaphore, dice: &mut Dice, seen: &[History; 2]) {
    // Most are dropped on the way; the others see to it that there is something to be in the way
    // of.
    let longest = if dice.roll(3) == 0 { 200_000 } else { 12_000 };
    let patience = sleep(Duration::from_micros(dice.roll(longest)));
    let stay = Duration::from_micros(dice.roll(2_000));
    let asked = History::now();
    let (kind, weight) = (dice.roll(4), 1 + dice.roll(u64::from(PERMITS)) as u32);
    tokio::select! {
        () = patience => {}
        () = async {
            match kind {
                0 | 1 => {
                    let taken = if kind == 0 { lock.lock().await } else { lock.try_lock().await };
                    if let Ok(guard) = taken {
                        let acquired = History::now();
                        // Dropped in its midst it is not written down, which hides nothing: it
                        // holds for less.
                        sleep(stay).await;
                        let (ended, fence) = (History::now(), guard.fencing_token().get());
                        seen[0].held(Hold { asked, acquired, ended, fence, weight: 1 });
                        let _ = guard.release().await;
                    }
                }
                _ => {
                    if let Ok(permit) = permits.acquire_many(weight).await {
                        let acquired = History::now();
                        sleep(stay).await;
                        let (ended, fence) = (History::now(), permit.fencing_token().get());
                        seen[1].held(Hold { asked, acquired, ended, fence, weight });
                        if kind == 2 {
                            let _ = permit.release().await;
                        }
                    }
                }
            }
        } => {}
    }
}

#[tokio::test]
async fn a_thousand_drops_at_random_times_leave_nothing() {
    let seed = std::env::var("PORTCULLIS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(History::now);
    eprintln!("PORTCULLIS_SEED={seed}");
    let scene = Scene::new(Mode::Delay(Duration::from_millis(1)));
    // Connected before: else all may be dropped while they wait for the connection.
    for handle in [&scene.handle, &scene.other] {
        drop(take(&mutex(handle)).await);
    }
    let seen = [History::default(), History::default()];
    // A machine that stands still for a moment lets all patience end at once: then they come again.
    let mut round = 0;
    while seen.iter().any(|history| history.holds().is_empty()) {
        round += 1;
        let mut tasks = JoinSet::new();
        for task in 0..40_u64 {
            let handle = if task % 2 == 0 {
                &scene.handle
            } else {
                &scene.other
            };
            let (lock, permits, seen) = (mutex(handle), semaphore(handle), seen.clone());
            let mut dice = Dice((seed.wrapping_mul(round) ^ task << 40) | 1);
            tasks.spawn(async move {
                for _ in 0..25 {
                    begin_and_drop(&lock, &permits, &mut dice, &seen).await;
                }
            });
        }
        all_done(tasks).await;
    }
    for (history, cap) in seen.iter().zip([1, PERMITS]) {
        assert_eq!(cap_kept(&history.holds(), cap), Ok(()));
        assert_eq!(fences_rise(&history.holds()), Ok(()));
    }
    scene.assert_nothing_left("a thousand drops").await;
    // And those who come after them are served as ever.
    let guard = take(&mutex(&scene.handle)).await;
    let next = queue(&mutex(&scene.other));
    until_waiting(&mutex(&scene.handle), 1).await;
    drop(guard);
    drop(served(next).await);
    scene.assert_nothing_left("the next ones").await;
}
