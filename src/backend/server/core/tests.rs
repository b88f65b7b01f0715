//! The decisions of a handle, with any event after any other and the clock in hand.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::sync::oneshot;

use super::{Channel, Command, Core};
use crate::backend::server::Settings;
use crate::backend::server::call::{Ask, Body, Call, End, Renew};
use crate::backend::server::reply::{Failure, Push};
use crate::backend::{Acquire, Backend, ReleaseAnswer, Request, ShutdownReport, Wait};
use crate::error::{BackendErrorKind, LockError, RefusalKind};
use crate::key::{Key, Kind, Prefix, Resource};
use crate::lease::{Lease, LeaseMode, LeaseState, Release};
use crate::time::{Instant, Ttl};
use crate::token::{FencingToken, Token};

/// The server's clock when ours reads zero, in ms.
const SERVER: u64 = 1_700_000_000_000;

/// Notes what dropped leases ask for, as the channel to the background thread does.
#[derive(Debug, Default)]
struct Drops(Mutex<Vec<Command>>);

impl Backend for Drops {
    fn acquire(&self, _: Request) -> Acquire {
        unreachable!("the core is asked directly")
    }

    fn cancel(&self, token: Token) {
        self.note(Command::Cancel(token));
    }

    fn release(&self, lease: &Arc<LeaseState>, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        self.note(Command::Release {
            token: lease.token(),
            answer,
        });
    }

    fn shutdown(&self, deadline: Duration, answer: oneshot::Sender<ShutdownReport>) {
        self.note(Command::Shutdown { deadline, answer });
    }
}

impl Drops {
    fn note(&self, command: Command) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(command);
    }
}

type Answer = oneshot::Receiver<Result<Lease, LockError>>;

/// A core at a clock that the test moves. It starts at the real one, because guards read that.
struct Desk {
    core: Core,
    drops: Arc<Drops>,
    start: Instant,
    ms: u64,
    tokens: u128,
}

impl Desk {
    /// Connected, with its inbox confirmed.
    fn new() -> Self {
        let drops = Arc::new(Drops::default());
        let weak = Arc::downgrade(&drops);
        let settings = Settings {
            connections: 1,
            ..Settings::default()
        };
        let mut desk = Self {
            core: Core::new(weak, settings),
            drops,
            start: Instant::now(),
            ms: 0,
            tokens: 0,
        };
        desk.core.time_seen(SERVER * 1000, desk.now());
        desk.core.link_changed(desk.now(), 0, true);
        desk.core.inbox_changed(desk.now(), true);
        desk
    }

    fn now(&self) -> Instant {
        self.start.after(Duration::from_millis(self.ms))
    }

    fn server_us(&self) -> u64 {
        (SERVER + self.ms) * 1000
    }

    fn pass(&mut self, ms: u64) {
        self.ms += ms;
        self.core.tick(self.now());
    }

    fn request(wait: Wait, ttl_ms: u64) -> Request {
        let prefix = Prefix::new("t").expect("a plain prefix");
        Request {
            resource: Arc::new(Resource::named(&prefix, Kind::Mutex, &"gate".into(), None)),
            weight: 1,
            limit: 1,
            ttl: Ttl::new(Duration::from_millis(ttl_ms)).expect("in range"),
            mode: LeaseMode::Renewed,
            wait,
            max_waiters: 10,
        }
    }

    fn acquire(&mut self, request: Request) -> (Token, Answer) {
        self.tokens += 1;
        let token = Token::of(self.tokens);
        let (sender, answer) = oneshot::channel();
        self.core.command(
            self.now(),
            Command::Acquire {
                token,
                request,
                answer: sender,
            },
        );
        (token, answer)
    }

    fn lock(&mut self) -> (Token, Answer) {
        self.acquire(Self::request(Wait::Unbounded, 10_000))
    }

    fn calls(&mut self) -> Vec<Call> {
        let dropped: Vec<Command> = self
            .drops
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .collect();
        for command in dropped {
            self.core.command(self.now(), command);
        }
        self.core.take_calls()
    }

    /// The one call that is to be sent now.
    fn call(&mut self) -> Call {
        let mut calls = self.calls();
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls.remove(0)
    }

    fn no_call(&mut self) {
        let calls = self.calls();
        assert!(calls.is_empty(), "{calls:?}");
    }

    /// Answers a call with the numbers that a script gives after its status and the server's clock.
    fn answer(&mut self, call: Call, numbers: &[i64]) {
        let value = Value::Array(numbers.iter().copied().map(Value::Int).collect());
        self.core.answer(self.now(), call, Ok(value));
    }

    fn held(&mut self, call: Call, fence: u64, left_ms: i64) {
        let us = self.server_us() as i64;
        self.answer(call, &[0, us, us.max(fence as i64), fence as i64, left_ms]);
    }

    fn queued(&mut self, call: Call, stamp: u64, ticket: u64, next_ms: i64) {
        let us = self.server_us() as i64;
        self.answer(
            call,
            &[1, us, stamp as i64, 0, next_ms, 0, 0, ticket as i64, 0, us],
        );
    }

    fn queued_anew(&mut self, call: Call, stamp: u64, ticket: u64) {
        let us = self.server_us() as i64;
        self.answer(
            call,
            &[1, us, stamp as i64, 0, 5000, 0, 0, ticket as i64, 1, us],
        );
    }

    fn ended(&mut self, call: Call, status: i64) {
        let us = self.server_us() as i64;
        self.answer(call, &[status, us, us, 0]);
    }

    fn renewed(&mut self, call: Call, left: &[i64]) {
        let us = self.server_us() as i64;
        let mut numbers = vec![us, us];
        numbers.extend(left);
        self.answer(call, &numbers);
    }

    fn fail(&mut self, call: Call, failure: Failure) {
        self.core.answer(self.now(), call, Err(failure));
    }

    fn push(&mut self, token: Token, fence: u64, mark: u64) {
        let left = Duration::from_secs(3);
        self.core.push(
            self.now(),
            Push::Grant {
                token,
                fence: FencingToken::new(fence),
                mark,
                left,
            },
        );
    }

    /// A waiter that the server has queued, with its answer still to come.
    fn queued_waiter(&mut self) -> (Token, Answer) {
        let (token, answer) = self.lock();
        let call = self.call();
        let ticket = self.server_us();
        self.queued(call, ticket, ticket, 5000);
        (token, answer)
    }

    fn holder(&mut self) -> (Token, Lease) {
        let (token, mut answer) = self.lock();
        let call = self.call();
        let fence = self.server_us();
        self.held(call, fence, 10_000);
        (token, granted(&mut answer))
    }
}

fn granted(answer: &mut Answer) -> Lease {
    answer
        .try_recv()
        .expect("it is answered")
        .expect("it is granted")
}

fn refused(answer: &mut Answer) -> RefusalKind {
    match answer.try_recv().expect("it is answered") {
        Err(LockError::Refused(refusal)) => refusal.kind(),
        other => panic!("not refused: {other:?}"),
    }
}

fn failed(answer: &mut Answer) -> BackendErrorKind {
    match answer.try_recv().expect("it is answered") {
        Err(LockError::Backend(error)) => error.kind(),
        other => panic!("not failed: {other:?}"),
    }
}

fn is_open(answer: &mut Answer) -> bool {
    matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

fn ask(call: &Call) -> &Ask {
    match &call.body {
        Body::Acquire(ask) => ask,
        other => panic!("not an acquire: {other:?}"),
    }
}

fn end(call: &Call) -> &End {
    match &call.body {
        Body::End(end) => end,
        other => panic!("not an end: {other:?}"),
    }
}

fn renew(call: &Call) -> &Renew {
    match &call.body {
        Body::Renew(renew) => renew,
        other => panic!("not a renewal: {other:?}"),
    }
}

fn left_ms(desk: &Desk, lease: &Lease) -> u64 {
    u64::try_from(lease.state().deadline().since(desk.now()).as_millis()).expect("small")
}

fn broken() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}

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
    desk.push(token, us, us);
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
    desk.push(token, us, us);
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
    desk.push(token, desk.server_us(), desk.server_us());
    let lease = granted(&mut answer);
    assert!(left_ms(&desk, &lease) >= 1900, "{}", left_ms(&desk, &lease));
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
    desk.push(token, old, old);
    assert!(is_open(&mut answer));
    desk.no_call();
}

#[test]
fn a_queued_that_comes_after_the_grant_is_ignored() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.lock();
    let call = desk.call();
    let us = desk.server_us();
    desk.push(token, us + 2, us + 2);
    let lease = granted(&mut answer);
    desk.queued(call, us + 1, us + 1, 5000);
    assert!(lease.state().is_held());
}

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
    desk.push(token, desk.server_us(), desk.server_us());
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
    assert_eq!(sizes, [64, 36]);
}

#[test]
fn a_fixed_lease_is_not_renewed() {
    let mut desk = Desk::new();
    let mut request = Desk::request(Wait::Unbounded, 10_000);
    request.mode = LeaseMode::Fixed;
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
    request.mode = LeaseMode::MaxHold(Duration::from_millis(2500));
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
fn a_dropped_acquire_under_way_is_ended_with_the_latest_moment_it_may_run_at() {
    let mut desk = Desk::new();
    let (token, answer) = desk.lock();
    let call = desk.call();
    let latest = ask(&call).latest_ms;
    assert_eq!(latest, SERVER + 500);
    drop(answer);
    desk.core.command(desk.now(), Command::Cancel(token));
    let ending = desk.call();
    assert_eq!(
        (end(&ending).token, end(&ending).latest_ms),
        (token, latest)
    );
    desk.held(call, 1, 10_000);
    desk.no_call();
    desk.ended(ending, 0);
    assert!(desk.core.is_idle());
}

#[test]
fn a_dropped_acquire_whose_answer_was_missed_is_ended_with_its_latest_moment() {
    let mut desk = Desk::new();
    let (token, _answer) = desk.lock();
    let first = desk.call();
    let latest = ask(&first).latest_ms;
    desk.pass(500);
    desk.fail(first, Failure::Unknown(Some(broken())));
    desk.pass(100);
    let second = desk.call();
    let later = ask(&second).latest_ms;
    assert!(later > latest);
    desk.queued(second, 5, 5, 5000);
    desk.core.command(desk.now(), Command::Cancel(token));
    // The second one was answered; the first may still be under way.
    assert_eq!(end(&desk.call()).latest_ms, later);
}

#[test]
fn a_dropped_acquire_that_was_answered_needs_no_tombstone() {
    let mut desk = Desk::new();
    let (token, _answer) = desk.queued_waiter();
    desk.core.command(desk.now(), Command::Cancel(token));
    assert_eq!(end(&desk.call()).latest_ms, 0);
}

#[test]
fn an_end_is_sent_until_it_is_answered() {
    let mut desk = Desk::new();
    let (token, lease) = desk.holder();
    drop(lease);
    for _ in 0..5 {
        let call = desk.call();
        assert_eq!(end(&call).token, token);
        desk.pass(500);
        desk.fail(call, Failure::Unknown(None));
        desk.pass(1000);
    }
    let call = desk.call();
    desk.ended(call, 0);
    assert!(desk.core.is_idle());
    desk.pass(60_000);
    desk.no_call();
}

#[test]
fn an_end_that_left_deserted_places_is_repeated_at_once() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    drop(lease);
    let call = desk.call();
    let us = desk.server_us() as i64;
    desk.answer(call, &[0, us, us, 1]);
    let call = desk.call();
    desk.ended(call, 2);
    assert!(desk.core.is_idle());
}

#[test]
fn a_release_tells_whether_the_lease_still_held() {
    for (status, expected) in [(0, Release::Released), (2, Release::NoLongerHeld)] {
        let mut desk = Desk::new();
        let (token, lease) = desk.holder();
        assert!(lease.state().finish());
        let (sender, mut answer) = oneshot::channel();
        desk.core.command(
            desk.now(),
            Command::Release {
                token,
                answer: Some(sender),
            },
        );
        let call = desk.call();
        desk.ended(call, status);
        assert_eq!(
            answer.try_recv().expect("answered").expect("no failure"),
            expected
        );
    }
}

#[test]
fn a_release_that_is_not_answered_says_so_and_goes_on() {
    let mut desk = Desk::new();
    let (token, lease) = desk.holder();
    assert!(lease.state().finish());
    let (sender, mut answer) = oneshot::channel();
    desk.core.command(
        desk.now(),
        Command::Release {
            token,
            answer: Some(sender),
        },
    );
    let call = desk.call();
    desk.pass(500);
    desk.fail(call, Failure::Unknown(None));
    desk.pass(1);
    let told = answer
        .try_recv()
        .expect("answered")
        .expect_err("not released yet");
    assert_eq!(told.kind(), BackendErrorKind::TimedOut);
    desk.pass(100);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_granted_lease_that_nobody_takes_is_released() {
    let mut desk = Desk::new();
    let (token, answer) = desk.lock();
    let call = desk.call();
    drop(answer);
    desk.held(call, 1, 10_000);
    assert_eq!(end(&desk.call()).token, token);
}

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
    assert!(desk.core.is_idle());
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
    assert!(desk.core.is_idle());
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
    assert_eq!(ask(&desk.call()).token, token);
    desk.core.command(desk.now(), Command::Cancel(token));
    assert_eq!(
        desk.core.take_channels(),
        [Channel::Leave("theirs:released".into())]
    );
}

#[test]
fn a_shutdown_refuses_waiters_leaves_guards_until_its_deadline_and_then_ends_them() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    let (_, mut waiting) = desk.queued_waiter();
    let (sender, mut report) = oneshot::channel();
    let deadline = Duration::from_secs(1);
    desk.core.command(
        desk.now(),
        Command::Shutdown {
            deadline,
            answer: sender,
        },
    );
    assert_eq!(refused(&mut waiting), RefusalKind::ShuttingDown);
    let (_, mut newcomer) = desk.lock();
    assert_eq!(refused(&mut newcomer), RefusalKind::ShuttingDown);
    assert!(lease.state().is_held());
    let call = desk.call();
    desk.ended(call, 1);
    assert!(report.try_recv().is_err(), "a guard still lives");
    desk.pass(1000);
    assert!(!lease.state().is_held());
    let call = desk.call();
    desk.ended(call, 0);
    let report = report.try_recv().expect("all is ended");
    assert_eq!((report.released, report.abandoned), (1, 0));
}

#[test]
fn a_shutdown_counts_what_the_server_did_not_take_back() {
    let mut desk = Desk::new();
    let (_, _lease) = desk.holder();
    let (sender, mut report) = oneshot::channel();
    desk.core.command(
        desk.now(),
        Command::Shutdown {
            deadline: Duration::ZERO,
            answer: sender,
        },
    );
    desk.pass(0);
    desk.pass(1000);
    let report = report.try_recv().expect("it does not wait for ever");
    assert_eq!((report.released, report.abandoned), (0, 1));
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
fn a_server_clock_that_is_set_back_makes_no_old_push_worth_anything() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let granted_at = desk.server_us() + 1000;
    // The push waits in its socket until the claim is over and the server's clock has been set back
    // beyond the grant. The heartbeat's answer then shows an earlier time than the push, and a mark
    // that says it was given later.
    desk.pass(3500);
    for call in desk.calls() {
        let us = i64::try_from(granted_at - 500_000).expect("fits");
        let mark = i64::try_from(granted_at + 1).expect("fits");
        match call.body {
            Body::Renew(_) => desk.answer(call, &[us, mark]),
            _ => desk.fail(call, Failure::Unknown(None)),
        }
    }
    desk.push(token, granted_at, granted_at);
    assert!(is_open(&mut answer), "it is confirmed first");
}

#[test]
fn a_push_of_a_grant_that_was_found_to_be_over_is_ignored() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let us = desk.server_us() + 1000;
    desk.ms += 2900;
    desk.push(token, us, us);
    let call = desk.call();
    desk.renewed(call, &[-1]);
    let again = desk.call();
    desk.push(token, us, us);
    assert!(is_open(&mut answer));
    // The answer of an acquire that ran while it still held comes even later.
    desk.held(again, us, 10);
    assert!(is_open(&mut answer));
    assert_eq!(ask(&desk.call()).token, token);
}

#[test]
fn a_release_whose_answer_was_lost_still_counts_as_one() {
    for (late_ms, expected) in [(0, Release::Released), (10_000, Release::NoLongerHeld)] {
        let mut desk = Desk::new();
        let (token, lease) = desk.holder();
        assert!(lease.state().finish());
        let (sender, mut answer) = oneshot::channel();
        desk.core.command(
            desk.now(),
            Command::Release {
                token,
                answer: Some(sender),
            },
        );
        let call = desk.call();
        desk.fail(call, Failure::Unknown(Some(broken())));
        desk.ms += 25;
        desk.core.tick(desk.now());
        let call = desk.call();
        desk.ms += late_ms;
        desk.ended(call, 2);
        assert_eq!(
            answer.try_recv().expect("answered").expect("no failure"),
            expected
        );
    }
}

#[test]
fn a_gone_that_is_about_an_earlier_grant_is_ignored() {
    let mut desk = Desk::new();
    let (token, mut answer) = desk.queued_waiter();
    let first = desk.server_us() + 1000;
    desk.ms += 2900;
    desk.push(token, first, first);
    let confirmation = desk.call();
    // The first grant is over by now; it is granted anew before that is known here.
    desk.core.inbox_changed(desk.now(), true);
    let second = desk.server_us();
    desk.core.marked(confirmation.tag(), second - 1, desk.now());
    desk.push(token, second, second);
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
    desk.push(token, us + 9, us + 9);
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
    desk.push(token, us + 9, us + 9);
    let lease = granted(&mut answer);
    desk.held(call, us + 20, 10_000);
    assert!(!lease.state().finish());
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

#[test]
fn an_end_that_the_server_refuses_is_told_at_once_and_repeated() {
    let mut desk = Desk::new();
    let (token, lease) = desk.holder();
    assert!(lease.state().finish());
    let (sender, mut answer) = oneshot::channel();
    let release = Command::Release {
        token,
        answer: Some(sender),
    };
    desk.core.command(desk.now(), release);
    let call = desk.call();
    desk.fail(
        call,
        Failure::Final(BackendErrorKind::NotPermitted, broken()),
    );
    let told = answer
        .try_recv()
        .expect("answered")
        .expect_err("not released");
    assert_eq!(told.kind(), BackendErrorKind::NotPermitted);
    desk.pass(100);
    assert_eq!(end(&desk.call()).token, token);
}

#[test]
fn a_place_whose_end_is_refused_is_ended_when_that_is_mended() {
    let mut desk = Desk::new();
    let (token, _answer) = desk.queued_waiter();
    desk.core.command(desk.now(), Command::Cancel(token));
    for _ in 0..20 {
        let call = desk.call();
        desk.fail(
            call,
            Failure::Final(BackendErrorKind::ForeignData, broken()),
        );
        desk.pass(1500);
    }
    let call = desk.call();
    assert_eq!(end(&call).token, token);
    desk.ended(call, 1);
    assert!(desk.core.is_idle());
}
