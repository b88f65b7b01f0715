//! How a gRPC request that was not let through is answered: a status in the headers, with retry
//! information.

use http::header::{CONTENT_TYPE, HeaderMap};
use http::{HeaderValue, Response};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::rejection::{Rejection, RejectionKind};

/// For clients that follow the gRPC proposal A6: when to try again, in milliseconds.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Whether a request is one of gRPC, not of its variant for browsers: that one's layer stands further
/// out and translates.
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
        RejectionKind::AtCapacity | RejectionKind::QueueFull | RejectionKind::WaitedTooLong => {
            Code::ResourceExhausted
        }
        // "For example, due to a concurrency issue": the caller may try the whole again.
        RejectionKind::Locked => Code::Aborted,
        RejectionKind::LeaseLost
        | RejectionKind::ShuttingDown
        | RejectionKind::Unavailable
        | RejectionKind::Misconfigured => Code::Unavailable,
        RejectionKind::NeverFits => Code::InvalidArgument,
        RejectionKind::NoKey if known_caller => Code::InvalidArgument,
        RejectionKind::NoKey => Code::Unauthenticated,
    }
}

impl From<&Rejection> for Status {
    /// The status with `google.rpc.RetryInfo` among its details, and the pushback that some clients
    /// look for, where trying again can help. Names neither gate nor key.
    fn from(rejection: &Rejection) -> Self {
        let kind = rejection.kind();
        let code = code(kind, rejection.challenge().is_none());
        let (_, title) = kind.problem();
        let Some(retry_after) = rejection.retry_after() else {
            return Self::new(code, title);
        };
        let mut headers = HeaderMap::new();
        let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
        headers.insert(PUSHBACK, ms.into());
        let details = ErrorDetails::with_retry_info(Some(retry_after));
        let metadata = MetadataMap::from_headers(headers);
        Self::with_error_details_and_metadata(code, title, details, metadata)
    }
}

/// The answer to a gRPC request that was not let through.
pub(super) fn response<B: Default>(rejection: &Rejection) -> Response<B> {
    Status::from(rejection).into_http()
}
