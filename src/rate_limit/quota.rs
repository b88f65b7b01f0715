//! How much one subject may use, as users write it.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::rule::{Id, Rule};
use crate::error::ConfigError;

/// So many quotas one subject may have.
const MAX_QUOTAS: usize = 8;
const MAX_NAME: usize = 32;

/// How much one subject may use in which time, and how that is counted.
///
/// | algorithm | made by | any window of the quota's length admits | memory on a server |
/// | --- | --- | --- | --- |
/// | GCRA, the default | [`per_second`](Self::per_second), [`per`](Self::per) … | at most `burst + n`; any time of length `t` at most `burst + t ÷ period × n` | constant |
/// | sliding-window counter | [`sliding`](Self::sliding) | at most `2 n − 1`; windows from one multiple of the length to the next at most `n` | constant |
/// | strict log | [`strict`](Self::strict) | at most `n` | 8 bytes for each unit used |
///
/// What was [refunded](crate::RateLimiter::refund) within the window does not count, and what was
/// [debited](crate::RateLimiter::debit) comes on top. A test of these bounds stands beside each
/// algorithm.
///
/// - **GCRA**, the generic cell rate algorithm (ITU-T I.371, annex A; as *virtual scheduling* in the
///   ATM Forum's Traffic Management 4.0): one number, the moment at which all that was used will have
///   drained. It is a token bucket of `burst` units that fills by one unit every `period ÷ n`, without
///   a timer. Units come back one by one, so it is the smoothest of the three.
/// - **Sliding-window counter** (as described by Cloudflare, 2017): the count of the current window,
///   and the one before it by the share in which it still overlaps. It takes the units of the window
///   before as if they had been spread evenly: if they came at its very end, and the next ones evenly
///   after them, up to `2 n − 1` fall into one window's length. All of `n` may be used at once.
/// - **Strict log**: the time of each unit. Exact, for a price; therefore for `n` up to 1,000.
///
/// Rates go from 1 per 30 days to 10,000 per second. A GCRA's interval is rounded up to whole
/// microseconds, which makes the rate lower by less than 1 %, never higher. Windows are whole
/// microseconds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use portcullis::{Portcullis, Quota};
///
/// # fn main() -> Result<(), portcullis::ConfigError> {
/// let gates = Portcullis::in_memory();
/// let api = gates.rate_limiter("api", Quota::per_second(100).burst(200))?;
/// let logins = gates.rate_limiter("logins", Quota::strict(5, Duration::from_secs(900)))?;
/// let plan = gates.rate_limiter(
///     "plan",
///     [
///         Quota::per_second(10),
///         Quota::per_hour(1_000),
///         Quota::per_day(5_000).named("day").shadow(),
///     ],
/// )?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a quota does nothing until a limiter has it"]
pub struct Quota {
    pub(super) algorithm: Algorithm,
    pub(super) limit: u32,
    pub(super) window: Duration,
    pub(super) burst: Option<u32>,
    pub(super) name: Option<String>,
    pub(super) shadow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Gcra,
    Sliding,
    Strict,
}

impl Quota {
    const fn new(algorithm: Algorithm, limit: u32, window: Duration) -> Self {
        Self {
            algorithm,
            limit,
            window,
            burst: None,
            name: None,
            shadow: false,
        }
    }

    /// `n` units per second by GCRA, `n` of them at once.
    pub const fn per_second(n: u32) -> Self {
        Self::per(n, Duration::from_secs(1))
    }

    /// `n` units per minute by GCRA, `n` of them at once.
    pub const fn per_minute(n: u32) -> Self {
        Self::per(n, Duration::from_secs(60))
    }

    /// `n` units per hour by GCRA, `n` of them at once.
    pub const fn per_hour(n: u32) -> Self {
        Self::per(n, Duration::from_secs(60 * 60))
    }

    /// `n` units per day by GCRA, `n` of them at once: they come back one by one all day long, so that
    /// from one midnight to the next up to `2 n` may be used. For `n` in each calendar day (UTC), take
    /// [`sliding`](Self::sliding) with a window of 24 hours.
    pub const fn per_day(n: u32) -> Self {
        Self::per(n, Duration::from_secs(24 * 60 * 60))
    }

    /// `n` units per `period` by GCRA, `n` of them at once.
    pub const fn per(n: u32, period: Duration) -> Self {
        Self::new(Algorithm::Gcra, n, period)
    }

    /// `n` units per `window` by a sliding-window counter. Windows go from 1 ms to 30 days.
    pub const fn sliding(n: u32, window: Duration) -> Self {
        Self::new(Algorithm::Sliding, n, window)
    }

    /// `n` units in any `window`, by a log of all that was used: 1 to 1,000. Windows go from 1 ms to
    /// 30 days.
    pub const fn strict(n: u32, window: Duration) -> Self {
        Self::new(Algorithm::Strict, n, window)
    }

    /// Sets how many units may be used at once after a time without use: 1 to 1,000,000,000, and not
    /// more than come back in 1,000 days. Only GCRA has one, of `n` by default.
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Sets the name, 1 to 32 of `a-z 0-9 - _ .` with a letter in front. By default it is the
    /// window's length, such as `1s` or `15m`, and followed by `-2` where another has that.
    ///
    /// What was used is kept under the name, and under the place in the list where there is none. So
    /// give names where quotas may come, go or change places from one release to the next.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Makes it one that refuses nothing, to try it out: it counts what it would have let through,
    /// and tells of each call whether it would have refused it.
    pub const fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }
}

/// The quotas of one subject, up to 8: a call is admitted by all of them or uses nothing.
///
/// Made from one [`Quota`] or a list of them, which is when they are checked. Cheap to clone.
///
/// # Examples
///
/// ```
/// use portcullis::{Quota, Quotas};
///
/// # fn main() -> Result<(), portcullis::ConfigError> {
/// let gold = Quotas::new([Quota::per_second(50), Quota::per_day(100_000)])?;
/// assert!(Quotas::new([Quota::per_second(0)]).is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Quotas(pub(super) Arc<[Rule]>);

impl Quotas {
    /// Checks quotas that belong together.
    ///
    /// # Errors
    ///
    /// Names what is out of its range, or used twice.
    pub fn new(quotas: impl IntoIterator<Item = Quota>) -> Result<Self, ConfigError> {
        let mut rules: Vec<Rule> = Vec::new();
        for (place, quota) in quotas.into_iter().enumerate() {
            if place == MAX_QUOTAS {
                return Err(ConfigError::new("quotas", "a subject has at most 8"));
            }
            let mut rule = Rule::new(&quota)?;
            match &quota.name {
                Some(name) => {
                    check_name(name)?;
                    rule.name = name.as_str().into();
                    rule.id = Id::Name(name.as_str().into());
                    if rules.iter().any(|other| other.id == rule.id) {
                        let problem = format!("`{name}` is the name of two quotas of one subject");
                        return Err(ConfigError::new("quota name", problem));
                    }
                }
                None => rule.id = Id::Place(place as u8),
            }
            rules.push(rule);
        }
        if rules.is_empty() {
            return Err(ConfigError::new("quotas", "there has to be at least one"));
        }
        tell_apart(&mut rules);
        Ok(Self(rules.into()))
    }

    pub(crate) fn rules(&self) -> &[Rule] {
        &self.0
    }

    /// Whether both are the same ones, without a look at each.
    pub(super) fn are(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

fn check_name(name: &str) -> Result<(), ConfigError> {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    let lettered = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    if lettered && name.len() <= MAX_NAME && name.bytes().all(plain) {
        return Ok(());
    }
    Err(ConfigError::new(
        "quota name",
        "it takes 1 to 32 of 'a' to 'z', '0' to '9', '-', '_' and '.', with a letter in front",
    ))
}

/// Gives names that were made here a number where they are not the first.
fn tell_apart(rules: &mut [Rule]) {
    for index in 1..rules.len() {
        let (before, rest) = rules.split_at_mut(index);
        if let Id::Place(_) = rest[0].id {
            let base = Arc::clone(&rest[0].name);
            let mut number = 2;
            while before.iter().any(|rule| rule.name == rest[0].name) {
                rest[0].name = format!("{base}-{number}").into();
                number += 1;
            }
        }
    }
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&*self.0).finish()
    }
}

impl TryFrom<Quota> for Quotas {
    type Error = ConfigError;

    fn try_from(quota: Quota) -> Result<Self, ConfigError> {
        Self::new([quota])
    }
}

impl<const N: usize> TryFrom<[Quota; N]> for Quotas {
    type Error = ConfigError;

    fn try_from(quotas: [Quota; N]) -> Result<Self, ConfigError> {
        Self::new(quotas)
    }
}

impl TryFrom<Vec<Quota>> for Quotas {
    type Error = ConfigError;

    fn try_from(quotas: Vec<Quota>) -> Result<Self, ConfigError> {
        Self::new(quotas)
    }
}

/// What is taken as it is can't fail.
impl From<Infallible> for ConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    #[test]
    fn rates_from_one_in_30_days_to_10000_in_a_second_are_kept_within_a_percent() {
        for (n, period) in [
            (1, 30 * DAY),
            (1, DAY),
            (7, DAY),
            (999, Duration::from_secs(60)),
            (3_333, Duration::from_secs(1)),
            (9_901, Duration::from_secs(1)),
            (10_000, Duration::from_secs(1)),
            (1, Duration::from_micros(100)),
        ] {
            let quotas = Quotas::new([Quota::per(n, period)]).expect("in range");
            let interval = quotas.rules()[0].scale_us as f64;
            let exact = period.as_micros() as f64 / f64::from(n);
            assert!(interval >= exact, "{n} per {period:?}");
            assert!(interval <= exact * 1.01, "{n} per {period:?}");
        }
    }

    #[test]
    fn what_can_not_be_kept_is_refused() {
        let second = Duration::from_secs(1);
        for (quota, field) in [
            (Quota::per_second(0), "quota rate"),
            (Quota::per_second(10_001), "quota rate"),
            (Quota::per(1, 31 * DAY), "quota rate"),
            (Quota::per(1, Duration::ZERO), "quota rate"),
            (Quota::per(u32::MAX, Duration::MAX), "burst"),
            (Quota::per_second(1).burst(0), "burst"),
            (Quota::per_second(1).burst(1_000_000_001), "burst"),
            (Quota::per_day(1).burst(1_001), "burst"),
            (Quota::sliding(10, second).burst(20), "burst"),
            (Quota::strict(10, second).burst(20), "burst"),
            (Quota::sliding(0, second), "quota rate"),
            (Quota::sliding(10_001, second), "quota rate"),
            (Quota::sliding(1, Duration::from_micros(999)), "window"),
            (Quota::sliding(40, 31 * DAY), "window"),
            (Quota::sliding(1_000_000_001, 30 * DAY), "quota"),
            (Quota::strict(1_001, second), "quota"),
            (Quota::per_second(1).named(""), "quota name"),
            (Quota::per_second(1).named("1st"), "quota name"),
            (Quota::per_second(1).named("\"; w=1"), "quota name"),
        ] {
            let error = Quotas::new([quota.clone()]).expect_err("it can't be kept");
            assert_eq!(error.field(), field, "{quota:?}: {error}");
        }
        assert!(Quotas::new([]).is_err());
        assert!(Quotas::new(vec![Quota::per_second(1); 9]).is_err());
        let twice = [
            Quota::per_second(1).named("a"),
            Quota::per_day(1).named("a"),
        ];
        assert!(Quotas::new(twice).is_err());
    }

    #[test]
    fn names_are_distinct_and_tell_the_window() {
        let quotas = Quotas::new([
            Quota::per_second(1),
            Quota::per_minute(1),
            Quota::per(1, Duration::from_secs(900)),
            Quota::per_hour(1),
            Quota::per_day(1),
            Quota::per_second(2),
            Quota::per(1, Duration::from_millis(1_500)),
            Quota::per_second(3),
        ]);
        let quotas = quotas.expect("in range");
        let names: Vec<&str> = quotas.rules().iter().map(|rule| &*rule.name).collect();
        assert_eq!(
            names,
            ["1s", "1m", "15m", "1h", "1d", "1s-2", "1500ms", "1s-3"]
        );
    }
}
