//! What a decision means outside of the lock: for a caller, for the agent, and for the server.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::{Answer, Given, Leaving, Waiter};
use crate::backend::{ReleaseAnswer, Terms};
use crate::error::{LockError, Refusal};
use crate::lease::{Lease, Release};
use crate::token::Token;

/// What becomes of a caller.
pub(in crate::backend::server::home) enum Entry {
    /// It waits, by this number.
    Waits(u64, oneshot::Receiver<Result<Lease, LockError>>),
    Refused(Refusal),
    /// It is to ask the server itself.
    Elsewhere,
}

/// An acquire that is to be started.
#[derive(Debug)]
pub(in crate::backend::server::home) struct Start {
    pub(in crate::backend::server::home) terms: Terms,
    /// For whom alone, if that one asks by itself.
    pub(in crate::backend::server::home) tries: Option<u64>,
}

/// What a change means for the agent.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::backend::server::home) enum Rouse {
    Rest,
    /// It has to look earlier than it would.
    Wake,
    /// Nobody attends to this home yet.
    Attend,
}

/// What the agent is to do next.
#[derive(Debug, Default)]
pub(in crate::backend::server::home) struct Turn {
    pub(in crate::backend::server::home) start: Vec<Start>,
    /// Whether to give up all seekers.
    pub(in crate::backend::server::home) stop: bool,
    /// What to ask the server about.
    pub(in crate::backend::server::home) question: Option<Vec<Token>>,
    /// How long until the next turn; `None` if there is nothing left to attend to.
    pub(in crate::backend::server::home) rest: Option<Duration>,
}

/// What follows from a decision, outside of the lock.
#[derive(Default)]
#[must_use = "what is dropped under the lock takes it again"]
pub(in crate::backend::server::home) struct Effects {
    // Mostly there is one of them, and that for each request.
    pub(super) told: SmallVec<[(Answer, Result<Lease, LockError>); 1]>,
    pub(super) ended: SmallVec<[Leaving; 1]>,
    pub(super) released: Option<(oneshot::Sender<ReleaseAnswer>, Release)>,
}

impl Effects {
    pub(in crate::backend::server::home) fn run(self) {
        for (lease, answer) in self.ended {
            lease.release_to(answer);
        }
        for (answer, told) in self.told {
            // A caller that has gone meanwhile drops the lease right here, which gives it back.
            let _ = answer.send(told);
        }
        if let Some((answer, release)) = self.released {
            let _ = answer.send(Ok(release));
        }
    }

    pub(super) fn give(&mut self, given: Option<Given>) {
        let given = given.map(|(answer, lease)| (answer, Ok(lease)));
        self.told.extend(given);
    }

    pub(super) fn refuse(&mut self, waiter: Waiter, refusal: Refusal) {
        self.told.push((waiter.answer, Err(refusal.into())));
    }
}
