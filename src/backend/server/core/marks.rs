//! Which of our requests the server ran before a push.
//!
//! Clocks do not tell: the server's may be set back between the two. Answers and pushes of one hash
//! tag therefore carry marks. An answer with a smaller mark than a push was given before it, so the
//! push's grant came after the sending of that request, and lasts at least as long from there as it
//! does on the server.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Instant;

/// How far apart the kept answers lie at least, and how many are kept: a push is rarely later than
/// that, and then only pays a round trip.
const SPACING: Duration = Duration::from_millis(50);
const KEPT: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Marks {
    latest: Option<(u64, Instant)>,
    /// Spaced, so that they reach back over the delay of a push.
    kept: VecDeque<(u64, Instant)>,
}

impl Marks {
    /// A request sent at `sent` was answered with `mark`.
    pub(super) fn seen(&mut self, mark: u64, sent: Instant) {
        self.latest = Some((mark, sent));
        if self
            .kept
            .back()
            .is_none_or(|(_, last)| sent.since(*last) >= SPACING)
        {
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back((mark, sent));
        }
    }

    /// The last known moment that surely lies before the push with `mark`.
    pub(super) fn before(&self, mark: u64) -> Option<Instant> {
        let known = self.latest.iter().chain(self.kept.iter());
        known
            .filter(|(seen, _)| *seen < mark)
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
        let mut marks = Marks::default();
        assert_eq!(marks.before(u64::MAX), None);
        for (mark, ms) in [(10, 100), (20, 200), (30, 300)] {
            marks.seen(mark, at(ms));
        }
        assert_eq!(marks.before(25), Some(at(200)));
        assert_eq!(marks.before(31), Some(at(300)));
        assert_eq!(
            marks.before(10),
            None,
            "an equal mark may be the push's own"
        );
    }

    #[test]
    fn marks_reach_back_however_many_answers_come() {
        let mut marks = Marks::default();
        for ms in 0..100_000 {
            marks.seen(ms, at(ms));
        }
        assert!(marks.kept.len() <= KEPT);
        assert!(
            marks
                .before(99_500)
                .is_some_and(|moment| moment >= at(99_400))
        );
    }
}
