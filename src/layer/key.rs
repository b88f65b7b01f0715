//! Where a gate's key comes from.

use http::HeaderValue;
use http::request::Parts;

use crate::key::Key;

/// Reads from a request which of a gate's siblings it has to pass: the lock of this account, the
/// permits of that tenant.
///
/// Implemented for a fixed [`Key`], and for closures from the request's head to either of two:
///
/// - `Option<impl Into<Key>>`, where `None` lets the request pass **ungated**: whoever can leave
///   the key out is not held up;
/// - `Result<impl Into<Key>, KeyError>`, where a request without a key is refused.
///
/// A path in `parts.uri` is as the client sent it: `/accounts/7` and `/accounts/%37` are one
/// account to a router and two keys to a closure that does not decode. Implement the trait yourself
/// to use an extractor that needs `&mut Parts`.
///
/// # Examples
///
/// ```
/// use http::request::Parts;
/// use portcullis::Key;
/// use portcullis::layer::{KeyError, MakeKey};
///
/// struct Tenant;
///
/// impl MakeKey for Tenant {
///     fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
///         let tenant = parts.headers.get("x-tenant").and_then(|value| value.to_str().ok());
///         match tenant {
///             Some(tenant) => Ok(Some(tenant.into())),
///             None => Err(KeyError::missing("header x-tenant")),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make a key from a request",
    label = "takes a `Key` or a closure from `&http::request::Parts` to an `Option` or `Result` of a key",
    note = "name the type of the closure's argument; it must be `Send + Sync + 'static`"
)]
pub trait MakeKey: Send + Sync {
    /// Reads the key; `None` if the request is not to be gated.
    ///
    /// # Errors
    ///
    /// If the request lacks what the key is made from.
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError>;
}

impl MakeKey for Key {
    fn make_key(&self, _: &mut Parts) -> Result<Option<Key>, KeyError> {
        Ok(Some(self.clone()))
    }
}

/// What a closure that makes keys may give; see [`MakeKey`].
pub trait MadeKey {
    /// As [`MakeKey::make_key`] gives it.
    ///
    /// # Errors
    ///
    /// If the closure gave one.
    fn made_key(self) -> Result<Option<Key>, KeyError>;
}

impl<K: Into<Key>> MadeKey for Option<K> {
    fn made_key(self) -> Result<Option<Key>, KeyError> {
        Ok(self.map(Into::into))
    }
}

impl<K: Into<Key>> MadeKey for Result<K, KeyError> {
    fn made_key(self) -> Result<Option<Key>, KeyError> {
        self.map(|key| Some(key.into()))
    }
}

impl<F, M> MakeKey for F
where
    F: Fn(&Parts) -> M + Send + Sync,
    M: MadeKey,
{
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        self(parts).made_key()
    }
}

/// A request that lacks what its key is made from. Answered with 400, or with 401 if it lacks an
/// identity.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the request has no {what} to make a key from")]
pub struct KeyError {
    what: &'static str,
    challenge: Option<HeaderValue>,
}

impl KeyError {
    /// Something that every request must bring is missing or unreadable: 400.
    #[must_use]
    pub const fn missing(what: &'static str) -> Self {
        Self {
            what,
            challenge: None,
        }
    }

    /// The caller is not known: 401, with the `WWW-Authenticate` header that such an answer has to
    /// have.
    #[must_use]
    pub const fn unauthenticated(what: &'static str, challenge: HeaderValue) -> Self {
        Self {
            what,
            challenge: Some(challenge),
        }
    }

    /// No request can have a key as the service is set up; `remedy` tells those who run it what to
    /// do.
    pub(super) const fn misconfigured(remedy: &'static str) -> Self {
        Self {
            what: remedy,
            challenge: None,
        }
    }

    pub(super) const fn is_misconfigured(&self) -> bool {
        false
    }

    pub(super) const fn challenge(&self) -> Option<&HeaderValue> {
        self.challenge.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn key_of(make_key: &dyn MakeKey, path: &str) -> Option<Key> {
        let (mut parts, ()) = Request::get(path).body(()).expect("a path").into_parts();
        make_key
            .make_key(&mut parts)
            .expect("closures and fixed keys do not fail")
    }

    #[test]
    fn a_fixed_key_is_the_same_for_every_request() {
        assert_eq!(
            key_of(&Key::from("a"), "/one"),
            key_of(&Key::from("a"), "/other")
        );
    }

    #[test]
    fn a_closure_makes_a_key_from_the_head_or_lets_the_request_pass() {
        let last = |parts: &Parts| {
            parts
                .uri
                .path()
                .strip_prefix("/accounts/")
                .map(str::to_owned)
        };
        assert_eq!(key_of(&last, "/accounts/7"), Some(Key::from("7")));
        assert_eq!(key_of(&last, "/healthz"), None);
    }
}
