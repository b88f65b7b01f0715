//! What becomes of requests while the server is away, and how soon they are gated again.

use std::pin::pin;
use std::time::Duration;

use futures_util::poll;
use http::StatusCode;
use portcullis::layer::{Demand, HeldBody, Http, OnOutage};
use portcullis::{
    ConcurrencyLimitLayer, Held, Keeping, MutexLayer, Portcullis, Quota, RateLimitLayer,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::{Layer, ServiceExt, service_fn};

use crate::fixture::{Broken, PROMPTLY, Pieces, Probe, SEEN, request};
use crate::support::{Server, wait_for};

pub(crate) const NO_WAIT: Duration = Duration::ZERO;

/// A handle with the time-outs that users have, and its server.
pub(crate) fn start() -> (Server, Portcullis) {
    let server = Server::start();
    let gates = handle(&server);
    (server, gates)
}

pub(crate) fn handle(server: &Server) -> Portcullis {
    let builder = Portcullis::builder().url(server.url());
    builder.build().expect("a local address")
}

pub(crate) fn permits(gates: &Portcullis, limit: u32) -> ConcurrencyLimitLayer {
    let semaphore = gates.semaphore("reports", limit).expect("in range");
    ConcurrencyLimitLayer::new(semaphore).max_wait(NO_WAIT)
}

/// The status of one request, which holds nothing afterwards.
pub(crate) async fn status(layer: &ConcurrencyLimitLayer<Http>) -> StatusCode {
    let gated = layer.layer(Probe::answering(Pieces::empty));
    let answer = timeout(SEEN, gated.oneshot(request())).await;
    answer
        .expect("in bounded time")
        .expect("an answer")
        .status()
}

/// Waits until the layer gates again: a full semaphore lets nobody through.
pub(crate) async fn until_gated(layer: &ConcurrencyLimitLayer<Http>) {
    wait_for("the gate is back", SEEN, async || {
        status(layer).await == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
}

async fn until_served(layer: &ConcurrencyLimitLayer<Http>) {
    wait_for("the server is back", SEEN, async || {
        status(layer).await == StatusCode::OK
    })
    .await;
}

#[tokio::test]
async fn without_a_server_from_the_start_each_policy_acts() {
    let server = Server::start();
    server.kill();
    let gates = handle(&server);
    for (on_outage, expected) in [
        (OnOutage::Refuse, StatusCode::SERVICE_UNAVAILABLE),
        (OnOutage::Allow, StatusCode::OK),
        (OnOutage::Local(1), StatusCode::OK),
    ] {
        let layer = permits(&gates, 1).on_outage(on_outage);
        assert_eq!(status(&layer).await, expected, "{on_outage:?}");
    }
    server.restart();
    until_served(&permits(&gates, 1)).await;
}

#[tokio::test]
async fn a_server_that_freezes_is_done_without_until_it_thaws() {
    let (server, gates) = start();
    let allowing = permits(&gates, 1).on_outage(OnOutage::Allow);
    let refusing = permits(&gates, 1);
    assert_eq!(status(&refusing).await, StatusCode::OK);
    let _held = timeout(
        SEEN,
        gates.semaphore("reports", 1).expect("in range").acquire(),
    )
    .await
    .expect("in bounded time")
    .expect("a free permit");
    assert_eq!(status(&allowing).await, StatusCode::SERVICE_UNAVAILABLE);
    server.freeze();
    for _ in 0..10 {
        assert_eq!(status(&allowing).await, StatusCode::OK);
        assert_eq!(status(&refusing).await, StatusCode::SERVICE_UNAVAILABLE);
    }
    server.thaw();
    until_gated(&allowing).await;
}

#[tokio::test]
async fn a_request_is_kept_for_its_wait_and_the_budget_where_permits_are_kept_as_well() {
    let server = Server::start();
    // So that nothing else ends it in time.
    let builder = Portcullis::builder().url(server.url());
    let gates = builder.command_timeout(SEEN).connect_timeout(SEEN).build();
    let gates = gates.expect("a local address");
    let semaphore = gates.semaphore("reports", 5).expect("in range");
    let kept = semaphore
        .keep_permits(Keeping::default())
        .expect("in range");
    let layer = ConcurrencyLimitLayer::new(kept.clone()).max_wait(Duration::from_millis(30));
    assert_eq!(status(&layer).await, StatusCode::OK);
    wait_for("nothing is kept", SEEN, async || {
        kept.kept().idle + kept.kept().used == 0
    })
    .await;
    server.freeze();
    for (on_outage, expected) in [
        (OnOutage::Refuse, StatusCode::SERVICE_UNAVAILABLE),
        (OnOutage::Allow, StatusCode::OK),
        (OnOutage::Local(1), StatusCode::OK),
    ] {
        let layer = layer.clone().on_outage(on_outage);
        let status = timeout(PROMPTLY, status(&layer)).await;
        assert_eq!(status.expect("in time"), expected, "{on_outage:?}");
    }
    server.thaw();
}

#[tokio::test]
async fn who_waits_at_one_home_is_told_of_an_outage_by_its_own_policy_whoever_came_first() {
    for urgent_first in [true, false] {
        let (server, gates) = start();
        let other = handle(&server).semaphore("reports", 1).expect("in range");
        let held = timeout(SEEN, other.acquire()).await.expect("in time");
        let held = held.expect("free");
        let semaphore = gates.semaphore("reports", 1).expect("in range");
        let kept = semaphore
            .keep_permits(Keeping::default())
            .expect("in range");
        let layer = ConcurrencyLimitLayer::new(kept.clone()).on_outage(OnOutage::Allow);
        let mut urgent = pin!(async { status(&layer.max_wait(10 * SEEN)).await });
        let mut patient = pin!(async { kept.acquire().await });
        if urgent_first {
            assert!(poll!(&mut urgent).is_pending());
        }
        assert!(poll!(&mut patient).is_pending());
        wait_for("it is queued", SEEN, async || {
            let mut keys = server.keys_with("portcullis:").await.into_iter();
            keys.any(|key| key.contains("}:sq:"))
        })
        .await;
        assert!(poll!(&mut urgent).is_pending());
        server.freeze();
        let told = timeout(SEEN, urgent).await.expect("it is told");
        assert_eq!(told, StatusCode::OK);
        assert!(poll!(&mut patient).is_pending());
        server.thaw();
        drop(held);
        let served = timeout(SEEN, patient).await.expect("in time");
        assert!(served.is_ok(), "{served:?}");
    }
}

#[tokio::test]
async fn an_outage_that_is_shorter_than_the_wait_is_not_seen() {
    let (server, gates) = start();
    let layer = permits(&gates, 1).max_wait(SEEN);
    assert_eq!(status(&layer).await, StatusCode::OK);
    server.kill();
    let mut requests = JoinSet::new();
    for _ in 0..5 {
        let layer = layer.clone();
        requests.spawn(async move { status(&layer).await });
    }
    // It is known to be away.
    let hasty = permits(&gates, 1).on_outage(OnOutage::Allow);
    assert_eq!(status(&hasty).await, StatusCode::OK);
    server.restart();
    for status in requests.join_all().await {
        assert_eq!(status, StatusCode::OK);
    }
}

#[tokio::test]
async fn locally_so_many_are_let_through_at_once_and_the_others_wait_for_them() {
    let (server, gates) = start();
    server.kill();
    let layer = permits(&gates, 10).on_outage(OnOutage::Local(2));
    let hold = async || {
        let (sender, body) = Pieces::channel();
        let body = std::sync::Mutex::new(Some(body));
        let probe =
            Probe::answering(move || body.lock().expect("no panic").take().expect("called once"));
        let answer = layer.layer(probe).oneshot(request()).await;
        (sender, answer.expect("an answer"))
    };
    let (first, second) = (hold().await, hold().await);
    assert_eq!(first.1.status(), StatusCode::OK);
    assert_eq!(status(&layer).await, StatusCode::SERVICE_UNAVAILABLE);
    // Another layer of the same gate counts the same.
    let other = permits(&gates, 10).on_outage(OnOutage::Local(2));
    assert_eq!(status(&other).await, StatusCode::SERVICE_UNAVAILABLE);
    let patient = layer.clone().max_wait(SEEN);
    let waiting = tokio::spawn(async move { status(&patient).await });
    drop((first, second));
    let waited = timeout(PROMPTLY, waiting).await.expect("handed on");
    assert_eq!(waited.expect("no panic"), StatusCode::OK);
}

/// The server may be back long before a day's share of one process is.
#[tokio::test]
async fn who_is_refused_locally_is_told_to_come_back_soon() {
    let (server, gates) = start();
    server.kill();
    let api = gates.rate_limiter("api", Quota::per_day(100));
    let layer = RateLimitLayer::new(api.expect("in range")).on_outage(OnOutage::Local(1));
    let ask = async || {
        let gated = layer.layer(Probe::answering(Pieces::empty));
        gated.oneshot(request()).await.expect("an answer")
    };
    assert_eq!(ask().await.status(), StatusCode::OK);
    let refused = ask().await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
}

#[tokio::test]
async fn a_local_lock_is_one_for_each_key() {
    let (server, gates) = start();
    server.kill();
    let key = |parts: &http::request::Parts| {
        let key = parts.headers.get("x-account")?;
        key.to_str().ok().map(str::to_owned)
    };
    let lock = MutexLayer::new(gates.mutex("withdraw")).key(key);
    let lock = lock.max_wait(NO_WAIT).on_outage(OnOutage::Local(1));
    let ask = async |account: &'static str| {
        let mut request = request();
        let value = http::HeaderValue::from_static(account);
        request.headers_mut().insert("x-account", value);
        let gated = lock.layer(Probe::answering(Pieces::silent));
        gated.oneshot(request).await.expect("an answer")
    };
    let held = ask("a").await;
    assert_eq!(held.status(), StatusCode::OK);
    assert_eq!(ask("a").await.status(), StatusCode::CONFLICT);
    assert_eq!(ask("b").await.status(), StatusCode::OK);
    drop(held);
    assert_eq!(ask("a").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_handler_sees_by_what_it_was_let_through() {
    let (server, gates) = start();
    let seen_with = async |on_outage| {
        let (share, mut shared) = mpsc::unbounded_channel();
        let probe = Probe::new(move |request| {
            let held = request.extensions().get::<Held>().cloned();
            share
                .send(held.unwrap_or_default())
                .expect("the test lives");
            async { Ok::<_, Broken>(http::Response::new(Pieces::empty())) }
        });
        let layer = MutexLayer::new(gates.mutex("withdraw")).max_wait(NO_WAIT);
        let gated = layer.on_outage(on_outage).layer(probe);
        let answer = gated.oneshot(request()).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        shared.recv().await.expect("it was called")
    };
    let gated = seen_with(OnOutage::Allow).await;
    assert!(!gated.is_degraded("withdraw") && gated.lease("withdraw").is_ok());
    server.kill();
    let local = seen_with(OnOutage::Local(1)).await;
    assert!(local.is_degraded("withdraw") && local.lease("withdraw").is_ok());
    let ungated = seen_with(OnOutage::Allow).await;
    assert!(ungated.is_degraded("withdraw") && !ungated.is_degraded("reports"));
    let absent = ungated.lease("withdraw").expect_err("no lease").to_string();
    assert!(
        absent.contains("`withdraw`") && absent.contains("away"),
        "{absent}"
    );
    assert!(ungated.keep().is_ok(), "there is nothing to give back");
}

#[tokio::test]
async fn what_people_have_to_mend_is_let_through_by_no_policy() {
    let (server, gates) = start();
    let layer = permits(&gates, 1);
    assert_eq!(status(&layer).await, StatusCode::OK);
    let held = gates
        .semaphore("reports", 1)
        .expect("in range")
        .acquire()
        .await;
    let held = held.expect("a free permit");
    let keys = server.keys_with("portcullis:").await;
    let main = keys
        .iter()
        .find(|key| key.contains("}:s:"))
        .expect("it is held");
    server.command(&["SET", main, "something else"]).await;
    for on_outage in [OnOutage::Refuse, OnOutage::Allow, OnOutage::Local(5)] {
        let layer = layer.clone().on_outage(on_outage);
        assert_eq!(
            status(&layer).await,
            StatusCode::SERVICE_UNAVAILABLE,
            "{on_outage:?}"
        );
    }
    drop(held);
}

#[tokio::test]
async fn a_server_that_takes_no_data_is_an_outage_of_the_policy_but_not_of_the_server() {
    let (server, gates) = start();
    let allowing = permits(&gates, 1).on_outage(OnOutage::Allow);
    assert_eq!(status(&allowing).await, StatusCode::OK);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for _ in 0..10 {
        assert_eq!(status(&allowing).await, StatusCode::OK);
    }
    assert_eq!(
        status(&permits(&gates, 1)).await,
        StatusCode::SERVICE_UNAVAILABLE
    );
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    // No breaker has to close first.
    assert_eq!(status(&permits(&gates, 1)).await, StatusCode::OK);
}

#[tokio::test]
async fn a_local_limit_of_nobody_is_a_mistake_that_is_told() {
    let (_server, gates) = start();
    let layer = permits(&gates, 1).on_outage(OnOutage::Local(0));
    let gated = layer.layer(Probe::answering(Pieces::empty));
    let answer = gated.oneshot(request()).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
}

/// A request that holds locally until its body is dropped.
pub(crate) async fn hold(layer: &ConcurrencyLimitLayer<Http>) -> http::Response<HeldBody<Pieces>> {
    let gated = layer.layer(Probe::answering(Pieces::silent));
    let answer = timeout(SEEN, gated.oneshot(request())).await;
    answer.expect("in bounded time").expect("an answer")
}

#[tokio::test]
async fn a_shutdown_in_an_outage_refuses_who_waits_here_and_waits_for_who_holds_here() {
    let (server, gates) = start();
    server.kill();
    let layer = permits(&gates, 10).on_outage(OnOutage::Local(1));
    let held = hold(&layer).await;
    assert_eq!(held.status(), StatusCode::OK);
    let patient = layer.clone().max_wait(Duration::from_secs(60));
    let waiting = tokio::spawn(async move { status(&patient).await });
    // It waits here, since nobody else may answer it.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    let ending = tokio::spawn(async move { gates.shutdown(Duration::from_secs(30)).await });
    let refused = timeout(PROMPTLY, waiting).await.expect("it is refused");
    assert_eq!(refused.expect("no panic"), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(status(&layer).await, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!ending.is_finished(), "one holds");
    drop(held);
    let report = timeout(PROMPTLY, ending).await.expect("it ends");
    assert_eq!(report.expect("no panic").released, 1);
}

#[tokio::test]
async fn a_place_in_the_queue_is_kept_until_its_wait_is_over_and_then_the_policy_acts() {
    let (server, gates) = start();
    let _held = hold(&permits(&gates, 1)).await;
    let wait = Duration::from_secs(2);
    let mut waiting = JoinSet::new();
    for (on_outage, expected) in [
        (OnOutage::Refuse, StatusCode::SERVICE_UNAVAILABLE),
        (OnOutage::Allow, StatusCode::OK),
        (OnOutage::Local(1), StatusCode::OK),
    ] {
        let layer = permits(&gates, 1).max_wait(wait).on_outage(on_outage);
        waiting.spawn(async move { (status(&layer).await, expected) });
    }
    let semaphore = gates.semaphore("reports", 1).expect("in range");
    wait_for("all wait", SEEN, async || {
        match semaphore.try_acquire().await {
            Err(portcullis::LockError::Refused(refusal)) => refusal.position() == Some(3),
            _ => false,
        }
    })
    .await;
    server.kill();
    let begun = std::time::Instant::now();
    while let Some(told) = waiting.join_next().await {
        let (status, expected) = told.expect("no panic");
        assert_eq!(status, expected);
    }
    assert!(begun.elapsed() < wait + PROMPTLY);
}

#[tokio::test]
async fn services_of_any_kind_are_let_through_by_the_same_policies() {
    let (server, gates) = start();
    server.kill();
    for (on_outage, passes) in [
        (OnOutage::Refuse, false),
        (OnOutage::Allow, true),
        (OnOutage::Local(1), true),
        (OnOutage::Local(0), false),
    ] {
        let layer = MutexLayer::new(gates.mutex("withdraw")).max_wait(NO_WAIT);
        let inner = service_fn(async |()| Ok::<_, Broken>(()));
        let gated = layer.plain().on_outage(on_outage).layer(inner);
        let answer = timeout(SEEN, gated.oneshot(()))
            .await
            .expect("in bounded time");
        assert_eq!(answer.is_ok(), passes, "{on_outage:?}");
    }
}

#[tokio::test]
async fn a_request_for_more_than_there_are_locally_takes_all_of_them() {
    let (server, gates) = start();
    let layer = permits(&gates, 10).demand(|_| Demand::default().weight(7));
    let layer = layer.on_outage(OnOutage::Local(3));
    server.kill();
    let held = hold(&layer).await;
    assert_eq!(held.status(), StatusCode::OK);
    let light = permits(&gates, 10).on_outage(OnOutage::Local(3));
    assert_eq!(status(&light).await, StatusCode::SERVICE_UNAVAILABLE);
    drop(held);
    assert_eq!(status(&light).await, StatusCode::OK);
    // What never fits is not the server's fault.
    for weight in [0, 11] {
        let layer = layer
            .clone()
            .demand(move |_| Demand::default().weight(weight));
        assert_eq!(status(&layer).await, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn gates_on_one_way_act_each_by_its_own_policy() {
    let (server, gates) = start();
    server.kill();
    let (share, mut shared) = mpsc::unbounded_channel();
    let probe = Probe::new(move |request| {
        let held = request.extensions().get::<Held>().cloned();
        share
            .send(held.unwrap_or_default())
            .expect("the test lives");
        async { Ok::<_, Broken>(http::Response::new(Pieces::silent())) }
    });
    let lock = MutexLayer::new(gates.mutex("withdraw")).max_wait(NO_WAIT);
    let ask = async |on_outage| {
        let inner = lock.clone().on_outage(on_outage).layer(probe.clone());
        let outer = permits(&gates, 9)
            .on_outage(OnOutage::Local(2))
            .layer(inner);
        let answer = timeout(SEEN, outer.oneshot(request())).await;
        answer.expect("in bounded time").expect("an answer")
    };
    let allowed = ask(OnOutage::Allow).await;
    assert_eq!(allowed.status(), StatusCode::OK);
    let held = shared.recv().await.expect("it was called");
    assert!(held.is_degraded("withdraw") && held.is_degraded("reports"));
    assert!(held.lease("reports").is_ok() && held.lease("withdraw").is_err());
    // The inner gate's no gives the outer one's permit back.
    for _ in 0..5 {
        let refused = ask(OnOutage::Refuse).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    let second = ask(OnOutage::Allow).await;
    assert_eq!(second.status(), StatusCode::OK);
    assert_eq!(
        ask(OnOutage::Allow).await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
}
