//! Renewal and loss.

use super::*;

#[test]
fn a_renewal_lengthens_and_never_shortens() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    let deadline = lease.state().deadline();
    desk.pass(3400);
    let call = desk.call();
    desk.renewed(call, &[3000]);
    assert_eq!(lease.state().deadline(), deadline);
    desk.pass(3400);
    let call = desk.call();
    desk.renewed(call, &[10_000]);
    assert!(lease.state().deadline() > deadline);
}

#[test]
fn an_answer_after_the_deadline_revives_nothing() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    desk.pass(3400);
    let call = desk.call();
    // The thread was stopped past the deadline, with the answer waiting for it.
    desk.ms += 10_000;
    desk.renewed(call, &[10_000]);
    assert!(!lease.state().is_held());
    assert!(!lease.state().finish());
    assert_eq!(end(&desk.call()).latest_ms, 0);
}

#[test]
fn a_lease_that_the_server_lost_is_lost_at_the_next_renewal() {
    for gone in [-1, -2, -3] {
        let mut desk = Desk::new();
        let (token, lease) = desk.holder();
        desk.pass(3400);
        let call = desk.call();
        desk.renewed(call, &[gone]);
        assert!(!lease.state().is_held());
        assert_eq!(end(&desk.call()).token, token);
    }
}

#[test]
fn a_renewal_that_failed_is_repeated_and_loses_nothing_before_the_deadline() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    let mut renewals = 0;
    while desk.ms < 9800 {
        desk.pass(100);
        for call in desk.calls() {
            renewals += 1;
            desk.fail(call, Failure::Unknown(None));
        }
    }
    assert!(
        (10..=30).contains(&renewals),
        "{renewals} attempts from 3.3 to 9.8 s"
    );
    assert!(lease.state().is_held());
}

#[test]
fn a_lease_is_lost_at_its_deadline_though_the_server_is_silent() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    desk.pass(3400);
    let call = desk.call();
    desk.pass(500);
    desk.fail(call, Failure::Unknown(None));
    desk.pass(9898 - 3900);
    assert!(!lease.state().finish(), "it is lost at 10 s less the drift");
}

#[test]
fn a_claim_is_renewed_within_a_third_of_it() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    desk.ms += 1;
    desk.push(token, desk.server_us());
    let _lease = granted(&mut answer);
    desk.pass(999);
    desk.no_call();
    desk.pass(1);
    let call = desk.call();
    assert_eq!(renew(&call).leases[0].lease, Duration::from_secs(10));
}

#[test]
fn renewals_of_one_tag_share_a_call() {
    let mut desk = Desk::new();
    let mut leases = Vec::new();
    for number in 0..100_u64 {
        let prefix = Prefix::new("t").expect("a plain prefix");
        let mut request = Desk::request(Wait::Unbounded, 10_000);
        // The same tag: keys of one gate under distinct names would be spread.
        request.resource = Arc::new(Resource::exact(
            &prefix,
            &format!("{{same}}{number}"),
            &"gate".into(),
        ));
        let (_, mut answer) = desk.acquire(request);
        let call = desk.call();
        desk.held(call, number + 1, 10_000);
        leases.push(granted(&mut answer));
        desk.pass(10);
    }
    desk.pass(3334);
    let sizes: Vec<usize> = desk
        .calls()
        .iter()
        .map(|call| renew(call).leases.len())
        .collect();
    assert_eq!(sizes, [16, 16, 16, 16, 16, 16, 4]);
}

#[test]
fn a_fixed_lease_is_not_renewed() {
    let mut desk = Desk::new();
    let mut request = Desk::request(Wait::Unbounded, 10_000);
    request.terms.mode = LeaseMode::Fixed;
    let (_, mut answer) = desk.acquire(request);
    let call = desk.call();
    desk.held(call, 1, 10_000);
    let lease = granted(&mut answer);
    for _ in 0..98 {
        desk.pass(100);
        desk.no_call();
    }
    desk.pass(200);
    assert!(!lease.state().finish());
}

#[test]
fn a_lease_with_a_longest_hold_is_lost_at_its_end_however_often_it_was_renewed() {
    let mut desk = Desk::new();
    let mut request = Desk::request(Wait::Unbounded, 1000);
    request.terms.mode = LeaseMode::MaxHold(Duration::from_millis(2500));
    let (_, mut answer) = desk.acquire(request);
    let call = desk.call();
    desk.held(call, 1, 1000);
    let lease = granted(&mut answer);
    while desk.ms < 2480 {
        desk.pass(10);
        for call in desk.calls() {
            let asked = renew(&call).leases[0].lease;
            assert!(asked <= Duration::from_millis(2500 - desk.ms + 1));
            let left = i64::try_from(asked.as_millis()).expect("small");
            desk.renewed(call, &[left]);
        }
    }
    desk.pass(20);
    assert!(!lease.state().finish());
}

#[test]
fn a_renewal_that_was_taken_up_in_time_and_applied_too_late_revives_nothing() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.acquire(Desk::request(Wait::Unbounded, 50));
    let call = desk.call();
    desk.held(call, 1, 50);
    let lease = granted(&mut answer);
    desk.pass(17);
    let call = desk.call();
    // The thread has read its clock and is put aside; meanwhile the owner sees the lease run out,
    // by the real clock.
    while lease.state().is_held() {
        std::thread::yield_now();
    }
    desk.renewed(call, &[50]);
    assert!(!lease.state().is_held());
    assert!(!lease.state().finish(), "it is lost");
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_core_that_goes_while_leases_are_held_tells_their_owners() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    drop(desk);
    assert!(!lease.state().is_held());
    assert!(!lease.state().finish(), "it is lost");
}
