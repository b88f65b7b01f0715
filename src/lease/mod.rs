//! A right to hold until a stated time: what its owner sees of it, and how it is given back.

mod lost;
mod state;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::{Place, ReleaseAnswer};
use crate::error::{BackendError, ConfigError};
use crate::time::Ttl;
use crate::token::{FencingToken, Token};

pub use self::lost::{Lost, LostReason};
pub(crate) use self::state::LeaseState;

/// How long a lease lasts while its guard lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LeaseMode {
    /// Renewed every third of its TTL until the guard is dropped. If the process dies, the TTL ends
    /// it.
    #[default]
    Renewed,
    /// Renewed likewise, but lost this long after it was granted, however alive its guard is.
    MaxHold(Duration),
    /// Never renewed: lost one TTL after it was granted.
    Fixed,
}

impl LeaseMode {
    /// In whole milliseconds, as the server counts.
    pub(crate) fn checked(self) -> Result<Self, ConfigError> {
        match self {
            Self::MaxHold(limit) => {
                let ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                if ms == 0 {
                    return Err(ConfigError::out_of_range(
                        "max_hold",
                        format!("{limit:?}"),
                        "at least 1 ms",
                    ));
                }
                Ok(Self::MaxHold(Duration::from_millis(ms)))
            }
            Self::Renewed | Self::Fixed => Ok(self),
        }
    }

    /// How long a lease may last in all, from its grant.
    pub(crate) fn longest(self, ttl: Duration) -> Option<Duration> {
        match self {
            Self::Renewed => None,
            Self::MaxHold(limit) => Some(limit),
            Self::Fixed => Some(ttl),
        }
    }
}

/// Set in the mark of a lease that its place only counts; the rest is its TTL in ms.
const COUNTED: u64 = 1 << 32;

/// The one owner of a lease. Dropped, it gives the lease back.
///
/// Small, since it is moved from hand to hand with each acquire.
pub(crate) struct Lease {
    /// `None` once it was given back.
    place: Option<Arc<dyn Place>>,
    /// By what its place knows it, beside its fence, as long as nothing is shared of it.
    mark: u64,
    fence: FencingToken,
    /// Made when somebody first asks for it, where nobody else needs it: most leases end unwatched.
    state: OnceLock<Arc<LeaseState>>,
}

impl Lease {
    /// A lease of which somebody else keeps track.
    pub(crate) fn shared(place: Arc<dyn Place>, state: Arc<LeaseState>) -> Self {
        Self {
            place: Some(place),
            mark: 0,
            fence: state.fencing_token(),
            state: OnceLock::from(state),
        }
    }

    /// A lease whose place knows how it stands, by a [`local`](Token::local) token.
    pub(crate) const fn new(place: Arc<dyn Place>, mark: u64, fence: FencingToken) -> Self {
        Self {
            place: Some(place),
            mark,
            fence,
            state: OnceLock::new(),
        }
    }

    /// A lease that its place only counts.
    pub(crate) const fn counted(place: Arc<dyn Place>, ttl: Ttl, fence: FencingToken) -> Self {
        Self::new(place, Self::counted_mark(ttl), fence)
    }

    /// What the token of a lease says that is only counted, beside its fence.
    pub(crate) const fn counted_mark(ttl: Ttl) -> u64 {
        COUNTED | ttl.as_ms() as u64
    }

    /// The TTL of a lease that is only counted; `None` for any other token of its place.
    pub(crate) const fn counted_ttl(token: Token) -> Option<Ttl> {
        let mark = token.parts().0;
        if mark & COUNTED != 0 {
            Some(Ttl::from_ms(mark as u32))
        } else {
            None
        }
    }

    pub(crate) const fn fencing_token(&self) -> FencingToken {
        self.fence
    }

    pub(crate) fn state(&self) -> &Arc<LeaseState> {
        self.state.get_or_init(|| match &self.place {
            Some(place) => place.state(self.local_token(), self.fence),
            None => LeaseState::over(self.local_token(), self.fence, LostReason::Expired),
        })
    }

    const fn local_token(&self) -> Token {
        Token::local(self.mark, self.fence.get())
    }

    /// Ends it by its owner's will: gives the token to give back, unless it is known to be lost.
    fn finish(&self) -> Option<Token> {
        match self.state.get() {
            Some(state) => state.finish().then(|| state.token()),
            None => Some(self.local_token()),
        }
    }

    #[inline(never)]
    fn give_back(&self) {
        if let Some(place) = &self.place
            && let Some(token) = self.finish()
        {
            place.release(token, None);
        }
    }

    pub(crate) fn release(self) -> Releasing {
        let (sender, answer) = oneshot::channel();
        self.release_to(Some(sender));
        Releasing { answer }
    }

    /// Gives it back; `answer` is told how that went.
    pub(crate) fn release_to(mut self, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        match (self.place.take(), self.finish(), answer) {
            (Some(place), Some(token), answer) => place.release(token, answer),
            // Lost before: its end is under way already.
            (_, _, Some(answer)) => drop(answer.send(Ok(Release::NoLongerHeld))),
            (_, _, None) => {}
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state.get() {
            Some(state) => state.fmt(f),
            None => f
                .debug_struct("Lease")
                .field("fencing_token", &self.fence.get())
                .finish_non_exhaustive(),
        }
    }
}

impl Drop for Lease {
    /// Gives it back in memory, or queues the release with the background thread: without blocking,
    /// spawning or a runtime, also while panicking. If the server is away it is repeated until the
    /// lease would have ended anyway.
    #[inline]
    fn drop(&mut self) {
        let Some(place) = &self.place else { return };
        // First what most are, for which no token is put together.
        let counted = self.mark & COUNTED != 0 && self.state.get_mut().is_none();
        if !counted || !place.count_out() {
            self.give_back();
        }
    }
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Release {
    /// It was held until now, and is no longer.
    Released,
    /// It had been lost before: somebody else may have held since.
    NoLongerHeld,
}

/// The answer to a release that is on its way already.
///
/// Returned by `release()` of a guard. Dropping it changes nothing: the release goes on in the
/// background.
///
/// # Errors
///
/// Resolves to a [`BackendError`] if the server has not answered in time. The release is repeated
/// in the background until it is answered or the lease has ended by itself.
#[derive(Debug)]
#[must_use = "the release is on its way; await this to learn whether the lease was still held"]
pub struct Releasing {
    answer: oneshot::Receiver<ReleaseAnswer>,
}

impl Future for Releasing {
    type Output = Result<Release, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        Poll::Ready(answer.unwrap_or_else(|_| Err(BackendError::background_ended())))
    }
}

/// Gives a guard type its view of its lease and its ways to end it.
///
/// A macro, because each primitive's guard is a type of its own and all share these methods to the
/// letter.
macro_rules! guard_methods {
    () => {
        /// A number that rises with every grant of this key, for the protected resource to compare; 0
        /// for a permit of a semaphore that [keeps permits](crate::Semaphore::keep_permits).
        #[must_use]
        pub fn fencing_token(&self) -> crate::FencingToken {
            self.lease.fencing_token()
        }

        /// Whether the lease still holds, by this process' own clock: false from its deadline on,
        /// whatever messages or timers are late.
        #[must_use]
        pub fn is_held(&self) -> bool {
            self.lease.state().is_held()
        }

        /// The time for which the lease surely holds; renewals set it back to nearly the TTL. Zero
        /// when it is lost.
        #[must_use]
        pub fn remaining(&self) -> std::time::Duration {
            self.lease.state().remaining()
        }

        /// On how many servers the lease is held: 1, or of a [quorum](crate::quorum) as many as have
        /// said so last. 0 when it is lost.
        ///
        /// A lease that is held on no more than a quorum needs is lost with the next server.
        #[must_use]
        pub fn held_on(&self) -> usize {
            self.lease.state().held_on()
        }

        /// Waits until the lease is lost; pends forever if it is released before.
        ///
        /// # Cancel safety
        ///
        /// Nothing is lost by dropping it, and it can be asked for again.
        pub fn lost(&self) -> crate::Lost {
            self.lease.state().lost()
        }

        /// Runs `work` while the lease holds.
        ///
        /// # Errors
        ///
        /// Gives the reason if the lease is lost first; `work` is then dropped where it stands.
        ///
        /// # Cancel safety
        ///
        /// Dropping it drops `work`. The guard goes on holding.
        pub async fn while_held<T>(
            &self,
            work: impl Future<Output = T>,
        ) -> Result<T, crate::LostReason> {
            crate::lease::while_held(self.lease.state(), work).await
        }

        /// Gives it back now. The returned future only tells what the server answered.
        ///
        /// # Cancel safety
        ///
        /// The release is queued when this is called; dropping the future does not stop it.
        pub fn release(self) -> crate::Releasing {
            self.lease.release()
        }
    };
}
pub(crate) use guard_methods;

/// One line for each lease that ends without its owner.
pub(crate) fn log_loss(gate: &str, fence: FencingToken, reason: LostReason) {
    let fencing_token = fence.get();
    tracing::warn!(%gate, fencing_token, %reason, "lost a lease");
}

/// One line for leases of a gate that end together, for one reason.
pub(crate) fn log_losses(gate: &str, count: u64, reason: LostReason) {
    tracing::warn!(%gate, count, %reason, "lost leases");
}

/// The one way to race work against the loss of a lease.
pub(crate) async fn while_held<T>(
    state: &Arc<LeaseState>,
    work: impl Future<Output = T>,
) -> Result<T, LostReason> {
    tokio::select! {
        biased;
        reason = state.lost() => Err(reason),
        output = work => Ok(output),
    }
}

/// A read-only view of a lease: it neither holds nor releases.
#[derive(Debug, Clone)]
pub struct LeaseView {
    state: Arc<LeaseState>,
}

impl LeaseView {
    pub(crate) fn new(state: &Arc<LeaseState>) -> Self {
        Self {
            state: Arc::clone(state),
        }
    }

    /// A number that rises with every grant of this key, for the protected resource to compare; 0
    /// for a permit of a semaphore that [keeps permits](crate::Semaphore::keep_permits).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.state.fencing_token()
    }

    /// Whether the lease still holds, by this process' own clock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.state.is_held()
    }

    /// The time for which the lease surely holds. Zero when it is lost or released.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.state.remaining()
    }

    /// Waits until the lease is lost; pends forever if it is released before.
    pub fn lost(&self) -> Lost {
        self.state.lost()
    }
}
