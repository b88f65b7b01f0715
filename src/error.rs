//! The three ways to not get what was asked for: a configuration that can't be, a refusal, a
//! failure of the backend.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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

/// Why a permit was not given.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The normal no: somebody else holds, the queue is full, the wait ran out.
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
    /// More permits were asked for than there ever are.
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
    /// Of what never fits, where it is known: how many permits were asked for, and of how many.
    asked: Option<(u32, u32)>,
}

impl Refusal {
    pub(crate) const fn new(kind: RefusalKind) -> Self {
        Self {
            kind,
            retry_after: None,
            position: None,
            asked: None,
        }
    }

    pub(crate) const fn never_fits(weight: u32, limit: u32) -> Self {
        let mut refusal = Self::new(RefusalKind::NeverFits);
        refusal.asked = Some((weight, limit));
        refusal
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
    /// renews or releases it before. `None` where waiting does not help or nothing is known.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// How many others waited in front, as far as the server last said.
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
            RefusalKind::NeverFits => "asked for no permit or for more than there ever are",
            RefusalKind::ShuttingDown => "shutting down",
        })?;
        if let Some((weight, limit)) = self.asked {
            write!(f, ": {weight} of {limit} permits")?;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// No connection, or it broke. A request that was under way may have run; what it may have left
    /// is cleaned up in the background.
    Unreachable,
    /// No answer in time: the request may have run. What it may have left is cleaned up in the
    /// background.
    TimedOut,
    /// The server declined: out of memory, too few replicas, persistence broken, read-only.
    Refused,
    /// The server's user may not do this.
    NotPermitted,
    /// Something else lives under the key.
    ForeignData,
    /// The server runs another protocol version of this crate under this key.
    Incompatible,
    /// An answer that makes no sense.
    Protocol,
}

/// A failure of the place where the state lives. Cheap to clone.
///
/// Its text names the gate, what was being done, and what to do about it; never a token, a password
/// or a server's address.
#[derive(Clone)]
pub struct BackendError(Arc<Inner>);

struct Inner {
    kind: BackendErrorKind,
    /// What failed, of which gate, and what to do.
    text: String,
    source: Option<redis::RedisError>,
}

impl BackendError {
    pub(crate) fn new(
        kind: BackendErrorKind,
        text: impl Into<String>,
        source: Option<redis::RedisError>,
    ) -> Self {
        Self(Arc::new(Inner {
            kind,
            text: text.into(),
            source,
        }))
    }

    /// The background thread is gone: only a bug of this crate ends it while a handle lives.
    pub(crate) fn background_ended() -> Self {
        let text =
            "the background thread of this handle has ended; build another, and please report it";
        Self::new(BackendErrorKind::Unreachable, text, None)
    }

    /// Whether the server was away: it did not answer, or said that it can't serve. A caller that can
    /// do without it may go on; other failures are to be mended by people.
    #[must_use]
    pub fn is_outage(&self) -> bool {
        matches!(
            self.0.kind,
            BackendErrorKind::Unreachable | BackendErrorKind::TimedOut | BackendErrorKind::Refused
        )
    }

    /// What kind of failure it is, to act on.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.0.kind
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
            .field(
                "source",
                &self.0.source.as_ref().and_then(redis::RedisError::code),
            )
            .finish()
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_in_front_is_not_told_of() {
        let refusal = Refusal::new(RefusalKind::WaitedTooLong);
        let text = refusal.clone().with_position(Some(0)).to_string();
        assert_eq!(text, refusal.to_string());
        let text = refusal.with_position(Some(2)).to_string();
        assert!(text.ends_with(", 2 waiting in front"), "{text}");
    }
}
