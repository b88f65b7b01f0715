//! How a request that was not let through is answered: the table of the module's docs, as problem
//! details (RFC 9457).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};

use super::BoxError;
use super::key::KeyError;
use super::settings::LockedStatus;
use crate::error::{LockError, RefusalKind};
use crate::lease::LostReason;

/// Why a request was not worked on to its end.
#[derive(Debug)]
pub(super) enum Rejection {
    Key(KeyError),
    Lock(LockError),
    Lost(LostReason),
}

impl Rejection {
    /// For services that fail instead of answering.
    pub(super) fn into_error(self) -> BoxError {
        match self {
            Self::Key(error) => error.into(),
            Self::Lock(error) => error.into(),
            Self::Lost(reason) => reason.into(),
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(error) => error.fmt(f),
            Self::Lock(error) => error.fmt(f),
            Self::Lost(reason) => reason.fmt(f),
        }
    }
}

/// What a gate says that is busy, to a request that does not wait.
#[derive(Debug, Clone, Copy)]
pub(super) enum Busy {
    AtCapacity,
    Locked(LockedStatus),
}

struct Problem {
    status: StatusCode,
    /// The end of its `type`: part of the public interface.
    name: &'static str,
    title: &'static str,
}

impl Problem {
    const fn new(status: StatusCode, name: &'static str, title: &'static str) -> Self {
        Self {
            status,
            name,
            title,
        }
    }

    fn of(rejection: &Rejection, busy: Busy) -> Self {
        const TRY_LATER: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
        const CONFLICT: StatusCode = StatusCode::CONFLICT;
        const LOCKED: StatusCode = StatusCode::LOCKED;
        let refusal = match rejection {
            Rejection::Key(error) => {
                let known = error.challenge().is_none();
                let status = if known {
                    StatusCode::BAD_REQUEST
                } else {
                    StatusCode::UNAUTHORIZED
                };
                return Self::new(status, "no-key", "The request has no usable key");
            }
            Rejection::Lost(_) => {
                return Self::new(
                    TRY_LATER,
                    "lease-lost",
                    "The exclusive right to do this was lost on the way",
                );
            }
            Rejection::Lock(LockError::Backend(_)) => {
                return Self::new(TRY_LATER, "unavailable", "Temporarily unavailable");
            }
            Rejection::Lock(LockError::Refused(refusal)) => refusal,
        };
        match (refusal.kind(), busy) {
            (RefusalKind::Busy, Busy::Locked(LockedStatus::Conflict)) => {
                Self::new(CONFLICT, "locked", "Another request is at work on this")
            }
            (RefusalKind::Busy, Busy::Locked(LockedStatus::Locked)) => {
                Self::new(LOCKED, "locked", "Another request is at work on this")
            }
            (RefusalKind::Busy, Busy::AtCapacity) => {
                Self::new(TRY_LATER, "at-capacity", "Concurrency limit reached")
            }
            (RefusalKind::QueueFull, _) => {
                Self::new(TRY_LATER, "queue-full", "Too many requests are waiting")
            }
            (RefusalKind::WaitedTooLong, _) => Self::new(
                TRY_LATER,
                "waited-too-long",
                "The request's turn did not come in time",
            ),
            (RefusalKind::ShuttingDown, _) => {
                Self::new(TRY_LATER, "shutting-down", "This process is shutting down")
            }
            (RefusalKind::NeverFits, _) => Self::new(
                StatusCode::BAD_REQUEST,
                "never-fits",
                "The request asks for more than there ever is",
            ),
        }
    }

    /// Titles and names are this file's own, so nothing in them needs escaping.
    fn json(&self) -> String {
        let Self {
            status,
            name,
            title,
        } = self;
        let status = status.as_u16();
        format!(
            r#"{{"type":"urn:problem-type:portcullis:{name}","title":"{title}","status":{status}}}"#
        )
    }
}

/// The answer to a request that was not let through.
pub(super) fn response(rejection: &Rejection, busy: Busy) -> Response<Bytes> {
    let problem = Problem::of(rejection, busy);
    let mut response = Response::new(Bytes::from(problem.json()));
    *response.status_mut() = problem.status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    if !matches!(
        problem.status,
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED
    ) {
        let known = match rejection {
            Rejection::Lock(LockError::Refused(refusal)) => refusal.retry_after(),
            Rejection::Lock(LockError::Backend(_)) | Rejection::Key(_) | Rejection::Lost(_) => None,
        };
        headers.insert(
            RETRY_AFTER,
            HeaderValue::from(whole_seconds(known.unwrap_or_default())),
        );
    }
    if let Rejection::Key(error) = rejection
        && let Some(challenge) = error.challenge()
    {
        headers.insert(WWW_AUTHENTICATE, challenge.clone());
    }
    response
}

/// Rounded up, since a caller that comes back before the time is refused again; at least 1, since 0
/// invites it at once.
fn whole_seconds(duration: Duration) -> u64 {
    let part = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(part).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{BackendError, BackendErrorKind, Refusal};

    fn refused(kind: RefusalKind, retry_after: Option<Duration>) -> Rejection {
        Rejection::Lock(
            Refusal::new(kind)
                .with_retry_after(retry_after)
                .with_position(Some(3))
                .into(),
        )
    }

    fn seen(rejection: &Rejection, busy: Busy) -> (u16, Option<u64>, String) {
        let response = response(rejection, busy);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after =
            retry_after.map(|value| value.to_str().expect("digits").parse().expect("a number"));
        let body: serde_json::Value =
            serde_json::from_slice(response.body()).expect("the body is JSON");
        assert_eq!(body["status"], response.status().as_u16());
        let kind = body["type"]
            .as_str()
            .expect("a type")
            .strip_prefix("urn:problem-type:portcullis:");
        (
            response.status().as_u16(),
            retry_after,
            kind.expect("a type of this crate").to_owned(),
        )
    }

    #[test]
    fn whole_seconds_are_rounded_up_and_never_zero() {
        for (millis, seconds) in [
            (0, 1),
            (1, 1),
            (999, 1),
            (1000, 1),
            (1001, 2),
            (9_999, 10),
            (10_000, 10),
        ] {
            assert_eq!(
                whole_seconds(Duration::from_millis(millis)),
                seconds,
                "{millis} ms"
            );
        }
        assert_eq!(whole_seconds(Duration::from_nanos(1_000_000_001)), 2);
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn each_refusal_has_its_row_in_the_table() {
        let soon = Some(Duration::from_millis(4_200));
        let conflict = Busy::Locked(LockedStatus::Conflict);
        let locked = Busy::Locked(LockedStatus::Locked);
        let rows = [
            (RefusalKind::Busy, conflict, 409, Some(5), "locked"),
            (RefusalKind::Busy, locked, 423, Some(5), "locked"),
            (
                RefusalKind::Busy,
                Busy::AtCapacity,
                503,
                Some(5),
                "at-capacity",
            ),
            (RefusalKind::QueueFull, conflict, 503, Some(5), "queue-full"),
            (
                RefusalKind::WaitedTooLong,
                locked,
                503,
                Some(5),
                "waited-too-long",
            ),
            (
                RefusalKind::ShuttingDown,
                Busy::AtCapacity,
                503,
                Some(5),
                "shutting-down",
            ),
            (
                RefusalKind::NeverFits,
                Busy::AtCapacity,
                400,
                None,
                "never-fits",
            ),
        ];
        for (kind, busy, status, retry_after, name) in rows {
            assert_eq!(
                seen(&refused(kind, soon), busy),
                (status, retry_after, name.to_owned())
            );
        }
        assert_eq!(seen(&refused(RefusalKind::Busy, None), conflict).1, Some(1));
    }

    #[test]
    fn a_lost_lease_and_a_failed_backend_are_told_apart() {
        let lost = seen(&Rejection::Lost(LostReason::Gone), Busy::AtCapacity);
        assert_eq!(lost, (503, Some(1), "lease-lost".to_owned()));
        let failure = BackendError::new(
            BackendErrorKind::Unreachable,
            "redis://secret@host is away",
            None,
        );
        let rejection = Rejection::Lock(failure.into());
        assert_eq!(
            seen(&rejection, Busy::AtCapacity),
            (503, Some(1), "unavailable".to_owned())
        );
        let body = response(&rejection, Busy::AtCapacity).into_body();
        assert!(!String::from_utf8_lossy(&body).contains("secret"));
    }

    #[test]
    fn a_missing_key_is_the_callers_error_and_an_identity_is_asked_for() {
        let missing = Rejection::Key(KeyError::missing("header x-tenant"));
        assert_eq!(
            seen(&missing, Busy::AtCapacity),
            (400, None, "no-key".to_owned())
        );
        let challenge = HeaderValue::from_static("Bearer");
        let unknown = Rejection::Key(KeyError::unauthenticated("identity", challenge));
        assert_eq!(
            seen(&unknown, Busy::AtCapacity),
            (401, None, "no-key".to_owned())
        );
        assert_eq!(
            response(&unknown, Busy::AtCapacity).headers()[WWW_AUTHENTICATE],
            "Bearer"
        );
    }
}
