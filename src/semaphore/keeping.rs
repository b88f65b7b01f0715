//! How long a process keeps the permits of a semaphore for its own next requests.

use std::time::Duration;

use crate::backend::Keep;
use crate::error::ConfigError;

/// How a process keeps permits, for [`Semaphore::keep_permits`](crate::Semaphore::keep_permits).
///
/// | setting | range | default |
/// | --- | --- | --- |
/// | [`passes`](Self::passes) | 0 to 1000 | 4 |
/// | [`turn`](Self::turn) | 0 to 1 s | 20 ms |
/// | [`linger`](Self::linger) | 1 ms to 1 s | 50 ms |
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use portcullis::{Keeping, Portcullis};
///
/// let gates = Portcullis::in_memory();
/// let reports = gates
///     .semaphore("reports", 10)?
///     .keep_permits(Keeping::default().linger(Duration::from_millis(20)))?;
/// # Ok::<(), portcullis::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keeping {
    passes: u32,
    turn: Duration,
    linger: Duration,
}

impl Default for Keeping {
    fn default() -> Self {
        Self {
            passes: 4,
            turn: Duration::from_millis(20),
            linger: Duration::from_millis(50),
        }
    }
}

impl Keeping {
    /// Sets how often a permit goes from one request to the next in this process while other processes
    /// wait: 0 to 1000, 4 by default. So many times the limit and one more may requests overtake one
    /// that waits elsewhere.
    #[must_use]
    pub const fn passes(self, passes: u32) -> Self {
        Self { passes, ..self }
    }

    /// Sets for how long it does, whatever the number: 0 to 1 s, 20 ms by default.
    #[must_use]
    pub const fn turn(self, turn: Duration) -> Self {
        Self { turn, ..self }
    }

    /// Sets how long a permit is kept that nobody uses: 1 ms to 1 s, 50 ms by default.
    ///
    /// A process that dies meanwhile keeps it from others for the rest of its TTL.
    #[must_use]
    pub const fn linger(self, linger: Duration) -> Self {
        Self { linger, ..self }
    }

    pub(crate) fn checked(self) -> Result<Keep, ConfigError> {
        let longest = Duration::from_secs(1);
        let out_of_range =
            |field, time, range| Err(ConfigError::out_of_range(field, format!("{time:?}"), range));
        if self.passes > 1000 {
            return Err(ConfigError::out_of_range(
                "passes",
                self.passes,
                "0 to 1000",
            ));
        }
        if self.turn > longest {
            return out_of_range("turn", self.turn, "0 to 1 s");
        }
        if !(Duration::from_millis(1)..=longest).contains(&self.linger) {
            return out_of_range("linger", self.linger, "1 ms to 1 s");
        }
        Ok(Keep {
            passes: self.passes,
            turn: self.turn,
            linger: self.linger,
            fences: None,
        })
    }
}
