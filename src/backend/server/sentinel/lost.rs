//! Why sentinels lead to no connection, in words that name no address.

use std::borrow::Cow;
use std::error::Error;
use std::{fmt, io};

use redis::RedisError;

use crate::backend::server::reply::failure::{Trouble, io_error};
use crate::error::BackendErrorKind;

/// It travels inside the client's error, as the cause of an error of the system.
#[derive(Debug, Clone)]
pub(in crate::backend::server) struct Lost {
    pub(in crate::backend::server) kind: BackendErrorKind,
    /// A few words, or the sentinel's code.
    pub(in crate::backend::server) cause: Cow<'static, str>,
    what: What,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// None answers.
    Silent,
    /// They answer otherwise than asked.
    Answers,
    Moved,
    PoolElsewhere,
}

impl Lost {
    /// Of one sentinel.
    pub(super) fn of_sentinel(error: RedisError) -> Self {
        let Trouble { kind, cause, .. } = Trouble::of(error);
        let (kind, what) = match kind {
            BackendErrorKind::Unauthenticated
            | BackendErrorKind::NotPermitted
            | BackendErrorKind::Untrusted => (kind, What::Answers),
            // Nothing that is wrong with what was set, so whether others answer is what counts.
            _ => (BackendErrorKind::Unreachable, What::Silent),
        };
        Self { kind, cause, what }
    }

    pub(super) const fn unknown_service() -> Self {
        Self {
            kind: BackendErrorKind::NotServing,
            cause: Cow::Borrowed("unknown service"),
            what: What::Answers,
        }
    }

    pub(super) const fn nonsense() -> Self {
        Self {
            kind: BackendErrorKind::Unreachable,
            cause: Cow::Borrowed("an answer that is no sentinel's"),
            what: What::Silent,
        }
    }

    pub(super) const fn silent() -> Self {
        Self {
            kind: BackendErrorKind::Unreachable,
            cause: Cow::Borrowed("timed out"),
            what: What::Silent,
        }
    }

    pub(in crate::backend::server) const fn moved() -> Self {
        Self {
            kind: BackendErrorKind::Unreachable,
            cause: Cow::Borrowed("the master has changed"),
            what: What::Moved,
        }
    }

    pub(in crate::backend::server) const fn pool_elsewhere() -> Self {
        Self {
            kind: BackendErrorKind::Unreachable,
            cause: Cow::Borrowed("the pool leads to another server"),
            what: What::PoolElsewhere,
        }
    }

    /// Of several the one that says most: who is answered something has somebody to ask.
    pub(super) fn says_more_than(&self, other: &Self) -> bool {
        matches!((self.what, other.what), (What::Answers, What::Silent))
    }

    /// What such an error is about, if it is one.
    pub(in crate::backend::server) fn read(error: &RedisError) -> Option<&Self> {
        io_error(error)?.get_ref()?.downcast_ref()
    }
}

impl From<Lost> for RedisError {
    fn from(lost: Lost) -> Self {
        let kind = match lost.what {
            What::Silent => io::ErrorKind::TimedOut,
            What::Answers | What::Moved | What::PoolElsewhere => io::ErrorKind::NotConnected,
        };
        io::Error::new(kind, lost).into()
    }
}

/// What it is, and what to do.
impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = &self.cause;
        match (self.what, self.kind) {
            (What::Silent, _) => write!(
                f,
                "no sentinel answers ({cause}); check that they run, and that their addresses and \
                 the network are right"
            ),
            (What::Answers, BackendErrorKind::Unauthenticated) => write!(
                f,
                "the sentinels refuse the credentials ({cause}); check the user and password for \
                 the sentinels, which are not those of the data nodes"
            ),
            (What::Answers, BackendErrorKind::Untrusted) => write!(
                f,
                "no TLS connection to the sentinels could be agreed on ({cause}); see what \
                 `Tls` trusts and shows, which is the same for them and for the data nodes"
            ),
            (What::Answers, BackendErrorKind::NotPermitted) => write!(
                f,
                "the sentinels' user may not ask for the master ({cause}): \
                 `+sentinel|get-master-addr-by-name` is missing; see the ACL in SECURITY.md"
            ),
            (What::Answers, _) => f.write_str(
                "the sentinels know no service of this name; take the one that their `sentinel \
                 monitor` gives it",
            ),
            (What::Moved, _) => {
                f.write_str("the sentinels named another master while it was connected to")
            }
            (What::PoolElsewhere, _) => f.write_str(
                "the pool leads to another server than the one that the sentinels name; unless a \
                 failover is under way, give both the same service",
            ),
        }
    }
}

impl Error for Lost {}
