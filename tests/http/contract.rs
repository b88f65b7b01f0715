//! Tower's contract: readiness, clones, what is called when. It holds wherever gates live, on a
//! server and in memory, where a free lease is granted within the call.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::FutureExt;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use portcullis::layer::BoxError;
use portcullis::test_util::MemoryServer;
use portcullis::{
    ConcurrencyLimitLayer, LockError, Mutex, MutexLayer, Portcullis, Quota, RateLimitLayer,
    Semaphore,
};
use tokio::task::yield_now;
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer as LocalLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::fixture::{Broken, Fixture, PROMPTLY, Pieces, Probe, SEEN, request};
use crate::support::poll_k_times;

/// Where the gates of a test live. All that it sees of them, it sees through their primitives.
pub(crate) trait Place: Sized {
    /// As often is repeated what goes wrong once in a while.
    const ROUNDS: usize;

    fn start() -> Self;

    fn gates(&self) -> &Portcullis;

    fn semaphore(&self, limit: u32) -> Semaphore {
        let semaphore = self.gates().semaphore("reports", limit);
        semaphore
            .and_then(|semaphore| semaphore.ttl(LONG_TTL))
            .expect("in range")
    }

    fn mutex(&self) -> Mutex {
        let mutex = self.gates().mutex("withdraw");
        mutex.ttl(LONG_TTL).expect("in range")
    }

    /// Waits until all `limit` permits are free, promptly.
    async fn wait_until_free(&self, limit: u32) {
        let semaphore = self.semaphore(limit).max_wait(PROMPTLY);
        let all = semaphore.acquire_many(limit).await;
        all.expect("promptly").release().await.expect("in time");
    }

    async fn wait_until_unlocked(&self) {
        let lock = self.mutex().max_wait(PROMPTLY).lock().await;
        lock.expect("promptly").release().await.expect("in time");
    }

    /// Whether none of `limit` permits can be taken.
    async fn is_full(&self, limit: u32) -> bool {
        self.semaphore(limit).try_acquire().await.is_err()
    }

    /// Waits until so many wait for one of `limit` permits, none of which is free.
    async fn wait_until_full_for(&self, limit: u32, expected: u64) {
        let semaphore = self.semaphore(limit);
        wait_until_waiting(expected, async || semaphore.try_acquire().await.err()).await;
    }

    /// Waits until so many wait for the lock, which is not free.
    async fn wait_until_locked_for(&self, expected: u64) {
        let mutex = self.mutex();
        wait_until_waiting(expected, async || mutex.try_lock().await.err()).await;
    }
}

/// Of all gates, so that no end of a lease explains what is to happen promptly.
const LONG_TTL: Duration = Duration::from_secs(30);

/// Looks again and again, without a pause: what is waited for a thousand times may take no time.
async fn wait_until_waiting(expected: u64, mut refused: impl AsyncFnMut() -> Option<LockError>) {
    let begun = Instant::now();
    loop {
        let error = refused().await.expect("not free");
        let waiting = match &error {
            LockError::Refused(refusal) => refusal.position(),
            _ => panic!("{error}"),
        };
        if waiting == Some(expected) {
            return;
        }
        assert!(
            begun.elapsed() < PROMPTLY,
            "{waiting:?} wait, and not {expected}"
        );
        yield_now().await;
    }
}

/// A server, or a quorum.
impl<const N: usize> Place for Fixture<N> {
    const ROUNDS: usize = 30 / N;

    fn start() -> Self {
        Self::on_servers()
    }

    fn gates(&self) -> &Portcullis {
        &self.gates
    }
}

/// A server, of which this process keeps permits, and hands locks on among its own requests.
pub(crate) struct Keeping(Fixture<1>);

impl Place for Keeping {
    const ROUNDS: usize = 30;

    fn start() -> Self {
        Self(Fixture::new())
    }

    fn gates(&self) -> &Portcullis {
        &self.0.gates
    }

    fn semaphore(&self, limit: u32) -> Semaphore {
        let kept = self
            .0
            .semaphore(limit)
            .keep_permits(portcullis::Keeping::default());
        kept.expect("they are renewed")
    }

    fn mutex(&self) -> Mutex {
        self.0.mutex().local_handoffs(4).expect("it is renewed")
    }
}

/// This process' memory.
pub(crate) struct InMemory {
    pub(crate) server: MemoryServer,
    gates: Portcullis,
}

impl Place for InMemory {
    const ROUNDS: usize = 1_000;

    fn start() -> Self {
        let server = MemoryServer::new();
        let gates = server.handle();
        Self { server, gates }
    }

    fn gates(&self) -> &Portcullis {
        &self.gates
    }
}

/// Makes tests of sentences about a place of this type, or about so many servers.
macro_rules! in_a_place {
    ($name:ident, $servers:literal; $($sentences:tt)*) => {
        $crate::contract::in_a_place! { @ $name $servers $($sentences)* }
    };
    ($name:ident, $place:ty; $($sentences:tt)*) => {
        $crate::contract::in_a_place! { @ $name $place $($sentences)* }
    };
    (@ $name:ident $of:tt $($sentence:ident,)*) => {
        mod $name {
            $(
                #[tokio::test]
                async fn $sentence() {
                    super::$sentence::<$of>().await;
                }
            )*
        }
    };
}
pub(crate) use in_a_place;

/// The same in each place where gates can live: of a quorum on five servers, so that there can be
/// three permits. One that is left out is dead code, which the compiler tells.
macro_rules! in_each_place {
    ($(everywhere { $($all:ident,)* })? $(but_on_a_quorum { $($some:ident,)* })?) => {
        $crate::contract::in_a_place! { on_a_server, $crate::fixture::Fixture<1>; $($($all,)*)? $($($some,)*)? }
        $($crate::contract::in_a_place! { on_a_quorum, $crate::fixture::Fixture<5>; $($all,)* })?
        $($crate::contract::in_a_place! { where_permits_are_kept, $crate::contract::Keeping; $($all,)* })?
        $crate::contract::in_a_place! { in_memory, $crate::contract::InMemory; $($($all,)*)? $($($some,)*)? }
    };
}
pub(crate) use in_each_place;

/// The same on one server and on a quorum of three, of sentences that look at what is there.
macro_rules! on_servers {
    ($($sentence:ident,)*) => {
        $crate::contract::in_a_place! { on_a_server, 1; $($sentence,)* }
        $crate::contract::in_a_place! { on_a_quorum, 3; $($sentence,)* }
    };
}
pub(crate) use on_servers;

in_each_place! {
    everywhere {
        the_inner_service_is_called_once_and_not_before_admission,
        a_hundred_clones_share_one_limit,
        a_layer_on_one_route_leaves_its_neighbors_alone,
        the_inner_services_error_passes_through_and_gives_the_lease_back,
        requests_pass_a_gate_over_and_under_each_of_towers_layers,
        a_time_out_outside_of_a_gate_takes_its_waiter_out_of_the_queue,
        a_time_out_inside_of_a_gate_gives_the_permit_back,
        a_local_limit_outside_of_a_gate_bounds_how_many_wait,
        a_refusal_keeps_nothing_that_the_inner_service_had_reserved,
        a_response_future_that_is_never_polled_leaves_nothing,
        response_futures_dropped_at_any_await_leave_nothing,
    }
    // Rate limits are not kept there.
    but_on_a_quorum {
        one_service_called_again_and_again_polls_its_inner_service_ready_each_time,
        being_ready_reserves_nothing,
    }
}

#[tokio::test]
async fn in_memory_a_free_lease_is_granted_within_the_call() {
    let place = InMemory::start();
    let probe = Probe::answering(Pieces::empty);
    let mut gated = ConcurrencyLimitLayer::new(place.semaphore(1)).layer(probe.clone());
    let response = gated.ready().await.expect("always ready").call(request());
    assert_eq!(probe.calls(), 1);
    assert!(place.is_full(1).await);
    drop(response);
    place.server.assert_idle();
}

async fn the_inner_service_is_called_once_and_not_before_admission<P: Place>() {
    let place = P::start();
    let held = place.mutex().lock().await.expect("a free lock");
    let probe = Probe::answering(Pieces::empty);
    let gated = MutexLayer::new(place.mutex()).layer(probe.clone());
    let response = tokio::spawn(gated.oneshot(request()));
    place.wait_until_locked_for(1).await;
    assert_eq!(probe.calls(), 0);
    drop(held);
    let response = response
        .await
        .expect("no panic")
        .expect("the probe does not fail");
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(probe.calls(), 1);
}

async fn one_service_called_again_and_again_polls_its_inner_service_ready_each_time<P: Place>() {
    let place = P::start();
    let probe = Probe::answering(Pieces::empty);
    let mut gated = MutexLayer::new(place.mutex()).layer(probe.clone());
    for calls in 1..=5 {
        let ready = gated.ready().await.expect("always ready");
        ready
            .call(request())
            .await
            .expect("the probe does not fail");
        assert_eq!(probe.calls(), calls);
    }
    let limiter = place.gates().rate_limiter("api", Quota::per_second(1_000));
    let probe = Probe::answering(Pieces::empty);
    let mut limited = RateLimitLayer::new(limiter.expect("in range")).layer(probe.clone());
    for calls in 1..=5 {
        let ready = limited.ready().await.expect("always ready");
        let answer = ready.call(request()).await;
        assert_eq!(answer.expect("an answer").status(), StatusCode::OK);
        assert_eq!(probe.calls(), calls);
    }
}

async fn being_ready_reserves_nothing<P: Place>() {
    let place = P::start();
    let layer = ConcurrencyLimitLayer::new(place.semaphore(3));
    let gated = layer.layer(Probe::answering(Pieces::empty));
    let mut ready = Vec::new();
    for _ in 0..10 {
        let mut clone = gated.clone();
        clone.ready().await.expect("always ready");
        ready.push(clone);
    }
    let all = place
        .semaphore(3)
        .max_wait(Duration::ZERO)
        .acquire_many(3)
        .await;
    drop(all.expect("ready services hold nothing"));

    let two = place.gates().rate_limiter("api", Quota::per(2, LONG_TTL));
    let two = two.expect("in range");
    let limited = RateLimitLayer::new(two.clone()).layer(Probe::answering(Pieces::empty));
    for _ in 0..10 {
        limited.clone().ready().await.expect("always ready");
    }
    assert_eq!(two.peek().await.expect("in time").remaining(), 2);
}

async fn a_hundred_clones_share_one_limit<P: Place>() {
    let place = P::start();
    let inside = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let probe = {
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        Probe::new(move |_| {
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            async move {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(Response::new(Pieces::empty()))
            }
        })
    };
    let layer = ConcurrencyLimitLayer::new(place.semaphore(3)).max_wait(Duration::from_secs(10));
    let gated = layer.layer(probe);
    let responses = join_all((0..100).map(|_| gated.clone().oneshot(request()))).await;
    assert!(responses.iter().all(|response| {
        response
            .as_ref()
            .is_ok_and(|response| response.status() == StatusCode::OK)
    }));
    assert_eq!(most.load(Ordering::SeqCst), 3);
    place.wait_until_free(3).await;
}

async fn a_layer_on_one_route_leaves_its_neighbors_alone<P: Place>() {
    let place = P::start();
    let _held = place.semaphore(1).acquire().await.expect("a free permit");
    let layer = ConcurrencyLimitLayer::new(place.semaphore(1)).max_wait(Duration::ZERO);
    let app: Router = Router::new()
        .route("/gated", get(async || "in").layer(layer))
        .route("/healthz", get(async || "ok"));
    let ask = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).expect("a path");
        app.clone()
            .oneshot(request)
            .await
            .expect("routers do not fail")
            .status()
    };
    assert_eq!(ask("/gated").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ask("/healthz").await, StatusCode::OK);
}

async fn the_inner_services_error_passes_through_and_gives_the_lease_back<P: Place>() {
    let place = P::start();
    let layer = ConcurrencyLimitLayer::new(place.semaphore(1));
    let mut gated = layer.layer(Probe::new(|_| async { Err(Broken) }));
    let mut response = gated.ready().await.expect("always ready").call(request());
    assert_eq!((&mut response).await.expect_err("the probe fails"), Broken);
    // While the future is kept.
    place.wait_until_free(1).await;
    drop(response);
}

/// Counts how many are inside at once, each for a few turns of the runtime.
struct Inside {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Inside {
    fn probe() -> (Arc<Self>, Probe) {
        let inside = Arc::new(Self {
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        });
        let counted = Arc::clone(&inside);
        let probe = Probe::new(move |_| {
            let inside = Arc::clone(&counted);
            async move {
                let now = inside.now.fetch_add(1, Ordering::SeqCst) + 1;
                inside.most.fetch_max(now, Ordering::SeqCst);
                for _ in 0..3 {
                    yield_now().await;
                }
                inside.now.fetch_sub(1, Ordering::SeqCst);
                Ok(Response::new(Pieces::empty()))
            }
        });
        (inside, probe)
    }
}

/// Sends 20 requests at once, all of which pass, no more than 2 at a time.
async fn assert_passed_by_two<S, B>(build: impl FnOnce(Probe) -> S, what: &str)
where
    S: Service<Request<String>, Response = Response<B>, Error: Into<BoxError>> + Clone,
{
    let (inside, probe) = Inside::probe();
    let service = build(probe.clone());
    let responses = join_all((0..20).map(|_| service.clone().oneshot(request()))).await;
    for response in responses {
        let response = response.map_err(Into::into).expect("an answer");
        assert_eq!(response.status(), StatusCode::OK, "{what}");
    }
    assert_eq!(probe.calls(), 20, "{what}");
    let most = inside.most.load(Ordering::SeqCst);
    assert!((1..=2).contains(&most), "{most} inside: {what}");
}

async fn requests_pass_a_gate_over_and_under_each_of_towers_layers<P: Place>() {
    async fn assert_over_and_under<P: Place, L>(place: &P, other: L, what: &str)
    where
        L: Layer<Probe> + Layer<portcullis::layer::Gated<Probe>> + Clone,
        <L as Layer<Probe>>::Service:
            Service<Request<String>, Response = Response<Pieces>, Error: Into<BoxError>> + Clone,
        <L as Layer<portcullis::layer::Gated<Probe>>>::Service: Service<
                Request<String>,
                Response = Response<portcullis::layer::HeldBody<Pieces>>,
                Error: Into<BoxError>,
            > + Clone,
    {
        let gate = ConcurrencyLimitLayer::new(place.semaphore(2)).max_wait(SEEN);
        let over = |probe| gate.layer(other.layer(probe));
        assert_passed_by_two(over, &format!("over {what}")).await;
        let under = |probe| other.layer(gate.layer(probe));
        assert_passed_by_two(under, &format!("under {what}")).await;
        place.wait_until_free(2).await;
    }
    let place = P::start();
    assert_over_and_under(&place, LocalLimitLayer::new(3), "a local limit").await;
    assert_over_and_under(&place, BufferLayer::new(4), "a buffer").await;
    assert_over_and_under(&place, LoadShedLayer::new(), "load shedding").await;
    assert_over_and_under(&place, TimeoutLayer::new(SEEN), "a time-out").await;

    let gate = ConcurrencyLimitLayer::new(place.semaphore(2)).max_wait(SEEN);
    let all = ServiceBuilder::new()
        .layer(BufferLayer::new(32))
        .layer(LoadShedLayer::new())
        .layer(TimeoutLayer::new(SEEN))
        .layer(gate)
        .layer(BufferLayer::new(32))
        .layer(LocalLimitLayer::new(3));
    assert_passed_by_two(|probe| all.service(probe), "between all of them").await;
    place.wait_until_free(2).await;
}

async fn a_time_out_outside_of_a_gate_takes_its_waiter_out_of_the_queue<P: Place>() {
    let place = P::start();
    let held = place.mutex().lock().await.expect("a free lock");
    let probe = Probe::answering(Pieces::empty);
    let timed = ServiceBuilder::new()
        .layer(TimeoutLayer::new(Duration::from_millis(50)))
        .layer(MutexLayer::new(place.mutex()).max_wait(SEEN))
        .service(probe.clone());
    let error = timed.oneshot(request()).await.expect_err("out of time");
    assert!(error.is::<tower::timeout::error::Elapsed>());
    place.wait_until_locked_for(0).await;
    drop(held);
    place.wait_until_unlocked().await;
    assert_eq!(probe.calls(), 0);
}

async fn a_time_out_inside_of_a_gate_gives_the_permit_back<P: Place>() {
    let place = P::start();
    let stuck = Probe::new(|_| std::future::pending());
    let mut gated = ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(place.semaphore(1)))
        .layer(TimeoutLayer::new(Duration::from_millis(50)))
        .service(stuck);
    let ready = gated.ready().await.expect("always ready");
    let mut response = Box::pin(ready.call(request()));
    let error = (&mut response).await.expect_err("out of time");
    assert!(error.is::<tower::timeout::error::Elapsed>());
    // While the future is kept.
    place.wait_until_free(1).await;
    drop(response);
}

async fn a_local_limit_outside_of_a_gate_bounds_how_many_wait<P: Place>() {
    let place = P::start();
    let held = place.mutex().lock().await.expect("a free lock");
    let service = ServiceBuilder::new()
        .layer(LoadShedLayer::new())
        .layer(LocalLimitLayer::new(1))
        .layer(MutexLayer::new(place.mutex()).max_wait(SEEN))
        .service(Probe::answering(Pieces::empty));
    let waiter = tokio::spawn(service.clone().oneshot(request()));
    place.wait_until_locked_for(1).await;
    let error = service.oneshot(request()).await.expect_err("shed");
    assert!(error.is::<tower::load_shed::error::Overloaded>());
    drop(held);
    let response = waiter.await.expect("no panic").expect("an answer");
    assert_eq!(response.status(), StatusCode::OK);
}

async fn a_refusal_keeps_nothing_that_the_inner_service_had_reserved<P: Place>() {
    let place = P::start();
    let _held = place.mutex().lock().await.expect("a free lock");
    let gated = ServiceBuilder::new()
        .layer(MutexLayer::new(place.mutex()).max_wait(Duration::ZERO))
        .layer(LocalLimitLayer::new(1))
        .service(Probe::answering(Pieces::empty));
    let mut refused = gated.clone();
    let response = refused.ready().await.expect("free").call(request());
    let response = response.await.expect("an answer");
    assert_eq!(response.status(), StatusCode::CONFLICT);
    // While the one that was refused is kept, as by a connection that idles.
    let mut other = gated.clone();
    assert!(other.ready().now_or_never().is_some());
    drop(refused);
}

async fn a_response_future_that_is_never_polled_leaves_nothing<P: Place>() {
    let place = P::start();
    let layer = ConcurrencyLimitLayer::new(place.semaphore(1));
    let mut gated = layer.layer(Probe::answering(Pieces::silent));
    let response = gated.ready().await.expect("always ready").call(request());
    drop(response);
    place.wait_until_free(1).await;
}

async fn response_futures_dropped_at_any_await_leave_nothing<P: Place>() {
    let place = P::start();
    let layer = ConcurrencyLimitLayer::new(place.semaphore(3)).max_wait(SEEN);
    let (inside, probe) = Inside::probe();
    drop(inside);
    let gated = layer.layer(probe);
    // One after another, so that there is something free, and all at once, so that there is not.
    for round in 0..P::ROUNDS {
        poll_k_times(gated.clone().oneshot(request()), round % 7).await;
    }
    let at_once = (0..1_000).map(|round| poll_k_times(gated.clone().oneshot(request()), round % 7));
    join_all(at_once).await;
    place.wait_until_free(3).await;
    let response = gated.oneshot(request()).await.expect("the probe answers");
    assert_eq!(response.status(), StatusCode::OK);
}

/// A waiter that is not its turn is not woken: what is full costs no time of the processor.
#[tokio::test]
async fn in_memory_who_waits_is_polled_once_and_not_woken_until_it_is_its_turn() {
    struct Count(AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let place = InMemory::start();
    let held = place.mutex().lock().await.expect("a free lock");
    let mut gated = MutexLayer::new(place.mutex())
        .max_wait(SEEN)
        .layer(Probe::answering(Pieces::empty));
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut response = gated.ready().await.expect("always ready").call(request());
    let mut cx = Context::from_waker(&waker);
    let mut poll = || Pin::new(&mut response).poll_unpin(&mut cx);
    assert!(poll().is_pending());
    for _ in 0..100 {
        assert!(place.mutex().try_lock().await.is_err());
        yield_now().await;
    }
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    drop(held);
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert!(poll().is_ready());
}
