//! The texts of refusals, losses and wrong settings: `texts.txt`.

use std::fmt::Write as _;

use http::HeaderValue;

use super::*;
use crate::layer::{KeyError, RejectionKind, client_ip, header};
use crate::{LeaseMode, LostReason, Portcullis, snapshot};

const TEXTS: &str = "src/error/texts.txt";

fn refusals() -> Vec<Refusal> {
    let busy = Refusal::new(RefusalKind::Busy);
    let soon = Some(Duration::from_millis(700));
    vec![
        busy.clone(),
        busy.with_retry_after(soon).with_position(Some(3)),
        Refusal::new(RefusalKind::QueueFull),
        Refusal::new(RefusalKind::WaitedTooLong).with_position(Some(0)),
        Refusal::new(RefusalKind::NeverFits),
        Refusal::never_fits(11, 10),
        Refusal::costs_too_much(6, 5),
        Refusal::new(RefusalKind::OverQuota).with_retry_after(soon),
        Refusal::new(RefusalKind::ShuttingDown),
    ]
}

fn wrong_settings() -> Vec<ConfigError> {
    let builder = Portcullis::builder;
    let built = [
        builder().url("redis://"),
        builder().url("http://127.0.0.1/"),
        builder().prefix(""),
        builder().prefix("a b"),
        builder().connections(0),
        builder().connections(5),
        builder().command_timeout(Duration::from_millis(9)),
        builder().connect_timeout(Duration::from_secs(61)),
    ];
    let mut errors: Vec<_> = built
        .into_iter()
        .map(|builder| builder.build().expect_err("wrong"))
        .collect();
    let gates = Portcullis::in_memory();
    let mutex = gates.mutex("withdraw");
    errors.push(gates.semaphore("reports", 0).expect_err("wrong"));
    errors.push(mutex.clone().ttl(Duration::ZERO).expect_err("wrong"));
    let mode = LeaseMode::MaxHold(Duration::ZERO);
    errors.push(mutex.lease(mode).expect_err("wrong"));
    errors.push(header("x-tenant").max_bytes(0).expect_err("wrong"));
    errors.push(client_ip().ipv4_prefix(0).expect_err("wrong"));
    errors.push(client_ip().ipv6_prefix(129).expect_err("wrong"));
    errors.push(
        client_ip()
            .try_trust(["10.0.0.0/8", "x"])
            .expect_err("wrong"),
    );
    errors
}

fn wrong_keys() -> Vec<KeyError> {
    vec![
        KeyError::missing("tenant in its host"),
        KeyError::unauthenticated("account", HeaderValue::from_static("Bearer")),
        KeyError::unusable("header `x-tenant`", "it is too long"),
        KeyError::misconfigured("put the layer on a route"),
    ]
}

const REJECTIONS: [RejectionKind; 10] = [
    RejectionKind::AtCapacity,
    RejectionKind::Locked,
    RejectionKind::QueueFull,
    RejectionKind::WaitedTooLong,
    RejectionKind::LeaseLost,
    RejectionKind::ShuttingDown,
    RejectionKind::Unavailable,
    RejectionKind::NeverFits,
    RejectionKind::NoKey,
    RejectionKind::Misconfigured,
];

#[test]
fn texts_are_those_that_were_agreed_upon() {
    let mut text = String::new();
    let mut section = |title: &str, lines: Vec<String>| {
        let _ = writeln!(text, "# {title}\n{}\n", lines.join("\n"));
    };
    let told = |errors: &[&dyn Error]| errors.iter().map(|error| error.to_string()).collect();
    section(
        "refusals",
        refusals().iter().map(Refusal::to_string).collect(),
    );
    section(
        "wrong settings",
        wrong_settings()
            .iter()
            .map(ConfigError::to_string)
            .collect(),
    );
    section(
        "wrong keys",
        wrong_keys().iter().map(KeyError::to_string).collect(),
    );
    let lost = [
        &LostReason::Expired,
        &LostReason::Gone,
        &LostReason::ShutDown,
    ];
    section(
        "lost leases",
        told(&lost.map(|reason| reason as &dyn Error)),
    );
    section(
        "the background thread",
        told(&[&BackendError::background_ended()]),
    );
    let rejection = |kind: RejectionKind| format!("{}: {}", kind.as_str(), kind.title());
    section("rejections", REJECTIONS.map(rejection).to_vec());
    snapshot::assert(TEXTS, &text);
}

#[test]
fn an_outage_is_what_keeps_a_server_from_serving_and_nothing_else() {
    use BackendErrorKind::{
        ForeignData, Incompatible, NotPermitted, NotServing, Protocol, Refused, ServerBusy,
        TimedOut, Unauthenticated, Unreachable, Unsupported, Untrusted,
    };
    for kind in [
        Unreachable,
        TimedOut,
        ServerBusy,
        NotServing,
        Refused,
        Unauthenticated,
        Untrusted,
    ] {
        assert!(kind.is_outage(), "{kind}");
        assert!(BackendError::new(kind, "", None).is_outage());
    }
    for kind in [
        NotPermitted,
        ForeignData,
        Unsupported,
        Incompatible,
        Protocol,
    ] {
        assert!(!kind.is_outage(), "{kind}");
        assert!(!BackendError::new(kind, "", None).is_outage());
    }
}

#[test]
fn nobody_in_front_is_not_told_of() {
    let refusal = Refusal::new(RefusalKind::WaitedTooLong);
    let text = refusal.clone().with_position(Some(0)).to_string();
    assert_eq!(text, refusal.to_string());
    let text = refusal.with_position(Some(2)).to_string();
    assert!(text.ends_with(", 2 waiting in front"), "{text}");
}
