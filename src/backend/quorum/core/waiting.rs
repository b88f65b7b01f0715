//! An acquire from its first call to its grant, its refusal or its failure.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::vote::{Grant, Seen, Stand, Vote, agreed};
use super::{Core, Entry};
use crate::backend::quorum::call::{self, Body, Call, Mode, Who};
use crate::backend::quorum::reply::Asked;
use crate::backend::quorum::rule;
use crate::backend::server::backoff::Backoff;
use crate::backend::server::call::Request;
use crate::backend::server::reply::Failure;
use crate::backend::{Place, Wait};
use crate::error::{LockError, Refusal, RefusalKind};
use crate::lease::Lease;
use crate::time::{CLAIM, Instant, validity};
use crate::token::Token;

/// How often the first who waits here asks again while it waits for a push, at the most and at the
/// least.
const PUMP: Duration = Duration::from_millis(CLAIM.as_millis() as u64 / 3);
const PUMP_LEAST: Duration = Duration::from_millis(50);
/// And where nobody would tell it.
const POLL: Duration = Duration::from_millis(250);
/// Before it asks again after it gave way to strangers, or after a server could not serve.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_secs(1));
/// So many times the time of a server may some of the votes be kept without the others.
const PARTIAL: u32 = 4;

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) request: Request,
    pub(super) place: Arc<dyn Place>,
    pub(super) answer: oneshot::Sender<Result<Lease, LockError>>,
    pub(super) needed: usize,
    pub(super) since: Instant,
    /// When the caller's own wait is over.
    give_up: Instant,
    /// Until when as many servers as are needed must have answered.
    pub(super) patience: Instant,
    /// 0 before it was asked for.
    pub(super) ticket: u64,
    pub(super) votes: Box<[Vote]>,
    /// As many servers as are needed know it.
    entered: bool,
    /// When a server that was asked counts as silent for this round.
    silent_at: Instant,
    /// When all are asked again that did not give their vote.
    again_at: Instant,
    pump_at: Instant,
    /// When servers can be asked that are too young still.
    old_at: Instant,
    /// Since when it has some votes, and not enough.
    partial: Option<Instant>,
    /// The fence that is to be agreed on, 0 for none.
    fence: u64,
    /// How often that came to nothing.
    attempts: u32,
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

    fn grants(&self, now: Instant) -> Vec<Grant> {
        let votes = self.votes.iter();
        votes.filter_map(|vote| vote.grant(now)).collect()
    }

    /// The time until so many votes could be had, as far as leases in the way tell.
    fn refusal(&self, now: Instant, kind: RefusalKind) -> Refusal {
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

    /// Asks all servers that did not give their vote.
    fn ask_all(&mut self, now: Instant, token: Token) {
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
        let latest = u64::try_from(command_timeout.as_millis()).unwrap_or(u64::MAX);
        let latest_ms = server_ms.saturating_add(latest);
        vote.open.sent(latest_ms);
        vote.asked = Some(now);
        vote.again = false;
        waiter.silent_at = waiter.silent_at.min(now.after(timeout));
        if waiter.ticket == 0 {
            // In the order of this process' callers, too.
            waiter.ticket = estimate.max(last_ticket + 1);
            self.last_ticket = waiter.ticket;
            let gate = Arc::clone(&waiter.request.resource);
            let ticket = waiter.ticket;
            if terms.wait != Wait::No {
                self.gates.entry(gate).or_default().insert((ticket, token));
            }
        }
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return;
        };
        let ask = call::Ask {
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
        ask: &call::Ask,
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
                if !matches!(failure, Failure::Unknown(_)) {
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
        let (mut said_no, mut full, mut finals, mut pending, mut lost) = (0, 0, 0, 0, 0);
        let mut older = 0;
        for (server, vote) in waiter.votes.iter().enumerate() {
            if vote.grant(now).is_some() {
                continue;
            }
            let votes = self.votes(now, server, terms.ttl.get());
            let hopeful = vote.asked.is_some_and(|at| now < at.after(timeout)) && votes;
            pending += usize::from(hopeful);
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
            } else if held + pending + away.count() >= needed {
                // They may be back before its patience is over.
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
                let crowd = super::reply::Crowd {
                    next_end: None,
                    foreign: false,
                    waiting: 0,
                    ticket: None,
                };
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

    /// Sets when the first who waits here asks again, unless that is set.
    fn plan_pump(&mut self, now: Instant, token: Token, anew: bool) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let gate = self.gates.get(&waiter.request.resource);
        let first = gate.and_then(BTreeSetFirst::first_token) == Some(token);
        if !first || !anew && waiter.pump_at != Instant::FAR {
            return;
        }
        let seen: Vec<Seen> = waiter.votes.iter().filter_map(Vote::seen).collect();
        let ends = seen.iter().filter_map(|seen| {
            let end = seen.crowd.next_end.filter(|end| !end.is_zero())?;
            Some(seen.sent.after(end).since(now))
        });
        let deaf = self.servers.iter().filter(|server| !server.listening);
        let longest = if seen.iter().any(|seen| seen.crowd.foreign)
            || deaf.count() > waiter.votes.len() / 2
        {
            POLL
        } else {
            PUMP
        };
        let pause = ends.min().unwrap_or(longest).clamp(PUMP_LEAST, longest);
        let random = token.jitter(waiter.attempts.wrapping_add(now.as_nanos() as u32 % 15));
        waiter.pump_at = now.after(pause / 2 + pause / 2 * random / 256);
    }

    /// It asks by a timer from here on, sooner than it meant to.
    pub(super) fn pump_soon(&mut self, now: Instant, token: Token) {
        self.plan_pump(now, token, true);
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
            let old_at = self.old_enough_at(now, ttl);
            if let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) {
                waiter.old_at = old_at;
            }
            self.ask_all(now, token);
            if pumped {
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
        if let Some(gate) = self.gates.get_mut(&waiter.request.resource) {
            gate.remove(&(waiter.ticket, token));
            match gate.first_token() {
                Some(first) => {
                    self.plan_pump(now, first, false);
                    self.schedule(first);
                }
                None => {
                    self.gates.remove(&waiter.request.resource);
                }
            }
        }
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

/// The first of those who wait at a gate.
trait BTreeSetFirst {
    fn first_token(&self) -> Option<Token>;
}

impl BTreeSetFirst for std::collections::BTreeSet<(u64, Token)> {
    fn first_token(&self) -> Option<Token> {
        self.first().map(|(_, token)| *token)
    }
}
