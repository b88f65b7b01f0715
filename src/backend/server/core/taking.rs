//! A call at the quotas of a subject, from its asking to its answer.
//!
//! # Invariants
//!
//! 1. It is sent again only if it surely did not run, so nothing counts twice: where the outcome is
//!    unknown, the caller is told so.
//! 2. It ends by its patience: what has not been sent by then never is.
//! 3. A turn that is booked for nobody is given back (see `unbooking.rs`).

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::failing::{Progress, Stage};
use super::unbooking::Booked;
use super::{Command, Core, Due, one_more, retry_in};
use crate::backend::server::advice;
use crate::backend::server::call::{self, Body, Call};
use crate::backend::server::reply::{self, Failure};
use crate::backend::{Take, Taken};
use crate::error::{BackendError, BackendErrorKind, LockError, Refusal, RefusalKind};
use crate::key::{Subject, Tag};
use crate::time::Instant;

/// What a caller asks of a subject's quotas.
#[derive(Debug)]
pub(in crate::backend::server) struct Asked {
    pub(in crate::backend::server) subject: Arc<Subject>,
    pub(in crate::backend::server) take: Take,
    /// By which a booking is given back.
    pub(in crate::backend::server) commands: UnboundedSender<Command>,
}

/// One whose answer is awaited.
#[derive(Debug)]
pub(super) struct Taker {
    asked: Asked,
    answer: oneshot::Sender<Result<Taken, LockError>>,
    since: Instant,
    /// Until when it may be sent.
    patience: Instant,
    in_flight: bool,
    retry_at: Instant,
    attempts: u32,
    /// Why it was not served so far.
    trouble: Option<Failure>,
    timer: Instant,
}

impl Core {
    pub(super) fn take(
        &mut self,
        now: Instant,
        asked: Asked,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    ) {
        if self.shutdown.is_some() {
            let _ = answer.send(Err(Refusal::new(RefusalKind::ShuttingDown).into()));
            return;
        }
        let patience = self.time_to_answer(now, asked.take.bridge.is_some(), false);
        self.last_taker += 1;
        let id = self.last_taker;
        let taker = Taker {
            asked,
            answer,
            since: now,
            patience: now.after(patience),
            in_flight: false,
            retry_at: Instant::FAR,
            attempts: 0,
            trouble: None,
            timer: Instant::FAR,
        };
        self.takers.insert(id, taker);
        self.bridge_taker(now, id);
        self.send_take(now, id);
        self.schedule_taker(id);
    }

    fn schedule_taker(&mut self, id: u64) {
        if let Some(taker) = self.takers.get_mut(&id) {
            let next = taker.patience.min(taker.retry_at);
            self.timers.set(&mut taker.timer, next, Due::Taker(id));
        }
    }

    fn send_take(&mut self, now: Instant, id: u64) {
        let Some(taker) = self.takers.get_mut(&id) else {
            return;
        };
        let link = self.routes.link(taker.asked.subject.tag);
        // Asked as soon as there is a connection.
        if taker.in_flight || !self.links[link] {
            return;
        }
        taker.in_flight = true;
        taker.retry_at = Instant::FAR;
        let take = call::Take {
            id,
            subject: Arc::clone(&taker.asked.subject),
            take: taker.asked.take.clone(),
        };
        self.calls.push(Call {
            sent: now,
            body: Body::Take(take),
        });
    }

    /// A connection came up: those that wait for it are sent, in their order.
    pub(super) fn send_takes(&mut self, now: Instant, concerned: impl Fn(Tag) -> bool) {
        let concerned =
            |(id, taker): (&u64, &Taker)| concerned(taker.asked.subject.tag).then_some(*id);
        let mut concerned: Vec<u64> = self.takers.iter().filter_map(concerned).collect();
        concerned.sort_unstable();
        for id in concerned {
            self.send_take(now, id);
        }
    }

    pub(super) fn took(
        &mut self,
        now: Instant,
        take: &call::Take,
        result: Result<redis::Value, Failure>,
    ) {
        let result = result.and_then(|value| {
            reply::taken(&value, &take.take).map_err(|reply::Garbled| super::garbled())
        });
        let Some(taker) = self.takers.get_mut(&take.id) else {
            // Its caller was told that the outcome is unknown; a turn is no use to it.
            if let Ok(reply::Taken::Decided {
                wait,
                trace: Some(trace),
                ..
            }) = result
            {
                self.unbook(now, Booked::new(&take.subject, trace, now.after(wait)));
            }
            return;
        };
        taker.in_flight = false;
        match result {
            Ok(reply::Taken::Decided {
                admitted,
                wait,
                levels,
                trace,
            }) => {
                let booked = trace.map(|trace| Booked::new(&take.subject, trace, now.after(wait)));
                if self.shutdown.is_some()
                    && let Some(booked) = booked
                {
                    self.refused.push(booked);
                    self.tell_taker(take.id, Err(Refusal::new(RefusalKind::ShuttingDown).into()));
                    return;
                }
                let booking = booked.map(|booked| {
                    let commands = taker.asked.commands.clone();
                    self.turns.book(booked, move |id, came| {
                        // Fails as the backend's own sending does.
                        let _ = commands.send(Command::EndTurn { id, came });
                    })
                });
                self.tell_taker(
                    take.id,
                    Ok(Taken {
                        admitted,
                        wait,
                        levels,
                        booking,
                    }),
                );
            }
            Ok(reply::Taken::Incompatible) => {
                let kind = BackendErrorKind::Incompatible;
                let text = format!(
                    "{} `{}`: {}",
                    take.take.op.doing(),
                    take.subject.limiter,
                    advice::on_answer(kind, None)
                );
                let error = BackendError::new(kind, text, None);
                self.tell_taker(take.id, Err(error.into()));
            }
            Err(failure @ (Failure::Unknown(_) | Failure::Final(..))) => {
                self.fail_taker(now, take.id, Some(&failure));
            }
            Err(failure @ (Failure::NotSent | Failure::NoScript | Failure::NotNow(..))) => {
                // It did not run.
                if !matches!(failure, Failure::NotSent) {
                    taker.retry_at = now.after(retry_in(taker.attempts, take.id as u32 % 256));
                    taker.attempts = one_more(taker.attempts, &failure);
                    taker.trouble = Some(failure);
                }
                if now >= taker.patience {
                    self.taker_due(now, take.id);
                } else {
                    self.schedule_taker(take.id);
                }
            }
        }
    }

    /// Does what a timer was set for.
    pub(super) fn taker_due(&mut self, now: Instant, id: u64) {
        let Some(taker) = self.takers.get_mut(&id) else {
            return;
        };
        taker.timer = Instant::FAR;
        if now >= taker.patience {
            let failure = if taker.in_flight {
                Some(Failure::Unknown(None))
            } else {
                taker.trouble.take()
            };
            let link = self.routes.link(taker.asked.subject.tag);
            self.fail_taker(now, id, failure.as_ref());
            self.overran(now, link, failure);
            return;
        }
        if taker.retry_at <= now {
            taker.retry_at = Instant::FAR;
            self.send_take(now, id);
        }
        self.schedule_taker(id);
    }

    fn fail_taker(&mut self, now: Instant, id: u64, failure: Option<&Failure>) {
        let Some(taker) = self.takers.get(&id) else {
            return;
        };
        let progress = Progress {
            doing: format!(
                "{} `{}`",
                taker.asked.take.op.doing(),
                taker.asked.subject.limiter
            ),
            stage: Stage::Asking,
            elapsed: now.since(taker.since),
            limit: Some(taker.patience.since(taker.since)),
        };
        let error = self.failure(&progress, failure);
        self.tell_taker(id, Err(error.into()));
    }

    fn tell_taker(&mut self, id: u64, result: Result<Taken, LockError>) {
        if let Some(taker) = self.takers.remove(&id) {
            self.timers.clear(taker.timer, Due::Taker(id));
            // If nobody waits any more, a booking gives itself back when it is dropped with this.
            let _ = taker.answer.send(result);
        }
    }

    /// Shortens a caller's patience to what it has for an outage, as that of a waiter.
    fn bridge_taker(&mut self, now: Instant, id: u64) {
        let Some(taker) = self.takers.get_mut(&id) else {
            return;
        };
        let link = self.routes.link(taker.asked.subject.tag);
        let Some((since, failure)) = self.breakers[link].outage() else {
            return;
        };
        let Some(bridge) = taker.asked.take.bridge else {
            return;
        };
        let until = since.after(bridge);
        if now < until {
            taker.patience = taker.patience.min(until);
            self.schedule_taker(id);
        } else {
            self.fail_taker(now, id, Some(&failure));
        }
    }

    /// Nothing is served over this connection.
    pub(super) fn bridge_takers(&mut self, now: Instant, link: usize) {
        let concerned = |(id, taker): (&u64, &Taker)| {
            (self.link_of(taker.asked.subject.tag) == link).then_some(*id)
        };
        let concerned: Vec<u64> = self.takers.iter().filter_map(concerned).collect();
        for id in concerned {
            self.bridge_taker(now, id);
        }
    }

    /// The handle shuts down: what was not sent is refused.
    pub(super) fn refuse_takers(&mut self) {
        let unsent = |(id, taker): (&u64, &Taker)| (!taker.in_flight).then_some(*id);
        let unsent: Vec<u64> = self.takers.iter().filter_map(unsent).collect();
        for id in unsent {
            let refusal = Refusal::new(RefusalKind::ShuttingDown);
            self.tell_taker(id, Err(refusal.into()));
        }
    }
}
