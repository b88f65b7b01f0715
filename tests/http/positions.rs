//! Every place where a layer can be put compiles without adapters, and gates there.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::error_handling::HandleErrorLayer;
use axum::extract::{ConnectInfo, State};
use axum::handler::Handler;
use axum::routing::{MethodRouter, get};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use portcullis::layer::future::ResponseFuture;
use portcullis::layer::{
    BoxError, Demand, Gated, HeldBody, HoldUntil, Http, Kept, KeyError, LockedStatus, MakeKey,
    NotHeld, OnLost, Plain, RateHeaders, Rejection, RejectionKind,
};
use portcullis::{ConcurrencyLimitLayer, Held, MutexLayer, Portcullis, Quota, RateLimitLayer};
use tokio::net::{TcpListener, TcpStream};
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer as LocalLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tower::util::{BoxCloneService, BoxCloneSyncService, BoxCloneSyncServiceLayer, option_layer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::fixture::{Fixture, PROMPTLY};

fn layer(fixture: &Fixture<1>) -> ConcurrencyLimitLayer {
    ConcurrencyLimitLayer::new(fixture.semaphore(1)).max_wait(Duration::ZERO)
}

/// 200 while the permit is free, 503 while it is held.
async fn assert_gated<S, B>(fixture: &Fixture<1>, service: S)
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>> + Clone,
{
    assert_gated_at("/", fixture, service).await;
}

async fn assert_gated_at<S, B>(path: &str, fixture: &Fixture<1>, service: S)
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>> + Clone,
{
    let status = async || {
        let request = Request::get(path).body(Body::empty()).expect("a path");
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

/// 200 once, and then 429, behind a rate limit of its own.
async fn assert_limited<S, B>(
    fixture: &Fixture<1>,
    name: &str,
    build: impl FnOnce(RateLimitLayer) -> S,
) where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>> + Clone,
{
    let one = Quota::per(1, Duration::from_secs(600));
    let limiter = fixture.gates.rate_limiter(name, one).expect("in range");
    let service = build(RateLimitLayer::new(limiter));
    for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let request = Request::get("/").body(Body::empty()).expect("a path");
        let response = service.clone().oneshot(request).await;
        let response = response.map_err(Into::into).expect("an answer");
        assert_eq!(response.status(), expected, "{name}");
    }
}

#[tokio::test]
async fn a_rate_limit_fits_every_place_of_axum_and_of_towers_stacks() {
    let fixture = &Fixture::new();
    let handler = async || "in";
    let routes = || Router::new().route("/", get(handler));
    assert_limited(fixture, "layer", |limit| routes().layer(limit)).await;
    assert_limited(fixture, "route layer", |limit| routes().route_layer(limit)).await;
    assert_limited(fixture, "method", |limit| {
        Router::new().route("/", get(handler).layer(limit))
    })
    .await;
    assert_limited(fixture, "handler", |limit| {
        Router::new().route("/", get(handler.layer(limit)))
    })
    .await;
    assert_limited(fixture, "service", |limit| {
        Router::new().route_service("/", limit.layer(routes()))
    })
    .await;
    assert_limited(fixture, "fallback", |limit| {
        Router::new().fallback_service(limit.layer(routes()))
    })
    .await;
    assert_limited(fixture, "boxed", |limit| {
        BoxCloneSyncService::new(limit.layer(routes()))
    })
    .await;
    assert_limited(fixture, "under", |limit| {
        ServiceBuilder::new()
            .layer(BufferLayer::new(8))
            .layer(LoadShedLayer::new())
            .layer(LocalLimitLayer::new(8))
            .layer(TimeoutLayer::new(Duration::from_secs(5)))
            .layer(limit)
            .service(routes())
    })
    .await;
    assert_limited(fixture, "over", |limit| {
        ServiceBuilder::new()
            .layer(limit)
            .layer(BufferLayer::new(8))
            .layer(LoadShedLayer::new())
            .layer(LocalLimitLayer::new(8))
            .layer(TimeoutLayer::new(Duration::from_secs(5)))
            .service(routes())
    })
    .await;
    // In the order that the docs tell: rate, permits, lock.
    assert_limited(fixture, "three gates", |limit| {
        let permits = ConcurrencyLimitLayer::new(fixture.semaphore(2));
        let lock = MutexLayer::new(fixture.mutex());
        (limit, permits, lock).layer(routes())
    })
    .await;
}

#[tokio::test]
async fn a_gate_fits_routers_within_routers_and_their_fallbacks() {
    let fixture = Fixture::new();
    let layer = layer(&fixture);
    let routes = || Router::new().route("/", get(handler));
    let nested = Router::new().nest("/in", routes().layer(layer.clone()));
    assert_gated_at("/in", &fixture, nested).await;
    let nested = Router::new().nest("/in", routes()).layer(layer.clone());
    assert_gated_at("/in", &fixture, nested).await;
    let nested = Router::new().nest_service("/in", layer.layer(routes()));
    assert_gated_at("/in/", &fixture, nested).await;
    let merged = Router::new()
        .route("/other", get(async || "other"))
        .merge(routes().layer(layer.clone()));
    assert_gated(&fixture, merged.clone()).await;
    let held = fixture.semaphore(1).acquire().await.expect("a free permit");
    let request = Request::get("/other").body(Body::empty()).expect("a path");
    let other = merged.oneshot(request).await.expect("an answer");
    assert_eq!(other.status(), StatusCode::OK);
    drop(held);
    fixture.wait_until_free(1).await;

    let fallback = Router::new().fallback(handler.layer(layer.clone()));
    assert_gated_at("/nowhere", &fixture, fallback).await;
    let fallback = Router::new().fallback(handler).layer(layer.clone());
    assert_gated_at("/nowhere", &fixture, fallback).await;
    let method: MethodRouter = MethodRouter::new().fallback(handler).layer(layer.clone());
    assert_gated(&fixture, Router::new().route("/", method)).await;
    let stateful: Router = Router::new()
        .route("/", get(async |State(_): State<u8>, _: Held| "in"))
        .route_layer(layer)
        .with_state(7);
    assert_gated(&fixture, stateful).await;
}

#[tokio::test]
async fn a_gated_application_is_served_with_what_is_known_of_its_connections() {
    let fixture = Fixture::new();
    // A key by the peer's address, which only such a server knows.
    let layer = layer(&fixture).key(|parts: &http::request::Parts| {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        peer.map(|peer| peer.0.ip().to_string())
            .ok_or(KeyError::missing("peer"))
    });
    let app = Router::new().route("/", get(handler)).layer(layer);
    let mut make = app.into_make_service_with_connect_info::<SocketAddr>();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (_client, accepted) = tokio::join!(
        TcpStream::connect(listener.local_addr().expect("bound")),
        listener.accept()
    );
    let (io, remote_addr) = accepted.expect("a client");
    drop(io);
    let service = make.call(remote_addr).await.expect("made");
    let request = || Request::get("/").body(Body::empty()).expect("a path");
    let status = async || {
        service
            .clone()
            .oneshot(request())
            .await
            .expect("an answer")
            .status()
    };
    assert_eq!(status().await, StatusCode::OK);
    let keyed = fixture.semaphore(1).keyed(remote_addr.ip().to_string());
    let _held = keyed.max_wait(PROMPTLY).acquire().await.expect("promptly");
    assert_eq!(status().await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_gate_can_be_left_out_and_boxed() {
    let fixture = Fixture::new();
    let layer = layer(&fixture);
    let routes = || Router::new().route("/", get(async || "in"));
    // With and without a gate there is the same type of answer, which tower asks for.
    let optional = |layer: Option<ConcurrencyLimitLayer>| {
        let stack = layer.map(|layer| {
            ServiceBuilder::new()
                .map_response(|response: Response<HeldBody<Body>>| response.map(Body::new))
                .layer(layer)
        });
        routes().layer(option_layer(stack))
    };
    assert_gated(&fixture, optional(Some(layer.clone()))).await;
    let held = fixture.semaphore(1).acquire().await.expect("a free permit");
    let request = Request::get("/").body(Body::empty()).expect("a path");
    let ungated = optional(None).oneshot(request).await.expect("an answer");
    assert_eq!(ungated.status(), StatusCode::OK);
    drop(held);
    fixture.wait_until_free(1).await;

    let inner = service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("in")))
    });
    assert_gated(&fixture, BoxCloneService::new(layer.layer(inner))).await;
    assert_gated(&fixture, BoxCloneSyncService::new(layer.layer(inner))).await;
    let plain = layer.plain();
    let optional = |layer| option_layer(layer).layer(service_fn(async |()| Ok::<_, BoxError>(7)));
    for layer in [Some(plain), None] {
        assert_eq!(optional(layer).oneshot(()).await.expect("free"), 7);
        fixture.wait_until_free(1).await;
    }
}

/// What others write who build a service, a body and a future of their own around ours: all types
/// have names, and none needs a box.
struct Named {
    service: Gated<Answering>,
    future: Option<ResponseFuture<Answering, Request<Body>, Http>>,
    body: Option<HeldBody<Full<Bytes>>>,
}

#[derive(Clone)]
struct Answering;

impl<B> Service<Request<B>> for Answering {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Full<Bytes>>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Full::from("in"))))
    }
}

#[tokio::test]
async fn services_futures_and_bodies_are_named_in_the_fields_of_others() {
    let fixture = Fixture::new();
    let mut named = Named {
        service: layer(&fixture).layer(Answering),
        future: None,
        body: None,
    };
    let request = Request::get("/").body(Body::empty()).expect("a path");
    let ready = ServiceExt::<Request<Body>>::ready(&mut named.service).await;
    named.future = Some(ready.expect("always ready").call(request));
    let future = named.future.take().expect("just made");
    named.body = Some(future.await.expect("an answer").into_body());
    let body = named.body.take().expect("just made").collect().await;
    assert_eq!(body.expect("a whole body").to_bytes(), "in");
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
    fn shared<T: Send + Sync + 'static>() {}
    fn cloned<T: Clone + Send + Sync + 'static>() {}
    fn sent<T: Send + 'static>() {}
    fn unpinned<T: Unpin>() {}
    type Inner = axum::routing::Route;
    type Future<S> = <S as Service<Request<Body>>>::Future;
    cloned::<MutexLayer>();
    cloned::<MutexLayer<Plain>>();
    cloned::<ConcurrencyLimitLayer>();
    cloned::<ConcurrencyLimitLayer<Plain>>();
    cloned::<RateLimitLayer>();
    cloned::<RateLimitLayer<Plain>>();
    cloned::<RateHeaders>();
    cloned::<Gated<Inner>>();
    cloned::<Gated<Inner, Plain>>();
    cloned::<Http>();
    cloned::<Plain>();
    cloned::<Held>();
    cloned::<NotHeld>();
    cloned::<KeyError>();
    cloned::<Rejection>();
    cloned::<RejectionKind>();
    cloned::<Demand>();
    cloned::<HoldUntil>();
    cloned::<LockedStatus>();
    cloned::<OnLost>();
    shared::<Kept>();
    shared::<BoxError>();
    shared::<Box<dyn MakeKey>>();
    // As far as what they hold is.
    shared::<HeldBody<Full<Bytes>>>();
    shared::<ResponseFuture<Answering, Request<String>, Http>>();
    shared::<ResponseFuture<Answering, Request<String>, Plain>>();
    sent::<Future<Gated<Inner>>>();
    sent::<Future<Gated<Inner, Plain>>>();
    sent::<HeldBody<Body>>();
    unpinned::<HeldBody<Body>>();
    unpinned::<Future<Gated<Answering>>>();
}
