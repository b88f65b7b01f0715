//! At most so many at once, over all processes that share a server.

mod keeping;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::quorum::rule;
use crate::backend::{Backend, Kept, Wait};
use crate::error::{ConfigError, LockError};
use crate::gate::Gate;
use crate::key::{Key, Kind, Prefix};
use crate::lease::{Lease, LeaseMode, guard_methods};

pub use self::keeping::Keeping;

/// Permits that a fleet of processes shares: at most so many are held at once.
///
/// They are kept on the server by the end of each one's lease, so that those of a dead process come
/// back by themselves. Requests are served strictly in order: a large one at the head is not
/// starved by small ones behind it. Cheap to clone. Made by
/// [`Portcullis::semaphore`](crate::Portcullis::semaphore).
///
/// Each request is judged by its own limit against what all hold. When a deploy changes the limit,
/// processes of both kinds may run at once, and neither grants above its own.
///
/// While the server keeps its data and its clock does not jump, no more permits are held than the
/// limit. What it can't promise is what a [`Mutex`](crate::Mutex) can't.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use portcullis::Portcullis;
///
/// let gates = Portcullis::builder().url("redis://127.0.0.1/").build()?;
/// let reports = gates.semaphore("reports", 10)?;
///
/// let permit = reports.acquire().await?;
/// let three_more = reports.acquire_many(3).await?;
/// # drop((permit, three_more));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    pub(crate) gate: Gate,
}

impl Semaphore {
    pub(crate) fn named(
        backend: Arc<dyn Backend>,
        prefix: Prefix,
        name: &str,
        limit: u32,
    ) -> Result<Self, ConfigError> {
        if limit == 0 {
            return Err(ConfigError::out_of_range("limit", limit, "1 to 4294967295"));
        }
        let servers = backend.servers();
        if servers > 1 && rule::tolerated(servers, limit) == 0 {
            let problem = format!(
                "{limit} permits over {servers} servers would need every one of them; take fewer \
                 permits, at most {}, or more servers",
                servers - 2
            );
            return Err(ConfigError::new("limit", problem));
        }
        Ok(Self {
            gate: Gate::named(backend, prefix, Kind::Semaphore, name, limit),
        })
    }

    /// The semaphore of this name for one tenant, route, user: independent of its siblings.
    /// Replaces an earlier key.
    #[must_use]
    pub fn keyed(&self, key: impl Into<Key>) -> Self {
        Self {
            gate: self.gate.keyed(key.into()),
        }
    }

    /// Waits for one permit and takes it. Renewed until the permit is dropped, unless
    /// [`lease`](Self::lease) says otherwise.
    ///
    /// Served first come, first served over all processes, for up to [`max_wait`](Self::max_wait);
    /// [`keep_permits`](Self::keep_permits) trades some of that order.
    ///
    /// # Errors
    ///
    /// [`LockError::Refused`] if the wait ran out, the queue is full or the handle is shutting
    /// down; [`LockError::Backend`] if the server failed or could not be asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in the queue. If the permit was granted in the same
    /// moment it is released in the background; should that fail to reach the server, its claim
    /// ends after 3 s or the TTL, whichever is less.
    pub async fn acquire(&self) -> Result<SemaphorePermit, LockError> {
        self.gate
            .enter(1, None)
            .await
            .map(|lease| SemaphorePermit { lease })
    }

    /// Waits for `permits` at once and takes them together.
    ///
    /// Smaller requests behind it wait until it is served, so it is not starved.
    ///
    /// # Errors
    ///
    /// [`LockError::Refused`] with [`NeverFits`](crate::RefusalKind::NeverFits), at once, for 0
    /// permits or for more than the limit; else as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<SemaphorePermit, LockError> {
        self.gate
            .enter(permits, None)
            .await
            .map(|lease| SemaphorePermit { lease })
    }

    /// Takes a permit if one is free now and nobody waits for it.
    ///
    /// # Errors
    ///
    /// [`LockError::Refused`] with [`Busy`](crate::RefusalKind::Busy) if not; else as
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<SemaphorePermit, LockError> {
        self.gate
            .enter(1, Some(Wait::No))
            .await
            .map(|lease| SemaphorePermit { lease })
    }

    /// Lets this process keep a permit that a request has given back, for its own next request, until
    /// another process wants it: so a limit that does not bind costs next to nothing, and is still
    /// never exceeded.
    ///
    /// While nobody else waits a permit serves one request after the other, without a call to the
    /// server. When a request has to wait in another process, the server tells all that hold permits:
    /// idle ones are given back at once, others after at most
    /// [`passes`](Keeping::passes) more requests or a [`turn`](Keeping::turn). One that nobody uses is
    /// given back after it [lingers](Keeping::linger).
    ///
    /// # What it trades
    ///
    /// - **Order**: requests of one process are served first come, first served, and those of another
    ///   may be overtaken by up to `passes` × (`limit` + 1) requests. Requests for
    ///   [several permits](Self::acquire_many), or by another limit, ask the server as ever.
    /// - **Fencing tokens**: permits that are used again have no order, so
    ///   [`fencing_token`](SemaphorePermit::fencing_token) is 0, which whoever compares refuses. Where
    ///   you need them, do not keep permits.
    /// - **Crashes**: what a process keeps idle when it dies is missing for the rest of its TTL.
    /// - **A server that loses its data**: what was kept counts for up to 50 ms longer, so there may be
    ///   more inside for that time than the limit says.
    /// - **max_waiters** counts those who wait in this process, and so does a refusal's
    ///   [`position`](crate::Refusal::position). Of them the server counts those that it has been asked
    ///   for, which are no more than the limit.
    ///
    /// A process asks every 50 ms, for each semaphore of which it keeps permits, whether others wait:
    /// that is what a recall costs that was lost. So it is for busy gates, not for thousands of keys.
    /// In memory it changes nothing: there is no call to save.
    ///
    /// # Cancel safety
    ///
    /// A request that is dropped while it waits leaves its place here at once. What was asked of the
    /// server on its behalf serves whoever comes next here, or is given up after 50 ms.
    ///
    /// # Errors
    ///
    /// If a setting is out of range, the lease is not [renewed](crate::LeaseMode::Renewed) or has a
    /// [`lock_delay`](Self::lock_delay), or on a [quorum](crate::quorum).
    pub fn keep_permits(self, keeping: Keeping) -> Result<Self, ConfigError> {
        Ok(Self {
            gate: self.gate.keep(keeping.checked()?)?,
        })
    }

    /// What this process keeps of it at the moment, and what came of that.
    #[must_use]
    pub fn kept(&self) -> Kept {
        self.gate.kept()
    }

    crate::gate::gate_settings!();
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Semaphore").field(&self.gate).finish()
    }
}

/// The holding of one or more permits of a [`Semaphore`].
///
/// # Drop
///
/// Gives the permits back: it queues the release for the background thread, without blocking and
/// without a runtime. If the process ends before that was sent, they are free when their TTL is
/// over: see [`Portcullis::shutdown`](crate::Portcullis::shutdown).
#[derive(Debug)]
#[must_use = "a permit that is not bound is dropped at once"]
pub struct SemaphorePermit {
    lease: Lease,
}

impl SemaphorePermit {
    guard_methods!();
}
