//! A pool of the user's whose clients lead to all nodes.

use std::time::Duration;

use portcullis::deadpool_redis::Runtime;
use portcullis::deadpool_redis::cluster::{Manager, Pool};
use portcullis::{Portcullis, Quota};

use super::failover::is_replaced;
use super::migration::{homes, move_slots};
use crate::cluster::{Load, is_sharded, lock, names, patiently};
use crate::common::{give_back, take};
use crate::leftovers::immortal;
use crate::support::{Cluster, Server};
use crate::turns::{hand_over, hold_and_queue};

/// How some nodes are named to a pool, by a user: `name:password@`, or nobody.
fn nodes(cluster: &Cluster, user: &str) -> Vec<String> {
    let named = cluster.nodes.iter().take(3);
    let url = |node: &Server| format!("redis://{user}127.0.0.1:{}/", node.port());
    named.map(url).collect()
}

fn pool(cluster: &Cluster, user: &str) -> Pool {
    let manager = Manager::new(nodes(cluster, user), false).expect("valid addresses");
    let pool = Pool::builder(manager).max_size(4).runtime(Runtime::Tokio1);
    pool.build().expect("a valid size")
}

/// A handle on a pool, whose callers have time for a failover or a migration.
fn pooled(cluster: &Cluster) -> Portcullis {
    let builder = Portcullis::builder().cluster_pool(pool(cluster, ""), nodes(cluster, ""));
    patiently(builder.prefix("suite").connections(1))
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_pools_clients_carry_the_commands_and_we_only_look_and_listen() {
    let cluster = Cluster::start(3, 0).await;
    // Who carries commands hears nothing, and who listens runs nothing.
    let mut carries = vec!["carries", "on", ">one", "resetchannels", "&suite:*", "~*"];
    carries.extend(["+@all", "-subscribe", "-cluster|nodes"]);
    let mut listens = vec!["listens", "on", ">two", "resetchannels", "&suite:*"];
    listens.extend([
        "+cluster|slots",
        "+cluster|nodes",
        "+subscribe",
        "+unsubscribe",
    ]);
    listens.extend(["+ping", "+info"]);
    if is_sharded(&cluster).await {
        carries.push("-ssubscribe");
        listens.extend(["+ssubscribe", "+sunsubscribe"]);
    } else {
        // Up to 6.2 no subcommand can be taken away.
        carries.retain(|word| *word != "-cluster|nodes");
    }
    for node in &cluster.nodes {
        for user in [&carries, &listens] {
            node.command(&[&["ACL", "SETUSER"], &user[..]].concat())
                .await;
        }
    }
    let handle = || {
        let pool = pool(&cluster, "carries:one@");
        let builder =
            Portcullis::builder().cluster_pool(pool.clone(), nodes(&cluster, "listens:two@"));
        (patiently(builder.prefix("suite").connections(1)), pool)
    };
    let ((a, pool), (b, _)) = (handle(), handle());
    for name in names() {
        let (a, b) = (lock(&a, &name), lock(&b, &name));
        let (held, waiter) = hold_and_queue(&a, &b).await;
        hand_over(held, waiter).await;
    }
    let report = a.check().await.expect("the cluster answers");
    assert_eq!(report.servers().len(), 3);
    assert!(report.is_ok(), "{report}");
    // What was taken leaves room.
    let status = pool.status();
    assert_eq!((status.size, status.max_size), (0, 4));
    pool.get().await.expect("there is room");
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn gates_over_a_pools_clients_follow_a_crash_of_a_master() {
    let cluster = Cluster::start(3, 1).await;
    let gates = [pooled(&cluster), pooled(&cluster)];
    is_replaced(&cluster, &gates, Server::kill).await;
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn gates_over_a_pools_clients_follow_a_master_that_hangs() {
    let cluster = Cluster::start(3, 1).await;
    let gates = [pooled(&cluster), pooled(&cluster)];
    is_replaced(&cluster, &gates, Server::freeze).await;
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn slots_move_under_a_load_over_a_pools_clients() {
    let cluster = Cluster::start(3, 0).await;
    let gates = [pooled(&cluster), pooled(&cluster)];
    let load = Load::start(&gates, &names());
    load.until_all_are_used(3).await;
    let slots = homes(&cluster).await;
    move_slots(&cluster, &slots, 12).await;
    load.until_all_are_used(3).await;
    load.end().await;
    for node in &cluster.nodes {
        assert_eq!(immortal(&mut node.connection()), [""; 0]);
    }
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn what_a_pools_clients_send_again_is_held_once_and_leaves_nothing() {
    let cluster = Cluster::start(3, 0).await;
    let gates = [pooled(&cluster), pooled(&cluster)];
    let limiter = gates[0].rate_limiter("api", Quota::per_day(1_000));
    let limiter = limiter.expect("a valid quota");
    let load = Load::start(&gates, &names());
    let (mut admitted, mut left) = (0, 0);
    for round in 0..60 {
        load.until_all_are_used(1).await;
        let checked = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.check().await }
        });
        let node = &cluster.nodes[round % 3];
        node.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        if let Ok(decision) = checked.await.expect("no panic") {
            admitted += 1;
            left = decision.remaining();
        }
    }
    load.end().await;
    // Each may have been counted more than once, and none less.
    assert!(1_000 - left >= admitted, "{left} left after {admitted}");
    let free = tokio::time::timeout(Duration::from_secs(5), async {
        for name in names() {
            give_back(take(&lock(&gates[0], &name)).await).await;
        }
    });
    free.await.expect("nobody is left inside");
}
