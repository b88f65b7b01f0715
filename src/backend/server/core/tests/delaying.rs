//! What keeps others out for a while after a lease that was not given back.

use super::*;

const DELAY_MS: u64 = 5_000;

fn request(wait: Wait, delay_ms: u64) -> Request {
    let mut request = Desk::request(wait, 10_000);
    request.terms.delay = Delay::new(Duration::from_millis(delay_ms)).expect("in range");
    request
}

fn holder(desk: &mut Desk) -> (Token, Lease) {
    let (token, mut answer) = desk.acquire(request(Wait::Unbounded, DELAY_MS));
    let call = desk.call();
    assert_eq!(ask(&call).lease, Duration::from_millis(10_000 + DELAY_MS));
    desk.held(call, 7, 10_000 + DELAY_MS as i64);
    (token, granted(&mut answer))
}

/// Fails all renewals until the lease is lost, and nothing else is sent.
fn lose(desk: &mut Desk, lease: &Lease) {
    while desk.ms < 9_898 {
        desk.pass(7);
        for call in desk.calls() {
            assert!(matches!(call.body, Body::Renew(_)), "{call:?}");
            desk.fail(call, Failure::Unknown(None));
        }
    }
    assert!(!lease.state().is_held());
}

#[test]
fn its_holder_believes_in_the_ttl_alone_and_renews_both() {
    let mut desk = Desk::new();
    let (_, lease) = holder(&mut desk);
    assert_eq!(left_ms(&desk, &lease), 10_000 - 102);
    desk.pass(3400);
    let call = desk.call();
    let asked = renew(&call).leases[0].lease;
    assert_eq!(asked, Duration::from_millis(10_000 + DELAY_MS));
    desk.renewed(call, &[10_000 + DELAY_MS as i64]);
    assert_eq!(left_ms(&desk, &lease), 10_000 - 102);
}

#[test]
fn a_release_in_time_is_sent_at_once() {
    let mut desk = Desk::new();
    let (token, lease) = holder(&mut desk);
    desk.pass(100);
    drop(lease);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_lost_lease_is_ended_after_its_delay_and_not_before_whatever_happens() {
    let mut desk = Desk::new();
    let (token, lease) = holder(&mut desk);
    lose(&mut desk, &lease);
    // Neither when its guard goes, nor when a connection comes.
    drop(lease);
    desk.core.link_changed(desk.now(), 0, false);
    desk.core.link_changed(desk.now(), 0, true);
    while desk.ms < 10_000 + DELAY_MS - 10 {
        desk.pass(7);
        desk.no_call();
    }
    assert!(desk.core.is_idle(desk.now()), "the server would do it");
    desk.pass(20);
    let call = desk.call();
    assert_eq!(end(&call).token, token);
    desk.ended(call, 2);
    desk.pass(60_000);
    desk.no_call();
}

#[test]
fn a_release_that_finds_the_lease_over_is_none() {
    let mut desk = Desk::new();
    let (token, lease) = holder(&mut desk);
    // Given back in time, but the thread was stopped until it was over.
    let mut releasing = Box::pin(lease.release());
    desk.ms += 9_950;
    desk.no_call();
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let answer = Future::poll(releasing.as_mut(), context);
    assert!(
        matches!(answer, std::task::Poll::Ready(Ok(Release::NoLongerHeld))),
        "{answer:?}"
    );
    desk.pass(DELAY_MS + 100);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn what_the_server_has_lost_is_not_delayed() {
    let mut desk = Desk::new();
    let (token, lease) = holder(&mut desk);
    desk.pass(3400);
    let call = desk.call();
    desk.renewed(call, &[-1]);
    assert!(!lease.state().is_held());
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_pushed_claim_is_worth_what_it_has_beyond_the_delay() {
    // Nothing, so it is confirmed.
    let mut desk = Desk::new();
    let (token, mut answer) = desk.acquire(request(Wait::Unbounded, DELAY_MS));
    let call = desk.call();
    let ticket = desk.server_us();
    desk.queued(call, ticket, ticket, 5000);
    desk.push(token, ticket + 1);
    assert!(is_open(&mut answer));
    let call = desk.call();
    desk.renewed(call, &[10_000 + DELAY_MS as i64]);
    assert_eq!(left_ms(&desk, &granted(&mut answer)), 10_000 - 102);
    desk.calls();

    // Two of three seconds.
    let (token, mut answer) = desk.acquire(request(Wait::Unbounded, 1_000));
    let call = desk.call();
    let ticket = desk.server_us() + 10;
    desk.queued(call, ticket, ticket, 5000);
    desk.push(token, ticket + 1);
    assert_eq!(left_ms(&desk, &granted(&mut answer)), 2_000 - 22);
}

#[test]
fn a_lease_of_bounded_length_is_delayed_at_its_end() {
    for mode in [LeaseMode::Fixed, LeaseMode::MaxHold(Duration::from_secs(8))] {
        let mut desk = Desk::new();
        let mut fixed = request(Wait::Unbounded, DELAY_MS);
        fixed.terms.mode = mode;
        let longest = mode.longest(Duration::from_secs(10)).expect("bounded");
        let (token, mut answer) = desk.acquire(fixed);
        let call = desk.call();
        assert_eq!(ask(&call).lease, longest + Duration::from_millis(DELAY_MS));
        let left = ask(&call).lease.as_millis() as i64;
        desk.held(call, 7, left);
        let lease = granted(&mut answer);
        let believed = u64::try_from(longest.as_millis()).expect("small");
        while desk.ms < believed + DELAY_MS - 200 {
            desk.pass(100);
            for call in desk.calls() {
                assert!(matches!(call.body, Body::Renew(_)), "{call:?}");
                desk.fail(call, Failure::Unknown(None));
            }
        }
        assert!(!lease.state().is_held());
        desk.pass(300);
        assert_eq!(end(&desk.call()).token, token);
    }
}

#[test]
fn a_shutdown_leaves_it_to_the_server_and_does_not_wait() {
    let mut desk = Desk::new();
    let (_, lease) = holder(&mut desk);
    let (sender, mut report) = oneshot::channel();
    let deadline = Duration::from_secs(1);
    desk.core.errand(
        desk.now(),
        Errand::Shutdown {
            deadline,
            answer: sender,
        },
    );
    desk.pass(1000);
    assert!(!lease.state().is_held());
    desk.no_call();
    let report = report.try_recv().expect("nothing is to be waited for");
    assert_eq!((report.released, report.abandoned), (0, 1));
}
