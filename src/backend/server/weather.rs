//! When people are told that the server is away, and that it is back: once for each outage.
//!
//! One that comes and goes is one, so that all has to be well for a while before it counts as over:
//! for longer each time that it was not, so that a server which is just too slow for its callers
//! fills no log.

use std::time::Duration;

use crate::time::Instant;

/// How long all has to be well at first, and at most.
const CALM: Duration = Duration::from_secs(1);
const LONGEST_CALM: Duration = Duration::from_secs(64);

#[derive(Debug)]
pub(in crate::backend) struct Weather {
    sky: Sky,
    /// How long all has to be well until the next outage counts as over.
    calm: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Sky {
    /// With the end of the last outage.
    Fair(Option<Instant>),
    Foul,
    /// Nothing failed since.
    Clearing(Instant),
}

/// What is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::backend) enum Change {
    Away,
    Back,
}

impl Weather {
    pub(in crate::backend) const fn new() -> Self {
        Self {
            sky: Sky::Fair(None),
            calm: CALM,
        }
    }

    /// Whether nobody was told of an outage that is not over.
    pub(in crate::backend) const fn is_fair(&self) -> bool {
        matches!(self.sky, Sky::Fair(_))
    }

    /// Takes note of whether anything fails now.
    pub(in crate::backend) fn look(&mut self, now: Instant, foul: bool) -> Option<Change> {
        match self.sky {
            Sky::Fair(ended) if foul => {
                let again = ended.is_some_and(|ended| now.since(ended) < LONGEST_CALM);
                self.calm = if again {
                    (2 * self.calm).min(LONGEST_CALM)
                } else {
                    CALM
                };
                self.sky = Sky::Foul;
                return Some(Change::Away);
            }
            Sky::Clearing(_) if foul => self.sky = Sky::Foul,
            Sky::Foul if !foul => self.sky = Sky::Clearing(now),
            Sky::Clearing(since) if now.since(since) >= self.calm => {
                self.sky = Sky::Fair(Some(now));
                return Some(Change::Back);
            }
            Sky::Fair(_) | Sky::Foul | Sky::Clearing(_) => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 100;

    /// What is told of so many steps, in which `foul` says how each is.
    fn told(steps: u64, foul: impl Fn(u64) -> bool) -> Vec<(u64, Change)> {
        let mut weather = Weather::new();
        let look = |step| {
            let now = Instant::from_nanos(step * STEP * 1_000_000);
            Some((step, weather.look(now, foul(step))?))
        };
        (0..steps).filter_map(look).collect()
    }

    #[test]
    fn an_outage_is_told_at_once_and_its_end_when_all_was_well_for_a_second() {
        let told = told(100, |step| (10..30).contains(&step));
        assert_eq!(told, [(10, Change::Away), (40, Change::Back)]);
    }

    #[test]
    fn one_that_comes_and_goes_is_one() {
        let told = told(100, |step| step < 50 && step % 8 < 3);
        assert_eq!(told, [(0, Change::Away), (60, Change::Back)]);
    }

    #[test]
    fn outages_that_come_back_are_told_of_ever_more_rarely() {
        let hour = 36_000;
        let told = told(hour, |step| step % 20 == 0);
        assert!(told.len() <= 3, "{told:?}");
    }

    #[test]
    fn an_outage_a_while_after_the_last_is_told_as_the_first_one() {
        let told = told(3000, |step| step % 1000 < 5);
        assert_eq!(told.len(), 6, "{told:?}");
        for pair in told.chunks(2) {
            assert_eq!(pair[1].0 - pair[0].0, 15, "{told:?}");
        }
    }
}
