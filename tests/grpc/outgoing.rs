//! Gates in front of a client: how many calls go out at a time.

use std::error::Error;
use std::time::Duration;

use portcullis::{ConcurrencyLimitLayer, LockError, RefusalKind};
use tonic::service::Routes;
use tonic::{Code, Request};
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, ServiceBuilder};

use crate::fixture::{
    Entries, Fixture, NO_WAIT, Probe, ask, assert_discreet, channel, promptly, retry_after, serve,
    serving,
};

/// A channel to a probe that is not gated itself.
fn probed() -> (tonic::transport::Channel, Entries) {
    let (probe, entries) = Probe::new();
    (channel(serve(Routes::new(probe))), entries)
}

#[tokio::test]
async fn a_call_that_is_not_let_out_fails_with_a_status_of_its_own() {
    let fixture = Fixture::new();
    let (channel, mut entries) = probed();
    let mut client = HealthClient::new(fixture.limit().max_wait(NO_WAIT).layer(channel));
    let held = fixture.semaphore().acquire().await.expect("a free permit");
    let status = promptly("an answer", client.check(ask())).await;
    let status = status.expect_err("not let out");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(retry_after(&status).is_some());
    assert_discreet(&status, &[]);
    entries.assert_none();
    drop(held);
    promptly("an answer", client.check(ask()))
        .await
        .expect("let out");
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_stream_counts_until_it_has_ended() {
    let fixture = Fixture::new();
    let (channel, mut entries) = probed();
    let client = HealthClient::new(fixture.limit().layer(channel));
    let stream = promptly("a head", client.clone().watch(ask())).await;
    let mut stream = stream.expect("let out").into_inner();
    let messages = entries.watch().await;
    messages.send(Ok(serving())).expect("the stream is open");
    let message = promptly("a message", stream.message()).await;
    assert_eq!(message.expect("whole"), Some(serving()));

    let mut other = client.clone();
    let next = tokio::spawn(async move { other.check(ask()).await });
    fixture.until_waiting(1).await;
    entries.assert_none();
    drop(stream);
    let next = promptly("its turn", next).await.expect("no panic");
    next.expect("let out");
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_call_with_a_timeout_does_not_wait_longer_to_be_let_out() {
    let fixture = Fixture::new();
    let (channel, mut entries) = probed();
    let mut client = HealthClient::new(fixture.limit().layer(channel));
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let mut request = Request::new(ask());
    request.set_timeout(Duration::from_millis(100));
    let status = promptly("an answer", client.check(request)).await;
    // Tonic's own clock for it stands further in, and has not begun.
    assert_eq!(
        status.expect_err("not let out").code(),
        Code::ResourceExhausted
    );
    fixture.until_waiting(0).await;
    entries.assert_none();
}

#[tokio::test]
async fn a_stack_of_layers_makes_a_channel_as_well() {
    let fixture = Fixture::new();
    let (channel, _entries) = probed();
    let stack = ServiceBuilder::new()
        .layer(fixture.limit())
        .layer(fixture.lock())
        .service(channel);
    let mut client = HealthClient::new(stack);
    for _ in 0..3 {
        promptly("an answer", client.check(ask()))
            .await
            .expect("let out");
    }
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_plain_gate_fails_with_the_error_itself_and_counts_until_the_head() {
    let fixture = Fixture::new();
    let (channel, mut entries) = probed();
    let limit = ConcurrencyLimitLayer::new(fixture.semaphore());
    let gated = limit.max_wait(NO_WAIT).plain().layer(channel);
    let mut client = HealthClient::new(gated);
    let held = fixture.semaphore().acquire().await.expect("a free permit");
    let status = promptly("an answer", client.check(ask())).await;
    let status = status.expect_err("not let out");
    // What tonic makes of errors that it does not know.
    assert_eq!(status.code(), Code::Unknown);
    let source = status.source().expect("the error itself");
    match source.downcast_ref::<LockError>() {
        Some(LockError::Refused(refusal)) => assert_eq!(refusal.kind(), RefusalKind::Busy),
        other => panic!("{other:?} instead of a refusal"),
    }
    entries.assert_none();
    drop(held);

    let stream = promptly("a head", client.watch(ask())).await;
    let _stream = stream.expect("let out");
    let _messages = entries.watch().await;
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_gate_that_was_not_told_of_grpc_answers_what_its_client_cannot_read() {
    let fixture = Fixture::new();
    let (channel, _entries) = probed();
    let limit = ConcurrencyLimitLayer::new(fixture.semaphore()).max_wait(NO_WAIT);
    let mut client = HealthClient::new(limit.layer(channel));
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    let status = promptly("an answer", client.check(ask())).await;
    assert_eq!(status.expect_err("not let out").code(), Code::Internal);
}
