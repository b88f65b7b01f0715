//! All there is: homes, the server, what is under way, and what the promises are judged by.

pub use crate::state::Mode;

use super::world::{Clock, Faults, LEASE, Load, PROCESSES, TIMEOUT, World};

/// How many tokens a process has. One is drawn again when nothing refers to it any more.
pub const SLOTS: usize = 7;
/// Where the server's clock is put after each step: only the order of stamps counts.
const CLOCK: u8 = 50;
/// Stamps from here on are of a clock that was ahead.
const AHEAD: u8 = 100;

/// One acquisition of one process.
pub type Token = u8;

/// Whose it is.
#[must_use]
pub const fn owner(token: Token) -> usize {
    token as usize / SLOTS
}

/// The tokens of a process.
pub(crate) fn tokens_of(process: usize) -> impl Iterator<Item = Token> {
    (0..SLOTS).map(move |slot| (process * SLOTS + slot) as Token)
}

/// What a home makes of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Slot {
    /// Nothing.
    #[default]
    Free,
    /// It is acquired for whoever waits. Stamp of the newest "queued".
    Seeking(u8),
    /// It is held for the next request.
    Idle {
        /// Ticks since its last use.
        age: u8,
        /// Ticks that are left of the lease.
        left: u8,
    },
    /// A request uses it.
    Used {
        /// Ticks that are left of the lease.
        left: u8,
        /// Passes since others wait.
        passes: u8,
        /// Whether it began before the last tick.
        old: bool,
    },
    /// Its `end` was sent. Whether it was held.
    Ending(bool),
}

/// What one process keeps of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Home {
    /// What it does.
    pub mode: Mode,
    /// Its tokens.
    pub slots: [Slot; SLOTS],
    /// Requests that wait.
    pub waiting: u8,
    /// Requests that will come.
    pub requests: u8,
    /// Whether others wait, as far as it was told.
    pub others: bool,
    /// Stamp of the newest word about that.
    pub known: u8,
    /// Whether others wait since before the last tick.
    pub impatient: bool,
    /// Whether an `end` was answered "gone", and no question since.
    pub unsure: bool,
    /// Whether it had more seekers than needed at the last tick.
    pub spare: bool,
}

/// The server's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    /// Ticks that are left of each lease, 0 for none.
    pub holders: [u8; PROCESSES * SLOTS],
    /// Who waits, in order.
    pub queue: Vec<Token>,
    /// A bit for each token whose `end` ran and whose acquire may still come.
    pub tombstones: u32,
    /// The number drawn last.
    pub clock: u8,
}

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Body {
    /// Ticks since its sending.
    Acquire(Token, u8),
    /// To the server.
    End(Token),
    /// To the server: whether others wait, and which of these it knows as holders.
    Recheck(Question),
    /// The answer.
    Checked(Question, Word),
    /// A grant by answer, with what is left of its lease.
    Held(Token, u8, Word),
    /// A grant by push.
    Grant(Token, u8, Word),
    /// Others wait.
    Recall(Word),
}

/// One question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Question {
    /// A bit for each token asked for; in the answer those that are lost.
    pub tokens: u32,
    /// Whether it was sent after an `end` was answered "gone".
    pub sure: bool,
    /// Whether its process has heard nothing else since it was sent.
    pub newest: bool,
}

/// Whether others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Word {
    /// Whether a place of another process is in the queue.
    pub others: bool,
    /// When that was.
    pub stamp: u8,
}

/// What is under way between a process and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// The process.
    pub process: usize,
    /// What it says.
    pub body: Body,
    /// Whether time may go on before it arrives.
    pub late: bool,
}

impl Body {
    /// Whether a process says it.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        matches!(self, Self::Acquire(..) | Self::End(_) | Self::Recheck(_))
    }

    pub(crate) const fn word_mut(&mut self) -> Option<&mut Word> {
        match self {
            Self::Checked(_, word)
            | Self::Held(.., word)
            | Self::Grant(.., word)
            | Self::Recall(word) => Some(word),
            Self::Acquire(..) | Self::End(_) | Self::Recheck(_) => None,
        }
    }

    const fn mentions(&self, token: Token) -> bool {
        match self {
            Self::Acquire(other, _)
            | Self::End(other)
            | Self::Held(other, ..)
            | Self::Grant(other, ..) => *other == token,
            Self::Recheck(question) | Self::Checked(question, _) => {
                question.tokens >> token & 1 == 1
            }
            Self::Recall(_) => false,
        }
    }
}

/// A promise that was broken in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Violation {
    /// A use began whose permit's `end` had been sent.
    UsedAfterEnd = 1,
    /// A lease ended in a running process' use.
    Expired = 2,
    /// A permit was handed on that the server did not know, after it had said so of another.
    Unchecked = 4,
}

/// What the promises are judged by, and nobody acts upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    /// Ticks in which each process waited and was not served.
    pub hungry: [u8; PROCESSES],
    /// Passes of others since each process waits.
    pub overtaken: [u8; PROCESSES],
    /// Ticks at which a permit of each process was idle while others waited.
    pub kept: [u8; PROCESSES],
    /// Ticks at which more were inside than there are permits.
    pub excess: u8,
    /// Ticks in which nobody wanted anything.
    pub rest: u8,
    /// Whether data were lost.
    pub flushed: bool,
    /// Whether a recall made a process give something back.
    pub recalled: bool,
    /// Whether an `end` of each process was answered "gone", and no later question since.
    pub doubts: [bool; PROCESSES],
    /// A bit for each [`Violation`].
    pub violations: u8,
}

/// All there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The processes.
    pub homes: [Home; PROCESSES],
    /// The server.
    pub server: Server,
    /// What is under way, in an order without meaning.
    pub network: Vec<Message>,
    /// The faults that may still happen.
    pub faults: Faults,
    /// What the promises are judged by.
    pub ghost: Ghost,
}

impl State {
    pub(crate) fn new(world: &World) -> Self {
        let homes = world.loads.map(|load| Home {
            requests: match load {
                Load::Requests(requests) => requests,
                Load::Endless => 1,
            },
            ..Home::default()
        });
        let mut state = Self {
            homes,
            server: Server::default(),
            network: Vec::new(),
            faults: world.faults,
            ghost: Ghost::default(),
        };
        state.server.clock = CLOCK;
        state
    }

    /// What its home makes of a token.
    #[must_use]
    pub const fn slot(&self, token: Token) -> Slot {
        self.homes[owner(token)].slots[token as usize % SLOTS]
    }

    pub(crate) const fn slot_mut(&mut self, token: Token) -> &mut Slot {
        &mut self.homes[owner(token)].slots[token as usize % SLOTS]
    }

    pub(crate) fn holds(&self, token: Token) -> bool {
        self.server.holders[token as usize] > 0
    }

    pub(crate) fn waits(&self, token: Token) -> bool {
        self.server.queue.contains(&token)
    }

    pub(crate) fn send(&mut self, process: usize, body: Body) {
        self.network.push(Message {
            process,
            body,
            late: false,
        });
    }

    pub(crate) fn is_under_way(&self, what: impl Fn(&Body) -> bool) -> bool {
        self.network.iter().any(|message| what(&message.body))
    }

    /// A token that nothing refers to.
    pub(crate) fn fresh(&self, process: usize) -> Token {
        tokens_of(process)
            .find(|token| {
                self.slot(*token) == Slot::Free
                    && !self.holds(*token)
                    && !self.waits(*token)
                    && self.server.tombstones >> token & 1 == 0
                    && !self.is_under_way(|body| body.mentions(*token))
            })
            .expect("there are more tokens than can be referred to")
    }

    /// Permits that requests believe to use.
    #[must_use]
    pub fn inside(&self) -> usize {
        let running = |home: &&Home| home.mode != Mode::Crashed;
        let slots = self
            .homes
            .iter()
            .filter(running)
            .flat_map(|home| home.slots);
        slots
            .filter(|slot| matches!(slot, Slot::Used { left: 1.., .. }))
            .count()
    }

    /// Makes states one that differ in nothing that matters.
    pub(crate) fn normalize(&mut self, world: &World) {
        let tombstones = self.server.tombstones;
        if self.faults.flush == 0 {
            // What meets a tombstone does nothing, and only a loss of data takes it away.
            self.network.retain(|message| {
                !matches!(message.body, Body::Acquire(token, _) if tombstones >> token & 1 == 1)
            });
        }
        for token in 0..(PROCESSES * SLOTS) as Token {
            let comes = self
                .is_under_way(|body| matches!(body, Body::Acquire(other, _) if *other == token));
            if !comes {
                self.server.tombstones &= !(1 << token);
            }
        }
        for process in 0..PROCESSES {
            self.rank(world, process);
        }
        self.server.clock = CLOCK;
        self.network.sort_unstable();
    }

    /// Counts the stamps that a process knows, or will, down from the server's clock.
    fn rank(&mut self, world: &World, process: usize) {
        let heard = |message: &&mut Message| message.process == process;
        let home = &mut self.homes[process];
        let mut words: Vec<&mut u8> = self
            .network
            .iter_mut()
            .filter(heard)
            .filter_map(|message| message.body.word_mut().map(|word| &mut word.stamp))
            .collect();
        let permits = home
            .slots
            .iter()
            .any(|slot| matches!(slot, Slot::Idle { .. } | Slot::Used { .. }));
        if words.is_empty() && !permits && home.known < AHEAD {
            // The next grant is newer than all that it knows.
            home.known = 0;
            home.others = false;
            home.impatient = false;
        } else {
            words.push(&mut home.known);
        }
        for slot in &mut home.slots {
            if let Slot::Seeking(queued) = slot
                && *queued > 0
            {
                words.push(queued);
            }
        }
        let mut values: Vec<u8> = words.iter().map(|stamp| **stamp).collect();
        values.sort_unstable();
        values.dedup();
        let ahead = values.partition_point(|stamp| *stamp < AHEAD);
        let (low, high) = values.split_at(ahead);
        let newest = low.last().copied().unwrap_or_default();
        let same = world.clock != Clock::Moves && newest == self.server.clock;
        let top = if same { CLOCK } else { CLOCK - 1 };
        for stamp in words {
            *stamp = if *stamp < AHEAD {
                let newer = low.iter().filter(|other| **other > *stamp).count();
                top - newer as u8
            } else {
                let older = high.iter().filter(|other| **other < *stamp).count();
                AHEAD + older as u8
            };
        }
    }

    /// The server loses its data, and perhaps its clock falls far behind what it was.
    pub(crate) fn flush(&mut self, falls_back: bool) {
        self.server = Server {
            clock: self.server.clock + 1,
            ..Server::default()
        };
        self.ghost.flushed = true;
        self.ghost.overtaken = [0; PROCESSES];
        if !falls_back {
            return;
        }
        for message in &mut self.network {
            if let Some(word) = message.body.word_mut() {
                word.stamp += AHEAD - 10;
            }
        }
        for home in &mut self.homes {
            if home.known > 0 {
                home.known += AHEAD - 10;
            }
            for slot in &mut home.slots {
                if let Slot::Seeking(queued) = slot
                    && *queued > 0
                {
                    *queued += AHEAD - 10;
                }
            }
        }
    }

    /// Leases and messages grow older by a tick.
    pub(crate) fn age(&mut self, world: &World) {
        for token in 0..(PROCESSES * SLOTS) as Token {
            let home = &self.homes[owner(token)];
            let renewed = world.renews && home.mode == Mode::Running;
            let knows = self.holds(token);
            let expiry = &mut self.server.holders[token as usize];
            let running = home.mode == Mode::Running;
            match &mut self.homes[owner(token)].slots[token as usize % SLOTS] {
                Slot::Idle { left, .. } | Slot::Used { left, .. } if *left > 0 && renewed => {
                    *left = LEASE;
                    if knows {
                        *expiry = LEASE;
                    }
                    continue;
                }
                Slot::Idle { left, .. } => *left = left.saturating_sub(1),
                Slot::Used { left, .. } => {
                    if *left == 1 && running {
                        self.ghost.violations |= Violation::Expired as u8;
                    }
                    *left = left.saturating_sub(1);
                }
                Slot::Free | Slot::Seeking(_) | Slot::Ending(_) => {}
            }
            *expiry = expiry.saturating_sub(1);
        }
        for message in &mut self.network {
            match &mut message.body {
                Body::Acquire(_, age) => *age = (*age + 1).min(TIMEOUT + 1),
                Body::Held(_, left, _) | Body::Grant(_, left, _) => *left = left.saturating_sub(1),
                Body::End(_) | Body::Recheck(_) | Body::Checked(..) | Body::Recall(_) => {}
            }
        }
    }
}
