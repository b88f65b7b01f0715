//! All that a handle on a quorum decides, without input or output: commands, answers, pushes and
//! time come in, calls to servers go out.
//!
//! # Invariants
//!
//! 1. A token is in `entries` from its first call until its end was answered by every server that
//!    may have something of it: a grant that comes after we gave up is ended.
//! 2. A token goes from waiting to holding to ending, never back.
//! 3. A lease is held until the `needed`-th latest of its servers' deadlines, each counted from the
//!    sending of what that server answered.
//! 4. A lease is handed out with a fence that `needed` of its servers have agreed on while they held
//!    it: so a later one, which needs one of these servers, draws a greater one.
//! 5. One request of a token is under way to a server at a time, but for ends.

mod asking;
mod ending;
pub(super) mod failing;
mod gates;
mod health;
mod holding;
mod line;
mod shutdown;
#[cfg(test)]
mod tests;
mod verdict;
mod vote;
mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use self::ending::Ending;
use self::gates::Gate;
use self::health::Server;
use self::holding::Holder;
use self::waiting::Waiter;
use super::arrival::Arrival;
use super::call::{Body, Call};
use super::reply;
use crate::backend::errand::Errand;
use crate::backend::server::Settings;
use crate::backend::server::backoff::Backoff;
use crate::backend::server::core::timers::Timers;
use crate::backend::server::core::{Channel, garbled};
use crate::backend::server::reply::failure::Trouble;
use crate::backend::server::reply::{Failure, Garbled, Reply};
use crate::backend::shutdown::{Closing, Shutdown};
use crate::key::Resource;
use crate::time::{Instant, Ttl};
use crate::token::{ByToken, Token};

/// Before who waits asks again after it gave way to strangers, or after a server could not serve.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(25), Duration::from_secs(1));

/// What a user can set of a quorum, beside what concerns each connection.
#[derive(Debug, Clone)]
pub(super) struct Options {
    /// How long a server has for its vote; `None` for what suits the TTL.
    pub(super) server_timeout: Option<Duration>,
    /// After how long without an answer a server is not asked any more.
    pub(super) silence: Duration,
    /// Whether a server that may have lost leases has no vote until they have ended.
    pub(super) quarantine: bool,
    /// How many requests may be under way to a server before who waits is asked for.
    pub(super) room: usize,
}

impl Options {
    pub(super) fn server_timeout(&self, ttl: Ttl) -> Duration {
        const LONGEST: Duration = Duration::from_millis(50);
        self.server_timeout
            .unwrap_or_else(|| (ttl.get() / 20).min(LONGEST))
    }
}

/// What is to be done with a token.
#[derive(Debug)]
enum Entry {
    Waiting(Box<Waiter>),
    Holding(Box<Holder>),
    Ending(Box<Ending>),
}

#[derive(Debug)]
pub(super) struct Core {
    settings: Settings,
    options: Options,
    servers: Vec<Server>,
    wants_inbox: bool,
    entries: HashMap<Token, Entry, ByToken>,
    /// Where somebody waits: the first at each asks again by a timer for all of them.
    gates: HashMap<Arc<Resource>, Gate>,
    last_ticket: u64,
    timers: Timers<Token>,
    shutdown: Option<Shutdown>,
    calls: Vec<Call>,
    /// To be heard, or not any more, at all servers.
    channels: Vec<Channel>,
}

impl Core {
    pub(super) fn new(servers: usize, settings: Settings, options: Options) -> Self {
        Self {
            settings,
            options,
            servers: (0..servers).map(|_| Server::default()).collect(),
            wants_inbox: false,
            entries: HashMap::default(),
            gates: HashMap::new(),
            last_ticket: 0,
            timers: Timers::default(),
            shutdown: None,
            calls: Vec::new(),
            channels: Vec::new(),
        }
    }

    /// The calls to send now.
    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// What is to be heard, and what not any more.
    pub(super) fn take_channels(&mut self) -> Vec<Channel> {
        std::mem::take(&mut self.channels)
    }

    /// Whether somebody has asked to wait, so that pushes must be heard.
    pub(super) fn wants_inbox(&self) -> bool {
        self.wants_inbox
    }

    /// Whether nothing is left to be done for anybody.
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        let timers = self.timers.next().into_iter();
        let timers = timers.chain(self.silence_at());
        let shutdown = self.shutdown.as_ref().and_then(Shutdown::timer);
        timers.chain(shutdown).min()
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

    /// A connection came up. What could not be sent meanwhile is sent now.
    pub(super) fn linked(&mut self, now: Instant, server: usize, arrival: Arrival) {
        let early = self.estimate(now).is_none();
        self.arrived(now, server, arrival);
        self.end_again(now, server);
        if early && self.estimate(now).is_some() {
            // Nobody could be asked before the time was known.
            for server in 0..self.servers.len() {
                self.ask_those_without(now, server);
            }
        } else {
            self.ask_those_without(now, server);
        }
    }

    /// A connection went down, or could not be made.
    pub(super) fn unlinked(&mut self, now: Instant, server: usize, trouble: Option<Trouble>) {
        self.departed(now, server, trouble);
        self.bridge_all(now);
    }

    /// All that concerns a server which can be asked again: leases first, since they run out;
    /// waiters in their order.
    fn ask_those_without(&mut self, now: Instant, server: usize) {
        let (mut waiting, mut rest) = (Vec::new(), Vec::new());
        for (token, entry) in &self.entries {
            match entry {
                Entry::Waiting(waiter) => waiting.push((waiter.rank(), *token)),
                Entry::Holding(_) | Entry::Ending(_) => rest.push(*token),
            }
        }
        for token in rest {
            match self.entries.get(&token) {
                Some(Entry::Holding(_)) => self.fill(now, token, server),
                Some(Entry::Ending(_)) => self.send_end(now, token, server),
                Some(Entry::Waiting(_)) | None => {}
            }
            self.schedule(token);
        }
        waiting.sort_unstable();
        for (_, token) in waiting {
            self.ask(now, token, server);
            self.schedule(token);
        }
    }

    pub(super) fn answer(
        &mut self,
        now: Instant,
        call: Call,
        result: Result<redis::Value, Failure>,
    ) {
        let (server, sent, token) = (call.server, call.sent, call.who.token);
        let answered = matches!(
            result,
            Ok(_) | Err(Failure::Final(..) | Failure::NotNow(..) | Failure::NoScript)
        );
        self.heard_of(now, server, sent, answered);
        match call.body {
            Body::Ask(ask) => {
                let result = self.decode(now, server, result, reply::asked);
                self.asked(now, server, sent, token, &ask, result);
            }
            Body::End { stay: false, .. } => {
                let result = self.decode(now, server, result, reply::ended);
                self.ended(now, server, token, result);
            }
            // How it stands after giving way, it learns by asking.
            Body::End { stay: true, .. } => {
                let _ = self.decode(now, server, result, reply::ended);
            }
            Body::Renew { .. } => {
                let result = self.decode(now, server, result, reply::renewed);
                self.renewed(now, server, sent, token, result);
            }
        }
        self.schedule(token);
        self.ask_next(now, server);
        self.settle_shutdown(now);
    }

    fn decode<T>(
        &mut self,
        now: Instant,
        server: usize,
        result: Result<redis::Value, Failure>,
        decode: impl FnOnce(&redis::Value) -> Result<Reply<T>, Garbled>,
    ) -> Result<T, Failure> {
        let reply = decode(&result?).map_err(|Garbled| garbled())?;
        self.time_seen(now, server, reply.us);
        Ok(reply.outcome)
    }

    /// A server tells `token` that its turn may have come there.
    pub(super) fn push(&mut self, now: Instant, server: usize, token: Token) {
        match self.entries.get(&token) {
            Some(Entry::Waiting(_)) => self.called(now, token, server),
            Some(Entry::Holding(_)) => self.fill(now, token, server),
            // Its end is under way.
            Some(Entry::Ending(_)) | None => {}
        }
        self.schedule(token);
    }

    /// A server's inbox was confirmed, or is lost. For the first time the first who waits at each gate
    /// tells there that the process listens; later all have to enter anew, since pushes that nobody
    /// heard have cost them their places.
    pub(super) fn inbox_changed(&mut self, now: Instant, server: usize, listening: bool) {
        let known = &mut self.servers[server];
        let first = listening && !std::mem::replace(&mut known.listened, true);
        known.listening = listening;
        if first {
            for token in self.firsts() {
                self.ask(now, token, server);
                self.schedule(token);
            }
            return;
        }
        let waiting = |(token, entry): (&Token, &Entry)| match entry {
            Entry::Waiting(waiter) => Some((waiter.rank(), *token)),
            Entry::Holding(_) | Entry::Ending(_) => None,
        };
        let mut waiting: Vec<_> = self.entries.iter().filter_map(waiting).collect();
        waiting.sort_unstable();
        for (_, token) in waiting {
            if listening {
                self.ask(now, token, server);
            } else {
                self.pump_soon(now, token);
            }
            self.schedule(token);
        }
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.look_for_silence(now);
        while let Some(token) = self.timers.pop(now) {
            match self.entries.get_mut(&token) {
                Some(Entry::Waiting(waiter)) => {
                    waiter.timer = Instant::FAR;
                    self.waiter_due(now, token);
                }
                Some(Entry::Holding(holder)) => {
                    holder.timer = Instant::FAR;
                    self.holder_due(now, token);
                }
                Some(Entry::Ending(ending)) => {
                    ending.timer = Instant::FAR;
                    self.ending_due(now, token);
                }
                None => continue,
            }
            self.schedule(token);
        }
        self.settle_shutdown(now);
    }

    /// Sets an entry's timer to what it needs next; one that is too early finds nothing due.
    fn schedule(&mut self, token: Token) {
        let (next, timer) = match self.entries.get_mut(&token) {
            Some(Entry::Waiting(waiter)) => (waiter.next(), &mut waiter.timer),
            Some(Entry::Holding(holder)) => (holder.next(), &mut holder.timer),
            Some(Entry::Ending(ending)) => (ending.next(), &mut ending.timer),
            None => return,
        };
        self.timers.set(timer, next, token);
    }

    fn send(&mut self, call: Call) {
        self.sent_to(call.sent, call.server);
        self.calls.push(call);
    }
}

/// As on a single server: if the thread ends while leases are held, their holders are told.
impl Drop for Core {
    fn drop(&mut self) {
        for entry in self.entries.values() {
            if let Entry::Holding(holder) = entry {
                holder.abandon();
            }
        }
    }
}
