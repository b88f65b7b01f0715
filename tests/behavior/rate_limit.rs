//! Rate limits: who is admitted, who is not and until when, and who waits (C67 to C77).

use std::time::{Duration, Instant};

use portcullis::{LockError, Portcullis, Quota, Quotas, RateLimiter, RefusalKind};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::common::{LIMIT, all_done, promptly, refusal, within};
use crate::rig::Rig;
use crate::support::wait_for;

const HOUR: Duration = Duration::from_secs(60 * 60);

fn limiter<const N: usize>(handle: &Portcullis, quotas: [Quota; N]) -> RateLimiter {
    handle.rate_limiter("api", quotas).expect("in range")
}

async fn admitted(limiter: &RateLimiter, cost: u32) -> u32 {
    let report = promptly("a check is answered", limiter.check_n(cost)).await;
    report.expect("it is admitted").remaining()
}

/// The time until it is admitted.
async fn refused(limiter: &RateLimiter, cost: u32) -> Duration {
    let refusal = refusal(promptly("a check is answered", limiter.check_n(cost)).await);
    assert_eq!(refusal.kind(), RefusalKind::OverQuota);
    refusal.retry_after().expect("it is known")
}

pub(crate) async fn a_burst_is_admitted_and_what_exceeds_it_is_told_when<R: Rig>() {
    let rig = R::start();
    let limiter = limiter(&rig.handle(), [Quota::per_hour(60).burst(10)]);
    for left in (0..10).rev() {
        assert_eq!(admitted(&limiter, 1).await, left);
    }
    let minute = Duration::from_secs(60);
    let refusal = refusal(limiter.check().await);
    let retry_after = refusal.retry_after().expect("it is known");
    assert!(
        retry_after <= minute && retry_after > minute / 2,
        "{retry_after:?}"
    );
    let quotas = refusal.quotas().expect("they are told");
    let binding = quotas.binding();
    assert_eq!(
        (binding.name(), binding.limit(), binding.burst()),
        ("1h", 60, 10)
    );
    assert_eq!((binding.window(), binding.remaining()), (HOUR, 0));
    assert!(binding.reset_after() > 9 * minute && binding.reset_after() <= 10 * minute);
    // What costs more, later.
    let other = self::limiter(&rig.handle(), [Quota::per_hour(60).burst(10)]);
    assert!(refused(&other, 2).await > minute);
}

pub(crate) async fn who_comes_back_at_the_announced_time_is_admitted<R: Rig>() {
    let rig = R::start();
    let window = Duration::from_millis(150);
    for quota in [
        Quota::per(1, window),
        Quota::sliding(1, window),
        Quota::strict(1, window),
    ] {
        let limiter = limiter(&rig.handle(), [quota.clone()]).keyed(format!("{quota:?}"));
        admitted(&limiter, 1).await;
        for _ in 0..5 {
            match limiter.check().await {
                Ok(_) => {}
                Err(LockError::Refused(refusal)) => {
                    sleep(refusal.retry_after().expect("it is known")).await;
                    admitted(&limiter, 1).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

pub(crate) async fn a_cost_that_never_fits_is_refused_at_once<R: Rig>() {
    let rig = R::start();
    let limiter = limiter(&rig.handle(), [Quota::per_hour(60).burst(5)]);
    for cost in [6, u32::MAX] {
        for answer in [
            limiter.check_n(cost).await,
            limiter.until_ready_n(cost).await,
        ] {
            let refusal = refusal(answer);
            assert_eq!(refusal.kind(), RefusalKind::NeverFits);
            assert_eq!(refusal.retry_after(), None);
        }
    }
    assert_eq!(limiter.check_n(0).await.expect("a peek").remaining(), 5);
    assert_eq!(admitted(&limiter, 5).await, 0);
    assert_eq!(limiter.check_n(0).await.expect("a peek").remaining(), 0);
}

pub(crate) async fn several_quotas_admit_together_or_use_nothing<R: Rig>() {
    let rig = R::start();
    let short = Duration::from_millis(300);
    let quotas = [Quota::strict(1, short), Quota::strict(3, HOUR)];
    let limiter = limiter(&rig.handle(), quotas);
    let mut count = 0;
    let begun = Instant::now();
    loop {
        match limiter.check().await {
            Ok(_) => count += 1,
            Err(LockError::Refused(refusal)) => {
                let retry_after = refusal.retry_after().expect("it is known");
                let quotas = refusal.quotas().expect("they are told");
                if count == 3 && retry_after > short {
                    assert_eq!(quotas.binding().name(), "1h");
                    assert!(retry_after > HOUR - LIMIT);
                    break;
                }
                assert_eq!(quotas.binding().name(), "300ms");
                sleep(retry_after).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(begun.elapsed() >= 2 * short, "at the earliest moments");
}

pub(crate) async fn a_shadow_refuses_nothing_and_tells_what_it_would_have<R: Rig>() {
    let rig = R::start();
    let quotas = [
        Quota::per_hour(5),
        Quota::per_day(2).named("trial").shadow(),
    ];
    let limiter = limiter(&rig.handle(), quotas);
    for number in 1..=5 {
        let report = limiter.check().await.expect("the shadow refuses nothing");
        let shadow = report.quotas().last().expect("there are two");
        assert!(shadow.is_shadow());
        assert_eq!(shadow.is_exceeded(), number > 2);
        assert_eq!(report.binding().name(), "1h");
        assert_eq!(report.remaining(), 5 - number);
    }
    let refusal = refusal(limiter.check().await);
    assert_eq!(refusal.quotas().expect("told").binding().name(), "1h");
}

pub(crate) async fn changed_quotas_act_at_once_and_what_was_used_stays_used<R: Rig>() {
    let rig = R::start();
    let ten = limiter(&rig.handle(), [Quota::per_hour(10)]);
    admitted(&ten, 10).await;
    // Another release, in another process; to make a limiter clears nothing.
    let twenty = limiter(&rig.handle(), [Quota::per_hour(20)]);
    assert_eq!(admitted(&twenty, 10).await, 0);
    refused(&twenty, 1).await;
    let five = ten.with_quotas(&Quotas::new([Quota::per_hour(5)]).expect("in range"));
    refused(&five, 1).await;
    refused(&ten, 1).await;
}

pub(crate) async fn what_is_refunded_debited_and_reset_counts<R: Rig>() {
    let rig = R::start();
    let limiter = limiter(&rig.handle(), [Quota::per_day(5)]);
    admitted(&limiter, 5).await;
    refused(&limiter, 1).await;
    assert_eq!(limiter.refund(2).await.expect("answered").remaining(), 2);
    assert_eq!(admitted(&limiter, 2).await, 0);
    // Never more than was used.
    assert_eq!(
        limiter.refund(1_000).await.expect("answered").remaining(),
        5
    );
    admitted(&limiter, 1).await;
    // Below zero, and no further than that.
    assert_eq!(limiter.debit(1_000).await.expect("answered").remaining(), 0);
    let day = Duration::from_secs(24 * 60 * 60);
    let retry_after = refused(&limiter, 1).await;
    assert!(
        retry_after <= day / 5 * 6 && retry_after > day,
        "{retry_after:?}"
    );
    assert_eq!(limiter.reset().await.expect("answered").remaining(), 5);
    assert_eq!(admitted(&limiter, 1).await, 4);
    assert_eq!(limiter.peek().await.expect("answered").remaining(), 4);
}

pub(crate) async fn keys_and_names_do_not_meet<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let quota = Quota::per_hour(1);
    let limiters = [
        limiter(&handle, [quota.clone()]),
        limiter(&handle, [quota.clone()]).keyed("a"),
        limiter(&handle, [quota.clone()]).keyed("b"),
        handle
            .rate_limiter("api:a", quota.clone())
            .expect("in range"),
        limiter(&rig.handle_with_prefix("elsewhere"), [quota]),
    ];
    let lock = handle.mutex("api").try_lock().await.expect("it is free");
    for limiter in &limiters {
        admitted(limiter, 1).await;
        refused(limiter, 1).await;
    }
    drop(lock);
}

/// C69.
pub(crate) async fn a_thousand_at_once_are_counted_one_by_one<R: Rig>() {
    let rig = R::start();
    for quota in [
        Quota::per_hour(10),
        Quota::sliding(10, 24 * HOUR),
        Quota::strict(10, HOUR),
    ] {
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let limiter = limiter(&rig.handle(), [quota.clone()]).keyed(format!("{quota:?}"));
            for _ in 0..250 {
                let limiter = limiter.clone();
                tasks.spawn(async move { limiter.check().await.is_ok() });
            }
        }
        let admitted = all_done(tasks)
            .await
            .into_iter()
            .filter(|admitted| *admitted);
        assert_eq!(admitted.count(), 10, "{quota:?}");
    }
}

pub(crate) async fn who_waits_is_served_in_order_and_sleeps_once<R: Rig>() {
    let rig = R::start();
    let pause = Duration::from_millis(100);
    let limiters = [(); 2].map(|()| limiter(&rig.handle(), [Quota::per(1, pause)]));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..6_usize {
        let limiter = limiters[number % 2].clone();
        // By moments, since time goes on between two looks, however busy the machine is.
        let end = async |limiter: &RateLimiter| {
            let report = limiter.peek().await.expect("answered");
            Instant::now() + report.binding().reset_after()
        };
        let before = end(&limiter).await;
        tasks.spawn(async move {
            limiter.until_ready().await.expect("its turn comes");
            number
        });
        let limiter = &limiters[number % 2];
        wait_for("the turn is booked", LIMIT, async || {
            end(limiter).await > before + pause / 2
        })
        .await;
    }
    let mut order = Vec::new();
    while let Some(number) = tasks.join_next().await {
        order.push(number.expect("no panic"));
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    assert!(begun.elapsed() >= 5 * pause, "{:?}", begun.elapsed());
}

pub(crate) async fn a_turn_that_comes_too_late_is_refused_at_once_and_not_booked<R: Rig>() {
    let rig = R::start();
    let limiter = limiter(&rig.handle(), [Quota::per_hour(1)]);
    admitted(&limiter, 1).await;
    let impatient = limiter.clone().max_wait(HOUR / 2);
    let refusal = refusal(promptly("it does not wait", impatient.until_ready()).await);
    assert_eq!(refusal.kind(), RefusalKind::OverQuota);
    assert!(refusal.retry_after().is_some_and(|after| after > HOUR / 2));
    assert!(refused(&limiter, 1).await <= HOUR);
}

/// Books a turn, in a task of its own, and waits until it is booked.
async fn book(limiter: &RateLimiter) -> tokio::task::JoinHandle<()> {
    let before = until_free(limiter).await;
    let booked = limiter.clone();
    let task = tokio::spawn(async move {
        let _ = booked.until_ready().await;
    });
    wait_for("the turn is booked", LIMIT, async || {
        until_free(limiter).await > before + HOUR / 2
    })
    .await;
    task
}

async fn until_free(limiter: &RateLimiter) -> Duration {
    let report = limiter.peek().await.expect("answered");
    report.binding().retry_after().unwrap_or_default()
}

pub(crate) async fn a_dropped_turn_is_given_back_only_if_it_is_the_last<R: Rig>() {
    let rig = R::start();
    let limiter = limiter(&rig.handle(), [Quota::per_hour(1)]);
    admitted(&limiter, 1).await;
    let (first, second) = (book(&limiter).await, book(&limiter).await);
    // Booked: one at 1 h, one at 2 h.
    assert!(until_free(&limiter).await > 2 * HOUR + HOUR / 2);
    first.abort();
    let _ = first.await;
    // Its turn is forfeited; what comes behind it stands.
    let third = book(&limiter).await;
    assert!(until_free(&limiter).await > 3 * HOUR + HOUR / 2);
    third.abort();
    wait_for("the last turn is given back", LIMIT, async || {
        until_free(&limiter).await < 3 * HOUR + HOUR / 2
    })
    .await;
    second.abort();
    let _ = second.await;
    wait_for("so is the one before it, now the last", LIMIT, async || {
        until_free(&limiter).await < 2 * HOUR + HOUR / 2
    })
    .await;
    assert!(until_free(&limiter).await > HOUR + HOUR / 2);
}

pub(crate) async fn a_check_does_not_overtake_who_waits<R: Rig>() {
    let rig = R::start();
    let limiter = limiter(&rig.handle(), [Quota::per_hour(2)]);
    admitted(&limiter, 1).await;
    let large = limiter.clone();
    let waiting = tokio::spawn(async move { large.until_ready_n(2).await.map(drop) });
    wait_for("it waits", LIMIT, async || {
        limiter.peek().await.expect("answered").remaining() == 0
    })
    .await;
    // One unit is free, and not for others.
    assert!(refused(&limiter, 1).await > HOUR / 2);
    waiting.abort();
    let _ = waiting.await;
    wait_for("it is free again", LIMIT, async || {
        limiter.check().await.is_ok()
    })
    .await;
}

pub(crate) async fn exactly_what_remains_can_be_used<R: Rig>() {
    let rig = R::start();
    let quotas = [
        Quota::per_hour(50).burst(7),
        Quota::sliding(9, HOUR),
        Quota::strict(8, HOUR),
    ];
    let limiter = limiter(&rig.handle(), quotas);
    let left = admitted(&limiter, 1).await;
    assert_eq!(left, 6);
    assert_eq!(admitted(&limiter, left).await, 0);
    refused(&limiter, 1).await;
}

pub(crate) async fn what_was_used_vanishes_when_it_has_come_back<R: Rig>() {
    let rig = R::start();
    let soon = Duration::from_millis(200);
    let quotas = [
        Quota::per(5, soon),
        Quota::sliding(5, soon),
        Quota::strict(5, soon),
    ];
    let limiter = limiter(&rig.handle(), quotas);
    for key in 0..50_u32 {
        admitted(&limiter.keyed(key), 5).await;
    }
    wait_for("all has come back", LIMIT, async || {
        let report = limiter.keyed(49_u32).peek().await.expect("answered");
        report.quotas().all(|quota| quota.reset_after().is_zero())
    })
    .await;
    rig.settled().await;
    assert_eq!(admitted(&limiter.keyed(0_u32), 5).await, 0);
}

pub(crate) async fn a_handle_that_shuts_down_admits_nobody<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let limiter = limiter(&handle, [Quota::per_hour(5)]);
    admitted(&limiter, 1).await;
    handle.shutdown(Duration::ZERO).await;
    let answers = [
        limiter.check().await,
        limiter.peek().await,
        limiter.until_ready().await,
        limiter.refund(1).await,
    ];
    for answer in answers {
        assert_eq!(refusal(answer).kind(), RefusalKind::ShuttingDown);
    }
    let other = self::limiter(&rig.handle(), [Quota::per_hour(5)]);
    let left = within(LIMIT, "others go on", other.check()).await;
    assert_eq!(left.expect("admitted").remaining(), 3);
}

pub(crate) async fn a_handle_that_shuts_down_lets_nobody_sleep_on_and_gives_turns_back<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let (sleeping, other) = (
        limiter(&handle, [Quota::per_hour(1)]),
        limiter(&rig.handle(), [Quota::per_hour(1)]),
    );
    admitted(&other, 1).await;
    let mut tasks = Vec::new();
    for turns in 1..=3 {
        let limiter = sleeping.clone();
        tasks.push(tokio::spawn(async move {
            limiter.until_ready().await.map(drop)
        }));
        wait_for("the turn is booked", LIMIT, async || {
            until_free(&other).await > turns * HOUR
        })
        .await;
    }
    promptly("it waits for nobody", handle.shutdown(HOUR)).await;
    // All three, and before it has ended.
    assert!(until_free(&other).await <= HOUR);
    for task in tasks {
        let answer = promptly("who slept is told", task).await.expect("no panic");
        assert_eq!(refusal(answer).kind(), RefusalKind::ShuttingDown);
    }
    assert!(until_free(&other).await > HOUR / 2);
}
