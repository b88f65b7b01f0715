//! What subjects have used of their quotas, kept in this process until it has all come back.

mod gcra;
mod sliding;
mod state;
mod strict;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::state::FAR_US;
#[cfg(test)]
pub(crate) use self::state::Outcome;
pub(crate) use self::state::{Change, State, decide};
use crate::backend::{Booking, Take, Taken};
use crate::time::{Clock, Instant};

/// More than threads that are likely to be at work at once.
const SHARDS: usize = 64;
/// So many subjects are worth a look for those of whom nothing is left.
const FEW: usize = 64;

#[derive(Debug)]
pub(crate) struct Rates {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Shard {
    subjects: HashMap<Arc<str>, State>,
    /// At how many it is next looked through: then half of them are new since the last time.
    crowded: usize,
}

impl Shard {
    fn change(&mut self, subject: &str, now: u64, change: Change) {
        match change {
            Change::None => {}
            Change::Remove => {
                self.subjects.remove(subject);
            }
            Change::Write(state) => {
                if let Some(known) = self.subjects.get_mut(subject) {
                    *known = state;
                    return;
                }
                self.make_room(now);
                self.subjects.insert(subject.into(), state);
            }
        }
    }

    /// Forgets those of whom nothing is left: each newcomer pays for a look at two.
    fn make_room(&mut self, now: u64) {
        if self.subjects.len() >= self.crowded.max(FEW) {
            self.subjects.retain(|_, state| state.ends() > now);
            self.crowded = 2 * self.subjects.len();
            self.subjects.shrink_to(self.crowded);
        }
    }
}

impl Rates {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    fn shard(&self, subject: &str) -> MutexGuard<'_, Shard> {
        // Not truncated: the remainder is below 64.
        let shard = (self.hasher.hash_one(subject) % SHARDS as u64) as usize;
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a call; `unbook` gives a booking back, if it is one that is away.
    pub(crate) fn take(
        &self,
        clock: &Clock,
        subject: &str,
        take: &Take,
        unbook: impl FnOnce(Box<Unbook>) -> Booking,
    ) -> Taken {
        let mut shard = self.shard(subject);
        // Read under the lock, so that readings are in the order of the calls.
        let now = micros(clock.now());
        let kept = shard.subjects.get(subject);
        let outcome = decide(kept, now, take.op, take.cost, take.quotas.rules());
        let mut booking = None;
        if outcome.wait > 0
            && let Change::Write(after) = &outcome.change
        {
            booking = Some(unbook(Box::new(Unbook {
                before: kept.cloned(),
                after: after.clone(),
            })));
        }
        shard.change(subject, now, outcome.change);
        Taken {
            admitted: outcome.admitted,
            wait: Duration::from_micros(outcome.wait),
            levels: outcome.levels,
            booking,
        }
    }

    pub(crate) fn unbook(&self, clock: &Clock, subject: &str, booking: Unbook) {
        let mut shard = self.shard(subject);
        let now = micros(clock.now());
        let current = shard.subjects.get(subject);
        let change = State::unbook(current, booking.before, &booking.after, now);
        shard.change(subject, now, change);
    }
}

/// What a booking found and left.
#[derive(Debug)]
pub(crate) struct Unbook {
    before: Option<State>,
    after: State,
}

fn micros(now: Instant) -> u64 {
    now.as_nanos() / 1000
}

#[cfg(test)]
mod tests;
