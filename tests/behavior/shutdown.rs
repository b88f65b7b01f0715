//! The end of a handle (C127).

use std::time::Duration;

use portcullis::{LostReason, Mutex, Portcullis, RefusalKind, Release};

use crate::common::{
    LONG, give_back, promptly, queue, refusal, served, take, until_waiting, waiting,
};
use crate::rig::Rig;

fn mutex<R: Rig>(handle: &Portcullis) -> Mutex {
    R::mutex(handle.mutex("job").ttl(LONG).expect("in range"))
}

pub(crate) async fn newcomers_and_waiters_are_refused_at_once_and_guards_live_on<R: Rig>() {
    let rig = R::start();
    let (old, new) = (rig.handle(), rig.handle());
    let guard = take(&mutex::<R>(&old)).await;
    let waiter = queue(&mutex::<R>(&old));
    until_waiting(&mutex::<R>(&new), 1).await;
    let ending = tokio::spawn({
        let old = old.clone();
        async move { old.shutdown(LONG).await }
    });
    let refused = promptly("the waiter is refused", waiter)
        .await
        .expect("no panic");
    assert_eq!(refusal(refused).kind(), RefusalKind::ShuttingDown);
    for mutex in [mutex::<R>(&old), mutex::<R>(&old).keyed("free")] {
        let refused = refusal(promptly("a refusal", mutex.lock()).await);
        assert_eq!(refused.kind(), RefusalKind::ShuttingDown);
        assert_eq!(
            refusal(mutex.try_lock().await).kind(),
            RefusalKind::ShuttingDown
        );
    }
    assert!(guard.is_held());
    assert!(!ending.is_finished());
    until_waiting(&mutex::<R>(&new), 0).await;
    give_back(guard).await;
    let report = promptly("the shutdown ends with its last guard", ending)
        .await
        .expect("no panic");
    assert_eq!((report.released, report.abandoned), (1, 0));
    rig.settled().await;
}

pub(crate) async fn guards_that_end_in_time_are_counted_as_released<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let semaphore = handle
        .semaphore("slots", 5)
        .expect("in range")
        .ttl(LONG)
        .expect("in range");
    let semaphore = R::semaphore(semaphore);
    let mut permits = vec![
        take(&semaphore).await,
        take(&semaphore).await,
        take(&semaphore).await,
    ];
    let ending = handle.shutdown(LONG);
    tokio::pin!(ending);
    assert_eq!(crate::support::poll_k_times(&mut ending, 1).await, None);
    drop(permits.pop());
    assert_eq!(
        permits.remove(0).release().await.expect("answered"),
        Release::Released
    );
    drop(permits);
    let report = promptly("the shutdown ends", ending).await;
    assert_eq!((report.released, report.abandoned), (3, 0));
    rig.settled().await;
}

pub(crate) async fn guards_that_stay_are_lost_at_the_deadline<R: Rig>() {
    let rig = R::start();
    let (old, new) = (rig.handle(), rig.handle());
    let guard = take(&mutex::<R>(&old)).await;
    let successor = queue(&mutex::<R>(&new));
    until_waiting(&mutex::<R>(&new), 1).await;
    let report = promptly(
        "the shutdown ends",
        old.shutdown(Duration::from_millis(200)),
    )
    .await;
    assert_eq!((report.released, report.abandoned), (1, 0));
    assert_eq!(
        promptly("its loss is told", guard.lost()).await,
        LostReason::ShutDown
    );
    assert!(!guard.is_held());
    let answer = promptly("answered", guard.release())
        .await
        .expect("answered");
    assert_eq!(answer, Release::NoLongerHeld);
    give_back(served(successor).await).await;
    rig.settled().await;
}

pub(crate) async fn a_second_shutdown_is_harmless<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let guard = take(&mutex::<R>(&handle)).await;
    let patient = tokio::spawn({
        let handle = handle.clone();
        async move { handle.shutdown(LONG).await }
    });
    // The second one is in more of a hurry, and that counts.
    let hasty = promptly("the hasty one ends", handle.shutdown(Duration::ZERO)).await;
    let patient = promptly("and the patient one with it", patient)
        .await
        .expect("no panic");
    assert_eq!(hasty, patient);
    assert_eq!((hasty.released, hasty.abandoned), (1, 0));
    drop(guard);
    let third = promptly("a third one ends", handle.shutdown(LONG)).await;
    assert_eq!(third.abandoned, 0);
    rig.settled().await;
}

pub(crate) async fn the_successor_acquires_promptly<R: Rig>() {
    let rig = R::start();
    let (old, new) = (rig.handle(), rig.handle());
    let guards = [
        take(&mutex::<R>(&old)).await,
        take(&mutex::<R>(&old).keyed("more")).await,
    ];
    let waiter = queue(&mutex::<R>(&old));
    until_waiting(&mutex::<R>(&new), 1).await;
    let successor = queue(&mutex::<R>(&new));
    until_waiting(&mutex::<R>(&new), 2).await;
    drop(guards);
    let waiter = served(waiter).await;
    let ending = tokio::spawn(async move { old.shutdown(LONG).await });
    drop(waiter);
    promptly("the old one ends", ending)
        .await
        .expect("no panic");
    let successor = served(successor).await;
    assert_eq!(waiting(&mutex::<R>(&new)).await, Some(0));
    drop((successor, take(&mutex::<R>(&new).keyed("more")).await));
    rig.settled().await;
}

pub(crate) async fn what_was_dropped_at_the_last_moment_is_delivered<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let mut guards = Vec::new();
    for number in 0..50 {
        guards.push(take(&mutex::<R>(&handle).keyed(number)).await);
    }
    drop(guards);
    let report = promptly("the shutdown ends", handle.shutdown(LONG)).await;
    assert_eq!(report.abandoned, 0);
    // Not merely under way: it was answered, so no waiting is needed here.
    let new = rig.handle();
    for number in 0..50 {
        drop(
            mutex::<R>(&new)
                .keyed(number)
                .try_lock()
                .await
                .expect("it was given back"),
        );
    }
    rig.settled().await;
}
