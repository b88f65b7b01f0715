//! All that one home decides, without input or output: who gets a permit that is kept, when it is
//! passed on, and when it is given back.
//!
//! # Invariants
//!
//! 1. A permit is idle, in use, or on its way to the server, and changes from one to another under
//!    one lock: what was given back is never handed out again.
//! 2. Nobody waits here while an idle permit may be handed out.
//! 3. While others wait nothing is idle, and no permit is passed on for longer than its turn.
//! 4. Leases, answers and wakers run when the lock is free: they go out as [`Effects`].

mod agenda;
mod effects;
mod ends;
mod outage;

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use self::agenda::SURPLUS;
pub(super) use self::effects::{Effects, Entry, Rouse, Start, Turn};
use self::ends::Ends;
use super::others::{Others, QUESTION};
use super::permits::{Permit, Permits};
use crate::backend::queue::Queue;
use crate::backend::{Keep, Kept, Place, ReleaseAnswer, Terms, Wait};
use crate::error::{BackendError, LockError, Refusal, RefusalKind};
use crate::lease::{Lease, LeaseState, Release};
use crate::time::Instant;
use crate::token::FencingToken;

type Answer = oneshot::Sender<Result<Lease, LockError>>;

/// A lease, and who has waited for it.
type Given = (Answer, Lease);

/// A permit on its way to the server, and who is told how that went.
type Leaving = (Lease, Option<oneshot::Sender<ReleaseAnswer>>);

/// Somebody who waits here.
#[derive(Debug)]
pub(super) struct Waiter {
    terms: Terms,
    since: Instant,
    give_up: Instant,
    answer: Answer,
}

impl Waiter {
    /// What it asks for by itself, from now on.
    fn own_terms(&self, now: Instant) -> Terms {
        let wait = match self.terms.wait {
            Wait::AtMost(_) => Wait::at_most(self.give_up.since(now)),
            wait @ (Wait::No | Wait::Unbounded) => wait,
        };
        Terms { wait, ..self.terms }
    }

    /// What it is told where the server has said no: it did wait, though not in its last words.
    fn in_its_words(&self, error: &LockError) -> LockError {
        match error {
            LockError::Refused(refusal)
                if refusal.kind() == RefusalKind::Busy && self.terms.wait != Wait::No =>
            {
                refusal.clone().with_kind(RefusalKind::WaitedTooLong).into()
            }
            error => error.clone(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Rooms {
    /// Where uses are given back to.
    place: Weak<dyn Place>,
    keep: Keep,
    limit: u32,
    /// How many permits there may be: the limit, or more where an operator allows more, as far as grants
    /// have shown.
    reach: u32,
    /// From when on one who does not wait may ask whether there are more.
    reach_at: Instant,
    permits: Permits,
    /// What is to be given back with the agent's next turn.
    leaving: Vec<Leaving>,
    waiting: Queue<Waiter>,
    ends: Ends,
    /// Those whose wait has ended before the server said a word of whether it has a permit for them.
    overdue: BTreeSet<u64>,
    /// Those who ask by themselves, each by an acquire of its own: who does not wait, whose wait is over
    /// before the server has said a word, and in an outage who has an answer of its own or comes without
    /// an end to its wait.
    tries: BTreeSet<u64>,
    /// Those of them for whom none is under way yet.
    untried: Vec<u64>,
    /// How many such acquires are under way.
    trying: u32,
    /// How many acquires are under way for whoever is first here.
    seeking: u32,
    /// Whether the server has said of them that they have to wait.
    queued: bool,
    /// Since when there are more of them than anybody needs.
    surplus: Option<Instant>,
    others: Others,
    /// How many requests of this process wait or hold beside this home.
    outsiders: u32,
    /// Since when the server may have lost what is kept: nothing is handed on until it has answered a
    /// question that was sent after that.
    doubted: Option<Instant>,
    /// The sending of a question that is under way.
    asking: Option<Instant>,
    asked: Instant,
    /// Why the last acquire failed, until one does not.
    trouble: Option<BackendError>,
    /// Whether that is an outage of which those who wait here are to hear: who has an answer of its own
    /// asks by itself until it is over.
    away: bool,
    attempts: u32,
    retry_at: Instant,
    /// When the first lease that stands in the way ends, as the server told a seeker last.
    end_told: Instant,
    /// When the first of those ends that are here, as it was at the last look.
    end_here: Instant,
    looked: Instant,
    closed: bool,
    attended: bool,
    /// When the agent looks next.
    wake_at: Instant,
    tally: Kept,
}

impl Rooms {
    pub(super) fn new(place: Weak<dyn Place>, keep: Keep, limit: u32) -> Self {
        Self {
            place,
            keep,
            limit,
            reach: limit,
            reach_at: Instant::from_nanos(0),
            permits: Permits::default(),
            leaving: Vec::new(),
            waiting: Queue::default(),
            ends: Ends::default(),
            overdue: BTreeSet::new(),
            tries: BTreeSet::new(),
            untried: Vec::new(),
            trying: 0,
            seeking: 0,
            queued: false,
            surplus: None,
            others: Others::new(),
            outsiders: 0,
            doubted: None,
            asking: None,
            asked: Instant::from_nanos(0),
            trouble: None,
            away: false,
            attempts: 0,
            retry_at: Instant::from_nanos(0),
            end_told: Instant::FAR,
            end_here: Instant::FAR,
            looked: Instant::from_nanos(0),
            closed: false,
            attended: false,
            wake_at: Instant::FAR,
            tally: Kept::default(),
        }
    }

    pub(super) fn tally(&self) -> Kept {
        let idle = self.permits.idle();
        Kept {
            idle,
            used: self.permits.held() - idle,
            ..self.tally
        }
    }

    /// Whether anybody waits whom what is kept here would keep from its turn.
    fn others_wait(&self) -> bool {
        self.others.wait() || self.outsiders > 0
    }

    /// Somebody wants one permit. If one is idle it is in use from now on, by this mark.
    #[inline]
    pub(super) fn take(&mut self, now: Instant) -> Option<(u64, FencingToken)> {
        if !self.waiting.is_empty() || self.doubted.is_some() {
            return None;
        }
        // Those that do not last are given back by the agent.
        let slot = self.permits.newest_idle(now)?;
        self.tally.reused += 1;
        self.use_again(slot)
    }

    /// Somebody wants one permit, and found none to [take](Self::take).
    pub(super) fn enter(&mut self, now: Instant, terms: &Terms) -> Entry {
        if self.closed {
            return Entry::Refused(Refusal::new(RefusalKind::ShuttingDown));
        }
        if self.trouble.is_some() && now < self.retry_at {
            // Nobody need wait here for a server that is away: it is the server's way to tell.
            return Entry::Elsewhere;
        }
        let crowd = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        // For so many more the server may have one: who is on its way to it does not wait yet.
        let spare = self.reach.saturating_sub(self.permits.held());
        let busy = terms.wait == Wait::No && crowd >= spare && !self.may_reach_further(now);
        let full = terms.wait != Wait::No && crowd >= terms.max_waiters.max(spare);
        if busy || full {
            let kind = if busy {
                RefusalKind::Busy
            } else {
                RefusalKind::QueueFull
            };
            let refusal = self.refusal(now, kind);
            return Entry::Refused(refusal.with_position(Some(crowd.into())));
        }
        let (answer, receiver) = oneshot::channel();
        let id = self.waiting.next_ticket();
        let give_up = match terms.wait {
            Wait::AtMost(wait) => now.after(wait),
            Wait::No | Wait::Unbounded => Instant::FAR,
        };
        // A seeker that keeps its place through an outage hears nothing of it, and would keep who has no
        // end to its wait for as long.
        let hears_alone = terms.bridge.is_some() || terms.wait == Wait::Unbounded;
        if terms.wait == Wait::No || self.away && hears_alone {
            self.ask_alone(id);
        }
        self.ends.insert(give_up, id);
        let waiter = Waiter {
            terms: *terms,
            since: now,
            give_up,
            answer,
        };
        self.waiting.push(waiter);
        Entry::Waits(id, receiver)
    }

    fn use_again(&mut self, slot: u32) -> Option<(u64, FencingToken)> {
        self.permits.use_again(slot, self.keep.fences.is_some())
    }

    /// What the lease of a use is one use of.
    pub(super) fn whole(&self, mark: u64) -> Option<Arc<LeaseState>> {
        self.permits.whole(mark)
    }

    /// The use that `mark` names is over, and that is all, as for most: nobody waits anywhere, and the
    /// agent looks before the permit has been idle for too long. False if more is to be done about it.
    #[inline]
    fn rest_again(&mut self, now: Instant, mark: u64) -> bool {
        let calm = self.attended
            && !self.closed
            && self.waiting.is_empty()
            && self.doubted.is_none()
            && self.keep.fences.is_none()
            && self.permits.keeps()
            && self.may_idle()
            && self.wake_at <= now.after(self.keep.linger.min(QUESTION));
        calm && self.permits.rest_again(now, mark)
    }

    /// The use that `mark` names is over, and more is to be done about it than mostly.
    // Apart from what most requests go through: that is to be short, since behind each system call a
    // processor finds little of it in its caches.
    #[inline(never)]
    fn put_back(
        &mut self,
        now: Instant,
        mark: u64,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
    ) -> (Effects, Rouse) {
        let mut effects = Effects::default();
        let Some(slot) = self.permits.in_use(mark) else {
            // It was lost, and is forgotten.
            effects.released = answer.map(|answer| (answer, Release::NoLongerHeld));
            return (effects, Rouse::Rest);
        };
        if let Some(given) = self.pass(now, slot) {
            effects.give(Some(given));
            effects.released = answer.map(|answer| (answer, Release::Released));
            return (effects, self.rouse(now));
        }
        if self.closed || !self.may_idle() || !self.may_be_used(now, slot) {
            self.end(slot, answer, &mut effects);
            if self.seeks(now) {
                // It leaves when the next is sought, so that both are one call.
                self.leaving.extend(effects.ended.drain(..));
            }
            return (effects, self.rouse(now));
        }
        effects.released = answer.map(|answer| (answer, Release::Released));
        self.rest(now, slot);
        // It lingers, and is asked about: nothing else is due any earlier for it.
        let due = now.after(self.keep.linger.min(QUESTION));
        (effects, self.rouse_by(now, due))
    }

    /// The use that `mark` names is over, and who has waited here longest has the next: that is all, as
    /// mostly where many wait, since the agent looks before anything can be due for that. `None` if more
    /// is to be done about it.
    #[inline]
    fn pass_on(&mut self, now: Instant, mark: u64) -> Option<Given> {
        let soon = now.after(QUESTION.min(SURPLUS));
        if !self.attended || self.wake_at > soon {
            return None;
        }
        let slot = self.permits.in_use(mark)?;
        self.pass(now, slot)
    }

    /// Hands a permit whose use is over to who has waited here longest, if it may have another.
    fn pass(&mut self, now: Instant, slot: u32) -> Option<Given> {
        let id = self.waiting.first()?;
        if self.closed || self.doubted.is_some() || !self.may_be_used(now, slot) {
            return None;
        }
        self.begin_to_keep(now);
        self.tally.passed += 1;
        self.count_pass(slot);
        self.give(slot, id)
    }

    fn may_idle(&self) -> bool {
        !self.keep.linger.is_zero() && !self.others_wait()
    }

    /// Whether a permit may have another use: as long as nobody else wants it, and then for a turn.
    fn may_be_used(&self, now: Instant, slot: u32) -> bool {
        let (keep, others) = (self.keep, self.others_wait());
        self.permits.get(slot).is_some_and(|permit| {
            let since = self.others.since(permit.granted);
            let passes = permit.passes_in(self.others.turn);
            permit.lasts(now)
                && keep.fences.is_none_or(|fences| permit.uses <= fences)
                && (!others || passes < keep.passes && now < since.after(keep.turn))
        })
    }

    fn count_pass(&mut self, slot: u32) {
        if self.others_wait()
            && let Some(permit) = self.permits.get_mut(slot)
        {
            permit.count_pass(self.others.turn);
        }
    }

    fn rest(&mut self, now: Instant, slot: u32) {
        self.begin_to_keep(now);
        self.permits.rest(now, slot);
    }

    /// Gives the permit in `slot` to who waits by the number `id`.
    fn give(&mut self, slot: u32, id: u64) -> Option<Given> {
        // Whoever waits keeps the place alive.
        let place = self.place.upgrade()?;
        let waiter = self.forget(id)?;
        let (mark, fence) = self.use_again(slot)?;
        let lease = Lease::new(place, mark, fence);
        Some((waiter.answer, lease))
    }

    /// One that waits here asks the server by itself, in its own terms.
    fn ask_alone(&mut self, id: u64) {
        if self.tries.insert(id) {
            self.untried.push(id);
        }
    }

    /// The first of those for whom the seekers are.
    fn first_sought(&self) -> Option<(u64, &Waiter)> {
        let mut waiting = self.waiting.iter();
        waiting.find(|(id, _)| !self.tries.contains(id))
    }

    /// Takes a waiter off the books.
    fn forget(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiting.remove(id)?;
        self.ends.remove(waiter.give_up, id);
        self.overdue.remove(&id);
        self.tries.remove(&id);
        Some(waiter)
    }

    /// Takes a permit off the books, to be given back to the server.
    fn end(
        &mut self,
        slot: u32,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
        effects: &mut Effects,
    ) {
        if let Some(lease) = self.permits.take(slot) {
            effects.ended.push((lease, answer));
        }
    }

    /// A caller's future was dropped. What is left of it is to be dropped when the lock is free.
    pub(super) fn leave(&mut self, id: u64) -> Option<Waiter> {
        self.forget(id)
    }

    /// A seeker has a permit.
    pub(super) fn arrived(
        &mut self,
        now: Instant,
        lease: Lease,
        tries: Option<u64>,
        least: Duration,
    ) -> Effects {
        let mut effects = Effects::default();
        self.sought(tries);
        self.is_back();
        if self.closed || !lease.state().is_held() {
            effects.ended.push((lease, None));
            // Nobody else asks for who asks by itself.
            let again = tries.filter(|id| self.tries.contains(id));
            self.untried.extend(again);
            return effects;
        }
        // Who does not wait has but this one coming: those before it are served by what comes for them.
        let wanted = tries.filter(|id| self.waiting.get(*id).is_some());
        let wanted = wanted.or_else(|| self.waiting.first());
        let slot = self.permits.put(now, lease, least);
        self.looked = Instant::from_nanos(0);
        match wanted {
            Some(id) => effects.give(self.give(slot, id)),
            None if self.may_idle() => self.rest(now, slot),
            None => self.end(slot, None, &mut effects),
        }
        // What stood in the way then does not any more.
        self.end_told = Instant::FAR;
        self.reached();
        if self.permits.held() >= self.reach {
            self.refuse_overdue(now, &mut effects);
        }
        effects
    }

    /// The server has no permit for who seeks one now: its waiters are behind others.
    pub(super) fn queued(&mut self, now: Instant, next_end: Option<Duration>) -> Effects {
        let mut effects = Effects::default();
        self.is_back();
        self.queued = self.seeking > 0;
        self.end_told = next_end.map_or(Instant::FAR, |end| now.after(end));
        self.reach = self.limit.max(self.permits.held());
        if self.queued {
            self.refuse_overdue(now, &mut effects);
        }
        effects
    }

    /// Whether one who does not wait asks the server though all permits that there seem to be are here.
    /// Mostly there are none, so that is done now and then, and not where seekers ask for one anyway.
    fn may_reach_further(&mut self, now: Instant) -> bool {
        let may = self.keep.fences.is_none() && self.seeking == 0 && now >= self.reach_at;
        if may {
            self.reach_at = now.after(QUESTION);
        }
        may
    }

    /// There is one more. Where that is more than there seemed to be, there may be as many again: the
    /// server's next no tells.
    fn reached(&mut self) {
        let held = self.permits.held();
        if held > self.reach && self.keep.fences.is_none() {
            self.reach = held.saturating_mul(2);
        }
    }

    /// A no, with what is known of the first lease to end: by the server's last word to a seeker, or of
    /// those that are here.
    fn refusal(&mut self, now: Instant, kind: RefusalKind) -> Refusal {
        // Now and then is enough for who turns away a flood.
        if now >= self.looked.after(QUESTION) {
            self.looked = now;
            self.end_here = self.permits.first_end().unwrap_or(Instant::FAR);
        }
        let ends = [self.end_here, self.end_told].into_iter();
        let first = ends.filter(|end| now < *end && *end < Instant::FAR).min();
        Refusal::new(kind).with_retry_after(first.map(|end| end.since(now)))
    }

    fn refuse_overdue(&mut self, now: Instant, effects: &mut Effects) {
        for id in std::mem::take(&mut self.overdue) {
            if let Some(waiter) = self.forget(id) {
                let refusal = self.refusal(now, RefusalKind::WaitedTooLong);
                effects.refuse(waiter, refusal);
            }
        }
    }

    fn sought(&mut self, tries: Option<u64>) {
        match tries {
            Some(_) => self.trying = self.trying.saturating_sub(1),
            None => {
                self.seeking = self.seeking.saturating_sub(1);
                self.queued &= self.seeking > 0;
            }
        }
    }

    /// Other processes wait, or none do, by what a grant or a recall says.
    pub(super) fn told(&mut self, now: Instant, stamp: u64, wait: bool) -> Effects {
        self.others.told(now, stamp, wait);
        self.give_idle_back()
    }

    fn give_idle_back(&mut self) -> Effects {
        let mut effects = Effects::default();
        if self.others_wait() {
            while let Some((slot, _)) = self.permits.oldest_idle() {
                self.tally.recalled += 1;
                self.end(slot, None, &mut effects);
            }
        }
        effects
    }

    /// A request of this process asks the server itself, beside this home.
    pub(super) fn passed_by(&mut self) -> Effects {
        self.outsiders += 1;
        self.give_idle_back()
    }

    pub(super) fn went_by(&mut self) {
        self.outsiders = self.outsiders.saturating_sub(1);
    }

    /// The server did not know a permit that was given back: it may have forgotten others as well.
    pub(super) fn doubt(&mut self, now: Instant) {
        self.doubted = (self.permits.held() > 0).then_some(now);
        self.permits.ask_anew();
        // Asked at once, or as soon as an earlier question is answered.
        self.asked = Instant::from_nanos(0);
    }

    /// The server has answered the question of what it knows, or has not. What it has forgotten is
    /// marked as lost by now.
    pub(super) fn answered(&mut self, now: Instant, answer: Option<(u64, bool)>) -> Effects {
        let Some(sent) = self.asking.take() else {
            return Effects::default();
        };
        let Some((stamp, wait)) = answer else {
            // Who can't ask can't know what the server has lost, and serves no more than who has to
            // ask it for each request. All are asked about from here on.
            self.doubted.get_or_insert(now);
            self.permits.ask_anew();
            return Effects::default();
        };
        self.others.answered(now, sent, stamp, wait);
        if self.doubted.is_some_and(|since| sent >= since) {
            if self.permits.are_all_asked() {
                self.doubted = None;
            } else {
                // Not all of them have been asked about.
                self.asked = Instant::from_nanos(0);
            }
        }
        self.is_back();
        let mut effects = self.give_idle_back();
        if self.sweep(&mut effects) && self.doubted.is_none() {
            // What else it has forgotten, it did before it said so.
            self.doubt(now);
        }
        while self.doubted.is_none()
            && let Some(id) = self.waiting.first()
            && let Some(slot) = self.permits.newest_idle(now)
            && self.may_be_used(now, slot)
        {
            self.tally.reused += 1;
            effects.give(self.give(slot, id));
        }
        effects
    }

    /// Forgets what was lost: it is ended already. Tells whether anything was.
    fn sweep(&mut self, effects: &mut Effects) -> bool {
        let lost = self.permits.take_lost();
        let any = !lost.is_empty();
        effects
            .ended
            .extend(lost.into_iter().map(|lease| (lease, None)));
        any
    }

    /// Refuses all that is asked from here on, and keeps nothing any more.
    pub(super) fn close(&mut self) -> Effects {
        self.closed = true;
        let mut effects = Effects::default();
        effects.ended.extend(self.leaving.drain(..));
        while let Some((_, waiter)) = self.waiting.pop() {
            effects.refuse(waiter, Refusal::new(RefusalKind::ShuttingDown));
        }
        self.ends.clear();
        self.overdue.clear();
        self.tries.clear();
        self.untried.clear();
        while let Some((slot, _)) = self.permits.oldest_idle() {
            self.end(slot, None, &mut effects);
        }
        effects
    }
}

/// The use that `mark` names is over; `answer` is told how that went. Gives what follows, if anything
/// does.
#[inline]
pub(super) fn end_use(
    mut rooms: MutexGuard<'_, Rooms>,
    now: Instant,
    mark: u64,
    answer: Option<oneshot::Sender<ReleaseAnswer>>,
) -> Option<(Effects, Rouse)> {
    if answer.is_none() {
        if rooms.rest_again(now, mark) {
            return None;
        }
        if let Some((answer, lease)) = rooms.pass_on(now, mark) {
            drop(rooms);
            // A caller that has gone meanwhile drops the lease right here, which gives it back.
            let _ = answer.send(Ok(lease));
            return None;
        }
    }
    Some(rooms.put_back(now, mark, answer))
}
