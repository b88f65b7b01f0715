//! Why a gate did not let a request through, or stopped it: the table of the module's docs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::BoxError;
use super::key::KeyError;
use super::settings::LockedStatus;
use crate::error::{LockError, RefusalKind};
use crate::lease::LostReason;
use crate::rate_limit::QuotaReport;

/// Why a request was not let through, or not worked on to its end; see
/// [`on_refusal`](super::MutexLayer::on_refusal).
///
/// Its text is for those who run the service: it names the gate and the cause. Log it, and don't
/// put it into an answer; for callers there are its kind's [code](RejectionKind::as_str) and
/// [title](RejectionKind::title).
#[derive(Debug, Clone)]
pub struct Rejection {
    gate: Arc<str>,
    cause: Cause,
    busy: Busy,
}

#[derive(Debug, Clone)]
pub(super) enum Cause {
    Key(KeyError),
    Lock(LockError),
    Lost(LostReason),
    /// The layer is set up so that it can't let the request through: what is wrong, and what to do.
    SetUp(&'static str),
}

/// What a gate says that is busy, to a request that does not wait.
#[derive(Debug, Clone, Copy)]
pub(super) enum Busy {
    AtCapacity,
    Locked(LockedStatus),
}

/// What kind of no it is: the rows of the [module's table](super).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectionKind {
    /// All permits are taken, and the request did not wait.
    AtCapacity,
    /// The mutex is held, and the request did not wait.
    Locked,
    /// A quota is used up.
    OverQuota,
    /// As many wait as may.
    QueueFull,
    /// The request's turn did not come within its `max_wait`.
    WaitedTooLong,
    /// The lease was lost while the request was worked on.
    LeaseLost,
    /// The handle is shutting down.
    ShuttingDown,
    /// The place where the state lives failed.
    Unavailable,
    /// More permits or units were asked for than there ever are.
    NeverFits,
    /// The request has no usable key.
    NoKey,
    /// The service is set up so that such a request can't pass, whatever it brings.
    Misconfigured,
}

impl RejectionKind {
    /// Its code, by which programs know it: `at-capacity`. The problem's `type` ends in it, and it
    /// stays the same.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtCapacity => "at-capacity",
            Self::Locked => "locked",
            Self::OverQuota => "over-quota",
            Self::QueueFull => "queue-full",
            Self::WaitedTooLong => "waited-too-long",
            Self::LeaseLost => "lease-lost",
            Self::ShuttingDown => "shutting-down",
            Self::Unavailable => "unavailable",
            Self::NeverFits => "never-fits",
            Self::NoKey => "no-key",
            Self::Misconfigured => "misconfigured",
        }
    }

    /// What callers are told, for people to read: it names no gate and no key. The problem's
    /// `title`, and the message of a gRPC status.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::AtCapacity => "Concurrency limit reached",
            Self::Locked => "Another request is at work on this",
            Self::OverQuota => "Too many requests",
            Self::QueueFull => "Too many requests are waiting",
            Self::WaitedTooLong => "The request's turn did not come in time",
            Self::LeaseLost => "The exclusive right to do this was lost on the way",
            Self::ShuttingDown => "This process is shutting down",
            Self::Unavailable => "Temporarily unavailable",
            Self::NeverFits => "The request asks for more than there ever is",
            Self::NoKey => "The request has no usable key",
            Self::Misconfigured => "The service is not set up for this",
        }
    }

    /// Whether the same request can fare better later.
    const fn is_temporary(self) -> bool {
        !matches!(self, Self::NeverFits | Self::NoKey | Self::Misconfigured)
    }
}

impl Rejection {
    pub(super) fn new(gate: &Arc<str>, cause: Cause, busy: Busy) -> Self {
        Self {
            gate: Arc::clone(gate),
            cause,
            busy,
        }
    }

    /// What kind of no it is.
    #[must_use]
    pub fn kind(&self) -> RejectionKind {
        let refusal = match &self.cause {
            Cause::Key(error) if error.is_misconfigured() => return RejectionKind::Misconfigured,
            Cause::SetUp(_) => return RejectionKind::Misconfigured,
            Cause::Key(_) => return RejectionKind::NoKey,
            Cause::Lost(_) => return RejectionKind::LeaseLost,
            Cause::Lock(LockError::Backend(_)) => return RejectionKind::Unavailable,
            Cause::Lock(LockError::Refused(refusal)) => refusal,
        };
        match (refusal.kind(), self.busy) {
            (RefusalKind::Busy, Busy::AtCapacity) => RejectionKind::AtCapacity,
            (RefusalKind::Busy, Busy::Locked(_)) => RejectionKind::Locked,
            (RefusalKind::OverQuota, _) => RejectionKind::OverQuota,
            (RefusalKind::QueueFull, _) => RejectionKind::QueueFull,
            (RefusalKind::WaitedTooLong, _) => RejectionKind::WaitedTooLong,
            (RefusalKind::NeverFits, _) => RejectionKind::NeverFits,
            (RefusalKind::ShuttingDown, _) => RejectionKind::ShuttingDown,
        }
    }

    /// The gate's name, as [`Portcullis::mutex`](crate::Portcullis::mutex),
    /// [`semaphore`](crate::Portcullis::semaphore) or
    /// [`rate_limiter`](crate::Portcullis::rate_limiter) was called with it. Not for callers' eyes.
    #[must_use]
    pub fn gate(&self) -> &str {
        &self.gate
    }

    /// The status that it is answered with.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match (self.kind(), self.busy) {
            (RejectionKind::Locked, Busy::Locked(LockedStatus::Locked)) => StatusCode::LOCKED,
            (RejectionKind::Locked, _) => StatusCode::CONFLICT,
            (RejectionKind::NoKey, _) if self.challenge().is_some() => StatusCode::UNAUTHORIZED,
            (RejectionKind::NoKey | RejectionKind::NeverFits, _) => StatusCode::BAD_REQUEST,
            (RejectionKind::OverQuota, _) => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// When it makes sense to try again: in whole seconds, rounded up, since who comes back before
    /// the time is refused again; at least 1, since 0 invites it at once. `None` where it does not.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if !self.kind().is_temporary() {
            return None;
        }
        let known = match &self.cause {
            // Another process can let it through at once, whoever holds.
            Cause::Lock(LockError::Refused(refusal))
                if refusal.kind() != RefusalKind::ShuttingDown =>
            {
                refusal.retry_after()
            }
            Cause::Lock(_) | Cause::Key(_) | Cause::Lost(_) | Cause::SetUp(_) => None,
        };
        Some(whole_seconds(known.unwrap_or_default()))
    }

    /// How the quotas stand, if one of them is used up and all processes count together.
    #[must_use]
    pub fn quotas(&self) -> Option<&QuotaReport> {
        match &self.cause {
            Cause::Lock(LockError::Refused(refusal)) => refusal.quotas(),
            Cause::Lock(_) | Cause::Key(_) | Cause::Lost(_) | Cause::SetUp(_) => None,
        }
    }

    /// The `WWW-Authenticate` that a caller of unknown identity is told.
    pub(super) fn challenge(&self) -> Option<&HeaderValue> {
        match &self.cause {
            Cause::Key(error) => error.challenge(),
            Cause::Lock(_) | Cause::Lost(_) | Cause::SetUp(_) => None,
        }
    }

    /// For services that fail instead of answering.
    pub(super) fn into_error(self) -> BoxError {
        match self.cause {
            Cause::Key(error) => error.into(),
            Cause::Lock(error) => error.into(),
            Cause::Lost(reason) => reason.into(),
            Cause::SetUp(wrong) => wrong.into(),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: ", self.gate)?;
        match &self.cause {
            Cause::Key(error) => error.fmt(f),
            Cause::Lock(error) => error.fmt(f),
            Cause::Lost(reason) => reason.fmt(f),
            Cause::SetUp(wrong) => f.write_str(wrong),
        }
    }
}

pub(super) fn whole_seconds(duration: Duration) -> Duration {
    let part = u64::from(duration.subsec_nanos() > 0);
    Duration::from_secs(duration.as_secs().saturating_add(part).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_are_rounded_up_and_never_zero() {
        for (millis, seconds) in [
            (0, 1),
            (1, 1),
            (999, 1),
            (1000, 1),
            (1001, 2),
            (9_999, 10),
            (10_000, 10),
        ] {
            let rounded = whole_seconds(Duration::from_millis(millis));
            assert_eq!(rounded.as_secs(), seconds, "{millis} ms");
        }
        assert_eq!(
            whole_seconds(Duration::from_nanos(1_000_000_001)).as_secs(),
            2
        );
        assert_eq!(whole_seconds(Duration::MAX).as_secs(), u64::MAX);
    }
}
