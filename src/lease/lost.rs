//! The future that tells a holder that its lease has ended without it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project::pin_project;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::state::LeaseState;

/// Why a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Its time passed before a renewal was answered, or it was not to be renewed any longer.
    Expired,
    /// The server holds it no longer: it was removed there, or the server lost its data.
    Gone,
    /// The deadline of [`Portcullis::shutdown`](crate::Portcullis::shutdown) passed.
    ShutDown,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out",
            Self::Gone => "the server no longer holds the lease",
            Self::ShutDown => "the lease was ended by the shutdown",
        })
    }
}

impl std::error::Error for LostReason {}

/// Resolves when a lease is lost, before anybody else can hold; never, if it is released.
///
/// It owns what it watches, so it can be moved into a task of its own.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct Lost {
    state: Arc<LeaseState>,
    #[pin]
    watch: WaitForCancellationFutureOwned,
}

impl Lost {
    pub(super) fn new(state: Arc<LeaseState>, watch: CancellationToken) -> Self {
        Self {
            state,
            watch: watch.cancelled_owned(),
        }
    }
}

impl Future for Lost {
    type Output = LostReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LostReason> {
        let this = self.project();
        // Looked at first: past the deadline nobody's timer has to fire for the loss to be true.
        if let Some(reason) = this.state.lost_reason() {
            return Poll::Ready(reason);
        }
        ready!(this.watch.poll(cx));
        Poll::Ready(this.state.lost_reason().unwrap_or(LostReason::Expired))
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lost").field(&self.state).finish()
    }
}
