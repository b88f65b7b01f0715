//! What a caller is told when the server could not be asked, or did not do what was asked.

use super::Core;
use crate::backend::server::call::Request;
use crate::backend::server::reply::Failure;
use crate::error::{BackendError, BackendErrorKind};

impl Core {
    /// What to tell the caller of a request that failed.
    pub(super) fn failure(
        &self,
        request: &Request,
        doing: &str,
        failure: Option<&Failure>,
    ) -> BackendError {
        let gate = &request.resource.gate;
        let timeout = self.settings.command_timeout.as_millis();
        let (kind, what, source) = match failure {
            None | Some(Failure::NotSent | Failure::NoScript) => {
                let error = self.connect_error.clone();
                let (kind, what) = match &error {
                    Some(error) if error.kind() == redis::ErrorKind::AuthenticationFailed => (
                        BackendErrorKind::NotPermitted,
                        "the server refuses the credentials; check user and password",
                    ),
                    _ => {
                        let what = "there is no connection to the server; check that it runs and that the address is right";
                        (BackendErrorKind::Unreachable, what)
                    }
                };
                (kind, what.to_owned(), error)
            }
            Some(Failure::Unknown(None)) => (
                BackendErrorKind::TimedOut,
                format!(
                    "no answer within {timeout} ms; the server is slow or the path to it is broken"
                ),
                None,
            ),
            Some(Failure::Unknown(Some(error))) => (
                BackendErrorKind::Unreachable,
                "the connection broke before the answer came".to_owned(),
                Some(error.clone()),
            ),
            Some(Failure::NotNow(error)) => (
                BackendErrorKind::Refused,
                "the server can't serve now (loading, busy, read-only or without a master)"
                    .to_owned(),
                Some(error.clone()),
            ),
            Some(Failure::Final(kind, error)) => {
                (*kind, remedy(*kind).to_owned(), Some(error.clone()))
            }
        };
        BackendError::new(kind, format!("{doing} `{gate}`: {what}"), source)
    }
}

/// What to do about an error that repeating does not mend.
fn remedy(kind: BackendErrorKind) -> &'static str {
    match kind {
        BackendErrorKind::Refused => {
            "the server declined (out of memory, too few replicas, or its persistence is broken); see its log"
        }
        BackendErrorKind::NotPermitted => {
            "the server's user may not do this; see the ACL in SECURITY.md"
        }
        BackendErrorKind::ForeignData => {
            "something else lives under this key; choose another name or prefix, or remove it"
        }
        BackendErrorKind::Incompatible => {
            "a process with a later release of this crate uses this gate; let all run releases that follow each other"
        }
        BackendErrorKind::Protocol | BackendErrorKind::TimedOut | BackendErrorKind::Unreachable => {
            "the server answered what none of our scripts answers; is it Redis 6.2 or later, or Valkey?"
        }
    }
}
