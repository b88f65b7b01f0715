//! Sentinels that are frozen, dead, restarted, or behind.

use std::time::{Duration, Instant};

use portcullis::LockError;

use super::*;
use crate::common::{failure, give_back, promptly, served, take};
use crate::turns::{hand_over, hold_and_queue};

/// C113: the first in the list is frozen, the second dead.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn any_living_sentinel_is_enough_to_start() {
    let fleet = Fleet::start().await;
    fleet.sentinels[0].freeze();
    fleet.sentinels[1].kill();
    let gates = handle(&fleet);
    let begun = Instant::now();
    let guard = take(&mutex(&gates)).await;
    println!("held after {:?}", begun.elapsed());
    give_back(guard).await;
    let report = promptly("a look ends", gates.check().into_future()).await;
    let report = report.expect("the server is there");
    let found = report.server().and_then(|server| server.sentinels.as_ref());
    let found = found.expect("sentinels were asked");
    assert_eq!((found.known, found.answering), (3, 1));
    let text = report.to_string();
    assert!(
        text.contains("named for `main` by 1 of 3 sentinels"),
        "{text}"
    );
    assert!(text.contains("2 of 3 sentinels do not answer"), "{text}");
    fleet.sentinels[0].thaw();
}

/// C113: sentinels are gone for a while, and what they do afterwards is followed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn connections_outlive_all_sentinels_and_a_failover_is_followed_when_they_are_back() {
    let fleet = Fleet::start().await;
    let (a, b) = (handle(&fleet), handle(&fleet));
    let short = |handle: &Portcullis| {
        let mutex = handle.mutex("short");
        mutex.ttl(Duration::from_secs(3)).expect("in range")
    };
    let (a, b) = (short(&a), short(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    for sentinel in &fleet.sentinels {
        sentinel.kill();
    }
    // Who has no connection yet is told, and why.
    let newcomer = handle(&fleet);
    let error = failure(promptly("a newcomer is told", short(&newcomer).try_lock()).await);
    assert_eq!(error.kind(), portcullis::BackendErrorKind::Unreachable);
    assert!(error.to_string().contains("no sentinel answers"), "{error}");
    assert!(!error.to_string().contains("127.0.0.1"), "{error}");
    // Renewed beyond its end, and handed over by push.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(held.is_held());
    hand_over(held, waiter).await;
    for sentinel in &fleet.sentinels {
        sentinel.restart();
    }
    fleet.until_whole().await;
    eventually("the newcomer is answered", async || {
        short(&newcomer).try_lock().await.is_ok()
    })
    .await;
    fleet.until_replicated().await;
    fleet.nodes[0].kill();
    let (new, switched) = fleet.until_switched(&fleet.nodes[0]).await;
    soon(switched, "all listen to the new one", async || {
        // The newcomer has never waited, and listens nowhere.
        inboxes(new) == 2
    })
    .await;
}

/// Fault 35: too few sentinels are left to fail over.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn without_a_quorum_leases_go_on_and_the_loss_of_the_master_is_an_outage() {
    let fleet = Fleet::start().await;
    let gates = handle(&fleet);
    let gate = mutex(&gates);
    for sentinel in &fleet.sentinels[1..] {
        sentinel.kill();
    }
    let held = take(&gate).await;
    give_back(held).await;
    give_back(take(&gate).await).await;
    fleet.nodes[0].kill();
    let error = failure(promptly("a try fails", gate.try_lock()).await);
    assert!(error.kind().is_outage(), "{error}");
    let text = format!("{error} {error:?}");
    assert!(!text.contains(&fleet.nodes[0].port().to_string()), "{text}");
    // It stays one until they are enough again.
    for sentinel in &fleet.sentinels[1..] {
        sentinel.restart();
    }
    let (_, switched) = fleet.until_switched(&fleet.nodes[0]).await;
    soon(switched, "it is served again", async || {
        gate.try_lock().await.is_ok()
    })
    .await;
}

/// A sentinel that slept through a failover names the old master when it wakes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_sentinel_that_slept_through_a_failover_leads_nobody_back() {
    let fleet = Fleet::start().await;
    let gates = handle(&fleet);
    let gate = mutex(&gates);
    let held = take(&gate).await;
    fleet.until_replicated().await;
    let (old, sleeper) = (&fleet.nodes[0], &fleet.sentinels[0]);
    sleeper.freeze();
    old.freeze();
    let mut named = None;
    eventually("another is named", async || {
        named = fleet.sentinels[1]
            .named()
            .filter(|&port| port != old.port());
        named.is_some()
    })
    .await;
    let switched = Instant::now();
    let new = fleet.nodes.iter().find(|node| Some(node.port()) == named);
    let new = new.expect("it is one of ours");
    soon(switched, "it is served again", async || held_at(new).await).await;
    // Both wake: the old master takes itself for the master, and so does the sentinel.
    old.thaw();
    sleeper.thaw();
    let late = handle(&fleet);
    let busy = promptly("a newcomer is answered", mutex(&late).try_lock()).await;
    assert!(matches!(busy, Err(LockError::Refused(_))), "{busy:?}");
    for _ in 0..100 {
        let busy = promptly("a newcomer is answered", mutex(&late).try_lock()).await;
        assert!(matches!(busy, Err(LockError::Refused(_))), "{busy:?}");
        assert!(held.is_held());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    give_back(held).await;
}

/// Whether a script of ours ran at a node since it is the master.
async fn held_at(node: &Server) -> bool {
    node.script_calls().await > 0
}

/// C111: pushes, and no timers, after a failover.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn the_subscription_follows_and_waiters_do_not_ask() {
    let fleet = Fleet::start().await;
    let (a, b) = (handle(&fleet), handle(&fleet));
    let (a, b) = (mutex(&a), mutex(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    fleet.until_replicated().await;
    fleet.nodes[0].kill();
    let (new, _) = until_both_listen(&fleet, &fleet.nodes[0]).await;
    // Whoever polled would ask four times a second; a heartbeat comes each second.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = new.script_runs().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = new.script_runs().await - before;
    assert!(asked <= 6, "{asked} questions in 3 s");
    let released = Instant::now();
    give_back(held).await;
    let next = served(waiter).await;
    println!("handed over in {:?}", released.elapsed());
    give_back(next).await;
}
