//! Whether the server serves at all, for each connection: a circuit breaker.
//!
//! It opens when nothing is served: no connection can be had, nobody answers, or one caller after
//! the other has run out of patience. The driver then tries whether it can be closed; callers are
//! not spent on that. Whatever the server says to a request closes it, also a no: only silence, and
//! a server that can't serve now, are an outage.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Core, Entry};
use crate::backend::server::home::News;
use crate::backend::server::reply::Failure;
use crate::time::Instant;
use crate::token::Token;

/// So many callers in a row run out of patience before the server counts as away.
const OVERRUNS: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// How many ran out of patience since something was served.
    overruns: u32,
    open: Option<Outage>,
}

impl Breaker {
    /// Since when nothing is served, and why.
    pub(super) fn outage(&self) -> Option<(Instant, Failure)> {
        let open = self.open.as_ref();
        open.map(|outage| (outage.since, outage.failure.clone()))
    }
}

#[derive(Debug)]
struct Outage {
    since: Instant,
    failure: Failure,
}

impl Core {
    /// Whether nothing is served over this connection.
    pub(in crate::backend::server) fn is_open(&self, link: usize) -> bool {
        self.breakers[link].open.is_some()
    }

    /// Why nothing is.
    pub(super) fn outage(&self, link: usize) -> Option<Failure> {
        let open = self.breakers[link].open.as_ref();
        open.map(|outage| outage.failure.clone())
    }

    /// The same in a few words, for those who run the service.
    pub(in crate::backend::server) fn cause_of_outage(&self) -> Cow<'static, str> {
        let open = self
            .breakers
            .iter()
            .find_map(|breaker| breaker.open.as_ref());
        let failure = open.map_or(&Failure::NotSent, |outage| &outage.failure);
        failure.in_words(self.connect_trouble.as_ref()).1
    }

    /// Nothing is served over this connection, or it can't be had.
    pub(in crate::backend::server) fn trip(&mut self, now: Instant, link: usize, failure: Failure) {
        if self.is_open(link) {
            return;
        }
        self.breakers[link].open = Some(Outage {
            since: now,
            failure,
        });
        let concerned = |(token, entry): (&Token, &Entry)| match entry {
            Entry::Waiting(waiter) if self.link_of(waiter.request.resource.tag) == link => {
                Some(*token)
            }
            _ => None,
        };
        let concerned: Vec<_> = self.entries.iter().filter_map(concerned).collect();
        for token in concerned {
            self.bridge(now, token);
        }
        self.bridge_takers(now, link);
    }

    /// Something was served over this connection.
    pub(in crate::backend::server) fn served(&mut self, link: usize) {
        let breaker = std::mem::take(&mut self.breakers[link]);
        if breaker.open.is_some() {
            self.tell_homes_that_it_is_over(link);
        }
    }

    /// Seekers that have kept their places may have nothing to ask for long.
    fn tell_homes_that_it_is_over(&mut self, link: usize) {
        let seeks = |entry: &Entry| match entry {
            Entry::Waiting(waiter) if waiter.request.terms.kept > 0 => {
                let resource = &waiter.request.resource;
                (self.link_of(resource.tag) == link).then(|| Arc::clone(resource))
            }
            _ => None,
        };
        let homes: Vec<_> = self.entries.values().filter_map(seeks).collect();
        for resource in homes {
            self.hear(&resource, News::Back);
        }
    }

    /// A caller ran out of patience.
    pub(super) fn overran(&mut self, now: Instant, link: usize, failure: Option<Failure>) {
        let breaker = &mut self.breakers[link];
        breaker.overruns += 1;
        if breaker.overruns >= OVERRUNS {
            self.trip(now, link, failure.unwrap_or(Failure::NotSent));
        }
    }

    /// Shortens a waiter's patience to what it has for an outage, or ends its wait if that is over.
    /// Who has a place in the queue keeps it: that outlasts many an outage. But not where a home has
    /// others who wait for the same.
    pub(super) fn bridge(&mut self, now: Instant, token: Token) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let link = self.routes.link(waiter.request.resource.tag);
        let Some(outage) = &self.breakers[link].open else {
            return;
        };
        let kept = waiter.request.terms.kept > 0;
        let Some(bridge) = waiter.request.terms.bridge else {
            if kept {
                // It may stand there for callers of a home who have an answer of their own.
                let resource = Arc::clone(&waiter.request.resource);
                let failure = outage.failure.clone();
                let cause = self.waiter_error(now, token, Some(&failure));
                self.hear(&resource, News::Away(cause));
            }
            return;
        };
        if waiter.is_queued() && !kept {
            return;
        }
        let until = outage.since.after(bridge);
        if now < until {
            waiter.patience = waiter.patience.min(until);
            self.schedule(token);
        } else {
            let failure = outage.failure.clone();
            let error = self.waiter_error(now, token, Some(&failure));
            self.leave(now, token, Err(error.into()));
        }
    }
}
