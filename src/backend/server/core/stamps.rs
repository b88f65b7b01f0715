//! Which of our requests the server ran before a push.
//!
//! Clocks do not tell: the server's may be set back between the two. But all fences and tickets of
//! one hash tag are drawn from one counter, and answers are stamped with where it stands. One whose
//! stamp is less than a push's fence was given before that push, so the push's grant came after the
//! sending of that request, and lasts at least as long from there as it does on the server.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Instant;

/// How far apart the kept answers lie at least, and how many are kept: a push is rarely later than
/// that, and then only pays a round trip.
const SPACING: Duration = Duration::from_millis(50);
const KEPT: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Stamps {
    latest: Option<(u64, Instant)>,
    /// Spaced, so that they reach back over the delay of a push.
    kept: VecDeque<(u64, Instant)>,
}

impl Stamps {
    /// A request sent at `sent` was answered with `stamp`.
    pub(super) fn seen(&mut self, stamp: u64, sent: Instant) {
        self.latest = Some((stamp, sent));
        if self
            .kept
            .back()
            .is_none_or(|(_, last)| sent.since(*last) >= SPACING)
        {
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back((stamp, sent));
        }
    }

    /// The last known moment that surely lies before the push with `fence`.
    pub(super) fn before(&self, fence: u64) -> Option<Instant> {
        let known = self.latest.iter().chain(self.kept.iter());
        known
            .filter(|(stamp, _)| *stamp < fence)
            .map(|(_, sent)| *sent)
            .max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_push_is_dated_by_the_last_sending_that_was_answered_before_it() {
        let mut stamps = Stamps::default();
        assert_eq!(stamps.before(u64::MAX), None);
        for (stamp, ms) in [(10, 100), (20, 200), (30, 300)] {
            stamps.seen(stamp, at(ms));
        }
        assert_eq!(stamps.before(25), Some(at(200)));
        assert_eq!(stamps.before(31), Some(at(300)));
        assert_eq!(stamps.before(10), None, "an equal stamp may count the push");
    }

    #[test]
    fn stamps_reach_back_however_many_answers_come() {
        let mut stamps = Stamps::default();
        for ms in 0..100_000 {
            stamps.seen(ms, at(ms));
        }
        assert!(stamps.kept.len() <= KEPT);
        assert!(
            stamps
                .before(99_500)
                .is_some_and(|moment| moment >= at(99_400))
        );
    }
}
