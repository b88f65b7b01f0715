//! What the errors of a server and of a connection mean, and what of them may be told.
//!
//! Told is a server's code and what it says beside it, unless that quotes what was sent (a token, a
//! password) or names an address.

mod handshake;

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind, make_extension_error};

use self::handshake::Cause;
pub(crate) use self::handshake::suspect;
#[cfg(feature = "sentinel")]
use crate::backend::server::sentinel::lost::Lost;
use crate::error::BackendErrorKind;

/// Why a request has no answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// It was never sent.
    NotSent,
    /// It was sent, and may have run or run later.
    Unknown(Option<RedisError>),
    /// It did not run, and may if repeated: the server loads, is busy, has no master.
    NotNow(BackendErrorKind, RedisError),
    /// It did not run, since the server does not know the script.
    NoScript,
    /// Repeating it is no use.
    Final(BackendErrorKind, RedisError),
}

impl Failure {
    /// What a server's error means for the request that it answers.
    pub(crate) fn of_server(error: ServerError) -> Self {
        let (code, kind) = read(error.code(), error.details());
        match kind {
            _ if code == "NOSCRIPT" => Self::NoScript,
            BackendErrorKind::ServerBusy | BackendErrorKind::NotServing => {
                Self::NotNow(kind, told(code, error.details()))
            }
            _ => Self::Final(kind, told(code, error.details())),
        }
    }

    /// Of a script that the server does not know, and that this handle may not bring to it.
    pub(crate) fn not_loaded() -> Self {
        let error = make_extension_error("NOSCRIPT".to_owned(), None);
        Self::NotNow(BackendErrorKind::NotServing, error)
    }

    /// Whether it is over in a moment: what is asked for is on its way to another node of a
    /// cluster.
    pub(crate) fn is_brief(&self) -> bool {
        matches!(self, Self::NotNow(_, error) if matches!(error.code(), Some("ASK" | "MOVED" | "TRYAGAIN")))
    }

    /// The same, of a node of a cluster. While a slot is on its way, a key that a script has removed
    /// counts as one that has left: the script is ended where it touches it again, and what it wrote
    /// before stays. What is repeated with the same token finds that.
    pub(crate) fn of_moving_slot(self) -> Self {
        match self {
            Self::Final(_, error) if error.code() == Some("CROSSSLOT") => Self::Unknown(None),
            other => other,
        }
    }

    /// What an error of the connection means for the requests that were under way on it.
    pub(crate) fn of_connection(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => {
                Self::Final(BackendErrorKind::Unauthenticated, error)
            }
            _ => Self::Unknown(Some(error)),
        }
    }
}

impl Failure {
    /// Its kind and cause in a few words, for those who run the service; `trouble` is why there is no
    /// connection.
    pub(crate) fn in_words(
        &self,
        trouble: Option<&Trouble>,
    ) -> (BackendErrorKind, Cow<'static, str>) {
        match self {
            Self::Unknown(None) => (BackendErrorKind::TimedOut, "no answer".into()),
            Self::NotNow(kind, error) | Self::Final(kind, error) => (
                *kind,
                error.code().unwrap_or("not serving").to_owned().into(),
            ),
            Self::Unknown(Some(error)) => (BackendErrorKind::Unreachable, broken(error)),
            Self::NotSent | Self::NoScript => match trouble {
                Some(trouble) => (trouble.kind, trouble.cause.clone()),
                None => (BackendErrorKind::Unreachable, "no connection yet".into()),
            },
        }
    }
}
pub(crate) const NO_SOCKET: &str = "no such socket";
pub(crate) const FORBIDDEN_SOCKET: &str = "permission denied";
const NO_DATABASE: &str = "the server does not have the database that the address names; take \
                           another number, or none";
const NO_RESP3: &str = "the server does not speak RESP3; leave `protocol=resp3` out of its address";

/// Why there is no connection.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) kind: BackendErrorKind,
    /// A few words, or the server's code.
    pub(crate) cause: Cow<'static, str>,
    /// What to do, where the cause alone says it.
    pub(crate) advice: Option<&'static str>,
    pub(crate) error: RedisError,
}

impl Trouble {
    /// What an error means that came while connecting: of the connection itself, or the server's
    /// answer to the handshake.
    pub(crate) fn of(error: RedisError) -> Self {
        if let Ok(error) = ServerError::try_from(error.clone()) {
            let (code, kind) = read(error.code(), error.details());
            let cause = match kind {
                BackendErrorKind::NotServing if code == "ERR" => "too many clients".into(),
                _ => code.to_owned().into(),
            };
            let error = told(code, error.details());
            let details = error.detail().unwrap_or_default();
            let is_about_hello = cause == "NOPROTO"
                || matches!(
                    details,
                    "unknown command 'HELLO'" | "unknown command `HELLO`"
                );
            let advice = is_about_hello.then_some(NO_RESP3);
            return Self {
                kind,
                cause,
                advice,
                error,
            };
        }
        #[cfg(feature = "sentinel")]
        if let Some(lost) = Lost::read(&error) {
            let (kind, cause) = (lost.kind, lost.cause.clone());
            return Self {
                kind,
                cause,
                advice: None,
                error,
            };
        }
        if let Some(cause) = Cause::of(&error) {
            return Self::caused(cause);
        }
        let mut advice = None;
        let (kind, cause) = match error.kind() {
            ErrorKind::AuthenticationFailed => (
                BackendErrorKind::Unauthenticated,
                "credentials refused".into(),
            ),
            // The only answer that the client words anew: that to SELECT.
            ErrorKind::Server(ServerErrorKind::ResponseError) => {
                let details = error.detail().unwrap_or_default();
                let kind = if details.contains("no permissions") {
                    BackendErrorKind::NotPermitted
                } else {
                    advice = Some(NO_DATABASE);
                    BackendErrorKind::Unsupported
                };
                (kind, "database refused".into())
            }
            ErrorKind::RESP3NotSupported => {
                advice = Some(NO_RESP3);
                (BackendErrorKind::Unsupported, "no RESP3".into())
            }
            _ => (BackendErrorKind::Unreachable, broken(&error)),
        };
        Self {
            kind,
            cause,
            advice,
            error,
        }
    }
}

/// Why a connection is not there or broke, without its address: "connection refused".
pub(crate) fn broken(error: &RedisError) -> Cow<'static, str> {
    if let Some(cause) = Cause::of(error) {
        return cause.words.into();
    }
    let Some(cause) = io_error(error) else {
        return match error.kind() {
            ErrorKind::Parse => "an answer that is not of Redis' protocol".into(),
            _ => error.code().unwrap_or("connection lost").to_owned().into(),
        };
    };
    match cause.kind() {
        io::ErrorKind::NotFound => NO_SOCKET.into(),
        io::ErrorKind::PermissionDenied => FORBIDDEN_SOCKET.into(),
        // What a resolver says has no kind of its own.
        _ if cause.to_string().starts_with("failed to lookup address") => {
            "DNS: the host name has no address".into()
        }
        io::ErrorKind::Other => "connection failed".into(),
        kind => kind.to_string().into(),
    }
}

/// The error of the system, which the client keeps behind a pointer.
pub(crate) fn io_error(error: &RedisError) -> Option<&io::Error> {
    let source = error.source()?;
    let shared = source.downcast_ref::<Arc<dyn Error + Send + Sync>>();
    match shared {
        Some(shared) => shared.downcast_ref(),
        None => source.downcast_ref(),
    }
}

/// The error of a server as it may be told, under the code that was found.
fn told(code: &str, details: Option<&str>) -> RedisError {
    let details = match of_code(code) {
        // It names another server.
        BackendErrorKind::Unsupported => None,
        BackendErrorKind::Protocol if code != "ERR" => None,
        // An unknown command is quoted with its arguments.
        _ => details.map(|details| details.split(", with args").next().unwrap_or_default()),
    };
    make_extension_error(code.to_owned(), details.map(str::to_owned))
}

fn of_code(code: &str) -> BackendErrorKind {
    match code {
        "BUSY" => BackendErrorKind::ServerBusy,
        "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" | "TRYAGAIN" => {
            BackendErrorKind::NotServing
        }
        "MISCONF" | "NOREPLICAS" | "OOM" => BackendErrorKind::Refused,
        "NOAUTH" | "WRONGPASS" => BackendErrorKind::Unauthenticated,
        "DENIED" | "NOPERM" => BackendErrorKind::NotPermitted,
        "WRONGTYPE" => BackendErrorKind::ForeignData,
        "ASK" | "CROSSSLOT" | "MOVED" | "NOPROTO" => BackendErrorKind::Unsupported,
        _ => BackendErrorKind::Protocol,
    }
}

/// The code and the kind of a server's error. Codes are what counts, also where a server up to 6.2
/// wraps them in the text of a script's failure: "ERR Error running script (…): @user_script:12:
/// WRONGTYPE Operation …".
fn read<'a>(code: &'a str, details: Option<&'a str>) -> (&'a str, BackendErrorKind) {
    if code != "ERR" {
        return (code, of_code(code));
    }
    let details = details.unwrap_or_default();
    if !details.starts_with("Error running script") {
        return worded(details);
    }
    for part in details.split(": ") {
        let word = part.split(' ').next().unwrap_or_default();
        let word = word.trim_start_matches('-');
        if of_code(word) != BackendErrorKind::Protocol {
            return (word, of_code(word));
        }
        let (code, kind) = worded(part);
        if kind != BackendErrorKind::Protocol {
            return (code, kind);
        }
    }
    ("ERR", BackendErrorKind::Protocol)
}

/// What no server gives a code of its own is known by how its text begins.
fn worded(details: &str) -> (&'static str, BackendErrorKind) {
    const WORDED: [(&str, &str, BackendErrorKind); 16] = [
        // A script's own command, in 6.2 and 7.0, and later.
        (
            "The user executing the script can't",
            "NOPERM",
            BackendErrorKind::NotPermitted,
        ),
        (
            "ACL failure in script",
            "NOPERM",
            BackendErrorKind::NotPermitted,
        ),
        // A password for a user that has none.
        (
            "AUTH <password> called without",
            "ERR",
            BackendErrorKind::Unauthenticated,
        ),
        // An administrator ended a script before it wrote.
        (
            "Script killed by user",
            "BUSY",
            BackendErrorKind::ServerBusy,
        ),
        ("max number of clients", "ERR", BackendErrorKind::NotServing),
        (
            "DB index is out of range",
            "ERR",
            BackendErrorKind::Unsupported,
        ),
        (
            "SELECT is not allowed",
            "ERR",
            BackendErrorKind::Unsupported,
        ),
        // Asked for the nodes of its cluster. No server gives that a code of its own.
        (
            "This instance has cluster support disabled",
            "NOCLUSTER",
            BackendErrorKind::Unsupported,
        ),
        // Missing, renamed, or kept from us by something in between.
        ("unknown command", "ERR", BackendErrorKind::Unsupported),
        (
            "Unknown command called from script",
            "ERR",
            BackendErrorKind::Unsupported,
        ),
        (
            "Unknown Redis command called",
            "ERR",
            BackendErrorKind::Unsupported,
        ),
        // In Valkey 9, in 6.2, and in all others.
        (
            "Attempted to access a non local",
            "CROSSSLOT",
            BackendErrorKind::Unsupported,
        ),
        (
            "Attempted to access keys that",
            "CROSSSLOT",
            BackendErrorKind::Unsupported,
        ),
        (
            "Lua script attempted to access a non local",
            "CROSSSLOT",
            BackendErrorKind::Unsupported,
        ),
        (
            "Script attempted to access a non local",
            "CROSSSLOT",
            BackendErrorKind::Unsupported,
        ),
        (
            "Script attempted to access keys that",
            "CROSSSLOT",
            BackendErrorKind::Unsupported,
        ),
    ];
    let found = WORDED
        .iter()
        .find(|(words, _, _)| details.starts_with(words));
    found.map_or(("ERR", BackendErrorKind::Protocol), |&(_, code, kind)| {
        (code, kind)
    })
}

#[cfg(test)]
mod tests;
