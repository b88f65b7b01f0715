//! Why a connection could not be agreed on: what TLS says, and what may be suspected where nobody
//! says anything.

use std::error::Error;
use std::{fmt, io};

#[cfg(feature = "tls")]
use redis::ErrorKind;
use redis::{ConnectionAddr, RedisError};

use super::{Trouble, io_error};
use crate::error::BackendErrorKind;

/// What an end of a connection was about, in place of what the client says of it: that may name
/// hosts and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cause {
    pub(super) kind: BackendErrorKind,
    /// A few words.
    pub(super) words: &'static str,
    /// A whole text that says what to do, where there is more to say than of any lost connection.
    pub(super) advice: Option<&'static str>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words)
    }
}

impl Error for Cause {}

impl Cause {
    const fn suspected(words: &'static str) -> Self {
        Self {
            kind: BackendErrorKind::Unreachable,
            words,
            advice: None,
        }
    }

    #[cfg(feature = "tls")]
    const fn told(kind: BackendErrorKind, words: &'static str, advice: &'static str) -> Self {
        Self {
            kind,
            words,
            advice: Some(advice),
        }
    }

    /// The cause that a connection's error has, if it is one of these.
    pub(super) fn of(error: &RedisError) -> Option<Self> {
        let Some(io) = io_error(error) else {
            return of_client(error);
        };
        let inner = io.get_ref()?;
        if let Some(cause) = inner.downcast_ref::<Self>() {
            return Some(*cause);
        }
        #[cfg(feature = "tls")]
        if let Some(error) = inner.downcast_ref::<rustls::Error>() {
            return Some(of_tls(error));
        }
        None
    }

    fn error(self, kind: io::ErrorKind) -> RedisError {
        io::Error::new(kind, self).into()
    }
}

impl Trouble {
    pub(super) fn caused(by: Cause) -> Self {
        Self {
            kind: by.kind,
            cause: by.words.into(),
            advice: by.advice,
            error: by.error(io::ErrorKind::Other),
        }
    }
}

/// Says more of a connection that ended or was silent before it was made: where one side speaks TLS
/// and the other does not, neither can say so.
pub(crate) fn suspect(error: RedisError, address: &ConnectionAddr) -> RedisError {
    let Some(kind) = io_error(&error).map(io::Error::kind) else {
        return error;
    };
    let is_closed = matches!(
        kind,
        io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::UnexpectedEof
    );
    let words = match address {
        ConnectionAddr::Tcp(..) if is_closed => "closed at once; is this a port for TLS?",
        ConnectionAddr::TcpTls { .. } if is_closed => {
            "closed at once; is this a port for TLS, and does it want a client certificate?"
        }
        ConnectionAddr::TcpTls { .. } if error.is_timeout() => "timed out; is this a port for TLS?",
        _ => return error,
    };
    Cause::suspected(words).error(kind)
}

#[cfg(not(feature = "tls"))]
const fn of_client(_: &RedisError) -> Option<Cause> {
    None
}

/// What the client found before it connected.
#[cfg(feature = "tls")]
fn of_client(error: &RedisError) -> Option<Cause> {
    // An address was looked at when the handle was built. What is left is what the client reads
    // with each connection.
    let is_about_files = error.kind() == ErrorKind::Io && error.source().is_some();
    is_about_files.then_some(Cause::told(
        BackendErrorKind::Untrusted,
        "the system's CAs can't be read",
        "the certificates that the system trusts can't be read; see those files, and SSL_CERT_FILE \
         and SSL_CERT_DIR in the environment",
    ))
}

#[cfg(feature = "tls")]
fn of_tls(error: &rustls::Error) -> Cause {
    use rustls::CertificateError as Wrong;
    use rustls::{AlertDescription, Error};

    use crate::error::BackendErrorKind::{Protocol, Untrusted};

    match error {
        Error::InvalidCertificate(wrong) => match wrong {
            // The signature: an authority of the same name with another key.
            Wrong::UnknownIssuer | Wrong::BadSignature => Cause::told(
                Untrusted,
                "its certificate has an unknown issuer",
                "the server's certificate was issued by nobody who is trusted; name the \
                 certificate of its CA by `Tls::root_certificate`",
            ),
            Wrong::Expired | Wrong::ExpiredContext { .. } => Cause::told(
                Untrusted,
                "its certificate has expired",
                "the server's certificate has expired; renew it, or set this machine's clock right",
            ),
            Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => Cause::told(
                Untrusted,
                "its certificate is not valid yet",
                "the server's certificate is not valid yet; set this machine's clock right",
            ),
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => Cause::told(
                Untrusted,
                "its certificate is for another host",
                "the server's certificate is for another host than the address names; take a name \
                 that the certificate lists, or issue one that lists this name",
            ),
            _ => Cause::told(
                Untrusted,
                "its certificate is not valid",
                "the server's certificate can't be used (for what it is, not for who issued it); \
                 let its CA issue one for a server, in X.509 version 3",
            ),
        },
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => Cause::told(
                Untrusted,
                "it wants a client certificate",
                "the server wants a client certificate; give one by `Tls::client_certificate`",
            ),
            AlertDescription::HandshakeFailure => Cause::told(
                Untrusted,
                "it refuses the handshake",
                "the server refuses the TLS handshake; if it wants a client certificate, give one \
                 by `Tls::client_certificate`",
            ),
            AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity => {
                NOTHING_IN_COMMON
            }
            _ => Cause::told(
                Untrusted,
                "it refuses the client certificate",
                "the server refuses the certificate that it was shown; see that its CA \
                 (`tls-ca-cert-file`) issued it, and that it has not expired",
            ),
        },
        Error::PeerIncompatible(_) => NOTHING_IN_COMMON,
        Error::InvalidMessage(_) => Cause::told(
            Protocol,
            "no TLS is spoken there",
            "what answers does not speak TLS; name the port that does, or take a redis:// address",
        ),
        _ => Cause::told(
            Untrusted,
            "the TLS handshake failed",
            "no TLS connection could be agreed on; see the server's log",
        ),
    }
}

#[cfg(feature = "tls")]
const NOTHING_IN_COMMON: Cause = Cause::told(
    BackendErrorKind::Unsupported,
    "no version of TLS in common",
    "the server speaks no version of TLS that is safe; let it speak 1.2 or 1.3 (`tls-protocols`), \
     with its default ciphers",
);
