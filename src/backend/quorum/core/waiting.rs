//! An acquire from its first call to its grant, its refusal or its failure.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::vote::{Grant, Seen, Vote};
use super::{Core, Entry};
use crate::backend::errand::Request;
use crate::backend::quorum::call::Who;
use crate::backend::quorum::rule;
use crate::backend::{Place, Wait};
use crate::error::{LockError, Refusal, RefusalKind};
use crate::lease::Lease;
use crate::time::Instant;
use crate::token::Token;

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) request: Request,
    pub(super) place: Arc<dyn Place>,
    pub(super) answer: oneshot::Sender<Result<Lease, LockError>>,
    pub(super) needed: usize,
    pub(super) since: Instant,
    /// When the caller's own wait is over.
    pub(super) give_up: Instant,
    /// Until when as many servers as are needed must have answered.
    pub(super) patience: Instant,
    /// 0 before it was asked for.
    pub(super) ticket: u64,
    pub(super) votes: Box<[Vote]>,
    /// As many servers as are needed know it.
    pub(super) entered: bool,
    /// When a server that was asked counts as silent for this round.
    pub(super) silent_at: Instant,
    /// When all are asked again that did not give their vote.
    pub(super) again_at: Instant,
    pub(super) pump_at: Instant,
    /// When servers can be asked that are too young still.
    pub(super) old_at: Instant,
    /// Since when it has some votes, and not enough.
    pub(super) partial: Option<Instant>,
    /// The fence that is to be agreed on, 0 for none.
    pub(super) fence: u64,
    /// How often that came to nothing.
    pub(super) attempts: u32,
    pub(super) timer: Instant,
}

impl Waiter {
    /// Its turn among the waiters of this process.
    pub(super) fn rank(&self) -> (u64, Instant) {
        let last = self.ticket == 0;
        (if last { u64::MAX } else { self.ticket }, self.since)
    }

    pub(super) fn next(&self) -> Instant {
        let end = if self.entered && self.request.terms.wait != Wait::No {
            self.give_up
        } else {
            self.patience
        };
        let timers = [
            self.silent_at,
            self.again_at,
            self.pump_at,
            self.old_at,
            end,
        ];
        timers.into_iter().min().unwrap_or(end)
    }

    pub(super) fn who(&self, token: Token) -> Who {
        Who {
            token,
            ticket: self.ticket,
            weight: self.request.terms.weight,
            limit: self.request.terms.limit,
            resource: Arc::clone(&self.request.resource),
        }
    }

    pub(super) fn grants(&self, now: Instant) -> Vec<Grant> {
        let votes = self.votes.iter();
        votes.filter_map(|vote| vote.grant(now)).collect()
    }

    /// The time until so many votes could be had, as far as leases in the way tell.
    pub(super) fn refusal(&self, now: Instant, kind: RefusalKind) -> Refusal {
        let seen: Vec<Seen> = self.votes.iter().filter_map(Vote::seen).collect();
        let mut ends: Vec<Duration> = seen
            .iter()
            .filter_map(|seen| Some(seen.sent.after(seen.crowd.next_end?).since(now)))
            .collect();
        ends.sort_unstable();
        let held = self.grants(now).len();
        // Who has not answered may be free.
        let unknown = self.votes.len().saturating_sub(held + seen.len());
        let missing = self.needed.saturating_sub(held + unknown);
        let waiting = seen.iter().map(|seen| seen.crowd.waiting).max();
        Refusal::new(kind)
            .with_retry_after(ends.get(missing.saturating_sub(1)).copied())
            .with_position(waiting)
    }
}

impl Core {
    pub(super) fn acquire(
        &mut self,
        now: Instant,
        token: Token,
        request: Request,
        place: Arc<dyn Place>,
        answer: oneshot::Sender<Result<Lease, LockError>>,
    ) {
        if self.shutdown.is_some() {
            let _ = answer.send(Err(Refusal::new(RefusalKind::ShuttingDown).into()));
            return;
        }
        let terms = request.terms;
        let needed = rule::needed(self.servers.len(), terms.limit);
        if terms.wait != Wait::No {
            self.wants_inbox = true;
        }
        let budgeted = terms.bridge.is_some();
        let unavailable = self.time_to_answer(needed, budgeted, terms.wait == Wait::Unbounded);
        let (give_up, patience) = match terms.wait {
            Wait::AtMost(wait) if budgeted => (now.after(wait), now.after(wait).after(unavailable)),
            Wait::AtMost(wait) => (now.after(wait), now.after(wait.max(unavailable))),
            Wait::No => (now, now.after(unavailable)),
            Wait::Unbounded => (Instant::FAR, now.after(unavailable)),
        };
        let waiter = Waiter {
            old_at: self.old_enough_at(now, terms.ttl.get()),
            votes: Vote::none(self.servers.len()),
            request,
            place,
            answer,
            needed,
            since: now,
            give_up,
            patience,
            ticket: 0,
            entered: false,
            silent_at: Instant::FAR,
            again_at: Instant::FAR,
            pump_at: Instant::FAR,
            partial: None,
            fence: 0,
            attempts: 0,
            timer: Instant::FAR,
        };
        self.entries.insert(token, Entry::Waiting(Box::new(waiter)));
        self.bridge(now, token);
        self.ask_all(now, token);
        self.schedule(token);
    }

    /// What a caller is kept waiting when there is no quorum, as on a single server.
    fn time_to_answer(&self, needed: usize, budgeted: bool, patient: bool) -> Duration {
        let untried = self.servers.iter().filter(|server| !server.tried).count();
        let connect = if patient || untried > self.servers.len() - needed {
            self.settings.connect_timeout
        } else {
            Duration::ZERO
        };
        connect.saturating_add(if budgeted {
            self.settings.admission_budget
        } else {
            self.settings.command_timeout
        })
    }

    pub(super) fn waiter_due(&mut self, now: Instant, token: Token) {
        self.bridge(now, token);
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        if waiter.request.terms.wait != Wait::No && waiter.entered && now >= waiter.give_up {
            let refusal = waiter.refusal(now, RefusalKind::WaitedTooLong);
            self.leave(now, token, Err(refusal.into()));
            return;
        }
        let waits = waiter.entered && waiter.request.terms.wait != Wait::No;
        // Of many that ask at once, the last are answered late.
        let patient = waiter.request.terms.wait == Wait::Unbounded
            && waiter.request.terms.bridge.is_none()
            && !waiter.entered;
        if patient && now >= waiter.patience && self.is_under_way(now, token) {
            let patience = now.after(self.settings.command_timeout);
            if let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) {
                waiter.patience = patience;
            }
        }
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        if !waits && now >= waiter.patience {
            let error = self.waiter_error(now, token);
            self.leave(now, token, Err(error.into()));
            return;
        }
        if now >= waiter.silent_at {
            waiter.silent_at = Instant::FAR;
        }
        let again = now >= waiter.again_at || now >= waiter.pump_at || now >= waiter.old_at;
        if again {
            let pumped = now >= waiter.pump_at;
            waiter.again_at = Instant::FAR;
            waiter.pump_at = Instant::FAR;
            let ttl = waiter.request.terms.ttl.get();
            let resource = Arc::clone(&waiter.request.resource);
            let old_at = self.old_enough_at(now, ttl);
            if let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) {
                waiter.old_at = old_at;
            }
            self.ask_all(now, token);
            if pumped {
                self.note_pump(now, &resource);
                self.plan_pump(now, token, true);
            }
        }
        self.judge(now, token);
    }

    /// Answers a waiter, and ends what it has left on the servers.
    pub(super) fn leave(&mut self, now: Instant, token: Token, answer: Result<Lease, LockError>) {
        let Some(waiter) = self.take_waiter(now, token) else {
            return;
        };
        let who = waiter.who(token);
        let lease = waiter.request.terms.lease();
        let gone = waiter.answer.send(answer).err();
        self.end(now, who, waiter.timer, &waiter.votes, lease, None, None);
        drop(gone);
    }

    /// Takes a waiter out of all that refers to it. Its entry is gone, its timer stays.
    pub(super) fn take_waiter(&mut self, now: Instant, token: Token) -> Option<Box<Waiter>> {
        let Some(Entry::Waiting(_)) = self.entries.get(&token) else {
            return None;
        };
        let Some(Entry::Waiting(waiter)) = self.entries.remove(&token) else {
            return None;
        };
        let resource = Arc::clone(&waiter.request.resource);
        self.leave_gate(now, &resource, waiter.ticket, token);
        Some(waiter)
    }

    pub(super) fn cancel(&mut self, now: Instant, token: Token) {
        let Some(waiter) = self.take_waiter(now, token) else {
            return;
        };
        let lease = waiter.request.terms.lease();
        let who = waiter.who(token);
        self.end(now, who, waiter.timer, &waiter.votes, lease, None, None);
    }

    /// Shortens a waiter's patience to what it has for an outage, or ends its wait if that is over.
    fn bridge(&mut self, now: Instant, token: Token) {
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return;
        };
        let outage = self.outage(waiter.needed);
        let (Some(bridge), Some(since), false) =
            (waiter.request.terms.bridge, outage, waiter.entered)
        else {
            return;
        };
        let until = since.after(bridge);
        if now >= until {
            let error = self.waiter_error(now, token);
            self.leave(now, token, Err(error.into()));
        } else if let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) {
            waiter.patience = waiter.patience.min(until);
            self.schedule(token);
        }
    }

    /// The same for all, when a server is not there any more.
    pub(super) fn bridge_all(&mut self, now: Instant) {
        let bridged = |(token, entry): (&Token, &Entry)| match entry {
            Entry::Waiting(waiter) if waiter.request.terms.bridge.is_some() => Some(*token),
            _ => None,
        };
        let tokens: Vec<Token> = self.entries.iter().filter_map(bridged).collect();
        for token in tokens {
            self.bridge(now, token);
        }
    }
}
