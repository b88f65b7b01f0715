//! Settings that tell requests apart: which are gated, how long each waits, what each asks for.

use std::convert::Infallible;
use std::future::ready;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderMap, ORIGIN, RETRY_AFTER,
};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use portcullis::layer::{BoxError, Demand, KeyError, Plain};
use portcullis::{ConcurrencyLimitLayer, MutexLayer};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_http::cors::{Any, CorsLayer};

use crate::contract::{Place, in_each_place};
use crate::fixture::{PROMPTLY, Pieces, Probe, SEEN};

in_each_place! {
    everywhere {
        requests_that_a_gate_does_not_apply_to_pass_as_if_there_were_none,
        nothing_else_is_read_of_a_request_that_is_not_gated,
        a_gate_inside_of_cors_does_not_see_preflights_and_its_refusals_carry_cors_headers,
        a_gate_outside_of_cors_lets_preflights_pass_where_it_is_told_to,
        a_deadline_shortens_the_wait,
        a_deadline_of_zero_does_not_wait_at_all,
        a_deadline_never_lengthens_the_wait,
        a_free_permit_is_given_whatever_the_deadline,
        a_weight_that_never_fits_is_refused_and_takes_nothing,
        a_plain_layer_with_settings_for_http_fails_each_call_and_says_what_to_do,
        a_plain_layer_takes_what_reads_no_heads_from_before,
    }
    // There all have to name one limit, and five servers keep three permits at most.
    but_on_a_quorum {
        each_tenant_has_the_permits_of_its_plan,
        requests_of_different_weight_share_the_permits,
        a_limit_that_an_operator_lowered_holds_for_who_comes_next,
    }
}

fn ask(method: Method, path: &str, tenant: &str) -> Request<String> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("x-tenant", tenant).body(String::new());
    request.expect("a valid request")
}

fn tenant(parts: &Parts) -> Option<String> {
    let tenant = parts.headers.get("x-tenant")?;
    tenant.to_str().ok().map(str::to_owned)
}

/// The status that a request is answered with.
async fn status(
    layer: impl Layer<Probe, Service: Answers>,
    request: Request<String>,
) -> StatusCode {
    layer
        .layer(Probe::answering(Pieces::empty))
        .status(request)
        .await
}

trait Answers {
    async fn status(self, request: Request<String>) -> StatusCode;
}

impl<S, B> Answers for S
where
    S: Service<Request<String>, Response = http::Response<B>, Error: std::fmt::Debug>,
{
    async fn status(self, request: Request<String>) -> StatusCode {
        self.oneshot(request).await.expect("an answer").status()
    }
}

async fn requests_that_a_gate_does_not_apply_to_pass_as_if_there_were_none<P: Place>() {
    let place = P::start();
    let _held = place.mutex().lock().await.expect("a free lock");
    let layer = MutexLayer::new(place.mutex()).max_wait(Duration::ZERO);
    let layer = layer.applies_to(|parts| {
        !matches!(parts.method, Method::OPTIONS | Method::HEAD)
            && !matches!(parts.uri.path(), "/healthz" | "/readyz")
    });
    for (method, path, expected) in [
        (Method::GET, "/", StatusCode::CONFLICT),
        (Method::POST, "/orders", StatusCode::CONFLICT),
        (Method::OPTIONS, "/orders", StatusCode::OK),
        (Method::HEAD, "/orders", StatusCode::OK),
        (Method::GET, "/healthz", StatusCode::OK),
        (Method::GET, "/readyz", StatusCode::OK),
        (Method::GET, "/healthz/more", StatusCode::CONFLICT),
    ] {
        let request = ask(method.clone(), path, "a");
        assert_eq!(
            status(layer.clone(), request).await,
            expected,
            "{method} {path}"
        );
    }
    // Also where no gate can be asked any more.
    place.gates().shutdown(Duration::ZERO).await;
    let health = ask(Method::GET, "/healthz", "a");
    assert_eq!(status(layer.clone(), health).await, StatusCode::OK);
    let other = ask(Method::GET, "/", "a");
    assert_eq!(status(layer, other).await, StatusCode::SERVICE_UNAVAILABLE);
}

async fn nothing_else_is_read_of_a_request_that_is_not_gated<P: Place>() {
    let place = P::start();
    let layer = ConcurrencyLimitLayer::new(place.semaphore(1))
        .key(|_: &Parts| -> Option<&'static str> { panic!("its key is read") })
        .demand(|_| panic!("its demand is read"))
        .deadline(|_| panic!("its deadline is read"))
        .on_refusal(|_, _| panic!("it is refused"))
        .applies_to(|_| false);
    let request = ask(Method::GET, "/", "a");
    assert_eq!(status(layer, request).await, StatusCode::OK);
}

/// What a browser sends before and as a request of another origin, and what it is answered.
async fn of_another_origin(app: &Router, method: Method) -> (StatusCode, HeaderMap) {
    let request = Request::builder()
        .method(method)
        .uri("/orders")
        .header(ORIGIN, "https://shop.example")
        .header(ACCESS_CONTROL_REQUEST_METHOD, "POST")
        .body(Body::empty())
        .expect("a valid request");
    let answer = app.clone().oneshot(request).await.expect("an answer");
    (answer.status(), answer.headers().clone())
}

fn cors() -> CorsLayer {
    CorsLayer::new().allow_origin(Any).allow_methods(Any)
}

async fn a_gate_inside_of_cors_does_not_see_preflights_and_its_refusals_carry_cors_headers<
    P: Place,
>() {
    let place = P::start();
    let lock = MutexLayer::new(place.mutex()).max_wait(Duration::ZERO);
    let permits = ConcurrencyLimitLayer::new(place.semaphore(1)).max_wait(Duration::ZERO);
    let routes = || Router::new().route("/orders", post(async || "taken"));
    let _locked = place.mutex().lock().await.expect("a free lock");
    let _full = place.semaphore(1).acquire().await.expect("a free permit");
    for (app, refused) in [
        (routes().layer(lock), StatusCode::CONFLICT),
        (routes().layer(permits), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let app = app.layer(cors());
        let (status, headers) = of_another_origin(&app, Method::OPTIONS).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        let (status, headers) = of_another_origin(&app, Method::POST).await;
        assert_eq!(status, refused);
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        assert!(headers.contains_key(RETRY_AFTER));
        assert_eq!(headers[ACCESS_CONTROL_EXPOSE_HEADERS], "retry-after");
    }
}

async fn a_gate_outside_of_cors_lets_preflights_pass_where_it_is_told_to<P: Place>() {
    let place = P::start();
    let _held = place.mutex().lock().await.expect("a free lock");
    let lock = MutexLayer::new(place.mutex()).max_wait(Duration::ZERO);
    let routes = Router::new().route("/orders", post(async || "taken"));
    let app = |lock| routes.clone().layer(cors()).layer(lock);
    let gated = app(lock.clone());
    let (status, _) = of_another_origin(&gated, Method::OPTIONS).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let exempt = app(lock.applies_to(|parts| parts.method != Method::OPTIONS));
    let (status, _) = of_another_origin(&exempt, Method::OPTIONS).await;
    assert_eq!(status, StatusCode::OK);
    // The reason for the order of the sentence above: a script can't read this one.
    let (status, headers) = of_another_origin(&exempt, Method::POST).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(!headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN));
}

/// How a request fared at a lock that is held, and how long that took.
async fn at_a_held_lock<P: Place>(
    max_wait: Duration,
    deadline: Option<Duration>,
) -> (StatusCode, Duration) {
    let place = P::start();
    let _held = place.mutex().lock().await.expect("a free lock");
    let layer = MutexLayer::new(place.mutex()).max_wait(max_wait);
    let begun = Instant::now();
    let request = ask(Method::GET, "/", "a");
    let status = status(layer.deadline(move |_| deadline), request).await;
    (status, begun.elapsed())
}

const SHORT: Duration = Duration::from_millis(50);

async fn a_deadline_shortens_the_wait<P: Place>() {
    let (status, waited) = at_a_held_lock::<P>(SEEN, Some(SHORT)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!((SHORT..PROMPTLY).contains(&waited), "{waited:?}");
}

async fn a_deadline_of_zero_does_not_wait_at_all<P: Place>() {
    let (status, waited) = at_a_held_lock::<P>(SEEN, Some(Duration::ZERO)).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(waited < PROMPTLY, "{waited:?}");
}

async fn a_deadline_never_lengthens_the_wait<P: Place>() {
    for deadline in [Some(SHORT), Some(SEEN), Some(Duration::MAX), None] {
        let (status, waited) = at_a_held_lock::<P>(SHORT, deadline).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!((SHORT..PROMPTLY).contains(&waited), "{waited:?}");
        let (status, waited) = at_a_held_lock::<P>(Duration::ZERO, deadline).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(waited < PROMPTLY, "{waited:?}");
    }
}

async fn a_free_permit_is_given_whatever_the_deadline<P: Place>() {
    let place = P::start();
    for deadline in [Some(Duration::ZERO), Some(Duration::MAX), None] {
        let layer = ConcurrencyLimitLayer::new(place.semaphore(1)).deadline(move |_| deadline);
        let request = ask(Method::GET, "/", "a");
        assert_eq!(status(layer, request).await, StatusCode::OK);
        place.wait_until_free(1).await;
    }
}

async fn each_tenant_has_the_permits_of_its_plan<P: Place>() {
    let place = P::start();
    let plan = |tenant: &str| if tenant == "large" { 3 } else { 1 };
    let layer = ConcurrencyLimitLayer::new(place.semaphore(1))
        .max_wait(Duration::ZERO)
        .key(|parts: &Parts| tenant(parts).ok_or(KeyError::missing("tenant")))
        .demand(move |parts| Demand::default().limit(plan(&tenant(parts).unwrap_or_default())));
    let gated = layer.layer(Probe::answering(Pieces::silent));
    let mut answers = Vec::new();
    let mut passed = Vec::new();
    for tenant in [
        "small", "small", "large", "large", "tiny", "large", "large", "tiny",
    ] {
        let request = ask(Method::GET, "/", tenant);
        let answer = gated.clone().oneshot(request).await.expect("an answer");
        if answer.status() == StatusCode::OK {
            passed.push(tenant);
        }
        answers.push(answer);
    }
    assert_eq!(passed, ["small", "large", "large", "tiny", "large"]);
}

async fn requests_of_different_weight_share_the_permits<P: Place>() {
    let place = P::start();
    let layer = ConcurrencyLimitLayer::new(place.semaphore(4))
        .max_wait(Duration::ZERO)
        .demand(|parts| {
            Demand::default().weight(if parts.uri.path() == "/import" { 3 } else { 1 })
        });
    let gated = layer.layer(Probe::answering(Pieces::silent));
    let pass = async |path| {
        let request = ask(Method::GET, path, "a");
        gated.clone().oneshot(request).await.expect("an answer")
    };
    let import = pass("/import").await;
    assert_eq!(import.status(), StatusCode::OK);
    let small = pass("/").await;
    assert_eq!(small.status(), StatusCode::OK);
    for path in ["/", "/import"] {
        let status = pass(path).await.status();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
    }
    drop(import);
    // All three are back, and no more.
    let three = place.semaphore(4).max_wait(PROMPTLY).acquire_many(3).await;
    three.expect("promptly").release().await.expect("in time");
    let four = place.semaphore(4).max_wait(Duration::ZERO);
    assert!(four.acquire_many(4).await.is_err());
}

async fn a_weight_that_never_fits_is_refused_and_takes_nothing<P: Place>() {
    let place = P::start();
    for (weight, limit) in [(0, None), (3, None), (5, Some(4)), (0, Some(4))] {
        let layer = ConcurrencyLimitLayer::new(place.semaphore(2)).demand(move |_| {
            let demand = Demand::default().weight(weight);
            limit.map_or(demand, |limit| demand.limit(limit))
        });
        let request = ask(Method::GET, "/", "a");
        let status = status(layer, request).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{weight} of {limit:?}");
        let all = place.semaphore(2).max_wait(Duration::ZERO);
        let all = all.acquire_many(2).await.expect("nothing was taken");
        all.release().await.expect("in time");
    }
}

async fn a_limit_that_an_operator_lowered_holds_for_who_comes_next<P: Place>() {
    let place = P::start();
    let limited = |limit| {
        ConcurrencyLimitLayer::new(place.semaphore(3))
            .max_wait(Duration::ZERO)
            .demand(move |_| Demand::default().limit(limit))
            .layer(Probe::answering(Pieces::silent))
    };
    let pass = async |limit| {
        let request = ask(Method::GET, "/", "a");
        limited(limit).oneshot(request).await.expect("an answer")
    };
    let (first, _second) = (pass(3).await, pass(3).await);
    for (limit, expected) in [
        (1, StatusCode::SERVICE_UNAVAILABLE),
        (2, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        assert_eq!(pass(limit).await.status(), expected, "{limit}");
    }
    drop(first);
    let one = place.semaphore(2).max_wait(PROMPTLY).acquire().await;
    one.expect("promptly").release().await.expect("in time");
    assert_eq!(pass(1).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(pass(2).await.status(), StatusCode::OK);
}

async fn plainly<L>(layer: L) -> Result<(), BoxError>
where
    L: Layer<Jobs, Service: Service<(), Response = (), Error = BoxError>>,
{
    let jobs: Jobs = service_fn(|()| ready(Ok(())));
    layer.layer(jobs).oneshot(()).await
}

type Jobs = tower::util::ServiceFn<fn(()) -> std::future::Ready<Result<(), Infallible>>>;

async fn a_plain_layer_with_settings_for_http_fails_each_call_and_says_what_to_do<P: Place>() {
    let place = P::start();
    let permits = || ConcurrencyLimitLayer::new(place.semaphore(1));
    let lock = || MutexLayer::new(place.mutex());
    let permits: [ConcurrencyLimitLayer<Plain>; 5] = [
        permits().key(|_: &Parts| Some("a")).plain(),
        permits().applies_to(|_| false).plain(),
        permits().deadline(|_| None).plain(),
        permits().demand(|_| Demand::default()).plain(),
        permits().grpc().plain(),
    ];
    let locks: [MutexLayer<Plain>; 4] = [
        lock().key(|_: &Parts| None::<&str>).plain(),
        lock().applies_to(|_| true).plain(),
        lock().deadline(|_| None).plain(),
        lock().on_refusal(|_, answer| answer).plain(),
    ];
    let mut errors = Vec::new();
    for layer in permits {
        for _ in 0..2 {
            errors.push(plainly(layer.clone()).await.expect_err("no HTTP"));
        }
    }
    for layer in locks {
        errors.push(plainly(layer).await.expect_err("no HTTP"));
    }
    for error in errors {
        assert!(error.is::<KeyError>());
        let text = error.to_string();
        assert!(text.contains("`plain()`"), "{text}");
        // It is not this request that lacks something.
        assert!(!text.starts_with("the request has no"), "{text}");
    }
    place.wait_until_free(1).await;
    place.wait_until_unlocked().await;
}

async fn a_plain_layer_takes_what_reads_no_heads_from_before<P: Place>() {
    let place = P::start();
    let layer = MutexLayer::new(place.mutex())
        .key(|_: &Parts| Some("a"))
        .max_wait(Duration::ZERO)
        .plain()
        .key("b");
    plainly(layer.clone()).await.expect("a free lock");
    let b = place.mutex().keyed("b").max_wait(PROMPTLY);
    let _held = b.lock().await.expect("promptly");
    plainly(layer).await.expect_err("held, and not waited for");
}
