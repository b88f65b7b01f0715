//! A lock at a key that other clients use in the common way: `SET key token NX PX` and
//! compare-and-delete.

use std::time::{Duration, Instant};

use portcullis::{BackendErrorKind, LostReason, Mutex, Portcullis, RefusalKind, Release};
use redis::Value;
use tokio::task::JoinSet;

use crate::common::{
    LIMIT, LONG, PROMPT, all_done, failure, give_back, promptly, queue, refusal, served, take,
    until_waiting, within,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{Server, wait_for};

const KEY: &str = "payment_processing";
/// How others give such a lock back.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

fn mutex(handle: &Portcullis) -> Mutex {
    handle.mutex_at(KEY).ttl(LONG).expect("in range")
}

async fn foreign_lock(server: &Server, token: &str, ttl: Duration) -> bool {
    let ttl = ttl.as_millis().to_string();
    server.command(&["SET", KEY, token, "NX", "PX", &ttl]).await == Value::Okay
}

async fn foreign_unlock(server: &Server, token: &str) -> bool {
    server
        .command(&["EVAL", COMPARE_AND_DELETE, "1", KEY, token])
        .await
        == Value::Int(1)
}

#[tokio::test]
async fn a_plain_client_is_kept_out_and_keeps_us_out() {
    let rig = ServerRig::start();
    let mutex = mutex(&rig.handle());
    let guard = take(&mutex).await;
    assert!(!foreign_lock(&rig.server, "foreign", LONG).await);
    assert!(!foreign_unlock(&rig.server, "foreign").await);
    let mut connection = rig.server.connection();
    let left: i64 = ask(&mut connection, &["PTTL", KEY]);
    assert!(left > 0 && left <= LONG.as_millis() as i64);
    give_back(guard).await;
    assert!(foreign_lock(&rig.server, "foreign", LONG).await);
    let busy = refusal(mutex.try_lock().await);
    assert_eq!(busy.kind(), RefusalKind::Busy);
    assert!(
        busy.retry_after()
            .is_some_and(|after| after <= LONG && after > LONG - PROMPT)
    );
    assert!(foreign_unlock(&rig.server, "foreign").await);
    give_back(take(&mutex).await).await;
    rig.settled().await;
}

/// Its release tells nobody.
#[tokio::test]
async fn the_release_of_a_plain_client_is_found_promptly() {
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    assert!(foreign_lock(&rig.server, "foreign", LONG).await);
    let first = queue(&a);
    until_waiting(&b, 1).await;
    let calls = rig.server.script_calls().await;
    // A heartbeat would be one call in a second.
    wait_for("it asks often", PROMPT, async || {
        rig.server.script_calls().await >= calls + 8
    })
    .await;
    let second = queue(&b);
    until_waiting(&b, 2).await;
    assert!(foreign_unlock(&rig.server, "foreign").await);
    give_back(served(first).await).await;
    give_back(served(second).await).await;
    rig.settled().await;
}

#[tokio::test]
async fn an_expired_plain_client_is_succeeded_and_can_not_release_us() {
    let rig = ServerRig::start();
    let mutex = mutex(&rig.handle());
    assert!(foreign_lock(&rig.server, "foreign", Duration::from_millis(300)).await);
    let guard = served(queue(&mutex)).await;
    assert!(!foreign_unlock(&rig.server, "foreign").await);
    assert!(guard.is_held());
    give_back(guard).await;
    rig.settled().await;
}

#[tokio::test]
async fn a_key_without_ttl_is_respected_and_never_removed() {
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    rig.server.command(&["SET", KEY, "for ever"]).await;
    let busy = refusal(a.try_lock().await);
    assert_eq!((busy.kind(), busy.retry_after()), (RefusalKind::Busy, None));
    let limited = a.clone().max_wait(Duration::from_millis(400));
    let waited = refusal(within(LIMIT, "its wait ends", limited.lock()).await);
    assert_eq!(
        (waited.kind(), waited.retry_after()),
        (RefusalKind::WaitedTooLong, None)
    );
    let next = queue(&b);
    until_waiting(&a, 1).await;
    let mut connection = rig.server.connection();
    let begun = Instant::now();
    // It is asked for many times meanwhile, and a claim would be over.
    wait_for("some time has passed", LIMIT, async || {
        assert_eq!(ask::<String>(&mut connection, &["GET", KEY]), "for ever");
        assert_eq!(ask::<i64>(&mut connection, &["PTTL", KEY]), -1);
        begun.elapsed() > Duration::from_millis(3_500)
    })
    .await;
    assert!(!next.is_finished());
    rig.server.command(&["DEL", KEY]).await;
    give_back(served(next).await).await;
    rig.settled().await;
}

#[tokio::test]
async fn our_release_is_told_on_the_keys_own_channel() {
    let rig = ServerRig::start();
    let mutex = mutex(&rig.handle());
    let mut connection = rig.server.connection();
    let mut channel = connection.as_pubsub();
    channel
        .subscribe(format!("{KEY}:released"))
        .expect("subscribed");
    channel
        .set_read_timeout(Some(PROMPT))
        .expect("a time-out above zero");
    for _ in 0..3 {
        give_back(take(&mutex).await).await;
        channel.get_message().expect("it is told");
    }
}

/// What is published there is heard: each message makes a waiter ask, faster than it would by
/// itself.
#[tokio::test]
async fn a_release_told_on_the_keys_own_channel_is_heard() {
    const MESSAGES: u32 = 50;
    let rig = ServerRig::start();
    let mutex = mutex(&rig.handle());
    assert!(foreign_lock(&rig.server, "foreign", LONG).await);
    let next = queue(&mutex);
    let channel = format!("{KEY}:released");
    wait_for("it listens", LIMIT, async || {
        rig.server.command(&["PUBLISH", &channel, "1"]).await == Value::Int(1)
    })
    .await;
    let begun = Instant::now();
    for _ in 0..MESSAGES {
        let calls = rig.server.script_calls().await;
        rig.server.command(&["PUBLISH", &channel, "1"]).await;
        wait_for("it asks", LIMIT, async || {
            rig.server.script_calls().await > calls
        })
        .await;
    }
    // By itself it asks every 100 ms at most.
    assert!(
        begun.elapsed() < MESSAGES * Duration::from_millis(100),
        "{:?}",
        begun.elapsed()
    );
    assert!(foreign_unlock(&rig.server, "foreign").await);
    rig.server.command(&["PUBLISH", &channel, "1"]).await;
    give_back(served(next).await).await;
    wait_for("it listens no longer", LIMIT, async || {
        rig.server.command(&["PUBLISH", &channel, "1"]).await == Value::Int(0)
    })
    .await;
    rig.settled().await;
}

#[tokio::test]
async fn a_keyed_one_lies_at_the_key_and_its_own_key_after_a_colon() {
    let rig = ServerRig::start();
    let guard = take(&mutex(&rig.handle()).keyed("eu")).await;
    let held = rig.server.command(&["EXISTS", &format!("{KEY}:eu")]).await;
    assert_eq!(held, Value::Int(1));
    assert_eq!(rig.server.command(&["EXISTS", KEY]).await, Value::Int(0));
    give_back(guard).await;
    rig.settled().await;
}

#[tokio::test]
async fn handles_hand_it_over_by_push_among_themselves() {
    let rig = ServerRig::start();
    let mut tasks = JoinSet::new();
    for mutex in [mutex(&rig.handle()), mutex(&rig.handle())] {
        tasks.spawn(async move {
            for _ in 0..200 {
                drop(take(&mutex).await);
            }
        });
    }
    // If they asked by a timer it would take 400 × 100 ms.
    all_done(tasks).await;
    rig.settled().await;
}

#[tokio::test]
async fn a_stranger_that_takes_the_key_by_force_is_left_alone() {
    let rig = ServerRig::start();
    let mutex = mutex(&rig.handle())
        .ttl(Duration::from_secs(3))
        .expect("in range");
    let guard = take(&mutex).await;
    rig.server
        .command(&["SET", KEY, "foreign", "PX", "30000"])
        .await;
    assert_eq!(
        within(LIMIT, "its loss is told", guard.lost()).await,
        LostReason::Gone
    );
    let answer = promptly("answered", guard.release())
        .await
        .expect("answered");
    assert_eq!(answer, Release::NoLongerHeld);
    assert_eq!(refusal(mutex.try_lock().await).kind(), RefusalKind::Busy);
    assert!(foreign_unlock(&rig.server, "foreign").await);
    rig.settled().await;
}

#[tokio::test]
async fn other_data_under_the_key_is_told_and_left_alone() {
    let rig = ServerRig::start();
    let mutex = mutex(&rig.handle());
    rig.server.command(&["HSET", KEY, "field", "value"]).await;
    for error in [
        failure(mutex.try_lock().await),
        failure(promptly("fails", mutex.lock()).await),
    ] {
        assert_eq!(error.kind(), BackendErrorKind::ForeignData);
        assert!(error.to_string().contains(KEY), "{error}");
    }
    assert_eq!(rig.server.keys_with("").await, [KEY]);
}
