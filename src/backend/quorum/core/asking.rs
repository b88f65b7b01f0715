//! The questions of who waits, to each server, and what their answers say.

use std::sync::Arc;

use super::vote::{Grant, Seen, Stand};
use super::{AGAIN, Core, Entry};
use crate::backend::Wait;
use crate::backend::quorum::call::{Ask, Body, Call, Mode};
use crate::backend::quorum::reply::Asked;
use crate::backend::server::reply::Failure;
use crate::time::{Instant, validity};
use crate::token::Token;

impl Core {
    /// Asks all servers that did not give their vote.
    pub(super) fn ask_all(&mut self, now: Instant, token: Token) {
        for server in 0..self.servers.len() {
            self.ask(now, token, server);
        }
    }

    /// Asks one server: for the first time, or again to learn how the token stands there.
    pub(super) fn ask(&mut self, now: Instant, token: Token, server: usize) {
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return;
        };
        let ttl = waiter.request.terms.ttl;
        let votes = self.votes(now, server, ttl.get());
        let timeout = self.options.server_timeout(ttl);
        let command_timeout = self.settings.command_timeout;
        let clock = self.servers[server].clock.ms(now);
        let (Some(server_ms), Some(estimate), true) = (clock, self.estimate(now), votes) else {
            // Asked as soon as it can be.
            let old_at = self.old_enough_at(now, ttl.get());
            if let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) {
                waiter.old_at = waiter.old_at.min(old_at);
            }
            return;
        };
        let pushed = self.servers[server].listening;
        let last_ticket = self.last_ticket;
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let terms = waiter.request.terms;
        let vote = &mut waiter.votes[server];
        if vote.grant(now).is_some() {
            return;
        }
        if vote.asked.is_some() {
            vote.again = true;
            return;
        }
        if vote.lined {
            return;
        }
        if waiter.ticket == 0 {
            // In the order of this process' callers, too.
            waiter.ticket = estimate.max(last_ticket + 1);
            self.last_ticket = waiter.ticket;
            let gate = Arc::clone(&waiter.request.resource);
            let ticket = waiter.ticket;
            if terms.wait != Wait::No {
                self.join_gate(&gate, ticket, token);
            }
        }
        let is_busy = self.is_busy(server);
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let vote = &mut waiter.votes[server];
        if is_busy {
            vote.lined = true;
            self.servers[server].line.push_back(token);
            return;
        }
        let latest = u64::try_from(command_timeout.as_millis()).unwrap_or(u64::MAX);
        let latest_ms = server_ms.saturating_add(latest);
        vote.open.sent(latest_ms);
        vote.asked = Some(now);
        vote.again = false;
        waiter.silent_at = waiter.silent_at.min(now.after(timeout));
        let ask = Ask {
            lease: terms.lease(),
            latest_ms,
            max_waiters: terms.max_waiters,
            mode: if terms.wait == Wait::No {
                Mode::Try
            } else {
                Mode::Wait
            },
            pushed,
            fence: estimate,
        };
        let call = Call {
            server,
            sent: now,
            who: waiter.who(token),
            body: Body::Ask(ask),
        };
        self.send(call);
    }

    /// A server says that it may be our turn there. It may be at others, too, where we gave way.
    pub(super) fn called(&mut self, now: Instant, token: Token, server: usize) {
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return;
        };
        let gave_way = waiter.attempts > 0;
        self.ask(now, token, server);
        self.put_in_front(token, server);
        if gave_way {
            self.ask_all(now, token);
        }
    }

    pub(super) fn asked(
        &mut self,
        now: Instant,
        server: usize,
        sent: Instant,
        token: Token,
        ask: &Ask,
        result: Result<Asked, Failure>,
    ) {
        let vote = match self.entries.get_mut(&token) {
            Some(Entry::Waiting(waiter)) => &mut waiter.votes[server],
            Some(Entry::Holding(holder)) => &mut holder.votes[server],
            // Its end carries the latest moment of this call, whatever it did.
            Some(Entry::Ending(_)) | None => return,
        };
        vote.asked = None;
        let mut failed = false;
        match result {
            Ok(outcome) => {
                vote.open.answered();
                vote.placed |= matches!(outcome, Asked::Queued(_));
                let seen = |crowd| Seen { sent, crowd };
                vote.stand = match outcome {
                    Asked::Held { fence, left } => Stand::Held(Grant {
                        fence,
                        sent,
                        deadline: validity(sent, left.min(ask.lease)),
                    }),
                    Asked::Queued(crowd) => Stand::Queued(seen(crowd)),
                    Asked::Busy(crowd) => Stand::Busy(seen(crowd)),
                    Asked::Full(crowd) => Stand::Full(seen(crowd)),
                    Asked::Late | Asked::Ended => {
                        failed = true;
                        Stand::Unasked
                    }
                };
            }
            Err(failure) => {
                if matches!(failure, Failure::Unknown(_)) {
                    vote.placed |= ask.mode == Mode::Wait;
                } else {
                    vote.open.answered();
                }
                // What it held there it may hold still.
                if vote.grant(now).is_none() {
                    vote.stand = Stand::Failed(Box::new(failure));
                }
                failed = true;
            }
        }
        let again = std::mem::take(&mut vote.again) && vote.grant(now).is_none();
        match self.entries.get_mut(&token) {
            Some(Entry::Waiting(waiter)) => {
                if failed {
                    let random = token.jitter(waiter.attempts + server as u32);
                    let pause = AGAIN.pause(waiter.attempts, random);
                    waiter.again_at = waiter.again_at.min(now.after(pause));
                }
                if again {
                    self.ask(now, token, server);
                }
                self.plan_pump(now, token, false);
                self.judge(now, token);
            }
            Some(Entry::Holding(_)) => self.recount(now, token),
            Some(Entry::Ending(_)) | None => {}
        }
    }
}
