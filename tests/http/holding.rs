//! How long a request holds: to the end of its body, however that ends.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::{FutureExt, stream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use portcullis::layer::{Gated, HeldBody, HoldUntil};
use portcullis::{ConcurrencyLimitLayer, MutexLayer};
use tokio::task::yield_now;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

use crate::fixture::{Broken, Fixture, Pieces, Probe, Sender, request};
use crate::support::{poll_k_times, poll_k_times_and_wake};

/// One request's answer through a gate of one permit, with the sender of its body.
async fn answered(fixture: &Fixture<1>, announcing: Option<usize>) -> (Sender, HeldBody<Pieces>) {
    answered_by(fixture, announcing, HoldUntil::Body).await
}

async fn answered_by(
    fixture: &Fixture<1>,
    announcing: Option<usize>,
    hold_until: HoldUntil,
) -> (Sender, HeldBody<Pieces>) {
    let (sender, mut body) = Pieces::channel();
    if let Some(pieces) = announcing {
        body = body.announcing(pieces);
    }
    let once = Mutex::new(Some(body));
    let take = move || once.lock().expect("no panic").take().expect("asked once");
    let layer = ConcurrencyLimitLayer::new(fixture.semaphore(1)).hold_until(hold_until);
    let response = layer.layer(Probe::answering(take)).oneshot(request()).await;
    (
        sender,
        response.expect("the probe does not fail").into_body(),
    )
}

fn gated(fixture: &Fixture<1>, probe: Probe) -> Gated<Probe> {
    ConcurrencyLimitLayer::new(fixture.semaphore(1)).layer(probe)
}

#[tokio::test]
async fn a_request_holds_until_its_body_has_ended() {
    let fixture = Fixture::new();
    let (sender, mut body) = answered(&fixture, None).await;
    sender.send(Ok("a piece")).expect("the body lives");
    let frame = body.frame().await.expect("a frame").expect("no error");
    assert_eq!(frame.into_data().expect("data"), "a piece");
    assert!(fixture.is_full(1).await);
    drop(sender);
    assert!(body.frame().await.is_none());
    fixture.wait_until_free(1).await;
    drop(body);
}

#[tokio::test]
async fn a_last_piece_that_is_announced_ends_the_body_without_another_poll() {
    let fixture = Fixture::new();
    let (sender, mut body) = answered(&fixture, Some(2)).await;
    sender.send(Ok("one")).expect("the body lives");
    body.frame().await.expect("a frame").expect("no error");
    assert!(fixture.is_full(1).await);
    sender.send(Ok("two")).expect("the body lives");
    body.frame().await.expect("a frame").expect("no error");
    fixture.wait_until_free(1).await;
    drop(body);
}

#[tokio::test]
async fn an_empty_body_gives_the_permit_back_before_anybody_looks_at_it() {
    let fixture = Fixture::new();
    let (_sender, body) = answered(&fixture, Some(0)).await;
    fixture.wait_until_free(1).await;
    drop(body);
}

#[tokio::test]
async fn a_body_that_fails_gives_the_permit_back() {
    let fixture = Fixture::new();
    let (sender, mut body) = answered(&fixture, None).await;
    sender.send(Err(Broken)).expect("the body lives");
    let error = body
        .frame()
        .await
        .expect("a frame")
        .expect_err("the body fails");
    assert!(error.is::<Broken>());
    fixture.wait_until_free(1).await;
    drop(body);
}

#[tokio::test]
async fn a_body_dropped_before_its_end_gives_the_permit_back() {
    let fixture = Fixture::new();
    let (_sender, body) = answered(&fixture, None).await;
    assert!(fixture.is_full(1).await);
    drop(body);
    fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn a_body_can_be_dropped_where_there_is_no_runtime() {
    let fixture = Fixture::new();
    let (_sender, body) = answered(&fixture, None).await;
    std::thread::spawn(move || drop(body))
        .join()
        .expect("no panic");
    fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn holding_until_the_response_lets_the_body_go_on_alone() {
    let fixture = Fixture::new();
    let (sender, mut body) = answered_by(&fixture, None, HoldUntil::Response).await;
    fixture.wait_until_free(1).await;
    sender.send(Ok("a piece")).expect("the body lives");
    assert!(body.frame().await.expect("a frame").is_ok());
}

#[tokio::test]
async fn a_handler_that_panics_gives_the_permit_back() {
    let fixture = Fixture::new();
    let probe = Probe::new(|_| async { panic!("the handler panics") });
    let response = AssertUnwindSafe(gated(&fixture, probe).oneshot(request())).catch_unwind();
    assert!(response.await.is_err());
    fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn an_inner_service_that_panics_when_called_gives_the_permit_back() {
    let fixture = Fixture::new();
    let inner = service_fn(
        |_| -> std::future::Ready<Result<Response<Pieces>, Broken>> {
            panic!("the service panics")
        },
    );
    let gated = ConcurrencyLimitLayer::new(fixture.semaphore(1)).layer(inner);
    let response = AssertUnwindSafe(gated.oneshot(request())).catch_unwind();
    assert!(response.await.is_err());
    fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn a_body_that_panics_when_it_is_dropped_gives_the_permit_back() {
    let fixture = Fixture::new();
    let probe = Probe::answering(|| Pieces::silent().panicking_when_dropped());
    let response = gated(&fixture, probe)
        .oneshot(request())
        .await
        .expect("the probe does not fail");
    assert!(fixture.is_full(1).await);
    assert!(std::panic::catch_unwind(AssertUnwindSafe(|| drop(response))).is_err());
    fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn a_response_future_dropped_after_any_number_of_polls_leaves_nothing() {
    let fixture = Fixture::new();
    // Polled once for the acquire, once for the grant and the handler, and twice more for that.
    let handler = || {
        Probe::new(|_| async {
            yield_now().await;
            yield_now().await;
            Ok(Response::new(Pieces::silent()))
        })
    };
    for polls in 0..=4 {
        let response = poll_k_times(gated(&fixture, handler()).oneshot(request()), polls).await;
        assert_eq!(response.is_some(), polls == 4);
        drop(response);
        fixture.wait_until_free(1).await;
    }
    for polls in 0..=3 {
        // Woken and not polled: after the first poll that means granted and not told.
        let response = gated(&fixture, handler()).oneshot(request());
        assert!(poll_k_times_and_wake(response, polls).await.is_none());
        fixture.wait_until_free(1).await;
    }
    let held = fixture.semaphore(1).acquire().await.expect("a free permit");
    for polls in 0..=1 {
        let waiting = gated(&fixture, handler()).oneshot(request());
        assert!(poll_k_times(waiting, polls).await.is_none());
        fixture.wait_until_queued(0).await;
    }
    drop(held);
    fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn a_waiter_that_is_dropped_leaves_the_queue() {
    let fixture = Fixture::new();
    let held = fixture.semaphore(1).acquire().await.expect("a free permit");
    let waiter = tokio::spawn(gated(&fixture, Probe::answering(Pieces::empty)).oneshot(request()));
    fixture.wait_until_queued(1).await;
    waiter.abort();
    fixture.wait_until_queued(0).await;
    drop(held);
    let response = gated(&fixture, Probe::answering(Pieces::empty))
        .oneshot(request())
        .await;
    assert_eq!(
        response.expect("the probe does not fail").status(),
        StatusCode::OK
    );
}

/// Pieces, and what comes behind them.
fn body_with_trailers() -> Body {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", HeaderValue::from_static("7"));
    let frames = [
        Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"a piece"))),
        Ok(Frame::trailers(trailers)),
    ];
    Body::new(StreamBody::new(stream::iter(frames)))
}

async fn answered_with_trailers(fixture: &Fixture<1>) -> HeldBody<Body> {
    let inner = service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(body_with_trailers()))
    });
    let layer = ConcurrencyLimitLayer::new(fixture.semaphore(1));
    let response = layer.layer(inner).oneshot(request()).await;
    response.expect("the service does not fail").into_body()
}

#[tokio::test]
async fn trailers_are_passed_on_and_the_permit_is_held_until_they_are_out() {
    let fixture = Fixture::new();
    let mut body = answered_with_trailers(&fixture).await;
    let frame = body.frame().await.expect("a frame").expect("no error");
    assert!(frame.is_data());
    assert!(fixture.is_full(1).await);
    let frame = body.frame().await.expect("a frame").expect("no error");
    let trailers = frame.into_trailers().expect("trailers");
    assert_eq!(trailers["x-checksum"], "7");
    assert!(body.frame().await.is_none());
    fixture.wait_until_free(1).await;
    drop(body);
}

#[tokio::test]
async fn a_body_dropped_between_its_last_piece_and_its_trailers_gives_the_permit_back() {
    let fixture = Fixture::new();
    let mut body = answered_with_trailers(&fixture).await;
    body.frame().await.expect("a frame").expect("no error");
    assert!(fixture.is_full(1).await);
    drop(body);
    fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn a_body_that_panics_when_it_is_polled_gives_the_permit_back() {
    let fixture = Fixture::new();
    let inner = service_fn(async |_: Request<String>| {
        let panics = stream::poll_fn(|_| -> Poll<Option<Result<Bytes, Infallible>>> {
            panic!("this body panics")
        });
        Ok::<_, Infallible>(Response::new(Body::from_stream(panics)))
    });
    let layer = ConcurrencyLimitLayer::new(fixture.semaphore(1));
    let response = layer.layer(inner).oneshot(request()).await;
    let body = response.expect("the service does not fail").into_body();
    assert!(fixture.is_full(1).await);
    // Dropped by the unwinding, as by a server's task.
    let collected = AssertUnwindSafe(body.collect()).catch_unwind().await;
    assert!(collected.is_err());
    fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn several_gates_are_held_to_the_bodys_end_and_given_back_together() {
    let fixture = Fixture::new();
    let (sender, pieces) = Pieces::channel();
    let once = Mutex::new(Some(pieces));
    let take = move || once.lock().expect("no panic").take().expect("asked once");
    let gated = ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(fixture.semaphore(1)))
        .layer(MutexLayer::new(fixture.mutex()))
        .service(Probe::answering(take));
    let response = gated.oneshot(request()).await;
    let mut body = response.expect("the probe does not fail").into_body();
    sender.send(Ok("a piece")).expect("the body lives");
    body.frame().await.expect("a frame").expect("no error");
    assert!(fixture.is_full(1).await);
    assert!(fixture.mutex().try_lock().await.is_err());
    drop(sender);
    assert!(body.frame().await.is_none());
    fixture.wait_until_free(1).await;
    fixture.wait_until_unlocked().await;
    drop(body);
}

#[tokio::test]
async fn a_refusal_of_an_inner_gate_gives_the_outer_permit_back_when_it_was_read() {
    let fixture = Fixture::new();
    let _held = fixture.mutex().lock().await.expect("a free lock");
    let gated = ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(fixture.semaphore(1)))
        .layer(MutexLayer::new(fixture.mutex()).max_wait(Duration::ZERO))
        .service(Probe::answering(Pieces::empty));
    let response = gated.oneshot(request()).await.expect("an answer");
    assert_eq!(response.status(), StatusCode::CONFLICT);
    let mut body = response.into_body();
    body.frame().await.expect("a frame").expect("no error");
    // Servers do not ask for more than the one frame whose length is known.
    fixture.wait_until_free(1).await;
    drop(body);
}
