//! One handle as the others see it: a process of its own, that can be shut down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::news::News;
use super::{Memory, rates};
use crate::backend::{ShutdownReport, Turns};
use crate::key::Subject;
use crate::lease::LostReason;
use crate::time::Instant;

/// How a lease has ended whose process is shutting down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// By its owner, or by the shutdown.
    Released,
    /// By the shutdown, and a delay is to keep others out.
    Delayed,
    /// By itself.
    Lost,
}

impl Left {
    /// Against its owner's will.
    pub(super) fn by(reason: LostReason, delayed: bool) -> Self {
        match reason {
            LostReason::ShutDown if delayed => Self::Delayed,
            LostReason::ShutDown => Self::Released,
            _ => Self::Lost,
        }
    }
}

#[derive(Debug)]
pub(super) struct Process {
    id: u64,
    closed: AtomicBool,
    ending: Mutex<Ending>,
    turns: Mutex<Booked>,
}

/// Turns at quotas, and what gives each back.
type Booked = Turns<(Arc<Subject>, Box<rates::Unbook>)>;

#[derive(Debug)]
struct Ending {
    /// Leases that have not ended, and 1 while they are counted.
    left: usize,
    deadline: Instant,
    report: ShutdownReport,
    answers: Vec<oneshot::Sender<ShutdownReport>>,
}

impl Process {
    pub(super) fn new(id: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            closed: AtomicBool::new(false),
            ending: Mutex::new(Ending {
                left: 1,
                deadline: Instant::FAR,
                report: ShutdownReport::default(),
                answers: Vec::new(),
            }),
            turns: Mutex::default(),
        })
    }

    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Whether it takes no more. To be asked under the lock of the ledger that is to change: each
    /// one is looked at after this was set.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn ending(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn turns(&self) -> MutexGuard<'_, Booked> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shut_down(
        self: &Arc<Self>,
        memory: &Arc<Memory>,
        deadline: Duration,
        answer: oneshot::Sender<ShutdownReport>,
    ) {
        let now = memory.clock.now();
        let deadline = now.after(deadline);
        let before = {
            let mut ending = self.ending();
            if ending.left == 0 {
                let _ = answer.send(ending.report);
                return;
            }
            ending.answers.push(answer);
            let before = ending.deadline;
            ending.deadline = before.min(deadline);
            before
        };
        if !self.closed.swap(true, Ordering::AcqRel) {
            for site in memory.sites.all() {
                site.change(memory, |ledger, news| {
                    let count = ledger.close(self, now, news);
                    // Under the ledger's lock: none of them can end before it is counted.
                    self.ending().left += count;
                });
            }
            let turns = self.turns().close();
            for (subject, unbook) in turns {
                memory.rates.unbook(&memory.clock, subject.key(), *unbook);
            }
            self.one_less(Left::Lost);
        }
        if deadline <= now {
            self.cut(memory);
        } else if deadline < before && self.ending().left > 0 {
            memory.sites.set_process_alarm(memory, self, deadline);
        }
    }

    /// The deadline has passed: its leases are ended.
    pub(super) fn cut(&self, memory: &Arc<Memory>) {
        let now = memory.clock.now();
        let mut all_news = News::default();
        for site in memory.sites.all() {
            let ((), news) =
                site.change_untold(memory, |ledger, news| ledger.end_all_of(self, now, news));
            all_news.append(news);
        }
        all_news.deliver();
    }

    /// One of the leases that were counted has ended.
    pub(super) fn lease_ended(&self, how: Left) {
        self.one_less(how);
    }

    fn one_less(&self, how: Left) {
        let (report, answers) = {
            let mut ending = self.ending();
            ending.left = ending.left.saturating_sub(1);
            ending.report.released += usize::from(how == Left::Released);
            ending.report.abandoned += usize::from(how == Left::Delayed);
            if ending.left > 0 {
                return;
            }
            (ending.report, std::mem::take(&mut ending.answers))
        };
        for answer in answers {
            let _ = answer.send(report);
        }
    }
}
