//! C115: sentinels and data nodes have credentials of their own, or none.

use std::time::Instant;

use portcullis::{BackendErrorKind, Sentinel};

use super::*;
use crate::common::{failure, give_back, promptly, take};
use crate::support::sentinel::SERVICE;

/// What SECURITY.md says that a user at the sentinels needs.
const ASKS: [&str; 7] = [
    "resetchannels",
    "-@all",
    "+sentinel|master",
    "+sentinel|get-master-addr-by-name",
    "+subscribe",
    "&+switch-master",
    "&+promoted-slave",
];

/// Sets a fleet's passwords: of the data nodes' default user, and of the sentinels'.
pub(super) fn lock(fleet: &Fleet, nodes: &str, sentinels: &str) {
    for sentinel in &fleet.sentinels {
        let tell = |words: &[&str]| {
            let done: Option<String> = sentinel.ask(words);
            assert_eq!(done.as_deref(), Some("OK"), "{words:?}");
        };
        if !nodes.is_empty() {
            tell(&["SENTINEL", "SET", SERVICE, "auth-pass", nodes]);
        }
        if !sentinels.is_empty() {
            tell(&["SENTINEL", "CONFIG", "SET", "sentinel-pass", sentinels]);
            let user = ["resetkeys", "resetchannels", "-@all"];
            tell(&[&["ACL", "SETUSER", "nobody"][..], &user].concat());
            let asks = ["ACL", "SETUSER", "asks", "on", ">its-secret"];
            tell(&[&asks[..], &ASKS].concat());
            tell(&[
                "ACL",
                "SETUSER",
                "default",
                "on",
                "resetpass",
                &format!(">{sentinels}"),
            ]);
        }
    }
    for node in &fleet.nodes {
        if !nodes.is_empty() {
            let mut connection = node.connection();
            let user = [
                "ACL",
                "SETUSER",
                "shop",
                "on",
                ">shop-secret",
                "resetchannels",
                "~suite:*",
                "&suite:*",
                "+@all",
            ];
            ask::<String>(&mut connection, &user);
            ask::<String>(&mut connection, &["CONFIG", "SET", "masterauth", nodes]);
            ask::<String>(&mut connection, &["CONFIG", "SET", "requirepass", nodes]);
        }
    }
}

/// The fleet's address with credentials for its data nodes, as they stand in front of a host, and
/// for its sentinels, as a URL's query.
fn address(fleet: &Fleet, nodes: &str, sentinels: &str) -> String {
    let url = fleet.url().replace("://", &format!("://{nodes}"));
    format!("{url}?{sentinels}")
}

pub(super) async fn works(builder: Builder) {
    let gates = builder.build().expect("a valid address");
    let report = gates.check().await.expect("it can be asked");
    let found = report.server().and_then(|server| server.sentinels.clone());
    assert_eq!(
        found.map(|found| (found.answering, found.telling)),
        Some((3, 3)),
        "{report}"
    );
    assert_eq!(report.problems().count(), 0, "{report}");
    give_back(take(&mutex(&gates)).await).await;
}

/// What a handle with wrong credentials says.
async fn refused(url: &str) -> String {
    let gates = builder(url).build().expect("a valid address");
    let error = failure(promptly("it is refused", mutex(&gates).lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Unauthenticated, "{error}");
    let looked = gates.check().await.expect_err("it is refused");
    let text = format!("{error} {error:?} {looked} {gates:?}");
    assert!(
        !text.contains("secret") && !text.contains("127.0.0.1"),
        "{text}"
    );
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn data_nodes_may_want_credentials_that_sentinels_are_not_sent() {
    let fleet = Fleet::start().await;
    lock(&fleet, "node-secret", "");
    works(builder(&address(&fleet, ":node-secret@", ""))).await;
    works(builder(&address(&fleet, "shop:shop-secret@", ""))).await;
    for wrong in [":wrong-secret@", ""] {
        let error = refused(&address(&fleet, wrong, "")).await;
        assert!(error.contains("the server"), "{error}");
        assert!(!error.contains("sentinel"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn sentinels_may_want_credentials_and_data_nodes_none() {
    let fleet = Fleet::start().await;
    lock(&fleet, "", "their-secret");
    works(builder(&address(
        &fleet,
        "",
        "sentinel_password=their-secret",
    )))
    .await;
    for wrong in ["sentinel_password=wrong-secret", ""] {
        let error = refused(&address(&fleet, "", wrong)).await;
        assert!(
            error.contains("the sentinels refuse the credentials"),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn both_may_have_their_own_and_users_with_no_more_rights_than_they_need() {
    let fleet = Fleet::start().await;
    lock(&fleet, "node-secret", "their-secret");
    works(builder(&address(
        &fleet,
        ":node-secret@",
        "sentinel_password=their-secret",
    )))
    .await;
    let asks = "sentinel_username=asks&sentinel_password=its-secret";
    works(builder(&address(&fleet, "shop:shop-secret@", asks))).await;
    let error = refused(&address(
        &fleet,
        ":node-secret@",
        "sentinel_password=node-secret",
    ))
    .await;
    assert!(
        error.contains("the sentinels refuse the credentials"),
        "{error}"
    );
    let error = refused(&address(&fleet, ":their-secret@", asks)).await;
    assert!(!error.contains("sentinel"), "{error}");
    // The same, as settings.
    let sentinels = fleet.sentinels.iter();
    let urls = sentinels.map(|it| format!("redis://asks:its-secret@127.0.0.1:{}/", it.port()));
    let service = Sentinel::new(SERVICE, urls).nodes_like("redis://shop:shop-secret@localhost/");
    let gates = Portcullis::builder().url(service).prefix("suite").build();
    give_back(take(&mutex(&gates.expect("valid settings"))).await).await;
}

/// A user at the sentinels that may neither listen nor ask for more than the address.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn where_sentinels_may_not_be_listened_to_a_failover_is_noticed_by_asking() {
    let fleet = Fleet::start().await;
    for sentinel in &fleet.sentinels {
        let user = [
            "ACL",
            "SETUSER",
            "default",
            "resetchannels",
            "-subscribe",
            "-sentinel|master",
        ];
        // Up to 6.2 one command of several can't be taken from who has them all.
        let some: Option<String> = sentinel.ask(&user[..5]);
        assert_eq!(some.as_deref(), Some("OK"));
        let _: Option<String> = sentinel.ask(&[&user[..3], &user[5..]].concat());
    }
    let gates = handle(&fleet);
    let report = gates.check().await.expect("it can be asked").to_string();
    assert!(report.contains("may not listen"), "{report}");
    give_back(take(&mutex(&gates)).await).await;
    let held = take(&mutex(&gates)).await;
    fleet.until_replicated().await;
    fleet.nodes[0].kill();
    // Without epochs, most have to agree.
    let mut most = None;
    eventually("most sentinels name another", async || {
        most = fleet
            .master()
            .filter(|node| node.port() != fleet.nodes[0].port());
        most.is_some()
    })
    .await;
    let (new, switched) = (most.expect("it was named"), Instant::now());
    soon(switched, "it has moved", async || {
        new.script_calls().await > 0
    })
    .await;
    give_back(held).await;
}

/// Sentinels that do not know the service.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_service_that_sentinels_do_not_know_is_told() {
    let fleet = Fleet::start().await;
    let url = fleet.url().replace(&format!("/{SERVICE}"), "/other");
    let gates = builder(&url).build().expect("a valid address");
    let error = failure(promptly("it is told", mutex(&gates).lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::NotServing);
    assert!(error.to_string().contains("know no service"), "{error}");
}
