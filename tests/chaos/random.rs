//! Seeded randomness: the same seed makes the same plan, though the machine may schedule it
//! differently.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough to pick faults.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own for each task, so that one that draws more does not change what the
    /// others do.
    pub(crate) fn stream(seed: u64, number: u64) -> Self {
        let mut mixed = Self(seed ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        mixed.next();
        mixed
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Whole microseconds between two numbers of milliseconds.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1000 + self.below((to - from) * 1000))
    }

    /// A part of `whole`, between two percentages.
    pub(crate) fn part(&mut self, whole: Duration, from: u64, to: u64) -> Duration {
        whole * u32::try_from(from + self.below(to - from)).unwrap_or(100) / 100
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[usize::try_from(self.below(items.len() as u64)).unwrap_or(0)]
    }
}
