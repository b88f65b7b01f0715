//! Servers that were restarted, and what they may have lost.

use std::time::Duration;

use portcullis::{LeaseMode, Portcullis};

use crate::common::{LIMIT, LONG, failure, promptly, take};
use crate::servers::{Failing, Servers};
use crate::support::{Proxy, Server, wait_for};

fn strict(servers: &Servers) -> Portcullis {
    let builder = Portcullis::builder().quorum(servers.proxies.iter().map(Proxy::url));
    builder.build().expect("a valid configuration")
}

#[tokio::test]
async fn a_server_that_has_just_started_has_no_vote_until_leases_it_may_have_lost_have_ended() {
    let servers = Servers::start(3);
    let gates = strict(&servers);
    let error = failure(
        promptly(
            "it fails",
            gates.mutex("a").ttl(LONG).expect("in range").lock(),
        )
        .await,
    );
    assert!(
        error.to_string().contains("started less than a TTL ago"),
        "{error}"
    );
    // A waiter with time is served when it has passed.
    let short = gates
        .mutex("a")
        .ttl(Duration::from_secs(2))
        .expect("in range");
    let patient = short.max_wait(LIMIT);
    let guard = patient.lock().await.expect("it is served");
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_restart_within_a_lease_lets_nobody_else_in() {
    let servers = Servers::start(3);
    let ttl = Duration::from_secs(4);
    // The one goes through a network that fails, the other straight to the servers.
    servers.fail(2, Failing::BlackHoled);
    let a = strict(&servers).mutex("a").ttl(ttl).expect("in range");
    let a = a.lease(LeaseMode::Fixed).expect("a mode");
    let b = Portcullis::quorum(servers.servers.iter().map(Server::url)).expect("a quorum");
    let b = b.mutex("a").ttl(ttl).expect("in range");
    let guard = a.max_wait(LIMIT).lock().await.expect("it is free");
    assert_eq!(guard.held_on(), 2);
    // It can't take it again where it is lost.
    servers.fail(1, Failing::BlackHoled);
    servers.servers[1].restart();
    while guard.is_held() {
        if b.try_lock().await.is_ok() {
            assert!(!guard.is_held(), "two hold");
        }
    }
    wait_for("all vote again", LIMIT, async || b.try_lock().await.is_ok()).await;
}

#[tokio::test]
async fn a_server_that_loses_nothing_votes_at_once() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let servers: Vec<Server> = (0..3).map(|_| Server::start_with(&options)).collect();
    let gates = Portcullis::quorum(servers.iter().map(Server::url)).expect("a quorum");
    drop(take(&gates.mutex("a").ttl(LONG).expect("in range")).await);
}
