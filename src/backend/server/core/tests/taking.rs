//! Calls at quotas: sent once, told in time, and no turn that is booked for nobody.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::backend::server::core::Asked;
use crate::backend::{Op, Take, Taken};
use crate::key::Subject;
use crate::rate_limit::{Quota, Quotas};

type Told = oneshot::Receiver<Result<Taken, LockError>>;

/// What is said to the thread, where bookings are given back.
struct Caller {
    told: Told,
    said: UnboundedReceiver<Command>,
}

fn ask_with(desk: &mut Desk, op: Op, bridge_ms: Option<u64>) -> Caller {
    let (commands, said) = unbounded_channel();
    let (answer, told) = oneshot::channel();
    let prefix = Prefix::new("t").expect("a plain prefix");
    let asked = Asked {
        subject: Arc::new(Subject::new(&prefix, &"api".into(), None)),
        take: Take {
            op,
            cost: 1,
            quotas: Quotas::new([Quota::per_second(10)]).expect("in range"),
            bridge: bridge_ms.map(Duration::from_millis),
        },
        commands,
    };
    let take = Box::new(asked);
    desk.core
        .command(desk.now(), Command::Take { take, answer });
    Caller { told, said }
}

fn check(desk: &mut Desk) -> Caller {
    ask_with(desk, Op::Check, None)
}

fn failed(caller: &mut Caller) -> BackendErrorKind {
    match caller.told.try_recv().expect("it is answered") {
        Err(LockError::Backend(error)) => error.kind(),
        other => panic!("not failed: {other:?}"),
    }
}

fn admitted(caller: &mut Caller) -> Taken {
    let taken = caller.told.try_recv().expect("it is answered");
    let taken = taken.expect("it is decided");
    assert!(taken.admitted);
    taken
}

fn is_open(caller: &mut Caller) -> bool {
    matches!(
        caller.told.try_recv(),
        Err(oneshot::error::TryRecvError::Empty)
    )
}

fn decided(desk: &mut Desk, call: Call) {
    desk.core.answer(desk.now(), call, Ok(Value::Int(100_000)));
}

/// A turn a second away.
fn booked(desk: &mut Desk, call: Call) {
    let numbers = [1, 1_000_000, 0, 2_000_000, 0].map(Value::Int);
    let Body::Take(take) = &call.body else {
        panic!("not a take: {call:?}");
    };
    let after = format!("after {}", take.id);
    let texts = [&b""[..], after.as_bytes()].map(|text| Value::BulkString(text.to_vec()));
    let answer = Value::Array(numbers.into_iter().chain(texts).collect());
    desk.core.answer(desk.now(), call, Ok(answer));
}

fn busy() -> Failure {
    Failure::NotNow(BackendErrorKind::ServerBusy, broken())
}

#[test]
fn it_is_sent_once_and_its_answer_is_told() {
    let mut desk = Desk::new();
    let mut caller = check(&mut desk);
    let call = desk.call();
    desk.pass(400);
    desk.no_call();
    decided(&mut desk, call);
    assert_eq!(admitted(&mut caller).levels[0].remaining, 9);
    assert!(desk.core.is_idle(desk.now()));
}

#[test]
fn what_may_have_run_is_not_sent_again() {
    let mut desk = Desk::new();
    for failure in [Failure::Unknown(None), Failure::Unknown(Some(broken()))] {
        let mut caller = check(&mut desk);
        let call = desk.call();
        desk.fail(call, failure);
        let kind = failed(&mut caller);
        assert!(kind == BackendErrorKind::TimedOut || kind == BackendErrorKind::Unreachable);
        desk.pass(5_000);
        desk.no_call();
    }
    assert!(desk.core.is_idle(desk.now()));
}

#[test]
fn what_surely_did_not_run_is_sent_again_while_the_caller_is_patient() {
    let mut desk = Desk::new();
    let mut caller = check(&mut desk);
    let call = desk.call();
    desk.fail(call, busy());
    desk.pass(25);
    let call = desk.call();
    desk.fail(call, Failure::NotSent);
    desk.core.link_changed(desk.now(), 0, false);
    desk.pass(100);
    desk.no_call();
    desk.core.link_changed(desk.now(), 0, true);
    let call = desk.call();
    decided(&mut desk, call);
    admitted(&mut caller);

    let mut caller = check(&mut desk);
    let call = desk.call();
    desk.pass(499);
    assert!(is_open(&mut caller));
    desk.fail(call, busy());
    desk.pass(1);
    assert_eq!(failed(&mut caller), BackendErrorKind::ServerBusy);
    desk.pass(5_000);
    desk.no_call();
}

#[test]
fn an_urgent_caller_is_told_within_its_budget_and_at_once_in_an_outage() {
    let mut desk = Desk::new();
    let mut callers: Vec<Caller> = (0..5)
        .map(|_| ask_with(&mut desk, Op::Check, Some(0)))
        .collect();
    desk.pass(60);
    // It would have time until later, and nothing to hope for.
    callers.push(ask_with(&mut desk, Op::Check, Some(0)));
    desk.calls();
    desk.pass(40);
    for caller in &mut callers {
        assert_eq!(failed(caller), BackendErrorKind::TimedOut);
    }
    assert!(desk.core.is_open(0));
    let mut late = ask_with(&mut desk, Op::Check, Some(0));
    assert_eq!(failed(&mut late), BackendErrorKind::TimedOut);
    desk.no_call();
    // Who hopes for its end for a while, and who has nothing else to do.
    let mut hopes = ask_with(&mut desk, Op::Check, Some(50));
    let mut patient = check(&mut desk);
    desk.pass(50);
    assert_eq!(failed(&mut hopes), BackendErrorKind::TimedOut);
    assert!(is_open(&mut patient));
}

fn is_unbooking(call: &Call) -> bool {
    matches!(&call.body, Body::Unbook(_))
}

#[test]
fn a_turn_whose_caller_is_gone_is_given_back_once() {
    let mut desk = Desk::new();
    let op = Op::Book(Duration::from_secs(9));
    // Gone before the answer, gone with the answer unread, gone while asleep.
    let before = ask_with(&mut desk, op, None);
    let unread = ask_with(&mut desk, op, None);
    let mut asleep = ask_with(&mut desk, op, None);
    let calls = desk.calls();
    let Caller { told, mut said } = before;
    drop(told);
    for call in calls {
        booked(&mut desk, call);
    }
    let taken = admitted(&mut asleep);
    assert_eq!(taken.wait, Duration::from_secs(1));
    drop(taken);
    let Caller { told, said: other } = unread;
    drop(told);
    for said in [&mut said, &mut { other }, &mut asleep.said] {
        let command = said.try_recv().expect("it is given back");
        assert!(said.try_recv().is_err(), "once");
        desk.core.command(desk.now(), command);
        let call = desk.call();
        assert!(is_unbooking(&call), "{call:?}");
        desk.answer(call, &[1, 0]);
        desk.no_call();
    }
    // One whose turn came keeps it.
    let mut served = ask_with(&mut desk, op, None);
    let call = desk.call();
    booked(&mut desk, call);
    let taken = admitted(&mut served);
    assert!(taken.booking.expect("it is away").use_up());
    let command = served.said.try_recv().expect("it is over");
    desk.core.command(desk.now(), command);
    desk.pass(5_000);
    desk.no_call();
    assert!(desk.core.is_idle(desk.now()));
}

/// One whose caller has just gone, with the call that gives it back.
fn given_back(desk: &mut Desk) -> Call {
    let mut caller = ask_with(desk, Op::Book(Duration::from_secs(9)), None);
    let call = desk.call();
    booked(desk, call);
    drop(admitted(&mut caller));
    let command = caller.said.try_recv().expect("it is given back");
    desk.core.command(desk.now(), command);
    desk.call()
}

#[test]
fn a_turn_is_given_back_again_until_that_is_answered() {
    let mut desk = Desk::new();
    let mut call = given_back(&mut desk);
    for failure in [
        Failure::Unknown(None),
        busy(),
        Failure::NoScript,
        Failure::Unknown(Some(broken())),
    ] {
        desk.fail(call, failure);
        desk.no_call();
        desk.pass(400);
        call = desk.call();
        assert!(is_unbooking(&call), "{call:?}");
    }
    // The server is away for a while.
    desk.core.link_changed(desk.now(), 0, false);
    desk.fail(call, Failure::NotSent);
    desk.pass(2_000);
    desk.no_call();
    assert!(!desk.core.is_idle(desk.now()));
    desk.core.link_changed(desk.now(), 0, true);
    let call = desk.call();
    assert!(is_unbooking(&call), "{call:?}");
    desk.answer(call, &[1, 0]);
    desk.pass(5_000);
    desk.no_call();
    assert!(desk.core.is_idle(desk.now()));
    // What can never be done is not tried again.
    let call = given_back(&mut desk);
    desk.fail(
        call,
        Failure::Final(BackendErrorKind::ForeignData, broken()),
    );
    assert!(desk.core.is_idle(desk.now()));
}

#[test]
fn a_turn_that_can_not_be_given_back_for_long_is_forfeited() {
    let mut desk = Desk::new();
    let call = given_back(&mut desk);
    desk.core.link_changed(desk.now(), 0, false);
    desk.fail(call, Failure::NotSent);
    desk.pass(4_999);
    assert!(!desk.core.is_idle(desk.now()));
    desk.pass(1);
    assert!(desk.core.is_idle(desk.now()));
    desk.core.link_changed(desk.now(), 0, true);
    desk.no_call();
    assert_eq!(desk.core.next_timer(), None);
}

#[test]
fn a_turn_that_comes_after_its_caller_was_told_of_a_failure_is_given_back() {
    let mut desk = Desk::new();
    let mut caller = ask_with(&mut desk, Op::Book(Duration::from_secs(9)), Some(0));
    let call = desk.call();
    desk.pass(100);
    assert_eq!(failed(&mut caller), BackendErrorKind::TimedOut);
    booked(&mut desk, call);
    let call = desk.call();
    assert!(is_unbooking(&call), "{call:?}");
}

/// The last of them first, so that each is the last when it is given back.
#[tokio::test]
async fn a_shutdown_refuses_who_sleeps_and_waits_until_all_turns_are_given_back() {
    let mut desk = Desk::new();
    let op = Op::Book(Duration::from_secs(9));
    let mut callers: Vec<Caller> = (0..4).map(|_| ask_with(&mut desk, op, None)).collect();
    let mut calls = desk.calls();
    let under_way = calls.pop().expect("there are four");
    for call in calls {
        booked(&mut desk, call);
    }
    let mut turns: Vec<_> = callers[..3]
        .iter_mut()
        .map(|caller| admitted(caller).booking.expect("it is away"))
        .collect();
    // It has come, though the thread has not heard of it.
    assert!(turns.remove(0).use_up());
    let (answer, mut report) = oneshot::channel();
    let deadline = Duration::from_secs(9);
    desk.core
        .errand(desk.now(), Errand::Shutdown { deadline, answer });
    for mut turn in turns {
        turn.refused().await;
        assert!(!turn.use_up());
    }
    let mut ids = Vec::new();
    booked(&mut desk, under_way);
    match callers[3].told.try_recv().expect("it is answered") {
        Err(LockError::Refused(refusal)) => {
            assert_eq!(refusal.kind(), RefusalKind::ShuttingDown);
        }
        other => panic!("not refused: {other:?}"),
    }
    let calls = desk.calls();
    assert_eq!(calls.len(), 3);
    for call in calls {
        assert!(report.try_recv().is_err(), "a turn is left");
        match &call.body {
            Body::Unbook(unbook) => ids.push(unbook.trace.after.to_vec()),
            other => panic!("{other:?}"),
        }
        desk.answer(call, &[1, 0]);
    }
    // The one that was under way was booked last: before it no other is the last one.
    assert_eq!(ids, [b"after 4", b"after 3", b"after 2"]);
    report.try_recv().expect("all is done");
}

#[test]
fn a_shutdown_refuses_what_was_not_sent_and_what_comes() {
    let mut desk = Desk::new();
    let mut sent = check(&mut desk);
    let call = desk.call();
    desk.core.link_changed(desk.now(), 0, false);
    let mut unsent = check(&mut desk);
    let (answer, _report) = oneshot::channel();
    let deadline = Duration::ZERO;
    desk.core
        .errand(desk.now(), Errand::Shutdown { deadline, answer });
    let mut late = check(&mut desk);
    for caller in [&mut unsent, &mut late] {
        match caller.told.try_recv().expect("it is answered") {
            Err(LockError::Refused(refusal)) => {
                assert_eq!(refusal.kind(), RefusalKind::ShuttingDown);
            }
            other => panic!("not refused: {other:?}"),
        }
    }
    decided(&mut desk, call);
    admitted(&mut sent);
}
