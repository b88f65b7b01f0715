//! What this process knows of the server's clock.
//!
//! Each answer carries the server's time: at some moment after its request was sent, and before it
//! came in, the server's clock read that.

use crate::time::Instant;

#[derive(Debug, Default)]
pub(in crate::backend) struct ServerClock {
    latest: Option<Observation>,
}

#[derive(Debug, Clone, Copy)]
struct Observation {
    us: u64,
    received: Instant,
}

impl ServerClock {
    pub(in crate::backend) fn observe(&mut self, us: u64, received: Instant) {
        self.latest = Some(Observation { us, received });
    }

    /// The server's time in milliseconds at `now`, or a little less. Too small an estimate makes
    /// the server refuse too early, never too late.
    pub(in crate::backend) fn ms(&self, now: Instant) -> Option<u64> {
        self.us(now).map(|us| us / 1000)
    }

    /// The same in microseconds.
    pub(in crate::backend) fn us(&self, now: Instant) -> Option<u64> {
        self.latest.map(|latest| {
            let since = u64::try_from(now.since(latest.received).as_micros()).unwrap_or(u64::MAX);
            latest.us.saturating_add(since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        assert_eq!(ServerClock::default().ms(at(5)), None);
    }

    #[test]
    fn the_servers_time_is_never_estimated_too_late() {
        let mut clock = ServerClock::default();
        // Its script ran at 140 here at the latest, when its clock read 5000.
        clock.observe(5_000_000, at(140));
        assert_eq!(clock.ms(at(140)), Some(5000));
        assert_eq!(clock.ms(at(240)), Some(5100));
    }
}
