//! How requests that are not let through are answered.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, HeaderName, LOCATION, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use portcullis::layer::{
    Demand, HeldBody, KeyError, LockedStatus, MakeKey, OnLost, Rejection, RejectionKind,
};
use portcullis::{ConcurrencyLimitLayer, Key, MutexLayer};
use tokio::time::timeout;
use tower::{Layer, ServiceExt};

use crate::contract::{InMemory, Place, on_servers};
use crate::fixture::{Fixture, Log, Pieces, Probe, SEEN, request};

const NO_WAIT: Duration = Duration::ZERO;

/// The headers of a refusal.
const MAY_BE_TOLD: [HeaderName; 5] = [
    CONTENT_TYPE,
    CACHE_CONTROL,
    RETRY_AFTER,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    WWW_AUTHENTICATE,
];

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
        assert_eq!(head.headers[CACHE_CONTROL], "no-store");
        let exposed = head.headers.get(ACCESS_CONTROL_EXPOSE_HEADERS);
        let exposed = exposed.map(HeaderValue::as_bytes);
        let told_when = head.headers.contains_key(RETRY_AFTER);
        assert_eq!(exposed, told_when.then_some(&b"retry-after"[..]));
        // Whatever else there were could name the gate, its key, a holder or a server.
        for name in head.headers.keys() {
            assert!(MAY_BE_TOLD.contains(name), "{name}");
        }
        let text = body.collect().await.expect("a whole body").to_bytes();
        let text = String::from_utf8(text.to_vec()).expect("text");
        let problem: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(problem["status"], head.status.as_u16());
        let fields: Vec<_> = problem.as_object().expect("an object").keys().collect();
        assert_eq!(fields, ["status", "title", "type"]);
        for secret in ["withdraw", "reports", "secret", "redis", "127.0.0.1"] {
            assert!(!text.contains(secret), "{text}");
        }
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

on_servers! {
    a_busy_mutex_is_a_conflict_until_its_holders_ttl_is_over,
    a_full_semaphore_is_unavailable,
    a_wait_that_runs_out_is_unavailable,
    a_wait_that_was_set_on_the_primitive_is_kept,
    a_full_queue_is_unavailable,
    a_handle_that_shuts_down_refuses_those_who_wait_and_those_who_come,
    a_server_that_is_away_is_unavailable_and_its_address_is_not_told,
    a_request_without_a_key_is_exempt,
    a_fixed_key_gates_every_request_by_it,
}

async fn a_busy_mutex_is_a_conflict_until_its_holders_ttl_is_over<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
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

async fn a_full_semaphore_is_unavailable<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let _held = fixture.semaphore(1).acquire().await.expect("a free permit");
    let refused = refused(ConcurrencyLimitLayer::new(fixture.semaphore(1)).max_wait(NO_WAIT)).await;
    assert_eq!(refused.row(), (503, "at-capacity"));
    assert!(refused.retry_after.is_some_and(|seconds| seconds >= 1));
}

async fn a_wait_that_runs_out_is_unavailable<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let _held = fixture.mutex().lock().await.expect("a free lock");
    let refused =
        refused(MutexLayer::new(fixture.mutex()).max_wait(Duration::from_millis(50))).await;
    assert_eq!(refused.row(), (503, "waited-too-long"));
    assert!(refused.retry_after.is_some_and(|seconds| seconds >= 1));
    fixture.wait_until_queued(0).await;
}

async fn a_wait_that_was_set_on_the_primitive_is_kept<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let _held = fixture.mutex().lock().await.expect("a free lock");
    let refused = refused(MutexLayer::new(fixture.mutex().max_wait(NO_WAIT))).await;
    assert_eq!(refused.row(), (409, "locked"));
}

async fn a_full_queue_is_unavailable<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
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

async fn a_handle_that_shuts_down_refuses_those_who_wait_and_those_who_come<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
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

async fn a_server_that_is_away_is_unavailable_and_its_address_is_not_told<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let gates = fixture.builder().build().expect("local addresses");
    for server in &fixture.servers {
        server.kill();
    }
    let layer = MutexLayer::new(gates.mutex("withdraw")).max_wait(Duration::from_millis(100));
    let refused = timeout(SEEN, refused(layer))
        .await
        .expect("in bounded time");
    assert_eq!(refused.row(), (503, "unavailable"));
    assert_eq!(refused.retry_after, Some(1));
    for server in &fixture.servers {
        let port = server.port().to_string();
        assert!(!refused.text.contains(&port), "{}", refused.text);
    }
}

async fn a_request_without_a_key_is_exempt<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
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

async fn a_fixed_key_gates_every_request_by_it<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
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

#[tokio::test]
async fn more_permits_than_there_ever_are_is_the_callers_error_and_not_worth_a_retry() {
    let place = InMemory::start();
    let layer = ConcurrencyLimitLayer::new(place.semaphore(3));
    for weight in [0, 4, u32::MAX] {
        let layer = layer.clone();
        let refused = refused(layer.demand(move |_| Demand::default().weight(weight))).await;
        assert_eq!(refused.row(), (400, "never-fits"), "weight {weight}");
        assert_eq!(refused.retry_after, None);
    }
}

#[tokio::test]
async fn a_limit_of_zero_is_the_services_own_mistake_and_logged() {
    let place = InMemory::start();
    let layer = ConcurrencyLimitLayer::new(place.semaphore(3));
    let (log, _guard) = Log::start();
    for weight in [0, 1, 4] {
        let nobody = Demand::default().weight(weight).limit(0);
        let refused = refused(layer.clone().demand(move |_| nobody)).await;
        assert_eq!(refused.row(), (503, "misconfigured"), "weight {weight}");
        assert_eq!(refused.retry_after, None);
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    assert!(
        line.contains("reports") && line.contains("limit of 0"),
        "{line}"
    );
}

#[tokio::test]
async fn a_lease_that_is_lost_on_the_way_is_unavailable() {
    let place = InMemory::start();
    let layers = [
        MutexLayer::new(place.mutex()),
        MutexLayer::new(place.mutex()).locked_status(LockedStatus::Locked),
    ];
    for layer in layers {
        let server = place.server.clone();
        let probe = Probe::new(move |_| {
            assert_eq!(server.expire("withdraw"), 1);
            pending()
        });
        let response = layer.layer(probe).oneshot(request()).await;
        let lost = Refused::read(response.expect("refusals are answers")).await;
        assert_eq!(lost.row(), (503, "lease-lost"));
        assert_eq!(lost.retry_after, Some(1));
    }
}

/// What is seen by `on_refusal`.
type Seen = Arc<Mutex<Vec<(RejectionKind, StatusCode, Option<Duration>)>>>;

fn noting(seen: &Seen) -> impl Fn(&Rejection, Response<Bytes>) -> Response<Bytes> + use<> {
    let seen = Arc::clone(seen);
    move |rejection, answer| {
        assert_eq!(answer.status(), rejection.status());
        let retry_after = rejection.retry_after();
        let told = answer.headers().get(RETRY_AFTER);
        let seconds = retry_after.map(|time| time.as_secs().to_string());
        assert_eq!(
            told.map(|value| value.to_str().expect("digits")),
            seconds.as_deref()
        );
        let seen_now = (rejection.kind(), rejection.status(), retry_after);
        seen.lock().expect("no panic").push(seen_now);
        answer
    }
}

#[tokio::test]
async fn each_kind_of_refusal_is_shown_once_to_whom_was_asked_for_it() {
    let place = InMemory::start();
    let seen = Seen::default();
    let lock = || MutexLayer::new(place.mutex()).on_refusal(noting(&seen));
    let permits = || ConcurrencyLimitLayer::new(place.semaphore(1)).on_refusal(noting(&seen));

    let missing = |_: &Parts| Err::<Key, _>(KeyError::missing("a header"));
    refused(lock().key(missing)).await;
    refused(permits().demand(|_| Demand::default().weight(2))).await;
    let broken = |_: &Parts| Err::<Key, _>(KeyError::misconfigured("put it elsewhere"));
    refused(lock().key(broken)).await;
    let held = (
        place.mutex().lock().await.expect("a free lock"),
        place.semaphore(1).acquire().await.expect("a free permit"),
    );
    refused(lock().max_wait(NO_WAIT)).await;
    refused(permits().max_wait(NO_WAIT)).await;
    refused(lock().max_wait(Duration::from_millis(1))).await;
    let nobody = place.mutex().max_waiters(0);
    refused(MutexLayer::new(nobody).on_refusal(noting(&seen))).await;
    drop(held);
    place.server.outage(true);
    refused(lock()).await;
    place.server.outage(false);
    let server = place.server.clone();
    let losing = Probe::new(move |_| {
        server.expire("reports");
        pending()
    });
    let aborting = permits().on_lost(OnLost::Abort).layer(losing);
    aborting.oneshot(request()).await.expect("an answer");
    place.gates().shutdown(NO_WAIT).await;
    refused(lock()).await;
    // Passed, and so not shown.
    let other = place.server.handle().mutex("withdraw");
    let passed = MutexLayer::new(other).on_refusal(|_, _| panic!("nothing was refused"));
    let passed = passed.layer(Probe::answering(Pieces::empty));
    let passed = passed.oneshot(request()).await.expect("an answer");
    assert_eq!(passed.status(), StatusCode::OK);

    let seen = seen.lock().expect("no panic");
    let kinds: Vec<_> = seen.iter().map(|(kind, ..)| *kind).collect();
    let expected = [
        RejectionKind::NoKey,
        RejectionKind::NeverFits,
        RejectionKind::Misconfigured,
        RejectionKind::Locked,
        RejectionKind::AtCapacity,
        RejectionKind::WaitedTooLong,
        RejectionKind::QueueFull,
        RejectionKind::Unavailable,
        RejectionKind::LeaseLost,
        RejectionKind::ShuttingDown,
    ];
    assert_eq!(kinds, expected);
}

#[tokio::test]
async fn who_is_asked_about_refusals_can_change_the_answer() {
    let place = InMemory::start();
    let _held = place.mutex().lock().await.expect("a free lock");
    let layer = MutexLayer::new(place.mutex()).max_wait(NO_WAIT);
    let layer = layer.on_refusal(|rejection, mut answer| {
        assert_eq!(rejection.gate(), "withdraw");
        assert!(rejection.to_string().contains("withdraw"));
        *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        answer
    });
    let gated = layer.layer(Probe::answering(Pieces::empty));
    let answer = gated.oneshot(request()).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
    let body = answer.into_body().collect().await.expect("a whole body");
    assert!(
        body.to_bytes()
            .starts_with(b"{\"type\":\"urn:problem-type:portcullis:locked\"")
    );
}

#[tokio::test]
async fn an_answer_of_ones_own_is_made_from_a_kinds_code_and_title() {
    let place = InMemory::start();
    let _held = place.mutex().lock().await.expect("a free lock");
    let layer = MutexLayer::new(place.mutex()).max_wait(NO_WAIT);
    let told = refused(layer.clone()).await;
    let layer = layer.on_refusal(|rejection, answer| {
        let kind = rejection.kind();
        answer.map(|_| Bytes::from(format!("{}: {}", kind.as_str(), kind.title())))
    });
    let gated = layer.layer(Probe::answering(Pieces::empty));
    let answer = gated.oneshot(request()).await.expect("an answer");
    assert!(answer.headers().contains_key(RETRY_AFTER));
    let body = answer.into_body().collect().await.expect("a whole body");
    let problem: serde_json::Value = serde_json::from_str(&told.text).expect("JSON");
    let title = problem["title"].as_str().expect("a title");
    assert_eq!(body.to_bytes(), format!("{}: {title}", told.kind));
}

#[tokio::test]
async fn who_is_asked_about_refusals_can_replace_the_answer() {
    let place = InMemory::start();
    let _held = place.mutex().lock().await.expect("a free lock");
    for text in ["", "be patient"] {
        let layer = MutexLayer::new(place.mutex()).max_wait(NO_WAIT);
        let layer = layer.on_refusal(move |_, _| {
            let answer = Response::builder().status(303).header(LOCATION, "/queue");
            answer.body(Bytes::from(text)).expect("a valid answer")
        });
        let gated = layer.layer(Probe::answering(Pieces::empty));
        let answer = gated.oneshot(request()).await.expect("an answer");
        let (head, body) = answer.into_parts();
        assert_eq!(head.status, StatusCode::SEE_OTHER);
        assert_eq!(head.headers.len(), 1);
        assert_eq!(head.headers[LOCATION], "/queue");
        // Its length is known, so that servers announce it.
        let hint = http_body::Body::size_hint(&body);
        assert_eq!(hint.exact(), Some(text.len() as u64));
        let body = body.collect().await.expect("a whole body");
        assert_eq!(body.to_bytes(), text);
    }
}
