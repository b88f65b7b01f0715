//! Whether other processes wait for what this one keeps, as far as it was told.

use std::time::Duration;

use crate::time::Instant;

/// What was told last, in the order in which the server said it.
#[derive(Debug)]
pub(super) struct Others {
    wait: bool,
    /// Of the newest word that counted.
    stamp: u64,
    /// When that came.
    heard: Instant,
    /// Since when they wait.
    since: Instant,
    /// How often they have begun to.
    pub(super) turn: u32,
}

impl Others {
    pub(super) const fn new() -> Self {
        Self {
            wait: false,
            stamp: 0,
            heard: Instant::from_nanos(0),
            since: Instant::from_nanos(0),
            turn: 0,
        }
    }

    pub(super) const fn wait(&self) -> bool {
        self.wait
    }

    /// Until when a word that others wait spares the question whether they do.
    pub(super) fn known_until(&self) -> Instant {
        if self.wait {
            self.heard.after(QUESTION)
        } else {
            Instant::from_nanos(0)
        }
    }

    /// From when on others that waited may have gone, though nobody said so: a word that no later one
    /// undoes was forged, or comes from before the server's clock was set back.
    pub(super) fn stale_at(&self) -> Instant {
        if self.wait {
            self.heard.after(STALE)
        } else {
            Instant::FAR
        }
    }

    /// Since when a permit that was granted at `granted` may be passed on to some only.
    pub(super) fn since(&self, granted: Instant) -> Instant {
        self.since.max(granted)
    }

    /// A grant or a recall says so, at a moment that only the server's stamp dates: an older word
    /// than the last changes nothing, and "nobody" must be newer.
    pub(super) fn told(&mut self, now: Instant, stamp: u64, wait: bool) {
        if stamp > self.stamp || stamp == self.stamp && wait {
            self.set(now, stamp, wait);
        }
    }

    /// The answer to a question that was sent at `sent`. If that was after the last word came, it is
    /// newer, whatever the stamps say: then the server's clock was set back, or another server has
    /// taken over.
    pub(super) fn answered(&mut self, now: Instant, sent: Instant, stamp: u64, wait: bool) {
        if sent > self.heard {
            self.set(now, stamp, wait);
        } else {
            self.told(now, stamp, wait);
        }
    }

    fn set(&mut self, now: Instant, stamp: u64, wait: bool) {
        if wait && !self.wait {
            self.since = now;
            self.turn = self.turn.wrapping_add(1);
        }
        self.wait = wait;
        self.stamp = stamp;
        self.heard = now;
    }
}

/// How long a process may go without asking whether others wait, while it keeps permits: a recall
/// that is lost costs them no more.
pub(super) const QUESTION: Duration = Duration::from_millis(50);

/// How long a word that others wait is believed where nothing is kept that a question would be asked
/// about.
const STALE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn an_older_word_that_nobody_waits_clears_no_newer_one_that_others_do() {
        let mut others = Others::new();
        others.told(at(1), 10, true);
        others.told(at(2), 9, false);
        others.told(at(2), 10, false);
        assert!(others.wait());
        others.told(at(3), 11, false);
        assert!(!others.wait());
        others.told(at(4), 10, true);
        assert!(!others.wait(), "it was said before the last word");
    }

    #[test]
    fn an_answer_to_what_was_asked_before_the_last_word_clears_it_only_by_its_stamp() {
        let mut others = Others::new();
        others.told(at(5), 10, true);
        others.answered(at(6), at(4), 9, false);
        assert!(others.wait());
        others.answered(at(7), at(5), 11, false);
        assert!(!others.wait());
    }

    #[test]
    fn a_server_whose_clock_was_set_back_is_believed_when_it_is_asked() {
        let mut others = Others::new();
        others.told(at(1), 1000, false);
        others.told(at(2), 10, true);
        assert!(!others.wait());
        others.answered(at(4), at(3), 11, true);
        assert!(others.wait());
        others.told(at(5), 12, false);
        assert!(!others.wait());
    }
}
