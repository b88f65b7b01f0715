//! What a server tells of itself when it is connected to: who it is, and for how long it has had its
//! data.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

use crate::backend::server::{Reign, Term, link};
use crate::time::Instant;

/// How much later than a sentinel a process may hear of a failover, and use the old master until
/// then. They are asked each second, and tell of it.
pub(super) const SPREAD: Duration = Duration::from_secs(5);

/// A server to which a connection was made, as far as it tells of itself.
#[derive(Debug)]
pub(super) struct Arrival {
    /// Its clock.
    pub(super) us: u64,
    /// Which start of which server it is.
    pub(super) run_id: Option<String>,
    /// The term in which it was reached.
    pub(super) term: Term,
    /// How long it has run at the least; `None` if it does not tell.
    pub(super) uptime: Option<Duration>,
    /// Where sentinels name it: since when they do.
    pub(super) reign: Option<Reign>,
    /// Whether a restart loses nothing: `appendfsync always`.
    pub(super) durable: bool,
    /// The policy by which it may drop keys that are in use, if it has one.
    pub(super) evicts: Option<String>,
}

impl Arrival {
    /// What it is asked.
    pub(super) const QUESTIONS: [&[&str]; 3] = [
        &["INFO", "server"],
        &["INFO", "persistence"],
        &["CONFIG", "GET", "appendfsync"],
    ];

    /// Reads what it says to that; what it may not tell counts as the worse.
    pub(super) fn read(
        us: u64,
        evicts: Option<String>,
        (term, reign): (Term, Option<Reign>),
        told: &[Value],
    ) -> Self {
        let field = |at: usize, name: &str| link::field(told.get(at)?, name);
        let uptime = field(0, "uptime_in_seconds:").and_then(|text| text.parse::<u64>().ok());
        // It counts the seconds that have begun on the wall clock: up to one too many.
        let uptime = uptime.map(|seconds| Duration::from_secs(seconds.saturating_sub(1)));
        let appends = field(1, "aof_enabled:") == Some("1");
        let always = told.get(2).is_some_and(|answer| {
            let answer: redis::RedisResult<HashMap<String, String>> =
                redis::from_redis_value(answer.clone()).map_err(Into::into);
            answer.is_ok_and(|settings| {
                settings
                    .get("appendfsync")
                    .is_some_and(|when| when == "always")
            })
        });
        Self {
            us,
            run_id: field(0, "run_id:").map(str::to_owned),
            term,
            uptime,
            reign,
            durable: appends && always,
            evicts,
        }
    }

    /// For how long it surely has had all that was given in its place; `None` if it always has.
    ///
    /// What runs for long may have been a replica until a moment ago, which lacks what its master
    /// gave last, and of which others may not have heard yet.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        let running = (!self.durable).then(|| self.uptime.unwrap_or_default());
        let reigning = self.reign.map(|reign| {
            let since = reign.since.map(|since| now.since(since));
            since.unwrap_or_default().saturating_sub(SPREAD)
        });
        running.into_iter().chain(reigning).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn arrival(durable: bool, reign: Option<Option<Duration>>) -> Option<Duration> {
        let now = Instant::from_nanos(0).after(10 * HOUR);
        let arrival = Arrival {
            us: 0,
            run_id: None,
            term: 1,
            uptime: Some(HOUR),
            reign: reign.map(|time| Reign {
                since: time.map(|time| now.before(time)),
            }),
            durable,
            evicts: None,
        };
        arrival.age(now)
    }

    #[test]
    fn a_server_has_had_its_data_since_its_start_or_always() {
        assert_eq!(arrival(false, None), Some(HOUR));
        assert_eq!(arrival(true, None), None);
    }

    #[test]
    fn one_that_sentinels_name_has_all_data_since_they_do_however_long_it_runs() {
        let since = |time| arrival(true, Some(time));
        assert_eq!(
            since(Some(Duration::from_secs(9))),
            Some(Duration::from_secs(4))
        );
        assert_eq!(since(Some(SPREAD)), Some(Duration::ZERO));
        assert_eq!(since(None), Some(Duration::ZERO));
        assert_eq!(arrival(false, Some(Some(2 * HOUR))), Some(HOUR));
    }
}
