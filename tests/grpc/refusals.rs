//! What a gRPC client sees when it is not let through: a status, when to try again, and nothing
//! that only the service's own people may know.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::request::Parts;
use portcullis::layer::{Demand, KeyError, OnOutage};
use portcullis::{ConcurrencyLimitLayer, MutexLayer, Portcullis, Quota, RateLimitLayer};
use tonic::service::{LayerExt, Routes};
use tonic::{Code, Status};

use crate::fixture::{
    Fixture, GatedService, KEY, LONG, NO_WAIT, Probe, REPORTS, WITHDRAW, ask, assert_discreet,
    bare_call, http_request, promptly, retry_after, serve, serve_probe, serving,
};

/// The status that a call behind `layer` ends with, before it reaches the service.
async fn refused<L>(layer: &L) -> Status
where
    L: tower::Layer<tonic_health::pb::health_server::HealthServer<Probe>, Service: GatedService>,
{
    let (mut client, mut entries) = serve_probe(layer);
    let status = promptly("an answer", client.check(ask())).await;
    entries.assert_none();
    let status = status.expect_err("not let through");
    assert_discreet(&status, &[]);
    status
}

#[tokio::test]
async fn a_full_semaphore_is_resource_exhausted() {
    let fixture = Fixture::new();
    let semaphore = fixture.semaphore().ttl(Duration::from_millis(3_500));
    let semaphore = semaphore.expect("in range");
    let _held = semaphore.acquire().await.expect("a free permit");
    let limit = ConcurrencyLimitLayer::new(semaphore).max_wait(NO_WAIT);
    let status = refused(&limit.grpc()).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "Concurrency limit reached");
    // The time to the first end of a lease.
    let seconds = retry_after(&status).expect("later it may pass").as_secs();
    assert!((1..=4).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_held_mutex_is_aborted_for_those_who_do_not_wait() {
    let fixture = Fixture::new();
    let mutex = fixture.mutex().ttl(Duration::from_millis(3_500));
    let mutex = mutex.expect("in range");
    let _held = mutex.lock().await.expect("a free lock");
    let lock = MutexLayer::new(mutex).max_wait(NO_WAIT);
    let status = refused(&lock.grpc()).await;
    assert_eq!(status.code(), Code::Aborted);
    let seconds = retry_after(&status).expect("later it may pass").as_secs();
    assert!((1..=4).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_wait_that_runs_out_is_resource_exhausted() {
    let fixture = Fixture::new();
    let _lock = fixture.mutex().lock().await.expect("a free lock");
    let _permit = fixture.semaphore().acquire().await.expect("a free permit");
    let max_wait = Duration::from_millis(50);
    let begun = Instant::now();
    for status in [
        refused(&fixture.lock().max_wait(max_wait)).await,
        refused(&fixture.limit().max_wait(max_wait)).await,
    ] {
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(retry_after(&status).is_some());
    }
    assert!(begun.elapsed() >= 2 * max_wait);
}

#[tokio::test]
async fn a_full_queue_is_resource_exhausted() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let short = fixture.semaphore().max_waiters(1);
    let waiter = tokio::spawn({
        let semaphore = short.clone().max_wait(LONG);
        async move { semaphore.acquire().await }
    });
    fixture.until_waiting(1).await;
    let layer = ConcurrencyLimitLayer::new(short).max_wait(LONG).grpc();
    let status = refused(&layer).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "Too many requests are waiting");
    assert!(retry_after(&status).is_some());
    waiter.abort();
}

#[tokio::test]
async fn what_is_over_quota_is_resource_exhausted_until_a_unit_comes_back() {
    let fixture = Fixture::new();
    let twice = fixture.gates.rate_limiter(REPORTS, Quota::per(2, LONG));
    let twice = twice.expect("in range");
    let layer = RateLimitLayer::new(twice.clone()).grpc();
    twice.check_n(2).await.expect("both are there");
    let status = refused(&layer).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "Too many requests");
    // Half of the period.
    let seconds = retry_after(&status).expect("later it may pass").as_secs();
    assert!((290..=300).contains(&seconds), "{seconds}");
    let told = status
        .metadata()
        .get("ratelimit")
        .expect("told as to others");
    assert!(
        told.to_str().is_ok_and(|told| told.contains(";r=0;t=")),
        "{told:?}"
    );

    let never = refused(&layer.clone().cost(|_| 3)).await;
    assert_eq!(never.code(), Code::InvalidArgument);
    assert_eq!(retry_after(&never), None);

    fixture.memory.outage(true);
    let away = refused(&layer).await;
    assert_eq!(away.code(), Code::Unavailable);
    assert_eq!(retry_after(&away), Some(Duration::from_secs(1)));
    assert!(away.metadata().get("ratelimit").is_none());
}

#[tokio::test]
async fn an_outage_is_unavailable() {
    let fixture = Fixture::new();
    fixture.memory.outage(true);
    for status in [
        refused(&fixture.lock()).await,
        refused(&fixture.limit()).await,
    ] {
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(retry_after(&status), Some(Duration::from_secs(1)));
    }
}

#[tokio::test]
async fn in_an_outage_a_layer_that_may_do_without_the_server_lets_calls_through() {
    let fixture = Fixture::new();
    fixture.memory.outage(true);
    for on_outage in [OnOutage::Allow, OnOutage::Local(1)] {
        let (mut client, _entries) = serve_probe(&fixture.lock().on_outage(on_outage));
        let answer = promptly("an answer", client.check(ask())).await;
        assert_eq!(answer.expect("let through").into_inner(), serving());
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable_and_its_address_is_not_told() {
    // A port that nobody listens on.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port().to_string();
    drop(listener);
    let gates = Portcullis::builder().url(format!("redis://:password@127.0.0.1:{port}/"));
    let gates = gates.build().expect("an address");
    let layer = MutexLayer::new(gates.mutex(WITHDRAW)).max_wait(Duration::from_millis(100));
    let status = refused(&layer.grpc()).await;
    assert_eq!(status.code(), Code::Unavailable);
    assert_discreet(&status, &[&port, "127.0.0.1", "redis", "password"]);
}

#[tokio::test]
async fn a_handle_that_shuts_down_is_unavailable_to_those_who_wait_and_those_who_come() {
    let fixture = Fixture::new();
    let other = Fixture {
        gates: fixture.memory.handle(),
        memory: fixture.memory.clone(),
    };
    let _held = other.semaphore().acquire().await.expect("a free permit");
    let (mut client, _entries) = serve_probe(&fixture.limit());
    let waiter = tokio::spawn(async move { client.check(ask()).await });
    other.until_waiting(1).await;
    fixture.gates.shutdown(Duration::ZERO).await;
    let waited = promptly("it is told", waiter).await.expect("no panic");
    for status in [
        waited.expect_err("not let through"),
        refused(&fixture.limit()).await,
    ] {
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), "This process is shutting down");
        assert_eq!(retry_after(&status), Some(Duration::from_secs(1)));
        assert_discreet(&status, &[]);
    }
}

#[tokio::test]
async fn a_key_that_is_missing_is_an_invalid_argument() {
    let fixture = Fixture::new();
    let missing = |_: &Parts| Err::<&str, _>(KeyError::missing("header x-tenant"));
    let status = refused(&fixture.limit().key(missing)).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(retry_after(&status), None);
}

#[tokio::test]
async fn a_caller_without_an_identity_is_unauthenticated() {
    let fixture = Fixture::new();
    let unknown = |_: &Parts| {
        let challenge = HeaderValue::from_static("Bearer");
        Err::<&str, _>(KeyError::unauthenticated("identity", challenge))
    };
    let status = refused(&fixture.lock().key(unknown)).await;
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(retry_after(&status), None);
}

#[tokio::test]
async fn more_than_there_ever_is_is_an_invalid_argument() {
    let fixture = Fixture::new();
    let status = refused(&fixture.limit().demand(|_| Demand::default().weight(2))).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(retry_after(&status), None);
}

#[tokio::test]
async fn a_key_is_read_from_metadata_and_told_to_nobody() {
    let fixture = Fixture::new();
    let mutex = fixture.mutex();
    let _held = mutex.keyed(KEY).lock().await.expect("a free lock");
    let tenant = |parts: &Parts| {
        let tenant = parts.headers.get("x-tenant")?;
        Some(tenant.to_str().ok()?.to_owned())
    };
    let layer = fixture.lock().key(tenant).max_wait(NO_WAIT);
    let (mut client, _entries) = serve_probe(&layer);
    let mut call = async |tenant: &'static str| {
        let mut request = tonic::Request::new(ask());
        let value = tonic::metadata::MetadataValue::from_static(tenant);
        request.metadata_mut().insert("x-tenant", value);
        promptly("an answer", client.check(request)).await
    };
    call("another").await.expect("let through");
    let status = call(KEY).await.expect_err("not let through");
    assert_eq!(status.code(), Code::Aborted);
    assert_discreet(&status, &[]);
}

#[tokio::test]
async fn an_answer_is_only_a_head() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let (probe, _entries) = Probe::new();
    let gated = fixture.limit().max_wait(NO_WAIT).named_layer(probe);
    let address = serve(Routes::new(gated));
    for kind in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc; x=y",
    ] {
        let request = http_request(address).header("content-type", kind);
        let (head, body) = bare_call(request).await;
        // As the protocol has it: status 200 whatever the outcome, which is in the head.
        assert_eq!(head.status, 200);
        assert_eq!(head.headers["content-type"], "application/grpc");
        assert_eq!(head.headers["grpc-status"], "8");
        assert_eq!(
            head.headers["grpc-message"],
            "Concurrency%20limit%20reached"
        );
        assert!(head.headers.contains_key("grpc-status-details-bin"));
        assert!(head.headers.contains_key("grpc-retry-pushback-ms"));
        assert!(!head.headers.contains_key("retry-after"));
        assert!(body.is_empty());
    }
}

#[tokio::test]
async fn requests_that_are_not_of_grpc_get_a_problem_from_the_same_layer() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let (probe, _entries) = Probe::new();
    let gated = fixture.limit().max_wait(NO_WAIT).named_layer(probe);
    let address = serve(Routes::new(gated));
    // That of browsers is translated further out, and not to be taken for gRPC here.
    for kind in ["application/json", "application/grpc-web+proto"] {
        let request = http_request(address).header("content-type", kind);
        let (head, body) = bare_call(request).await;
        assert_eq!(head.status, 503);
        assert_eq!(head.headers["content-type"], "application/problem+json");
        assert!(head.headers.contains_key("retry-after"));
        assert!(!head.headers.contains_key("grpc-status"));
        let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(problem["type"], "urn:problem-type:portcullis:at-capacity");
    }
}

#[tokio::test]
async fn a_layer_that_was_not_told_of_grpc_sends_what_its_clients_cannot_read() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let layer = ConcurrencyLimitLayer::new(fixture.semaphore()).max_wait(NO_WAIT);
    let status = refused(&layer).await;
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(retry_after(&status), None);
}

#[tokio::test]
async fn on_refusal_sees_the_status_and_can_add_to_it() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let layer = fixture.limit().max_wait(NO_WAIT);
    let layer = layer.on_refusal(|_, mut answer| {
        assert_eq!(answer.headers()["grpc-status"], "8");
        let headers = answer.headers_mut();
        headers.insert("x-served-by", HeaderValue::from_static("gate"));
        answer
    });
    let status = refused(&layer).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.metadata().get("x-served-by").expect("kept"), "gate");
}

#[tokio::test]
async fn a_connection_goes_on_after_a_refusal() {
    let fixture = Fixture::new();
    let held = fixture.semaphore().acquire().await.expect("a free permit");
    let (mut client, _entries) = serve_probe(&fixture.limit().max_wait(NO_WAIT));
    let refused = promptly("an answer", client.check(ask())).await;
    assert_eq!(
        refused.expect_err("not let through").code(),
        Code::ResourceExhausted
    );
    drop(held);
    let answer = promptly("an answer", client.check(ask())).await;
    answer.expect("let through");
    fixture.until_idle().await;
}
