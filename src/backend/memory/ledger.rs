//! Who holds and who waits at one place, and until when.
//!
//! # Invariants
//!
//! 1. `used` is the sum of the holders' weights.
//! 2. Nobody holds past its end: whoever looks settles first, and a holder is told that it lost
//!    before its permits are free.
//! 3. After each change the head of the queue does not fit, unless the backend is out.
//! 4. Each holder with an end and each waiter with a limit stands once in `ends` or `give_ups`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::oneshot;

use super::news::News;
use super::process::Process;
use super::queue::Queue;
use crate::backend::{Place, Terms, Wait};
use crate::error::{BackendError, BackendErrorKind, LockError, Refusal, RefusalKind};
#[cfg(feature = "test-util")]
use crate::lease::LeaseMode;
use crate::lease::{Lease, LeaseState, LostReason};
use crate::time::{Clock, Instant};
use crate::token::{FencingToken, Token};

/// Capacity that is worth giving back.
const ROOMY: usize = 64;

#[derive(Debug)]
pub(super) struct Ledger {
    gate: Arc<str>,
    /// The last one given, here or at an earlier place of this name.
    fence: u64,
    used: u64,
    holders: Slab<Holder>,
    queue: Queue<Waiter>,
    ends: BTreeSet<(Instant, usize)>,
    give_ups: BTreeSet<(Instant, u64)>,
    /// When somebody looks in at the latest; kept by the site.
    pub(super) alarm: Instant,
}

#[derive(Debug)]
struct Holder {
    fence: u64,
    weight: u32,
    /// The handle by which it was acquired.
    process: u64,
    /// When its time is over, `FAR` if it is renewed until it is released.
    end: Instant,
    /// What `end` is while it is renewed; `None` if it never is.
    #[cfg(feature = "test-util")]
    last: Option<Instant>,
    /// The length that it is renewed to.
    ttl: Duration,
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

/// How an acquire begins.
pub(super) enum Entered {
    Ended(Result<Lease, LockError>),
    Queued {
        answer: oneshot::Receiver<Result<Lease, LockError>>,
        ticket: Token,
    },
}

impl Ledger {
    pub(super) fn new(gate: Arc<str>, fence: u64) -> Self {
        Self {
            gate,
            fence,
            used: 0,
            holders: Slab::new(),
            queue: Queue::default(),
            ends: BTreeSet::new(),
            give_ups: BTreeSet::new(),
            alarm: Instant::FAR,
        }
    }

    pub(super) const fn last_fence(&self) -> u64 {
        self.fence
    }

    /// When the first end or limit is reached.
    pub(super) fn next_due(&self) -> Instant {
        if self.ends.is_empty() && self.give_ups.is_empty() {
            return Instant::FAR;
        }
        let end = self.ends.first().map_or(Instant::FAR, |(end, _)| *end);
        let give_up = self.give_ups.first().map_or(Instant::FAR, |(at, _)| *at);
        end.min(give_up)
    }

    /// Holds at once, stands in the queue or is refused.
    pub(super) fn enter(
        &mut self,
        clock: &Clock,
        place: &Arc<dyn Place>,
        process: u64,
        terms: &Terms,
    ) -> Entered {
        if self.queue.is_empty() && self.fits(terms) {
            return Entered::Ended(Ok(self.hold(clock, Arc::clone(place), process, terms)));
        }
        let waiting = self.queue.len();
        let refused = match terms.wait {
            Wait::No => Some(RefusalKind::Busy),
            _ if waiting >= terms.max_waiters as usize => Some(RefusalKind::QueueFull),
            Wait::AtMost(_) | Wait::Unbounded => None,
        };
        if let Some(kind) = refused {
            let refusal = self.refusal(kind, waiting, terms, clock.now());
            return Entered::Ended(Err(refusal.into()));
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
    pub(super) fn settle(&mut self, clock: &Clock, out: bool, news: &mut News) {
        let now = clock.now();
        while self.next_due() <= now {
            match self.ends.first() {
                Some(&(end, slot)) if end <= now => {
                    self.lose(slot, LostReason::Expired, false, news);
                    self.hand_on(clock, out, news);
                }
                _ => {
                    let Some((_, ticket)) = self.give_ups.first().copied() else {
                        return;
                    };
                    self.give_up(ticket, now, out, news);
                    self.hand_on(clock, out, news);
                }
            }
        }
    }

    /// Serves waiters from the head of the queue while they fit: strictly in order, so a large
    /// request is not starved.
    pub(super) fn hand_on(&mut self, clock: &Clock, out: bool, news: &mut News) {
        while let Some(head) = self.queue.front() {
            if out || !self.fits(&head.terms) {
                return;
            }
            let Some((ticket, waiter)) = self.queue.pop() else {
                return;
            };
            self.give_ups.remove(&(waiter.give_up, ticket));
            let lease = self.hold(clock, waiter.place, waiter.process, &waiter.terms);
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
        let (slot, _) = token.parts();
        let held = self.holder(token).is_some();
        if held {
            self.remove(slot, true, news);
        }
        held
    }

    /// What is to be seen of a lease, if it is still held.
    pub(super) fn state(&mut self, clock: &Clock, token: Token) -> Option<Arc<LeaseState>> {
        let holder = self.holder(token)?;
        let state = holder.state.get_or_insert_with(|| {
            let fence = FencingToken::new(holder.fence);
            if holder.end == Instant::FAR {
                LeaseState::renewed(clock.clone(), fence, holder.ttl)
            } else {
                LeaseState::new(clock.clone(), fence, holder.end)
            }
        });
        Some(Arc::clone(state))
    }

    /// The holder that a token names: once ended, its slot may have another.
    fn holder(&mut self, token: Token) -> Option<&mut Holder> {
        let (slot, fence) = token.parts();
        let holder = self.holders.get_mut(slot);
        holder.filter(|holder| holder.fence == fence)
    }

    /// Refuses the waiters of a process that shuts down, and has its holders report their end to
    /// it; gives their number.
    pub(super) fn close(&mut self, process: &Arc<Process>, now: Instant, news: &mut News) -> usize {
        for ticket in self.waiters_of(process.id()) {
            self.refuse(ticket, RefusalKind::ShuttingDown, now, news);
        }
        let mut count = 0;
        for (_, holder) in &mut self.holders {
            if holder.process == process.id() {
                holder.awaited_by = Some(Arc::clone(process));
                count += 1;
            }
        }
        count
    }

    /// Ends the leases of a process whose shutdown has waited long enough.
    pub(super) fn end_all_of(&mut self, process: &Process, news: &mut News) {
        for slot in self.slots(|holder| holder.process == process.id()) {
            self.lose(slot, LostReason::ShutDown, true, news);
        }
    }

    fn waiters_of(&self, process: u64) -> Vec<u64> {
        let theirs = self
            .queue
            .iter()
            .filter(|(_, waiter)| waiter.process == process);
        theirs.map(|(ticket, _)| ticket).collect()
    }

    fn slots(&self, which: impl Fn(&Holder) -> bool) -> Vec<usize> {
        let chosen = self.holders.iter().filter(|(_, holder)| which(holder));
        chosen.map(|(slot, _)| slot).collect()
    }

    fn fits(&self, terms: &Terms) -> bool {
        self.used + u64::from(terms.weight) <= u64::from(terms.limit)
    }

    fn hold(&mut self, clock: &Clock, place: Arc<dyn Place>, process: u64, terms: &Terms) -> Lease {
        self.fence += 1;
        self.used += u64::from(terms.weight);
        let ttl = terms.ttl.get();
        let longest = terms.mode.longest(ttl);
        let end = longest.map_or(Instant::FAR, |longest| clock.now().after(longest));
        let slot = self.holders.insert(Holder {
            fence: self.fence,
            weight: terms.weight,
            process,
            end,
            ttl,
            state: None,
            awaited_by: None,
            #[cfg(feature = "test-util")]
            last: (terms.mode != LeaseMode::Fixed).then_some(end),
        });
        if end != Instant::FAR {
            self.ends.insert((end, slot));
        }
        let token = Token::local(slot, self.fence);
        Lease::new(place, token, FencingToken::new(self.fence))
    }

    /// Ends a holder's lease against its owner's will.
    fn lose(&mut self, slot: usize, reason: LostReason, released: bool, news: &mut News) {
        let holder = &self.holders[slot];
        // Its owner may be about to give it back, and then has not lost it.
        if holder
            .state
            .as_ref()
            .is_none_or(|state| state.mark_lost(reason))
        {
            crate::lease::log_loss(&self.gate, FencingToken::new(holder.fence), reason);
            holder
                .state
                .iter()
                .for_each(|state| news.lost(Arc::clone(state)));
        }
        self.remove(slot, released, news);
    }

    fn remove(&mut self, slot: usize, released: bool, news: &mut News) {
        let holder = self.holders.remove(slot);
        self.used -= u64::from(holder.weight);
        if holder.end != Instant::FAR {
            self.ends.remove(&(holder.end, slot));
        }
        if let Some(process) = holder.awaited_by {
            news.ended(process, released);
        }
        if self.holders.is_empty() && self.holders.capacity() > ROOMY {
            self.holders = Slab::new();
        }
    }

    fn take_waiter(&mut self, ticket: u64) -> Option<Waiter> {
        let waiter = self.queue.remove(ticket)?;
        self.give_ups.remove(&(waiter.give_up, ticket));
        Some(waiter)
    }

    /// A waiter's limit is reached.
    fn give_up(&mut self, ticket: u64, now: Instant, out: bool, news: &mut News) {
        if !out {
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
        let first = self.ends.first().map(|(end, _)| end.since(now));
        // One that is renewed always has its TTL left, and all agree on that.
        let renewed = (self.holders.len() > self.ends.len()).then(|| terms.ttl.get());
        Refusal::new(kind)
            .with_retry_after(first.into_iter().chain(renewed).min())
            .with_position(Some(ahead as u64))
    }
}

/// What tests do to it.
#[cfg(feature = "test-util")]
impl Ledger {
    pub(super) fn held(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// All leases are over; gives their number.
    pub(super) fn expire(&mut self, news: &mut News) -> usize {
        let slots = self.slots(|_| true);
        for slot in &slots {
            self.lose(*slot, LostReason::Expired, false, news);
        }
        slots.len()
    }

    /// Leases last for what is left of them, since no renewal comes through.
    pub(super) fn stop_renewing(&mut self, now: Instant) {
        for (slot, holder) in &mut self.holders {
            let Some(last) = holder.last else {
                continue;
            };
            let left = holder
                .state
                .as_ref()
                .map_or(holder.ttl, |state| state.remaining());
            self.ends.remove(&(holder.end, slot));
            holder.end = last.min(now.after(left));
            self.ends.insert((holder.end, slot));
            if let Some(state) = &holder.state {
                state.shorten(holder.end);
            }
        }
    }

    /// Renewals come through again.
    pub(super) fn renew_again(&mut self) {
        for (slot, holder) in &mut self.holders {
            // One whose end was seen to pass stays lost.
            if let Some(last) = holder.last
                && holder
                    .state
                    .as_ref()
                    .is_none_or(|state| state.prolong(last))
            {
                self.ends.remove(&(holder.end, slot));
                holder.end = last;
                if holder.end != Instant::FAR {
                    self.ends.insert((holder.end, slot));
                }
            }
        }
    }
}
