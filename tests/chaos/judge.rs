//! Judges of what a chaos run did that the shared ones don't know: losses of data, silences, and
//! what a guard said of itself.

use crate::support::Hold;

/// A hold, with all that is needed to judge it and to find out what went wrong.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) gate: usize,
    pub(crate) process: usize,
    pub(crate) task: usize,
    /// A plain client's: it has no fence and no queue.
    pub(crate) foreign: bool,
    pub(crate) hold: Hold,
    /// What the guard said of itself.
    pub(crate) looks: Vec<Look>,
    pub(crate) ttl: u64,
    /// The longest that its mode allows, from its grant.
    pub(crate) longest: Option<u64>,
}

/// What a guard said when it was looked at. The clock is read first, so the deadline is the true
/// one or a little earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) at: u64,
    pub(crate) held: bool,
    pub(crate) deadline: u64,
}

/// A time in which no request that a process sent was answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    /// `None`: all processes.
    pub(crate) process: Option<usize>,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A time in which the server lost its data. Exclusion is not promised to holds that span it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Keeps the holds that no loss of data can have touched: a grant may have been made right after it
/// was asked for.
pub(crate) fn outside_losses(taken: &[Taken], losses: &[Loss]) -> Vec<Taken> {
    let spans = |hold: &Hold| {
        losses
            .iter()
            .any(|loss| hold.asked <= loss.to && hold.ended.max(hold.acquired) >= loss.from)
    };
    taken
        .iter()
        .filter(|taken| !spans(&taken.hold))
        .cloned()
        .collect()
}

/// M4: a guard that said "not held" once never says "held" again, and none is held at or past its
/// own deadline.
pub(crate) fn losses_are_final(looks: &[Look]) -> Result<(), String> {
    let mut lost: Option<Look> = None;
    let mut deadline = 0;
    for look in looks {
        if let Some(lost) = lost.filter(|_| look.held) {
            return Err(format!(
                "held again at {} after it was lost at {}",
                look.at, lost.at
            ));
        }
        if look.held && look.deadline < deadline {
            return Err(format!(
                "the deadline moved from {deadline} back to {}",
                look.deadline
            ));
        }
        if look.held {
            // What was read a moment earlier may seem a little less than before: only a real step
            // counts.
            deadline = look.deadline.saturating_sub(STEP);
        } else {
            lost = lost.or(Some(*look));
        }
    }
    Ok(())
}

/// How much two readings of one deadline may differ, when the reader is put aside between the clock
/// and the guard.
const STEP: u64 = 5_000_000_000;

/// M4: no deadline lies further off than the mode allows, or than the TTL behind the last request
/// that can have been answered.
pub(crate) fn deadlines_are_earned(taken: &Taken, silences: &[Silence]) -> Result<(), String> {
    let Taken {
        hold,
        looks,
        ttl,
        longest,
        process,
        ..
    } = taken;
    for look in looks.iter().filter(|look| look.held) {
        if let Some(longest) = longest.filter(|longest| look.deadline > hold.acquired + longest) {
            return Err(format!(
                "held until {} though granted for {longest} at {}",
                look.deadline, hold.acquired
            ));
        }
        if look.deadline > look.at + ttl {
            return Err(format!(
                "held until {} at {}, more than its TTL {ttl}",
                look.deadline, look.at
            ));
        }
        let silent = silences.iter().find(|silence| {
            silence.process.is_none_or(|silent| silent == *process)
                && silence.from < look.at
                && look.at < silence.to
                && look.deadline > silence.from + ttl
        });
        if let Some(silence) = silent {
            return Err(format!(
                "held until {} though nothing was answered since {}, TTL {ttl}",
                look.deadline, silence.from
            ));
        }
    }
    Ok(())
}

/// M4: no guard believes in more than the server had given it by then. `lease` is by the server's
/// clock, in us, which is `ahead` of ours.
pub(crate) fn deadlines_are_the_servers(
    taken: &Taken,
    lease: &[(u64, u64)],
    ahead: u64,
) -> Result<(), String> {
    for look in taken.looks.iter().filter(|look| look.held) {
        let there = |ns: u64| ns / 1000 + ahead;
        let given = lease
            .iter()
            .filter(|(at, _)| *at <= there(look.at))
            .map(|(_, end)| *end)
            .max();
        // Nothing, where nobody looked.
        if let Some(given) = given.filter(|given| there(look.deadline) > given + EVEN) {
            return Err(format!(
                "held until {}, {} us longer than the server keeps it",
                look.deadline,
                there(look.deadline) - given
            ));
        }
    }
    Ok(())
}

/// How much the reading of two clocks may differ, in us.
const EVEN: u64 = 1000;

/// The holds that make up the first moment at which more than `cap` is held, for whoever has to
/// find out why.
pub(crate) fn crowd(taken: &[Taken], cap: u32) -> Vec<Taken> {
    let inside = |moment: u64| {
        taken
            .iter()
            .filter(move |taken| taken.hold.acquired <= moment && moment < taken.hold.ended)
    };
    let mut moments: Vec<u64> = taken.iter().map(|taken| taken.hold.acquired).collect();
    moments.sort_unstable();
    let over = |moment: &u64| {
        inside(*moment)
            .map(|taken| u64::from(taken.hold.weight))
            .sum::<u64>()
            > u64::from(cap)
    };
    moments
        .into_iter()
        .find(over)
        .map_or_else(Vec::new, |moment| inside(moment).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::history::{cap_kept, fences_rise};

    const TTL: u64 = 100;

    fn taken(asked: u64, acquired: u64, ended: u64, fence: u64, weight: u32) -> Taken {
        Taken {
            gate: 0,
            process: 1,
            task: 0,
            foreign: false,
            hold: Hold {
                asked,
                acquired,
                ended,
                fence,
                weight,
            },
            looks: Vec::new(),
            ttl: TTL,
            longest: None,
        }
    }

    fn look(at: u64, held: bool, deadline: u64) -> Look {
        Look { at, held, deadline }
    }

    fn holds(taken: &[Taken]) -> Vec<Hold> {
        taken.iter().map(|taken| taken.hold).collect()
    }

    #[test]
    fn a_double_grant_across_a_loss_of_data_is_excused_and_one_beside_it_is_not() {
        let history = [taken(0, 10, 50, 1, 1), taken(20, 30, 40, 2, 1)];
        assert!(cap_kept(&holds(&history), 1).is_err());
        let across = outside_losses(&history, &[Loss { from: 15, to: 18 }]);
        assert_eq!(cap_kept(&holds(&across), 1), Ok(()));
        assert_eq!(across.len(), 1);
        let beside = outside_losses(&history, &[Loss { from: 60, to: 70 }]);
        assert!(cap_kept(&holds(&beside), 1).is_err());
    }

    #[test]
    fn a_grant_that_was_under_way_during_a_loss_is_excused() {
        let history = [taken(5, 30, 50, 1, 1), taken(20, 30, 40, 2, 1)];
        assert_eq!(
            outside_losses(&history, &[Loss { from: 10, to: 12 }]).len(),
            1
        );
    }

    #[test]
    fn a_loss_of_data_excuses_no_fence() {
        let history = [taken(0, 10, 20, 7, 1), taken(30, 40, 50, 3, 1)];
        assert!(fences_rise(&holds(&history)).is_err());
    }

    #[test]
    fn a_weighted_crowd_is_named() {
        let history = [
            taken(0, 0, 10, 1, 2),
            taken(0, 5, 20, 2, 1),
            taken(0, 9, 12, 3, 2),
            taken(0, 30, 40, 4, 2),
        ];
        let names: Vec<u64> = crowd(&history, 4)
            .iter()
            .map(|taken| taken.hold.fence)
            .collect();
        assert_eq!(names, [1, 2, 3]);
        assert!(crowd(&history, 5).is_empty());
    }

    #[test]
    fn a_revived_guard_is_seen() {
        assert_eq!(
            losses_are_final(&[look(1, true, 9), look(5, true, 12), look(13, false, 0)]),
            Ok(())
        );
        assert!(
            losses_are_final(&[look(1, true, 9), look(10, false, 0), look(11, true, 20)]).is_err()
        );
    }

    #[test]
    fn a_deadline_that_shrinks_is_seen() {
        assert!(losses_are_final(&[look(1, true, 9 * STEP), look(5, true, 2 * STEP)]).is_err());
    }

    #[test]
    fn a_deadline_that_no_answer_can_have_brought_is_seen() {
        let mut hold = taken(0, 10, 300, 1, 1);
        hold.looks = vec![
            look(20, true, 110),
            look(90, true, 180),
            look(150, true, 230),
        ];
        assert_eq!(deadlines_are_earned(&hold, &[]), Ok(()));
        let silence = Silence {
            process: Some(1),
            from: 85,
            to: 400,
        };
        assert!(deadlines_are_earned(&hold, &[silence]).is_err());
        let others = Silence {
            process: Some(2),
            ..silence
        };
        assert_eq!(deadlines_are_earned(&hold, &[others]), Ok(()));
        let over = Silence { to: 140, ..silence };
        assert_eq!(deadlines_are_earned(&hold, &[over]), Ok(()));
        let whole = Silence {
            process: None,
            ..silence
        };
        assert!(deadlines_are_earned(&hold, &[whole]).is_err());
    }

    #[test]
    fn a_deadline_beyond_the_servers_is_seen_and_one_that_nobody_followed_is_not() {
        let mut hold = taken(0, 10_000_000, 300_000_000, 1, 1);
        hold.looks = vec![
            look(20_000_000, true, 110_000_000),
            look(90_000_000, true, 180_000_000),
        ];
        let ahead = 5_000_000;
        let given = |at_ms: u64, end_ms: u64| (ahead + at_ms * 1000, ahead + end_ms * 1000);
        let enough = [given(9, 112), given(85, 185)];
        assert_eq!(deadlines_are_the_servers(&hold, &enough, ahead), Ok(()));
        let too_little = [given(9, 112), given(85, 175)];
        assert!(deadlines_are_the_servers(&hold, &too_little, ahead).is_err());
        let too_late = [given(9, 112), given(95, 185)];
        assert!(deadlines_are_the_servers(&hold, &too_late, ahead).is_err());
        assert_eq!(
            deadlines_are_the_servers(&hold, &[given(95, 185)], ahead),
            Ok(())
        );
    }

    #[test]
    fn a_lease_that_is_longer_than_its_mode_or_its_ttl_is_seen() {
        let mut hold = taken(0, 10, 300, 1, 1);
        hold.looks = vec![look(20, true, 110), look(90, true, 180)];
        hold.longest = Some(120);
        assert!(deadlines_are_earned(&hold, &[]).is_err());
        hold.longest = Some(170);
        assert_eq!(deadlines_are_earned(&hold, &[]), Ok(()));
        hold.looks.push(look(100, true, 201));
        hold.longest = None;
        assert!(deadlines_are_earned(&hold, &[]).is_err());
    }
}
