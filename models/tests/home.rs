//! Permits at home keep their promises in every small world, and each rule is needed in one of them.

use models::home::{self, Fleet, Mutation, worlds};
use stateright::{Checker, HasDiscoveries, Model};

#[test]
fn promises_hold_in_every_small_world() {
    for world in worlds::small() {
        let model = Fleet {
            world,
            mutation: None,
        };
        let checker = model.checker().spawn_bfs().join();
        println!("{}: {} states", world.name, checker.unique_state_count());
        for (property, path) in checker.discoveries() {
            assert_eq!(
                property,
                home::RECALLS,
                "violated in {}: {:#?}",
                world.name,
                path.into_actions()
            );
        }
    }
}

#[test]
fn worlds_are_not_empty() {
    for world in worlds::small() {
        let model = Fleet {
            world,
            mutation: None,
        };
        let found = HasDiscoveries::AnyOf([home::RECALLS].into());
        let checker = model.checker().finish_when(found).spawn_bfs().join();
        assert!(
            checker.discovery(home::RECALLS).is_some(),
            "nothing is given back in {}",
            world.name
        );
    }
}

fn assert_caught(mutation: Mutation, name: &str, property: &'static str) {
    let world = worlds::small()
        .into_iter()
        .chain(worlds::large())
        .find(|world| world.name == name)
        .expect("the world has a name of the list");
    let model = Fleet {
        world,
        mutation: Some(mutation),
    };
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(found).spawn_bfs().join();
    let path = checker
        .discovery(property)
        .unwrap_or_else(|| panic!("{mutation:?} keeps \"{property}\" in {name}"));
    println!(
        "{mutation:?} breaks \"{property}\" in {name} after {} steps",
        path.into_actions().len()
    );
}

macro_rules! caught {
    ($($test:ident: $mutation:ident, $world:literal, $property:ident;)*) => {
        $(
            #[test]
            fn $test() {
                assert_caught(Mutation::$mutation, $world, home::$property);
            }
        )*
    };
}

caught! {
    the_server_takes_no_idle_permit: ServerTakesIdle, "one permit", EXCLUSION;
    an_ended_permit_is_dead: ReuseAfterEnd, "one permit", END_IS_FINAL;
    an_ended_permit_that_is_used_lets_too_many_in: ReuseAfterEnd, "one permit", EXCLUSION;
    passes_are_bounded_while_others_wait: PassesWithoutBound, "one permit, endless load", NO_STARVATION;
    passes_overtake_no_more_than_that: PassesWithoutBound, "one permit, endless load", OVERTAKING;
    passes_are_counted: PassesWithoutCount, "one permit, endless load", OVERTAKING;
    passes_end_in_time: PassesWithoutTime, "one permit, endless load", NO_STARVATION;
    an_ending_lease_serves_nobody: ReuseOfAnEndingLease, "leases end", LEASES_LAST;
    an_old_nobody_waits_undoes_no_recall: NoStamp, "one permit", PROMPT;
    an_old_nobody_waits_starves_nobody: NoStamp, "one permit, endless load", OVERTAKING;
    a_clock_that_falls_back_hides_nobody: StampsAlone, "data loss, clock set back", EXCESS_ENDS;
    lost_recalls_need_the_question: NoQuestion, "one permit, no recalls", NO_STARVATION;
    an_excess_needs_the_question: NoQuestion, "data loss, clock set back", EXCESS_ENDS;
    a_late_grant_is_not_used: LateGrantUsed, "pause, one permit", EXCLUSION;
    who_waits_is_no_holder: WaiterIsHolder, "one permit", EXCLUSION;
    idle_permits_do_not_stay: NoLinger, "one permit", NOTHING_LEFT;
    gone_makes_a_home_ask: NoRecheck, "data loss", CHECKED;
    gone_stops_passes_too: PassBeforeRecheck, "data loss", CHECKED;
    gone_is_answered_by_a_later_question: OldRecheckBelieved, "data loss", CHECKED;
    all_who_hold_are_recalled: RecallOfOne, "three processes", PROMPT;
}
