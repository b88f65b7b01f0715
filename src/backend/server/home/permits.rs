//! The permits that a home has: which are idle, which are in use and by what mark, and which the next
//! question is about.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::server::call::MOST_RECHECKED;
use crate::lease::{Lease, LeaseState};
use crate::time::Instant;
use crate::token::{FencingToken, Token};

/// A permit that this process has.
#[derive(Debug)]
pub(super) struct Permit {
    lease: Lease,
    pub(super) granted: Instant,
    /// How much has to be left of its lease for another use.
    least: Duration,
    /// How often it was handed on in all.
    pub(super) uses: u32,
    /// How often since others wait, and in which turn of theirs.
    passes: (u32, u32),
    /// Since when nobody uses it.
    idle: Option<Instant>,
}

impl Permit {
    /// Whether enough is left of its lease for another use.
    pub(super) fn lasts(&self, now: Instant) -> bool {
        self.lease.state().lasts(now, self.least)
    }

    /// How often it was passed on in that turn of others who wait.
    pub(super) const fn passes_in(&self, turn: u32) -> u32 {
        if self.passes.1 == turn {
            self.passes.0
        } else {
            0
        }
    }

    pub(super) const fn count_pass(&mut self, turn: u32) {
        self.passes = (self.passes_in(turn) + 1, turn);
    }
}

/// A place for a permit. Its number and its age make the mark of a use.
#[derive(Debug, Default)]
struct Slot {
    age: u32,
    permit: Option<Permit>,
    /// The last permit that was lost in use, and the age of that use: its user may look later.
    lost: Option<(u32, Arc<LeaseState>)>,
}

#[derive(Debug, Default)]
pub(super) struct Permits {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The slots of idle permits, the one that has been so for the shortest time last.
    idle: VecDeque<u32>,
    held: u32,
    /// How many of those have had more than one use.
    again: u32,
    /// Which slot the next question begins with. It asks about one after the other, in as many questions
    /// as that takes.
    ask_from: usize,
}

impl Permits {
    pub(super) const fn held(&self) -> u32 {
        self.held
    }

    pub(super) fn idle(&self) -> u32 {
        u32::try_from(self.idle.len()).unwrap_or(u32::MAX)
    }

    /// Whether anything here is kept, and not just held by who asked for it.
    pub(super) fn keeps(&self) -> bool {
        !self.idle.is_empty() || self.again > 0
    }

    /// When the first of them ends, unless it is renewed or given back before.
    pub(super) fn first_end(&self) -> Option<Instant> {
        let permits = self.slots.iter().filter_map(|slot| slot.permit.as_ref());
        permits.map(|permit| permit.lease.state().deadline()).min()
    }

    pub(super) fn get(&self, slot: u32) -> Option<&Permit> {
        self.slots.get(slot as usize)?.permit.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Permit> {
        self.slots.get_mut(slot as usize)?.permit.as_mut()
    }

    /// Puts a permit in a slot, in use by nobody yet.
    pub(super) fn put(&mut self, now: Instant, lease: Lease, least: Duration) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize].permit = Some(Permit {
            lease,
            granted: now,
            least,
            uses: 0,
            passes: (0, 0),
            idle: None,
        });
        self.held += 1;
        slot
    }

    /// The idle permit that was used last, of those that last: what is not needed grows old.
    #[inline]
    pub(super) fn newest_idle(&self, now: Instant) -> Option<u32> {
        let lasts = |slot: &u32| self.get(*slot).is_some_and(|permit| permit.lasts(now));
        self.idle.iter().rev().copied().find(lasts)
    }

    /// The one that has been idle for the longest time, and since when.
    pub(super) fn oldest_idle(&self) -> Option<(u32, Instant)> {
        let slot = *self.idle.front()?;
        Some((slot, self.get(slot)?.idle?))
    }

    pub(super) fn rest(&mut self, now: Instant, slot: u32) {
        if let Some(permit) = self.get_mut(slot) {
            permit.idle = Some(now);
            self.idle.push_back(slot);
        }
    }

    /// The use that `mark` names is over. False if it is not under way, or if too little is left of its
    /// lease for another.
    #[inline]
    pub(super) fn rest_again(&mut self, now: Instant, mark: u64) -> bool {
        let Some(slot) = self.in_use(mark) else {
            return false;
        };
        let lasts = self.get(slot).is_some_and(|permit| permit.lasts(now));
        if lasts {
            self.rest(now, slot);
        }
        lasts
    }

    /// Begins the next use of a permit, by a mark that none had before.
    pub(super) fn use_again(&mut self, slot: u32, fenced: bool) -> Option<(u64, FencingToken)> {
        let place = self.slots.get_mut(slot as usize)?;
        let permit = place.permit.as_mut()?;
        if permit.idle.take().is_some() {
            forget_idle(&mut self.idle, slot);
        }
        place.age = place.age.wrapping_add(1) & MAX_AGE;
        let fence = if fenced {
            FencingToken::new(permit.lease.fencing_token().get() + u64::from(permit.uses))
        } else {
            // Of several that are used again and again nothing is in order: who compares refuses it.
            FencingToken::new(0)
        };
        self.again += u32::from(permit.uses == 1);
        permit.uses = permit.uses.saturating_add(1);
        Some((mark(slot, place.age), fence))
    }

    /// The slot of the use that `mark` names, if that is under way.
    pub(super) fn in_use(&self, mark: u64) -> Option<u32> {
        let (slot, age) = parts(mark);
        let place = self.slots.get(slot as usize)?;
        let used = place.permit.as_ref()?.idle.is_none();
        (used && place.age == age).then_some(slot)
    }

    /// What the lease of a use is one use of.
    pub(super) fn whole(&self, mark: u64) -> Option<Arc<LeaseState>> {
        let (slot, age) = parts(mark);
        let place = self.slots.get(slot as usize)?;
        match (self.in_use(mark), &place.permit, &place.lost) {
            (Some(_), Some(permit), _) => Some(Arc::clone(permit.lease.state())),
            (_, _, Some((lost, whole))) if *lost == age => Some(Arc::clone(whole)),
            _ => None,
        }
    }

    /// Takes a permit off the books, to be given back to the server.
    pub(super) fn take(&mut self, slot: u32) -> Option<Lease> {
        let place = self.slots.get_mut(slot as usize)?;
        let permit = place.permit.take()?;
        place.age = place.age.wrapping_add(1) & MAX_AGE;
        if permit.idle.is_some() {
            forget_idle(&mut self.idle, slot);
        }
        self.free.push(slot);
        self.held -= 1;
        self.again -= u32::from(permit.uses > 1);
        Some(permit.lease)
    }

    /// Takes what was lost off the books: it is ended already.
    pub(super) fn take_lost(&mut self) -> Vec<Lease> {
        let mut taken = Vec::new();
        for slot in 0..self.slots.len() as u32 {
            let place = &mut self.slots[slot as usize];
            let Some(permit) = &place.permit else {
                continue;
            };
            let state = permit.lease.state();
            if state.is_held() {
                continue;
            }
            if permit.idle.is_none() {
                place.lost = Some((place.age, Arc::clone(state)));
            }
            taken.extend(self.take(slot));
        }
        taken
    }

    /// The tokens of what is held here, or as many as one question takes: then of others each time.
    pub(super) fn some_tokens(&mut self) -> Vec<Token> {
        let held = |(at, slot): (usize, &Slot)| {
            let permit = slot.permit.as_ref()?;
            Some((at, permit.lease.state().token()))
        };
        let mut rest = self.slots.iter().enumerate().skip(self.ask_from);
        let asked = rest.by_ref().filter_map(held).take(MOST_RECHECKED);
        let asked = asked.map(|(_, token)| token).collect();
        // From the first one on again, if this was the rest.
        let more = rest.filter_map(held).next();
        self.ask_from = more.map_or(0, |(at, _)| at);
        asked
    }

    /// Whether the last question was about the last of them.
    pub(super) const fn are_all_asked(&self) -> bool {
        self.ask_from == 0
    }

    /// The next question begins with the first of them.
    pub(super) const fn ask_anew(&mut self) {
        self.ask_from = 0;
    }
}

/// Mostly it stands at one of the ends.
fn forget_idle(idle: &mut VecDeque<u32>, slot: u32) {
    if idle.back() == Some(&slot) {
        idle.pop_back();
    } else if idle.front() == Some(&slot) {
        idle.pop_front();
    } else {
        idle.retain(|other| *other != slot);
    }
}

/// Above the slot's number, and above the bit that marks what is only counted.
const AGE: u32 = 33;
const MAX_AGE: u32 = u32::MAX >> 1;

const fn mark(slot: u32, age: u32) -> u64 {
    (age as u64) << AGE | slot as u64
}

const fn parts(mark: u64) -> (u32, u32) {
    (mark as u32, (mark >> AGE) as u32)
}
