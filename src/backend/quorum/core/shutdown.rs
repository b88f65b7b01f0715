//! The end of a handle's life: refuse newcomers, let guards go until a deadline, then end them.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{Core, Entry};
use crate::backend::ShutdownReport;
use crate::error::{Refusal, RefusalKind};
use crate::lease::LostReason;
use crate::time::Instant;
use crate::token::Token;

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
        let shutdown = self.shutdown.get_or_insert_with(|| Shutdown {
            deadline,
            last,
            answers: Vec::new(),
            cut: false,
            report: ShutdownReport::default(),
        });
        shutdown.answers.push(answer);
        shutdown.deadline = shutdown.deadline.min(deadline);
        shutdown.last = shutdown.last.min(last);
        for token in self.tokens(|entry| matches!(entry, Entry::Waiting(_))) {
            let refusal = Refusal::new(RefusalKind::ShuttingDown);
            self.leave(now, token, Err(refusal.into()));
        }
        self.settle_shutdown(now);
    }

    fn tokens(&self, chosen: impl Fn(&Entry) -> bool) -> Vec<Token> {
        let chosen = self.entries.iter().filter(|(_, entry)| chosen(entry));
        chosen.map(|(token, _)| *token).collect()
    }

    /// Takes the next step of a shutdown, if one is due.
    pub(super) fn settle_shutdown(&mut self, now: Instant) {
        let Some(shutdown) = &mut self.shutdown else {
            return;
        };
        if now >= shutdown.deadline && !std::mem::replace(&mut shutdown.cut, true) {
            for token in self.tokens(|entry| matches!(entry, Entry::Holding(_))) {
                self.lose(now, token, LostReason::ShutDown);
            }
        }
        let Some(shutdown) = &self.shutdown else {
            return;
        };
        // Nobody waits for the report twice, and making it looks at every entry.
        if shutdown.answers.is_empty() {
            return;
        }
        // What only servers have that are away ends by itself.
        let up = |server: usize| self.servers[server].up;
        let open = |entry: &Entry| match entry {
            Entry::Ending(ending) => ending.is_left_at(up),
            Entry::Holding(_) => true,
            Entry::Waiting(_) => false,
        };
        if now < shutdown.last && self.entries.values().any(open) {
            return;
        }
        let (mut released, mut abandoned) = (0, 0);
        for entry in self.entries.values() {
            match entry {
                Entry::Ending(ending) if ending.is_released() => released += 1,
                Entry::Ending(ending) if ending.held.is_some() => abandoned += 1,
                Entry::Holding(_) => abandoned += 1,
                Entry::Ending(_) | Entry::Waiting(_) => {}
            }
        }
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.report.abandoned = abandoned;
            // Those will be counted when they are forgotten, which nobody hears any more.
            let report = ShutdownReport {
                released: shutdown.report.released + released,
                ..shutdown.report
            };
            for answer in shutdown.answers.drain(..) {
                let _ = answer.send(report);
            }
        }
    }

    /// When a shutdown has its next step, so that the thread wakes for it.
    pub(super) fn shutdown_timer(&self) -> Option<Instant> {
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
