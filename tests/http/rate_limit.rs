//! Rate limits in front of services: who is let through, what is told of the quotas, and what comes
//! back. It holds wherever the quotas are kept, on a server and in memory.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::header::{ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, HeaderMap, RETRY_AFTER};
use http::request::Parts;
use http::{Request, Response, StatusCode, response};
use http_body_util::BodyExt;
use portcullis::layer::{
    BoxError, HeldBody, KeyError, OnOutage, RateHeaders, RejectionKind, header,
};
use portcullis::{
    ConcurrencyLimitLayer, Held, LockError, Portcullis, Quota, QuotaReport, Quotas, RateLimitLayer,
    RateLimiter, RefusalKind,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::contract::{InMemory, Place, in_each_place};
use crate::fixture::{Broken, PROMPTLY, Pieces, Probe, SEEN, request};
use crate::support::{Server, poll_k_times, wait_for};

in_each_place! {
    but_on_a_quorum {
        what_is_over_quota_is_answered_429_with_the_time_and_the_quotas,
        limits_of_one_admit,
        those_that_are_let_through_are_told_if_asked,
        several_layers_add_to_what_is_told,
        sending_as_many_more_as_remain_is_never_refused,
        what_never_fits_is_a_400_and_what_costs_nothing_always_passes,
        each_key_has_its_quota_and_each_tenant_that_of_its_plan,
        by_default_a_request_does_not_wait,
        a_request_waits_for_its_turn_if_it_may_and_not_for_one_that_comes_too_late,
        its_callers_deadline_bounds_the_wait,
        what_the_answer_says_is_not_to_be_paid_for_is_given_back,
        what_is_given_back_is_there_for_who_was_refused_a_moment_before,
        no_more_is_given_back_than_was_used,
        a_service_that_fails_costs_nothing_where_refunds_are_given,
        nothing_is_held_while_a_request_is_worked_on,
        a_request_that_is_never_polled_has_used_nothing,
        one_that_leaves_the_queue_gives_its_turn_back,
        a_refused_request_keeps_nothing_that_the_inner_service_had_reserved,
        exempt_requests_use_nothing,
        a_refusal_tells_its_quotas_to_the_service,
        a_plain_service_fails_with_the_quotas,
    }
}

const MANY: Duration = Duration::from_secs(600);

fn limiter<P: Place>(place: &P, quota: Quota) -> RateLimiter {
    let limiter = place.gates().rate_limiter("api", quota);
    limiter.expect("in range")
}

/// So many at once, and then next to none.
fn only(n: u32) -> Quota {
    Quota::per(n, MANY).named("only")
}

async fn used<P: Place>(place: &P, n: u32) -> u32 {
    let report = limiter(place, only(n)).peek().await.expect("in time");
    n - report.remaining()
}

async fn ask(layer: &RateLimitLayer) -> Response<HeldBody<Pieces>> {
    ask_with(layer, request()).await
}

async fn ask_with(layer: &RateLimitLayer, request: Request<String>) -> Response<HeldBody<Pieces>> {
    let gated = layer.layer(Probe::answering(Pieces::empty));
    gated.oneshot(request).await.expect("refusals are answers")
}

async fn status(layer: &RateLimitLayer) -> StatusCode {
    ask(layer).await.status()
}

fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let values = headers.get_all(name).iter();
    values.map(|value| value.to_str().expect("ASCII")).collect()
}

fn rate_headers(headers: &HeaderMap) -> Vec<&str> {
    let names = headers.keys().map(http::HeaderName::as_str);
    names.filter(|name| name.contains("ratelimit")).collect()
}

async fn kind(response: Response<HeldBody<Pieces>>) -> String {
    let body = response.into_body().collect().await.expect("a whole body");
    let problem: serde_json::Value =
        serde_json::from_slice(&body.to_bytes()).expect("the body is JSON");
    problem["type"].as_str().expect("a type").to_owned()
}

async fn what_is_over_quota_is_answered_429_with_the_time_and_the_quotas<P: Place>() {
    let place = P::start();
    let layer = RateLimitLayer::new(limiter(&place, only(2)));
    for _ in 0..2 {
        let answer = ask(&layer).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(rate_headers(answer.headers()), Vec::<&str>::new());
    }
    let probe = Probe::answering(Pieces::empty);
    let refused = layer.layer(probe.clone()).oneshot(request()).await;
    let refused = refused.expect("an answer");
    assert_eq!(probe.calls(), 0);
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let headers = refused.headers();
    assert_eq!(headers[CACHE_CONTROL], "no-store");
    // One of two comes back in 300 s. As a test may take a while, it may be a little less.
    let seconds: u64 = lines(headers, "retry-after")[0].parse().expect("a number");
    assert!((280..=300).contains(&seconds), "{seconds}");
    assert_eq!(lines(headers, "ratelimit-policy"), [r#""only";q=2;w=600"#]);
    let state = lines(headers, "ratelimit").concat();
    let reset = state.strip_prefix(r#""only";r=0;t="#).expect(&state);
    let reset: u64 = reset.parse().expect("a number");
    assert!((580..=600).contains(&reset), "{reset}");
    assert_eq!(
        lines(headers, ACCESS_CONTROL_EXPOSE_HEADERS.as_str()),
        ["retry-after", "ratelimit-policy, ratelimit"]
    );
    assert!(kind(refused).await.ends_with(":over-quota"));
}

async fn limits_of_one_admit<P: Place>() {
    let place = P::start();
    for quota in [
        Quota::per(1, MANY),
        Quota::sliding(1, MANY),
        Quota::strict(1, MANY),
        Quota::per_second(1).burst(1),
    ] {
        let name = format!("{quota:?}");
        let limiter = place.gates().rate_limiter(&name, quota).expect("in range");
        let layer = RateLimitLayer::new(limiter);
        assert_eq!(status(&layer).await, StatusCode::OK, "{name}");
    }
}

async fn those_that_are_let_through_are_told_if_asked<P: Place>() {
    let place = P::start();
    let told = RateHeaders::default().on_success().legacy();
    let layer = RateLimitLayer::new(limiter(&place, only(2))).headers(told);
    let answer = ask(&layer).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let headers = answer.headers();
    assert_eq!(lines(headers, "ratelimit-policy"), [r#""only";q=2;w=600"#]);
    assert_eq!(lines(headers, "ratelimit"), [r#""only";r=1;t=300"#]);
    assert_eq!(lines(headers, "x-ratelimit-limit"), ["2"]);
    assert_eq!(lines(headers, "x-ratelimit-remaining"), ["1"]);
    assert_eq!(lines(headers, "x-ratelimit-reset"), ["300"]);
    assert!(!headers.contains_key(RETRY_AFTER));
    let exposed = lines(headers, ACCESS_CONTROL_EXPOSE_HEADERS.as_str()).concat();
    assert!(exposed.contains("x-ratelimit-remaining"), "{exposed}");
}

async fn several_layers_add_to_what_is_told<P: Place>() {
    let place = P::start();
    let gates = place.gates();
    let told = RateHeaders::default().on_success();
    let all = gates.rate_limiter("all", Quota::per(10, MANY).named("all"));
    let outer = RateLimitLayer::new(all.expect("in range")).headers(told);
    let inner = RateLimitLayer::new(limiter(&place, only(1))).headers(told);
    let permits = ConcurrencyLimitLayer::new(place.semaphore(1));
    let gated = (outer, permits, inner).layer(Probe::answering(Pieces::empty));
    for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let answer = gated.clone().oneshot(request()).await.expect("an answer");
        assert_eq!(answer.status(), expected);
        assert_eq!(
            lines(answer.headers(), "ratelimit-policy"),
            [r#""only";q=1;w=600"#, r#""all";q=10;w=600"#]
        );
        assert_eq!(lines(answer.headers(), "ratelimit").len(), 2);
    }
}

fn remaining(headers: &HeaderMap) -> u32 {
    let state = lines(headers, "ratelimit").concat();
    let (_, rest) = state.split_once(";r=").expect("told");
    let (remaining, _) = rest.split_once(';').expect("told");
    remaining.parse().expect("a number")
}

async fn sending_as_many_more_as_remain_is_never_refused<P: Place>() {
    let place = P::start();
    let second = Duration::from_secs(1);
    for (name, quota) in [
        ("gcra", Quota::per_second(40).burst(15)),
        ("sliding", Quota::sliding(15, second)),
        ("strict", Quota::strict(15, second)),
    ] {
        let limiter = place.gates().rate_limiter(name, quota).expect("in range");
        let told = RateHeaders::default().on_success();
        let layer = &RateLimitLayer::new(limiter).headers(told);
        let begun = Instant::now();
        let mut most = 0;
        for round in 0.. {
            let first = ask(layer).await;
            let left = remaining(first.headers());
            most = most.max(left);
            let more = join_all((0..left).map(|_| status(layer))).await;
            assert!(
                more.iter().all(|&status| status == StatusCode::OK),
                "{name}: {left} in round {round}: {more:?}"
            );
            tokio::time::sleep(Duration::from_millis(37)).await;
            if round >= 20 && begun.elapsed() > 2 * second {
                break;
            }
        }
        assert!(most >= 10, "{name}: {most}");
    }
}

async fn what_never_fits_is_a_400_and_what_costs_nothing_always_passes<P: Place>() {
    let place = P::start();
    let costing = |cost| {
        let layer = RateLimitLayer::new(limiter(&place, only(5)));
        layer.cost(move |_| cost).max_wait(MANY)
    };
    for cost in [6, u32::MAX] {
        let answer = ask(&costing(cost)).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
        assert!(!answer.headers().contains_key(RETRY_AFTER));
        assert_eq!(rate_headers(answer.headers()), Vec::<&str>::new());
        assert!(kind(answer).await.ends_with(":never-fits"));
    }
    assert_eq!(used(&place, 5).await, 0);
    assert_eq!(status(&costing(5)).await, StatusCode::OK);
    assert_eq!(used(&place, 5).await, 5);
    assert_eq!(status(&costing(0)).await, StatusCode::OK);
}

async fn each_key_has_its_quota_and_each_tenant_that_of_its_plan<P: Place>() {
    let place = P::start();
    let paid = Quotas::new([only(3)]).expect("in range");
    let layer = RateLimitLayer::new(limiter(&place, only(1)))
        .key(header("x-api-key"))
        .quotas(move |parts: &Parts| (parts.headers["x-api-key"] == "gold").then(|| paid.clone()));
    let asked_by = async |key: &str| {
        let request = Request::get("/").header("x-api-key", key);
        let request = request.body(String::new()).expect("a path");
        ask_with(&layer, request).await.status()
    };
    for (key, limit) in [("gold", 3), ("free", 1), ("other", 1)] {
        for _ in 0..limit {
            assert_eq!(asked_by(key).await, StatusCode::OK, "{key}");
        }
        assert_eq!(asked_by(key).await, StatusCode::TOO_MANY_REQUESTS, "{key}");
    }
    assert_eq!(
        status(&layer.clone().quotas(|_| None)).await,
        StatusCode::BAD_REQUEST
    );
}

async fn by_default_a_request_does_not_wait<P: Place>() {
    let place = P::start();
    // The second has its turn in 1.5 s, whatever its limiter says of waiting.
    let quota = Quota::per(2, Duration::from_secs(3)).burst(1);
    let patient = limiter(&place, quota).max_wait(MANY);
    let layer = RateLimitLayer::new(patient);
    let (first, second) = tokio::join!(status(&layer), status(&layer));
    let statuses = [first.as_u16(), second.as_u16()];
    assert_eq!(statuses.iter().max(), Some(&429), "{statuses:?}");
    assert_eq!(statuses.iter().min(), Some(&200), "{statuses:?}");
}

async fn a_request_waits_for_its_turn_if_it_may_and_not_for_one_that_comes_too_late<P: Place>() {
    let place = P::start();
    let quota = Quota::per_second(5).burst(1);
    let layer = RateLimitLayer::new(limiter(&place, quota)).max_wait(Duration::from_secs(30));
    let begun = Instant::now();
    let statuses = join_all((0..4).map(|_| status(&layer))).await;
    assert_eq!(statuses, [StatusCode::OK; 4]);
    // Three of them came 200, 400 and 600 ms after the first.
    assert!(
        begun.elapsed() >= Duration::from_millis(580),
        "{:?}",
        begun.elapsed()
    );

    let layer = RateLimitLayer::new(limiter(&place, only(1)));
    let layer = layer.key(|_: &Parts| Some("slow")).max_wait(PROMPTLY);
    assert_eq!(status(&layer).await, StatusCode::OK);
    let refused = ask(&layer).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key(RETRY_AFTER));
    assert_eq!(remaining(refused.headers()), 0);
}

async fn its_callers_deadline_bounds_the_wait<P: Place>() {
    let place = P::start();
    let layer = RateLimitLayer::new(limiter(&place, Quota::per(2, MANY)))
        .max_wait(MANY)
        .deadline(|_| Some(Duration::from_secs(1)));
    for expected in [
        StatusCode::OK,
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        let told = tokio::time::timeout(SEEN, status(&layer)).await;
        assert_eq!(told.expect("at once"), expected);
    }
}

/// Waits until so many are used: refunds are under way when the answer is there.
async fn until_used<P: Place>(place: &P, n: u32, expected: u32) {
    wait_for("it is given back", PROMPTLY, async || {
        used(place, n).await == expected
    })
    .await;
}

async fn what_the_answer_says_is_not_to_be_paid_for_is_given_back<P: Place>() {
    let place = P::start();
    let probe = Probe::new(|request: Request<String>| {
        let cached = request.uri().path() == "/cached";
        let mut answer = Response::new(Pieces::empty());
        if cached {
            answer.headers_mut().insert("age", 7.into());
        }
        ready(Ok(answer))
    });
    let layer = RateLimitLayer::new(limiter(&place, only(4)))
        .cost(|_| 2)
        .refund(|answer: &response::Parts| {
            if answer.headers.contains_key("age") {
                2
            } else {
                0
            }
        });
    for (path, expected) in [("/cached", 0), ("/", 2), ("/cached", 2), ("/", 4)] {
        let request = Request::get(path).body(String::new()).expect("a path");
        let answer = layer.layer(probe.clone()).oneshot(request).await;
        assert_eq!(
            answer.expect("an answer").status(),
            StatusCode::OK,
            "{path}"
        );
        until_used(&place, 4, expected).await;
    }
}

/// A denial is remembered for up to a second, and forgotten when its own process gives back.
async fn what_is_given_back_is_there_for_who_was_refused_a_moment_before<P: Place>() {
    let place = P::start();
    let layer = RateLimitLayer::new(limiter(&place, only(1))).refund(|_| 1);
    for _ in 0..5 {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let answered = std::sync::Mutex::new(Some(answered));
        let probe = Probe::new(move |_| {
            let answered = answered.lock().expect("no panic").take();
            async move {
                answered.expect("called once").await.expect("told to");
                Ok(Response::new(Pieces::empty()))
            }
        });
        let worked_on = tokio::spawn(layer.layer(probe).oneshot(request()));
        wait_for("it is let through", PROMPTLY, async || {
            used(&place, 1).await == 1
        })
        .await;
        assert_eq!(status(&layer).await, StatusCode::TOO_MANY_REQUESTS);
        answer.send(()).expect("worked on");
        let first = worked_on.await.expect("no panic").expect("an answer");
        assert_eq!(first.status(), StatusCode::OK);
        until_used(&place, 1, 0).await;
        assert_eq!(status(&layer).await, StatusCode::OK);
        until_used(&place, 1, 0).await;
    }
}

async fn no_more_is_given_back_than_was_used<P: Place>() {
    let place = P::start();
    let plain = RateLimitLayer::new(limiter(&place, only(4)));
    assert_eq!(status(&plain).await, StatusCode::OK);
    let generous = plain.clone().refund(|_| u32::MAX);
    assert_eq!(status(&generous).await, StatusCode::OK);
    until_used(&place, 4, 1).await;
    // Exempt from cost, it has nothing to get back.
    assert_eq!(status(&generous.cost(|_| 0)).await, StatusCode::OK);
    assert_eq!(status(&plain).await, StatusCode::OK);
    assert_eq!(used(&place, 4).await, 2);
}

async fn a_service_that_fails_costs_nothing_where_refunds_are_given<P: Place>() {
    let place = P::start();
    let broken = || Probe::new(|_| ready(Err(Broken)));
    let layer = RateLimitLayer::new(limiter(&place, only(4))).cost(|_| 2);
    let failed = layer.layer(broken()).oneshot(request()).await;
    assert_eq!(failed.err(), Some(Broken));
    assert_eq!(used(&place, 4).await, 2);
    let refunding = layer.refund(|_| 0);
    let failed = refunding.layer(broken()).oneshot(request()).await;
    assert_eq!(failed.err(), Some(Broken));
    until_used(&place, 4, 2).await;
}

async fn nothing_is_held_while_a_request_is_worked_on<P: Place>() {
    let place = P::start();
    let held = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&held);
    let probe = Probe::new(move |request: Request<String>| {
        let holds = request.extensions().get::<Held>().is_some();
        seen.fetch_add(usize::from(holds), Ordering::Relaxed);
        ready(Ok(Response::new(Pieces::silent())))
    });
    let layer = RateLimitLayer::new(limiter(&place, only(1)));
    let _answer = layer.layer(probe).oneshot(request()).await;
    assert_eq!(held.load(Ordering::Relaxed), 0);
}

async fn a_request_that_is_never_polled_has_used_nothing<P: Place>() {
    let place = P::start();
    let layer = RateLimitLayer::new(limiter(&place, only(1)));
    let gated = layer.layer(Probe::answering(Pieces::empty));
    drop(gated.oneshot(request()));
    assert_eq!(used(&place, 1).await, 0);
}

async fn one_that_leaves_the_queue_gives_its_turn_back<P: Place>() {
    let place = P::start();
    let layer = RateLimitLayer::new(limiter(&place, only(1))).max_wait(2 * MANY);
    assert_eq!(status(&layer).await, StatusCode::OK);
    let waiting = tokio::time::timeout(Duration::from_millis(300), status(&layer)).await;
    assert!(waiting.is_err(), "its turn has not come");
    // A turn that stayed booked would put this one 10 minutes further off.
    let told = async || {
        let refused = ask(&layer.clone().max_wait(Duration::ZERO)).await;
        lines(refused.headers(), "retry-after")[0]
            .parse::<u64>()
            .expect("a number")
    };
    wait_for("the turn is given back", PROMPTLY, async || {
        told().await <= MANY.as_secs()
    })
    .await;
}

async fn a_refused_request_keeps_nothing_that_the_inner_service_had_reserved<P: Place>() {
    let place = P::start();
    let layer = RateLimitLayer::new(limiter(&place, only(1)));
    let inner = tower::limit::ConcurrencyLimitLayer::new(1).layer(Probe::answering(Pieces::empty));
    let mut gated = layer.layer(inner);
    for expected in [
        StatusCode::OK,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::TOO_MANY_REQUESTS,
    ] {
        let ready = tokio::time::timeout(PROMPTLY, gated.ready()).await;
        let response = tower::Service::call(
            ready.expect("its permit is free").expect("always ready"),
            request(),
        );
        assert_eq!(response.await.expect("an answer").status(), expected);
    }
}

async fn exempt_requests_use_nothing<P: Place>() {
    let place = P::start();
    let layer = RateLimitLayer::new(limiter(&place, only(1)));
    let layer = layer.applies_to(|parts: &Parts| parts.uri.path() != "/healthz");
    for _ in 0..3 {
        let request = Request::get("/healthz").body(String::new());
        let answer = ask_with(&layer, request.expect("a path")).await;
        assert_eq!(answer.status(), StatusCode::OK);
    }
    assert_eq!(status(&layer).await, StatusCode::OK);
    assert_eq!(status(&layer).await, StatusCode::TOO_MANY_REQUESTS);
}

async fn a_refusal_tells_its_quotas_to_the_service<P: Place>() {
    let place = P::start();
    let plan = [Quota::per(5, MANY), Quota::per(1, MANY).named("tight")];
    let limiter = place.gates().rate_limiter("plan", plan).expect("in range");
    let layer = RateLimitLayer::new(limiter).on_refusal(|rejection, mut answer| {
        assert_eq!(rejection.kind(), RejectionKind::OverQuota);
        assert_eq!(rejection.gate(), "plan");
        let binding = rejection.quotas().map(QuotaReport::binding);
        let name = binding.expect("over quota").name().parse();
        let headers = answer.headers_mut();
        assert_eq!(headers.remove("ratelimit-policy").map(|_| ()), Some(()));
        headers.insert("x-binding", name.expect("a value"));
        answer
    });
    assert_eq!(status(&layer).await, StatusCode::OK);
    let refused = ask(&layer).await;
    assert_eq!(refused.headers()["x-binding"], "tight");
    // What is refused by one is not used of the other.
    let state = lines(refused.headers(), "ratelimit").concat();
    assert!(state.starts_with(r#""10m";r=4;"#), "{state}");
}

async fn a_plain_service_fails_with_the_quotas<P: Place>() {
    let place = P::start();
    let inner = service_fn(|(): ()| ready(Ok::<_, Broken>(())));
    let layer = RateLimitLayer::new(limiter(&place, only(1))).plain();
    assert!(layer.layer(inner).oneshot(()).await.is_ok());
    let error = layer
        .layer(inner)
        .oneshot(())
        .await
        .expect_err("over quota");
    let Some(LockError::Refused(refusal)) = error.downcast_ref() else {
        panic!("{error}");
    };
    assert_eq!(refusal.kind(), RefusalKind::OverQuota);
    assert!(
        refusal
            .quotas()
            .is_some_and(|quotas| quotas.remaining() == 0)
    );
    assert!(layer.key("another").layer(inner).oneshot(()).await.is_ok());
}

/// What one asks of HTTP that has none.
#[tokio::test]
async fn what_only_http_can_mean_fails_behind_plain() {
    let place = InMemory::start();
    let layer = || RateLimitLayer::new(limiter(&place, only(9)));
    for layer in [
        layer().cost(|_| 1),
        layer().quotas(|_| None),
        layer().refund(|_| 0),
        layer().headers(RateHeaders::default()),
    ] {
        let inner = service_fn(|(): ()| ready(Ok::<_, BoxError>(())));
        let error = layer.plain().layer(inner).oneshot(()).await;
        let error = error.expect_err("there is no HTTP");
        assert!(error.is::<KeyError>(), "{error}");
        assert!(error.to_string().contains("`refund`"), "{error}");
    }
}

#[tokio::test]
async fn a_response_future_dropped_at_any_await_holds_nothing() {
    let place = InMemory::start();
    let layer = RateLimitLayer::new(limiter(&place, only(1_000))).max_wait(MANY);
    for polls in 0..4 {
        let gated = layer.layer(Probe::answering(Pieces::silent));
        let response = Box::pin(gated.oneshot(request()));
        poll_k_times(response, polls).await;
    }
    place.server.assert_idle();
}

#[tokio::test]
async fn while_the_server_is_away_each_policy_acts_and_nobody_is_told_of_quotas() {
    let server = Server::start();
    let gates = Portcullis::builder().url(server.url()).build();
    let gates = gates.expect("a local address");
    let told = RateHeaders::default().on_success().legacy();
    let layer = |on_outage| {
        let limiter = gates.rate_limiter("api", Quota::per(10, MANY));
        let layer = RateLimitLayer::new(limiter.expect("in range"));
        layer.headers(told).on_outage(on_outage)
    };
    let degraded = Arc::new(AtomicUsize::new(0));
    let probe = {
        let degraded = Arc::clone(&degraded);
        Probe::new(move |request: Request<String>| {
            let held = request.extensions().get::<Held>();
            let is = held.is_some_and(|held| held.is_degraded("api"));
            degraded.fetch_add(usize::from(is), Ordering::Relaxed);
            ready(Ok(Response::new(Pieces::empty())))
        })
    };
    let ask = async |layer: &RateLimitLayer| {
        let answer = layer.layer(probe.clone()).oneshot(request()).await;
        answer.expect("an answer")
    };
    wait_for("the server is there", SEEN, async || {
        ask(&layer(OnOutage::Refuse)).await.status() == StatusCode::OK
    })
    .await;
    server.kill();
    let refused = ask(&layer(OnOutage::Refuse)).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()[RETRY_AFTER], "1");
    assert_eq!(rate_headers(refused.headers()), Vec::<&str>::new());
    assert_eq!(degraded.load(Ordering::Relaxed), 0);

    for _ in 0..20 {
        let allowed = ask(&layer(OnOutage::Allow)).await;
        assert_eq!(allowed.status(), StatusCode::OK);
        assert_eq!(rate_headers(allowed.headers()), Vec::<&str>::new());
    }
    assert_eq!(degraded.swap(0, Ordering::Relaxed), 20);

    // A fifth of it, counted over all layers of the limiter in this process.
    for turn in 0..4 {
        let answer = ask(&layer(OnOutage::Local(2))).await;
        let expected = if turn < 2 {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        };
        assert_eq!(answer.status(), expected, "{turn}");
        assert_eq!(answer.headers().contains_key(RETRY_AFTER), turn >= 2);
        assert_eq!(rate_headers(answer.headers()), Vec::<&str>::new());
    }
    assert_eq!(degraded.load(Ordering::Relaxed), 2);
    // What costs more than this process has takes all of it.
    let costly = layer(OnOutage::Local(2))
        .key(|_: &Parts| Some("b"))
        .cost(|_| 7);
    assert_eq!(ask(&costly).await.status(), StatusCode::OK);
    assert_eq!(ask(&costly).await.status(), StatusCode::TOO_MANY_REQUESTS);

    server.restart();
    wait_for("the quotas are back", SEEN, async || {
        let answer = ask(&layer(OnOutage::Local(2))).await;
        answer.headers().contains_key("ratelimit")
    })
    .await;
}

#[tokio::test]
async fn an_outage_that_is_shorter_than_the_wait_is_not_seen() {
    let server = Server::start();
    // What may have run is not asked again: on a busy machine that is no part of the outage.
    let gates = Portcullis::builder()
        .url(server.url())
        .command_timeout(SEEN)
        .build();
    let limiter = gates.expect("a local address");
    let limiter = limiter.rate_limiter("api", Quota::per_second(1_000));
    let layer = RateLimitLayer::new(limiter.expect("in range")).max_wait(SEEN);
    assert_eq!(status(&layer).await, StatusCode::OK);
    server.kill();
    // It is known to be away.
    let hasty = layer.clone().max_wait(Duration::ZERO);
    assert_eq!(status(&hasty).await, StatusCode::SERVICE_UNAVAILABLE);
    let requests: Vec<_> = (0..5)
        .map(|_| {
            let layer = layer.clone();
            tokio::spawn(async move { status(&layer).await })
        })
        .collect();
    tokio::task::yield_now().await;
    server.restart();
    for status in join_all(requests).await {
        assert_eq!(status.expect("no panic"), StatusCode::OK);
    }
}
