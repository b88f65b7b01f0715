//! The part of a lease that its owner, its viewers and the background thread share.
//!
//! # Invariants
//!
//! 1. The status leaves `HELD` once, and never comes back: a lost or finished lease can't be
//!    revived by a late answer.
//! 2. The deadline only grows. That of a lease whose backend renews it without being asked is
//!    moved by who looks, in one step with seeing that it is renewed: so what was told stands when
//!    renewals stop.
//! 3. Past the deadline the lease is not held, whatever the status still says; and once somebody
//!    has seen that it passed, it can't be moved any more: an answer that the background thread
//!    took up in time may be applied late.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::lost::{Lost, LostReason};
use crate::time::{Clock, Instant};
use crate::token::{FencingToken, Token};

/// Set in the deadline when somebody was told that it has passed: as a time, it lies 292 years off.
const SEEN: u64 = 1 << 63;

/// Set in the deadline while the backend renews the lease without being asked: the rest is what was
/// told last.
const RENEWED: u64 = 1 << 62;

/// What is left for the deadline as a time: 146 years.
const TIME: u64 = RENEWED - 1;

const HELD: u8 = 0;
const FINISHED: u8 = 1;
const EXPIRED: u8 = 2;
const GONE: u8 = 3;
const SHUT_DOWN: u8 = 4;

pub(crate) struct LeaseState {
    clock: Clock,
    token: Token,
    fence: FencingToken,
    deadline: AtomicU64,
    /// Of a lease whose backend renews it without being asked.
    renewal: Option<Renewal>,
    status: AtomicU8,
    /// On how many servers it is held; 1 unless it takes several.
    held_on: AtomicU8,
    /// The lease that this is one use of: it lasts as long as that does, at the most.
    whole: Option<Arc<Self>>,
    /// Made when somebody first asks for it.
    watch: OnceLock<CancellationToken>,
}

/// A renewal to the whole TTL each third of it, counted from a moment, until the end of the lease.
#[derive(Clone, Copy)]
struct Renewal {
    ttl: Duration,
    since: Instant,
    /// `FAR` for none.
    end: Instant,
}

impl LeaseState {
    pub(crate) fn new(
        clock: Clock,
        token: Token,
        fence: FencingToken,
        deadline: Instant,
    ) -> Arc<Self> {
        let deadline = deadline.as_nanos().min(TIME);
        Self::with(clock, token, fence, deadline, None, HELD)
    }

    /// A lease that needs no renewal: its place lies in this process, so nothing can keep the two
    /// from each other. It lasts until `end`, `FAR` for none, and says of itself what one that is
    /// renewed would; if renewals have stopped, it has a `deadline`.
    pub(crate) fn renewed(
        clock: Clock,
        token: Token,
        fence: FencingToken,
        ttl: Duration,
        end: Instant,
        deadline: Option<Instant>,
    ) -> Arc<Self> {
        let since = clock.now();
        let renewal = Renewal { ttl, since, end };
        let deadline = deadline.map_or(RENEWED, |deadline| deadline.as_nanos().min(TIME));
        Self::with(clock, token, fence, deadline, Some(renewal), HELD)
    }

    /// A lease that was lost before anybody asked for it.
    pub(crate) fn over(token: Token, fence: FencingToken, reason: LostReason) -> Arc<Self> {
        Self::with(Clock::System, token, fence, 0, None, lost_as(reason))
    }

    /// One use of a lease that its process keeps for several, one after the other. It is lost with the
    /// whole, and finished alone.
    pub(crate) fn use_of(whole: &Arc<Self>, token: Token, fence: FencingToken) -> Arc<Self> {
        Arc::new(Self {
            clock: whole.clock.clone(),
            token,
            fence,
            deadline: AtomicU64::new(0),
            renewal: None,
            status: AtomicU8::new(HELD),
            held_on: AtomicU8::new(1),
            whole: Some(Arc::clone(whole)),
            watch: OnceLock::new(),
        })
    }

    fn with(
        clock: Clock,
        token: Token,
        fence: FencingToken,
        deadline: u64,
        renewal: Option<Renewal>,
        status: u8,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock,
            token,
            fence,
            deadline: AtomicU64::new(deadline),
            renewal,
            status: AtomicU8::new(status),
            held_on: AtomicU8::new(1),
            whole: None,
            watch: OnceLock::new(),
        })
    }

    pub(crate) fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn fencing_token(&self) -> FencingToken {
        self.fence
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::from_nanos(self.deadline.load(Ordering::Acquire) & TIME)
    }

    /// Sets the deadline further off; an earlier one is ignored (invariant 2). False if its passing
    /// was seen (invariant 3): the lease is lost.
    #[must_use = "what was seen to be lost has to be ended"]
    pub(crate) fn prolong(&self, deadline: Instant) -> bool {
        let further = |old: u64| (old & SEEN == 0).then(|| old.max(deadline.as_nanos().min(TIME)));
        self.deadline
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, further)
            .is_ok()
    }

    /// No renewal comes through any more. Gives the deadline, which stays.
    #[cfg(feature = "test-util")]
    pub(crate) fn stop_renewing(&self) -> Instant {
        self.told(self.clock.now());
        // Somebody may have told a later one since.
        let told = self.deadline.fetch_and(!RENEWED, Ordering::AcqRel);
        Instant::from_nanos(told & TIME)
    }

    /// Renewals come through again. False if the deadline's passing was seen (invariant 3).
    #[cfg(feature = "test-util")]
    #[must_use = "what was seen to be lost has to be ended"]
    pub(crate) fn renew_again(&self) -> bool {
        let renewed = |old: u64| (old & SEEN == 0).then_some(old | RENEWED);
        self.deadline
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, renewed)
            .is_ok()
    }

    /// The deadline as it is told at the moment `now`. If the lease is renewed, it is moved to what
    /// the last renewal has given.
    fn told(&self, now: Instant) -> Instant {
        let renew = |old: u64| {
            let given = self.renewal.filter(|_| old & RENEWED != 0)?.deadline(now);
            // The marks compare as the times do: both have the same.
            let moved = (old & !TIME) | given.as_nanos().min(TIME);
            (moved > old).then_some(moved)
        };
        let told = self
            .deadline
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, renew)
            .map_or_else(|told| told, |old| renew(old).unwrap_or(old));
        Instant::from_nanos(told & TIME)
    }

    /// Whether the deadline has passed. Who is told so will never hear otherwise.
    fn has_passed(&self) -> bool {
        if let Some(whole) = &self.whole {
            return !whole.is_held();
        }
        let mut deadline = self.deadline.load(Ordering::Acquire);
        loop {
            if deadline & SEEN != 0 {
                return true;
            }
            let end = match self.renewal {
                Some(renewal) if deadline & RENEWED != 0 => renewal.end,
                _ => Instant::from_nanos(deadline & TIME),
            };
            // Renewed without an end: spared the look at the clock.
            if end == Instant::FAR || self.clock.now() < end {
                return false;
            }
            match self.deadline.compare_exchange_weak(
                deadline,
                deadline | SEEN,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                // Prolonged in this very moment.
                Err(moved) => deadline = moved,
            }
        }
    }

    /// On how many servers it was held when the last of them answered.
    pub(crate) fn held_on(&self) -> usize {
        if let Some(whole) = self.whole.as_ref().filter(|_| self.is_held()) {
            whole.held_on()
        } else if self.is_held() {
            usize::from(self.held_on.load(Ordering::Relaxed))
        } else {
            0
        }
    }

    pub(crate) fn set_held_on(&self, servers: usize) {
        let servers = u8::try_from(servers).unwrap_or(u8::MAX);
        self.held_on.store(servers, Ordering::Relaxed);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.status.load(Ordering::Acquire) == HELD && !self.has_passed()
    }

    /// Whether it lasts for so long from `now` on, which is the present.
    pub(crate) fn lasts(&self, now: Instant, least: Duration) -> bool {
        self.status.load(Ordering::Acquire) == HELD
            && now < self.deadline()
            && self.deadline().since(now) >= least
    }

    pub(crate) fn remaining(&self) -> Duration {
        if let Some(whole) = self.whole.as_ref().filter(|_| self.is_held()) {
            return whole.remaining();
        }
        while self.is_held() {
            let now = self.clock.now();
            let left = self.told(now).since(now);
            // Who is told that nothing is left will never hear otherwise: it has to be seen.
            if !left.is_zero() {
                return left;
            }
        }
        Duration::ZERO
    }

    /// Ends the lease by its owner's will. False if it was lost or finished before: past its deadline
    /// it is lost, though the server may keep it a little longer, and its backend ends it as such.
    pub(crate) fn finish(&self) -> bool {
        !self.has_passed() && self.leave(FINISHED)
    }

    /// Ends the lease against its owner's will, and wakes who watches it. False if it was lost or
    /// finished before.
    pub(crate) fn lose(&self, reason: LostReason) -> bool {
        let lost = self.mark_lost(reason);
        if lost {
            self.wake_watchers();
        }
        lost
    }

    /// As [`lose`](Self::lose), but wakes nobody: what a waker runs must not run under a lock.
    pub(crate) fn mark_lost(&self, reason: LostReason) -> bool {
        self.leave(lost_as(reason))
    }

    pub(crate) fn wake_watchers(&self) {
        if let Some(watch) = self.watch.get() {
            watch.cancel();
        }
    }

    fn leave(&self, status: u8) -> bool {
        self.status
            .compare_exchange(HELD, status, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        match self.status.load(Ordering::Acquire) {
            EXPIRED => Some(LostReason::Expired),
            GONE => Some(LostReason::Gone),
            SHUT_DOWN => Some(LostReason::ShutDown),
            HELD if self.has_passed() => {
                let whole = self.whole.as_ref().and_then(|whole| whole.lost_reason());
                Some(whole.unwrap_or(LostReason::Expired))
            }
            _ => None,
        }
    }

    fn watch(&self) -> &CancellationToken {
        self.watch.get_or_init(|| match &self.whole {
            Some(whole) => whole.watch().child_token(),
            None => CancellationToken::new(),
        })
    }

    pub(crate) fn lost(self: &Arc<Self>) -> Lost {
        let watch = self.watch().clone();
        // Lost between the status' change and the watch's making: `lose` saw no watch to wake.
        if self.lost_reason().is_some() {
            watch.cancel();
        }
        Lost::new(Arc::clone(self), watch)
    }
}

impl Renewal {
    /// What the last one before `now` has given.
    fn deadline(self, now: Instant) -> Instant {
        let interval = (self.ttl.as_nanos() / 3).max(1);
        let since_last = now.since(self.since).as_nanos() % interval;
        let left = self
            .ttl
            .saturating_sub(Duration::from_nanos(u64::try_from(since_last).unwrap_or(0)));
        now.after(left).min(self.end)
    }
}

const fn lost_as(reason: LostReason) -> u8 {
    match reason {
        LostReason::Expired => EXPIRED,
        LostReason::Gone => GONE,
        LostReason::ShutDown => SHUT_DOWN,
    }
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("fencing_token", &self.fence.get())
            .field("remaining", &self.remaining())
            .field("lost", &self.lost_reason())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(left: Duration) -> Arc<LeaseState> {
        LeaseState::new(
            Clock::System,
            Token::of(1),
            FencingToken::new(1),
            Instant::now().after(left),
        )
    }

    #[test]
    fn a_lease_past_its_deadline_is_not_held_though_nobody_said_so() {
        let lease = lease(Duration::ZERO);
        assert!(!lease.is_held());
        assert_eq!(lease.remaining(), Duration::ZERO);
        assert_eq!(lease.lost_reason(), Some(LostReason::Expired));
    }

    #[test]
    fn a_deadline_whose_passing_was_seen_is_not_moved_any_more() {
        let unseen = lease(Duration::ZERO);
        assert!(unseen.prolong(Instant::now().after(Duration::from_secs(10))));
        assert!(unseen.is_held());
        let seen = lease(Duration::ZERO);
        assert!(!seen.is_held());
        assert!(!seen.prolong(Instant::now().after(Duration::from_secs(10))));
        assert!(!seen.is_held());
    }

    #[test]
    fn a_lease_of_which_nothing_is_said_to_remain_is_not_prolonged_any_more() {
        // It passes while whoever looks stands still between two readings of the clock.
        let now = AtomicU64::new(9);
        let clock = Clock::made(move || Instant::from_nanos(now.fetch_add(1, Ordering::SeqCst)));
        let deadline = Instant::from_nanos(10);
        let lease = LeaseState::new(clock, Token::of(1), FencingToken::new(1), deadline);
        assert_eq!(lease.remaining(), Duration::ZERO);
        assert!(!lease.prolong(Instant::from_nanos(1000)));
        assert!(!lease.is_held());
    }

    #[test]
    fn what_was_seen_to_be_over_can_not_be_given_back_any_more() {
        let over = lease(Duration::ZERO);
        assert!(!over.finish());
        assert_eq!(over.lost_reason(), Some(LostReason::Expired));
        assert!(lease(Duration::from_secs(10)).finish());
    }

    #[test]
    fn a_deadline_only_grows() {
        let lease = lease(Duration::from_secs(10));
        let deadline = lease.deadline();
        assert!(lease.prolong(Instant::now()));
        assert_eq!(lease.deadline(), deadline);
        assert!(lease.prolong(deadline.after(Duration::from_secs(1))));
        assert!(lease.deadline() > deadline);
    }

    #[test]
    fn a_lost_lease_stays_lost() {
        let lease = lease(Duration::from_secs(10));
        assert!(lease.lose(LostReason::Gone));
        let _ = lease.prolong(Instant::now().after(Duration::from_secs(60)));
        assert!(!lease.is_held());
        assert!(!lease.finish());
        assert!(!lease.lose(LostReason::Expired));
        assert_eq!(lease.lost_reason(), Some(LostReason::Gone));
    }

    #[test]
    fn a_use_lasts_as_long_as_its_lease_and_is_finished_alone() {
        let whole = lease(Duration::from_secs(10));
        let first = LeaseState::use_of(&whole, Token::of(2), FencingToken::new(2));
        assert!(first.is_held() && first.remaining() > Duration::from_secs(9));
        assert!(first.finish());
        assert!(!first.is_held() && whole.is_held());
        assert_eq!(first.lost_reason(), None);
        let second = LeaseState::use_of(&whole, Token::of(3), FencingToken::new(3));
        assert!(whole.lose(LostReason::Gone));
        assert!(!second.is_held() && !second.finish());
        assert_eq!(second.remaining(), Duration::ZERO);
        assert_eq!(second.lost_reason(), Some(LostReason::Gone));
        assert_eq!(first.lost_reason(), None);
    }

    #[tokio::test]
    async fn who_watches_a_use_is_told_of_the_loss_of_its_lease() {
        let whole = lease(Duration::from_secs(10));
        let used = LeaseState::use_of(&whole, Token::of(2), FencingToken::new(2));
        let watcher = tokio::spawn(used.lost());
        tokio::task::yield_now().await;
        whole.lose(LostReason::ShutDown);
        let told = watcher.await.expect("the watcher does not panic");
        assert_eq!(told, LostReason::ShutDown);
    }

    #[tokio::test]
    async fn a_watcher_that_comes_after_the_loss_is_told() {
        let lease = lease(Duration::from_secs(10));
        lease.lose(LostReason::Gone);
        assert_eq!(lease.lost().await, LostReason::Gone);
    }

    #[tokio::test]
    async fn a_watcher_that_came_before_the_loss_is_told() {
        let lease = lease(Duration::from_secs(10));
        let watcher = tokio::spawn(lease.lost());
        tokio::task::yield_now().await;
        lease.lose(LostReason::ShutDown);
        assert_eq!(
            watcher.await.expect("the watcher does not panic"),
            LostReason::ShutDown
        );
    }
}
