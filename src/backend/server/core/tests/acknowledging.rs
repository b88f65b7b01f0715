//! Grants and renewals that count only when replicas have them.

use redis::{ServerError, make_extension_error};

use super::*;

/// A waiter whose grant was answered, and the renewal that replicas are to acknowledge.
fn granted_first(desk: &mut Desk) -> (Token, Answer, Call) {
    let (token, answer) = desk.lock();
    let call = desk.call();
    desk.held(call, 7, 10_000);
    let call = desk.call();
    assert_eq!(renew(&call).leases[0].fence.get(), 7);
    assert!(call.is_acknowledged());
    (token, answer, call)
}

fn holder(desk: &mut Desk) -> (Token, Lease) {
    let (token, mut answer, call) = granted_first(desk);
    desk.acknowledged(call, &[10_000], 1);
    (token, granted(&mut answer))
}

#[test]
fn a_grant_counts_when_enough_replicas_have_it_and_from_the_renewal_that_they_have() {
    let mut desk = Desk::with_replicas();
    let (_, mut answer, mut call) = granted_first(&mut desk);
    assert!(is_open(&mut answer), "nobody has acknowledged it");
    desk.pass(100);
    // It went along with the second wait.
    call.sent = desk.now();
    desk.pass(50);
    desk.acknowledged(call, &[10_000], 1);
    let lease = granted(&mut answer);
    assert_eq!(left_ms(&desk, &lease), 10_000 - 50 - 102);
    desk.no_call();
}

#[test]
fn a_grant_that_too_few_have_is_given_back_and_refused_with_what_to_do() {
    let mut desk = Desk::with_replicas();
    let (token, mut answer, call) = granted_first(&mut desk);
    desk.pass(200);
    desk.acknowledged(call, &[10_000], 0);
    let Err(LockError::Backend(error)) = answer.try_recv().expect("it is answered") else {
        panic!("not failed");
    };
    assert_eq!(error.kind(), BackendErrorKind::Refused);
    assert_eq!(
        error.to_string(),
        "acquiring `gate` (confirming the grant, answered, after 200 of 700 ms): 0 of 1 replicas \
         acknowledged the grant, and it was given back; see that they are connected and keep up, \
         or ask for fewer by min_replicas"
    );
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_grant_that_was_pushed_is_acknowledged_likewise_however_fresh_it_is() {
    let mut desk = Desk::with_replicas();
    let (token, mut answer) = desk.queued_waiter();
    desk.push(token, desk.server_us() + 1);
    assert!(is_open(&mut answer));
    let call = desk.call();
    assert!(call.is_acknowledged());
    // Told twice, it is not asked for twice.
    desk.push(token, desk.server_us() + 1);
    desk.no_call();
    desk.acknowledged(call, &[10_000], 2);
    assert!(granted(&mut answer).state().is_held());

    let mut desk = Desk::with_replicas();
    let (token, mut answer) = desk.queued_waiter();
    desk.push(token, desk.server_us() + 1);
    let call = desk.call();
    desk.acknowledged(call, &[10_000], 0);
    assert_eq!(failed(&mut answer), BackendErrorKind::Refused);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_renewal_lengthens_only_what_enough_replicas_have() {
    let mut desk = Desk::with_replicas();
    let (token, lease) = holder(&mut desk);
    let deadline = lease.state().deadline();
    let mut renewals = 0;
    while desk.ms < 9800 {
        desk.pass(100);
        for call in desk.calls() {
            assert!(call.is_acknowledged());
            renewals += 1;
            desk.acknowledged(call, &[10_000], 0);
        }
    }
    assert!((10..=30).contains(&renewals), "{renewals} attempts");
    assert_eq!(lease.state().deadline(), deadline);
    assert!(lease.state().is_held(), "it still runs on the replicas");
    desk.pass(98);
    assert!(!lease.state().finish(), "no replica knows of more");
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_renewal_that_is_acknowledged_in_the_end_lengthens() {
    let mut desk = Desk::with_replicas();
    let (_, lease) = holder(&mut desk);
    desk.pass(3400);
    let call = desk.call();
    desk.acknowledged(call, &[10_000], 0);
    desk.pass(1300);
    let call = desk.call();
    desk.acknowledged(call, &[10_000], 1);
    assert_eq!(left_ms(&desk, &lease), 10_000 - 102);
}

#[test]
fn a_late_held_of_an_acquire_lengthens_nothing() {
    let mut desk = Desk::with_replicas();
    let (token, mut answer) = desk.queued_waiter();
    // A question is under way, and its grant is pushed before the answer comes.
    desk.pass(3000);
    let mut calls = desk.calls();
    let at = calls
        .iter()
        .position(|call| matches!(call.body, Body::Acquire(_)));
    let asked = calls.remove(at.expect("it asks again"));
    desk.push(token, desk.server_us() + 1);
    let call = desk.call();
    desk.acknowledged(call, &[10_000], 1);
    let lease = granted(&mut answer);
    let deadline = lease.state().deadline();
    let fence = lease.fencing_token().get();
    desk.held(asked, fence, 60_000);
    assert_eq!(lease.state().deadline(), deadline);
}

#[test]
fn what_the_server_says_is_over_is_over_however_few_have_it() {
    // As after a switch to a server that knows nothing of it.
    let mut desk = Desk::with_replicas();
    let (_, mut answer, call) = granted_first(&mut desk);
    desk.acknowledged(call, &[-1], 0);
    assert!(is_open(&mut answer), "it enters again there");
    desk.no_call();
    desk.pass(50);
    let again = desk.call();
    desk.held(again, 9, 10_000);
    let call = desk.call();
    assert_eq!(renew(&call).leases[0].fence.get(), 9);
    desk.acknowledged(call, &[10_000], 1);
    let lease = granted(&mut answer);
    assert_eq!(lease.fencing_token().get(), 9);

    desk.pass(3400);
    let call = desk.call();
    desk.acknowledged(call, &[-2], 0);
    assert!(!lease.state().is_held());
}

#[test]
fn while_the_two_connections_lead_to_different_servers_the_grant_is_asked_for_without_haste() {
    let mut desk = Desk::with_replicas();
    let (token, mut answer, call) = granted_first(&mut desk);
    desk.acknowledged(call, &[-1], 0);
    let mut asked = 0;
    for _ in 0..100 {
        desk.pass(10);
        for call in desk.calls() {
            match call.body {
                Body::Acquire(_) => desk.held(call, 7, 9_000),
                _ => {
                    asked += 1;
                    desk.acknowledged(call, &[-1], 0);
                }
            }
        }
    }
    assert!((10..=100).contains(&asked), "{asked} in a second");
    // Then it is the same one again.
    desk.pass(50);
    let mut call = desk.call();
    if matches!(call.body, Body::Acquire(_)) {
        desk.held(call, 7, 9_000);
        call = desk.call();
    }
    desk.acknowledged(call, &[10_000], 1);
    let lease = granted(&mut answer);
    assert!(lease.state().is_held());
    drop(lease);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn an_acknowledgement_of_what_was_given_up_meanwhile_changes_nothing() {
    let mut desk = Desk::with_replicas();
    let (token, mut answer, call) = granted_first(&mut desk);
    desk.core.errand(desk.now(), Errand::Cancel(token));
    let ending = desk.call();
    assert_eq!(end(&ending).token, token);
    desk.acknowledged(call, &[10_000], 1);
    assert!(matches!(
        answer.try_recv(),
        Err(oneshot::error::TryRecvError::Closed)
    ));
    desk.no_call();
    desk.ended(ending, 0);
    assert!(desk.core.is_idle(desk.now()));
}

#[test]
fn one_whose_caller_is_gone_when_it_is_acknowledged_is_given_back() {
    let mut desk = Desk::with_replicas();
    let (token, answer, call) = granted_first(&mut desk);
    drop(answer);
    desk.acknowledged(call, &[10_000], 1);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_broken_connection_is_tried_again_until_the_time_is_up() {
    let mut desk = Desk::with_replicas();
    let (_, mut answer, call) = granted_first(&mut desk);
    desk.unacknowledged(call, Failure::Unknown(Some(broken())));
    desk.no_call();
    desk.pass(50);
    let call = desk.call();
    desk.acknowledged(call, &[10_000], 1);
    drop(granted(&mut answer));
    desk.calls();

    let (token, mut answer, call) = granted_first(&mut desk);
    desk.unacknowledged(call, Failure::NotSent);
    let mut asked = 0;
    for _ in 0..70 {
        assert!(is_open(&mut answer));
        desk.pass(10);
        for call in desk.calls() {
            match call.body {
                Body::Renew(_) => {
                    asked += 1;
                    desk.unacknowledged(call, Failure::Unknown(None));
                }
                _ => assert_eq!(end(&call).token, token),
            }
        }
    }
    assert!((3..=20).contains(&asked), "{asked} attempts");
    assert_eq!(failed(&mut answer), BackendErrorKind::TimedOut);
}

#[test]
fn silence_ends_with_the_time_that_is_set_and_the_grant_is_given_back() {
    let mut desk = Desk::with_replicas();
    let (token, mut answer, _never) = granted_first(&mut desk);
    desk.pass(699);
    assert!(is_open(&mut answer));
    desk.pass(1);
    assert_eq!(failed(&mut answer), BackendErrorKind::TimedOut);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_missing_right_is_told_at_once() {
    let mut desk = Desk::with_replicas();
    let (token, mut answer, call) = granted_first(&mut desk);
    let details = "User 'u' has no permissions to run the 'wait' command";
    let error = make_extension_error("NOPERM".to_owned(), Some(details.to_owned()));
    let error = ServerError::try_from(error).expect("a server's");
    desk.unacknowledged(call, Failure::of_server(error));
    let Err(LockError::Backend(error)) = answer.try_recv().expect("it is answered") else {
        panic!("not failed");
    };
    assert!(error.to_string().contains("`+wait` is missing"), "{error}");
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn who_has_its_turn_in_time_waits_for_replicas_beyond_its_wait() {
    let mut desk = Desk::with_replicas();
    let wait = Wait::AtMost(Duration::from_secs(2));
    let (token, mut answer) = desk.acquire(Desk::request(wait, 10_000));
    let call = desk.call();
    let ticket = desk.server_us();
    desk.queued(call, ticket, ticket, 5000);
    desk.pass(1950);
    desk.calls();
    desk.push(token, desk.server_us());
    let mut calls = desk.calls();
    desk.pass(150);
    assert!(is_open(&mut answer));
    desk.acknowledged(calls.remove(0), &[10_000], 1);
    assert!(granted(&mut answer).state().is_held());
}

#[test]
fn heartbeats_and_questions_wait_for_no_replicas() {
    let mut desk = Desk::with_replicas();
    let (_, _lease) = holder(&mut desk);
    let (_, _waiting) = desk.queued_waiter();
    let (mut beats, mut renewals) = (0, 0);
    for _ in 0..100 {
        desk.pass(100);
        for call in desk.calls() {
            match &call.body {
                Body::Renew(renew) if call.is_acknowledged() => {
                    assert!(!renew.waits, "it may come late");
                    renewals += 1;
                    desk.acknowledged(call, &[10_000], 1);
                }
                Body::Renew(renew) => {
                    assert!(renew.waits && renew.leases.is_empty());
                    beats += 1;
                    desk.renewed(call, &[]);
                }
                _ => desk.queued(call, SERVER * 1000, SERVER * 1000, 5000),
            }
        }
    }
    assert!(beats + 5 >= 8, "{beats} heartbeats in 10 s");
    assert!((2..=4).contains(&renewals), "{renewals} renewals in 10 s");
}

#[test]
fn without_the_option_nothing_is_acknowledged() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    desk.pass(3400);
    let call = desk.call();
    assert!(!call.is_acknowledged());
    desk.renewed(call, &[10_000]);
    assert!(lease.state().is_held());
}
