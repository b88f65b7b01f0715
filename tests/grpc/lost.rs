//! What becomes of a call whose lease is lost while it is worked on.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::{StreamExt, stream};
use http::Request;
use http_body_util::BodyExt;
use portcullis::layer::OnLost;
use tonic::Code;
use tower::ServiceExt;

use crate::fixture::{
    Fixture, REPORTS, WITHDRAW, ask, assert_discreet, channel, promptly, retry_after,
    serve_by_axum, serve_probe, serving,
};

#[tokio::test]
async fn a_unary_call_is_aborted_and_unavailable() {
    let fixture = Fixture::new();
    let (mut client, mut entries) = serve_probe(&fixture.lock());
    entries.stall();
    let call = tokio::spawn(async move { client.check(ask()).await });
    let handler = entries.check().await;
    assert_eq!(fixture.memory.expire(WITHDRAW), 1);
    let answer = promptly("an answer", call).await.expect("no panic");
    let status = answer.expect_err("aborted");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(retry_after(&status), Some(Duration::from_secs(1)));
    assert_discreet(&status, &[]);
    promptly("the handler is dropped", handler.closed()).await;
}

#[tokio::test]
async fn a_unary_call_that_is_to_continue_is_answered() {
    let fixture = Fixture::new();
    let layer = fixture.lock().on_lost(OnLost::Continue);
    let (mut client, mut entries) = serve_probe(&layer);
    entries.stall();
    let call = tokio::spawn(async move { client.check(ask()).await });
    let _handler = entries.check().await;
    assert_eq!(fixture.memory.expire(WITHDRAW), 1);
    entries.go_on();
    let answer = promptly("an answer", call).await.expect("no panic");
    answer.expect("it went on");
}

#[tokio::test]
async fn a_stream_under_way_ends_with_an_error() {
    let fixture = Fixture::new();
    let (mut client, mut entries) = serve_probe(&fixture.lock());
    let stream = promptly("a head", client.watch(ask())).await;
    let mut stream = stream.expect("let through").into_inner();
    let messages = entries.watch().await;
    messages.send(Ok(serving())).expect("the stream is open");
    let message = promptly("a message", stream.message()).await;
    assert_eq!(message.expect("whole"), Some(serving()));
    assert_eq!(fixture.memory.expire(WITHDRAW), 1);
    let end = promptly("an end", stream.message()).await;
    let status = end.expect_err("not the stream's regular end");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(retry_after(&status), Some(Duration::from_secs(1)));
    assert_discreet(&status, &[]);
    promptly("the service's stream is dropped", messages.closed()).await;
}

#[tokio::test]
async fn a_stream_that_is_to_continue_does_so() {
    let fixture = Fixture::new();
    // Semaphores do, unless told otherwise.
    let (mut client, mut entries) = serve_probe(&fixture.limit());
    let stream = promptly("a head", client.watch(ask())).await;
    let mut stream = stream.expect("let through").into_inner();
    let messages = entries.watch().await;
    assert_eq!(fixture.memory.expire(REPORTS), 1);
    messages.send(Ok(serving())).expect("the stream is open");
    let message = promptly("a message", stream.message()).await;
    assert_eq!(message.expect("whole"), Some(serving()));
    drop(messages);
    let end = promptly("an end", stream.message()).await;
    assert_eq!(end.expect("a regular end"), None);
}

#[tokio::test]
async fn an_answer_under_way_that_is_not_of_grpc_is_cut_off() {
    let fixture = Fixture::new();
    let piece = stream::iter([Ok::<_, Infallible>("a piece")]);
    let endless = || Body::from_stream(piece.chain(stream::pending()));
    let route = get(async move || endless()).layer(fixture.lock());
    let address = serve_by_axum(Router::new().route("/", route)).await;
    let request = Request::get(format!("http://{address}/"))
        .header("content-type", "application/grpc")
        .body(tonic::body::Body::empty());
    let answer = channel(address).oneshot(request.expect("a request"));
    let mut body = promptly("a head", answer)
        .await
        .expect("an answer")
        .into_body();
    let frame = promptly("a piece", body.frame()).await.expect("a frame");
    assert_eq!(frame.expect("whole").into_data().expect("data"), "a piece");
    assert_eq!(fixture.memory.expire(WITHDRAW), 1);
    let end = promptly("an end", body.frame()).await.expect("an end");
    // Its reader would take trailers for a regular one.
    assert!(end.is_err());
}
