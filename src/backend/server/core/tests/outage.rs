//! Callers who have an answer of their own for an outage, and when there is one.

use super::*;
use crate::backend::server::home::News;

const BUDGET: u64 = 100;

/// As a layer asks: hoping for so long after the beginning of an outage.
fn urgent(wait: Wait, bridge_ms: u64) -> Request {
    let mut request = Desk::request(wait, 10_000);
    request.terms.bridge = Some(Duration::from_millis(bridge_ms));
    request
}

fn seconds(seconds: u64) -> Wait {
    Wait::AtMost(Duration::from_secs(seconds))
}

/// Lets five in a row go without an answer.
fn outage(desk: &mut Desk) {
    let mut callers: Vec<_> = (0..5)
        .map(|_| desk.acquire(urgent(Wait::No, 0)).1)
        .collect();
    desk.pass(BUDGET);
    for caller in &mut callers {
        assert_eq!(failed(caller), BackendErrorKind::TimedOut);
    }
    assert!(desk.core.is_open(0));
}

#[test]
fn a_silent_server_keeps_an_urgent_caller_for_its_wait_and_the_budget() {
    let mut desk = Desk::new();
    let (_, mut tried) = desk.acquire(urgent(Wait::No, 0));
    let (_, mut waits) = desk.acquire(urgent(seconds(2), 0));
    desk.pass(BUDGET - 1);
    assert!(is_open(&mut tried));
    desk.pass(1);
    assert_eq!(failed(&mut tried), BackendErrorKind::TimedOut);
    desk.pass(1999);
    assert!(is_open(&mut waits));
    desk.pass(1);
    assert_eq!(failed(&mut waits), BackendErrorKind::TimedOut);
    assert!(!desk.core.is_open(0), "two are no outage");
}

#[test]
fn in_an_outage_urgent_callers_are_told_at_once_and_nothing_is_sent_for_them() {
    let mut desk = Desk::new();
    let (_, mut waits) = desk.acquire(urgent(seconds(9), 0));
    outage(&mut desk);
    assert_eq!(failed(&mut waits), BackendErrorKind::TimedOut);
    desk.calls();
    let (_, mut late) = desk.acquire(urgent(seconds(9), 0));
    assert_eq!(failed(&mut late), BackendErrorKind::TimedOut);
    desk.no_call();
    // Who has nothing else to do goes on asking.
    let (_, mut patient) = desk.lock();
    assert!(is_open(&mut patient));
    desk.call();
}

#[test]
fn who_hopes_is_kept_until_the_outage_has_lasted_that_long() {
    let mut desk = Desk::new();
    let (_, mut early) = desk.acquire(urgent(seconds(9), 1000));
    outage(&mut desk);
    desk.pass(600);
    let (_, mut later) = desk.acquire(urgent(seconds(9), 1000));
    desk.pass(399);
    assert!(is_open(&mut early) && is_open(&mut later));
    desk.pass(1);
    assert_eq!(failed(&mut early), BackendErrorKind::TimedOut);
    assert_eq!(failed(&mut later), BackendErrorKind::TimedOut);
    let (_, mut last) = desk.acquire(urgent(seconds(9), 1000));
    assert_eq!(failed(&mut last), BackendErrorKind::TimedOut);
}

#[test]
fn any_word_of_a_server_that_serves_ends_the_outage() {
    let no = |kind| Failure::Final(kind, broken());
    let refused = no(BackendErrorKind::NotPermitted);
    for word in [None, Some(refused)] {
        let mut desk = Desk::new();
        outage(&mut desk);
        desk.calls();
        let _patient = desk.lock();
        let call = desk.call();
        match word {
            None => desk.queued(call, 5, 5, 7000),
            Some(failure) => desk.fail(call, failure),
        }
        assert!(!desk.core.is_open(0));
        let (_, mut next) = desk.acquire(urgent(Wait::No, 0));
        assert!(is_open(&mut next));
    }
}

#[test]
fn what_is_no_service_does_not_end_an_outage() {
    let loading = Failure::NotNow(BackendErrorKind::NotServing, broken());
    for failure in [Failure::NotSent, Failure::Unknown(None), loading] {
        let mut desk = Desk::new();
        outage(&mut desk);
        desk.calls();
        let _patient = desk.lock();
        let call = desk.call();
        desk.fail(call, failure);
        assert!(desk.core.is_open(0));
    }
}

#[test]
fn callers_who_run_out_of_patience_now_and_then_are_no_outage() {
    let mut desk = Desk::new();
    for _ in 0..20 {
        let (_, mut tried) = desk.acquire(urgent(Wait::No, 0));
        let call = desk.call();
        desk.pass(BUDGET);
        assert_eq!(failed(&mut tried), BackendErrorKind::TimedOut);
        // Slow, and there all the same.
        desk.held(call, 5, 10_000);
        desk.calls();
    }
    assert!(!desk.core.is_open(0));
}

#[test]
fn a_place_in_the_queue_outlasts_an_outage() {
    let mut desk = Desk::new();
    let (_, mut waits) = desk.acquire(urgent(seconds(2), 0));
    let call = desk.call();
    desk.queued(call, 5, 5, 7000);
    outage(&mut desk);
    assert!(is_open(&mut waits));
    // Whether its turn came meanwhile is not known.
    desk.pass(2000 - BUDGET);
    assert_eq!(failed(&mut waits), BackendErrorKind::TimedOut);
}

#[test]
fn a_connection_that_comes_up_ends_the_outage() {
    let mut desk = Desk::new();
    desk.core.link_changed(desk.now(), 0, false);
    desk.core.trip(desk.now(), 0, Failure::NotSent);
    let (_, mut early) = desk.acquire(urgent(seconds(2), 0));
    assert_eq!(failed(&mut early), BackendErrorKind::Unreachable);
    desk.core.link_changed(desk.now(), 0, true);
    let (_, mut next) = desk.acquire(urgent(seconds(2), 0));
    assert!(is_open(&mut next));
    desk.call();
}

#[test]
fn a_home_is_told_of_an_outage_and_its_seekers_keep_their_places() {
    let hears = |desk: &mut Desk| {
        let mut news = desk.core.take_news().into_iter();
        news.any(|(_, news)| matches!(news, News::Away(cause) if cause.is_outage()))
    };
    let mut seeker = Desk::request(Wait::Unbounded, 10_000);
    seeker.terms.kept = 1;
    let mut desk = Desk::new();
    let (_, mut queued) = desk.acquire(seeker.clone());
    let call = desk.call();
    let stamp = desk.server_us();
    desk.queued(call, stamp, stamp, 5000);
    assert!(!hears(&mut desk));
    outage(&mut desk);
    assert!(hears(&mut desk));
    desk.calls();
    // One that begins to seek then.
    let (_, mut later) = desk.acquire(seeker);
    assert!(hears(&mut desk));
    assert!(is_open(&mut queued) && is_open(&mut later));
    let _plain = desk.lock();
    assert!(!hears(&mut desk));
}

#[test]
fn a_home_is_told_that_an_outage_is_over_though_its_seekers_have_nothing_to_ask() {
    let mut seeker = Desk::request(Wait::Unbounded, 10_000);
    seeker.terms.kept = 1;
    let mut desk = Desk::new();
    let (_, _queued) = desk.acquire(seeker);
    let call = desk.call();
    let stamp = desk.server_us();
    desk.queued(call, stamp, stamp, 5000);
    outage(&mut desk);
    desk.core.take_news();
    // The connection has stood, and a probe is answered.
    desk.core.served(0);
    desk.core.served(0);
    let news = desk.core.take_news();
    let back = |(_, news): &(Box<str>, News)| matches!(news, News::Back);
    assert!(news.len() == 1 && news.iter().all(back), "{news:?}");
}

#[test]
fn who_is_queued_keeps_its_place_in_an_outage_unless_a_home_hopes_for_others_with_it() {
    for kept in [0, 1] {
        let mut desk = Desk::new();
        let mut request = urgent(Wait::Unbounded, 0);
        request.terms.kept = kept;
        let (_, mut waits) = desk.acquire(request);
        let call = desk.call();
        let stamp = desk.server_us();
        desk.queued(call, stamp, stamp, 5000);
        outage(&mut desk);
        if kept == 0 {
            assert!(is_open(&mut waits));
        } else {
            assert_eq!(failed(&mut waits), BackendErrorKind::TimedOut);
        }
    }
}
