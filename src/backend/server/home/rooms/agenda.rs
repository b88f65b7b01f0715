//! What is due in one home, and when: seekers, questions, the ends of waits and of idle permits.

use std::time::Duration;

use super::{Effects, Permit, QUESTION, Rooms, Rouse, Start, Turn};
use crate::backend::{Terms, Wait};
use crate::error::RefusalKind;
use crate::time::Instant;

/// How long a seeker that nobody here needs any more is left in the queue, for who comes next.
pub(super) const SURPLUS: Duration = Duration::from_millis(50);

impl Rooms {
    /// Whether the agent is needed before it looks by itself.
    pub(in crate::backend::server::home) fn rouse(&mut self, now: Instant) -> Rouse {
        let due = self.due(now);
        self.rouse_by(now, due)
    }

    pub(super) fn rouse_by(&mut self, now: Instant, due: Instant) -> Rouse {
        if self.attended {
            if due < self.wake_at {
                self.wake_at = due;
                return Rouse::Wake;
            }
        } else if !self.is_empty() {
            self.attended = true;
            self.wake_at = now;
            return Rouse::Attend;
        }
        Rouse::Rest
    }

    fn is_empty(&self) -> bool {
        self.permits.held() == 0
            && self.leaving.is_empty()
            && self.waiting.is_empty()
            && self.seeking == 0
    }

    /// How many more acquires are to be under way for those who wait.
    fn missing(&self) -> u32 {
        let waiting = u32::try_from(self.waiting.len() - self.tries.len()).unwrap_or(u32::MAX);
        let useful = self.reach.saturating_sub(self.permits.held()).max(1);
        waiting.min(useful).saturating_sub(self.seeking)
    }

    /// Whether the agent's next turn seeks a permit for those who wait.
    pub(super) fn seeks(&self, now: Instant) -> bool {
        self.missing() > 0 && now >= self.retry_at
    }

    /// Something is about to be kept: questions begin.
    pub(super) fn begin_to_keep(&mut self, now: Instant) {
        if !self.permits.keeps() && self.doubted.is_none() {
            self.asked = now;
        }
    }

    /// When the next question is due. A word that others wait spares it: what is kept is passed on for a
    /// turn only then, and its end shows what the server has forgotten.
    fn ask_at(&self) -> Instant {
        if self.permits.held() == 0 || self.asking.is_some() {
            return Instant::FAR;
        }
        let known = match self.doubted {
            Some(_) => Instant::from_nanos(0),
            None if self.permits.keeps() => self.others.known_until(),
            // It is just held, by who asked for it: many are, for long.
            None => self.others.stale_at(),
        };
        self.asked.after(QUESTION).max(known)
    }

    /// When there is something to be done next.
    fn due(&self, now: Instant) -> Instant {
        let mut due = Instant::FAR;
        if self.missing() > 0 {
            due = self.retry_at;
        }
        if !self.untried.is_empty() || !self.leaving.is_empty() {
            due = now;
        }
        if let Some((_, since)) = self.permits.oldest_idle() {
            due = due.min(since.after(self.keep.linger));
        }
        if let Some(end) = self.ends.first() {
            due = due.min(end);
        }
        due = due.min(self.ask_at());
        if self.seeking + self.trying > 0 && self.waiting.is_empty() {
            due = due.min(self.surplus.unwrap_or(now).after(SURPLUS));
        }
        due.max(now)
    }

    /// All that is due, and when to look again.
    pub(in crate::backend::server::home) fn turn(&mut self, now: Instant) -> (Turn, Effects) {
        let (mut turn, mut effects) = (Turn::default(), Effects::default());
        effects.ended.extend(self.leaving.drain(..));
        self.sweep(&mut effects);
        while let Some((slot, since)) = self.permits.oldest_idle() {
            let old = now >= since.after(self.keep.linger);
            let lasts = |permit: &Permit| permit.lasts(now);
            if !old && self.permits.get(slot).is_some_and(lasts) {
                break;
            }
            self.tally.lingered += 1;
            self.end(slot, None, &mut effects);
        }
        while let Some(id) = self.ends.pop(now) {
            let open = if self.away {
                self.tries.contains(&id)
            } else {
                !self.queued && self.permits.held() < self.reach
            };
            if open {
                // There may be one for it. So it is refused when the server has said that there is none: it
                // asks, and so is not kept for longer than who has asked by itself from the beginning.
                self.overdue.insert(id);
                self.ask_alone(id);
                continue;
            }
            let Some(waiter) = self.forget(id) else {
                continue;
            };
            match &self.trouble {
                Some(cause) if self.away => {
                    let told = Err(cause.clone().into());
                    effects.told.push((waiter.answer, told));
                }
                _ => {
                    let refusal = self.refusal(now, RefusalKind::WaitedTooLong);
                    effects.refuse(waiter, refusal);
                }
            }
        }
        self.seek(now, &mut turn);
        if now >= self.ask_at() {
            self.asked = now;
            self.asking = Some(now);
            turn.question = Some(self.permits.some_tokens());
        }
        if self.is_empty() {
            // Nobody is left whom anything under way is for: it ends with the agent.
            self.trying = 0;
            self.attended = false;
            self.wake_at = Instant::FAR;
        } else {
            self.wake_at = self.due(now);
            // At least every second: timers stand still while a machine is suspended.
            turn.rest = Some(self.wake_at.since(now).min(Duration::from_secs(1)));
        }
        (turn, effects)
    }

    /// Lets as many acquires be under way as are needed.
    fn seek(&mut self, now: Instant, turn: &mut Turn) {
        let kept = self.keep.told();
        for id in std::mem::take(&mut self.untried) {
            if let Some(waiter) = self.waiting.get(id) {
                let terms = Terms {
                    kept,
                    ..waiter.own_terms(now)
                };
                let tries = Some(id);
                turn.start.push(Start { terms, tries });
                self.trying += 1;
            }
        }
        if self.seeks(now)
            && let Some((_, first)) = self.first_sought()
        {
            let missing = self.missing();
            // Whoever comes next goes on where one who leaves stood, and hopes for what it likes.
            let terms = Terms {
                wait: Wait::Unbounded,
                bridge: None,
                kept,
                ..first.terms
            };
            let start = || Start { terms, tries: None };
            turn.start
                .extend(std::iter::repeat_with(start).take(missing as usize));
            self.seeking += missing;
        }
        if self.seeking + self.trying == 0 || !self.waiting.is_empty() {
            self.surplus = None;
        } else if now >= self.surplus.get_or_insert(now).after(SURPLUS) || self.closed {
            turn.stop = true;
            self.seeking = 0;
            self.trying = 0;
            self.queued = false;
            self.surplus = None;
        }
    }
}
