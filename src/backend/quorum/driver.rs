//! The background thread of a quorum: carries what the core decides to the servers and what they say
//! back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::call::{Call, token_of};
use super::core::Core;
use super::line::{Line, News, Order};
use crate::backend::errand::Errand;
use crate::backend::intake::Intake;
use crate::backend::server::core::Channel;
use crate::backend::server::inbox::{Inbox, Listener};
use crate::backend::server::reply::Failure;
use crate::backend::server::weather::{Change, Weather};
use crate::backend::server::{Origin, Settings};
use crate::key::Prefix;
use crate::time::Instant;
use crate::token::Instance;

/// How often a silent server is tried.
const PROBE: Duration = Duration::from_millis(200);

/// What the tasks of this thread report, of which server.
#[derive(Debug)]
pub(super) enum Event {
    Line(usize, News),
    Inbox(usize, Inbox),
}

pub(super) struct Driver {
    core: Core,
    origins: Vec<Arc<Origin>>,
    settings: Settings,
    prompt: Duration,
    instance: Instance,
    prefix: Prefix,
    events: UnboundedSender<Event>,
    /// Made when they are first needed.
    lines: Vec<UnboundedSender<Order>>,
    /// What keeps the listeners running.
    inboxes: Vec<UnboundedSender<Channel>>,
    /// How the names of processes' own channels begin.
    channels: String,
    weather: Vec<Weather>,
    /// When silent servers are tried.
    probe_at: Instant,
    warned_eviction: bool,
    warned_channels: bool,
    /// Set when nobody is left who could ask or be told anything: then the rest is given up.
    last: Option<Instant>,
}

impl Driver {
    pub(super) fn new(
        core: Core,
        origins: Vec<Origin>,
        settings: Settings,
        prompt: Duration,
        instance: Instance,
        prefix: Prefix,
    ) -> (Self, UnboundedReceiver<Event>) {
        let (events, receiver) = unbounded_channel();
        let driver = Self {
            core,
            weather: origins.iter().map(|_| Weather::new()).collect(),
            origins: origins.into_iter().map(Arc::new).collect(),
            settings,
            prompt,
            instance,
            events,
            lines: Vec::new(),
            inboxes: Vec::new(),
            channels: prefix.inbox_channels(),
            prefix,
            probe_at: Instant::FAR,
            warned_eviction: false,
            warned_channels: false,
            last: None,
        };
        (driver, receiver)
    }

    /// Runs until every handle is dropped and what they left is cleaned up, or can't be.
    pub(super) async fn run(
        mut self,
        commands: UnboundedReceiver<Errand>,
        events: UnboundedReceiver<Event>,
    ) {
        let mut intake = Intake::new(commands, events);
        loop {
            intake.take(self.next_timer()).await;
            if intake.is_deserted() {
                let last = Instant::now().after(self.settings.grace());
                self.last.get_or_insert(last);
            }
            let now = Instant::now();
            for event in intake.heard.drain(..) {
                self.event(now, event);
            }
            if !intake.asked.is_empty() && self.lines.is_empty() {
                self.start_lines();
            }
            for errand in intake.asked.drain(..) {
                self.core.errand(now, errand);
            }
            self.core.tick(now);
            self.probe(now);
            self.flush();
            self.report(now);
            if self
                .last
                .is_some_and(|last| self.core.is_idle() || now >= last)
            {
                return;
            }
        }
    }

    fn next_timer(&self) -> Instant {
        let timers = self.core.next_timer().into_iter().chain(self.last);
        timers.chain([self.probe_at]).min().unwrap_or(Instant::FAR)
    }

    fn start_lines(&mut self) {
        for (server, origin) in self.origins.iter().enumerate() {
            let (orders, receiver) = unbounded_channel();
            let line = Line {
                server,
                origin: Arc::clone(origin),
                settings: self.settings.clone(),
                prefix: self.prefix.clone(),
                instance: self.instance,
                prompt: self.prompt,
                events: self.events.clone(),
                orders: receiver,
            };
            tokio::spawn(line.run());
            self.lines.push(orders);
        }
    }

    fn start_inboxes(&mut self) {
        for (server, origin) in self.origins.iter().enumerate() {
            let (changes, receiver) = unbounded_channel();
            let events = self.events.clone();
            let listener = Listener {
                origin: Arc::clone(origin),
                settings: self.settings.clone(),
                prefix: self.prefix.clone(),
                instance: self.instance,
                in_cluster: false,
                tell: move |inbox| {
                    // A driver that is gone needs to know nothing.
                    let _ = events.send(Event::Inbox(server, inbox));
                },
                changes: receiver,
            };
            tokio::spawn(listener.run());
            self.inboxes.push(changes);
        }
    }

    fn event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Line(server, News::Up(arrival)) => {
                if let Some(policy) = &arrival.evicts
                    && !std::mem::replace(&mut self.warned_eviction, true)
                {
                    tracing::warn!(
                        server = server + 1,
                        policy,
                        "the server may evict keys that are held; set maxmemory-policy to noeviction"
                    );
                }
                self.core.linked(now, server, arrival);
            }
            Event::Line(server, News::Down(trouble)) => self.core.unlinked(now, server, trouble),
            Event::Line(_, News::Answered(calls, result)) => self.answered(now, calls, result),
            Event::Line(server, News::Prompt) => self.core.well_again(now, server),
            Event::Inbox(server, inbox) => self.inbox_event(now, server, inbox),
        }
    }

    fn answered(
        &mut self,
        now: Instant,
        calls: Vec<Call>,
        result: Result<Vec<redis::Value>, Failure>,
    ) {
        match result {
            Ok(values) => {
                for (call, value) in calls.into_iter().zip(values) {
                    let result = match value {
                        redis::Value::ServerError(error) => match Failure::of_server(error) {
                            Failure::NoScript => Err(Failure::not_loaded()),
                            failure => Err(failure),
                        },
                        value => Ok(value),
                    };
                    self.core.answer(now, call, result);
                }
            }
            Err(failure) => {
                for call in calls {
                    self.core.answer(now, call, Err(failure.clone()));
                }
            }
        }
    }

    fn inbox_event(&mut self, now: Instant, server: usize, inbox: Inbox) {
        match inbox {
            Inbox::Up => self.core.inbox_changed(now, server, true),
            Inbox::Down => self.core.inbox_changed(now, server, false),
            Inbox::Failing(error) => {
                let code = error.code();
                tracing::debug!(server = server + 1, code, "no subscription");
            }
            Inbox::Forbidden(error) => {
                if !std::mem::replace(&mut self.warned_channels, true) {
                    tracing::warn!(
                        server = server + 1,
                        code = error.code(),
                        "no pushes: waiters ask again by a timer; allow the channels"
                    );
                }
            }
            // Only where each slot has channels of its own.
            Inbox::Heard { .. } | Inbox::Moved(_) => {}
            Inbox::Message { channel, .. } if !channel.starts_with(&self.channels) => {
                self.core.released_elsewhere(now, &channel);
            }
            Inbox::Message { text, .. } => {
                // Anybody can write here; what names no waiter of ours is no reason to do anything.
                if let Some(token) = token_of(&text, &self.instance) {
                    self.core.push(now, server, token);
                }
            }
        }
    }

    /// Tries servers that are up and silent, whether they answer promptly again: nobody else does.
    fn probe(&mut self, now: Instant) {
        let silent = (0..self.lines.len()).filter(|&server| self.core.is_silent(server));
        let silent: Vec<usize> = silent.collect();
        if silent.is_empty() {
            self.probe_at = Instant::FAR;
        } else if self.probe_at == Instant::FAR {
            self.probe_at = now.after(PROBE);
        } else if self.probe_at <= now {
            self.probe_at = now.after(PROBE);
            for server in silent {
                let _ = self.lines[server].send(Order::Probe);
            }
        }
    }

    /// Sends what the core has decided.
    fn flush(&mut self) {
        if self.inboxes.is_empty() && self.core.wants_inbox() {
            self.start_inboxes();
        }
        for change in self.core.take_channels() {
            for inbox in &self.inboxes {
                // A listener ends after this thread only.
                let _ = inbox.send(change.clone());
            }
        }
        let calls = self.core.take_calls();
        if calls.is_empty() {
            return;
        }
        let mut sorted: Vec<Vec<Call>> = self.lines.iter().map(|_| Vec::new()).collect();
        for call in calls {
            sorted[call.server].push(call);
        }
        for (line, calls) in self.lines.iter().zip(sorted) {
            if !calls.is_empty() {
                // A line ends after this thread only.
                let _ = line.send(Order::Send(calls));
            }
        }
    }

    /// Tells of each server's outage once, and only if it concerns anybody.
    fn report(&mut self, now: Instant) {
        for (server, weather) in self.weather.iter_mut().enumerate() {
            if self.last.is_some() && weather.is_fair() {
                continue;
            }
            match weather.look(now, self.core.is_away(server)) {
                Some(Change::Away) => {
                    let cause = &*self.core.cause_of_absence(now, server);
                    let server = server + 1;
                    tracing::warn!(
                        server,
                        cause,
                        "a server of the quorum is away; trying again until it is back"
                    );
                }
                Some(Change::Back) => {
                    tracing::info!(server = server + 1, "a server of the quorum is back");
                }
                None => {}
            }
        }
    }
}
