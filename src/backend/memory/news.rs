//! What a change of a ledger means to others, kept until its lock is free: what is woken, dropped
//! or told may run anything, also what takes that lock again.

use std::cmp::Ordering;
use std::io;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::keeper;
use super::process::{Left, Process};
use crate::backend::Place;
use crate::error::LockError;
use crate::lease::{Lease, LeaseState, LostReason, log_loss, log_losses};
use crate::token::FencingToken;

#[derive(Default)]
#[must_use = "somebody waits for it"]
pub(super) struct News {
    items: Vec<Item>,
    losses: Losses,
}

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
        how: Left,
    },
    Lost(Arc<LeaseState>),
    /// Nobody can look in when something is due.
    Unwatched(io::Error),
}

impl News {
    pub(super) const fn is_empty(&self) -> bool {
        self.items.is_empty() && self.losses.0.is_empty()
    }

    pub(super) fn answer(
        &mut self,
        to: oneshot::Sender<Result<Lease, LockError>>,
        result: Result<Lease, LockError>,
    ) {
        self.items.push(Item::Answer { to, result });
    }

    pub(super) fn dropped(&mut self, place: Arc<dyn Place>) {
        self.items.push(Item::Dropped(place));
    }

    pub(super) fn ended(&mut self, process: Arc<Process>, how: Left) {
        self.items.push(Item::Ended { process, how });
    }

    /// A lease of the gate was lost; who watches its state, if anybody can, is told so.
    pub(super) fn lost(
        &mut self,
        gate: &Arc<str>,
        fence: FencingToken,
        reason: LostReason,
        state: Option<Arc<LeaseState>>,
    ) {
        self.items.extend(state.map(Item::Lost));
        self.losses.add(Loss {
            gate: Arc::clone(gate),
            reason,
            count: 1,
            fence: Some(fence),
        });
    }

    /// So many leases of the gate were lost, which nobody can watch.
    pub(super) fn lost_unseen(&mut self, gate: &Arc<str>, count: u64, reason: LostReason) {
        self.losses.add(Loss {
            gate: Arc::clone(gate),
            reason,
            count,
            fence: None,
        });
    }

    pub(super) fn unwatched(&mut self, error: io::Error) {
        self.items.push(Item::Unwatched(error));
    }

    /// What has happened at another place after this.
    pub(super) fn append(&mut self, later: Self) {
        self.items.extend(later.items);
        self.losses.append(later.losses);
    }

    /// In the order in which it happened: who lost hears of it before its successor does. Losses are
    /// logged before that: whoever hears that a shutdown is done may end the process.
    pub(super) fn deliver(self) {
        self.losses.log();
        for item in self.items {
            match item {
                // A caller that has gone meanwhile drops its lease right here, which gives it back.
                Item::Answer { to, result } => drop(to.send(result)),
                Item::Dropped(_) => {}
                Item::Ended { process, how } => process.lease_ended(how),
                Item::Lost(lease) => lease.wake_watchers(),
                Item::Unwatched(error) => keeper::log_not_started(&error),
            }
        }
    }
}

/// Leases that were lost in one go. Those of one gate that were lost for one reason are told
/// together: they may be many thousands.
#[derive(Default)]
struct Losses(Vec<Loss>);

struct Loss {
    gate: Arc<str>,
    reason: LostReason,
    count: u64,
    /// Of one that was lost alone, and whose fence is known.
    fence: Option<FencingToken>,
}

impl Loss {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_gate = self.gate.cmp(&other.gate);
        by_gate.then((self.reason as u8).cmp(&(other.reason as u8)))
    }
}

impl Losses {
    fn append(&mut self, others: Self) {
        for loss in others.0 {
            self.add(loss);
        }
    }

    /// Joined with the last one if they are alike, as those of one place are.
    fn add(&mut self, loss: Loss) {
        match self.0.last_mut() {
            Some(last) if last.cmp(&loss).is_eq() => {
                last.count += loss.count;
                last.fence = None;
            }
            _ => self.0.push(loss),
        }
    }

    fn log(mut self) {
        self.0.sort_by(Loss::cmp);
        let mut joined = Self::default();
        joined.append(self);
        for loss in joined.0 {
            let Loss { gate, reason, .. } = loss;
            match loss.fence {
                Some(fence) => log_loss(&gate, fence, reason),
                None => log_losses(&gate, loss.count, reason),
            }
        }
    }
}
