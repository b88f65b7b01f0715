//! What a primitive asks of the place where state lives.
//!
//! A backend gives places, a place is asked for leases; how it waits, renews and cleans up is its
//! own affair. None of these calls blocks or needs a runtime. What it promises:
//!
//! 1. An acquire ends in a lease, a refusal or a failure. Whatever it left on the way is cleaned
//!    up, also when its future is dropped at any point.
//! 2. A lease's deadline in [`LeaseState`] never lies beyond the moment from which another could
//!    hold.
//! 3. A lease that was ended is given back, however often it takes.
//! 4. A take is decided once: it is repeated only if it surely did not run.

mod errand;
mod intake;
mod keep;
mod local;
pub(crate) mod memory;
mod queue;
pub(crate) mod quorum;
pub(crate) mod server;
mod shutdown;
mod take;
mod thread;
mod turns;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;

pub(crate) use self::keep::Keep;
pub use self::keep::Kept;
pub(crate) use self::take::{Level, Op, Take, Taken, Taking};
pub(crate) use self::turns::{Booking, Turns};
use crate::check::Report;
use crate::error::{BackendError, LockError};
use crate::key::{Resource, Subject};
use crate::lease::{Lease, LeaseMode, LeaseState, LostReason, Release};
use crate::time::{CLAIM, Delay, Instant, Ttl, validity};
use crate::token::{FencingToken, Token};

/// Where state lives, for one handle.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// One gate's place.
    fn place(&self, resource: Resource) -> Arc<dyn Place>;

    /// One gate's place, where this process keeps what it gets of so many permits. By default nothing
    /// is kept: to ask costs no more.
    fn home(&self, resource: Resource, _keep: Keep, _limit: u32) -> Arc<dyn Place> {
        self.place(resource)
    }

    /// Takes from the quotas of one subject, looks at them or gives back to them.
    fn take(&self, subject: &Arc<Subject>, take: Take) -> Taking;

    /// How many independent servers there are, of which a majority decides; 1 if one does.
    fn servers(&self) -> usize {
        1
    }

    /// Whether to ask costs more than to remember an answer.
    fn is_remote(&self) -> bool;

    /// Gates of the same names in this process alone: what a layer may use in an outage.
    fn local(&self) -> &Arc<dyn Backend>;

    /// The moment, by the clock that its waits go by.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Looks at the place; `exact` are keys that gates may be taken at verbatim. By default there is
    /// nothing to find.
    fn check(&self, exact: Vec<String>, answer: CheckAnswer) {
        drop(exact);
        // Who does not wait for it any more needs no answer.
        let _ = answer.send(Ok(Report::default()));
    }

    /// Refuses all that is asked from here on, waits for the leases to end until the deadline, then
    /// ends them.
    fn shutdown(&self, deadline: Duration, answer: oneshot::Sender<ShutdownReport>);
}

/// Where one gate's state lives. A token names one acquisition there, from its acquire on.
pub(crate) trait Place: fmt::Debug + Send + Sync {
    /// Starts an acquire; `myself` is this place, for what outlives the call.
    fn acquire(&self, myself: &Arc<dyn Place>, terms: &Terms) -> Acquire;

    /// Lets in a lease of one permit that is renewed until it is released, if it is enough to count
    /// it: gives its fence, for [`Lease::counted`]. Else [`acquire`](Self::acquire) has to decide.
    fn count_in(&self, _limit: u32, _ttl: Ttl) -> Option<FencingToken> {
        None
    }

    /// Lets a lease out that was only counted; false if [`release`](Self::release) has to.
    fn count_out(&self) -> bool {
        false
    }

    /// Gives up an acquire whose future was dropped.
    fn cancel(&self, token: Token);

    /// Gives a lease back; `answer` is told how that went.
    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>);

    /// What this process keeps of it.
    fn kept(&self) -> Kept {
        Kept::default()
    }

    /// What is to be shared of a lease that was handed out without that; it names the lease by
    /// another token from then on. Of one that is not known here, that it is over.
    fn state(&self, token: Token, fence: FencingToken) -> Arc<LeaseState> {
        LeaseState::over(token, fence, LostReason::Expired)
    }
}

/// How a release went: whether the lease still held, or why that is not known yet.
pub(crate) type ReleaseAnswer = Result<Release, BackendError>;

/// Who is told what a look at the place found.
pub(crate) type CheckAnswer = oneshot::Sender<Result<Report, BackendError>>;

/// What one acquire asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) weight: u32,
    pub(crate) limit: u32,
    pub(crate) ttl: Ttl,
    pub(crate) mode: LeaseMode,
    pub(crate) delay: Delay,
    pub(crate) wait: Wait,
    pub(crate) max_waiters: u32,
    /// Set where the caller has an answer of its own if the backend has none: how long after the
    /// beginning of an outage it still hopes for the end. The budget for admission then takes the
    /// place of other time-outs.
    pub(crate) bridge: Option<Duration>,
    /// Not 0 where this process keeps what it is granted for its next callers, so that it wants to
    /// hear of others who wait: 1, and as many as it may hand a mutex on by itself, each time with
    /// the next fencing token.
    pub(crate) kept: u32,
}

impl Terms {
    /// How long its owner may believe in it: no longer than it may be held at all.
    pub(crate) fn held(&self) -> Duration {
        let ttl = self.ttl.get();
        self.mode
            .longest(ttl)
            .map_or(ttl, |longest| longest.min(ttl))
    }

    /// The length of the lease on the server, which keeps others out for the delay after its owner
    /// has ceased to believe in it.
    pub(crate) fn lease(&self) -> Duration {
        self.held() + self.delay.get()
    }

    /// Until when its owner may believe in a lease of which the server said at `sent` or later that
    /// so much is left.
    pub(crate) fn until(&self, sent: Instant, left: Duration) -> Instant {
        validity(sent, left.saturating_sub(self.delay.get()))
    }

    /// Whether it is enough to count such leases: each is as long as its owner likes.
    pub(crate) fn only_count(&self) -> bool {
        self.weight == 1 && self.mode == LeaseMode::Renewed && self.delay.is_none()
    }

    /// The first part of a pushed grant: the whole lease where that is shorter.
    pub(crate) fn claim(&self) -> Duration {
        self.lease().min(CLAIM)
    }
}

/// How long an acquire waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    No,
    AtMost(Duration),
    Unbounded,
}

impl Wait {
    /// Zero is not to wait at all.
    pub(crate) const fn at_most(wait: Duration) -> Self {
        if wait.is_zero() {
            Self::No
        } else {
            Self::AtMost(wait)
        }
    }
}

/// The leases that [`Portcullis::shutdown`](crate::Portcullis::shutdown) ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How many were given back, by their guards before the deadline or by the shutdown after it.
    pub released: usize,
    /// How many could not be given back in time: the server ends them when their TTL is over. So it
    /// does with those that the shutdown ended and that have a `lock_delay`, after that.
    pub abandoned: usize,
}

/// An acquire under way. Dropping it cancels.
#[must_use = "futures do nothing unless polled"]
pub(crate) enum Acquire {
    /// Answered before it began to wait.
    Ready(Result<Lease, LockError>),
    Waiting(Waiting),
    Ended,
}

impl Acquire {
    /// Waits until it is [`Ready`](Self::Ready), or has ended.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::Waiting(waiting) = self {
            let answer = ready!(Pin::new(waiting).poll(cx));
            *self = Self::Ready(answer);
        }
        Poll::Ready(())
    }
}

impl Future for Acquire {
    type Output = Result<Lease, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(self.poll_ready(cx));
        match std::mem::replace(&mut *self, Self::Ended) {
            Self::Ready(answer) => Poll::Ready(answer),
            Self::Waiting(_) | Self::Ended => panic!("polled after it has ended"),
        }
    }
}

/// An acquire that somebody else answers.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Waiting {
    answer: oneshot::Receiver<Result<Lease, LockError>>,
    cancel: Option<(Arc<dyn Place>, Token)>,
}

impl Waiting {
    pub(crate) fn new(
        answer: oneshot::Receiver<Result<Lease, LockError>>,
        place: Arc<dyn Place>,
        token: Token,
    ) -> Self {
        Self {
            answer,
            cancel: Some((place, token)),
        }
    }
}

impl Future for Waiting {
    type Output = Result<Lease, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        self.cancel = None;
        Poll::Ready(answer.unwrap_or_else(|_| Err(BackendError::background_ended().into())))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // A lease that was granted meanwhile sits in the channel and releases itself when that is
        // dropped.
        if let Some((place, token)) = self.cancel.take() {
            place.cancel(token);
        }
    }
}
