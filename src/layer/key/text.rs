//! How much of a request's text may be a key.

use crate::error::ConfigError;

const LIMIT_OF_MAX_BYTES: usize = 65_536;

/// How long a text may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaxBytes(usize);

impl MaxBytes {
    pub(super) const DEFAULT: Self = Self(256);

    pub(super) fn new(max_bytes: usize) -> Result<Self, ConfigError> {
        if (1..=LIMIT_OF_MAX_BYTES).contains(&max_bytes) {
            return Ok(Self(max_bytes));
        }
        let range = "1 to 65,536 bytes";
        Err(ConfigError::out_of_range("max_bytes", max_bytes, range))
    }

    /// Refuses a text that is longer, and one that is empty: it would be one key for all who leave
    /// theirs out. Says why.
    pub(super) const fn check(self, text: &str) -> Result<(), &'static str> {
        match text.len() {
            0 => Err("it is empty"),
            bytes if bytes > self.0 => Err("it is too long"),
            _ => Ok(()),
        }
    }
}
