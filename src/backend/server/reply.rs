//! What the scripts, the pushes and the errors of a server say.

pub(crate) mod failure;
mod taken;

use std::time::Duration;

use redis::Value;

pub(crate) use self::failure::Failure;
pub(crate) use self::taken::{Taken, Trace, taken};
use crate::token::{FencingToken, Instance, Token};

/// The first number of each answer of `acquire` and `end`, by name as in the scripts.
pub(crate) mod status {
    pub(crate) const HELD: i64 = 0;
    pub(crate) const QUEUED: i64 = 1;
    pub(crate) const BUSY: i64 = 2;
    pub(crate) const FULL: i64 = 3;
    pub(crate) const LATE: i64 = 4;
    pub(crate) const ENDED: i64 = 5;
    pub(crate) const NEVER: i64 = 6;
    pub(crate) const INCOMPATIBLE: i64 = 7;

    pub(crate) const RELEASED: i64 = 0;
    pub(crate) const CANCELLED: i64 = 1;
    pub(crate) const GONE: i64 = 2;
}

/// The entries of a renewal's answer that are no time left.
pub(crate) mod renewal {
    pub(crate) const GONE: i64 = -1;
    pub(crate) const OTHER: i64 = -2;
    pub(crate) const INCOMPATIBLE: i64 = -3;
}

/// An answer that no script of ours gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Garbled;

/// An answer, with the server's clock when its script ran: 0 if it did not read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply<T> {
    pub(crate) us: u64,
    pub(crate) outcome: T,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Acquired {
    Held {
        fence: FencingToken,
        left: Duration,
        /// Whether other processes wait, at a gate whose permits are kept.
        others: bool,
        /// When that was said, among all that is said under the gate's tag.
        stamp: u64,
    },
    Queued {
        stamp: u64,
        ticket: u64,
        crowd: Crowd,
        /// The place was made by this call.
        entered: bool,
    },
    Busy(Crowd),
    Full(Crowd),
    Late,
    Ended,
    Never,
    Incompatible,
}

/// Who stands in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crowd {
    /// Deserted places are left to clear: ask again at once.
    pub(crate) more: bool,
    /// The time to the first end of a lease, if the holder's key has one.
    pub(crate) next_end: Option<Duration>,
    /// Somebody holds who does not tell of its release.
    pub(crate) foreign: bool,
    /// How many wait in front.
    pub(crate) waiting: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Released,
    Cancelled,
    Gone,
    Incompatible,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    Left(Duration),
    Gone,
    Other,
    Incompatible,
}

/// What a process that keeps permits of a gate is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rechecked {
    pub(crate) stamp: u64,
    /// Whether other processes wait.
    pub(crate) others: bool,
    /// Which of the permits are there, in the order of the question.
    pub(crate) held: Vec<bool>,
}

/// A message to the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Push {
    /// A claim was granted, after every answer under this tag that carries a smaller stamp.
    Grant {
        token: Token,
        fence: FencingToken,
        left: Duration,
        /// Whether other processes wait, at a gate whose permits are kept.
        others: bool,
    },
    /// More is asked for than there ever is.
    Never { token: Token },
    /// Another process waits at the gate with this main key, of which permits are kept.
    Recall { stamp: u64, main: Box<str> },
}

/// A whole number, as such or as text: a script that has it as text spares the conversion.
fn number(value: &Value) -> Result<i64, Garbled> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::BulkString(digits) => std::str::from_utf8(digits)
            .ok()
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .ok_or(Garbled),
        _ => Err(Garbled),
    }
}

/// Numbers, and nothing else.
pub(crate) fn numbers(value: &Value) -> Result<Vec<i64>, Garbled> {
    let Value::Array(items) = value else {
        return Err(Garbled);
    };
    items.iter().map(number).collect()
}

fn unsigned(number: i64) -> Result<u64, Garbled> {
    u64::try_from(number).map_err(|_| Garbled)
}

fn millis(number: i64) -> Result<Duration, Garbled> {
    unsigned(number).map(Duration::from_millis)
}

fn crowd(more: i64, next_end: i64, foreign: i64, waiting: i64) -> Result<Crowd, Garbled> {
    Ok(Crowd {
        more: more != 0,
        next_end: if next_end < 0 {
            None
        } else {
            Some(millis(next_end)?)
        },
        foreign: foreign != 0,
        waiting: unsigned(waiting)?,
    })
}

/// What a quick answer leaves out of an acquire's numbers, for the lease that was asked for.
pub(crate) fn whole_acquired(value: &Value, lease: Duration) -> Result<Vec<i64>, Garbled> {
    if let Value::Array(_) = value {
        let mut numbers = numbers(value)?;
        if let [status::HELD, _us, _stamp, _fence, _left] = *numbers {
            numbers.push(0);
        }
        return Ok(numbers);
    }
    let fence = number(value)?;
    let left = i64::try_from(lease.as_millis()).map_err(|_| Garbled)?;
    Ok(vec![status::HELD, fence, fence, fence, left, 0])
}

/// What a quick answer leaves out of an end's numbers.
pub(crate) fn whole_ended(value: &Value) -> Result<Vec<i64>, Garbled> {
    if let Value::Array(_) = value {
        return numbers(value);
    }
    Ok(vec![number(value)?, 0, 0, 0])
}

pub(crate) fn acquired(value: &Value, lease: Duration) -> Result<Reply<Acquired>, Garbled> {
    let numbers = whole_acquired(value, lease)?;
    let [status, us, stamp, rest @ ..] = numbers.as_slice() else {
        return Err(Garbled);
    };
    let outcome = match (*status, rest) {
        (status::HELD, &[fence, left, others]) => Acquired::Held {
            fence: FencingToken::new(unsigned(fence)?),
            left: millis(left)?,
            others: others != 0,
            stamp: unsigned(*stamp)?,
        },
        (status::QUEUED, &[more, next_end, foreign, position, ticket, entered]) => {
            Acquired::Queued {
                stamp: unsigned(*stamp)?,
                ticket: unsigned(ticket)?,
                crowd: crowd(more, next_end, foreign, position)?,
                entered: entered != 0,
            }
        }
        (status::BUSY, &[more, next_end, foreign, waiters]) => {
            Acquired::Busy(crowd(more, next_end, foreign, waiters)?)
        }
        (status::FULL, &[more, next_end, foreign, waiters]) => {
            Acquired::Full(crowd(more, next_end, foreign, waiters)?)
        }
        (status::LATE, []) => Acquired::Late,
        (status::ENDED, []) => Acquired::Ended,
        (status::NEVER, [_limit]) => Acquired::Never,
        (status::INCOMPATIBLE, []) => Acquired::Incompatible,
        _ => return Err(Garbled),
    };
    Ok(Reply {
        us: unsigned(*us)?,
        outcome,
    })
}

pub(crate) fn ended(value: &Value) -> Result<Reply<(Ended, bool)>, Garbled> {
    let &[status, us, _stamp, more] = whole_ended(value)?.as_slice() else {
        return Err(Garbled);
    };
    let outcome = match status {
        status::RELEASED => Ended::Released,
        status::CANCELLED => Ended::Cancelled,
        status::GONE => Ended::Gone,
        status::INCOMPATIBLE => Ended::Incompatible,
        _ => return Err(Garbled),
    };
    Ok(Reply {
        us: unsigned(us)?,
        outcome: (outcome, more != 0),
    })
}

pub(crate) fn renewed(value: &Value) -> Result<Reply<(u64, Vec<Renewed>)>, Garbled> {
    let numbers = numbers(value)?;
    let [us, stamp, entries @ ..] = numbers.as_slice() else {
        return Err(Garbled);
    };
    let entry = |number: &i64| match *number {
        renewal::GONE => Ok(Renewed::Gone),
        renewal::OTHER => Ok(Renewed::Other),
        renewal::INCOMPATIBLE => Ok(Renewed::Incompatible),
        left => millis(left).map(Renewed::Left),
    };
    Ok(Reply {
        us: unsigned(*us)?,
        outcome: (
            unsigned(*stamp)?,
            entries.iter().map(entry).collect::<Result<_, _>>()?,
        ),
    })
}

pub(crate) fn rechecked(value: &Value) -> Result<Reply<Rechecked>, Garbled> {
    let numbers = numbers(value)?;
    let [us, stamp, others, held @ ..] = numbers.as_slice() else {
        return Err(Garbled);
    };
    Ok(Reply {
        us: unsigned(*us)?,
        outcome: Rechecked {
            stamp: unsigned(*stamp)?,
            others: *others != 0,
            held: held.iter().map(|held| *held != 0).collect(),
        },
    })
}

/// The server's clock in microseconds, as `TIME` gives it.
pub(crate) fn time(value: &Value) -> Result<u64, Garbled> {
    let Value::Array(parts) = value else {
        return Err(Garbled);
    };
    let number = |part: &Value| match part {
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    match parts.iter().map(number).collect::<Vec<_>>().as_slice() {
        [Some(seconds), Some(micros)] => {
            let whole = seconds.checked_mul(1_000_000).ok_or(Garbled)?;
            whole.checked_add(*micros).ok_or(Garbled)
        }
        _ => Err(Garbled),
    }
}

/// Anybody may publish to a channel, so anything may come; only a message that fits is one.
pub(crate) fn push(text: &[u8], instance: &Instance) -> Result<Push, Garbled> {
    let text = std::str::from_utf8(text).map_err(|_| Garbled)?;
    let token = |word: &str| Token::parse(word.as_bytes(), instance).ok_or(Garbled);
    let number = |word: &str| {
        word.parse::<u64>()
            .ok()
            .filter(|number| *number < 1 << 53)
            .ok_or(Garbled)
    };
    if let Some(recall) = text.strip_prefix("r ") {
        // A key of the user's own may have spaces.
        let (stamp, main) = recall.split_once(' ').ok_or(Garbled)?;
        return Ok(Push::Recall {
            stamp: number(stamp)?,
            main: main.into(),
        });
    }
    let words: Vec<&str> = text.split(' ').collect();
    match words.as_slice() {
        ["g", holder, fence, left, others @ ..] => Ok(Push::Grant {
            token: token(holder)?,
            fence: FencingToken::new(number(fence)?),
            left: Duration::from_millis(number(left)?),
            others: match others {
                // Nobody keeps what it is granted.
                [] | ["0"] => false,
                ["1"] => true,
                _ => return Err(Garbled),
            },
        }),
        ["n", waiter, _stamp] => Ok(Push::Never {
            token: token(waiter)?,
        }),
        _ => Err(Garbled),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn array(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().copied().map(Value::Int).collect())
    }

    /// Whatever the protocol can carry, in any nesting.
    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<i64>().prop_map(Value::Int),
            (0..9_i64).prop_map(Value::Int),
            any::<Vec<u8>>().prop_map(Value::BulkString),
            "[0-9]{1,20}".prop_map(|digits| Value::BulkString(digits.into_bytes())),
            any::<String>().prop_map(Value::SimpleString),
            any::<f64>().prop_map(Value::Double),
            any::<bool>().prop_map(Value::Boolean),
            Just(Value::Okay),
        ];
        leaf.prop_recursive(3, 32, 10, |inner| {
            let several = proptest::collection::vec(inner.clone(), 0..10);
            let pairs = proptest::collection::vec((inner.clone(), inner), 0..4);
            prop_oneof![
                4 => several.clone().prop_map(Value::Array),
                1 => several.prop_map(Value::Set),
                1 => pairs.prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_numbers_are_decoded_or_refused(numbers: Vec<i64>) {
            let value = array(&numbers);
            let _ = (acquired(&value, Duration::ZERO), ended(&value), renewed(&value), rechecked(&value));
        }

        #[test]
        fn any_text_is_decoded_or_refused(text: Vec<u8>) {
            for value in [Value::BulkString(text.clone()), Value::Array(vec![Value::BulkString(text); 4])] {
                let _ = (acquired(&value, Duration::ZERO), ended(&value), renewed(&value));
            }
        }

        #[test]
        fn any_answer_is_decoded_or_refused(value in any_value()) {
            let _ = (acquired(&value, Duration::ZERO), ended(&value), renewed(&value), rechecked(&value), time(&value));
        }

        #[test]
        fn a_push_with_a_byte_changed_is_of_the_same_token_or_of_none_that_waits(
            at: proptest::sample::Index,
            byte: u8,
        ) {
            let instance = Instance::draw().expect("the system has randomness");
            let text = Token::of(9).text(&instance);
            let mut message = [b"g ", &text[..], b" 1795997474659159 3000"].concat();
            let at = at.index(message.len());
            message[at] = byte;
            if let Ok(Push::Grant { token, fence, left, .. }) = push(&message, &instance) {
                let changed_token = (2..2 + text.len()).contains(&at) && text[at - 2] != byte;
                prop_assert_eq!(token == Token::of(9), !changed_token);
                prop_assert!(fence.get() < 1 << 53 && left < Duration::from_millis(10_000));
            }
        }

        #[test]
        fn garbage_in_the_inbox_is_no_grant(text: Vec<u8>) {
            let instance = Instance::draw().expect("the system has randomness");
            prop_assert_eq!(push(&text, &instance), Err(Garbled));
        }
    }

    #[test]
    fn a_quick_answer_stands_for_a_whole_one() {
        let lease = Duration::from_secs(10);
        let fence = 1_795_997_474_659_159;
        let held = [status::HELD, fence, fence, fence, 10_000, 0];
        let quick = Value::BulkString(fence.to_string().into_bytes());
        assert_eq!(acquired(&quick, lease), acquired(&array(&held), lease));
        assert_eq!(
            acquired(&array(&held[..5]), lease),
            acquired(&array(&held), lease)
        );
        let quick = Value::Int(status::RELEASED);
        let whole = [status::RELEASED, 0, 0, 0];
        assert_eq!(ended(&quick), ended(&array(&whole)));
        let no_number = Value::BulkString(b"-1".to_vec());
        assert_eq!(acquired(&no_number, lease), Err(Garbled));
    }

    #[test]
    fn a_pushed_grant_is_read() {
        let instance = Instance::draw().expect("the system has randomness");
        let token = Token::of(9);
        let text = token.text(&instance);
        let text = std::str::from_utf8(&text).expect("tokens are text");
        let message = format!("g {text} 1795997474659159 3000");
        for (more, others) in [("", false), (" 0", false), (" 1", true)] {
            let grant = Push::Grant {
                token,
                fence: FencingToken::new(1_795_997_474_659_159),
                left: Duration::from_secs(3),
                others,
            };
            let message = format!("{message}{more}");
            assert_eq!(push(message.as_bytes(), &instance), Ok(grant));
        }
        for broken in [
            "",
            "g",
            &message[..message.len() - 5],
            &format!("{message} 2"),
            &format!("{message} 1 1"),
            &format!("{message} "),
            &message.replace("3000", "-3"),
        ] {
            assert_eq!(
                push(broken.as_bytes(), &instance),
                Err(Garbled),
                "{broken:?}"
            );
        }
    }
    #[test]
    fn a_recall_is_read_whatever_the_key() {
        let instance = Instance::draw().expect("the system has randomness");
        for main in ["p:{b2}:s:cap", "a key of the user's own", ""] {
            let message = format!("r 1795997474659159 {main}");
            let recall = Push::Recall {
                stamp: 1_795_997_474_659_159,
                main: main.into(),
            };
            assert_eq!(push(message.as_bytes(), &instance), Ok(recall));
        }
        for broken in ["r", "r 7", "r -7 key", "r key 7", "r  7 key"] {
            assert_eq!(
                push(broken.as_bytes(), &instance),
                Err(Garbled),
                "{broken:?}"
            );
        }
    }

    #[test]
    fn which_permits_are_there_is_read() {
        let answer = Rechecked {
            stamp: 8,
            others: true,
            held: vec![true, false],
        };
        let reply = rechecked(&array(&[7, 8, 1, 1, 0])).map(|reply| reply.outcome);
        assert_eq!(reply, Ok(answer));
        for broken in [&[7, 8][..], &[7, -8, 1]] {
            assert_eq!(rechecked(&array(broken)), Err(Garbled));
        }
    }
}
