//! Connections that stay open and lead nowhere, and servers that are there and may not be written to
//! (faults 8, 36, 37).

use std::time::Duration;

use portcullis::{BackendErrorKind, LostReason, Mutex, Portcullis};

use crate::common::{
    LIMIT, LONG, PROMPT, failure, give_back, promptly, queue, served, served_within, take,
    until_waiting, within,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{Mode, Proxy, wait_for};
use crate::{CLAIM, SOON, clients, mutex, plain_mutex, through, throughout};

/// Fault 8; L1, M4: the server has closed them, and its client does not know.
#[tokio::test]
async fn connections_that_are_half_open_are_replaced_and_cost_no_lease() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let handle = through(&proxy).build().expect("valid");
    let lock = mutex(&handle, SOON);
    let guard = take(&lock).await;
    let waiter = queue(&lock.clone().max_wait(LONG));
    until_waiting(&mutex(&rig.handle(), SOON), 1).await;
    for _ in 0..2 {
        // Of those for commands one may be idle, and be found out when it is used.
        wait_for("it listens and is heard", LIMIT, async || {
            crate::inboxes(&rig.server).len() == 1 && clients(&rig.server) >= 2
        })
        .await;
        proxy.set(Mode::HalfOpen);
        wait_for("the server sees their end", LIMIT, async || {
            let inboxes = crate::inboxes(&rig.server);
            inboxes.is_empty() && clients(&rig.server) == 0
        })
        .await;
        // What is half open stays so; what is new passes.
        proxy.set(Mode::Pass);
        let free = lock.keyed("free").max_wait(LONG);
        give_back(within(PROMPT, "it works", free.lock()).await.expect("free")).await;
        throughout(SOON, "it is held", || guard.is_held()).await;
    }
    assert!(!waiter.is_finished());
    give_back(guard).await;
    give_back(served_within(2 * CLAIM, waiter).await).await;
    rig.settled().await;
}

/// Fault 8; M1, M4, L2.
#[tokio::test]
async fn a_lease_over_half_open_connections_ends_before_another_begins() {
    const TTL: Duration = Duration::from_secs(2);
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let guard = take(&mutex(&through(&proxy).build().expect("valid"), TTL)).await;
    let lost = tokio::spawn(guard.lost());
    let next = queue(&mutex(&rig.handle(), TTL));
    until_waiting(&mutex(&rig.handle(), TTL), 1).await;
    proxy.set(Mode::HalfOpen);
    let next = served_within(TTL + 2 * CLAIM, next).await;
    // Looked at first: whatever comes later on a busy machine, this was over by then.
    assert!(!guard.is_held());
    let reason = promptly("told", lost).await.expect("no panic");
    assert_eq!(reason, LostReason::Expired);
    assert!(next.fencing_token() > guard.fencing_token());
    drop(guard);
    give_back(next).await;
    proxy.set(Mode::Pass);
    rig.settled().await;
}

/// A try is told that the server can't serve now, and why; and a wait goes on.
async fn waits_for_a_server_that_can_not_serve(
    handle: &Portcullis,
    code: &str,
    serve: impl AsyncFnOnce(),
) {
    let lock = mutex(handle, LONG).max_wait(LONG);
    let tried = failure(promptly("a try ends", lock.keyed("tried").try_lock()).await);
    assert_eq!(tried.kind(), BackendErrorKind::NotServing, "{tried:?}");
    assert!(tried.to_string().contains(code), "{tried}");
    let waiter = queue(&lock);
    throughout(Duration::from_secs(1), "it waits", || !waiter.is_finished()).await;
    serve().await;
    let guard = within(LIMIT, "it is served", waiter).await;
    give_back(guard.expect("no panic").expect("it is free")).await;
    let again: &Mutex = &lock.keyed("tried");
    give_back(take(again).await).await;
}

/// Fault 36; M1: from the start, where the address is a replica's.
#[tokio::test]
async fn a_replica_is_waited_for_until_it_is_a_master() {
    let master = ServerRig::start();
    let port = master.server.port().to_string();
    let replica = ServerRig::start();
    replica
        .server
        .command(&["REPLICAOF", "127.0.0.1", &port])
        .await;
    wait_for("it follows", LIMIT, async || {
        let info: String = ask(&mut replica.server.connection(), &["INFO", "replication"]);
        info.contains("master_link_status:up")
    })
    .await;
    let handle = replica.builder().build().expect("valid");
    waits_for_a_server_that_can_not_serve(&handle, "READONLY", async || {
        assert!(master.server.keys_with("").await.is_empty());
        replica.server.command(&["REPLICAOF", "NO", "ONE"]).await;
    })
    .await;
    replica.settled().await;
}

/// Fault 37: a replica that knows its data to be old answers MASTERDOWN.
#[tokio::test]
async fn a_replica_without_its_master_is_waited_for() {
    let rig = ServerRig::start_with(&["--replica-serve-stale-data", "no"]);
    rig.server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let handle = rig.builder().build().expect("valid");
    waits_for_a_server_that_can_not_serve(&handle, "MASTERDOWN", async || {
        rig.server.command(&["REPLICAOF", "NO", "ONE"]).await;
    })
    .await;
    rig.settled().await;
}

/// Fault 37: a cluster that does not serve all slots answers CLUSTERDOWN.
#[tokio::test]
async fn a_cluster_that_is_down_is_waited_for() {
    let rig = ServerRig::start_with(&["--cluster-enabled", "yes"]);
    let handle = rig.builder().build().expect("valid");
    waits_for_a_server_that_can_not_serve(&handle, "CLUSTERDOWN", async || {
        let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
        let words = ["CLUSTER", "ADDSLOTS"].into_iter();
        let words: Vec<&str> = words.chain(slots.iter().map(String::as_str)).collect();
        rig.server.command(&words).await;
    })
    .await;
    let guard = take(&mutex(&handle, LONG)).await;
    let waiter = queue(&mutex(&handle, LONG));
    until_waiting(&plain_mutex(&handle, LONG), 1).await;
    give_back(guard).await;
    give_back(served(waiter).await).await;
    rig.settled().await;
}

/// Fault 8: without anybody's asking, so also while nothing is said over them.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_system_watches_over_connections_that_are_quiet() {
    let rig = ServerRig::start();
    let handle = rig.builder().build().expect("valid");
    give_back(take(&mutex(&handle, SOON)).await).await;
    // Which sockets of ours lead to the server, and whether the timer of each is that of keepalive.
    let ours = || {
        let table = std::fs::read_to_string("/proc/self/net/tcp").expect("the system tells");
        let remote = format!("0100007F:{:04X}", rig.server.port());
        let sockets = table.lines().skip(1).filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            (fields[2] == remote && fields[3] == "01").then(|| fields[5].starts_with("02:"))
        });
        sockets.collect::<Vec<_>>()
    };
    // Those that carry nothing have no other timer; the rig's own asks for none.
    wait_for(
        "two for commands and the inbox are watched",
        LIMIT,
        async || ours().iter().filter(|watched| **watched).count() == 3,
    )
    .await;
}
