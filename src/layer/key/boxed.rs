//! Any source of keys, under one name.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;

use super::{KeyError, MakeKey};
use crate::key::Key;

/// Whatever makes a key, with its type erased; made by [`MakeKey::boxed`]. Cheap to clone.
#[derive(Clone)]
#[must_use = "it makes no key until it is given to a layer"]
pub struct BoxedKey(Arc<dyn MakeKey>);

impl BoxedKey {
    pub(super) fn new(make_key: impl MakeKey + 'static) -> Self {
        Self(Arc::new(make_key))
    }
}

impl MakeKey for BoxedKey {
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        self.0.make_key(parts)
    }
}

impl fmt::Debug for BoxedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxedKey").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::layer::key::header;

    #[test]
    fn sources_of_several_kinds_are_kept_under_one_name() {
        let sources = [
            header("x-tenant").boxed(),
            (|parts: &Parts| Some(parts.uri.path().to_owned())).boxed(),
            Key::from("all").boxed(),
        ];
        let request = Request::get("/a").header("x-tenant", "t");
        let (mut parts, ()) = request.body(()).expect("a valid request").into_parts();
        let keys = sources.map(|source| source.make_key(&mut parts).expect("there is one"));
        let expected = [Key::from("t"), Key::from("/a"), Key::from("all")];
        assert_eq!(keys, expected.map(Some));
    }
}
