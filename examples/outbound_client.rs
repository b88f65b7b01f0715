//! Calls to another service, of which only so many are under way at once: by this process, or with
//! `REDIS_URL` by all that share the server. And jobs, which are not HTTP at all, likewise. The
//! client is hyper's; for reqwest's see [`MutexLayer::plain`](portcullis::MutexLayer::plain).
//!
//! ```sh
//! cargo run --example outbound_client
//! ```
//!
//! It starts a small upstream of its own, calls it 20 times at once, and runs 8 jobs. You see:
//!
//! ```text
//! upstream on http://127.0.0.1:41234
//! 20 calls answered, 0 refused here; most inside at once: 3 of 3
//! 8 jobs done; most at work at once: 2 of 2
//! ```
//!
//! Over several processes: let them share a server and an upstream, each in a terminal of its own.
//! The upstream says how many are inside, whoever sent them, and it stays at 3.
//!
//! ```sh
//! redis-server --port 6380 --save ''
//! REDIS_URL=redis://127.0.0.1:6380/ CALLS=1000 cargo run --example outbound_client
//! REDIS_URL=redis://127.0.0.1:6380/ UPSTREAM=http://127.0.0.1:41234 \
//!     cargo run --example outbound_client
//! ```
//!
//! Ctrl-C or SIGTERM ends it early: it gives back what it holds, so that others go on at once.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `REDIS_URL` | the server that all processes share | none: in memory |
//! | `UPSTREAM` | whom to call | one of its own |
//! | `CALLS` | how many calls to make | 20 |
//! | `CAP` | how many of them may be under way at once | 3 |
//! | `MAX_WAIT_MS` | how long a call waits for its turn | 60000 |

use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{Request, StatusCode, Uri};
use axum::routing::get;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use portcullis::layer::Rejection;
use portcullis::{ConcurrencyLimitLayer, Portcullis};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

/// How long a call or a job takes.
const WORK: Duration = Duration::from_millis(50);

const JOBS: u32 = 8;
const JOBS_AT_ONCE: u32 = 2;

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
    let mut terminate = signal(SignalKind::terminate())?;
    let ended = tokio::select! {
        ended = async { call(&gates).await?; work(&gates).await } => ended,
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    // What was under way has been dropped. The server is told so before the process ends.
    gates.shutdown(Duration::from_secs(5)).await;
    ended
}

/// A client behind a gate: each call takes a permit, and gives it back when its answer is read.
async fn call(gates: &Portcullis) -> Result<(), BoxError> {
    let cap = setting("CAP", 3)?;
    let gate = ConcurrencyLimitLayer::new(gates.semaphore("upstream", cap)?)
        .max_wait(Duration::from_millis(setting("MAX_WAIT_MS", 60_000)?))
        // A 503 may be the upstream's own. This marks the calls that never left.
        .on_refusal(|rejection, mut answer| {
            answer.extensions_mut().insert(rejection.clone());
            answer
        });
    let client = gate.layer(Client::builder(TokioExecutor::new()).build_http());

    let upstream = match setting("UPSTREAM", Uri::default())? {
        given if given.host().is_some() => given,
        _ => upstream().await?,
    };
    println!("upstream on {}", upstream.to_string().trim_end_matches('/'));
    let mut calls = JoinSet::new();
    for _ in 0..setting("CALLS", 20)? {
        let request = Request::get(&upstream).body(Empty::<Bytes>::new())?;
        let call = client.clone().oneshot(request);
        calls.spawn(async {
            let answer = call.await?;
            let refused_here = answer.extensions().get::<Rejection>().is_some();
            let status = answer.status();
            let body = answer.into_body().collect().await?.to_bytes();
            Ok::<_, BoxError>((status, refused_here, body))
        });
    }
    let (mut answered, mut refused, mut most) = (0, 0, 0_u32);
    while let Some(call) = calls.join_next().await {
        match call?? {
            (_, true, _) => refused += 1,
            (StatusCode::OK, _, inside) => {
                answered += 1;
                most = most.max(str::from_utf8(&inside)?.parse()?);
            }
            (status, ..) => return Err(format!("the upstream answers {status}").into()),
        }
    }
    println!(
        "{answered} calls answered, {refused} refused here; most inside at once: {most} of {cap}"
    );
    Ok(())
}

/// Any tower service will do: jobs have no HTTP heads or bodies, so refusals are errors, and a job
/// holds until it is done.
async fn work(gates: &Portcullis) -> Result<(), BoxError> {
    let inside = Inside::default();
    let runner = service_fn(|number: u32| {
        let inside = inside.clone();
        async move { Ok::<_, Infallible>((number, inside.work().await)) }
    });
    let gated = ConcurrencyLimitLayer::new(gates.semaphore("jobs", JOBS_AT_ONCE)?)
        .max_wait(Duration::from_secs(60))
        .plain()
        .layer(runner);
    let jobs = (0..JOBS).map(|number| gated.clone().oneshot(number));
    let done = futures_util::future::try_join_all(jobs).await?;
    let most = done.iter().map(|(_, inside)| *inside).max().unwrap_or(0);
    println!(
        "{} jobs done; most at work at once: {most} of {JOBS_AT_ONCE}",
        done.len()
    );
    Ok(())
}

/// Counts those at work.
#[derive(Clone, Default)]
struct Inside(Arc<AtomicU32>);

impl Inside {
    /// Works for a while, and tells how many were inside when it began, itself included.
    async fn work(self) -> u32 {
        let inside = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        // Counts back in its drop: a caller that goes away ends this at the next line.
        let _entered = Entered(self);
        sleep(WORK).await;
        inside
    }
}

struct Entered(Inside);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers every request with how many were inside at once.
async fn upstream() -> Result<Uri, BoxError> {
    let inside = Inside::default();
    let app = Router::new().route("/", get(async move || inside.work().await.to_string()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(address.parse()?)
}

/// Reads `name` from the environment.
fn setting<T: FromStr<Err: Error>>(name: &str, default: T) -> Result<T, BoxError> {
    match env::var(name) {
        Ok(text) => Ok(text.parse().map_err(|error| format!("{name}: {error}"))?),
        Err(env::VarError::NotPresent) => Ok(default),
        Err(error) => Err(format!("{name}: {error}").into()),
    }
}
