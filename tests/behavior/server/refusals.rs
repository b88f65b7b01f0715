//! What a caller is told when a server says no: a kind for each class, and a text that names the
//! gate and what to do (C137, C145).

use std::time::{Duration, Instant};

use portcullis::{BackendErrorKind, LockError, RefusalKind};

use super::{mutex, semaphore, through};
use crate::common::{
    LIMIT, failure, give_back, promptly, queue, refusal, served, take, until_waiting, waiting,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{Proxy, wait_for};

/// A text for a human: which gate, while doing what. Never the part that a request brought, nor an
/// address.
fn assert_readable(error: &portcullis::BackendError, doing: &str, gate: &str) {
    let text = error.to_string();
    assert!(text.contains(doing) && text.contains(gate), "{text}");
    for secret in ["account-4711", "127.0.0.1", "inbox"] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn other_data_under_a_key_is_told_and_nothing_is_half_done() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let (lock, permits) = (mutex(&handle).keyed("account-4711"), semaphore(&handle, 2));
    let held = (take(&lock).await, take(&permits).await);
    let keys = rig.server.keys_with("suite:").await;
    give_back(held.0).await;
    give_back(held.1).await;
    for key in keys.iter().filter(|key| key.contains('}')) {
        rig.server.command(&["FLUSHALL"]).await;
        // No key of ours is a list.
        rig.server.command(&["RPUSH", key, "foreign"]).await;
        let is_mutex = key.contains(":m");
        let of_tag = key.ends_with(":roster") || key.ends_with(":clock");
        if is_mutex || (of_tag && key.contains(tag_of(&keys, ":m:"))) {
            let error = failure(promptly("it fails", lock.lock()).await);
            assert_eq!(error.kind(), BackendErrorKind::ForeignData, "{key}");
            assert_readable(&error, "acquiring", "`withdraw`");
        } else {
            let error = failure(promptly("it fails", permits.try_acquire()).await);
            assert_eq!(error.kind(), BackendErrorKind::ForeignData, "{key}");
            assert_readable(&error, "acquiring", "`reports`");
        }
        assert_eq!(rig.server.keys_with("").await, [key.as_str()]);
    }
    rig.server.command(&["FLUSHALL"]).await;
    drop((take(&lock).await, take(&permits).await));
    rig.settled().await;
}

/// The hash tag of the gate whose main key has this letter.
fn tag_of<'a>(keys: &'a [String], letter: &str) -> &'a str {
    let main = keys
        .iter()
        .find(|key| key.contains(letter))
        .expect("somebody held");
    &main[main.find('{').expect("a tag")..=main.find('}').expect("a tag")]
}

/// Fault 24.
#[tokio::test]
async fn out_of_memory_keeps_newcomers_out_and_lets_holders_and_waiters_finish() {
    let rig = ServerRig::start();
    let (a, b) = (rig.handle(), rig.handle());
    let (lock, permits) = (mutex(&a), semaphore(&a, 2));
    let guard = take(&lock).await;
    let both = [take(&permits).await, take(&permits).await];
    let (next, next_permit) = (queue(&mutex(&b)), queue(&semaphore(&b, 2)));
    until_waiting(&lock, 1).await;
    until_waiting(&permits, 1).await;
    let renewed = take(
        &lock
            .keyed("renewed")
            .ttl(Duration::from_millis(900))
            .expect("ok"),
    )
    .await;
    rig.server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    for error in [
        failure(lock.keyed("free").try_lock().await),
        failure(promptly("it fails", lock.keyed("free").lock()).await),
        failure(promptly("it fails", semaphore(&a, 2).keyed("free").acquire()).await),
    ] {
        assert_eq!(error.kind(), BackendErrorKind::Refused);
        assert!(error.to_string().contains("memory"), "{error}");
    }
    let begun = Instant::now();
    wait_for("three TTLs have passed", LIMIT, async || {
        assert!(renewed.is_held());
        begun.elapsed() > Duration::from_millis(2_700)
    })
    .await;
    give_back(renewed).await;
    give_back(guard).await;
    let [one, other] = both;
    give_back(one).await;
    let (next, next_permit) = (served(next).await, served(next_permit).await);
    give_back(other).await;
    give_back(next).await;
    give_back(next_permit).await;
    rig.server
        .command(&["CONFIG", "SET", "maxmemory", "0"])
        .await;
    drop((take(&lock).await, take(&permits).await));
    rig.settled().await;
}

/// Fault 33: where too few replicas follow, not even a release is possible.
#[tokio::test]
async fn too_few_replicas_are_told_and_releases_wait_for_them() {
    let rig = ServerRig::start();
    let lock = mutex(&rig.handle());
    let guard = take(&lock).await;
    rig.server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    let error = failure(promptly("it fails", lock.keyed("free").lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Refused);
    assert_readable(&error, "acquiring", "`withdraw`");
    let error = promptly("it tells", guard.release())
        .await
        .expect_err("it was refused");
    assert_eq!(error.kind(), BackendErrorKind::Refused);
    assert_readable(&error, "releasing", "`withdraw`");
    rig.server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "0"])
        .await;
    promptly("it is given back all the same", rig.settled()).await;
}

#[tokio::test]
async fn a_user_without_the_right_to_run_scripts_is_told_so() {
    let rig = ServerRig::start();
    let user = [
        "ACL",
        "SETUSER",
        "limited",
        "on",
        ">open",
        "~*",
        "&*",
        "+@all",
        "-@scripting",
    ];
    rig.server.command(&user).await;
    let url = format!("redis://limited:open@127.0.0.1:{}/", rig.server.port());
    let limited = rig.builder().url(url).build().expect("valid");
    let error = failure(promptly("it fails", mutex(&limited).lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::NotPermitted);
    assert_readable(&error, "acquiring", "`withdraw`");
}

/// C137: a wrong password is no missing server.
#[tokio::test]
async fn a_wrong_password_is_told_apart_from_a_missing_server() {
    let rig = ServerRig::start();
    rig.server
        .command(&[
            "ACL", "SETUSER", "somebody", "on", ">right", "~*", "&*", "+@all",
        ])
        .await;
    let url = format!(
        "redis://somebody:wrong-4711@127.0.0.1:{}/",
        rig.server.port()
    );
    let handle = rig.builder().url(url).build().expect("valid");
    let error = failure(promptly("it fails", mutex(&handle).try_lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Unauthenticated, "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong-4711"));
}

/// What keeps a connection from being made is told as what it is, with the server's code.
#[tokio::test]
async fn what_goes_wrong_while_connecting_is_told_by_its_kind() {
    let rig = ServerRig::start();
    let user = ["ACL", "SETUSER", "limited", "on", ">open", "~*", "&*"];
    let rights = ["+@all", "-time"];
    rig.server.command(&[&user[..], &rights].concat()).await;
    let port = rig.server.port();
    let of = async |url: String| {
        let handle = rig.builder().url(url).build().expect("valid");
        let error = failure(promptly("it fails", mutex(&handle).try_lock()).await);
        assert_readable(&error, "acquiring", "`withdraw` (connecting");
        (
            error.kind(),
            error.code().map(str::to_owned),
            error.to_string(),
        )
    };
    let (kind, code, text) = of(format!("redis://limited:open@127.0.0.1:{port}/")).await;
    assert_eq!(kind, BackendErrorKind::NotPermitted);
    assert_eq!(code.as_deref(), Some("NOPERM"));
    // Redis 6.2 to 7.0 and later word it differently, and all name the command.
    assert!(text.contains("`+time`"), "{text}");

    let (kind, _, text) = of(format!("redis://127.0.0.1:{port}/99")).await;
    assert_eq!(kind, BackendErrorKind::Unsupported);
    assert!(text.contains("database"), "{text}");

    rig.server
        .command(&["CONFIG", "SET", "lua-time-limit", "10"])
        .await;
    let mut other = rig.server.connection();
    let endless = std::thread::spawn(move || {
        let mut script = redis::cmd("EVAL");
        script.arg("while true do end").arg(0);
        script.query::<redis::Value>(&mut other).is_err()
    });
    wait_for("it is busy", LIMIT, async || {
        rig.server.try_command(&["TIME"]).await.is_err()
    })
    .await;
    let (kind, code, _) = of(rig.server.url()).await;
    assert_eq!(kind, BackendErrorKind::ServerBusy);
    assert_eq!(code.as_deref(), Some("BUSY"));
    rig.server.command(&["SCRIPT", "KILL"]).await;
    assert!(endless.join().expect("no panic"));

    rig.server
        .command(&["CONFIG", "SET", "requirepass", "right"])
        .await;
    let (kind, code, _) = of(rig.server.url()).await;
    assert_eq!(kind, BackendErrorKind::Unauthenticated);
    assert_eq!(code.as_deref(), Some("NOAUTH"));

    let (kind, code, text) = of("redis://127.0.0.1:1/".to_owned()).await;
    assert_eq!((kind, code), (BackendErrorKind::Unreachable, None));
    assert!(text.contains("connection refused"), "{text}");
    // What no resolver asks anybody about.
    let (kind, _, text) = of("redis://no..name/".to_owned()).await;
    assert_eq!(kind, BackendErrorKind::Unreachable);
    assert!(text.contains("DNS"), "{text}");
}

/// A replica is there and does not serve: what a failover looks like.
#[tokio::test]
async fn a_replica_does_not_serve_and_is_told_from_one_that_declines() {
    let rig = ServerRig::start();
    rig.server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let handle = rig.builder().build().expect("valid");
    let error = failure(promptly("it fails", mutex(&handle).try_lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::NotServing, "{error}");
    assert_eq!(error.code(), Some("READONLY"));
    assert!(error.is_outage());
    rig.server.command(&["REPLICAOF", "NO", "ONE"]).await;
    rig.server
        .command(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    let handle = rig.builder().build().expect("valid");
    let error = failure(promptly("it fails", mutex(&handle).try_lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Refused, "{error}");
    assert_eq!(error.code(), Some("NOREPLICAS"));
    assert!(error.is_outage());
}

/// The place that is kept for an operator's limit: whoever asks is judged by it, and whoever waits
/// for more than that is told.
#[tokio::test]
async fn a_limit_that_is_set_on_the_server_counts_for_all() {
    let rig = ServerRig::start();
    let (a, b) = (semaphore(&rig.handle(), 3), semaphore(&rig.handle(), 3));
    let held = [take(&a).await, take(&a).await];
    let large = tokio::spawn({
        let b = b.clone();
        async move { b.acquire_many(3).await }
    });
    wait_for("it waits", LIMIT, async || {
        let keys = rig.server.keys_with("suite:").await;
        keys.iter().any(|key| key.contains("}:sq:"))
    })
    .await;
    let keys = rig.server.keys_with("suite:").await;
    let records = keys
        .iter()
        .find(|key| key.contains("}:sr:"))
        .expect("one waits");
    rig.server.command(&["HSET", records, "L", "1"]).await;
    let [one, other] = held;
    give_back(one).await;
    let never = refusal(promptly("it is told", large).await.expect("no panic"));
    assert_eq!(never.kind(), RefusalKind::NeverFits);
    let never = refusal(promptly("a refusal", a.acquire_many(2)).await);
    assert_eq!(never.kind(), RefusalKind::NeverFits);
    assert_eq!(refusal(a.try_acquire().await).kind(), RefusalKind::Busy);
    give_back(other).await;
    give_back(take(&b).await).await;
    rig.settled().await;
}

/// A record that a later release of the crate wrote.
#[tokio::test]
async fn a_record_of_a_later_release_is_respected() {
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    let guard = take(&a).await;
    let next = queue(&b);
    until_waiting(&a, 1).await;
    let keys = rig.server.keys_with("suite:").await;
    let queue_key = keys
        .iter()
        .find(|key| key.contains("}:mq:"))
        .expect("one waits");
    let records = queue_key.replace("}:mq:", "}:mr:");
    let mut connection = rig.server.connection();
    let [waiter]: [String; 1] =
        ask::<Vec<String>>(&mut connection, &["ZRANGE", queue_key, "0", "-1"])
            .try_into()
            .expect("one waits");
    let record = "2w 1 1 10000 1";
    ask::<i64>(&mut connection, &["HSET", &records, &waiter, record]);
    give_back(guard).await;
    // It keeps its place: nobody passes it.
    assert_eq!(waiting(&a).await, Some(1));
    // And who asks for it in this release's words is told.
    let error = crate::common::within(LIMIT, "it is told", next)
        .await
        .expect("no panic");
    let error = failure(error);
    assert_eq!(error.kind(), BackendErrorKind::Incompatible);
    assert_readable(&error, "acquiring", "`withdraw`");
}

#[tokio::test]
async fn errors_tell_which_time_ran_out_and_for_which_gate() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let handle = through(&proxy)
        .command_timeout(Duration::from_millis(300))
        .build()
        .expect("ok");
    let lock = mutex(&handle).keyed("account-4711");
    let guard = take(&lock).await;
    proxy.set(crate::support::Mode::HoldReplies);
    let error = failure(promptly("it fails", lock.keyed("other").try_lock()).await);
    assert_readable(&error, "acquiring", "`withdraw`");
    assert!(error.to_string().contains("300 ms"), "{error}");
    let error = promptly("it fails", guard.release())
        .await
        .expect_err("nobody answered");
    assert_readable(&error, "releasing", "`withdraw`");
    proxy.set(crate::support::Mode::Pass);
    rig.server.kill();
    let error = failure(promptly("it fails", lock.try_lock()).await);
    assert_readable(&error, "acquiring", "`withdraw`");
    rig.server.restart();
    let lock = mutex(&rig.handle());
    let _guard = take(&lock).await;
    let refused = refusal(lock.try_lock().await);
    assert!(refused.to_string().contains("retry after"), "{refused}");
    assert_eq!(
        LockError::Refused(refused.clone()).to_string(),
        refused.to_string()
    );
}
