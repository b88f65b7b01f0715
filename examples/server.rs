//! A server whose routes are gated: in its own memory, or with `REDIS_URL` over all its instances.
//! Drive it with `load`.
//!
//! ```sh
//! cargo run --release --example server
//! ```
//!
//! It prints `listening on http://127.0.0.1:PORT` when it is ready. Then ask:
//!
//! ```sh
//! curl 'http://127.0.0.1:3000/reports?ms=500'
//! curl 'http://127.0.0.1:3000/stream?ms=500'
//! curl -X POST 'http://127.0.0.1:3000/accounts/4711/withdraw?ms=500'
//! curl -i -H 'x-api-key: me' 'http://127.0.0.1:3000/api/ping'
//! curl 'http://127.0.0.1:3000/healthz'
//! ```
//!
//! You see JSON: the process that answered, how long the request waited, from when to when it
//! held (by the wall clock), and under which fencing token.
//!
//! ```json
//! {"pid":7,"waited_ms":0,"held_from_us":1796000000000000,"held_to_us":1796000000500000,
//!  "fencing_token":1795999999999000}
//! ```
//!
//! With more than `CAP` requests at work, the next ones wait their turn, and are refused with 503
//! and `Retry-After` when it does not come in time. Withdrawals from one account run one at a time.
//! Each API key has `RATE` pings a second, and `BURST` at once; the next are refused with 429. The
//! headers of every ping say how many are left.
//! Stop it with Ctrl-C or SIGTERM: it finishes what it has begun.
//!
//! Several instances share their gates through a Redis or Valkey server that all of them name, each
//! in a terminal of its own:
//!
//! ```sh
//! redis-server --port 6380 --save ''
//! REDIS_URL=redis://127.0.0.1:6380/ PORT=3000 cargo run --release --example server
//! REDIS_URL=redis://127.0.0.1:6380/ PORT=3001 cargo run --release --example server
//! ```
//!
//! `CAP` then counts over all of them. Kill one that holds: the others go on when `TTL_MS` is over.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `REDIS_URL` | the server that all instances share, `rediss://` for TLS, its sentinels (`redis+sentinel://…`), or the nodes of a cluster (`redis+cluster://…`); set but empty is an error | none: in memory |
//! | `SSL_CERT_FILE` | at a `rediss://` address, the CA to trust, in PEM | the system's |
//! | `PORT` | where to listen; 0 picks a free port | 3000 |
//! | `CAP` | how many reports, and how many streams, may be at work at once | 4 |
//! | `MAX_WAIT_MS` | how long a request waits for its turn; 0: not at all | 2000 |
//! | `TTL_MS` | how long the leases of an instance that died stay | 10000 |
//! | `RATE` | how many pings per second an API key has, over all instances | 10 |
//! | `BURST` | how many of them at once | 10 |

use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::{Body, Bytes};
use axum::extract::{Query, Request};
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Extension, Router};
use futures_util::stream;
use portcullis::layer::{NotHeld, RateHeaders, header, path_param};
use portcullis::{ConcurrencyLimitLayer, Held, MutexLayer, Portcullis, Quota, RateLimitLayer};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::sleep;

/// How long a body pauses between two of its pieces.
const PIECE: Duration = Duration::from_millis(100);

/// How long requests that are under way may take to end.
const GRACE: Duration = Duration::from_secs(30);

/// How long after the HTTP server has ended kept leases may live on.
const SHUTDOWN: Duration = Duration::from_secs(5);

const JSON: [(HeaderName, &str); 1] = [(CONTENT_TYPE, "application/json")];

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let gates = gates()?;
    let app = app(&gates)?;

    let listener = TcpListener::bind(("127.0.0.1", setting("PORT", 3000)?)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Without it the last piece of a body may wait for the acknowledgement of the one before.
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });

    // First the HTTP server: it takes no more connections, and ends when every request that it has
    // begun is answered, those that still wait at a gate included. Only then the gates, or those
    // requests would be refused. Their shutdown delivers the last releases, so that the other
    // instances need not wait for a TTL. A client that never sends the rest of its request does not
    // keep us: after a while the server is dropped.
    let told = Arc::new(Notify::new());
    let tell = Arc::clone(&told);
    let end = told_to_end()?;
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
        end.await;
        tell.notify_one();
    });
    tokio::select! {
        ended = serving => ended?,
        () = async { told.notified().await; sleep(GRACE).await; } => {
            tracing::warn!("some connections did not end in time");
        }
    }
    let report = gates.shutdown(SHUTDOWN).await;
    tracing::info!(report.released, report.abandoned, "gates shut down");
    Ok(())
}

fn gates() -> Result<Portcullis, BoxError> {
    let Some(url) = given::<String>("REDIS_URL")? else {
        eprintln!(
            "no REDIS_URL: the gates are in this process' memory; set it to share them with other instances"
        );
        return Ok(Portcullis::in_memory());
    };
    // An empty one is refused like any that is no address: who sets it wants to share.
    let gates = Portcullis::builder().url(url).build();
    gates.map_err(|error| format!("REDIS_URL: {error}").into())
}

fn app(gates: &Portcullis) -> Result<Router, BoxError> {
    let cap = setting("CAP", 4)?;
    let ttl = Duration::from_millis(setting("TTL_MS", 10_000)?);
    let max_wait = Duration::from_millis(setting("MAX_WAIT_MS", 2_000)?);

    let capped = |name| -> Result<ConcurrencyLimitLayer, BoxError> {
        let semaphore = gates.semaphore(name, cap)?.ttl(ttl)?;
        Ok(ConcurrencyLimitLayer::new(semaphore).max_wait(max_wait))
    };
    let one_per_account = MutexLayer::new(gates.mutex("withdraw").ttl(ttl)?)
        .key(path_param("id"))
        .max_wait(max_wait);

    let rate = Quota::per_second(setting("RATE", 10)?).burst(setting("BURST", 10)?);
    let by_api_key = RateLimitLayer::new(gates.rate_limiter("ping", rate.named("ping"))?)
        .key(header("x-api-key"))
        .headers(RateHeaders::default().on_success());

    Ok(Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/api/ping", get(ping).route_layer(by_api_key))
        .route("/reports", get(report).route_layer(capped("reports")?))
        .route("/stream", get(stream).route_layer(capped("stream")?))
        .route(
            "/accounts/{id}/withdraw",
            post(withdraw).route_layer(one_per_account),
        )
        .layer(middleware::from_fn(note_arrival)))
}

/// Reads `name` from the environment.
fn setting<T: FromStr<Err: Error + Send + Sync + 'static>>(
    name: &str,
    default: T,
) -> Result<T, BoxError> {
    Ok(given(name)?.unwrap_or(default))
}

/// Reads `name` from the environment; `None` if it is not set.
fn given<T: FromStr<Err: Error + Send + Sync + 'static>>(
    name: &str,
) -> Result<Option<T>, BoxError> {
    match env::var(name) {
        Ok(text) => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(format!("{name}: {error}").into()),
        },
        Err(env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(format!("{name}: {error}").into()),
    }
}

/// Resolves at the first SIGTERM or Ctrl-C.
fn told_to_end() -> std::io::Result<impl Future<Output = ()>> {
    // Registered before the server starts, so that a signal in its first moment does not kill it.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Outside of all gates: when the request came.
#[derive(Clone, Copy)]
struct Arrival(Instant);

async fn note_arrival(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Arrival(Instant::now()));
    next.run(request).await
}

#[derive(Deserialize)]
struct Work {
    #[serde(default)]
    ms: u64,
}

impl Work {
    fn time(&self) -> Duration {
        Duration::from_millis(self.ms)
    }
}

/// What a request saw. Between the two moments it surely held: the gate was passed before, and is
/// given back after.
#[derive(Serialize)]
struct Answer {
    pid: u32,
    waited_ms: u64,
    held_from_us: u64,
    held_to_us: u64,
    fencing_token: u64,
}

impl Answer {
    /// To be called first: takes note of what the gate named `gate` has granted.
    fn begin(arrival: Arrival, held: &Held, gate: &str) -> Result<Self, NotHeld> {
        let waited_ms = arrival.0.elapsed().as_millis() as u64;
        let fencing_token = held.lease(gate)?.fencing_token().get();
        let now = wall_clock_us();
        Ok(Self {
            pid: std::process::id(),
            waited_ms,
            held_from_us: now,
            held_to_us: now,
            fencing_token,
        })
    }

    /// To be called last: one line, so that answers to several `curl`s do not run together.
    fn end(mut self) -> Bytes {
        self.held_to_us = wall_clock_us();
        let mut line = serde_json::to_vec(&self).unwrap_or_default();
        line.push(b'\n');
        line.into()
    }
}

fn wall_clock_us() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    since_epoch.as_micros() as u64
}

async fn report(
    Extension(arrival): Extension<Arrival>,
    held: Held,
    Query(work): Query<Work>,
) -> Result<impl IntoResponse, NotHeld> {
    let answer = Answer::begin(arrival, &held, "reports")?;
    sleep(work.time()).await;
    Ok((JSON, answer.end()))
}

async fn ping() -> impl IntoResponse {
    (JSON, "{\"pong\":true}\n")
}

/// Holds until the last piece of its body: white space every 100 ms, then the answer, so that all
/// of it is JSON.
async fn stream(
    Extension(arrival): Extension<Arrival>,
    held: Held,
    Query(work): Query<Work>,
) -> Result<impl IntoResponse, NotHeld> {
    let answer = Answer::begin(arrival, &held, "stream")?;
    let end = Instant::now() + work.time();
    let pieces = stream::unfold(Some(answer), move |state| async move {
        let answer = state?;
        let left = end.saturating_duration_since(Instant::now());
        sleep(left.min(PIECE)).await;
        if left > PIECE {
            return Some((Ok::<_, Infallible>(Bytes::from_static(b"\n")), Some(answer)));
        }
        Some((Ok(answer.end()), None))
    });
    Ok((JSON, Body::from_stream(pieces)))
}

/// A real one would send the fencing token along with its write, for the store to refuse smaller
/// ones than it has seen.
async fn withdraw(
    Extension(arrival): Extension<Arrival>,
    held: Held,
    Query(work): Query<Work>,
) -> Result<impl IntoResponse, NotHeld> {
    let answer = Answer::begin(arrival, &held, "withdraw")?;
    sleep(work.time()).await;
    Ok((JSON, answer.end()))
}
