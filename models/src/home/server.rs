//! The server's scripts: `acquire`, `end` and `recheck`, and the loop that hands on.

use super::Fleet;
use super::mutation::Mutation;
use super::state::{Body, Mode, Question, Slot, State, Token, Word, owner, tokens_of};
use super::world::{Clock, LEASE, PROCESSES, TIMEOUT};

impl Fleet {
    pub(super) fn run(&self, state: &mut State, process: usize, body: Body) {
        if self.world.clock == Clock::Moves {
            state.server.clock += 1;
        }
        match body {
            Body::Acquire(token, age) => self.acquire(state, token, age),
            Body::End(token) => self.end(state, token),
            Body::Recheck(question) => self.recheck(state, process, question),
            Body::Checked(..) | Body::Held(..) | Body::Grant(..) | Body::Recall(_) => {}
        }
    }

    /// The stamp of an answer of a script that has drawn nothing.
    fn stamp(&self, state: &State) -> u8 {
        state.server.clock + u8::from(self.world.clock == Clock::Stands)
    }

    fn draw(state: &mut State) -> u8 {
        state.server.clock += 1;
        state.server.clock
    }

    /// Whether a place of another process is in the queue.
    fn others(state: &State, process: usize) -> bool {
        let mut places = state.server.queue.iter();
        places.any(|token| owner(*token) != process)
    }

    fn has_room(&self, state: &State) -> bool {
        let holders = state.server.holders.iter().filter(|left| **left > 0);
        holders.count() < self.world.capacity.into()
    }

    /// Makes a token a holder, and gives what to tell of it.
    fn hold(state: &mut State, token: Token) -> Word {
        let stamp = Self::draw(state);
        state.server.holders[token as usize] = LEASE;
        Word {
            others: Self::others(state, owner(token)),
            stamp,
        }
    }

    /// Hands on; the caller's own token is granted in the answer. Returns whether it was.
    pub(super) fn grant(&self, state: &mut State, own: Option<Token>) -> bool {
        while !state.server.queue.is_empty() && self.has_room(state) {
            let token = state.server.queue.remove(0);
            let process = owner(token);
            // Nobody hears.
            if state.homes[process].mode == Mode::Crashed {
                continue;
            }
            let word = Self::hold(state, token);
            if own == Some(token) {
                state.send(process, Body::Held(token, LEASE, word));
                return true;
            }
            state.send(process, Body::Grant(token, LEASE, word));
        }
        false
    }

    fn acquire(&self, state: &mut State, token: Token, age: u8) {
        let process = owner(token);
        if state.holds(token) {
            let left = state.server.holders[token as usize];
            let word = Word {
                others: Self::others(state, process),
                stamp: self.stamp(state),
            };
            state.send(process, Body::Held(token, left, word));
            return;
        }
        let waits = state.waits(token);
        if !waits && (age > TIMEOUT || state.server.tombstones >> token & 1 == 1) {
            return;
        }
        if self.grant(state, Some(token)) {
            return;
        }
        if waits {
            let stamp = self.stamp(state);
            self.queued(state, token, stamp);
            return;
        }
        if state.server.queue.is_empty() {
            if self.mutation == Some(Mutation::ServerTakesIdle) && !self.has_room(state) {
                let idle = |token: &Token| {
                    state.holds(*token) && matches!(state.slot(*token), Slot::Idle { .. })
                };
                if let Some(taken) = (0..PROCESSES).flat_map(tokens_of).find(idle) {
                    state.server.holders[taken as usize] = 0;
                }
            }
            if self.has_room(state) {
                let word = Self::hold(state, token);
                state.send(process, Body::Held(token, LEASE, word));
                return;
            }
        }
        self.enter(state, token);
    }

    /// Enters the queue, and tells those who hold and do not know that another waits.
    fn enter(&self, state: &mut State, token: Token) {
        let process = owner(token);
        let stamp = Self::draw(state);
        let recalled: Vec<usize> = match state.server.queue.first() {
            None => {
                let holding = |other: &usize| tokens_of(*other).any(|token| state.holds(token));
                let mut others: Vec<usize> = (0..PROCESSES).filter(holding).collect();
                others.retain(|other| *other != process);
                if self.mutation == Some(Mutation::RecallOfOne) {
                    others.truncate(1);
                }
                others
            }
            Some(head) if owner(*head) != process => vec![owner(*head)],
            Some(_) => Vec::new(),
        };
        state.server.queue.push(token);
        for other in recalled {
            if !self.world.recalls_lost && state.homes[other].mode != Mode::Crashed {
                let word = Word {
                    others: true,
                    stamp,
                };
                state.send(other, Body::Recall(word));
            }
        }
        self.queued(state, token, stamp);
    }

    /// Answers "queued", at once: a late one changes nothing but what the other model has shown.
    fn queued(&self, state: &mut State, token: Token, stamp: u8) {
        if self.mutation == Some(Mutation::WaiterIsHolder) {
            let word = Word {
                others: false,
                stamp,
            };
            state.send(owner(token), Body::Held(token, LEASE, word));
            return;
        }
        if state.homes[owner(token)].mode == Mode::Running
            && self.world.faults.flush > 0
            && let Slot::Seeking(queued) = state.slot_mut(token)
        {
            *queued = stamp;
        }
    }

    fn end(&self, state: &mut State, token: Token) {
        let known = state.holds(token) || state.waits(token);
        state.server.holders[token as usize] = 0;
        state.server.queue.retain(|other| *other != token);
        state.server.tombstones |= 1 << token;
        self.grant(state, None);
        // The answer comes at once, or, where the process stands still, not at all.
        if state.homes[owner(token)].mode == Mode::Running
            && let Slot::Ending(held) = state.slot(token)
        {
            *state.slot_mut(token) = Slot::Free;
            if held && !known {
                self.hear_gone(state, owner(token));
            }
        }
    }

    fn recheck(&self, state: &mut State, process: usize, question: Question) {
        let held = tokens_of(process).filter(|token| state.holds(*token));
        let held = held.fold(0, |tokens, token| tokens | 1 << token);
        let word = Word {
            others: Self::others(state, process),
            stamp: self.stamp(state),
        };
        let lost = Question {
            tokens: question.tokens & !held,
            ..question
        };
        state.send(process, Body::Checked(lost, word));
    }
}
