//! Who holds and who waits at one place, and until when.
//!
//! A lease of one permit that is renewed until it is released, and that nobody has looked at, is
//! only counted. All others are listed.
//!
//! # Invariants
//!
//! 1. `used` is the sum of the listed holders' weights and the number of the counted ones.
//! 2. Nobody holds past its end: whoever looks settles first, and a holder is told that it lost
//!    before its permits are free.
//! 3. After each change the head of the queue does not fit, unless the backend is out.
//! 4. A holder that was lost, and has a delay, keeps its permits until that is over; to its owner it
//!    is gone.
//! 5. Each holder with an end and each waiter with a limit stands once in `ends` or `give_ups`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::news::News;
use super::process::{Left, Process};
use super::turnstile::Count;
use crate::backend::queue::Queue;
use crate::backend::{Place, Terms, Wait};
use crate::error::{BackendError, BackendErrorKind, LockError, Refusal, RefusalKind};
use crate::lease::{Lease, LeaseMode, LeaseState, LostReason};
use crate::time::{Clock, Delay, Instant, Ttl};
use crate::token::{FencingToken, Token};

/// Capacity that is worth giving back.
const ROOMY: usize = 64;

/// What a listed lease's token says beside its fence.
const LISTED: u64 = 0;
/// Stands in `ends` for all that are counted.
#[cfg(feature = "test-util")]
const ALL_COUNTED: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Ledger {
    gate: Arc<str>,
    /// The last one given, here or at an earlier place of this name.
    fence: u64,
    used: u64,
    counted: Counted,
    /// By their fence.
    holders: HashMap<u64, Holder>,
    /// Why listed leases were lost that nobody had looked at; until their owners know.
    lost: BTreeMap<u64, LostReason>,
    /// Since when no renewals come through.
    #[cfg(feature = "test-util")]
    out_since: Option<Instant>,
    queue: Queue<Waiter>,
    ends: BTreeSet<(Instant, u64)>,
    give_ups: BTreeSet<(Instant, u64)>,
    /// When somebody looks in at the latest; kept by the site.
    pub(super) alarm: Instant,
}

#[derive(Debug)]
struct Counted {
    /// The process they all belong to.
    process: u64,
    inside: u64,
    /// Those up to these fences were lost, and why,
    lost: Vec<(u64, LostReason)>,
    /// and so many of their owners do not know that yet.
    ghosts: u64,
    /// Whether no more come: others use the place too, or the process is shutting down.
    closed: bool,
    /// The process is shutting down, and waits for their end.
    awaited_by: Option<Arc<Process>>,
}

impl Counted {
    /// Why one was lost, if it was; to be asked once for each.
    fn take_lost(&mut self, fence: u64) -> Option<LostReason> {
        let lost = self.lost.iter().find(|(last, _)| fence <= *last);
        let (_, reason) = *lost?;
        self.ghosts -= 1;
        if self.ghosts == 0 {
            self.lost = Vec::new();
        }
        Some(reason)
    }
}

#[derive(Debug)]
struct Holder {
    weight: u32,
    /// The handle by which it was acquired.
    process: u64,
    /// When its time is over, `FAR` if it is renewed until it is released; once it is lost, when its
    /// delay is.
    end: Instant,
    delay: Delay,
    /// Lost, and still keeping others out.
    lost: bool,
    /// Kept from being forgotten while a delay may follow.
    place: Option<Arc<dyn Place>>,
    ttl: Ttl,
    renewed: bool,
    /// What `end` is while its renewals come through.
    #[cfg(feature = "test-util")]
    last: Instant,
    /// What others see of it, if somebody has asked.
    state: Option<Arc<LeaseState>>,
    /// Its process is shutting down, and waits for its end.
    awaited_by: Option<Arc<Process>>,
}

#[derive(Debug)]
struct Waiter {
    place: Arc<dyn Place>,
    process: u64,
    terms: Terms,
    /// `FAR` for no limit.
    give_up: Instant,
    answer: oneshot::Sender<Result<Lease, LockError>>,
}

/// What callers are told while the backend is out.
pub(super) fn unreachable(doing: &str, gate: &str) -> BackendError {
    let text = format!("{doing} `{gate}`: the gates in memory were told to be out");
    BackendError::new(BackendErrorKind::Unreachable, text, None)
}

/// What its owner gets of a holder.
pub(super) fn lease(place: Arc<dyn Place>, mark: u64, fence: u64) -> Lease {
    Lease::new(place, mark, FencingToken::new(fence))
}

/// How an acquire begins. What it holds is made into a lease outside of the lock.
pub(super) enum Entered {
    Held {
        mark: u64,
        fence: u64,
    },
    Queued {
        answer: oneshot::Receiver<Result<Lease, LockError>>,
        ticket: Token,
    },
    Refused(Box<LockError>),
}

impl Ledger {
    /// Of a place that `process` was the first to use.
    pub(super) fn new(gate: Arc<str>, fence: u64, process: u64) -> Self {
        Self {
            gate,
            fence,
            used: 0,
            counted: Counted {
                process,
                inside: 0,
                lost: Vec::new(),
                ghosts: 0,
                closed: false,
                awaited_by: None,
            },
            holders: HashMap::new(),
            lost: BTreeMap::new(),
            #[cfg(feature = "test-util")]
            out_since: None,
            queue: Queue::default(),
            ends: BTreeSet::new(),
            give_ups: BTreeSet::new(),
            alarm: Instant::FAR,
        }
    }

    pub(super) const fn last_fence(&self) -> u64 {
        self.fence
    }

    /// Whose leases may be counted.
    pub(super) const fn process(&self) -> u64 {
        self.counted.process
    }

    /// Takes over what the turnstile has counted.
    pub(super) fn take_over(&mut self, count: Count) {
        self.used += count.inside;
        self.used -= self.counted.inside;
        self.counted.inside = count.inside;
        self.fence = count.fence;
    }

    /// What the turnstile is to go on from; `None` as long as more has to be known than that.
    pub(super) fn count(&self) -> Option<Count> {
        let only_counted = self.is_calm()
            && self.holders.is_empty()
            && self.counted.ghosts == 0
            && !self.counted.closed
            // Who has asked before it began, and enters now, has an end.
            && !self.is_out();
        only_counted.then_some(Count {
            inside: self.counted.inside,
            fence: self.fence,
        })
    }

    /// A second process uses the place: its leases and those of the first have to be told apart.
    pub(super) fn share(&mut self) {
        self.counted.closed = true;
    }

    /// Whether an outage has come to it: what is due is judged by that, and not by one that begins
    /// or ends with the change for which it is settled.
    #[cfg(feature = "test-util")]
    const fn is_out(&self) -> bool {
        self.out_since.is_some()
    }

    #[cfg(not(feature = "test-util"))]
    #[expect(clippy::unused_self, reason = "only tests play an outage")]
    const fn is_out(&self) -> bool {
        false
    }

    /// Whether nobody waits and nothing ends by itself: most changes find and leave it so.
    pub(super) fn is_calm(&self) -> bool {
        self.queue.is_empty() && self.ends.is_empty() && self.give_ups.is_empty()
    }

    /// When the first end or limit is reached.
    pub(super) fn next_due(&self) -> Instant {
        let end = self.ends.first().map_or(Instant::FAR, |(end, _)| *end);
        let give_up = self.give_ups.first().map_or(Instant::FAR, |(at, _)| *at);
        end.min(give_up)
    }

    /// Holds at once, stands in the queue or is refused.
    #[inline]
    pub(super) fn enter(
        &mut self,
        clock: &Clock,
        place: &Arc<dyn Place>,
        process: u64,
        terms: &Terms,
    ) -> Entered {
        if self.queue.is_empty() && self.fits(terms) {
            let (mark, fence) = self.hold(clock, place, process, terms);
            return Entered::Held { mark, fence };
        }
        self.wait_or_refuse(clock, place, process, terms)
    }

    fn wait_or_refuse(
        &mut self,
        clock: &Clock,
        place: &Arc<dyn Place>,
        process: u64,
        terms: &Terms,
    ) -> Entered {
        let waiting = self.queue.len();
        let refused = match terms.wait {
            Wait::No => Some(RefusalKind::Busy),
            _ if waiting >= terms.max_waiters as usize => Some(RefusalKind::QueueFull),
            Wait::AtMost(_) | Wait::Unbounded => None,
        };
        if let Some(kind) = refused {
            let refusal = self.refusal(kind, waiting, terms, clock.now());
            return Entered::Refused(Box::new(refusal.into()));
        }
        let give_up = match terms.wait {
            Wait::AtMost(wait) => clock.now().after(wait),
            Wait::No | Wait::Unbounded => Instant::FAR,
        };
        let ticket = self.queue.next_ticket();
        if give_up != Instant::FAR {
            self.give_ups.insert((give_up, ticket));
        }
        let (sender, answer) = oneshot::channel();
        self.queue.push(Waiter {
            place: Arc::clone(place),
            process,
            terms: *terms,
            give_up,
            answer: sender,
        });
        Entered::Queued {
            answer,
            ticket: Token::local(0, ticket),
        }
    }

    /// Ends what is over, in order, and hands on what that frees.
    pub(super) fn settle(&mut self, clock: &Clock, news: &mut News) {
        if self.next_due() == Instant::FAR {
            return;
        }
        let now = clock.now();
        while self.next_due() <= now {
            // At the same instant an end comes first: its permits are free for who waits till then.
            let end = self.ends.first().copied();
            let give_up = self.give_ups.first().copied();
            match (end, give_up) {
                (Some((end, fence)), limit) if limit.is_none_or(|(limit, _)| end <= limit) => {
                    self.run_out(fence, news);
                }
                (_, Some((_, ticket))) => self.give_up(ticket, now, news),
                (_, None) => return,
            }
            self.hand_on(clock, news);
        }
    }

    /// A lease has reached its end.
    fn run_out(&mut self, fence: u64, news: &mut News) {
        #[cfg(feature = "test-util")]
        if fence == ALL_COUNTED {
            self.lose_counted(LostReason::Expired, news);
            return;
        }
        match self.holders.get(&fence) {
            Some(holder) if holder.lost => drop(self.remove(fence, news)),
            Some(holder) => {
                let end = holder.end;
                self.lose(fence, LostReason::Expired, end, news);
            }
            None => {}
        }
    }

    /// Serves waiters from the head of the queue while they fit: strictly in order, so a large
    /// request is not starved.
    pub(super) fn hand_on(&mut self, clock: &Clock, news: &mut News) {
        while let Some(head) = self.queue.front() {
            if self.is_out() || !self.fits(&head.terms) {
                return;
            }
            let Some((ticket, waiter)) = self.queue.pop() else {
                return;
            };
            self.give_ups.remove(&(waiter.give_up, ticket));
            let (mark, fence) = self.hold(clock, &waiter.place, waiter.process, &waiter.terms);
            let lease = lease(waiter.place, mark, fence);
            news.answer(waiter.answer, Ok(lease));
        }
    }

    /// The caller's future was dropped.
    pub(super) fn leave(&mut self, ticket: Token, news: &mut News) {
        if let Some(waiter) = self.take_waiter(ticket.parts().1) {
            news.dropped(waiter.place);
        }
    }

    /// Takes a holder off the books; false if it is not there any more.
    pub(super) fn release(&mut self, token: Token, news: &mut News) -> bool {
        let (_, fence) = token.parts();
        if Lease::counted_ttl(token).is_some() {
            return self.release_counted(fence, news);
        }
        if self.holders.get(&fence).is_none_or(|holder| holder.lost) {
            self.lost.remove(&fence);
            return false;
        }
        if let Some(holder) = self.remove(fence, news)
            && let Some(process) = holder.awaited_by
        {
            news.ended(process, Left::Released);
        }
        true
    }

    fn release_counted(&mut self, fence: u64, news: &mut News) -> bool {
        if self.counted.take_lost(fence).is_some() {
            return false;
        }
        self.one_counted_less();
        self.used -= 1;
        if let Some(process) = &self.counted.awaited_by {
            news.ended(Arc::clone(process), Left::Released);
        }
        true
    }

    fn one_counted_less(&mut self) {
        self.counted.inside -= 1;
        // Nobody is left who ends then, and nobody is to be told to retry then.
        #[cfg(feature = "test-util")]
        if self.counted.inside == 0 && self.out_since.is_some() {
            self.ends.retain(|(_, fence)| *fence != ALL_COUNTED);
        }
    }

    /// What is to be seen of a lease, or why it was lost: who is told so does not give it back. One
    /// that was only counted is listed.
    pub(super) fn state(
        &mut self,
        clock: &Clock,
        token: Token,
    ) -> Result<Arc<LeaseState>, LostReason> {
        let (_, fence) = token.parts();
        if let Some(ttl) = Lease::counted_ttl(token) {
            self.list(ttl, fence)?;
        }
        let token = Token::local(LISTED, fence);
        let reason = self.lost.remove(&fence);
        let holder = self.holders.get_mut(&fence).filter(|holder| !holder.lost);
        let holder = holder.ok_or_else(|| reason.unwrap_or(LostReason::Expired))?;
        let state = holder.state.get_or_insert_with(|| {
            let (clock, fence) = (clock.clone(), FencingToken::new(fence));
            if holder.renewed {
                // An end that is not its last is that of an outage.
                #[cfg(feature = "test-util")]
                let (end, deadline) = (
                    holder.last,
                    (holder.end != holder.last).then_some(holder.end),
                );
                #[cfg(not(feature = "test-util"))]
                let (end, deadline) = (holder.end, None);
                LeaseState::renewed(clock, token, fence, holder.ttl.get(), end, deadline)
            } else {
                LeaseState::new(clock, token, fence, holder.end)
            }
        });
        Ok(Arc::clone(state))
    }

    /// Lists a lease that was counted, unless it was lost.
    fn list(&mut self, ttl: Ttl, fence: u64) -> Result<(), LostReason> {
        if let Some(reason) = self.counted.take_lost(fence) {
            return Err(reason);
        }
        self.one_counted_less();
        #[cfg(feature = "test-util")]
        let end = self
            .out_since
            .map_or(Instant::FAR, |since| since.after(ttl.get()));
        #[cfg(not(feature = "test-util"))]
        let end = Instant::FAR;
        let holder = Holder {
            weight: 1,
            process: self.counted.process,
            end,
            delay: Delay::default(),
            lost: false,
            place: None,
            ttl,
            renewed: true,
            #[cfg(feature = "test-util")]
            last: Instant::FAR,
            state: None,
            awaited_by: self.counted.awaited_by.clone(),
        };
        self.insert(fence, holder);
        Ok(())
    }

    fn insert(&mut self, fence: u64, holder: Holder) {
        if holder.end != Instant::FAR {
            self.ends.insert((holder.end, fence));
        }
        self.holders.insert(fence, holder);
    }

    /// Refuses the waiters of a process that shuts down, and has its holders report their end to
    /// it; gives their number.
    pub(super) fn close(&mut self, process: &Arc<Process>, now: Instant, news: &mut News) -> usize {
        for ticket in self.waiters_of(process.id()) {
            self.refuse(ticket, RefusalKind::ShuttingDown, now, news);
        }
        let mut count = 0;
        if process.id() == self.counted.process {
            self.counted.closed = true;
            self.counted.awaited_by = Some(Arc::clone(process));
            count += usize::try_from(self.counted.inside).unwrap_or(usize::MAX);
        }
        for holder in self.holders.values_mut() {
            if holder.process == process.id() && !holder.lost {
                holder.awaited_by = Some(Arc::clone(process));
                count += 1;
            }
        }
        count
    }

    /// Ends the leases of a process whose shutdown has waited long enough.
    pub(super) fn end_all_of(&mut self, process: &Process, now: Instant, news: &mut News) {
        for fence in self.fences(|holder| holder.process == process.id()) {
            self.lose(fence, LostReason::ShutDown, now, news);
        }
        if process.id() == self.counted.process {
            self.lose_counted(LostReason::ShutDown, news);
        }
    }

    fn waiters_of(&self, process: u64) -> Vec<u64> {
        let theirs = self
            .queue
            .iter()
            .filter(|(_, waiter)| waiter.process == process);
        theirs.map(|(ticket, _)| ticket).collect()
    }

    fn fences(&self, which: impl Fn(&Holder) -> bool) -> Vec<u64> {
        let chosen = self.holders.iter().filter(|(_, holder)| which(holder));
        chosen.map(|(fence, _)| *fence).collect()
    }

    fn fits(&self, terms: &Terms) -> bool {
        self.used + u64::from(terms.weight) <= u64::from(terms.limit)
    }

    fn hold(
        &mut self,
        clock: &Clock,
        place: &Arc<dyn Place>,
        process: u64,
        terms: &Terms,
    ) -> (u64, u64) {
        self.fence += 1;
        self.used += u64::from(terms.weight);
        let counted = &mut self.counted;
        if terms.only_count() && process == counted.process && !counted.closed {
            counted.inside += 1;
            return (Lease::counted_mark(terms.ttl), self.fence);
        }
        let longest = terms.mode.longest(terms.ttl.get());
        let end = longest.map_or(Instant::FAR, |longest| clock.now().after(longest));
        let holder = Holder {
            weight: terms.weight,
            process,
            end,
            delay: terms.delay,
            lost: false,
            place: (!terms.delay.is_none()).then(|| Arc::clone(place)),
            ttl: terms.ttl,
            renewed: terms.mode != LeaseMode::Fixed,
            state: None,
            awaited_by: None,
            #[cfg(feature = "test-util")]
            last: end,
        };
        self.insert(self.fence, holder);
        (LISTED, self.fence)
    }

    /// Ends a holder's lease against its owner's will, at this moment. Its permits are free then, or
    /// after its delay.
    fn lose(&mut self, fence: u64, reason: LostReason, at: Instant, news: &mut News) {
        let Some(holder) = self.holders.get(&fence).filter(|holder| !holder.lost) else {
            return;
        };
        let state = holder.state.clone();
        if state.is_none() {
            self.lost.insert(fence, reason);
        }
        // Its owner may be about to give it back, and then has not lost it.
        if state.as_ref().is_none_or(|state| state.mark_lost(reason)) {
            news.lost(&self.gate, FencingToken::new(fence), reason, state);
        }
        let Some(mut holder) = self.remove(fence, news) else {
            return;
        };
        let delayed = !holder.delay.is_none();
        if let Some(process) = holder.awaited_by.take() {
            news.ended(process, Left::by(reason, delayed));
        }
        if delayed {
            holder.lost = true;
            holder.end = at.after(holder.delay.get());
            holder.state = None;
            self.used += u64::from(holder.weight);
            self.insert(fence, holder);
        }
    }

    /// Ends all that are counted. Nobody has looked at them; whoever does finds that it has lost.
    fn lose_counted(&mut self, reason: LostReason, news: &mut News) {
        let counted = &mut self.counted;
        let count = std::mem::take(&mut counted.inside);
        if count > 0 {
            counted.lost.push((self.fence, reason));
            counted.ghosts += count;
            self.used -= count;
            news.lost_unseen(&self.gate, count, reason);
        }
        for _ in 0..count {
            if let Some(process) = &counted.awaited_by {
                news.ended(Arc::clone(process), Left::by(reason, false));
            }
        }
        #[cfg(feature = "test-util")]
        self.ends.retain(|(_, fence)| *fence != ALL_COUNTED);
    }

    /// Takes a listed holder off the books.
    fn remove(&mut self, fence: u64, news: &mut News) -> Option<Holder> {
        let holder = self.holders.remove(&fence)?;
        let (held, room) = (self.holders.len(), self.holders.capacity());
        if room > ROOMY && held < room / 8 {
            self.holders.shrink_to(2 * held);
        }
        self.used -= u64::from(holder.weight);
        if holder.end != Instant::FAR {
            self.ends.remove(&(holder.end, fence));
        }
        // It may be the last who knows the place, and is not to drop it under its lock.
        if let Some(place) = holder.place.clone() {
            news.dropped(place);
        }
        Some(holder)
    }

    fn take_waiter(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.queue.remove(ticket)?;
        self.give_ups.remove(&(waiter.give_up, ticket));
        Some(waiter)
    }

    /// A waiter's limit is reached.
    fn give_up(&mut self, ticket: u64, now: Instant, news: &mut News) {
        if !self.is_out() {
            self.refuse(ticket, RefusalKind::WaitedTooLong, now, news);
        } else if let Some(waiter) = self.take_waiter(ticket) {
            let error = unreachable("acquiring", &self.gate);
            news.answer(waiter.answer, Err(error.into()));
            news.dropped(waiter.place);
        }
    }

    fn refuse(&mut self, ticket: u64, kind: RefusalKind, now: Instant, news: &mut News) {
        let rank = self.queue.rank(ticket);
        let Some(waiter) = self.take_waiter(ticket) else {
            return;
        };
        let refusal = self.refusal(kind, rank, &waiter.terms, now);
        news.answer(waiter.answer, Err(refusal.into()));
        news.dropped(waiter.place);
    }

    fn refusal(&self, kind: RefusalKind, ahead: usize, terms: &Terms, now: Instant) -> Refusal {
        // As a server does, which keeps a lease for as long as its delay may last.
        let first = self.ends.first().map(|(end, fence)| {
            let holder = self.holders.get(fence).filter(|holder| !holder.lost);
            let delay = holder.map_or(Duration::ZERO, |holder| holder.delay.get());
            end.since(now) + delay
        });
        // One that is renewed always has its TTL left, and all agree on that.
        let renewed = (self.counted.inside > 0 || self.holders.len() > self.ends.len())
            .then(|| terms.ttl.get() + terms.delay.get());
        Refusal::new(kind)
            .with_retry_after(first.into_iter().chain(renewed).min())
            .with_position(Some(ahead as u64))
    }
}

/// What tests do to it.
#[cfg(feature = "test-util")]
impl Ledger {
    pub(super) fn held(&self) -> usize {
        let listed = self.holders.values().filter(|holder| !holder.lost);
        listed.count() + usize::try_from(self.counted.inside).unwrap_or(usize::MAX)
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// All leases are over; gives their number.
    pub(super) fn expire(&mut self, now: Instant, news: &mut News) -> usize {
        let count = self.held();
        for fence in self.fences(|_| true) {
            self.lose(fence, LostReason::Expired, now, news);
        }
        self.lose_counted(LostReason::Expired, news);
        count
    }

    /// Leases last for what is left of them, since no renewal comes through.
    pub(super) fn stop_renewing(&mut self, now: Instant, longest_ttl: Ttl) {
        self.out_since = Some(now);
        if self.counted.inside > 0 {
            self.ends
                .insert((now.after(longest_ttl.get()), ALL_COUNTED));
        }
        for (&fence, holder) in &mut self.holders {
            if !holder.renewed || holder.lost {
                continue;
            }
            let told = match &holder.state {
                Some(state) => state.stop_renewing(),
                None => now.after(holder.ttl.get()),
            };
            self.ends.remove(&(holder.end, fence));
            holder.end = holder.last.min(told);
            self.ends.insert((holder.end, fence));
        }
    }

    /// Renewals come through again.
    pub(super) fn renew_again(&mut self) {
        if self.out_since.take().is_none() {
            return;
        }
        self.ends.retain(|(_, fence)| *fence != ALL_COUNTED);
        for (&fence, holder) in &mut self.holders {
            // One whose end was seen to pass stays lost.
            if holder.renewed
                && !holder.lost
                && holder
                    .state
                    .as_ref()
                    .is_none_or(|state| state.renew_again())
            {
                self.ends.remove(&(holder.end, fence));
                holder.end = holder.last;
                if holder.end != Instant::FAR {
                    self.ends.insert((holder.end, fence));
                }
            }
        }
    }
}
