//! How a process keeps what it has of a gate for its own next requests, and what came of that.

use std::time::Duration;

/// What may be kept of a gate, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// How often a permit is passed on in this process while others wait.
    pub(crate) passes: u32,
    /// For how long it is, then.
    pub(crate) turn: Duration,
    /// How long a permit is kept that nobody uses; not at all for zero.
    pub(crate) linger: Duration,
    /// How many fences each grant is to bring besides its own, one for each further use, where uses are
    /// fenced; `None` where they are not.
    pub(crate) fences: Option<u32>,
}

impl Keep {
    /// What an acquire tells the server: that what it gets is kept, and how many fences to set aside.
    pub(crate) fn told(&self) -> u32 {
        1 + self.fences.unwrap_or(0)
    }

    /// As errors name it.
    pub(crate) const fn setting(&self) -> &'static str {
        match self.fences {
            None => "keep_permits",
            Some(_) => "local_handoffs",
        }
    }
}

/// What a process keeps of a gate at the moment, and what came of that since it began to.
///
/// Told by [`Semaphore::kept`](crate::Semaphore::kept) and [`Mutex::kept`](crate::Mutex::kept). The
/// counts begin anew when nothing was kept and nobody named the gate any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kept {
    /// How many permits wait for their next request.
    pub idle: u32,
    /// How many are in use.
    pub used: u32,
    /// How often an idle permit served a request, without the server.
    pub reused: u64,
    /// How often a permit went from one request to the next that waited in this process.
    pub passed: u64,
    /// How many idle permits were given back because others waited.
    pub recalled: u64,
    /// How many were given back because nobody used them.
    pub lingered: u64,
}
