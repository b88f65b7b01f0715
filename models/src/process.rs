//! How a process reacts: to its application, its timers, answers and pushes.

use crate::config::COMMAND_TIMEOUT;
use crate::handoff::Handoff;
use crate::message::{Body, Message, Reply, Request};
use crate::mutation::Mutation;
use crate::state::{
    Acquisition, BeatFault, Fence, Link, Mark, Mode, Observation, Phase, State, TOKENS, Time,
    Token, Violation,
};

impl Handoff {
    /// Begins an acquisition.
    pub(crate) fn start(&self, state: &mut State, token: Token) {
        state.tokens[token].phase = Phase::Waiting;
        self.send_acquire(state, token, false);
    }

    /// Ends an acquisition in any phase: release, cancel and loss are one.
    pub(crate) fn finish(&self, state: &mut State, token: Token) {
        let acquisition = &mut state.tokens[token];
        acquisition.phase = Phase::Ending;
        acquisition.pending = Some(0);
        let tombstone = acquisition.unanswered.iter().copied().max();
        self.send(state, token, Request::End { token, tombstone });
    }

    /// Re-runs every waiter of a process.
    pub(crate) fn rerun_all(&self, state: &mut State, process: usize) {
        for token in self.tokens_of(process) {
            if state.tokens[token].phase == Phase::Waiting {
                self.send_acquire(state, token, true);
            }
        }
    }

    /// Lets a process do all that its timers ask for.
    pub(crate) fn wake(&self, state: &mut State, process: usize) {
        for token in self.tokens_of(process) {
            if state.tokens[token].phase == Phase::Held && state.tokens[token].deadline <= 0 {
                self.finish(state, token);
            }
        }
        self.beat(state, process);
        let unknown = |state: &State, token: Token| {
            let pending = state.tokens[token].pending;
            pending.is_some_and(|sent| -sent >= COMMAND_TIMEOUT)
        };
        let doubtful = self
            .tokens_of(process)
            .any(|token| state.tokens[token].phase == Phase::Waiting && unknown(state, token));
        if doubtful && !self.mutated(Mutation::ReentryAlone) {
            // The answer that is missing may have told that the server had forgotten the waiters.
            self.rerun_all(state, process);
        }
        let pumped = self.pumped(state, process);
        for token in self.tokens_of(process) {
            let unknown = unknown(state, token);
            let acquisition = &state.tokens[token];
            match acquisition.phase {
                Phase::Waiting => {
                    let due = pumped == Some(token) && -acquisition.last_run >= self.config.claim;
                    if unknown || due {
                        self.send_acquire(state, token, true);
                    }
                }
                Phase::Confirming if unknown => self.confirm(state, token),
                Phase::Ending if unknown => self.finish(state, token),
                Phase::Idle | Phase::Confirming | Phase::Held | Phase::Ending | Phase::Done => {}
            }
        }
    }

    /// The waiter that the pump's timer re-runs: the first of its process in the queue, because
    /// the server grants and so forgets that one first.
    fn pumped(&self, state: &State, process: usize) -> Option<Token> {
        let mut waiters = self
            .tokens_of(process)
            .filter(|token| state.tokens[*token].phase == Phase::Waiting);
        if self.mutated(Mutation::PumpByRegistration) {
            return waiters.next();
        }
        waiters.min_by_key(|token| state.tokens[*token].ticket)
    }

    /// Renews all guards and, with them or without, tells that the process lives.
    pub(crate) fn beat(&self, state: &mut State, process: usize) {
        let fault = state.processes[process].beat_fault.take();
        let active = self.tokens_of(process).any(|token| {
            matches!(
                state.tokens[token].phase,
                Phase::Waiting | Phase::Confirming | Phase::Held
            )
        });
        if !active {
            return;
        }
        let mut fences = [0; TOKENS];
        for token in self.tokens_of(process) {
            if state.tokens[token].phase == Phase::Held {
                fences[token] = state.tokens[token].fence;
            }
        }
        let request = Request::Renew { fences };
        if fault == Some(BeatFault::RequestLost) {
            return;
        }
        if fault == Some(BeatFault::Delayed) {
            state.network.push(Message {
                process,
                late: true,
                body: Body::Request { sent: 0, request },
            });
            return;
        }
        self.run(state, process, 0, request);
        let reply = state.network.pop().expect("a running process is answered");
        if fault.is_none() {
            self.receive(state, reply);
        }
    }

    fn send_acquire(&self, state: &mut State, token: Token, rerun: bool) {
        let process = &state.processes[self.config.plans[token].process];
        let latest = process.estimate_error + COMMAND_TIMEOUT;
        let acquisition = &mut state.tokens[token];
        let ticket = if acquisition.reentered {
            0
        } else {
            acquisition.ticket
        };
        acquisition.unanswered.push(latest);
        acquisition.pending = Some(0);
        acquisition.last_run = 0;
        if !rerun {
            acquisition.first_sent = 0;
        }
        self.send(
            state,
            token,
            Request::Acquire {
                token,
                latest,
                ticket,
                rerun,
            },
        );
    }

    fn confirm(&self, state: &mut State, token: Token) {
        let mut fences = [0; TOKENS];
        fences[token] = state.tokens[token].fence;
        state.tokens[token].pending = Some(0);
        self.send(state, token, Request::Renew { fences });
    }

    fn send(&self, state: &mut State, token: Token, request: Request) {
        state.network.push(Message {
            process: self.config.plans[token].process,
            late: false,
            body: Body::Request { sent: 0, request },
        });
    }

    /// Applies an answer or a push.
    pub(crate) fn receive(&self, state: &mut State, message: Message) {
        match message.body {
            Body::Request { .. } => unreachable!("requests go to the server"),
            Body::Push { token, fence, mark } => {
                self.receive_push(state, message.process, token, fence, mark);
            }
            Body::Reply {
                sent,
                latest,
                time,
                mark,
                stamp,
                reply,
            } => {
                // By the sending, because that is what the process knows the run to be after.
                state.processes[message.process].estimate_error = time - sent;
                self.observe(state, message.process, Observation { sent, mark });
                if let Some(latest) = latest {
                    self.settle(state, reply, sent, latest);
                }
                self.receive_reply(state, message.process, sent, stamp, reply);
            }
        }
    }

    /// Keeps an observation, unless another is as good for every grant: sent later, and run before.
    fn observe(&self, state: &mut State, process: usize, observation: Observation) {
        let as_good = |by: &Observation, than: &Observation| {
            by.sent >= than.sent && self.ran_before(by.mark, than.mark)
        };
        let observations = &mut state.processes[process].observations;
        if observations
            .iter()
            .any(|known| as_good(known, &observation))
        {
            return;
        }
        observations.retain(|known| !as_good(&observation, known));
        observations.push(observation);
        observations.sort_unstable();
    }

    fn ran_before(&self, mark: Mark, other: Mark) -> bool {
        if self.mutated(Mutation::PushByServerTime) {
            return mark.time <= other.time;
        }
        mark.count <= other.count
    }

    /// Takes an answered acquire from those that may still run.
    fn settle(&self, state: &mut State, reply: Reply, sent: Time, latest: Time) {
        let (Reply::Held { token, .. }
        | Reply::Queued { token, .. }
        | Reply::Busy { token }
        | Reply::Refused { token }) = reply
        else {
            return;
        };
        let acquisition = &mut state.tokens[token];
        let open = &mut acquisition.unanswered;
        let over = !self.config.resends || self.mutated(Mutation::ResendsForgotten);
        if over && let Some(index) = open.iter().position(|other| *other == latest) {
            open.remove(index);
        }
        // A confirmation awaits its renewal, and a waiter the answer of its newest run.
        let newest = !over || !open.contains(&latest);
        if acquisition.phase == Phase::Waiting && newest {
            acquisition.pending.take_if(|pending| sent >= *pending);
        }
    }

    fn receive_reply(
        &self,
        state: &mut State,
        process: usize,
        sent: Time,
        stamp: Fence,
        reply: Reply,
    ) {
        match reply {
            Reply::Held {
                token,
                fence,
                remaining,
            } => {
                self.receive_held(state, token, fence, sent + remaining, sent);
            }
            Reply::Queued {
                token,
                ticket,
                reentered,
            } => {
                self.receive_queued(state, token, ticket, stamp, reentered);
            }
            Reply::Busy { token } => {
                let acquisition = &mut state.tokens[token];
                if acquisition.phase == Phase::Waiting {
                    if acquisition.unanswered.is_empty() {
                        Self::done(state, token);
                    } else {
                        self.finish(state, token);
                    }
                }
            }
            Reply::Refused { token } => {
                let acquisition = &state.tokens[token];
                if acquisition.phase == Phase::Waiting && acquisition.pending.is_none() {
                    self.send_acquire(state, token, true);
                }
            }
            Reply::Ended { token } => {
                if state.tokens[token].phase == Phase::Ending {
                    Self::done(state, token);
                }
            }
            Reply::Renewed { fences, remaining } => {
                for token in self.tokens_of(process) {
                    if fences[token] != 0 {
                        let deadline = remaining[token].map(|remaining| sent + remaining);
                        self.receive_renewed(state, token, fences[token], deadline);
                    }
                }
            }
        }
    }

    fn receive_held(
        &self,
        state: &mut State,
        token: Token,
        fence: Fence,
        deadline: Time,
        sent: Time,
    ) {
        let deadline = if self.mutated(Mutation::TtlFromResend) {
            sent + self.config.ttl
        } else {
            deadline
        };
        let acquisition = &mut state.tokens[token];
        match acquisition.phase {
            Phase::Waiting => {
                if fence > acquisition.queued_stamp {
                    self.accept(state, token, fence, deadline);
                }
            }
            Phase::Confirming => {
                if fence >= acquisition.fence {
                    self.accept(state, token, fence, deadline);
                }
            }
            Phase::Held => {
                let lower = fence < acquisition.fence && !self.mutated(Mutation::OldHeldBelieved);
                if fence == acquisition.fence {
                    self.prolong(state, token, deadline);
                } else if !lower {
                    self.lose(state, token);
                }
            }
            Phase::Done => self.finish(state, token),
            Phase::Idle | Phase::Ending => {}
        }
    }

    fn receive_queued(
        &self,
        state: &mut State,
        token: Token,
        ticket: Fence,
        stamp: Fence,
        reentered: bool,
    ) {
        let process = self.config.plans[token].process;
        let acquisition = &mut state.tokens[token];
        match acquisition.phase {
            Phase::Held if self.mutated(Mutation::OldQueuedBelieved) => {
                acquisition.phase = Phase::Waiting;
                Self::judge_loss(state, token);
            }
            Phase::Waiting | Phase::Confirming => {
                let newest = stamp > acquisition.queued_stamp.max(acquisition.fence);
                if !newest {
                    return;
                }
                acquisition.phase = Phase::Waiting;
                acquisition.fence = 0;
                acquisition.queued_stamp = stamp;
                acquisition.ticket = ticket;
                if state.ghost.order[token] == 0 && acquisition.unanswered.is_empty() {
                    state.ghost.order[token] = ticket;
                }
                if !reentered {
                    return;
                }
                // Without an inbox the next grant is undone, so this entry is not the one that
                // counts.
                let hears = matches!(state.processes[process].link, Link::Up | Link::Deaf);
                acquisition.reentered |= hears || self.mutated(Mutation::TicketSpentInOutage);
                if self.mutated(Mutation::ReentryAlone) {
                    return;
                }
                // What made the server forget this waiter has made it forget the others.
                for other in self.tokens_of(process) {
                    if other != token && state.tokens[other].phase == Phase::Waiting {
                        self.send_acquire(state, other, true);
                    }
                }
            }
            Phase::Done => self.finish(state, token),
            Phase::Idle | Phase::Held | Phase::Ending => {}
        }
    }

    fn receive_renewed(
        &self,
        state: &mut State,
        token: Token,
        fence: Fence,
        deadline: Option<Time>,
    ) {
        let acquisition = &mut state.tokens[token];
        let about_this = fence == acquisition.fence
            || (self.mutated(Mutation::OldGoneBelieved) && deadline.is_none());
        match acquisition.phase {
            Phase::Held if about_this => match deadline {
                Some(deadline) => self.prolong(state, token, deadline),
                None => self.lose(state, token),
            },
            Phase::Confirming if about_this => {
                acquisition.pending = None;
                match deadline {
                    Some(deadline) => self.accept(state, token, fence, deadline),
                    None => {
                        acquisition.phase = Phase::Waiting;
                        acquisition.fence = 0;
                        // The stamp of the answer may be above the fence of a later grant.
                        acquisition.queued_stamp = acquisition.queued_stamp.max(fence);
                        self.send_acquire(state, token, true);
                    }
                }
            }
            Phase::Idle
            | Phase::Waiting
            | Phase::Confirming
            | Phase::Held
            | Phase::Ending
            | Phase::Done => {}
        }
    }

    fn receive_push(
        &self,
        state: &mut State,
        process: usize,
        token: Token,
        fence: Fence,
        mark: Mark,
    ) {
        let acquisition = &state.tokens[token];
        match acquisition.phase {
            Phase::Waiting | Phase::Confirming => {
                let old = fence <= acquisition.queued_stamp.max(acquisition.fence);
                if old && !self.mutated(Mutation::OldPushBelieved) {
                    return;
                }
                // What ran before the grant was sent before it.
                let before = state.processes[process]
                    .observations
                    .iter()
                    .filter(|observation| {
                        self.ran_before(observation.mark, mark)
                            || self.mutated(Mutation::PushFromNewestObservation)
                    })
                    .map(|observation| observation.sent)
                    .max();
                let mut since = before.unwrap_or(acquisition.first_sent);
                if self.mutated(Mutation::PushFromReceipt) {
                    since = 0;
                }
                self.accept(state, token, fence, since + self.config.claim);
            }
            Phase::Done => self.finish(state, token),
            Phase::Idle | Phase::Held | Phase::Ending => {}
        }
    }

    /// Hands the guard out, or confirms the grant first where too little time is left.
    fn accept(&self, state: &mut State, token: Token, fence: Fence, deadline: Time) {
        let acquisition = &mut state.tokens[token];
        acquisition.fence = fence;
        acquisition.deadline = deadline;
        if deadline > 0 {
            if fence <= acquisition.queued_stamp {
                state.ghost.record(Violation::StaleGrant);
            }
            acquisition.phase = Phase::Held;
            acquisition.pending = None;
            state.ghost.starved = 0;
        } else {
            acquisition.phase = Phase::Confirming;
            self.confirm(state, token);
        }
    }

    /// Extends a guard, unless it is over.
    fn prolong(&self, state: &mut State, token: Token, deadline: Time) {
        let acquisition = &mut state.tokens[token];
        if acquisition.deadline <= 0 {
            if !self.mutated(Mutation::LateAnswerRevives) {
                self.finish(state, token);
                return;
            }
            if deadline > 0 {
                state.ghost.record(Violation::Revived);
            }
        }
        acquisition.deadline = acquisition.deadline.max(deadline);
    }

    fn lose(&self, state: &mut State, token: Token) {
        Self::judge_loss(state, token);
        self.finish(state, token);
    }

    /// A guard in time may only be lost when its lease is.
    fn judge_loss(state: &mut State, token: Token) {
        let acquisition = &state.tokens[token];
        let stands = state.server.holders[token]
            .is_some_and(|holder| holder.fence == acquisition.fence && holder.expiry > 0);
        if stands && acquisition.deadline > 0 {
            state.ghost.record(Violation::FalselyLost);
        }
    }

    fn done(state: &mut State, token: Token) {
        state.tokens[token] = Acquisition {
            phase: Phase::Done,
            ..Acquisition::default()
        };
    }

    /// The tokens of one process.
    pub(crate) fn tokens_of(&self, process: usize) -> impl Iterator<Item = Token> + use<'_> {
        let plans = self.config.plans.iter().enumerate();
        plans
            .filter(move |(_, plan)| plan.process == process)
            .map(|(token, _)| token)
    }

    /// Whether the server should know this waiter: nothing is on its way, and its process hears.
    pub(crate) fn is_settled_waiter(&self, state: &State, token: Token) -> bool {
        let process = &state.processes[self.config.plans[token].process];
        let acquisition = &state.tokens[token];
        process.mode == Mode::Running
            && process.link == Link::Up
            && acquisition.phase == Phase::Waiting
            && acquisition.pending.is_none()
    }
}
