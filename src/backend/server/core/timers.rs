//! When what is due.

use std::collections::BTreeSet;

use crate::key::Tag;
use crate::time::Instant;
use crate::token::Token;

/// What a timer was set for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Token(Token),
    Tag(Tag),
    Taker(u64),
    Unbooking(u64),
}

/// Each owner keeps the moment of its one timer, `FAR` for none, and passes it in.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Instant, Due)>);

impl Timers {
    /// Moves a timer forward to `next`; one that is earlier stays.
    pub(super) fn set(&mut self, timer: &mut Instant, next: Instant, due: Due) {
        if next < *timer {
            self.clear(*timer, due);
            self.0.insert((next, due));
            *timer = next;
        }
    }

    pub(super) fn clear(&mut self, timer: Instant, due: Due) {
        if timer != Instant::FAR {
            self.0.remove(&(timer, due));
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<Due> {
        let (at, _) = self.0.first()?;
        if *at > now {
            return None;
        }
        self.0.pop_first().map(|(_, due)| due)
    }
}
