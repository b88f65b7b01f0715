//! Masters that crash or hang while they are used.

use std::time::{Duration, Instant};

use portcullis::Portcullis;
use redis::Value;

use crate::cluster::{LIMIT, Load, names, patient};
use crate::leftovers::immortal;
use crate::support::{Cluster, Server, wait_for};

/// How much later than the failover all who wait are served.
const SOON: Duration = Duration::from_secs(2);
#[tokio::test]
#[ignore = "it starts a cluster"]
async fn who_waits_is_served_soon_after_a_crashed_master_was_replaced() {
    let cluster = Cluster::start(3, 1).await;
    is_replaced(
        &cluster,
        &[patient(&cluster), patient(&cluster)],
        Server::kill,
    )
    .await;
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn who_waits_is_served_soon_after_a_hanging_master_was_replaced() {
    let cluster = Cluster::start(3, 1).await;
    let gates = [patient(&cluster), patient(&cluster)];
    is_replaced(&cluster, &gates, Server::freeze).await;
    // It wakes up, believes that it is a master for a moment, and convinces nobody.
    let load = Load::start(&gates, &names());
    cluster.nodes[0].thaw();
    wait_for("it has become a replica", LIMIT, async || {
        role(&cluster, 0).await == "slave"
    })
    .await;
    let calls = gate_calls(&cluster, 0).await;
    load.until_all_are_used(6).await;
    load.end().await;
    let asked = gate_calls(&cluster, 0).await - calls;
    assert_eq!(asked, 0, "who was replaced is asked for nothing");
}

/// Takes the first master away under load, and judges what follows.
pub(super) async fn is_replaced(
    cluster: &Cluster,
    gates: &[Portcullis; 2],
    away: impl Fn(&Server),
) {
    let load = Load::start(gates, &names());
    load.until_all_are_used(6).await;
    away(&cluster.nodes[0]);
    wait_for("its replica has taken over", LIMIT, async || {
        role(cluster, 3).await == "master"
    })
    .await;
    let replaced = Instant::now();
    load.until_all_are_used(1).await;
    let took = replaced.elapsed();
    eprintln!("served {took:?} after the failover");
    assert!(took < SOON, "served {took:?} after the failover");
    load.end().await;
    for node in 1..=3 {
        let mut connection = cluster.nodes[node].connection();
        assert_eq!(immortal(&mut connection), [""; 0]);
    }
}

/// How many scripts a node has run. Attempts to connect that it slept through load some when it
/// wakes.
async fn gate_calls(cluster: &Cluster, node: usize) -> u64 {
    let info = cluster.nodes[node].command(&["INFO", "commandstats"]).await;
    let info: String = redis::from_redis_value(info).expect("text");
    let calls = info.lines().filter_map(|line| {
        let (name, rest) = line.split_once(":calls=")?;
        let runs = ["cmdstat_eval", "cmdstat_evalsha"].contains(&name);
        runs.then(|| rest.split(',').next()?.parse::<u64>().ok())?
    });
    calls.sum()
}

pub(super) async fn role(cluster: &Cluster, node: usize) -> String {
    match cluster.nodes[node].try_command(&["ROLE"]).await {
        Ok(Value::Array(role)) => match role.first() {
            Some(Value::BulkString(role)) => String::from_utf8_lossy(role).into_owned(),
            _ => String::new(),
        },
        _ => String::new(),
    }
}
