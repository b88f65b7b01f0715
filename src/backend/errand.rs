//! What callers ask of a background thread about leases, and the place that asks it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::{Acquire, Place, ReleaseAnswer, ShutdownReport, Terms, Waiting};
use crate::error::{BackendError, LockError};
use crate::key::Resource;
use crate::lease::Lease;
use crate::token::Token;

/// What one acquire asks for, and where.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) resource: Arc<Resource>,
    pub(super) terms: Terms,
}

/// What each background thread is asked, wherever its state lives.
#[derive(Debug)]
pub(super) enum Errand {
    Acquire {
        token: Token,
        request: Request,
        /// Where the lease is given back to.
        place: Arc<dyn Place>,
        answer: oneshot::Sender<Result<Lease, LockError>>,
    },
    Cancel(Token),
    Release {
        token: Token,
        answer: Option<oneshot::Sender<ReleaseAnswer>>,
    },
    Shutdown {
        deadline: Duration,
        answer: oneshot::Sender<ShutdownReport>,
    },
}

/// One gate, at a thread that takes `C`. Nothing here blocks.
pub(super) struct ThreadPlace<C> {
    commands: UnboundedSender<C>,
    resource: Arc<Resource>,
}

impl<C> ThreadPlace<C> {
    pub(super) fn new(commands: &UnboundedSender<C>, resource: Arc<Resource>) -> Self {
        Self {
            commands: commands.clone(),
            resource,
        }
    }

    pub(super) fn resource(&self) -> &Resource {
        &self.resource
    }
}

impl<C: From<Errand>> ThreadPlace<C> {
    /// The thread outlives every place, so this only fails if it has panicked; then all futures say
    /// so.
    fn tell(&self, errand: Errand) {
        let _ = self.commands.send(errand.into());
    }
}

impl<C: From<Errand> + Send> Place for ThreadPlace<C> {
    fn acquire(&self, myself: &Arc<dyn Place>, terms: &Terms) -> Acquire {
        let Ok(token) = Token::draw() else {
            return Acquire::Ready(Err(BackendError::no_randomness().into()));
        };
        let (sender, answer) = oneshot::channel();
        self.tell(Errand::Acquire {
            token,
            request: Request {
                resource: Arc::clone(&self.resource),
                terms: *terms,
            },
            place: Arc::clone(myself),
            answer: sender,
        });
        Acquire::Waiting(Waiting::new(answer, Arc::clone(myself), token))
    }

    fn cancel(&self, token: Token) {
        self.tell(Errand::Cancel(token));
    }

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        self.tell(Errand::Release { token, answer });
    }
}

impl<C> fmt::Debug for ThreadPlace<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ThreadPlace")
            .field(&self.resource.gate)
            .finish()
    }
}
