//! Scripts that somebody has loaded on every node, and on all but one.

use portcullis::BackendErrorKind;

use super::failover::is_replaced;
use crate::cluster::{builder, lock, names, patiently};
use crate::common::{failure, give_back, promptly, take};
use crate::preloading::{allow_bare, load};
use crate::support::{Cluster, Server};

/// A handle whose user can run no code of its own.
async fn bare(cluster: &Cluster) -> portcullis::Portcullis {
    for node in &cluster.nodes {
        allow_bare(node).await;
    }
    let url = cluster.url().replace("://", "://bare:open@");
    patiently(builder(cluster).url(url).preloaded_scripts())
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn scripts_that_are_loaded_on_all_nodes_serve_on_after_a_failover() {
    let cluster = Cluster::start(3, 1).await;
    for node in &cluster.nodes {
        load(node).await;
    }
    let gates = [bare(&cluster).await, bare(&cluster).await];
    is_replaced(&cluster, &gates, Server::kill).await;
}

#[tokio::test]
#[ignore = "it starts a cluster"]
async fn a_master_without_scripts_does_not_serve_until_they_are_loaded_and_others_do() {
    let cluster = Cluster::start(3, 0).await;
    for node in &cluster.nodes[1..] {
        load(node).await;
    }
    let gates = bare(&cluster).await;
    let (mut served, mut refused) = (Vec::new(), Vec::new());
    for name in names() {
        let gate = lock(&gates, &name);
        match promptly("it is answered", gate.try_lock()).await {
            Ok(guard) => {
                give_back(guard).await;
                served.push(name);
            }
            other => {
                let error = failure(other);
                assert_eq!(error.kind(), BackendErrorKind::NotServing, "{error}");
                assert!(error.to_string().contains("portcullis::scripts"), "{error}");
                refused.push(name);
            }
        }
    }
    // As many as there are on the node.
    assert!((1..served.len()).contains(&refused.len()), "{refused:?}");
    assert_eq!(cluster.nodes[0].keys_with("suite:").await, [""; 0]);
    load(&cluster.nodes[0]).await;
    for name in refused {
        give_back(take(&lock(&gates, &name)).await).await;
    }
}
