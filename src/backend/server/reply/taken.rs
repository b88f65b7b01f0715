//! What `rate/take.lua` answers.

use std::time::Duration;

use redis::Value;

use super::{Garbled, unsigned};
use crate::backend::{self, Level};
use crate::rate_limit::Rule;

const DENIED: i64 = 0;
const ADMITTED: i64 = 1;
const INCOMPATIBLE: i64 = 2;
const NEVER: i64 = -1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    Decided {
        admitted: bool,
        wait: Duration,
        levels: Box<[Level]>,
        /// Of a booked turn that is away.
        trace: Option<Trace>,
    },
    Incompatible,
}

/// What a booking found under its key and what it left there: only by them it is undone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) before: Box<[u8]>,
    pub(crate) after: Box<[u8]>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}

pub(crate) fn taken(value: &Value, take: &backend::Take) -> Result<Taken, Garbled> {
    let rules = take.quotas.rules();
    match value {
        Value::Int(debt) => match rules {
            [rule] => quick(*debt, u64::from(take.cost), rule),
            _ => Err(Garbled),
        },
        Value::Array(items) => whole(items, rules.len()),
        _ => Err(Garbled),
    }
}

/// One number: the debt that a check has left, or the one that it found too great, as a negative.
fn quick(number: i64, cost: u64, rule: &Rule) -> Result<Taken, Garbled> {
    let debt = number.unsigned_abs();
    let (interval, burst) = (rule.scale_us, u64::from(rule.capacity));
    let room = interval.checked_mul(burst).ok_or(Garbled)?;
    let remaining = room.saturating_sub(debt) / interval;
    let admitted = number > 0;
    let retry_us = debt.saturating_add(cost.saturating_mul(interval));
    let retry_us = retry_us.saturating_sub(room);
    let level = Level {
        remaining: u32::try_from(remaining).map_err(|_| Garbled)?,
        reset_after: Duration::from_micros(debt),
        retry_after: (!admitted).then(|| Duration::from_micros(retry_us)),
    };
    Ok(Taken::Decided {
        admitted,
        wait: Duration::ZERO,
        levels: Box::new([level]),
        trace: None,
    })
}

fn whole(items: &[Value], quotas: usize) -> Result<Taken, Garbled> {
    let [status, wait, rest @ ..] = items else {
        return Err(Garbled);
    };
    let admitted = match int(status)? {
        DENIED => false,
        ADMITTED => true,
        INCOMPATIBLE => return Ok(Taken::Incompatible),
        _ => return Err(Garbled),
    };
    let (levels, trace) = rest.split_at_checked(3 * quotas).ok_or(Garbled)?;
    let trace = match trace {
        [] => None,
        [Value::BulkString(before), Value::BulkString(after)] => Some(Trace {
            before: before.as_slice().into(),
            after: after.as_slice().into(),
        }),
        _ => return Err(Garbled),
    };
    Ok(Taken::Decided {
        admitted,
        wait: micros(wait)?,
        levels: levels.chunks(3).map(level).collect::<Result<_, _>>()?,
        trace,
    })
}

fn level(items: &[Value]) -> Result<Level, Garbled> {
    let [remaining, reset, retry] = items else {
        return Err(Garbled);
    };
    Ok(Level {
        remaining: u32::try_from(int(remaining)?).map_err(|_| Garbled)?,
        reset_after: micros(reset)?,
        retry_after: match int(retry)? {
            NEVER => Some(Duration::MAX),
            0 => None,
            _ => Some(micros(retry)?),
        },
    })
}

fn int(item: &Value) -> Result<i64, Garbled> {
    match item {
        Value::Int(number) => Ok(*number),
        _ => Err(Garbled),
    }
}

fn micros(item: &Value) -> Result<Duration, Garbled> {
    int(item).and_then(unsigned).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::{Op, Take};
    use crate::rate_limit::{Quota, Quotas};

    fn take(quotas: usize, cost: u32) -> Take {
        let all = vec![Quota::per_day(1); quotas];
        Take {
            op: Op::Check,
            cost,
            quotas: Quotas::new(all).expect("in range"),
            bridge: None,
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_decoded_or_refused(
            numbers: Vec<i64>,
            text: Vec<u8>,
            texts in 0..3_usize,
            quotas in 1..4_usize,
            cost: u32,
        ) {
            let take = take(quotas, cost);
            let mut items: Vec<Value> = numbers.iter().copied().map(Value::Int).collect();
            items.resize(items.len() + texts, Value::BulkString(text));
            let _ = taken(&Value::Array(items), &take);
            if let Some(number) = numbers.first() {
                let _ = taken(&Value::Int(*number), &take);
            }
        }
    }

    #[test]
    fn each_quota_has_three_numbers_and_a_turn_its_trace() {
        let numbers = [1, 7, 3, 20, 0, 0, 50, 40].map(Value::Int);
        let texts = [&b"found"[..], b"left"].map(|text| Value::BulkString(text.to_vec()));
        let answer = Value::Array(numbers.into_iter().chain(texts).collect());
        let us = Duration::from_micros;
        let level = |remaining, reset, retry: Option<u64>| Level {
            remaining,
            reset_after: us(reset),
            retry_after: retry.map(us),
        };
        let told = Taken::Decided {
            admitted: true,
            wait: us(7),
            levels: [level(3, 20, None), level(0, 50, Some(40))].into(),
            trace: Some(Trace {
                before: b"found"[..].into(),
                after: b"left"[..].into(),
            }),
        };
        assert_eq!(taken(&answer, &take(2, 1)), Ok(told));
        let never = Value::Array([0, 0, 1, 0, -1].map(Value::Int).into());
        let told = taken(&never, &take(1, 1));
        let Ok(Taken::Decided { levels, .. }) = told else {
            panic!("{told:?}");
        };
        assert_eq!(levels[0].retry_after, Some(Duration::MAX));
    }

    #[test]
    fn one_number_tells_all_of_a_single_gcra() {
        let day = Duration::from_secs(24 * 60 * 60);
        let us = day.as_micros() as i64;
        for (number, admitted, retry_after) in [(us, true, None), (-us, false, Some(day))] {
            let Ok(Taken::Decided {
                admitted: told,
                levels,
                ..
            }) = taken(&Value::Int(number), &take(1, 1))
            else {
                panic!("{number} is an answer");
            };
            let level = Level {
                remaining: 0,
                reset_after: day,
                retry_after,
            };
            assert_eq!((told, &*levels), (admitted, &[level][..]));
        }
        assert_eq!(taken(&Value::Int(1), &take(2, 1)), Err(Garbled));
    }
}
