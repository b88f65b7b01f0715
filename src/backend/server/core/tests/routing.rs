//! Many servers: calls follow the owner of their slot, and each tag has a channel of its own.

use super::*;
use crate::backend::server::core::Topic;

fn desk() -> Desk {
    Desk::of_many(Settings::default())
}

/// The same, where the channel of the one tag is confirmed.
fn listening() -> Desk {
    let mut desk = desk();
    desk.core.listen(desk.now(), tag());
    desk.core.ear_changed(desk.now(), tag(), true);
    desk.core.take_channels();
    desk
}

#[test]
fn who_comes_before_the_owner_is_known_is_asked_for_when_it_is() {
    let mut desk = Desk::new();
    desk.core = Core::of_many(Settings::default());
    let (_, mut answer) = desk.lock();
    desk.no_call();
    desk.core.rerouted(desk.now(), owned_by(1), 5);
    desk.no_call();
    let link = desk.core.link_of(tag());
    desk.core.time_seen(link, SERVER * 1000, desk.now());
    desk.core.link_changed(desk.now(), link, true);
    let call = desk.call();
    let fence = desk.server_us();
    desk.held(call, fence, 10_000);
    granted(&mut answer);
}

#[test]
fn nobody_counts_on_a_push_before_the_channel_of_its_tag_is_confirmed() {
    let mut desk = desk();
    let (_, _answer) = desk.lock();
    let call = desk.call();
    assert!(!ask(&call).pushed);
    let listened = [Channel::Join(Topic::Grants(tag()))];
    assert_eq!(desk.core.take_channels(), listened);
    let ticket = desk.server_us();
    desk.queued(call, ticket, ticket, 5000);
    desk.core.ear_changed(desk.now(), tag(), true);
    assert!(ask(&desk.call()).pushed, "and then it is said");
    assert!(desk.core.take_channels().is_empty(), "once is enough");
}

#[test]
fn a_confirmed_channel_of_another_tag_is_no_reason_to_ask() {
    let mut desk = listening();
    let (_, _answer) = desk.queued_waiter();
    let other = Tag::of_slot(tag().slot() + 64);
    desk.core.listen(desk.now(), other);
    desk.core.ear_changed(desk.now(), other, true);
    desk.no_call();
}

#[test]
fn a_lost_channel_makes_its_waiters_poll_until_it_is_back() {
    let mut desk = listening();
    let (_, _answer) = desk.queued_waiter();
    desk.core.ear_changed(desk.now(), tag(), false);
    desk.pass(101);
    let call = desk.call();
    assert!(!ask(&call).pushed);
    let ticket = desk.server_us();
    desk.queued(call, ticket, ticket, 5000);
    desk.core.ear_changed(desk.now(), tag(), true);
    assert!(ask(&desk.call()).pushed);
}

#[test]
fn a_channel_that_nobody_needs_is_left_after_a_while_and_joined_again() {
    let mut desk = listening();
    desk.pass(29_000);
    assert!(desk.core.take_channels().is_empty());
    desk.pass(2_000);
    let left = [Channel::Leave(Topic::Grants(tag()))];
    assert_eq!(desk.core.take_channels(), left);
    // A word of before.
    desk.core.ear_changed(desk.now(), tag(), true);
    let (_, _answer) = desk.lock();
    assert!(!ask(&desk.call()).pushed);
    let joined = [Channel::Join(Topic::Grants(tag()))];
    assert_eq!(desk.core.take_channels(), joined);
}

#[test]
fn a_channel_is_kept_as_long_as_somebody_waits() {
    let mut desk = listening();
    let (_, _answer) = desk.queued_waiter();
    for _ in 0..60 {
        desk.pass(1_000);
        for call in desk.calls() {
            let us = desk.server_us();
            match call.body {
                Body::Acquire(_) => desk.queued(call, us, us, 5000),
                _ => desk.renewed(call, &[]),
            }
        }
    }
    assert!(desk.core.take_channels().is_empty());
}

#[test]
fn a_channel_is_kept_as_long_as_somebody_asks_what_becomes_of_its_permits() {
    let mut desk = listening();
    let resource = Desk::request(Wait::No, 1000).resource;
    for _ in 0..60 {
        desk.pass(1_000);
        let (resource, tokens) = (Arc::clone(&resource), Vec::new());
        let question = Command::Recheck { resource, tokens };
        desk.core.command(desk.now(), question);
    }
    assert!(desk.core.take_channels().is_empty());
}

#[test]
fn a_new_owner_is_asked_for_all_that_the_former_one_was_at_once() {
    let mut desk = listening();
    let (held, lease) = desk.holder();
    let (waits, _answer) = desk.queued_waiter();
    desk.core.rerouted(desk.now(), owned_by(2), 3);
    desk.pass(0);
    assert_eq!(desk.core.link_of(tag()), 2);
    let calls = desk.calls();
    let asked = |token| {
        calls
            .iter()
            .any(|call| matches!(&call.body, Body::Acquire(ask) if ask.token == token))
    };
    let renews = |token| {
        calls.iter().any(|call| {
            matches!(&call.body, Body::Renew(renew) if renew.leases.iter().any(|lease| lease.token == token))
        })
    };
    assert!(asked(waits) && renews(held), "{calls:?}");
    drop(lease);
}

#[test]
fn routes_that_stay_are_no_reason_to_ask() {
    let mut desk = listening();
    let (_, _answer) = desk.queued_waiter();
    let mut owners = vec![1; SLOTS];
    owners[usize::from(tag().slot()) + 1] = 2;
    let routes = Routes::to_owners(1, owners.into());
    desk.core.rerouted(desk.now(), routes, 3);
    desk.pass(0);
    desk.no_call();
}

#[test]
fn an_outage_of_one_node_is_none_of_another() {
    let mut desk = desk();
    desk.core.trip(desk.now(), 2, Failure::NotSent);
    let (_, mut answer) = desk.lock();
    let call = desk.call();
    let fence = desk.server_us();
    desk.held(call, fence, 10_000);
    granted(&mut answer);
    assert!(desk.core.is_open(2) && !desk.core.is_open(1));
}

#[test]
fn each_nodes_clock_is_its_own() {
    let mut desk = desk();
    // The second node's is an hour ahead.
    let ahead = (SERVER + 3_600_000) * 1000;
    desk.core.time_seen(2, ahead, desk.now());
    let (_, _answer) = desk.lock();
    let first = ask(&desk.call()).latest_ms;
    desk.core.rerouted(desk.now(), owned_by(2), 3);
    let (_, _answer) = desk.lock();
    let second = ask(&desk.calls().pop().expect("one")).latest_ms;
    assert_eq!(second - first, 3_600_000);
}
