//! What callers are told of failures: `failing.txt`, one line for each failure and stage.

use std::fmt::Write as _;

use redis::{ErrorKind, ServerError, make_extension_error};

use super::*;
use crate::backend::server::reply::failure::Trouble;
use crate::error::BackendError;
use crate::snapshot;

const TEXTS: &str = "src/backend/server/core/tests/failing.txt";

/// What a server says, as a failure of the request that it answers.
fn said(code: &str, details: &str) -> Failure {
    Failure::of_server(server_error(code, details).try_into().expect("a server's"))
}

fn server_error(code: &str, details: &str) -> RedisError {
    let error = make_extension_error(code.to_owned(), Some(details.to_owned()));
    ServerError::try_from(error).expect("a server's").into()
}

fn io(kind: std::io::ErrorKind) -> RedisError {
    std::io::Error::from(kind).into()
}

fn told(answer: &mut Answer) -> BackendError {
    match answer.try_recv().expect("it is answered") {
        Err(LockError::Backend(error)) => error,
        other => panic!("not failed: {other:?}"),
    }
}

/// An acquire that nobody answers, for want of a connection.
fn unconnected(trouble: Option<RedisError>) -> BackendError {
    let mut desk = Desk::new();
    desk.core.link_changed(desk.now(), 0, false);
    let (_, mut answer) = desk.lock();
    if let Some(error) = trouble {
        desk.core.connect_failed(Trouble::of(error));
    }
    desk.pass(1500);
    told(&mut answer)
}

/// An acquire that fails after 30 ms, or when its time is up.
fn asking(failure: Failure) -> BackendError {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.lock();
    let call = desk.call();
    desk.pass(30);
    desk.fail(call, failure);
    // Repeated, and never answered.
    desk.pass(1470);
    told(&mut answer)
}

/// The end of a wait of 2 s while there is no connection.
fn queued() -> BackendError {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.acquire(Desk::request(Wait::AtMost(Duration::from_secs(2)), 10_000));
    let (call, ticket) = (desk.call(), desk.server_us());
    desk.queued(call, ticket, ticket, 5000);
    desk.core.link_changed(desk.now(), 0, false);
    desk.core
        .connect_failed(Trouble::of(io(std::io::ErrorKind::ConnectionRefused)));
    desk.pass(2000);
    told(&mut answer)
}

/// The end of a wait of 4 s at which a grant was pushed too late to be relied on, and could not be
/// confirmed.
fn confirming() -> BackendError {
    let mut desk = Desk::new();
    let wait = Wait::AtMost(Duration::from_secs(4));
    let (token, mut answer) = desk.acquire(Desk::request(wait, 10_000));
    let (call, ticket) = (desk.call(), desk.server_us());
    desk.queued(call, ticket, ticket, 5000);
    desk.ms += 2900;
    let fence = desk.server_us();
    desk.push(token, fence);
    assert!(
        desk.calls()
            .iter()
            .any(|call| matches!(call.body, Body::Renew(_)))
    );
    desk.core.link_changed(desk.now(), 0, false);
    desk.pass(1100);
    told(&mut answer)
}

/// A question of a waiter that the server answers with a failure.
fn queued_and_told(failure: Failure) -> BackendError {
    let mut desk = Desk::new();
    let (_, mut answer) = desk.queued_waiter();
    desk.pass(10_000);
    for call in desk.calls() {
        desk.fail(call, failure.clone());
    }
    told(&mut answer)
}

fn releasing(failure: Option<Failure>) -> BackendError {
    let mut desk = Desk::new();
    let (token, lease) = desk.holder();
    assert!(lease.state().finish());
    if failure.is_none() {
        desk.core.link_changed(desk.now(), 0, false);
    }
    let (sender, mut answer) = oneshot::channel();
    let answer_to = Some(sender);
    desk.core.errand(
        desk.now(),
        Errand::Release {
            token,
            answer: answer_to,
        },
    );
    desk.pass(20);
    if let Some(failure) = failure {
        let call = desk.call();
        desk.fail(call, failure);
    }
    desk.pass(480);
    answer
        .try_recv()
        .expect("answered")
        .expect_err("not released")
}

#[test]
fn texts_tell_the_gate_the_phase_the_time_and_what_to_do() {
    let refused = || io(std::io::ErrorKind::ConnectionRefused);
    let mut errors = vec![
        ("no connection yet", unconnected(None)),
        ("connection refused", unconnected(Some(refused()))),
        (
            "connecting timed out",
            unconnected(Some(io(std::io::ErrorKind::TimedOut))),
        ),
        (
            "unknown host",
            unconnected(Some(
                std::io::Error::other("failed to lookup address information: -2").into(),
            )),
        ),
        (
            "wrong password",
            unconnected(Some(
                (
                    ErrorKind::AuthenticationFailed,
                    "Password authentication failed",
                )
                    .into(),
            )),
        ),
        (
            "no socket",
            unconnected(Some(io(std::io::ErrorKind::NotFound))),
        ),
        (
            "a socket of somebody else's",
            unconnected(Some(io(std::io::ErrorKind::PermissionDenied))),
        ),
        (
            "no RESP3",
            unconnected(Some((ErrorKind::RESP3NotSupported, "no HELLO").into())),
        ),
        ("queued, no connection", queued()),
        ("confirming, no connection", confirming()),
        (
            "the connection broke",
            asking(Failure::Unknown(Some(io(std::io::ErrorKind::BrokenPipe)))),
        ),
        ("no answer", asking(Failure::Unknown(None))),
        (
            "another version",
            asking(Failure::Final(BackendErrorKind::Incompatible, refused())),
        ),
        (
            "no answer of ours",
            asking(Failure::Final(BackendErrorKind::Protocol, refused())),
        ),
        (
            "queued, then forbidden",
            queued_and_told(said("NOPERM", "No permissions to access a key")),
        ),
        ("releasing, no connection", releasing(None)),
        (
            "releasing, no answer",
            releasing(Some(Failure::Unknown(None))),
        ),
        (
            "releasing, forbidden",
            releasing(Some(said(
                "NOPERM",
                "User u has no permissions to run the 'zrem' command",
            ))),
        ),
    ];
    for (code, details) in [
        (
            "WRONGPASS",
            "invalid username-password pair or user is disabled.",
        ),
        ("NOAUTH", "Authentication required."),
        (
            "NOPERM",
            "User u has no permissions to run the 'time' command",
        ),
        ("NOPROTO", "unsupported protocol version"),
        (
            "ERR",
            "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'u' 'secret'",
        ),
        ("BUSY", "Redis is busy running a script."),
        ("LOADING", "Redis is loading the dataset in memory"),
        ("ERR", "max number of clients reached"),
    ] {
        errors.push(("connecting", unconnected(Some(server_error(code, details)))));
    }
    for (code, details) in [
        ("BUSY", "Redis is busy running a script."),
        ("LOADING", "Redis is loading the dataset in memory"),
        ("READONLY", "You can't write against a read only replica."),
        ("MASTERDOWN", "Link with MASTER is down."),
        ("CLUSTERDOWN", "Hash slot not served"),
        ("OOM", "command not allowed when used memory > 'maxmemory'."),
        ("NOREPLICAS", "Not enough good replicas to write."),
        ("MISCONF", "Redis is configured to save RDB snapshots"),
        (
            "NOPERM",
            "User u has no permissions to run the 'zadd' command",
        ),
        (
            "NOPERM",
            "this user has no permissions to access one of the channels used as arguments",
        ),
        (
            "ERR",
            "The user executing the script can't run this command or subcommand",
        ),
        (
            "WRONGTYPE",
            "Operation against a key holding the wrong kind of value",
        ),
        ("MOVED", "3999 127.0.0.1:6381"),
        ("CROSSSLOT", "Keys in request don't hash to the same slot"),
        (
            "ERR",
            "unknown command 'EVALSHA', with args beginning with: 'secret'",
        ),
        ("ERR", "user_script:1: boom"),
    ] {
        errors.push(("asking", asking(said(code, details))));
    }
    let mut text = String::new();
    for (situation, error) in errors {
        let code = error.code().unwrap_or("-");
        let _ = writeln!(text, "{situation} | {} {code} | {error}", error.kind());
    }
    snapshot::assert(TEXTS, &text);
}
