//! What the votes of an acquisition come to, and what is done about it.

use super::vote::{Seen, Stand, agreed};
use super::waiting::Waiter;
use super::{AGAIN, Core, Entry};
use crate::backend::Wait;
use crate::backend::quorum::call::{Body, Call};
use crate::backend::quorum::reply::Crowd;
use crate::backend::quorum::rule;
use crate::backend::server::reply::Failure;
use crate::error::RefusalKind;
use crate::time::Instant;
use crate::token::Token;

/// So many times the time of a server may some of the votes be kept without the others.
const PARTIAL: u32 = 4;

/// What the votes come to.
enum Verdict {
    Open,
    Held {
        fence: u64,
        until: Instant,
    },
    /// Enough votes, of which some have drawn another fence than this greatest one.
    Disagreed(u64),
    GiveWay,
    Partial,
    Refused(RefusalKind),
    Failed,
}

impl Core {
    fn verdict(&self, now: Instant, waiter: &Waiter) -> (Verdict, bool) {
        let (servers, needed) = (self.servers.len(), waiter.needed);
        let terms = &waiter.request.terms;
        let grants = waiter.grants(now);
        let held = grants.len();
        if held >= needed {
            let Some(fence) = agreed(&grants, needed) else {
                let greatest = grants.iter().map(|grant| grant.fence).max();
                return (Verdict::Disagreed(greatest.unwrap_or_default()), true);
            };
            let agreed = grants.iter().filter(|grant| grant.fence == fence);
            let until = rule::until(agreed.map(|grant| grant.deadline), needed);
            let until = until.unwrap_or(now);
            return (Verdict::Held { fence, until }, true);
        }
        let timeout = self.options.server_timeout(terms.ttl);
        let newest = grants.iter().map(|grant| grant.sent).max();
        let (mut said_no, mut full, mut finals, mut lost) = (0, 0, 0, 0);
        let (mut pending, mut late, mut older) = (0, 0, 0);
        for (server, vote) in waiter.votes.iter().enumerate() {
            if vote.grant(now).is_some() {
                continue;
            }
            let votes = self.votes(now, server, terms.ttl.get());
            let asked = vote.asked.is_some() || vote.lined;
            let in_time = vote.asked.is_none_or(|at| now < at.after(timeout));
            let hopeful = asked && in_time && votes;
            pending += usize::from(hopeful);
            late += usize::from(asked && !in_time && votes);
            match &vote.stand {
                Stand::Full(_) => full += 1,
                Stand::Failed(failure) if matches!(**failure, Failure::Final(..)) => finals += 1,
                _ => {}
            }
            match vote.seen() {
                Some(seen) => {
                    said_no += 1;
                    let fresh = newest.is_some_and(|newest| seen.sent >= newest);
                    let ticket = seen.crowd.ticket;
                    if fresh && !hopeful && ticket.is_some_and(|ticket| ticket < waiter.ticket) {
                        older += 1;
                    }
                }
                None if hopeful => {}
                None => lost += 1,
            }
        }
        let entered = waiter.entered || held + said_no >= needed;
        let spare = servers - needed;
        let verdict = if finals > spare {
            Verdict::Failed
        } else if full > spare {
            Verdict::Refused(RefusalKind::QueueFull)
        } else if terms.wait == Wait::No {
            let away = (0..servers).filter(|&server| !self.votes(now, server, terms.ttl.get()));
            if held + pending >= needed {
                Verdict::Open
            } else if entered || said_no > spare {
                Verdict::Refused(RefusalKind::Busy)
            } else if pending > 0 {
                // Whether it is refused or fails, they tell.
                Verdict::Open
            } else if held + late + away.count() >= needed {
                // They may answer, or be back, before its patience is over.
                Verdict::Open
            } else {
                Verdict::Failed
            }
        } else if held == 0 {
            Verdict::Open
        } else if older > 0 && older + lost > spare {
            Verdict::GiveWay
        } else {
            Verdict::Partial
        };
        (verdict, entered)
    }

    /// Does what the votes come to.
    pub(super) fn judge(&mut self, now: Instant, token: Token) {
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return;
        };
        let (verdict, entered) = self.verdict(now, waiter);
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        waiter.entered = entered;
        match verdict {
            Verdict::Open => waiter.partial = None,
            Verdict::Held { fence, until } => self.start_holding(now, token, fence, until),
            Verdict::Disagreed(fence) => {
                waiter.partial = None;
                self.write_back(now, token, fence);
            }
            Verdict::GiveWay => self.give_way(now, token, false),
            Verdict::Partial => {
                let timeout = self.options.server_timeout(waiter.request.terms.ttl);
                let random = token.jitter(waiter.attempts);
                let since = *waiter.partial.get_or_insert(now);
                let longest = (timeout * PARTIAL).min(waiter.request.terms.lease() / 8);
                if now >= since.after(longest + longest * random / 256) {
                    self.give_way(now, token, true);
                } else if waiter.again_at == Instant::FAR {
                    waiter.again_at = now.after(timeout / 2 + timeout * random / 512);
                }
            }
            Verdict::Refused(kind) => {
                let refusal = waiter.refusal(now, kind);
                self.leave(now, token, Err(refusal.into()));
            }
            Verdict::Failed => {
                let error = self.waiter_error(now, token);
                self.leave(now, token, Err(error.into()));
            }
        }
    }

    /// Gives up the votes that it has, and waits on: others were here before, or it came to nothing
    /// for too long.
    fn give_way(&mut self, now: Instant, token: Token, pause: bool) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        waiter.partial = None;
        waiter.again_at = if pause {
            let random = token.jitter(waiter.attempts);
            now.after(AGAIN.pause(waiter.attempts, random))
        } else {
            Instant::FAR
        };
        waiter.attempts = waiter.attempts.saturating_add(1);
        let who = waiter.who(token);
        let mut left = Vec::new();
        for (server, vote) in waiter.votes.iter_mut().enumerate() {
            if let Stand::Held(grant) = vote.stand {
                let crowd = Crowd {
                    next_end: None,
                    foreign: false,
                    waiting: 0,
                    ticket: None,
                };
                vote.placed = true;
                vote.stand = Stand::Queued(Seen {
                    sent: grant.sent,
                    crowd,
                });
                left.push(server);
            }
        }
        for server in left {
            self.send(Call {
                server,
                sent: now,
                who: who.clone(),
                body: Body::End {
                    latest_ms: 0,
                    stay: true,
                    pushed: self.servers[server].listening,
                },
            });
        }
        self.plan_pump(now, token, true);
    }

    /// Tells the fence that is to be agreed on to who has drawn a smaller one: the greatest that was
    /// drawn. Where others may hold, too, it is to be greater than all that they draw meanwhile, or it
    /// would be another's as well.
    fn write_back(&mut self, now: Instant, token: Token, greatest: u64) {
        let estimate = self.estimate(now).unwrap_or_default();
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let alone = waiter.request.terms.limit == 1;
        if waiter.fence < greatest || !alone && waiter.fence == 0 {
            let sent = waiter.grants(now).iter().map(|grant| grant.sent).max();
            let way = now.since(sent.unwrap_or(now)).as_micros();
            let random = token.jitter(u32::try_from(greatest % 15).unwrap_or_default());
            let ahead = 2 * u64::try_from(way).unwrap_or_default() + 500 + 8 * u64::from(random);
            waiter.fence = if alone {
                greatest
            } else {
                greatest.max(estimate) + ahead
            };
        }
        let fence = waiter.fence;
        let (who, lease) = (waiter.who(token), waiter.request.terms.lease());
        let mut behind = Vec::new();
        for (server, vote) in waiter.votes.iter_mut().enumerate() {
            let smaller = vote.grant(now).is_some_and(|grant| grant.fence < fence);
            if smaller && vote.asked.is_none() && self.servers[server].up {
                vote.asked = Some(now);
                behind.push(server);
            }
        }
        for server in behind {
            self.send(Call {
                server,
                sent: now,
                who: who.clone(),
                body: Body::Renew {
                    fence,
                    agreed: alone,
                    lease,
                },
            });
        }
    }
}
