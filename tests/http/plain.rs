//! Gates in front of services that are not HTTP servers.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::time::Duration;

use http::request::Parts;
use portcullis::layer::{BoxError, KeyError, OnLost};
use portcullis::{ConcurrencyLimitLayer, LockError, LostReason, MutexLayer, RefusalKind};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};

use crate::fixture::{Broken, Fixture, SEEN, SHORT_TTL};

fn refusal(error: &BoxError) -> Option<RefusalKind> {
    match error.downcast_ref()? {
        LockError::Refused(refusal) => Some(refusal.kind()),
        _ => None,
    }
}

#[tokio::test]
async fn a_plain_service_takes_any_request_and_holds_until_its_response() {
    let fixture = Fixture::new();
    let semaphore = fixture.semaphore(1);
    let inner = service_fn(move |job: u32| {
        let semaphore = semaphore.clone();
        async move {
            assert!(semaphore.try_acquire().await.is_err(), "the job holds");
            Ok::<_, Infallible>(job + 1)
        }
    });
    let gated = ConcurrencyLimitLayer::new(fixture.semaphore(1))
        .plain()
        .layer(inner);
    assert_eq!(gated.clone().oneshot(1).await.expect("a free permit"), 2);
    fixture.wait_until_free(1).await;
    assert_eq!(gated.oneshot(2).await.expect("a free permit"), 3);
}

#[tokio::test]
async fn a_refusal_is_an_error_to_downcast() {
    let fixture = Fixture::new();
    let _held = fixture.mutex().lock().await.expect("a free lock");
    let inner = service_fn(|(): ()| ready(Ok::<_, Infallible>(())));
    let layer = MutexLayer::new(fixture.mutex()).plain();
    let error = layer
        .clone()
        .max_wait(Duration::ZERO)
        .layer(inner)
        .oneshot(())
        .await;
    assert_eq!(refusal(&error.expect_err("held")), Some(RefusalKind::Busy));
    let error = layer
        .max_wait(Duration::from_millis(30))
        .layer(inner)
        .oneshot(())
        .await;
    assert_eq!(
        refusal(&error.expect_err("held")),
        Some(RefusalKind::WaitedTooLong)
    );
}

#[tokio::test]
async fn the_inner_services_error_is_passed_on_as_it_is() {
    let fixture = Fixture::new();
    let inner = service_fn(|(): ()| ready(Err::<(), _>(Broken)));
    let gated = MutexLayer::new(fixture.mutex()).plain().layer(inner);
    let error = gated.oneshot(()).await.expect_err("the service fails");
    assert_eq!(error.downcast_ref(), Some(&Broken));
    fixture.wait_until_unlocked().await;
}

#[tokio::test]
async fn a_fixed_key_chooses_the_sibling() {
    let fixture = Fixture::new();
    let _held = fixture
        .mutex()
        .keyed("a")
        .lock()
        .await
        .expect("a free lock");
    let inner = service_fn(|(): ()| ready(Ok::<_, Infallible>(())));
    let layer = MutexLayer::new(fixture.mutex())
        .max_wait(Duration::ZERO)
        .plain();
    let error = layer
        .clone()
        .key("a")
        .layer(inner)
        .oneshot(())
        .await
        .expect_err("held");
    assert_eq!(refusal(&error), Some(RefusalKind::Busy));
    layer
        .key("b")
        .layer(inner)
        .oneshot(())
        .await
        .expect("a free lock");
}

#[tokio::test]
async fn a_key_from_an_http_head_is_missed_and_not_ignored() {
    let fixture = Fixture::new();
    let inner = service_fn(|(): ()| ready(Ok::<_, Infallible>(())));
    let layer = MutexLayer::new(fixture.mutex())
        .key(|_: &Parts| Some("a"))
        .plain();
    let error = layer
        .layer(inner)
        .oneshot(())
        .await
        .expect_err("there is no head");
    assert!(error.is::<KeyError>());
}

#[tokio::test]
async fn a_job_whose_lease_is_lost_is_dropped_or_goes_on() {
    let fixture = Fixture::new();
    let mutex = fixture.mutex().ttl(SHORT_TTL).expect("in range");
    let (entered, mut inside) = mpsc::unbounded_channel();
    let inner = service_fn(move |(): ()| {
        let _ = entered.send(());
        pending::<Result<(), Infallible>>()
    });
    let layer = MutexLayer::new(mutex).plain();
    let job = tokio::spawn(layer.clone().layer(inner.clone()).oneshot(()));
    inside.recv().await.expect("the job runs");
    fixture.forget_holders().await;
    let error = tokio::time::timeout(SEEN, job)
        .await
        .expect("within the lease")
        .expect("no panic");
    assert!(error.expect_err("aborted").is::<LostReason>());

    let going_on = layer.on_lost(OnLost::Continue).layer(inner).oneshot(());
    let watched = tokio::time::timeout(SHORT_TTL + SHORT_TTL / 2, async {
        tokio::join!(going_on, async {
            inside.recv().await.expect("the job runs");
            fixture.forget_holders().await;
        })
    });
    assert!(watched.await.is_err(), "it goes on beyond its TTL");
}
