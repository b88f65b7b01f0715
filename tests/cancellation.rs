//! Futures that are dropped at every point: whatever they had begun, nothing of it is left (C119,
//! C125, K2; fault 13).
//!
//! The sentences hold wherever gates live. A [`Scene`] is one such place, with some way to it; what
//! is only true of requests to a server stands behind them.

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
use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{hint, thread};

use axum::body::Body;
use futures_util::FutureExt;
use http::{Request, Response};
use portcullis::test_util::MemoryServer;
use portcullis::{
    ConcurrencyLimitLayer, Keeping, LeaseMode, LockError, LostReason, Mutex, MutexGuard,
    Portcullis, Semaphore,
};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;
use tower::{Layer, ServiceExt};

use common::{
    Gate, LIMIT, LONG, all_done, promptly, queue, served, take, until_waiting, waiting, within,
};
use leftovers::leftovers;
use support::history::{cap_kept, fences_rise};
use support::{History, Hold, Mode, Proxy, Server, poll_k_times, poll_k_times_and_wake, wait_for};

/// More permits than one, so that what leaks one does not hide behind what leaks all.
const PERMITS: u32 = 3;
/// Of leases whose end is waited for.
const SHORT: Duration = Duration::from_millis(300);

/// Gates, a handle on them by some path, and another one that looks at what is left.
trait Scene: Sized {
    /// Whether each permit has a fencing token.
    const FENCED: bool = true;

    /// The ways from a handle to its gates.
    fn paths() -> Vec<Self>;

    /// A way that takes a moment, where any does.
    fn quick() -> Self;

    /// Whose futures are dropped.
    fn handle(&self) -> &Portcullis;

    /// Who looks, and is in the way.
    fn other(&self) -> &Portcullis;

    /// A handle as [`handle`](Self::handle) gives it, to be shut down.
    fn one_more(&self) -> Portcullis;

    /// A lock of one of these handles.
    fn lock(handle: &Portcullis) -> Mutex {
        mutex(handle)
    }

    fn permits(handle: &Portcullis) -> Semaphore {
        semaphore(handle)
    }

    /// Nothing tells of anything that was begun, nor is any permit missing.
    async fn assert_nothing_left(&self, what: &str);
}

struct ServerScene {
    server: Server,
    proxy: Proxy,
    handle: Portcullis,
    other: Portcullis,
}

impl ServerScene {
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
}

impl Scene for ServerScene {
    fn paths() -> Vec<Self> {
        let slow = Duration::from_millis(10);
        let late_replies = Mode::Flows {
            requests: support::Flow::Pass,
            replies: support::Flow::Delay(Duration::from_millis(25)),
        };
        vec![
            Self::new(Mode::Pass),
            Self::new(Mode::Delay(slow)),
            Self::new(late_replies),
        ]
    }

    fn quick() -> Self {
        Self::new(Mode::Delay(Duration::from_millis(1)))
    }

    fn handle(&self) -> &Portcullis {
        &self.handle
    }

    fn other(&self) -> &Portcullis {
        &self.other
    }

    fn one_more(&self) -> Portcullis {
        handle(&self.proxy.url())
    }

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

/// The same, where whoever is dropped keeps permits, and hands locks on among its own requests.
struct KeepingScene(ServerScene);

impl Scene for KeepingScene {
    const FENCED: bool = false;

    fn paths() -> Vec<Self> {
        ServerScene::paths().into_iter().map(Self).collect()
    }

    fn quick() -> Self {
        Self(ServerScene::quick())
    }

    fn handle(&self) -> &Portcullis {
        self.0.handle()
    }

    fn other(&self) -> &Portcullis {
        self.0.other()
    }

    fn one_more(&self) -> Portcullis {
        self.0.one_more()
    }

    fn lock(handle: &Portcullis) -> Mutex {
        mutex(handle).local_handoffs(4).expect("it is renewed")
    }

    fn permits(handle: &Portcullis) -> Semaphore {
        let kept = semaphore(handle).keep_permits(Keeping::default());
        kept.expect("they are renewed")
    }

    async fn assert_nothing_left(&self, what: &str) {
        self.0.assert_nothing_left(what).await;
    }
}

struct MemoryScene {
    server: MemoryServer,
    handle: Portcullis,
    other: Portcullis,
}

impl Scene for MemoryScene {
    fn paths() -> Vec<Self> {
        vec![Self::quick()]
    }

    fn quick() -> Self {
        let server = MemoryServer::new();
        Self {
            handle: server.handle(),
            other: server.handle(),
            server,
        }
    }

    fn handle(&self) -> &Portcullis {
        &self.handle
    }

    fn other(&self) -> &Portcullis {
        &self.other
    }

    fn one_more(&self) -> Portcullis {
        self.server.handle()
    }

    /// At once: nothing is on its way anywhere.
    async fn assert_nothing_left(&self, what: &str) {
        eprintln!("{what}");
        self.server.assert_idle();
        let lock = mutex(&self.other).try_lock().await;
        let permits = semaphore(&self.other).max_wait(Duration::ZERO);
        let all = permits.acquire_many(PERMITS).await;
        assert!(lock.is_ok() && all.is_ok(), "{what}: {lock:?}, {all:?}");
        drop((lock, all));
        self.server.assert_idle();
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
    scene: &impl Scene,
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

async fn a_try_can_be_dropped_at_every_poll<S: Scene>() {
    for scene in S::paths() {
        let lock = S::lock(scene.handle());
        at_every_poll(&scene, "try_lock", async || lock.try_lock(), nothing).await;
        let permits = S::permits(scene.handle());
        at_every_poll(
            &scene,
            "try_acquire",
            async || permits.try_acquire(),
            nothing,
        )
        .await;
    }
}

async fn an_acquire_of_what_is_free_can_be_dropped_at_every_poll<S: Scene>() {
    for scene in S::paths() {
        let lock = S::lock(scene.handle());
        at_every_poll(&scene, "lock", async || lock.lock(), nothing).await;
        let permits = S::permits(scene.handle());
        at_every_poll(
            &scene,
            "acquire_many",
            async || permits.acquire_many(2),
            nothing,
        )
        .await;
        at_every_poll(&scene, "acquire", async || permits.acquire(), nothing).await;
    }
}

/// Gives a place back when the future beside it stands in the queue, or is over already.
async fn release_for_a_waiter<G: Gate>(gate: &G, held: &Cell<Option<G::Guard>>, over: &Cell<bool>) {
    wait_for("it waits, or is over", LIMIT, async || {
        over.get() || waiting(gate).await > Some(0)
    })
    .await;
    drop(held.take());
}

async fn an_acquire_that_waits_and_is_granted_can_be_dropped_at_every_poll<S: Scene>() {
    for scene in S::paths() {
        let (lock, others) = (S::lock(scene.handle()), mutex(scene.other()));
        let held = Cell::new(None);
        at_every_poll(
            &scene,
            "a lock that waits",
            async || {
                held.set(Some(take(&others).await));
                lock.lock()
            },
            async |over| release_for_a_waiter(&others, &held, over).await,
        )
        .await;
        let (permits, others) = (S::permits(scene.handle()), semaphore(scene.other()));
        let held = Cell::new(None);
        at_every_poll(
            &scene,
            "an acquire_many that waits",
            async || {
                let all = others.acquire_many(PERMITS).await;
                held.set(Some(all.expect("all are there")));
                permits.acquire_many(PERMITS)
            },
            async |over| release_for_a_waiter(&others, &held, over).await,
        )
        .await;
        at_every_poll(
            &scene,
            "an acquire that waits",
            async || {
                let all = others.acquire_many(PERMITS).await;
                held.set(Some(all.expect("all are there")));
                permits.acquire()
            },
            async |over| release_for_a_waiter(&others, &held, over).await,
        )
        .await;
    }
}

async fn a_wait_that_ends_can_be_dropped_at_every_poll<S: Scene>() {
    for scene in S::paths() {
        let lock = S::lock(scene.handle()).max_wait(Duration::from_millis(100));
        let held = Cell::new(None);
        at_every_poll(
            &scene,
            "a lock that waits too long",
            async || {
                held.set(Some(take(&mutex(scene.other())).await));
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

async fn a_release_can_be_dropped_at_every_poll<S: Scene>() {
    for scene in S::paths() {
        let (lock, permits) = (S::lock(scene.handle()), S::permits(scene.handle()));
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

async fn a_shutdown_can_be_dropped_at_every_poll<S: Scene>() {
    for scene in S::paths() {
        let held = Cell::new(None);
        let waiting = Cell::new(None);
        at_every_poll(
            &scene,
            "shutdown",
            async || {
                let ending = scene.one_more();
                held.set(Some(take(&S::lock(&ending)).await));
                waiting.set(Some(queue(&S::lock(&ending))));
                until_waiting(&mutex(scene.other()), 1).await;
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

async fn what_watches_a_lease_can_be_dropped_at_every_poll<S: Scene>() {
    for scene in S::paths() {
        let fixed = mutex(scene.handle())
            .ttl(SHORT)
            .and_then(|mutex| mutex.lease(LeaseMode::Fixed))
            .expect("in range");
        let look = async || {
            let guard = take(&fixed).await;
            async move { guard.lost().await }
        };
        at_every_poll(&scene, "lost", look, nothing).await;
        let work = async || {
            let guard = take(&fixed).await;
            async move { guard.while_held(pending::<()>()).await }
        };
        at_every_poll(&scene, "while_held", work, nothing).await;
    }
}

async fn a_gated_request_can_be_dropped_at_every_poll<S: Scene>() {
    for scene in S::paths() {
        let others = semaphore(scene.other());
        let handler = tower::service_fn(async |_: Request<Body>| {
            yield_now().await;
            Ok::<_, Infallible>(Response::new(Body::from("done")))
        });
        let layer = ConcurrencyLimitLayer::new(S::permits(scene.handle())).max_wait(LONG);
        let held = Cell::new(None);
        at_every_poll(
            &scene,
            "a gated request",
            async || {
                let all = others.acquire_many(PERMITS).await.expect("all are there");
                held.set(Some(all));
                layer.layer(handler).oneshot(Request::new(Body::empty()))
            },
            async |over| release_for_a_waiter(&others, &held, over).await,
        )
        .await;
    }
}

/// Those behind it are served by its going alone.
async fn a_large_request_that_is_dropped_lets_the_small_ones_behind_it_pass<S: Scene>() {
    for scene in S::paths() {
        let (permits, others) = (S::permits(scene.handle()), semaphore(scene.other()));
        let held = take(&others).await;
        let mut large = tokio::spawn({
            let permits = permits.clone();
            async move { permits.acquire_many(PERMITS).await }
        });
        wait_for("the large one waits", LIMIT, async || {
            // A permit is free until it does.
            match others.try_acquire().await {
                Err(LockError::Refused(refusal)) => refusal.position() == Some(1),
                _ => false,
            }
        })
        .await;
        let small = [queue(&others), queue(&permits)];
        until_waiting(&others, 3).await;
        large.abort();
        assert!((&mut large).await.is_err());
        for small in small {
            drop(served(small).await);
        }
        drop(held);
        scene.assert_nothing_left("a large request").await;
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

async fn a_thousand_drops_at_random_times_leave_nothing<S: Scene>() {
    let seed = std::env::var("PORTCULLIS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(History::now);
    eprintln!("PORTCULLIS_SEED={seed}");
    let scene = S::quick();
    // Connected before: else all may be dropped while they wait for the connection.
    for handle in [scene.handle(), scene.other()] {
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
                scene.handle()
            } else {
                scene.other()
            };
            let (lock, permits, seen) = (S::lock(handle), S::permits(handle), seen.clone());
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
        if cap == 1 || S::FENCED {
            assert_eq!(fences_rise(&history.holds()), Ok(()));
        }
    }
    scene.assert_nothing_left("a thousand drops").await;
    // And those who come after them are served as ever.
    let guard = take(&S::lock(scene.handle())).await;
    let next = queue(&mutex(scene.other()));
    until_waiting(&mutex(scene.handle()), 1).await;
    drop(guard);
    drop(served(next).await);
    scene.assert_nothing_left("the next ones").await;
}

/// Every sentence, for one kind of scene.
macro_rules! sentences {
    ($place:ident, $scene:ident) => {
        mod $place {
            sentences! { @ $scene
                a_try_can_be_dropped_at_every_poll
                an_acquire_of_what_is_free_can_be_dropped_at_every_poll
                an_acquire_that_waits_and_is_granted_can_be_dropped_at_every_poll
                a_wait_that_ends_can_be_dropped_at_every_poll
                a_release_can_be_dropped_at_every_poll
                a_shutdown_can_be_dropped_at_every_poll
                what_watches_a_lease_can_be_dropped_at_every_poll
                a_gated_request_can_be_dropped_at_every_poll
                a_large_request_that_is_dropped_lets_the_small_ones_behind_it_pass
                a_thousand_drops_at_random_times_leave_nothing
            }
        }
    };
    (@ $scene:ident $($sentence:ident)*) => {$(
        #[tokio::test]
        async fn $sentence() {
            crate::$sentence::<crate::$scene>().await;
        }
    )*};
}

sentences!(on_a_server, ServerScene);
sentences!(where_permits_are_kept, KeepingScene);
sentences!(in_memory, MemoryScene);

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
        let scene = ServerScene::new(Mode::Pass);
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

/// In memory a grant and a drop can be at work at once, on two threads. On a server they meet in
/// one thread, and the answer is what is late.
#[test]
fn an_acquire_can_be_dropped_while_another_thread_grants_it() {
    const ROUNDS: u32 = 20_000;
    let scene = MemoryScene::quick();
    let (lock, others) = (mutex(&scene.handle), mutex(&scene.other));
    let (give, given) = channel::<MutexGuard>();
    let (done, is_done) = channel();
    let releasing = thread::spawn(move || {
        for guard in given {
            drop(guard);
            done.send(()).expect("the other thread waits");
        }
    });
    for round in 0..ROUNDS {
        let guard = others.lock().now_or_never().expect("at once");
        let mut waits = Box::pin(lock.lock());
        assert!(waits.as_mut().now_or_never().is_none());
        give.send(guard.expect("it is free"))
            .expect("the other thread waits");
        // Each time a bit later, so that some of them meet.
        for _ in 0..round % 400 {
            hint::spin_loop();
        }
        drop(waits);
        is_done.recv().expect("the other thread does not panic");
        scene.server.assert_idle();
    }
    drop(give);
    releasing.join().expect("the other thread does not panic");
}
