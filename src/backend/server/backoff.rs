//! How long to pause before trying again what has failed.

use std::time::Duration;

/// Doubles from the first pause to the longest, with half of each at random, so that a fleet that
/// lost its server together does not come back at once.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    pub(in crate::backend) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after so many failures before this one; `random` is below 256.
    pub(in crate::backend) fn pause(self, failures: u32, random: u32) -> Duration {
        let full = self.first.saturating_mul(1 << failures.min(10));
        let full = full.min(self.longest);
        full / 2 + full / 2 * random / 256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_half_of_each_is_random() {
        let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(60));
        for (failures, full) in [(0, 10), (1, 20), (2, 40), (3, 60), (4, 60), (u32::MAX, 60)] {
            let full = Duration::from_millis(full);
            assert_eq!(backoff.pause(failures, 0), full / 2);
            let most = backoff.pause(failures, 255);
            assert!(most > full / 10 * 9 && most < full, "{most:?} of {full:?}");
        }
    }
}
