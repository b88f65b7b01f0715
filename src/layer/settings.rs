//! The choices that a layer offers, beyond numbers and keys.

/// How long a request holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HoldUntil {
    /// Until the response's body has ended, failed or been dropped.
    #[default]
    Body,
    /// Until the inner service has answered; the body is sent without holding.
    Response,
}

/// What happens to a request whose lease is lost while it is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnLost {
    /// The handler is dropped where it stands and the caller answered 503; a body under way ends
    /// with an error.
    Abort,
    /// It goes on. The handler can see the loss through [`Held`](super::Held).
    Continue,
}

/// How a mutex that is held answers a request that does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LockedStatus {
    /// 409 Conflict.
    #[default]
    Conflict,
    /// 423 Locked, of WebDAV (RFC 4918).
    Locked,
}
