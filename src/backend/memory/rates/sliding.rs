//! What is kept of a quota by sliding-window counter: how much was used in the window of the last
//! use, and in the one before.

/// A window is looked at in so many steps, or a few less: a count times this is less than 2^53.
const STEPS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sliding {
    /// When something was used last.
    pub(super) last: u64,
    pub(super) window: u64,
    pub(super) current: u64,
    pub(super) previous: u64,
}

/// How a window's length is divided: the length of a step, and their number.
const fn steps(window: u64) -> (u64, u64) {
    let step = window.div_ceil(STEPS);
    (step, window.div_ceil(step))
}

/// The steps of the window before that still count at a moment: at least one, rounded up.
const fn weight(moment: u64, window: u64) -> u64 {
    let (step, steps) = steps(window);
    steps - moment % window / step
}

impl Sliding {
    pub(super) const fn new(now: u64, window: u64) -> Self {
        Self {
            last: now,
            window,
            current: 0,
            previous: 0,
        }
    }

    /// The counts as of the window of `moment`, which is not before the last use.
    const fn counts(&self, moment: u64) -> (u64, u64) {
        match moment / self.window - self.last / self.window {
            0 => (self.current, self.previous),
            1 => (0, self.current),
            _ => (0, 0),
        }
    }

    /// What counts as used.
    const fn used(&self, moment: u64) -> u64 {
        let (current, previous) = self.counts(moment);
        let (_, steps) = steps(self.window);
        current + (previous * weight(moment, self.window)).div_ceil(steps)
    }

    /// Counts all that is used as used at the last use, in the windows of this length.
    pub(super) fn rescale(&mut self, window: u64) {
        if window != self.window {
            self.gather();
            self.window = window;
        }
    }

    fn gather(&mut self) {
        self.current = self.used(self.last);
        self.previous = 0;
    }

    pub(super) fn earliest(&self, now: u64, limit: u64, cost: u64) -> u64 {
        let from = now.max(self.last);
        let (step, steps) = steps(self.window);
        let (mut current, mut previous) = self.counts(from);
        let mut start = from - from % self.window;
        loop {
            if let Some(free) = limit.checked_sub(current + cost) {
                let weight = match previous {
                    0 => steps,
                    previous => steps.min(free * steps / previous),
                };
                if weight > 0 {
                    return from.max(start + (steps - weight) * step);
                }
            }
            // In the third window both are zero, and the cost fits.
            (current, previous) = (0, current);
            start += self.window;
        }
    }

    pub(super) fn take(&mut self, when: u64, cost: u64) {
        (self.current, self.previous) = self.counts(when);
        self.current += cost;
        self.last = when;
    }

    pub(super) fn debit(&mut self, when: u64, limit: u64, cost: u64) {
        let room = (2 * limit).saturating_sub(self.used(when));
        self.take(when, cost.min(room));
    }

    /// From the window in which it was used last first.
    pub(super) fn refund(&mut self, now: u64, cost: u64) {
        self.take(now, 0);
        let recent = cost.min(self.current);
        self.current -= recent;
        self.previous = self.previous.saturating_sub(cost - recent);
    }

    pub(super) fn remaining(&self, now: u64, limit: u64) -> u64 {
        limit.saturating_sub(self.used(now.max(self.last)))
    }

    /// When nothing counts any more.
    pub(super) const fn ends(&self) -> u64 {
        let start = self.last - self.last % self.window;
        match (self.current, self.previous) {
            (0, 0) => self.last,
            (0, _) => start + self.window,
            _ => start + 2 * self.window,
        }
    }

    pub(super) fn set_back(&mut self, by: u64) {
        // The windows begin elsewhere.
        self.gather();
        self.last = self.last.saturating_sub(by);
    }
}
