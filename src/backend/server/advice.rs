//! What a failure's text says of its cause, and of what to do about it.

use std::borrow::Cow;

use redis::RedisError;

use super::reply::failure::{FORBIDDEN_SOCKET, NO_SOCKET, Trouble, broken};
#[cfg(feature = "sentinel")]
use super::sentinel::lost::Lost;
use crate::error::BackendErrorKind;

/// Of a server that could not be connected to; `None` while the first attempt is under way.
pub(super) fn on_connecting(trouble: Option<&Trouble>) -> Cow<'static, str> {
    let Some(trouble) = trouble else {
        return "there is no connection to the server yet; check that it runs, and that its address \
                and the network are right"
            .into();
    };
    #[cfg(feature = "sentinel")]
    if let Some(lost) = Lost::read(&trouble.error) {
        return lost.to_string().into();
    }
    let (kind, cause) = (trouble.kind, &*trouble.cause);
    if let Some(advice) = trouble.advice {
        return advice.into();
    }
    let check = match (kind, cause) {
        // Only a socket has these.
        (BackendErrorKind::Unreachable, NO_SOCKET) => {
            "check that it runs, and that its address names its `unixsocket`"
        }
        (BackendErrorKind::Unreachable, FORBIDDEN_SOCKET) => {
            "let this process' user enter the socket's folder and write to it (`unixsocketperm`)"
        }
        (BackendErrorKind::Unreachable, _) => {
            "check that it runs, and that its address and the network are right"
        }
        (BackendErrorKind::Unauthenticated, code) if code != "NOAUTH" => {
            return format!(
                "the server refuses the credentials ({cause}); check user and password"
            )
            .into();
        }
        _ => return on_answer(kind, Some(&trouble.error)),
    };
    format!("there is no connection to the server ({cause}); {check}").into()
}

/// Of a connection that broke while an answer was waited for.
pub(super) fn on_break(error: &RedisError) -> Cow<'static, str> {
    let cause = broken(error);
    format!(
        "the connection broke ({cause}), and the request may have run; see whether the server was \
         restarted"
    )
    .into()
}

/// Of an answer that did not come.
pub(super) const ON_SILENCE: &str = "no answer came, and the request may have run; the server is \
                                     slow, or the path to it is broken";

/// Of a grant that too few replicas acknowledged.
pub(super) fn on_too_few(replicas: u32, least: u32) -> String {
    format!(
        "{replicas} of {least} replicas acknowledged the grant, and it was given back; see that they \
         are connected and keep up, or ask for fewer by min_replicas"
    )
}

/// Of an error that a server answered with, or of an answer that is none.
pub(super) fn on_answer(kind: BackendErrorKind, error: Option<&RedisError>) -> Cow<'static, str> {
    let code = error.and_then(RedisError::code).unwrap_or_default();
    let text = match (kind, code) {
        (BackendErrorKind::ServerBusy, _) => {
            "the server is busy with a script that runs for too long (BUSY); end it by SCRIPT KILL"
        }
        (BackendErrorKind::NotServing, "LOADING") => {
            "the server loads its data (LOADING); wait until it has"
        }
        (BackendErrorKind::NotServing, "READONLY") => {
            "the server is a replica (READONLY); unless a failover is under way, name the master's \
             address"
        }
        (BackendErrorKind::NotServing, "MASTERDOWN") => {
            "the server is a replica that has lost its master (MASTERDOWN); unless a failover is \
             under way, name the master's address"
        }
        (BackendErrorKind::NotServing, "NOSCRIPT") => {
            "the server does not know our scripts (NOSCRIPT), and this handle brings it none; load \
             those of this release on every server that may be the master (see \
             `portcullis::scripts`)"
        }
        (BackendErrorKind::NotServing, "ERR") => {
            "the server takes no more clients; raise its maxclients, or let fewer connect"
        }
        (BackendErrorKind::NotServing, "CLUSTERDOWN") => {
            "the cluster does not serve this gate's slot (CLUSTERDOWN); unless a failover is under \
             way, see whether all slots have a master"
        }
        (BackendErrorKind::NotServing, code @ ("TRYAGAIN" | "ASK" | "MOVED")) => {
            return format!(
                "this gate's slot is on its way to another node ({code}); let calls wait until it \
                 is there"
            )
            .into();
        }
        (BackendErrorKind::NotServing, code) => {
            return format!("the server can't serve now ({code}); see its log").into();
        }
        (BackendErrorKind::Refused, "OOM") => {
            "the server is out of memory (OOM); raise its maxmemory, or let it hold less"
        }
        (BackendErrorKind::Refused, "NOREPLICAS") => {
            "the server has too few replicas in reach (NOREPLICAS); see its min-replicas-to-write"
        }
        (BackendErrorKind::Refused, "MISCONF") => {
            "the server can't persist its data and takes no writes (MISCONF); see its log"
        }
        (BackendErrorKind::Refused, _) => "the server declined; see its log",
        (BackendErrorKind::Unauthenticated, "NOAUTH") => {
            "the server wants credentials (NOAUTH); name user and password in its address"
        }
        (BackendErrorKind::Unauthenticated, _) => {
            "the server refuses the credentials; check user and password"
        }
        (BackendErrorKind::NotPermitted, _) => return missing_right(error).into(),
        (BackendErrorKind::ForeignData, _) => {
            "something else lives under this key (WRONGTYPE); choose another name or prefix, or \
             remove it"
        }
        (BackendErrorKind::Unsupported, "ERR") => {
            "the server does not know a command that is needed; is it Redis 6.2 or later, or Valkey, \
             with no command renamed?"
        }
        (BackendErrorKind::Unsupported, "NOCLUSTER") => {
            "the server is no cluster's node; leave `+cluster` out of its address"
        }
        (BackendErrorKind::Unsupported, code) => {
            return format!(
                "the server is a node of a cluster ({code}); give the address of the cluster, redis+cluster://"
            )
            .into();
        }
        (BackendErrorKind::Incompatible, _) => {
            "a process with a later release of this crate uses this gate; let all run releases that \
             follow each other"
        }
        (
            BackendErrorKind::Protocol
            | BackendErrorKind::TimedOut
            | BackendErrorKind::Unreachable
            | BackendErrorKind::Untrusted,
            _,
        ) => {
            "the server answered what none of our scripts answers; is it Redis 6.2 or later, or \
             Valkey?"
        }
    };
    text.into()
}

/// Which right the server's user lacks, as far as the server says: some name the command.
fn missing_right(error: Option<&RedisError>) -> String {
    let details = error.and_then(RedisError::detail).unwrap_or_default();
    let missing = match Denied::read(details) {
        Denied::Command(Some(command)) => {
            format!("run `{command}` (NOPERM): `+{command}` is missing")
        }
        Denied::Channel => "use a channel (NOPERM): `&<prefix>:inbox:*` is missing".to_owned(),
        Denied::Key => "use these keys (NOPERM): `~<prefix>:*` is missing".to_owned(),
        Denied::Command(None) => "do this (NOPERM): a right is missing".to_owned(),
    };
    format!("the server's user may not {missing}; see the ACL in SECURITY.md")
}

/// What a user may not use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Denied<'a> {
    Channel,
    /// Which one, where the server says so: one in a script is named by few.
    Command(Option<&'a str>),
    Key,
}

impl<'a> Denied<'a> {
    /// Reads what a server says beside its code.
    pub(super) fn read(details: &'a str) -> Self {
        match denied_command(details) {
            Some(command) => Self::Command(Some(command)),
            None if details.contains("channel") => Self::Channel,
            None if details.contains(" key") => Self::Key,
            None => Self::Command(None),
        }
    }
}

/// The command in "no permissions to run the 'script|load' command".
fn denied_command(details: &str) -> Option<&str> {
    let (_, rest) = details.split_once("to run the '")?;
    let (command, _) = rest.split_once('\'')?;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'|';
    (!command.is_empty() && command.bytes().all(plain)).then_some(command)
}
