//! A lock on three servers keeps its promises, each rule is needed, and what a restart can break is
//! seen to break.

use models::quorum::{EXCLUSION, FENCES_RISE, Mistake, NO_ORPHANS, Quorum, TURNS};
use stateright::{Checker, HasDiscoveries, Model};

/// Each client once, with leases that end.
const ONCE: Quorum = Quorum {
    ticks: 2,
    attempts: 1,
    renewals: 0,
    restarts: 0,
    quarantine: false,
    mistake: None,
};

/// A search for what holds is cut off here, which it is with renewals only; about a fourth of the states
/// are new.
const MOST: usize = 4_000_000;
/// One for what breaks goes deeper first, and ends long before this.
const ENOUGH: usize = 40_000_000;

fn holds(name: &str, world: Quorum) {
    let checker = world.checker().target_state_count(MOST).spawn_bfs().join();
    println!("{name}: {} states", checker.unique_state_count());
    for property in [EXCLUSION, FENCES_RISE, NO_ORPHANS] {
        if let Some(path) = checker.discovery(property) {
            panic!("{property} violated in {name}: {:#?}", path.into_actions());
        }
    }
    assert!(
        checker.discovery(TURNS).is_some(),
        "nothing happens in {name}"
    );
}

fn breaks(property: &'static str, world: Quorum) {
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = world.checker().finish_when(found);
    let checker = checker.target_state_count(ENOUGH).spawn_dfs().join();
    println!(
        "{property} breaks after {} states",
        checker.unique_state_count()
    );
    assert!(
        checker.discovery(property).is_some(),
        "{property} holds in {world:?}"
    );
}

#[test]
fn one_holds_at_a_time_and_fences_rise() {
    holds("once", ONCE);
    let renewed = Quorum {
        renewals: 1,
        ticks: 1,
        ..ONCE
    };
    holds("renewed", renewed);
}

#[test]
fn each_rule_is_needed() {
    let wrong = |mistake| Quorum {
        mistake: Some(mistake),
        ..ONCE
    };
    breaks(EXCLUSION, wrong(Mistake::CountedFromTheAnswer));
    breaks(EXCLUSION, wrong(Mistake::MajorityOfThoseThatAnswer));
    // A server is ahead of the others by an attempt that came to nothing.
    let again = Quorum {
        attempts: 2,
        ..wrong(Mistake::NoAgreement)
    };
    breaks(FENCES_RISE, again);
    breaks(NO_ORPHANS, wrong(Mistake::NoTombstone));
}

#[test]
fn a_restart_without_data_lets_two_hold_and_a_quarantine_keeps_them_apart() {
    let restarts = Quorum {
        restarts: 1,
        ..ONCE
    };
    breaks(EXCLUSION, restarts);
    let world = Quorum {
        quarantine: true,
        ..restarts
    };
    let checker = world.checker().target_state_count(MOST).spawn_bfs().join();
    if let Some(path) = checker.discovery(EXCLUSION) {
        panic!("two hold: {:#?}", path.into_actions());
    }
}

/// One server that forgets may be the only one that two majorities share. So the crate begins its
/// numbers with a time, which this model has not.
#[test]
fn a_restart_without_data_can_repeat_a_fence_that_is_no_time() {
    let world = Quorum {
        restarts: 1,
        ticks: 0,
        ..ONCE
    };
    breaks(FENCES_RISE, world);
}
