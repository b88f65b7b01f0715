//! What comes in by the inbox: it is told by name only, and anybody may write there (C33, faults
//! 17, 19 to 21).

use std::time::{Duration, Instant};

use portcullis::{Mutex, MutexGuard};
use redis::Value;

use super::{UNHEARD, mutex, through};
use crate::common::{LIMIT, give_back, queue, served, until_waiting, waiting, within};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{Mode, Proxy, wait_for};

/// The inboxes that are open.
fn inboxes(rig: &ServerRig) -> Vec<String> {
    ask(
        &mut rig.server.connection(),
        &["PUBSUB", "CHANNELS", "suite:inbox:*"],
    )
}

/// Holds without an inbox of its own: a try never waits.
async fn hold(mutex: &Mutex) -> MutexGuard {
    mutex.try_lock().await.expect("it is free")
}

#[tokio::test]
async fn garbage_and_old_pushes_grant_nothing_and_cost_nothing() {
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    let guard = hold(&a).await;
    let first = queue(&b);
    until_waiting(&a, 1).await;
    wait_for("it listens", LIMIT, async || inboxes(&rig).len() == 1).await;
    let inbox = inboxes(&rig).remove(0);
    // What a real push says, heard by somebody else who listens there.
    let mut connection = rig.server.connection();
    let mut eavesdropper = connection.as_pubsub();
    eavesdropper.subscribe(&inbox).expect("subscribed");
    give_back(guard).await;
    let first = served(first).await;
    let push: String = eavesdropper
        .get_message()
        .expect("it was pushed")
        .get_payload()
        .expect("text");
    give_back(first).await;

    let guard = hold(&a).await;
    let next = queue(&b);
    until_waiting(&a, 1).await;
    let calls = rig.server.script_calls().await;
    let begun = Instant::now();
    let mut pipeline = redis::pipe();
    for number in 0..1_000 {
        let garbage = match number % 5 {
            0 => push.clone(),
            1 => push[..push.len() / 2].to_owned(),
            2 => format!("{push} {number}"),
            3 => "\0\u{fffd}g n ".repeat(number),
            _ => String::new(),
        };
        pipeline.cmd("PUBLISH").arg(&inbox).arg(garbage).ignore();
    }
    pipeline
        .query::<()>(&mut rig.server.connection())
        .expect("published");
    // This one comes after them on the same connection, so they have been read when it has its
    // effect.
    give_back(guard).await;
    let next = served(next).await;
    let spent = rig.server.script_calls().await - calls;
    // A release, and what a waiter says in a second without any message.
    assert!(spent <= 4 + 2 * begun.elapsed().as_secs(), "{spent} calls");
    assert_eq!(waiting(&a).await, Some(0));
    give_back(next).await;
    rig.settled().await;
}

/// Faults 19 and 21.
#[tokio::test]
async fn a_push_that_does_not_arrive_costs_a_claim_and_no_ttl() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let (a, b) = (
        mutex(&rig.handle()),
        mutex(&through(&proxy).build().expect("valid")),
    );
    let guard = hold(&a).await;
    let next = queue(&b);
    until_waiting(&a, 1).await;
    wait_for("it listens", LIMIT, async || inboxes(&rig).len() == 1).await;
    proxy.set_subscribers(Mode::HoldReplies);
    give_back(guard).await;
    let next = within(UNHEARD, "it is served without its push", next).await;
    let next = next.expect("no panic").expect("its turn comes");
    proxy.set_subscribers(Mode::Pass);
    assert!(next.is_held());
    give_back(next).await;
    rig.settled().await;
}

/// C95.
#[tokio::test]
async fn an_inbox_that_is_half_open_is_replaced() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let (a, b) = (
        mutex(&rig.handle()),
        mutex(&through(&proxy).build().expect("valid")),
    );
    let guard = hold(&a).await;
    let next = queue(&b);
    until_waiting(&a, 1).await;
    wait_for("it listens", LIMIT, async || inboxes(&rig).len() == 1).await;
    proxy.set_subscribers(Mode::HalfOpen);
    wait_for("the server sees the end", LIMIT, async || {
        inboxes(&rig).is_empty()
    })
    .await;
    // What is half open stays so; what is new passes.
    proxy.set_subscribers(Mode::Pass);
    give_back(guard).await;
    let next = within(UNHEARD, "it is served", next)
        .await
        .expect("no panic");
    let next = next.expect("its turn comes");
    wait_for("it listens again", UNHEARD, async || {
        inboxes(&rig).len() == 1
    })
    .await;
    let channel = inboxes(&rig).remove(0);
    let listeners: (String, i64) = ask(
        &mut rig.server.connection(),
        &["PUBSUB", "NUMSUB", &channel],
    );
    assert_eq!(listeners, (channel, 1));
    give_back(next).await;
    rig.settled().await;
}

/// C33.
#[tokio::test]
async fn an_inbox_that_the_server_drops_for_being_slow_is_replaced() {
    let rig = ServerRig::start();
    let limit = [
        "CONFIG",
        "SET",
        "client-output-buffer-limit",
        "pubsub 65536 0 0",
    ];
    rig.server.command(&limit).await;
    let proxy = Proxy::start(rig.server.port());
    let (a, b) = (
        mutex(&rig.handle()),
        mutex(&through(&proxy).build().expect("valid")),
    );
    let guard = hold(&a).await;
    let next = queue(&b);
    until_waiting(&a, 1).await;
    wait_for("it listens", LIMIT, async || inboxes(&rig).len() == 1).await;
    let inbox = inboxes(&rig).remove(0);
    proxy.set_subscribers(Mode::HoldReplies);
    let junk = "x".repeat(10_000);
    wait_for("the server drops it", LIMIT, async || {
        let mut pipeline = redis::pipe();
        for _ in 0..200 {
            pipeline.cmd("PUBLISH").arg(&inbox).arg(&junk).ignore();
        }
        pipeline
            .query::<()>(&mut rig.server.connection())
            .expect("published");
        inboxes(&rig).is_empty()
    })
    .await;
    proxy.set_subscribers(Mode::Pass);
    give_back(guard).await;
    let next = within(UNHEARD, "it is served", next)
        .await
        .expect("no panic");
    give_back(next.expect("its turn comes")).await;
    rig.settled().await;
}

/// C41: the hand-off itself is lost, and the wait has no end of its own.
#[tokio::test]
async fn a_waiter_whose_inbox_dies_at_the_hand_off_is_served() {
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    for _ in 0..10 {
        let guard = hold(&a).await;
        let next = queue(&b);
        until_waiting(&a, 1).await;
        let killed = rig
            .server
            .command(&["CLIENT", "KILL", "TYPE", "pubsub"])
            .await;
        assert!(matches!(killed, Value::Int(_)));
        give_back(guard).await;
        give_back(served(next).await).await;
    }
    rig.settled().await;
}

/// C21: the release comes between the first answer and the confirmation of the subscription.
#[tokio::test]
async fn a_release_before_the_inbox_is_open_is_not_missed() {
    const LATE: Duration = Duration::from_millis(300);
    let rig = ServerRig::start();
    let a = mutex(&rig.handle());
    for _ in 0..3 {
        // A fresh handle, whose first wait opens its inbox.
        let proxy = Proxy::start(rig.server.port());
        proxy.set_subscribers(Mode::Delay(LATE));
        let b = mutex(&through(&proxy).build().expect("valid"));
        let guard = hold(&a).await;
        let next = queue(&b);
        until_waiting(&a, 1).await;
        assert!(inboxes(&rig).is_empty());
        give_back(guard).await;
        give_back(served(next).await).await;
    }
    rig.settled().await;
}
