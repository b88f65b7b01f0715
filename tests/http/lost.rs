//! What becomes of a request whose lease is lost.

use std::future::pending;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use portcullis::layer::OnLost;
use portcullis::{Held, LeaseMode, LostReason, MutexLayer};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt};

use crate::contract::on_servers;
use crate::fixture::{Fixture, Pieces, Probe, SEEN, SHORT_TTL, request};

/// Renewed every 333 ms, so that a loss is seen soon.
fn layer<const N: usize>(fixture: &Fixture<N>) -> MutexLayer {
    MutexLayer::new(fixture.mutex().ttl(SHORT_TTL).expect("in range"))
}

/// Tells when it is dropped.
struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.take().expect("dropped once").send(());
    }
}

fn held(request: &Request<String>) -> Held {
    request
        .extensions()
        .get::<Held>()
        .cloned()
        .unwrap_or_default()
}

on_servers! {
    an_aborted_handler_is_dropped_and_its_caller_told,
    a_handler_that_blocks_until_its_lease_is_over_is_not_answered_for,
    a_handler_that_is_to_continue_sees_the_loss_and_answers,
    a_body_under_way_ends_with_an_error,
    a_body_that_is_to_continue_does_so,
    a_lease_is_renewed_for_as_long_as_its_body_is_under_way,
}

async fn an_aborted_handler_is_dropped_and_its_caller_told<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let (entered, inside) = oneshot::channel();
    let (sender, dropped) = oneshot::channel();
    let once = std::sync::Mutex::new(Some((entered, Dropped(Some(sender)))));
    let probe = Probe::new(move |_| {
        let (entered, witness) = once.lock().expect("no panic").take().expect("called once");
        async move {
            let _witness = witness;
            let _ = entered.send(());
            pending().await
        }
    });
    let mut gated = layer(&fixture).layer(probe);
    let mut response = gated.ready().await.expect("always ready").call(request());
    let response = tokio::spawn(async move {
        let answer = (&mut response).await;
        // Kept, so that the handler can't be dropped with it.
        (answer, response)
    });
    inside.await.expect("the handler runs");
    fixture.forget_holders().await;
    let (response, _kept) = response.await.expect("no panic");
    timeout(SEEN, dropped)
        .await
        .expect("within the lease")
        .expect("the handler is dropped");
    let response = response.expect("an answer");
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
    let body = response
        .into_body()
        .collect()
        .await
        .expect("a whole body")
        .to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("portcullis:lease-lost"));
}

async fn a_handler_that_blocks_until_its_lease_is_over_is_not_answered_for<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let ttl = Duration::from_millis(200);
    let mutex = fixture.mutex().ttl(ttl).expect("in range");
    let fixed = mutex.lease(LeaseMode::Fixed).expect("in range");
    let probe = Probe::new(move |_| async move {
        std::thread::sleep(ttl + Duration::from_millis(50));
        Ok(Response::new(Pieces::empty()))
    });
    let response = MutexLayer::new(fixed).layer(probe).oneshot(request()).await;
    let response = response.expect("an answer");
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
}

async fn a_handler_that_is_to_continue_sees_the_loss_and_answers<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let (entered, inside) = oneshot::channel();
    let once = std::sync::Mutex::new(Some(entered));
    let probe = Probe::new(move |request| {
        let entered = once.lock().expect("no panic").take().expect("called once");
        async move {
            let lease = held(&request).lease("withdraw").expect("behind this gate");
            let _ = entered.send(());
            lease.lost().await;
            assert!(!lease.is_held());
            Ok(Response::new(Pieces::empty()))
        }
    });
    let gated = layer(&fixture).on_lost(OnLost::Continue).layer(probe);
    let response = tokio::spawn(gated.oneshot(request()));
    inside.await.expect("the handler runs");
    fixture.forget_holders().await;
    let response = timeout(SEEN, response)
        .await
        .expect("within the lease")
        .expect("no panic");
    assert_eq!(response.expect("an answer").status(), StatusCode::OK);
}

async fn a_body_under_way_ends_with_an_error<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let gated = layer(&fixture).layer(Probe::answering(Pieces::silent));
    let mut body = gated
        .oneshot(request())
        .await
        .expect("an answer")
        .into_body();
    fixture.forget_holders().await;
    let frame = timeout(SEEN, body.frame()).await.expect("within the lease");
    let error = frame
        .expect("not a regular end")
        .expect_err("the body is not whole");
    assert!(error.is::<LostReason>());
    assert!(
        body.frame().await.is_none(),
        "nothing comes after the error"
    );
}

async fn a_body_that_is_to_continue_does_so<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let (sender, pieces) = Pieces::channel();
    let once = std::sync::Mutex::new(Some(pieces));
    let (share, mut shared) = tokio::sync::mpsc::unbounded_channel();
    let probe = Probe::new(move |request| {
        let pieces = once.lock().expect("no panic").take().expect("called once");
        share.send(held(&request)).expect("the test lives");
        async { Ok(Response::new(pieces)) }
    });
    let gated = layer(&fixture).on_lost(OnLost::Continue).layer(probe);
    let mut body = gated
        .oneshot(request())
        .await
        .expect("an answer")
        .into_body();
    let lease = shared
        .recv()
        .await
        .expect("the handler ran")
        .lease("withdraw");
    fixture.forget_holders().await;
    timeout(SEEN, lease.expect("behind this gate").lost())
        .await
        .expect("within the lease");
    sender.send(Ok("a piece")).expect("the body lives");
    assert!(body.frame().await.expect("a frame").is_ok());
}

async fn a_lease_is_renewed_for_as_long_as_its_body_is_under_way<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    // Long enough for a busy machine to renew it in time.
    let ttl = 3 * SHORT_TTL;
    let mutex = fixture.mutex().ttl(ttl).expect("in range");
    let gated = MutexLayer::new(mutex.clone()).layer(Probe::answering(Pieces::silent));
    let response = gated.oneshot(request()).await.expect("an answer");
    let mut body = response.into_body();
    // Beyond the TTL: the body does not end by itself, and nobody else gets in.
    let watched = timeout(ttl + SHORT_TTL, async {
        tokio::select! {
            frame = body.frame() => panic!("ended: {frame:?}"),
            other = mutex.lock() => panic!("two inside: {other:?}"),
        }
    });
    assert!(watched.await.is_err());
}
