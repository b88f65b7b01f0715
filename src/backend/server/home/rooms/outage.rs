//! What those who wait here are told when the server has not answered for them, or has said no.

use super::{Effects, Rooms, Waiter};
use crate::backend::Wait;
use crate::backend::server::core::retry_in;
use crate::error::{BackendError, BackendErrorKind, LockError, RefusalKind};
use crate::time::Instant;

impl Rooms {
    /// The server has said a word.
    pub(in crate::backend::server::home) fn is_back(&mut self) {
        self.trouble = None;
        self.away = false;
        self.attempts = 0;
    }

    /// Nothing is served.
    pub(in crate::backend::server::home) fn away(&mut self, now: Instant, cause: &BackendError) {
        if !self.away {
            self.fails(now, cause);
            self.let_the_urgent_ask();
        }
    }

    fn fails(&mut self, now: Instant, cause: &BackendError) {
        self.trouble = Some(cause.clone());
        self.retry_at = now.after(retry_in(self.attempts, 128));
        self.attempts = self.attempts.saturating_add(1);
    }

    /// Who has an answer of its own hears from the core when it is time for that.
    fn let_the_urgent_ask(&mut self) {
        self.away = true;
        let urgent = |(id, waiter): (u64, &Waiter)| waiter.terms.bridge.map(|_| id);
        let urgent: Vec<u64> = self.waiting.iter().filter_map(urgent).collect();
        for id in urgent {
            self.ask_alone(id);
        }
    }

    /// Whom a seeker that found no server before its time was over leaves nothing to hope for: who has no
    /// end to its own wait and waits for as long as the seeker, and who has waited. Who has time goes on
    /// hoping.
    fn hopeless(&mut self, started: Instant) -> Vec<u64> {
        let hopeless = |(id, waiter): (u64, &Waiter)| {
            let as_long = waiter.terms.wait == Wait::Unbounded
                && waiter.since <= started
                && !self.tries.contains(&id);
            (as_long || self.overdue.contains(&id)).then_some(id)
        };
        let hopeless = self.waiting.iter().filter_map(hopeless).collect();
        self.let_the_urgent_ask();
        hopeless
    }

    /// All whom an answer concerns that no time will mend.
    fn all_since(&self, started: Instant, tries: Option<u64>) -> Vec<u64> {
        let concerned = |(id, waiter): (u64, &Waiter)| {
            let concerned = waiter.since <= started
                || waiter.terms.bridge.is_some()
                || self.overdue.contains(&id)
                || Some(id) == tries;
            concerned.then_some(id)
        };
        self.waiting.iter().filter_map(concerned).collect()
    }

    /// A seeker came back with nothing.
    pub(in crate::backend::server::home) fn returned(
        &mut self,
        now: Instant,
        error: LockError,
        tries: Option<u64>,
        started: Instant,
    ) -> Effects {
        let mut effects = Effects::default();
        self.sought(tries);
        if let LockError::Refused(_) = error {
            self.is_back();
        }
        let concerned: Vec<u64> = match (&error, tries) {
            (LockError::Refused(refusal), None) if refusal.kind() == RefusalKind::ShuttingDown => {
                self.waiting.iter().map(|(id, _)| id).collect()
            }
            (LockError::Refused(_), None) => {
                self.first_sought().map(|(id, _)| id).into_iter().collect()
            }
            // Unless it has been served meanwhile.
            (LockError::Refused(_), Some(id)) => {
                self.reach = self.limit.max(self.permits.held());
                vec![id]
            }
            (LockError::Backend(cause), tries) => {
                self.fails(now, cause);
                let passes = matches!(
                    cause.kind(),
                    BackendErrorKind::Unreachable
                        | BackendErrorKind::TimedOut
                        | BackendErrorKind::ServerBusy
                        | BackendErrorKind::NotServing
                );
                match tries {
                    // Others have another time, and another answer.
                    Some(id) if passes => vec![id],
                    None if passes => self.hopeless(started),
                    _ => self.all_since(started, tries),
                }
            }
        };
        for id in concerned {
            if let Some(waiter) = self.forget(id) {
                let told = waiter.in_its_words(&error);
                effects.told.push((waiter.answer, Err(told)));
            }
        }
        effects
    }
}
