//! Permits at home as a model: processes keep permits of one gate, and give them back when others
//! ask.
//!
//! Time is relative to the present, and counted in ticks: without a fault, messages arrive within
//! the tick, in any order. A use ends within two. Questions are asked each tick.

mod mutation;
mod process;
mod promise;
mod server;
pub mod state;
pub mod world;
pub mod worlds;

use stateright::{Model, Property};

pub use self::mutation::Mutation;
pub use self::promise::{
    CHECKED, END_IS_FINAL, EXCESS_ENDS, EXCLUSION, HOLDERS_ARE_KNOWN, LEASES_LAST, NO_ORPHANS,
    NO_STARVATION, NOTHING_LEFT, OVERTAKING, PROMPT, RECALLS,
};
pub use self::state::{Message, Slot, State, Token};
pub use self::world::{Clock, Faults, Load, World};

use self::state::{Body, Home, Mode, owner};
use self::world::PROCESSES;

/// The process that crashes and pauses.
const VICTIM: usize = 0;

/// Processes that keep permits, in one world, with at most one rule broken.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// The world.
    pub world: World,
    /// The broken rule.
    pub mutation: Option<Mutation>,
}

/// One step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A request comes to a process.
    Request(usize),
    /// A request that waits is dropped.
    Cancel(usize),
    /// A request that uses a permit is over.
    Finish(Token),
    /// A message arrives.
    Deliver(Message),
    /// An acquire runs, and its copy stays under way.
    Duplicate(Message),
    /// A message vanishes.
    Lose(Message),
    /// A message stays under way while time goes on.
    Delay(Message),
    /// Time goes on, and the timers of all that run are served.
    Tick,
    /// A process ends without a word.
    Crash,
    /// A process stops.
    Pause,
    /// A process goes on.
    Resume,
    /// The server loses its data.
    Flush,
}

impl Fleet {
    fn is_deliverable(state: &State, message: &Message) -> bool {
        message.body.is_request() || state.homes[message.process].mode == Mode::Running
    }

    fn network_actions(state: &State, actions: &mut Vec<Action>) {
        let mut previous = None;
        for message in &state.network {
            // Equal messages are one step.
            if previous.replace(message) == Some(message) {
                continue;
            }
            if Self::is_deliverable(state, message) {
                actions.push(Action::Deliver(*message));
            }
            if state.faults.duplicate > 0 && matches!(message.body, Body::Acquire(..)) {
                actions.push(Action::Duplicate(*message));
            }
            if state.faults.lose > 0 {
                actions.push(Action::Lose(*message));
            }
            if state.faults.delay > 0 && !message.late {
                actions.push(Action::Delay(*message));
            }
        }
    }

    fn process_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (process, home) in state.homes.iter().enumerate() {
            if home.mode != Mode::Running {
                continue;
            }
            if home.requests > 0 && home.waiting < self.world.crowd {
                actions.push(Action::Request(process));
            }
            if home.waiting > 0 && state.faults.cancel > 0 {
                actions.push(Action::Cancel(process));
            }
        }
        for token in 0..state.server.holders.len() as Token {
            if state.homes[owner(token)].mode == Mode::Running
                && matches!(state.slot(token), Slot::Used { .. })
            {
                actions.push(Action::Finish(token));
            }
        }
        let victim = &state.homes[VICTIM];
        match victim.mode {
            Mode::Running => {
                let active = victim.slots.iter().any(|slot| *slot != Slot::Free);
                if active && state.faults.crash > 0 {
                    actions.push(Action::Crash);
                }
                if active && state.faults.pause > 0 {
                    actions.push(Action::Pause);
                }
            }
            Mode::Paused => actions.push(Action::Resume),
            Mode::Crashed => {}
        }
    }

    /// Whether time may go on: what is not late has arrived, and no use lasts for ever.
    fn ticks(state: &State) -> bool {
        let mut messages = state.network.iter();
        let urgent = messages.any(|message| !message.late && Self::is_deliverable(state, message));
        let mut running = state.homes.iter().filter(|home| home.mode == Mode::Running);
        let uses = running.any(|home| {
            let mut slots = home.slots.iter();
            slots.any(|slot| matches!(slot, Slot::Used { old: true, .. }))
        });
        !urgent && !uses
    }

    fn deliver(&self, state: &mut State, message: Message) {
        if message.body.is_request() {
            self.run(state, message.process, message.body);
        } else {
            self.receive(state, message);
        }
    }

    fn tick(&self, state: &mut State) {
        promise::count(self, state);
        state.age(&self.world);
        let waits = |process: usize| {
            state
                .server
                .queue
                .iter()
                .any(|token| owner(*token) == process)
        };
        let runs = |process: usize| state.homes[process].mode == Mode::Running;
        // Who waits asks each tick, which hands on what has expired.
        if (0..PROCESSES).any(|process| runs(process) && waits(process)) {
            self.grant(state, None);
        }
        for process in 0..PROCESSES {
            if state.homes[process].mode == Mode::Running {
                self.wake(state, process);
            }
        }
    }
}

impl Model for Fleet {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.world)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.process_actions(state, actions);
        Self::network_actions(state, actions);
        if state.faults.flush > 0 {
            actions.push(Action::Flush);
        }
        if Self::ticks(state) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        if let Action::Deliver(message) | Action::Lose(message) | Action::Delay(message) = action {
            let index = state.network.iter().position(|other| *other == message)?;
            state.network.remove(index);
        }
        match action {
            Action::Request(process) => {
                if self.world.loads[process] != Load::Endless {
                    state.homes[process].requests -= 1;
                }
                self.request(&mut state, process);
            }
            Action::Cancel(process) => {
                state.faults.cancel -= 1;
                state.homes[process].waiting -= 1;
            }
            Action::Finish(token) => self.finish(&mut state, token),
            Action::Deliver(message) => self.deliver(&mut state, message),
            Action::Duplicate(message) => {
                state.faults.duplicate -= 1;
                self.deliver(&mut state, message);
            }
            Action::Lose(_) => state.faults.lose -= 1,
            Action::Delay(message) => {
                state.faults.delay -= 1;
                state.network.push(Message {
                    late: true,
                    ..message
                });
            }
            Action::Tick => self.tick(&mut state),
            Action::Crash => {
                state.faults.crash -= 1;
                state
                    .network
                    .retain(|message| message.process != VICTIM || message.body.is_request());
                state.homes[VICTIM] = Home {
                    mode: Mode::Crashed,
                    ..Home::default()
                };
            }
            Action::Pause => {
                state.faults.pause -= 1;
                state.homes[VICTIM].mode = Mode::Paused;
            }
            Action::Resume => {
                state.homes[VICTIM].mode = Mode::Running;
                self.settle(&mut state, VICTIM);
            }
            Action::Flush => {
                state.faults.flush -= 1;
                state.flush(self.world.falls_back);
            }
        }
        promise::reset(&mut state);
        state.normalize(&self.world);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promise::all()
    }
}
