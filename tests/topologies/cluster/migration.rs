//! Slots that move while they are used.

use std::time::{Duration, Instant};

use portcullis::{Quota, Release};

use crate::cluster::{Load, builder, lock, names, patient};
use crate::common::{LIMIT, LONG, promptly, queue, served, take, until_waiting};
use crate::support::{Cluster, wait_for};

/// Between any two steps of a migration.
const STEP: Duration = Duration::from_millis(10);
/// How much later than a move a call may be answered that fell into it.
const SOON: Duration = Duration::from_secs(2);

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn fifty_slots_move_under_load_and_nobody_notices() {
    let cluster = Cluster::start(3, 0).await;
    // Their deadline is longer than a move takes, on a busy machine.
    let patient = || {
        let builder = builder(&cluster).command_timeout(Duration::from_secs(10));
        builder.build().expect("a valid configuration")
    };
    let gates = [patient(), patient()];
    // Held meanwhile, in each of the slots: renewed and released wherever it is.
    let load = Load::start(&gates, &names());
    let mut slots = Vec::new();
    while slots.len() < names().len() / 2 {
        tokio::time::sleep(STEP).await;
        slots = homes(&cluster).await;
    }
    let moves = move_slots(&cluster, &slots, 50).await;
    load.until_all_are_used(1).await;
    let longest = moves.iter().map(|(begun, ended)| *ended - *begun).max();
    let late = load.latest(&moves);
    eprintln!("the longest move took {longest:?}; a release was answered {late:?} after one");
    assert_eq!(load.unanswered(), 0);
    assert!(late < SOON, "answered {late:?} after a move");
    load.end().await;
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_lease_is_renewed_and_given_back_wherever_its_slot_went() {
    let cluster = Cluster::start(3, 0).await;
    let gates = patient(&cluster);
    let gate = gates
        .mutex("gate")
        .ttl(Duration::from_secs(3))
        .expect("in range");
    let guard = take(&gate).await;
    for _ in 0..4 {
        let slot = homes(&cluster).await[0];
        let from = cluster.owner(slot).await.expect("it has an owner");
        cluster.migrate(slot, from, (from + 1) % 3, STEP).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(guard.is_held());
    }
    guard.release().await.expect("the cluster answers");
    drop(lock(&gates, "gate").try_lock().await.expect("it is free"));
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_quota_is_counted_by_whoever_has_its_key_while_a_slot_moves() {
    let cluster = Cluster::start(3, 0).await;
    let gates = patient(&cluster);
    let limiter = gates
        .rate_limiter("api", Quota::per_day(2_000))
        .expect("a valid quota");
    let check = async || {
        tokio::time::sleep(Duration::from_millis(5)).await;
        limiter.check().await.expect("the cluster admits")
    };
    check().await;
    let slot = homes(&cluster).await[0];
    let from = cluster.owner(slot).await.expect("it has an owner");
    // The key moves after the first pause, the slot two pauses later.
    let pause = Duration::from_secs(1);
    let moving = cluster.migrate(slot, from, (from + 1) % 3, pause);
    let (mut admitted, mut slowest) = (1, Duration::ZERO);
    tokio::pin!(moving);
    loop {
        tokio::select! {
            () = &mut moving => break,
            took = async {
                let begun = Instant::now();
                check().await;
                begun.elapsed()
            } => {
                admitted += 1;
                slowest = slowest.max(took);
            }
        }
    }
    assert!(slowest < pause, "a check took {slowest:?}");
    let left = check().await.remaining();
    assert!(admitted > 10, "{admitted} while it moved");
    // One that was asked for when the move ended may have counted unseen.
    let used = 2_000 - left;
    assert!(
        (admitted + 1..=admitted + 2).contains(&used),
        "{used} of {admitted}"
    );
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_release_that_a_move_ends_half_way_is_repeated() {
    let cluster = Cluster::start(3, 0).await;
    let gates = patient(&cluster);
    let gate = gates.semaphore("reports", 1).expect("in range");
    let gate = gate.ttl(LONG).expect("in range");
    let guard = take(&gate).await;
    let waiter = queue(&gate);
    until_waiting(&gate, 1).await;
    let slot = homes(&cluster).await[0];
    let from = cluster.owner(slot).await.expect("it has an owner");
    let (number, taker) = (slot.to_string(), cluster.id((from + 1) % 3).await);
    let set = async |words: &[&str]| {
        let words = [&["CLUSTER", "SETSLOT", &number], words].concat();
        cluster.nodes[from].command(&words).await;
    };
    // The last holder that is taken out takes the key along, which then counts as gone there.
    set(&["MIGRATING", &taker]).await;
    let release = tokio::spawn(guard.release());
    wait_for("the holder is taken out", LIMIT, async || {
        let keys = cluster.nodes[from].keys_with("suite:").await;
        keys.iter().all(|key| !key.contains("}:s:"))
    })
    .await;
    assert!(
        !release.is_finished(),
        "it is repeated until the slot stays"
    );
    set(&["STABLE"]).await;
    let released = promptly("it is answered", release).await;
    let released = released.expect("no panic").expect("the cluster answers");
    assert_eq!(released, Release::Released);
    drop(served(waiter).await);
}

/// Moves these in turn, so many times, each to the next master; tells when each was on its way.
pub(super) async fn move_slots(
    cluster: &Cluster,
    slots: &[u16],
    times: usize,
) -> Vec<(Instant, Instant)> {
    let mut moves = Vec::new();
    for slot in slots.iter().cycle().take(times) {
        let from = cluster.owner(*slot).await.expect("it has an owner");
        let begun = Instant::now();
        cluster.migrate(*slot, from, (from + 1) % 3, STEP).await;
        moves.push((begun, Instant::now()));
    }
    moves
}

/// The slots of all keys there are.
pub(super) async fn homes(cluster: &Cluster) -> Vec<u16> {
    let mut slots = Vec::new();
    for key in cluster.keys_with("suite:").await.into_iter().flatten() {
        let slot = cluster.slot(&key).await;
        if !slots.contains(&slot) {
            slots.push(slot);
        }
    }
    slots
}
