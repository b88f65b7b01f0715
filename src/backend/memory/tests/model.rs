//! What is expected, with nothing in it but lists that are searched through.

use std::time::Duration;

use crate::backend::{ShutdownReport, Wait};
use crate::error::{BackendErrorKind, RefusalKind};
use crate::lease::{LeaseMode, LostReason, Release};

/// Milliseconds, since the start or long.
pub(super) type Ms = u64;

/// By gate. A third of each is a whole number.
pub(super) const TTL: [Ms; 2] = [90, 300];

pub(super) const LONGEST_DELAY: Ms = 200;

#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) gate: usize,
    pub(super) weight: u32,
    pub(super) limit: u32,
    pub(super) mode: LeaseMode,
    pub(super) delay: Ms,
    pub(super) wait: Wait,
    pub(super) max_waiters: u32,
}

/// How an acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    Refused {
        kind: RefusalKind,
        position: Option<u64>,
        retry_after: Option<Duration>,
    },
    Failed(BackendErrorKind),
}

#[derive(Debug, Default)]
pub(super) struct Model {
    now: Ms,
    out: bool,
    claims: Vec<Claim>,
    gates: [Gate; 2],
    processes: Vec<Process>,
    grants: u64,
}

/// Claims by their index.
#[derive(Debug, Default)]
struct Gate {
    holders: Vec<usize>,
    /// Those that were lost and keep others out, until when.
    delayed: Vec<(Ms, usize)>,
    queue: Vec<usize>,
}

/// An acquire and the lease that it gets.
#[derive(Debug)]
struct Claim {
    process: usize,
    ask: Ask,
    give_up: Option<Ms>,
    outcome: Option<Outcome>,
    /// The number of its grant among all.
    grant: u64,
    /// When it ends however often it is renewed.
    last: Option<Ms>,
    /// When it ends if nothing is done.
    end: Option<Ms>,
    /// When it was looked at first.
    looked_at: Option<Ms>,
    /// Set though nobody looks.
    why_lost: Option<LostReason>,
    /// What who has looked at it finds.
    lost: Option<LostReason>,
    /// What its watchers were told.
    told: Option<LostReason>,
    /// Its owner has given it back, and is told nothing any more.
    finished: bool,
    /// A shutdown waits for its end.
    awaited: bool,
}

#[derive(Debug, Default)]
struct Process {
    closed: bool,
    deadline: Option<Ms>,
    cut_at: Option<Ms>,
    left: usize,
    released: usize,
    abandoned: usize,
}

fn ms(duration: Duration) -> Ms {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Claim {
    const fn ttl(&self) -> Ms {
        TTL[self.ask.gate]
    }

    /// What is left of it at a moment, if it is held.
    fn left(&self, now: Ms) -> Option<Ms> {
        let renewed = (self.ask.mode != LeaseMode::Fixed).then(|| {
            let since_renewal = |since: Ms| (now - since) % (self.ttl() / 3);
            self.ttl() - self.looked_at.map_or(0, since_renewal)
        });
        let to_end = self.end.map(|end| end.saturating_sub(now));
        renewed.into_iter().chain(to_end).min()
    }
}

/// When to come back, as far as it means anything: with a handle that shuts down nobody can, and
/// how long its guards, which are cut at that moment, would have held depends on who is told
/// first.
pub(super) fn told(kind: RefusalKind, retry_after: Option<Duration>) -> Option<Duration> {
    retry_after.filter(|_| kind != RefusalKind::ShuttingDown)
}

impl Model {
    pub(super) fn start(&mut self) -> usize {
        self.processes.push(Process::default());
        self.processes.len() - 1
    }

    pub(super) fn outcome(&self, id: usize) -> Option<Outcome> {
        self.claims[id].outcome
    }

    /// The gate and the number of a grant.
    pub(super) fn grant_of(&self, id: usize) -> (usize, u64) {
        (self.claims[id].ask.gate, self.claims[id].grant)
    }

    pub(super) const fn advance(&mut self, ms: Ms) {
        self.now += ms;
    }

    /// The keeper has its turn.
    pub(super) fn keep(&mut self) {
        for gate in 0..self.gates.len() {
            self.settle(gate);
        }
        for process in 0..self.processes.len() {
            let cut_at = self.processes[process].cut_at;
            if cut_at.is_some_and(|at| at <= self.now) {
                self.cut(process);
            }
        }
    }

    pub(super) fn acquire(&mut self, process: usize, ask: Ask) -> usize {
        let id = self.claims.len();
        self.claims.push(Claim {
            process,
            ask,
            give_up: None,
            outcome: None,
            grant: 0,
            last: None,
            end: None,
            looked_at: None,
            why_lost: None,
            lost: None,
            told: None,
            finished: false,
            awaited: false,
        });
        if ask.weight > ask.limit {
            self.claims[id].outcome = Some(Outcome::Refused {
                kind: RefusalKind::NeverFits,
                position: None,
                retry_after: None,
            });
            return id;
        }
        self.settle(ask.gate);
        let waiting = self.gates[ask.gate].queue.len();
        if self.processes[process].closed {
            self.claims[id].outcome = Some(Outcome::Refused {
                kind: RefusalKind::ShuttingDown,
                position: None,
                retry_after: None,
            });
        } else if self.out {
            self.fail(id);
        } else if waiting == 0 && self.fits(id) {
            self.grant(id);
        } else if ask.wait == Wait::No {
            self.refuse(id, RefusalKind::Busy, waiting);
        } else if waiting >= ask.max_waiters as usize {
            self.refuse(id, RefusalKind::QueueFull, waiting);
        } else {
            if let Wait::AtMost(wait) = ask.wait {
                self.claims[id].give_up = Some(self.now + ms(wait));
            }
            self.gates[ask.gate].queue.push(id);
        }
        id
    }

    /// The future of an acquire is dropped, perhaps with an answer in it that nobody has seen.
    pub(super) fn give_up(&mut self, id: usize) {
        let gate = self.claims[id].ask.gate;
        self.settle(gate);
        self.leave_queue(id);
        self.hand_on(gate);
        if self.claims[id].outcome == Some(Outcome::Granted) {
            let _ = self.release(id);
        }
    }

    pub(super) fn release(&mut self, id: usize) -> Result<Release, BackendErrorKind> {
        // Its own account tells whoever has looked that it is over, settled or not.
        let over = self.claims[id].looked_at.is_some() && !self.is_held(id);
        if over || self.claims[id].lost.is_some() {
            return Ok(Release::NoLongerHeld);
        }
        self.claims[id].finished = true;
        let gate = self.claims[id].ask.gate;
        self.settle(gate);
        let held = self.gates[gate].holders.contains(&id);
        if held {
            self.end(id, Some(LostReason::ShutDown));
        }
        self.hand_on(gate);
        match held {
            _ if self.out => Err(BackendErrorKind::Unreachable),
            true => Ok(Release::Released),
            false => Ok(Release::NoLongerHeld),
        }
    }

    /// Tells how a lease was lost that is looked at. That settles nothing.
    pub(super) fn look(&mut self, id: usize) -> Option<LostReason> {
        if self.claims[id].looked_at.is_none() {
            self.claims[id].looked_at = Some(self.now);
            self.claims[id].lost = self.claims[id].why_lost;
        }
        let lost = match self.claims[id].lost {
            None if !self.is_held(id) => Some(LostReason::Expired),
            lost => lost,
        };
        self.claims[id].told = lost;
        lost
    }

    /// What the watchers of a lease were told.
    pub(super) fn told(&self, id: usize) -> Option<LostReason> {
        self.claims[id].told
    }

    pub(super) fn is_held(&self, id: usize) -> bool {
        let claim = &self.claims[id];
        let over = claim.end.is_some_and(|end| end <= self.now);
        self.gates[claim.ask.gate].holders.contains(&id) && !over
    }

    pub(super) fn remaining(&self, id: usize) -> Duration {
        let left = self.claims[id].left(self.now).unwrap_or(0);
        Duration::from_millis(if self.is_held(id) { left } else { 0 })
    }

    pub(super) fn expire(&mut self, gate: usize) -> usize {
        self.settle(gate);
        let holders = self.gates[gate].holders.clone();
        for id in &holders {
            self.lose(*id, LostReason::Expired, self.now);
        }
        self.hand_on(gate);
        holders.len()
    }

    pub(super) fn set_out(&mut self, out: bool) {
        if self.out == out {
            return;
        }
        for gate in 0..self.gates.len() {
            self.settle(gate);
        }
        self.out = out;
        for gate in 0..self.gates.len() {
            for id in self.gates[gate].holders.clone() {
                let claim = &mut self.claims[id];
                claim.end = if out {
                    claim.left(self.now).map(|left| self.now + left)
                } else {
                    claim.last
                };
            }
            self.hand_on(gate);
        }
    }

    pub(super) fn shut_down(&mut self, process: usize, deadline: Ms) {
        if self.report(process).is_some() {
            return;
        }
        let at = self.now + deadline;
        let earlier = self.processes[process].deadline.is_none_or(|old| at < old);
        if earlier {
            self.processes[process].deadline = Some(at);
        }
        if !self.processes[process].closed {
            self.processes[process].closed = true;
            for gate in 0..self.gates.len() {
                self.settle(gate);
                self.close(gate, process);
                self.hand_on(gate);
            }
        }
        if deadline == 0 {
            self.cut(process);
        } else if earlier && self.report(process).is_none() {
            self.processes[process].cut_at = Some(at);
        }
    }

    /// What a shutdown tells, when it has ended.
    pub(super) fn report(&self, process: usize) -> Option<ShutdownReport> {
        let process = &self.processes[process];
        (process.closed && process.left == 0).then_some(ShutdownReport {
            released: process.released,
            abandoned: process.abandoned,
        })
    }

    fn close(&mut self, gate: usize, process: usize) {
        for id in self.gates[gate].queue.clone() {
            if self.claims[id].process == process {
                let rank = self.leave_queue(id);
                self.refuse(id, RefusalKind::ShuttingDown, rank);
            }
        }
        for id in self.gates[gate].holders.clone() {
            if self.claims[id].process == process {
                self.claims[id].awaited = true;
                self.processes[process].left += 1;
            }
        }
    }

    fn cut(&mut self, process: usize) {
        for gate in 0..self.gates.len() {
            self.settle(gate);
            for id in self.gates[gate].holders.clone() {
                if self.claims[id].process == process {
                    self.lose(id, LostReason::ShutDown, self.now);
                }
            }
            self.hand_on(gate);
        }
    }

    /// Lets happen what is due, in order. A lease that ends at the moment at which a wait does
    /// is handed on before.
    fn settle(&mut self, gate: usize) {
        loop {
            let Gate {
                holders,
                delayed,
                queue,
            } = &self.gates[gate];
            let due = |at: Option<Ms>| at.filter(|at| *at <= self.now);
            let ends = holders.iter().filter_map(|id| {
                let at = due(self.claims[*id].end)?;
                Some((at, 0, *id))
            });
            let delays = delayed
                .iter()
                .filter_map(|(at, id)| Some((due(Some(*at))?, 0, *id)));
            let limits = queue.iter().filter_map(|id| {
                let at = due(self.claims[*id].give_up)?;
                Some((at, 1, *id))
            });
            match ends.chain(delays).chain(limits).min() {
                None => return,
                Some((at, 0, id)) if holders.contains(&id) => {
                    self.lose(id, LostReason::Expired, at);
                }
                Some((_, 0, id)) => {
                    self.gates[gate]
                        .delayed
                        .retain(|(_, delayed)| *delayed != id);
                }
                Some((_, _, id)) => {
                    let rank = self.leave_queue(id);
                    if self.out {
                        self.fail(id);
                    } else {
                        self.refuse(id, RefusalKind::WaitedTooLong, rank);
                    }
                }
            }
            self.hand_on(gate);
        }
    }

    fn hand_on(&mut self, gate: usize) {
        while let Some(head) = self.gates[gate].queue.first().copied()
            && !self.out
            && self.fits(head)
        {
            self.leave_queue(head);
            self.grant(head);
        }
    }

    fn fits(&self, id: usize) -> bool {
        let ask = &self.claims[id].ask;
        let Gate {
            holders, delayed, ..
        } = &self.gates[ask.gate];
        let delayed = delayed.iter().map(|(_, id)| id);
        let held = holders.iter().chain(delayed);
        let held: u32 = held.map(|id| self.claims[*id].ask.weight).sum();
        held + ask.weight <= ask.limit
    }

    fn grant(&mut self, id: usize) {
        self.grants += 1;
        let claim = &mut self.claims[id];
        claim.grant = self.grants;
        claim.outcome = Some(Outcome::Granted);
        claim.last = match claim.ask.mode {
            LeaseMode::Renewed => None,
            LeaseMode::MaxHold(longest) => Some(self.now + ms(longest)),
            LeaseMode::Fixed => Some(self.now + claim.ttl()),
        };
        claim.end = claim.last;
        self.gates[claim.ask.gate].holders.push(id);
    }

    fn refuse(&mut self, id: usize, kind: RefusalKind, ahead: usize) {
        let gate = &self.gates[self.claims[id].ask.gate];
        let claim = |id: &usize| &self.claims[*id];
        let ends = gate.holders.iter().filter_map(|id| {
            let end = claim(id).end?;
            Some((end, claim(id).grant, claim(id).ask.delay))
        });
        let delays = gate
            .delayed
            .iter()
            .map(|(at, id)| (*at, claim(id).grant, 0));
        let first = ends.chain(delays).min();
        let first = first.map(|(end, _, delay)| end.saturating_sub(self.now) + delay);
        // Renewed, it always has its TTL left, and all agree on that.
        let renewed = gate.holders.iter().any(|id| claim(id).end.is_none());
        let ask = &self.claims[id].ask;
        let renewed = renewed.then_some(TTL[ask.gate] + ask.delay);
        let retry_after = first.into_iter().chain(renewed).min();
        let retry_after = retry_after.map(Duration::from_millis);
        self.claims[id].outcome = Some(Outcome::Refused {
            kind,
            position: Some(ahead as u64),
            retry_after: told(kind, retry_after),
        });
    }

    fn fail(&mut self, id: usize) {
        self.claims[id].outcome = Some(Outcome::Failed(BackendErrorKind::Unreachable));
    }

    /// Gives how many waited in front.
    fn leave_queue(&mut self, id: usize) -> usize {
        let queue = &mut self.gates[self.claims[id].ask.gate].queue;
        let rank = queue.iter().take_while(|waiter| **waiter != id).count();
        queue.retain(|waiter| *waiter != id);
        rank
    }

    fn lose(&mut self, id: usize, reason: LostReason, at: Ms) {
        let claim = &mut self.claims[id];
        claim.why_lost = Some(reason);
        if claim.looked_at.is_some() && !claim.finished {
            claim.lost = Some(reason);
            claim.told = Some(reason);
        }
        let Ask { gate, delay, .. } = claim.ask;
        if delay == 0 {
            self.end(id, Some(reason));
            return;
        }
        self.gates[gate].delayed.push((at + delay, id));
        let process = claim.process;
        let abandoned = claim.awaited && reason == LostReason::ShutDown;
        self.end(id, None);
        self.processes[process].abandoned += usize::from(abandoned);
    }

    /// It is not held any more: by its owner's will or its loss, or, for none, with a delay.
    fn end(&mut self, id: usize, how: Option<LostReason>) {
        let released = how == Some(LostReason::ShutDown);
        let claim = &mut self.claims[id];
        self.gates[claim.ask.gate]
            .holders
            .retain(|holder| *holder != id);
        if std::mem::take(&mut claim.awaited) {
            let process = &mut self.processes[claim.process];
            process.left -= 1;
            process.released += usize::from(released);
        }
    }
}
