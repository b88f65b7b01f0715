//! What is no quorum is refused, with what to do about it.

use std::time::Duration;

use portcullis::{BackendErrorKind, Portcullis, Quota, ServerVote};

use crate::common::{failure, promptly, take};
use crate::servers::Servers;
use crate::support::{Proxy, Server};

fn problem(servers: &[&str]) -> String {
    let built = Portcullis::quorum(servers.iter().copied());
    built.expect_err("it is no quorum").to_string()
}

#[test]
fn too_few_servers_are_refused_and_each_number_has_its_text() {
    assert!(problem(&[]).contains("names no server"));
    assert!(problem(&["redis://a/"]).contains("by `url`"));
    assert!(problem(&["redis://a/", "redis://b/"]).contains("both are needed"));
    let many: Vec<String> = (0..16).map(|host| format!("redis://h{host}/")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(problem(&many).contains("3 to 15"));
    assert!(problem(&["redis://a/", "redis://b/", "redis://a/"]).contains("one address twice"));
    assert!(problem(&["redis://a/", "redis://b/", "redis+cluster://c/"]).contains("a cluster"));
    assert!(problem(&["redis://a/", "b", "redis://c/"]).contains("not the address of a server"));
}

#[test]
fn an_even_number_is_told_to_tolerate_no_more() {
    let gates = Portcullis::quorum(["redis://a/", "redis://b/", "redis://c/", "redis://d/"]);
    assert_eq!(gates.expect("it works").mutex("a").tolerates(), 1);
}

#[test]
fn what_a_quorum_does_not_keep_is_refused_when_it_is_made() {
    let gates = Portcullis::quorum(["redis://a/", "redis://b/", "redis://c/"]).expect("a quorum");
    let error = gates
        .rate_limiter("api", Quota::per_second(1))
        .expect_err("not offered");
    // So no layer can be made of it.
    let text = error.to_string();
    for words in [
        "rate_limiter",
        "over a quorum of servers",
        "use a handle on one server",
    ] {
        assert!(text.contains(words), "{text}");
    }
    let error = gates
        .semaphore("reports", 2)
        .expect_err("it tolerates nothing");
    assert!(error.to_string().contains("at most 1"), "{error}");
    assert_eq!(
        gates
            .semaphore("reports", 1)
            .expect("as a lock")
            .tolerates(),
        1
    );
    let builder = Portcullis::builder().url("redis://a/");
    let error = builder
        .quorum(["redis://b/", "redis://c/", "redis://d/"])
        .build();
    assert_eq!(error.expect_err("two places").field(), "quorum");
    let builder = Portcullis::builder().quorum(["redis://b/", "redis://c/", "redis://d/"]);
    let error = builder.server_timeout(Duration::ZERO).build();
    assert_eq!(error.expect_err("out of range").field(), "server_timeout");
}

#[tokio::test]
async fn one_server_under_two_addresses_has_one_vote() {
    let servers = Servers::start(2);
    let other = Proxy::start(servers.servers[0].port());
    let urls = [
        servers.proxies[0].url(),
        other.url(),
        servers.proxies[1].url(),
    ];
    let gates = Portcullis::builder()
        .quorum(urls.clone())
        .quarantine(false)
        .build();
    let gates = gates.expect("a valid configuration");
    // Two of three are there.
    let guard = take(&gates.mutex("withdraw")).await;
    assert_eq!(guard.held_on(), 2);
    drop(guard);
    servers.servers[1].kill();
    let error = failure(promptly("it fails", gates.mutex("withdraw").lock()).await);
    let twin = ServerVote::Failed(BackendErrorKind::Unsupported);
    assert!(error.servers().contains(&twin), "{error}");
    assert!(error.to_string().contains("and has one vote"), "{error}");
}

#[tokio::test]
async fn a_replica_has_no_vote() {
    let servers = Servers::start(2);
    let replica = Server::start();
    let port = servers.servers[0].port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).await;
    let urls = [
        servers.proxies[0].url(),
        servers.proxies[1].url(),
        replica.url(),
    ];
    let gates = Portcullis::builder().quorum(urls).quarantine(false).build();
    let gates = gates.expect("a valid configuration");
    assert_eq!(take(&gates.mutex("withdraw")).await.held_on(), 2);
    servers.servers[1].kill();
    let error = failure(promptly("it fails", gates.mutex("withdraw").lock()).await);
    assert!(error.to_string().contains("server 3: READONLY"), "{error}");
}
