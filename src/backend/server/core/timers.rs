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
#[derive(Debug)]
pub(in crate::backend) struct Timers<D>(BTreeSet<(Instant, D)>);

impl<D> Default for Timers<D> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<D: Copy + Ord> Timers<D> {
    /// Moves a timer forward to `next`; one that is earlier stays.
    pub(in crate::backend) fn set(&mut self, timer: &mut Instant, next: Instant, due: D) {
        if next < *timer {
            self.clear(*timer, due);
            self.0.insert((next, due));
            *timer = next;
        }
    }

    pub(in crate::backend) fn clear(&mut self, timer: Instant, due: D) {
        if timer != Instant::FAR {
            self.0.remove(&(timer, due));
        }
    }

    pub(in crate::backend) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    pub(in crate::backend) fn pop(&mut self, now: Instant) -> Option<D> {
        let (at, _) = self.0.first()?;
        if *at > now {
            return None;
        }
        self.0.pop_first().map(|(_, due)| due)
    }
}
