//! Processes that end, and one that stands still (faults 14 and 49). What hangs and crashes is in
//! `tests/processes.rs`.

use std::time::{Duration, Instant};

use portcullis::LeaseMode;
use tokio::runtime::Runtime;

use crate::common::{LIMIT, LONG, give_back, queue, take, until_waiting, waiting, within};
use crate::leftovers::leftovers;
use crate::rig::{Rig, ServerRig};
use crate::support::{say, wait_for};
use crate::{CLAIM, handle, mutex, plain_mutex, semaphore, start};

/// How many leases the other process holds as it ends.
const HELD: u32 = 100;
/// Of the process that takes no leave.
const SHORT: Duration = Duration::from_secs(2);

/// Holds by tasks of a runtime, which ends with all of them.
fn hold_until_the_runtime_ends(gates: &portcullis::Portcullis, ttl: Duration) {
    let runtime = Runtime::new().expect("the system has room for a runtime");
    runtime.block_on(async {
        for number in 0..HELD {
            let lock = mutex(gates, ttl).keyed(number);
            let guard = lock.lock().await.expect("it is free");
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(guard);
            });
        }
        let permits = semaphore(gates, 2, ttl);
        let permit = permits.acquire().await.expect("one is free");
        tokio::spawn(async move {
            std::future::pending::<()>().await;
            drop(permit);
        });
    });
    say("ready");
    // Dropping a runtime drops its tasks, and these drop the guards.
    drop(runtime);
}

/// The role of one that shuts down.
pub(crate) fn go_in_order(url: &str) {
    let gates = handle(url);
    hold_until_the_runtime_ends(&gates, LONG);
    let runtime = Runtime::new().expect("the system has room for a runtime");
    let report = runtime.block_on(gates.shutdown(LIMIT));
    say(&format!("{}", report.abandoned));
    std::process::exit(0);
}

/// The role of one that does not.
pub(crate) fn go_at_once(url: &str) {
    let gates = handle(url);
    hold_until_the_runtime_ends(&gates, SHORT);
    std::process::exit(0);
}

/// Fault 14; C2.
#[tokio::test]
async fn a_process_that_shuts_down_after_its_runtime_leaves_nothing_behind() {
    let rig = ServerRig::start();
    let mut other = start(&rig.server, "go in order", |_| {});
    assert_eq!(other.hear(), "0", "what it abandoned");
    // When it has shut down, not a moment later.
    assert_eq!(
        leftovers(&mut rig.server.connection()),
        Vec::<String>::new()
    );
    assert!(other.until_ended().await.success());
    rig.settled().await;
}

/// Fault 14; L2: nobody can promise that what was dropped last is delivered then.
#[tokio::test]
async fn a_process_that_ends_at_once_leaves_leases_for_their_ttl_at_most() {
    let rig = ServerRig::start();
    let lock = mutex(&rig.handle(), SHORT).keyed(HELD - 1);
    let mut other = start(&rig.server, "go at once", |_| {});
    let next = queue(&lock);
    assert!(other.until_ended().await.success());
    let next = within(SHORT + CLAIM, "it is free", next).await;
    give_back(next.expect("no panic").expect("it is free")).await;
    wait_for("all are free", SHORT + CLAIM, async || {
        let keys = rig.server.keys_with("suite:").await;
        !keys.iter().any(|key| key.contains("}:m:"))
    })
    .await;
    let permits = semaphore(&rig.handle(), 2, SHORT);
    let both = async { tokio::join!(permits.acquire(), permits.acquire()) };
    let (one, other) = within(SHORT + CLAIM, "both are free", both).await;
    give_back(one.expect("it is free")).await;
    give_back(other.expect("it is free")).await;
    rig.settled().await;
}

/// Fault 49; M4: a deadline is a reading of the clock, and needs nobody to be awake at it.
#[tokio::test]
async fn a_blocked_worker_wakes_to_a_fixed_lease_that_is_over() {
    const TTL: Duration = Duration::from_millis(600);
    let rig = ServerRig::start();
    // What is kept is renewed.
    let lock = plain_mutex(&rig.handle(), TTL)
        .lease(LeaseMode::Fixed)
        .expect("in range");
    let theirs = rig.handle();
    let other = mutex(&theirs, LONG);
    let guard = take(&lock).await;
    let next = queue(&other);
    until_waiting(&plain_mutex(&theirs, LONG), 1).await;
    let asked = Instant::now();
    assert!(guard.is_held());
    // The only thread of this test's runtime.
    std::thread::sleep(3 * TTL);
    assert!(!guard.is_held(), "after {:?}", asked.elapsed());
    assert_eq!(guard.remaining(), Duration::ZERO);
    // Somebody holds already, whose task could not run yet.
    assert_eq!(waiting(&other).await, Some(0));
    let next = within(LIMIT, "its turn came", next).await;
    let next = next.expect("no panic").expect("its turn came");
    assert!(next.fencing_token() > guard.fencing_token());
    drop(guard);
    give_back(next).await;
    rig.settled().await;
}
