//! What is kept of a quota by strict log: when each unit was used.

use std::collections::VecDeque;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Strict {
    pub(super) window: u64,
    /// Of each unit, the oldest first.
    pub(super) times: VecDeque<u64>,
}

impl Strict {
    pub(super) const fn new(window: u64) -> Self {
        Self {
            window,
            times: VecDeque::new(),
        }
    }

    /// How many units are older than the window.
    fn over(&self, moment: u64) -> usize {
        let window = self.window;
        self.times.partition_point(|&time| time + window <= moment)
    }

    /// Units that were used within the window before `moment`.
    fn used(&self, moment: u64) -> usize {
        self.times.len() - self.over(moment)
    }

    pub(super) fn earliest(&self, now: u64, limit: u64, cost: u64) -> u64 {
        let stay = (limit - cost) as usize;
        // The youngest of those that have to be out of the window first.
        let blocking = self.times.len().checked_sub(stay + 1);
        blocking.map_or(now, |index| now.max(self.times[index] + self.window))
    }

    pub(super) fn take(&mut self, when: u64, cost: u64) {
        self.times.drain(..self.over(when));
        for _ in 0..cost {
            self.times.push_back(when);
        }
    }

    pub(super) fn debit(&mut self, when: u64, limit: u64, cost: u64) {
        let room = (2 * limit).saturating_sub(self.used(when) as u64);
        self.take(when, cost.min(room));
    }

    /// The youngest first.
    pub(super) fn refund(&mut self, now: u64, cost: u64) {
        self.take(now, 0);
        let left = (self.times.len() as u64).saturating_sub(cost);
        self.times.truncate(left as usize);
    }

    pub(super) fn remaining(&self, now: u64, limit: u64) -> u64 {
        limit.saturating_sub(self.used(now) as u64)
    }

    /// When nothing counts any more.
    pub(super) fn ends(&self) -> u64 {
        self.times.back().map_or(0, |last| last + self.window)
    }

    pub(super) fn set_back(&mut self, by: u64) {
        for time in &mut self.times {
            *time = time.saturating_sub(by);
        }
    }
}
