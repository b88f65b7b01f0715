//! What becomes of requests that lack what their key is made from.

use http::HeaderValue;
use http::request::Parts;

use super::{KeyError, MakeKey};
use crate::key::Key;

/// Lets requests without a key pass ungated; made by [`MakeKey::optional`].
#[derive(Debug, Clone)]
#[must_use = "it makes no key until it is given to a layer"]
pub struct OptionalKey<M> {
    make_key: M,
}

impl<M> OptionalKey<M> {
    pub(super) const fn new(make_key: M) -> Self {
        Self { make_key }
    }
}

impl<M: MakeKey> MakeKey for OptionalKey<M> {
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        match self.make_key.make_key(parts) {
            Err(error) if error.is_missing() => Ok(None),
            made => made,
        }
    }
}

/// Refuses requests without a key with 401; made by [`MakeKey::unauthenticated`].
#[derive(Debug, Clone)]
#[must_use = "it makes no key until it is given to a layer"]
pub struct UnauthenticatedKey<M> {
    make_key: M,
    challenge: HeaderValue,
}

impl<M> UnauthenticatedKey<M> {
    pub(super) const fn new(make_key: M, challenge: HeaderValue) -> Self {
        Self {
            make_key,
            challenge,
        }
    }
}

impl<M: MakeKey> MakeKey for UnauthenticatedKey<M> {
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        let made = self.make_key.make_key(parts);
        made.map_err(|error| error.challenging(&self.challenge))
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn made(make_key: &impl MakeKey) -> Result<Option<Key>, KeyError> {
        let (mut parts, ()) = Request::new(()).into_parts();
        make_key.make_key(&mut parts)
    }

    fn failing(error: KeyError) -> impl MakeKey {
        move |_: &Parts| Err::<Key, _>(error.clone())
    }

    #[test]
    fn only_what_is_missing_is_let_through_or_asked_for() {
        let challenge = HeaderValue::from_static("Bearer");
        let missing = || failing(KeyError::missing("account"));
        assert!(matches!(made(&missing().optional()), Ok(None)));
        let asked = made(&missing().unauthenticated(challenge.clone())).expect_err("missing");
        assert_eq!(asked.challenge(), Some(&challenge));

        for other in [
            KeyError::unusable("account", "it is empty"),
            KeyError::misconfigured("put it elsewhere"),
        ] {
            let text = other.to_string();
            let refused = made(&failing(other.clone()).optional()).expect_err("not missing");
            assert_eq!(refused.to_string(), text);
            let asked = failing(other).unauthenticated(challenge.clone());
            let refused = made(&asked).expect_err("not missing");
            assert_eq!((refused.to_string(), refused.challenge()), (text, None));
        }
    }

    #[test]
    fn a_key_that_is_there_is_kept() {
        let key = Key::from("a");
        let challenge = HeaderValue::from_static("Bearer");
        let made = made(&key.clone().optional().unauthenticated(challenge));
        assert_eq!(made.expect("a key"), Some(key));
    }
}
