//! The rules that a run of the model may leave out, to show that each of them is needed.

/// One rule broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// R7: an answer "held" is dated with the whole TTL instead of what remains.
    TtlFromResend,
    /// R2: `end` leaves no tombstone.
    NoTombstone,
    /// R3: an acquire carries no `latest`, so a tombstone can be outlived.
    NoLatest,
    /// R3: a re-run does not look for a tombstone.
    RerunIgnoresTombstone,
    /// R16: a heartbeat extends what its process holds without naming it.
    HeartbeatExtendsClaim,
    /// R19: a claim that nobody renewed leaves no suspect mark.
    NoSuspectMark,
    /// R19: a script clears its caller's mark before it purges.
    MarkClearedBeforePurge,
    /// R11: `end` of a mere queue entry does not grant.
    EndWithoutGrant,
    /// R11, R14: the first run of an acquire only looks whether it is alone.
    AcquireWithoutGrant,
    /// R11: a re-run reports, but does not grant.
    RerunWithoutGrant,
    /// R17: waiters are re-run before the subscription is confirmed.
    RerunBeforeSubscription,
    /// R6: a holder believes "gone" about an earlier fence.
    OldGoneBelieved,
    /// R6: a holder believes a late "queued".
    OldQueuedBelieved,
    /// R6: a waiter believes a push older than its newest "queued".
    OldPushBelieved,
    /// R6: a holder takes "held" with a lower fence for a loss.
    OldHeldBelieved,
    /// R10: a late answer is applied before the deadline is looked at.
    LateAnswerRevives,
    /// R5: fences come from a plain INCR.
    FenceByIncr,
    /// R18: a token re-enters the queue with a new ticket.
    NewTicketOnReentry,
    /// R9: a renewal writes its expiry even when that is earlier.
    ShorteningRenewal,
    /// R8: a push is dated from its receipt.
    PushFromReceipt,
    /// R8: the observations before a grant are told by the server's time instead of a mark.
    PushByServerTime,
    /// R8: a push is dated from the newest observation, though it ran after the grant.
    PushFromNewestObservation,
    /// `end` removes whoever holds.
    NoOwnerCheck,
    /// A script takes the time from its caller.
    ClientClock,
    /// The pump re-runs the waiter that was registered first.
    PumpByRegistration,
    /// Only the first local waiter is re-run, even when the server had forgotten it.
    ReentryAlone,
    /// A client that re-sends by itself is treated as if its answered commands were over.
    ResendsForgotten,
    /// R18: a re-entry while the inbox is out counts as the one with the old ticket.
    TicketSpentInOutage,
}
