//! How requests that are not let through are answered.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use portcullis::layer::{HeldBody, KeyError, LockedStatus, MakeKey};
use portcullis::{ConcurrencyLimitLayer, Key, MutexLayer, Portcullis};
use tokio::time::timeout;
use tower::{Layer, ServiceExt};

use crate::fixture::{Fixture, Pieces, Probe, SEEN, request};

const NO_WAIT: Duration = Duration::ZERO;

/// What a caller sees of a refusal.
struct Refused {
    status: u16,
    retry_after: Option<u64>,
    kind: String,
    text: String,
}

impl Refused {
    async fn read(response: Response<HeldBody<Pieces>>) -> Self {
        let (head, body) = response.into_parts();
        assert_eq!(head.headers[CONTENT_TYPE], "application/problem+json");
        let text = body.collect().await.expect("a whole body").to_bytes();
        let text = String::from_utf8(text.to_vec()).expect("text");
        let problem: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(problem["status"], head.status.as_u16());
        let retry_after = head
            .headers
            .get(RETRY_AFTER)
            .map(|value| value.to_str().expect("digits").parse().expect("a number"));
        let kind = problem["type"].as_str().expect("a type");
        let kind = kind
            .strip_prefix("urn:problem-type:portcullis:")
            .expect("a type of this crate");
        Self {
            status: head.status.as_u16(),
            retry_after,
            kind: kind.to_owned(),
            text,
        }
    }

    fn row(&self) -> (u16, &str) {
        (self.status, &self.kind)
    }
}

async fn refused(layer: impl Layer<Probe, Service = impl Gate>) -> Refused {
    let probe = Probe::answering(Pieces::empty);
    let response = layer.layer(probe.clone()).oneshot(request()).await;
    assert_eq!(
        probe.calls(),
        0,
        "refused requests do not reach the service"
    );
    Refused::read(response.expect("refusals are answers")).await
}

/// What both layers make.
trait Gate:
    tower::Service<
        Request<String>,
        Response = Response<HeldBody<Pieces>>,
        Error = crate::fixture::Broken,
    >
{
}
impl<S> Gate for S where
    S: tower::Service<
            Request<String>,
            Response = Response<HeldBody<Pieces>>,
            Error = crate::fixture::Broken,
        >
{
}

#[tokio::test]
async fn a_busy_mutex_is_a_conflict_until_its_holders_ttl_is_over() {
    let fixture = Fixture::new();
    let mutex = fixture
        .mutex()
        .ttl(Duration::from_millis(3_500))
        .expect("in range");
    let _held = mutex.lock().await.expect("a free lock");
    let layer = MutexLayer::new(mutex).max_wait(NO_WAIT);
    let conflict = refused(layer.clone()).await;
    assert_eq!(conflict.row(), (409, "locked"));
    assert!(
        matches!(conflict.retry_after, Some(1..=4)),
        "{:?}",
        conflict.retry_after
    );
    let locked = refused(layer.locked_status(LockedStatus::Locked)).await;
    assert_eq!(locked.row(), (423, "locked"));
}

#[tokio::test]
async fn a_full_semaphore_is_unavailable() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore(1).acquire().await.expect("a free permit");
    let refused = refused(ConcurrencyLimitLayer::new(fixture.semaphore(1)).max_wait(NO_WAIT)).await;
    assert_eq!(refused.row(), (503, "at-capacity"));
    assert!(refused.retry_after.is_some_and(|seconds| seconds >= 1));
}

#[tokio::test]
async fn a_wait_that_runs_out_is_unavailable() {
    let fixture = Fixture::new();
    let _held = fixture.mutex().lock().await.expect("a free lock");
    let refused =
        refused(MutexLayer::new(fixture.mutex()).max_wait(Duration::from_millis(50))).await;
    assert_eq!(refused.row(), (503, "waited-too-long"));
    assert!(refused.retry_after.is_some_and(|seconds| seconds >= 1));
    fixture.wait_until_queued(0).await;
}

#[tokio::test]
async fn a_wait_that_was_set_on_the_primitive_is_kept() {
    let fixture = Fixture::new();
    let _held = fixture.mutex().lock().await.expect("a free lock");
    let refused = refused(MutexLayer::new(fixture.mutex().max_wait(NO_WAIT))).await;
    assert_eq!(refused.row(), (409, "locked"));
}

#[tokio::test]
async fn a_full_queue_is_unavailable() {
    let fixture = Fixture::new();
    let _held = fixture.mutex().lock().await.expect("a free lock");
    let layer = MutexLayer::new(fixture.mutex().max_waiters(1)).max_wait(SEEN);
    let waiter = tokio::spawn(
        layer
            .layer(Probe::answering(Pieces::empty))
            .oneshot(request()),
    );
    fixture.wait_until_queued(1).await;
    let refused = refused(layer).await;
    assert_eq!(refused.row(), (503, "queue-full"));
    assert!(refused.retry_after.is_some_and(|seconds| seconds >= 1));
    waiter.abort();
}

#[tokio::test]
async fn a_handle_that_shuts_down_refuses_those_who_wait_and_those_who_come() {
    let fixture = Fixture::new();
    let _held = fixture.mutex().lock().await.expect("a free lock");
    let layer = MutexLayer::new(fixture.mutex());
    let waiter = tokio::spawn(
        layer
            .layer(Probe::answering(Pieces::empty))
            .oneshot(request()),
    );
    fixture.wait_until_queued(1).await;
    let shutdown = tokio::spawn({
        let gates = fixture.gates.clone();
        async move { gates.shutdown(Duration::from_millis(200)).await }
    });
    let waited = waiter
        .await
        .expect("no panic")
        .expect("refusals are answers");
    assert_eq!(Refused::read(waited).await.row(), (503, "shutting-down"));
    let refused = refused(layer).await;
    assert_eq!(refused.row(), (503, "shutting-down"));
    assert!(refused.retry_after.is_some_and(|seconds| seconds >= 1));
    shutdown.await.expect("no panic");
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable_and_its_address_is_not_told() {
    let fixture = Fixture::new();
    let gates = Portcullis::builder()
        .url(fixture.server.url())
        .build()
        .expect("a local address");
    fixture.server.kill();
    let layer = MutexLayer::new(gates.mutex("withdraw")).max_wait(Duration::from_millis(100));
    let refused = timeout(SEEN, refused(layer))
        .await
        .expect("in bounded time");
    assert_eq!(refused.row(), (503, "unavailable"));
    assert_eq!(refused.retry_after, Some(1));
    assert!(
        !refused.text.contains(&fixture.server.port().to_string()),
        "{}",
        refused.text
    );
}

#[tokio::test]
async fn a_request_without_a_key_is_exempt() {
    let fixture = Fixture::new();
    let _held = fixture
        .mutex()
        .keyed("a")
        .lock()
        .await
        .expect("a free lock");
    let layer = MutexLayer::new(fixture.mutex())
        .max_wait(NO_WAIT)
        .key(|parts: &Parts| {
            parts
                .headers
                .get("x-account")
                .and_then(|account| account.to_str().ok())
                .map(str::to_owned)
        });
    let status = async |account: Option<&'static str>| {
        let mut request = request();
        if let Some(account) = account {
            request
                .headers_mut()
                .insert("x-account", HeaderValue::from_static(account));
        }
        let gated = layer.layer(Probe::answering(Pieces::empty));
        gated
            .oneshot(request)
            .await
            .expect("the probe does not fail")
            .status()
    };
    assert_eq!(status(None).await, StatusCode::OK);
    assert_eq!(status(Some("a")).await, StatusCode::CONFLICT);
    assert_eq!(status(Some("b")).await, StatusCode::OK);
}

#[tokio::test]
async fn a_fixed_key_gates_every_request_by_it() {
    let fixture = Fixture::new();
    let _held = fixture
        .mutex()
        .keyed("secret")
        .lock()
        .await
        .expect("a free lock");
    let layer = MutexLayer::new(fixture.mutex()).max_wait(NO_WAIT);
    let refused = refused(layer.key(Key::from("secret"))).await;
    assert_eq!(refused.row(), (409, "locked"));
    assert!(!refused.text.contains("secret"));
}

#[tokio::test]
async fn a_key_that_must_be_there_is_asked_for_with_400_or_401() {
    struct Required(KeyError);
    impl MakeKey for Required {
        fn make_key(&self, _: &mut Parts) -> Result<Option<Key>, KeyError> {
            Err(self.0.clone())
        }
    }
    let fixture = Fixture::new();
    let layer = MutexLayer::new(fixture.mutex());
    let missing = refused(
        layer
            .clone()
            .key(Required(KeyError::missing("header x-account"))),
    )
    .await;
    assert_eq!(
        (missing.row(), missing.retry_after),
        ((400, "no-key"), None)
    );

    let challenge = HeaderValue::from_static("Bearer");
    let unknown = layer.key(Required(KeyError::unauthenticated("identity", challenge)));
    let response = unknown
        .layer(Probe::answering(Pieces::empty))
        .oneshot(request())
        .await;
    let response = response.expect("refusals are answers");
    assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
    assert_eq!(Refused::read(response).await.row(), (401, "no-key"));
}
