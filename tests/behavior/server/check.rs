//! A look at the server: what is wrong is found and named, one by one, and gates in use notice
//! nothing.

use std::future::IntoFuture;
use std::time::Duration;

use portcullis::check::{ConnectError, Finding, Persistence, Report, Role, Severity};
use portcullis::deadpool_redis::{Config, Runtime};
use portcullis::{BackendErrorKind, Builder, Portcullis};
use redis::IntoConnectionInfo;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{mutex, semaphore, through};
use crate::common::{
    LIMIT, all_done, give_back, promptly, queue, served, take, until_waiting, within,
};
use crate::leftovers::{immortal, leftovers};
use crate::rig::{Rig, ServerRig};
use crate::support::{Mode, Proxy, Server, recommended, wait_for};

pub(super) async fn look(handle: &Portcullis) -> Report {
    let report = within(LIMIT, "it is looked at", handle.check().into_future()).await;
    report.expect("the server answers")
}

fn built(builder: Builder) -> Portcullis {
    builder.build().expect("a valid configuration")
}

/// What is told of rights: the rule, and how bad it is.
pub(super) fn missing(report: &Report) -> Vec<(&str, Severity)> {
    let mut missing = Vec::new();
    for finding in report.findings() {
        if let Finding::MissingRight { rule, severity, .. } = finding {
            missing.push((rule.as_str(), *severity));
        }
    }
    missing
}

/// Without what every server of these tests is told of: it forgets all at a restart.
fn remarkable(report: &Report) -> Vec<String> {
    let usual = |finding: &&Finding| !matches!(finding, Finding::NotDurable { .. });
    let findings = report.findings().iter().filter(usual);
    findings.map(|finding| format!("{finding:?}")).collect()
}

/// For a handle of a user with these rights and no others.
pub(super) async fn of_user(rig: &ServerRig, rights: &[&str]) -> Builder {
    let url = rig.server.url_of_user(rights).await;
    rig.builder().url(url).prefix("shop")
}

#[tokio::test]
async fn a_server_that_fits_is_described_and_nothing_is_left_there() {
    let rig = ServerRig::start();
    let report = look(&rig.handle()).await;
    assert!(report.is_ok(), "{report}");
    assert_eq!(remarkable(&report), [""; 0], "{report}");
    let server = report.server().expect("there is one");
    assert!(
        matches!(server.name, Some("Redis" | "Valkey")),
        "{server:?}"
    );
    assert_eq!(server.role, Some(Role::Master));
    assert_eq!(server.persistence, Some(Persistence::None));
    assert_eq!((server.replicas, server.is_cluster), (Some(0), Some(false)));
    assert_eq!(server.maxmemory_policy.as_deref(), Some("noeviction"));
    // Of the same machine.
    assert!(server.clock_ahead_ms.expect("it told the time").abs() < 1000);
    assert!(server.round_trip.expect("it answered") < Duration::from_millis(500));
    assert!(
        report
            .to_string()
            .starts_with(server.name.expect("it has one"))
    );
    assert_eq!(leftovers(&mut rig.server.connection()), [""; 0]);
    // The clocks of three tags, for a minute.
    assert!(rig.server.keys_with("").await.len() <= 3);
}

/// Fault 23: with all that SECURITY.md recommends nothing is missing; without any one of it, that
/// one is named, and how much depends on it.
#[tokio::test]
async fn each_missing_right_is_named() {
    let rig = ServerRig::start();
    let all = recommended();
    assert!(all.len() > 25 && all.contains(&"~shop:*"), "{all:?}");
    let report = look(&built(of_user(&rig, &all).await)).await;
    assert_eq!(missing(&report), [], "{report}");
    assert!(report.is_ok());
    // `CONFIG` is not recommended, so a note tells what can't be known.
    let unknown = |finding: &&Finding| matches!(finding, Finding::Unknown { .. });
    assert_eq!(
        report.findings().iter().filter(unknown).count(),
        1,
        "{report}"
    );

    for &right in &all {
        let rest: Vec<&str> = all
            .iter()
            .copied()
            .filter(|&other| other != right)
            .collect();
        let report = look(&built(of_user(&rig, &rest).await)).await;
        let severity = match right {
            "+info" | "+ping" | "+script|exists" | "+script|load" => Severity::Note,
            "+eval" | "+publish" | "+subscribe" | "&shop:inbox:*" => Severity::Warning,
            _ => Severity::Problem,
        };
        assert_eq!(
            missing(&report),
            [(right, severity)],
            "without {right}: {report}"
        );
        assert_eq!(report.is_ok(), severity != Severity::Problem);
        let worse = report.findings().iter().filter(|finding| {
            !matches!(finding, Finding::MissingRight { .. }) && finding.severity() != Severity::Note
        });
        // What follows from it is no finding of its own.
        assert!(
            worse
                .clone()
                .all(|finding| matches!(finding, Finding::NotDurable { .. })),
            "without {right}: {report}"
        );
        assert!(
            report.to_string().contains(&format!("`{right}`")),
            "{report}"
        );
        assert_eq!(
            immortal(&mut rig.server.connection()),
            [""; 0],
            "without {right}"
        );
    }
}

#[tokio::test]
async fn several_missing_rights_are_all_named() {
    let rig = ServerRig::start();
    let none = [
        "+set",
        "+pexpire",
        "+del",
        "+eval",
        "+script|load",
        "+zrank",
    ];
    let rest = recommended().into_iter();
    let rest: Vec<&str> = rest.filter(|right| !none.contains(right)).collect();
    let report = look(&built(of_user(&rig, &rest).await)).await;
    let found: Vec<&str> = missing(&report).into_iter().map(|(rule, _)| rule).collect();
    for right in none {
        assert!(found.contains(&right), "{right}: {report}");
    }
    // Neither way brings a script to the server.
    assert_eq!(report.problems().count(), none.len(), "{report}");
    // What makes keys was not tried, since nothing would have ended them.
    assert_eq!(rig.server.keys_with("").await, [""; 0]);
}

#[tokio::test]
async fn the_rights_to_a_key_of_others_are_looked_for_where_it_is_named() {
    let rig = ServerRig::start();
    rig.server.command(&["SET", "payment", "theirs"]).await;
    let all = recommended();
    let exact = ["~payment", "&payment:released", "+unsubscribe"];
    for left_out in [None, Some(0), Some(1), Some(2)] {
        let rights = exact.iter().enumerate();
        let rights = rights.filter(|(index, _)| Some(*index) != left_out);
        let rights: Vec<&str> = rights.map(|(_, right)| *right).collect();
        let handle = built(of_user(&rig, &[&all[..], &rights].concat()).await);
        let report = handle.check().at("payment").await.expect("it answers");
        let severity = [Severity::Problem, Severity::Warning, Severity::Note];
        let expected = left_out.map(|index| (exact[index], severity[index]));
        assert_eq!(missing(&report), Vec::from_iter(expected), "{report}");
    }
    let value = rig.server.command(&["GET", "payment"]).await;
    assert_eq!(
        redis::from_redis_value::<String>(value).expect("text"),
        "theirs"
    );
}

#[tokio::test]
async fn a_replica_is_a_problem() {
    let rig = ServerRig::start();
    rig.server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    for stale in ["yes", "no"] {
        let setting = ["CONFIG", "SET", "replica-serve-stale-data", stale];
        rig.server.command(&setting).await;
        let report = look(&rig.handle()).await;
        let problems: Vec<_> = report.problems().collect();
        assert_eq!(problems, [&Finding::Replica], "{report}");
        assert_eq!(report.server().expect("one").role, Some(Role::Replica));
    }
    // Also where it does not tell.
    let all = recommended();
    let silent: Vec<&str> = all.into_iter().filter(|&right| right != "+info").collect();
    let report = look(&built(of_user(&rig, &silent).await)).await;
    assert!(
        report
            .problems()
            .any(|finding| *finding == Finding::Replica),
        "{report}"
    );
}

#[tokio::test]
async fn a_node_of_a_cluster_is_a_problem() {
    let rig = ServerRig::start_with(&["--cluster-enabled", "yes"]);
    let report = look(&rig.handle()).await;
    let problems: Vec<_> = report.problems().collect();
    assert_eq!(problems, [&Finding::Cluster], "{report}");
}

#[tokio::test]
async fn settings_that_are_a_risk_are_warned_of() {
    let evicting = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let rig = ServerRig::start_with(&evicting);
    let report = look(&rig.handle()).await;
    assert!(report.is_ok());
    assert_eq!(report.server().expect("one").maxmemory, Some(100 << 20));
    let warned = |report: &Report, words: &str| report.to_string().contains(words);
    assert!(
        warned(&report, "warning: the server may evict keys"),
        "{report}"
    );
    assert!(warned(&report, "forgets all that was held"), "{report}");

    // A policy that has no limit to act at, and snapshots.
    let harmless = ["--maxmemory-policy", "allkeys-lru", "--save", "3600", "1"];
    let report = look(&ServerRig::start_with(&harmless).handle()).await;
    assert!(!warned(&report, "evict"), "{report}");
    assert!(warned(&report, "since its last snapshot"), "{report}");

    let durable = ServerRig::start_with(&["--appendonly", "yes"]);
    let report = look(&durable.handle()).await;
    assert_eq!(report.findings(), [], "{report}");
    assert_eq!(
        report.server().expect("one").persistence,
        Some(Persistence::AppendOnly)
    );
}

#[tokio::test]
async fn a_server_that_declines_to_write_is_a_problem_whatever_the_cause() {
    let rig = ServerRig::start();
    for (setting, value, code) in [
        ("maxmemory", "1", "OOM"),
        ("min-replicas-to-write", "1", "NOREPLICAS"),
    ] {
        rig.server.command(&["CONFIG", "SET", setting, value]).await;
        let report = look(&rig.handle()).await;
        let problems: Vec<String> = report.problems().map(Finding::to_string).collect();
        assert_eq!(problems.len(), 1, "{report}");
        assert!(problems[0].contains(code), "{report}");
        rig.server.command(&["CONFIG", "SET", setting, "0"]).await;
    }
}

/// A server that is too old, or whose commands are renamed, and one behind something that keeps
/// commands from us.
#[tokio::test]
async fn what_the_server_does_not_know_is_a_problem_and_leaves_nothing() {
    let rig = ServerRig::start_with(&["--rename-command", "HSET", ""]);
    let report = look(&rig.handle()).await;
    let problems: Vec<String> = report.problems().map(Finding::to_string).collect();
    assert!(problems[0].contains("the command hset fails"), "{report}");
    assert!(problems.len() > 1, "{report}");
    for problem in &problems[1..] {
        assert!(problem.contains("/acquire fails"), "{report}");
    }
    assert_eq!(leftovers(&mut rig.server.connection()), [""; 0]);
}

#[tokio::test]
async fn a_server_that_is_far_away_is_warned_of() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    proxy.set(Mode::Delay(Duration::from_millis(160)));
    let patient = through(&proxy).connect_timeout(Duration::from_secs(5));
    let handle = built(patient.command_timeout(Duration::from_millis(1200)));
    let report = within(LIMIT, "it is looked at", handle.check().into_future()).await;
    let report = report.expect("it answers");
    let text = report.to_string();
    assert!(
        report.is_ok() && text.contains("of a command_timeout of 1200 ms"),
        "{text}"
    );
    let round_trip = report.server().expect("one").round_trip;
    assert!(
        round_trip.expect("it answered") >= Duration::from_millis(320),
        "{text}"
    );
    proxy.set(Mode::HoldReplies);
    let error = handle.check().await.expect_err("nothing comes back");
    assert!(error.is_outage(), "{error}");
}

#[tokio::test]
async fn replicas_that_nothing_is_waited_for_are_warned_of() {
    let rig = ServerRig::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = Server::start();
    let port = rig.server.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]).await;
    wait_for("it is connected", LIMIT, async || {
        let info = rig.server.command(&["INFO", "replication"]).await;
        let info: String = redis::from_redis_value(info).expect("a text");
        info.contains("state=online")
    })
    .await;
    let report = look(&rig.handle()).await;
    assert!(
        report.to_string().contains("min-replicas-to-write 1"),
        "{report}"
    );
    assert_eq!(report.server().expect("one").replicas, Some(1));
    let setting = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    rig.server.command(&setting).await;
    let report = look(&rig.handle()).await;
    assert_eq!(remarkable(&report), [""; 0], "{report}");
}

#[tokio::test]
async fn a_pool_that_nobody_listens_beside_is_warned_of_and_one_with_another_server_too() {
    let rig = ServerRig::start();
    let config = Config::from_url(rig.server.url());
    let pool = config.create_pool(Some(Runtime::Tokio1)).expect("valid");
    let other = Server::start();
    let info = |server: &Server| server.url().into_connection_info().expect("valid");
    let report = look(&built(rig.builder().pool(pool.clone()))).await;
    assert_eq!(remarkable(&report), ["NoSubscriber"], "{report}");
    let elsewhere = rig.builder().pool(pool.clone()).subscriber(info(&other));
    let report = look(&built(elsewhere)).await;
    assert_eq!(remarkable(&report), ["Unheard"], "{report}");
    other.kill();
    let gone = rig.builder().pool(pool.clone()).subscriber(info(&other));
    let report = look(&built(gone)).await;
    assert!(
        report.to_string().contains("(connection refused)"),
        "{report}"
    );
    let right = rig
        .builder()
        .pool(pool.clone())
        .subscriber(info(&rig.server));
    let report = look(&built(right)).await;
    assert_eq!(remarkable(&report), [""; 0], "{report}");
    // What was taken from it is not missed there.
    assert_eq!(pool.status().size, 0);
    drop(pool.get().await.expect("it has room"));
}

#[tokio::test]
async fn what_can_not_be_asked_is_an_error_in_time() {
    let rig = ServerRig::start();
    let failed = async |builder: Builder| {
        let handle = built(builder);
        let report = promptly("it fails", handle.check().into_future()).await;
        let error = report.expect_err("it can't be asked");
        let text = error.to_string();
        assert!(text.starts_with("checking the server ("), "{text}");
        assert!(
            !text.contains("127.0.0.1") && !text.contains("4711"),
            "{text}"
        );
        (error.kind(), error.code().map(str::to_owned))
    };
    // Faults 45, 137: nobody, the wrong password, no password.
    let nobody = rig.builder().url("redis://127.0.0.1:1/");
    assert_eq!(failed(nobody).await, (BackendErrorKind::Unreachable, None));
    let port = rig.server.port();
    let wrong = rig
        .builder()
        .url(format!("redis://u:wrong-4711@127.0.0.1:{port}/"));
    assert_eq!(failed(wrong).await.0, BackendErrorKind::Unauthenticated);
    rig.server
        .command(&["CONFIG", "SET", "requirepass", "right"])
        .await;
    let (kind, code) = failed(rig.builder()).await;
    assert_eq!(kind, BackendErrorKind::Unauthenticated);
    assert_eq!(code.as_deref(), Some("NOAUTH"));
    let right = rig
        .builder()
        .url(format!("redis://:right@127.0.0.1:{port}/"));
    assert!(look(&built(right)).await.is_ok());
    // It accepts connections, and answers nothing.
    rig.server.freeze();
    assert_eq!(failed(rig.builder()).await.0, BackendErrorKind::Unreachable);
    rig.server.thaw();
}

#[tokio::test]
async fn a_handle_is_connected_to_a_server_that_fits_and_to_no_other() {
    let rig = ServerRig::start();
    let connected = Portcullis::connect(rig.server.url())
        .await
        .expect("it fits");
    give_back(take(&mutex(&connected)).await).await;
    let error = Portcullis::connect("nowhere")
        .await
        .expect_err("no address");
    assert!(matches!(error, ConnectError::Config(_)), "{error}");
    let error = Portcullis::connect("redis://127.0.0.1:1/").await;
    let error = error.expect_err("nobody is there");
    assert!(matches!(error, ConnectError::Backend(_)), "{error}");
    rig.server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = rig.builder().connect().await.expect_err("a replica");
    let ConnectError::Unfit(report) = &error else {
        panic!("{error}");
    };
    assert_eq!(report.problems().count(), 1);
    assert!(
        error
            .to_string()
            .contains("problem: the server is a replica"),
        "{error}"
    );
}

#[tokio::test]
async fn gates_in_use_notice_nothing() {
    let rig = ServerRig::start();
    let (a, b) = (rig.handle(), rig.handle());
    let guard = take(&mutex(&a)).await;
    let permits = [take(&semaphore(&a, 2)).await, take(&semaphore(&b, 2)).await];
    let next = queue(&mutex(&b));
    until_waiting(&mutex(&a), 1).await;
    let fence = guard.fencing_token();
    for handle in [&a, &b, &a, &b] {
        let (one, other) = tokio::join!(look(handle), look(handle));
        assert!(one.is_ok() && other.is_ok());
    }
    assert!(guard.is_held() && permits.iter().all(|permit| permit.is_held()));
    until_waiting(&mutex(&a), 1).await;
    give_back(guard).await;
    let guard = served(next).await;
    assert!(guard.fencing_token() > fence);
    give_back(guard).await;
    for permit in permits {
        give_back(permit).await;
    }
    rig.settled().await;
}

#[tokio::test]
async fn a_look_that_nobody_waits_for_any_more_harms_nothing() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    // Slow enough to be left at every one of its steps.
    proxy.set(Mode::Delay(Duration::from_millis(10)));
    let mut looks = JoinSet::new();
    for ms in (0..800).step_by(10) {
        let handle = built(through(&proxy).command_timeout(Duration::from_secs(5)));
        looks.spawn(async move {
            // Its handle goes with it, and the thread's runtime with that.
            let look = handle.check().into_future();
            drop(handle);
            let _ = timeout(Duration::from_millis(ms), look).await;
        });
    }
    all_done(looks).await;
    rig.settled().await;
    assert!(look(&rig.handle()).await.is_ok());
}

#[tokio::test]
async fn in_memory_there_is_nothing_to_find() {
    let report = look(&Portcullis::in_memory()).await;
    assert!(report.is_ok() && report.findings().is_empty());
    assert!(report.server().is_none());
    assert_eq!(report.to_string(), "gates in this process' memory");
}

/// As by a probe of readiness that many share, also while nobody answers.
#[tokio::test]
async fn many_looks_leave_no_connection() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    // A busy machine is no reason to fail a look.
    let patience = Duration::from_secs(5);
    let patient = through(&proxy)
        .command_timeout(patience)
        .connect_timeout(patience);
    let handle = built(patient);
    for _ in 0..100 {
        assert!(look(&handle).await.is_ok());
    }
    for frozen in [false, true] {
        if frozen {
            rig.server.freeze();
        }
        let mut looks = JoinSet::new();
        for _ in 0..200 {
            let looked = handle.check().into_future();
            looks.spawn(async move { within(LIMIT, "it ends", looked).await.is_ok() });
        }
        let mut most = 0;
        while let Some(is_ok) = looks.join_next().await {
            most = most.max(proxy.connections());
            assert_eq!(is_ok.expect("no panic"), !frozen);
        }
        // One look has two, and the next begins before those of the last are seen to be closed.
        assert!(most <= 4, "{most}");
    }
    rig.server.thaw();
    assert!(look(&handle).await.is_ok());
    wait_for("they are closed", LIMIT, async || proxy.connections() == 0).await;
}
