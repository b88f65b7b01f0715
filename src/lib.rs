//! The gate in your Tower: mutexes, counting semaphores and rate limits that a fleet of processes
//! shares through Redis or Valkey, waiting by push instead of polling, as Tower layers and as
//! primitives under them.
//!
//! # Guarantees
//!
//! With one server: mutual exclusion while it keeps its data and its clock does not jump. A
//! failover with asynchronous replication can grant twice. Where correctness depends on it, check
//! the [fencing token](FencingToken) at the resource.
//!
//! On a [quorum] of independent servers: mutual exclusion while no more of them lose leases than are
//! tolerated, and no clock runs much faster than others.
//!
//! A [quota](Quota) is kept in any window as its algorithm says, and a call counts at most once.
//!
//! # Features
//!
//! - `axum`: [`Held`] as an extractor, and keys from what axum knows of a request.
//! - `cluster`: gates on a Redis or Valkey cluster (`redis+cluster://`), also over a `deadpool_redis::cluster::Pool`.
//! - `sentinel`: the master of a service is found by asking sentinels, and followed through failovers
//!   (`Sentinel`, `redis+sentinel://`).
//! - `tls`: `rediss://` addresses, and whom to trust there (`Tls`).
//! - `tonic`: gRPC statuses for those who are not let through.
//! - `test-util`: gates in memory for the tests of those who use them (`test_util`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod address;
mod backend;
pub mod check;
mod error;
mod gate;
mod key;
pub mod layer;
mod lease;
mod mutex;
mod portcullis;
pub mod quorum;
mod rate_limit;
pub mod scripts;
mod semaphore;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(test)]
mod snapshot;
#[cfg(feature = "test-util")]
pub mod test_util;
mod time;
#[cfg(feature = "tls")]
mod tls;
mod token;

pub use deadpool_redis;
pub use redis;

pub use self::address::{Address, IntoAddress};
pub use self::backend::{Kept, ShutdownReport};
pub use self::error::{
    BackendError, BackendErrorKind, ConfigError, LockError, Refusal, RefusalKind, ServerVote,
};
pub use self::key::Key;
pub use self::layer::{ConcurrencyLimitLayer, Held, MutexLayer, OnOutage, RateLimitLayer};
pub use self::lease::{LeaseMode, LeaseView, Lost, LostReason, Release, Releasing};
pub use self::mutex::{Mutex, MutexGuard};
pub use self::portcullis::{Builder, Portcullis};
pub use self::rate_limit::{Quota, QuotaReport, QuotaStatus, Quotas, RateLimiter};
pub use self::semaphore::{Keeping, Semaphore, SemaphorePermit};
#[cfg(feature = "sentinel")]
pub use self::sentinel::Sentinel;
#[cfg(feature = "tls")]
pub use self::tls::Tls;
pub use self::token::FencingToken;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
