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
