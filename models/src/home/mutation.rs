//! The rules of permits at home that a run may leave out, to show that each of them is needed.

/// One rule broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// H1: the server takes an idle permit for a waiter.
    ServerTakesIdle,
    /// H1: a permit whose `end` was sent serves another request.
    ReuseAfterEnd,
    /// H2: passes go on while others wait.
    PassesWithoutBound,
    /// H2: while others wait, passes are bounded by time alone.
    PassesWithoutCount,
    /// H2: while others wait, passes are bounded in number alone.
    PassesWithoutTime,
    /// H2: a permit is reused however little of its lease is left.
    ReuseOfAnEndingLease,
    /// H4: any word is believed, however old.
    NoStamp,
    /// H4, H5: an answer to a question counts by its stamp alone.
    StampsAlone,
    /// H5: nobody asks.
    NoQuestion,
    /// H6: a grant counts from its receipt.
    LateGrantUsed,
    /// H6: a seeker that is queued counts as a permit.
    WaiterIsHolder,
    /// H7: idle permits are kept for good.
    NoLinger,
    /// H8: permits are handed on after an `end` was answered "gone".
    NoRecheck,
    /// H8: a permit in use is passed on all the same.
    PassBeforeRecheck,
    /// H8: any answer to a question will do, also one to a question from before.
    OldRecheckBelieved,
    /// Only one of the processes that hold is told.
    RecallOfOne,
}
