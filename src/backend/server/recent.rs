//! What was ended lately at a server that may be replaced: its successor may not know of it.
//!
//! A replica that becomes the master lacks what was answered last: a moment's worth after a crash,
//! and seconds' worth where the old master went on while its successor was made. There, a lease
//! that was given back is held until it runs out, and each place that was given up is granted in
//! its turn and stops the queue until that grant lapses. So these tokens are ended there again,
//! which does nothing where they are over.

use std::collections::VecDeque;
use std::time::Duration;

use super::call::{Body, Call, End};
use super::origin::Term;
use crate::time::Instant;

/// How much of the time that was answered last. After a crash no more is answered, so it does not
/// matter how long the failover takes.
const KEPT: Duration = Duration::from_secs(5);
/// And how many at most, of about 60 bytes each.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct Recent {
    ends: VecDeque<Ended>,
}

struct Ended {
    at: Instant,
    term: Term,
    end: End,
}

impl Recent {
    /// Notes that an end was answered in a term.
    pub(super) fn note(&mut self, now: Instant, term: Term, end: &End) {
        while self.ends.len() >= MOST
            || self
                .ends
                .front()
                .is_some_and(|oldest| now.since(oldest.at) > KEPT)
        {
            self.ends.pop_front();
        }
        let end = End {
            token: end.token,
            resource: end.resource.clone(),
            // Whatever was asked by this token has been answered.
            latest_ms: 0,
        };
        self.ends.push_back(Ended { at: now, term, end });
    }

    /// Takes what ended in earlier terms at those gates that `concerns` says.
    pub(super) fn take(
        &mut self,
        now: Instant,
        term: Term,
        concerns: impl Fn(&End) -> bool,
    ) -> Vec<Call> {
        let (again, rest) = std::mem::take(&mut self.ends)
            .into_iter()
            .partition(|ended: &Ended| ended.term != term && concerns(&ended.end));
        self.ends = rest;
        let again: VecDeque<Ended> = again;
        let calls = again.into_iter().map(|ended| Call {
            sent: now,
            body: Body::End(ended.end),
        });
        calls.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key::{Kind, Prefix, Resource};
    use crate::token::{Instance, Token};

    fn end() -> End {
        let instance = Instance::draw().expect("the system has random numbers");
        let place = Resource::probe(&Prefix::default(), Kind::Mutex, &instance);
        End {
            token: Token::draw().expect("the system has random numbers"),
            resource: Arc::new(place),
            latest_ms: 7,
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn tokens(calls: Vec<Call>) -> Vec<Token> {
        let token = |call: Call| match call.body {
            Body::End(end) => end.token,
            other => panic!("no end: {other:?}"),
        };
        calls.into_iter().map(token).collect()
    }

    #[test]
    fn what_ended_in_earlier_terms_is_ended_once_more_and_in_order() {
        let (mut recent, one, other, late) = (Recent::default(), end(), end(), end());
        recent.note(at(1), 1, &one);
        recent.note(at(2), 1, &other);
        recent.note(at(3), 2, &late);
        assert_eq!(
            tokens(recent.take(at(4), 2, |end| end.token == other.token)),
            [other.token]
        );
        assert_eq!(tokens(recent.take(at(4), 2, |_| true)), [one.token]);
        assert_eq!(tokens(recent.take(at(4), 2, |_| true)), []);
        assert_eq!(tokens(recent.take(at(4), 3, |_| true)), [late.token]);
    }

    #[test]
    fn a_failover_may_take_long_and_only_what_came_last_before_it_is_kept() {
        let (mut recent, early, last) = (Recent::default(), end(), end());
        recent.note(at(0), 1, &early);
        recent.note(at(6_000), 1, &last);
        assert_eq!(tokens(recent.take(at(600_000), 2, |_| true)), [last.token]);
        for _ in 0..2 * MOST {
            recent.note(at(600_000), 2, &early);
        }
        assert_eq!(recent.take(at(600_000), 3, |_| true).len(), MOST);
    }
}
