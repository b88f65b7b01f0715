//! An acquire from its first call to its grant, its refusal or its failure.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::failing::{Progress, Stage};
use super::{Core, Due, Entry, Open, one_more, retry_in};
use crate::backend::errand::Request;
use crate::backend::server::call::{Ask, Body, Call};
use crate::backend::server::home::News;
use crate::backend::server::reply::{Acquired, Crowd, Failure};
use crate::backend::{Place, Wait};
use crate::error::{BackendError, BackendErrorKind, LockError, Refusal, RefusalKind};
use crate::lease::Lease;
use crate::time::Instant;
use crate::token::{FencingToken, Token};

/// A clock estimate that is off is mended by the answer that says so; more often than this it is no
/// estimate's fault.
const MAX_LATE: u8 = 3;

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) request: Request,
    pub(super) place: Arc<dyn Place>,
    pub(super) answer: oneshot::Sender<Result<Lease, LockError>>,
    since: Instant,
    /// When the caller's own wait is over.
    give_up: Instant,
    /// Until when the server must have answered for the first time.
    pub(super) patience: Instant,
    /// The first sending: no grant can be older.
    pub(super) asked: Option<Instant>,
    /// The last sending.
    sent: Instant,
    /// The stamp of the newest "queued": an older push is stale.
    pub(super) queued: Option<u64>,
    /// Its place, 0 before it had one.
    pub(super) ticket: u64,
    crowd: Option<Crowd>,
    /// A pushed grant that is being confirmed, since it came too late to rely on.
    pub(super) claim: Option<FencingToken>,
    /// Until when replicas must have acknowledged that grant; `FAR` where they need not.
    pub(super) acknowledge_by: Instant,
    /// A grant that turned out to be over when it was to be confirmed.
    pub(super) over: Option<FencingToken>,
    pub(super) open: Open,
    in_flight: bool,
    /// To be asked again when the answer is there, because something changed meanwhile.
    again: bool,
    /// An answer was missed that may have said that the place was lost.
    unsure: bool,
    pub(super) retry_at: Instant,
    pub(super) attempts: u32,
    late: u8,
    /// Few have any, so it takes no room in the others.
    pub(super) trouble: Option<Box<Failure>>,
    pub(super) timer: Instant,
}

impl Waiter {
    fn new(
        now: Instant,
        request: Request,
        place: Arc<dyn Place>,
        answer: oneshot::Sender<Result<Lease, LockError>>,
        unavailable: Duration,
        open: Open,
    ) -> Self {
        let bounded = request.terms.bridge.is_some();
        let (give_up, patience) = match request.terms.wait {
            Wait::AtMost(wait) if bounded => (now.after(wait), now.after(wait).after(unavailable)),
            Wait::AtMost(wait) => (now.after(wait), now.after(wait.max(unavailable))),
            Wait::No => (now, now.after(unavailable)),
            Wait::Unbounded => (Instant::FAR, now.after(unavailable)),
        };
        Self {
            request,
            place,
            answer,
            since: now,
            give_up,
            patience,
            asked: None,
            sent: now,
            queued: None,
            ticket: 0,
            crowd: None,
            claim: None,
            acknowledge_by: Instant::FAR,
            over: None,
            open,
            in_flight: false,
            again: false,
            unsure: false,
            retry_at: Instant::FAR,
            attempts: 0,
            late: 0,
            trouble: None,
            timer: Instant::FAR,
        }
    }

    /// Its turn among the waiters of this process.
    pub(super) fn rank(&self) -> (u64, Instant) {
        (
            if self.ticket == 0 {
                u64::MAX
            } else {
                self.ticket
            },
            self.since,
        )
    }

    /// Whether the server has a place for it.
    pub(super) fn is_queued(&self) -> bool {
        self.queued.is_some()
    }

    /// The first moment at which something is to be done for it.
    pub(super) fn next(&self) -> Instant {
        let end = if self.acknowledge_by != Instant::FAR {
            // It has its turn: the wait for that is over.
            self.acknowledge_by
        } else if self.is_queued() {
            self.give_up
        } else {
            self.patience
        };
        end.min(self.retry_at)
    }

    pub(super) fn retry_later(&mut self, now: Instant, token: Token, failure: &Failure) {
        self.retry_at = now.after(retry_in(self.attempts, token.jitter(self.attempts)));
        self.attempts = one_more(self.attempts, failure);
    }

    pub(super) fn progress(&self, now: Instant) -> Progress {
        let (stage, end) = match (self.claim, self.queued) {
            (Some(_), _) if self.acknowledge_by != Instant::FAR => {
                (Stage::Confirming, self.acknowledge_by)
            }
            (Some(_), _) => (Stage::Confirming, self.give_up),
            (None, Some(_)) => (Stage::Queued, self.give_up),
            (None, None) => (Stage::Asking, self.patience),
        };
        Progress {
            doing: format!("acquiring `{}`", self.request.resource.gate),
            stage,
            elapsed: now.since(self.since),
            limit: (end != Instant::FAR).then(|| end.since(self.since)),
        }
    }

    fn refusal(&self, kind: RefusalKind) -> Refusal {
        let crowd = self.crowd;
        Refusal::new(kind)
            .with_retry_after(crowd.and_then(|crowd| crowd.next_end))
            .with_position(crowd.map(|crowd| crowd.waiting))
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
        // A recall may come to who holds, too.
        if request.terms.wait != Wait::No || request.terms.kept > 0 {
            self.listen(now, request.resource.tag);
        }
        let patient = request.terms.wait == Wait::Unbounded;
        let unavailable = self.time_to_answer(now, request.terms.bridge.is_some(), patient);
        let open = Open::none(self.settings.repeats);
        let waiter = Waiter::new(now, request, place, answer, unavailable, open);
        let waiter = Box::new(waiter);
        self.entries.insert(token, Entry::Waiting(waiter));
        self.bridge(now, token);
        self.ask(now, token);
        self.schedule(token);
    }

    /// What a caller is kept waiting when there is no server: by the budget for admission if it has an
    /// answer of its own. Time to connect before, if that is under way for the first time, or for who
    /// has time.
    pub(super) fn time_to_answer(&self, now: Instant, budgeted: bool, patient: bool) -> Duration {
        let never = self.clocks.iter().all(|clock| clock.ms(now).is_none());
        let first = never && self.connect_trouble.is_none();
        let connect = if first || patient {
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

    /// Sends an acquire: the first one, or the same again to learn how the token stands.
    pub(super) fn ask(&mut self, now: Instant, token: Token) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        if waiter.claim.is_some() {
            return;
        }
        if waiter.in_flight {
            waiter.again = true;
            return;
        }
        let tag = waiter.request.resource.tag;
        let link = self.routes.link(tag);
        let Some(server_ms) = self.clocks[link].ms(now).filter(|_| self.links[link]) else {
            // Asked as soon as there is a connection, which brings a reading of the server's clock.
            return;
        };
        let request = &waiter.request;
        let timeout = u64::try_from(self.settings.command_timeout.as_millis()).unwrap_or(u64::MAX);
        let wait = match request.terms.wait {
            Wait::No => Some(Duration::ZERO),
            Wait::AtMost(_) => Some(waiter.give_up.since(now).max(Duration::from_millis(1))),
            Wait::Unbounded => None,
        };
        let ask = Ask {
            token,
            resource: request.resource.clone(),
            weight: request.terms.weight,
            limit: request.terms.limit,
            lease: request.terms.lease(),
            latest_ms: server_ms + timeout,
            wait,
            max_waiters: request.terms.max_waiters,
            ticket: waiter.ticket,
            pushed: self.ears.hear(tag),
            kept: request.terms.kept,
        };
        waiter.open.sent(ask.latest_ms);
        waiter.in_flight = true;
        waiter.again = false;
        waiter.retry_at = Instant::FAR;
        waiter.asked.get_or_insert(now);
        waiter.sent = now;
        if request.terms.wait != Wait::No {
            self.spoke(now, tag);
            self.listen(now, tag);
        }
        self.calls.push(Call {
            sent: now,
            body: Body::Acquire(ask),
        });
    }

    pub(super) fn acquired(
        &mut self,
        now: Instant,
        sent: Instant,
        ask: &Ask,
        result: Result<Acquired, Failure>,
    ) {
        let token = ask.token;
        match self.entries.get_mut(&token) {
            Some(Entry::Waiting(waiter)) => {
                waiter.in_flight = false;
                match result {
                    Ok(outcome) => {
                        waiter.open.answered();
                        waiter.attempts = 0;
                        waiter.trouble = None;
                        self.acquire_answered(now, sent, ask, outcome);
                    }
                    Err(failure) => self.acquire_failed(now, token, failure),
                }
                self.schedule(token);
            }
            Some(Entry::Holding(holder)) => {
                if let Ok(outcome) = result {
                    holder.open.answered();
                    // "Queued" was said before the grant that we know of. "Held" is it, or a later
                    // one that we lost ours to.
                    if let Acquired::Held { fence, left, .. } = outcome {
                        self.held_again(now, sent, token, fence, left);
                    }
                }
            }
            // Its end carries the latest moment of this call, whatever it did.
            Some(Entry::Ending(_)) | None => {}
        }
    }

    fn acquire_answered(&mut self, now: Instant, sent: Instant, ask: &Ask, outcome: Acquired) {
        let token = ask.token;
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        match outcome {
            // A late word of an earlier grant than the one that is being confirmed, or of one that
            // is over.
            Acquired::Held { fence, .. } if waiter.claim.is_some_and(|claim| claim > fence) => {}
            Acquired::Held { fence, .. } if waiter.over.is_some_and(|over| over >= fence) => {
                self.ask(now, token);
            }
            Acquired::Held {
                fence,
                left,
                others,
                stamp,
            } => {
                let was_queued = waiter.is_queued();
                let whole = left >= ask.lease;
                let deadline = waiter.request.terms.until(sent, left);
                self.others_told(token, stamp, others);
                self.take_grant(now, token, fence, deadline, whole);
                if was_queued {
                    // Its push was lost, or the whole queue was. So may others have been: whoever is
                    // next here asks, too.
                    self.pump_next(now, &ask.resource);
                }
            }
            Acquired::Queued {
                stamp,
                ticket,
                crowd,
                entered,
            } => {
                let unsure = std::mem::take(&mut waiter.unsure);
                let forgotten = waiter.is_queued() && (entered || unsure);
                waiter.queued = Some(stamp);
                waiter.crowd = Some(crowd);
                let old = std::mem::replace(&mut waiter.ticket, ticket);
                let again = std::mem::take(&mut waiter.again);
                let resource = waiter.request.resource.clone();
                if waiter.request.terms.kept > 0 {
                    self.hear(&resource, News::Queued(crowd.next_end));
                }
                self.enqueued(now, &resource, token, old, ticket, crowd);
                self.stamped(resource.tag, stamp, sent);
                if again || crowd.more {
                    self.ask(now, token);
                }
                if forgotten {
                    // The server had lost this place, or may have said so in an answer that we did
                    // not get. Whatever made it forget one of ours (a pause, a loss of data) made
                    // it forget all of them.
                    self.forgotten(now, &resource, token, sent);
                }
            }
            Acquired::Busy(crowd) | Acquired::Full(crowd) => {
                waiter.crowd = Some(crowd);
                if crowd.more {
                    self.ask(now, token);
                } else {
                    let full = matches!(outcome, Acquired::Full(_));
                    self.refuse(
                        now,
                        token,
                        if full {
                            RefusalKind::QueueFull
                        } else {
                            RefusalKind::Busy
                        },
                    );
                }
            }
            Acquired::Late => {
                waiter.late += 1;
                if waiter.late <= MAX_LATE {
                    self.ask(now, token);
                } else {
                    waiter.late = 0;
                    let failure = Failure::Unknown(None);
                    waiter.retry_later(now, token, &failure);
                    waiter.trouble = Some(Box::new(failure));
                }
            }
            Acquired::Never => self.refuse(now, token, RefusalKind::NeverFits),
            Acquired::Ended => self.fail(now, token, BackendErrorKind::Protocol),
            Acquired::Incompatible => self.fail(now, token, BackendErrorKind::Incompatible),
        }
    }

    fn acquire_failed(&mut self, now: Instant, token: Token, failure: Failure) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        match &failure {
            Failure::NotSent | Failure::NoScript => waiter.open.answered(),
            Failure::Unknown(_) => {
                waiter.unsure = true;
                waiter.retry_later(now, token, &failure);
            }
            Failure::NotNow(..) => {
                waiter.open.answered();
                waiter.retry_later(now, token, &failure);
            }
            // A place in the queue outlasts a server that declines for a while.
            Failure::Final(BackendErrorKind::Refused, _) if waiter.is_queued() => {
                waiter.open.answered();
                waiter.retry_later(now, token, &failure);
            }
            Failure::Final(..) => {
                waiter.open.answered();
                let error = self.waiter_error(now, token, Some(&failure));
                self.leave(now, token, Err(error.into()));
                return;
            }
        }
        waiter.trouble = Some(Box::new(failure));
    }

    /// The waiter's timer fired.
    pub(super) fn waiter_due(&mut self, now: Instant, token: Token) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        if waiter.acknowledge_by != Instant::FAR {
            self.acknowledgement_due(now, token);
        } else if waiter.is_queued() && now >= waiter.give_up {
            let tag = waiter.request.resource.tag;
            if self.is_up(tag) && !self.is_open(self.link_of(tag)) {
                self.refuse(now, token, RefusalKind::WaitedTooLong);
            } else {
                let failure = self.outage(self.link_of(tag)).unwrap_or(Failure::NotSent);
                let error = self.waiter_error(now, token, Some(&failure));
                self.leave(now, token, Err(error.into()));
            }
        } else if !waiter.is_queued() && now >= waiter.patience {
            let trouble = waiter
                .trouble
                .take()
                .or_else(|| waiter.in_flight.then(|| Box::new(Failure::Unknown(None))));
            let link = self.routes.link(waiter.request.resource.tag);
            let error = self.waiter_error(now, token, trouble.as_deref());
            self.leave(now, token, Err(error.into()));
            self.overran(now, link, trouble.map(|trouble| *trouble));
        } else if now >= waiter.retry_at {
            waiter.retry_at = Instant::FAR;
            if waiter.claim.is_some() {
                self.confirm(now, token);
            } else {
                self.ask(now, token);
            }
        }
    }

    pub(super) fn never_fits(&mut self, now: Instant, token: Token) {
        if matches!(self.entries.get(&token), Some(Entry::Waiting(_))) {
            self.refuse(now, token, RefusalKind::NeverFits);
        }
    }

    pub(super) fn refuse_shutting_down(&mut self, now: Instant, token: Token) {
        if matches!(self.entries.get(&token), Some(Entry::Waiting(_))) {
            self.refuse(now, token, RefusalKind::ShuttingDown);
        }
    }

    /// The caller's future was dropped.
    pub(super) fn cancel(&mut self, now: Instant, token: Token) {
        if let Some(waiter) = self.take_waiter(token) {
            self.clean_up(now, token, &waiter);
        }
    }

    fn refuse(&mut self, now: Instant, token: Token, kind: RefusalKind) {
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return;
        };
        let refusal = waiter.refusal(kind);
        self.leave(now, token, Err(refusal.into()));
    }

    fn fail(&mut self, now: Instant, token: Token, kind: BackendErrorKind) {
        let source = redis::RedisError::from((
            redis::ErrorKind::UnexpectedReturnType,
            "refused by our own script",
        ));
        let error = self.waiter_error(now, token, Some(&Failure::Final(kind, source)));
        self.leave(now, token, Err(error.into()));
    }

    pub(super) fn waiter_error(
        &self,
        now: Instant,
        token: Token,
        failure: Option<&Failure>,
    ) -> BackendError {
        match self.entries.get(&token) {
            Some(Entry::Waiting(waiter)) => self.failure(&waiter.progress(now), failure),
            _ => BackendError::background_ended(),
        }
    }

    /// Ends a wait without a lease, and what it may have left on the server.
    pub(super) fn leave(&mut self, now: Instant, token: Token, answer: Result<Lease, LockError>) {
        if let Some(waiter) = self.take_waiter(token) {
            self.clean_up(now, token, &waiter);
            let _ = waiter.answer.send(answer);
        }
    }

    fn clean_up(&mut self, now: Instant, token: Token, waiter: &Waiter) {
        if waiter.open.may_run() || waiter.is_queued() || waiter.claim.is_some() {
            self.end(
                now,
                token,
                waiter.timer,
                &waiter.request,
                waiter.open,
                None,
                None,
                None,
            );
        } else {
            self.timers.clear(waiter.timer, Due::Token(token));
        }
    }

    /// Takes a waiter off the books, with its place in the local queue. Its timer is left to what
    /// the token becomes.
    pub(super) fn take_waiter(&mut self, token: Token) -> Option<Box<Waiter>> {
        if !matches!(self.entries.get(&token), Some(Entry::Waiting(_))) {
            return None;
        }
        let Some(Entry::Waiting(waiter)) = self.entries.remove(&token) else {
            return None;
        };
        self.dequeued(&waiter.request.resource, token, waiter.ticket);
        Some(waiter)
    }

    /// Whether an acquire of `token` is under way that was sent no earlier than `sent`, and so runs
    /// no earlier, either.
    pub(super) fn is_asking_since(&self, token: Token, sent: Instant) -> bool {
        matches!(self.entries.get(&token), Some(Entry::Waiting(waiter)) if waiter.in_flight && waiter.sent >= sent)
    }

    /// Asks how a waiter stands, after whatever is under way for it.
    pub(super) fn sync(&mut self, now: Instant, token: Token) {
        self.ask(now, token);
        self.schedule(token);
    }
}
