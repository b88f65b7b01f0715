//! A master found by sentinels, and followed through failovers.

mod credentials;
mod failover;
mod pools;
mod preloaded;
mod processes;
mod replicas;
mod sentinels;
mod tls;

use std::time::{Duration, Instant};

use portcullis::{Builder, Mutex, Portcullis, Semaphore};

use crate::common::{LIMIT, LONG};
use crate::leftovers::{ask, immortal};
use crate::support::sentinel::{Fleet, try_ask};
use crate::support::{Server, wait_for};

/// How soon after the sentinels have announced a new master all is as it was.
const SOON: Duration = Duration::from_secs(2);

fn builder(url: &str) -> Builder {
    Portcullis::builder().url(url).prefix("suite")
}

fn handle(fleet: &Fleet) -> Portcullis {
    builder(&fleet.url()).build().expect("a valid address")
}

fn mutex(handle: &Portcullis) -> Mutex {
    handle.mutex("withdraw").ttl(LONG).expect("in range")
}

fn semaphore(handle: &Portcullis, limit: u32) -> Semaphore {
    let semaphore = handle.semaphore("reports", limit).expect("in range");
    semaphore.ttl(LONG).expect("in range")
}

/// How many inboxes are open at a node.
fn inboxes(node: &Server) -> usize {
    let words = ["PUBSUB", "CHANNELS", "suite:inbox:*"];
    ask::<Vec<String>>(&mut node.connection(), &words).len()
}

/// Waits until another than `old` is the master, and both inboxes are open there; tells since when.
async fn until_both_listen<'a>(fleet: &'a Fleet, old: &Server) -> (&'a Server, Instant) {
    let (new, switched) = fleet.until_switched(old).await;
    soon(switched, "both listen to the new one", async || {
        inboxes(new) == 2
    })
    .await;
    (new, switched)
}

/// Waits until a master of before is a replica: until then it would take writes.
async fn until_demoted(old: &Server) {
    eventually("the old one is a replica", async || {
        let role: Option<String> = try_ask(old, &["INFO", "replication"]);
        role.is_some_and(|role| role.contains("role:slave"))
    })
    .await;
}

/// No key of ours without an end, on any of these nodes.
fn assert_mortal(nodes: &[Server]) {
    for node in nodes {
        assert_eq!(immortal(&mut node.connection()), [""; 0]);
    }
}

/// Waits until so much time has passed since then that all had to be as it was.
async fn soon(since: Instant, what: &str, condition: impl AsyncFnMut() -> bool) {
    let left = (since + SOON).saturating_duration_since(Instant::now());
    wait_for(what, left, condition).await;
}

/// Waits for what must come at all.
async fn eventually(what: &str, condition: impl AsyncFnMut() -> bool) {
    wait_for(what, LIMIT, condition).await;
}
