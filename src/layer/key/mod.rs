//! Where a gate's key comes from: the trait, and ready-made sources.

mod absent;
mod boxed;
mod client_ip;
mod error;
mod extension;
mod header;
#[cfg(feature = "axum")]
mod path_param;
#[cfg(feature = "axum")]
mod route;
mod several;
mod text;

use http::HeaderValue;
use http::request::Parts;
pub use ipnet::IpNet;

pub use self::absent::{OptionalKey, UnauthenticatedKey};
pub use self::boxed::BoxedKey;
pub use self::client_ip::{ClientIpKey, client_ip};
pub use self::error::KeyError;
pub use self::extension::{ExtensionKey, extension};
pub use self::header::{HeaderKey, header};
#[cfg(feature = "axum")]
pub use self::path_param::{PathParamKey, path_param};
#[cfg(feature = "axum")]
pub use self::route::{RouteKey, route};
use crate::key::Key;

/// Reads from a request which of a gate's siblings it has to pass: the lock of this account, the
/// permits of that tenant.
///
/// Ready-made are [`header`], [`extension`] and [`client_ip`]; with the feature `axum` also `route`
/// and `path_param`. A tuple of 2 to 6 makers makes one key of them all, and a fixed [`Key`] makes
/// itself. Closures from the request's head make keys if they give one of two:
///
/// - `Option<impl Into<Key>>`, where `None` lets the request pass **ungated**: whoever can leave
///   the key out is not held up;
/// - `Result<impl Into<Key>, KeyError>`, where a request without a key is refused.
///
/// What a closure gives must own its text. "Lifetime may not live long enough" says that it borrows
/// from the request: end it in `.map(Key::from)`. It can't be `async`: find out in a middleware
/// what takes time, put it into the request's extensions, and read it by [`extension`].
///
/// An empty text is a key like any other, one gate for all whose text is empty. [`header`] and
/// `path_param` refuse it; what you read yourself, check yourself.
///
/// A path in `parts.uri` is as the client sent it: `/accounts/7` and `/accounts/%37` are one
/// account to a router and two keys to a closure that does not decode. `path_param` decodes.
///
/// # Examples
///
/// One key for each account of each tenant; who names no tenant is refused with 400, who is not
/// known with 401:
///
/// ```
/// use http::HeaderValue;
/// use portcullis::layer::{MakeKey, extension, header};
///
/// #[derive(Clone)]
/// struct Account(u64);
///
/// # fn example(gates: portcullis::Portcullis) {
/// let account = extension(|account: &Account| account.0);
/// let account = account.unauthenticated(HeaderValue::from_static("Bearer"));
/// let layer = portcullis::MutexLayer::new(gates.mutex("withdraw"))
///     .key((header("x-tenant"), account));
/// # }
/// ```
///
/// One of your own:
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
///         let host = parts.uri.host().and_then(|host| host.strip_suffix(".example.com"));
///         match host {
///             Some(tenant) => Ok(Some(tenant.into())),
///             None => Err(KeyError::missing("tenant in its host")),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not make a key from a request",
    label = "takes a `Key`, a maker such as `header`, a tuple of makers, or a closure from \
        `&http::request::Parts` to an `Option` or `Result` of a key",
    note = "name the type of the closure's argument; it must be `Send + Sync + 'static`",
    note = "if it is the `Result` of a maker that can fail to be set up: did you forget `?`"
)]
pub trait MakeKey: Send + Sync {
    /// Reads the key; `None` if the request is not to be gated.
    ///
    /// # Errors
    ///
    /// If the request lacks what the key is made from.
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError>;

    /// Lets requests that lack what the key is made from pass **ungated**.
    ///
    /// Whoever can leave it out is not held up: no protection against callers, only a convenience
    /// for those who mean well. What is there but can't be a key is refused all the same.
    fn optional(self) -> OptionalKey<Self>
    where
        Self: Sized,
    {
        OptionalKey::new(self)
    }

    /// Refuses requests that lack what the key is made from with 401 instead of 400, and with this
    /// `WWW-Authenticate` header.
    ///
    /// For an identity. What is there but can't be a key is still answered with 400.
    fn unauthenticated(self, challenge: HeaderValue) -> UnauthenticatedKey<Self>
    where
        Self: Sized,
    {
        UnauthenticatedKey::new(self, challenge)
    }

    /// Erases its type, which for a closure has no name: to keep it in a struct, or several of
    /// several kinds in a list.
    fn boxed(self) -> BoxedKey
    where
        Self: Sized + 'static,
    {
        BoxedKey::new(self)
    }
}

impl MakeKey for Key {
    fn make_key(&self, _: &mut Parts) -> Result<Option<Key>, KeyError> {
        Ok(Some(self.clone()))
    }
}

/// What a closure that makes keys may give; see [`MakeKey`].
#[diagnostic::on_unimplemented(
    message = "a closure that makes keys does not give `{Self}`",
    label = "give an `Option` or a `Result<_, KeyError>` of what is `Into<portcullis::Key>`",
    note = "strings and integers are, and tuples of them",
    note = "it can't be `async`: find the key out in a middleware, and read it by `extension`"
)]
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

    #[test]
    fn all_that_is_ready_made_can_be_kept_cloned_and_shown() {
        fn kept<T: MakeKey + Clone + std::fmt::Debug + 'static>(_: &T) {}
        kept(&header("x-tenant"));
        kept(&extension(|account: &u64| *account).unauthenticated(HeaderValue::from_static("a")));
        kept(&(client_ip(), header("x-tenant").optional()));
        #[cfg(feature = "axum")]
        kept(&(route(), path_param("id")));
    }
}
