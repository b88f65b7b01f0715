//! Gates where axum's routes need them: some permits for one route, a lock for each account,
//! permits by a tenant's plan, and a cap on the whole router that spares what must always answer.
//!
//! ```sh
//! cargo run --example axum_per_route
//! ```
//!
//! It prints `listening on http://127.0.0.1:PORT` when it is ready. Then ask; `ms` is how long the
//! work takes, and `&` lets two requests meet:
//!
//! ```sh
//! curl -sw '\n' 'http://127.0.0.1:3000/reports?ms=500'
//! curl -sw '\n' -X POST 'http://127.0.0.1:3000/accounts/7/withdraw?ms=500' & sleep 0.1
//! curl -sw '\n' -X POST 'http://127.0.0.1:3000/accounts/7/withdraw'
//! curl -sw '\n' -X POST -H 'Authorization: Bearer bob' 'http://127.0.0.1:3000/imports'
//! ```
//!
//! You see what each held, from when to when, and its fencing token; of two withdrawals at once one
//! is refused with 409, and Bob's import with 400, since his plan has 1 permit and it takes 3:
//!
//! ```json
//! {"fencing_token":1796000000000000,"gate":"reports","held_from_us":1796000001000000,
//!  "held_to_us":1796000001500000}
//! {"type":"urn:problem-type:portcullis:locked","title":"Another request is at work on this",
//!  "status":409}
//! {"type":"urn:problem-type:portcullis:never-fits",
//!  "title":"The request asks for more than there ever is","status":400}
//! ```
//!
//! Stop it with Ctrl-C or SIGTERM: it finishes what it has begun.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `REDIS_URL` | the server that all instances share | none: in memory |
//! | `PORT` | where to listen; 0 picks a free port | 3000 |
//! | `CAP` | how many reports may be at work at once | 4 |
//! | `ALL` | how many requests of any kind may be at work at once | 64 |
//! | `MAX_WAIT_MS` | how long a report waits for its turn | 2000 |

use std::env;
use std::error::Error;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::Query;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Response, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use portcullis::layer::{Demand, KeyError, NotHeld, Rejection, path_param};
use portcullis::{ConcurrencyLimitLayer, Held, MutexLayer, Portcullis};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let gates = match env::var("REDIS_URL") {
        Ok(url) => Portcullis::builder().url(url).build()?,
        Err(env::VarError::NotPresent) => {
            eprintln!("no REDIS_URL: the gates are in this process' memory; set it to share them");
            Portcullis::in_memory()
        }
        Err(error) => return Err(format!("REDIS_URL: {error}").into()),
    };
    let app = app(&gates)?;
    let listener = TcpListener::bind(("127.0.0.1", setting("PORT", 3000)?)).await?;
    println!("listening on http://{}", listener.local_addr()?);

    let mut terminate = signal(SignalKind::terminate())?;
    let told_to_end = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    axum::serve(listener, app)
        .with_graceful_shutdown(told_to_end)
        .await?;
    gates.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// Gates are laid on by `route_layer`, so that a request of a wrong method takes nothing.
fn app(gates: &Portcullis) -> Result<Router, BoxError> {
    let reports = ConcurrencyLimitLayer::new(gates.semaphore("reports", setting("CAP", 4)?)?)
        .max_wait(Duration::from_millis(setting("MAX_WAIT_MS", 2_000)?))
        .on_refusal(page);
    let one_per_account = MutexLayer::new(gates.mutex("withdraw"))
        .key(path_param("id"))
        .max_wait(Duration::ZERO);
    // Shared by two routes: they count together. A tenant's permits are its own, by the key; how
    // many it has is in its plan, whatever the semaphore was made with.
    let by_plan = ConcurrencyLimitLayer::new(gates.semaphore("jobs", 1)?)
        .key(|parts: &Parts| {
            let bearer = HeaderValue::from_static("Bearer");
            let unknown = KeyError::unauthenticated("tenant", bearer);
            tenant(parts).map(|(name, _)| name).ok_or(unknown)
        })
        .demand(|parts: &Parts| {
            let weight = if parts.uri.path() == "/imports" { 3 } else { 1 };
            let limit = tenant(parts).map_or(1, |(_, permits)| permits);
            Demand::default().weight(weight).limit(limit)
        })
        .max_wait(Duration::ZERO);
    let everything = ConcurrencyLimitLayer::new(gates.semaphore("all", setting("ALL", 64)?)?)
        .applies_to(|parts| parts.method != Method::OPTIONS && parts.uri.path() != "/healthz")
        .max_wait(Duration::ZERO)
        .on_refusal(|_, mut answer| {
            let headers = answer.headers_mut();
            headers.insert("x-refused-by", HeaderValue::from_static("all"));
            answer
        });

    let preflight = async || StatusCode::NO_CONTENT;
    let report = async |held: Held, work: Query<Work>| answer(held, "reports", work).await;
    let withdraw = async |held: Held, work: Query<Work>| answer(held, "withdraw", work).await;
    let job = async |held: Held, work: Query<Work>| answer(held, "jobs", work).await;
    Ok(Router::new()
        .route("/healthz", get(async || "ok"))
        .route(
            "/reports",
            get(report).route_layer(reports).options(preflight),
        )
        .route(
            "/accounts/{id}/withdraw",
            post(withdraw).route_layer(one_per_account),
        )
        .route("/jobs", post(job).route_layer(by_plan.clone()))
        .route("/imports", post(job).route_layer(by_plan))
        .layer(everything))
}

/// People ask for reports by a browser: they get a page. Status and `Retry-After` stay.
fn page(rejection: &Rejection, answer: Response<Bytes>) -> Response<Bytes> {
    let seconds = rejection.retry_after().unwrap_or_default().as_secs();
    let page = format!("<!doctype html><title>Busy</title><p>Please come back in {seconds} s.</p>");
    let mut answer = answer.map(|_| Bytes::from(page));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html"));
    answer
}

/// A tenant's name, and its plan's permits. A real one would have been found by an outer layer.
fn tenant(parts: &Parts) -> Option<(&'static str, u32)> {
    match parts.headers.get(AUTHORIZATION)?.as_bytes() {
        b"Bearer ada" => Some(("ada", 4)),
        b"Bearer bob" => Some(("bob", 1)),
        _ => None,
    }
}

#[derive(Deserialize)]
struct Work {
    #[serde(default)]
    ms: u64,
}

/// A real one would send the fencing token along with its writes, for the store to refuse smaller
/// ones than it has seen.
async fn answer(held: Held, gate: &str, work: Query<Work>) -> Result<Json<Value>, NotHeld> {
    let now = || UNIX_EPOCH.elapsed().unwrap_or_default().as_micros() as u64;
    let fencing_token = held.lease(gate)?.fencing_token().get();
    let held_from_us = now();
    tokio::time::sleep(Duration::from_millis(work.ms)).await;
    Ok(Json(json!({
        "fencing_token": fencing_token,
        "gate": gate,
        "held_from_us": held_from_us,
        "held_to_us": now(),
    })))
}

/// Reads `name` from the environment.
fn setting<T: FromStr<Err: Error>>(name: &str, default: T) -> Result<T, BoxError> {
    match env::var(name) {
        Ok(text) => Ok(text.parse().map_err(|error| format!("{name}: {error}"))?),
        Err(env::VarError::NotPresent) => Ok(default),
        Err(error) => Err(format!("{name}: {error}").into()),
    }
}
