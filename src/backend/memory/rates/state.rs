//! What is kept of one subject, and how a call changes it: the arithmetic of the scripts in
//! `src/lua/rate`, for memory, and as the model that the scripts are tested against.
//!
//! All times are whole microseconds of one clock, which may be set back.
//!
//! # Invariants
//!
//! 1. A call that does not fit changes nothing; only a clock that was set back is noted then.
//! 2. Nothing is used at an earlier moment than what was used before: what is booked is never
//!    overtaken.
//! 3. A quota that was changed counts in the smaller of both scales (the faster rate, the shorter
//!    window) until something is used by it, as if it had been so since the last use. So it does not
//!    depend on who has asked in between, and what is kept lasts as long as it counts.

use super::gcra::Gcra;
use super::sliding::Sliding;
use super::strict::Strict;
use crate::backend::{Level, Op};
use crate::rate_limit::{Id, Method, Rule};
use std::time::Duration;

/// What one subject has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    /// When this was written.
    at: u64,
    /// The last turn that was booked, if it is yet to come.
    booked: u64,
    quotas: Vec<(Id, Kept)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kept {
    Gcra(Gcra),
    Sliding(Sliding),
    Strict(Strict),
}

/// A moment that is far, and far below 2^53.
pub(crate) const FAR_US: u64 = 4_000_000_000_000_000;

/// What a call has come to.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) admitted: bool,
    /// How long what was booked is away, in microseconds.
    pub(crate) wait: u64,
    pub(crate) levels: Box<[Level]>,
    pub(crate) change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    Write(State),
    Remove,
}

impl Kept {
    const fn new(rule: &Rule, now: u64) -> Self {
        match rule.method {
            Method::Gcra => Self::Gcra(Gcra::new(now, rule.scale_us)),
            Method::Sliding => Self::Sliding(Sliding::new(now, rule.scale_us)),
            Method::Strict => Self::Strict(Strict::new(rule.scale_us)),
        }
    }

    const fn is_by(&self, method: Method) -> bool {
        matches!(
            (self, method),
            (Self::Gcra(_), Method::Gcra)
                | (Self::Sliding(_), Method::Sliding)
                | (Self::Strict(_), Method::Strict)
        )
    }

    const fn scale(&self) -> u64 {
        match self {
            Self::Gcra(gcra) => gcra.interval,
            Self::Sliding(sliding) => sliding.window,
            Self::Strict(strict) => strict.window,
        }
    }

    /// Counts in another scale, from what counted at `at` on.
    fn rescale(&mut self, at: u64, scale: u64) {
        match self {
            Self::Gcra(gcra) => gcra.rescale(at, scale),
            Self::Sliding(sliding) => sliding.rescale(scale),
            Self::Strict(strict) => strict.window = scale,
        }
    }

    fn earliest(&self, now: u64, capacity: u64, cost: u64) -> u64 {
        match self {
            Self::Gcra(gcra) => gcra.earliest(now, capacity, cost),
            Self::Sliding(sliding) => sliding.earliest(now, capacity, cost),
            Self::Strict(strict) => strict.earliest(now, capacity, cost),
        }
    }

    fn take(&mut self, when: u64, cost: u64) {
        match self {
            Self::Gcra(gcra) => gcra.take(when, cost),
            Self::Sliding(sliding) => sliding.take(when, cost),
            Self::Strict(strict) => strict.take(when, cost),
        }
    }

    fn debit(&mut self, when: u64, capacity: u64, cost: u64) {
        match self {
            Self::Gcra(gcra) => gcra.debit(when, capacity, cost),
            Self::Sliding(sliding) => sliding.debit(when, capacity, cost),
            Self::Strict(strict) => strict.debit(when, capacity, cost),
        }
    }

    fn refund(&mut self, now: u64, cost: u64) {
        match self {
            Self::Gcra(gcra) => gcra.refund(cost),
            Self::Sliding(sliding) => sliding.refund(now, cost),
            Self::Strict(strict) => strict.refund(now, cost),
        }
    }

    fn remaining(&self, now: u64, capacity: u64) -> u64 {
        match self {
            Self::Gcra(gcra) => gcra.remaining(now, capacity),
            Self::Sliding(sliding) => sliding.remaining(now, capacity),
            Self::Strict(strict) => strict.remaining(now, capacity),
        }
    }

    fn ends(&self) -> u64 {
        match self {
            Self::Gcra(gcra) => gcra.drained,
            Self::Sliding(sliding) => sliding.ends(),
            Self::Strict(strict) => strict.ends(),
        }
    }

    fn set_back(&mut self, by: u64) {
        match self {
            Self::Gcra(gcra) => gcra.set_back(by),
            Self::Sliding(sliding) => sliding.set_back(by),
            Self::Strict(strict) => strict.set_back(by),
        }
    }
}

/// One quota during a call.
struct Turn<'a> {
    rule: &'a Rule,
    kept: Kept,
    /// When the cost fits, if ever.
    earliest: Option<u64>,
    /// It took part in what was admitted.
    used: bool,
}

impl State {
    const fn new(now: u64) -> Self {
        Self {
            at: now,
            booked: 0,
            quotas: Vec::new(),
        }
    }

    /// When it says nothing any more.
    pub(crate) fn ends(&self) -> u64 {
        let ends = self.quotas.iter().map(|(_, kept)| kept.ends());
        ends.max().unwrap_or(0)
    }

    /// The server's clock was set back: the same as before, from here on.
    fn set_back(&mut self, now: u64) -> bool {
        let by = self.at.saturating_sub(now);
        if by > 0 {
            for (_, kept) in &mut self.quotas {
                kept.set_back(by);
            }
            self.booked = self.booked.saturating_sub(by);
            self.at = now;
        }
        by > 0
    }

    /// As it stands for a rule, in the smaller of both scales.
    fn view(&self, rule: &Rule, now: u64) -> Kept {
        let found = self
            .quotas
            .iter()
            .find(|(id, kept)| *id == rule.id && kept.is_by(rule.method));
        let Some((_, kept)) = found else {
            return Kept::new(rule, now);
        };
        let mut kept = kept.clone();
        if rule.scale_us < kept.scale() {
            // What is booked can't come back before it was used.
            kept.rescale(self.at.max(self.booked), rule.scale_us);
        }
        kept
    }

    /// What is to be kept after `turns`, and of quotas that only others have.
    fn written(&self, now: u64, booked: u64, turns: &[Turn<'_>]) -> Change {
        let strange = |(id, kept): &&(Id, Kept)| {
            turns.iter().all(|turn| turn.rule.id != *id) && kept.ends() > now
        };
        let own = turns
            .iter()
            .map(|turn| (turn.rule.id.clone(), turn.kept.clone()));
        let quotas = own.chain(self.quotas.iter().filter(strange).cloned());
        Self {
            at: now,
            booked,
            quotas: quotas.collect(),
        }
        .or_nothing(now)
    }

    fn or_nothing(self, now: u64) -> Change {
        if self.ends() > now {
            Change::Write(self)
        } else {
            Change::Remove
        }
    }

    /// A booking is given back: if nothing was written after it, all is as it was before.
    pub(crate) fn unbook(
        current: Option<&Self>,
        before: Option<Self>,
        after: &Self,
        now: u64,
    ) -> Change {
        if current != Some(after) {
            return Change::None;
        }
        before.map_or(Change::Remove, |before| before.or_nothing(now))
    }
}

/// Decides one call.
pub(crate) fn decide(kept: Option<&State>, now: u64, op: Op, cost: u32, rules: &[Rule]) -> Outcome {
    let cost = u64::from(cost);
    let mut state = kept.cloned().unwrap_or_else(|| State::new(now));
    let stepped = state.set_back(now);
    if op == Op::Reset {
        state = State::new(now);
    }
    let mut turns: Vec<Turn<'_>> = Vec::with_capacity(rules.len());
    // All-shadow rules may meet what others have booked.
    let pending = state.booked > now;
    let mut when = now;
    for rule in rules {
        let kept = state.view(rule, now);
        let capacity = u64::from(rule.capacity);
        let earliest =
            (cost <= capacity).then(|| kept.earliest(now, capacity, cost).max(state.booked));
        if !rule.shadow {
            when = when.max(earliest.unwrap_or(FAR_US));
        }
        turns.push(Turn {
            rule,
            kept,
            earliest,
            used: false,
        });
    }
    let (admitted, asks) = match op {
        Op::Check | Op::Peek => (when == now, true),
        Op::Book(max_wait) => (u128::from(when - now) <= max_wait.as_micros(), true),
        Op::Refund | Op::Debit | Op::Reset => (true, false),
    };
    let used_at = when.max(state.booked);
    let mut booked = state.booked;
    let writes = match op {
        Op::Check | Op::Book(_) if admitted => {
            for turn in &mut turns {
                turn.used = turn.earliest.is_some_and(|earliest| earliest <= used_at);
                if turn.used {
                    turn.kept.take(used_at, cost);
                }
            }
            booked = used_at;
            true
        }
        Op::Check | Op::Book(_) | Op::Peek | Op::Reset => false,
        Op::Refund => {
            if !pending {
                for turn in &mut turns {
                    turn.kept.refund(now, cost);
                }
            }
            !pending && kept.is_some()
        }
        Op::Debit => {
            for turn in &mut turns {
                let capacity = u64::from(turn.rule.capacity);
                turn.kept.debit(now.max(state.booked), capacity, cost);
            }
            true
        }
    };
    let change = if writes {
        for turn in &mut turns {
            turn.kept.rescale(now.max(booked), turn.rule.scale_us);
        }
        state.written(now, booked, &turns)
    } else if op == Op::Reset && kept.is_some() {
        Change::Remove
    } else if stepped && op != Op::Reset {
        state.or_nothing(now)
    } else {
        Change::None
    };
    let level = |turn: &Turn<'_>| turn.level(now, booked > now, asks && !(writes && turn.used));
    Outcome {
        admitted,
        wait: if writes && asks { when - now } else { 0 },
        levels: turns.iter().map(level).collect(),
        change,
    }
}

impl Turn<'_> {
    fn level(&self, now: u64, pending: bool, refusable: bool) -> Level {
        let remaining = self.kept.remaining(now, u64::from(self.rule.capacity));
        let retry_after = self.earliest.map_or(Some(Duration::MAX), |earliest| {
            (earliest > now).then(|| Duration::from_micros(earliest - now))
        });
        Level {
            // What is booked is not overtaken.
            remaining: if pending {
                0
            } else {
                u32::try_from(remaining).unwrap_or(u32::MAX)
            },
            reset_after: Duration::from_micros(self.kept.ends().saturating_sub(now)),
            retry_after: retry_after.filter(|_| refusable),
        }
    }
}
