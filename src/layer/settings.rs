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

/// What happens to requests while the server is away: it can't be reached, does not answer, or says
/// that it can't serve.
///
/// A server that serves and says no is no outage: rights that are missing, or something else under
/// a gate's key, are answered 503 under every policy. Who stands in the server's queue when it goes
/// away keeps its place under every policy, and falls under it when its `max_wait` is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnOutage {
    /// They wait for it as long as they wait for their turn, counted from the beginning of the
    /// outage at the latest, and then are answered 503. So an outage that is shorter than `max_wait`
    /// is not seen, and in a longer one nobody waits in vain.
    #[default]
    Refuse,
    /// They are let through at once, as if there were no gate: as many as come.
    Allow,
    /// So many are let through at once by this process, counted for each key, and the others wait
    /// here for their turn: the fleet's limit divided by the number of its processes, say. A request
    /// that asks for more permits than that takes all of them.
    ///
    /// Of a rate limit it is so many units in the shortest window among its quotas, and as much less
    /// of the others and of a burst, never more than the quotas themselves: with 5 per second and 100
    /// per day, `Local(2)` is 2 per second and 40 per day, for each key and process. Who is refused so
    /// is told to come back in a second, when the server may be there again.
    Local(u32),
}
