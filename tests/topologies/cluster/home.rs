//! Permits at home: recalled and found, whichever master their gate is on.

use std::time::Duration;

use portcullis::{Keeping, Portcullis, Semaphore, SemaphorePermit};

use crate::cluster::failover::role;
use crate::cluster::migration::{homes, move_slots};
use crate::cluster::{LIMIT, Load, names, patient};
use crate::common::{LONG, give_back, promptly, take};
use crate::leftovers::immortal;
use crate::support::history::cap_kept;
use crate::support::{Cluster, wait_for};

const CAP: u32 = 2;

/// Nothing is given back for its linger while a test looks.
fn keeping(handle: &Portcullis, name: &str) -> Semaphore {
    let keeping = Keeping::default().linger(Duration::from_secs(1));
    let gate = handle.semaphore(name, CAP).expect("in range");
    let gate = gate.ttl(LONG).expect("in range");
    gate.keep_permits(keeping).expect("in range")
}

async fn keep_all(gate: &Semaphore) {
    let (first, second) = (take(gate).await, take(gate).await);
    drop((first, second));
}

async fn is_recalled(keeper: &Semaphore, other: &Semaphore) {
    let permit = promptly("it is recalled", other.acquire()).await;
    assert_eq!(keeper.kept().idle, 0, "{:?}", keeper.kept());
    give_back(permit.expect("it is granted")).await;
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn what_is_kept_is_recalled_on_every_master_and_wherever_its_slot_goes() {
    let cluster = Cluster::start(3, 0).await;
    let (one, other) = (patient(&cluster), patient(&cluster));
    for name in names() {
        let gates = (keeping(&one, &name), keeping(&other, &name));
        keep_all(&gates.0).await;
        is_recalled(&gates.0, &gates.1).await;
        keep_all(&gates.1).await;
        is_recalled(&gates.1, &gates.0).await;
    }
    let name = "gate-that-moves";
    let (keeper, other) = (keeping(&one, name), keeping(&other, name));
    keep_all(&keeper).await;
    is_recalled(&keeper, &other).await;
    for _ in 0..3 {
        let used = [take(&keeper).await, take(&keeper).await];
        let slots = homes(&cluster).await;
        move_slots(&cluster, &slots, slots.len()).await;
        assert!(used.iter().all(SemaphorePermit::is_held));
        drop(used);
        is_recalled(&keeper, &other).await;
    }
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn slots_move_under_load_and_no_more_are_inside_than_may() {
    let cluster = Cluster::start(3, 0).await;
    let gates = [patient(&cluster), patient(&cluster)];
    let load = Load::at(&gates, &names(), keeping);
    load.until_all_are_used(6).await;
    let slots = homes(&cluster).await;
    move_slots(&cluster, &slots, 15).await;
    load.until_all_are_used(6).await;
    assert_eq!(load.unanswered(), 0);
    for history in load.end_unjudged().await {
        assert_eq!(cap_kept(&history.holds(), CAP), Ok(()));
    }
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn what_a_failover_has_lost_is_found_and_all_get_on() {
    let cluster = Cluster::start(3, 1).await;
    let gates = [patient(&cluster), patient(&cluster)];
    let load = Load::at(&gates, &names(), keeping);
    load.until_all_are_used(6).await;
    cluster.nodes[0].kill();
    wait_for("its replica has taken over", LIMIT, async || {
        role(&cluster, 3).await == "master"
    })
    .await;
    load.until_all_are_used(6).await;
    load.end_unjudged().await;
    // What the replica lacked does not stay behind, nor what it had that was given back since.
    for name in names() {
        let (keeper, other) = (keeping(&gates[0], &name), keeping(&gates[1], &name));
        keep_all(&keeper).await;
        is_recalled(&keeper, &other).await;
    }
    for node in 1..=3 {
        let mut connection = cluster.nodes[node].connection();
        assert_eq!(immortal(&mut connection), [""; 0]);
    }
}
