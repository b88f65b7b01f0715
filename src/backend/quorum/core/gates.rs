//! Who waits at each gate of this process, and when the first of them asks for all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::vote::{Seen, Vote};
use super::{Core, Entry};
use crate::backend::server::core::{Channel, Topic};
use crate::key::Resource;
use crate::time::{CLAIM, Instant};
use crate::token::Token;

/// How often the first who waits here asks again while it waits for a push, at the most and at the
/// least.
const PUMP: Duration = Duration::from_millis(CLAIM.as_millis() as u64 / 3);
const PUMP_LEAST: Duration = Duration::from_millis(50);
/// And where nobody would tell it.
const POLL: Duration = Duration::from_millis(250);
/// How soon after one question another follows because somebody told of a release.
const AFTER_RELEASE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Gate {
    /// In the order of their tickets.
    waiting: BTreeSet<(u64, Token)>,
    /// When the first of them asked last for all.
    pumped: Instant,
}

impl Gate {
    fn first(&self) -> Option<Token> {
        self.waiting.first().map(|(_, token)| *token)
    }
}

impl Core {
    /// The first who waits at each gate.
    pub(super) fn firsts(&self) -> Vec<Token> {
        self.gates.values().filter_map(Gate::first).collect()
    }

    pub(super) fn join_gate(&mut self, resource: &Arc<Resource>, ticket: u64, token: Token) {
        let gate = self.gates.entry(Arc::clone(resource)).or_insert_with(|| {
            if let Some(channel) = &resource.released {
                let topic = Topic::Released(channel.clone());
                self.channels.push(Channel::Join(topic));
            }
            Gate {
                waiting: BTreeSet::new(),
                pumped: Instant::from_nanos(0),
            }
        });
        gate.waiting.insert((ticket, token));
    }

    /// It waits no longer; the next one asks by a timer from here on.
    pub(super) fn leave_gate(
        &mut self,
        now: Instant,
        resource: &Arc<Resource>,
        ticket: u64,
        token: Token,
    ) {
        let Some(gate) = self.gates.get_mut(resource) else {
            return;
        };
        gate.waiting.remove(&(ticket, token));
        if let Some(first) = gate.first() {
            self.plan_pump(now, first, false);
            self.schedule(first);
            return;
        }
        self.gates.remove(resource);
        if let Some(channel) = &resource.released {
            let topic = Topic::Released(channel.clone());
            self.channels.push(Channel::Leave(topic));
        }
    }

    /// The first who waits at a gate asks for all.
    pub(super) fn note_pump(&mut self, now: Instant, resource: &Resource) {
        if let Some(gate) = self.gates.get_mut(resource) {
            gate.pumped = now;
        }
    }

    /// Somebody told of a release on an exact key's own channel, at one server. Anybody may, as often
    /// as they like, and who releases does so at all servers, one after the other: so the question
    /// that follows is asked soon rather than each time.
    pub(in crate::backend::quorum) fn released_elsewhere(&mut self, now: Instant, channel: &str) {
        let told =
            |(resource, _): &(&Arc<Resource>, &Gate)| resource.released.as_deref() == Some(channel);
        let Some((_, gate)) = self.gates.iter().find(told) else {
            return;
        };
        let at = gate.pumped.after(AFTER_RELEASE).max(now);
        if let Some(token) = gate.first()
            && let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token)
        {
            waiter.pump_at = waiter.pump_at.min(at);
            self.schedule(token);
        }
    }

    /// Sets when the first who waits here asks again, unless that is set.
    pub(super) fn plan_pump(&mut self, now: Instant, token: Token, anew: bool) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let gate = self.gates.get(&waiter.request.resource);
        let first = gate.and_then(Gate::first) == Some(token);
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
}
