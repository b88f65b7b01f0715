//! Gates in memory for the tests of those who use them, with hands on the clock, the leases and the
//! backend.
//!
//! # Examples
//!
//! A route that lets one request in at a time, tested without a server and without waiting:
//!
//! ```
//! # async fn example() {
//! # }
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

    /// A handle on its gates, as another process would have one: each is shut down for itself.
    #[must_use]
    pub fn handle(&self) -> Portcullis {
        Portcullis::on_memory(&self.memory, Prefix::default())
    }

    /// A handle whose gates are apart from those of other prefixes.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`](crate::Builder::build), if the prefix is out of its range.
    pub fn handle_with_prefix(&self, prefix: &str) -> Result<Portcullis, ConfigError> {
        Ok(Portcullis::on_memory(&self.memory, Prefix::new(prefix)?))
    }

    /// Ends all leases of the gate named `gate`, of all its keys, as if their time were over. Their
    /// holders are told that they lost, and waiters are served. Gives the number of leases.
    #[expect(clippy::must_use_candidate, reason = "it is called for what it does")]
    pub fn expire(&self, gate: &str) -> usize {
        self.memory.expire(gate)
    }

    /// Plays a server that can't be reached, or one that is back.
    ///
    /// While it is out, acquires fail at once with
    /// [`Unreachable`](crate::BackendErrorKind::Unreachable), where a real outage would take the
    /// time-outs to be noticed. Those that wait fail when their `max_wait` is over. Leases are not
    /// renewed: they are lost when what [remains](crate::MutexGuard::remaining) of them is over,
    /// within their TTL. Releases are answered with the failure.
    ///
    /// When it is back, leases that are left are renewed again, and waiters are served.
    pub fn outage(&self, out: bool) {
        self.memory.set_out(out);
    }

    /// Whether nobody holds and nobody waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.memory.busy().is_empty()
    }

    /// Checks that nobody holds and nobody waits: what was acquired was given back, what was dropped
    /// left nothing.
    ///
    /// # Panics
    ///
    /// If somebody does; the text names the gates.
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
