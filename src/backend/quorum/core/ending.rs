//! The end of a token: sent to each server that may have something of it until that has answered,
//! because nobody else will clean up.

use std::time::Duration;

use tokio::sync::oneshot;

use super::vote::Vote;
use super::{Core, Entry};
use crate::backend::ReleaseAnswer;
use crate::backend::quorum::call::{Body, Call, Who};
use crate::backend::server::call::LONGEST_WAIT;
use crate::backend::server::core::retry_in;
use crate::backend::server::reply::Failure;
use crate::lease::Release;
use crate::time::Instant;
use crate::token::Token;

#[derive(Debug)]
pub(super) struct Ending {
    pub(super) who: Who,
    pub(super) rest: Box<[Rest]>,
    /// Until when the lease surely held that ends here, and how many votes that took; `None` if it
    /// is a wait that ends.
    pub(super) held: Option<(Instant, usize)>,
    /// How many servers had it until now, and how many not.
    released: usize,
    gone: usize,
    answer: Option<oneshot::Sender<ReleaseAnswer>>,
    pub(super) since: Instant,
    answer_by: Instant,
    /// When all servers have surely forgotten it by themselves.
    until: Instant,
    retry_at: Instant,
    attempts: u32,
    pub(super) timer: Instant,
}

/// What is left to do at one server.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) todo: bool,
    /// It may have the lease, and not only a place.
    may_hold: bool,
    in_flight: bool,
    latest_ms: u64,
    /// An attempt may have run without our knowing.
    unsure: bool,
    pub(super) failure: Option<Failure>,
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

    /// Whether one of these servers has not answered.
    pub(super) fn is_left_at(&self, servers: impl Fn(usize) -> bool) -> bool {
        let mut rest = self.rest.iter().enumerate();
        rest.any(|(server, rest)| rest.todo && servers(server))
    }

    /// Whether it was a lease, and as many have given it back as others need.
    pub(super) fn is_released(&self) -> bool {
        self.held.is_some_and(|(_, needed)| self.released >= needed)
    }

    fn is_done(&self) -> bool {
        self.rest.iter().all(|rest| !rest.todo)
    }

    /// What is known of how the release went; `last` if no more will be.
    fn outcome(&self, now: Instant, last: bool) -> Option<Release> {
        let Some((deadline, needed)) = self.held else {
            return Some(Release::NoLongerHeld);
        };
        let open = self.rest.iter().filter(|rest| rest.todo && rest.may_hold);
        let open = open.count();
        if self.released >= needed {
            Some(Release::Released)
        } else if self.released + open < needed {
            Some(Release::NoLongerHeld)
        } else if last && self.released > 0 {
            // Those that did not answer had it, as far as is known.
            Some(if now < deadline {
                Release::Released
            } else {
                Release::NoLongerHeld
            })
        } else {
            None
        }
    }
}

impl Core {
    /// Starts to end what a token holds, waits for, or may have left behind. `timer` is the one
    /// that is set for it.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is one fact of what the token was"
    )]
    pub(super) fn end(
        &mut self,
        now: Instant,
        who: Who,
        timer: Instant,
        votes: &[Vote],
        lease: Duration,
        held: Option<(Instant, usize)>,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
    ) {
        let token = who.token;
        let queued = |vote: &Vote| vote.placed || vote.asked.is_some();
        // A place in a queue is kept alive by our others there.
        let longest = if votes.iter().any(queued) {
            LONGEST_WAIT
        } else {
            lease + self.settings.command_timeout
        };
        let rest = votes.iter().map(|vote| Rest {
            todo: vote.is_left(),
            may_hold: vote.may_hold(),
            in_flight: false,
            latest_ms: vote.open.latest_ms,
            unsure: false,
            failure: None,
        });
        let ending = Ending {
            who,
            rest: rest.collect(),
            held,
            released: 0,
            gone: 0,
            answer,
            since: now,
            answer_by: now.after(self.settings.command_timeout),
            until: now.after(longest),
            retry_at: Instant::FAR,
            attempts: 0,
            timer,
        };
        self.entries.insert(token, Entry::Ending(Box::new(ending)));
        for server in 0..self.servers.len() {
            self.send_end(now, token, server);
        }
        self.settle_end(now, token);
        self.schedule(token);
    }

    /// Sends the end if there is a connection; one that comes up sends what was left.
    pub(super) fn send_end(&mut self, now: Instant, token: Token, server: usize) {
        let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) else {
            return;
        };
        let rest = &mut ending.rest[server];
        if !rest.todo || rest.in_flight || !self.servers[server].up {
            return;
        }
        rest.in_flight = true;
        let call = Call {
            server,
            sent: now,
            who: ending.who.clone(),
            body: Body::End {
                latest_ms: rest.latest_ms,
                stay: false,
                pushed: false,
            },
        };
        self.send(call);
    }

    pub(super) fn ended(
        &mut self,
        now: Instant,
        server: usize,
        token: Token,
        result: Result<bool, Failure>,
    ) {
        let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) else {
            return;
        };
        let runs = ending.held.is_some_and(|(deadline, _)| now < deadline);
        let rest = &mut ending.rest[server];
        rest.in_flight = false;
        match result {
            Ok(released) => {
                rest.todo = false;
                let known = &mut self.servers[server];
                known.recent.note(now, known.life, ending.who.clone());
                // An earlier attempt of ours ended it, and only its answer was lost.
                if released || rest.unsure && runs {
                    ending.released += 1;
                } else {
                    ending.gone += 1;
                }
            }
            Err(failure) => {
                rest.unsure |= matches!(failure, Failure::Unknown(_));
                rest.failure = Some(failure);
                let pause = retry_in(ending.attempts, token.jitter(ending.attempts));
                ending.retry_at = ending.retry_at.min(now.after(pause));
                ending.attempts = ending.attempts.saturating_add(1);
            }
        }
        self.settle_end(now, token);
    }

    /// Ends at a server what was ended at the one whose place it took, which may not have told it: a
    /// place that nobody wants any more would keep others waiting there for as long as its process
    /// lives.
    pub(super) fn end_again(&mut self, now: Instant, server: usize) {
        let known = &mut self.servers[server];
        let again: Vec<Who> = known.recent.take(known.life, |_| true).collect();
        for who in again {
            let token = who.token;
            if let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) {
                ending.rest[server].todo = true;
                self.send_end(now, token, server);
                continue;
            }
            let mut votes = Vote::none(self.servers.len());
            votes[server].placed = true;
            let lease = Duration::ZERO;
            self.end(now, who, Instant::FAR, &votes, lease, None, None);
        }
    }

    /// Tells the caller what is known, and forgets what is done.
    fn settle_end(&mut self, now: Instant, token: Token) {
        let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) else {
            return;
        };
        if let Some(release) = ending.outcome(now, false)
            && let Some(answer) = ending.answer.take()
        {
            let _ = answer.send(Ok(release));
        }
        if ending.is_done() {
            self.forget_end(token, true);
        }
    }

    pub(super) fn ending_due(&mut self, now: Instant, token: Token) {
        let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) else {
            return;
        };
        if ending.answer.is_some() && now >= ending.answer_by {
            let known = ending.outcome(now, true);
            let answer = ending.answer.take();
            let result = known.map_or_else(|| Err(self.ending_error(now, token)), Ok);
            if let Some(answer) = answer {
                let _ = answer.send(result);
            }
        }
        let Some(Entry::Ending(ending)) = self.entries.get_mut(&token) else {
            return;
        };
        if now >= ending.until {
            let gate = &ending.who.resource.gate;
            tracing::debug!(%gate, "a release was not answered by all servers; its lease has run out");
            self.forget_end(token, false);
        } else if now >= ending.retry_at {
            ending.retry_at = Instant::FAR;
            for server in 0..self.servers.len() {
                self.send_end(now, token, server);
            }
        }
    }

    fn forget_end(&mut self, token: Token, done: bool) {
        let Some(Entry::Ending(ending)) = self.entries.remove(&token) else {
            return;
        };
        self.timers.clear(ending.timer, token);
        if let Some(answer) = ending.answer {
            let _ = answer.send(Ok(Release::NoLongerHeld));
        }
        if let Some(shutdown) = &mut self.shutdown
            && ending.held.is_some()
            && (done || ending.released > 0)
        {
            shutdown.released += 1;
        }
    }
}
