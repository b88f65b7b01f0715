//! What is ended, how often, and what its caller is told.

use super::*;

#[test]
fn a_dropped_acquire_under_way_is_ended_with_the_latest_moment_it_may_run_at() {
    let mut desk = Desk::new();
    let (token, answer) = desk.lock();
    let call = desk.call();
    let latest = ask(&call).latest_ms;
    assert_eq!(latest, SERVER + 500);
    drop(answer);
    desk.core.errand(desk.now(), Errand::Cancel(token));
    let ending = desk.call();
    assert_eq!(
        (end(&ending).token, end(&ending).latest_ms),
        (token, latest)
    );
    desk.held(call, 1, 10_000);
    desk.no_call();
    desk.ended(ending, 0);
    assert!(desk.core.is_idle(desk.now()));
}

#[test]
fn a_dropped_acquire_whose_answer_was_missed_is_ended_with_its_latest_moment() {
    let mut desk = Desk::new();
    let (token, _answer) = desk.lock();
    let first = desk.call();
    let latest = ask(&first).latest_ms;
    desk.pass(500);
    desk.fail(first, Failure::Unknown(Some(broken())));
    desk.pass(100);
    let second = desk.call();
    let later = ask(&second).latest_ms;
    assert!(later > latest);
    desk.queued(second, 5, 5, 5000);
    desk.core.errand(desk.now(), Errand::Cancel(token));
    // The second one was answered; the first may still be under way.
    assert_eq!(end(&desk.call()).latest_ms, later);
}

#[test]
fn a_dropped_acquire_that_was_answered_needs_no_tombstone() {
    let mut desk = Desk::new();
    let (token, _answer) = desk.queued_waiter();
    desk.core.errand(desk.now(), Errand::Cancel(token));
    assert_eq!(end(&desk.call()).latest_ms, 0);
}

#[test]
fn an_end_is_sent_until_it_is_answered() {
    let mut desk = Desk::new();
    let (token, lease) = desk.holder();
    drop(lease);
    for _ in 0..5 {
        let call = desk.call();
        assert_eq!(end(&call).token, token);
        desk.pass(500);
        desk.fail(call, Failure::Unknown(None));
        desk.pass(1000);
    }
    let call = desk.call();
    desk.ended(call, 0);
    assert!(desk.core.is_idle(desk.now()));
    desk.pass(60_000);
    desk.no_call();
}

#[test]
fn an_end_that_left_deserted_places_is_repeated_at_once() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    drop(lease);
    let call = desk.call();
    let us = desk.server_us() as i64;
    desk.answer(call, &[0, us, us, 1]);
    let call = desk.call();
    desk.ended(call, 2);
    assert!(desk.core.is_idle(desk.now()));
}

#[test]
fn a_release_tells_whether_the_lease_still_held() {
    for (status, expected) in [(0, Release::Released), (2, Release::NoLongerHeld)] {
        let mut desk = Desk::new();
        let (token, lease) = desk.holder();
        assert!(lease.state().finish());
        let (sender, mut answer) = oneshot::channel();
        desk.core.errand(
            desk.now(),
            Errand::Release {
                token,
                answer: Some(sender),
            },
        );
        let call = desk.call();
        desk.ended(call, status);
        assert_eq!(
            answer.try_recv().expect("answered").expect("no failure"),
            expected
        );
    }
}

#[test]
fn a_release_that_is_not_answered_says_so_and_goes_on() {
    let mut desk = Desk::new();
    let (token, lease) = desk.holder();
    assert!(lease.state().finish());
    let (sender, mut answer) = oneshot::channel();
    desk.core.errand(
        desk.now(),
        Errand::Release {
            token,
            answer: Some(sender),
        },
    );
    let call = desk.call();
    desk.pass(500);
    desk.fail(call, Failure::Unknown(None));
    desk.pass(1);
    let told = answer
        .try_recv()
        .expect("answered")
        .expect_err("not released yet");
    assert_eq!(told.kind(), BackendErrorKind::TimedOut);
    desk.pass(100);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_granted_lease_that_nobody_takes_is_released() {
    let mut desk = Desk::new();
    let (token, answer) = desk.lock();
    let call = desk.call();
    drop(answer);
    desk.held(call, 1, 10_000);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_release_whose_answer_was_lost_still_counts_as_one() {
    for (late_ms, expected) in [(0, Release::Released), (10_000, Release::NoLongerHeld)] {
        let mut desk = Desk::new();
        let (token, lease) = desk.holder();
        assert!(lease.state().finish());
        let (sender, mut answer) = oneshot::channel();
        desk.core.errand(
            desk.now(),
            Errand::Release {
                token,
                answer: Some(sender),
            },
        );
        let call = desk.call();
        desk.fail(call, Failure::Unknown(Some(broken())));
        desk.ms += 25;
        desk.core.tick(desk.now());
        let call = desk.call();
        desk.ms += late_ms;
        desk.ended(call, 2);
        assert_eq!(
            answer.try_recv().expect("answered").expect("no failure"),
            expected
        );
    }
}

#[test]
fn an_end_that_the_server_refuses_is_told_at_once_and_repeated() {
    let mut desk = Desk::new();
    let (token, lease) = desk.holder();
    assert!(lease.state().finish());
    let (sender, mut answer) = oneshot::channel();
    let release = Errand::Release {
        token,
        answer: Some(sender),
    };
    desk.core.errand(desk.now(), release);
    let call = desk.call();
    desk.fail(
        call,
        Failure::Final(BackendErrorKind::NotPermitted, broken()),
    );
    let told = answer
        .try_recv()
        .expect("answered")
        .expect_err("not released");
    assert_eq!(told.kind(), BackendErrorKind::NotPermitted);
    desk.pass(100);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_place_whose_end_is_refused_is_ended_when_that_is_mended() {
    let mut desk = Desk::new();
    let (token, _answer) = desk.queued_waiter();
    desk.core.errand(desk.now(), Errand::Cancel(token));
    for _ in 0..20 {
        let call = desk.call();
        desk.fail(
            call,
            Failure::Final(BackendErrorKind::ForeignData, broken()),
        );
        desk.pass(1500);
    }
    let call = desk.call();
    assert_eq!(end(&call).token, token);
    desk.ended(call, 1);
    assert!(desk.core.is_idle(desk.now()));
}
