//! What people read at start-up: `texts.txt`.

use std::fmt::Write as _;
use std::time::Duration;

use super::*;
use crate::snapshot;

const TEXTS: &str = "src/check/texts.txt";

fn of_one(findings: Vec<Finding>) -> Report {
    let mut report = Report::default();
    report.add(Server::default(), findings);
    report
}

fn findings() -> Vec<Finding> {
    let right = |rule: &str, severity| Finding::MissingRight {
        rule: rule.to_owned(),
        severity,
    };
    let code = || "ERR".to_owned();
    let mut findings = vec![
        Finding::Replica,
        Finding::SilentSentinels {
            known: 3,
            silent: 1,
        },
        Finding::UntoldFailovers,
        Finding::Cluster,
        Finding::TooOld {
            version: "6.0.16".to_owned(),
        },
        Finding::ScriptFails {
            script: "mutex/acquire".to_owned(),
            code: code(),
        },
        Finding::CommandFails {
            command: "zmscore".to_owned(),
            code: code(),
        },
        Finding::Evicts {
            policy: "allkeys-lru".to_owned(),
        },
        Finding::UnconfirmedWrites { replicas: 2 },
        Finding::TooFewReplicas {
            online: 0,
            least: 1,
        },
        Finding::Slow {
            round_trip: Duration::from_micros(150_900),
            command_timeout: Duration::from_millis(500),
        },
        Finding::NoSubscriber,
        Finding::SubscriberFails {
            cause: "connection refused".to_owned(),
        },
        Finding::Unheard,
        Finding::Unknown {
            what: "snapshots",
            command: "CONFIG GET",
        },
    ];
    for code in ["OOM", "NOREPLICAS", "MISCONF"] {
        findings.push(Finding::Declines {
            code: code.to_owned(),
        });
    }
    for snapshots in [Some(true), Some(false), None] {
        findings.push(Finding::NotDurable { snapshots });
    }
    for (rule, severity) in [
        ("+zadd", Severity::Problem),
        ("+evalsha", Severity::Problem),
        ("+eval", Severity::Problem),
        ("+script|load", Severity::Problem),
        ("~shop:*", Severity::Problem),
        ("+eval", Severity::Warning),
        ("+publish", Severity::Warning),
        ("&shop:inbox:*", Severity::Warning),
        ("&payment:released", Severity::Warning),
        ("+script|exists", Severity::Note),
        ("+script|load", Severity::Note),
        ("+info", Severity::Note),
        ("+ping", Severity::Note),
        ("+unsubscribe", Severity::Note),
    ] {
        findings.push(right(rule, severity));
    }
    findings
}

/// Of three servers, of which one could not be asked.
fn of_quorum() -> Report {
    let mut report = Report::of_quorum(2);
    let at = |server, finding| {
        vec![Finding::AtServer {
            server,
            finding: Box::new(finding),
        }]
    };
    let cause = "connection refused".to_owned();
    report.add(servers().remove(0), vec![]);
    report.add(Server::default(), at(2, Finding::Unasked { cause }));
    report.add(servers().remove(0), at(3, Finding::SameServer { other: 1 }));
    let age = Duration::from_millis(2_900);
    let all = [
        at(1, Finding::TooYoung { age }),
        at(1, Finding::Ageless),
        at(1, Finding::Forgetful),
        at(2, Finding::Cluster),
        at(3, Finding::Replica),
        at(
            3,
            Finding::SlowVote {
                round_trip: Duration::from_millis(30),
                server_timeout: Duration::from_millis(50),
            },
        ),
        vec![
            Finding::EvenNumber { servers: 4 },
            Finding::NoMajority {
                usable: 1,
                needed: 2,
            },
        ],
    ];
    for findings in all {
        report.find(findings);
    }
    report
}

fn servers() -> Vec<Server> {
    let whole = Server {
        name: Some("Valkey"),
        version: Some("9.1.2".to_owned()),
        role: Some(Role::Master),
        replicas: Some(2),
        sentinels: None,
        is_cluster: Some(false),
        maxmemory: Some(100 << 20),
        maxmemory_policy: Some("noeviction".to_owned()),
        persistence: Some(Persistence::AppendOnly),
        round_trip: Some(Duration::from_micros(340)),
        clock_ahead_ms: Some(12),
    };
    let mut replica = whole.clone();
    replica.role = Some(Role::Replica);
    replica.persistence = Some(Persistence::Snapshots);
    replica.clock_ahead_ms = Some(-12);
    let mut node = whole.clone();
    node.is_cluster = Some(true);
    node.maxmemory = Some(0);
    node.clock_ahead_ms = Some(0);
    node.persistence = Some(Persistence::None);
    let mut found = whole.clone();
    found.sentinels = Some(Sentinels {
        service: "mymaster".to_owned(),
        known: 3,
        answering: 2,
        telling: 2,
    });
    vec![whole, replica, node, found, Server::default()]
}

#[test]
fn reports_read_as_was_agreed_upon() {
    let mut text = String::new();
    for server in servers() {
        let _ = writeln!(text, "{server}");
    }
    let report = of_one(findings());
    let _ = writeln!(text, "\n{report}\n\n{}", Report::default());
    let _ = writeln!(text, "\n{}", of_quorum());
    let unfit = ConnectError::Unfit(of_one(vec![Finding::Replica]));
    let _ = writeln!(text, "\n{unfit}");
    snapshot::assert(TEXTS, &text);
}

#[test]
fn the_worst_stands_first_and_only_problems_make_a_server_unfit() {
    let report = of_one(findings());
    assert!(!report.is_ok());
    assert!(report.findings().is_sorted_by_key(Finding::severity));
    assert!(Severity::Problem < Severity::Warning && Severity::Warning < Severity::Note);
    let mild = findings()
        .into_iter()
        .filter(|finding| finding.severity() != Severity::Problem);
    assert!(of_one(mild.collect()).is_ok());
    assert!(!of_quorum().is_ok());
    let at_one = Finding::AtServer {
        server: 1,
        finding: Box::new(Finding::Replica),
    };
    assert!(of_one(vec![at_one]).is_ok(), "a minority may be unfit");
}
