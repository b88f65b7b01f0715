//! Which master has what.

use std::collections::BTreeSet;

use crate::cluster::{lock, patient};
use crate::common::promptly;
use crate::support::Cluster;

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_thousand_semaphores_use_all_masters_evenly_and_each_keeps_together() {
    let cluster = Cluster::start(3, 0).await;
    let gates = patient(&cluster);
    let mut permits = Vec::new();
    for number in 0..1_000 {
        let gate = gates
            .semaphore(&format!("reports-{number}"), 1)
            .expect("in range");
        permits.push(gate.acquire().await.expect("it is free"));
    }
    let keys = cluster.keys_with("suite:").await;
    let mut all = BTreeSet::new();
    for (node, keys) in keys.iter().enumerate() {
        let held: BTreeSet<&str> = keys
            .iter()
            .filter_map(|key| key.split_once("}:s:").map(|(_, name)| name))
            .collect();
        let records = keys.iter().filter(|key| key.contains("}:sr:")).count();
        assert_eq!(held.len(), records, "each has its records beside it");
        let even = 1_000.0 / 3.0;
        let share = held.len() as f64 / even;
        assert!((0.8..=1.2).contains(&share), "node {node} has {share:.2}");
        all.extend(held.into_iter().map(str::to_owned));
    }
    assert_eq!(all.len(), 1_000);
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn what_is_held_on_each_master_excludes_another_handle() {
    let cluster = Cluster::start(3, 0).await;
    let (one, other) = (patient(&cluster), patient(&cluster));
    for number in 0..24 {
        let name = format!("gate-{number}");
        let guard = lock(&one, &name).lock().await.expect("it is free");
        assert!(lock(&other, &name).try_lock().await.is_err());
        promptly("a release is answered", guard.release())
            .await
            .expect("the cluster answers");
        let guard = lock(&other, &name).try_lock().await;
        drop(guard.expect("it is free again"));
    }
}
