//! How the connections for commands are kept: made when they are needed, made anew when they break,
//! tried while they serve nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::RedisError;

use super::backoff::Backoff;
use super::call::Call;
use super::driver::{Driver, Event};
use super::link::{self, Fresh};
use super::origin::Term;
use super::reply::Failure;
use super::reply::failure::Trouble;
use super::script::{Publish, Script};
use super::wire::Wire;
use crate::time::Instant;

/// Who is served again is to know within a second: pauses count from the beginning of an attempt,
/// so that one which got no answer is followed by the next at once.
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
/// So many attempts fail before the server counts as away: it may just be restarting.
const ATTEMPTS: u32 = 3;
/// How often a connection that is up, and over which nothing is served, is tried.
const PROBE: Duration = Duration::from_millis(200);

/// A connection for commands, or what stands in its place.
#[derive(Debug)]
pub(super) enum Link {
    /// Nobody has asked for it, or nobody needs it any longer.
    Idle,
    Down {
        attempts: u32,
        retry_at: Instant,
    },
    Connecting {
        attempts: u32,
        since: Instant,
    },
    Up {
        connection: Wire,
        /// How scripts on this server tell of grants.
        publish: Publish,
        generation: u64,
        term: Term,
        answered: Instant,
        /// How often it was made without serving anybody.
        attempts: u32,
    },
}

impl Driver {
    pub(super) fn attempts(&self, link: usize) -> u32 {
        match &self.links[link] {
            Link::Connecting { attempts, .. }
            | Link::Down { attempts, .. }
            | Link::Up { attempts, .. } => *attempts,
            Link::Idle => 0,
        }
    }

    fn pause(&self, attempts: u32) -> Duration {
        RETRY.pause(attempts, self.instance.jitter(attempts))
    }

    /// When to try again after an attempt that failed now. There is a short pause at least:
    /// attempts of a fleet that began together fail together.
    fn retry_at(&self, now: Instant, link: usize, attempts: u32) -> Instant {
        let least = now.after(self.pause(0));
        match &self.links[link] {
            Link::Connecting { since, .. } => since.after(self.pause(attempts)).max(least),
            Link::Idle | Link::Down { .. } | Link::Up { .. } => now.after(self.pause(attempts)),
        }
    }

    pub(super) fn connect_all(&mut self, now: Instant) {
        if self.acknowledger.is_none() {
            self.start_acknowledger();
        }
        if self.cluster.is_some() {
            self.begin_to_look(now);
            return;
        }
        for link in 0..self.links.len() {
            if matches!(self.links[link], Link::Idle) {
                self.connect(now, link, 0);
            }
        }
    }

    pub(super) fn retry_links(&mut self, now: Instant) {
        for link in 0..self.links.len() {
            if let Link::Down { attempts, retry_at } = self.links[link]
                && retry_at <= now
            {
                self.connect(now, link, attempts);
            }
        }
    }

    pub(super) fn connect(&mut self, now: Instant, link: usize, attempts: u32) {
        self.links[link] = Link::Connecting {
            attempts,
            since: now,
        };
        let origin = match &self.cluster {
            None => Some(Arc::clone(&self.origin)),
            Some(cluster) => cluster.origin_of(link),
        };
        let (settings, events) = (self.settings.clone(), self.events.clone());
        let (probe, in_cluster) = (self.probe_key(link), self.cluster.is_some());
        tokio::spawn(async move {
            // In a task of its own: a panic in somebody's resolver or pool must not end the
            // attempts.
            let attempt = tokio::spawn(async move {
                match origin {
                    Some(origin) => {
                        link::connect(&origin, &settings, &probe, in_cluster, Script::all).await
                    }
                    None => Err((redis::ErrorKind::Client, "the node has no address").into()),
                }
            });
            let result = attempt
                .await
                .unwrap_or_else(|_| Err((redis::ErrorKind::Client, "connecting panicked").into()));
            let _ = events.send(Event::Linked { link, result });
        });
    }

    /// Asks over connections that are up and serve nothing whether they do again: nobody else may.
    pub(super) fn probe_links(&mut self, now: Instant) {
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

    /// A key that the server at the other end would have, if anybody did.
    fn probe_key(&self, link: usize) -> String {
        let tag = self.cluster.as_ref();
        match tag.and_then(|cluster| cluster.tag_at(link)) {
            Some(tag) => self.prefix.probe_at(tag),
            None => self.prefix.probe(),
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
        let key = self.probe_key(link);
        tokio::spawn(async move {
            let result = link::probe(&mut connection, &key, patience).await;
            let _ = events.send(Event::Probed {
                link,
                generation,
                result,
            });
        });
    }

    pub(super) fn probed(
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

    /// An attempt to connect has ended.
    pub(super) fn linked(&mut self, now: Instant, link: usize, result: Result<Fresh, RedisError>) {
        if !matches!(self.links[link], Link::Connecting { .. }) {
            // Nobody needs it any longer.
            return;
        }
        let fresh = match result {
            Ok(fresh) => fresh,
            Err(error) => return self.failed_to_link(now, link, error),
        };
        if let Some(policy) = fresh.evicts
            && !std::mem::replace(&mut self.warned_eviction, true)
        {
            tracing::warn!(
                policy,
                "the server may evict keys that are held; set maxmemory-policy to noeviction"
            );
        }
        self.core.time_seen(link, fresh.us, now);
        self.generation += 1;
        if self.generation > self.links.len() as u64 {
            self.stale.store(true, Ordering::Relaxed);
        }
        let attempts = self.attempts(link);
        self.links[link] = Link::Up {
            connection: fresh.connection,
            publish: fresh.publish,
            generation: self.generation,
            term: fresh.term,
            answered: now,
            attempts,
        };
        // First: whoever asks after these finds them over.
        self.end_again(now, link, fresh.term);
        self.core.link_changed(now, link, true);
    }

    fn failed_to_link(&mut self, now: Instant, link: usize, error: RedisError) {
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

    /// Whether it is this connection that is up, and not a later one in its stead.
    pub(super) fn is_current(&self, link: usize, generation: u64) -> bool {
        matches!(&self.links[link], Link::Up { generation: current, .. } if *current == generation)
    }

    /// Something came over a connection.
    pub(super) fn heard(&mut self, now: Instant, link: usize, generation: u64) {
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

    /// Replaces a connection, and tells what was under way on it.
    pub(super) fn broken(
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

    pub(super) fn take_down(&mut self, now: Instant, link: usize) {
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

    /// Gives up a connection that nobody needs any longer. What is under way on it is answered
    /// still.
    pub(super) fn retire(&mut self, now: Instant, link: usize) {
        if !matches!(self.links[link], Link::Idle) {
            self.links[link] = Link::Idle;
            self.core.link_changed(now, link, false);
        }
        // That it serves nobody is no outage.
        self.core.served(link);
    }
}
