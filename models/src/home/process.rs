//! What a home does: hands permits to its waiters, gives them back, seeks and asks.

use super::Fleet;
use super::mutation::Mutation;
use super::state::{
    Body, Home, Message, Mode, Question, Slot, State, Token, Violation, Word, owner, tokens_of,
};
use super::world::{LEASE, LINGER, PASSES};

/// Whether enough of a lease is left to serve another request.
const fn is_long(left: u8) -> bool {
    left * 2 >= LEASE
}

impl Home {
    fn count(&self, what: impl Fn(&Slot) -> bool) -> u8 {
        self.slots.iter().filter(|slot| what(slot)).count() as u8
    }

    fn permits(&self) -> u8 {
        self.count(|slot| matches!(slot, Slot::Idle { .. } | Slot::Used { .. }))
    }

    fn seekers(&self) -> u8 {
        self.count(|slot| matches!(slot, Slot::Seeking(_)))
    }

    /// How many seekers it needs.
    fn wanted(&self, capacity: u8) -> u8 {
        let room = capacity.saturating_sub(self.permits()).max(1);
        self.waiting.min(room)
    }
}

impl Fleet {
    fn broken(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Gives a permit to the first request that waits.
    fn serve(state: &mut State, token: Token, left: u8, passes: u8) {
        let process = owner(token);
        state.homes[process].waiting -= 1;
        *state.slot_mut(token) = Slot::Used {
            left,
            passes,
            old: false,
        };
        state.ghost.hungry[process] = 0;
        state.ghost.overtaken[process] = 0;
        if state.is_under_way(|body| *body == Body::End(token)) {
            state.ghost.violations |= Violation::UsedAfterEnd as u8;
        }
    }

    /// Gives a permit that has served before to the first request that waits.
    fn reuse(state: &mut State, token: Token, left: u8, passes: u8) {
        if state.ghost.doubts[owner(token)] && !state.holds(token) {
            state.ghost.violations |= Violation::Unchecked as u8;
        }
        Self::serve(state, token, left, passes);
    }

    fn give_back(state: &mut State, token: Token, held: bool) {
        *state.slot_mut(token) = Slot::Ending(held);
        state.send(owner(token), Body::End(token));
    }

    /// A request comes.
    pub(super) fn request(&self, state: &mut State, process: usize) {
        state.homes[process].waiting += 1;
        state.ghost.rest = 0;
        self.settle(state, process);
    }

    /// A request is over.
    pub(super) fn finish(&self, state: &mut State, token: Token) {
        let process = owner(token);
        let home = state.homes[process];
        let Slot::Used { left, passes, .. } = state.slot(token) else {
            return;
        };
        let bounded = home.others && !self.broken(Mutation::PassesWithoutBound);
        let few = passes < PASSES || self.broken(Mutation::PassesWithoutCount);
        let soon = !home.impatient || self.broken(Mutation::PassesWithoutTime);
        let passes_on = !bounded || few && soon;
        let lasts = is_long(left) || self.broken(Mutation::ReuseOfAnEndingLease);
        // A permit that may be lost is kept until that is known.
        let unsure = home.unsure
            && !self.broken(Mutation::NoRecheck)
            && !self.broken(Mutation::PassBeforeRecheck);
        if left == 0 {
            Self::give_back(state, token, true);
        } else if home.waiting > 0 && passes_on && lasts && !unsure {
            if home.others {
                self.overtake(state, process);
            }
            let passes = (passes + u8::from(home.others)).min(PASSES);
            Self::reuse(state, token, left, passes);
        } else if home.others || home.waiting > 0 && !unsure {
            Self::give_back(state, token, true);
        } else {
            *state.slot_mut(token) = Slot::Idle { age: 0, left };
        }
        self.settle(state, process);
    }

    fn overtake(&self, state: &mut State, process: usize) {
        for other in (0..state.homes.len()).filter(|other| *other != process) {
            let home = &state.homes[other];
            let queued = tokens_of(other).any(|token| state.waits(token));
            if home.mode == Mode::Running && home.waiting > 0 && queued {
                let most = self.world.overtaking() + 1;
                state.ghost.overtaken[other] = (state.ghost.overtaken[other] + 1).min(most);
            }
        }
    }

    /// Does what follows from how things are.
    pub(super) fn settle(&self, state: &mut State, process: usize) {
        for token in tokens_of(process) {
            let ended = matches!(
                state.slot(token),
                Slot::Idle { left: 0, .. } | Slot::Used { left: 0, .. }
            );
            let idle = matches!(state.slot(token), Slot::Idle { .. });
            if ended || idle && state.homes[process].others {
                state.ghost.recalled |= idle && !ended;
                Self::give_back(state, token, true);
            }
        }
        for token in tokens_of(process) {
            let home = &state.homes[process];
            let unsure = home.unsure && !self.broken(Mutation::NoRecheck);
            match state.slot(token) {
                Slot::Idle { left, .. } if home.waiting > 0 && !unsure => {
                    if is_long(left) || self.broken(Mutation::ReuseOfAnEndingLease) {
                        Self::reuse(state, token, left, 0);
                    } else {
                        Self::give_back(state, token, true);
                    }
                }
                Slot::Ending(true)
                    if home.waiting > 0
                        && self.broken(Mutation::ReuseAfterEnd)
                        && state.is_under_way(|body| *body == Body::End(token)) =>
                {
                    Self::serve(state, token, LEASE, 0);
                }
                _ => {}
            }
        }
        let home = &state.homes[process];
        for _ in home.seekers()..home.wanted(self.world.capacity) {
            let token = state.fresh(process);
            *state.slot_mut(token) = Slot::Seeking(0);
            state.send(process, Body::Acquire(token, 0));
        }
    }

    /// It is told whether others wait.
    fn hear_word(&self, state: &mut State, process: usize, word: Word, newest: bool) {
        for message in &mut state.network {
            if message.process == process
                && let Body::Recheck(question) | Body::Checked(question, _) = &mut message.body
            {
                question.newest = false;
            }
        }
        let newest = newest && !self.broken(Mutation::StampsAlone);
        let home = &mut state.homes[process];
        let counts = if newest || self.broken(Mutation::NoStamp) {
            true
        } else if word.others {
            word.stamp >= home.known
        } else {
            word.stamp > home.known
        };
        if !counts {
            return;
        }
        home.known = word.stamp;
        if home.others != word.others {
            home.others = word.others;
            home.impatient = false;
            for slot in &mut home.slots {
                if let Slot::Used { passes, .. } = slot {
                    *passes = 0;
                }
            }
        }
    }

    /// An `end` was answered "gone": perhaps more is.
    pub(super) fn hear_gone(&self, state: &mut State, process: usize) {
        if state.homes[process].permits() == 0 {
            return;
        }
        state.homes[process].unsure = true;
        state.ghost.doubts[process] = true;
        if !self.broken(Mutation::NoRecheck) {
            Self::ask(state, process);
        }
    }

    fn ask(state: &mut State, process: usize) {
        let asked = |token: &Token| {
            matches!(
                state.slot(*token),
                Slot::Idle { .. } | Slot::Used { left: 1.., .. }
            )
        };
        let tokens = tokens_of(process).filter(asked);
        let question = Question {
            tokens: tokens.fold(0, |tokens, token| tokens | 1 << token),
            sure: state.homes[process].unsure,
            newest: true,
        };
        for message in &mut state.network {
            if message.process == process
                && let Body::Recheck(older) | Body::Checked(older, _) = &mut message.body
            {
                older.newest = false;
            }
        }
        state.send(process, Body::Recheck(question));
    }

    pub(super) fn receive(&self, state: &mut State, message: Message) {
        let process = message.process;
        if state.homes[process].mode == Mode::Crashed {
            return;
        }
        match message.body {
            Body::Held(token, left, word) => {
                self.hear_word(state, process, word, false);
                self.hear_grant(state, token, left);
            }
            Body::Grant(token, left, word) => {
                self.hear_word(state, process, word, false);
                // One from before the newest "queued" was lost with the data.
                let stands =
                    matches!(state.slot(token), Slot::Seeking(queued) if word.stamp > queued);
                if stands {
                    self.hear_grant(state, token, left);
                }
            }
            Body::Recall(word) => self.hear_word(state, process, word, false),
            Body::Checked(question, word) => {
                self.hear_word(state, process, word, question.newest);
                self.hear_lost(state, process, question, word);
            }
            Body::Acquire(..) | Body::End(_) | Body::Recheck(_) => {}
        }
        self.settle(state, process);
    }

    fn hear_grant(&self, state: &mut State, token: Token, left: u8) {
        if !matches!(state.slot(token), Slot::Seeking(_)) {
            return;
        }
        let process = owner(token);
        let late = self.broken(Mutation::LateGrantUsed);
        let left = if late { LEASE } else { left };
        if left == 0 {
            // It asks again.
        } else if !is_long(left) {
            Self::give_back(state, token, true);
        } else if state.homes[process].waiting > 0 {
            Self::serve(state, token, left, 0);
        } else {
            *state.slot_mut(token) = Slot::Idle { age: 0, left };
        }
    }

    fn hear_lost(&self, state: &mut State, process: usize, question: Question, word: Word) {
        let old = word.stamp < state.homes[process].known;
        if old && self.broken(Mutation::StampsAlone) {
            return;
        }
        for token in tokens_of(process).filter(|token| question.tokens >> token & 1 == 1) {
            if matches!(state.slot(token), Slot::Idle { .. } | Slot::Used { .. }) {
                Self::give_back(state, token, false);
            }
        }
        if question.sure {
            state.ghost.doubts[process] = false;
        }
        if question.sure || self.broken(Mutation::OldRecheckBelieved) {
            state.homes[process].unsure = false;
        }
    }

    /// Its timers, at a tick.
    pub(super) fn wake(&self, state: &mut State, process: usize) {
        state.homes[process].impatient = state.homes[process].others;
        for token in tokens_of(process) {
            // What is late counts as lost.
            let comes = |what: fn(Token, &Body) -> bool| {
                let mut messages = state.network.iter().filter(|message| !message.late);
                messages.any(|message| what(token, &message.body))
            };
            let ended = comes(|token, body| *body == Body::End(token));
            let asked = comes(
                |token, body| matches!(body, Body::Acquire(other, _) | Body::Held(other, ..) | Body::Grant(other, ..) if *other == token),
            );
            let queued = state.waits(token);
            match state.slot_mut(token) {
                Slot::Idle { age, .. } if *age < LINGER => *age += 1,
                Slot::Idle { .. } if self.broken(Mutation::NoLinger) => {}
                Slot::Idle { .. } => Self::give_back(state, token, true),
                Slot::Used { old, .. } => *old = true,
                Slot::Ending(_) if !ended => state.send(process, Body::End(token)),
                // It asks each tick; where that would tell nothing, it does not count.
                Slot::Seeking(_) if !asked && !queued => {
                    state.send(process, Body::Acquire(token, 0));
                }
                Slot::Free | Slot::Seeking(_) | Slot::Ending(_) => {}
            }
        }
        self.settle(state, process);
        let home = &state.homes[process];
        let spare = home
            .seekers()
            .saturating_sub(home.wanted(self.world.capacity));
        if home.spare && spare > 0 {
            let seeks = |token: &Token| matches!(state.slot(*token), Slot::Seeking(_));
            let seekers: Vec<Token> = tokens_of(process).filter(seeks).collect();
            for token in seekers.into_iter().rev().take(spare.into()) {
                Self::give_back(state, token, false);
            }
        }
        let home = &mut state.homes[process];
        home.spare = !home.spare && spare > 0;
        if home.permits() == 0 {
            home.unsure = false;
            state.ghost.doubts[process] = false;
        } else if !self.broken(Mutation::NoQuestion) {
            Self::ask(state, process);
        }
    }
}
