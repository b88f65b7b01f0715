//! A majority that fails: nobody is let in, and nothing is left behind.

use std::time::Duration;

use portcullis::{BackendErrorKind, LostReason, RefusalKind, ServerVote};

use crate::common::{LIMIT, LONG, failure, give_back, promptly, refusal, take, within};
use crate::leftovers::ask;
use crate::servers::{Failing, Servers};
use crate::support::{Mode, Server, wait_for};

#[tokio::test]
async fn with_three_of_five_gone_a_call_fails_in_time_and_leaves_nothing() {
    for way in Failing::ALL {
        let servers = Servers::start(5);
        let gates = servers.handle();
        let mutex = gates.mutex("withdraw").ttl(LONG).expect("in range");
        give_back(take(&mutex).await).await;
        for server in 0..3 {
            servers.fail(server, way);
        }
        for _ in 0..3 {
            let error = failure(promptly("a try fails", mutex.try_lock()).await);
            assert!(error.is_outage(), "{error}");
            let failed = |vote: &&ServerVote| matches!(vote, ServerVote::Failed(_));
            assert_eq!(error.servers().iter().filter(failed).count(), 3, "{error}");
            assert!(
                error
                    .to_string()
                    .contains("2 of 5 servers gave their vote, and 3 are needed"),
                "{error}"
            );
        }
        let error = failure(promptly("a wait fails", mutex.lock()).await);
        assert!(error.is_outage(), "{way:?}: {error}");
        for server in 3..5 {
            servers.settled_at(server).await;
        }
        for server in 0..3 {
            servers.mend(server, way);
        }
        servers.until_held_on(&mutex, 5).await;
        servers.settled().await;
    }
}

#[tokio::test]
async fn a_majority_is_one_of_all_that_were_named_and_not_of_those_that_answer() {
    let servers = Servers::start(5);
    // The one sees the first three, the other the last two.
    for server in [3, 4] {
        servers.fail(server, Failing::BlackHoled);
    }
    let a = servers
        .handle()
        .mutex("withdraw")
        .ttl(LONG)
        .expect("in range");
    let guard = take(&a).await;
    for server in [3, 4] {
        servers.mend(server, Failing::BlackHoled);
    }
    let far: Vec<String> = (0..5)
        .map(|server| match server {
            // Nobody listens there.
            0..3 => format!("redis://127.0.0.1:{}/", server + 1),
            _ => servers.proxies[server].url(),
        })
        .collect();
    let b = portcullis::Portcullis::builder()
        .quorum(far)
        .quarantine(false);
    let b = b.build().expect("a valid configuration").mutex("withdraw");
    let error = failure(promptly("it fails", b.lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Unreachable, "{error}");
    assert!(guard.is_held());
    give_back(guard).await;
}

#[tokio::test]
async fn a_loss_of_data_everywhere_is_a_prompt_loss_of_the_lease() {
    let servers = Servers::start(5);
    let gates = servers.handle();
    let ttl = Duration::from_secs(6);
    let connections = servers.servers.iter().map(Server::connection);
    let mut connections: Vec<_> = connections.collect();
    let guard = take(&gates.mutex("withdraw").ttl(ttl).expect("in range")).await;
    // Long before the next renewal, which would take it again where it is missing.
    for connection in &mut connections {
        ask::<()>(connection, &["FLUSHALL"]);
    }
    // At the next renewal, and not only at the end of its time.
    let reason = within(ttl * 5 / 6, "it is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::Gone);
    assert_eq!(guard.held_on(), 0);
}

#[tokio::test]
async fn a_lease_whose_majority_is_silent_is_lost_by_its_own_deadline() {
    let servers = Servers::start(3);
    let gates = servers.handle();
    let mutex = gates
        .mutex("withdraw")
        .ttl(Duration::from_secs(2))
        .expect("in range");
    let guard = take(&mutex).await;
    for server in [0, 1] {
        servers.fail(server, Failing::BlackHoled);
    }
    let reason = within(LIMIT, "it is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    let keys = servers.servers[0].command(&["EXISTS", "x"]).await;
    drop(keys);
}

#[tokio::test]
async fn causes_are_told_server_by_server() {
    let servers = Servers::start(5);
    let gates = servers.handle();
    let mutex = gates.mutex_at("payment").ttl(LONG).expect("in range");
    for server in 0..2 {
        servers.servers[server]
            .command(&["HSET", "payment", "a", "b"])
            .await;
    }
    servers.servers[2]
        .command(&["SET", "payment", "stranger"])
        .await;
    servers.fail(3, Failing::Killed);
    let error = failure(promptly("it fails", mutex.try_lock()).await);
    let votes = error.servers();
    let foreign = ServerVote::Failed(BackendErrorKind::ForeignData);
    assert_eq!(votes[..2], [foreign, foreign], "{error}");
    assert_eq!(votes[2], ServerVote::Busy, "{error}");
    assert_eq!(
        votes[3],
        ServerVote::Failed(BackendErrorKind::Unreachable),
        "{error}"
    );
    assert_eq!(error.kind(), BackendErrorKind::ForeignData);
    assert_eq!(error.code(), Some("WRONGTYPE"));
    let text = error.to_string();
    for words in [
        "server 1: WRONGTYPE",
        "server 3: held by others",
        "server 4: ",
    ] {
        assert!(text.contains(words), "{text}");
    }
    // A refusal is none of these: a majority holds.
    for server in 0..2 {
        servers.servers[server].command(&["DEL", "payment"]).await;
        servers.servers[server]
            .command(&["SET", "payment", "stranger"])
            .await;
    }
    let refused = refusal(promptly("it is refused", mutex.try_lock()).await);
    assert_eq!(refused.kind(), RefusalKind::Busy);
}

#[tokio::test]
async fn a_waiter_goes_on_waiting_while_a_majority_is_away_and_is_served_after() {
    let servers = Servers::start(3);
    let (a, b) = (servers.handle(), servers.handle());
    let guard = take(&a.mutex("withdraw").ttl(LONG).expect("in range")).await;
    let waiting = crate::common::queue(&b.mutex("withdraw").ttl(LONG).expect("in range"));
    crate::common::until_waiting(&a.mutex("withdraw"), 1).await;
    for server in [0, 1] {
        servers.proxies[server].set(Mode::Cut);
    }
    drop(guard);
    wait_for("a majority is away", LIMIT, async || {
        a.mutex("other").try_lock().await.is_err()
    })
    .await;
    for server in [0, 1] {
        servers.proxies[server].set(Mode::Pass);
    }
    let guard = within(LIMIT, "it is served", waiting).await;
    give_back(guard.expect("no panic").expect("its turn comes")).await;
    wait_for("all are used", LIMIT, async || {
        take(&a.mutex("withdraw")).await.held_on() >= 2
    })
    .await;
}
