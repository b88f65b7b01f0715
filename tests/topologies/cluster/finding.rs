//! How a cluster is found, and what is told of one that can't be.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use portcullis::{BackendErrorKind, Portcullis};

use crate::cluster::{lock, patient};
use crate::common::{failure, take};
use crate::support::{Cluster, Server};

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn one_node_that_answers_is_enough_to_find_all() {
    let cluster = Cluster::start(3, 0).await;
    // One that takes connections and never says a word, and one that is not there.
    let mute = TcpListener::bind("127.0.0.1:0").expect("the loopback interface is up");
    let mute = mute.local_addr().expect("a bound socket has an address");
    let seed = cluster.nodes[2].port();
    let url = format!("redis+cluster://{mute},127.0.0.1:1,127.0.0.1:{seed}");
    let gates = Portcullis::builder()
        .url(url)
        .prefix("suite")
        .build()
        .expect("a valid configuration");
    for number in 0..12 {
        drop(take(&lock(&gates, &format!("gate-{number}"))).await);
    }
}

#[tokio::test]
#[ignore = "it starts servers"]
async fn a_cluster_that_is_not_there_is_told_of_in_time() {
    let mute = TcpListener::bind("127.0.0.1:0").expect("the loopback interface is up");
    let mute = mute.local_addr().expect("a bound socket has an address");
    for url in [
        format!("redis+cluster://{mute}"),
        "redis+cluster://127.0.0.1:1".to_owned(),
    ] {
        let gates = Portcullis::builder()
            .url(url)
            .build()
            .expect("a valid configuration");
        let asked = Instant::now();
        let error = failure(lock(&gates, "gate").try_lock().await);
        assert_eq!(error.kind(), BackendErrorKind::Unreachable, "{error}");
        assert!(asked.elapsed() < Duration::from_secs(8));
    }
}

#[tokio::test]
#[ignore = "it starts servers"]
async fn a_server_that_is_no_cluster_says_so() {
    let server = Server::start();
    let gates = Portcullis::builder()
        .url(format!("redis+cluster://127.0.0.1:{}", server.port()))
        .build()
        .expect("a valid configuration");
    let error = failure(lock(&gates, "gate").try_lock().await).to_string();
    assert!(error.contains("no cluster's node"), "{error}");
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_master_that_joins_later_is_used() {
    let cluster = Cluster::start(3, 0).await;
    let gates = patient(&cluster);
    drop(take(&lock(&gates, "gate")).await);
    let slot = cluster
        .slot(&cluster.keys_with("suite:").await.concat()[0])
        .await;
    let from = cluster.owner(slot).await.expect("it has an owner");
    let newcomer =
        Server::start_node(&["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]);
    let mut cluster = cluster;
    cluster.nodes.push(newcomer);
    let to = cluster.nodes.len() - 1;
    cluster.until_acquainted().await;
    cluster.until_whole().await;
    cluster.migrate(slot, from, to, Duration::ZERO).await;
    let guard = take(&lock(&gates, "gate")).await;
    let keys = cluster.nodes[to].keys_with("suite:").await;
    assert!(keys.iter().any(|key| key.contains("}:m:gate")), "{keys:?}");
    drop(guard);
}
