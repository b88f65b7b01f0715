//! What a process asks and says unasked.

use super::*;

#[test]
fn waiters_are_asked_for_again_only_when_the_inbox_is_confirmed() {
    let mut desk = Desk::new();
    desk.core.inbox_changed(desk.now(), false);
    let (_, _one) = desk.lock();
    let call = desk.call();
    assert!(!ask(&call).pushed, "nobody would hear a push");
    desk.queued(call, 5, 5, 5000);
    desk.core.inbox_changed(desk.now(), true);
    let call = desk.call();
    assert!(ask(&call).pushed);
    assert_eq!(ask(&call).ticket, 5, "it keeps its place");
}

#[test]
fn an_inbox_confirmed_while_an_acquire_is_under_way_leads_to_another_one() {
    let mut desk = Desk::new();
    desk.core.inbox_changed(desk.now(), false);
    let (_, _one) = desk.lock();
    let call = desk.call();
    desk.core.inbox_changed(desk.now(), true);
    desk.no_call();
    desk.queued(call, 5, 5, 5000);
    assert!(ask(&desk.call()).pushed);
}

#[test]
fn a_ticket_is_offered_as_it_was_told_whatever_answers_are_lost() {
    let mut desk = Desk::new();
    let minute = Duration::from_secs(60);
    let (_, mut answer) = desk.acquire(Desk::request(Wait::AtMost(minute), 10_000));
    for _ in 0..3 {
        let call = desk.call();
        assert_eq!(ask(&call).ticket, 0, "nobody has told it of a place");
        desk.fail(call, Failure::Unknown(None));
        desk.pass(200);
    }
    let call = desk.call();
    desk.queued(call, 5, 5, 5000);
    desk.pass(3000);
    for _ in 0..3 {
        let call = desk.call();
        assert_eq!(ask(&call).ticket, 5);
        desk.fail(call, Failure::Unknown(None));
        desk.pass(200);
    }
    assert!(is_open(&mut answer));
}

#[test]
fn without_an_inbox_the_first_waiter_asks_for_all() {
    let mut desk = Desk::new();
    desk.core.inbox_changed(desk.now(), false);
    let mut answers = Vec::new();
    for ticket in 1..=10 {
        let (_, answer) = desk.lock();
        let call = desk.call();
        desk.queued(call, ticket, ticket, 5000);
        answers.push(answer);
    }
    desk.pass(250);
    assert_eq!(ask(&desk.call()).ticket, 1);
}

/// As many waiters as tickets, beside whoever holds.
fn crowd(desk: &mut Desk, tickets: u64) -> Vec<Answer> {
    let mut answers = Vec::new();
    for ticket in 1..=tickets {
        let (_, answer) = desk.lock();
        let call = desk.call();
        desk.queued(call, ticket, ticket, 5000);
        answers.push(answer);
    }
    answers
}

#[test]
fn a_release_of_what_the_server_has_lost_makes_the_first_waiter_ask() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    let _answers = crowd(&mut desk, 3);
    drop(lease);
    let call = desk.call();
    desk.ended(call, 2);
    assert_eq!(ask(&desk.call()).ticket, 1);
}

#[test]
fn a_lease_that_the_server_has_lost_makes_the_first_waiter_ask() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    let _answers = crowd(&mut desk, 3);
    desk.pass(3400);
    let (renewals, questions): (Vec<Call>, Vec<Call>) = desk
        .calls()
        .into_iter()
        .partition(|call| matches!(&call.body, Body::Renew(renew) if !renew.leases.is_empty()));
    for call in questions {
        let ticket = ask(&call).ticket;
        desk.queued(call, ticket, ticket, 5000);
    }
    for call in renewals {
        desk.renewed(call, &[-1]);
    }
    let tickets: Vec<u64> = desk
        .calls()
        .iter()
        .filter_map(|call| match &call.body {
            Body::Acquire(ask) => Some(ask.ticket),
            _ => None,
        })
        .collect();
    assert_eq!(tickets, [1]);
    drop(lease);
}

#[test]
fn a_waiter_that_holds_because_it_asked_makes_the_next_one_ask() {
    let mut desk = Desk::new();
    let mut answers = crowd(&mut desk, 3);
    desk.pass(3000);
    let call = desk.call();
    assert_eq!(ask(&call).ticket, 1);
    // The whole lease, not a claim: nothing is in its way, not even a queue.
    desk.held(call, SERVER * 1000, 10_000);
    let _lease = granted(&mut answers[0]);
    assert_eq!(ask(&desk.call()).ticket, 2);
}

#[test]
fn a_forgotten_place_makes_all_local_waiters_ask() {
    let mut desk = Desk::new();
    let mut answers = Vec::new();
    for ticket in 1..=3 {
        let (_, answer) = desk.lock();
        let call = desk.call();
        desk.queued(call, ticket, ticket, 5000);
        answers.push(answer);
    }
    desk.pass(3000);
    let call = desk.call();
    assert_eq!(ask(&call).ticket, 1);
    desk.queued_anew(call, 9, 1);
    let tickets: Vec<u64> = desk.calls().iter().map(|call| ask(call).ticket).collect();
    assert_eq!(tickets, [2, 3]);
}

#[test]
fn a_lost_push_is_found_by_asking_and_makes_the_next_waiter_ask() {
    let mut desk = Desk::new();
    let (_, mut first) = desk.lock();
    let call = desk.call();
    desk.queued(call, 1, 1, 5000);
    let (_, _second) = desk.lock();
    let call = desk.call();
    desk.queued(call, 2, 2, 5000);
    desk.pass(3000);
    let call = desk.call();
    desk.held(call, SERVER * 1000 + 1, 2500);
    granted(&mut first).state().finish();
    assert_eq!(ask(&desk.calls()[0]).ticket, 2);
}

#[test]
fn a_process_with_waiters_speaks_every_second_and_no_more() {
    let mut desk = Desk::new();
    let mut answers = Vec::new();
    for ticket in 1..=100 {
        let (_, answer) = desk.lock();
        let call = desk.call();
        desk.queued(call, ticket, ticket, 9000);
        answers.push(answer);
    }
    let mut calls = 0;
    for _ in 0..3000 {
        desk.pass(10);
        for call in desk.calls() {
            calls += 1;
            match call.body {
                Body::Renew(_) => desk.renewed(call, &[]),
                _ => desk.queued(call, 1, 1, 9000),
            }
        }
    }
    assert!((29..=31).contains(&calls), "{calls} calls in 30 s");
}

#[test]
fn an_exact_keys_channel_is_joined_while_somebody_waits_at_it() {
    let mut desk = Desk::new();
    let prefix = Prefix::new("t").expect("a plain prefix");
    let mut request = Desk::request(Wait::Unbounded, 10_000);
    request.resource = Arc::new(Resource::exact(&prefix, "theirs", &"theirs".into()));
    let (token, _answer) = desk.acquire(request);
    let call = desk.call();
    desk.queued(call, 5, 5, 5000);
    assert_eq!(
        desk.core.take_channels(),
        [Channel::Join("theirs:released".into())]
    );
    desk.core.released_elsewhere(desk.now(), "theirs:released");
    desk.pass(0);
    let call = desk.call();
    assert_eq!(ask(&call).token, token);
    desk.queued(call, 5, 5, 5000);
    for _ in 0..100 {
        desk.core.released_elsewhere(desk.now(), "theirs:released");
        desk.pass(0);
    }
    desk.no_call();
    desk.pass(20);
    assert_eq!(ask(&desk.call()).token, token);
    desk.core.errand(desk.now(), Errand::Cancel(token));
    assert_eq!(
        desk.core.take_channels(),
        [Channel::Leave("theirs:released".into())]
    );
}

#[test]
fn keys_of_a_gate_have_their_own_queues() {
    let mut desk = Desk::new();
    let prefix = Prefix::new("t").expect("a plain prefix");
    let mut answers = Vec::new();
    for key in ["one", "other"] {
        let mut request = Desk::request(Wait::Unbounded, 10_000);
        request.resource = Arc::new(Resource::named(
            &prefix,
            Kind::Mutex,
            &"gate".into(),
            Some(&Key::from(key)),
        ));
        let (_, answer) = desk.acquire(request);
        let call = desk.call();
        desk.queued(call, 5, 5, 100);
        answers.push(answer);
    }
    desk.pass(200);
    assert_eq!(desk.calls().len(), 2);
}

#[test]
fn the_waiter_with_the_earliest_place_asks_for_all_whoever_came_first() {
    let mut desk = Desk::new();
    let mut answers = Vec::new();
    for ticket in [9, 3] {
        let (_, answer) = desk.lock();
        let call = desk.call();
        desk.queued(call, ticket, ticket, 5000);
        answers.push(answer);
    }
    desk.pass(3000);
    assert_eq!(ask(&desk.call()).ticket, 3);
}
