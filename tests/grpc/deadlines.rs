//! How long a gRPC request waits: no longer than its layer, and no longer than its caller.

use std::time::{Duration, Instant};

use portcullis::ConcurrencyLimitLayer;
use tonic::service::{LayerExt, Routes};
use tonic::{Code, Request};

use crate::fixture::{
    Fixture, LONG, Probe, ask, bare_call, grpc_request, http_request, promptly, serve_by_axum,
    serve_probe,
};

/// What the caller says: shorter than a test may take, long enough to be measured.
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_wait_ends_when_its_caller_has_waited_long_enough() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let (probe, mut entries) = Probe::new();
    let routes = Routes::new(fixture.limit().named_layer(probe));
    let address = serve_by_axum(routes.into_axum_router()).await;
    let begun = Instant::now();
    let request = grpc_request(address).header("grpc-timeout", "100m");
    let (head, _) = bare_call(request).await;
    assert_eq!(head.headers["grpc-status"], "8");
    assert!(begun.elapsed() >= SHORT);
    fixture.until_waiting(0).await;
    entries.assert_none();
}

#[tokio::test]
async fn a_caller_that_would_wait_longer_does_not_prolong_the_wait() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let (mut client, _entries) = serve_probe(&fixture.limit().max_wait(SHORT));
    let mut request = Request::new(ask());
    request.set_timeout(LONG);
    let status = promptly("an answer", client.check(request)).await;
    assert_eq!(
        status.expect_err("not let through").code(),
        Code::ResourceExhausted
    );
}

#[tokio::test]
async fn a_client_with_a_timeout_leaves_the_queue_with_it() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let (mut client, mut entries) = serve_probe(&fixture.limit());
    let mut request = Request::new(ask());
    request.set_timeout(SHORT);
    let status = promptly("an answer", client.check(request)).await;
    // Three clocks run: tonic's in the client and in the server end a call as `CANCELLED`.
    let code = status.expect_err("not let through").code();
    assert!(
        matches!(code, Code::ResourceExhausted | Code::Cancelled),
        "{code:?}"
    );
    fixture.until_waiting(0).await;
    entries.assert_none();
}

#[tokio::test]
async fn a_free_gate_lets_a_caller_through_that_does_not_wait() {
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let routes = Routes::new(fixture.limit().named_layer(probe));
    let address = serve_by_axum(routes.into_axum_router()).await;
    let request = grpc_request(address).header("grpc-timeout", "0n");
    let (head, body) = bare_call(request).await;
    assert!(!head.headers.contains_key("grpc-status"), "{head:?}");
    assert!(!body.is_empty());
}

#[tokio::test]
async fn a_timeout_counts_only_in_grpc_requests_to_layers_that_speak_it() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let max_wait = 3 * SHORT;
    for (grpc, kind) in [(true, "application/json"), (false, "application/grpc")] {
        let (probe, _entries) = Probe::new();
        let mut layer = ConcurrencyLimitLayer::new(fixture.semaphore()).max_wait(max_wait);
        if grpc {
            layer = layer.grpc();
        }
        let routes = Routes::new(layer.named_layer(probe));
        let address = serve_by_axum(routes.into_axum_router()).await;
        let begun = Instant::now();
        let request = http_request(address).header("content-type", kind);
        let (head, _) = bare_call(request.header("grpc-timeout", "1m")).await;
        assert_eq!(head.status, 503);
        assert!(begun.elapsed() >= max_wait);
    }
}
