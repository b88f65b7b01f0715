//! One holder at a time, over all processes that share a server.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Keep, Kept, Wait};
use crate::error::{ConfigError, LockError};
use crate::gate::Gate;
use crate::key::{Key, Kind, Prefix};
use crate::lease::{Lease, LeaseMode, guard_methods};

/// More would set more fences aside than there are microseconds in a short hold.
const MAX_HANDOFFS: u32 = 64;

/// A lock that a fleet of processes shares: one holder at a time.
///
/// Use it where two runs at once would do harm: a withdrawal, a scheduled job, the last item in
/// stock. It is a named template; [`keyed`](Self::keyed) makes the lock of one account, tenant or
/// route from it. Cheap to clone. Made by [`Portcullis::mutex`](crate::Portcullis::mutex).
///
/// While the server keeps its data and its clock does not jump, no two guards are held at once.
/// Waiters are served in the order in which the server saw them, and a release hands the lock to
/// the next one directly.
///
/// What it can't promise: a server that fails over to a replica may grant twice, and a process that
/// was paused may wake up after its lease. Where correctness depends on it, send the [fencing
/// token](crate::FencingToken) along with each write and let the resource refuse smaller ones.
/// [`Builder::min_replicas`](crate::Builder::min_replicas) and [`lock_delay`](Self::lock_delay) make
/// either less likely to matter.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use portcullis::Portcullis;
///
/// let gates = Portcullis::builder().url("redis://127.0.0.1/").build()?;
/// let withdraw = gates.mutex("withdraw").ttl(Duration::from_secs(5))?;
///
/// let guard = withdraw.keyed("account-4711").lock().await?;
/// println!("fenced by {}", guard.fencing_token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    pub(crate) gate: Gate,
}

impl Mutex {
    pub(crate) fn named(backend: Arc<dyn Backend>, prefix: Prefix, name: &str) -> Self {
        Self {
            gate: Gate::named(backend, prefix, Kind::Mutex, name, 1),
        }
    }

    pub(crate) fn exact(backend: Arc<dyn Backend>, prefix: Prefix, key: &str) -> Self {
        Self {
            gate: Gate::exact(backend, prefix, key),
        }
    }

    /// The lock of this name for one account, tenant, route: independent of its siblings. Replaces
    /// an earlier key; of a [`mutex_at`](crate::Portcullis::mutex_at) it is the lock at
    /// `<key>:<this key>`.
    #[must_use]
    pub fn keyed(&self, key: impl Into<Key>) -> Self {
        Self {
            gate: self.gate.keyed(key.into()),
        }
    }

    /// Waits until the lock is free and takes it. Renewed until the guard is dropped, unless
    /// [`lease`](Self::lease) says otherwise.
    ///
    /// Served first come, first served over all processes, for up to [`max_wait`](Self::max_wait);
    /// [`local_handoffs`](Self::local_handoffs) trade some of that order.
    ///
    /// # Errors
    ///
    /// [`LockError::Refused`] if the wait ran out, the queue is full or the handle is shutting
    /// down; [`LockError::Backend`] if the server failed or could not be asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue. If the lock was granted in the same
    /// moment it is released in the background; should that fail to reach the server, its claim
    /// ends after 3 s or the TTL, whichever is less.
    pub async fn lock(&self) -> Result<MutexGuard, LockError> {
        self.gate
            .enter(1, None)
            .await
            .map(|lease| MutexGuard { lease })
    }

    /// Takes the lock if it is free now.
    ///
    /// # Errors
    ///
    /// [`LockError::Refused`] with [`Busy`](crate::RefusalKind::Busy) if it is not; else as
    /// [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<MutexGuard, LockError> {
        self.gate
            .enter(1, Some(Wait::No))
            .await
            .map(|lease| MutexGuard { lease })
    }

    /// Lets the lock pass from one request to the next that waits in this process, up to so many times
    /// with each grant and, while another process waits, within 20 ms: 0 to 64, 0 by default, which is
    /// strictly first come, first served.
    ///
    /// It spares two calls to the server for each hand-off of a lock that many requests of one process
    /// want. A request of another process may be overtaken so many times, once for each grant that is
    /// in front of it. Fencing tokens rise as ever: each grant sets some aside for those it is passed
    /// on to. Nobody who does not wait gets the lock without the server, and it is never kept.
    /// [`max_waiters`](Self::max_waiters) counts those who wait in this process, which has one place in
    /// the server's queue for all of them, and so does a refusal's
    /// [`position`](crate::Refusal::position).
    ///
    /// In memory it changes nothing.
    ///
    /// # Errors
    ///
    /// If it is out of range, at a [key that is used verbatim](crate::Portcullis::mutex_at), whose other
    /// users wait unseen, if the lease is not [renewed](crate::LeaseMode::Renewed) or has a
    /// [`lock_delay`](Self::lock_delay), or on a [quorum](crate::quorum).
    pub fn local_handoffs(self, handoffs: u32) -> Result<Self, ConfigError> {
        if handoffs > MAX_HANDOFFS {
            let field = "local_handoffs";
            return Err(ConfigError::out_of_range(field, handoffs, "0 to 64"));
        }
        if handoffs == 0 {
            let gate = self.gate.keep_nothing();
            return Ok(Self { gate });
        }
        if self.gate.is_exact() {
            let problem = "others who use the key verbatim wait unseen; use a mutex by name";
            return Err(ConfigError::new("local_handoffs", problem));
        }
        let keep = Keep {
            passes: handoffs,
            turn: Duration::from_millis(20),
            linger: Duration::ZERO,
            fences: Some(handoffs),
        };
        Ok(Self {
            gate: self.gate.keep(keep)?,
        })
    }

    /// What came of [`local_handoffs`](Self::local_handoffs) in this process.
    #[must_use]
    pub fn kept(&self) -> Kept {
        self.gate.kept()
    }

    crate::gate::gate_settings!();
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mutex").field(&self.gate).finish()
    }
}

/// The holding of a [`Mutex`].
///
/// # Drop
///
/// Gives the lock back: it queues the release for the background thread, without blocking and
/// without a runtime. If the process ends before that was sent, the lock is free when its TTL is
/// over: see [`Portcullis::shutdown`](crate::Portcullis::shutdown).
#[derive(Debug)]
#[must_use = "a guard that is not bound is dropped at once, and the lock with it"]
pub struct MutexGuard {
    lease: Lease,
}

impl MutexGuard {
    guard_methods!();
}
