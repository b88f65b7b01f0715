//! A key from a header.

use std::any::type_name;
use std::fmt::Display;

use http::HeaderName;
use http::request::Parts;

use super::text::MaxBytes;
use super::{KeyError, MakeKey};
use crate::error::ConfigError;
use crate::key::Key;

/// Makes a key of the header of this name.
///
/// It takes exactly one such header, whose value, without white space around it, is 1 to 256 bytes
/// of UTF-8 without control characters. Upper and lower case differ. A request without the header
/// is refused with 400; see [`MakeKey::unauthenticated`] and [`MakeKey::optional`]. One that is
/// empty, too long or not such text is refused, and so is one that comes twice: which of them the
/// service goes by can't be known here.
///
/// Callers choose what they send. Make keys of a header that one in front of the service sets, or
/// where a caller with many keys does no harm.
///
/// # Panics
///
/// If it is not the name of a header. Turn one that comes from a configuration into a
/// [`HeaderName`] first.
///
/// # Examples
///
/// ```
/// use portcullis::layer::header;
///
/// # fn example(gates: portcullis::Portcullis) -> Result<(), portcullis::ConfigError> {
/// let per_tenant = header("x-tenant").max_bytes(64)?;
/// let layer = portcullis::MutexLayer::new(gates.mutex("import")).key(per_tenant);
/// # Ok(()) }
/// ```
#[track_caller]
pub fn header<N>(name: N) -> HeaderKey
where
    N: TryInto<HeaderName, Error: Display>,
{
    match name.try_into() {
        Ok(name) => HeaderKey {
            name,
            max_bytes: MaxBytes::DEFAULT,
        },
        Err(error) => panic!("this {} does not name a header: {error}", type_name::<N>()),
    }
}

/// Makes a key of a header; made by [`header`].
#[derive(Debug, Clone)]
#[must_use = "it makes no key until it is given to a layer"]
pub struct HeaderKey {
    name: HeaderName,
    max_bytes: MaxBytes,
}

impl HeaderKey {
    /// Sets how long a value may be: 1 to 65,536 bytes, 256 by default.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn max_bytes(mut self, max_bytes: usize) -> Result<Self, ConfigError> {
        self.max_bytes = MaxBytes::new(max_bytes)?;
        Ok(self)
    }

    fn what(&self) -> String {
        format!("header {}", self.name)
    }
}

impl MakeKey for HeaderKey {
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        let mut values = parts.headers.get_all(&self.name).iter();
        let Some(value) = values.next() else {
            return Err(KeyError::lacks(self.what()));
        };
        if values.next().is_some() {
            return Err(KeyError::unusable(self.what(), "there are several"));
        }
        // The white space is no part of the value, but not every protocol takes it away.
        let usable = match str::from_utf8(value.as_bytes().trim_ascii()) {
            Ok(text) if text.chars().any(char::is_control) => Err("it has control characters"),
            Ok(text) => self.max_bytes.check(text).map(|()| text),
            Err(_) => Err("it is not UTF-8"),
        };
        match usable {
            Ok(text) => Ok(Some(text.into())),
            Err(why) => Err(KeyError::unusable(self.what(), why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};

    use super::*;

    fn made(make_key: &HeaderKey, values: &[&[u8]]) -> Result<Key, KeyError> {
        let (mut parts, ()) = Request::new(()).into_parts();
        for value in values {
            let value = HeaderValue::from_bytes(value).expect("what a request may bring");
            parts.headers.append("x-tenant", value);
        }
        let made = make_key.make_key(&mut parts);
        made.map(|key| key.expect("a header is not optional"))
    }

    #[test]
    fn one_value_of_text_makes_the_key() {
        let tenant = header("X-Tenant");
        let longest = "x".repeat(256);
        for (value, key) in [
            ("acme", "acme"),
            ("Acme", "Acme"),
            ("a b, c", "a b, c"),
            (" \tacme ", "acme"),
            ("größe", "größe"),
            (&*longest, &*longest),
        ] {
            let made = made(&tenant, &[value.as_bytes()]).expect(value);
            assert_eq!(made, Key::from(key), "{value:?}");
        }
    }

    #[test]
    fn what_is_no_text_of_that_length_or_comes_twice_is_refused_and_not_shown() {
        let tenant = header("x-tenant");
        let long = [b'x'; 257];
        let rows: [(&[&[u8]], &str); 7] = [
            (&[b""], "empty"),
            (&[b" \t "], "empty"),
            (&[b"secret\xFF"], "not UTF-8"),
            (&[b"secret\tb"], "control characters"),
            (&["secret\u{85}".as_bytes()], "control characters"),
            (&[&long], "too long"),
            (&[b"secret", b"secret"], "several"),
        ];
        for (values, why) in rows {
            let error = made(&tenant, values).expect_err(why);
            assert!(!error.is_missing() && !error.is_misconfigured());
            let text = error.to_string();
            assert!(
                text.contains("header x-tenant") && text.contains(why),
                "{text}"
            );
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(made(&tenant, &[]).expect_err("none").is_missing());
    }

    #[test]
    fn the_longest_value_can_be_set_within_bounds() {
        let short = header("x-tenant").max_bytes(2).expect("in range");
        assert!(made(&short, &[b"ab"]).is_ok());
        assert!(made(&short, &[b"abc"]).is_err());
        for out_of_range in [0, 65_537] {
            let error = header("x-tenant").max_bytes(out_of_range);
            assert_eq!(error.expect_err("out of range").field(), "max_bytes");
        }
    }

    #[test]
    #[should_panic(expected = "does not name a header")]
    fn a_name_that_no_header_has_is_a_mistake_of_the_program() {
        let _ = header("x tenant");
    }
}
