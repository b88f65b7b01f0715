//! What the feature `test-util` promises to those who test with it: a server in memory on a paused
//! clock, with hands on its leases and its reachability.
//!
//! Nothing here waits for real time. A paused clock stands while any task can run and moves to the
//! next timer when none can, so what is measured by it is exact, but for tokio's timers: those
//! count whole milliseconds.

#[path = "behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use portcullis::layer::{OnLost, OnOutage};
use portcullis::test_util::MemoryServer;
use portcullis::{
    BackendErrorKind, ConcurrencyLimitLayer, LeaseMode, LockError, LostReason, Mutex, MutexGuard,
    MutexLayer, Portcullis, RefusalKind, Release, Semaphore,
};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, advance};
use tower::ServiceExt;

use common::{Gate, failure, give_back, promptly, queue, refusal, served, take, waiting, within};
use support::poll_k_times;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(10);
/// What a timer may be late by.
const TICK: Duration = Duration::from_millis(2);
/// Longer than anything takes by the paused clock: what hangs is told at once.
const NEVER: Duration = Duration::from_secs(1_000_000);

fn mutex(handle: &Portcullis) -> Mutex {
    handle.mutex("job").ttl(TTL).expect("in range")
}

fn leased(handle: &Portcullis, mode: LeaseMode) -> Mutex {
    mutex(handle).lease(mode).expect("in range")
}

fn slots(handle: &Portcullis, limit: u32) -> Semaphore {
    let semaphore = handle.semaphore("slots", limit).expect("in range");
    semaphore.ttl(TTL).expect("in range")
}

/// Leases that end by themselves, and when they do.
fn with_an_end() -> [(LeaseMode, Duration); 3] {
    [
        (LeaseMode::Fixed, TTL),
        (LeaseMode::MaxHold(7 * TTL), 7 * TTL),
        (LeaseMode::MaxHold(TTL / 10), TTL / 10),
    ]
}

async fn at_last<T>(what: &str, future: impl Future<Output = T>) -> T {
    within(NEVER, what, future).await
}

/// Lets the other tasks run until `condition` is true; the clock stands meanwhile.
async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if condition().await {
            return;
        }
        yield_now().await;
    }
    panic!("not while the clock stands: {what}");
}

async fn until_waiting<G: Gate>(gate: &G, count: u64) {
    until("they wait", async || waiting(gate).await == Some(count)).await;
}

type Timed<T> = JoinHandle<(T, Instant)>;

/// Runs it in a task of its own, and notes when it is done.
fn timed<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Timed<T> {
    tokio::spawn(async move {
        let output = future.await;
        (output, Instant::now())
    })
}

/// Asks for a turn, and notes when that is answered. It stands in the queue when this returns.
async fn queue_timed(mutex: &Mutex) -> Timed<Result<MutexGuard, LockError>> {
    let before = waiting(mutex).await.expect("a position");
    let waiter = mutex.clone();
    let task = timed(async move { waiter.lock().await });
    until_waiting(mutex, before + 1).await;
    task
}

async fn done<T>(what: &str, task: Timed<T>) -> (T, Instant) {
    at_last(what, task).await.expect("the task does not panic")
}

#[track_caller]
fn assert_after(begun: Instant, seen: Instant, expected: Duration) {
    let took = seen.saturating_duration_since(begun);
    assert!(
        took >= expected && took <= expected + TICK,
        "after {took:?} instead of {expected:?}"
    );
}

mod leases {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn quotas_come_back_and_booked_turns_come_by_the_paused_clock() {
        let server = MemoryServer::on_tokio_time();
        let quota = portcullis::Quota::per_hour(1);
        let limiter = server.handle().rate_limiter("api", quota);
        let limiter = limiter.expect("in range");
        limiter.check().await.expect("admitted");
        let begun = Instant::now();
        at_last("its turn comes", limiter.until_ready())
            .await
            .expect("its turn comes");
        let hour = Duration::from_secs(60 * 60);
        let waited = begun.elapsed();
        assert!(waited >= hour && waited <= hour + TICK, "{waited:?}");
        let refused = refusal(limiter.check().await);
        assert!(refused.retry_after().is_some_and(|after| after <= hour));
        advance(hour).await;
        limiter.check().await.expect("admitted");
        server.outage(true);
        assert!(
            matches!(limiter.check().await, Err(LockError::Backend(error)) if error.is_outage())
        );
        server.outage(false);
        refusal(limiter.check().await);
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn one_with_an_end_is_lost_exactly_then_and_its_waiter_served() {
        for (mode, length) in with_an_end() {
            let server = MemoryServer::on_tokio_time();
            let (a, b) = (server.handle(), server.handle());
            let begun = Instant::now();
            let guard = take(&leased(&a, mode)).await;
            let loss = timed(guard.lost());
            let next = queue_timed(&mutex(&b)).await;
            // Nobody moves the clock: it moves by itself when all wait.
            let (reason, lost) = done("it is lost", loss).await;
            assert_eq!(reason, LostReason::Expired);
            assert_after(begun, lost, length);
            let (next, acquired) = done("its waiter is served", next).await;
            assert_after(begun, acquired, length);
            assert!(!guard.is_held());
            let answer = guard.release().await.expect("answered");
            assert_eq!(answer, Release::NoLongerHeld);
            give_back(next.expect("its turn comes")).await;
            server.assert_idle();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_with_a_delay_keeps_others_out_until_exactly_after_it() {
        const DELAY: Duration = Duration::from_secs(25);
        for (mode, length) in with_an_end() {
            let server = MemoryServer::on_tokio_time();
            let (a, b) = (server.handle(), server.handle());
            let delayed = leased(&a, mode).lock_delay(DELAY).expect("in range");
            let begun = Instant::now();
            let guard = take(&delayed).await;
            let loss = timed(guard.lost());
            let next = queue_timed(&mutex(&b)).await;
            let told = refusal(mutex(&b).try_lock().await).retry_after();
            assert_eq!(told, Some(length + DELAY));
            let (reason, lost) = done("it is lost", loss).await;
            assert_eq!(reason, LostReason::Expired);
            assert_after(begun, lost, length);
            let told = refusal(mutex(&b).try_lock().await).retry_after();
            assert!(
                told.is_some_and(|told| told <= DELAY && told + TICK >= DELAY),
                "{told:?}"
            );
            let answer = guard.release().await.expect("answered");
            assert_eq!(answer, Release::NoLongerHeld);
            // Nobody knows the place any more but who waits, and the delay itself.
            drop((a, delayed));
            let (next, acquired) = done("its waiter is served", next).await;
            assert_after(begun, acquired, length + DELAY);
            give_back(next.expect("its turn comes")).await;
            server.assert_idle();
        }
    }

    /// Not even where nobody has ever looked at the lease, so that its guard knows of no loss.
    #[tokio::test(start_paused = true)]
    async fn a_guard_that_is_given_back_too_late_does_not_end_the_delay() {
        const DELAY: Duration = Duration::from_secs(25);
        for is_released in [false, true] {
            let server = MemoryServer::on_tokio_time();
            let (a, b) = (server.handle(), server.handle());
            let delayed = leased(&a, LeaseMode::Fixed);
            let delayed = delayed.lock_delay(DELAY).expect("in range");
            let begun = Instant::now();
            let guard = take(&delayed).await;
            let next = queue_timed(&mutex(&b)).await;
            advance(TTL + DELAY / 2).await;
            if is_released {
                let answer = guard.release().await.expect("answered");
                assert_eq!(answer, Release::NoLongerHeld);
            } else {
                drop(guard);
            }
            let (next, acquired) = done("its waiter is served", next).await;
            assert_after(begun, acquired, TTL + DELAY);
            give_back(next.expect("its turn comes")).await;
            server.assert_idle();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_is_remembered_though_nobody_refers_to_the_gate() {
        const DELAY: Duration = Duration::from_secs(25);
        let server = MemoryServer::on_tokio_time();
        let gate = |mode| leased(&server.handle(), mode);
        let begun = Instant::now();
        let delayed = gate(LeaseMode::Fixed).lock_delay(DELAY).expect("in range");
        let guard = take(&delayed).await;
        at_last("it is lost", guard.lost()).await;
        drop((guard, delayed));
        server.assert_idle();
        drop(at_last("the delay ends", gate(LeaseMode::Renewed).lock()).await);
        assert_after(begun, Instant::now(), TTL + DELAY);
        // Of a renewed one that was lost because a test said so, or in an outage, likewise.
        for out in [false, true] {
            let delayed = gate(LeaseMode::Renewed)
                .lock_delay(DELAY)
                .expect("in range");
            let guard = take(&delayed).await;
            if out {
                server.outage(true);
                at_last("it is lost", guard.lost()).await;
                server.outage(false);
            } else {
                assert_eq!(server.expire("job"), 1);
                assert_eq!(server.expire("job"), 0, "it is lost already");
            }
            let lost = Instant::now();
            assert!(!guard.is_held());
            drop((guard, delayed));
            drop(at_last("the delay ends", gate(LeaseMode::Renewed).lock()).await);
            assert_after(lost, Instant::now(), DELAY);
        }
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn it_holds_until_the_last_moment_to_which_the_clock_is_advanced() {
        const NANOSECOND: Duration = Duration::from_nanos(1);
        for (mode, length) in with_an_end() {
            let server = MemoryServer::on_tokio_time();
            let (a, b) = (server.handle(), server.handle());
            let guard = take(&leased(&a, mode)).await;
            let mut next = queue(&mutex(&b));
            until_waiting(&mutex(&b), 1).await;
            advance(length - NANOSECOND).await;
            assert!(guard.is_held());
            assert_eq!(guard.remaining(), NANOSECOND);
            assert_eq!(poll_k_times(guard.lost(), 1).await, None);
            assert_eq!(waiting(&mutex(&b)).await, Some(1));
            assert!(!next.is_finished());
            // And no longer, though no task has run since.
            advance(NANOSECOND).await;
            assert!(!guard.is_held());
            assert_eq!(guard.remaining(), Duration::ZERO);
            assert_eq!(
                poll_k_times(guard.lost(), 1).await,
                Some(LostReason::Expired)
            );
            let next = promptly("its turn comes", &mut next).await;
            give_back(next.expect("no panic").expect("its turn comes")).await;
            drop(guard);
            server.assert_idle();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_one_outlives_any_time() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (server.handle(), mutex(&server.handle()));
        let watched = take(&mutex(&a)).await;
        let unwatched = take(&mutex(&a).keyed("unwatched")).await;
        let mut loss = Box::pin(watched.lost());
        for _ in 0..100 {
            advance(Duration::from_secs(3_601)).await;
            assert!(watched.is_held());
            let remaining = watched.remaining();
            assert!(
                remaining <= TTL && remaining >= TTL * 2 / 3,
                "{remaining:?}"
            );
            assert_eq!(poll_k_times(&mut loss, 1).await, None);
            assert_eq!(refusal(b.try_lock().await).kind(), RefusalKind::Busy);
        }
        give_back(watched).await;
        give_back(unwatched).await;
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn what_remains_follows_the_paused_clock_and_no_other() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        let fixed = take(&leased(&handle, LeaseMode::Fixed)).await;
        let renewed = take(&mutex(&handle).keyed("renewed")).await;
        assert_eq!((fixed.remaining(), renewed.remaining()), (TTL, TTL));
        // A real while, in which a real clock would have been seen to move.
        thread::sleep(Duration::from_millis(5));
        assert_eq!((fixed.remaining(), renewed.remaining()), (TTL, TTL));
        for second in 1..10 {
            advance(SECOND).await;
            assert_eq!(fixed.remaining(), TTL - second * SECOND);
            // Set back to the whole each third of it.
            let left = renewed.remaining();
            assert!(left <= TTL && left >= TTL * 2 / 3, "{left:?}");
            assert_eq!(left == TTL - second * SECOND, second <= 3);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_done_while_held_is_cut_at_the_end() {
        let server = MemoryServer::on_tokio_time();
        let guard = take(&leased(&server.handle(), LeaseMode::Fixed)).await;
        let begun = Instant::now();
        let work = guard.while_held(std::future::pending::<()>());
        assert_eq!(at_last("it is cut", work).await, Err(LostReason::Expired));
        assert_after(begun, Instant::now(), TTL);
    }

    #[tokio::test(start_paused = true)]
    async fn each_in_a_chain_lasts_its_whole_length() {
        let server = MemoryServer::on_tokio_time();
        let fixed = leased(&server.handle(), LeaseMode::Fixed);
        let begun = Instant::now();
        let mut guards = vec![take(&fixed).await];
        for number in 1..=5 {
            guards.push(
                at_last("its turn comes", fixed.lock())
                    .await
                    .expect("its turn"),
            );
            // Each starts when its timer has fired, and these errors add up.
            let took = begun.elapsed();
            assert!(
                took >= number * TTL && took <= number * (TTL + TICK),
                "{took:?}"
            );
        }
        assert_eq!(guards.iter().filter(|guard| guard.is_held()).count(), 1);
        drop(guards);
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn permits_end_one_by_one_and_weights_come_back_whole() {
        let server = MemoryServer::on_tokio_time();
        let fixed = slots(&server.handle(), 5)
            .lease(LeaseMode::Fixed)
            .expect("in range");
        let begun = Instant::now();
        let mut permits = Vec::new();
        for weight in [2, 1, 2] {
            permits.push(fixed.acquire_many(weight).await.expect("free"));
            advance(SECOND).await;
        }
        let all = at_last("all come back", fixed.acquire_many(5)).await;
        assert_after(begun, Instant::now(), TTL + 2 * SECOND);
        drop((all, permits));
        server.assert_idle();
    }
}

mod waits {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_ends_exactly_at_its_limit() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (server.handle(), server.handle());
        for limit in [Duration::from_millis(1), SECOND, 3 * TTL] {
            let guard = take(&mutex(&a)).await;
            let begun = Instant::now();
            let waited = at_last("it ends", mutex(&b).max_wait(limit).lock()).await;
            assert_after(begun, Instant::now(), limit);
            let refusal = refusal(waited);
            assert_eq!(refusal.kind(), RefusalKind::WaitedTooLong);
            assert_eq!(refusal.position(), Some(0));
            assert_eq!(refusal.retry_after(), Some(TTL));
            give_back(guard).await;
            server.assert_idle();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_names_the_exact_time_to_the_first_end() {
        let server = MemoryServer::on_tokio_time();
        let fixed = leased(&server.handle(), LeaseMode::Fixed);
        let _guard = take(&fixed).await;
        advance(3 * SECOND).await;
        let refused = refusal(fixed.try_lock().await);
        assert_eq!(refused.retry_after(), Some(TTL - 3 * SECOND));
        let refused = refusal(fixed.clone().max_wait(2 * SECOND).lock().await);
        let left = refused.retry_after().expect("an end is known");
        assert!(left <= TTL - 5 * SECOND && left >= TTL - 5 * SECOND - TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn each_ends_at_its_own_limit_wherever_it_stands() {
        let server = MemoryServer::on_tokio_time();
        let mutex = mutex(&server.handle());
        let guard = take(&mutex).await;
        let begun = Instant::now();
        let mut waiters = Vec::new();
        for seconds in [5, 1, 4, 2, 3_u32] {
            let limited = mutex.clone().max_wait(seconds * SECOND);
            waiters.push((seconds, queue_timed(&limited).await));
        }
        for (seconds, waiter) in waiters {
            let (waited, ended) = done("it ends", waiter).await;
            assert_eq!(refusal(waited).kind(), RefusalKind::WaitedTooLong);
            assert_after(begun, ended, seconds * SECOND);
        }
        give_back(guard).await;
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_turn_comes_at_its_limit_is_served() {
        let server = MemoryServer::on_tokio_time();
        let fixed = leased(&server.handle(), LeaseMode::Fixed);
        let _guard = take(&fixed).await;
        let waited = at_last("it ends", fixed.clone().max_wait(TTL).lock()).await;
        assert!(waited.is_ok(), "{waited:?}");
    }

    /// However far a test advances the clock in one step.
    #[tokio::test(start_paused = true)]
    async fn ends_that_are_passed_in_one_step_happen_in_their_order() {
        let server = MemoryServer::on_tokio_time();
        let fixed = leased(&server.handle(), LeaseMode::Fixed);
        let _guard = take(&fixed).await;
        let hasty = queue_timed(&fixed.clone().max_wait(TTL / 2)).await;
        let patient = queue_timed(&fixed.clone().max_wait(TTL + SECOND)).await;
        advance(2 * TTL).await;
        let (hasty, _) = done("its wait is over", hasty).await;
        assert_eq!(refusal(hasty).kind(), RefusalKind::WaitedTooLong);
        let (patient, _) = done("its turn came", patient).await;
        assert!(patient.is_ok(), "{patient:?}");
    }
}

mod expiring {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn all_keys_of_the_gate_are_lost_and_no_other_gate_is_touched() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (server.handle(), server.handle());
        let job = mutex(&a);
        let mut lost = vec![
            take(&job).await,
            take(&job.keyed("one")).await,
            take(&mutex(&b).keyed("two")).await,
            take(&leased(&b, LeaseMode::Fixed).keyed("fixed")).await,
        ];
        let asked_before = lost[0].lost();
        let kept = [
            take(&a.mutex("job2")).await,
            take(&a.mutex("jo").keyed("b")).await,
            take(&a.mutex("other").keyed("job")).await,
        ];
        assert_eq!(server.expire("job"), lost.len());
        let begun = Instant::now();
        assert_eq!(asked_before.await, LostReason::Expired);
        // Asked for only afterwards.
        for guard in &lost {
            assert!(!guard.is_held());
            assert_eq!(guard.remaining(), Duration::ZERO);
            assert_eq!(guard.lost().await, LostReason::Expired);
        }
        // By its owner, who has not looked.
        let unseen = take(&job.keyed("unseen")).await;
        assert_eq!(server.expire("job"), 1);
        lost.push(unseen);
        for guard in lost {
            let answer = guard.release().await.expect("answered");
            assert_eq!(answer, Release::NoLongerHeld);
        }
        for guard in kept {
            assert!(guard.is_held());
            give_back(guard).await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_is_served_and_not_expired_along() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (mutex(&server.handle()), mutex(&server.handle()));
        let old = take(&a).await;
        let begun = Instant::now();
        let (first, second) = (queue_timed(&b).await, queue_timed(&a).await);
        assert_eq!(server.expire("job"), 1);
        let (first, served) = done("the first one is served", first).await;
        let first = first.expect("its turn");
        assert_eq!(served, begun);
        assert!(first.is_held());
        assert!(first.fencing_token() > old.fencing_token());
        assert_eq!(waiting(&a).await, Some(1));
        // The loser gives back what it has not, which harms nobody.
        drop(old);
        assert!(first.is_held());
        give_back(first).await;
        give_back(
            done("the second one too", second)
                .await
                .0
                .expect("its turn"),
        )
        .await;
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn leases_are_counted_and_not_permits() {
        let server = MemoryServer::on_tokio_time();
        let slots = slots(&server.handle(), 5);
        let permits = [
            slots.acquire_many(2).await.expect("free"),
            slots.acquire_many(3).await.expect("free"),
        ];
        assert_eq!(server.expire("slots"), 2);
        assert_eq!(server.expire("slots"), 0);
        assert_eq!(server.expire("no gate of this name"), 0);
        let all = promptly("all are free", slots.acquire_many(5)).await;
        assert!(permits.iter().all(|permit| !permit.is_held()));
        drop((permits, all));
        server.assert_idle();
    }

    /// As the docs say: the name counts, whatever the kind and the prefix.
    #[tokio::test(start_paused = true)]
    async fn gates_of_one_name_expire_together() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (
            server.handle(),
            server.handle_with_prefix("b").expect("valid"),
        );
        let guards = [
            take(&a.mutex("job")).await,
            take(&b.mutex("job")).await,
            take(&a.mutex_at("job")).await,
        ];
        let permit = take(&a.semaphore("job", 1).expect("in range")).await;
        assert_eq!(server.expire("job"), 4);
        assert!(guards.iter().all(|guard| !guard.is_held()));
        assert!(!permit.is_held());
    }
}

mod outages {
    use super::*;

    #[track_caller]
    fn assert_unreachable<T: std::fmt::Debug>(result: Result<T, LockError>) {
        assert_eq!(failure(result).kind(), BackendErrorKind::Unreachable);
    }

    #[tokio::test(start_paused = true)]
    async fn acquires_fail_at_once_and_again_succeed_when_it_is_over() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        let (mutex, slots) = (mutex(&handle).max_wait(TTL), slots(&handle, 2));
        let begun = Instant::now();
        server.outage(true);
        assert_unreachable(at_last("it fails", mutex.lock()).await);
        assert_unreachable(at_last("it fails", mutex.try_lock()).await);
        assert_unreachable(at_last("it fails", mutex.keyed("another").lock()).await);
        assert_unreachable(at_last("it fails", slots.acquire()).await);
        assert_unreachable(at_last("it fails", slots.acquire_many(2)).await);
        let error = failure(slots.try_acquire().await);
        assert!(error.to_string().contains("`slots`"), "{error}");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // Twice changes nothing.
        server.outage(true);
        assert_unreachable(mutex.lock().await);
        server.outage(false);
        server.outage(false);
        drop((take(&mutex).await, take(&slots).await));
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_with_a_limit_fails_when_it_is_over() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (mutex(&server.handle()), mutex(&server.handle()));
        let guard = take(&a).await;
        let begun = Instant::now();
        let waiter = queue_timed(&b.max_wait(5 * SECOND)).await;
        advance(SECOND).await;
        server.outage(true);
        // Its turn would come, but nobody could tell.
        drop(guard);
        assert!(!server.is_idle());
        let (waited, ended) = done("its wait ends", waiter).await;
        assert_unreachable(waited);
        assert_after(begun, ended, 5 * SECOND);
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn what_expires_meanwhile_serves_nobody_before_it_is_over() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (mutex(&server.handle()), mutex(&server.handle()));
        let guard = take(&a).await;
        let waiter = queue(&b);
        until_waiting(&a, 1).await;
        server.outage(true);
        assert_eq!(server.expire("job"), 1);
        assert_eq!(guard.lost().await, LostReason::Expired);
        advance(TTL).await;
        yield_now().await;
        assert!(!waiter.is_finished());
        server.outage(false);
        give_back(served(waiter).await).await;
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_without_a_limit_waits_on_and_is_served_afterwards() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (mutex(&server.handle()), mutex(&server.handle()));
        for released in [true, false] {
            let guard = take(&a).await;
            let waiter = queue(&b);
            until_waiting(&a, 1).await;
            server.outage(true);
            let guard = Some(guard).filter(|_| !released);
            advance(360 * TTL).await;
            yield_now().await;
            assert!(!waiter.is_finished());
            server.outage(false);
            let next = served(waiter).await;
            // Lost, since nothing renewed it for so long.
            assert!(guard.is_none_or(|guard| !guard.is_held()));
            advance(360 * TTL).await;
            give_back(next).await;
            server.assert_idle();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_lease_is_lost_when_what_remained_of_it_is_over() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        for age in [0, 1, 3, 5, 9, 3_600_u32].map(|seconds| seconds * SECOND) {
            let guard = take(&mutex(&handle)).await;
            let _asked_for = guard.remaining();
            advance(age).await;
            let left = guard.remaining();
            let begun = Instant::now();
            server.outage(true);
            assert_eq!(guard.remaining(), left);
            let reason = at_last("it is lost", guard.lost()).await;
            assert_eq!(reason, LostReason::Expired);
            assert_after(begun, Instant::now(), left);
            assert!(begun.elapsed() <= TTL + TICK);
            server.outage(false);
            assert!(!guard.is_held());
            drop(guard);
            server.assert_idle();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_lease_of_which_nobody_asked_is_lost_within_its_ttl() {
        let server = MemoryServer::on_tokio_time();
        let guard = take(&mutex(&server.handle())).await;
        advance(100 * TTL).await;
        server.outage(true);
        advance(TTL).await;
        assert!(!guard.is_held());
        server.outage(false);
        drop(take(&mutex(&server.handle())).await);
        let answer = guard.release().await.expect("answered");
        assert_eq!(answer, Release::NoLongerHeld);
        server.assert_idle();
    }

    /// By its own, whatever others had at this gate.
    #[tokio::test(start_paused = true)]
    async fn a_renewed_lease_of_which_nobody_asked_is_lost_within_its_own_ttl() {
        let server = MemoryServer::on_tokio_time();
        let short = mutex(&server.handle());
        let long = short.clone().ttl(6 * TTL).expect("in range");
        drop(take(&long).await);
        let guard = take(&short).await;
        server.outage(true);
        advance(TTL).await;
        assert!(!guard.is_held());
        server.outage(false);
        assert!(!guard.is_held());
    }

    /// However often its owner looks, before and meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_renewed_lease_is_kept_if_it_is_over_in_time() {
        for (before, meanwhile) in [(false, false), (true, false), (true, true)] {
            keep_a_renewed_lease(before, meanwhile).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_lease_that_is_first_looked_at_meanwhile_is_kept_likewise() {
        keep_a_renewed_lease(false, true).await;
    }

    async fn keep_a_renewed_lease(before: bool, meanwhile: bool) {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (mutex(&server.handle()), mutex(&server.handle()));
        let guard = take(&a).await;
        if before {
            assert_eq!(guard.remaining(), TTL);
        }
        let waiter = queue(&b);
        until_waiting(&b, 1).await;
        for _ in 0..3 {
            server.outage(true);
            advance(TTL / 2).await;
            if meanwhile {
                assert!(guard.is_held());
                assert!(guard.remaining() <= TTL / 2);
            }
            server.outage(false);
            let left = guard.remaining();
            assert!(left <= TTL && left >= TTL * 2 / 3, "{left:?}");
            advance(100 * TTL).await;
            assert!(guard.is_held());
            assert!(!waiter.is_finished());
        }
        // And is lost to one that lasts, as any.
        server.outage(true);
        advance(TTL).await;
        assert!(!guard.is_held());
        server.outage(false);
        drop(guard);
        give_back(served(waiter).await).await;
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_with_max_hold_is_lost_within_its_ttl_too() {
        lose_a_lease_with_max_hold(false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_with_max_hold_that_was_looked_at_is_lost_within_its_ttl_too() {
        lose_a_lease_with_max_hold(true).await;
    }

    async fn lose_a_lease_with_max_hold(looked_at: bool) {
        let server = MemoryServer::on_tokio_time();
        let guard = take(&leased(&server.handle(), LeaseMode::MaxHold(6 * TTL))).await;
        assert!(!looked_at || guard.is_held());
        server.outage(true);
        advance(TTL).await;
        assert!(!guard.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_with_max_hold_that_is_kept_ends_when_it_would_anyway() {
        for looked_at in [false, true] {
            let server = MemoryServer::on_tokio_time();
            let guard = take(&leased(&server.handle(), LeaseMode::MaxHold(6 * TTL))).await;
            let begun = Instant::now();
            assert!(!looked_at || guard.is_held());
            server.outage(true);
            advance(TTL / 2).await;
            server.outage(false);
            assert!(guard.is_held());
            at_last("it is lost", guard.lost()).await;
            assert_after(begun, Instant::now(), 6 * TTL);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fixed_lease_ends_when_it_would_anyway() {
        let server = MemoryServer::on_tokio_time();
        let guard = take(&leased(&server.handle(), LeaseMode::Fixed)).await;
        let begun = Instant::now();
        server.outage(true);
        advance(TTL / 2).await;
        assert_eq!(guard.remaining(), TTL / 2);
        server.outage(false);
        at_last("it is lost", guard.lost()).await;
        assert_after(begun, Instant::now(), TTL);
    }

    #[tokio::test(start_paused = true)]
    async fn releases_are_answered_with_the_failure_and_yet_carried_out() {
        let server = MemoryServer::on_tokio_time();
        let (handle, other) = (server.handle(), server.handle());
        let mutex = mutex(&handle);
        let released = take(&mutex).await;
        let dropped = take(&mutex.keyed("dropped")).await;
        let permit = take(&slots(&handle, 1)).await;
        server.outage(true);
        for answer in [released.release().await, permit.release().await] {
            let error = answer.expect_err("nobody could be told");
            assert_eq!(error.kind(), BackendErrorKind::Unreachable);
        }
        drop(dropped);
        server.outage(false);
        server.assert_idle();
        let begun = Instant::now();
        drop(take(&super::mutex(&other)).await);
        drop(take(&super::mutex(&other).keyed("dropped")).await);
        drop(take(&slots(&other, 1)).await);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_ends_at_its_deadline_though_it_lasts() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        let guard = take(&mutex(&handle)).await;
        server.outage(true);
        let begun = Instant::now();
        at_last("it ends", handle.shutdown(3 * SECOND)).await;
        assert_after(begun, Instant::now(), 3 * SECOND);
        assert_eq!(guard.lost().await, LostReason::ShutDown);
    }
}

mod idleness {
    use super::*;

    fn complaint(server: &MemoryServer) -> String {
        assert!(!server.is_idle());
        let panic = catch_unwind(AssertUnwindSafe(|| server.assert_idle()));
        let panic = panic.expect_err("it is not idle");
        panic.downcast_ref::<String>().expect("a text").clone()
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_in_the_way_is_named_and_counted() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (server.handle(), server.handle());
        assert!(server.is_idle());
        server.assert_idle();
        let guard = take(&mutex(&a)).await;
        assert!(complaint(&server).contains("`job`: 1 held, 0 waiting"));
        let waiters = [queue(&mutex(&b)), queue(&mutex(&a))];
        until_waiting(&mutex(&b), 2).await;
        let permits = (
            take(&slots(&b, 9)).await,
            slots(&b, 9).acquire_many(8).await,
        );
        let text = complaint(&server);
        assert!(text.contains("`job`: 1 held, 2 waiting"), "{text}");
        assert!(text.contains("`slots`: 2 held, 0 waiting"), "{text}");
        drop((guard, permits));
        for waiter in waiters {
            drop(served(waiter).await);
        }
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_dropped_is_not_in_the_way() {
        let server = MemoryServer::on_tokio_time();
        let (a, b) = (mutex(&server.handle()), mutex(&server.handle()));
        let guard = take(&a).await;
        // A future that waits, and one that was never polled.
        let mut waits = Box::pin(b.lock());
        assert!(poll_k_times(&mut waits, 1).await.is_none());
        assert_eq!(waiting(&a).await, Some(1));
        drop((waits, b.lock()));
        assert_eq!(waiting(&a).await, Some(0));
        // One that has been granted, and does not know.
        let mut waits = Box::pin(b.lock());
        assert!(poll_k_times(&mut waits, 1).await.is_none());
        drop(guard);
        assert!(complaint(&server).contains("`job`: 1 held, 0 waiting"));
        drop(waits);
        server.assert_idle();
        // A task that is aborted.
        let guard = take(&a).await;
        let task = queue(&b);
        until_waiting(&a, 1).await;
        task.abort();
        assert!(task.await.expect_err("aborted").is_cancelled());
        assert_eq!(waiting(&a).await, Some(0));
        drop(guard);
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_lost_is_not_in_the_way_though_its_guard_is_kept() {
        let server = MemoryServer::on_tokio_time();
        let guard = take(&leased(&server.handle(), LeaseMode::Fixed)).await;
        assert!(!server.is_idle());
        advance(TTL).await;
        server.assert_idle();
        drop(guard);
        server.assert_idle();
    }
}

mod shutdowns {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_waits_for_guards_until_its_deadline() {
        let server = MemoryServer::on_tokio_time();
        let (old, new) = (server.handle(), server.handle());
        let guard = take(&mutex(&old)).await;
        let next = queue_timed(&mutex(&new)).await;
        let begun = Instant::now();
        let report = at_last("it ends", old.shutdown(30 * SECOND)).await;
        assert_after(begun, Instant::now(), 30 * SECOND);
        assert_eq!((report.released, report.abandoned), (1, 0));
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, LostReason::ShutDown);
        let (next, acquired) = done("the next one is served", next).await;
        assert_after(begun, acquired, 30 * SECOND);
        give_back(next.expect("its turn")).await;
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn one_ends_with_the_last_guard() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        let released = take(&mutex(&handle)).await;
        let fixed = take(&leased(&handle, LeaseMode::Fixed).keyed("fixed")).await;
        let begun = Instant::now();
        let ending = timed(async move { handle.shutdown(10 * TTL).await });
        advance(SECOND).await;
        give_back(released).await;
        let (report, ended) = done("it ends", ending).await;
        // The other one was lost, which is no release.
        assert_after(begun, ended, TTL);
        assert_eq!((report.released, report.abandoned), (1, 0));
        assert_eq!(fixed.lost().await, LostReason::Expired);
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn each_handle_is_shut_down_for_itself() {
        let server = MemoryServer::on_tokio_time();
        let (old, new) = (server.handle(), server.handle());
        let clone = old.clone();
        let theirs = take(&mutex(&new)).await;
        let theirs_too = take(&leased(&new, LeaseMode::Fixed).keyed("fixed")).await;
        let waits = [queue(&mutex(&old)), queue(&mutex(&new))];
        until_waiting(&mutex(&new), 2).await;
        let report = promptly("it ends at once", old.shutdown(TTL)).await;
        assert_eq!((report.released, report.abandoned), (0, 0));
        let [old_waits, new_waits] = waits;
        let refused = refusal(old_waits.await.expect("no panic"));
        assert_eq!(refused.kind(), RefusalKind::ShuttingDown);
        for handle in [&old, &clone] {
            let refused = refusal(mutex(handle).keyed("free").lock().await);
            assert_eq!(refused.kind(), RefusalKind::ShuttingDown);
        }
        assert!(theirs.is_held() && theirs_too.is_held());
        give_back(theirs_too).await;
        give_back(theirs).await;
        give_back(served(new_waits).await).await;
        drop(take(&mutex(&server.handle())).await);
        server.assert_idle();
    }

    /// A lease that had run out before was not ended by it.
    #[tokio::test(start_paused = true)]
    async fn what_was_lost_before_is_not_said_to_be_lost_by_it() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        let expired = take(&mutex(&handle)).await;
        assert_eq!(server.expire("job"), 1);
        at_last("it ends", handle.shutdown(Duration::ZERO)).await;
        assert_eq!(expired.lost().await, LostReason::Expired);
    }
}

mod clocks {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn guards_follow_the_paused_clock_on_plain_threads_too() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        let (fixed, other) = (leased(&handle, LeaseMode::Fixed), mutex(&server.handle()));
        let guard = take(&fixed).await;
        let waiter = queue(&other);
        until_waiting(&other, 1).await;
        advance(TTL / 2).await;
        let look = |guard: MutexGuard| {
            let seen = (guard.is_held(), guard.remaining());
            (guard, seen)
        };
        let (guard, seen) = thread::spawn(move || look(guard)).join().expect("no panic");
        assert_eq!(seen, (true, TTL / 2));
        thread::spawn(move || drop(guard)).join().expect("no panic");
        let guard = served(waiter).await;
        thread::scope(|scope| {
            let releasing = scope.spawn(move || guard.release());
            releasing.join().expect("no panic")
        })
        .await
        .expect("answered");
        server.assert_idle();
        // Past the end, which is seen there too.
        let guard = take(&fixed).await;
        advance(TTL).await;
        let (guard, seen) = thread::spawn(move || look(guard)).join().expect("no panic");
        assert_eq!(seen, (false, Duration::ZERO));
        thread::spawn(move || drop(guard)).join().expect("no panic");
        server.assert_idle();
    }

    /// The first to need a timer may be a thread without a runtime.
    #[test]
    fn a_gate_that_is_first_used_on_a_plain_thread_ends_its_leases_on_the_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("the system has room for a runtime");
        let server = runtime.block_on(async { MemoryServer::on_tokio_time() });
        let fixed = leased(&server.handle(), LeaseMode::Fixed);
        let mut acquire = Box::pin(fixed.lock());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(guard) = acquire.as_mut().poll(&mut context) else {
            panic!("it is free");
        };
        let guard = guard.expect("it is free");
        runtime.block_on(async {
            let begun = Instant::now();
            at_last("it is lost", guard.lost()).await;
            assert_after(begun, Instant::now(), TTL);
        });
        // And the runtime may go first.
        let guard = runtime.block_on(fixed.lock()).expect("it is free");
        drop(runtime);
        assert!(guard.is_held());
        assert_eq!(guard.remaining(), TTL);
        drop(guard);
        server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn one_by_the_system_is_not_moved_by_the_paused_clock() {
        for server in [MemoryServer::new(), MemoryServer::default()] {
            let guard = take(&leased(&server.handle(), LeaseMode::Fixed)).await;
            advance(100 * TTL).await;
            assert!(guard.is_held());
            assert!(guard.remaining() <= TTL);
            give_back(guard).await;
            server.assert_idle();
        }
    }

    #[test]
    fn outside_of_a_runtime_there_is_no_clock_to_follow() {
        let panic = catch_unwind(MemoryServer::on_tokio_time);
        assert!(panic.is_err());
    }
}

mod handles {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_of_one_server_share_its_gates_and_those_of_others_do_not() {
        let (server, other) = (MemoryServer::on_tokio_time(), MemoryServer::on_tokio_time());
        let guard = take(&mutex(&server.handle())).await;
        let same = mutex(&server.clone().handle());
        assert_eq!(refusal(same.try_lock().await).kind(), RefusalKind::Busy);
        let apart = server.handle_with_prefix("apart").expect("valid");
        drop((
            take(&mutex(&apart)).await,
            take(&mutex(&other.handle())).await,
        ));
        other.assert_idle();
        other.outage(true);
        assert_eq!(other.expire("job"), 0);
        assert!(guard.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_printed_of_one_tells_no_keys() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        let account = mutex(&handle).keyed("account-4711");
        let guard = take(&account).await;
        let waiter = queue(&account);
        until_waiting(&account, 1).await;
        for text in [format!("{handle:?}"), format!("{server:?}")] {
            assert!(!text.contains("4711"));
            // Nor does it grow with what is in use.
            assert!(text.len() < 500, "{} bytes", text.len());
        }
        drop(guard);
        drop(served(waiter).await);
    }

    #[test]
    fn a_prefix_that_is_out_of_its_range_is_named() {
        let server = MemoryServer::new();
        for prefix in ["", "two words", &"x".repeat(65)] {
            let error = server.handle_with_prefix(prefix).expect_err("out of range");
            assert_eq!(error.field(), "prefix");
        }
    }
}

/// Gated routes, as users test theirs.
mod routes {
    use super::*;

    /// What of an answer is promised.
    #[derive(Debug, PartialEq, Eq)]
    struct Seen {
        status: StatusCode,
        retry_after: Option<String>,
        body: String,
    }

    async fn ask(app: &Router, path: &str) -> Seen {
        let request = Request::get(path).body(Body::empty()).expect("a path");
        let response = at_last("an answer", app.clone().oneshot(request)).await;
        let response = response.expect("an answer");
        let retry_after = response.headers().get("retry-after");
        let retry_after = retry_after.map(|value| value.to_str().expect("digits").to_owned());
        let status = response.status();
        let body = response.into_body().collect().await.expect("a whole body");
        let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        Seen {
            status,
            retry_after,
            body,
        }
    }

    #[track_caller]
    fn assert_refused(seen: &Seen, status: StatusCode, retry_after: u64, problem: &str) {
        assert_eq!(seen.status, status, "{seen:?}");
        assert_eq!(seen.retry_after, Some(retry_after.to_string()), "{seen:?}");
        let kind = format!("\"urn:problem-type:portcullis:{problem}\"");
        assert!(seen.body.contains(&kind), "{seen:?}");
    }

    /// A route whose handler stays until it is told to go on.
    struct Stage {
        server: MemoryServer,
        app: Router,
        go_on: Arc<tokio::sync::Notify>,
    }

    impl Stage {
        fn new<L>(layer: impl FnOnce(&Portcullis) -> L) -> Self
        where
            L: tower::Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
            L::Service: tower::Service<
                    Request<Body>,
                    Response: axum::response::IntoResponse,
                    Error: Into<std::convert::Infallible>,
                    Future: Send,
                > + Clone
                + Send
                + Sync
                + 'static,
        {
            let server = MemoryServer::on_tokio_time();
            let layer = layer(&server.handle());
            let go_on = Arc::new(tokio::sync::Notify::new());
            let wait = Arc::clone(&go_on);
            let handler = move || {
                let wait = Arc::clone(&wait);
                async move {
                    wait.notified().await;
                    "done"
                }
            };
            let app = Router::new()
                .route("/job", get(handler).layer(layer))
                .route("/free", get(async || "free"));
            Self { server, app, go_on }
        }

        /// A request whose handler is at work when this returns.
        async fn enter(&self) -> Timed<Seen> {
            let app = self.app.clone();
            let task = timed(async move { ask(&app, "/job").await });
            until("it is at work", async || !self.server.is_idle()).await;
            task
        }

        async fn finish(self, task: Timed<Seen>) {
            self.go_on.notify_one();
            let (seen, _) = done("it answers", task).await;
            assert_eq!((seen.status, &*seen.body), (StatusCode::OK, "done"));
            self.server.assert_idle();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_mutex_that_is_held_answers_409_with_the_time_that_is_left() {
        let stage = Stage::new(|handle| {
            MutexLayer::new(leased(handle, LeaseMode::Fixed)).max_wait(Duration::ZERO)
        });
        let first = stage.enter().await;
        advance(Duration::from_millis(3_500)).await;
        let second = ask(&stage.app, "/job").await;
        assert_refused(&second, StatusCode::CONFLICT, 7, "locked");
        assert_eq!(ask(&stage.app, "/free").await.body, "free");
        stage.finish(first).await;
    }

    #[tokio::test(start_paused = true)]
    async fn permits_that_are_out_answer_503() {
        let stage = Stage::new(|handle| {
            ConcurrencyLimitLayer::new(slots(handle, 1)).max_wait(Duration::ZERO)
        });
        let first = stage.enter().await;
        let second = ask(&stage.app, "/job").await;
        assert_refused(&second, StatusCode::SERVICE_UNAVAILABLE, 10, "at-capacity");
        stage.finish(first).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_exactly_as_long_as_it_may() {
        let stage =
            Stage::new(|handle| ConcurrencyLimitLayer::new(slots(handle, 1)).max_wait(5 * SECOND));
        let first = stage.enter().await;
        let begun = Instant::now();
        let second = ask(&stage.app, "/job").await;
        assert_after(begun, Instant::now(), 5 * SECOND);
        assert_refused(
            &second,
            StatusCode::SERVICE_UNAVAILABLE,
            10,
            "waited-too-long",
        );
        // And not a moment longer than the first one needs.
        let app = stage.app.clone();
        let third = timed(async move { ask(&app, "/job").await });
        advance(3 * SECOND).await;
        stage.go_on.notify_one();
        let (seen, _) = done("it answers", first).await;
        assert_eq!(seen.status, StatusCode::OK);
        stage.finish(third).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_two_seconds_where_nobody_said_otherwise() {
        let stage = Stage::new(|handle| MutexLayer::new(mutex(handle)));
        let first = stage.enter().await;
        let begun = Instant::now();
        let second = ask(&stage.app, "/job").await;
        assert_after(begun, Instant::now(), 2 * SECOND);
        assert_refused(
            &second,
            StatusCode::SERVICE_UNAVAILABLE,
            10,
            "waited-too-long",
        );
        stage.finish(first).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_lease_expires_is_aborted_with_503() {
        let stage = Stage::new(|handle| MutexLayer::new(mutex(handle)));
        let first = stage.enter().await;
        let begun = Instant::now();
        assert_eq!(stage.server.expire("job"), 1);
        let (seen, aborted) = done("it is aborted", first).await;
        assert_eq!(aborted, begun);
        assert_refused(&seen, StatusCode::SERVICE_UNAVAILABLE, 1, "lease-lost");
        stage.server.assert_idle();
        let next = stage.enter().await;
        stage.finish(next).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_longer_than_its_fixed_lease_is_aborted_at_its_end() {
        let stage = Stage::new(|handle| {
            ConcurrencyLimitLayer::new(slots(handle, 1).lease(LeaseMode::Fixed).expect("in range"))
                .on_lost(OnLost::Abort)
        });
        let begun = Instant::now();
        let (seen, aborted) = done("it is aborted", stage.enter().await).await;
        assert_after(begun, aborted, TTL);
        assert_refused(&seen, StatusCode::SERVICE_UNAVAILABLE, 1, "lease-lost");
        stage.server.assert_idle();
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_to_continue_survives_its_lease() {
        let stage = Stage::new(|handle| ConcurrencyLimitLayer::new(slots(handle, 1)));
        let first = stage.enter().await;
        assert_eq!(stage.server.expire("slots"), 1);
        stage.finish(first).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_answers_503_at_once_and_is_over_at_once() {
        let stage = Stage::new(|handle| MutexLayer::new(mutex(handle)));
        stage.server.outage(true);
        let begun = Instant::now();
        let seen = ask(&stage.app, "/job").await;
        assert_refused(&seen, StatusCode::SERVICE_UNAVAILABLE, 1, "unavailable");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        stage.server.outage(false);
        let next = stage.enter().await;
        stage.finish(next).await;
    }

    #[tokio::test(start_paused = true)]
    async fn in_an_outage_a_layer_that_allows_lets_everybody_through() {
        let stage = Stage::new(|handle| MutexLayer::new(mutex(handle)).on_outage(OnOutage::Allow));
        stage.server.outage(true);
        let begun = Instant::now();
        let requests = [0; 5].map(|_| {
            let app = stage.app.clone();
            timed(async move { ask(&app, "/job").await })
        });
        for _ in 0..100 {
            yield_now().await;
        }
        stage.go_on.notify_waiters();
        for request in requests {
            let (seen, ended) = done("it answers", request).await;
            assert_eq!((seen.status, ended), (StatusCode::OK, begun));
        }
        stage.server.outage(false);
        let next = stage.enter().await;
        stage.finish(next).await;
    }

    #[tokio::test(start_paused = true)]
    async fn in_an_outage_a_layer_that_counts_locally_waits_by_the_same_clock() {
        let stage = Stage::new(|handle| {
            let layer = ConcurrencyLimitLayer::new(slots(handle, 5)).max_wait(5 * SECOND);
            layer.on_outage(OnOutage::Local(1))
        });
        stage.server.outage(true);
        let app = stage.app.clone();
        let first = timed(async move { ask(&app, "/job").await });
        for _ in 0..100 {
            yield_now().await;
        }
        let begun = Instant::now();
        let second = ask(&stage.app, "/job").await;
        assert_after(begun, Instant::now(), 5 * SECOND);
        let seconds = second
            .retry_after
            .as_deref()
            .and_then(|text| text.parse().ok());
        let seconds = seconds.expect("it is told when to come again");
        assert_refused(
            &second,
            StatusCode::SERVICE_UNAVAILABLE,
            seconds,
            "waited-too-long",
        );
        stage.go_on.notify_one();
        assert_eq!(done("it answers", first).await.0.status, StatusCode::OK);
    }

    /// Its wait is one, wherever it waits.
    #[tokio::test(start_paused = true)]
    async fn who_has_waited_for_a_server_that_went_away_has_no_time_left_to_wait_locally() {
        let stage = Stage::new(|handle| {
            let layer = ConcurrencyLimitLayer::new(slots(handle, 1)).max_wait(5 * SECOND);
            layer.on_outage(OnOutage::Local(1))
        });
        let first = stage.enter().await;
        let begun = Instant::now();
        let app = stage.app.clone();
        let [second, third] =
            [app.clone(), app].map(|app| timed(async move { ask(&app, "/job").await }));
        advance(SECOND).await;
        stage.server.outage(true);
        // One of them is let in locally, as the only one; the other has no time left.
        advance(5 * SECOND).await;
        for _ in 0..100 {
            yield_now().await;
        }
        let finished = usize::from(second.is_finished()) + usize::from(third.is_finished());
        assert_eq!(finished, 1, "{:?}", begun.elapsed());
        stage.go_on.notify_waiters();
        for request in [first, second, third] {
            at_last("it ends", request).await.expect("no panic");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_refuses_newcomers_and_waits_for_the_last_answer() {
        let server = MemoryServer::on_tokio_time();
        let handle = server.handle();
        let (go_on, wait) = oneshot::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(Some(wait)));
        let handler = move || {
            let wait = wait.lock().expect("no panic").take().expect("called once");
            async move {
                let _ = wait.await;
                "done"
            }
        };
        let layer = MutexLayer::new(mutex(&handle));
        let app = Router::new().route("/job", get(handler).layer(layer));
        let first = tokio::spawn({
            let app = app.clone();
            async move { ask(&app, "/job").await }
        });
        until("it is at work", async || !server.is_idle()).await;
        let ending = tokio::spawn(async move { handle.shutdown(TTL).await });
        yield_now().await;
        let seen = ask(&app, "/job").await;
        assert_refused(&seen, StatusCode::SERVICE_UNAVAILABLE, 1, "shutting-down");
        assert!(!ending.is_finished());
        go_on.send(()).expect("the handler waits");
        assert_eq!(first.await.expect("no panic").status, StatusCode::OK);
        let report = promptly("it ends", ending).await.expect("no panic");
        assert_eq!((report.released, report.abandoned), (1, 0));
        server.assert_idle();
    }
}
