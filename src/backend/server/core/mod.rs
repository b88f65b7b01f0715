//! All that one handle decides, without input or output: commands, answers, pushes and time come
//! in, calls go out.
//!
//! It runs on the handle's background thread alone, so nothing here is locked, and tests can put
//! any event after any other.
//!
//! # Invariants
//!
//! 1. A token is in `entries` from its first call until its `end` was answered: whatever a lost,
//!    late or repeated request may leave on the server, somebody is left here to clean it up.
//! 2. A token goes from waiting to holding to ending, never back. A late answer finds it further on
//!    and changes nothing but, forwards, the deadline.
//! 3. Every entry, and every tag with waiters, has a timer: no event that fails to come can stall
//!    one for good.
//! 4. One acquire of a token is under way at a time, and `Open` knows the latest moment at which an
//!    unanswered one may still run.

mod acknowledging;
mod ending;
pub(super) mod failing;
mod granting;
mod hearing;
mod holding;
mod keeping;
mod outage;
mod routes;
mod shutdown;
mod speaking;
mod stamps;
mod swapping;
mod taking;
#[cfg(test)]
mod tests;
pub(in crate::backend) mod timers;
mod unbooking;
mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use self::ending::Ending;
use self::hearing::Ears;
use self::holding::Holder;
use self::outage::Breaker;
pub(super) use self::routes::{NOWHERE, Routes};
use self::speaking::TagState;
pub(super) use self::swapping::part;
pub(super) use self::taking::Asked;
use self::taking::Taker;
use self::timers::{Due, Timers};
use self::unbooking::{Booked, Unbooking};
use self::waiting::Waiter;
use super::Settings;
use super::backoff::Backoff;
use super::call::{Body, Call};
use super::clock::ServerClock;
use super::home::News;
use super::reply::failure::Trouble;
use super::reply::{self, Failure, Garbled, Push, Reply};
use crate::backend::errand::Errand;
use crate::backend::shutdown::{Closing, Shutdown};
use crate::backend::{Taken, Turns};
use crate::error::{BackendErrorKind, LockError};
use crate::key::{Resource, Tag};
use crate::time::Instant;
use crate::token::{ByToken, Token};

/// How long until a request is repeated that the server could not or would not serve.
pub(in crate::backend) fn retry_in(attempts: u32, random: u32) -> Duration {
    const RETRY: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_secs(1));
    RETRY.pause(attempts, random)
}

/// How many attempts there were that the pause grows with, after one more.
fn one_more(attempts: u32, failure: &Failure) -> u32 {
    /// What is on its way is asked for every 100 ms at least.
    const BRIEF: u32 = 2;
    let more = attempts.saturating_add(1);
    if failure.is_brief() {
        more.min(BRIEF)
    } else {
        more
    }
}

/// What a caller asks of the background thread.
#[derive(Debug)]
pub(super) enum Command {
    Errand(Errand),
    /// Whether others wait at a gate, and which of these leases the server knows: asked once, since
    /// whoever keeps them asks again.
    Recheck {
        resource: Arc<Resource>,
        tokens: Vec<Token>,
    },
    Take {
        take: Box<Asked>,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    },
    /// The caller of a booked turn has had it, or is gone.
    EndTurn {
        id: u64,
        came: bool,
    },
}

impl From<Errand> for Command {
    fn from(errand: Errand) -> Self {
        Self::Errand(errand)
    }
}

/// What to listen to, or no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend) enum Channel {
    Join(Topic),
    Leave(Topic),
}

/// What is to be heard on a channel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::backend) enum Topic {
    /// Releases by other clients of an exact key; the channel's name.
    Released(Box<str>),
    /// Grants under a tag, where each tag has a channel of its own.
    Grants(Tag),
}

#[cfg(test)]
impl From<&str> for Topic {
    fn from(channel: &str) -> Self {
        Self::Released(channel.into())
    }
}

/// What is to be done with a token. Behind boxes, since a table has more room than entries.
#[derive(Debug)]
enum Entry {
    Waiting(Box<Waiter>),
    Holding(Box<Holder>),
    Ending(Box<Ending>),
}

impl Entry {
    fn tag(&self) -> Tag {
        let request = match self {
            Self::Waiting(waiter) => &waiter.request,
            Self::Holding(holder) => &holder.request,
            Self::Ending(ending) => &ending.request,
        };
        request.resource.tag
    }
}

/// The acquires of one token that were sent and not answered: they may run until `latest_ms` of the
/// server's clock.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::backend) struct Open {
    count: u32,
    pub(in crate::backend) latest_ms: u64,
    /// Whether one that was answered may run again.
    repeats: bool,
}

impl Open {
    fn none(repeats: bool) -> Self {
        Self {
            repeats,
            ..Self::default()
        }
    }

    pub(in crate::backend) fn sent(&mut self, latest_ms: u64) {
        self.count += 1;
        self.latest_ms = self.latest_ms.max(latest_ms);
    }

    /// An answered command can't run again, unless somebody repeats it.
    pub(in crate::backend) fn answered(&mut self) {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 && !self.repeats {
            self.latest_ms = 0;
        }
    }

    /// Whether one of them may run yet.
    fn may_run(&self) -> bool {
        self.latest_ms > 0
    }
}

#[derive(Debug)]
pub(super) struct Core {
    settings: Settings,
    /// The clocks of the servers at the other end of the connections.
    clocks: Vec<ServerClock>,
    /// Why there is no connection, if one was tried for.
    connect_trouble: Option<Trouble>,
    routes: Routes,
    /// Which of the connections for commands are up.
    links: Vec<bool>,
    /// Of the same.
    breakers: Vec<Breaker>,
    ears: Ears,
    /// When it is looked at which channels nobody needs.
    forget_at: Instant,
    wants_inbox: bool,
    entries: HashMap<Token, Entry, ByToken>,
    tags: HashMap<Tag, TagState>,
    takers: HashMap<u64, Taker>,
    last_taker: u64,
    turns: Turns<Booked>,
    /// Turns that are to be given back when no take is under way, in the order of their booking.
    refused: Vec<Booked>,
    unbookings: HashMap<u64, Unbooking>,
    last_unbooking: u64,
    timers: Timers<Due>,
    shutdown: Option<Shutdown>,
    calls: Vec<Call>,
    channels: Vec<Channel>,
    /// For homes, by their main keys.
    news: Vec<(Box<str>, News)>,
}

impl Core {
    pub(super) fn new(settings: Settings) -> Self {
        let routes = Routes::to_one(settings.connections);
        let links = settings.connections;
        Self::with(settings, routes, links, Ears::One(false))
    }

    /// Where each tag has a channel of its own, and a connection that is to be found yet.
    pub(super) fn of_many(settings: Settings) -> Self {
        let routes = Routes::to_owners(settings.connections, Arc::new([]));
        Self::with(settings, routes, NOWHERE + 1, Ears::ByTag(HashMap::new()))
    }

    fn with(settings: Settings, routes: Routes, links: usize, ears: Ears) -> Self {
        Self {
            routes,
            links: vec![false; links],
            breakers: (0..links).map(|_| Breaker::default()).collect(),
            settings,
            clocks: (0..links).map(|_| ServerClock::default()).collect(),
            connect_trouble: None,
            ears,
            forget_at: Instant::from_nanos(0),
            wants_inbox: false,
            entries: HashMap::default(),
            tags: HashMap::new(),
            takers: HashMap::new(),
            last_taker: 0,
            turns: Turns::default(),
            refused: Vec::new(),
            unbookings: HashMap::new(),
            last_unbooking: 0,
            timers: Timers::default(),
            shutdown: None,
            calls: Vec::new(),
            channels: Vec::new(),
            news: Vec::new(),
        }
    }

    /// The calls to send now.
    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        swapping::join(std::mem::take(&mut self.calls))
    }

    pub(super) fn take_channels(&mut self) -> Vec<Channel> {
        std::mem::take(&mut self.channels)
    }

    /// What homes are to hear.
    pub(super) fn take_news(&mut self) -> Vec<(Box<str>, News)> {
        std::mem::take(&mut self.news)
    }

    /// Whether somebody has asked to wait, so that pushes must be heard.
    pub(super) fn wants_inbox(&self) -> bool {
        self.wants_inbox
    }

    /// Whether nothing is left to be done for anybody.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.all_rest(now)
            && self.takers.is_empty()
            && self.refused.is_empty()
            && self.unbookings.is_empty()
    }

    /// Whether all that is left is what the server ends by itself, after a delay.
    fn all_rest(&self, now: Instant) -> bool {
        let rests = |entry: &Entry| match entry {
            Entry::Ending(ending) => ending.rests(now),
            Entry::Waiting(_) | Entry::Holding(_) => false,
        };
        self.entries.values().all(rests)
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        let shutdown = self.shutdown.as_ref().and_then(Shutdown::timer);
        self.timers.next().into_iter().chain(shutdown).min()
    }

    /// The connection that carries a tag's calls: always the same one, so that they run in the
    /// order of their sending.
    pub(super) fn link_of(&self, tag: Tag) -> usize {
        self.routes.link(tag)
    }

    fn is_up(&self, tag: Tag) -> bool {
        self.links[self.link_of(tag)]
    }

    pub(super) fn command(&mut self, now: Instant, command: Command) {
        match command {
            Command::Errand(errand) => self.errand(now, errand),
            Command::Recheck { resource, tokens } => self.recheck(now, resource, tokens),
            Command::Take { take, answer } => self.take(now, *take, answer),
            Command::EndTurn { id, came } => self.end_turn(now, id, came),
        }
    }

    pub(super) fn errand(&mut self, now: Instant, errand: Errand) {
        match errand {
            Errand::Acquire {
                token,
                request,
                place,
                answer,
            } => self.acquire(now, token, request, place, answer),
            Errand::Cancel(token) => self.cancel(now, token),
            Errand::Release { token, answer } => self.release(now, token, answer),
            Errand::Shutdown { deadline, answer } => self.shut_down(now, deadline, answer),
        }
    }

    /// What the server's clock read when the connection was made.
    pub(super) fn time_seen(&mut self, link: usize, us: u64, now: Instant) {
        self.clocks[link].observe(us, now);
    }

    pub(super) fn answer(
        &mut self,
        now: Instant,
        call: Call,
        result: Result<redis::Value, Failure>,
    ) {
        let sent = call.sent;
        let link = self.link_of(call.tag());
        if matches!(result, Ok(_) | Err(Failure::Final(..))) {
            self.served(link);
        }
        match call.body {
            Body::Acquire(ask) => {
                let result =
                    self.decode(now, link, result, |value| reply::acquired(value, ask.lease));
                self.acquired(now, sent, &ask, result);
            }
            Body::End(end) => {
                let result = self.decode(now, link, result, reply::ended);
                self.ended(now, end.token, result);
            }
            Body::Swap(swap) => {
                // Of an answer each part comes here by itself.
                let failure = result.err().unwrap_or_else(garbled);
                for body in [Body::End(swap.0), Body::Acquire(swap.1)] {
                    self.answer(now, Call { sent, body }, Err(failure.clone()));
                }
            }
            Body::Renew(renew) => {
                let result = self.decode(now, link, result, reply::renewed);
                self.renewed(now, sent, &renew, result);
            }
            Body::Recheck(recheck) => {
                let result = self.decode(now, link, result, reply::rechecked);
                self.rechecked(now, &recheck, result);
            }
            Body::Take(take) => self.took(now, &take, result),
            Body::Unbook(unbook) => self.unbooked(now, unbook.id, result.err()),
        }
        self.settle_shutdown(now);
    }

    fn decode<T>(
        &mut self,
        now: Instant,
        link: usize,
        result: Result<redis::Value, Failure>,
        decode: impl FnOnce(&redis::Value) -> Result<Reply<T>, Garbled>,
    ) -> Result<T, Failure> {
        let reply = decode(&result?).map_err(|Garbled| garbled())?;
        if reply.us > 0 {
            self.clocks[link].observe(reply.us, now);
        }
        Ok(reply.outcome)
    }

    pub(super) fn push(&mut self, now: Instant, push: Push) {
        match push {
            Push::Grant {
                token,
                fence,
                left,
                others,
            } => {
                self.others_told(token, fence.get(), others);
                self.granted(now, token, fence, left);
            }
            Push::Recall { stamp, main } => self.recalled(stamp, main),
            Push::Never { token } => self.never_fits(now, token),
        }
    }

    /// Another server is asked from now on, whose clock may be behind: what the last one said of when
    /// a place was taken or a grant was over says nothing of the grants of this one.
    pub(super) fn moved(&mut self) {
        for entry in self.entries.values_mut() {
            if let Entry::Waiting(waiter) = entry {
                waiter.queued = waiter.queued.map(|_| 0);
                waiter.over = None;
            }
        }
    }

    /// A connection for commands came up or went down. What could not be sent meanwhile is sent
    /// now.
    pub(super) fn link_changed(&mut self, now: Instant, link: usize, up: bool) {
        self.links[link] = up;
        if !up {
            return;
        }
        self.connect_trouble = None;
        self.served(link);
        let routes = self.routes.clone();
        self.resume(now, |tag| routes.link(tag) == link);
    }

    /// Other connections carry the calls of some tags from here on; so many there are. What was
    /// asked over the former ones is asked again where it has to be.
    pub(super) fn rerouted(&mut self, now: Instant, routes: Routes, links: usize) {
        let old = std::mem::replace(&mut self.routes, routes);
        self.links.resize(links, false);
        self.breakers.resize_with(links, Breaker::default);
        self.clocks.resize_with(links, ServerClock::default);
        let (routes, up) = (self.routes.clone(), self.links.clone());
        self.resume(now, |tag| {
            let link = routes.link(tag);
            up[link] && link != old.link(tag)
        });
    }

    /// Goes on with all that the calls of these tags are to do.
    fn resume(&mut self, now: Instant, concerned: impl Fn(Tag) -> bool) {
        let (mut waiting, mut rest) = (Vec::new(), Vec::new());
        for (token, entry) in &self.entries {
            if !concerned(entry.tag()) {
                continue;
            }
            match entry {
                Entry::Waiting(waiter) => waiting.push((waiter.rank(), *token)),
                Entry::Holding(_) | Entry::Ending(_) => rest.push(*token),
            }
        }
        // Leases first: they run out. Waiters in their order, since those without a place get one
        // now.
        for token in rest {
            match self.entries.get_mut(&token) {
                Some(Entry::Holding(holder)) => {
                    holder.renew_now(now);
                    self.schedule(token);
                }
                Some(Entry::Ending(_)) => self.send_end(now, token),
                Some(Entry::Waiting(_)) | None => {}
            }
        }
        waiting.sort_unstable();
        for (_, token) in waiting {
            self.ask(now, token);
        }
        self.send_takes(now, &concerned);
        self.send_unbookings(now, &concerned);
    }

    /// No connection could be made: callers who are still waiting for one are told why.
    pub(super) fn connect_failed(&mut self, trouble: Trouble) {
        self.connect_trouble = Some(trouble);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        let mut tags: Vec<Tag> = Vec::new();
        while let Some(due) = self.timers.pop(now) {
            match due {
                Due::Token(token) => {
                    if let Some(tag) = self.token_due(now, token)
                        && !tags.contains(&tag)
                    {
                        tags.push(tag);
                    }
                }
                Due::Taker(id) => self.taker_due(now, id),
                Due::Unbooking(id) => self.unbooking_due(now, id),
                Due::Tag(tag) => {
                    if !tags.contains(&tag) {
                        tags.push(tag);
                    }
                }
            }
        }
        for tag in tags {
            self.speak(now, tag);
        }
        self.forget_ears(now);
        self.settle_shutdown(now);
    }

    /// Does what a token's timer was set for; names its tag if its lease is to be renewed.
    fn token_due(&mut self, now: Instant, token: Token) -> Option<Tag> {
        match self.entries.get_mut(&token)? {
            Entry::Waiting(waiter) => {
                waiter.timer = Instant::FAR;
                self.waiter_due(now, token);
            }
            Entry::Holding(holder) => {
                holder.timer = Instant::FAR;
                let renew = self.holder_due(now, token);
                if renew.is_some() {
                    // Its next timer is set when its tag has spoken for it.
                    return renew;
                }
            }
            Entry::Ending(ending) => {
                ending.timer = Instant::FAR;
                self.ending_due(now, token);
            }
        }
        self.schedule(token);
        None
    }

    /// Sets an entry's timer to what it needs next. A timer that is too early is left as it is: it
    /// finds nothing due and comes here again, which is cheaper than to move it with each step.
    fn schedule(&mut self, token: Token) {
        let (next, timer) = match self.entries.get_mut(&token) {
            Some(Entry::Waiting(waiter)) => (waiter.next(), &mut waiter.timer),
            Some(Entry::Holding(holder)) => (holder.next(), &mut holder.timer),
            Some(Entry::Ending(ending)) => (ending.next(), &mut ending.timer),
            None => return,
        };
        self.timers.set(timer, next, Due::Token(token));
    }
}

pub(in crate::backend) fn garbled() -> Failure {
    let garbled = (
        redis::ErrorKind::UnexpectedReturnType,
        "an answer that none of our scripts gives",
    );
    Failure::Final(BackendErrorKind::Protocol, redis::RedisError::from(garbled))
}

/// If the thread ends while leases are held, which only a panic in it can bring about (a caller's
/// waker, a subscriber of traces), their holders are told: nobody is left to do it in time.
impl Drop for Core {
    fn drop(&mut self) {
        for entry in self.entries.values() {
            if let Entry::Holding(holder) = entry {
                holder.abandon();
            }
        }
    }
}
