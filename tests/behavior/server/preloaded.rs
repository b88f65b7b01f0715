//! Handles that bring no scripts to the server: somebody else has loaded them.

use std::collections::BTreeSet;
use std::time::Duration;

use portcullis::check::Finding;
use portcullis::{BackendErrorKind, Portcullis, Quota, scripts};
use redis::Value;

use super::check::{look, missing, of_user};
use super::{mutex, semaphore};
use crate::common::{LIMIT, LONG, failure, give_back, queue, served, take, until_waiting, within};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{Server, recommended, wait_for};

/// As an administrator does it.
async fn load(rig: &ServerRig) {
    for script in scripts::all() {
        let digest = rig.server.command(&["SCRIPT", "LOAD", script.text()]).await;
        assert_eq!(digest, Value::BulkString(script.digest().into()));
    }
}

/// What SECURITY.md recommends to a user who can run no code of its own.
fn hardened() -> Vec<&'static str> {
    let mut rights = recommended();
    rights.retain(|right| !["+eval", "+script|exists", "+script|load"].contains(right));
    // For a key that others know, too.
    rights.extend(["&shop:exact:released", "+unsubscribe"]);
    rights
}

async fn handle(rig: &ServerRig) -> Portcullis {
    let builder = of_user(rig, &hardened()).await;
    builder.preloaded_scripts().build().expect("valid")
}

/// What the server did not allow, apart from the name that the client's library tells.
fn denied(rig: &ServerRig) -> Vec<String> {
    let entries: Vec<Vec<Value>> = ask(&mut rig.server.connection(), &["ACL", "LOG"]);
    let texts = entries.into_iter().map(|entry| format!("{entry:?}"));
    texts
        .filter(|text| !text.contains("client|setinfo") && !text.contains("'\"client\"'"))
        .collect()
}

#[tokio::test]
async fn with_all_scripts_loaded_a_user_without_eval_and_script_load_uses_every_primitive() {
    let rig = ServerRig::start();
    load(&rig).await;
    let handle = handle(&rig).await;
    for gate in [mutex(&handle), handle.mutex_at("shop:exact")] {
        let guard = take(&gate).await;
        let next = queue(&gate);
        until_waiting(&gate, 1).await;
        give_back(guard).await;
        give_back(served(next).await).await;
    }
    let short = mutex(&handle).ttl(Duration::from_millis(900)).expect("ok");
    let renewed = take(&short.keyed("renewed")).await;
    let permits = semaphore(&handle, 2);
    let held = (take(&permits).await, take(&permits).await);
    let next = queue(&permits);
    until_waiting(&permits, 1).await;
    drop(held);
    give_back(served(next).await).await;
    let limiter = handle
        .rate_limiter("api", Quota::per_second(100).burst(200))
        .expect("a quota");
    let report = within(LIMIT, "a check", limiter.keyed("one").check()).await;
    assert!(report.is_ok());
    let begun = std::time::Instant::now();
    wait_for("two TTLs have passed", LIMIT, async || {
        assert!(renewed.is_held());
        begun.elapsed() > Duration::from_millis(1_800)
    })
    .await;
    give_back(renewed).await;
    assert_eq!(denied(&rig), [""; 0]);

    let report = look(&handle).await;
    assert!(report.is_ok(), "{report}");
    assert_eq!(missing(&report), [], "{report}");
    rig.settled().await;
}

#[tokio::test]
async fn without_its_scripts_a_server_counts_as_one_that_does_not_serve_and_check_names_them() {
    let rig = ServerRig::start();
    let handle = handle(&rig).await;
    let error = failure(within(LIMIT, "it fails", mutex(&handle).try_lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::NotServing);
    assert!(error.to_string().contains("NOSCRIPT"), "{error}");
    assert!(error.to_string().contains("portcullis::scripts"), "{error}");

    let all: BTreeSet<&str> = scripts::all().map(|script| script.name()).collect();
    let report = look(&handle).await;
    assert!(!report.is_ok());
    let found: BTreeSet<&str> = report
        .findings()
        .iter()
        .filter_map(|finding| match finding {
            Finding::NotLoaded { script, .. } => Some(&**script),
            _ => None,
        })
        .collect();
    // Those of leases that were never taken are not asked for.
    let first = [
        "mutex/acquire",
        "exact/acquire",
        "semaphore/acquire",
        "rate/take",
    ];
    assert_eq!(found, BTreeSet::from(first));
    assert!(found.is_subset(&all), "{all:?}");
    rig.settled().await;
}

#[tokio::test]
async fn who_waits_and_who_holds_outlast_a_while_without_scripts() {
    let rig = ServerRig::start();
    load(&rig).await;
    let handle = handle(&rig).await;
    let lock = mutex(&handle).ttl(Duration::from_secs(9)).expect("ok");
    let guard = take(&lock).await;
    rig.server.command(&["SCRIPT", "FLUSH"]).await;
    // Its request finds no script, and is repeated.
    let next = queue(&lock.max_wait(LONG));
    let releasing = guard.release();
    let sha = scripts::all().next().expect("one").digest();
    let exists = rig.server.command(&["SCRIPT", "EXISTS", sha]).await;
    assert_eq!(exists, Value::Array(vec![Value::Int(0)]));
    load(&rig).await;
    let release = within(LIMIT, "it is released", releasing).await;
    assert!(release.is_ok(), "{release:?}");
    give_back(served(next).await).await;
    rig.settled().await;
}

/// The connection that waits for replicas brings no scripts either.
#[tokio::test]
async fn with_replicas_waited_for_scripts_are_not_brought_either() {
    const TTL: Duration = Duration::from_secs(6);
    let rig = ServerRig::start();
    rig.server
        .command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"])
        .await;
    let _replica = Server::start_replica(&rig.server);
    load(&rig).await;
    let mut rights = hardened();
    rights.push("+wait");
    let builder = of_user(&rig, &rights).await.preloaded_scripts();
    let builder = builder.min_replicas(1, Duration::from_millis(1_200));
    let handle = builder.build().expect("valid");
    let lock = mutex(&handle).ttl(TTL).expect("ok");
    let guard = take(&lock).await;
    let next = queue(&lock);
    until_waiting(&lock, 1).await;
    give_back(guard).await;
    let guard = served(next).await;
    // Of a renewal without its script nothing is believed, and it is repeated.
    rig.server.command(&["SCRIPT", "FLUSH"]).await;
    let before = unknown_scripts(&rig);
    wait_for("renewals find no script", LIMIT, async || {
        unknown_scripts(&rig) > before
    })
    .await;
    let error = failure(within(LIMIT, "it fails", lock.keyed("other").try_lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::NotServing, "{error}");
    assert!(error.to_string().contains("NOSCRIPT"), "{error}");
    load(&rig).await;
    let begun = std::time::Instant::now();
    wait_for("a TTL has passed", LIMIT, async || {
        assert!(guard.is_held());
        begun.elapsed() > TTL
    })
    .await;
    give_back(guard).await;
    give_back(take(&lock.keyed("other")).await).await;
    assert_eq!(denied(&rig), [""; 0]);
    rig.settled().await;
}

/// How many calls of scripts have found none.
fn unknown_scripts(rig: &ServerRig) -> u64 {
    let info: String = ask(&mut rig.server.connection(), &["INFO", "errorstats"]);
    let count = info
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_NOSCRIPT:count="));
    count.map_or(0, |count| count.parse().expect("a number"))
}
