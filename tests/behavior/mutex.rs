//! What a mutex does for the handles that share it.

use std::time::{Duration, Instant};

use portcullis::{Portcullis, RefusalKind, Release};
use tokio::task::JoinSet;

use crate::common::{
    LIMIT, LONG, PROMPT, all_done, give_back, promptly, queue, refusal, served, take,
    until_waiting, visit, waiting, within,
};
use crate::rig::Rig;
use crate::support::history::{fences_follow_holds, fences_rise};
use crate::support::{History, wait_for};

fn mutex<R: Rig>(handle: &Portcullis) -> portcullis::Mutex {
    R::mutex(handle.mutex("withdraw").ttl(LONG).expect("in range"))
}

pub(crate) async fn two_handles_exclude_each_other<R: Rig>() {
    let rig = R::start();
    let history = History::default();
    let mut tasks = JoinSet::new();
    for handle in [rig.handle(), rig.handle()] {
        for _ in 0..10 {
            let (mutex, history) = (mutex::<R>(&handle), history.clone());
            tasks.spawn(async move {
                for _ in 0..10 {
                    visit(&mutex, &history).await;
                }
            });
        }
    }
    all_done(tasks).await;
    assert_eq!(history.holds().len(), 200);
    history.assert_sound(1);
    assert_eq!(fences_follow_holds(&history.holds()), Ok(()));
    rig.settled().await;
}

pub(crate) async fn waiters_of_two_handles_are_served_in_the_order_they_came<R: Rig>() {
    let rig = R::start();
    let mutexes = [mutex::<R>(&rig.handle()), mutex::<R>(&rig.handle())];
    let first = take(&mutexes[0]).await;
    let mut queued = Vec::new();
    for number in 0..8_usize {
        queued.push(queue(&mutexes[number % 2]));
        until_waiting(&mutexes[0], queued.len() as u64).await;
    }
    let mut last = first.fencing_token();
    give_back(first).await;
    for task in queued {
        let guard = served(task).await;
        assert!(guard.fencing_token() > last);
        last = guard.fencing_token();
        give_back(guard).await;
    }
    rig.settled().await;
}

pub(crate) async fn a_release_hands_over_promptly_however_long_the_ttl<R: Rig>() {
    let rig = R::start();
    let (a, b) = (mutex::<R>(&rig.handle()), mutex::<R>(&rig.handle()));
    for _ in 0..20 {
        let guard = take(&a).await;
        let next = queue(&b);
        until_waiting(&a, 1).await;
        give_back(guard).await;
        give_back(served(next).await).await;
    }
    rig.settled().await;
}

pub(crate) async fn a_try_is_refused_with_when_to_retry_and_how_many_wait<R: Rig>() {
    let rig = R::start();
    let (a, b) = (mutex::<R>(&rig.handle()), mutex::<R>(&rig.handle()));
    let guard = take(&a).await;
    let alone = refusal(b.try_lock().await);
    assert_eq!(
        (alone.kind(), alone.position()),
        (RefusalKind::Busy, Some(0))
    );
    let retry_after = alone.retry_after().expect("the lease's end is known");
    assert!(
        retry_after <= LONG && retry_after > LONG - PROMPT,
        "{retry_after:?}"
    );
    let next = queue(&b);
    until_waiting(&a, 1).await;
    assert_eq!(refusal(a.try_lock().await).position(), Some(1));
    give_back(guard).await;
    give_back(served(next).await).await;
    give_back(b.try_lock().await.expect("it is free")).await;
    rig.settled().await;
}

pub(crate) async fn a_wait_ends_at_max_wait<R: Rig>() {
    const MAX_WAIT: Duration = Duration::from_millis(300);
    let rig = R::start();
    let (a, b) = (mutex::<R>(&rig.handle()), mutex::<R>(&rig.handle()));
    let guard = take(&a).await;
    let begun = Instant::now();
    let waited = refusal(promptly("the wait ends", b.clone().max_wait(MAX_WAIT).lock()).await);
    assert_eq!(
        (waited.kind(), waited.position()),
        (RefusalKind::WaitedTooLong, Some(0))
    );
    assert!(
        waited
            .retry_after()
            .is_some_and(|after| after > LONG - 2 * PROMPT)
    );
    assert!(begun.elapsed() >= MAX_WAIT);
    wait_for("its place is given up", PROMPT, async || {
        waiting(&a).await == Some(0)
    })
    .await;
    give_back(guard).await;
    rig.settled().await;
}

pub(crate) async fn a_max_wait_of_zero_is_a_try<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        mutex::<R>(&rig.handle()),
        mutex::<R>(&rig.handle()).max_wait(Duration::ZERO),
    );
    let guard = take(&a).await;
    assert_eq!(refusal(b.lock().await).kind(), RefusalKind::Busy);
    give_back(guard).await;
    give_back(take(&b).await).await;
    rig.settled().await;
}

pub(crate) async fn as_many_wait_as_may_and_the_next_is_refused<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        mutex::<R>(&rig.handle()).max_waiters(2),
        mutex::<R>(&rig.handle()).max_waiters(2),
    );
    let guard = take(&a).await;
    let queued = [queue(&a), queue(&b)];
    until_waiting(&a, 2).await;
    for mutex in [&a, &b] {
        let full = refusal(promptly("a full queue refuses", mutex.lock()).await);
        assert_eq!(
            (full.kind(), full.position()),
            (RefusalKind::QueueFull, Some(2))
        );
        assert!(full.retry_after().is_some());
    }
    // A try does not want to wait, so the queue is not what it is refused for.
    assert_eq!(refusal(a.try_lock().await).kind(), RefusalKind::Busy);
    drop(guard);
    // In whichever order they came in.
    let mut tasks = JoinSet::new();
    for task in queued {
        tasks.spawn(async move { give_back(served(task).await).await });
    }
    all_done(tasks).await;
    rig.settled().await;
}

pub(crate) async fn where_nobody_may_wait_a_free_lock_is_still_taken<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        mutex::<R>(&rig.handle()).max_waiters(0),
        mutex::<R>(&rig.handle()).max_waiters(0),
    );
    let guard = take(&a).await;
    let full = refusal(promptly("nobody may wait", b.lock()).await);
    assert_eq!(full.kind(), RefusalKind::QueueFull);
    give_back(guard).await;
    give_back(take(&b).await).await;
    rig.settled().await;
}

pub(crate) async fn a_dropped_waiter_gives_its_place_up<R: Rig>() {
    let rig = R::start();
    let (a, b) = (mutex::<R>(&rig.handle()), mutex::<R>(&rig.handle()));
    let guard = take(&a).await;
    // One in front of the one that stays, and one behind it.
    let mut leaving = vec![queue(&a)];
    until_waiting(&a, 1).await;
    let staying = queue(&b);
    until_waiting(&a, 2).await;
    leaving.push(queue(&b));
    until_waiting(&a, 3).await;
    for task in leaving {
        task.abort();
    }
    wait_for("two places are given up", PROMPT, async || {
        waiting(&a).await == Some(1)
    })
    .await;
    give_back(guard).await;
    give_back(served(staying).await).await;
    rig.settled().await;
}

pub(crate) async fn the_same_task_does_not_get_a_lock_twice<R: Rig>() {
    let rig = R::start();
    let mutex = mutex::<R>(&rig.handle());
    let guard = take(&mutex).await;
    assert_eq!(refusal(mutex.try_lock().await).kind(), RefusalKind::Busy);
    let again = mutex
        .clone()
        .max_wait(Duration::from_millis(100))
        .lock()
        .await;
    assert_eq!(refusal(again).kind(), RefusalKind::WaitedTooLong);
    assert!(guard.is_held());
    drop(guard);
    rig.settled().await;
}

pub(crate) async fn a_guard_that_is_dropped_and_one_that_is_released_free_the_lock_alike<R: Rig>() {
    let rig = R::start();
    let (a, b) = (mutex::<R>(&rig.handle()), mutex::<R>(&rig.handle()));
    drop(take(&a).await);
    let guard = take(&b).await;
    assert_eq!(guard.release().await.expect("answered"), Release::Released);
    let guard = take(&a).await;
    // The release is on its way when it is asked for, whatever becomes of its future.
    drop(guard.release());
    drop(take(&b).await);
    rig.settled().await;
}

pub(crate) async fn fencing_tokens_rise_from_holder_to_holder<R: Rig>() {
    let rig = R::start();
    let mutexes = [mutex::<R>(&rig.handle()), mutex::<R>(&rig.handle())];
    let history = History::default();
    for turn in 0..100 {
        visit(&mutexes[turn % 2], &history).await;
    }
    assert_eq!(fences_rise(&history.holds()), Ok(()));
    assert_eq!(fences_follow_holds(&history.holds()), Ok(()));
    rig.settled().await;
}

/// C145: with the defaults nobody's time runs out only because there are many.
pub(crate) async fn five_thousand_tasks_are_served_with_the_defaults<R: Rig>() {
    let rig = R::start();
    let mutex = R::mutex(rig.handle().mutex("withdraw"));
    let mut tasks = JoinSet::new();
    for _ in 0..5_000 {
        let mutex = mutex.clone();
        tasks.spawn(async move { drop(mutex.lock().await.expect("its turn comes")) });
    }
    within(3 * LIMIT, "all are served", tasks.join_all()).await;
    rig.settled().await;
}

/// The stress form of C21: no hand-over may wait for anything but the wake-up.
pub(crate) async fn two_tasks_play_ping_pong_without_a_lost_wake_up<R: Rig>() {
    let rig = R::start();
    let mut tasks = JoinSet::new();
    for mutex in [mutex::<R>(&rig.handle()), mutex::<R>(&rig.handle())] {
        tasks.spawn(async move {
            for _ in 0..1_000 {
                drop(take(&mutex).await);
            }
        });
    }
    all_done(tasks).await;
    rig.settled().await;
}
