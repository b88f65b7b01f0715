//! Layers in front of a quorum whose servers fail. What layers do anywhere stands in `tests/http`, of
//! which much is run over a quorum, too.

use std::time::Duration;

use http::{Response, StatusCode};
use http_body_util::BodyExt;
use portcullis::layer::{Demand, HeldBody, Http, OnOutage};
use portcullis::{ConcurrencyLimitLayer, Held, LeaseView, MutexLayer, Portcullis};
use tokio::sync::{mpsc, oneshot};
use tower::{Layer, ServiceExt};

use crate::common::{LIMIT, LONG, PROMPT, within};
use crate::fixture::{Broken, Log, Pieces, Probe, request};
use crate::servers::{Failing, Servers};
use crate::support::wait_for;

/// Renewed every 667 ms.
const SHORT: Duration = Duration::from_secs(2);

/// So long that nobody is answered in time who is not answered before.
const ENDLESS: Duration = Duration::from_secs(60);

fn patient(servers: &Servers) -> Portcullis {
    let builder = servers.builder().admission_budget(ENDLESS);
    builder.build().expect("a valid configuration")
}

fn permit(gates: &Portcullis) -> ConcurrencyLimitLayer<Http> {
    let semaphore = gates.semaphore("reports", 1).expect("as a lock");
    ConcurrencyLimitLayer::new(semaphore.ttl(LONG).expect("in range")).max_wait(Duration::ZERO)
}

async fn answer(
    layer: &ConcurrencyLimitLayer<Http>,
    body: fn() -> Pieces,
) -> Response<HeldBody<Pieces>> {
    let gated = layer.layer(Probe::answering(body));
    let answer = within(LIMIT, "an answer", gated.oneshot(request())).await;
    answer.expect("refusals are answers")
}

async fn status(layer: &ConcurrencyLimitLayer<Http>) -> StatusCode {
    answer(layer, Pieces::empty).await.status()
}

/// What a refusal says of itself.
async fn kind(response: Response<HeldBody<Pieces>>) -> (StatusCode, String, String) {
    let (head, body) = response.into_parts();
    let retry_after = head.headers.get("retry-after");
    let retry_after = retry_after.map_or("", |value| value.to_str().expect("digits"));
    let body = body.collect().await.expect("a whole body").to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    let kind = problem["type"].as_str().expect("a type");
    let kind = kind.rsplit(':').next().expect("its end").to_owned();
    (head.status, kind, retry_after.to_owned())
}

/// A handler that never ends, with what it shares: what it holds, and its end if it is dropped.
fn staying() -> (
    Probe,
    mpsc::UnboundedReceiver<(LeaseView, oneshot::Receiver<()>)>,
) {
    let (share, shared) = mpsc::unbounded_channel();
    let probe = Probe::new(move |request| {
        let held = request.extensions().get::<Held>().cloned();
        let lease = held.unwrap_or_default().lease("withdraw");
        let (alive, dropped) = oneshot::channel();
        let lease = lease.expect("behind this gate");
        share.send((lease, dropped)).expect("the test lives");
        async move {
            std::future::pending::<()>().await;
            drop(alive);
            Ok(Response::new(Pieces::empty()))
        }
    });
    (probe, shared)
}

#[tokio::test]
async fn a_request_goes_on_when_a_minority_fails_and_is_aborted_when_a_majority_does() {
    let servers = Servers::start(5);
    let gates = patient(&servers);
    let mutex = gates.mutex("withdraw").ttl(SHORT).expect("in range");
    for way in Failing::ALL {
        let (probe, mut shared) = staying();
        let gated = MutexLayer::new(mutex.clone()).layer(probe);
        let mut response = tokio::spawn(gated.oneshot(request()));
        let entered = within(LIMIT, "the handler runs", shared.recv()).await;
        let (lease, dropped) = entered.expect("it is called");
        for server in 0..2 {
            servers.fail(server, way);
        }
        // Beyond what it was granted for.
        tokio::time::sleep(SHORT + SHORT / 2).await;
        assert!(lease.is_held() && !response.is_finished(), "{way:?}");
        servers.fail(2, way);
        let aborted = within(LIMIT, "it is aborted", &mut response).await;
        let aborted = aborted.expect("no panic").expect("an answer");
        let told = kind(aborted).await;
        let expected = (StatusCode::SERVICE_UNAVAILABLE, "lease-lost", "1");
        assert_eq!((told.0, &*told.1, &*told.2), expected, "{way:?}");
        assert!(!lease.is_held());
        dropped.await.expect_err("the handler is dropped");
        for server in 0..3 {
            servers.mend(server, way);
        }
        servers.until_held_on(&mutex, 5).await;
    }
    servers.settled().await;
}

#[tokio::test]
async fn a_minority_that_fails_is_seen_by_no_request() {
    let servers = Servers::start(5);
    let gates = patient(&servers);
    let layer = permit(&gates).max_wait(LIMIT);
    let layers = [OnOutage::Refuse, OnOutage::Allow].map(|policy| layer.clone().on_outage(policy));
    let look = gates.mutex("look").ttl(LONG).expect("in range");
    for (turn, way) in Failing::ALL.into_iter().enumerate() {
        for server in [turn, turn + 1] {
            servers.fail(server, way);
        }
        for layer in layers.iter().cycle().take(20) {
            let (share, mut shared) = mpsc::unbounded_channel();
            let probe = Probe::new(move |request| {
                let held = request.extensions().get::<Held>().cloned();
                share.send(held).expect("the test lives");
                async { Ok::<_, Broken>(Response::new(Pieces::empty())) }
            });
            let gated = layer.layer(probe).oneshot(request());
            let answer = within(LIMIT, "an answer", gated).await.expect("an answer");
            assert_eq!(answer.status(), StatusCode::OK, "{way:?}");
            let held = shared.recv().await.flatten().expect("gates tell");
            assert!(!held.is_degraded("reports"), "{way:?}");
        }
        for server in [turn, turn + 1] {
            servers.mend(server, way);
        }
        servers.until_held_on(&look, 5).await;
    }
    servers.settled().await;
}

#[tokio::test]
async fn with_a_majority_away_each_policy_acts_at_once_and_afterwards_all_are_gated_again() {
    let servers = Servers::start(5);
    // By another handle, which learns of nothing here.
    let other = permit(&patient(&servers)).max_wait(LIMIT);
    let gates = patient(&servers);
    assert_eq!(status(&permit(&gates)).await, StatusCode::OK);
    for way in Failing::ALL {
        for server in 0..3 {
            servers.fail(server, way);
        }
        // The budget is much longer: it is known, and nobody spends a request on finding out.
        let refusing = permit(&gates);
        let refused = within(PROMPT, "it is refused", answer(&refusing, Pieces::empty)).await;
        let told = kind(refused).await;
        let expected = (StatusCode::SERVICE_UNAVAILABLE, "unavailable", "1");
        assert_eq!((told.0, &*told.1, &*told.2), expected, "{way:?}");
        for policy in [OnOutage::Allow, OnOutage::Local(1)] {
            let layer = permit(&gates).on_outage(policy);
            let passed = within(PROMPT, "it is let through", status(&layer)).await;
            assert_eq!(passed, StatusCode::OK, "{way:?} {policy:?}");
        }
        // Also one that has to wait for its turn here.
        let local = permit(&gates).on_outage(OnOutage::Local(1));
        let held = answer(&local, Pieces::silent).await;
        assert_eq!(status(&local).await, StatusCode::SERVICE_UNAVAILABLE);
        drop(held);
        for server in 0..3 {
            servers.mend(server, way);
        }
        let held = answer(&other, Pieces::silent).await;
        assert_eq!(held.status(), StatusCode::OK, "{way:?}");
        for policy in [OnOutage::Allow, OnOutage::Local(1)] {
            let layer = permit(&gates).on_outage(policy);
            wait_for("it is gated again", LIMIT, async || {
                status(&layer).await == StatusCode::SERVICE_UNAVAILABLE
            })
            .await;
        }
        drop(held);
        wait_for("it is served again", LIMIT, async || {
            status(&permit(&gates)).await == StatusCode::OK
        })
        .await;
    }
    servers.settled().await;
}

#[tokio::test]
async fn a_busy_lock_is_a_conflict_though_a_minority_is_away() {
    let servers = Servers::start(5);
    let (a, b) = (patient(&servers), patient(&servers));
    let mutex = |gates: &Portcullis| gates.mutex("withdraw").ttl(LONG).expect("in range");
    for server in 0..2 {
        servers.fail(server, Failing::BlackHoled);
    }
    let held = within(LIMIT, "it is free", mutex(&a).lock()).await;
    let layer = MutexLayer::new(mutex(&b)).max_wait(Duration::ZERO);
    let layer = layer.on_outage(OnOutage::Allow);
    let gated = layer.layer(Probe::answering(Pieces::empty));
    let refused = within(LIMIT, "an answer", gated.oneshot(request())).await;
    let (status, kind, retry_after) = kind(refused.expect("an answer")).await;
    assert_eq!((status, &*kind), (StatusCode::CONFLICT, "locked"));
    let seconds: u64 = retry_after.parse().expect("a number");
    assert!((1..=LONG.as_secs()).contains(&seconds), "{seconds}");
    drop(held);
}

#[tokio::test]
async fn a_limit_that_a_quorum_can_not_keep_is_the_services_own_mistake_and_logged() {
    let servers = Servers::start(3);
    let gates = patient(&servers);
    let (log, _guard) = Log::start();
    for policy in [OnOutage::Refuse, OnOutage::Allow, OnOutage::Local(1)] {
        let layer = permit(&gates).on_outage(policy);
        let layer = layer.demand(|_| Demand::default().limit(2));
        let told = kind(answer(&layer, Pieces::empty).await).await;
        assert_eq!(
            (told.0, &*told.1),
            (StatusCode::SERVICE_UNAVAILABLE, "misconfigured"),
            "{policy:?}"
        );
    }
    // Each layer says so once.
    let lines = log.lines();
    let told = |line: &&String| line.contains("tolerates no failure");
    assert_eq!(lines.iter().filter(told).count(), 3, "{lines:?}");
}
