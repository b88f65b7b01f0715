//! Judges of what a chaos run did that the shared ones don't know: losses of data, silences, leases
//! that were cut short, and what a guard said of itself.

use std::collections::BTreeMap;

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
    /// The limit that it was asked for by.
    pub(crate) limit: u32,
    /// When its first poll had left it waiting.
    pub(crate) pended: Option<u64>,
    /// What the guard said of itself; nothing, if nobody looked.
    pub(crate) looks: Vec<Look>,
    /// When it was last known to be held; before that, when it was asked for.
    pub(crate) seen: u64,
    /// When its owner let it go.
    pub(crate) let_go: u64,
    pub(crate) ttl: u64,
    /// The longest that its mode allows, from its grant.
    pub(crate) longest: Option<u64>,
}

impl Taken {
    pub(crate) const fn new(gate: usize, hold: Hold, ttl: u64) -> Self {
        Self {
            gate,
            process: 0,
            task: 0,
            foreign: false,
            limit: hold.weight,
            pended: None,
            looks: Vec::new(),
            seen: hold.asked,
            let_go: hold.ended,
            ttl,
            longest: None,
            hold,
        }
    }

    /// The first look that found it lost.
    fn lost(&self) -> Option<&Look> {
        self.looks.iter().find(|look| !look.held)
    }

    /// When its permits were free again, at the latest.
    fn freed(&self) -> u64 {
        match self.looks.first() {
            None => self.let_go,
            Some(look) if !look.held => look.by,
            Some(_) => self.hold.ended,
        }
    }
}

/// What a guard said when it was looked at. The clock is read first, so the deadline is the true
/// one or a little earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) at: u64,
    /// When it had answered: the true deadline is later by no more than this took.
    pub(crate) by: u64,
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

/// The end of all leases of a gate, or of a process that was shut down: the first was begun, and
/// the second due, at `from`, and it was done by `to`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) gate: Option<usize>,
    pub(crate) process: Option<usize>,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Cut {
    fn concerns(&self, taken: &Taken) -> bool {
        self.gate.is_none_or(|gate| gate == taken.gate)
            && self.process.is_none_or(|process| process == taken.process)
    }
}

/// A wait in a gate's queue, whatever it ended in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stay {
    pub(crate) gate: usize,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) weight: u32,
    pub(crate) limit: u32,
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

/// Ends what was lost by a cut when that began: from then on nobody can tell. Its guard's deadline,
/// up to which it would count otherwise, was later.
pub(crate) fn cut_short(mut taken: Vec<Taken>, cuts: &[Cut]) -> Vec<Taken> {
    for one in taken.iter_mut().filter(|one| one.lost().is_some()) {
        let possible = cuts
            .iter()
            .filter(|cut| cut.concerns(one) && cut.to >= one.seen);
        if let Some(first) = possible.map(|cut| cut.from.max(one.seen)).min() {
            one.hold.ended = one.hold.ended.min(first).max(one.hold.acquired);
        }
    }
    taken
}

/// Where nothing else can end a lease: one that nobody looked at and that was renewed was held
/// until its owner let it go, unless it may have been cut, or not renewed.
pub(crate) fn held_unseen(
    mut taken: Vec<Taken>,
    cuts: &[Cut],
    outages: &[(u64, u64)],
) -> Vec<Taken> {
    for one in taken.iter_mut().filter(|one| !one.foreign) {
        let during = |from: u64, to: u64| from <= one.let_go && one.hold.asked <= to;
        let ended = one.longest.is_some()
            || outages.iter().any(|&(out, back)| during(out, back))
            || cuts
                .iter()
                .any(|cut| cut.concerns(one) && during(cut.from, cut.to));
        if one.looks.is_empty() && !ended {
            one.hold.ended = one.let_go;
        }
    }
    taken
}

/// A cut ends all that was held before it, and a process that has shut down acquires nothing.
pub(crate) fn cuts_are_final(taken: &Taken, cuts: &[Cut]) -> Result<(), String> {
    for cut in cuts.iter().filter(|cut| cut.concerns(taken)) {
        if taken.hold.acquired < cut.from && taken.seen > cut.to {
            return Err(format!("held at {} in spite of {cut:?}", taken.seen));
        }
        if cut.process.is_some() && taken.hold.asked > cut.to {
            return Err(format!("granted in spite of {cut:?}"));
        }
    }
    Ok(())
}

/// Where nothing is ever late: a lease ends at the deadline that its guard told, and when its mode
/// says so, or when no renewal came through by the deadline; or it was cut.
pub(crate) fn losses_have_causes(
    taken: &Taken,
    cuts: &[Cut],
    outages: &[(u64, u64)],
) -> Result<(), String> {
    let Some(lost) = taken.lost() else {
        return Ok(());
    };
    let cut = |cut: &Cut| cut.concerns(taken) && cut.from <= lost.by && taken.seen <= cut.to;
    if cuts.iter().any(cut) {
        return Ok(());
    }
    let told = taken.looks.iter().rev().find(|look| look.held);
    let told = told.map_or(taken.hold.asked, |told| told.deadline);
    if lost.by < told {
        return Err(format!("lost by {}, and held until {told}", lost.by));
    }
    // It was granted after it was asked for, and for whole milliseconds.
    let over = |longest: u64| lost.by >= taken.hold.asked + longest / MS * MS;
    let over = taken.longest.is_some_and(over);
    let out = |&(out, back): &(u64, u64)| out <= lost.by && told <= back;
    if !over && !outages.iter().any(out) {
        return Err(format!("lost by {}, and not renewed", lost.by));
    }
    Ok(())
}

const MS: u64 = 1_000_000;

/// S2: each grant fits into the limit that it was asked for by, among those which were granted
/// before it and still held when it was known. Fences are in the order of the grants.
pub(crate) fn limits_kept(taken: &[Taken]) -> Result<(), (String, Vec<Taken>)> {
    let mut granted: Vec<&Taken> = taken.iter().collect();
    granted.sort_unstable_by_key(|taken| taken.hold.fence);
    let mut inside: Vec<&Taken> = Vec::new();
    for one in granted {
        inside.retain(|other| {
            // One that was lost before its owner knew of it was not held then.
            other.hold.acquired < other.hold.ended && one.hold.acquired < other.hold.ended
        });
        inside.push(one);
        let weights = inside.iter().map(|taken| u64::from(taken.hold.weight));
        let sum: u64 = weights.sum();
        if sum > u64::from(one.limit) {
            let crowd = inside.into_iter().cloned().collect();
            return Err((format!("{sum} granted at once, of {}", one.limit), crowd));
        }
    }
    Ok(())
}

/// Nothing is granted that was asked for while nobody could be reached.
pub(crate) fn the_unreachable_grant_nothing(
    taken: &Taken,
    silences: &[Silence],
) -> Result<(), String> {
    let hold = taken.hold;
    let inside = silences.iter().find(|silence| {
        silence.process.is_none() && silence.from < hold.asked && hold.acquired < silence.to
    });
    inside.map_or(Ok(()), |silence| {
        Err(format!("granted in spite of {silence:?}"))
    })
}

/// Nothing outlives a silence of all that is longer than its TTL.
pub(crate) fn silences_end_leases(taken: &Taken, silences: &[Silence]) -> Result<(), String> {
    let outlived = silences.iter().find(|silence| {
        silence.process.is_none()
            && taken.hold.acquired < silence.from
            && silence.from + taken.ttl < silence.to.min(taken.seen)
    });
    outlived.map_or(Ok(()), |silence| {
        Err(format!("held at {} in spite of {silence:?}", taken.seen))
    })
}

/// L1, of one gate: nobody waits for longer than `patience` where all that wait would fit, unless
/// it is out.
pub(crate) fn nobody_is_left_standing(
    taken: &[Taken],
    stays: &[Stay],
    outages: &[(u64, u64)],
    patience: u64,
) -> Result<(), String> {
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    enum Change {
        Held(i64),
        Stands(u32, u32),
        Leaves(u32, u32),
        Out(i64),
    }
    let mut changes = Vec::new();
    for one in taken {
        let weight = i64::from(one.hold.weight);
        changes.push((one.hold.acquired, Change::Held(weight)));
        changes.push((one.freed(), Change::Held(-weight)));
    }
    for stay in stays {
        changes.push((stay.from, Change::Stands(stay.weight, stay.limit)));
        changes.push((stay.to, Change::Leaves(stay.weight, stay.limit)));
    }
    for &(from, to) in outages {
        changes.push((from, Change::Out(1)));
        changes.push((to, Change::Out(-1)));
    }
    changes.sort_unstable();
    let (mut held, mut out) = (0, 0);
    // How many there are, by weight and limit.
    let mut standing: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let mut since = None;
    for (at, change) in changes {
        if let Some(since) = since.filter(|since| at - since > patience) {
            return Err(format!(
                "from {since} to {at} nobody was served of {standing:?}, {held} held"
            ));
        }
        match change {
            Change::Held(weight) => held += weight,
            Change::Stands(weight, limit) => *standing.entry((weight, limit)).or_default() += 1,
            // Served, or given up: then it may have been in the way.
            Change::Leaves(weight, limit) => {
                since = None;
                if let Some(count) = standing.get_mut(&(weight, limit)) {
                    *count -= 1;
                }
                standing.retain(|_, count| *count > 0);
            }
            Change::Out(more) => out += more,
        }
        let most = standing.keys().map(|&(weight, _)| i64::from(weight)).max();
        let least = standing.keys().map(|&(_, limit)| i64::from(limit)).min();
        let fits = most
            .zip(least)
            .is_some_and(|(most, least)| held + most <= least);
        since = if fits && out == 0 {
            since.or(Some(at))
        } else {
            None
        };
    }
    Ok(())
}

/// M4: a guard that said "not held" once never says "held" again, and its deadline never moves
/// back.
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
        if look.held && look.deadline + (look.by - look.at) < deadline {
            return Err(format!(
                "the deadline moved from {deadline} back to {}",
                look.deadline
            ));
        }
        if look.held {
            deadline = deadline.max(look.deadline);
        } else {
            lost = lost.or(Some(*look));
        }
    }
    Ok(())
}

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
                // What it told it may have learned by then.
                && look.by < silence.to
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
        let hold = Hold {
            asked,
            acquired,
            ended,
            fence,
            weight,
        };
        Taken {
            process: 1,
            ..Taken::new(0, hold, TTL)
        }
    }

    /// A look that took 2.
    fn look(at: u64, held: bool, deadline: u64) -> Look {
        let by = at + 2;
        Look {
            at,
            by,
            held,
            deadline,
        }
    }

    /// Held at 20 until 110, and lost at 50, as its guard said.
    fn lost_early() -> Taken {
        let mut hold = taken(0, 10, 50, 1, 1);
        hold.looks = vec![look(20, true, 110), look(50, false, 0)];
        hold.seen = 20;
        hold
    }

    fn cut(gate: Option<usize>, process: Option<usize>, from: u64, to: u64) -> Cut {
        Cut {
            gate,
            process,
            from,
            to,
        }
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
        assert!(losses_are_final(&[look(1, true, 90), look(5, true, 87)]).is_err());
        // Its reader was put aside between the clock and the guard.
        assert_eq!(
            losses_are_final(&[look(1, true, 90), look(5, true, 88)]),
            Ok(())
        );
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
        // The last look may have come before its end, and the answer to it after that.
        for to in [140, 151] {
            let over = Silence { to, ..silence };
            assert_eq!(deadlines_are_earned(&hold, &[over]), Ok(()));
        }
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

    #[test]
    fn a_lease_that_was_cut_counts_until_the_cut_began() {
        let ended = |cut| cut_short(vec![lost_early()], &[cut])[0].hold.ended;
        assert_eq!(ended(cut(Some(0), None, 30, 35)), 30);
        assert_eq!(ended(cut(None, Some(1), 5, 35)), 20);
        for other in [
            cut(Some(1), None, 30, 35),
            cut(None, Some(2), 30, 35),
            cut(Some(0), None, 12, 15),
            cut(Some(0), None, 60, 65),
        ] {
            assert_eq!(ended(other), 50, "{other:?}");
        }
        let mut held = lost_early();
        held.looks.pop();
        let cut = cut(Some(0), None, 30, 35);
        assert_eq!(cut_short(vec![held], &[cut])[0].hold.ended, 50);
    }

    #[test]
    fn a_lease_that_nobody_looked_at_counts_while_nothing_can_have_ended_it() {
        let mut unseen = taken(10, 20, 20, 1, 1);
        unseen.let_go = 50;
        let ended = |one: &Taken, cuts: &[Cut], outages: &[(u64, u64)]| {
            held_unseen(vec![one.clone()], cuts, outages)[0].hold.ended
        };
        assert_eq!(ended(&unseen, &[], &[]), 50);
        let past = [cut(Some(0), None, 5, 9), cut(Some(1), None, 15, 30)];
        assert_eq!(ended(&unseen, &past, &[(60, 70)]), 50);
        assert_eq!(ended(&unseen, &[cut(Some(0), None, 9, 10)], &[]), 20);
        assert_eq!(ended(&unseen, &[], &[(50, 70)]), 20);
        unseen.longest = Some(100);
        assert_eq!(ended(&unseen, &[], &[]), 20);
    }

    #[test]
    fn a_loss_without_a_cause_is_seen() {
        let early = lost_early();
        assert!(losses_have_causes(&early, &[], &[]).is_err());
        assert!(losses_have_causes(&early, &[], &[(0, 200)]).is_err());
        assert!(losses_have_causes(&early, &[cut(Some(0), None, 60, 65)], &[]).is_err());
        assert!(losses_have_causes(&early, &[cut(None, Some(2), 30, 35)], &[]).is_err());
        let cut = cut(Some(0), None, 30, 35);
        assert_eq!(losses_have_causes(&early, &[cut], &[]), Ok(()));
    }

    #[test]
    fn a_loss_at_the_deadline_without_a_cause_is_seen() {
        let mut at_the_end = lost_early();
        at_the_end.looks[1] = look(109, false, 0);
        assert!(losses_have_causes(&at_the_end, &[], &[]).is_err());
        assert!(losses_have_causes(&at_the_end, &[], &[(30, 90)]).is_err());
        assert_eq!(losses_have_causes(&at_the_end, &[], &[(30, 110)]), Ok(()));
    }

    #[test]
    fn a_lease_that_ends_before_its_mode_says_so_is_seen() {
        let mut limited = lost_early();
        limited.hold.asked = 8 * MS;
        limited.looks[0] = look(10 * MS, true, 18 * MS);
        limited.looks[1] = look(18 * MS, false, 0);
        limited.longest = Some(11 * MS);
        assert!(losses_have_causes(&limited, &[], &[]).is_err());
        limited.longest = Some(10 * MS + MS / 2);
        assert_eq!(losses_have_causes(&limited, &[], &[]), Ok(()));
    }

    #[test]
    fn a_lease_that_survives_a_cut_is_seen() {
        let mut hold = taken(0, 10, 50, 1, 1);
        hold.seen = 50;
        assert!(cuts_are_final(&hold, &[cut(Some(0), None, 30, 35)]).is_err());
        assert!(cuts_are_final(&hold, &[cut(None, Some(1), 30, 35)]).is_err());
        assert_eq!(cuts_are_final(&hold, &[cut(Some(0), None, 30, 60)]), Ok(()));
        // Granted while it was under way.
        assert_eq!(cuts_are_final(&hold, &[cut(Some(0), None, 5, 35)]), Ok(()));
        hold.hold.asked = 9;
        assert_eq!(cuts_are_final(&hold, &[cut(Some(0), None, 2, 5)]), Ok(()));
        assert!(cuts_are_final(&hold, &[cut(None, Some(1), 2, 5)]).is_err());
    }

    #[test]
    fn a_grant_beyond_its_own_limit_is_seen_and_one_by_a_larger_limit_is_not() {
        let mut wide = taken(0, 0, 50, 1, 2);
        wide.limit = 4;
        let mut narrow = taken(0, 20, 50, 2, 1);
        narrow.limit = 3;
        assert!(limits_kept(&[narrow.clone(), wide.clone()]).is_ok());
        narrow.limit = 2;
        let (_, crowd) = limits_kept(&[narrow.clone(), wide.clone()]).expect_err("3 of 2");
        assert_eq!(crowd.len(), 2);
        // Never held, as far as its owner knows.
        let mut lost = wide.clone();
        (lost.hold.acquired, lost.hold.ended) = (30, 30);
        assert!(limits_kept(&[narrow.clone(), lost]).is_ok());
        // Granted first, it is no concern of its own limit what comes after it.
        (narrow.hold.fence, narrow.hold.acquired) = (1, 0);
        (wide.hold.fence, wide.hold.acquired) = (2, 20);
        assert!(limits_kept(&[narrow, wide]).is_ok());
    }

    #[test]
    fn a_grant_that_nobody_can_have_made_is_seen() {
        let hold = taken(20, 30, 50, 1, 1);
        let silence = |from, to| {
            [Silence {
                process: None,
                from,
                to,
            }]
        };
        assert!(the_unreachable_grant_nothing(&hold, &silence(10, 40)).is_err());
        assert!(the_unreachable_grant_nothing(&hold, &silence(25, 40)).is_ok());
        assert!(the_unreachable_grant_nothing(&hold, &silence(10, 25)).is_ok());
    }

    #[test]
    fn a_lease_that_outlives_a_silence_is_seen() {
        let mut hold = taken(0, 10, 300, 1, 1);
        hold.seen = 300;
        let silence = |from, to| {
            [Silence {
                process: None,
                from,
                to,
            }]
        };
        assert!(silences_end_leases(&hold, &silence(20, 130)).is_err());
        assert!(silences_end_leases(&hold, &silence(20, 400)).is_err());
        assert_eq!(silences_end_leases(&hold, &silence(20, 110)), Ok(()));
        assert_eq!(silences_end_leases(&hold, &silence(250, 400)), Ok(()));
        assert_eq!(silences_end_leases(&hold, &silence(5, 130)), Ok(()));
    }

    #[test]
    fn who_stands_though_it_would_fit_is_seen() {
        let stay = |from, to, weight| Stay {
            gate: 0,
            from,
            to,
            weight,
            limit: 4,
        };
        let held = taken(0, 0, 1000, 1, 2);
        let judge = |stays: &[Stay], outages: &[(u64, u64)]| {
            nobody_is_left_standing(std::slice::from_ref(&held), stays, outages, 100)
        };
        assert!(judge(&[stay(10, 200, 2)], &[]).is_err());
        assert_eq!(judge(&[stay(10, 100, 2)], &[]), Ok(()));
        assert_eq!(judge(&[stay(10, 900, 3)], &[]), Ok(()));
        // Behind one that does not fit, until that has left.
        let large = stay(5, 300, 3);
        assert_eq!(judge(&[large, stay(10, 390, 2)], &[]), Ok(()));
        assert!(judge(&[large, stay(10, 410, 2)], &[]).is_err());
        // When the holder has gone, so has what it held.
        assert_eq!(judge(&[stay(950, 1090, 3)], &[]), Ok(()));
        assert!(judge(&[stay(950, 1110, 3)], &[]).is_err());
        // Nor is it known that it went before its owner looked.
        let mut late = taken(0, 0, 0, 1, 2);
        late.looks = vec![look(300, false, 0)];
        let standing = nobody_is_left_standing(&[late], &[stay(10, 390, 3)], &[], 100);
        assert_eq!(standing, Ok(()));
        assert_eq!(judge(&[stay(10, 250, 2)], &[(50, 160)]), Ok(()));
        assert!(judge(&[stay(10, 270, 2)], &[(50, 160)]).is_err());
    }
}
