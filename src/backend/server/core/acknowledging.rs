//! Grants and renewals that count only when replicas have them.
//!
//! Each is a renewal over a connection of its own, behind which the server is asked to wait for its
//! replicas. The renewal shows on that very server that the grant stands, so it does not matter by
//! whom it was written, or over which connection; and what replicas then have, they have after all
//! that was written before. A deadline grows only by what was acknowledged: else a replica that is
//! promoted would let others in while a holder believes in the rest.

use redis::Value;

use super::{Core, Entry};
use crate::backend::server::advice;
use crate::backend::server::call::{Body, Call, Renew};
use crate::backend::server::reply::{self, Failure, Renewed};
use crate::backend::shutdown::Closing;
use crate::error::{BackendError, BackendErrorKind};
use crate::time::Instant;
use crate::token::{FencingToken, Token};

impl Core {
    /// Has replicas acknowledge the grant of a waiter, for as long as that may take.
    pub(super) fn acknowledge(&mut self, now: Instant, token: Token) {
        let Some(replicas) = self.settings.replicas else {
            return;
        };
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let limit = replicas.patience + self.settings.command_timeout;
        waiter.acknowledge_by = now.after(limit);
        waiter.attempts = 0;
        waiter.trouble = None;
        self.confirm(now, token);
        self.schedule(token);
    }

    /// A renewal was answered, and then so many replicas had it.
    pub(in crate::backend::server) fn acknowledged(
        &mut self,
        now: Instant,
        call: Call,
        result: Result<Value, Failure>,
        replicas: u32,
    ) {
        let Body::Renew(renew) = call.body else {
            return;
        };
        let least = self.settings.replicas.map_or(0, |replicas| replicas.least);
        let link = self.link_of(renew.tag);
        let result = self.decode(now, link, result, reply::renewed);
        match result {
            Ok(answer) if replicas < least => {
                let (stamp, entries) = answer;
                self.stamped(renew.tag, stamp, call.sent);
                self.too_few(now, call.sent, &renew, &entries, replicas);
            }
            Err(failure) => self.unsaid(now, call.sent, &renew, &failure),
            Ok(answer) => self.renewed(now, call.sent, &renew, Ok(answer)),
        }
        self.settle_shutdown(now);
    }

    /// The server renewed, and too few replicas have that. What it says is over is over.
    fn too_few(
        &mut self,
        now: Instant,
        sent: Instant,
        renew: &Renew,
        entries: &[Renewed],
        replicas: u32,
    ) {
        for (index, lease) in renew.leases.iter().enumerate() {
            let entry = entries.get(index).copied();
            let over = entry.filter(|entry| !matches!(entry, Renewed::Left(_)));
            if over.is_none() && self.is_acknowledged_for(lease.token, lease.fence) {
                self.refuse_unacknowledged(now, lease.token, replicas);
            } else {
                // Of a holder: as if it had not been answered, so the lease runs on.
                self.lease_renewed(now, sent, lease.token, lease.fence, over);
            }
        }
    }

    /// The server did not renew, or could not be asked to wait for its replicas.
    fn unsaid(&mut self, now: Instant, sent: Instant, renew: &Renew, failure: &Failure) {
        for lease in &renew.leases {
            if !self.is_acknowledged_for(lease.token, lease.fence) {
                self.lease_renewed(now, sent, lease.token, lease.fence, None);
                continue;
            }
            let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&lease.token) else {
                continue;
            };
            if matches!(failure, Failure::Final(..)) {
                let error = self.waiter_error(now, lease.token, Some(failure));
                self.leave(now, lease.token, Err(error.into()));
            } else {
                waiter.trouble = Some(Box::new(failure.clone()));
                waiter.retry_later(now, lease.token, failure);
                self.schedule(lease.token);
            }
        }
    }

    /// Whether a waiter's grant waits for this.
    fn is_acknowledged_for(&self, token: Token, fence: FencingToken) -> bool {
        matches!(self.entries.get(&token), Some(Entry::Waiting(waiter)) if waiter.claim == Some(fence))
    }

    /// Gives a grant back of which too few replicas know.
    fn refuse_unacknowledged(&mut self, now: Instant, token: Token, replicas: u32) {
        let least = self.settings.replicas.map_or(0, |replicas| replicas.least);
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return;
        };
        let what = advice::on_too_few(replicas, least);
        let text = waiter.progress(now).told("answered", &what);
        let error = BackendError::new(BackendErrorKind::Refused, text, None);
        self.leave(now, token, Err(error.into()));
    }

    /// The timer of a waiter fired whose grant is to be acknowledged.
    pub(super) fn acknowledgement_due(&mut self, now: Instant, token: Token) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        if now >= waiter.acknowledge_by {
            let failure = waiter.trouble.take();
            let failure = failure.map_or(Failure::Unknown(None), |failure| *failure);
            let error = self.waiter_error(now, token, Some(&failure));
            self.leave(now, token, Err(error.into()));
        } else if now >= waiter.retry_at {
            self.confirm(now, token);
        }
    }
}
