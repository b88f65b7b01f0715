//! Who waits is told, whichever master the gate is on.

use std::time::{Duration, Instant};

use crate::cluster::{lock, names, patient};
use crate::common::{LIMIT, PROMPT, give_back, promptly, queue, served, take, until_waiting};
use crate::support::{Cluster, wait_for};

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_release_hands_over_promptly_on_every_master() {
    let cluster = Cluster::start(3, 0).await;
    let (one, other) = (patient(&cluster), patient(&cluster));
    for name in names() {
        // All of them together: one alone may be found by the next question, which is asked within
        // a second.
        let mut took = Duration::ZERO;
        for _ in 0..10 {
            let guard = take(&lock(&one, &name)).await;
            let waiter = queue(&lock(&other, &name));
            until_waiting(&lock(&one, &name), 1).await;
            let released = Instant::now();
            drop(guard);
            let guard = served(waiter).await;
            took += released.elapsed();
            give_back(guard).await;
        }
        assert!(took < PROMPT, "ten releases were told of in {took:?}");
    }
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn who_waits_asks_once_a_second_and_no_more_often() {
    let cluster = Cluster::start(3, 0).await;
    let (one, other) = (patient(&cluster), patient(&cluster));
    let guard = take(&lock(&one, "gate")).await;
    let waiter = queue(&lock(&other, "gate"));
    until_waiting(&lock(&one, "gate"), 1).await;
    // Its channel is confirmed by now, or is soon.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = calls(&cluster).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let asked = calls(&cluster).await - before;
    // Heartbeats of the waiter; polling would ask 24 times and more.
    assert!((2..=12).contains(&asked), "{asked} calls in 6 s");
    drop(guard);
    drop(served(waiter).await);
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_slot_that_moves_takes_its_waiters_along() {
    let cluster = Cluster::start(3, 0).await;
    let (one, other) = (patient(&cluster), patient(&cluster));
    let guard = take(&lock(&one, "gate")).await;
    let waiter = queue(&lock(&other, "gate"));
    until_waiting(&lock(&one, "gate"), 1).await;
    let (slot, from) = home(&cluster).await;
    let to = (from + 1) % 3;
    assert!(!is_listened_to(&cluster, to).await);
    wait_for("its channel is there", LIMIT, async || {
        is_listened_to(&cluster, from).await
    })
    .await;
    cluster.migrate(slot, from, to, Duration::ZERO).await;
    wait_for("its channel has moved along", LIMIT, async || {
        is_listened_to(&cluster, to).await
    })
    .await;
    until_waiting(&lock(&one, "gate"), 1).await;
    assert!(guard.is_held());
    promptly("a release is answered", guard.release())
        .await
        .expect("the cluster answers");
    drop(served(waiter).await);
}

/// The slot of the one gate there is, and who has it.
async fn home(cluster: &Cluster) -> (u16, usize) {
    let keys = cluster.keys_with("suite:").await;
    let found = |keys: &Vec<String>| keys.iter().find(|key| key.contains("}:m:")).cloned();
    let mut found = keys.iter().map(found);
    let node = found
        .clone()
        .position(|key| key.is_some())
        .expect("it is held");
    let key = found.nth(node).flatten().expect("it is held");
    (cluster.slot(&key).await, node)
}

/// Whether somebody listens at a node to grants.
async fn is_listened_to(cluster: &Cluster, node: usize) -> bool {
    let mut heard = String::new();
    for channels in ["SHARDCHANNELS", "CHANNELS"] {
        // The former are unknown to Redis 6.2.
        let answer = cluster.nodes[node].try_command(&["PUBSUB", channels]).await;
        let names = answer.map(redis::from_redis_value::<Vec<String>>);
        heard += &names
            .map(Result::unwrap_or_default)
            .unwrap_or_default()
            .concat();
    }
    heard.contains("suite:inbox:")
}

async fn calls(cluster: &Cluster) -> u64 {
    let mut calls = 0;
    for node in &cluster.nodes {
        calls += node.script_calls().await;
    }
    calls
}
