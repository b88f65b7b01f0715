//! The protocol keeps its promises in every small world, and each rule is needed in one of them.

use models::handoff::Handoff;
use models::mutation::Mutation;
use models::{properties, worlds};
use stateright::{Checker, HasDiscoveries, Model};

#[test]
fn promises_hold_in_every_small_world() {
    for config in worlds::small() {
        let name = config.name;
        let model = Handoff {
            config,
            mutation: None,
        };
        let checker = model.checker().spawn_bfs().join();
        println!("{name}: {} states", checker.unique_state_count());
        for (property, path) in checker.discoveries() {
            assert_eq!(
                property,
                properties::HANDS_OVER,
                "violated in {name}: {:#?}",
                path.into_actions()
            );
        }
    }
}

#[test]
fn worlds_are_not_empty() {
    let handing_over = worlds::small().into_iter().filter(|config| {
        let model = Handoff {
            config: config.clone(),
            mutation: None,
        };
        let found = HasDiscoveries::AnyOf([properties::HANDS_OVER].into());
        let checker = model.checker().finish_when(found).spawn_bfs().join();
        checker.discovery(properties::HANDS_OVER).is_some()
    });
    // One acquisition has nobody to be handed the key by, and a deaf process nothing to hear.
    assert_eq!(handing_over.count(), worlds::small().len() - 4);
}

fn assert_caught(mutation: Mutation, world: &str, property: &'static str) {
    let config = worlds::small()
        .into_iter()
        .chain(worlds::large())
        .find(|config| config.name == world)
        .expect("the world has a name of the list");
    let model = Handoff {
        config,
        mutation: Some(mutation),
    };
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(found).spawn_bfs().join();
    let path = checker
        .discovery(property)
        .unwrap_or_else(|| panic!("{mutation:?} keeps \"{property}\" in {world}"));
    println!(
        "{mutation:?} breaks \"{property}\" in {world} after {} steps",
        path.into_actions().len()
    );
}

macro_rules! caught {
    ($($test:ident: $mutation:ident, $world:literal, $property:ident;)*) => {
        $(
            #[test]
            fn $test() {
                assert_caught(Mutation::$mutation, $world, properties::$property);
            }
        )*
    };
}

caught! {
    held_is_dated_by_what_remains: TtlFromResend, "pause, lost message", EXCLUSION;
    end_leaves_a_tombstone: NoTombstone, "late cancel", NO_ORPHANS;
    acquires_carry_latest: NoLatest, "late cancel", NO_ORPHANS;
    reruns_obey_tombstones: RerunIgnoresTombstone, "late cancel", NO_ORPHANS;
    heartbeats_extend_nothing: HeartbeatExtendsClaim, "data loss", NO_STARVATION;
    unrenewed_claims_mark_their_process: NoSuspectMark, "hung process", HANGS_ONCE;
    scripts_purge_before_they_clear_the_mark: MarkClearedBeforePurge, "capacity, lost message", NO_LOST_WAKE_UP;
    canceling_a_waiter_grants: EndWithoutGrant, "weights, cancel", NO_LOST_WAKE_UP;
    acquires_grant: AcquireWithoutGrant, "crash", NO_LOST_WAKE_UP;
    attempts_grant: AcquireWithoutGrant, "crash, no waiting", NO_FALSE_REFUSAL;
    reruns_grant: RerunWithoutGrant, "crash", NO_LOST_WAKE_UP;
    reruns_follow_the_subscription: RerunBeforeSubscription, "outage of an inbox", NOBODY_FORGOTTEN;
    old_gone_is_ignored: OldGoneBelieved, "pause, plain client", NO_FALSE_LOSS;
    old_queued_is_ignored: OldQueuedBelieved, "no faults", NO_FALSE_LOSS;
    old_held_is_ignored: OldHeldBelieved, "pause, plain client", NO_FALSE_LOSS;
    old_pushes_are_ignored: OldPushBelieved, "data loss", NO_STALE_GRANT;
    late_answers_revive_nothing: LateAnswerRevives, "pause, late and missed heartbeat", LOSS_IS_FINAL;
    fences_outlive_the_data: FenceByIncr, "data loss", FENCES_RISE;
    tickets_outlive_the_queue: NewTicketOnReentry, "pause, plain client", FIFO;
    renewals_shorten_nothing: ShorteningRenewal, "clock back, pause", NO_SHORTENING;
    pushes_are_not_dated_from_receipt: PushFromReceipt, "pause, plain client", EXCLUSION;
    pushes_are_not_dated_from_later_runs: PushFromNewestObservation, "pause, plain client", EXCLUSION;
    server_time_does_not_order_runs: PushByServerTime, "clock back, pause, third grant", EXCLUSION;
    end_looks_for_the_owner: NoOwnerCheck, "weights, cancel", EXCLUSION;
    client_clocks_decide_nothing: ClientClock, "wrong wall clock, missed heartbeat", EXCLUSION;
    the_pump_reruns_the_first_in_the_queue: PumpByRegistration, "siblings, lost push, plain client", NOBODY_FORGOTTEN;
    a_reentry_reruns_all_waiters: ReentryAlone, "siblings, data loss, plain client", NOBODY_FORGOTTEN;
    outages_spend_no_ticket: TicketSpentInOutage, "long outage of an inbox", FIFO;
    own_resends_keep_tombstones: ResendsForgotten, "client that re-sends", NO_ORPHANS;
}
