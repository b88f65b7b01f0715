//! A grant from its answer or its push to the hand-over: what it is surely worth, and whether that
//! is enough.

use std::time::Duration;

use super::{Core, Entry};
use crate::backend::server::reply::Failure;
use crate::error::{BackendError, BackendErrorKind};
use crate::lease::Lease;
use crate::time::Instant;
use crate::token::{FencingToken, Token};

impl Core {
    /// A claim was pushed to the inbox.
    pub(super) fn granted(
        &mut self,
        now: Instant,
        token: Token,
        fence: FencingToken,
        left: Duration,
    ) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        // A push from before the newest "queued" tells of a grant that is over. And nothing was
        // granted before we asked.
        let (Some(asked), false) = (
            waiter.asked,
            waiter.queued.is_some_and(|stamp| fence.get() <= stamp),
        ) else {
            return;
        };
        if waiter
            .claim
            .max(waiter.over)
            .is_some_and(|known| known >= fence)
        {
            return;
        }
        // Not dated from its receipt: it may have been under way for long.
        let before = self
            .tags
            .get(&waiter.request.resource.tag)
            .and_then(|state| state.stamps.before(fence.get()));
        let since = before.map_or(asked, |before| before.max(asked));
        let deadline = waiter.request.terms.until(since, left);
        self.take_grant(now, token, fence, deadline, false);
        self.schedule(token);
    }

    /// Hands a grant over, or has it confirmed first: where replicas have to have it, or where too
    /// little of it is surely left.
    pub(super) fn take_grant(
        &mut self,
        now: Instant,
        token: Token,
        fence: FencingToken,
        deadline: Instant,
        whole: bool,
    ) {
        if self.settings.replicas.is_none() {
            self.hand_over(now, token, fence, deadline, whole);
        } else if let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token)
            // Else it is under way.
            && waiter.claim != Some(fence)
        {
            waiter.claim = Some(fence);
            self.acknowledge(now, token);
        }
    }

    /// Hands a grant over that replicas need not have, or have; or has it confirmed first.
    fn hand_over(
        &mut self,
        now: Instant,
        token: Token,
        fence: FencingToken,
        deadline: Instant,
        whole: bool,
    ) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let enough = waiter.request.terms.claim() / 4;
        if whole && deadline <= now {
            waiter.claim = Some(fence);
            let gate = &waiter.request.resource.gate;
            let text = format!(
                "acquiring `{gate}`: the lease was over before its answer came; its TTL is below the round trip"
            );
            self.leave(
                now,
                token,
                Err(BackendError::new(BackendErrorKind::TimedOut, text, None).into()),
            );
        } else if whole || deadline.since(now) >= enough {
            self.hold(now, token, fence, deadline, whole);
        } else {
            waiter.claim = Some(fence);
            self.confirm(now, token);
        }
    }

    /// Sends the renewal that confirms a grant.
    pub(super) fn confirm(&mut self, now: Instant, token: Token) {
        let timeout = self.settings.command_timeout;
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        let Some(fence) = waiter.claim else { return };
        waiter.retry_at = if waiter.acknowledge_by == Instant::FAR {
            now.after(timeout)
        } else {
            // Whoever acknowledges answers in any case.
            Instant::FAR
        };
        let (resource, lease) = (
            waiter.request.resource.clone(),
            waiter.request.terms.lease(),
        );
        self.renew_one(now, token, &resource, fence, lease);
    }

    /// The answer to the renewal that was to confirm a grant: how long it is worth, or that it is
    /// over.
    pub(super) fn confirmed(
        &mut self,
        now: Instant,
        token: Token,
        fence: FencingToken,
        deadline: Option<Instant>,
    ) {
        let Some(Entry::Waiting(waiter)) = self.entries.get_mut(&token) else {
            return;
        };
        if waiter.claim != Some(fence) {
            return;
        }
        waiter.claim = None;
        waiter.acknowledge_by = Instant::FAR;
        match deadline {
            Some(deadline) => self.hand_over(now, token, fence, deadline, true),
            // Whoever is asked for replicas may be another server than who granted it, for as long
            // as a failover goes on: the same grant may be told of again, and there is no hurry.
            None if self.settings.replicas.is_some() => {
                waiter.retry_later(now, token, &Failure::Unknown(None));
            }
            None => {
                waiter.over = Some(fence);
                self.ask(now, token);
            }
        }
        self.schedule(token);
    }

    /// Makes the caller a holder.
    fn hold(
        &mut self,
        now: Instant,
        token: Token,
        fence: FencingToken,
        deadline: Instant,
        whole: bool,
    ) {
        let Some(waiter) = self.take_waiter(token) else {
            return;
        };
        let state = self.start_holding(
            now,
            token,
            waiter.timer,
            &waiter.request,
            waiter.open,
            fence,
            deadline,
            whole,
        );
        // A caller that has gone meanwhile drops the lease right here, which queues its release.
        let _ = waiter.answer.send(Ok(Lease::shared(waiter.place, state)));
    }
}
