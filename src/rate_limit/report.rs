//! How quotas stand after a call: all that headers have to say.

use std::time::Duration;

use super::quota::Quotas;
use super::rule::Rule;
use crate::backend::Level;

/// How the quotas of one subject stand after a call, admitted or not.
///
/// All of it is as of the moment at which the call was decided. A call refused from the
/// [denial cache](crate::RateLimiter#denials) tells what the decision it repeats told, with times
/// that have run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaReport {
    quotas: Quotas,
    levels: Box<[Level]>,
}

impl QuotaReport {
    pub(super) fn new(quotas: Quotas, levels: Box<[Level]>) -> Self {
        debug_assert_eq!(quotas.rules().len(), levels.len());
        Self { quotas, levels }
    }

    /// The same when some time has passed.
    pub(super) fn after(&self, passed: Duration) -> Self {
        let levels = self.levels.iter().map(|level| level.after(passed));
        Self {
            quotas: self.quotas.clone(),
            levels: levels.collect(),
        }
    }

    /// Each quota in the order in which they were given.
    #[must_use]
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = QuotaStatus<'_>> {
        let each = self.quotas.rules().iter().zip(&self.levels);
        each.map(|(rule, level)| QuotaStatus { rule, level })
    }

    /// The quota that binds: of those that refused the call the one that lets it through last, else
    /// the one with the smallest part left. Shadow quotas bind only where there is no other.
    #[must_use]
    pub fn binding(&self) -> QuotaStatus<'_> {
        let rank = |status: &QuotaStatus<'_>| {
            let left = u64::from(status.remaining()) << 32;
            let share = left / u64::from(status.rule.capacity);
            let late = std::cmp::Reverse(status.retry_after());
            (status.is_shadow(), late, share)
        };
        let first = QuotaStatus {
            rule: &self.quotas.rules()[0],
            level: &self.levels[0],
        };
        self.quotas().min_by_key(rank).unwrap_or(first)
    }

    /// How many units can be used at once from here without being refused, if nobody else uses any.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        let enforced = self.quotas().filter(|status| !status.is_shadow());
        let least = enforced.map(|status| status.remaining()).min();
        least.unwrap_or(u32::MAX)
    }

    /// When the call would be admitted, if nobody else uses any: `None` if it was.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let enforced = self.quotas().filter(|status| !status.is_shadow());
        enforced.filter_map(|status| status.retry_after()).max()
    }
}

/// One quota in a [`QuotaReport`].
#[derive(Debug, Clone, Copy)]
pub struct QuotaStatus<'a> {
    rule: &'a Rule,
    level: &'a Level,
}

impl<'a> QuotaStatus<'a> {
    /// Its name, given or made from its window: plain ASCII without quotes.
    #[must_use]
    pub fn name(&self) -> &'a str {
        &self.rule.name
    }

    /// How many units it allows in its [`window`](Self::window).
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.rule.limit
    }

    /// How many it allows at once: the burst of a GCRA, else the limit.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.rule.capacity
    }

    /// The length of time that [`limit`](Self::limit) is about.
    #[must_use]
    pub const fn window(&self) -> Duration {
        self.rule.window
    }

    /// How many units it has left, to be used at once.
    #[must_use]
    pub const fn remaining(&self) -> u32 {
        self.level.remaining
    }

    /// The time until all of it is back, if nobody uses any.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.level.reset_after
    }

    /// If it did not let the call through, or as a shadow would not have, when it would, if nobody
    /// else uses any. [`Duration::MAX`] for a cost that never fits, which only a shadow answers.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.level.retry_after
    }

    /// Whether it did not let the call through, or as a shadow would not have.
    #[must_use]
    pub const fn is_exceeded(&self) -> bool {
        self.level.retry_after.is_some()
    }

    /// Whether it only counts and tells, and refuses nothing.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.rule.shadow
    }
}
