//! What becomes of requests while the server is away, and how soon they are gated again.

use std::time::Duration;

use http::StatusCode;
use portcullis::layer::{Http, OnOutage};
use portcullis::{ConcurrencyLimitLayer, Held, MutexLayer, Portcullis};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::{Layer, ServiceExt};

use crate::fixture::{Broken, PROMPTLY, Pieces, Probe, SEEN, request};
use crate::support::{Server, wait_for};

const NO_WAIT: Duration = Duration::ZERO;

/// A handle with the time-outs that users have, and its server.
fn start() -> (Server, Portcullis) {
    let server = Server::start();
    let gates = handle(&server);
    (server, gates)
}

fn handle(server: &Server) -> Portcullis {
    let builder = Portcullis::builder().url(server.url());
    builder.build().expect("a local address")
}

fn permits(gates: &Portcullis, limit: u32) -> ConcurrencyLimitLayer {
    let semaphore = gates.semaphore("reports", limit).expect("in range");
    ConcurrencyLimitLayer::new(semaphore).max_wait(NO_WAIT)
}

/// The status of one request, which holds nothing afterwards.
async fn status(layer: &ConcurrencyLimitLayer<Http>) -> StatusCode {
    let gated = layer.layer(Probe::answering(Pieces::empty));
    let answer = timeout(SEEN, gated.oneshot(request())).await;
    answer
        .expect("in bounded time")
        .expect("an answer")
        .status()
}

/// Waits until the layer gates again: a full semaphore lets nobody through.
async fn until_gated(layer: &ConcurrencyLimitLayer<Http>) {
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
