//! What holders and waiters learn when the server loses their state, or they lose the server (C43,
//! C51; faults 2, 9, 26).

use std::time::Duration;

use portcullis::{LostReason, Mutex, Portcullis, Release};
use tokio::task::JoinSet;

use super::{mutex, semaphore, through};
use crate::common::{
    LIMIT, all_done, give_back, promptly, queue, served, take, until_waiting, waiting, within,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{History, Mode, Proxy, wait_for};

/// Renewed each 2 s: what its next renewal tells is told long before it would expire.
fn renewed_soon(handle: &Portcullis) -> Mutex {
    mutex(handle).ttl(Duration::from_secs(6)).expect("in range")
}

/// The one key of a gate that begins so.
async fn main_key(rig: &ServerRig, letter: &str) -> String {
    let keys = rig.server.keys_with("suite:").await;
    let mut main = keys
        .into_iter()
        .filter(|key| key.contains(&format!("}}:{letter}:")));
    main.next().expect("somebody holds")
}

#[tokio::test]
async fn a_holder_learns_from_its_next_renewal_that_an_admin_removed_its_lock() {
    let rig = ServerRig::start();
    let (a, b) = (rig.handle(), rig.handle());
    let guard = take(&renewed_soon(&a)).await;
    let lost = tokio::spawn(guard.lost());
    assert!(guard.is_held());
    rig.server
        .command(&["DEL", &main_key(&rig, "m").await])
        .await;
    let successor = served(queue(&renewed_soon(&b))).await;
    let reason = within(LIMIT, "its loss is told", lost)
        .await
        .expect("no panic");
    assert_eq!(reason, LostReason::Gone);
    assert!(!guard.is_held());
    let answer = promptly("answered", guard.release())
        .await
        .expect("answered");
    assert_eq!(answer, Release::NoLongerHeld);
    // C01: nor has it hurt who came after it.
    assert_eq!(waiting(&renewed_soon(&a)).await, Some(0));
    assert!(successor.is_held());
    drop(successor);
    rig.settled().await;
}

#[tokio::test]
async fn a_renewal_does_not_bring_back_what_is_gone() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let permits = semaphore(&handle, 2)
        .ttl(Duration::from_millis(900))
        .expect("in range");
    let (one, other) = (take(&permits).await, take(&permits).await);
    rig.server
        .command(&["DEL", &main_key(&rig, "s").await])
        .await;
    for permit in [&one, &other] {
        assert_eq!(
            within(LIMIT, "its loss is told", permit.lost()).await,
            LostReason::Gone
        );
    }
    let keys = rig.server.keys_with("suite:").await;
    assert!(!keys.iter().any(|key| key.contains("}:s:")), "{keys:?}");
    // C43: and the next ones of this handle are renewed as ever.
    let (one, other) = (take(&permits).await, take(&permits).await);
    let begun = std::time::Instant::now();
    wait_for("three TTLs have passed", LIMIT, async || {
        assert!(one.is_held() && other.is_held());
        begun.elapsed() > Duration::from_millis(2_700)
    })
    .await;
    assert_eq!(waiting(&permits).await, Some(0));
    drop((one, other));
    rig.settled().await;
}

/// Fault 26, and 2 with `restart`.
async fn waiters_outlive_a_loss_of_data(lose: impl AsyncFn(&ServerRig)) {
    let rig = ServerRig::start();
    let (a, b) = (renewed_soon(&rig.handle()), renewed_soon(&rig.handle()));
    let guard = take(&a).await;
    let old = guard.fencing_token();
    let mut queued = Vec::new();
    for number in 0..6 {
        queued.push(queue(if number % 2 == 0 { &b } else { &a }));
        until_waiting(&a, queued.len() as u64).await;
    }
    lose(&rig).await;
    assert_eq!(
        within(LIMIT, "its loss is told", guard.lost()).await,
        LostReason::Gone
    );
    let mut served = JoinSet::new();
    for task in queued {
        served.spawn(async move {
            let guard = task.await.expect("no panic").expect("its turn comes");
            let fence = guard.fencing_token();
            give_back(guard).await;
            fence
        });
    }
    let mut fences = all_done(served).await;
    fences.sort();
    assert!(fences[0] > old, "fencing tokens rise across a loss of data");
    drop(guard);
    rig.settled().await;
}

#[tokio::test]
async fn waiters_outlive_flushall() {
    waiters_outlive_a_loss_of_data(async |rig| {
        rig.server.command(&["FLUSHALL"]).await;
    })
    .await;
}

#[tokio::test]
async fn waiters_outlive_a_restart_without_persistence() {
    waiters_outlive_a_loss_of_data(async |rig| rig.server.restart()).await;
}

/// Fault 3.
#[tokio::test]
async fn a_restart_with_persistence_costs_neither_a_lease_nor_a_place() {
    let rig = ServerRig::start_with(&["--appendonly", "yes"]);
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    let guard = take(&a).await;
    let queued = [queue(&b), queue(&b)];
    until_waiting(&a, 2).await;
    rig.server.restart();
    within(LIMIT, "it is back", until_waiting(&a, 2)).await;
    assert!(guard.is_held());
    give_back(guard).await;
    let mut tasks = JoinSet::new();
    for task in queued {
        tasks.spawn(async move { give_back(served(task).await).await });
    }
    all_done(tasks).await;
    rig.settled().await;
}

#[tokio::test]
async fn waiters_whose_queue_is_lost_enter_again_in_their_order() {
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    let guard = take(&a).await;
    let mut queued = Vec::new();
    for _ in 0..5 {
        queued.push(queue(&b));
        until_waiting(&a, queued.len() as u64).await;
    }
    rig.server
        .command(&["DEL", &main_key(&rig, "mq").await])
        .await;
    within(LIMIT, "they enter again", until_waiting(&a, 5)).await;
    give_back(guard).await;
    for task in queued {
        give_back(served(task).await).await;
    }
    rig.settled().await;
}

/// C51, in 50 runs at once.
#[tokio::test]
async fn a_loss_is_told_before_another_can_hold() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let cut_off = through(&proxy).build().expect("a valid configuration");
    let ttl = |handle: &Portcullis| mutex(handle).ttl(Duration::from_secs(2)).expect("in range");
    let (cut_off, other) = (ttl(&cut_off), ttl(&rig.handle()));
    let mut watches = JoinSet::new();
    for number in 0..50 {
        let guard = take(&cut_off.keyed(number)).await;
        let lost = guard.lost();
        let next = queue(&other.keyed(number));
        until_waiting(&other.keyed(number), 1).await;
        watches.spawn(async move {
            let told = tokio::spawn(async move {
                let reason = lost.await;
                (reason, History::now())
            });
            let successor = next.await.expect("no panic").expect("its turn comes");
            let acquired = History::now();
            assert!(!guard.is_held());
            let (reason, told) = told.await.expect("no panic");
            assert_eq!(reason, LostReason::Expired);
            assert!(told < acquired);
            drop(successor);
        });
    }
    proxy.set(Mode::BlackHole);
    all_done(watches).await;
    proxy.set(Mode::Pass);
    rig.settled().await;
}

/// Fault 9.
#[tokio::test]
async fn a_lease_ends_on_time_while_its_server_hangs() {
    let rig = ServerRig::start();
    let mutex = mutex(&rig.handle())
        .ttl(Duration::from_secs(1))
        .expect("in range");
    let guard = take(&mutex).await;
    rig.server.freeze();
    assert_eq!(
        promptly("its loss is told", guard.lost()).await,
        LostReason::Expired
    );
    assert!(!guard.is_held());
    rig.server.thaw();
    drop(served(queue(&mutex)).await);
    drop(guard);
    rig.settled().await;
}

#[tokio::test]
async fn a_short_hang_and_a_lost_connection_are_no_loss() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let mutex = mutex(&through(&proxy).build().expect("valid")).ttl(Duration::from_secs(6));
    let mutex = mutex.expect("in range");
    let guard = take(&mutex).await;
    let mut connection = rig.server.connection();
    let key = main_key(&rig, "m").await;
    for _ in 0..3 {
        proxy.cut();
        let mut last = i64::MAX;
        wait_for("it is renewed", LIMIT, async || {
            assert!(guard.is_held());
            let left = ask(&mut connection, &["PTTL", &key]);
            left > std::mem::replace(&mut last, left)
        })
        .await;
    }
    give_back(guard).await;
    rig.settled().await;
}

#[tokio::test]
async fn a_lock_that_another_value_replaced_is_lost() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let lock = renewed_soon(&handle);
    for order in [&["SET"][..], &["DEL", "HSET"]] {
        let guard = take(&lock).await;
        let key = main_key(&rig, "m").await;
        for word in order {
            match *word {
                "SET" => rig.server.command(&["SET", &key, "foreign"]).await,
                "DEL" => rig.server.command(&["DEL", &key]).await,
                word => rig.server.command(&[word, &key, "field", "foreign"]).await,
            };
        }
        // The renewal of others at the same time is none the worse.
        let sibling = take(&renewed_soon(&handle).keyed("sibling")).await;
        assert_eq!(
            within(LIMIT, "its loss is told", guard.lost()).await,
            LostReason::Gone
        );
        assert!(sibling.is_held());
        drop((guard, sibling));
        // What somebody else put there is not ours to remove.
        let kept = rig.server.command(&["EXISTS", &key]).await;
        assert_eq!(kept, redis::Value::Int(1));
        rig.server.command(&["DEL", &key]).await;
        // The release could not see past the foreign value; the next one clears what it left.
        give_back(take(&lock).await).await;
    }
    rig.settled().await;
}
