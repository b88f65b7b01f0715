//! What a grant is worth, and which words about it are too late.

use super::*;

#[test]
fn a_deadline_is_counted_from_the_sending_of_the_request_that_was_answered() {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.lock();
    let call = desk.call();
    desk.pass(300);
    desk.held(call, 1, 10_000);
    let lease = granted(&mut answer);
    // 10 s less 300 ms under way, less 1 % and 2 ms.
    assert_eq!(left_ms(&desk, &lease), 10_000 - 300 - 102);
}

#[test]
fn an_acquire_that_is_sent_again_is_worth_what_its_own_answer_says() {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.lock();
    let first = desk.call();
    desk.pass(500);
    desk.fail(first, Failure::Unknown(None));
    desk.pass(50);
    let second = desk.call();
    // The first one ran, and 4 of 10 s are left.
    desk.held(second, 1, 4000);
    let lease = granted(&mut answer);
    assert_eq!(left_ms(&desk, &lease), 4000 - 42);
}

#[test]
fn a_late_push_is_dated_before_its_grant_and_confirmed_when_little_is_left() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let us = desk.server_us() + 1000;
    // Granted 1 ms later, heard 2.9 s later, and nothing else was heard in between.
    desk.ms += 2900;
    desk.push(token, us);
    assert!(
        is_open(&mut answer),
        "a claim that may be over is not handed out"
    );
    let call = desk.call();
    assert_eq!(renew(&call).leases[0].fence.get(), us);
    desk.renewed(call, &[10_000]);
    let lease = granted(&mut answer);
    assert_eq!(left_ms(&desk, &lease), 10_000 - 102);
}

#[test]
fn a_late_push_whose_claim_is_over_leads_back_into_the_queue_with_the_old_place() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let ticket = SERVER * 1000;
    let us = desk.server_us() + 1000;
    desk.ms += 2900;
    desk.push(token, us);
    let call = desk.call();
    desk.renewed(call, &[-1]);
    let again = desk.call();
    assert_eq!(ask(&again).ticket, ticket);
    assert!(is_open(&mut answer));
}

#[test]
fn heartbeats_keep_a_push_worth_its_whole_claim() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    for _ in 0..5 {
        desk.pass(1000);
        for call in desk.calls() {
            match call.body {
                Body::Renew(_) => desk.renewed(call, &[]),
                _ => desk.queued(call, SERVER * 1000, SERVER * 1000, 5000),
            }
        }
    }
    desk.ms += 10;
    desk.push(token, desk.server_us());
    let lease = granted(&mut answer);
    assert!(left_ms(&desk, &lease) >= 1900, "{}", left_ms(&desk, &lease));
}

#[test]
fn a_push_of_another_server_counts_though_its_clock_is_behind() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let behind = desk.server_us() - 5_000_000;
    desk.push(token, behind);
    assert!(is_open(&mut answer), "it is older than its place");
    desk.core.moved();
    desk.push(token, behind);
    granted(&mut answer);
}

#[test]
fn a_push_from_before_the_newest_queued_is_ignored() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let old = desk.server_us() + 1;
    desk.core.inbox_changed(desk.now(), true);
    let call = desk.call();
    // Granted, lost, and queued again: so says a stamp beyond the grant.
    desk.queued(call, old + 500, old + 500, 5000);
    desk.push(token, old);
    assert!(is_open(&mut answer));
    desk.no_call();
}

#[test]
fn a_queued_that_comes_after_the_grant_is_ignored() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.lock();
    let call = desk.call();
    let us = desk.server_us();
    desk.push(token, us + 2);
    let lease = granted(&mut answer);
    desk.queued(call, us + 1, us + 1, 5000);
    assert!(lease.state().is_held());
}

#[test]
fn a_direct_grant_that_is_over_on_arrival_is_ended_and_reported() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.acquire(Desk::request(Wait::Unbounded, 50));
    let call = desk.call();
    desk.pass(60);
    desk.held(call, 1, 50);
    assert_eq!(failed(&mut answer), BackendErrorKind::TimedOut);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_server_clock_that_is_set_back_makes_no_old_push_worth_anything() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let granted_at = desk.server_us() + 1000;
    // The push waits in its socket until the claim is over and the server's clock has been set back
    // beyond the grant. The heartbeat's answer then shows an earlier time than the push, and a
    // stamp that says it was given later.
    desk.pass(3500);
    for call in desk.calls() {
        let us = i64::try_from(granted_at - 500_000).expect("fits");
        let stamp = i64::try_from(granted_at + 1).expect("fits");
        match call.body {
            Body::Renew(_) => desk.answer(call, &[us, stamp]),
            _ => desk.fail(call, Failure::Unknown(None)),
        }
    }
    desk.push(token, granted_at);
    assert!(is_open(&mut answer), "it is confirmed first");
}

#[test]
fn a_push_of_a_grant_that_was_found_to_be_over_is_ignored() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let us = desk.server_us() + 1000;
    desk.ms += 2900;
    desk.push(token, us);
    let call = desk.call();
    desk.renewed(call, &[-1]);
    let again = desk.call();
    desk.push(token, us);
    assert!(is_open(&mut answer));
    // The answer of an acquire that ran while it still held comes even later.
    desk.held(again, us, 10);
    assert!(is_open(&mut answer));
    assert_eq!(ask(&desk.call()).token, token);
}

#[test]
fn a_gone_that_is_about_an_earlier_grant_is_ignored() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let first = desk.server_us() + 1000;
    desk.ms += 2900;
    desk.push(token, first);
    let confirmation = desk.call();
    // The first grant is over by now; it is granted anew before that is known here.
    desk.core.inbox_changed(desk.now(), true);
    let second = desk.server_us();
    desk.core
        .stamped(confirmation.tag(), second - 1, desk.now());
    desk.push(token, second);
    let lease = granted(&mut answer);
    desk.renewed(confirmation, &[-1]);
    assert!(lease.state().finish(), "it still holds");
}

#[test]
fn a_held_that_is_about_an_earlier_grant_is_ignored() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.lock();
    let call = desk.call();
    let us = desk.server_us();
    desk.push(token, us + 9);
    let lease = granted(&mut answer);
    desk.held(call, us + 5, 10_000);
    assert!(lease.state().finish(), "it still holds");
}

#[test]
fn a_held_that_is_about_a_later_grant_means_that_ours_was_lost() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.lock();
    let call = desk.call();
    let us = desk.server_us();
    desk.push(token, us + 9);
    let lease = granted(&mut answer);
    desk.held(call, us + 20, 10_000);
    assert!(!lease.state().finish());
}

#[test]
fn a_claim_that_came_late_is_renewed_before_what_is_left_of_it_has_passed() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let us = desk.server_us() + 1000;
    // 3 s less 30 and 2 ms, of which 2 s have passed: enough to be handed out, less than the usual
    // time to the first renewal.
    desk.ms += 2050;
    desk.push(token, us);
    let lease = granted(&mut answer);
    let left = left_ms(&desk, &lease);
    assert!((900..1000).contains(&left), "{left}");
    desk.pass(left / 2 + 1);
    let call = desk.call();
    assert_eq!(renew(&call).leases[0].token, token);
}

#[test]
fn a_short_longest_hold_is_the_length_of_the_lease_however_it_is_granted() {
    let mut desk = Desk::new();
    let mut request = Desk::request(Wait::Unbounded, 30_000);
    request.terms.mode = LeaseMode::MaxHold(Duration::from_millis(500));
    let (token, mut answer) = desk.acquire(request);
    let call = desk.call();
    assert_eq!(ask(&call).lease, Duration::from_millis(500));
    let ticket = desk.server_us();
    desk.queued(call, ticket, ticket, 5000);
    let us = desk.server_us() + 1;
    let left = Duration::from_millis(500);
    let push = Push::Grant {
        token,
        fence: FencingToken::new(us),
        left,
        others: false,
    };
    desk.core.push(desk.now(), push);
    let lease = granted(&mut answer);
    assert!(left_ms(&desk, &lease) <= 500);
    desk.pass(170);
    let asked = renew(&desk.call()).leases[0].lease;
    assert!(asked <= Duration::from_millis(331), "{asked:?}");
}
