//! Every place where a layer can be put compiles without adapters, and gates there.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::error_handling::HandleErrorLayer;
use axum::extract::State;
use axum::handler::Handler;
use axum::routing::{MethodRouter, get};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use portcullis::layer::{BoxError, Gated, HeldBody, Plain};
use portcullis::{ConcurrencyLimitLayer, Held, MutexLayer, Portcullis};
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer as LocalLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tower::util::BoxCloneSyncServiceLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::fixture::Fixture;

fn layer(fixture: &Fixture) -> ConcurrencyLimitLayer {
    ConcurrencyLimitLayer::new(fixture.semaphore(1)).max_wait(Duration::ZERO)
}

/// 200 while the permit is free, 503 while it is held.
async fn assert_gated<S, B>(fixture: &Fixture, service: S)
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>> + Clone,
{
    let status = async || {
        let request = Request::get("/").body(Body::empty()).expect("a path");
        let response = service.clone().oneshot(request).await;
        response.map_err(Into::into).expect("an answer").status()
    };
    assert_eq!(status().await, StatusCode::OK);
    fixture.wait_until_free(1).await;
    let held = fixture.semaphore(1).acquire().await.expect("a free permit");
    assert_eq!(status().await, StatusCode::SERVICE_UNAVAILABLE);
    drop(held);
    fixture.wait_until_free(1).await;
}

async fn handler(held: Held) -> &'static str {
    assert!(held.lease("reports").is_ok_and(|lease| lease.is_held()));
    "in"
}

#[tokio::test]
async fn a_gate_fits_every_place_of_axum() {
    let fixture = Fixture::new();
    let layer = layer(&fixture);
    let routes = || Router::new().route("/", get(handler));
    assert_gated(&fixture, routes().layer(layer.clone())).await;
    assert_gated(&fixture, routes().route_layer(layer.clone())).await;
    let method: MethodRouter = get(handler).layer(layer.clone());
    assert_gated(&fixture, Router::new().route("/", method)).await;
    let method: MethodRouter = get(handler).route_layer(layer.clone());
    assert_gated(&fixture, Router::new().route("/", method)).await;
    assert_gated(
        &fixture,
        Router::new().route("/", get(handler.layer(layer.clone()))),
    )
    .await;
    assert_gated(
        &fixture,
        Router::new().route_service("/", layer.layer(routes())),
    )
    .await;
    assert_gated(
        &fixture,
        Router::new().fallback_service(layer.layer(routes())),
    )
    .await;
    let stack = ServiceBuilder::new().layer(layer.clone());
    assert_gated(&fixture, routes().layer(stack)).await;
    let with_errors = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(async |_: BoxError| {
            StatusCode::GATEWAY_TIMEOUT
        }))
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .layer(layer.clone());
    assert_gated(&fixture, routes().layer(with_errors)).await;
}

#[tokio::test]
async fn a_gate_stands_over_and_under_towers_own_layers() {
    let fixture = Fixture::new();
    let inner = || {
        service_fn(async |_: Request<Body>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("in")))
        })
    };
    let over = ServiceBuilder::new()
        .layer(layer(&fixture))
        .layer(BufferLayer::new(8))
        .layer(LoadShedLayer::new())
        .layer(LocalLimitLayer::new(8))
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .service(inner());
    assert_gated(&fixture, over).await;
    let under = ServiceBuilder::new()
        .layer(BufferLayer::new(8))
        .layer(LoadShedLayer::new())
        .layer(LocalLimitLayer::new(8))
        .layer(TimeoutLayer::new(Duration::from_secs(5)))
        .layer(layer(&fixture))
        .service(inner());
    assert_gated(&fixture, under).await;
    let boxed = BoxCloneSyncServiceLayer::new(layer(&fixture));
    assert_gated(&fixture, boxed.layer(inner())).await;
}

#[tokio::test]
async fn gates_can_be_kept_in_an_applications_state_and_their_services_in_its_types() {
    #[derive(Clone)]
    struct Application {
        gates: Portcullis,
        reports: portcullis::Semaphore,
        job: Arc<MutexLayer<Plain>>,
    }
    async fn report(State(application): State<Application>) -> StatusCode {
        let _permit = application.reports.acquire().await;
        let _lock = application.gates.mutex("a").lock().await;
        let job = application
            .job
            .layer(service_fn(|(): ()| ready(Ok::<_, Infallible>(()))));
        if job.oneshot(()).await.is_ok() {
            StatusCode::OK
        } else {
            StatusCode::CONFLICT
        }
    }
    let fixture = Fixture::new();
    let state = Application {
        gates: fixture.gates.clone(),
        reports: fixture.semaphore(2),
        job: Arc::new(MutexLayer::new(fixture.mutex()).plain()),
    };
    let app = Router::new().route("/", get(report)).with_state(state);
    let request = Request::get("/").body(Body::empty()).expect("a path");
    let response = app.oneshot(request).await.expect("routers do not fail");
    assert_eq!(response.status(), StatusCode::OK);
}

#[test]
fn layers_services_and_futures_are_what_spawning_and_sharing_ask_for() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    type Inner = axum::routing::Route;
    type Future<S> = <S as Service<Request<Body>>>::Future;
    shared::<MutexLayer>();
    shared::<MutexLayer<Plain>>();
    shared::<ConcurrencyLimitLayer>();
    shared::<Gated<Inner>>();
    shared::<Gated<Inner, Plain>>();
    shared::<Held>();
    sent::<Future<Gated<Inner>>>();
    sent::<Future<Gated<Inner, Plain>>>();
    sent::<HeldBody<Body>>();
}
