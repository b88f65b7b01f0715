//! The only place where the name of a server key or channel is built.
//!
//! # Invariants
//!
//! 1. Distinct gates have distinct keys: parts are escaped before they are joined, joined so that
//!    it is seen what belongs to what, and each kind has a letter of its own.
//! 2. All keys of one gate lie in one slot of a cluster, and nothing in a name can choose that
//!    slot.
//! 3. Gates that we name are spread over 256 hash tags, evenly over the slots, so that a process
//!    needs at most 256 heartbeats and subscriptions however many gates it waits at.
//! 4. A key's length is bounded, whatever a request brings.

use std::fmt;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use sha2::{Digest, Sha256};

use crate::error::ConfigError;
use crate::token::Instance;

/// How many slots a cluster has.
pub(crate) const SLOTS: usize = 16_384;
/// How many of them one of our tags stands for.
const SLOTS_PER_TAG: usize = SLOTS / 256;
/// What is longer than this is replaced by its beginning and a digest. The lengths differ, so that
/// what stands for one part is never taken for what stands for several.
const MAX_PART: usize = 128;
const MAX_KEY: usize = 255;

/// What tells one gate from its siblings of the same name: an account, a tenant, a route.
///
/// Made from strings, from integers, and from 2 to 6 of these together. Any content is safe: what
/// could be mistaken for the crate's own punctuation is escaped, what is very long is shortened to
/// its beginning and a digest (SHA-256), and distinct keys never meet.
///
/// # Examples
///
/// ```
/// use portcullis::Key;
///
/// let account: Key = "4711".into();
/// let number: Key = 4711_u64.into();
/// assert_eq!(account, number);
/// assert_ne!(account, Key::from("4711:"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Box<str>);

impl Key {
    /// Makes a key of one thing, or of 2 to 6 things that only together tell one gate from its
    /// siblings.
    ///
    /// Each part may be whatever a key is made from, other keys included. Parts keep apart:
    /// `("a:b", "c")`, `("a", "b:c")` and `("a", ("b", "c"))` are different keys. Their order
    /// counts.
    ///
    /// # Examples
    ///
    /// ```
    /// use portcullis::{Key, Portcullis};
    ///
    /// # fn example(gates: Portcullis) {
    /// let (tenant, account) = ("acme", 4711_u64);
    /// let withdraw = gates.mutex("withdraw").keyed(Key::of((tenant, account)));
    /// # }
    /// ```
    #[must_use]
    pub fn of(parts: impl Into<Self>) -> Self {
        parts.into()
    }

    fn from_part(part: &str) -> Self {
        Self(encode(part, MAX_PART).into_boxed_str())
    }

    /// Colons between the parts, and brackets around a part that is itself made of several. A text
    /// has neither, since it is escaped, so that what was joined can be told from the result.
    fn from_parts(parts: &[Self]) -> Self {
        let mut text = String::new();
        for (index, Self(part)) in parts.iter().enumerate() {
            if index > 0 {
                text.push(':');
            }
            if part.contains(':') {
                let _ = write!(text, "({part})");
            } else {
                text.push_str(part);
            }
        }
        if text.len() > MAX_KEY {
            // One part from here on: what is cut off could have closed brackets.
            let mut start = text.replace([':', '(', ')'], ".");
            shorten(&mut start, &text, MAX_KEY);
            text = start;
        }
        Self(text.into_boxed_str())
    }
}

/// As it stands in the name of a server key.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.0).finish()
    }
}

macro_rules! key_from_text {
    ($($source:ty),*) => {$(
        impl From<$source> for Key {
            fn from(part: $source) -> Self {
                Self::from_part(part.as_ref())
            }
        }
    )*};
}

macro_rules! key_from_integer {
    ($($source:ty),*) => {$(
        impl From<$source> for Key {
            fn from(part: $source) -> Self {
                Self(part.to_string().into_boxed_str())
            }
        }
    )*};
}

key_from_text!(
    &str,
    String,
    &String,
    Box<str>,
    Arc<str>,
    std::borrow::Cow<'_, str>
);
key_from_integer!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize
);

macro_rules! key_from_several {
    ($($part:ident)*) => {
        impl<$($part: Into<Self>),*> From<($($part,)*)> for Key {
            #[allow(non_snake_case, reason = "a part is named like its type")]
            fn from(($($part,)*): ($($part,)*)) -> Self {
                Self::from_parts(&[$($part.into()),*])
            }
        }
    };
}

key_from_several!(A B);
key_from_several!(A B C);
key_from_several!(A B C D);
key_from_several!(A B C D E);
key_from_several!(A B C D E F);

/// What lives at a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Mutex,
    /// A mutex under a key that others know too.
    Exact,
    Semaphore,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Mutex, Self::Exact, Self::Semaphore];

    /// Of the main key; side keys put their own letter behind it.
    const fn letter(self) -> char {
        match self {
            Self::Mutex => 'm',
            Self::Exact => 'x',
            Self::Semaphore => 's',
        }
    }
}

/// One slot's hash tag, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tag(u16);

impl Tag {
    pub(crate) fn text(self) -> &'static str {
        &TAGS[usize::from(self.0)]
    }

    /// The slot that it stands for.
    pub(crate) const fn slot(self) -> u16 {
        self.0
    }

    /// The one of a slot, which is less than [`SLOTS`].
    pub(crate) fn of_slot(slot: u16) -> Self {
        Self(slot % SLOTS as u16)
    }

    /// Which of so many connections carries it. By its stripe: of the tags that named gates have,
    /// every number is a multiple of 32, which two and four connections would not part.
    pub(crate) fn link(self, links: usize) -> usize {
        usize::from(self.0) / SLOTS_PER_TAG % links
    }

    /// The tag that stands for the stripe of slots into which `name` falls.
    fn of_name(name: &str) -> Self {
        let stripe = usize::from(crc16(name.as_bytes())) % SLOTS / SLOTS_PER_TAG;
        Self((stripe * SLOTS_PER_TAG + SLOTS_PER_TAG / 2) as u16)
    }

    /// The tag in the slot of a key that somebody else has named.
    pub(crate) fn of_key(key: &str) -> Self {
        let tagged = key
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'))
            .map(|(tag, _)| tag);
        let hashed = tagged.filter(|tag| !tag.is_empty()).unwrap_or(key);
        Self((usize::from(crc16(hashed.as_bytes())) % SLOTS) as u16)
    }
}

/// For each slot the shortest, first text of letters and digits that falls into it.
static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut tags = vec![String::new(); SLOTS];
    let mut missing = SLOTS;
    let mut number = 0_u32;
    while missing > 0 {
        let text = base36(number);
        let slot = usize::from(crc16(text.as_bytes())) % SLOTS;
        if tags[slot].is_empty() {
            tags[slot] = text;
            missing -= 1;
        }
        number += 1;
    }
    tags
});

fn base36(mut number: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit(number % 36, 36).unwrap_or('0'));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

/// CRC-16/XMODEM, by which a cluster assigns keys to slots (Redis cluster specification, appendix
/// A).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        crc << 8 ^ CRC16[usize::from(crc >> 8 ^ u16::from(byte))]
    })
}

/// What each byte adds: each request with a key of its own needs it.
static CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Escapes what is not a plain character, and shortens what is longer than `max`. Injective up to
/// collisions of 160 bits of SHA-256: `~` only ever stands in front of a digest.
fn encode(part: &str, max: usize) -> String {
    let mut text = String::with_capacity(part.len());
    for byte in part.bytes() {
        if text.len() > max {
            break;
        }
        if byte.is_ascii_alphanumeric() || b"-_.@/+=,".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    if text.len() > max {
        shorten(&mut text, part, max);
    }
    text
}

/// Cuts `text` to `max` bytes, ending in a digest of `whole`.
fn shorten(text: &mut String, whole: &str, max: usize) {
    const DIGEST: usize = 20;
    text.truncate(max - 1 - 2 * DIGEST);
    text.push('~');
    for byte in &Sha256::digest(whole.as_bytes())[..DIGEST] {
        let _ = write!(text, "{byte:02x}");
    }
}

/// The application's own part of the key space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Prefix(Arc<str>);

impl Default for Prefix {
    fn default() -> Self {
        Self("portcullis".into())
    }
}

impl Prefix {
    pub(crate) fn new(prefix: &str) -> Result<Self, ConfigError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        if (1..=64).contains(&prefix.len()) && prefix.bytes().all(plain) {
            Ok(Self(prefix.into()))
        } else {
            Err(ConfigError::new(
                "prefix",
                "it takes 1 to 64 ASCII letters, digits, '-', '_', '.' and ':'",
            ))
        }
    }

    /// Of the gates of a quorum, so that no server takes them for its own.
    pub(crate) fn of_quorum(&self) -> Self {
        Self(format!("{}:quorum", self.0).into())
    }

    /// What all gates under `tag` share.
    pub(crate) fn shared(&self, tag: Tag) -> Shared {
        let start = format!("{}:{{{}}}", self.0, tag.text());
        Shared {
            roster: format!("{start}:roster").into_boxed_str(),
            clock: format!("{start}:clock").into_boxed_str(),
        }
    }

    /// A key that nobody has, to ask a server for that may not serve.
    pub(crate) fn probe(&self) -> String {
        format!("{}:probe", self.0)
    }

    /// The same, in the slot of a tag.
    pub(crate) fn probe_at(&self, tag: Tag) -> String {
        format!("{}:{{{}}}:probe", self.0, tag.text())
    }

    /// A key that is written to for the sake of writing: it says nothing.
    pub(crate) fn acknowledged(&self) -> String {
        format!("{}:acknowledged", self.0)
    }

    /// What an ACL calls all keys under it.
    pub(crate) fn keys_rule(&self) -> String {
        format!("~{}:*", self.0)
    }

    /// What an ACL calls all inboxes under it.
    pub(crate) fn inboxes_rule(&self) -> String {
        format!("&{}*", self.inbox_channels())
    }

    /// What precedes an instance in the name of its inbox.
    pub(crate) fn inbox_channels(&self) -> String {
        format!("{}:inbox:", self.0)
    }

    /// The channel on which `instance` is told of its grants.
    pub(crate) fn inbox(&self, instance: &Instance) -> String {
        format!("{}{}", self.inbox_channels(), instance.as_str())
    }

    /// The channel on which it is told of those under a tag, where each tag has its own.
    pub(crate) fn shard_inbox(&self, instance: &Instance, tag: Tag) -> String {
        format!("{}:{{{}}}", self.inbox(instance), tag.text())
    }
}

/// The keys that all gates of one hash tag share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Who lives and who has ended.
    pub(crate) roster: Box<str>,
    /// The number drawn last.
    pub(crate) clock: Box<str>,
}

/// A name and the key of a sibling under it, escaped and joined, with the tag of the whole.
fn path(name: &str, key: Option<&Key>) -> (Tag, String) {
    let mut path = encode(name, MAX_PART);
    if let Some(key) = key {
        path.push(':');
        path.push_str(&key.0);
    }
    (Tag::of_name(&path), path)
}

/// The place on the server of what one subject of a rate limiter has used: one key, under a letter
/// that no kind of gate has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) tag: Tag,
    key: Box<str>,
    /// The limiter as errors and traces name it: never the part that a request brought.
    pub(crate) limiter: Arc<str>,
}

impl Subject {
    const LETTER: char = 'l';

    /// Of the limiter `name`, or of one of the siblings under it.
    pub(crate) fn new(prefix: &Prefix, name: &Arc<str>, key: Option<&Key>) -> Self {
        let (tag, path) = path(name, key);
        let letter = Self::LETTER;
        Self {
            tag,
            key: format!("{}:{{{}}}:{letter}:{path}", prefix.0, tag.text()).into_boxed_str(),
            limiter: Arc::clone(name),
        }
    }

    /// One that nobody is, to try a server's user at; `instance` is drawn for this alone.
    pub(crate) fn probe(prefix: &Prefix, instance: &Instance) -> Self {
        Self::new(prefix, &probe_name(instance).into(), None)
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }
}

/// A name that no gate and no limiter has.
fn probe_name(instance: &Instance) -> String {
    format!("check-{}", instance.as_str())
}

/// One gate's place on the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: Kind,
    pub(crate) tag: Tag,
    /// Those of its own, joined: see `main`, `queue`, `records`.
    keys: Box<str>,
    ends: [usize; 2],
    /// The channel on which other clients of an exact key tell of releases.
    pub(crate) released: Option<Box<str>>,
    /// The gate as errors and traces name it: never the part that a request brought.
    pub(crate) gate: Arc<str>,
}

impl Resource {
    /// The place of the gate `name`, or of one of the siblings under it.
    pub(crate) fn named(prefix: &Prefix, kind: Kind, name: &Arc<str>, key: Option<&Key>) -> Self {
        let (tag, path) = path(name, key);
        Self::place(prefix, kind, tag, None, &path, Arc::clone(name))
    }

    /// The place of a mutex under a key that others know too, or of a sibling of the gate named by
    /// one.
    pub(crate) fn exact(prefix: &Prefix, key: &str, gate: &Arc<str>) -> Self {
        let (tag, path) = (Tag::of_key(key), encode(key, MAX_PART));
        Self::place(prefix, Kind::Exact, tag, Some(key), &path, Arc::clone(gate))
    }

    /// A place that no gate has, to try a server's user at; `instance` is drawn for this alone. Nobody
    /// listens at its channel, so there is none.
    pub(crate) fn probe(prefix: &Prefix, kind: Kind, instance: &Instance) -> Self {
        let name = probe_name(instance);
        let gate = "check".into();
        if kind == Kind::Exact {
            // In one slot with the others, so that one node of a cluster has all.
            let (tag, _) = path(&name, None);
            let key = format!("{}:{{{}}}:{name}", prefix.0, tag.text());
            let mut place = Self::exact(prefix, &key, &gate);
            place.released = None;
            return place;
        }
        let mut place = Self::named(prefix, kind, &name.into(), None);
        place.gate = gate;
        place
    }

    /// Where `key` is the main key, or one of our own is if there is none. Put together by hand: each
    /// request with a key of its own comes here.
    fn place(
        prefix: &Prefix,
        kind: Kind,
        tag: Tag,
        key: Option<&str>,
        path: &str,
        gate: Arc<str>,
    ) -> Self {
        let length = prefix.0.len() + tag.text().len() + path.len() + "}::{mq:".len();
        let mut keys = String::with_capacity(3 * length + key.map_or(0, str::len));
        let add = |keys: &mut String, side: &str| {
            for part in [&*prefix.0, ":{", tag.text(), "}:"] {
                keys.push_str(part);
            }
            keys.push(kind.letter());
            for part in [side, ":", path] {
                keys.push_str(part);
            }
            keys.len()
        };
        let main = match key {
            Some(key) => {
                keys.push_str(key);
                keys.len()
            }
            None => add(&mut keys, ""),
        };
        let ends = [main, add(&mut keys, "q")];
        add(&mut keys, "r");
        Self {
            kind,
            tag,
            keys: keys.into_boxed_str(),
            ends,
            released: key.map(|key| format!("{key}:released").into_boxed_str()),
            gate,
        }
    }

    /// Who holds.
    pub(crate) fn main(&self) -> &str {
        &self.keys[..self.ends[0]]
    }

    /// Who waits.
    pub(crate) fn queue(&self) -> &str {
        &self.keys[self.ends[0]..self.ends[1]]
    }

    /// What is known of each of them.
    pub(crate) fn records(&self) -> &str {
        &self.keys[self.ends[1]..]
    }
}

/// By the main key, which no other gate has (invariant 1).
impl std::hash::Hash for Resource {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.main().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn prefix() -> Prefix {
        Prefix::new("shop").expect("a plain prefix")
    }

    fn named(kind: Kind, name: &str, key: Option<&str>) -> Resource {
        Resource::named(&prefix(), kind, &name.into(), key.map(Key::from).as_ref())
    }

    /// What keys are made from.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    enum Parts {
        Text(String),
        Several(Vec<Self>),
    }

    impl Parts {
        fn key(&self) -> Key {
            let parts = match self {
                Self::Text(text) => return Key::of(text),
                Self::Several(parts) => parts,
            };
            let mut keys = parts.iter().map(Self::key);
            let mut next = || keys.next().expect("as many as there are parts");
            match parts.len() {
                2 => Key::of((next(), next())),
                3 => Key::of((next(), next(), next())),
                4 => Key::of((next(), next(), next(), next())),
                5 => Key::of((next(), next(), next(), next(), next())),
                _ => Key::of((next(), next(), next(), next(), next(), next())),
            }
        }

        /// Undoes `key`, which is what makes it injective; `None` where something was shortened.
        fn of_key(key: &Key) -> Option<Self> {
            if key.0.contains('~') {
                return None;
            }
            let mut rest = &*key.0;
            let parts = Self::read(&mut rest);
            assert_eq!(rest, "", "{key}");
            Some(parts)
        }

        fn read(rest: &mut &str) -> Self {
            let mut parts = Vec::new();
            loop {
                if let Some(inside) = rest.strip_prefix('(') {
                    *rest = inside;
                    parts.push(Self::read(rest));
                    *rest = rest.strip_prefix(')').expect("closed");
                } else {
                    let end = rest.find([':', '(', ')']).unwrap_or(rest.len());
                    parts.push(Self::Text(unescaped(&rest[..end])));
                    *rest = &rest[end..];
                }
                let Some(next) = rest.strip_prefix(':') else {
                    break;
                };
                *rest = next;
            }
            if parts.len() == 1 {
                return parts.remove(0);
            }
            Self::Several(parts)
        }

        /// The same texts in the same order, joined otherwise.
        fn rejoined(&self) -> Self {
            fn collect(parts: &Parts, into: &mut Vec<Parts>) {
                match parts {
                    text @ Parts::Text(_) => into.push(text.clone()),
                    Parts::Several(parts) => parts.iter().for_each(|part| collect(part, into)),
                }
            }
            let mut texts = Vec::new();
            collect(self, &mut texts);
            let last = texts.pop().expect("there is no key of nothing");
            texts
                .into_iter()
                .rev()
                .fold(last, |rest, text| Self::Several(vec![text, rest]))
        }
    }

    fn unescaped(text: &str) -> String {
        let mut pieces = text.split('%');
        let mut bytes = pieces.next().expect("the first").as_bytes().to_vec();
        for piece in pieces {
            let (digits, plain) = piece.split_at(2);
            bytes.push(u8::from_str_radix(digits, 16).expect("hexadecimal"));
            bytes.extend_from_slice(plain.as_bytes());
        }
        String::from_utf8(bytes).expect("what was escaped")
    }

    fn parts() -> impl Strategy<Value = Parts> {
        let text = prop_oneof![
            3 => hostile(),
            // What a careless way of joining would mix up.
            2 => proptest::sample::select(vec!["", "a", "a:b", "(a:b)", ")", ":", "%3A", "a~"])
                .prop_map(str::to_owned),
        ];
        text.prop_map(Parts::Text)
            .prop_recursive(3, 24, 6, |inner| {
                proptest::collection::vec(inner, 2..=6).prop_map(Parts::Several)
            })
    }

    fn slot(key: &str) -> u16 {
        Tag::of_key(key).0
    }

    fn keys(resource: &Resource) -> [String; 5] {
        let shared = prefix().shared(resource.tag);
        let own = [resource.main(), resource.queue(), resource.records()];
        let [main, queue, records] = own.map(str::to_owned);
        [
            main,
            queue,
            records,
            shared.roster.into(),
            shared.clock.into(),
        ]
    }

    /// Strings full of what the key syntax uses.
    fn hostile() -> impl Strategy<Value = String> {
        prop_oneof![
            proptest::collection::vec(
                prop_oneof![
                    Just(':'),
                    Just('{'),
                    Just('}'),
                    Just('%'),
                    Just('~'),
                    Just('\0'),
                    Just('\r'),
                    Just('\n'),
                    Just(' '),
                    Just('a'),
                    Just('é'),
                    any::<char>()
                ],
                0..12
            )
            .prop_map(|letters| letters.into_iter().collect()),
            "[a-z]{100,300}",
        ]
    }

    proptest! {
        #[test]
        fn distinct_gates_have_distinct_keys(
            one in (any::<bool>(), hostile(), proptest::option::of(hostile())),
            other in (any::<bool>(), hostile(), proptest::option::of(hostile())),
        ) {
            let kind = |mutex| if mutex { Kind::Mutex } else { Kind::Semaphore };
            let first = named(kind(one.0), &one.1, one.2.as_deref());
            let second = named(kind(other.0), &other.1, other.2.as_deref());
            let mut all: HashSet<String> = HashSet::new();
            let subject = |of: &(bool, String, Option<String>)| {
                let key = of.2.as_deref().map(Key::from);
                Subject::new(&prefix(), &of.1.as_str().into(), key.as_ref())
            };
            let (one_subject, other_subject) = (subject(&one), subject(&other));
            let same_names = (&one.1, &one.2) == (&other.1, &other.2);
            prop_assert_eq!(one_subject.key() == other_subject.key(), same_names);
            prop_assert_eq!(one_subject.tag, first.tag);
            prop_assert!(!keys(&second).contains(&one_subject.key().to_owned()));
            let same = one == other;
            for gate in [&first, &second] {
                all.extend(keys(gate).into_iter().take(3));
            }
            prop_assert_eq!(all.len(), if same { 3 } else { 6 });
        }

        #[test]
        fn all_keys_of_one_gate_share_a_slot_that_the_name_does_not_choose(name in hostile(), key in hostile()) {
            let gate = named(Kind::Semaphore, &name, Some(&key));
            for each in keys(&gate) {
                prop_assert_eq!(slot(&each), gate.tag.0);
                prop_assert_eq!(each.matches(['{', '}']).count(), 2);
                prop_assert!(each.len() < 512);
            }
        }

        #[test]
        fn keys_of_several_parts_can_be_told_apart(parts in parts(), other in parts()) {
            let key = parts.key();
            if let Some(found) = Parts::of_key(&key) {
                prop_assert_eq!(&found, &parts);
            }
            for other in [parts.rejoined(), other] {
                prop_assert_eq!(parts == other, key == other.key(), "{:?}", other);
            }
        }

        #[test]
        fn whatever_parts_a_key_has_it_is_short_and_chooses_no_slot(
            parts in parts(),
            name in hostile(),
        ) {
            let key = parts.key();
            prop_assert!(key.0.len() <= MAX_KEY);
            let gate = Resource::named(&prefix(), Kind::Mutex, &name.as_str().into(), Some(&key));
            for each in keys(&gate) {
                prop_assert_eq!(slot(&each), gate.tag.0);
                prop_assert_eq!(each.matches(['{', '}']).count(), 2);
                prop_assert!(each.len() < 512);
            }
        }

        #[test]
        fn side_keys_of_an_exact_key_lie_in_its_slot(key in hostile()) {
            let gate = Resource::exact(&prefix(), &key, &"gate".into());
            prop_assert_eq!(gate.main(), key.as_str());
            for each in keys(&gate) {
                prop_assert_eq!(slot(&each), slot(&key));
            }
        }
    }

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        // The specification's own check value, and two measured on a server.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot("a}b"), 7866);
        assert_eq!(slot("q:{a}b}"), 15495);
    }

    #[test]
    fn gates_are_spread_over_the_connections_whoever_has_named_them() {
        for links in 1..=4 {
            let (mut named_by_us, mut by_others) = (vec![0; links], vec![0; links]);
            for number in 0..1000 {
                let name = format!("gate-{number}");
                named_by_us[named(Kind::Mutex, &name, None).tag.link(links)] += 1;
                by_others[Tag::of_key(&name).link(links)] += 1;
            }
            let fair = 1000 / links / 2;
            for count in named_by_us.into_iter().chain(by_others) {
                assert!(count > fair, "{count} of 1000 over {links}");
            }
        }
    }

    #[test]
    fn every_slot_has_a_tag_that_falls_into_it() {
        for (number, tag) in TAGS.iter().enumerate() {
            assert_eq!(usize::from(slot(tag)), number);
            assert!(tag.len() <= 4);
        }
    }

    #[test]
    fn names_spread_evenly_over_the_nodes_of_a_cluster() {
        let mut nodes = [0_u32; 3];
        for number in 0..3000 {
            nodes[usize::from(named(Kind::Mutex, &format!("job-{number}"), None).tag.0) * 3
                / SLOTS] += 1;
        }
        assert!(
            nodes.iter().all(|count| (800..=1200).contains(count)),
            "{nodes:?}"
        );
    }

    #[test]
    fn a_megabyte_from_a_request_makes_a_short_key() {
        let long = "x".repeat(1 << 20);
        assert!(named(Kind::Mutex, "a", Some(&long)).main().len() < 256);
        let other = format!("{}y", &long[1..]);
        assert_ne!(
            named(Kind::Mutex, "a", Some(&long)),
            named(Kind::Mutex, "a", Some(&other))
        );
    }

    #[test]
    fn what_stands_for_something_long_is_not_what_stands_for_several_parts() {
        // The second part is, letter by letter, what the other key is a digest of, and stands where
        // that key's digest does.
        let (first, second) = ("a".repeat(126), "a".repeat(127));
        let long = Key::of((first.as_str(), second.as_str(), "b"));
        let forged = Key::of((first.as_str(), format!("{first}:{second}:b")));
        assert_eq!([long.0.len(), forged.0.len()], [MAX_KEY; 2]);
        assert_ne!(long, forged);
        // Brackets that a digest cut off belong to nothing that comes behind.
        let deep = Key::of((
            Key::of(("a", "x".repeat(120))),
            "y".repeat(120),
            "z".repeat(120),
        ));
        assert!(!deep.0.contains([':', '(', ')']));
        assert_ne!(Key::of((deep.clone(), "b")), Key::of(("b", deep)));
    }

    #[test]
    fn an_integer_is_the_text_that_it_is_written_as_also_among_others() {
        assert_eq!(Key::of(("acme", 7_u8)), Key::of(("acme", "7")));
        assert_eq!(Key::of(("acme", 7_u8)).to_string(), "acme:7");
        assert_eq!(Key::of(("a", ("b", -1), "c")).to_string(), "a:(b:-1):c");
    }

    #[test]
    fn a_prefix_that_could_choose_a_slot_is_refused() {
        for prefix in ["", "a{b", "a}", "a b", "é", &"x".repeat(65)] {
            assert_eq!(
                Prefix::new(prefix).map_err(|error| error.field()),
                Err("prefix"),
                "{prefix:?}"
            );
        }
    }
}
