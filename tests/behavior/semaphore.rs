//! What a semaphore does for the handles that share it.

use std::time::Duration;

use portcullis::{
    LeaseMode, LostReason, Portcullis, RefusalKind, Release, Semaphore, SemaphorePermit,
};
use tokio::task::{JoinHandle, JoinSet};

use crate::common::{
    LIMIT, LONG, PROMPT, all_done, give_back, note, promptly, queue, refusal, served, take,
    until_waiting, visit, waiting, within,
};
use crate::rig::Rig;
use crate::support::history::cap_kept;
use crate::support::{History, wait_for};

fn semaphore<R: Rig>(handle: &Portcullis, limit: u32) -> Semaphore {
    let semaphore = handle.semaphore("reports", limit).expect("in range");
    R::semaphore(semaphore.ttl(LONG).expect("in range"))
}

/// No more were inside than may; and in order, where there is one.
fn assert_sound<R: Rig>(history: &History, cap: u32) {
    if R::ORDERED {
        history.assert_sound(cap);
    } else {
        assert_eq!(cap_kept(&history.holds(), cap), Ok(()));
    }
}

async fn take_many(semaphore: &Semaphore, permits: u32) -> SemaphorePermit {
    promptly("what is free is taken", semaphore.acquire_many(permits))
        .await
        .expect("it is free")
}

fn queue_many(
    semaphore: &Semaphore,
    permits: u32,
) -> JoinHandle<Result<SemaphorePermit, portcullis::LockError>> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move { semaphore.acquire_many(permits).await })
}

pub(crate) async fn no_more_than_the_limit_are_inside<R: Rig>() {
    let rig = R::start();
    let history = History::default();
    let mut tasks = JoinSet::new();
    for handle in [rig.handle(), rig.handle()] {
        for _ in 0..12 {
            let (semaphore, history) = (semaphore::<R>(&handle, 4), history.clone());
            tasks.spawn(async move {
                for _ in 0..10 {
                    visit(&semaphore, &history).await;
                }
            });
        }
    }
    all_done(tasks).await;
    assert_eq!(history.holds().len(), 240);
    assert_sound::<R>(&history, 4);
    rig.settled().await;
}

/// C17.
pub(crate) async fn a_fresh_one_is_full_and_a_second_handle_finds_none_free<R: Rig>() {
    let rig = R::start();
    let a = semaphore::<R>(&rig.handle(), 3);
    let permits = [take(&a).await, take(&a).await, take(&a).await];
    let b = semaphore::<R>(&rig.handle(), 3);
    let busy = refusal(b.try_acquire().await);
    assert_eq!((busy.kind(), busy.position()), (RefusalKind::Busy, Some(0)));
    assert!(
        busy.retry_after()
            .is_some_and(|after| after <= LONG && after > LONG - 2 * PROMPT)
    );
    drop(permits);
    rig.settled().await;
    drop(take_many(&b, 3).await);
    rig.settled().await;
}

/// C15, one by one.
pub(crate) async fn a_large_request_is_not_passed_by_small_ones_behind_it<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        semaphore::<R>(&rig.handle(), 3),
        semaphore::<R>(&rig.handle(), 3),
    );
    let [first, second, third] = [take(&a).await, take(&a).await, take(&a).await];
    let large = queue_many(&b, 2);
    until_waiting(&a, 1).await;
    let small = queue(&a);
    until_waiting(&a, 2).await;
    // One is free now. It would do for the small one, which came later.
    give_back(first).await;
    assert_eq!(waiting(&a).await, Some(2));
    assert!(!small.is_finished());
    give_back(second).await;
    let large = served(large).await;
    assert_eq!(waiting(&a).await, Some(1));
    give_back(third).await;
    give_back(served(small).await).await;
    give_back(large).await;
    rig.settled().await;
}

/// C15, all at once.
pub(crate) async fn permits_that_come_back_at_once_serve_all_whom_they_suffice<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        semaphore::<R>(&rig.handle(), 3),
        semaphore::<R>(&rig.handle(), 3),
    );
    let permits = take_many(&a, 3).await;
    let large = queue_many(&b, 2);
    until_waiting(&a, 1).await;
    let small = queue(&a);
    until_waiting(&a, 2).await;
    give_back(permits).await;
    let _both = (served(large).await, served(small).await);
    until_waiting(&a, 0).await;
}

pub(crate) async fn a_stream_of_small_requests_does_not_starve_a_large_one<R: Rig>() {
    let rig = R::start();
    let mut stream = JoinSet::new();
    for handle in [rig.handle(), rig.handle()] {
        for _ in 0..6 {
            let small = semaphore::<R>(&handle, 4);
            stream.spawn(async move {
                loop {
                    let permit = small.acquire().await.expect("its turn comes");
                    tokio::task::yield_now().await;
                    drop(permit);
                }
            });
        }
    }
    let large = semaphore::<R>(&rig.handle(), 4);
    for _ in 0..20 {
        drop(promptly("a large request has its turn", large.acquire_many(4)).await);
    }
    stream.shutdown().await;
    rig.settled().await;
}

pub(crate) async fn what_never_fits_is_refused_at_once<R: Rig>() {
    let rig = R::start();
    let semaphore = semaphore::<R>(&rig.handle(), 3);
    for permits in [4, u32::MAX, 0] {
        let never = refusal(promptly("a refusal", semaphore.acquire_many(permits)).await);
        assert_eq!(
            (never.kind(), never.retry_after()),
            (RefusalKind::NeverFits, None)
        );
        let text = never.to_string();
        assert!(text.contains(&format!("{permits} of 3 permits")), "{text}");
    }
    let all = take_many(&semaphore, 3).await;
    let never = refusal(promptly("a refusal", semaphore.acquire_many(4)).await);
    assert_eq!(never.kind(), RefusalKind::NeverFits);
    drop(all);
    let error = rig
        .handle()
        .semaphore("reports", 0)
        .expect_err("no permits at all");
    assert_eq!(error.field(), "limit");
    rig.settled().await;
}

pub(crate) async fn weights_are_conserved<R: Rig>() {
    const LIMIT_OF_PERMITS: u32 = 5;
    let rig = R::start();
    let history = History::default();
    let mut tasks = JoinSet::new();
    for (number, handle) in [rig.handle(), rig.handle()].into_iter().enumerate() {
        for task in 0..8_u32 {
            let semaphore = semaphore::<R>(&handle, LIMIT_OF_PERMITS);
            let history = history.clone();
            tasks.spawn(async move {
                for turn in 0..15 {
                    let weight = 1 + (task + 3 * turn + number as u32) % LIMIT_OF_PERMITS;
                    let entering = semaphore.acquire_many(weight);
                    let permit = note(&history, weight, entering, tokio::task::yield_now()).await;
                    drop(permit.expect("its turn comes"));
                }
            });
        }
    }
    all_done(tasks).await;
    assert_sound::<R>(&history, LIMIT_OF_PERMITS);
    rig.settled().await;
    drop(
        take_many(
            &semaphore::<R>(&rig.handle(), LIMIT_OF_PERMITS),
            LIMIT_OF_PERMITS,
        )
        .await,
    );
    rig.settled().await;
}

pub(crate) async fn a_try_does_not_overtake_a_waiter<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        semaphore::<R>(&rig.handle(), 2),
        semaphore::<R>(&rig.handle(), 2),
    );
    let permit = take(&a).await;
    let large = queue_many(&a, 2);
    // One is free, and stays so: whoever came first needs both.
    wait_for("one waits", LIMIT, async || match b.try_acquire().await {
        Ok(_too_early) => false,
        refused => refusal(refused).position() == Some(1),
    })
    .await;
    give_back(permit).await;
    drop(served(large).await);
    rig.settled().await;
}

/// S2: processes of two releases, of which one allows four and the other two.
pub(crate) async fn each_request_is_judged_by_its_own_limit<R: Rig>() {
    let rig = R::start();
    let (four, two) = (
        semaphore::<R>(&rig.handle(), 4),
        semaphore::<R>(&rig.handle(), 2),
    );
    let mut permits = vec![take(&four).await, take(&four).await, take(&four).await];
    assert_eq!(refusal(two.try_acquire().await).kind(), RefusalKind::Busy);
    permits.push(take(&four).await);
    assert_eq!(refusal(four.try_acquire().await).kind(), RefusalKind::Busy);
    let three = refusal(promptly("a refusal", two.acquire_many(3)).await);
    assert_eq!(three.kind(), RefusalKind::NeverFits);
    for _ in 0..2 {
        give_back(permits.pop().expect("four were taken")).await;
    }
    assert_eq!(refusal(two.try_acquire().await).kind(), RefusalKind::Busy);
    give_back(permits.pop().expect("four were taken")).await;
    permits.push(take(&two).await);
    assert_eq!(refusal(two.try_acquire().await).kind(), RefusalKind::Busy);
    permits.push(take_many(&four, 2).await);
    assert_eq!(refusal(four.try_acquire().await).kind(), RefusalKind::Busy);
    drop(permits);
    rig.settled().await;
}

pub(crate) async fn a_newcomer_with_a_larger_limit_does_not_pass_a_waiter_with_a_smaller_one<
    R: Rig,
>() {
    let rig = R::start();
    let (four, two) = (
        semaphore::<R>(&rig.handle(), 4),
        semaphore::<R>(&rig.handle(), 2),
    );
    let permits = take_many(&four, 3).await;
    let waiter = queue(&two);
    until_waiting(&two, 1).await;
    // By its own limit there is room for it, but not a turn.
    let busy = refusal(four.try_acquire().await);
    assert_eq!((busy.kind(), busy.position()), (RefusalKind::Busy, Some(1)));
    let behind = queue(&four);
    until_waiting(&two, 2).await;
    give_back(permits).await;
    drop((served(waiter).await, served(behind).await));
    rig.settled().await;
}

/// C11 and C13.
pub(crate) async fn an_expired_permit_that_is_released_adds_no_capacity<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        semaphore::<R>(&rig.handle(), 2),
        semaphore::<R>(&rig.handle(), 2),
    );
    let fixed = a.clone().ttl(Duration::from_millis(300)).expect("in range");
    let fixed = fixed.lease(LeaseMode::Fixed).expect("in range");
    let expiring = [take(&fixed).await, take(&fixed).await];
    let successors = [served(queue(&b)).await, served(queue(&b)).await];
    for permit in expiring {
        assert!(!permit.is_held());
        let answer = promptly("a release is answered", permit.release()).await;
        assert_eq!(answer.expect("answered"), Release::NoLongerHeld);
    }
    until_waiting(&a, 0).await;
    assert!(successors.iter().all(SemaphorePermit::is_held));
    for permit in successors {
        give_back(permit).await;
    }
    let history = History::default();
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let (semaphore, history) = (a.clone(), history.clone());
        tasks.spawn(async move { visit(&semaphore, &history).await });
    }
    all_done(tasks).await;
    history.assert_sound(2);
    rig.settled().await;
}

pub(crate) async fn permits_end_one_by_one<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        semaphore::<R>(&rig.handle(), 2),
        semaphore::<R>(&rig.handle(), 2),
    );
    let fixed = a.clone().ttl(Duration::from_millis(300)).expect("in range");
    let fixed = fixed.lease(LeaseMode::Fixed).expect("in range");
    let (renewed, fixed) = (take(&a).await, take(&fixed).await);
    let next = served(queue(&b)).await;
    assert!(renewed.is_held() && next.is_held() && !fixed.is_held());
    assert_eq!(
        within(LIMIT, "it is lost", fixed.lost()).await,
        LostReason::Expired
    );
    until_waiting(&a, 0).await;
    drop((renewed, next, fixed));
    rig.settled().await;
}
