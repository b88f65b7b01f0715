//! What was ended lately at a server that may be replaced: its successor may not know of it.
//!
//! A replica that becomes the master lacks what was answered last: a moment's worth after a crash,
//! and seconds' worth where the old master went on while its successor was made. There, a lease
//! that was given back is held until it runs out, and each place that was given up is granted in
//! its turn and stops the queue until that grant lapses. So these tokens are ended there again,
//! which does nothing where they are over.

use std::collections::VecDeque;
use std::time::Duration;

use super::origin::Term;
use crate::time::Instant;

/// How much of the time that was answered last. After a crash no more is answered, so it does not
/// matter how long the failover takes.
const KEPT: Duration = Duration::from_secs(5);
/// And how many at most, of about 60 bytes each.
const MOST: usize = 4096;

/// `E` says what was ended.
#[derive(Debug)]
pub(in crate::backend) struct Recent<E> {
    ends: VecDeque<Ended<E>>,
}

#[derive(Debug)]
struct Ended<E> {
    at: Instant,
    term: Term,
    end: E,
}

impl<E> Default for Recent<E> {
    fn default() -> Self {
        let ends = VecDeque::new();
        Self { ends }
    }
}

impl<E> Recent<E> {
    /// Notes that an end was answered in a term.
    pub(in crate::backend) fn note(&mut self, now: Instant, term: Term, end: E) {
        while self.ends.len() >= MOST
            || self
                .ends
                .front()
                .is_some_and(|oldest| now.since(oldest.at) > KEPT)
        {
            self.ends.pop_front();
        }
        self.ends.push_back(Ended { at: now, term, end });
    }

    /// Takes what ended in earlier terms, as far as it `concerns` who asks.
    pub(in crate::backend) fn take(
        &mut self,
        term: Term,
        concerns: impl Fn(&E) -> bool,
    ) -> impl Iterator<Item = E> {
        let (again, rest) = std::mem::take(&mut self.ends)
            .into_iter()
            .partition(|ended: &Ended<E>| ended.term != term && concerns(&ended.end));
        self.ends = rest;
        let again: VecDeque<Ended<E>> = again;
        again.into_iter().map(|ended| ended.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn taken(recent: &mut Recent<&'static str>, term: Term) -> Vec<&'static str> {
        recent.take(term, |_| true).collect()
    }

    #[test]
    fn what_ended_in_earlier_terms_is_ended_once_more_and_in_order() {
        let mut recent = Recent::default();
        recent.note(at(1), 1, "one");
        recent.note(at(2), 1, "other");
        recent.note(at(3), 2, "late");
        let others: Vec<_> = recent.take(2, |end| *end == "other").collect();
        assert_eq!(others, ["other"]);
        assert_eq!(taken(&mut recent, 2), ["one"]);
        assert_eq!(taken(&mut recent, 2), [""; 0]);
        assert_eq!(taken(&mut recent, 3), ["late"]);
    }

    #[test]
    fn a_failover_may_take_long_and_only_what_came_last_before_it_is_kept() {
        let mut recent = Recent::default();
        recent.note(at(0), 1, "early");
        recent.note(at(6_000), 1, "last");
        assert_eq!(taken(&mut recent, 2), ["last"]);
        for _ in 0..2 * MOST {
            recent.note(at(600_000), 2, "early");
        }
        assert_eq!(taken(&mut recent, 3).len(), MOST);
    }
}
