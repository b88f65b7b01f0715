//! What a handler sees of what its request holds, and how it keeps it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::routing::post;
use axum::{Extension, Router};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use portcullis::layer::{HeldBody, Kept, NotHeld};
use portcullis::{ConcurrencyLimitLayer, Held, MutexLayer, Portcullis};
use tokio::sync::mpsc;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::contract::on_servers;
use crate::fixture::{Broken, Fixture, Log, Pieces, Probe, SEEN, request};

/// Behind both gates, with a body of its own: what the handler of its one request held.
async fn held_behind_both<const N: usize>(
    fixture: &Fixture<N>,
    body: Pieces,
) -> (Held, Response<impl Sized>) {
    let (share, mut shared) = mpsc::unbounded_channel();
    let body = Mutex::new(Some(body));
    let probe = Probe::new(move |request| {
        share
            .send(request.extensions().get::<Held>().cloned())
            .expect("the test lives");
        let body = body.lock().expect("no panic").take().expect("called once");
        async { Ok(Response::new(body)) }
    });
    let gated = ServiceBuilder::new()
        .layer(ConcurrencyLimitLayer::new(fixture.semaphore(1)))
        .layer(MutexLayer::new(fixture.mutex()))
        .service(probe);
    let response = gated.oneshot(request()).await.expect("an answer");
    (shared.recv().await.flatten().expect("gates tell"), response)
}

on_servers! {
    each_gate_on_the_way_adds_its_lease,
    looking_at_a_lease_does_not_hold_it,
    what_is_kept_is_held_beyond_the_answer,
    who_keeps_and_is_done_before_the_answer_ends_nothing,
    fences_rise_from_request_to_request,
    a_request_that_comes_back_with_what_it_held_keeps_what_it_holds_then,
    a_request_tried_again_under_an_outer_gate_does_not_meet_its_first_lease,
    who_comes_to_the_same_lock_twice_is_told_at_once_that_it_would_wait_for_itself,
}

async fn each_gate_on_the_way_adds_its_lease<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let (held, _response) = held_behind_both(&fixture, Pieces::silent()).await;
    let permit = held.lease("reports").expect("behind this gate");
    let lock = held.lease("withdraw").expect("behind this gate");
    assert!(permit.is_held() && lock.is_held());
    assert!(!lock.remaining().is_zero());
    assert!(held.lease("another").is_err());
    let next = fixture
        .gates
        .mutex("another")
        .lock()
        .await
        .expect("a free lock");
    assert!(next.fencing_token() != lock.fencing_token());
}

#[tokio::test]
async fn what_is_not_held_is_named_with_what_the_request_passed() {
    let fixture = Fixture::new();
    let (held, _response) = held_behind_both(&fixture, Pieces::silent()).await;
    let another = held.lease("another").expect_err("no such gate").to_string();
    assert!(
        another.contains("`another`") && another.contains("only `reports`, `withdraw`"),
        "{another}"
    );
    let ungated = Held::default();
    let none = ungated.lease("withdraw").expect_err("no gate").to_string();
    assert!(
        none.contains("`withdraw`") && none.contains("passed no gate"),
        "{none}"
    );
    let nothing = ungated.keep().expect_err("no gate").to_string();
    assert!(nothing.contains("passed no gate"), "{nothing}");
    for text in [another, none, nothing] {
        assert!(!text.contains("``"), "{text}");
    }
}

async fn looking_at_a_lease_does_not_hold_it<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let (held, response) = held_behind_both(&fixture, Pieces::silent()).await;
    let lock = held.lease("withdraw").expect("behind this gate");
    drop(response);
    fixture.wait_until_free(1).await;
    fixture.wait_until_unlocked().await;
    assert!(!lock.is_held());
    let late = held.keep().expect_err("what was given back can't be kept");
    let text = late.to_string();
    assert!(text.contains("has given back"), "{text}");
    assert!(!text.contains("passed"), "{text}");
}

async fn what_is_kept_is_held_beyond_the_answer<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let (held, response) = held_behind_both(&fixture, Pieces::silent()).await;
    let kept: Kept = held.keep().expect("held");
    drop(response);
    assert!(fixture.is_full(1).await);
    assert!(fixture.mutex().try_lock().await.is_err());
    assert!(kept.lease("withdraw").expect("behind this gate").is_held());
    drop(kept);
    fixture.wait_until_free(1).await;
    fixture.wait_until_unlocked().await;
}

async fn who_keeps_and_is_done_before_the_answer_ends_nothing<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let (held, response) = held_behind_both(&fixture, Pieces::silent()).await;
    drop(held.keep().expect("held"));
    assert!(held.lease("withdraw").expect("behind this gate").is_held());
    assert!(fixture.is_full(1).await);
    drop(response);
    fixture.wait_until_free(1).await;
}

async fn fences_rise_from_request_to_request<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let mut last = None;
    for _ in 0..10 {
        let (held, _response) = held_behind_both(&fixture, Pieces::empty()).await;
        let fence = Some(
            held.lease("withdraw")
                .expect("behind this gate")
                .fencing_token(),
        );
        assert!(fence > last);
        last = fence;
    }
}

#[tokio::test]
async fn axum_handlers_extract_what_they_hold() {
    async fn withdraw(held: Held, Extension(same): Extension<Held>) -> Result<String, NotHeld> {
        assert_eq!(
            same.lease("withdraw")?.fencing_token(),
            held.lease("withdraw")?.fencing_token()
        );
        Ok(held.lease("withdraw")?.fencing_token().to_string())
    }
    async fn ungated(held: Held) -> Result<String, NotHeld> {
        Ok(held.lease("withdraw")?.fencing_token().to_string())
    }
    let fixture = Fixture::new();
    let layer = MutexLayer::new(fixture.mutex()).max_wait(Duration::from_secs(1));
    let app: Router = Router::new()
        .route("/gated", post(withdraw).layer(layer))
        .route("/ungated", post(ungated));
    let status = async |path: &str| {
        let request = Request::post(path).body(Body::empty()).expect("a path");
        app.clone()
            .oneshot(request)
            .await
            .expect("routers do not fail")
            .status()
    };
    assert_eq!(status("/gated").await, StatusCode::OK);
    assert_eq!(status("/ungated").await, StatusCode::INTERNAL_SERVER_ERROR);
}

async fn a_request_that_comes_back_with_what_it_held_keeps_what_it_holds_then<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let probe = Probe::new(|request| {
        let kept = request.extensions().get::<Held>().map(Held::keep);
        assert!(matches!(kept, Some(Ok(_))), "{kept:?}");
        // As a proxy does that hands on all it knows.
        let mut response = Response::new(Pieces::empty());
        *response.extensions_mut() = request.extensions().clone();
        async { Ok(response) }
    });
    let gated = MutexLayer::new(fixture.mutex()).layer(probe);
    let mut extensions = http::Extensions::new();
    for _ in 0..3 {
        let mut request = request();
        *request.extensions_mut() = extensions;
        let response = gated.clone().oneshot(request).await.expect("an answer");
        extensions = response.into_parts().0.extensions;
    }
}

async fn a_request_tried_again_under_an_outer_gate_does_not_meet_its_first_lease<const N: usize>() {
    let fixture = Fixture::<N>::on_servers();
    let (share, mut shared) = mpsc::unbounded_channel();
    let probe = Probe::new(move |request| {
        let held = request
            .extensions()
            .get::<Held>()
            .cloned()
            .unwrap_or_default();
        share.send(held).expect("the test lives");
        async { Ok(Response::new(Pieces::empty())) }
    });
    let gated = MutexLayer::new(fixture.mutex()).layer(probe);
    let request = request();
    let retry = request.clone();
    gated.clone().oneshot(request).await.expect("an answer");
    gated.oneshot(retry).await.expect("an answer");
    let first = shared
        .recv()
        .await
        .expect("called")
        .lease("withdraw")
        .expect("held");
    let second = shared
        .recv()
        .await
        .expect("called")
        .lease("withdraw")
        .expect("held");
    assert!(first.fencing_token() < second.fencing_token());
}

/// The end of the `type` of the answer to a request behind two gates; `None` if it passed them.
async fn refusal_behind<O, I>(outer: O, inner: I) -> Option<String>
where
    I: Layer<Probe>,
    O: Layer<I::Service>,
    O::Service:
        Service<Request<String>, Response = Response<HeldBody<HeldBody<Pieces>>>, Error = Broken>,
{
    let gated = outer.layer(inner.layer(Probe::answering(Pieces::empty)));
    let answer = gated.oneshot(request()).await.expect("an answer");
    let (head, body) = answer.into_parts();
    if head.status == StatusCode::OK {
        return None;
    }
    let problem = body.collect().await.expect("a whole body").to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&problem).expect("JSON");
    let kind = problem["type"].as_str().expect("a type");
    Some(kind.rsplit(':').next().expect("its end").to_owned())
}

async fn who_comes_to_the_same_lock_twice_is_told_at_once_that_it_would_wait_for_itself<
    const N: usize,
>() {
    let fixture = Fixture::<N>::on_servers();
    let lock = |mutex| MutexLayer::new(mutex).max_wait(SEEN);
    let a = |_: &Parts| Some("a");
    let same = [
        (lock(fixture.mutex()), lock(fixture.mutex())),
        (lock(fixture.mutex()).key(a), lock(fixture.mutex()).key(a)),
        (
            lock(fixture.mutex()).key(a),
            lock(fixture.mutex().keyed("a")),
        ),
        (
            lock(fixture.gates.mutex_at("withdraw")),
            lock(fixture.gates.mutex_at("withdraw")),
        ),
    ];
    let begun = Instant::now();
    for (outer, inner) in same {
        let (log, _guard) = Log::start();
        let refusal = refusal_behind(outer, inner).await;
        assert_eq!(refusal.as_deref(), Some("misconfigured"));
        let lines = log.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("holds this lock already"), "{lines:?}");
    }
    assert!(begun.elapsed() < SEEN);
    fixture.wait_until_unlocked().await;
}

#[tokio::test]
async fn gates_that_differ_or_have_room_for_two_can_stand_behind_one_another() {
    let fixture = Fixture::new();
    let lock = |mutex| MutexLayer::new(mutex).max_wait(SEEN);
    let key = |key: &'static str| move |_: &Parts| Some(key);
    for (outer, inner) in [
        (lock(fixture.mutex()), lock(fixture.mutex()).key(key("a"))),
        (
            lock(fixture.mutex()).key(key("a")),
            lock(fixture.mutex()).key(key("b")),
        ),
        (
            lock(fixture.mutex().keyed("a")),
            lock(fixture.mutex().keyed("b")),
        ),
        (
            lock(fixture.mutex()),
            lock(fixture.gates.mutex_at("withdraw")),
        ),
        // Of the same name elsewhere.
        (
            lock(fixture.mutex()),
            lock(Portcullis::in_memory().mutex("withdraw")),
        ),
    ] {
        assert_eq!(refusal_behind(outer, inner).await, None);
    }
    let permits = || ConcurrencyLimitLayer::new(fixture.semaphore(2));
    assert_eq!(refusal_behind(permits(), permits()).await, None);
}
