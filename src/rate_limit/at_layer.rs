//! What a layer asks of a limiter beyond what anybody may: to count in this process alone, and to
//! give back without waiting for it.

use super::{Method, Quotas, RateLimiter, Rule};
use crate::backend::{Op, Take};
use crate::time::Instant;

impl RateLimiter {
    /// The same quotas in this process alone: `limit` units in the shortest window of those that
    /// refuse, and as much less of the others. All of it is no more than the quotas themselves.
    pub(crate) fn local(&self, limit: u32) -> Self {
        Self {
            backend: self.backend.local().clone(),
            quotas: self.quotas.portion(limit),
            denials: None,
            ..self.clone()
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.backend.now()
    }

    /// The greatest cost that fits; of shadows alone there is none.
    pub(crate) fn most_at_once(&self) -> u32 {
        let enforced = self.quotas.rules().iter().filter(|rule| !rule.shadow);
        enforced.map(|rule| rule.capacity).min().unwrap_or(u32::MAX)
    }

    /// [`refund`](Self::refund) for who does not wait for it. If the server can't be asked, the
    /// units stay used.
    pub(crate) fn give_back(&self, cost: u32) {
        if cost == 0 {
            return;
        }
        let take = Take {
            op: Op::Refund,
            cost,
            quotas: self.quotas.clone(),
            bridge: None,
        };
        // It is under way, and dropping it does not take it back.
        drop(self.backend.take(&self.subject, take));
        // Not before it is under way: a check that overtakes it is denied as ever, and that is not to
        // be remembered.
        if let Some(denials) = &self.denials {
            denials.forget(self.key.as_ref());
        }
    }
}

impl Quotas {
    fn portion(&self, limit: u32) -> Self {
        let rules = self.rules();
        // The shortest window, in whatever order they stand: a part of a day would be used up in a
        // moment, and not be back before the outage is over.
        let enforced = rules.iter().filter(|rule| !rule.shadow);
        let shortest = enforced.min_by_key(|rule| rule.window);
        let whole = shortest.unwrap_or(&rules[0]).limit;
        let limit = limit.clamp(1, whole);
        Self(
            rules
                .iter()
                .map(|rule| rule.portion(limit, whole))
                .collect(),
        )
    }
}

impl Rule {
    /// `part` of `whole` of it, and at least one unit: slower where it is a GCRA, so that its ranges
    /// are kept but for the slowest rate, which is a matter of its arithmetic only.
    fn portion(&self, part: u32, whole: u32) -> Self {
        let of = |units: u32| {
            let share = u64::from(units) * u64::from(part) / u64::from(whole);
            u32::try_from(share).unwrap_or(units).max(1)
        };
        let (limit, capacity) = (of(self.limit), of(self.capacity));
        let scale_us = match self.method {
            // From the window, not from the interval, so that what was rounded is not rounded twice.
            Method::Gcra => self.interval_us(limit),
            Method::Sliding | Method::Strict => self.scale_us,
        };
        Self {
            limit,
            capacity,
            scale_us,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::{Backend, Level, Place, ShutdownReport, Taken, Taking};
    use crate::key::{Prefix, Resource, Subject};
    use crate::rate_limit::Quota;

    /// One that denies each check, and is asked by another caller right before it gives back.
    #[derive(Debug, Default)]
    struct Overtaken {
        other: OnceLock<RateLimiter>,
        checks: AtomicUsize,
    }

    impl Backend for Overtaken {
        fn place(&self, _: Resource) -> Arc<dyn Place> {
            unreachable!("limiters have no place")
        }

        fn take(&self, _: &Arc<Subject>, take: Take) -> Taking {
            if take.op == Op::Check {
                self.checks.fetch_add(1, Ordering::Relaxed);
            } else {
                let other = self.other.get().expect("it is set");
                let denied = other.check().now_or_never();
                denied.expect("it is ready").expect_err("it is denied");
            }
            let level = Level {
                remaining: 0,
                reset_after: Duration::from_secs(60),
                retry_after: (take.op == Op::Check).then_some(Duration::from_secs(60)),
            };
            Taking::Ready(Ok(Taken {
                admitted: take.op != Op::Check,
                wait: Duration::ZERO,
                levels: Box::new([level]),
                booking: None,
            }))
        }

        fn is_remote(&self) -> bool {
            true
        }

        fn local(&self) -> &Arc<dyn Backend> {
            unreachable!("there is no outage")
        }

        fn shutdown(&self, _: Duration, _: oneshot::Sender<ShutdownReport>) {}
    }

    #[test]
    fn a_denial_that_overtakes_what_is_given_back_is_not_remembered() {
        let backend = Arc::new(Overtaken::default());
        let quotas = Quotas::new([Quota::per_minute(1)]).expect("in range");
        let limiter = RateLimiter::named(backend.clone(), Prefix::default(), "api", quotas);
        backend.other.set(limiter.clone()).expect("it is not set");
        limiter.give_back(1);
        let checks = || backend.checks.load(Ordering::Relaxed);
        assert_eq!(checks(), 1);
        let asked = limiter.check().now_or_never();
        assert!(asked.expect("it is ready").is_err());
        assert_eq!(checks(), 2, "the server is asked, who may have units again");
    }

    fn portions(quotas: impl IntoIterator<Item = Quota>, limit: u32) -> Vec<(u32, u32, u64)> {
        let quotas = Quotas::new(quotas).expect("in range").portion(limit);
        let rules = quotas.rules().iter();
        rules
            .map(|rule| (rule.limit, rule.capacity, rule.scale_us))
            .collect()
    }

    #[test]
    fn a_portion_is_of_all_quotas_and_at_least_one_of_each() {
        let plan = || {
            [
                Quota::per_second(10).burst(20),
                Quota::sliding(1_000, Duration::from_secs(3600)),
                Quota::strict(1, Duration::from_secs(60)),
            ]
        };
        assert_eq!(
            portions(plan(), 5),
            [
                (5, 10, 200_000),
                (500, 500, 3_600_000_000),
                (1, 1, 60_000_000)
            ]
        );
        assert_eq!(portions(plan(), 1)[0], (1, 2, 1_000_000));
        assert_eq!(portions(plan(), 10)[0], (10, 20, 100_000));
        assert_eq!(portions(plan(), 11), portions(plan(), 10));
    }

    #[test]
    fn a_portion_is_of_the_shortest_window_of_those_that_refuse() {
        let quotas = [Quota::per_second(100).shadow(), Quota::per_second(10)];
        let both = portions(quotas, 5);
        assert_eq!([both[0].0, both[1].0], [50, 5]);
        for quotas in [
            [Quota::per_day(100), Quota::per_second(5)],
            [Quota::per_second(5), Quota::per_day(100)],
        ] {
            let mut limits: Vec<_> = portions(quotas, 2).iter().map(|rule| rule.0).collect();
            limits.sort_unstable();
            assert_eq!(limits, [2, 40]);
        }
    }

    #[test]
    fn the_slowest_rate_is_no_slower_in_a_portion() {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        let slow = portions([Quota::per_second(1_000), Quota::per(2, days(60))], 1);
        assert_eq!(slow[1], (1, 1, 30 * 86_400_000_000));
    }
}
