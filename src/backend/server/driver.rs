//! The background thread: carries what the core decides to the server and what the server says
//! back.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redis::{Pipeline, RedisError, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::Settings;
use super::acknowledger::Acknowledger;
use super::call::{Body, Call, End, Names};
use super::cluster::Cluster;
use super::cluster::redirect::{Address, Redirect};
use super::cluster::view::View;
use super::core::{Channel, Command, Core, NOWHERE, part};
use super::home::Homes;
use super::inbox::{Inbox, Listener};
use super::link::{self, Fresh};
use super::links::Link;
use super::origin::{Origin, Term, moved};
use super::recent::Recent;
use super::reply::{self, Failure};
use super::weather::{Change, Weather};
use crate::backend::intake::Intake;
use crate::key::Prefix;
use crate::time::Instant;
use crate::token::Instance;

/// How many requests share a write: fewer than commands are taken at a time, so that the server
/// works on the first while the next are packed.
const BATCH: usize = 16;

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
        way: Way,
        term: Term,
        calls: Vec<Call>,
        result: Result<Vec<Value>, Option<RedisError>>,
    },
    Probed {
        link: usize,
        generation: u64,
        result: Result<(), RedisError>,
    },
    Inbox {
        /// Which listener tells.
        id: u64,
        inbox: Inbox,
    },
    /// A node of a cluster told of all, or did not.
    Viewed {
        from: Address,
        result: Result<View, RedisError>,
    },
    /// So many replicas have what these calls left, where the server of that term has answered them.
    Acknowledged {
        term: Term,
        said: Vec<(Call, Result<Value, Failure>)>,
        replicas: u32,
    },
    /// Another server is the one.
    Moved,
}

/// How requests are sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Way {
    /// With the scripts' texts: the server does not know them.
    pub(super) whole: bool,
    /// To a node that takes the slot over, which serves only who says that it was sent there.
    pub(super) asking: bool,
    /// How often they were sent on by nodes that do not serve them.
    pub(super) hops: u8,
}

pub(super) struct Driver {
    pub(super) core: Core,
    pub(super) origin: Arc<Origin>,
    pub(super) settings: Settings,
    pub(super) instance: Instance,
    pub(super) prefix: Prefix,
    homes: Arc<Homes>,
    names: Names,
    pub(super) links: Vec<Link>,
    /// Where there are many servers.
    pub(super) cluster: Option<Cluster>,
    pub(super) generation: u64,
    inbox: Option<UnboundedSender<Channel>>,
    /// Takes what replicas have to acknowledge.
    pub(super) acknowledger: Option<UnboundedSender<Call>>,
    /// Whether it is to take a fresh connection.
    pub(super) stale: Arc<AtomicBool>,
    pub(super) events: UnboundedSender<Event>,
    /// Set when nobody is left who could ask or be told anything: then the rest is given up.
    pub(super) last: Option<Instant>,
    weather: Weather,
    recent: Recent<End>,
    /// When connections that serve nothing are tried again.
    pub(super) probe_at: Instant,
    pub(super) warned_eviction: bool,
    warned_channels: bool,
    few_replicas: bool,
    /// Of the subscription, since it was last up.
    pub(super) warned_inbox: bool,
}

impl Driver {
    pub(super) fn new(
        core: Core,
        origin: Origin,
        settings: Settings,
        instance: Instance,
        prefix: Prefix,
        homes: Arc<Homes>,
    ) -> (Self, UnboundedReceiver<Event>) {
        let (events, receiver) = unbounded_channel();
        let cluster = origin
            .seeds()
            .map(|seeds| Cluster::new(seeds.clone(), &settings));
        let links = if cluster.is_some() {
            NOWHERE + 1
        } else {
            settings.connections
        };
        let driver = Self {
            core,
            origin: Arc::new(origin),
            settings,
            instance,
            names: Names::new(prefix.clone()),
            prefix,
            homes,
            links: (0..links).map(|_| Link::Idle).collect(),
            cluster,
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
        commands: UnboundedReceiver<Command>,
        events: UnboundedReceiver<Event>,
    ) {
        self.watch_terms();
        let mut intake = Intake::new(commands, events);
        loop {
            intake.take(self.next_timer()).await;
            if intake.is_deserted() {
                let last = Instant::now().after(self.settings.grace());
                self.last.get_or_insert(last);
            }
            // Read when all have been taken: a wait whose length counts from before it was asked for
            // would end too early.
            let now = Instant::now();
            for event in intake.heard.drain(..) {
                self.event(now, event);
            }
            if !intake.asked.is_empty() {
                self.connect_all(now);
            }
            for command in intake.asked.drain(..) {
                self.core.command(now, command);
            }
            self.core.tick(now);
            self.steer(now);
            self.retry_links(now);
            self.probe_links(now);
            self.flush(now);
            for (main, news) in self.core.take_news() {
                self.homes.tell(now, &main, &news);
            }
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

    fn next_timer(&self) -> Instant {
        let retries = self.links.iter().filter_map(|link| match link {
            Link::Down { retry_at, .. } => Some(*retry_at),
            Link::Idle | Link::Connecting { .. } | Link::Up { .. } => None,
        });
        retries
            .chain(self.core.next_timer())
            .chain(self.last)
            .chain([self.probe_at])
            .chain(self.cluster.as_ref().map(Cluster::next_look))
            .min()
            .unwrap_or(Instant::FAR)
    }

    fn event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Linked { link, result } => {
                let is_current = |fresh: &Fresh| fresh.term == self.origin.term();
                let result = match result {
                    Ok(fresh) if !is_current(&fresh) => Err(moved()),
                    result => result,
                };
                self.linked(now, link, result);
            }
            Event::Answered {
                link,
                generation,
                way,
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
                let (calls, result) = match result {
                    Ok(values) => {
                        let (calls, values) = part(calls, values);
                        (calls, Ok(values))
                    }
                    failed => (calls, failed),
                };
                if self.origin.can_move()
                    && let Ok(values) = &result
                {
                    self.note_ends(now, term, &calls, values);
                }
                self.answered(now, link, generation, way, calls, result);
            }
            Event::Probed {
                link,
                generation,
                result,
            } => self.probed(now, link, generation, result),
            Event::Inbox { id, inbox } => self.inbox_event(now, id, inbox),
            Event::Viewed { from, result } => self.viewed(now, &from, result),
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

    fn answered(
        &mut self,
        now: Instant,
        link: usize,
        generation: u64,
        way: Way,
        calls: Vec<Call>,
        result: Result<Vec<Value>, Option<RedisError>>,
    ) {
        match result {
            Ok(values) if values.len() == calls.len() => {
                self.heard(now, link, generation);
                let (mut whole, mut elsewhere) = (Vec::new(), Vec::new());
                for (call, value) in calls.into_iter().zip(values) {
                    match value {
                        Value::ServerError(error) => {
                            if self.cluster.is_some()
                                && let Some(redirect) = Redirect::of(&error)
                            {
                                elsewhere.push((redirect, call));
                                continue;
                            }
                            let mut failure = Failure::of_server(error);
                            if self.cluster.is_some() {
                                failure = failure.of_moving_slot();
                            }
                            match failure {
                                Failure::NoScript if self.settings.preloaded => {
                                    let failure = Failure::not_loaded();
                                    self.failed(now, link, generation, call, failure);
                                }
                                // It did not run, so it may go again, with its text.
                                Failure::NoScript => whole.push(call),
                                failure => self.failed(now, link, generation, call, failure),
                            }
                        }
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
                    self.send(link, whole, Way { whole: true, ..way });
                }
                if !elsewhere.is_empty() {
                    self.send_on(now, link, way, elsewhere);
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
                    Link::Idle | Link::Down { .. } | Link::Connecting { .. } => false,
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
                let end = End {
                    token: end.token,
                    resource: Arc::clone(&end.resource),
                    // Whatever was asked by this token has been answered.
                    latest_ms: 0,
                };
                self.recent.note(now, term, end);
            }
        }
    }

    /// Ends at a server that is new to us what its predecessor may not have told it.
    pub(super) fn end_again(&mut self, now: Instant, link: usize, term: Term) {
        let core = &self.core;
        let again = self
            .recent
            .take(term, |end| core.link_of(end.resource.tag) == link);
        let again: Vec<Call> = again
            .map(|end| Call {
                sent: now,
                body: Body::End(end),
            })
            .collect();
        let mut again = again.into_iter();
        while again.len() > 0 {
            let batch = again.by_ref().take(BATCH).collect();
            self.send(link, batch, Way::default());
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
        if let Failure::NotNow(_, error) = &failure
            && matches!(
                error.code(),
                Some("CLUSTERDOWN" | "MASTERDOWN" | "READONLY")
            )
        {
            self.look_soon(now);
        }
        self.core.answer(now, call, Err(failure));
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
                Link::Idle | Link::Up { .. } | Link::Down { .. } | Link::Connecting { .. } => {}
            }
        }
    }

    fn inbox_event(&mut self, now: Instant, id: u64, inbox: Inbox) {
        match inbox {
            Inbox::Up | Inbox::Down | Inbox::Heard { .. } | Inbox::Moved(_)
                if self.cluster.is_some() =>
            {
                self.ear_event(now, id, inbox);
            }
            // Of channels that only a cluster has.
            Inbox::Heard { .. } | Inbox::Moved(_) => {}
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
        if self.inbox.is_none() && self.cluster.is_none() && self.core.wants_inbox() {
            self.start_inbox();
        }
        for change in self.core.take_channels() {
            if self.cluster.is_some() {
                self.change_topic(change);
            } else if let Some(inbox) = &self.inbox {
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
                    self.send_all(link, calls, Way::default());
                } else {
                    for call in calls {
                        self.core.answer(now, call, Err(Failure::NotSent));
                    }
                }
            }
        }
    }

    pub(super) fn start_acknowledger(&mut self) {
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
        if self.origin.can_listen() {
            let inbox = self.start_listener(0, Arc::clone(&self.origin));
            self.inbox = Some(inbox);
        } else {
            // Kept, so that none is started again.
            self.inbox = Some(unbounded_channel().0);
            self.warn_polling(None);
        }
    }

    pub(super) fn start_listener(&self, id: u64, origin: Arc<Origin>) -> UnboundedSender<Channel> {
        let (changes, receiver) = unbounded_channel();
        let events = self.events.clone();
        let tell = move |inbox| {
            // A driver that is gone needs to know nothing.
            let _ = events.send(Event::Inbox { id, inbox });
        };
        let listener = Listener {
            origin,
            settings: self.settings.clone(),
            prefix: self.prefix.clone(),
            instance: self.instance,
            in_cluster: self.cluster.is_some(),
            tell,
            changes: receiver,
        };
        tokio::spawn(listener.run());
        changes
    }

    pub(super) fn send_all(&mut self, link: usize, calls: Vec<Call>, way: Way) {
        let mut calls = calls.into_iter();
        while calls.len() > 0 {
            // Collected, not split off: that would leave each batch the room of all.
            let batch = calls.by_ref().take(BATCH).collect();
            self.send(link, batch, way);
        }
    }

    /// One write and one timer for many requests.
    fn send(&mut self, link: usize, calls: Vec<Call>, way: Way) {
        let Link::Up {
            connection,
            publish,
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
        let publish = *publish;
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in &calls {
            tracing::trace!(script = call.script(publish).name, link, "call");
            if way.asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(call.command(publish, way.whole, &self.instance, &mut self.names));
        }
        let (mut connection, generation, term) = (connection.clone(), *generation, *term);
        let (events, patience) = (self.events.clone(), self.settings.command_timeout);
        let origin = Arc::clone(&self.origin);
        tokio::spawn(async move {
            let sending = connection.send_packed_commands(&pipeline, 0, pipeline.len());
            let result = match timeout(patience, origin.within(term, sending)).await {
                // Without the answers to ASKING: if it is refused, so is what follows.
                Ok(Ok(values)) if way.asking => Ok(values.into_iter().skip(1).step_by(2).collect()),
                Ok(result) => result.map_err(Some),
                Err(_) => Err(None),
            };
            let _ = events.send(Event::Answered {
                link,
                generation,
                way,
                term,
                calls,
                result,
            });
        });
    }

    /// Loads the scripts again: the server has forgotten them.
    fn reload(&self, link: usize) {
        let Link::Up {
            connection,
            publish,
            ..
        } = &self.links[link]
        else {
            return;
        };
        let (mut connection, patience) = (connection.clone(), self.settings.command_timeout);
        let publish = *publish;
        tokio::spawn(async move {
            let pipeline = link::all_scripts(publish);
            // Without it each request goes with its text, which is slower and no less right.
            let _ = timeout(
                patience,
                connection.send_packed_commands(&pipeline, 0, pipeline.len()),
            )
            .await;
        });
    }
}
