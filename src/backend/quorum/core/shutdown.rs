//! The end of a handle's life, where servers that are away keep nobody waiting.

use std::time::Duration;

use super::{Core, Entry};
use crate::backend::ShutdownReport;
use crate::backend::shutdown::{Closing, Shutdown};
use crate::error::{Refusal, RefusalKind};
use crate::lease::LostReason;
use crate::time::Instant;
use crate::token::Token;

impl Core {
    fn tokens(&self, chosen: impl Fn(&Entry) -> bool) -> Vec<Token> {
        let chosen = self.entries.iter().filter(|(_, entry)| chosen(entry));
        chosen.map(|(token, _)| *token).collect()
    }
}

impl Closing for Core {
    fn shutdown(&mut self) -> &mut Option<Shutdown> {
        &mut self.shutdown
    }

    fn command_timeout(&self) -> Duration {
        self.settings.command_timeout
    }

    fn refuse_all(&mut self, now: Instant) {
        for token in self.tokens(|entry| matches!(entry, Entry::Waiting(_))) {
            let refusal = Refusal::new(RefusalKind::ShuttingDown);
            self.leave(now, token, Err(refusal.into()));
        }
    }

    fn cut(&mut self, now: Instant) {
        for token in self.tokens(|entry| matches!(entry, Entry::Holding(_))) {
            self.lose(now, token, LostReason::ShutDown);
        }
    }

    /// What only servers have that are away ends by itself.
    fn is_done(&self, _now: Instant) -> bool {
        let up = |server: usize| self.servers[server].up;
        let open = |entry: &Entry| match entry {
            Entry::Ending(ending) => ending.is_left_at(up),
            Entry::Holding(_) => true,
            Entry::Waiting(_) => false,
        };
        !self.entries.values().any(open)
    }

    /// Those that are given back will be counted when they are forgotten, which nobody hears any
    /// more.
    fn left(&self) -> ShutdownReport {
        let mut left = ShutdownReport::default();
        for entry in self.entries.values() {
            match entry {
                Entry::Ending(ending) if ending.is_released() => left.released += 1,
                Entry::Ending(ending) if ending.held.is_some() => left.abandoned += 1,
                Entry::Holding(_) => left.abandoned += 1,
                Entry::Ending(_) | Entry::Waiting(_) => {}
            }
        }
        left
    }
}
