//! What a handle remembers of denials, so that a caller who does not stop asking costs the server
//! nothing.
//!
//! A denial is true until its retry time for the same cost and any greater one, since a quota gains
//! nothing before. Only what frees units early (a reset, a refund) can make it untrue; that of this
//! handle forgets it, that of another process is noticed within a second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::quota::Quotas;
use super::report::QuotaReport;
use crate::key::Key;
use crate::time::Instant;

/// The longest time for which one is believed.
const LONGEST: Duration = Duration::from_secs(1);
/// So many subjects are remembered at a time.
const MOST: usize = 4_096;

#[derive(Debug, Default)]
pub(super) struct Denials(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Counts what was forgotten, so that an answer that was under way meanwhile is not believed.
    epoch: u64,
    entries: HashMap<Option<Key>, Denial>,
}

#[derive(Debug)]
struct Denial {
    cost: u32,
    quotas: Quotas,
    /// It was surely still true a moment before.
    until: Instant,
    received: Instant,
    report: QuotaReport,
}

impl Denials {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be handed to [`remember`](Self::remember) with the answer to what is asked after it.
    pub(super) fn epoch(&self) -> u64 {
        self.known().epoch
    }

    /// How a call is refused that is sure to be.
    pub(super) fn find(
        &self,
        now: Instant,
        key: Option<&Key>,
        cost: u32,
        quotas: &Quotas,
    ) -> Option<QuotaReport> {
        let known = self.known();
        if known.entries.is_empty() {
            return None;
        }
        // Looked up by reference to the same form as it is kept in.
        let denial = known.entries.get(&key.cloned())?;
        let holds = now < denial.until && cost >= denial.cost && denial.quotas.are(quotas);
        holds.then(|| denial.report.after(now.since(denial.received)))
    }

    /// Keeps a denial that was asked for at `sent` and received at `now`.
    pub(super) fn remember(
        &self,
        epoch: u64,
        [sent, now]: [Instant; 2],
        key: Option<&Key>,
        cost: u32,
        report: &QuotaReport,
        quotas: &Quotas,
    ) {
        let Some(retry_after) = report.retry_after() else {
            return;
        };
        // The server decided after the sending, so it is true for as long from there; but for the
        // moments that two clocks may differ by.
        let drift = retry_after / 1000;
        let until = sent
            .after(retry_after.saturating_sub(drift))
            .min(now.after(LONGEST));
        let mut known = self.known();
        if until <= now || known.epoch != epoch {
            return;
        }
        if known.entries.len() >= MOST {
            known.entries.retain(|_, denial| denial.until > now);
            if known.entries.len() >= MOST {
                return;
            }
        }
        let denial = Denial {
            cost,
            quotas: quotas.clone(),
            until,
            received: now,
            report: report.clone(),
        };
        known.entries.insert(key.cloned(), denial);
    }

    /// Something was freed, or is about to be.
    pub(super) fn forget(&self, key: Option<&Key>) {
        let mut known = self.known();
        known.epoch += 1;
        known.entries.remove(&key.cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Level;
    use crate::rate_limit::Quota;

    fn quotas(n: u32) -> Quotas {
        Quotas::new([Quota::per_hour(n)]).expect("in range")
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn denied(retry_ms: u64, quotas: &Quotas) -> QuotaReport {
        let level = Level {
            remaining: 0,
            reset_after: Duration::from_secs(3600),
            retry_after: Some(Duration::from_millis(retry_ms)),
        };
        QuotaReport::new(quotas.clone(), Box::new([level]))
    }

    /// Asked at 100 ms, answered at 110 ms.
    fn remember(denials: &Denials, key: Option<&Key>, cost: u32, retry_ms: u64) {
        let quotas = quotas(1);
        let (epoch, report) = (denials.epoch(), denied(retry_ms, &quotas));
        denials.remember(epoch, [at(100), at(110)], key, cost, &report, &quotas);
    }

    #[test]
    fn a_denial_is_repeated_until_its_time_for_as_much_or_more() {
        let (denials, key) = (Denials::default(), Key::from("a"));
        remember(&denials, Some(&key), 2, 500);
        let find = |ms, key, cost, n| denials.find(at(ms), key, cost, &quotas(n));
        let told = find(300, Some(&key), 2, 1).expect("it is known");
        // The time has run on since the answer.
        assert_eq!(told.retry_after(), Some(Duration::from_millis(310)));
        assert!(find(300, Some(&key), 3, 1).is_some());
        assert!(find(300, Some(&key), 1, 1).is_none(), "less may fit");
        assert!(find(300, Some(&key), 2, 5).is_none(), "other quotas");
        assert!(find(300, None, 2, 1).is_none(), "another key");
        // From the sending, by a clock that may differ a little.
        assert!(find(598, Some(&key), 2, 1).is_some());
        assert!(find(600, Some(&key), 2, 1).is_none());
    }

    #[test]
    fn it_is_believed_for_a_second_at_most_and_not_after_something_was_freed() {
        let denials = Denials::default();
        remember(&denials, None, 1, 60_000);
        assert!(denials.find(at(1_109), None, 1, &quotas(1)).is_some());
        assert!(denials.find(at(1_110), None, 1, &quotas(1)).is_none());
        denials.forget(None);
        assert!(denials.find(at(200), None, 1, &quotas(1)).is_none());
        // An answer that was under way meanwhile.
        let epoch = denials.epoch();
        denials.forget(None);
        let (quotas, times) = (quotas(1), [at(100), at(110)]);
        denials.remember(epoch, times, None, 1, &denied(500, &quotas), &quotas);
        assert!(denials.find(at(200), None, 1, &quotas).is_none());
    }

    #[test]
    fn no_more_are_remembered_than_may_be() {
        let denials = Denials::default();
        for number in 0..2 * MOST {
            remember(&denials, Some(&Key::from(number)), 1, 500);
        }
        assert_eq!(denials.known().entries.len(), MOST);
        let quotas = quotas(1);
        let (epoch, report) = (denials.epoch(), denied(500, &quotas));
        // Those that are over make room.
        let (key, times) = (Key::from("late"), [at(900), at(910)]);
        denials.remember(epoch, times, Some(&key), 1, &report, &quotas);
        assert_eq!(denials.known().entries.len(), 1);
    }
}
