//! How many requests are under way to a server at once: who waits is asked for in its turn, so that
//! no answer is late only because there are many.
//!
//! What is owed to leases (renewals, ends, votes that are missing) goes at once: it can't wait, and
//! there is little of it.

use super::{Core, Entry};
use crate::time::Instant;
use crate::token::Token;

impl Core {
    /// Whether the server has to answer others first.
    pub(super) fn is_busy(&self, server: usize) -> bool {
        self.servers[server].in_flight >= self.options.room
    }

    /// It is asked for next: its turn may have come.
    pub(super) fn put_in_front(&mut self, token: Token, server: usize) {
        if let Some(Entry::Waiting(waiter)) = self.entries.get(&token)
            && waiter.votes[server].lined
        {
            // Its place further behind is passed then.
            self.servers[server].line.push_front(token);
        }
    }

    /// Asks for as many as the server has room for, in the order in which they came.
    pub(super) fn ask_next(&mut self, now: Instant, server: usize) {
        while !self.is_busy(server)
            && let Some(token) = self.servers[server].line.pop_front()
        {
            // Who left meanwhile, or was answered before, needs nothing.
            if let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token)
                && std::mem::take(&mut waiter.votes[server].lined)
            {
                self.ask(now, token, server);
                self.schedule(token);
            }
        }
    }

    /// Nobody is asked for any more, until all are: the server is gone.
    pub(super) fn clear_line(&mut self, server: usize) {
        for token in std::mem::take(&mut self.servers[server].line) {
            if let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) {
                waiter.votes[server].lined = false;
            }
        }
    }

    /// Whether as many servers as it needs are about to answer for it, and answer others meanwhile.
    pub(super) fn is_under_way(&self, now: Instant, token: Token) -> bool {
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return false;
        };
        let ttl = waiter.request.terms.ttl.get();
        let votes = waiter.votes.iter().enumerate();
        let counts = votes.filter(|(server, vote)| {
            let asked = vote.asked.is_some() || vote.lined;
            vote.grant(now).is_some() || asked && self.votes(now, *server, ttl)
        });
        counts.count() >= waiter.needed
    }
}
