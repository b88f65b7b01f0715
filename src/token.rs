//! Who holds: the instance of this process, the token of one acquisition, the fencing token of one
//! grant.

use std::cell::RefCell;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::error::ConfigError;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// One handle's identity: 72 random bits, the first 12 characters of each of its tokens and the end
/// of its inbox' name. Whoever knows it can address the inbox, so it is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance([u8; Self::LENGTH]);

impl Instance {
    /// The scripts cut the instance off a token by this length.
    pub(crate) const LENGTH: usize = 12;

    pub(crate) fn draw() -> Result<Self, ConfigError> {
        let mut random = [0_u8; 9];
        getrandom::fill(&mut random).map_err(ConfigError::no_randomness)?;
        Ok(Self(encode(&random)))
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// As [`Token::jitter`]: differs from process to process.
    pub(crate) fn jitter(&self, turn: u32) -> u32 {
        // Each letter is one of 64; two make the eight bits.
        let letter = |at: u32| u32::from(self.0[at as usize % Self::LENGTH]);
        (letter(turn) * 67 + letter(turn.wrapping_add(5))) & 0xFF
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instance(..)")
    }
}

/// The secret of one acquisition: only a script called with it can renew or release what it holds.
/// 128 bits, drawn afresh each time and never printed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(
    /// Halves, since a whole one would align all that holds it to 16 bytes.
    [u64; 2],
);

impl Token {
    /// The length of its text: the instance and 22 characters.
    pub(crate) const LENGTH: usize = Instance::LENGTH + 22;

    /// Draws a token that no acquisition had before.
    pub(crate) fn draw() -> Result<Self, getrandom::Error> {
        // A thread that is about to end has no stock any more, and gets its one token fetched.
        let random = STOCK
            .try_with(|stock| stock.borrow_mut().take())
            .unwrap_or_else(|_| {
                let mut stock = Stock::EMPTY;
                stock.take()
            })?;
        Ok(Self::from_value(u128::from_be_bytes(random)))
    }

    /// As the server stores it.
    pub(crate) fn text(self, instance: &Instance) -> [u8; Self::LENGTH] {
        let mut text = [0_u8; Self::LENGTH];
        text[..Instance::LENGTH].copy_from_slice(&instance.0);
        text[Instance::LENGTH..].copy_from_slice(&encode::<22>(&self.value().to_be_bytes()));
        text
    }

    /// Reads a token of `instance` back; `None` for anything else.
    pub(crate) fn parse(text: &[u8], instance: &Instance) -> Option<Self> {
        let random = text.strip_prefix(&instance.0)?;
        if random.len() != 22 {
            return None;
        }
        let mut value = 0_u128;
        for (index, byte) in random.iter().enumerate() {
            let digit = ALPHABET.iter().position(|letter| letter == byte)? as u128;
            // 21 digits of 6 bits and the upper 2 bits of the last one make 128.
            value = if index < 21 {
                (value << 6) | digit
            } else if digit & 0b1111 == 0 {
                (value << 2) | (digit >> 4)
            } else {
                return None;
            };
        }
        Some(Self::from_value(value))
    }

    /// A number below 256 that differs from token to token and from one `turn` to the next, to
    /// spread what would come at once.
    pub(crate) const fn jitter(self, turn: u32) -> u32 {
        (self.value() >> (turn % 15 * 8)) as u32 & 0xFF
    }

    /// A token that only its own backend ever sees, and so need not be hard to guess.
    pub(crate) const fn local(mark: u64, serial: u64) -> Self {
        Self([mark, serial])
    }

    /// What a [`local`](Self::local) one was made of.
    pub(crate) const fn parts(self) -> (u64, u64) {
        (self.0[0], self.0[1])
    }

    #[cfg(test)]
    pub(crate) const fn of(value: u128) -> Self {
        Self::from_value(value)
    }

    const fn from_value(value: u128) -> Self {
        Self([(value >> 64) as u64, value as u64])
    }

    const fn value(self) -> u128 {
        (self.0[0] as u128) << 64 | self.0[1] as u128
    }
}

thread_local! {
    static STOCK: RefCell<Stock> = const { RefCell::new(Stock::EMPTY) };
}

/// Random bytes fetched ahead: asking the system for those of one token takes it half a
/// microsecond, and hardly longer for those of many.
///
/// The child of a fork has a copy of what its parent's thread had left. No token is repeated by
/// that: each begins with its handle's instance, and a handle does not work in a child, which has
/// no copy of its background thread.
struct Stock {
    bytes: [u8; 32 * Self::PIECE],
    left: usize,
}

impl Stock {
    /// For one token.
    const PIECE: usize = 16;
    const EMPTY: Self = Self {
        bytes: [0; 32 * Self::PIECE],
        left: 0,
    };

    /// Takes what nobody has had. It is erased here, so that a token in use lies where its owner
    /// put it, and nowhere else.
    fn take(&mut self) -> Result<[u8; Self::PIECE], getrandom::Error> {
        if self.left == 0 {
            getrandom::fill(&mut self.bytes)?;
            self.left = self.bytes.len();
        }
        let start = self.left - Self::PIECE;
        let mut taken = [0; Self::PIECE];
        taken.swap_with_slice(&mut self.bytes[start..self.left]);
        self.left = start;
        Ok(taken)
    }
}

/// By its halves: that one token is another is as unlikely as that these are the same.
impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0] ^ self.0[1]);
    }
}

/// Builds tables of tokens. They are random, and only those that we drew are put into a table, so
/// they need no further hashing.
pub(crate) type ByToken = BuildHasherDefault<TokenHasher>;

#[derive(Debug, Default)]
pub(crate) struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Unpadded base64url: `N` digits of 6 bits, the last one filled up with zeros.
fn encode<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|index| {
        let bit = index * 6;
        let pair =
            u16::from(bytes[bit / 8]) << 8 | u16::from(*bytes.get(bit / 8 + 1).unwrap_or(&0));
        ALPHABET[usize::from(pair >> (10 - bit % 8) & 0b11_1111)]
    })
}

/// A number that rises with every grant of one key: the protected resource refuses a smaller one
/// than it has seen.
///
/// It is at least the server's clock in microseconds, so it also rises across a loss of the
/// server's data, unless the server's clock steps back further than the outage lasted. The server
/// remembers the last number for a minute beyond its last use, or for the length of a renewed lease:
/// behind a longer one that is not renewed, a clock that steps back by more than a minute may give a
/// smaller number. It fits in 53 bits. Permits that their process
/// [keeps](crate::Semaphore::keep_permits) have no order: theirs is 0.
///
/// Source: M. Kleppmann, *How to do distributed locking* (2016).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number to send along with each write to the protected resource.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn instance() -> Instance {
        Instance::draw().expect("the system has randomness")
    }

    proptest! {
        #[test]
        fn a_token_is_read_back_from_its_text(value: u128) {
            let instance = instance();
            let token = Token::of(value);
            prop_assert_eq!(Token::parse(&token.text(&instance), &instance), Some(token));
        }

        #[test]
        fn distinct_tokens_have_distinct_texts(one: u128, other: u128) {
            let instance = instance();
            prop_assert_eq!(one == other, Token::of(one).text(&instance) == Token::of(other).text(&instance));
        }

        #[test]
        fn garbage_is_no_token(text: Vec<u8>) {
            prop_assert_eq!(Token::parse(&text, &instance()), None);
        }
    }

    #[test]
    fn no_token_is_drawn_twice_on_one_thread_or_on_several() {
        let draw = || -> Vec<Token> {
            let tokens = (0..100).map(|_| Token::draw().expect("the system has randomness"));
            tokens.collect()
        };
        let others: Vec<_> = (0..3).map(|_| std::thread::spawn(draw)).collect();
        let mut tokens = draw();
        for other in others {
            tokens.extend(other.join().expect("it does not panic"));
        }
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 400);
    }

    #[test]
    fn what_was_taken_from_the_stock_is_erased() {
        let mut stock = Stock::EMPTY;
        while stock.left == 0 || stock.left > Stock::PIECE {
            stock.take().expect("the system has randomness");
        }
        assert!(stock.bytes[Stock::PIECE..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_token_of_another_instance_is_not_ours() {
        let token = Token::of(7).text(&instance());
        assert_eq!(Token::parse(&token, &instance()), None);
    }

    #[test]
    fn secrets_are_not_printed() {
        let instance = instance();
        let token = Token::of(u128::MAX);
        assert_eq!(format!("{instance:?} {token:?}"), "Instance(..) Token(..)");
    }
}
