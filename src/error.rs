//! The three ways to not get what was asked for: a configuration that can't be, a refusal, a
//! failure of the backend.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::rate_limit::QuotaReport;

/// A setting that can't be kept, found while building.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    field: &'static str,
    problem: String,
}

impl ConfigError {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self {
            field,
            problem: problem.into(),
        }
    }

    pub(crate) fn out_of_range(
        field: &'static str,
        value: impl fmt::Display,
        range: &'static str,
    ) -> Self {
        Self::new(field, format!("{value} is out of range, it takes {range}"))
    }

    pub(crate) fn no_randomness(error: getrandom::Error) -> Self {
        Self::new(
            "instance",
            format!("the system gives no random numbers ({error})"),
        )
    }

    /// The name of the setting.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }
}

/// Why a permit was not given, or a call not admitted.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The normal no: somebody else holds, the queue is full, the wait ran out, a quota is used up.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The place where the state lives failed, or could not be asked.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// What kind of no a [`Refusal`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// Held by others, and the caller did not want to wait.
    Busy,
    /// As many wait already as may.
    QueueFull,
    /// The caller's `max_wait` passed.
    WaitedTooLong,
    /// A quota is used up, or its next free turn comes too late.
    OverQuota,
    /// More was asked for than there ever is.
    NeverFits,
    /// [`Portcullis::shutdown`](crate::Portcullis::shutdown) was called on this handle.
    ShuttingDown,
}

/// A normal no, with what the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    kind: RefusalKind,
    retry_after: Option<Duration>,
    position: Option<u64>,
    /// Of what never fits, where it is known: how much was asked for, and of how much.
    asked: Option<Asked>,
    /// Of a quota that is used up.
    quotas: Option<Arc<QuotaReport>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Permits(u32, u32),
    Units(u32, u32),
}

impl Refusal {
    pub(crate) const fn new(kind: RefusalKind) -> Self {
        Self {
            kind,
            retry_after: None,
            position: None,
            asked: None,
            quotas: None,
        }
    }

    pub(crate) fn never_fits(weight: u32, limit: u32) -> Self {
        Self {
            asked: Some(Asked::Permits(weight, limit)),
            ..Self::new(RefusalKind::NeverFits)
        }
    }

    pub(crate) fn costs_too_much(cost: u32, burst: u32) -> Self {
        Self {
            asked: Some(Asked::Units(cost, burst)),
            ..Self::new(RefusalKind::NeverFits)
        }
    }

    pub(crate) fn with_quotas(mut self, quotas: QuotaReport) -> Self {
        self.quotas = Some(Arc::new(quotas));
        self
    }

    /// Of quotas that are no other process', and so of no use to callers.
    pub(crate) fn without_quotas(mut self) -> Self {
        self.quotas = None;
        self
    }

    /// The same of another kind, for who asked for something else than was refused.
    pub(crate) const fn with_kind(mut self, kind: RefusalKind) -> Self {
        self.kind = kind;
        self
    }

    pub(crate) const fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }

    pub(crate) const fn with_position(mut self, position: Option<u64>) -> Self {
        self.position = position;
        self
    }

    /// What kind of no it is.
    #[must_use]
    pub const fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// The time to the end of the first lease that stands in the way, if it is known and nobody
    /// renews or releases it before; of a quota the time until the call is admitted, if nobody else
    /// uses it. `None` where waiting does not help or nothing is known.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// How the quotas stand, if one of them is used up.
    #[must_use]
    pub fn quotas(&self) -> Option<&QuotaReport> {
        self.quotas.as_deref()
    }

    /// How many others waited in front, as far as the server last said. With
    /// [`keep_permits`](crate::Semaphore::keep_permits) or
    /// [`local_handoffs`](crate::Mutex::local_handoffs) it is how many waited in this process, where
    /// that has told without the server, and `None` if the wait ran out here.
    #[must_use]
    pub const fn position(&self) -> Option<u64> {
        self.position
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            RefusalKind::Busy => "held by others",
            RefusalKind::QueueFull => "the queue is full",
            RefusalKind::WaitedTooLong => "still held by others when the wait ran out",
            RefusalKind::OverQuota => "over quota",
            RefusalKind::NeverFits => match self.asked {
                Some(Asked::Units(..)) => "costs more than there ever is",
                Some(Asked::Permits(..)) | None => {
                    "asked for no permit or for more than there ever are"
                }
            },
            RefusalKind::ShuttingDown => "shutting down",
        })?;
        match self.asked {
            Some(Asked::Permits(weight, limit)) => write!(f, ": {weight} of {limit} permits")?,
            Some(Asked::Units(cost, burst)) => write!(f, ": {cost} of {burst} units")?,
            None => {}
        }
        if let Some(quotas) = &self.quotas {
            write!(f, " `{}`", quotas.binding().name())?;
        }
        if let Some(position) = self.position.filter(|&position| position > 0) {
            write!(f, ", {position} waiting in front")?;
        }
        if let Some(retry_after) = self.retry_after {
            write!(f, ", retry after {} ms", retry_after.as_millis())?;
        }
        Ok(())
    }
}

impl Error for Refusal {}

/// What kind of failure a [`BackendError`] is.
///
/// | kind | an outage | what mends it |
/// | --- | --- | --- |
/// | `Unreachable`, `TimedOut`, `ServerBusy`, `NotServing` | yes | time, or whoever runs the server |
/// | `Refused`, `Unauthenticated`, `Untrusted` | yes: it lets nobody do anything | whoever runs the server |
/// | `NotPermitted`, `ForeignData`, `Unsupported` | no | settings: rights, names, the kind of server |
/// | `Incompatible` | no | the end of a deploy |
/// | `Protocol` | no | finding out what answers there |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// No connection, or it broke. A request that was under way may have run; what it may have left
    /// is cleaned up in the background.
    Unreachable,
    /// No answer in time: the request may have run. What it may have left is cleaned up in the
    /// background.
    TimedOut,
    /// A script of somebody's has been running for too long, and the server does nothing else until
    /// it ends (`BUSY`). Nothing was done.
    ServerBusy,
    /// The server is there, and can't serve now: it loads its data (`LOADING`), is a replica
    /// (`READONLY`), or one that has lost its master (`MASTERDOWN`), its cluster is down
    /// (`CLUSTERDOWN`), or it takes no more clients. Nothing was done. A failover ends it; an address
    /// that is a replica's does not.
    NotServing,
    /// The server declines to write: out of memory (`OOM`), too few replicas (`NOREPLICAS`), or its
    /// persistence is broken (`MISCONF`). Nothing was done. Or too few replicas acknowledged a lease
    /// in time ([`min_replicas`](crate::Builder::min_replicas)), and it was given back.
    Refused,
    /// The server refuses the credentials (`NOAUTH`, `WRONGPASS`), as when they have been changed.
    Unauthenticated,
    /// No TLS connection, because one side does not trust the other's certificate: it has expired, is
    /// for another host, or was issued by nobody who is trusted; or the server wants one and was shown
    /// none. Nothing was sent.
    Untrusted,
    /// The user may not do this (`NOPERM`): a command, a key, a channel or a script's own command.
    NotPermitted,
    /// Something else lives under the key (`WRONGTYPE`).
    ForeignData,
    /// The server can't do what is asked: a node of a cluster (`MOVED`, `CROSSSLOT`), a database that
    /// it does not have, or a command that it does not know.
    Unsupported,
    /// A process with another protocol version of this crate uses this gate.
    Incompatible,
    /// An answer that makes no sense.
    Protocol,
}

impl BackendErrorKind {
    /// Its name, for logs and labels: `timed-out`. It stays the same.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed-out",
            Self::ServerBusy => "server-busy",
            Self::NotServing => "not-serving",
            Self::Refused => "refused",
            Self::Unauthenticated => "unauthenticated",
            Self::Untrusted => "untrusted",
            Self::NotPermitted => "not-permitted",
            Self::ForeignData => "foreign-data",
            Self::Unsupported => "unsupported",
            Self::Incompatible => "incompatible",
            Self::Protocol => "protocol",
        }
    }

    /// Whether it is an outage: the server can't be asked, serves nobody now, or takes nothing from
    /// anybody. It is what a layer's [`OnOutage`](crate::layer::OnOutage) acts on. What is wrong with
    /// a right, a key or an answer is none, however long it lasts.
    #[must_use]
    pub const fn is_outage(self) -> bool {
        match self {
            Self::Unreachable
            | Self::TimedOut
            | Self::ServerBusy
            | Self::NotServing
            | Self::Refused
            | Self::Unauthenticated
            | Self::Untrusted => true,
            Self::NotPermitted
            | Self::ForeignData
            | Self::Unsupported
            | Self::Incompatible
            | Self::Protocol => false,
        }
    }
}

impl fmt::Display for BackendErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure of the place where the state lives. Cheap to clone.
///
/// Its text names the gate, what was being done, which time ran out, and what to do about it; never
/// a token, a password or a server's address. Neither does what it has as a source.
#[derive(Clone)]
pub struct BackendError(Arc<Inner>);

struct Inner {
    kind: BackendErrorKind,
    /// What failed, of which gate, and what to do.
    text: String,
    source: Option<redis::RedisError>,
    /// Of each server of a quorum.
    servers: Vec<ServerVote>,
}

/// How one server of a quorum stood when no quorum could be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerVote {
    /// It did what was asked.
    Given,
    /// Others hold there.
    Busy,
    /// It could not be asked, or did not do what was asked.
    Failed(BackendErrorKind),
}

impl BackendError {
    pub(crate) fn new(
        kind: BackendErrorKind,
        text: impl Into<String>,
        source: Option<redis::RedisError>,
    ) -> Self {
        Self::of_servers(kind, text, source, Vec::new())
    }

    pub(crate) fn of_servers(
        kind: BackendErrorKind,
        text: impl Into<String>,
        source: Option<redis::RedisError>,
        servers: Vec<ServerVote>,
    ) -> Self {
        Self(Arc::new(Inner {
            kind,
            text: text.into(),
            source,
            servers,
        }))
    }

    /// How each server of a [quorum](crate::quorum) stood, in the order in which they were named;
    /// empty where there is only one. The text says the same in words.
    #[must_use]
    pub fn servers(&self) -> &[ServerVote] {
        &self.0.servers
    }

    /// The background thread is gone: only a bug of this crate ends it while a handle lives.
    pub(crate) fn background_ended() -> Self {
        let text =
            "the background thread of this handle has ended; build another, and please report it";
        Self::new(BackendErrorKind::Unreachable, text, None)
    }

    pub(crate) fn no_randomness() -> Self {
        let text = "the system gives no random numbers, so no token can be drawn";
        Self::new(BackendErrorKind::Refused, text, None)
    }

    /// What kind of failure it is, to act on.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.0.kind
    }

    /// Whether it is an outage, of which the [kind](BackendErrorKind::is_outage) tells. Who can do
    /// without the server may go on; other failures are to be mended by people.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        self.0.kind.is_outage()
    }

    /// The code that the server answered with, such as `OOM`; also where an old server hides it in a
    /// text. `None` where the server did not answer, or gave no error.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.0.source.as_ref().and_then(redis::RedisError::code)
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendError")
            .field("kind", &self.0.kind)
            .field("text", &self.0.text)
            .field("code", &self.code())
            .finish()
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests;
