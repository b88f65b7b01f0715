//! What the scripts of a quorum answer.

use std::time::Duration;

use redis::Value;

use crate::backend::server::reply::{Garbled, Reply, numbers, status};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    Held { fence: u64, left: Duration },
    Queued(Crowd),
    Busy(Crowd),
    Full(Crowd),
    Late,
    Ended,
}

/// Who stands in the way at one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Crowd {
    /// The time to the first end of a lease, if the holder's key has one.
    pub(super) next_end: Option<Duration>,
    /// Somebody holds who does not tell of its release.
    pub(super) foreign: bool,
    /// How many wait; for who is queued, in front.
    pub(super) waiting: u64,
    /// The ticket of who is in the way, if it has one.
    pub(super) ticket: Option<u64>,
}

pub(super) fn asked(value: &Value) -> Result<Reply<Asked>, Garbled> {
    let numbers = numbers(value)?;
    let (us, outcome) = match numbers[..] {
        [status::HELD, us, fence, left] => (
            us,
            Asked::Held {
                fence: unsigned(fence)?,
                left: Duration::from_millis(unsigned(left)?),
            },
        ),
        [kind, us, next, foreign, waiting, ticket] => {
            let crowd = Crowd {
                next_end: u64::try_from(next).ok().map(Duration::from_millis),
                foreign: foreign == 1,
                waiting: unsigned(waiting)?,
                ticket: u64::try_from(ticket).ok(),
            };
            let outcome = match kind {
                status::QUEUED => Asked::Queued(crowd),
                status::BUSY => Asked::Busy(crowd),
                status::FULL => Asked::Full(crowd),
                _ => return Err(Garbled),
            };
            (us, outcome)
        }
        [status::LATE, us] => (us, Asked::Late),
        [status::ENDED, us] => (us, Asked::Ended),
        _ => return Err(Garbled),
    };
    let us = unsigned(us)?;
    Ok(Reply { us, outcome })
}

/// Whether it held until then.
pub(super) fn ended(value: &Value) -> Result<Reply<bool>, Garbled> {
    match numbers(value)?[..] {
        [
            kind @ (status::RELEASED | status::CANCELLED | status::GONE),
            us,
        ] => Ok(Reply {
            us: unsigned(us)?,
            outcome: kind == status::RELEASED,
        }),
        _ => Err(Garbled),
    }
}

/// For how long it is held, and with which fence; `None` if it is not.
pub(super) fn renewed(value: &Value) -> Result<Reply<Option<(Duration, u64)>>, Garbled> {
    let (us, outcome) = match numbers(value)?[..] {
        [status::HELD, us, left, fence] => {
            let left = Duration::from_millis(unsigned(left)?);
            (us, Some((left, unsigned(fence)?)))
        }
        [status::GONE, us] => (us, None),
        _ => return Err(Garbled),
    };
    let us = unsigned(us)?;
    Ok(Reply { us, outcome })
}

fn unsigned(number: i64) -> Result<u64, Garbled> {
    u64::try_from(number).map_err(|_| Garbled)
}
