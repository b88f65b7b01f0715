//! Gates in memory for the tests of those who use them, with hands on the clock, the leases and the
//! backend.
//!
//! ```toml
//! [dev-dependencies]
//! portcullis = { version = "0.1", features = ["test-util"] }
//! tokio = { version = "1", features = ["macros", "rt", "test-util"] }
//! tower = { version = "0.5", features = ["util"] }
//! ```
//!
//! # Examples
//!
//! A route that lets one request in at a time, tested without a server. The clock is paused: it
//! moves to the next timer when all tasks wait, so the minutes here pass at once, and exactly.
//!
//! ```
//! # // The attribute makes what can be run here and not only in a test.
//! # mod tokio { pub use ::tokio::{main as test, *}; }
//! use std::time::Duration;
//!
//! use axum::{Router, body::Body, routing::post};
//! use http::{Request, StatusCode};
//! use portcullis::test_util::MemoryServer;
//! use portcullis::{MutexLayer, Portcullis};
//! use tokio::time::{Instant, sleep};
//! use tower::ServiceExt;
//!
//! /// What is tested: it does not know where its gates live.
//! fn app(gates: &Portcullis) -> Router {
//!     let one_at_a_time = MutexLayer::new(gates.mutex("report"));
//!     let one_at_a_time = one_at_a_time.max_wait(Duration::from_secs(5));
//!     let report = async || sleep(Duration::from_secs(60)).await;
//!     Router::new().route("/report", post(report).route_layer(one_at_a_time))
//! }
//!
//! async fn ask(app: Router) -> StatusCode {
//!     let request = Request::post("/report").body(Body::empty()).unwrap();
//!     app.oneshot(request).await.unwrap().status()
//! }
//!
//! #[tokio::test(flavor = "current_thread", start_paused = true)]
//! async fn one_report_at_a_time() {
//!     let server = MemoryServer::on_tokio_time();
//!     let app = app(&server.handle());
//!
//!     // While one is at work, another waits as long as it may.
//!     let first = tokio::spawn(ask(app.clone()));
//!     while server.is_idle() {
//!         tokio::task::yield_now().await;
//!     }
//!     let begun = Instant::now();
//!     assert_eq!(ask(app.clone()).await, StatusCode::SERVICE_UNAVAILABLE);
//!     assert_eq!(begun.elapsed().as_secs(), 5);
//!
//!     // The first one's lease ends before its work does: it is aborted.
//!     assert_eq!(server.expire("report"), 1);
//!     assert_eq!(first.await.unwrap(), StatusCode::SERVICE_UNAVAILABLE);
//!
//!     // The server can't be reached, and is back.
//!     server.outage(true);
//!     assert_eq!(ask(app.clone()).await, StatusCode::SERVICE_UNAVAILABLE);
//!     server.outage(false);
//!     assert_eq!(ask(app).await, StatusCode::OK);
//!
//!     // Whatever was acquired has been given back.
//!     server.assert_idle();
//! }
//! # fn main() { one_report_at_a_time() }
//! ```

use std::sync::Arc;

use crate::backend::memory::Memory;
use crate::error::ConfigError;
use crate::key::Prefix;
use crate::portcullis::Portcullis;
use crate::time::Clock;

/// Stands in for a server: handles made by it share their gates as processes do, and the test can
/// do to it what befalls a server.
///
/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct MemoryServer {
    memory: Arc<Memory>,
}

impl MemoryServer {
    /// One whose leases and waits end by the system's clock, as those of
    /// [`Portcullis::in_memory`] do.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Clock::System)
    }

    /// One whose leases and waits end by the clock of the runtime in which this is called, so that
    /// `tokio::time::pause` and `advance` move them.
    ///
    /// While the clock is paused, tokio moves it to the next timer whenever all tasks wait. The end
    /// of a lease that is not renewed is such a timer, and so is the end of a wait with a
    /// `max_wait`; a renewed lease has none, however long it is held. What a guard tells of its
    /// lease is exact, also on threads outside of the runtime. Whoever waits is woken up to 2 ms
    /// later, since tokio's timers count whole milliseconds.
    ///
    /// The runtime needs its timers (`enable_time`), and nothing ends by itself unless it runs.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    #[track_caller]
    pub fn on_tokio_time() -> Self {
        Self::with(Clock::of_runtime())
    }

    fn with(clock: Clock) -> Self {
        Self {
            memory: Memory::new(clock),
        }
    }

    /// A handle on its gates, as another process would have one: each call makes one that is
    /// [shut down](Portcullis::shutdown) for itself, its clones with it.
    #[must_use]
    pub fn handle(&self) -> Portcullis {
        Portcullis::on_memory(&self.memory, Prefix::default())
    }

    /// A handle whose gates are apart from those of other prefixes, as
    /// [`Builder::prefix`](crate::Builder::prefix) makes them.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`](crate::Builder::build), if the prefix is out of its range.
    pub fn handle_with_prefix(&self, prefix: &str) -> Result<Portcullis, ConfigError> {
        Ok(Portcullis::on_memory(&self.memory, Prefix::new(prefix)?))
    }

    /// Ends all leases of the gate named `gate`, of all its keys, as if their time were over. Their
    /// holders are told that they lost, and waiters are served. Gives the number of leases, 0 if
    /// nobody held.
    ///
    /// The name is what [`Portcullis::mutex`], [`mutex_at`](Portcullis::mutex_at) or
    /// [`semaphore`](Portcullis::semaphore) was called with. Gates of this name expire together,
    /// whatever their kind and prefix.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn expire(&self, gate: &str) -> usize {
        self.memory.expire(gate)
    }

    /// Plays a server that can't be reached, or one that is back.
    ///
    /// While it is out, for all handles alike:
    ///
    /// - acquires fail at once with [`Unreachable`](crate::BackendErrorKind::Unreachable), where a
    ///   real outage would take the time-outs to be noticed;
    /// - those that waited before fail likewise when their `max_wait` is over, and wait on if they
    ///   have none;
    /// - leases are not renewed: they are lost when what
    ///   [remains](crate::MutexGuard::remaining) of them is over, within their TTL;
    /// - releases are answered with the failure. They are carried out all the same, and do not have
    ///   to be repeated.
    ///
    /// When it is back, leases that are left are renewed again, and waiters are served. To say what
    /// is so already changes nothing.
    pub fn outage(&self, out: bool) {
        self.memory.set_out(out);
    }

    /// Whether nobody holds and nobody waits. A lease that is lost is not held, even if its guard
    /// lives on.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.memory.busy().is_empty()
    }

    /// Checks that nobody holds and nobody waits: what was acquired was given back, and what was
    /// dropped left nothing. There is nothing to wait for first: in memory, a lease has been given
    /// back when the drop of its guard returns.
    ///
    /// # Panics
    ///
    /// If somebody does. The text names each gate with how many do, for each of its keys.
    #[track_caller]
    pub fn assert_idle(&self) {
        let describe = |(gate, held, waiting)| format!("`{gate}`: {held} held, {waiting} waiting");
        let busy: Vec<String> = self.memory.busy().into_iter().map(describe).collect();
        assert!(busy.is_empty(), "gates are in use: {}", busy.join("; "));
    }
}

impl Default for MemoryServer {
    fn default() -> Self {
        Self::new()
    }
}
