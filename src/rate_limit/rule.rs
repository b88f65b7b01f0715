//! A quota that was found to be one that can be kept: whole numbers, in the ranges that scripts and
//! doubles can count in.

use std::sync::Arc;
use std::time::Duration;

use super::quota::{Algorithm, Quota};
use crate::error::ConfigError;

/// Of all rates: one unit in 100 µs, and in 30 days.
const FASTEST_US: u64 = 100;
const SLOWEST_US: u64 = 30 * DAY_US;
const DAY_US: u64 = 24 * 60 * 60 * 1_000_000;
const SHORTEST_WINDOW_US: u64 = 1_000;
/// Times n, and twice that for debts, has to be less than 2^53.
const MOST: u32 = 1_000_000_000;
/// A debt doubles it and a booking adds a day: together with the time of day far below 2^53.
const LONGEST_REFILL_US: u64 = 1_000 * DAY_US;
const MOST_LOGGED: u32 = 1_000;

/// What was used is kept under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Id {
    Place(u8),
    Name(Arc<str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Gcra,
    Sliding,
    Strict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) id: Id,
    pub(crate) name: Arc<str>,
    /// As the user wrote it.
    pub(crate) limit: u32,
    pub(crate) window: Duration,
    pub(crate) method: Method,
    /// The interval from one unit to the next of a GCRA; of the others the window.
    pub(crate) scale_us: u64,
    /// What may be used at once: the burst of a GCRA; of the others n.
    pub(crate) capacity: u32,
    pub(crate) shadow: bool,
}

impl Rule {
    /// Without a name or a place of its own.
    pub(super) fn new(quota: &Quota) -> Result<Self, ConfigError> {
        let window_us = u64::try_from(quota.window.as_micros()).unwrap_or(u64::MAX);
        let interval_us = window_us.div_ceil(u64::from(quota.limit.max(1)));
        // Before rounding: 10,001 per second are too many.
        let too_fast = window_us < FASTEST_US.saturating_mul(u64::from(quota.limit));
        if quota.limit == 0 || window_us == 0 || too_fast || interval_us > SLOWEST_US {
            let rate = format!("{} per {:?}", quota.limit, quota.window);
            let range = "1 per 30 days to 10,000 per second";
            return Err(ConfigError::out_of_range("quota rate", rate, range));
        }
        let (method, scale_us, capacity) = match quota.algorithm {
            Algorithm::Gcra => {
                let burst = quota.burst.unwrap_or(quota.limit);
                check_burst(burst, interval_us)?;
                (Method::Gcra, interval_us, burst)
            }
            Algorithm::Sliding => {
                check_window(quota, window_us, MOST)?;
                (Method::Sliding, window_us, quota.limit)
            }
            Algorithm::Strict => {
                check_window(quota, window_us, MOST_LOGGED)?;
                (Method::Strict, window_us, quota.limit)
            }
        };
        Ok(Self {
            id: Id::Place(0),
            name: length(window_us).into(),
            limit: quota.limit,
            window: quota.window,
            method,
            scale_us,
            capacity,
            shadow: quota.shadow,
        })
    }

    /// From one unit to the next, if so many came in its window: as slow as may be, at most.
    pub(super) fn interval_us(&self, limit: u32) -> u64 {
        let window_us = u64::try_from(self.window.as_micros()).unwrap_or(u64::MAX);
        window_us.div_ceil(u64::from(limit)).min(SLOWEST_US)
    }
}

fn check_burst(burst: u32, interval_us: u64) -> Result<(), ConfigError> {
    let refill_us = interval_us.saturating_mul(u64::from(burst));
    if (1..=MOST).contains(&burst) && refill_us <= LONGEST_REFILL_US {
        return Ok(());
    }
    let range = "1 to 1,000,000,000, and not more than come back in 1,000 days";
    Err(ConfigError::out_of_range("burst", burst, range))
}

fn check_window(quota: &Quota, window_us: u64, most: u32) -> Result<(), ConfigError> {
    if quota.burst.is_some() {
        let problem = "only a quota by GCRA has one; this one allows all of it at once";
        return Err(ConfigError::new("burst", problem));
    }
    if !(SHORTEST_WINDOW_US..=SLOWEST_US).contains(&window_us) {
        let window = format!("{:?}", quota.window);
        return Err(ConfigError::out_of_range(
            "window",
            window,
            "1 ms to 30 days",
        ));
    }
    if quota.limit > most {
        let range = if most == MOST_LOGGED {
            "1 to 1,000 in a strict log"
        } else {
            "1 to 1,000,000,000"
        };
        return Err(ConfigError::out_of_range("quota", quota.limit, range));
    }
    Ok(())
}

/// A length of time in its largest whole unit.
fn length(us: u64) -> String {
    const UNITS: [(u64, &str); 6] = [
        (DAY_US, "d"),
        (60 * 60 * 1_000_000, "h"),
        (60 * 1_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
        (1, "us"),
    ];
    let unit = UNITS.iter().find(|(unit, _)| us.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or(&UNITS[5]);
    format!("{}{name}", us / unit)
}
