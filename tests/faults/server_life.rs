//! A server that pauses, restarts with its data, and takes its time to read it (faults 3, 28, 37).

use std::time::{Duration, Instant};

use portcullis::{BackendErrorKind, LostReason};
use redis::Value;

use crate::common::{
    LIMIT, LONG, failure, give_back, promptly, queue, served_within, take, until_waiting, within,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{Mode, Proxy, wait_for};
use crate::{
    CLAIM, SOON, assert_later, assert_unanswered, key, mutex, plain_mutex, plain_semaphore,
    semaphore, through,
};

/// Fault 3; M1, M3, L2: what is kept over a restart is the end of a lease, not its length.
#[tokio::test]
async fn leases_of_dead_holders_end_on_time_though_the_server_restarts_with_its_data() {
    let rig = ServerRig::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let proxy = Proxy::start(rig.server.port());
    let dead = through(&proxy).build().expect("valid");
    let guard = take(&mutex(&dead, SOON)).await;
    let permit = take(&semaphore(&dead, 1, SOON)).await;
    let other = rig.handle();
    let (lock, permits) = (mutex(&other, SOON), semaphore(&other, 1, SOON));
    let (next, next_permit) = (queue(&lock), queue(&permits));
    until_waiting(&plain_mutex(&other, SOON), 1).await;
    until_waiting(&plain_semaphore(&other, 1, SOON), 1).await;
    let lost = tokio::spawn({
        let (lost, also) = (guard.lost(), permit.lost());
        async move { (lost.await, also.await) }
    });
    proxy.set(Mode::BlackHole);
    let died = Instant::now();
    let main = key(&rig, "m").await.expect("it is held");
    let before: i64 = ask(&mut rig.server.connection(), &["PTTL", &main]);
    rig.server.restart();
    wait_for("it has read its data", LIMIT, async || {
        rig.server.try_command(&["PTTL", &main]).await.is_ok()
    })
    .await;
    let after: i64 = ask(&mut rig.server.connection(), &["PTTL", &main]);
    assert!((1..=before).contains(&after), "{before} ms, then {after}");
    let both = async { tokio::join!(next, next_permit) };
    let (next, next_permit) = within(SOON + 2 * CLAIM, "their turns come", both).await;
    // Looked at first: whatever comes later on a busy machine, this was over by then.
    assert!(!guard.is_held() && !permit.is_held());
    assert!(died.elapsed() > SOON / 2, "{:?}", died.elapsed());
    let next = next.expect("no panic").expect("its turn comes");
    let next_permit = next_permit.expect("no panic").expect("its turn comes");
    let told = promptly("told", lost).await.expect("no panic");
    assert_eq!(told, (LostReason::Expired, LostReason::Expired));
    assert!(next.fencing_token() > guard.fencing_token());
    assert_later(&next_permit, permit.fencing_token().get());
    drop((guard, permit));
    give_back(next).await;
    give_back(next_permit).await;
    proxy.set(Mode::Pass);
    rig.settled().await;
}

/// Fault 28; M1, M3, M4: renewals that come when the lease is over.
#[tokio::test]
async fn a_pause_longer_than_the_ttl_ends_leases_on_time() {
    const TTL: Duration = Duration::from_secs(1);
    for what in ["ALL", "WRITE"] {
        let rig = ServerRig::start();
        let ours = rig.handle();
        let guard = take(&mutex(&ours, TTL)).await;
        let next = queue(&mutex(&rig.handle(), TTL));
        until_waiting(&plain_mutex(&ours, TTL), 1).await;
        rig.server.command(&["CLIENT", "PAUSE", "3000", what]).await;
        let paused = Instant::now();
        let reason = promptly("its loss is told", guard.lost()).await;
        assert_eq!(reason, LostReason::Expired, "{what}");
        // Half a second is for the machine.
        assert!(paused.elapsed() < TTL + TTL / 2, "{:?}", paused.elapsed());
        assert!(!guard.is_held());
        let next = served_within(LIMIT, next).await;
        assert!(paused.elapsed() > Duration::from_millis(2_900), "{what}");
        assert!(next.fencing_token() > guard.fencing_token());
        drop(guard);
        give_back(next).await;
        rig.settled().await;
    }
}

/// Fault 37; L1: a server that is reading its data answers LOADING.
#[tokio::test]
async fn a_server_that_is_loading_is_waited_for() {
    // 20,000 keys at 0.1 ms or so, during which it answers after each thousand.
    let rig = ServerRig::start_with(&["--appendonly", "yes", "--key-load-delay", "50"]);
    let mut filling = redis::pipe();
    for number in 0..20_000 {
        filling.cmd("SET").arg(format!("filler:{number}")).arg(1);
    }
    filling
        .query::<()>(&mut rig.server.connection())
        .expect("filled");
    let handle = rig.builder().build().expect("valid");
    let lock = mutex(&handle, LONG);
    let guard = take(&lock).await;
    let waiter = queue(&lock);
    until_waiting(&plain_mutex(&handle, LONG), 1).await;
    rig.server.restart();
    let loading = rig.server.try_command(&["GET", "filler:1"]).await;
    let loading = loading.expect_err("it is loading");
    assert_eq!(loading.code(), Some("LOADING"), "{loading}");
    let newcomer = queue(&lock.keyed("free").max_wait(LONG));
    // Once its old connections are known to be gone, a try is told what the matter is.
    wait_for("a try is told", LIMIT, async || {
        let tried = failure(promptly("a try ends", lock.keyed("tried").try_lock()).await);
        let told = tried.kind() == BackendErrorKind::NotServing;
        if told {
            assert!(tried.to_string().contains("LOADING"), "{tried}");
        } else {
            assert_unanswered(&tried);
        }
        told
    })
    .await;
    let newcomer = within(LIMIT, "it is served", newcomer).await;
    give_back(newcomer.expect("no panic").expect("it is free")).await;
    let answer = rig.server.command(&["GET", "filler:1"]).await;
    assert_eq!(answer, Value::BulkString(b"1".to_vec()));
    // Neither the lease nor the place was lost.
    assert!(guard.is_held() && !waiter.is_finished());
    give_back(guard).await;
    give_back(served_within(2 * CLAIM, waiter).await).await;
    rig.server.command(&["FLUSHALL"]).await;
    wait_for("all is settled", LIMIT, async || {
        rig.server.keys_with("suite:").await.is_empty()
    })
    .await;
}
