//! An end and an acquire of one gate in one call: when, in which order, and what their answers are.

use super::*;
use crate::backend::server::core::swapping::{join, part};
use crate::key::Key;

fn gate(kind: Kind, name: &str) -> Arc<Resource> {
    let prefix = Prefix::new("t").expect("a plain prefix");
    Arc::new(Resource::named(&prefix, kind, &name.into(), None))
}

/// Another gate under the same tag.
fn sibling() -> Arc<Resource> {
    let prefix = Prefix::new("t").expect("a plain prefix");
    let tag = tag();
    let keyed = (0_u32..).map(|number| {
        let key = Key::from(number);
        Resource::named(&prefix, Kind::Mutex, &"gate".into(), Some(&key))
    });
    let mut same = keyed.filter(|resource| resource.tag == tag);
    Arc::new(same.next().expect("one of 256"))
}

fn call(body: Body) -> Call {
    let sent = Instant::from_nanos(7);
    Call { sent, body }
}

fn ends(number: u128, resource: &Arc<Resource>) -> Call {
    call(Body::End(End {
        token: Token::of(number),
        resource: Arc::clone(resource),
        latest_ms: 0,
    }))
}

fn asks(number: u128, resource: &Arc<Resource>) -> Call {
    call(Body::Acquire(Ask {
        token: Token::of(number),
        resource: Arc::clone(resource),
        weight: 1,
        limit: 1,
        lease: Duration::from_secs(10),
        latest_ms: 7,
        wait: None,
        max_waiters: 100,
        ticket: 0,
        pushed: true,
        kept: 1,
    }))
}

fn with(mut call: Call, change: impl FnOnce(&mut Ask)) -> Call {
    match &mut call.body {
        Body::Acquire(ask) => change(ask),
        other => panic!("not an acquire: {other:?}"),
    }
    call
}

fn recheck(resource: &Arc<Resource>) -> Call {
    call(Body::Recheck(crate::backend::server::call::Recheck {
        resource: Arc::clone(resource),
        tokens: Vec::new(),
    }))
}

/// What is sent, in its order: "-1" ends that token, "+2" asks by it, "-1+2" does both.
fn sent(calls: Vec<Call>) -> String {
    let number = |token: Token| token.parts().1;
    let word = |call: Call| match call.body {
        Body::End(end) => format!("-{}", number(end.token)),
        Body::Acquire(ask) => format!("+{}", number(ask.token)),
        Body::Swap(swap) => format!("-{}+{}", number(swap.0.token), number(swap.1.token)),
        Body::Recheck(_) => "?".to_owned(),
        other => panic!("not asked for: {other:?}"),
    };
    let words: Vec<String> = join(calls).into_iter().map(word).collect();
    words.join(" ")
}

#[test]
fn an_end_and_an_acquire_of_one_gate_go_as_one_call() {
    let gate = gate(Kind::Mutex, "gate");
    assert_eq!(sent(vec![ends(1, &gate), asks(2, &gate)]), "-1+2");
    assert_eq!(sent(vec![asks(2, &gate), ends(1, &gate)]), "-1+2");
}

#[test]
fn of_several_each_acquire_runs_as_soon_as_one_end_has_and_in_its_order() {
    let gate = gate(Kind::Semaphore, "gate");
    let ended = || (1..4).map(|number| ends(number, &gate));
    let asked = || (4..7).map(|number| asks(number, &gate));
    assert_eq!(sent(ended().chain(asked()).collect()), "-1+4 -2+5 -3+6");
    assert_eq!(sent(asked().chain(ended()).collect()), "-1+4 -2+5 -3+6");
    assert_eq!(sent(ended().chain(asked().take(1)).collect()), "-1 -2 -3+4");
    assert_eq!(sent(ended().take(1).chain(asked()).collect()), "-1+4 +5 +6");
}

#[test]
fn only_who_keeps_and_waits_asks_in_the_call_of_an_end() {
    let gate = gate(Kind::Mutex, "gate");
    let plain = with(asks(2, &gate), |ask| ask.kept = 0);
    assert_eq!(sent(vec![ends(1, &gate), plain]), "-1 +2");
    let tries = |number| with(asks(number, &gate), |ask| ask.wait = Some(Duration::ZERO));
    assert_eq!(sent(vec![ends(1, &gate), tries(2)]), "-1 +2");
    // It runs before and after what it did.
    let calls = vec![ends(1, &gate), asks(2, &gate), tries(3), ends(4, &gate)];
    assert_eq!(sent(calls), "-1+2 +3 -4");
    let calls = vec![asks(2, &gate), tries(3), ends(4, &gate), asks(5, &gate)];
    assert_eq!(sent(calls), "+2 +3 -4+5");
}

#[test]
fn what_is_asked_under_one_tag_in_between_stays_there() {
    let (gate, sibling) = (gate(Kind::Mutex, "gate"), sibling());
    let calls = vec![ends(1, &gate), recheck(&gate), asks(2, &gate)];
    assert_eq!(sent(calls), "-1 ? +2");
    let calls = vec![
        ends(1, &gate),
        ends(2, &sibling),
        asks(3, &gate),
        ends(4, &gate),
    ];
    assert_eq!(sent(calls), "-1 -2 -4+3");
}

#[test]
fn gates_of_other_tags_are_not_in_the_way() {
    let (gate, other) = (gate(Kind::Mutex, "gate"), gate(Kind::Semaphore, "another"));
    assert_ne!(gate.tag, other.tag);
    let calls = vec![
        ends(1, &gate),
        ends(2, &other),
        asks(3, &gate),
        asks(4, &other),
    ];
    assert_eq!(sent(calls), "-1+3 -2+4");
}

#[test]
fn what_becomes_of_one_token_is_asked_in_its_order() {
    let gate = gate(Kind::Mutex, "gate");
    let calls = vec![asks(1, &gate), ends(1, &gate)];
    assert_eq!(sent(calls), "+1 -1");
    let calls = vec![ends(2, &gate), asks(1, &gate), ends(1, &gate)];
    assert_eq!(sent(calls), "-2+1 -1");
}

#[test]
fn a_call_counts_from_when_its_acquire_was_sent() {
    let gate = gate(Kind::Mutex, "gate");
    let mut end = ends(1, &gate);
    end.sent = Instant::from_nanos(5);
    let joined = join(vec![end, asks(2, &gate)]);
    assert_eq!(joined[0].sent, Instant::from_nanos(7));
}

/// One who keeps holds, and gives its permit back as it asks for the next.
fn swaps(desk: &mut Desk) -> (Call, oneshot::Receiver<ReleaseAnswer>, Answer) {
    let mut request = Desk::request(Wait::Unbounded, 10_000);
    request.terms.kept = 1;
    let (_, mut first) = desk.acquire(request.clone());
    let call = desk.call();
    let fence = desk.server_us();
    desk.held(call, fence, 10_000);
    let (_, answer) = desk.acquire(request);
    let (told, released) = oneshot::channel();
    granted(&mut first).release_to(Some(told));
    let call = desk.call();
    assert!(matches!(call.body, Body::Swap(_)), "{call:?}");
    (call, released, answer)
}

/// The two parts of what the server said.
fn said(desk: &Desk, asked: Value) -> Value {
    let us = Value::Int(desk.server_us() as i64);
    let ended = [Value::Int(0), us.clone(), us, Value::Int(0)];
    Value::Array(vec![Value::Array(ended.into()), asked])
}

fn hear(desk: &mut Desk, call: Call, value: Value) {
    let (calls, values) = part(vec![call], vec![value]);
    for (call, value) in calls.into_iter().zip(values) {
        let result = match value {
            Value::ServerError(error) => Err(Failure::of_server(error)),
            value => Ok(value),
        };
        desk.core.answer(desk.now(), call, result);
    }
}

#[test]
fn each_part_is_answered_as_by_itself() {
    let mut desk = Desk::new();
    let (call, mut released, mut answer) = swaps(&mut desk);
    let us = desk.server_us() as i64;
    let held = [0, us, us, us, 10_000, 0].map(Value::Int);
    let value = said(&desk, Value::Array(held.into()));
    hear(&mut desk, call, value);
    let told = released.try_recv().expect("it is answered");
    assert_eq!(told.expect("it was released"), Release::Released);
    let lease = granted(&mut answer);
    assert_eq!(lease.fencing_token().get(), us as u64);
    desk.no_call();
}

#[test]
fn what_the_server_refuses_to_one_part_is_no_failure_of_the_other() {
    let mut desk = Desk::new();
    let (call, mut released, mut answer) = swaps(&mut desk);
    let refused = redis::make_extension_error("WRONGTYPE".to_owned(), None);
    let refused = redis::ServerError::try_from(refused).expect("a server's");
    let value = said(&desk, Value::ServerError(refused));
    hear(&mut desk, call, value);
    let told = released.try_recv().expect("it is answered");
    assert_eq!(told.expect("it was released"), Release::Released);
    assert_eq!(failed(&mut answer), BackendErrorKind::ForeignData);
}

#[test]
fn a_failure_of_the_whole_call_reaches_both_parts() {
    let mut desk = Desk::new();
    let (call, mut released, mut answer) = swaps(&mut desk);
    let error = redis::make_extension_error("WRONGTYPE".to_owned(), None);
    desk.fail(call, Failure::Final(BackendErrorKind::ForeignData, error));
    let told = released.try_recv().expect("it is answered");
    let error = told.expect_err("it may hold yet");
    assert_eq!(error.kind(), BackendErrorKind::ForeignData);
    assert_eq!(failed(&mut answer), BackendErrorKind::ForeignData);
}

#[test]
fn of_a_call_without_an_answer_both_parts_are_sent_again() {
    let mut desk = Desk::new();
    let (call, mut released, mut answer) = swaps(&mut desk);
    desk.fail(call, Failure::Unknown(None));
    assert!(released.try_recv().is_err() && is_open(&mut answer));
    desk.pass(100);
    let calls = desk.calls();
    let both = |call: &Call| matches!(call.body, Body::Swap(_));
    let ends = calls
        .iter()
        .filter(|call| both(call) || matches!(call.body, Body::End(_)));
    let asks = calls
        .iter()
        .filter(|call| both(call) || matches!(call.body, Body::Acquire(_)));
    assert_eq!((ends.count(), asks.count()), (1, 1), "{calls:?}");
}

#[test]
fn an_answer_without_two_parts_is_none_to_either() {
    let mut desk = Desk::new();
    let (call, mut released, mut answer) = swaps(&mut desk);
    hear(&mut desk, call, Value::Array(vec![Value::Int(0)]));
    let told = released.try_recv().expect("it is answered");
    let error = told.expect_err("nothing is known of it");
    assert_eq!(error.kind(), BackendErrorKind::Protocol);
    assert_eq!(failed(&mut answer), BackendErrorKind::Protocol);
}
