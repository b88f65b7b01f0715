//! The end of a handle's life: refuse newcomers, let guards go until a deadline, then end them.

use std::time::Duration;

use tokio::sync::oneshot;

use super::ShutdownReport;
use crate::time::Instant;

/// How far a shutdown has come.
#[derive(Debug)]
pub(super) struct Shutdown {
    deadline: Instant,
    answers: Vec<oneshot::Sender<ShutdownReport>>,
    /// Whether the guards that outlived the deadline were ended.
    cut: bool,
    /// Past it, what is not answered is abandoned.
    last: Instant,
    /// How many leases were given back since it began.
    pub(super) released: usize,
}

impl Shutdown {
    /// When it has its next step, so that the thread wakes for it.
    pub(super) fn timer(&self) -> Option<Instant> {
        let next = if self.cut { self.last } else { self.deadline };
        self.is_awaited().then_some(next)
    }

    /// Nobody waits for the report twice, and making it looks at every entry.
    fn is_awaited(&self) -> bool {
        !self.answers.is_empty()
    }

    fn is_to_cut(&mut self, now: Instant) -> bool {
        now >= self.deadline && !std::mem::replace(&mut self.cut, true)
    }
}

/// What a core tells and does of its entries in the course of its shutdown.
pub(super) trait Closing {
    fn shutdown(&mut self) -> &mut Option<Shutdown>;

    /// How long a call may take.
    fn command_timeout(&self) -> Duration;

    /// Refuses all who wait.
    fn refuse_all(&mut self, now: Instant);

    /// Gives back what nobody holds, as soon as that can be.
    fn give_back(&mut self, _now: Instant) {}

    /// Ends the leases that are held.
    fn cut(&mut self, now: Instant);

    /// Whether nothing is left that is worth waiting for.
    fn is_done(&self, now: Instant) -> bool;

    /// The leases that are known still: those that count as given back though they were not
    /// forgotten yet, and those that were not given back.
    fn left(&self) -> ShutdownReport;

    fn shut_down(
        &mut self,
        now: Instant,
        deadline: Duration,
        answer: oneshot::Sender<ShutdownReport>,
    ) {
        let deadline = now.after(deadline);
        // The calls under way, and one more for what they leave behind.
        let last = deadline.after(2 * self.command_timeout());
        let shutdown = self.shutdown().get_or_insert_with(|| Shutdown {
            deadline,
            answers: Vec::new(),
            cut: false,
            last,
            released: 0,
        });
        shutdown.answers.push(answer);
        shutdown.deadline = shutdown.deadline.min(deadline);
        shutdown.last = shutdown.last.min(last);
        self.refuse_all(now);
        self.settle_shutdown(now);
    }

    /// Takes the next step of a shutdown, if one is due.
    fn settle_shutdown(&mut self, now: Instant) {
        if self.shutdown().is_none() {
            return;
        }
        self.give_back(now);
        let shutdown = self.shutdown().as_mut();
        if shutdown.is_some_and(|shutdown| shutdown.is_to_cut(now)) {
            self.cut(now);
        }
        let shutdown = self.shutdown().as_ref();
        let Some(last) = shutdown
            .filter(|shutdown| shutdown.is_awaited())
            .map(|shutdown| shutdown.last)
        else {
            return;
        };
        if now < last && !self.is_done(now) {
            return;
        }
        let left = self.left();
        if let Some(shutdown) = self.shutdown() {
            let report = ShutdownReport {
                released: shutdown.released + left.released,
                abandoned: left.abandoned,
            };
            for answer in shutdown.answers.drain(..) {
                let _ = answer.send(report);
            }
        }
    }
}
