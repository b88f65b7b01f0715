//! How one acquisition stands at one server.

use crate::backend::quorum::reply::Crowd;
use crate::backend::server::core::Open;
use crate::backend::server::reply::Failure;
use crate::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Vote {
    pub(super) stand: Stand,
    pub(super) open: Open,
    /// It has waited there at some time, or may have. That it does so no longer no answer says for
    /// good: the server may refuse what it is asked later, or be replaced by one that lacks what came
    /// last, and has the place again.
    pub(super) placed: bool,
    /// The sending of the request under way.
    pub(super) asked: Option<Instant>,
    /// To be asked for when the server has room.
    pub(super) lined: bool,
    /// To be asked again when the answer is there, because something changed meanwhile.
    pub(super) again: bool,
}

#[derive(Debug, Default)]
pub(super) enum Stand {
    #[default]
    Unasked,
    Failed(Box<Failure>),
    Busy(Seen),
    Full(Seen),
    Queued(Seen),
    Held(Grant),
}

/// Who stood in the way, when that was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) sent: Instant,
    pub(super) crowd: Crowd,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) fence: u64,
    pub(super) sent: Instant,
    /// Until when this server surely holds it.
    pub(super) deadline: Instant,
}

impl Vote {
    pub(super) fn none(servers: usize) -> Box<[Self]> {
        (0..servers).map(|_| Self::default()).collect()
    }

    /// The grant, while it lasts.
    pub(super) fn grant(&self, now: Instant) -> Option<Grant> {
        match self.stand {
            Stand::Held(grant) if now < grant.deadline => Some(grant),
            _ => None,
        }
    }

    pub(super) fn seen(&self) -> Option<Seen> {
        match self.stand {
            Stand::Busy(seen) | Stand::Full(seen) | Stand::Queued(seen) => Some(seen),
            Stand::Unasked | Stand::Failed(_) | Stand::Held(_) => None,
        }
    }

    /// Whether the server may have something of it that has to be ended.
    pub(super) fn is_left(&self) -> bool {
        self.placed || self.may_hold()
    }

    /// Whether the server may have its lease.
    pub(super) fn may_hold(&self) -> bool {
        matches!(self.stand, Stand::Held(_)) || self.open.latest_ms > 0
    }
}

/// The fence that `needed` servers have drawn or taken over.
pub(super) fn agreed(grants: &[Grant], needed: usize) -> Option<u64> {
    let votes = |fence| grants.iter().filter(|grant| grant.fence == fence).count();
    let mut fences = grants.iter().map(|grant| grant.fence);
    fences.find(|&fence| votes(fence) >= needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_agreed_on_when_as_many_as_needed_have_it() {
        let grants = |fences: &[u64]| -> Vec<Grant> {
            let grant = |&fence: &u64| Grant {
                fence,
                sent: Instant::from_nanos(0),
                deadline: Instant::FAR,
            };
            fences.iter().map(grant).collect()
        };
        assert_eq!(agreed(&grants(&[5, 5, 6]), 3), None);
        assert_eq!(agreed(&grants(&[5, 6, 5, 5]), 3), Some(5));
        assert_eq!(agreed(&[], 1), None);
    }
}
