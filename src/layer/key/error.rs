//! Why a request has no key.

use std::borrow::Cow;

use http::HeaderValue;

/// Why no key can be made from a request: it lacks what the key is made from, or the service is not
/// set up to make one.
///
/// Answered with 400; with 401 if the request lacks an identity; with 503 if the fault is the
/// service's own. Neither answer says what was looked for: that is for logs.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct KeyError(Cause);

#[derive(Debug, Clone, thiserror::Error)]
enum Cause {
    #[error("the request has no {0} to make a key from")]
    Missing(Cow<'static, str>),
    #[error("the request has no {what} to make a key from")]
    Unauthenticated {
        what: Cow<'static, str>,
        challenge: HeaderValue,
    },
    #[error("the request's {what} can't be a key: {why}")]
    Unusable {
        what: Cow<'static, str>,
        why: Cow<'static, str>,
    },
    #[error("this request can't have a key: {remedy}")]
    Misconfigured {
        remedy: Cow<'static, str>,
        /// Whether there was nothing to make a key from, rather than something wrong.
        is_missing: bool,
    },
}

impl KeyError {
    /// Something that every request must bring is missing: 400.
    #[must_use]
    pub const fn missing(what: &'static str) -> Self {
        Self(Cause::Missing(Cow::Borrowed(what)))
    }

    /// The caller is not known: 401, with the `WWW-Authenticate` header that such an answer has to
    /// have.
    #[must_use]
    pub const fn unauthenticated(what: &'static str, challenge: HeaderValue) -> Self {
        let what = Cow::Borrowed(what);
        Self(Cause::Unauthenticated { what, challenge })
    }

    /// Something is there and can't be a key: 400, also where it may be
    /// [missing](super::MakeKey::optional).
    ///
    /// Both texts are for logs: leave out what the request brought.
    #[must_use]
    pub fn unusable(what: impl Into<Cow<'static, str>>, why: impl Into<Cow<'static, str>>) -> Self {
        let (what, why) = (what.into(), why.into());
        Self(Cause::Unusable { what, why })
    }

    /// The service is set up so that such a request can't have a key, whatever it brings: 503. The
    /// text is for those who run it, and says what to do; it is logged once, at level error. Of
    /// texts that differ from request to request, 16 are.
    #[must_use]
    pub fn misconfigured(remedy: impl Into<Cow<'static, str>>) -> Self {
        Self(Cause::Misconfigured {
            remedy: remedy.into(),
            is_missing: false,
        })
    }

    /// Whether the fault is that of the service's set-up, and no request's.
    #[must_use]
    pub const fn is_misconfigured(&self) -> bool {
        matches!(self.0, Cause::Misconfigured { .. })
    }

    /// As [`missing`](Self::missing), of what is known only when a request comes.
    pub(super) fn lacks(what: String) -> Self {
        Self(Cause::Missing(Cow::Owned(what)))
    }

    /// As [`misconfigured`](Self::misconfigured), of a route that never has what the key is made
    /// from: its requests pass where the key is [optional](super::MakeKey::optional).
    #[cfg(feature = "axum")]
    pub(super) fn misplaced(remedy: impl Into<Cow<'static, str>>) -> Self {
        Self(Cause::Misconfigured {
            remedy: remedy.into(),
            is_missing: true,
        })
    }

    /// Whether there is nothing that a key could be made from.
    pub(super) const fn is_missing(&self) -> bool {
        match self.0 {
            Cause::Missing(_) => true,
            Cause::Misconfigured { is_missing, .. } => is_missing,
            Cause::Unauthenticated { .. } | Cause::Unusable { .. } => false,
        }
    }

    /// Asks for an identity, if nothing but that is missing.
    pub(super) fn challenging(self, challenge: &HeaderValue) -> Self {
        match self.0 {
            Cause::Missing(what) => Self(Cause::Unauthenticated {
                what,
                challenge: challenge.clone(),
            }),
            cause => Self(cause),
        }
    }

    pub(in crate::layer) const fn challenge(&self) -> Option<&HeaderValue> {
        match &self.0 {
            Cause::Unauthenticated { challenge, .. } => Some(challenge),
            Cause::Missing(_) | Cause::Unusable { .. } | Cause::Misconfigured { .. } => None,
        }
    }
}
