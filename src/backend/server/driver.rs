//! The background thread: carries what the core decides to the server and what the server says
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, Value};
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::Settings;
use super::acknowledger::Acknowledger;
use super::backoff::Backoff;
use super::call::{Body, Call, Names};
use super::core::{Channel, Command, Core};
use super::inbox::{Inbox, Listener};
use super::link::{self, Fresh};
use super::origin::{Origin, Term, moved};
use super::recent::Recent;
use super::reply::failure::Trouble;
use super::reply::{self, Failure};
use super::script::Script;
use super::weather::{Change, Weather};
use crate::key::Prefix;
use crate::time::Instant;
use crate::token::Instance;

/// How many commands or events are taken at a time, and how many requests share a write: large
/// enough to spare system calls under load, small enough that the server works on the first while
/// the next are packed.
const INTAKE: usize = 64;
const BATCH: usize = 16;
/// Who is served again is to know within a second: pauses count from the beginning of an attempt, so
/// that one which got no answer is followed by the next at once.
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
/// So many attempts fail before the server counts as away: it may just be restarting.
const ATTEMPTS: u32 = 3;
/// How often a connection that is up, and over which nothing is served, is tried.
const PROBE: Duration = Duration::from_millis(200);
/// Leases are looked at this often though no timer is due: timers stand still while a machine is
/// suspended.
const LOOK: Duration = Duration::from_secs(1);

/// What loads all scripts.
fn scripts() -> Pipeline {
    link::scripts(Script::all())
}

/// What the tasks of this thread report.
#[derive(Debug)]
pub(super) enum Event {
    Linked {
        link: usize,
        result: Result<Fresh, RedisError>,
    },
    Answered {
        link: usize,
        generation: u64,
        term: Term,
        calls: Vec<Call>,
        result: Result<Vec<Value>, Option<RedisError>>,
    },
    Probed {
        link: usize,
        generation: u64,
        result: Result<(), RedisError>,
    },
    Inbox(Inbox),
    /// So many replicas have what these calls left, where the server of that term has answered them.
    Acknowledged {
        term: Term,
        said: Vec<(Call, Result<Value, Failure>)>,
        replicas: u32,
    },
    /// Another server is the one.
    Moved,
}

#[derive(Debug)]
enum Link {
    Down {
        attempts: u32,
        retry_at: Instant,
    },
    Connecting {
        attempts: u32,
        since: Instant,
    },
    Up {
        connection: MultiplexedConnection,
        generation: u64,
        term: Term,
        answered: Instant,
        /// How often it was made without serving anybody.
        attempts: u32,
    },
}

pub(super) struct Driver {
    pub(super) core: Core,
    origin: Arc<Origin>,
    settings: Settings,
    instance: Instance,
    prefix: Prefix,
    names: Names,
    links: Vec<Link>,
    generation: u64,
    inbox: Option<UnboundedSender<Channel>>,
    /// Takes what replicas have to acknowledge.
    acknowledger: Option<UnboundedSender<Call>>,
    /// Whether it is to take a fresh connection.
    stale: Arc<AtomicBool>,
    events: UnboundedSender<Event>,
    /// Set when nobody is left who could ask or be told anything: then the rest is given up.
    last: Option<Instant>,
    weather: Weather,
    recent: Recent,
    /// When connections that serve nothing are tried again.
    probe_at: Instant,
    warned_eviction: bool,
    warned_channels: bool,
    few_replicas: bool,
    /// Of the subscription, since it was last up.
    warned_inbox: bool,
}

impl Driver {
    pub(super) fn new(
        core: Core,
        origin: Origin,
        settings: Settings,
        instance: Instance,
        prefix: Prefix,
    ) -> (Self, UnboundedReceiver<Event>) {
        let (events, receiver) = unbounded_channel();
        let links = (0..settings.connections)
            .map(|_| Link::Down {
                attempts: 0,
                retry_at: Instant::FAR,
            })
            .collect();
        let driver = Self {
            core,
            origin: Arc::new(origin),
            settings,
            instance,
            names: Names::new(prefix.clone()),
            prefix,
            links,
            generation: 0,
            inbox: None,
            acknowledger: None,
            stale: Arc::default(),
            events,
            last: None,
            weather: Weather::new(),
            recent: Recent::default(),
            probe_at: Instant::FAR,
            warned_eviction: false,
            warned_channels: false,
            few_replicas: false,
            warned_inbox: false,
        };
        (driver, receiver)
    }

    /// Runs until every handle is dropped and what they left is cleaned up, or can't be.
    pub(super) async fn run(
        mut self,
        mut commands: UnboundedReceiver<Command>,
        mut events: UnboundedReceiver<Event>,
    ) {
        self.watch_terms();
        let mut asked = Vec::with_capacity(INTAKE);
        let mut heard = Vec::with_capacity(INTAKE);
        loop {
            let timer = sleep(self.until_timer());
            tokio::select! {
                biased;
                _ = events.recv_many(&mut heard, INTAKE) => {}
                _ = commands.recv_many(&mut asked, INTAKE), if self.last.is_none() => {}
                () = timer => {}
            }
            // What has come on the other channel meanwhile shares the same write.
            while heard.len() < INTAKE
                && let Ok(event) = events.try_recv()
            {
                heard.push(event);
            }
            while asked.len() < INTAKE {
                match commands.try_recv() {
                    Ok(command) => asked.push(command),
                    Err(TryRecvError::Empty) => break,
                    // Known before any event is looked at that came after.
                    Err(TryRecvError::Disconnected) => {
                        let last = Instant::now().after(self.grace());
                        self.last.get_or_insert(last);
                        break;
                    }
                }
            }
            // Read when all have been taken: a wait whose length counts from before it was asked for
            // would end too early.
            let now = Instant::now();
            for event in heard.drain(..) {
                self.event(now, event);
            }
            if !asked.is_empty() {
                self.connect_all(now);
            }
            for command in asked.drain(..) {
                self.core.command(now, command);
            }
            self.core.tick(now);
            self.retry_links(now);
            self.probe_links(now);
            self.flush(now);
            self.report(now);
            if self
                .last
                .is_some_and(|last| self.core.is_idle(now) || now >= last)
            {
                return;
            }
        }
    }

    /// Has us told whenever another server is the one.
    fn watch_terms(&self) {
        let (origin, events) = (Arc::clone(&self.origin), self.events.clone());
        tokio::spawn(async move {
            loop {
                let term = origin.term();
                origin.left(term).await;
                if events.send(Event::Moved).is_err() {
                    return;
                }
            }
        });
    }

    /// How long is spent on what is left when nobody is.
    fn grace(&self) -> Duration {
        self.settings.connect_timeout + 2 * self.settings.command_timeout
    }

    fn until_timer(&self) -> Duration {
        let retries = self.links.iter().filter_map(|link| match link {
            Link::Down { retry_at, .. } => Some(*retry_at),
            Link::Connecting { .. } | Link::Up { .. } => None,
        });
        let timers = self
            .core
            .next_timer()
            .into_iter()
            .chain(self.core.shutdown_timer());
        let next = retries
            .chain(timers)
            .chain(self.last)
            .chain([self.probe_at])
            .min()
            .unwrap_or(Instant::FAR);
        next.since(Instant::now()).min(LOOK)
    }

    fn event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Linked {
                link,
                result: Ok(fresh),
            } if fresh.term == self.origin.term() => self.linked(now, link, fresh),
            Event::Linked { link, result } => {
                let error = result.err().unwrap_or_else(moved);
                let slow = error.is_timeout();
                let trouble = Trouble::of(error);
                tracing::debug!(link, cause = &*trouble.cause, "no connection to the server");
                self.core.connect_failed(trouble);
                let attempts = self.attempts(link);
                if slow || attempts + 1 >= ATTEMPTS {
                    self.core.trip(now, link, Failure::NotSent);
                }
                self.links[link] = Link::Down {
                    attempts: attempts + 1,
                    retry_at: self.retry_at(now, link, attempts),
                };
            }
            Event::Answered {
                link,
                generation,
                term,
                calls,
                result,
            } => {
                // A server that was replaced has nothing to say any more: it may have slept.
                let result = if term == self.origin.term() {
                    result
                } else {
                    Err(Some(moved()))
                };
                if self.origin.can_move()
                    && let Ok(values) = &result
                {
                    self.note_ends(now, term, &calls, values);
                }
                self.answered(now, link, generation, calls, result);
            }
            Event::Probed {
                link,
                generation,
                result,
            } => self.probed(now, link, generation, result),
            Event::Inbox(inbox) => self.inbox_event(now, inbox),
            Event::Moved => self.moved(now),
            Event::Acknowledged {
                term,
                said,
                replicas,
            } => self.acknowledged(now, term, said, replicas),
        }
    }

    fn acknowledged(
        &mut self,
        now: Instant,
        term: Term,
        said: Vec<(Call, Result<Value, Failure>)>,
        replicas: u32,
    ) {
        let is_current = term == self.origin.term();
        let renewed = is_current && said.iter().any(|(_, result)| result.is_ok());
        self.tell_of_replicas(renewed, replicas);
        for (call, result) in said {
            // What replicas of a server have that was replaced says nothing of its successor.
            let result = match result {
                Ok(_) if !is_current => Err(Failure::Unknown(Some(moved()))),
                result => result,
            };
            self.core.acknowledged(now, call, result, replicas);
        }
    }

    /// Tells once that too few acknowledge, and once that enough do again.
    fn tell_of_replicas(&mut self, renewed: bool, replicas: u32) {
        let least = self.settings.replicas.map_or(0, |replicas| replicas.least);
        let few = replicas < least;
        if !renewed || few == self.few_replicas {
            return;
        }
        self.few_replicas = few;
        if few {
            tracing::warn!(
                replicas,
                least,
                "too few replicas acknowledge leases; they are refused until enough do"
            );
        } else {
            tracing::info!(replicas, "enough replicas acknowledge leases again");
        }
    }

    fn attempts(&self, link: usize) -> u32 {
        match &self.links[link] {
            Link::Connecting { attempts, .. }
            | Link::Down { attempts, .. }
            | Link::Up { attempts, .. } => *attempts,
        }
    }

    fn pause(&self, attempts: u32) -> Duration {
        RETRY.pause(attempts, self.instance.jitter(attempts))
    }

    /// When to try again after an attempt that failed now. There is a short pause at least: attempts
    /// of a fleet that began together fail together.
    fn retry_at(&self, now: Instant, link: usize, attempts: u32) -> Instant {
        let least = now.after(self.pause(0));
        match &self.links[link] {
            Link::Connecting { since, .. } => since.after(self.pause(attempts)).max(least),
            Link::Down { .. } | Link::Up { .. } => now.after(self.pause(attempts)),
        }
    }

    fn connect_all(&mut self, now: Instant) {
        if self.acknowledger.is_none() {
            self.start_acknowledger();
        }
        for link in 0..self.links.len() {
            if let Link::Down {
                attempts: 0,
                retry_at: Instant::FAR,
            } = self.links[link]
            {
                self.connect(now, link, 0);
            }
        }
    }

    fn retry_links(&mut self, now: Instant) {
        for link in 0..self.links.len() {
            if let Link::Down { attempts, retry_at } = self.links[link]
                && retry_at <= now
            {
                self.connect(now, link, attempts);
            }
        }
    }

    fn connect(&mut self, now: Instant, link: usize, attempts: u32) {
        self.links[link] = Link::Connecting {
            attempts,
            since: now,
        };
        let (origin, settings, events) = (
            Arc::clone(&self.origin),
            self.settings.clone(),
            self.events.clone(),
        );
        let probe = self.prefix.probe();
        tokio::spawn(async move {
            // In a task of its own: a panic in somebody's resolver or pool must not end the
            // attempts.
            let attempt =
                tokio::spawn(
                    async move { link::connect(&origin, &settings, &probe, scripts()).await },
                );
            let result = attempt
                .await
                .unwrap_or_else(|_| Err((redis::ErrorKind::Client, "connecting panicked").into()));
            let _ = events.send(Event::Linked { link, result });
        });
    }

    /// Asks over connections that are up and serve nothing whether they do again: nobody else may.
    fn probe_links(&mut self, now: Instant) {
        let silent =
            |&link: &usize| self.core.is_open(link) && matches!(self.links[link], Link::Up { .. });
        let silent: Vec<usize> = (0..self.links.len()).filter(silent).collect();
        if silent.is_empty() {
            self.probe_at = Instant::FAR;
        } else if self.probe_at == Instant::FAR {
            self.probe_at = now.after(PROBE);
        } else if self.probe_at <= now {
            self.probe_at = now.after(PROBE);
            for link in silent {
                self.probe(link);
            }
        }
    }

    fn probe(&self, link: usize) {
        let Link::Up {
            connection,
            generation,
            ..
        } = &self.links[link]
        else {
            return;
        };
        let (mut connection, generation) = (connection.clone(), *generation);
        let (events, patience) = (self.events.clone(), self.settings.command_timeout);
        let key = self.prefix.probe();
        tokio::spawn(async move {
            let result = link::probe(&mut connection, &key, patience).await;
            let _ = events.send(Event::Probed {
                link,
                generation,
                result,
            });
        });
    }

    fn probed(
        &mut self,
        now: Instant,
        link: usize,
        generation: u64,
        result: Result<(), RedisError>,
    ) {
        if !self.is_current(link, generation) {
            // Of a connection that has been replaced: it tells nothing of this one.
            return;
        }
        match result {
            Ok(()) => {
                self.heard(now, link, generation);
                self.core.served(link);
            }
            // It can't serve, and says so.
            Err(error) if error.code().is_some() => self.heard(now, link, generation),
            Err(error) => {
                let silent = matches!(
                    &self.links[link],
                    Link::Up { answered, .. } if now.since(*answered) >= self.settings.command_timeout
                );
                if silent || !error.is_timeout() {
                    let failure = Failure::of_connection(error);
                    self.broken(now, link, generation, Vec::new(), &failure);
                }
            }
        }
    }

    /// Tells of an outage once, however many connections, attempts and callers it has, and only if
    /// it concerns anybody.
    fn report(&mut self, now: Instant) {
        // Nobody is left to be told of another one.
        if self.last.is_some() && self.weather.is_fair() {
            return;
        }
        match self.weather.look(now, self.is_away()) {
            Some(Change::Away) => {
                let cause = &*self.core.cause_of_outage();
                tracing::warn!(cause, "the server is away; trying again until it is back");
            }
            Some(Change::Back) => tracing::info!("the server is back"),
            None => {}
        }
    }

    fn is_away(&self) -> bool {
        (0..self.links.len()).any(|link| self.core.is_open(link))
    }

    fn linked(&mut self, now: Instant, link: usize, fresh: Fresh) {
        if let Some(policy) = fresh.evicts
            && !std::mem::replace(&mut self.warned_eviction, true)
        {
            tracing::warn!(
                policy,
                "the server may evict keys that are held; set maxmemory-policy to noeviction"
            );
        }
        self.core.time_seen(fresh.us, now);
        self.generation += 1;
        if self.generation > self.links.len() as u64 {
            self.stale.store(true, Ordering::Relaxed);
        }
        let attempts = self.attempts(link);
        self.links[link] = Link::Up {
            connection: fresh.connection,
            generation: self.generation,
            term: fresh.term,
            answered: now,
            attempts,
        };
        // First: whoever asks after these finds them over.
        self.end_again(now, link, fresh.term);
        self.core.link_changed(now, link, true);
    }

    fn answered(
        &mut self,
        now: Instant,
        link: usize,
        generation: u64,
        calls: Vec<Call>,
        result: Result<Vec<Value>, Option<RedisError>>,
    ) {
        match result {
            Ok(values) if values.len() == calls.len() => {
                self.heard(now, link, generation);
                let mut whole = Vec::new();
                for (call, value) in calls.into_iter().zip(values) {
                    match value {
                        Value::ServerError(error) => match Failure::of_server(error) {
                            Failure::NoScript if self.settings.preloaded => {
                                self.failed(now, link, generation, call, Failure::not_loaded());
                            }
                            // It did not run, so it may go again, with its text.
                            Failure::NoScript => whole.push(call),
                            failure => self.failed(now, link, generation, call, failure),
                        },
                        value => {
                            if let Link::Up {
                                attempts,
                                generation: current,
                                ..
                            } = &mut self.links[link]
                                && *current == generation
                            {
                                *attempts = 0;
                            }
                            self.core.answer(now, call, Ok(value));
                        }
                    }
                }
                if !whole.is_empty() {
                    self.reload(link);
                    self.send(link, whole, true);
                }
            }
            Ok(_) => {
                let error = RedisError::from((
                    redis::ErrorKind::UnexpectedReturnType,
                    "answers and requests do not match",
                ));
                self.broken(now, link, generation, calls, &Failure::Unknown(Some(error)));
            }
            Err(Some(error)) => {
                let failure = Failure::of_connection(error);
                self.broken(now, link, generation, calls, &failure);
            }
            Err(None) => {
                let silent =
                    |answered: Instant| calls.first().is_some_and(|call| answered < call.sent);
                let deaf = match &self.links[link] {
                    Link::Up {
                        generation: current,
                        answered,
                        ..
                    } => *current == generation && silent(*answered),
                    Link::Down { .. } | Link::Connecting { .. } => false,
                };
                if deaf {
                    // Nothing came since these were sent: the other side may be gone without a
                    // word.
                    self.core.trip(now, link, Failure::Unknown(None));
                    self.broken(now, link, generation, calls, &Failure::Unknown(None));
                } else {
                    for call in calls {
                        self.core.answer(now, call, Err(Failure::Unknown(None)));
                    }
                }
            }
        }
    }

    fn note_ends(&mut self, now: Instant, term: Term, calls: &[Call], values: &[Value]) {
        for (call, value) in calls.iter().zip(values) {
            if let (Body::End(end), false) = (&call.body, matches!(value, Value::ServerError(_))) {
                self.recent.note(now, term, end);
            }
        }
    }

    /// Ends at a server that is new to us what its predecessor may not have told it.
    fn end_again(&mut self, now: Instant, link: usize, term: Term) {
        let core = &self.core;
        let again = self
            .recent
            .take(now, term, |end| core.link_of(end.resource.tag) == link);
        let mut again = again.into_iter();
        while again.len() > 0 {
            let batch = again.by_ref().take(BATCH).collect();
            self.send(link, batch, false);
        }
    }

    /// Whether it is this connection that is up, and not a later one in its stead.
    fn is_current(&self, link: usize, generation: u64) -> bool {
        matches!(&self.links[link], Link::Up { generation: current, .. } if *current == generation)
    }

    /// Something came over a connection.
    fn heard(&mut self, now: Instant, link: usize, generation: u64) {
        if let Link::Up {
            generation: current,
            answered,
            ..
        } = &mut self.links[link]
            && *current == generation
        {
            *answered = now;
        }
    }

    fn failed(&mut self, now: Instant, link: usize, generation: u64, call: Call, failure: Failure) {
        if let Failure::NotNow(_, error) = &failure
            && matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
            && self.is_current(link, generation)
        {
            // A demoted master keeps its connections open: ask anew who is there.
            self.take_down(now, link);
        }
        self.core.answer(now, call, Err(failure));
    }

    /// Replaces a connection, and tells what was under way on it.
    fn broken(
        &mut self,
        now: Instant,
        link: usize,
        generation: u64,
        calls: Vec<Call>,
        failure: &Failure,
    ) {
        if self.is_current(link, generation) {
            self.take_down(now, link);
        }
        for call in calls {
            self.core.answer(now, call, Err(failure.clone()));
        }
    }

    /// Another server is the one: connections to the last are given up, and who is waiting to
    /// connect need not wait any more.
    fn moved(&mut self, now: Instant) {
        self.core.moved();
        let latest = self.origin.term();
        // The first is no news.
        if latest > 1 {
            tracing::info!("the sentinels name another master; connecting to that");
        }
        for link in 0..self.links.len() {
            match &mut self.links[link] {
                Link::Up { term, .. } if *term != latest => {
                    self.take_down(now, link);
                    self.connect(now, link, 0);
                }
                Link::Down {
                    attempts: 1..,
                    retry_at,
                } => *retry_at = now,
                Link::Up { .. } | Link::Down { .. } | Link::Connecting { .. } => {}
            }
        }
    }

    fn take_down(&mut self, now: Instant, link: usize) {
        if matches!(self.links[link], Link::Up { .. }) {
            // One that never served anybody is not tried again at once: a replica accepts
            // connections as fast as they come.
            let attempts = self.attempts(link);
            self.links[link] = Link::Down {
                attempts: attempts + 1,
                retry_at: now.after(self.pause(attempts)),
            };
            self.core.link_changed(now, link, false);
        }
    }

    fn inbox_event(&mut self, now: Instant, inbox: Inbox) {
        match inbox {
            Inbox::Up => {
                self.warned_inbox = false;
                self.core.inbox_changed(now, true);
            }
            Inbox::Down => self.core.inbox_changed(now, false),
            Inbox::Failing(error) => self.warn_inbox(error.code()),
            Inbox::Forbidden(error) => self.warn_polling(error.code()),
            // A grant by a server that was replaced is none.
            Inbox::Message { term, .. } if term != self.origin.term() => {}
            Inbox::Message { channel, text, .. } => {
                if channel.starts_with(self.names.channels()) {
                    // Anybody can write here; what is no push of ours is no reason to do anything.
                    if let Ok(push) = reply::push(&text, &self.instance) {
                        self.core.push(now, push);
                    }
                } else {
                    self.core.released_elsewhere(now, &channel);
                }
            }
        }
    }

    /// Of what is missing beside a server that is there: one that is away has been told of, and takes
    /// the subscription along.
    fn warn_inbox(&mut self, code: Option<&str>) {
        let concerns = self.last.is_none() && self.weather.is_fair() && !self.is_away();
        if concerns && !std::mem::replace(&mut self.warned_inbox, true) {
            tracing::warn!(
                code,
                "no subscription; waiters ask again by a timer until it is back"
            );
        }
    }

    fn warn_polling(&mut self, code: Option<&str>) {
        if self.last.is_none() && !std::mem::replace(&mut self.warned_channels, true) {
            tracing::warn!(
                code,
                "no pushes: waiters ask again every 100 to 250 ms; allow the channels, or name a subscriber to the pool's server"
            );
        }
    }

    /// Sends what the core has decided, and what follows from that.
    fn flush(&mut self, now: Instant) {
        if self.inbox.is_none() && self.core.wants_inbox() {
            self.start_inbox();
        }
        for change in self.core.take_channels() {
            if let Some(inbox) = &self.inbox {
                let _ = inbox.send(change);
            }
        }
        loop {
            let calls = self.core.take_calls();
            if calls.is_empty() {
                return;
            }
            let mut sorted: Vec<Vec<Call>> = self.links.iter().map(|_| Vec::new()).collect();
            for call in calls {
                if let (true, Some(acknowledger)) = (call.is_acknowledged(), &self.acknowledger) {
                    // Fails if that has panicked; then the time that is set for it runs out.
                    let _ = acknowledger.send(call);
                    continue;
                }
                sorted[self.core.link_of(call.tag())].push(call);
            }
            for (link, calls) in sorted.into_iter().enumerate() {
                if matches!(self.links[link], Link::Up { .. }) {
                    let mut calls = calls.into_iter();
                    while calls.len() > 0 {
                        // Collected, not split off: that would leave each batch the room of all.
                        let batch = calls.by_ref().take(BATCH).collect();
                        self.send(link, batch, false);
                    }
                } else {
                    for call in calls {
                        self.core.answer(now, call, Err(Failure::NotSent));
                    }
                }
            }
        }
    }

    fn start_acknowledger(&mut self) {
        let Some(replicas) = self.settings.replicas else {
            return;
        };
        let (sender, calls) = unbounded_channel();
        self.acknowledger = Some(sender);
        let acknowledger = Acknowledger {
            origin: Arc::clone(&self.origin),
            settings: self.settings.clone(),
            replicas,
            prefix: self.prefix.clone(),
            instance: self.instance,
            calls,
            events: self.events.clone(),
            stale: Arc::clone(&self.stale),
        };
        tokio::spawn(acknowledger.run());
    }

    fn start_inbox(&mut self) {
        let (changes, receiver) = unbounded_channel();
        self.inbox = Some(changes);
        if !self.origin.can_listen() {
            self.warn_polling(None);
            return;
        }
        let events = self.events.clone();
        let tell = move |inbox| {
            // A driver that is gone needs to know nothing.
            let _ = events.send(Event::Inbox(inbox));
        };
        let listener = Listener {
            origin: Arc::clone(&self.origin),
            settings: self.settings.clone(),
            channel: self.prefix.inbox(&self.instance),
            instance: self.instance,
            tell,
            changes: receiver,
        };
        tokio::spawn(listener.run());
    }

    /// One write and one timer for many requests.
    fn send(&mut self, link: usize, calls: Vec<Call>, whole: bool) {
        let Link::Up {
            connection,
            generation,
            term,
            ..
        } = &self.links[link]
        else {
            let now = Instant::now();
            for call in calls {
                self.core.answer(now, call, Err(Failure::NotSent));
            }
            return;
        };
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in &calls {
            tracing::trace!(script = call.script().name, link, "call");
            pipeline.add_command(call.command(whole, &self.instance, &mut self.names));
        }
        let (mut connection, generation, term) = (connection.clone(), *generation, *term);
        let (events, patience) = (self.events.clone(), self.settings.command_timeout);
        let origin = Arc::clone(&self.origin);
        tokio::spawn(async move {
            let sending = connection.send_packed_commands(&pipeline, 0, calls.len());
            let result = match timeout(patience, origin.within(term, sending)).await {
                Ok(result) => result.map_err(Some),
                Err(_) => Err(None),
            };
            let _ = events.send(Event::Answered {
                link,
                generation,
                term,
                calls,
                result,
            });
        });
    }

    /// Loads the scripts again: the server has forgotten them.
    fn reload(&self, link: usize) {
        let Link::Up { connection, .. } = &self.links[link] else {
            return;
        };
        let (mut connection, patience) = (connection.clone(), self.settings.command_timeout);
        tokio::spawn(async move {
            let pipeline = scripts();
            // Without it each request goes with its text, which is slower and no less right.
            let _ = timeout(
                patience,
                connection.send_packed_commands(&pipeline, 0, pipeline.len()),
            )
            .await;
        });
    }
}
