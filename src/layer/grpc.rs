//! How a gRPC request that was not let through is answered: a status in the headers, with retry
//! information.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderMap};
use http::{HeaderValue, Response};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::rejection::{Rejection, RejectionKind};

/// For clients that follow the gRPC proposal A6: when to try again, in milliseconds.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Whether a request is one of gRPC, not of its variant for browsers: that one's layer stands
/// further out and translates.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .map_or(&[][..], HeaderValue::as_bytes);
    let Some(rest) = kind.strip_prefix(b"application/grpc") else {
        return false;
    };
    matches!(rest.first(), None | Some(b'+' | b';'))
}

/// The code that gRPC's own documentation gives for such a case.
const fn code(rejection: RejectionKind, known_caller: bool) -> Code {
    match rejection {
        RejectionKind::AtCapacity
        | RejectionKind::OverQuota
        | RejectionKind::QueueFull
        | RejectionKind::WaitedTooLong => Code::ResourceExhausted,
        // "For example, due to a concurrency issue": the caller may try the whole again.
        RejectionKind::Locked => Code::Aborted,
        RejectionKind::LeaseLost | RejectionKind::ShuttingDown | RejectionKind::Unavailable => {
            Code::Unavailable
        }
        // Clients try again by themselves what is unavailable, and this gets no better.
        RejectionKind::Misconfigured => Code::Internal,
        RejectionKind::NeverFits => Code::InvalidArgument,
        RejectionKind::NoKey if known_caller => Code::InvalidArgument,
        RejectionKind::NoKey => Code::Unauthenticated,
    }
}

impl From<&Rejection> for Status {
    fn from(rejection: &Rejection) -> Self {
        let known_caller = rejection.challenge().is_none();
        status(rejection.kind(), known_caller, rejection.retry_after())
    }
}

/// The status with `google.rpc.RetryInfo` among its details, and the pushback that some clients
/// look for, where trying again can help. Names neither gate nor key.
fn status(kind: RejectionKind, known_caller: bool, retry_after: Option<Duration>) -> Status {
    let code = code(kind, known_caller);
    let title = kind.title();
    let Some(retry_after) = retry_after else {
        return Status::new(code, title);
    };
    let mut headers = HeaderMap::new();
    // Some clients read a 32-bit number, and take what they can't read for "never again".
    let ms = i32::try_from(retry_after.as_millis()).unwrap_or(i32::MAX);
    headers.insert(PUSHBACK, ms.into());
    let details = ErrorDetails::with_retry_info(Some(retry_after));
    let metadata = MetadataMap::from_headers(headers);
    Status::with_error_details_and_metadata(code, title, details, metadata)
}

/// The answer to a gRPC request that was not let through.
pub(super) fn response<B: Default>(rejection: &Rejection) -> Response<B> {
    Status::from(rejection).into_http()
}

/// The end of a gRPC answer under way whose lease was lost.
pub(super) fn trailers_of_loss() -> HeaderMap {
    let status = status(RejectionKind::LeaseLost, true, Some(Duration::from_secs(1)));
    let mut trailers = HeaderMap::new();
    status
        .add_header(&mut trailers)
        .expect("the crate's own titles are valid");
    trailers
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::error::{BackendError, BackendErrorKind, Refusal, RefusalKind};
    use crate::layer::key::KeyError;
    use crate::layer::rejection::{Busy, Cause};
    use crate::layer::settings::LockedStatus;
    use crate::lease::LostReason;

    const LOCKED: Busy = Busy::Locked(LockedStatus::Conflict);

    fn answer(cause: Cause, busy: Busy) -> Status {
        let rejection = Rejection::new(&"a-gate".into(), cause, busy);
        let response: Response<()> = response(&rejection);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[CONTENT_TYPE], "application/grpc");
        Status::from_header_map(response.headers()).expect("a status in the headers")
    }

    fn refused(kind: RefusalKind, retry_after: Option<Duration>) -> Cause {
        let refusal = Refusal::new(kind).with_retry_after(retry_after);
        Cause::Lock(refusal.with_position(Some(3)).into())
    }

    /// In milliseconds: what the details say, and the pushback.
    fn retry(status: &Status) -> (Option<u128>, Option<i32>) {
        let details = status.check_error_details().expect("they decode");
        let delay = details.retry_info().and_then(|info| info.retry_delay);
        let pushback = status.metadata().get(PUSHBACK).map(|value| {
            let digits = value.to_str().expect("digits");
            digits.parse().expect("a number of 32 bits")
        });
        (delay.map(|delay| delay.as_millis()), pushback)
    }

    #[test]
    fn each_refusal_has_its_code() {
        let soon = Some(Duration::from_millis(4_200));
        for (kind, busy, code) in [
            (RefusalKind::Busy, LOCKED, Code::Aborted),
            (RefusalKind::Busy, Busy::AtCapacity, Code::ResourceExhausted),
            (RefusalKind::QueueFull, LOCKED, Code::ResourceExhausted),
            (RefusalKind::WaitedTooLong, LOCKED, Code::ResourceExhausted),
        ] {
            let status = answer(refused(kind, soon), busy);
            assert_eq!(status.code(), code, "{kind:?}");
            assert_eq!(retry(&status), (Some(5_000), Some(5_000)), "{kind:?}");
        }
        let ending = answer(refused(RefusalKind::ShuttingDown, None), LOCKED);
        assert_eq!(ending.code(), Code::Unavailable);
        assert_eq!(retry(&ending), (Some(1_000), Some(1_000)));
        let never = answer(refused(RefusalKind::NeverFits, soon), Busy::AtCapacity);
        assert_eq!(never.code(), Code::InvalidArgument);
        assert_eq!(retry(&never), (None, None));
    }

    #[test]
    fn a_lost_lease_and_a_failed_backend_are_unavailable_and_not_explained() {
        let failure = BackendError::new(
            BackendErrorKind::Unreachable,
            "redis://secret@host is away",
            None,
        );
        for cause in [Cause::Lost(LostReason::Gone), Cause::Lock(failure.into())] {
            let status = answer(cause, LOCKED);
            assert_eq!(status.code(), Code::Unavailable);
            assert_eq!(retry(&status), (Some(1_000), Some(1_000)));
            let details = String::from_utf8_lossy(status.details());
            let text = format!("{status:?} {details}");
            assert!(
                !text.contains("secret") && !text.contains("a-gate"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_missing_key_is_the_callers_error_and_an_identity_is_asked_for() {
        let missing = answer(Cause::Key(KeyError::missing("header x-tenant")), LOCKED);
        assert_eq!(missing.code(), Code::InvalidArgument);
        let challenge = HeaderValue::from_static("Bearer");
        let unknown = KeyError::unauthenticated("identity", challenge);
        let unknown = answer(Cause::Key(unknown), LOCKED);
        assert_eq!(unknown.code(), Code::Unauthenticated);
        for status in [missing, unknown] {
            assert_eq!(retry(&status), (None, None));
            assert!(status.details().is_empty());
        }
    }

    #[test]
    fn the_longest_pushback_is_a_number_that_clients_read() {
        let cause = refused(RefusalKind::Busy, Some(Duration::from_secs(1 << 40)));
        let (delay, pushback) = retry(&answer(cause, LOCKED));
        assert!(delay.is_some_and(|delay| delay > i32::MAX as u128));
        assert_eq!(pushback, Some(i32::MAX));
    }

    #[test]
    fn grpc_is_told_by_its_content_type() {
        let is = |name: HeaderName, value: &'static str| {
            let value = HeaderValue::from_static(value);
            is_grpc(&HeaderMap::from_iter([(name, value)]))
        };
        for kind in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc+json",
            "application/grpc;charset=utf-8",
        ] {
            assert!(is(CONTENT_TYPE, kind), "{kind}");
        }
        for kind in [
            "",
            "application/json",
            "application/grpc-web",
            "application/grpc-web+proto",
            "application/grpc-web-text",
            "application/grpcx",
            "text/application/grpc",
        ] {
            assert!(!is(CONTENT_TYPE, kind), "{kind}");
        }
        assert!(!is(http::header::ACCEPT, "application/grpc"));
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
