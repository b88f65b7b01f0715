//! A route that lets one request in at a time, and one that lets ten in a second; they note who
//! comes when.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::routing::get;
use http::Method;
use portcullis::layer::header;
use portcullis::{
    ConcurrencyLimitLayer, LeaseMode, Portcullis, Quota, RateLimitLayer, SemaphorePermit,
};
use tokio::net::TcpListener;
use tower_http::cors::{Any, CorsLayer};

/// What `Retry-After` says while somebody holds.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The requests that came, by method, and when.
#[derive(Clone, Default)]
pub(crate) struct Visits(Arc<Mutex<Vec<(Method, Instant)>>>);

impl Visits {
    fn note(&self, method: &Method) {
        let mut visits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        visits.push((method.clone(), Instant::now()));
    }

    /// When requests with this method came.
    pub(crate) fn of(&self, method: &Method) -> Vec<Instant> {
        let visits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_method = visits.iter().filter(|(visit, _)| visit == method);
        of_method.map(|(_, at)| *at).collect()
    }
}

pub(crate) struct Route {
    pub(crate) address: SocketAddr,
    pub(crate) visits: Visits,
    gates: Portcullis,
}

impl Route {
    /// Any origin may ask, and is answered by the CORS layer outside of the gate.
    pub(crate) async fn serve() -> Self {
        let gates = Portcullis::in_memory();
        let one = gates.semaphore("one", 1).and_then(|one| one.ttl(PAUSE));
        let one = one.expect("in range");
        let gate = ConcurrencyLimitLayer::new(one).max_wait(Duration::ZERO);
        let ten = gates.rate_limiter("ten", Quota::per_second(10));
        let limit = RateLimitLayer::new(ten.expect("in range")).key(header("x-api-key"));
        let cors = CorsLayer::new().allow_origin(Any).allow_headers(Any);
        let visits = Visits::default();
        let noted = visits.clone();
        let note = middleware::from_fn(move |request: Request, next: Next| {
            noted.note(request.method());
            next.run(request)
        });
        let app = Router::new()
            .route("/one", get(async || "in").layer(gate))
            .route("/ten", get(async || "in").layer(limit))
            .layer(cors)
            .layer(note);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            visits,
            gates,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/one", self.address)
    }

    pub(crate) fn limited_url(&self) -> String {
        format!("http://{}/ten", self.address)
    }

    /// Holds it for about as long as `Retry-After` will say.
    pub(crate) async fn occupy(&self) -> SemaphorePermit {
        let one = self.gates.semaphore("one", 1).expect("in range");
        let fixed = one.ttl(PAUSE).and_then(|one| one.lease(LeaseMode::Fixed));
        let permit = fixed.expect("in range").acquire().await;
        permit.expect("it is free")
    }

    /// Holds it until the permit is dropped; `Retry-After` says [`PAUSE`] meanwhile.
    pub(crate) async fn occupy_for_long(&self) -> SemaphorePermit {
        let one = self.gates.semaphore("one", 1).expect("in range");
        one.acquire().await.expect("it is free")
    }

    /// Who was refused came back, and not before the time.
    pub(crate) fn assert_came_back_in_time(&self) {
        let visits = self.visits.of(&Method::GET);
        assert!(visits.len() >= 2, "{} requests", visits.len());
        let pause = visits[1] - visits[0];
        // Clocks and timers of others may be a little off.
        assert!(pause >= PAUSE * 9 / 10, "came back after {pause:?}");
    }
}

/// Runs a program to its end beside the server; gives what it printed.
pub(crate) async fn run(mut command: tokio::process::Command) -> String {
    let name = format!("{:?}", command.as_std().get_program());
    let output = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(60), output)
        .await
        .unwrap_or_else(|_| panic!("{name} did not end"))
        .unwrap_or_else(|error| panic!("{name} can't be run: {error}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} failed: {printed}{told}");
    printed
}
