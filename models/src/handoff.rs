//! The model: which steps a world can take, and what each of them does.

use stateright::{Model, Property};

use crate::config::{Config, Faults, STEP};
use crate::message::{Body, Message};
use crate::mutation::Mutation;
use crate::properties;
use crate::state::{BeatFault, Link, Mode, PROCESSES, Phase, State, Token};

/// The protocol in one world, with at most one rule broken.
#[derive(Clone, Debug)]
pub struct Handoff {
    /// The world.
    pub config: Config,
    /// The broken rule.
    pub mutation: Option<Mutation>,
}

/// One step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The application begins an acquisition.
    Start(Token),
    /// The application drops its guard.
    Release(Token),
    /// The application drops a future that waits.
    Cancel(Token),
    /// A message arrives.
    Deliver(Message),
    /// A request runs, and its copy stays in flight.
    Duplicate(Message),
    /// A message vanishes.
    Lose(Message),
    /// A message stays in flight while time goes on.
    Delay(Message),
    /// Time goes on, and all timers of running processes are served.
    Tick,
    /// The next heartbeat of a process fails.
    MissBeat(usize, BeatFault),
    /// A process ends without a word.
    Crash(usize),
    /// A process stops.
    Pause(usize),
    /// A process goes on, and reads what has arrived before its timers are served.
    Resume(usize),
    /// A process goes on, and its heartbeat is answered before it reads what had arrived.
    ResumeByBeat(usize),
    /// An inbox is disconnected, and what was pushed to it is lost.
    Disconnect(usize),
    /// An inbox is subscribed again.
    Reconnect(usize),
    /// An inbox goes deaf.
    Deafen(usize),
    /// The server loses its data.
    Flush,
    /// The server's clock steps forward.
    StepForward,
    /// The server's clock steps back.
    StepBack,
    /// A plain client takes the lock.
    ForeignLock,
    /// A plain client deletes its lock.
    ForeignUnlock,
}

impl Handoff {
    pub(crate) fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn processes(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..PROCESSES).filter(|process| self.tokens_of(*process).next().is_some())
    }

    fn is_deliverable(state: &State, message: &Message) -> bool {
        match message.body {
            Body::Request { .. } => true,
            Body::Reply { .. } | Body::Push { .. } => {
                state.processes[message.process].mode == Mode::Running
            }
        }
    }

    fn application_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (token, plan) in self.config.plans.iter().enumerate() {
            let process = &state.processes[plan.process];
            if process.mode != Mode::Running {
                continue;
            }
            let earlier_started = self
                .tokens_of(plan.process)
                .take_while(|earlier| *earlier < token)
                .all(|earlier| state.tokens[earlier].phase != Phase::Idle);
            match state.tokens[token].phase {
                Phase::Idle if earlier_started && matches!(process.link, Link::Up | Link::Deaf) => {
                    actions.push(Action::Start(token));
                }
                Phase::Waiting | Phase::Confirming if state.faults.cancel > 0 => {
                    actions.push(Action::Cancel(token));
                }
                Phase::Held => actions.push(Action::Release(token)),
                Phase::Idle | Phase::Waiting | Phase::Confirming | Phase::Ending | Phase::Done => {}
            }
        }
    }

    fn network_actions(state: &State, actions: &mut Vec<Action>) {
        let mut previous = None;
        for message in &state.network {
            // Equal messages are one step.
            if previous.replace(message) == Some(message) {
                continue;
            }
            let request = matches!(message.body, Body::Request { .. });
            if Self::is_deliverable(state, message) {
                actions.push(Action::Deliver(*message));
            }
            if request && state.faults.duplicate > 0 {
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
        for process in self.processes() {
            let spared = self.config.victim.is_some_and(|victim| victim != process);
            let faults = if spared { &Faults::NONE } else { &state.faults };
            let active = self
                .tokens_of(process)
                .any(|token| !matches!(state.tokens[token].phase, Phase::Idle | Phase::Done));
            let Some(mode) = active.then_some(state.processes[process].mode) else {
                if state.processes[process].mode == Mode::Paused {
                    actions.push(Action::Resume(process));
                }
                continue;
            };
            match mode {
                Mode::Running => {
                    if faults.crash > 0 {
                        actions.push(Action::Crash(process));
                    }
                    if faults.pause > 0 {
                        actions.push(Action::Pause(process));
                    }
                    if faults.miss_beat > 0 && state.processes[process].beat_fault.is_none() {
                        actions.push(Action::MissBeat(process, BeatFault::RequestLost));
                        actions.push(Action::MissBeat(process, BeatFault::ReplyLost));
                        if faults.delay > 0 {
                            actions.push(Action::MissBeat(process, BeatFault::Delayed));
                        }
                    }
                }
                Mode::Paused => {
                    actions.push(Action::Resume(process));
                    if state.network.iter().any(|message| message.is_to(process)) {
                        actions.push(Action::ResumeByBeat(process));
                    }
                }
                Mode::Crashed => {}
            }
            match state.processes[process].link {
                Link::Up => {
                    if faults.disconnect > 0 {
                        actions.push(Action::Disconnect(process));
                    }
                    if faults.deafen > 0 {
                        actions.push(Action::Deafen(process));
                    }
                }
                Link::Down | Link::Subscribing if mode == Mode::Running => {
                    actions.push(Action::Reconnect(process));
                }
                Link::Deaf | Link::Down | Link::Subscribing => {}
            }
        }
    }

    fn server_actions(state: &State, actions: &mut Vec<Action>) {
        let faults = &state.faults;
        if faults.flush > 0 {
            actions.push(Action::Flush);
        }
        if faults.step_forward > 0 {
            actions.push(Action::StepForward);
        }
        if faults.step_back > 0 {
            actions.push(Action::StepBack);
        }
        let free = state
            .server
            .holders
            .iter()
            .flatten()
            .all(|holder| holder.expiry <= 0);
        if faults.foreign > 0 && free && state.server.foreign.is_none() {
            actions.push(Action::ForeignLock);
        }
        if state.server.foreign.is_some() {
            actions.push(Action::ForeignUnlock);
        }
        // Without a fault, messages arrive before time goes on.
        let urgent = state
            .network
            .iter()
            .any(|message| !message.late && Self::is_deliverable(state, message));
        if !urgent {
            actions.push(Action::Tick);
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        match message.body {
            Body::Request { sent, request } => self.run(state, message.process, sent, request),
            Body::Reply { .. } | Body::Push { .. } => self.receive(state, message),
        }
    }

    fn crash(&self, state: &mut State, process: usize) {
        state.network.retain(|message| {
            message.process != process || matches!(message.body, Body::Request { .. })
        });
        state.processes[process] = crate::state::Process {
            mode: Mode::Crashed,
            ..Default::default()
        };
        for token in self.tokens_of(process) {
            state.tokens[token] = Default::default();
        }
    }

    fn disconnect(state: &mut State, process: usize) {
        state.processes[process].link = Link::Down;
        state.network.retain(|message| {
            message.process != process || !matches!(message.body, Body::Push { .. })
        });
    }

    fn reconnect(&self, state: &mut State, process: usize) {
        let early = self.mutated(Mutation::RerunBeforeSubscription);
        if early && state.processes[process].link == Link::Down {
            state.processes[process].link = Link::Subscribing;
            self.rerun_all(state, process);
            return;
        }
        state.processes[process].link = Link::Up;
        if !early {
            self.rerun_all(state, process);
        }
    }

    fn flush(state: &mut State) {
        let server = &state.server;
        // While the server was away, more microseconds passed than grants were made.
        let micros = server.last.max(server.micros) + 1;
        state.server = Default::default();
        state.server.micros = micros;
    }
}

impl Model for Handoff {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.config)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.application_actions(state, actions);
        Self::network_actions(state, actions);
        self.process_actions(state, actions);
        Self::server_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        if let Action::Deliver(message) | Action::Lose(message) | Action::Delay(message) = action {
            let index = state.network.iter().position(|other| *other == message)?;
            state.network.remove(index);
        }
        let faults = &mut state.faults;
        match action {
            Action::Start(token) => self.start(&mut state, token),
            Action::Release(token) => self.finish(&mut state, token),
            Action::Cancel(token) => {
                faults.cancel -= 1;
                self.finish(&mut state, token);
            }
            Action::Deliver(message) => self.deliver(&mut state, message),
            Action::Duplicate(message) => {
                faults.duplicate -= 1;
                self.deliver(&mut state, message);
            }
            Action::Lose(_) => faults.lose -= 1,
            Action::Delay(message) => {
                faults.delay -= 1;
                state.network.push(Message {
                    late: true,
                    ..message
                });
            }
            Action::Tick => {
                state.tick();
                for process in self.processes() {
                    if state.processes[process].mode == Mode::Running {
                        self.wake(&mut state, process);
                    }
                }
                properties::count_waiting(self, &mut state);
            }
            Action::MissBeat(process, fault) => {
                faults.miss_beat -= 1;
                if fault == BeatFault::Delayed {
                    faults.delay -= 1;
                }
                state.processes[process].beat_fault = Some(fault);
            }
            Action::Crash(process) => {
                faults.crash -= 1;
                self.crash(&mut state, process);
            }
            Action::Pause(process) => {
                faults.pause -= 1;
                state.processes[process].mode = Mode::Paused;
            }
            Action::Resume(process) => state.processes[process].mode = Mode::Running,
            Action::ResumeByBeat(process) => {
                state.processes[process].mode = Mode::Running;
                self.beat(&mut state, process);
            }
            Action::Disconnect(process) => {
                faults.disconnect -= 1;
                Self::disconnect(&mut state, process);
            }
            Action::Reconnect(process) => self.reconnect(&mut state, process),
            Action::Deafen(process) => {
                faults.deafen -= 1;
                state.processes[process].link = Link::Deaf;
            }
            Action::Flush => {
                faults.flush -= 1;
                Self::flush(&mut state);
            }
            Action::StepForward => {
                faults.step_forward -= 1;
                state.step(STEP);
            }
            Action::StepBack => {
                faults.step_back -= 1;
                state.step(-STEP);
            }
            Action::ForeignLock => {
                faults.foreign -= 1;
                // `SET NX` succeeds on an expired key, and so ends it for good.
                state.server.holders = Default::default();
                state.server.foreign = Some(self.config.ttl);
            }
            Action::ForeignUnlock => state.server.foreign = None,
        }
        state.normalize(&self.config);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
