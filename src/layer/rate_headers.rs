//! What callers are told of their quotas, in headers: the one place where they are written.
//!
//! `RateLimit-Policy` and `RateLimit` are those of the IETF's draft "RateLimit header fields for
//! HTTP", -11, which are lists of structured fields (RFC 9651).

use std::fmt::Write;
use std::time::Duration;

use http::header::ACCESS_CONTROL_EXPOSE_HEADERS;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::rejection::whole_seconds;
use crate::rate_limit::{QuotaReport, QuotaStatus};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// A script of another origin would not see them else.
const EXPOSED: &str = "ratelimit-policy, ratelimit";
const EXPOSED_LEGACY: &str = "x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset";

/// What callers are told of their quotas; see
/// [`RateLimitLayer::headers`](super::RateLimitLayer::headers).
///
/// `RateLimit-Policy` names each quota with how much it allows at once (`q`) and the seconds in which
/// as much comes back (`w`); `RateLimit` how much is left (`r`) and the seconds until all is back
/// (`t`). Both are rounded up to whole seconds, so that who keeps to them is never refused but for
/// what others use. Sending `r` units at once is always fine. Shadow quotas are not told.
///
/// Scripts of other origins may read them, as they may `Retry-After`: a CORS layer with a list of
/// its own has to name them in it.
///
/// ```text
/// RateLimit-Policy: "1s";q=10;w=1, "day";q=5000;w=86400
/// RateLimit: "1s";r=9;t=1, "day";r=4999;t=18
/// ```
///
/// # Examples
///
/// ```
/// use portcullis::layer::RateHeaders;
///
/// let headers = RateHeaders::default().on_success().legacy();
/// # let _ = headers;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[must_use = "it says what callers are told"]
pub struct RateHeaders {
    pub(super) on_success: bool,
    legacy: bool,
}

impl RateHeaders {
    /// Tells those that are let through, too: by default only who is over quota is told.
    pub const fn on_success(mut self) -> Self {
        self.on_success = true;
        self
    }

    /// Adds `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, which no standard
    /// describes: of the [binding](QuotaReport::binding) quota, the last in seconds from now. Of
    /// several layers that write them, the one with the least left is told.
    pub const fn legacy(mut self) -> Self {
        self.legacy = true;
        self
    }

    /// Adds what `report` tells to what layers further in have told.
    pub(super) fn write(self, report: &QuotaReport, headers: &mut HeaderMap) {
        let told = || report.quotas().filter(|quota| !quota.is_shadow());
        let Some(policy) = list(told(), |item, quota| {
            write!(item, ";q={};w={}", quota.burst(), seconds_to_refill(quota))
        }) else {
            return;
        };
        let state = list(told(), |item, quota| {
            let reset = whole_seconds(quota.reset_after()).as_secs();
            write!(item, ";r={};t={reset}", quota.remaining())
        });
        headers.append(POLICY, policy);
        headers.extend(state.map(|state| (STATE, state)));
        expose(EXPOSED, headers);
        let binding = report.binding();
        if self.legacy && !has_less_left(headers, binding.remaining()) {
            headers.insert(LIMIT, binding.burst().into());
            headers.insert(REMAINING, binding.remaining().into());
            let reset = whole_seconds(binding.reset_after()).as_secs();
            headers.insert(RESET, reset.into());
            expose(EXPOSED_LEGACY, headers);
        }
    }
}

/// A structured field's list: each quota's name as a string, and its parameters. `None` if empty.
fn list<'a>(
    quotas: impl Iterator<Item = QuotaStatus<'a>>,
    parameters: impl Fn(&mut String, &QuotaStatus<'a>) -> std::fmt::Result,
) -> Option<HeaderValue> {
    let mut list = String::new();
    for quota in quotas {
        if !list.is_empty() {
            list.push_str(", ");
        }
        // Names have nothing in them that a string would have to escape.
        let item = write!(list, "\"{}\"", quota.name());
        item.and_then(|()| parameters(&mut list, &quota)).ok()?;
    }
    let value = (!list.is_empty()).then(|| HeaderValue::try_from(list));
    value.and_then(Result::ok)
}

/// In which as much as is allowed at once comes back.
fn seconds_to_refill(quota: &QuotaStatus<'_>) -> u64 {
    let micros = quota.window().as_micros() * u128::from(quota.burst());
    let micros = micros.div_ceil(u128::from(quota.limit()));
    // Quotas come back in 1,000 days at most.
    let micros = u64::try_from(micros).unwrap_or(u64::MAX);
    whole_seconds(Duration::from_micros(micros)).as_secs()
}

fn has_less_left(headers: &HeaderMap, remaining: u32) -> bool {
    let told = headers.get(REMAINING).and_then(|told| told.to_str().ok());
    let told = told.and_then(|told| told.parse::<u32>().ok());
    told.is_some_and(|told| told < remaining)
}

fn expose(names: &'static str, headers: &mut HeaderMap) {
    let exposed = headers.get_all(ACCESS_CONTROL_EXPOSE_HEADERS);
    if !exposed.iter().any(|exposed| exposed == names) {
        headers.append(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(names),
        );
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;
    use crate::error::LockError;
    use crate::portcullis::Portcullis;
    use crate::rate_limit::Quota;

    async fn report(quotas: impl IntoIterator<Item = Quota>, cost: u32) -> QuotaReport {
        let quotas: Vec<_> = quotas.into_iter().collect();
        let limiter = Portcullis::in_memory().rate_limiter("a", quotas);
        let limiter = limiter.expect("in range");
        limiter.check_n(cost).await.expect("there is enough")
    }

    fn lines(headers: &HeaderMap, name: HeaderName) -> Vec<&str> {
        let values = headers.get_all(name).iter();
        values.map(|value| value.to_str().expect("ASCII")).collect()
    }

    #[tokio::test]
    async fn quotas_are_told_as_the_draft_says() {
        let mut headers = HeaderMap::new();
        let burst = report([Quota::per_second(20).named("burst")], 1).await;
        RateHeaders::default().write(&burst, &mut headers);
        assert_eq!(lines(&headers, POLICY), [r#""burst";q=20;w=1"#]);
        assert_eq!(lines(&headers, STATE), [r#""burst";r=19;t=1"#]);
        assert!(!headers.contains_key(LIMIT));
    }

    #[tokio::test]
    async fn several_quotas_are_one_list_in_their_order_without_shadows() {
        let mut headers = HeaderMap::new();
        let plan = [
            Quota::per_second(10).burst(35),
            Quota::per_second(1).shadow(),
            Quota::sliding(1_000, Duration::from_millis(3_600_500)),
        ];
        RateHeaders::default().write(&report(plan, 5).await, &mut headers);
        assert_eq!(
            lines(&headers, POLICY),
            [r#""1s";q=35;w=4, "3600500ms";q=1000;w=3601"#]
        );
        let state = lines(&headers, STATE).concat();
        assert!(
            state.starts_with(r#""1s";r=30;t=1, "3600500ms";r=995;t="#),
            "{state}"
        );
    }

    #[tokio::test]
    async fn shadows_alone_are_not_told() {
        let mut headers = HeaderMap::new();
        let all = RateHeaders::default().legacy();
        all.write(
            &report([Quota::per_second(1).shadow()], 1).await,
            &mut headers,
        );
        assert!(headers.is_empty(), "{headers:?}");
    }

    #[tokio::test]
    async fn several_layers_append_and_of_the_old_ones_that_with_the_least_left_is_told() {
        let named = async |name: &str, limit, cost| {
            report([Quota::per_minute(limit).named(name)], cost).await
        };
        let reports = [
            named("inner", 10, 1).await,
            named("tight", 5, 3).await,
            named("outer", 99, 1).await,
        ];
        let mut headers = HeaderMap::new();
        for report in &reports {
            RateHeaders::default().legacy().write(report, &mut headers);
        }
        assert_eq!(lines(&headers, POLICY).len(), 3);
        assert_eq!(lines(&headers, STATE)[2], r#""outer";r=98;t=1"#);
        assert_eq!(lines(&headers, LIMIT), ["5"]);
        assert_eq!(lines(&headers, REMAINING), ["2"]);
        assert_eq!(lines(&headers, RESET), ["36"]);
        assert_eq!(
            lines(&headers, ACCESS_CONTROL_EXPOSE_HEADERS),
            [EXPOSED, EXPOSED_LEGACY]
        );
    }

    /// Name, and the values of its two parameters.
    fn parsed(value: &str, parameters: [&str; 2]) -> Vec<(String, u64, u64)> {
        let list: sfv::List = sfv::Parser::new(value).parse().expect(value);
        let item = |entry: &sfv::ListEntry| {
            let sfv::ListEntry::Item(item) = entry else {
                panic!("{value}");
            };
            let keys: Vec<&str> = item.params.keys().map(|key| key.as_str()).collect();
            assert_eq!(keys, parameters, "{value}");
            let numbers = item.params.values().map(|number| {
                let number = number.as_integer().expect("an integer");
                u64::try_from(number).expect("not negative")
            });
            let numbers: Vec<u64> = numbers.collect();
            let name = item.bare_item.as_string().expect("a string");
            (name.as_str().to_owned(), numbers[0], numbers[1])
        };
        list.iter().map(item).collect()
    }

    fn any_quota() -> impl Strategy<Value = Quota> {
        let window = prop_oneof![1_u64..1_000_000, 1_000_000_u64..86_400_000_000];
        let rate = (
            1_u32..1_000,
            window,
            0..3_u8,
            any::<Option<bool>>(),
            1_u32..2_000,
        );
        let quota = rate.prop_map(|(n, window, algorithm, shadow, burst)| {
            let window = Duration::from_micros(window);
            let quota = match algorithm {
                0 => Quota::per(n, window).burst(burst),
                1 => Quota::sliding(n, window),
                _ => Quota::strict(n, window),
            };
            match shadow {
                Some(true) => quota.shadow(),
                _ => quota,
            }
        });
        (quota, proptest::option::of("[a-z][a-z0-9._-]{0,31}")).prop_map(|(quota, name)| match name
        {
            Some(name) => quota.named(name),
            None => quota,
        })
    }

    proptest! {
        #[test]
        fn whatever_is_told_are_structured_fields_of_the_quotas(
            quotas in proptest::collection::vec(any_quota(), 1..=8),
            costs in proptest::collection::vec(0_u32..20, 1..6),
        ) {
            let Ok(limiter) = Portcullis::in_memory().rate_limiter("a", quotas) else {
                return Ok(());
            };
            for cost in costs {
                let answer = limiter.check_n(cost).now_or_never().expect("in memory");
                let report = match &answer {
                    Ok(report) => report,
                    Err(LockError::Refused(refusal)) => match refusal.quotas() {
                        Some(report) => report,
                        None => continue,
                    },
                    Err(error) => panic!("{error}"),
                };
                let mut headers = HeaderMap::new();
                RateHeaders::default().legacy().write(report, &mut headers);
                let told: Vec<_> = report.quotas().filter(|quota| !quota.is_shadow()).collect();
                prop_assert_eq!(headers.is_empty(), told.is_empty());
                if told.is_empty() {
                    continue;
                }
                let policies = parsed(lines(&headers, POLICY)[0], ["q", "w"]);
                let states = parsed(lines(&headers, STATE)[0], ["r", "t"]);
                prop_assert_eq!(policies.len(), told.len());
                prop_assert_eq!(states.len(), told.len());
                for ((quota, policy), state) in told.iter().zip(&policies).zip(&states) {
                    prop_assert_eq!([&policy.0, &state.0], [quota.name(); 2]);
                    prop_assert_eq!(policy.1, u64::from(quota.burst()));
                    prop_assert_eq!(state.1, u64::from(quota.remaining()));
                    prop_assert!(state.1 <= policy.1);
                    // As late as the truth, and less than a second later.
                    let reset = quota.reset_after();
                    prop_assert!(Duration::from_secs(state.2) >= reset);
                    prop_assert!(state.2 == 1 || Duration::from_secs(state.2 - 1) < reset);
                    // No faster than the quota: q in w, and limit in window.
                    let told = u128::from(policy.1) * quota.window().as_micros();
                    let kept = u128::from(quota.limit()) * u128::from(policy.2) * 1_000_000;
                    prop_assert!(told <= kept, "{policy:?} of {quota:?}");
                }
            }
        }
    }
}
