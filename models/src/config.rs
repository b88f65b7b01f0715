//! What one run of the checker contains: the acquisitions, the capacity, the times and the faults.

use crate::state::{PROCESSES, Time};

/// One acquisition that a process may make.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The process that acquires.
    pub process: usize,
    /// The permits it asks for.
    pub weight: u8,
    /// Whether it waits, or is refused when it is not granted at once.
    pub waits: bool,
}

/// How many faults of each kind may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A waiter's future is dropped.
    pub cancel: u8,
    /// A request, an answer or a push is lost.
    pub lose: u8,
    /// A request, an answer or a push stays in flight while time goes on.
    pub delay: u8,
    /// A request runs, and stays in flight to run again.
    pub duplicate: u8,
    /// A heartbeat, or its answer, is lost.
    pub miss_beat: u8,
    /// A process ends without a word.
    pub crash: u8,
    /// A process stops, and may go on later.
    pub pause: u8,
    /// The inbox of a process is disconnected.
    pub disconnect: u8,
    /// The inbox of a process hears nothing, though the server counts it.
    pub deafen: u8,
    /// The server loses its data.
    pub flush: u8,
    /// The server's clock steps forward by [`STEP`].
    pub step_forward: u8,
    /// The server's clock steps back by [`STEP`].
    pub step_back: u8,
    /// A plain client takes the lock with `SET NX PX`.
    pub foreign: u8,
}

impl Faults {
    /// All goes well.
    pub const NONE: Self = Self {
        cancel: 0,
        lose: 0,
        delay: 0,
        duplicate: 0,
        miss_beat: 0,
        crash: 0,
        pause: 0,
        disconnect: 0,
        deafen: 0,
        flush: 0,
        step_forward: 0,
        step_back: 0,
        foreign: 0,
    };
}

/// How far the server's clock steps, in ticks: longer than a claim and a command's time-out.
pub const STEP: Time = 3;

/// How long a command may take before its outcome counts as unknown.
pub const COMMAND_TIMEOUT: Time = 1;

/// A closed world for the checker.
#[derive(Clone, Debug)]
pub struct Config {
    /// What it exercises.
    pub name: &'static str,
    /// Permits of the key.
    pub capacity: u8,
    /// The acquisitions, in the order in which a process makes its own.
    pub plans: Vec<Plan>,
    /// C: the lease of a pushed grant, the validity of a heartbeat and the period of the pump.
    pub claim: Time,
    /// The lease of a direct grant and of a renewal.
    pub ttl: Time,
    /// The faults that may happen.
    pub faults: Faults,
    /// The process whose inbox is deaf from the beginning.
    pub deaf: Option<usize>,
    /// The only process that crashes, pauses or loses its inbox, where it matters which.
    pub victim: Option<usize>,
    /// How far each process's wall clock is ahead of the server's.
    pub wall_error: [Time; PROCESSES],
    /// Whether the client library re-sends by itself, so that no answered command is over.
    pub resends: bool,
    /// Whether `PUBLISH` counts every subscriber (standalone, sharded channels).
    pub counts_receivers: bool,
}

impl Config {
    /// Makes a world without faults.
    #[must_use]
    pub const fn new(name: &'static str, capacity: u8, plans: Vec<Plan>) -> Self {
        Self {
            name,
            capacity,
            plans,
            claim: 2,
            ttl: 3,
            faults: Faults::NONE,
            deaf: None,
            victim: None,
            wall_error: [0; PROCESSES],
            resends: false,
            counts_receivers: true,
        }
    }

    /// Adds faults.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Makes the client library re-send by itself.
    #[must_use]
    pub fn resending(self) -> Self {
        Self {
            resends: true,
            ..self
        }
    }

    /// Puts the subscribers on other nodes than the scripts.
    #[must_use]
    pub fn remote(self) -> Self {
        Self {
            counts_receivers: false,
            ..self
        }
    }

    /// Makes the inbox of a process deaf from the beginning.
    #[must_use]
    pub fn deaf(self, process: usize) -> Self {
        Self {
            deaf: Some(process),
            ..self
        }
    }

    /// Lets only one process fail.
    #[must_use]
    pub fn victim(self, process: usize) -> Self {
        Self {
            victim: Some(process),
            ..self
        }
    }

    /// Sets C and the TTL.
    #[must_use]
    pub fn times(self, claim: Time, ttl: Time) -> Self {
        Self { claim, ttl, ..self }
    }

    /// Sets wall clocks wrong.
    #[must_use]
    pub fn wall(self, wall_error: [Time; PROCESSES]) -> Self {
        Self { wall_error, ..self }
    }

    /// Whether no lease can end before its time: lost data and forward steps end leases early.
    #[must_use]
    pub const fn leases_stand(&self) -> bool {
        self.faults.flush == 0 && self.faults.step_forward == 0
    }

    /// How many ticks a waiter may be without a grant while nobody holds: the lease of a crashed
    /// holder, a claim of a hung waiter and one period of the pump after each, and what a clock
    /// that steps back adds.
    #[must_use]
    pub fn patience(&self) -> u8 {
        let ticks = self.ttl + 4 * self.claim + STEP * self.faults.step_back.cast_signed();
        ticks.unsigned_abs()
    }

    /// How many ticks the server may have forgotten a waiter whose process hears: one period of
    /// the pump, and none where nothing but outages of inboxes and crashes can happen.
    #[must_use]
    pub fn memory(&self) -> u8 {
        let harmless = Faults {
            crash: self.faults.crash,
            disconnect: self.faults.disconnect,
            foreign: self.faults.foreign,
            ..Faults::NONE
        };
        if self.faults == harmless && self.deaf.is_none() {
            0
        } else {
            self.claim.unsigned_abs() + 1
        }
    }

    /// How long after its sending a request can be worth something: the longest lease counted from
    /// it, as far as a clock that steps back can stretch it.
    pub(crate) fn horizon(&self) -> Time {
        self.ttl.max(self.claim) + STEP * self.faults.step_back.cast_signed()
    }
}
