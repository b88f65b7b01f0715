//! How a request that was not let through is answered: problem details (RFC 9457).

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderValue, Response};

use super::rejection::Rejection;

/// The answer to a request that was not let through.
pub(super) fn response(rejection: &Rejection) -> Response<Bytes> {
    let status = rejection.status();
    let (name, title) = (rejection.kind().as_str(), rejection.kind().title());
    // Titles and names are this crate's own, so nothing in them needs escaping.
    let problem = format!(
        r#"{{"type":"urn:problem-type:portcullis:{name}","title":"{title}","status":{}}}"#,
        status.as_u16()
    );
    let mut response = Response::new(Bytes::from(problem));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    // What is refused now may be let through the next moment.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(retry_after) = rejection.retry_after() {
        headers.insert(RETRY_AFTER, retry_after.as_secs().into());
        // A script of another origin would not see it else.
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("retry-after"),
        );
    }
    if let Some(challenge) = rejection.challenge() {
        headers.insert(WWW_AUTHENTICATE, challenge.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::{BackendError, BackendErrorKind, Refusal, RefusalKind};
    use crate::layer::key::KeyError;
    use crate::layer::rejection::{Busy, Cause};
    use crate::layer::settings::LockedStatus;
    use crate::lease::LostReason;

    fn refused(kind: RefusalKind, retry_after: Option<Duration>) -> Cause {
        Cause::Lock(
            Refusal::new(kind)
                .with_retry_after(retry_after)
                .with_position(Some(3))
                .into(),
        )
    }

    fn answer(cause: &Cause, busy: Busy) -> Response<Bytes> {
        response(&Rejection::new(&"a-gate".into(), cause.clone(), busy))
    }

    fn seen(cause: &Cause, busy: Busy) -> (u16, Option<u64>, String) {
        let response = answer(cause, busy);
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
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
            (RefusalKind::OverQuota, conflict, 429, Some(5), "over-quota"),
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
                Some(1),
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
        let lost = seen(&Cause::Lost(LostReason::Gone), Busy::AtCapacity);
        assert_eq!(lost, (503, Some(1), "lease-lost".to_owned()));
        let failure = BackendError::new(
            BackendErrorKind::Unreachable,
            "redis://secret@host is away",
            None,
        );
        let rejection = Cause::Lock(failure.into());
        assert_eq!(
            seen(&rejection, Busy::AtCapacity),
            (503, Some(1), "unavailable".to_owned())
        );
        let body = answer(&rejection, Busy::AtCapacity).into_body();
        assert!(!String::from_utf8_lossy(&body).contains("secret"));
    }

    #[test]
    fn a_missing_key_is_the_callers_error_and_an_identity_is_asked_for() {
        let missing = Cause::Key(KeyError::missing("header x-tenant"));
        assert_eq!(
            seen(&missing, Busy::AtCapacity),
            (400, None, "no-key".to_owned())
        );
        let challenge = HeaderValue::from_static("Bearer");
        let unknown = Cause::Key(KeyError::unauthenticated("identity", challenge));
        assert_eq!(
            seen(&unknown, Busy::AtCapacity),
            (401, None, "no-key".to_owned())
        );
        assert_eq!(
            answer(&unknown, Busy::AtCapacity).headers()[WWW_AUTHENTICATE],
            "Bearer"
        );
    }
}
