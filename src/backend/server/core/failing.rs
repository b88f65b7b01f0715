//! What a caller is told when the server could not be asked, or did not do what was asked.

use std::time::Duration;

use super::Core;
use crate::backend::server::advice;
use crate::backend::server::reply::Failure;
use crate::backend::server::reply::failure::Trouble;
use crate::error::{BackendError, BackendErrorKind};

/// How far a call had come when it failed.
#[derive(Debug)]
pub(in crate::backend::server) struct Progress {
    /// What was to be done, and at which gate.
    pub(in crate::backend::server) doing: String,
    pub(in crate::backend::server) stage: Stage,
    pub(in crate::backend::server) elapsed: Duration,
    /// `None` where it had all the time there is.
    pub(in crate::backend::server) limit: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::server) enum Stage {
    Asking,
    /// It has a place on the server.
    Queued,
    /// It was granted, and the grant is being confirmed.
    Confirming,
}

impl Core {
    /// What to tell the caller whose request failed; without a failure, it was never sent.
    pub(super) fn failure(&self, progress: &Progress, failure: Option<&Failure>) -> BackendError {
        progress.failed(self.connect_trouble.as_ref(), failure)
    }
}

impl Progress {
    /// What to tell of it, where it failed; without a failure, it was never sent.
    pub(in crate::backend::server) fn failed(
        &self,
        trouble: Option<&Trouble>,
        failure: Option<&Failure>,
    ) -> BackendError {
        let (kind, phase, what, source) = match failure {
            None | Some(Failure::NotSent | Failure::NoScript) => {
                let kind = trouble.map_or(BackendErrorKind::Unreachable, |trouble| trouble.kind);
                let source = trouble.map(|trouble| trouble.error.clone());
                let what = advice::on_connecting(trouble);
                (kind, "connecting", what, source)
            }
            Some(Failure::Unknown(None)) => {
                let what = advice::ON_SILENCE.into();
                (
                    BackendErrorKind::TimedOut,
                    "waiting for the answer",
                    what,
                    None,
                )
            }
            Some(Failure::Unknown(Some(error))) => {
                let (what, source) = (advice::on_break(error), Some(error.clone()));
                (
                    BackendErrorKind::Unreachable,
                    "waiting for the answer",
                    what,
                    source,
                )
            }
            Some(Failure::NotNow(kind, error) | Failure::Final(kind, error)) => {
                let what = advice::on_answer(*kind, Some(error));
                (*kind, "answered", what, Some(error.clone()))
            }
        };
        BackendError::new(kind, self.told(phase, &what), source)
    }

    /// How far it came, and what to say of that.
    pub(super) fn told(&self, phase: &str, what: &str) -> String {
        let stage = match self.stage {
            Stage::Asking => "",
            Stage::Queued => "queued, ",
            Stage::Confirming => "confirming the grant, ",
        };
        let (doing, elapsed) = (&self.doing, self.elapsed.as_millis());
        let limit = self.limit.map(|limit| format!(" of {}", limit.as_millis()));
        let limit = limit.unwrap_or_default();
        format!("{doing} ({stage}{phase}, after {elapsed}{limit} ms): {what}")
    }
}
