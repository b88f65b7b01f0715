//! What keeps others out for a while after a lease that was not given back.

use std::time::{Duration, Instant};

use portcullis::{LeaseMode, LostReason, Mutex, Portcullis, RefusalKind, Release};

use crate::common::{
    LIMIT, LONG, PROMPT, give_back, promptly, queue, refusal, served, take, within,
};
use crate::rig::Rig;
use crate::support::wait_for;

const SHORT: Duration = Duration::from_millis(900);
const DELAY: Duration = Duration::from_millis(1_600);

fn mutex(handle: &Portcullis, ttl: Duration, delay: Duration) -> Mutex {
    let mutex = handle.mutex("payment").ttl(ttl).expect("in range");
    mutex.lock_delay(delay).expect("in range")
}

fn fixed(handle: &Portcullis, delay: Duration) -> Mutex {
    let mutex = mutex(handle, SHORT, delay);
    mutex.lease(LeaseMode::Fixed).expect("it is one")
}

pub(crate) async fn a_lease_that_was_not_given_back_keeps_others_out_for_its_delay<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        fixed(&rig.handle(), DELAY),
        R::mutex(rig.handle().mutex("payment")),
    );
    let begun = Instant::now();
    let guard = take(&a).await;
    assert!(guard.remaining() <= SHORT, "it knows nothing of the delay");
    let next = queue(&b);
    let reason = within(LIMIT, "it ends", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(
        begun.elapsed() < SHORT + DELAY,
        "it is told before its delay is over"
    );
    assert!(!guard.is_held());
    // Its holder still has requests under way, whatever it does with its guard.
    let answer = promptly("a release is answered", guard.release()).await;
    assert_eq!(answer.expect("answered"), Release::NoLongerHeld);
    let next = within(LIMIT, "the delay ends", next)
        .await
        .expect("no panic");
    let waited = begun.elapsed();
    assert!(waited >= SHORT + DELAY, "{waited:?}");
    assert!(waited < SHORT + DELAY + PROMPT, "{waited:?}");
    give_back(next.expect("its turn comes")).await;
    rig.settled().await;
}

pub(crate) async fn a_release_frees_at_once_however_long_the_delay<R: Rig>() {
    let rig = R::start();
    // With its TTL less than the minute for which side keys stay.
    let long = Duration::from_secs(25);
    let (a, b) = (
        mutex(&rig.handle(), LONG, long),
        mutex(&rig.handle(), LONG, long),
    );
    let guard = take(&a).await;
    let next = queue(&b);
    give_back(guard).await;
    let guard = served(next).await;
    let next = queue(&a);
    drop(guard);
    drop(served(next).await);
    drop(take(&b).await);
    rig.settled().await;
}

pub(crate) async fn a_hand_off_is_a_whole_lease_however_long_the_delay<R: Rig>() {
    let rig = R::start();
    // Longer than the claim that a hand-off begins with, and shorter.
    for delay in [Duration::from_secs(20), Duration::from_millis(700)] {
        let (a, b) = (
            mutex(&rig.handle(), SHORT, delay),
            mutex(&rig.handle(), SHORT, delay),
        );
        let guard = take(&a).await;
        let next = queue(&b);
        give_back(guard).await;
        let guard = served(next).await;
        let begun = Instant::now();
        wait_for("three TTLs have passed", LIMIT, async || {
            assert!(guard.is_held() && guard.remaining() <= SHORT);
            begun.elapsed() > 3 * SHORT
        })
        .await;
        give_back(guard).await;
    }
    rig.settled().await;
}

pub(crate) async fn others_are_told_to_come_back_after_the_delay<R: Rig>() {
    let rig = R::start();
    let a = mutex(&rig.handle(), LONG, LONG);
    let guard = take(&a).await;
    let refusal = refusal(mutex(&rig.handle(), LONG, LONG).try_lock().await);
    assert_eq!(refusal.kind(), RefusalKind::Busy);
    let after = refusal.retry_after().expect("it is known");
    assert!(after > LONG + LONG / 2 && after <= 2 * LONG, "{after:?}");
    drop(guard);
    rig.settled().await;
}

pub(crate) async fn a_lost_permit_delays_nobody_who_finds_another_free<R: Rig>() {
    let rig = R::start();
    let permits = |handle: &Portcullis| {
        let permits = handle.semaphore("reports", 2).expect("in range");
        permits.ttl(SHORT).expect("in range")
    };
    let delayed = permits(&rig.handle()).lock_delay(DELAY).expect("in range");
    let delayed = delayed.lease(LeaseMode::Fixed).expect("it is one");
    let begun = Instant::now();
    let lost = take(&delayed).await;
    within(LIMIT, "it is lost", lost.lost()).await;
    let others = R::semaphore(permits(&rig.handle()));
    let one = take(&others).await;
    assert_eq!(
        refusal(others.try_acquire().await).kind(),
        RefusalKind::Busy
    );
    let other = within(LIMIT, "the delay ends", others.acquire()).await;
    assert!(begun.elapsed() >= SHORT + DELAY, "{:?}", begun.elapsed());
    drop((one, other, lost));
    rig.settled().await;
}

pub(crate) async fn a_guard_that_outlives_a_shutdown_is_delayed<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let guard = take(&mutex(&handle, SHORT, DELAY)).await;
    let next = queue(&R::mutex(rig.handle().mutex("payment")));
    let ended = Instant::now();
    let report = promptly(
        "it does not wait for the delay",
        handle.shutdown(Duration::ZERO),
    )
    .await;
    assert_eq!((report.released, report.abandoned), (0, 1));
    assert_eq!(
        promptly("it is told", guard.lost()).await,
        LostReason::ShutDown
    );
    drop((guard, handle));
    let next = within(LIMIT, "the delay ends", next)
        .await
        .expect("no panic");
    assert!(ended.elapsed() >= DELAY, "{:?}", ended.elapsed());
    drop(next);
    rig.settled().await;
}

pub(crate) async fn each_holder_has_its_own_delay<R: Rig>() {
    let rig = R::start();
    let (without, with) = (
        fixed(&rig.handle(), Duration::ZERO),
        fixed(&rig.handle(), LONG),
    );
    let guard = take(&without).await;
    // Who asks has a long one; who holds has none.
    let next = within(SHORT + PROMPT, "there is no delay", with.lock()).await;
    drop(guard);
    drop(next);
    rig.settled().await;
}

pub(crate) async fn a_delay_is_of_a_minute_at_most<R: Rig>() {
    let handle = R::start().handle();
    let error = handle
        .mutex("payment")
        .lock_delay(Duration::from_millis(60_001))
        .expect_err("too long");
    assert_eq!(error.field(), "lock_delay");
    let permits = handle.semaphore("reports", 1).expect("in range");
    let error = permits.lock_delay(Duration::MAX).expect_err("too long");
    assert_eq!(error.field(), "lock_delay");
}
