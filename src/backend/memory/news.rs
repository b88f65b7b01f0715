//! What a change of a ledger means to others, kept until its lock is free: what is woken, dropped
//! or told may run anything, also what takes that lock again.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::process::Process;
use crate::backend::Place;
use crate::error::LockError;
use crate::lease::{Lease, LeaseState};

#[derive(Default)]
#[must_use = "somebody waits for it"]
pub(super) struct News(Vec<Item>);

enum Item {
    /// A waiter's wait is over.
    Answer {
        to: oneshot::Sender<Result<Lease, LockError>>,
        result: Result<Lease, LockError>,
    },
    /// A waiter is gone, and with it perhaps the last who knew the place.
    Dropped(#[expect(dead_code, reason = "it is here to be dropped")] Arc<dyn Place>),
    /// A lease has ended whose process is shutting down.
    Ended {
        process: Arc<Process>,
        /// By its owner, or by the shutdown.
        released: bool,
    },
    Lost(Arc<LeaseState>),
}

impl News {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn answer(
        &mut self,
        to: oneshot::Sender<Result<Lease, LockError>>,
        result: Result<Lease, LockError>,
    ) {
        self.0.push(Item::Answer { to, result });
    }

    pub(super) fn dropped(&mut self, place: Arc<dyn Place>) {
        self.0.push(Item::Dropped(place));
    }

    pub(super) fn ended(&mut self, process: Arc<Process>, released: bool) {
        self.0.push(Item::Ended { process, released });
    }

    pub(super) fn lost(&mut self, lease: Arc<LeaseState>) {
        self.0.push(Item::Lost(lease));
    }

    /// In the order in which it happened: who lost hears of it before its successor does.
    pub(super) fn deliver(self) {
        for item in self.0 {
            match item {
                // A caller that has gone meanwhile drops its lease right here, which gives it back.
                Item::Answer { to, result } => drop(to.send(result)),
                Item::Dropped(_) => {}
                Item::Ended { process, released } => process.lease_ended(released),
                Item::Lost(lease) => lease.wake_watchers(),
            }
        }
    }
}
