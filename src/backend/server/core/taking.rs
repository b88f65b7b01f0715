//! A call at the quotas of a subject, from its asking to its answer.

use std::sync::Arc;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::{Command, Core};
use crate::backend::{Take, Taken};
use crate::error::{BackendError, BackendErrorKind, LockError};
use crate::key::Resource;
use crate::time::Instant;

/// What a caller asks of a subject's quotas.
#[derive(Debug)]
pub(in crate::backend::server) struct Asked {
    pub(in crate::backend::server) resource: Arc<Resource>,
    pub(in crate::backend::server) take: Take,
    /// By which a booking is given back.
    pub(in crate::backend::server) commands: UnboundedSender<Command>,
}

impl Core {
    pub(super) fn take(
        &mut self,
        _now: Instant,
        asked: Asked,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    ) {
        let text = format!("{} `{}`", asked.take.op.doing(), asked.resource.gate);
        let error = BackendError::new(BackendErrorKind::Unsupported, text, None);
        let _ = (self.links.len(), answer.send(Err(error.into())));
    }
}
