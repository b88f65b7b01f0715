//! Which clock is used where: this process' own for its deadlines, the server's for everything
//! shared.

use std::time::Duration;

use crate::error::ConfigError;

/// What a pushed grant is worth until its process has spoken, and what a heartbeat is worth; the
/// scripts' `CLAIM_MS`.
pub(crate) const CLAIM: Duration = Duration::from_secs(3);

/// A reading of a clock that never steps and counts the time that the machine sleeps.
///
/// `std::time::Instant` and tokio's timers stand still while a machine is suspended; a lease does
/// not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(u64);

impl Instant {
    pub(crate) const FAR: Self = Self(u64::MAX);

    pub(crate) fn now() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        // Elsewhere the monotonic clock counts sleep itself (Apple), or nothing better is at hand.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let reading = rustix::time::clock_gettime(CLOCK);
        Self(reading.tv_sec as u64 * 1_000_000_000 + reading.tv_nsec as u64)
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn as_nanos(self) -> u64 {
        self.0
    }

    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// So much earlier, as far as this clock goes back.
    #[cfg(any(test, feature = "sentinel"))]
    pub(crate) fn before(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// The time from `earlier` to this reading, zero if it is not earlier.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The clock by which a handle's leases end.
#[derive(Debug, Clone, Default)]
pub(crate) enum Clock {
    /// [`Instant::now`].
    #[default]
    System,
    /// A runtime's own clock, which a test can pause and advance.
    #[cfg(feature = "test-util")]
    Runtime(tokio::runtime::Handle, tokio::time::Instant),
    #[cfg(test)]
    Made(MadeClock),
}

/// A clock of which a unit test makes each reading. Before a reading is used it may do whatever
/// others do while a thread stands still.
#[cfg(test)]
#[derive(Clone)]
pub(crate) struct MadeClock(std::sync::Arc<dyn Fn() -> Instant + Send + Sync>);

#[cfg(test)]
impl std::fmt::Debug for MadeClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeClock").finish_non_exhaustive()
    }
}

impl Clock {
    #[cfg(test)]
    pub(crate) fn made(read: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self::Made(MadeClock(std::sync::Arc::new(read)))
    }

    /// The clock of the runtime in which this is called.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    #[cfg(feature = "test-util")]
    #[track_caller]
    pub(crate) fn of_runtime() -> Self {
        Self::Runtime(
            tokio::runtime::Handle::current(),
            tokio::time::Instant::now(),
        )
    }

    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::System => Instant::now(),
            #[cfg(feature = "test-util")]
            Self::Runtime(runtime, start) => {
                // A thread outside of the runtime would read the system's clock, paused or not.
                let _inside = runtime.enter();
                Instant(0).after(start.elapsed())
            }
            #[cfg(test)]
            Self::Made(MadeClock(read)) => read(),
        }
    }
}

/// The moment until which a lease may be believed in: counted from the sending of the request that
/// the server answered with `left`, less what two clocks may drift apart meanwhile (1 % and 2 ms,
/// as in the Redlock algorithm).
pub(crate) fn validity(sent: Instant, left: Duration) -> Instant {
    sent.after(left.saturating_sub(drift(left)))
}

/// What two clocks may drift apart in a time.
pub(crate) fn drift(time: Duration) -> Duration {
    time / 100 + Duration::from_millis(2)
}

/// How long nobody else gets in after a lease whose holder did not give it back: whole
/// milliseconds, none by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Delay(u32);

impl Delay {
    const MAX: Duration = Duration::from_secs(60);

    /// Rounded up to whole milliseconds: no shorter than was asked for.
    pub(crate) fn new(delay: Duration) -> Result<Self, ConfigError> {
        let ms = u32::try_from(delay.as_nanos().div_ceil(1_000_000));
        match ms {
            Ok(ms) if delay <= Self::MAX => Ok(Self(ms)),
            _ => Err(ConfigError::out_of_range(
                "lock_delay",
                format!("{delay:?}"),
                "0 to 60 s",
            )),
        }
    }

    pub(crate) const fn get(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }

    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// How long the server keeps a lease that nobody renews, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ttl(u32);

impl Ttl {
    pub(crate) const DEFAULT: Self = Self(10_000);
    const MIN: u32 = 50;
    const MAX: u32 = 24 * 60 * 60 * 1000;

    /// Cut to whole milliseconds.
    pub(crate) fn new(ttl: Duration) -> Result<Self, ConfigError> {
        match u32::try_from(ttl.as_millis()) {
            Ok(ms @ Self::MIN..=Self::MAX) if ttl <= Self(Self::MAX).get() => Ok(Self(ms)),
            _ => Err(ConfigError::out_of_range(
                "ttl",
                format!("{ttl:?}"),
                "50 ms to 24 h",
            )),
        }
    }

    pub(crate) const fn get(self) -> Duration {
        Duration::from_millis(self.0 as u64)
    }

    pub(crate) const fn as_ms(self) -> u32 {
        self.0
    }

    /// One that was in range before.
    pub(crate) const fn from_ms(ms: u32) -> Self {
        Self(ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn validity_never_exceeds_what_the_server_said(sent in 0..u64::MAX / 2, left_ms in 0_u64..100_000_000) {
            let sent = Instant(sent);
            let left = Duration::from_millis(left_ms);
            let until = validity(sent, left);
            prop_assert!(until >= sent);
            prop_assert!(until.since(sent) <= left);
            prop_assert!(left_ms < 10 || until.since(sent) < left);
        }

        #[test]
        fn a_ttl_is_accepted_exactly_in_its_range(ms in 0_u64..200_000_000) {
            prop_assert_eq!(Ttl::new(Duration::from_millis(ms)).is_ok(), (50..=86_400_000).contains(&ms));
        }
    }

    #[test]
    fn extreme_durations_neither_panic_nor_wrap() {
        assert_eq!(Instant(5).after(Duration::MAX), Instant::FAR);
        assert_eq!(Instant(5).since(Instant(9)), Duration::ZERO);
        assert!(Ttl::new(Duration::MAX).is_err());
        assert!(Ttl::new(Duration::ZERO).is_err());
    }
}
