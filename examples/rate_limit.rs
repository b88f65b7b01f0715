//! Rate limits where an API needs them: quotas by a caller's plan, a costly route, answers that cost
//! nothing, and a route whose requests wait for their turn.
//!
//! ```sh
//! cargo run --example rate_limit
//! ```
//!
//! It prints `listening on http://127.0.0.1:PORT` when it is ready. Then ask:
//!
//! ```sh
//! curl -si -H 'x-api-key: bob' 'http://127.0.0.1:3000/items/7'
//! curl -si -H 'x-api-key: bob' 'http://127.0.0.1:3000/search'
//! curl -si -H 'x-api-key: bob' 'http://127.0.0.1:3000/search'
//! curl -s -w '%{time_total}\n' 'http://127.0.0.1:3000/mails?n=[1-5]' -Z
//! ```
//!
//! You see how much is left of each quota; Bob's second search is refused, since a search costs
//! five of his ten:
//!
//! ```text
//! HTTP/1.1 200 OK
//! ratelimit-policy: "minute";q=10;w=60, "day";q=1000;w=86400
//! ratelimit: "minute";r=9;t=6, "day";r=999;t=87
//!
//! HTTP/1.1 429 Too Many Requests
//! retry-after: 6
//! ratelimit: "minute";r=4;t=36, "day";r=994;t=519
//! ```
//!
//! An item that was not changed (`If-None-Match: "7"`) is answered 304, and costs nothing. Mails go
//! out at two per second, whoever asks: more of them wait for their turn, in order.
//!
//! Stop it with Ctrl-C or SIGTERM: it finishes what it has begun.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `REDIS_URL` | the server that all instances share | none: in memory |
//! | `PORT` | where to listen; 0 picks a free port | 3000 |
//! | `MAX_WAIT_MS` | how long a mail waits for its turn | 5000 |

use std::env;
use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

use axum::Router;
use axum::http::header::{ETAG, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, response};
use axum::routing::get;
use portcullis::layer::{KeyError, RateHeaders};
use portcullis::{ConfigError, Portcullis, Quota, Quotas, RateLimitLayer};
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

fn app(gates: &Portcullis) -> Result<Router, BoxError> {
    let plan = |per_minute, per_day| -> Result<Quotas, ConfigError> {
        Quotas::new([
            Quota::per_minute(per_minute).named("minute"),
            Quota::per_day(per_day).named("day"),
        ])
    };
    let (free, gold) = (plan(10, 1_000)?, plan(100, 50_000)?);
    // One limiter for both routes: they count together. How much a caller may use is in its plan,
    // and what it has used is kept under its key.
    let by_plan = RateLimitLayer::new(gates.rate_limiter("api", free)?)
        .key(|parts: &Parts| {
            let api_key = HeaderValue::from_static("ApiKey");
            let unknown = KeyError::unauthenticated("header x-api-key", api_key);
            caller(parts).map(|(name, _)| name).ok_or(unknown)
        })
        .quotas(move |parts: &Parts| {
            let pays = caller(parts).is_some_and(|(_, pays)| pays);
            pays.then(|| gold.clone())
        })
        .cost(|parts: &Parts| if parts.uri.path() == "/search" { 5 } else { 1 })
        .refund(|answer: &response::Parts| {
            let is_free =
                answer.status == StatusCode::NOT_MODIFIED || answer.status.is_server_error();
            if is_free { u32::MAX } else { 0 }
        })
        .headers(RateHeaders::default().on_success());
    let mails = RateLimitLayer::new(gates.rate_limiter("mails", Quota::per_second(2).burst(1))?)
        .max_wait(Duration::from_millis(setting("MAX_WAIT_MS", 5_000)?));

    Ok(Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/items/7", get(item).route_layer(by_plan.clone()))
        .route("/search", get(async || "found\n").route_layer(by_plan))
        .route("/mails", get(async || "sent\n").route_layer(mails)))
}

/// A caller's name, and whether it pays. A real one would have been found by an outer layer.
fn caller(parts: &Parts) -> Option<(&'static str, bool)> {
    match parts.headers.get("x-api-key")?.as_bytes() {
        b"ada" => Some(("ada", true)),
        b"bob" => Some(("bob", false)),
        _ => None,
    }
}

async fn item(headers: HeaderMap) -> (StatusCode, [(HeaderName, &'static str); 1], &'static str) {
    let tag = [(ETAG, "\"7\"")];
    match headers.get(IF_NONE_MATCH) {
        Some(known) if known == "\"7\"" => (StatusCode::NOT_MODIFIED, tag, ""),
        _ => (StatusCode::OK, tag, "seven\n"),
    }
}

/// Reads `name` from the environment.
fn setting<T: FromStr<Err: Error>>(name: &str, default: T) -> Result<T, BoxError> {
    match env::var(name) {
        Ok(text) => Ok(text.parse().map_err(|error| format!("{name}: {error}"))?),
        Err(env::VarError::NotPresent) => Ok(default),
        Err(error) => Err(format!("{name}: {error}").into()),
    }
}
