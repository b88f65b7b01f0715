//! One key of what several makers make.

use http::request::Parts;

use super::{KeyError, MakeKey};
use crate::key::Key;

macro_rules! make_key_of_several {
    ($($maker:ident)*) => {
        /// Made of all their keys. If one gives none, the request is not gated; all are asked all
        /// the same, so that what one of them refuses is refused.
        impl<$($maker: MakeKey),*> MakeKey for ($($maker,)*) {
            #[allow(non_snake_case, reason = "a maker is named like its type")]
            fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
                let ($($maker,)*) = self;
                $(let $maker = $maker.make_key(parts)?;)*
                let ($(Some($maker),)*) = ($($maker,)*) else {
                    return Ok(None);
                };
                Ok(Some(Key::of(($($maker,)*))))
            }
        }
    };
}

make_key_of_several!(A B);
make_key_of_several!(A B C);
make_key_of_several!(A B C D);
make_key_of_several!(A B C D E);
make_key_of_several!(A B C D E F);

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn made(make_key: impl MakeKey) -> Result<Option<Key>, KeyError> {
        let (mut parts, ()) = Request::new(()).into_parts();
        make_key.make_key(&mut parts)
    }

    fn key(text: &str) -> Key {
        Key::from(text)
    }

    fn none(_: &Parts) -> Option<Key> {
        None
    }

    fn refused(_: &Parts) -> Result<Key, KeyError> {
        Err(KeyError::missing("account"))
    }

    #[test]
    fn each_makers_key_is_a_part() {
        let path = |parts: &Parts| Some(parts.uri.path().to_owned());
        let both = made((key("a"), path)).expect("not refused");
        assert_eq!(both, Some(Key::of(("a", "/"))));
        let nested = made((key("a"), (key("b"), key("c")))).expect("not refused");
        assert_eq!(nested, Some(Key::of(("a", ("b", "c")))));
        let six = (key("1"), key("2"), key("3"), key("4"), key("5"), key("6"));
        let six = made(six).expect("not refused");
        assert_eq!(six, Some(Key::of((1, 2, 3, 4, 5, 6))));
    }

    #[test]
    fn without_one_part_there_is_no_key_and_a_refusal_goes_first() {
        assert!(matches!(made((key("a"), none)), Ok(None)));
        assert!(matches!(made((none, key("a"), key("b"))), Ok(None)));
        assert!(made((none, refused)).is_err());
        assert!(made((refused, none)).is_err());
    }
}
