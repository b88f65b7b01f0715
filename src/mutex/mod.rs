//! One holder at a time, over all processes that share a server.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Wait};
use crate::error::{ConfigError, LockError};
use crate::gate::Gate;
use crate::key::{Key, Kind, Prefix};
use crate::lease::{Lease, LeaseMode, guard_methods};

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
    /// Served first come, first served over all processes, for up to [`max_wait`](Self::max_wait).
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
