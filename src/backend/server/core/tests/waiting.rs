//! How a wait ends without a lease, and what goes on without a server.

use super::*;

#[test]
fn a_wait_that_ran_out_is_refused_with_what_the_server_said() {
    let mut desk = Desk::new();
    let (token, mut answer) =
        desk.acquire(Desk::request(Wait::AtMost(Duration::from_secs(2)), 10_000));
    let call = desk.call();
    desk.queued(call, 5, 5, 7000);
    desk.pass(1999);
    assert!(is_open(&mut answer));
    desk.calls();
    desk.pass(1);
    assert_eq!(refused(&mut answer), RefusalKind::WaitedTooLong);
    assert!(
        desk.calls()
            .iter()
            .any(|call| matches!(&call.body, Body::End(end) if end.token == token))
    );
}

#[test]
fn a_try_that_finds_it_held_is_refused_and_leaves_nothing() {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.acquire(Desk::request(Wait::No, 10_000));
    let call = desk.call();
    assert_eq!(ask(&call).wait, Some(Duration::ZERO));
    let us = desk.server_us() as i64;
    desk.answer(call, &[2, us, us, 0, 700, 0, 3]);
    let refusal = match answer.try_recv().expect("answered") {
        Err(LockError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal.kind(), RefusalKind::Busy);
    assert_eq!(refusal.retry_after(), Some(Duration::from_millis(700)));
    assert_eq!(refusal.position(), Some(3));
    assert!(desk.core.is_idle(desk.now()));
    assert!(!desk.core.wants_inbox(), "a try listens to nothing");
}

#[test]
fn without_a_server_a_call_fails_when_its_time_is_up_and_nothing_is_left() {
    let mut desk = Desk::new();
    desk.core.link_changed(desk.now(), 0, false);
    let (_, mut bounded) =
        desk.acquire(Desk::request(Wait::AtMost(Duration::from_secs(2)), 10_000));
    let (_, mut tried) = desk.acquire(Desk::request(Wait::No, 10_000));
    let (_, mut unbounded) = desk.lock();
    desk.no_call();
    desk.pass(1500);
    assert_eq!(failed(&mut tried), BackendErrorKind::Unreachable);
    assert_eq!(failed(&mut unbounded), BackendErrorKind::Unreachable);
    assert!(is_open(&mut bounded));
    desk.pass(500);
    assert_eq!(failed(&mut bounded), BackendErrorKind::Unreachable);
    assert!(desk.core.is_idle(desk.now()));
}

#[test]
fn a_connection_that_comes_up_sends_what_was_left() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    desk.core.link_changed(desk.now(), 0, false);
    let (waiting, _answer) = desk.lock();
    drop(lease);
    desk.no_call();
    desk.core.link_changed(desk.now(), 0, true);
    let calls = desk.calls();
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().any(|call| matches!(&call.body, Body::End(_))));
    assert!(
        calls
            .iter()
            .any(|call| matches!(&call.body, Body::Acquire(ask) if ask.token == waiting))
    );
}

#[test]
fn a_clock_that_was_estimated_too_early_is_mended_by_the_answer() {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.lock();
    let call = desk.call();
    let latest = ask(&call).latest_ms;
    // The server's clock was set forward by an hour.
    let us = i64::try_from(desk.server_us() + 3_600_000_000).expect("fits");
    desk.answer(call, &[4, us, us]);
    let call = desk.call();
    assert_eq!(ask(&call).latest_ms, latest + 3_600_000);
    desk.held(call, 1, 10_000);
    granted(&mut answer);
}

#[test]
fn a_record_of_another_version_is_a_typed_failure() {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.lock();
    let call = desk.call();
    let us = desk.server_us() as i64;
    desk.answer(call, &[7, us, us]);
    assert_eq!(failed(&mut answer), BackendErrorKind::Incompatible);
}

#[test]
fn an_answer_that_none_of_our_scripts_gives_is_a_failure_and_cleaned_up_after() {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.lock();
    let call = desk.call();
    desk.core.answer(desk.now(), call, Ok(Value::Okay));
    assert_eq!(failed(&mut answer), BackendErrorKind::Protocol);
}
