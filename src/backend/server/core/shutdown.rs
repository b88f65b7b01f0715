//! The end of a handle's life: refuse newcomers, let guards go until a deadline, then end them.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{Core, Entry};
use crate::backend::ShutdownReport;
use crate::lease::LostReason;
use crate::time::Instant;
use crate::token::Token;

/// The end of a handle's life.
#[derive(Debug)]
pub(super) struct Shutdown {
    deadline: Instant,
    answers: Vec<oneshot::Sender<ShutdownReport>>,
    /// Whether the guards that outlived the deadline were ended.
    cut: bool,
    /// Past it, what is not answered is abandoned.
    last: Instant,
    pub(super) report: ShutdownReport,
}

impl Core {
    pub(super) fn shut_down(
        &mut self,
        now: Instant,
        deadline: Duration,
        answer: oneshot::Sender<ShutdownReport>,
    ) {
        let deadline = now.after(deadline);
        // The calls under way, and one more for what they leave behind.
        let last = deadline.after(2 * self.settings.command_timeout);
        match &mut self.shutdown {
            Some(shutdown) => {
                shutdown.answers.push(answer);
                shutdown.deadline = shutdown.deadline.min(deadline);
                shutdown.last = shutdown.last.min(last);
            }
            None => {
                self.shutdown = Some(Shutdown {
                    deadline,
                    last,
                    answers: vec![answer],
                    cut: false,
                    report: ShutdownReport::default(),
                });
            }
        }
        let tokens: Vec<Token> = self.entries.keys().copied().collect();
        for token in tokens {
            self.refuse_shutting_down(now, token);
        }
        self.refuse_takers();
        self.refuse_turns();
        self.settle_shutdown(now);
    }

    /// Takes the next step of a shutdown, if one is due.
    pub(super) fn settle_shutdown(&mut self, now: Instant) {
        if self.shutdown.is_none() {
            return;
        }
        self.give_turns_back(now);
        let Some(shutdown) = &mut self.shutdown else {
            return;
        };
        if now >= shutdown.deadline && !std::mem::replace(&mut shutdown.cut, true) {
            let held: Vec<Token> = self
                .entries
                .iter()
                .filter_map(|(token, entry)| matches!(entry, Entry::Holding(_)).then_some(*token))
                .collect();
            for token in held {
                self.lose(now, token, LostReason::ShutDown);
            }
        }
        // Nobody waits for the report twice, and making it looks at every entry.
        let waits = |shutdown: &&Shutdown| !shutdown.answers.is_empty();
        let Some(last) = self
            .shutdown
            .as_ref()
            .filter(waits)
            .map(|shutdown| shutdown.last)
        else {
            return;
        };
        let done = self.is_idle(now) || now >= last;
        if let Some(shutdown) = &mut self.shutdown
            && done
        {
            let held = |entry: &&Entry| match entry {
                Entry::Ending(ending) => ending.held.is_some(),
                Entry::Holding(_) => true,
                Entry::Waiting(_) => false,
            };
            shutdown.report.abandoned = self.entries.values().filter(held).count();
            for answer in shutdown.answers.drain(..) {
                let _ = answer.send(shutdown.report);
            }
        }
    }

    /// When a shutdown has its next step, so that the thread wakes for it.
    pub(in super::super) fn shutdown_timer(&self) -> Option<Instant> {
        let shutdown = self
            .shutdown
            .as_ref()
            .filter(|shutdown| !shutdown.answers.is_empty())?;
        Some(if shutdown.cut {
            shutdown.last
        } else {
            shutdown.deadline
        })
    }
}
