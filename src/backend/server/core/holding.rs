//! A lease from its grant to its release or its loss.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{Core, Entry, Open};
use crate::backend::ReleaseAnswer;
use crate::backend::errand::Request;
use crate::backend::server::call::Renew;
use crate::backend::server::reply::{Failure, Renewed};
use crate::key::Tag;
use crate::lease::{LeaseState, LostReason, Release, log_loss};
use crate::time::{Clock, Instant, drift};
use crate::token::{FencingToken, Token};

#[derive(Debug)]
pub(super) struct Holder {
    pub(super) request: Request,
    lease: Arc<LeaseState>,
    pub(super) open: Open,
    granted: Instant,
    /// The sending of the request that the lease's present length comes from.
    renewed: Instant,
    /// Whether it has its whole length, not a claim's.
    whole: bool,
    /// Since when a renewal is under way.
    in_flight: bool,
    renew_at: Instant,
    pub(super) timer: Instant,
}

impl Holder {
    pub(super) fn next(&self) -> Instant {
        let renew_at = if self.in_flight {
            Instant::FAR
        } else {
            self.renew_at
        };
        self.lease.deadline().min(renew_at)
    }

    /// Tells the owner that nobody renews the lease any longer.
    pub(super) fn abandon(&self) {
        self.lease.lose(LostReason::Expired);
    }

    /// The time between two renewals, and the latest a first one comes after a claim.
    fn interval(&self) -> Duration {
        if self.whole {
            self.request.terms.ttl.get() / 3
        } else {
            self.request.terms.claim() / 3
        }
    }

    /// When it must not be held any more, however often it is renewed.
    fn last(&self) -> Instant {
        self.request
            .terms
            .mode
            .longest(self.request.terms.ttl.get())
            .map_or(Instant::FAR, |longest| self.granted.after(longest))
    }

    fn plan(&mut self, now: Instant) {
        // A lease that has its whole length and may not get longer is left to run out.
        let done = self.whole && self.renewed.after(self.request.terms.ttl.get()) >= self.last();
        // A claim that came late has less left than its interval: it is renewed while there is time
        // for a second attempt.
        let halfway = now.after(self.lease.deadline().since(now) / 2);
        self.renew_at = if done {
            Instant::FAR
        } else {
            self.renewed.after(self.interval()).min(halfway)
        };
    }

    pub(super) fn renew_now(&mut self, now: Instant) {
        if self.renew_at != Instant::FAR {
            self.renew_at = now;
        }
    }

    /// Puts a renewal that is due off.
    pub(super) fn postpone(&mut self, later: Instant) {
        if self.renew_at != Instant::FAR {
            self.renew_at = self.renew_at.max(later);
        }
    }

    /// Whether its renewal is due, or near enough to go along with another's: the renewals of a tag
    /// come to share their calls.
    pub(super) fn wants_renewal(&self, now: Instant) -> bool {
        !self.in_flight
            && self.renew_at != Instant::FAR
            && (now >= self.renew_at || now.since(self.renewed) >= self.interval() / 2)
    }

    /// What the next renewal asks for, and that it is under way.
    pub(super) fn renew(&mut self, now: Instant) -> (FencingToken, Duration) {
        self.in_flight = true;
        let left = self.last().since(now).max(Duration::from_millis(1));
        let terms = &self.request.terms;
        let lease = terms.ttl.get().min(left) + terms.delay.get();
        (self.lease.fencing_token(), lease)
    }

    /// When the server has let it run out, if nobody ends it before: it has lasted for the delay
    /// beyond what was believed in.
    fn end_on_server(&self) -> Instant {
        let terms = &self.request.terms;
        let after = terms.delay.get() + drift(terms.held());
        self.lease.deadline().after(after)
    }
}

impl Core {
    #[expect(
        clippy::too_many_arguments,
        reason = "each is one fact of the grant, and it is called once"
    )]
    pub(super) fn start_holding(
        &mut self,
        now: Instant,
        token: Token,
        timer: Instant,
        request: &Request,
        open: Open,
        fence: FencingToken,
        deadline: Instant,
        whole: bool,
    ) -> Arc<LeaseState> {
        let mut holder = Holder {
            request: request.clone(),
            lease: LeaseState::new(Clock::System, token, fence, Instant::from_nanos(0)),
            open,
            granted: now,
            renewed: now,
            whole,
            in_flight: false,
            renew_at: Instant::FAR,
            timer,
        };
        // Nobody has looked at it yet, so it can't be refused.
        let _ = holder.lease.prolong(deadline.min(holder.last()));
        holder.plan(now);
        let lease = Arc::clone(&holder.lease);
        self.entries.insert(token, Entry::Holding(Box::new(holder)));
        self.schedule(token);
        lease
    }

    /// An acquire that was sent before we knew of the grant says "held".
    pub(super) fn held_again(
        &mut self,
        now: Instant,
        sent: Instant,
        token: Token,
        fence: FencingToken,
        left: Duration,
    ) {
        let Some(Entry::Holding(holder)) = self.entries.get(&token) else {
            return;
        };
        match fence.cmp(&holder.lease.fencing_token()) {
            // A late word of a grant before ours.
            Ordering::Less => {}
            // It says nothing of what replicas have.
            Ordering::Equal if self.settings.replicas.is_some() => {}
            Ordering::Equal => {
                let deadline = holder.request.terms.until(sent, left).min(holder.last());
                if now >= holder.lease.deadline() || !holder.lease.prolong(deadline) {
                    self.lose(now, token, LostReason::Expired);
                }
            }
            // Ours ran out, and this token was granted anew meanwhile: somebody else may have held
            // in between.
            Ordering::Greater => self.lose(now, token, LostReason::Gone),
        }
    }

    /// The holder's timer fired; names the tag if a renewal is due.
    pub(super) fn holder_due(&mut self, now: Instant, token: Token) -> Option<Tag> {
        let Some(Entry::Holding(holder)) = self.entries.get(&token) else {
            return None;
        };
        if now >= holder.lease.deadline() {
            self.lose(now, token, LostReason::Expired);
            return None;
        }
        if !holder.wants_renewal(now) {
            return None;
        }
        let tag = holder.request.resource.tag;
        self.renew_with(tag, token);
        Some(tag)
    }

    pub(super) fn renewed(
        &mut self,
        now: Instant,
        sent: Instant,
        call: &Renew,
        result: Result<(u64, Vec<Renewed>), Failure>,
    ) {
        let entries = match result {
            Ok((stamp, entries)) => {
                self.stamped(call.tag, stamp, sent);
                entries
            }
            Err(_) => Vec::new(),
        };
        for (index, lease) in call.leases.iter().enumerate() {
            self.lease_renewed(
                now,
                sent,
                lease.token,
                lease.fence,
                entries.get(index).copied(),
            );
        }
    }

    pub(super) fn lease_renewed(
        &mut self,
        now: Instant,
        sent: Instant,
        token: Token,
        fence: FencingToken,
        answer: Option<Renewed>,
    ) {
        match self.entries.get_mut(&token) {
            Some(Entry::Waiting(waiter)) => match answer {
                Some(Renewed::Left(left)) => {
                    let deadline = waiter.request.terms.until(sent, left);
                    self.confirmed(now, token, fence, Some(deadline));
                }
                Some(Renewed::Gone | Renewed::Other | Renewed::Incompatible) => {
                    self.confirmed(now, token, fence, None);
                }
                // Confirmed by its timer.
                None => {}
            },
            Some(Entry::Holding(holder)) if holder.lease.fencing_token() == fence => {
                holder.in_flight = false;
                if now >= holder.lease.deadline() {
                    // Looked at before the answer: what was lost is not revived.
                    self.lose(now, token, LostReason::Expired);
                    return;
                }
                match answer {
                    Some(Renewed::Left(left)) => {
                        let deadline = holder.request.terms.until(sent, left).min(holder.last());
                        if !holder.lease.prolong(deadline) {
                            // It passed, and was seen to, since `now` was read.
                            self.lose(now, token, LostReason::Expired);
                            return;
                        }
                        holder.renewed = sent;
                        holder.whole = true;
                        holder.plan(now);
                    }
                    Some(Renewed::Gone | Renewed::Other | Renewed::Incompatible) => {
                        self.lose(now, token, LostReason::Gone);
                        return;
                    }
                    None => {
                        // Not lost: the lease still runs. Soon enough for several attempts, not so
                        // soon as to flood.
                        let left = holder.lease.deadline().since(now);
                        holder.renew_at = now.after(
                            (left / 5).clamp(Duration::from_millis(10), Duration::from_millis(500)),
                        );
                    }
                }
                self.schedule(token);
            }
            _ => {}
        }
    }

    /// Tells the owner that its lease is over, and ends it on the server too: at once, or after the
    /// delay where what the owner has under way is to die out first.
    pub(super) fn lose(&mut self, now: Instant, token: Token, reason: LostReason) {
        let Some(Entry::Holding(holder)) = self.entries.get(&token) else {
            return;
        };
        if holder.lease.lose(reason) {
            let fence = holder.lease.fencing_token();
            log_loss(&holder.request.resource.gate, fence, reason);
        }
        let resource = Arc::clone(&holder.request.resource);
        let stays = reason != LostReason::Gone && !holder.request.terms.delay.is_none();
        let rest = stays.then(|| holder.end_on_server());
        self.stop_holding(now, token, None, rest);
        if reason == LostReason::Gone {
            // The server has lost data, and may have lost those who wait here, too.
            self.pump_next(now, &resource);
        }
    }

    pub(super) fn release(
        &mut self,
        now: Instant,
        token: Token,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
    ) {
        if let Some(Entry::Holding(holder)) = self.entries.get(&token) {
            if holder.request.terms.delay.is_none() || now < holder.lease.deadline() {
                self.stop_holding(now, token, answer, None);
                return;
            }
            // The lease ran out before it was given back, and nobody was awake to see it.
            self.lose(now, token, LostReason::Expired);
        }
        if let Some(answer) = answer {
            let _ = answer.send(Ok(Release::NoLongerHeld));
        }
    }

    fn stop_holding(
        &mut self,
        now: Instant,
        token: Token,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
        rest: Option<Instant>,
    ) {
        let Some(Entry::Holding(holder)) = self.entries.remove(&token) else {
            return;
        };
        self.renew_without(holder.request.resource.tag, token);
        self.end(
            now,
            token,
            holder.timer,
            &holder.request,
            holder.open,
            Some(holder.lease.deadline()),
            answer,
            rest,
        );
    }
}
