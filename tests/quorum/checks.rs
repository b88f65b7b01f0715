//! A look at all servers of a quorum: a majority has to fit, and who does not is named.

use std::future::IntoFuture;
use std::time::Duration;

use portcullis::check::{ConnectError, Finding, Persistence, Report, Role, Severity};
use portcullis::{BackendErrorKind, Builder, Portcullis, ServerVote};

use crate::common::{LIMIT, LONG, give_back, promptly, take, within};
use crate::servers::{Failing, Servers};
use crate::support::{Proxy, Server, recommended};

/// Loses nothing in a restart.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn of(servers: &[Server]) -> Builder {
    Portcullis::builder().quorum(servers.iter().map(Server::url))
}

fn durable(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start_with(&DURABLE)).collect()
}

async fn look(builder: Builder) -> Report {
    let handle = builder.build().expect("a valid configuration");
    let report = within(LIMIT, "all are looked at", handle.check().into_future()).await;
    report.expect("most can be asked")
}

/// What was found at one server, but for what a busy machine makes of each.
fn at(report: &Report, number: usize) -> Vec<&Finding> {
    let findings = report.findings().iter();
    let there = findings.filter_map(|finding| match finding {
        Finding::AtServer {
            server, finding, ..
        } if *server == number => Some(&**finding),
        _ => None,
    });
    there
        .filter(|finding| !matches!(finding, Finding::SlowVote { .. }))
        .collect()
}

#[tokio::test]
async fn servers_that_fit_are_described_one_by_one_and_nothing_is_left_there() {
    let servers = durable(3);
    let report = look(of(&servers).prefix("look")).await;
    assert!(report.is_ok());
    for number in 1..=3 {
        assert_eq!(at(&report, number), [&Finding::Replica; 0], "{report}");
    }
    for server in report.servers() {
        assert_eq!(server.role, Some(Role::Master));
        assert_eq!(server.persistence, Some(Persistence::AppendOnly));
        assert!(server.round_trip.is_some());
    }
    let text = report.to_string();
    assert!(
        text.starts_with("a quorum: 2 of 3 servers are needed\nserver 1: "),
        "{text}"
    );
    for server in &servers {
        // What all gates of a tag share ends by itself.
        let left = server.keys_with("look").await;
        let shared = |key: &String| key.ends_with(":clock") || key.ends_with(":roster");
        assert!(left.iter().all(shared), "{left:?}");
    }
}

#[tokio::test]
async fn a_minority_that_does_not_fit_is_warned_of_and_named_and_a_majority_is_a_problem() {
    let servers = durable(3);
    let port = servers[0].port().to_string();
    servers[2].command(&["REPLICAOF", "127.0.0.1", &port]).await;
    let report = look(of(&servers)).await;
    assert!(report.is_ok(), "{report}");
    assert!(at(&report, 3).contains(&&Finding::Replica), "{report}");
    assert!(at(&report, 1).is_empty(), "{report}");
    let said = report.to_string();
    assert!(
        said.contains("\nwarning: server 3 has no vote: the server is a replica"),
        "{said}"
    );
    let gates = of(&servers).connect().await.expect("a majority fits");
    give_back(take(&gates.mutex("a")).await).await;

    servers[1].command(&["REPLICAOF", "127.0.0.1", &port]).await;
    match of(&servers).connect().await {
        Err(ConnectError::Unfit(report)) => {
            let worst = &report.findings()[0];
            assert!(
                matches!(
                    worst,
                    Finding::NoMajority {
                        usable: 1,
                        needed: 2,
                        ..
                    }
                ),
                "{report}"
            );
            assert_eq!(report.problems().count(), 1);
        }
        other => panic!("it does not fit: {other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_can_not_be_asked_is_warned_of_and_a_majority_is_an_error() {
    let servers = durable(3);
    servers[1].kill();
    let report = look(of(&servers)).await;
    assert!(report.is_ok(), "{report}");
    assert!(
        matches!(at(&report, 2)[..], [Finding::Unasked { .. }]),
        "{report}"
    );
    assert_eq!(report.servers()[1].role, None);
    servers[0].kill();
    let error = match of(&servers).connect().await {
        Err(ConnectError::Backend(error)) => error,
        other => panic!("it can't be told: {other:?}"),
    };
    let away = ServerVote::Failed(BackendErrorKind::Unreachable);
    assert_eq!(error.servers(), [away, away, ServerVote::Given], "{error}");
    assert!(error.is_outage(), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("checking the quorum") && text.contains("server 3: it fits"),
        "{text}"
    );
}

#[tokio::test]
async fn servers_that_do_not_answer_cost_a_look_no_more_than_one_that_does_not() {
    let servers = Servers::start(3);
    servers.fail(0, Failing::Frozen);
    servers.fail(1, Failing::BlackHoled);
    let gates = servers.handle();
    let error = promptly("it ends in time", gates.check().into_future()).await;
    assert!(error.expect_err("it can't be told").is_outage());
    servers.mend(0, Failing::Frozen);
}

#[tokio::test]
async fn one_server_under_two_addresses_and_an_even_number_are_told() {
    let servers = durable(3);
    let again = Proxy::start(servers[0].port());
    let urls = servers.iter().map(Server::url).chain([again.url()]);
    let report = look(Portcullis::builder().quorum(urls)).await;
    assert_eq!(at(&report, 4).len(), 1, "{report}");
    assert!(matches!(
        at(&report, 4)[0],
        Finding::SameServer { other: 1, .. }
    ));
    assert!(at(&report, 1).is_empty(), "{report}");
    let even = |finding: &Finding| matches!(finding, Finding::EvenNumber { servers: 4, .. });
    assert!(report.findings().iter().any(even), "{report}");
}

#[tokio::test]
async fn servers_that_may_have_forgotten_leases_are_told_and_so_is_that_nothing_guards_them() {
    let servers = [
        Server::start(),
        Server::start(),
        Server::start_with(&DURABLE),
    ];
    let report = look(of(&servers)).await;
    for number in 1..=2 {
        assert!(
            matches!(at(&report, number)[..], [Finding::TooYoung { .. }]),
            "{report}"
        );
    }
    assert!(at(&report, 3).is_empty(), "{report}");
    let report = look(of(&servers).quarantine(false)).await;
    assert_eq!(at(&report, 1), [&Finding::Forgetful], "{report}");
    assert!(at(&report, 3).is_empty(), "{report}");
}

#[tokio::test]
async fn a_right_that_is_missing_is_named_where_it_is_missing_and_the_recommended_ones_suffice() {
    let servers = durable(3);
    let rights = recommended().join(" ").replace("shop:", "shop:quorum:");
    let all: Vec<&str> = rights.split(' ').chain(["+config|get"]).collect();
    let mut urls = Vec::new();
    for server in &servers {
        urls.push(server.url_of_user(&all).await);
    }
    let builder = || Portcullis::builder().quorum(urls.clone()).prefix("shop");
    let report = look(builder()).await;
    for number in 1..=3 {
        assert!(at(&report, number).is_empty(), "{report}");
    }
    // Of those that only rate limits need, none is missed.
    let less = ["ACL", "SETUSER", "shop", "-hset", "-hget"];
    servers[0].command(&less).await;
    servers[1]
        .command(&["ACL", "SETUSER", "shop", "-zadd"])
        .await;
    servers[2]
        .command(&["ACL", "SETUSER", "shop", "-info"])
        .await;
    let report = look(builder()).await;
    assert!(at(&report, 1).is_empty(), "{report}");
    let lacks = |finding: &&Finding, right: &str, bad: Severity| matches!(finding, Finding::MissingRight { rule, severity, .. } if rule == right && *severity == bad);
    assert!(
        at(&report, 2)
            .iter()
            .any(|finding| lacks(finding, "+zadd", Severity::Problem)),
        "{report}"
    );
    let third = at(&report, 3);
    assert!(
        third
            .iter()
            .any(|finding| lacks(finding, "+info", Severity::Note)),
        "{report}"
    );
    assert!(report.is_ok(), "{report}");
}

#[tokio::test]
async fn a_look_disturbs_no_gate_in_use() {
    let servers = Servers::start(3);
    let gates = servers.handle();
    let guard = take(&gates.mutex_at("payment").ttl(LONG).expect("in range")).await;
    for _ in 0..3 {
        let look = gates.check().at("payment").into_future();
        let report = within(LIMIT, "all are looked at", look)
            .await
            .expect("all answer");
        assert!(report.is_ok(), "{report}");
    }
    assert!(guard.is_held());
    give_back(guard).await;
    tokio::time::timeout(Duration::from_millis(1), gates.check().into_future())
        .await
        .ok();
    servers.settled().await;
}
