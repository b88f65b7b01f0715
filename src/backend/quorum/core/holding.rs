//! A lease from its agreement to its release or its loss.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::vote::{Stand, Vote};
use super::{Core, Entry};
use crate::backend::ReleaseAnswer;
use crate::backend::errand::Request;
use crate::backend::quorum::call::{Ask, Body, Call, Mode, Who};
use crate::backend::quorum::rule;
use crate::backend::server::reply::Failure;
use crate::lease::{Lease, LeaseState, LostReason, Release, log_loss};
use crate::time::{Clock, Instant, validity};
use crate::token::{FencingToken, Token};

#[derive(Debug)]
pub(super) struct Holder {
    pub(super) request: Request,
    ticket: u64,
    needed: usize,
    lease: Arc<LeaseState>,
    pub(super) votes: Box<[Vote]>,
    /// When it must not be held any more, however often it is renewed.
    last: Instant,
    /// The beginning of the last round of renewals.
    renewed: Instant,
    renew_at: Instant,
    pub(super) timer: Instant,
}

impl Holder {
    pub(super) fn next(&self) -> Instant {
        self.lease.deadline().min(self.renew_at)
    }

    /// Tells the owner that nobody renews the lease any longer.
    pub(super) fn abandon(&self) {
        self.lease.lose(LostReason::Expired);
    }

    fn who(&self, token: Token) -> Who {
        Who {
            token,
            ticket: self.ticket,
            weight: self.request.terms.weight,
            limit: self.request.terms.limit,
            resource: Arc::clone(&self.request.resource),
        }
    }

    fn plan(&mut self) {
        let ttl = self.request.terms.ttl.get();
        // A lease that may not get longer is left to run out.
        let done = self.renewed.after(ttl) >= self.last;
        self.renew_at = if done {
            Instant::FAR
        } else {
            self.renewed.after(ttl / 3)
        };
    }

    /// How long a renewal makes it.
    fn length(&self, now: Instant) -> Duration {
        let left = self.last.since(now).max(Duration::from_millis(1));
        self.request.terms.ttl.get().min(left)
    }
}

impl Core {
    /// The votes suffice, and a fence is agreed on.
    pub(super) fn start_holding(&mut self, now: Instant, token: Token, fence: u64, until: Instant) {
        let Some(waiter) = self.take_waiter(now, token) else {
            return;
        };
        let first = waiter.votes.iter().filter_map(|vote| vote.grant(now));
        let granted = first.map(|grant| grant.sent).min().unwrap_or(now);
        let fence = FencingToken::new(fence);
        let lease = LeaseState::new(Clock::System, token, fence, Instant::from_nanos(0));
        let ttl = waiter.request.terms.ttl.get();
        let last = match waiter.request.terms.mode.longest(ttl) {
            // Votes that are still to come make it no longer.
            Some(longest) if longest <= ttl => until,
            Some(longest) => now.after(longest),
            None => Instant::FAR,
        };
        let mut holder = Holder {
            ticket: waiter.ticket,
            needed: waiter.needed,
            request: waiter.request,
            lease: Arc::clone(&lease),
            votes: waiter.votes,
            last,
            renewed: granted,
            renew_at: Instant::FAR,
            timer: waiter.timer,
        };
        // Nobody has looked at it yet, so it can't be refused.
        let _ = lease.prolong(until.min(holder.last));
        holder.plan();
        // What is left of its time may be short, if its votes came one after the other.
        holder.renew_at = holder.renew_at.min(now.after(until.since(now) / 2));
        if holder.renewed.after(holder.request.terms.ttl.get()) >= holder.last {
            holder.renew_at = Instant::FAR;
        }
        self.entries.insert(token, Entry::Holding(Box::new(holder)));
        self.count(now, token);
        self.schedule(token);
        // If nobody waits for it any more, it is dropped, and gives itself back.
        let unwanted = waiter.answer.send(Ok(Lease::shared(waiter.place, lease)));
        drop(unwanted);
    }

    /// Says of a lease on how many servers it is held; gives that number.
    fn count(&self, now: Instant, token: Token) -> usize {
        let Some(Entry::Holding(holder)) = self.entries.get(&token) else {
            return 0;
        };
        let votes = holder.votes.iter();
        let held = votes.filter(|vote| vote.grant(now).is_some()).count();
        holder.lease.set_held_on(held);
        held
    }

    /// The votes of a lease have changed: it may last longer, or not at all.
    pub(super) fn recount(&mut self, now: Instant, token: Token) {
        let held = self.count(now, token);
        let Some(Entry::Holding(holder)) = self.entries.get_mut(&token) else {
            return;
        };
        if now >= holder.lease.deadline() {
            // Looked at before the answer: what was lost is not revived.
            self.lose(now, token, LostReason::Expired);
            return;
        }
        if held < holder.needed {
            // As many have lost it, or never had it, as can let somebody else in.
            self.lose(now, token, LostReason::Gone);
            return;
        }
        let grants = holder.votes.iter().filter_map(|vote| vote.grant(now));
        let until = rule::until(grants.map(|grant| grant.deadline), holder.needed);
        let until = until.unwrap_or(now).min(holder.last);
        if !holder.lease.prolong(until) {
            self.lose(now, token, LostReason::Expired);
        }
    }

    pub(super) fn holder_due(&mut self, now: Instant, token: Token) {
        let Some(Entry::Holding(holder)) = self.entries.get_mut(&token) else {
            return;
        };
        if now >= holder.lease.deadline() {
            self.lose(now, token, LostReason::Expired);
            return;
        }
        if now < holder.renew_at {
            return;
        }
        holder.renewed = now;
        holder.plan();
        if holder.renew_at == Instant::FAR {
            holder.renew_at = now.after(holder.request.terms.ttl.get() / 3);
        }
        for server in 0..self.servers.len() {
            self.renew(now, token, server);
        }
    }

    /// Lengthens the lease on one server, or takes it there if it is missing.
    fn renew(&mut self, now: Instant, token: Token, server: usize) {
        let Some(Entry::Holding(holder)) = self.entries.get_mut(&token) else {
            return;
        };
        let vote = &mut holder.votes[server];
        if vote.grant(now).is_none() {
            self.fill(now, token, server);
            return;
        }
        if vote.asked.is_some() || !self.servers[server].up {
            return;
        }
        vote.asked = Some(now);
        let call = Call {
            server,
            sent: now,
            who: holder.who(token),
            body: Body::Renew {
                fence: holder.lease.fencing_token().get(),
                agreed: true,
                lease: holder.length(now),
            },
        };
        self.send(call);
    }

    /// Takes a lease that is held elsewhere on a server where it is missing. One that has lost its
    /// data in a restart may be used: what it lost was this lease.
    pub(super) fn fill(&mut self, now: Instant, token: Token, server: usize) {
        if !self.is_well(server) {
            return;
        }
        let Some(server_ms) = self.servers[server].clock.ms(now) else {
            return;
        };
        let Some(Entry::Holding(holder)) = self.entries.get_mut(&token) else {
            return;
        };
        let length = holder.length(now);
        let vote = &mut holder.votes[server];
        if vote.asked.is_some() || vote.grant(now).is_some() {
            return;
        }
        let timeout = u64::try_from(self.settings.command_timeout.as_millis()).unwrap_or(u64::MAX);
        let latest_ms = server_ms.saturating_add(timeout);
        vote.open.sent(latest_ms);
        vote.asked = Some(now);
        let ask = Ask {
            lease: length,
            latest_ms,
            max_waiters: 0,
            mode: Mode::Fill,
            pushed: false,
            fence: holder.lease.fencing_token().get(),
        };
        let call = Call {
            server,
            sent: now,
            who: holder.who(token),
            body: Body::Ask(ask),
        };
        self.send(call);
    }

    /// The answer to a renewal, or to the writing back of a fence.
    pub(super) fn renewed(
        &mut self,
        now: Instant,
        server: usize,
        sent: Instant,
        token: Token,
        result: Result<Option<(Duration, u64)>, Failure>,
    ) {
        let vote = match self.entries.get_mut(&token) {
            Some(Entry::Waiting(waiter)) => &mut waiter.votes[server],
            Some(Entry::Holding(holder)) => &mut holder.votes[server],
            Some(Entry::Ending(_)) | None => return,
        };
        vote.asked = None;
        vote.again = false;
        let mut failed = false;
        match (result, &mut vote.stand) {
            (Ok(Some((left, fence))), Stand::Held(grant)) => {
                grant.deadline = grant.deadline.max(validity(sent, left));
                grant.fence = fence;
            }
            (Ok(None), stand) => *stand = Stand::Unasked,
            (Ok(Some(_)) | Err(_), _) => failed = true,
        }
        match self.entries.get_mut(&token) {
            Some(Entry::Waiting(_)) => {
                // A server that has lost it is asked for it again.
                self.ask(now, token, server);
                self.judge(now, token);
            }
            Some(Entry::Holding(holder)) => {
                if failed && holder.renew_at != Instant::FAR {
                    // Not lost: the lease still runs. Soon enough for several attempts, not so soon
                    // as to flood.
                    let left = holder.lease.deadline().since(now);
                    let pause = left / 5;
                    let pause = pause.clamp(Duration::from_millis(10), Duration::from_millis(500));
                    holder.renew_at = holder.renew_at.min(now.after(pause));
                }
                if !failed {
                    self.fill(now, token, server);
                }
                self.recount(now, token);
            }
            Some(Entry::Ending(_)) | None => {}
        }
    }

    /// Tells the owner that its lease is over, and ends it on the servers too.
    pub(super) fn lose(&mut self, now: Instant, token: Token, reason: LostReason) {
        let Some(Entry::Holding(holder)) = self.entries.get(&token) else {
            return;
        };
        if holder.lease.lose(reason) {
            let fence = holder.lease.fencing_token();
            log_loss(&holder.request.resource.gate, fence, reason);
        }
        self.stop_holding(now, token, None);
    }

    pub(super) fn release(
        &mut self,
        now: Instant,
        token: Token,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
    ) {
        if matches!(self.entries.get(&token), Some(Entry::Holding(_))) {
            self.stop_holding(now, token, answer);
        } else if let Some(answer) = answer {
            let _ = answer.send(Ok(Release::NoLongerHeld));
        }
    }

    fn stop_holding(
        &mut self,
        now: Instant,
        token: Token,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
    ) {
        if !matches!(self.entries.get(&token), Some(Entry::Holding(_))) {
            return;
        }
        let Some(Entry::Holding(holder)) = self.entries.remove(&token) else {
            return;
        };
        let who = holder.who(token);
        let held = (holder.lease.deadline(), holder.needed);
        let lease = holder.request.terms.lease();
        self.end(
            now,
            who,
            holder.timer,
            &holder.votes,
            lease,
            Some(held),
            answer,
        );
    }
}
