//! The three scripts and the grant loop that they share.

use crate::handoff::Handoff;
use crate::message::{Body, Message, Reply, Request};
use crate::mutation::Mutation;
use crate::state::{Fence, Holder, Link, Mark, Mode, State, TOKENS, Time, Token, Violation};

/// What every script knows of its run.
#[derive(Clone, Copy)]
struct Run {
    process: usize,
    /// What the script takes for the server's time.
    now: Time,
    mark: Mark,
}

impl Handoff {
    /// Runs the script of `request` and puts its answer in flight.
    pub(crate) fn run(&self, state: &mut State, process: usize, sent: Time, request: Request) {
        let now = if self.mutated(Mutation::ClientClock) {
            self.config.wall_error[process]
        } else {
            0
        };
        state.server.runs += 1;
        let mark = Mark {
            count: state.server.runs,
            time: self.mutated(Mutation::PushByServerTime).then_some(now),
        };
        let run = Run { process, now, mark };
        let clears_first = self.mutated(Mutation::MarkClearedBeforePurge);
        if clears_first {
            state.server.suspect[process] = false;
        }
        // Before the caller's mark is cleared, because its own claim may be among the purged; in a
        // renewal too, because what it calls gone must not come back with a clock that steps back.
        self.purge(state, now);
        if !clears_first {
            state.server.suspect[process] = false;
        }
        state.server.live[process] = Some(now + self.config.claim);
        state.ghost.burnt[process] = false;
        let mut latest_of_acquire = None;
        let reply = match request {
            Request::Acquire {
                token,
                latest,
                ticket,
                rerun,
            } => {
                latest_of_acquire = Some(latest);
                self.acquire(state, run, token, latest, ticket, rerun)
            }
            Request::End { token, tombstone } => self.end(state, run, token, tombstone),
            Request::Renew { fences } => self.renew(state, run, fences),
        };
        let stamp = self.stamp(state);
        if state.processes[process].mode != Mode::Crashed {
            state.network.push(Message {
                process,
                late: false,
                body: Body::Reply {
                    sent,
                    latest: latest_of_acquire,
                    time: now,
                    mark,
                    stamp,
                    reply,
                },
            });
        }
    }

    fn acquire(
        &self,
        state: &mut State,
        run: Run,
        token: Token,
        latest: Time,
        ticket: Fence,
        rerun: bool,
    ) -> Reply {
        let plan = self.config.plans[token];
        let known = state.server.holders[token].is_some() || state.server.queue[token] != 0;
        let mut refused = false;
        if !known {
            let too_late = run.now > latest && !self.mutated(Mutation::NoLatest);
            let entombed = state.server.tombstones[token].is_some_and(|until| run.now <= until)
                && !(rerun && self.mutated(Mutation::RerunIgnoresTombstone));
            refused = too_late || entombed;
            if !refused {
                self.enqueue(state, token, ticket, rerun);
            }
        }
        // The loop may drop its own caller, when a sibling's push shows that the inbox is gone.
        let ticket = state.server.queue[token];
        let grants = if rerun {
            !self.mutated(Mutation::RerunWithoutGrant)
        } else {
            !self.mutated(Mutation::AcquireWithoutGrant)
        };
        if grants {
            self.grant(state, run, Some(token));
        } else if !rerun
            && state
                .server
                .queue
                .iter()
                .filter(|ticket| **ticket != 0)
                .count()
                == 1
        {
            // The mutated script still takes what is free when it finds no queue.
            self.grant(state, run, Some(token));
        }
        self.judge_wake_ups(state, run);
        if let Some(holder) = state.server.holders[token] {
            return Reply::Held {
                token,
                fence: holder.fence,
                remaining: holder.expiry - run.now,
            };
        }
        if refused {
            return Reply::Refused { token };
        }
        if plan.waits {
            return Reply::Queued {
                token,
                ticket,
                reentered: rerun && !known,
            };
        }
        self.judge_refusal(state, run, token);
        state.server.queue[token] = 0;
        Reply::Busy { token }
    }

    fn enqueue(&self, state: &mut State, token: Token, ticket: Fence, rerun: bool) {
        let fresh = self.next_fence(state);
        let place = if ticket != 0 && ticket < fresh && !self.mutated(Mutation::NewTicketOnReentry)
        {
            ticket
        } else {
            fresh
        };
        state.server.queue[token] = place;
        let link = state.processes[self.config.plans[token].process].link;
        if rerun && state.ghost.spent[token] {
            state.ghost.order[token] = 0;
        }
        state.ghost.spent[token] |= rerun && matches!(link, Link::Up | Link::Deaf);
    }

    fn end(&self, state: &mut State, run: Run, token: Token, tombstone: Option<Time>) -> Reply {
        let server = &mut state.server;
        let was_waiting = server.queue[token] != 0;
        server.queue[token] = 0;
        server.holders[token] = None;
        if self.mutated(Mutation::NoOwnerCheck) {
            server.holders = [None; TOKENS];
        }
        if !self.mutated(Mutation::NoTombstone) {
            server.tombstones[token] = server.tombstones[token].max(tombstone);
        }
        if !(was_waiting && self.mutated(Mutation::EndWithoutGrant)) {
            self.grant(state, run, None);
        }
        self.judge_wake_ups(state, run);
        Reply::Ended { token }
    }

    fn renew(&self, state: &mut State, run: Run, fences: [Fence; TOKENS]) -> Reply {
        let mut remaining = [None; TOKENS];
        for token in 0..self.config.plans.len() {
            let named = fences[token] != 0;
            let unnamed_claim = self.mutated(Mutation::HeartbeatExtendsClaim)
                && self.config.plans[token].process == run.process;
            let Some(holder) = &mut state.server.holders[token] else {
                continue;
            };
            if named && holder.fence == fences[token] {
                let expiry = run.now + self.config.ttl;
                if expiry < holder.expiry && self.mutated(Mutation::ShorteningRenewal) {
                    state.ghost.record(Violation::Shortened);
                    holder.expiry = expiry;
                }
                holder.expiry = holder.expiry.max(expiry);
                holder.claim = false;
                remaining[token] = Some(holder.expiry - run.now);
            } else if unnamed_claim {
                holder.expiry = holder.expiry.max(run.now + self.config.claim);
            }
        }
        Reply::Renewed { fences, remaining }
    }

    /// Removes the holders whose time is over, and marks the process that slept through a claim.
    fn purge(&self, state: &mut State, now: Time) {
        for token in 0..self.config.plans.len() {
            let over = state.server.holders[token].take_if(|holder| holder.expiry <= now);
            if over.is_some_and(|holder| holder.claim) {
                let process = self.config.plans[token].process;
                state.ghost.burnt[process] = true;
                if !self.mutated(Mutation::NoSuspectMark) {
                    state.server.suspect[process] = true;
                }
            }
        }
        state.server.foreign.take_if(|expiry| *expiry <= now);
    }

    /// Grants from the head while it fits: the caller's token in its answer, others by push.
    fn grant(&self, state: &mut State, run: Run, caller: Option<Token>) {
        while let Some(token) = self.head(state, run.now) {
            let plan = self.config.plans[token];
            if plan.weight > self.free(state) {
                return;
            }
            let direct = caller == Some(token);
            let fence = self.next_fence(state);
            let ticket = std::mem::take(&mut state.server.queue[token]);
            if !direct && !self.publish(state, run, token, fence) {
                state.server.live[plan.process] = None;
                continue;
            }
            self.judge_grant(state, run.now, token, ticket, direct);
            let lease = if direct {
                self.config.ttl
            } else {
                self.config.claim
            };
            state.server.holders[token] = Some(Holder {
                expiry: run.now + lease,
                fence,
                claim: !direct,
            });
        }
    }

    /// The first waiter in line that lives and is not suspect; the dead before it are dropped.
    fn head(&self, state: &mut State, now: Time) -> Option<Token> {
        for token in 0..self.config.plans.len() {
            let process = self.config.plans[token].process;
            if state.server.live[process].is_none_or(|until| until <= now) {
                state.server.queue[token] = 0;
            }
        }
        self.first_in_line(state)
    }

    fn first_in_line(&self, state: &State) -> Option<Token> {
        (0..self.config.plans.len())
            .filter(|token| state.server.queue[*token] != 0)
            .filter(|token| !state.server.suspect[self.config.plans[*token].process])
            .min_by_key(|token| state.server.queue[*token])
    }

    fn free(&self, state: &State) -> u8 {
        if state.server.foreign.is_some() {
            return 0;
        }
        let used = self.config.plans.iter().zip(&state.server.holders);
        let used = used.filter(|(_, holder)| holder.is_some());
        // Only mutations grant more than there is.
        self.config
            .capacity
            .saturating_sub(used.map(|(plan, _)| plan.weight).sum())
    }

    /// Pushes a grant; false where the server knows that nobody hears it.
    fn publish(&self, state: &mut State, run: Run, token: Token, fence: Fence) -> bool {
        let process = self.config.plans[token].process;
        let receiver = &state.processes[process];
        let subscribed =
            receiver.mode != Mode::Crashed && matches!(receiver.link, Link::Up | Link::Deaf);
        if subscribed && receiver.link == Link::Up {
            state.network.push(Message {
                process,
                late: false,
                body: Body::Push {
                    token,
                    fence,
                    mark: run.mark,
                },
            });
        }
        subscribed || !self.config.counts_receivers
    }

    fn next_fence(&self, state: &mut State) -> Fence {
        let server = &mut state.server;
        server.last += 1;
        if !self.mutated(Mutation::FenceByIncr) {
            server.last = server.last.max(server.micros);
        }
        server.last
    }

    fn stamp(&self, state: &mut State) -> Fence {
        let server = &mut state.server;
        if self.mutated(Mutation::FenceByIncr) || server.micros <= server.last {
            return server.last;
        }
        // The next run is at least one microsecond later.
        server.micros += 1;
        server.micros - 1
    }

    /// A grant must have a higher fence than any before, overtake nobody who lives, hears and
    /// fits, and not go to a process that slept through its last claim.
    fn judge_grant(&self, state: &mut State, now: Time, token: Token, ticket: Fence, direct: bool) {
        let fence = state.server.last;
        if fence <= state.ghost.top_fence {
            state.ghost.record(Violation::FenceNotRising);
        }
        state.ghost.top_fence = state.ghost.top_fence.max(fence);
        let free = self.free(state);
        let place = |token: Token, ticket: Fence| match state.ghost.order[token] {
            0 => ticket,
            order => order,
        };
        let overtaken = (0..self.config.plans.len()).any(|other| {
            let plan = self.config.plans[other];
            let process = &state.processes[plan.process];
            state.server.queue[other] != 0
                && place(other, state.server.queue[other]) < place(token, ticket)
                && process.mode == Mode::Running
                && process.link == Link::Up
                && state.server.live[plan.process].is_some_and(|until| until > now)
                && !state.server.suspect[plan.process]
                && plan.weight <= free
        });
        if overtaken {
            state.ghost.record(Violation::Overtaken);
        }
        if !direct && state.ghost.burnt[self.config.plans[token].process] {
            state.ghost.record(Violation::HungTwice);
        }
    }

    /// After a script that frees or asks, the first living waiter must not fit.
    fn judge_wake_ups(&self, state: &mut State, run: Run) {
        let fits = (0..self.config.plans.len())
            .filter(|token| self.is_living_waiter(state, run, *token))
            .min_by_key(|token| state.server.queue[*token])
            .is_some_and(|token| self.config.plans[token].weight <= self.free(state));
        if fits {
            state.ghost.record(Violation::WakeUpLost);
        }
    }

    fn is_living_waiter(&self, state: &State, run: Run, token: Token) -> bool {
        let process = self.config.plans[token].process;
        state.server.queue[token] != 0
            && (process == run.process || !state.server.suspect[process])
            && state.server.live[process].is_some_and(|until| until > run.now)
    }

    /// Who does not wait may only be refused for want of permits, or for a living waiter before.
    fn judge_refusal(&self, state: &mut State, run: Run, token: Token) {
        let weight = self.config.plans[token].weight;
        let behind = (0..self.config.plans.len())
            .any(|other| other != token && self.is_living_waiter(state, run, other));
        if weight <= self.free(state) && !behind {
            state.ghost.record(Violation::FalselyRefused);
        }
    }
}
