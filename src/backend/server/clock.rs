//! What this process knows of the server's clock.
//!
//! Each answer carries the server's time, so it tells that at some moment after its request was sent, and before it came in, the
//! server's clock read that. Two questions are answered from it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Instant;

/// How far apart the kept observations lie at least. A push that is older than a few of these is rare, and only pays a round trip.
const SPACING: Duration = Duration::from_millis(50);
const KEPT: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Observation {
    us: u64,
    sent: Instant,
    received: Instant,
}

#[derive(Debug, Default)]
pub(super) struct ServerClock {
    latest: Option<Observation>,
    /// Spaced, so that they reach back over the delay of a push.
    kept: VecDeque<Observation>,
}

impl ServerClock {
    pub(super) fn observe(&mut self, us: u64, sent: Instant, received: Instant) {
        let observation = Observation { us, sent, received };
        self.latest = Some(observation);
        if self.kept.back().is_none_or(|last| received.since(last.received) >= SPACING) {
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(observation);
        }
    }

    /// The server's time in milliseconds at `now`, or a little less. Too small an estimate makes the server refuse too early, never
    /// too late.
    pub(super) fn ms(&self, now: Instant) -> Option<u64> {
        self.latest.map(|latest| {
            latest.us / 1000 + u64::try_from(now.since(latest.received).as_millis()).unwrap_or(u64::MAX)
        })
    }

    /// A moment here that surely lies before what the server did at `us` by its clock: the last sending whose answer shows an
    /// earlier time there.
    ///
    /// A lease granted at `us` lasts at least as long from that moment as it lasts on the server. Either the observation was
    /// made before the grant, and then the sending was, too. Or the server's clock was set back in between; then by that clock,
    /// which ends the lease, all of it was still to come when the observation was made.
    pub(super) fn before(&self, us: u64) -> Option<Instant> {
        let latest = self.latest.filter(|latest| latest.us <= us);
        let kept = || self.kept.iter().rev().find(|kept| kept.us <= us).copied();
        latest.or_else(kept).map(|observation| observation.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn clock(observations: &[(u64, u64, u64)]) -> ServerClock {
        let mut clock = ServerClock::default();
        for (server_ms, sent, received) in observations {
            clock.observe(server_ms * 1000, at(*sent), at(*received));
        }
        clock
    }

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        assert_eq!(clock(&[]).ms(at(5)), None);
        assert_eq!(clock(&[]).before(u64::MAX), None);
    }

    #[test]
    fn the_servers_time_is_never_estimated_too_late() {
        // Its script ran somewhere between 100 and 140 here, when its clock read 5000.
        let clock = clock(&[(5000, 100, 140)]);
        assert_eq!(clock.ms(at(140)), Some(5000));
        assert_eq!(clock.ms(at(240)), Some(5100));
    }

    #[test]
    fn an_event_there_is_dated_by_the_last_sending_before_it() {
        let clock = clock(&[(5000, 100, 110), (5100, 200, 210), (5200, 300, 310)]);
        assert_eq!(clock.before(5_150_000), Some(at(200)));
        assert_eq!(clock.before(5_250_000), Some(at(300)));
        assert_eq!(clock.before(4_999_000), None);
    }

    #[test]
    fn observations_reach_back_however_many_answers_come() {
        let mut clock = ServerClock::default();
        for ms in 0..100_000 {
            clock.observe(ms * 1000, at(ms), at(ms));
        }
        assert!(clock.kept.len() <= KEPT);
        assert!(clock.before(98_000_000).is_some_and(|moment| moment >= at(97_900)));
    }
}
