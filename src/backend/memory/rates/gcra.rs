//! What is kept of a quota by GCRA: the moment at which all that was used will have drained.

use super::FAR_US;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gcra {
    /// The theoretical arrival time: when nothing counts as used any more.
    pub(super) drained: u64,
    /// In which one unit drains.
    pub(super) interval: u64,
}

/// A length of time in which so many units drain, for another interval. In doubles, as a script
/// counts: the product may have more than 64 bits.
fn scaled(us: u64, from: u64, to: u64) -> u64 {
    if from == to {
        return us;
    }
    let scaled = (us as f64 / from as f64 * to as f64).ceil();
    (scaled as u64).min(FAR_US)
}

impl Gcra {
    pub(super) const fn new(now: u64, interval: u64) -> Self {
        Self {
            drained: now,
            interval,
        }
    }

    const fn debt(&self, now: u64) -> u64 {
        self.drained.saturating_sub(now)
    }

    /// Counts in another interval, from the moment `at` on.
    pub(super) fn rescale(&mut self, at: u64, interval: u64) {
        self.drained = at + scaled(self.debt(at), self.interval, interval);
        self.interval = interval;
    }

    pub(super) fn earliest(&self, now: u64, burst: u64, cost: u64) -> u64 {
        let room = burst * self.interval;
        (self.drained.max(now) + cost * self.interval)
            .saturating_sub(room)
            .max(now)
    }

    pub(super) fn take(&mut self, when: u64, cost: u64) {
        self.drained = self.drained.max(when) + cost * self.interval;
    }

    pub(super) fn debit(&mut self, when: u64, burst: u64, cost: u64) {
        let most = 2 * burst * self.interval;
        let debt = self.debt(when);
        let after = debt.saturating_add(cost.saturating_mul(self.interval));
        self.drained = when + after.min(debt.max(most));
    }

    pub(super) fn refund(&mut self, cost: u64) {
        let units = cost.saturating_mul(self.interval);
        self.drained = self.drained.saturating_sub(units);
    }

    pub(super) fn remaining(&self, now: u64, burst: u64) -> u64 {
        (burst * self.interval).saturating_sub(self.debt(now)) / self.interval
    }

    pub(super) fn set_back(&mut self, by: u64) {
        self.drained = self.drained.saturating_sub(by);
    }
}
