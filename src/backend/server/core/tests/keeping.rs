//! What homes hear of their gates, and what a question about kept leases may end.

use futures_util::FutureExt as _;

use super::*;
use crate::backend::server::call::Recheck;
use crate::backend::server::home::News;
use crate::lease::LostReason;

/// Of who keeps what it gets.
fn kept(wait: Wait) -> Request {
    let mut request = Desk::request(wait, 10_000);
    request.terms.kept = 1;
    request
}

impl PartialEq for News {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

fn recheck(call: &Call) -> &Recheck {
    match &call.body {
        Body::Recheck(recheck) => recheck,
        other => panic!("not a question: {other:?}"),
    }
}

const fn others(stamp: u64, wait: bool) -> News {
    News::Others { stamp, wait }
}

impl Desk {
    /// What its home is told now.
    fn told(&mut self) -> Vec<News> {
        let main = Self::request(Wait::No, 1000).resource.main().to_owned();
        let told = self.core.take_news().into_iter().map(|(at, news)| {
            assert_eq!(*at, *main);
            news
        });
        told.collect()
    }

    /// Holds what is kept, of which nobody has been told anything but that.
    fn keeper(&mut self) -> (Token, Lease) {
        let (token, mut answer) = self.acquire(kept(Wait::Unbounded));
        let call = self.call();
        let fence = self.server_us();
        self.held(call, fence, 10_000);
        self.told();
        (token, granted(&mut answer))
    }

    /// Asks about these, as a home does.
    fn question(&mut self, tokens: Vec<Token>) -> Call {
        let resource = Self::request(Wait::No, 1000).resource;
        let command = Command::Recheck { resource, tokens };
        self.core.command(self.now(), command);
        self.call()
    }

    fn rechecked(&mut self, call: Call, stamp: u64, others: bool, held: &[bool]) {
        let us = self.server_us() as i64;
        let mut numbers = vec![us, stamp as i64, i64::from(others)];
        numbers.extend(held.iter().copied().map(i64::from));
        self.answer(call, &numbers);
    }

    /// A grant's own answer, that tells of others.
    fn held_among(&mut self, call: Call, fence: u64, others: bool) {
        let us = self.server_us() as i64;
        let fence = fence as i64;
        self.answer(call, &[0, us, fence, fence, 10_000, i64::from(others)]);
    }

    fn push_among(&mut self, token: Token, fence: u64, others: bool) {
        let push = Push::Grant {
            token,
            fence: FencingToken::new(fence),
            left: Duration::from_secs(3),
            others,
        };
        self.core.push(self.now(), push);
    }
}

fn reason(lease: &Lease) -> Option<LostReason> {
    lease.state().lost().now_or_never()
}

#[test]
fn a_lease_that_the_server_does_not_know_is_lost_and_others_are_not() {
    let mut desk = Desk::new();
    let (known, stays) = desk.keeper();
    desk.pass(1);
    let (unknown, goes) = desk.keeper();
    let call = desk.question(vec![known, unknown]);
    assert_eq!(recheck(&call).tokens, [known, unknown]);
    desk.pass(1);
    let stamp = desk.server_us();
    desk.rechecked(call, stamp, false, &[true, false]);
    assert!(stays.state().is_held());
    assert_eq!(reason(&goes), Some(LostReason::Gone));
    // It may be there still: nobody knows why it was not found.
    assert_eq!(end(&desk.call()).token, unknown);
    assert_eq!(desk.told(), [News::Rechecked(Some((stamp, false)))]);
}

#[test]
fn what_a_server_does_not_know_is_lost_though_its_clock_is_behind() {
    let mut desk = Desk::new();
    let (token, lease) = desk.keeper();
    let stamp = lease.fencing_token().get() - 5_000_000;
    let call = desk.question(vec![token]);
    desk.rechecked(call, stamp, true, &[false]);
    assert_eq!(reason(&lease), Some(LostReason::Gone));
    // The home dates it by itself.
    assert_eq!(desk.told(), [News::Rechecked(Some((stamp, true)))]);
}

#[test]
fn a_question_about_who_waits_still_or_has_ended_changes_nothing() {
    let mut desk = Desk::new();
    let (held, lease) = desk.keeper();
    let (waits, mut answer) = desk.acquire(kept(Wait::Unbounded));
    let asked = desk.call();
    drop(lease);
    let ending = desk.call();
    assert_eq!(end(&ending).token, held);
    let call = desk.question(vec![held, waits, Token::of(99)]);
    let stamp = desk.server_us() + 5;
    desk.rechecked(call, stamp, false, &[false; 3]);
    assert!(is_open(&mut answer));
    desk.no_call();
    desk.held(asked, stamp + 1, 10_000);
    granted(&mut answer);
}

#[test]
fn an_unanswered_question_loses_nothing_and_the_home_hears_so() {
    for failure in [Failure::Unknown(None), Failure::NotSent] {
        let mut desk = Desk::new();
        let (token, lease) = desk.keeper();
        let call = desk.question(vec![token]);
        desk.fail(call, failure);
        assert!(lease.state().is_held());
        assert_eq!(desk.told(), [News::Rechecked(None)]);
        desk.pass(100);
        // Who keeps asks again.
        desk.no_call();
    }
}

#[test]
fn a_garbled_answer_to_a_question_is_none() {
    let mut desk = Desk::new();
    let (token, lease) = desk.keeper();
    let call = desk.question(vec![token]);
    desk.answer(call, &[1]);
    assert!(lease.state().is_held());
    assert_eq!(desk.told(), [News::Rechecked(None)]);
}

#[test]
fn a_grant_tells_whether_others_wait() {
    for wait in [false, true] {
        let mut desk = Desk::new();
        let (_, mut answer) = desk.acquire(kept(Wait::Unbounded));
        let call = desk.call();
        let fence = desk.server_us();
        desk.held_among(call, fence, wait);
        assert_eq!(desk.told(), [others(fence, wait)]);
        let _held = granted(&mut answer);

        let (token, mut answer) = desk.acquire(kept(Wait::Unbounded));
        let call = desk.call();
        desk.queued(call, fence + 1, fence + 1, 5000);
        assert_eq!(desk.told(), [News::Queued(Some(Duration::from_secs(5)))]);
        desk.push_among(token, fence + 2, wait);
        assert_eq!(desk.told(), [others(fence + 2, wait)]);
        granted(&mut answer);
    }
}

#[test]
fn a_grant_without_a_word_of_others_was_one_without_others() {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.acquire(kept(Wait::No));
    let call = desk.call();
    let fence = desk.server_us() as i64;
    // As the script answers in short.
    let value = Value::Int(fence);
    desk.core.answer(desk.now(), call, Ok(value));
    assert_eq!(desk.told(), [others(fence as u64, false)]);
    granted(&mut answer);
}

#[test]
fn a_grant_that_nobody_keeps_tells_no_home() {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.lock();
    let call = desk.call();
    let fence = desk.server_us();
    desk.held_among(call, fence, true);
    granted(&mut answer);
    assert_eq!(desk.told(), []);
}

#[test]
fn a_recall_is_told_to_the_home_of_its_gate() {
    let mut desk = Desk::new();
    let (_, lease) = desk.keeper();
    let main = Desk::request(Wait::No, 1000).resource.main().into();
    let stamp = desk.server_us() + 1;
    desk.core.push(desk.now(), Push::Recall { stamp, main });
    assert_eq!(desk.told(), [others(stamp, true)]);
    // What is held is not touched by it.
    assert!(lease.state().is_held());
    desk.no_call();
}

#[test]
fn an_end_of_what_the_server_does_not_know_casts_doubt_on_what_is_kept() {
    let mut desk = Desk::new();
    let (_, lease) = desk.keeper();
    drop(lease);
    let call = desk.call();
    desk.ended(call, 2);
    assert_eq!(desk.told(), [News::Gone]);
    // Neither does one that is known, nor one that nobody keeps.
    let (_, lease) = desk.keeper();
    drop(lease);
    let call = desk.call();
    desk.ended(call, 0);
    let (_, lease) = desk.holder();
    drop(lease);
    let call = desk.call();
    desk.ended(call, 2);
    assert_eq!(desk.told(), []);
}

#[test]
fn an_end_that_may_have_run_before_casts_no_doubt() {
    let mut desk = Desk::new();
    let (_, lease) = desk.keeper();
    drop(lease);
    let call = desk.call();
    desk.fail(call, Failure::Unknown(Some(broken())));
    desk.pass(50);
    let again = desk.call();
    desk.ended(again, 2);
    assert_eq!(desk.told(), []);
}

#[test]
fn an_end_after_the_lease_has_run_out_casts_no_doubt() {
    let mut desk = Desk::new();
    let (_, lease) = desk.keeper();
    drop(lease);
    let call = desk.call();
    desk.ms += 11_000;
    desk.ended(call, 2);
    assert_eq!(desk.told(), []);
}

#[test]
fn who_keeps_listens_though_it_does_not_wait() {
    let mut desk = Desk::new();
    let (_, _answer) = desk.acquire(Desk::request(Wait::No, 10_000));
    assert!(!desk.core.wants_inbox());
    let (_, _answer) = desk.acquire(kept(Wait::No));
    assert!(desk.core.wants_inbox());
}
