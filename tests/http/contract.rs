//! Tower's contract: readiness, clones, what is called when.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use portcullis::{ConcurrencyLimitLayer, MutexLayer};
use tower::{Layer, Service, ServiceExt};

use crate::fixture::{Broken, Fixture, Pieces, Probe, request};

#[tokio::test]
async fn the_inner_service_is_called_once_and_not_before_admission() {
    let fixture = Fixture::new();
    let held = fixture.mutex().lock().await.expect("a free lock");
    let probe = Probe::answering(Pieces::empty);
    let gated = MutexLayer::new(fixture.mutex()).layer(probe.clone());
    let response = tokio::spawn(gated.oneshot(request()));
    fixture.wait_until_queued(1).await;
    assert_eq!(probe.calls(), 0);
    drop(held);
    let response = response
        .await
        .expect("no panic")
        .expect("the probe does not fail");
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(probe.calls(), 1);
}

#[tokio::test]
async fn one_service_called_again_and_again_polls_its_inner_service_ready_each_time() {
    let fixture = Fixture::new();
    let probe = Probe::answering(Pieces::empty);
    let mut gated = MutexLayer::new(fixture.mutex()).layer(probe.clone());
    for calls in 1..=5 {
        let ready = gated.ready().await.expect("always ready");
        ready
            .call(request())
            .await
            .expect("the probe does not fail");
        assert_eq!(probe.calls(), calls);
    }
}

#[tokio::test]
async fn being_ready_reserves_nothing() {
    let fixture = Fixture::new();
    let layer = ConcurrencyLimitLayer::new(fixture.semaphore(3));
    let gated = layer.layer(Probe::answering(Pieces::empty));
    let mut ready = Vec::new();
    for _ in 0..10 {
        let mut clone = gated.clone();
        clone.ready().await.expect("always ready");
        ready.push(clone);
    }
    let all = fixture
        .semaphore(3)
        .max_wait(Duration::ZERO)
        .acquire_many(3)
        .await;
    drop(all.expect("ready services hold nothing"));
}

#[tokio::test]
async fn a_hundred_clones_share_one_limit() {
    let fixture = Fixture::new();
    let inside = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let probe = {
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        Probe::new(move |_| {
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            async move {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(Response::new(Pieces::empty()))
            }
        })
    };
    let layer = ConcurrencyLimitLayer::new(fixture.semaphore(3)).max_wait(Duration::from_secs(10));
    let gated = layer.layer(probe);
    let responses = join_all((0..100).map(|_| gated.clone().oneshot(request()))).await;
    assert!(responses.iter().all(|response| {
        response
            .as_ref()
            .is_ok_and(|response| response.status() == StatusCode::OK)
    }));
    assert_eq!(most.load(Ordering::SeqCst), 3);
    fixture.wait_until_free(3).await;
}

#[tokio::test]
async fn a_layer_on_one_route_leaves_its_neighbors_alone() {
    let fixture = Fixture::new();
    let _held = fixture.semaphore(1).acquire().await.expect("a free permit");
    let layer = ConcurrencyLimitLayer::new(fixture.semaphore(1)).max_wait(Duration::ZERO);
    let app: Router = Router::new()
        .route("/gated", get(async || "in").layer(layer))
        .route("/healthz", get(async || "ok"));
    let ask = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).expect("a path");
        app.clone()
            .oneshot(request)
            .await
            .expect("routers do not fail")
            .status()
    };
    assert_eq!(ask("/gated").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(ask("/healthz").await, StatusCode::OK);
}

#[tokio::test]
async fn the_inner_services_error_passes_through_and_gives_the_lease_back() {
    let fixture = Fixture::new();
    let layer = ConcurrencyLimitLayer::new(fixture.semaphore(1));
    let mut gated = layer.layer(Probe::new(|_| async { Err(Broken) }));
    let mut response = gated.ready().await.expect("always ready").call(request());
    assert_eq!((&mut response).await.expect_err("the probe fails"), Broken);
    // While the future is kept.
    fixture.wait_until_free(1).await;
    drop(response);
}
