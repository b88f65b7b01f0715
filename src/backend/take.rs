//! What a rate limiter asks of a backend, and what it is told.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Booking;
use crate::error::{BackendError, LockError};
use crate::rate_limit::Quotas;

/// One call at the quotas of one subject.
#[derive(Debug, Clone)]
pub(crate) struct Take {
    pub(crate) op: Op,
    /// In units. Where they are to be admitted, they fit into every quota that refuses.
    pub(crate) cost: u32,
    pub(crate) quotas: Quotas,
    /// As in [`Terms`](super::Terms).
    pub(crate) bridge: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Uses the units if all quotas have them now.
    Check,
    /// Tells whether a check would be admitted.
    Peek,
    /// Uses the units at the first moment at which all quotas have them, if that is not further away.
    Book(Duration),
    /// Gives units back.
    Refund,
    /// Uses the units, also where there are none: down to as many less than none as there may be.
    Debit,
    /// Forgets what was used.
    Reset,
}

impl Op {
    /// What a caller was doing when it failed.
    pub(crate) const fn doing(self) -> &'static str {
        match self {
            Self::Check => "checking",
            Self::Peek => "looking at",
            Self::Book(_) => "booking a turn at",
            Self::Refund => "giving back to",
            Self::Debit => "debiting",
            Self::Reset => "resetting",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Taken {
    /// Always, but for a check, a peek or a booking that does not fit.
    pub(crate) admitted: bool,
    /// How long what was booked is away.
    pub(crate) wait: Duration,
    /// One for each quota, in their order.
    pub(crate) levels: Box<[Level]>,
    /// Of a booking that is away.
    pub(crate) booking: Option<Booking>,
}

/// How one quota stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Level {
    /// Units that may be used at once.
    pub(crate) remaining: u32,
    /// The time until nothing counts as used.
    pub(crate) reset_after: Duration,
    /// If the cost did not fit, the time until it does: `MAX` for never.
    pub(crate) retry_after: Option<Duration>,
}

impl Level {
    /// The same when some time has passed in which nothing changed.
    pub(crate) fn after(&self, passed: Duration) -> Self {
        let less = |time: Duration| match time {
            Duration::MAX => time,
            _ => time.saturating_sub(passed),
        };
        Self {
            remaining: self.remaining,
            reset_after: less(self.reset_after),
            retry_after: self.retry_after.map(less),
        }
    }
}

/// A take under way. Dropping it does not undo it, but for a booking: that sits in the channel and
/// gives itself back when that is dropped.
#[must_use = "futures do nothing unless polled"]
pub(crate) enum Taking {
    Ready(Result<Taken, LockError>),
    Waiting(oneshot::Receiver<Result<Taken, LockError>>),
    Ended,
}

impl Future for Taking {
    type Output = Result<Taken, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Self::Waiting(answer) = &mut *self {
            let answer = ready!(Pin::new(answer).poll(cx));
            *self = Self::Ended;
            return Poll::Ready(
                answer.unwrap_or_else(|_| Err(BackendError::background_ended().into())),
            );
        }
        match std::mem::replace(&mut *self, Self::Ended) {
            Self::Ready(answer) => Poll::Ready(answer),
            Self::Waiting(_) | Self::Ended => panic!("polled after it has ended"),
        }
    }
}
