//! The state of the world. All times are relative to the present, so that worlds that differ only
//! in their age are one state.

use crate::config::{Config, Faults};
use crate::message::{Body, Message};

/// Ticks from now: negative is past.
pub type Time = i8;

/// A fencing token, a ticket or a stamp, all from one counter; 0 is none. Only their order counts,
/// so they are renumbered after each step.
pub type Fence = u8;

/// A place in the order of all runs on the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// The roster's counter. Only the order counts, so it is renumbered after each step.
    pub(crate) count: u8,
    /// Server time, where a mutation takes it for an order.
    pub(crate) time: Option<Time>,
}

/// The index of an acquisition's token.
pub type Token = usize;

/// The most tokens in a world.
pub const TOKENS: usize = 4;

/// The most processes in a world.
pub const PROCESSES: usize = 3;

/// More marks than a process is ever told at a time, so that the next is above them all.
const MOST_MARKS: u8 = 64;

/// The past beyond which no time matters any longer.
pub(crate) const LONG_AGO: Time = -9;

/// Who holds, by the server's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Server time.
    pub(crate) expiry: Time,
    pub(crate) fence: Fence,
    /// Pushed and never renewed.
    pub(crate) claim: bool,
}

/// What the server keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    pub(crate) holders: [Option<Holder>; TOKENS],
    /// Tickets of the waiters; 0 is absent.
    pub(crate) queue: [Fence; TOKENS],
    /// Server time until which an acquire of the token creates nothing.
    pub(crate) tombstones: [Option<Time>; TOKENS],
    /// Server time until which the process counts as living.
    pub(crate) live: [Option<Time>; PROCESSES],
    pub(crate) suspect: [bool; PROCESSES],
    /// F.
    pub(crate) last: Fence,
    /// `TIME` in µs, as far as it can be above F: only after a loss of data.
    pub(crate) micros: Fence,
    /// M: the roster's counter of runs.
    pub(crate) runs: u8,
    /// Server time at which the lock of a plain client expires.
    pub(crate) foreign: Option<Time>,
}

/// Where an acquisition stands in its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not started.
    #[default]
    Idle,
    /// An acquire was sent, and no grant is known.
    Waiting,
    /// A grant is known that leaves too little time: a renewal was sent.
    Confirming,
    /// The guard was handed out.
    Held,
    /// Released, canceled or lost; `end` is not answered yet.
    Ending,
    /// Over.
    Done,
}

/// One acquisition in its process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Acquisition {
    pub(crate) phase: Phase,
    /// Local time of the first sending of the acquire.
    pub(crate) first_sent: Time,
    /// Local time of the newest sending that has no answer.
    pub(crate) pending: Option<Time>,
    /// Local time of the newest sending of an acquire.
    pub(crate) last_run: Time,
    /// The `latest` of every acquire that has no answer.
    pub(crate) unanswered: Vec<Time>,
    /// The newest "queued" answer.
    pub(crate) queued_stamp: Fence,
    pub(crate) ticket: Fence,
    /// The old ticket was used.
    pub(crate) reentered: bool,
    pub(crate) fence: Fence,
    /// Local time from which the guard is not held.
    pub(crate) deadline: Time,
}

impl Acquisition {
    fn forget(&mut self, config: &Config) {
        self.unanswered.sort_unstable();
        if !matches!(self.phase, Phase::Waiting | Phase::Confirming) {
            self.first_sent = 0;
            self.last_run = 0;
        }
        if matches!(self.phase, Phase::Held | Phase::Ending) {
            self.queued_stamp = 0;
            self.ticket = 0;
        }
        if matches!(self.phase, Phase::Waiting | Phase::Ending) {
            self.fence = 0;
            self.deadline = 0;
        }
        self.first_sent = self.first_sent.max(-config.claim);
        self.last_run = self.last_run.max(-config.claim);
        self.deadline = self.deadline.max(0);
        if let Some(pending) = &mut self.pending {
            *pending = (*pending).max(-config.horizon());
        }
    }
}

/// Whether a process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It runs.
    #[default]
    Running,
    /// It does nothing while time goes on.
    Paused,
    /// It is gone.
    Crashed,
}

/// The subscription of a process's inbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Link {
    /// Confirmed.
    #[default]
    Up,
    /// Confirmed and counted, but pushes vanish.
    Deaf,
    /// Gone, and the process knows.
    Down,
    /// Asked for, not confirmed.
    Subscribing,
}

/// What becomes of the next heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BeatFault {
    /// It never runs.
    RequestLost,
    /// It runs, and its process does not learn it.
    ReplyLost,
    /// It stays in flight.
    Delayed,
}

/// An answered request of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Observation {
    /// Local time of sending.
    pub(crate) sent: Time,
    /// When it ran.
    pub(crate) mark: Mark,
}

/// One client process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    pub(crate) mode: Mode,
    pub(crate) link: Link,
    pub(crate) observations: Vec<Observation>,
    /// Its estimate of the server's time minus the server's time.
    pub(crate) estimate_error: Time,
    pub(crate) beat_fault: Option<BeatFault>,
}

/// A property that was seen to fail in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Violation {
    FenceNotRising,
    Overtaken,
    HungTwice,
    Revived,
    FalselyLost,
    Shortened,
    WakeUpLost,
    FalselyRefused,
    StaleGrant,
}

/// What the checker remembers about the past to judge the present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// A set of [`Violation`]s.
    pub(crate) violations: u16,
    pub(crate) top_fence: Fence,
    /// The first ticket that each waiter was told.
    pub(crate) order: [Fence; TOKENS],
    /// The token re-entered the queue while its process could hear, so its next ticket is new.
    pub(crate) spent: [bool; TOKENS],
    /// A claim of the process ran out since its last script.
    pub(crate) burnt: [bool; PROCESSES],
    /// Ticks since a waiter could have been granted.
    pub(crate) starved: u8,
    /// Ticks since the server has not known a settled waiter.
    pub(crate) forgotten: u8,
}

impl Ghost {
    pub(crate) const fn record(&mut self, violation: Violation) {
        self.violations |= 1 << violation as u16;
    }

    pub(crate) const fn has(&self, violation: Violation) -> bool {
        self.violations & (1 << violation as u16) != 0
    }
}

/// The world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) server: Server,
    pub(crate) processes: [Process; PROCESSES],
    pub(crate) tokens: [Acquisition; TOKENS],
    /// In flight, sorted.
    pub(crate) network: Vec<Message>,
    pub(crate) faults: Faults,
    pub(crate) ghost: Ghost,
}

impl State {
    pub(crate) fn new(config: &Config) -> Self {
        let mut processes: [Process; PROCESSES] = Default::default();
        if let Some(process) = config.deaf {
            processes[process].link = Link::Deaf;
        }
        Self {
            server: Server {
                runs: MOST_MARKS,
                ..Server::default()
            },
            processes,
            tokens: Default::default(),
            network: Vec::new(),
            faults: config.faults,
            ghost: Ghost::default(),
        }
    }

    /// Whether a guard says that it is held.
    pub(crate) fn is_held(&self, config: &Config, token: Token) -> bool {
        let process = &self.processes[config.plans[token].process];
        let acquisition = &self.tokens[token];
        process.mode != Mode::Crashed
            && acquisition.phase == Phase::Held
            && acquisition.deadline > 0
    }

    /// Lets one tick pass on all clocks.
    pub(crate) fn tick(&mut self) {
        self.shift_server(1);
        self.each_local_time(|time| *time = (*time - 1).max(LONG_AGO));
    }

    /// Moves the server's clock alone.
    pub(crate) fn step(&mut self, by: Time) {
        self.shift_server(by);
        for process in &mut self.processes {
            if process.mode != Mode::Crashed {
                process.estimate_error -= by;
            }
        }
    }

    fn shift_server(&mut self, by: Time) {
        self.each_server_time(|time| *time = (*time - by).max(LONG_AGO));
    }

    fn each_server_time(&mut self, mut visit: impl FnMut(&mut Time)) {
        let server = &mut self.server;
        server
            .holders
            .iter_mut()
            .flatten()
            .for_each(|holder| visit(&mut holder.expiry));
        server.tombstones.iter_mut().flatten().for_each(&mut visit);
        server.live.iter_mut().flatten().for_each(&mut visit);
        server.foreign.iter_mut().for_each(&mut visit);
        for process in &mut self.processes {
            for observation in &mut process.observations {
                observation.mark.time.iter_mut().for_each(&mut visit);
            }
        }
        for token in &mut self.tokens {
            token.unanswered.iter_mut().for_each(&mut visit);
        }
        self.network
            .iter_mut()
            .for_each(|message| message.each_server_time(&mut visit));
    }

    fn each_local_time(&mut self, mut visit: impl FnMut(&mut Time)) {
        for process in &mut self.processes {
            for observation in &mut process.observations {
                visit(&mut observation.sent);
            }
        }
        for token in &mut self.tokens {
            if !matches!(token.phase, Phase::Idle | Phase::Done) {
                visit(&mut token.first_sent);
                visit(&mut token.last_run);
                visit(&mut token.deadline);
                token.pending.iter_mut().for_each(&mut visit);
            }
        }
        self.network
            .iter_mut()
            .for_each(|message| message.each_local_time(&mut visit));
    }

    fn each_fence(&mut self, mut visit: impl FnMut(&mut Fence)) {
        let server = &mut self.server;
        server
            .holders
            .iter_mut()
            .flatten()
            .for_each(|holder| visit(&mut holder.fence));
        server.queue.iter_mut().for_each(&mut visit);
        visit(&mut server.last);
        visit(&mut server.micros);
        for token in &mut self.tokens {
            visit(&mut token.queued_stamp);
            visit(&mut token.ticket);
            visit(&mut token.fence);
        }
        self.network
            .iter_mut()
            .for_each(|message| message.each_fence(&mut visit));
        visit(&mut self.ghost.top_fence);
        self.ghost.order.iter_mut().for_each(&mut visit);
    }

    /// Forgets what can make no difference any more, so that equal futures are equal states.
    pub(crate) fn normalize(&mut self, config: &Config) {
        // A clock that may still step back can make a past time matter again.
        let steps_back = self.faults.step_back > 0;
        if !steps_back {
            for holder in self.server.holders.iter_mut().flatten() {
                holder.expiry = holder.expiry.max(0);
            }
            self.server.tombstones.iter_mut().for_each(|until| {
                until.take_if(|until| *until < 0);
            });
            for live in self.server.live.iter_mut() {
                live.take_if(|until| *until <= 0);
            }
            self.server.foreign.take_if(|expiry| *expiry <= 0);
            for token in &mut self.tokens {
                token.unanswered.retain(|latest| *latest >= 0);
            }
        }
        for process in &mut self.processes {
            let claim = config.claim;
            process
                .observations
                .retain(|observation| observation.sent + claim > 0);
        }
        for (token, acquisition) in self.tokens.iter_mut().enumerate() {
            acquisition.forget(config);
            if !matches!(acquisition.phase, Phase::Waiting | Phase::Confirming) {
                self.ghost.order[token] = 0;
                self.ghost.spent[token] = false;
            }
        }
        if self.server.micros <= self.server.last {
            self.server.micros = 0;
        }
        self.network
            .iter_mut()
            .for_each(|message| message.forget(config, steps_back));
        let mut fences = Ranks::default();
        self.each_fence(|fence| fences.add(*fence));
        self.each_fence(|fence| *fence = fences.rank(*fence));
        // A process compares only the marks that it is told.
        for process in 0..PROCESSES {
            let mut marks = Ranks::default();
            self.each_mark(process, |mark| marks.add(mark.count));
            self.each_mark(process, |mark| mark.count = marks.rank(mark.count));
        }
        self.server.runs = MOST_MARKS;
        self.network.sort_unstable();
    }

    fn each_mark(&mut self, process: usize, mut visit: impl FnMut(&mut Mark)) {
        for observation in &mut self.processes[process].observations {
            visit(&mut observation.mark);
        }
        for message in &mut self.network {
            if message.process != process {
                continue;
            }
            if let Body::Reply { mark, .. } | Body::Push { mark, .. } = &mut message.body {
                visit(mark);
            }
        }
    }
}

/// The ranks of the values of a counter of which only the order counts; 0 stays 0.
struct Ranks(u128);

impl Default for Ranks {
    fn default() -> Self {
        Self(1)
    }
}

impl Ranks {
    const fn add(&mut self, value: u8) {
        self.0 |= 1 << value;
    }

    fn rank(&self, value: u8) -> u8 {
        let below = self.0 & ((1 << value) - 1);
        u8::try_from(below.count_ones()).expect("at most 128 bits are set")
    }
}
