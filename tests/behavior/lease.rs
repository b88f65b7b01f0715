//! How long a lease lasts, how its holder learns of its end, and how it is given back.

use std::time::{Duration, Instant};

use portcullis::{LeaseMode, LostReason, Mutex, Portcullis, RefusalKind, Release};
use tokio::task::JoinSet;

use crate::common::{
    LIMIT, LONG, PROMPT, all_done, give_back, promptly, queue, refusal, served, take,
    until_waiting, waiting, within,
};
use crate::rig::Rig;
use crate::support::{poll_k_times, wait_for};

/// Long enough for a busy machine to renew in time, short enough to outlive several times.
const SHORT: Duration = Duration::from_millis(900);

fn mutex<R: Rig>(handle: &Portcullis, mode: LeaseMode) -> Mutex {
    let mutex = handle.mutex("job").ttl(SHORT).expect("in range");
    match mode {
        // What is handed on within a process is renewed.
        LeaseMode::Renewed => R::mutex(mutex),
        mode => mutex.lease(mode).expect("in range"),
    }
}

pub(crate) async fn a_renewed_lease_outlives_its_ttl<R: Rig>() {
    let rig = R::start();
    let (a, b) = (rig.handle(), mutex::<R>(&rig.handle(), LeaseMode::Renewed));
    let guard = take(&mutex::<R>(&a, LeaseMode::Renewed)).await;
    let begun = Instant::now();
    let mut renewed = false;
    let mut last = guard.remaining();
    wait_for("three TTLs have passed", LIMIT, async || {
        assert_eq!(refusal(b.try_lock().await).kind(), RefusalKind::Busy);
        assert!(guard.is_held());
        let remaining = guard.remaining();
        assert!(remaining > Duration::ZERO && remaining <= SHORT);
        renewed |= remaining > last;
        last = remaining;
        begun.elapsed() > 3 * SHORT
    })
    .await;
    assert!(renewed);
    assert_eq!(poll_k_times(guard.lost(), 1).await, None);
    give_back(guard).await;
    rig.settled().await;
}

pub(crate) async fn a_lease_with_max_hold_is_lost_at_its_end<R: Rig>() {
    const MAX_HOLD: Duration = Duration::from_millis(2_000);
    let rig = R::start();
    let a = mutex::<R>(&rig.handle(), LeaseMode::MaxHold(MAX_HOLD));
    let b = mutex::<R>(&rig.handle(), LeaseMode::Renewed);
    let begun = Instant::now();
    let guard = take(&a).await;
    let next = queue(&b);
    // Longer than the TTL, so it was renewed.
    assert_eq!(
        within(LIMIT, "it is lost", guard.lost()).await,
        LostReason::Expired
    );
    let held = begun.elapsed();
    assert!(held > 2 * SHORT && held < MAX_HOLD + PROMPT, "{held:?}");
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    let answer = promptly("a release is answered", guard.release()).await;
    assert_eq!(answer.expect("answered"), Release::NoLongerHeld);
    drop(served(next).await);
    rig.settled().await;
    // A hold that is to be shorter than the TTL ends early on the server too, for whoever waits.
    let short = LeaseMode::MaxHold(SHORT);
    let a = a
        .keyed("short")
        .ttl(LONG)
        .expect("in range")
        .lease(short)
        .expect("in range");
    let guard = take(&a).await;
    drop(served(queue(&b.keyed("short"))).await);
    assert!(!guard.is_held());
    drop(guard);
    rig.settled().await;
    let error = a
        .lease(LeaseMode::MaxHold(Duration::ZERO))
        .expect_err("no hold at all");
    assert_eq!(error.field(), "max_hold");
}

pub(crate) async fn a_fixed_lease_is_lost_after_its_ttl<R: Rig>() {
    let rig = R::start();
    let a = mutex::<R>(&rig.handle(), LeaseMode::Fixed);
    let b = mutex::<R>(&rig.handle(), LeaseMode::Renewed);
    let begun = Instant::now();
    let guard = take(&a).await;
    let lost = tokio::spawn(guard.lost());
    let next = queue(&b);
    let mut last = guard.remaining();
    assert!(last <= SHORT);
    wait_for("it ends", LIMIT, async || {
        let remaining = guard.remaining();
        assert!(remaining <= last);
        last = remaining;
        !guard.is_held()
    })
    .await;
    assert!(begun.elapsed() > SHORT / 2);
    let reason = promptly("its loss is told", lost)
        .await
        .expect("the watcher does not panic");
    assert_eq!(reason, LostReason::Expired);
    drop(served(next).await);
    drop(guard);
    rig.settled().await;
}

/// C01 and C13.
pub(crate) async fn an_expired_holder_can_not_release_its_successor<R: Rig>() {
    let rig = R::start();
    let a = mutex::<R>(&rig.handle(), LeaseMode::Fixed);
    let b = mutex::<R>(&rig.handle(), LeaseMode::Renewed)
        .ttl(LONG)
        .expect("in range");
    for explicit in [true, false] {
        let expired = take(&a).await;
        // Nobody came after the first one, and somebody after the second.
        let alone = take(&a.keyed("alone")).await;
        let successor = served(queue(&b)).await;
        wait_for("the other is over, too", LIMIT, async || !alone.is_held()).await;
        if explicit {
            for guard in [alone, expired] {
                let answer = promptly("a release is answered", guard.release()).await;
                assert_eq!(answer.expect("answered"), Release::NoLongerHeld);
            }
        } else {
            drop((alone, expired));
        }
        // Whatever the late release has sent has run before this.
        until_waiting(&a, 0).await;
        assert!(successor.is_held());
        assert!(successor.remaining() > SHORT);
        give_back(successor).await;
    }
    rig.settled().await;
}

pub(crate) async fn while_held_gives_the_work_or_the_reason<R: Rig>() {
    struct Dropped<'a>(&'a std::cell::Cell<bool>);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let rig = R::start();
    let handle = rig.handle();
    let guard = take(&mutex::<R>(&handle, LeaseMode::Fixed)).await;
    assert_eq!(guard.while_held(async { 7 }).await, Ok(7));
    let stopped = std::cell::Cell::new(false);
    let work = async {
        let _dropped = Dropped(&stopped);
        std::future::pending::<()>().await;
    };
    let outcome = within(LIMIT, "the work is stopped", guard.while_held(work)).await;
    assert_eq!(outcome, Err(LostReason::Expired));
    assert!(stopped.get());
    // Past the end nothing is begun any more.
    let ran = std::cell::Cell::new(false);
    let outcome = guard.while_held(async { ran.set(true) }).await;
    assert_eq!(outcome, Err(LostReason::Expired));
    assert!(!ran.get());
    drop(guard);
    // A body that is given up leaves the lease.
    let guard = take(&mutex::<R>(&handle, LeaseMode::Renewed)).await;
    assert_eq!(
        poll_k_times(guard.while_held(std::future::pending::<()>()), 1).await,
        None
    );
    assert!(guard.is_held());
    give_back(guard).await;
    rig.settled().await;
}

pub(crate) async fn a_lost_lease_is_never_held_again<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        mutex::<R>(&rig.handle(), LeaseMode::Fixed),
        mutex::<R>(&rig.handle(), LeaseMode::Renewed),
    );
    let old = take(&a).await;
    within(LIMIT, "it is lost", old.lost()).await;
    // The same handle holds anew, and another one after it: neither revives the old lease.
    for next in [&a, &b] {
        let guard = served(queue(next)).await;
        assert!(guard.fencing_token() > old.fencing_token());
        assert!(!old.is_held());
        assert_eq!(old.remaining(), Duration::ZERO);
        assert_eq!(
            promptly("told again", old.lost()).await,
            LostReason::Expired
        );
        give_back(guard).await;
    }
    drop(old);
    rig.settled().await;
}

pub(crate) async fn a_released_lease_is_never_reported_lost<R: Rig>() {
    let rig = R::start();
    let mutex = mutex::<R>(&rig.handle(), LeaseMode::Renewed);
    let guard = take(&mutex).await;
    let mut lost = std::pin::pin!(guard.lost());
    assert_eq!(poll_k_times(&mut lost, 1).await, None);
    give_back(guard).await;
    rig.settled().await;
    let begun = Instant::now();
    wait_for("its TTL is over", LIMIT, async || {
        assert_eq!(poll_k_times(&mut lost, 1).await, None);
        begun.elapsed() > SHORT + SHORT / 2
    })
    .await;
}

/// C29, and C37: who lives keeps its place, however long it takes.
pub(crate) async fn a_waiter_outlasts_any_number_of_its_holders_ttls<R: Rig>() {
    let rig = R::start();
    let (a, b) = (rig.handle(), rig.handle());
    let (a, b) = (
        mutex::<R>(&a, LeaseMode::Renewed),
        mutex::<R>(&b, LeaseMode::Renewed),
    );
    let guard = take(&a).await;
    let begun = Instant::now();
    let first = queue(&b);
    until_waiting(&a, 1).await;
    let limited = b.clone().max_wait(2 * SHORT);
    let limited = refusal(within(LIMIT, "its wait ends", limited.lock()).await);
    assert_eq!(
        (limited.kind(), limited.position()),
        (RefusalKind::WaitedTooLong, Some(1))
    );
    assert!(begun.elapsed() > 2 * SHORT);
    let second = queue(&a);
    until_waiting(&a, 2).await;
    // Longer than a heartbeat is worth, 3 s: a place that nobody speaks for would be gone.
    wait_for(
        "a place without a heartbeat would be gone",
        LIMIT,
        async || {
            assert!(guard.is_held());
            begun.elapsed() > Duration::from_millis(3_500)
        },
    )
    .await;
    assert_eq!(waiting(&a).await, Some(2));
    give_back(guard).await;
    let first = served(first).await;
    assert!(!second.is_finished());
    give_back(first).await;
    give_back(served(second).await).await;
    rig.settled().await;
}

/// C49.
pub(crate) async fn a_lease_after_a_long_wait_is_a_whole_one<R: Rig>() {
    let rig = R::start();
    let (a, b) = (
        mutex::<R>(&rig.handle(), LeaseMode::Renewed),
        mutex::<R>(&rig.handle(), LeaseMode::Renewed),
    );
    let guard = take(&a).await;
    let next = queue(&b);
    until_waiting(&a, 1).await;
    let begun = Instant::now();
    wait_for("two TTLs have passed", LIMIT, async || {
        begun.elapsed() > 2 * SHORT
    })
    .await;
    give_back(guard).await;
    let guard = served(next).await;
    // A hand-off is worth a claim at first, and never handed out with less than a quarter of it.
    let remaining = guard.remaining();
    assert!(remaining <= SHORT && remaining > SHORT / 6, "{remaining:?}");
    let begun = Instant::now();
    wait_for("it was renewed, three times over", LIMIT, async || {
        assert!(guard.is_held());
        begun.elapsed() > 3 * SHORT
    })
    .await;
    give_back(guard).await;
    rig.settled().await;
}

/// Fault 49: renewal has a thread of its own.
pub(crate) async fn a_blocked_worker_delays_no_renewal<R: Rig>() {
    let rig = R::start();
    let (a, b) = (rig.handle(), rig.handle());
    let (a, b) = (
        mutex::<R>(&a, LeaseMode::Renewed),
        mutex::<R>(&b, LeaseMode::Renewed),
    );
    let guard = take(&a).await;
    // The only thread of this test's runtime.
    std::thread::sleep(3 * SHORT);
    assert!(guard.is_held());
    assert_eq!(waiting(&b).await, Some(0));
    give_back(guard).await;
    rig.settled().await;
}

/// C45.
pub(crate) async fn releases_at_once_leave_nothing_to_renew<R: Rig>() {
    let rig = R::start();
    let (a, b) = (rig.handle(), rig.handle());
    let mut tasks = JoinSet::new();
    for task in 0..32_u32 {
        let handle = if task % 2 == 0 { &a } else { &b };
        let mutex = mutex::<R>(handle, LeaseMode::Renewed).ttl(Duration::from_millis(300));
        let mutex = mutex.expect("in range").keyed(task / 2);
        tasks.spawn(async move {
            for turn in 0..50 {
                let guard = mutex.lock().await.expect("its turn comes");
                if turn % 2 == 0 {
                    drop(guard);
                } else {
                    let _ = guard.release().await.expect("answered");
                }
            }
        });
    }
    all_done(tasks).await;
    rig.settled().await;
}

/// C47: renewals in flight while leases are released.
pub(crate) async fn busy_permits_with_short_ttls_are_not_lost_while_they_are_released<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let semaphore = handle
        .semaphore("slots", 25)
        .expect("in range")
        .ttl(SHORT)
        .expect("in range");
    let semaphore = R::semaphore(semaphore);
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let semaphore = semaphore.clone();
        tasks.spawn(async move {
            let permit = semaphore.acquire().await.expect("its turn comes");
            let lost = permit.lost();
            // About one renewal: what matters is that some are under way when the permits are given
            // back.
            tokio::time::sleep(SHORT / 3).await;
            let answer = permit.release().await.expect("answered");
            (answer, poll_k_times(lost, 1).await)
        });
    }
    for outcome in all_done(tasks).await {
        assert_eq!(outcome, (Release::Released, None));
    }
    rig.settled().await;
}
