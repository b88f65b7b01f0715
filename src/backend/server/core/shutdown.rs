//! The end of a handle's life, where takers and turns have theirs too.

use std::time::Duration;

use super::{Core, Entry};
use crate::backend::ShutdownReport;
use crate::backend::shutdown::{Closing, Shutdown};
use crate::lease::LostReason;
use crate::time::Instant;
use crate::token::Token;

impl Closing for Core {
    fn shutdown(&mut self) -> &mut Option<Shutdown> {
        &mut self.shutdown
    }

    fn command_timeout(&self) -> Duration {
        self.settings.command_timeout
    }

    fn refuse_all(&mut self, now: Instant) {
        let tokens: Vec<Token> = self.entries.keys().copied().collect();
        for token in tokens {
            self.refuse_shutting_down(now, token);
        }
        self.refuse_takers();
        self.refuse_turns();
    }

    fn give_back(&mut self, now: Instant) {
        self.give_turns_back(now);
    }

    fn cut(&mut self, now: Instant) {
        let held: Vec<Token> = self
            .entries
            .iter()
            .filter_map(|(token, entry)| matches!(entry, Entry::Holding(_)).then_some(*token))
            .collect();
        for token in held {
            self.lose(now, token, LostReason::ShutDown);
        }
    }

    fn is_done(&self, now: Instant) -> bool {
        self.is_idle(now)
    }

    fn left(&self) -> ShutdownReport {
        let held = |entry: &&Entry| match entry {
            Entry::Ending(ending) => ending.held.is_some(),
            Entry::Holding(_) => true,
            Entry::Waiting(_) => false,
        };
        ShutdownReport {
            released: 0,
            abandoned: self.entries.values().filter(held).count(),
        }
    }
}
