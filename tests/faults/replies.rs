//! Requests and answers that are lost (faults 4 and 5), at any moment of a call.

use std::time::{Duration, Instant};

use portcullis::{LostReason, Release};
use tokio::time::sleep;

use crate::common::{
    LIMIT, LONG, give_back, promptly, queue, served, served_within, take, until_waiting, waiting,
    within,
};
use crate::rig::{Rig, ServerRig};
use crate::support::{History, Mode, Proxy, wait_for};
use crate::{
    CLAIM, assert_unanswered, holder, keeps, mutex, plain_mutex, queued, random, semaphore, through,
};

/// Fault 4; M1, M5. Whatever the moment, it is sent again until it has run, and holds once.
#[tokio::test]
async fn an_acquire_whose_request_is_lost_is_sent_again_and_holds_once() {
    let rig = ServerRig::start();
    let mut random = random(1);
    for round in 0..6 {
        let proxy = Proxy::start(rig.server.port());
        let handle = through(&proxy).build().expect("valid");
        let (lock, permits) = (
            mutex(&handle, LONG).max_wait(LONG),
            semaphore(&handle, 2, LONG).max_wait(LONG),
        );
        // Of a fresh handle the connection itself is lost, of a used one the request.
        if round % 2 == 0 {
            give_back(take(&lock).await).await;
        }
        proxy.set(Mode::EatRequests);
        let asked = (queue(&lock), queue(&permits));
        sleep(random.millis(1, 900)).await;
        assert_eq!(holder(&rig).await, None, "nothing got through");
        proxy.set(Mode::Pass);
        let guard = within(LIMIT, "it is served", asked.0).await;
        let guard = guard.expect("no panic").expect("it is free");
        let permit = within(LIMIT, "it is served", asked.1).await;
        let permit = permit.expect("no panic").expect("it is free");
        let fence = holder(&rig).await.map(|(_, fence)| fence);
        assert_eq!(fence, Some(guard.fencing_token().get()));
        // One permit of two is held, and not one for each time that it was asked for.
        let other = take(&semaphore(&rig.handle(), 2, LONG)).await;
        give_back(other).await;
        give_back(permit).await;
        give_back(guard).await;
        rig.settled().await;
    }
}

/// Fault 4; C2.
#[tokio::test]
async fn a_release_whose_request_is_lost_is_sent_again() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let lock = mutex(&through(&proxy).build().expect("valid"), LONG).max_wait(LONG);
    let mut random = random(2);
    for _ in 0..3 {
        let guard = within(LIMIT, "taken", lock.lock()).await.expect("free");
        proxy.set(Mode::EatRequests);
        let answer = promptly("it tells", guard.release()).await;
        assert_unanswered(&answer.expect_err("nobody heard it"));
        assert!(holder(&rig).await.is_some());
        sleep(random.millis(1, 400)).await;
        proxy.set(Mode::Pass);
        promptly("it is given back", rig.settled()).await;
    }
}

/// Fault 5; F1, F4, M5: it stands in the queue, and does not know.
#[tokio::test]
async fn a_waiter_whose_answer_was_lost_keeps_its_place() {
    let rig = ServerRig::start();
    let mut random = random(3);
    let proxy = Proxy::start(rig.server.port());
    let first = mutex(&through(&proxy).build().expect("valid"), LONG);
    let second = mutex(&rig.handle(), LONG);
    // A third process: where locks are handed on among a process' own requests, the holder's come first.
    let others = rig.handle();
    let third = mutex(&others, LONG);
    let mut rounds = 0;
    while rounds < 3 {
        // Known to be free, so that only the answer to this wait is lost.
        give_back(within(LIMIT, "taken", first.lock()).await.expect("free")).await;
        let guard = take(&second).await;
        let silent = Instant::now();
        if keeps() {
            // A recall that is eaten costs the inbox, and who hears nothing is not thought alive.
            // That is another fault.
            proxy.set_commands(Mode::EatReplies);
        } else {
            proxy.set(Mode::EatReplies);
        }
        let early = queue(&first.clone().max_wait(LONG));
        wait_for("it stands in the queue", LIMIT, async || {
            queued(&rig).await == 1
        })
        .await;
        let late = queue(&third);
        until_waiting(&plain_mutex(&others, LONG), 2).await;
        sleep(random.millis(1, 700)).await;
        assert_eq!(queued(&rig).await, 2, "asked again, it is the same place");
        proxy.set(Mode::Pass);
        if silent.elapsed() > CLAIM - Duration::from_secs(1) {
            // The machine was so busy that its process is not thought alive any more. That is
            // another fault.
            drop(guard);
            early.abort();
            late.abort();
            rig.settled().await;
            continue;
        }
        rounds += 1;
        give_back(guard).await;
        let early = served_within(LIMIT, early).await;
        assert!(!late.is_finished(), "nobody has overtaken it");
        let fence = early.fencing_token();
        give_back(early).await;
        let late = served(late).await;
        assert!(late.fencing_token() > fence);
        give_back(late).await;
    }
    rig.settled().await;
}

/// Fault 5; C2, M2: it ran, is not known to have, and is sent again when another holds.
#[tokio::test]
async fn a_release_whose_answer_is_lost_does_not_release_the_next_holder() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let ours = mutex(&through(&proxy).build().expect("valid"), LONG).max_wait(LONG);
    let handles = [rig.handle(), rig.handle()];
    let theirs = [&handles[0], &handles[1]].map(|handle| mutex(handle, LONG));
    let seen = [&handles[0], &handles[1]].map(|handle| plain_mutex(handle, LONG));
    for _ in 0..3 {
        let guard = within(LIMIT, "taken", ours.lock()).await.expect("free");
        let next = queue(&theirs[0]);
        until_waiting(&seen[0], 1).await;
        let last = queue(&theirs[1]);
        until_waiting(&seen[1], 2).await;
        proxy.set(Mode::EatReplies);
        let answer = promptly("it tells", guard.release()).await;
        assert_unanswered(&answer.expect_err("nobody answered"));
        let next = served(next).await;
        let held = holder(&rig).await;
        let calls = rig.server.script_calls().await;
        proxy.set(Mode::Pass);
        // It says it again, and is answered now.
        wait_for("it is said again", LIMIT, async || {
            rig.server.script_calls().await > calls
        })
        .await;
        // The next holder's own calls are among those, so what was said again is waited for too:
        // another call of the same handle comes after it.
        assert_eq!(
            within(LIMIT, "answered", waiting(&ours.clone().max_wait(LONG))).await,
            Some(1)
        );
        assert_eq!(holder(&rig).await, held);
        assert!(next.is_held() && !last.is_finished());
        give_back(next).await;
        give_back(served(last).await).await;
    }
    rig.settled().await;
}

/// Fault 5; M4: the server keeps the lease for longer than its holder may believe.
#[tokio::test]
async fn renewals_that_are_not_answered_lengthen_nothing_for_the_holder() {
    const TTL: Duration = Duration::from_secs(2);
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let ours = mutex(&through(&proxy).build().expect("valid"), TTL);
    let guard = take(&ours).await;
    let lost = tokio::spawn({
        let lost = guard.lost();
        async move { (lost.await, History::now()) }
    });
    let next = queue(&mutex(&rig.handle(), TTL));
    until_waiting(&mutex(&rig.handle(), TTL), 1).await;
    // Until here it may have been renewed, and not later.
    let last = History::now();
    proxy.set(Mode::EatReplies);
    let (reason, told) = within(LIMIT, "its loss is told", lost)
        .await
        .expect("no panic");
    assert_eq!(reason, LostReason::Expired);
    // Told so late, it had believed in what was not answered: each renewal would add two thirds of
    // a second. Less is what a busy machine takes to wake a task.
    let late = told.saturating_sub(last + TTL.as_nanos() as u64);
    assert!(late < 600_000_000, "told {late} ns late");
    assert!(!guard.is_held());
    // Each renewal has run, and each lengthened it on the server: still nobody else is let in
    // before that has ended.
    let next = served_within(LIMIT, next).await;
    assert!(History::now() > told);
    assert!(next.fencing_token() > guard.fencing_token());
    proxy.set(Mode::Pass);
    let answer = within(LIMIT, "answered", guard.release()).await;
    assert!(
        matches!(answer, Ok(Release::NoLongerHeld) | Err(_)),
        "{answer:?}"
    );
    assert!(next.is_held());
    give_back(next).await;
    rig.settled().await;
}
