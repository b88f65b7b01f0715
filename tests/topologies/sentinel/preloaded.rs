//! Scripts that somebody has loaded on every node, and failovers.

use portcullis::BackendErrorKind;

use super::*;
use crate::common::{Guard, LIMIT, failure, give_back, queue, served, take, until_waiting, within};
use crate::preloading::{allow_bare, load};
use crate::turns::hold_and_queue;

const PATIENCE: Duration = Duration::from_secs(5);

/// A handle whose user can run no code of its own, and whose leases a replica has.
async fn bare(fleet: &Fleet) -> Portcullis {
    for node in &fleet.nodes {
        allow_bare(node).await;
    }
    let url = fleet.url().replace("://", "://bare:open@");
    let builder = builder(&url).preloaded_scripts();
    let builder = builder.min_replicas(1, PATIENCE);
    builder.build().expect("in range")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn scripts_that_are_loaded_on_all_nodes_serve_on_after_a_failover() {
    let fleet = Fleet::start().await;
    for node in &fleet.nodes {
        load(node).await;
    }
    let (a, b) = (bare(&fleet).await, bare(&fleet).await);
    let (held, waiter) = hold_and_queue(&mutex(&a), &mutex(&b)).await;
    let (permit, other) = hold_and_queue(&semaphore(&a, 1), &semaphore(&b, 1)).await;
    fleet.until_replicated().await;
    fleet.nodes[0].kill();
    until_both_listen(&fleet, &fleet.nodes[0]).await;
    let fences = (held.fence(), permit.fence());
    assert!(held.is_held() && permit.is_held());
    give_back(held).await;
    give_back(permit).await;
    let (next, next_permit) = (
        within(LIMIT, "its turn comes", waiter).await,
        within(LIMIT, "its turn comes", other).await,
    );
    let next = next.expect("no panic").expect("its turn comes");
    let next_permit = next_permit.expect("no panic").expect("its turn comes");
    assert!(next.fence() > fences.0 && next_permit.fence() > fences.1);
    give_back(next).await;
    give_back(next_permit).await;
    assert_mortal(&fleet.nodes[1..]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_new_master_without_scripts_does_not_serve_until_they_are_loaded() {
    let fleet = Fleet::start().await;
    load(&fleet.nodes[0]).await;
    let (a, b) = (bare(&fleet).await, bare(&fleet).await);
    let (a, b) = (mutex(&a), mutex(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    fleet.until_replicated().await;
    // Up to 6.2 a master tells its replicas of scripts.
    for node in &fleet.nodes[1..] {
        node.command(&["SCRIPT", "FLUSH"]).await;
    }
    fleet.nodes[0].kill();
    let (new, _) = until_both_listen(&fleet, &fleet.nodes[0]).await;
    let mut said = String::new();
    eventually("it counts as one that does not serve", async || {
        let error = failure(a.try_lock().await);
        assert!(error.kind().is_outage(), "{error}");
        said = error.to_string();
        error.kind() == BackendErrorKind::NotServing && said.contains("NOSCRIPT")
    })
    .await;
    assert!(said.contains("portcullis::scripts"), "{said}");
    assert!(held.is_held() && !waiter.is_finished());
    load(new).await;
    let fence = held.fence();
    let released = within(LIMIT, "it is released", held.release()).await;
    released.expect("the server answers");
    let next = within(LIMIT, "its turn comes", waiter).await;
    let next = next.expect("no panic").expect("its turn comes");
    assert!(next.fence() > fence);
    give_back(next).await;
    // And nothing waits for scripts any more.
    let guard = take(&a).await;
    let next = queue(&b);
    until_waiting(&a, 1).await;
    give_back(guard).await;
    give_back(served(next).await).await;
    assert_mortal(&fleet.nodes[1..]);
}
