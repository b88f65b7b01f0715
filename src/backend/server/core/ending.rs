//! The end of a token: sent until it is answered, because nobody else will clean up.

use std::time::Duration;

use tokio::sync::oneshot;

use super::failing::{Progress, Stage};
use super::{Core, Due, Entry, Open, one_more, retry_in};
use crate::backend::errand::Request;
use crate::backend::server::call::{Body, Call, End, LONGEST_WAIT};
use crate::backend::server::home::News;
use crate::backend::server::reply::{Ended, Failure};
use crate::backend::{ReleaseAnswer, Wait};
use crate::error::BackendErrorKind;
use crate::lease::Release;
use crate::time::Instant;
use crate::token::Token;

#[derive(Debug)]
pub(super) struct Ending {
    pub(super) request: Request,
    open: Open,
    /// Until when the lease surely holds that ends here; `None` if it is a wait that ends.
    pub(super) held: Option<Instant>,
    answer: Option<oneshot::Sender<ReleaseAnswer>>,
    /// Before this it is not sent: what the lost holder has under way is to die out.
    rest: Instant,
    since: Instant,
    /// When the caller is told that the server does not answer.
    answer_by: Instant,
    /// When the server has surely forgotten the lease by itself.
    until: Instant,
    in_flight: bool,
    retry_at: Instant,
    attempts: u32,
    /// Whether an attempt was sent that may have run without our knowing.
    unsure: bool,
    pub(super) timer: Instant,
}

impl Ending {
    pub(super) fn next(&self) -> Instant {
        let answer_by = if self.answer.is_some() {
            self.answer_by
        } else {
            Instant::FAR
        };
        self.until.min(self.retry_at).min(answer_by)
    }

    /// Whether nothing is to be done yet, and the server would do all of it by itself.
    pub(super) fn rests(&self, now: Instant) -> bool {
        now < self.rest
    }

    fn tell(&mut self, answer: ReleaseAnswer) {
        if let Some(sender) = self.answer.take() {
            let _ = sender.send(answer);
        }
    }
}

impl Core {
    /// Starts to end what a token holds, waits for, or may have left behind; not before `rest`.
    /// `timer` is the one that is set for it.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is one fact of what the token was"
    )]
    pub(super) fn end(
        &mut self,
        now: Instant,
        token: Token,
        timer: Instant,
        request: &Request,
        open: Open,
        held: Option<Instant>,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
        rest: Option<Instant>,
    ) {
        // By then the server has forgotten all by itself: a lease when it runs out, a place when
        // its wait is over. Until then a place is kept alive by our own heartbeats as long as
        // others wait here.
        let wait = match request.terms.wait {
            Wait::AtMost(wait) if held.is_none() => wait.min(LONGEST_WAIT),
            Wait::Unbounded if held.is_none() => LONGEST_WAIT,
            Wait::No | Wait::AtMost(_) | Wait::Unbounded => Duration::ZERO,
        };
        let until = now.after(wait + request.terms.lease() + self.settings.command_timeout);
        let ending = Ending {
            request: request.clone(),
            open,
            held,
            answer,
            rest: rest.unwrap_or(now),
            since: now,
            answer_by: now.after(self.settings.command_timeout),
            until,
            in_flight: false,
            retry_at: rest.unwrap_or(Instant::FAR),
            attempts: 0,
            unsure: self.settings.repeats,
            timer,
        };
        self.entries.insert(token, Entry::Ending(Box::new(ending)));
        self.send_end(now, token);
        self.schedule(token);
    }

    /// Sends the end if there is a connection; a connection that comes up sends what was left.
    pub(super) fn send_end(&mut self, now: Instant, token: Token) {
        let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) else {
            return;
        };
        let resource = &ending.request.resource;
        if ending.in_flight || ending.rests(now) || !self.links[self.routes.link(resource.tag)] {
            return;
        }
        ending.in_flight = true;
        ending.retry_at = Instant::FAR;
        let end = End {
            token,
            resource: resource.clone(),
            latest_ms: ending.open.latest_ms,
        };
        self.calls.push(Call {
            sent: now,
            body: Body::End(end),
        });
    }

    pub(super) fn ended(
        &mut self,
        now: Instant,
        token: Token,
        result: Result<(Ended, bool), Failure>,
    ) {
        let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) else {
            return;
        };
        ending.in_flight = false;
        match result {
            Ok((outcome, more)) => {
                let runs = ending.held.is_some_and(|deadline| now < deadline);
                let vanished = outcome == Ended::Gone && runs && !ending.unsure;
                let vanished = vanished.then(|| ending.request.resource.clone());
                let kept = ending.request.terms.kept > 0;
                match outcome {
                    Ended::Released => ending.tell(Ok(Release::Released)),
                    // An earlier attempt of ours ended it, and only its answer was lost: nothing
                    // else ends a lease that still runs.
                    Ended::Gone if ending.unsure && runs => ending.tell(Ok(Release::Released)),
                    Ended::Cancelled | Ended::Gone => ending.tell(Ok(Release::NoLongerHeld)),
                    Ended::Incompatible => {
                        let source = (
                            redis::ErrorKind::UnexpectedReturnType,
                            "a record of another protocol version",
                        );
                        let failure = Failure::Final(BackendErrorKind::Incompatible, source.into());
                        let error = self.failure_of_end(now, token, &failure);
                        self.tell_end(token, error);
                    }
                }
                if more {
                    self.send_end(now, token);
                } else {
                    self.forget_end(token, true);
                }
                if let Some(resource) = vanished {
                    // The server has lost data, and may have lost those who wait here, too.
                    self.pump_next(now, &resource);
                    if kept {
                        self.hear(&resource, News::Gone);
                    }
                }
            }
            Err(failure) => {
                if !matches!(failure, Failure::NotSent) {
                    ending.retry_at =
                        now.after(retry_in(ending.attempts, token.jitter(ending.attempts)));
                    ending.attempts = one_more(ending.attempts, &failure);
                    ending.unsure |= matches!(failure, Failure::Unknown(_));
                }
                if matches!(failure, Failure::Final(..)) {
                    // The caller is told at once. What stands on the server is still ours to end:
                    // whatever refuses it may be mended, and a place that is left would be kept
                    // alive by the heartbeats of its siblings.
                    let error = self.failure_of_end(now, token, &failure);
                    self.tell_end(token, error);
                }
                self.schedule(token);
            }
        }
    }

    pub(super) fn ending_due(&mut self, now: Instant, token: Token) {
        let Some(Entry::Ending(ending)) = self.entries.get(&token) else {
            return;
        };
        if ending.answer.is_some() && now >= ending.answer_by {
            let failure = if ending.in_flight || ending.attempts > 0 {
                Failure::Unknown(None)
            } else {
                Failure::NotSent
            };
            let error = self.failure_of_end(now, token, &failure);
            self.tell_end(token, error);
        }
        let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) else {
            return;
        };
        if now >= ending.until {
            // Who lost the lease was told so then.
            let gate = &ending.request.resource.gate;
            tracing::debug!(%gate, "a release was never answered; its lease has run out");
            self.forget_end(token, false);
        } else if now >= ending.retry_at {
            ending.retry_at = Instant::FAR;
            self.send_end(now, token);
        }
    }

    fn failure_of_end(&self, now: Instant, token: Token, failure: &Failure) -> ReleaseAnswer {
        match self.entries.get(&token) {
            Some(Entry::Ending(ending)) => {
                let progress = Progress {
                    doing: format!("releasing `{}`", ending.request.resource.gate),
                    stage: Stage::Asking,
                    elapsed: now.since(ending.since),
                    limit: Some(self.settings.command_timeout),
                };
                Err(self.failure(&progress, Some(failure)))
            }
            _ => Ok(Release::NoLongerHeld),
        }
    }

    fn tell_end(&mut self, token: Token, answer: ReleaseAnswer) {
        if let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) {
            ending.tell(answer);
        }
    }

    fn forget_end(&mut self, token: Token, done: bool) {
        let Some(Entry::Ending(mut ending)) = self.entries.remove(&token) else {
            return;
        };
        self.timers.clear(ending.timer, Due::Token(token));
        ending.tell(Ok(Release::NoLongerHeld));
        if let Some(shutdown) = &mut self.shutdown
            && ending.held.is_some()
            && done
        {
            shutdown.released += 1;
        }
    }
}
