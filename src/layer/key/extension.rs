//! A key from what an outer layer has found out of the caller.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use http::request::Parts;

use super::{KeyError, MakeKey};
use crate::key::Key;

/// Makes a key of a `T` in the request's extensions: an identity that an outer layer has put there,
/// or anything else that it has found out.
///
/// A layer that authenticates has to stand outside of the gate. A request without a `T` is refused
/// with 400; see [`MakeKey::unauthenticated`] for 401.
///
/// # Examples
///
/// ```
/// use http::HeaderValue;
/// use portcullis::layer::{MakeKey, extension};
///
/// #[derive(Clone)]
/// struct Account {
///     id: u64,
/// }
///
/// # fn example(gates: portcullis::Portcullis) {
/// let account = extension(|account: &Account| account.id)
///     .unauthenticated(HeaderValue::from_static(r#"Bearer realm="accounts""#));
/// let layer = portcullis::MutexLayer::new(gates.mutex("withdraw")).key(account);
/// # }
/// ```
pub fn extension<T, K, F>(key: F) -> ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    K: Into<Key>,
    F: Fn(&T) -> K + Send + Sync,
{
    ExtensionKey {
        key,
        extension: PhantomData,
    }
}

/// Makes a key of an extension of the request; made by [`extension`].
#[must_use = "it makes no key until it is given to a layer"]
pub struct ExtensionKey<T, F> {
    key: F,
    extension: PhantomData<fn(&T)>,
}

impl<T, K, F> MakeKey for ExtensionKey<T, F>
where
    T: Send + Sync + 'static,
    K: Into<Key>,
    F: Fn(&T) -> K + Send + Sync,
{
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        match parts.extensions.get::<T>() {
            Some(extension) => Ok(Some((self.key)(extension).into())),
            None => Err(KeyError::lacks(format!("extension {}", type_name::<T>()))),
        }
    }
}

impl<T, F: Clone> Clone for ExtensionKey<T, F> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            extension: PhantomData,
        }
    }
}

impl<T, F> fmt::Debug for ExtensionKey<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtensionKey")
            .field("of", &type_name::<T>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[derive(Clone)]
    struct Account(u64);

    #[test]
    fn what_is_in_the_extensions_makes_the_key_and_is_named_where_it_is_missing() {
        let account = extension(|account: &Account| account.0);
        let (mut parts, ()) = Request::new(()).into_parts();
        let missing = account.make_key(&mut parts).expect_err("nothing there");
        assert!(missing.is_missing());
        assert!(missing.to_string().contains("Account"), "{missing}");
        assert!(format!("{account:?}").contains("Account"));
        parts.extensions.insert(Account(7));
        let made = account.make_key(&mut parts).expect("an account");
        assert_eq!(made, Some(Key::from(7)));
    }
}
