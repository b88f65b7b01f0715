//! Turns that are booked, and the way back of those that nobody wants any more.
//!
//! # Invariants
//!
//! 1. A turn is ended once: it comes, or its caller is gone, or it is refused when the handle shuts
//!    down.
//! 2. What was not served is given back. That is asked again until it was answered, or the turn's
//!    moment and some time have passed: a second time changes nothing, since only what stands as
//!    the booking has left it is undone, and no two bookings leave the same.

use std::sync::Arc;
use std::time::Duration;

use super::{Core, Due, retry_in};
use crate::backend::server::call::{Body, Call, Unbook};
use crate::backend::server::reply::{Failure, Trace};
use crate::key::{Subject, Tag};
use crate::time::Instant;

/// For so long a turn is given back whose moment is near.
const AT_LEAST: Duration = Duration::from_secs(5);

/// One turn on the server.
#[derive(Debug)]
pub(super) struct Booked {
    subject: Arc<Subject>,
    trace: Trace,
    /// The moment at which it comes.
    at: Instant,
}

impl Booked {
    pub(super) fn new(subject: &Arc<Subject>, trace: Trace, at: Instant) -> Self {
        Self {
            subject: Arc::clone(subject),
            trace,
            at,
        }
    }
}

/// One that is given back.
#[derive(Debug)]
pub(super) struct Unbooking {
    booked: Booked,
    /// From then on it is forfeited.
    until: Instant,
    in_flight: bool,
    retry_at: Instant,
    attempts: u32,
    timer: Instant,
}

impl Core {
    pub(super) fn end_turn(&mut self, now: Instant, id: u64, came: bool) {
        let booked = self.turns.end(id);
        if let Some(booked) = booked.filter(|_| !came) {
            self.unbook(now, booked);
        }
    }

    /// The handle shuts down: nobody sleeps on.
    pub(super) fn refuse_turns(&mut self) {
        let mut turns = self.turns.close();
        turns.reverse();
        self.refused.extend(turns);
    }

    /// Gives back what was refused when the handle began to shut down, the last one first. What is
    /// under way then may be booked behind it, and would leave it forfeited: that is waited for.
    pub(super) fn give_turns_back(&mut self, now: Instant) {
        if self.takers.is_empty() {
            for booked in std::mem::take(&mut self.refused).into_iter().rev() {
                self.unbook(now, booked);
            }
        }
    }

    pub(super) fn unbook(&mut self, now: Instant, booked: Booked) {
        self.last_unbooking += 1;
        let id = self.last_unbooking;
        let unbooking = Unbooking {
            until: booked.at.max(now.after(AT_LEAST)),
            booked,
            in_flight: false,
            retry_at: Instant::FAR,
            attempts: 0,
            timer: Instant::FAR,
        };
        self.unbookings.insert(id, unbooking);
        self.send_unbooking(now, id);
    }

    /// Sends it if there is a connection; one that comes up sends what was left.
    fn send_unbooking(&mut self, now: Instant, id: u64) {
        let Some(unbooking) = self.unbookings.get_mut(&id) else {
            return;
        };
        let Booked { subject, trace, .. } = &unbooking.booked;
        unbooking.retry_at = Instant::FAR;
        if !unbooking.in_flight && self.links[self.routes.link(subject.tag)] {
            unbooking.in_flight = true;
            let unbook = Unbook {
                id,
                subject: Arc::clone(subject),
                trace: trace.clone(),
            };
            self.calls.push(Call {
                sent: now,
                body: Body::Unbook(unbook),
            });
        }
        let next = unbooking.until;
        self.timers
            .set(&mut unbooking.timer, next, Due::Unbooking(id));
    }

    /// The last one first, as they are given back.
    pub(super) fn send_unbookings(&mut self, now: Instant, concerned: impl Fn(Tag) -> bool) {
        let concerned = |(id, unbooking): (&u64, &Unbooking)| {
            concerned(unbooking.booked.subject.tag).then_some(*id)
        };
        let mut concerned: Vec<u64> = self.unbookings.iter().filter_map(concerned).collect();
        concerned.sort_unstable();
        for id in concerned {
            self.send_unbooking(now, id);
        }
    }

    pub(super) fn unbooked(&mut self, now: Instant, id: u64, failure: Option<Failure>) {
        let Some(unbooking) = self.unbookings.get_mut(&id) else {
            return;
        };
        unbooking.in_flight = false;
        if now >= unbooking.until || matches!(failure, None | Some(Failure::Final(..))) {
            self.forget_unbooking(id);
            return;
        }
        unbooking.retry_at = now.after(retry_in(unbooking.attempts, id as u32 % 256));
        unbooking.attempts += 1;
        let next = unbooking.retry_at.min(unbooking.until);
        self.timers
            .set(&mut unbooking.timer, next, Due::Unbooking(id));
    }

    /// Does what a timer was set for.
    pub(super) fn unbooking_due(&mut self, now: Instant, id: u64) {
        let Some(unbooking) = self.unbookings.get_mut(&id) else {
            return;
        };
        unbooking.timer = Instant::FAR;
        if now >= unbooking.until {
            self.forget_unbooking(id);
        } else {
            self.send_unbooking(now, id);
        }
    }

    fn forget_unbooking(&mut self, id: u64) {
        if let Some(unbooking) = self.unbookings.remove(&id) {
            self.timers.clear(unbooking.timer, Due::Unbooking(id));
        }
    }
}
