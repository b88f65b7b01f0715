//! What the scripts promise, as a plain program over plain collections.
//!
//! It knows nothing of keys, texts and their lifetimes. It counts what is held by adding up the
//! holders, each time, where the scripts keep a sum; it keeps the queue in a sorted map where they
//! keep a ZSET.

use std::collections::{BTreeMap, BTreeSet};

use super::rig::Ask;
use crate::key::Kind;

pub(super) const CLAIM_MS: u64 = 3_000;
const WAIT_MS: u64 = 86_400_000;
const SAID_MS: u64 = 300;
const MAX_DROPPED: usize = 64;
const MAX_SWEPT: usize = 4;
const MAX_LOOKED: usize = 64;
const MAX_RECALLED: usize = 128;

/// What is known of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) state: State,
    pub(super) weight: u64,
    pub(super) limit: u64,
    pub(super) lease_ms: u64,
    /// The deadline of a wait, in ms, or the fence of a holder.
    pub(super) number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waits,
    AsksAgain,
    Claims,
    Holds,
}

impl State {
    pub(super) const fn letter(self) -> char {
        match self {
            Self::Waits => 'w',
            Self::AsksAgain => 'p',
            Self::Claims => 'c',
            Self::Holds => 'h',
        }
    }

    const fn holds(self) -> bool {
        matches!(self, Self::Claims | Self::Holds)
    }
}

/// A number of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Is(u64),
    Minus(i64),
    /// Milliseconds of a key's TTL, which the server's own clock wears off meanwhile.
    Left(u64),
    /// Of the clock, or 0 where a quick answer has not read it.
    Read(u64),
}

/// Whose the key of a mutex is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) token: String,
    /// Told by the value itself, unless other clients know the key.
    pub(super) fence: Option<u64>,
    /// When it expires, in ms; never, if somebody stripped it of that.
    pub(super) ends: Option<u64>,
}

/// One holder of a semaphore's permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Permits {
    pub(super) ends: u64,
    pub(super) weight: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    /// Its name, as it is told.
    main: String,
    pub(super) kind: Kind,
    pub(super) us: u64,
    pub(super) fence: u64,
    pub(super) limit: Option<u64>,
    /// A mutex' holder, and the one that was last recorded.
    pub(super) value: Option<Value>,
    pub(super) last: Option<String>,
    /// A semaphore's holders.
    pub(super) permits: BTreeMap<String, Permits>,
    /// Whether their sum is kept, which starts with the first grant.
    pub(super) summed: bool,
    pub(super) queue: BTreeSet<(u64, String)>,
    pub(super) records: BTreeMap<String, Record>,
    /// Until when who is alive, suspect (`?`), or ended (`!`).
    pub(super) roster: BTreeMap<String, u64>,
    pub(super) listening: BTreeSet<String>,
    /// 0, or the most that who keeps permits of this gate asks for: 1 and so many fences.
    pub(super) kept: u64,
    /// The same in the call under way, before it has done something for its caller.
    keeps: u64,
    /// What was told to whom: instance and text.
    pub(super) pushes: Vec<(String, String)>,
    /// Every fence given, with who got it.
    pub(super) grants: Vec<(u64, String)>,
    dropped: usize,
}

impl Record {
    /// What a waiter of a mutex asks for that is not recorded.
    fn usual(ticket: u64) -> Self {
        Self {
            state: State::Waits,
            weight: 1,
            limit: 1,
            lease_ms: CLAIM_MS,
            number: ticket / 1000 + WAIT_MS,
        }
    }
}

fn instance_of(token: &str) -> String {
    token[..12].to_owned()
}

impl Model {
    pub(super) fn new(kind: Kind, us: u64, main: &str) -> Self {
        Self {
            main: main.to_owned(),
            kind,
            us,
            fence: 0,
            limit: None,
            value: None,
            last: None,
            permits: BTreeMap::new(),
            summed: false,
            queue: BTreeSet::new(),
            records: BTreeMap::new(),
            roster: BTreeMap::new(),
            listening: BTreeSet::new(),
            kept: 0,
            keeps: 0,
            pushes: Vec::new(),
            grants: Vec::new(),
            dropped: 0,
        }
    }

    pub(super) const fn ms(&self) -> u64 {
        self.us / 1000
    }

    /// Moves the clock, also back. What a mutex' key has left is up to the server, which sees the
    /// same clock.
    pub(super) fn set_clock(&mut self, us: u64) {
        self.us = us;
        let ms = self.ms();
        self.value = self
            .value
            .take()
            .filter(|value| value.ends.is_none_or(|ends| ends > ms));
    }

    /// Records a waiter. One of a mutex that asks for what is usual is not recorded; then its lease
    /// is not remembered, either.
    fn note(&mut self, token: &str, ticket: u64, mut request: Record) {
        let usual = Record::usual(ticket);
        let lease_ms = request.lease_ms.min(CLAIM_MS);
        if self.kind != Kind::Semaphore
            && (Record {
                lease_ms,
                ..request
            }) == usual
        {
            request = usual;
        }
        self.records.insert(token.to_owned(), request);
    }

    /// Forgets all records: of a mutex' waiters that leaves what is usual.
    pub(super) fn lose_records(&mut self) {
        self.records.clear();
        self.kept = 0;
        if self.kind != Kind::Semaphore {
            let usual = |(ticket, token): &(u64, String)| (token.clone(), Record::usual(*ticket));
            self.records = self.queue.iter().map(usual).collect();
        }
    }

    /// Forgets all places, and with them what is usual of those who had them.
    pub(super) fn lose_queue(&mut self) {
        let noted = self.recorded();
        let queue = std::mem::take(&mut self.queue);
        for (_, token) in queue {
            if !noted.contains_key(&token) {
                self.records.remove(&token);
            }
        }
    }

    /// The records as the server has them.
    pub(super) fn recorded(&self) -> BTreeMap<String, Record> {
        let places: BTreeMap<_, _> = self
            .queue
            .iter()
            .map(|(ticket, token)| (token, *ticket))
            .collect();
        let kept = |(token, record): &(&String, &Record)| match self.kind {
            Kind::Semaphore => true,
            // All of a mutex' holder is told by its value, and by `S`.
            Kind::Mutex if record.state.holds() => false,
            Kind::Mutex | Kind::Exact => places
                .get(token)
                .is_none_or(|ticket| **record != Record::usual(*ticket)),
        };
        let records = self.records.iter().filter(kept);
        records
            .map(|(token, record)| (token.clone(), *record))
            .collect()
    }

    fn stamp(&self) -> u64 {
        self.fence.max(self.us)
    }

    fn draw(&mut self) -> u64 {
        self.fence = (self.fence + 1).max(self.us);
        self.fence
    }

    fn is_true_of(&self, member: &str) -> bool {
        self.roster
            .get(member)
            .is_some_and(|&ends| ends >= self.ms())
    }

    fn alive(&mut self, instance: &str) {
        self.clear(instance);
        self.roster
            .insert(instance.to_owned(), self.ms() + CLAIM_MS);
    }

    /// As `alive`, but what was said a moment ago is not said again.
    fn speaks(&mut self, instance: &str) {
        if self.is_true_of(&format!("?{instance}")) {
            self.clear(instance);
        }
        let until = self.ms() + CLAIM_MS;
        let said = self.roster.entry(instance.to_owned()).or_default();
        if *said < until - SAID_MS {
            *said = until;
        }
    }

    fn forget_the_past(&mut self) {
        let ms = self.ms();
        self.roster.retain(|_, ends| *ends >= ms);
    }

    /// A script of this process has run, so it is no suspect.
    fn clear(&mut self, instance: &str) {
        self.roster.remove(&format!("?{instance}"));
    }

    fn used(&self) -> u64 {
        self.permits.values().map(|permits| permits.weight).sum()
    }

    /// What holds at this moment, by weight.
    pub(super) fn held(&self) -> u64 {
        match self.kind {
            Kind::Mutex | Kind::Exact => u64::from(self.value.is_some()),
            Kind::Semaphore => {
                let ms = self.ms();
                self.permits
                    .values()
                    .filter(|permits| permits.ends > ms)
                    .map(|permits| permits.weight)
                    .sum()
            }
        }
    }

    fn left(&self, token: &str) -> Option<Field> {
        let ms = self.ms();
        match self.kind {
            Kind::Mutex | Kind::Exact => {
                let value = self.value.as_ref().filter(|value| value.token == token)?;
                Some(
                    value
                        .ends
                        .map_or(Field::Is(CLAIM_MS), |ends| Field::Left(ends - ms)),
                )
            }
            Kind::Semaphore => {
                let permits = self
                    .permits
                    .get(token)
                    .filter(|permits| permits.ends > ms)?;
                Some(Field::Is(permits.ends - ms))
            }
        }
    }

    fn next_end(&self) -> [Field; 2] {
        match (self.kind, &self.value) {
            (Kind::Mutex | Kind::Exact, None) => [Field::Is(0), Field::Is(0)],
            (Kind::Mutex | Kind::Exact, Some(value)) => {
                let left = value
                    .ends
                    .map_or(Field::Minus(-1), |ends| Field::Left(ends - self.ms()));
                let ours = value.fence.is_some() || self.last.as_ref() == Some(&value.token);
                [left, Field::Is(u64::from(!ours))]
            }
            (Kind::Semaphore, _) => {
                let first = self.permits.values().map(|permits| permits.ends).min();
                [
                    Field::Is(first.unwrap_or(0).saturating_sub(self.ms())),
                    Field::Is(0),
                ]
            }
        }
    }

    fn remove(&mut self, token: &str) {
        match self.kind {
            Kind::Mutex | Kind::Exact => {
                self.value = self.value.take().filter(|value| value.token != token);
                self.last = self.last.take().filter(|last| last != token);
            }
            Kind::Semaphore => {
                self.permits.remove(token);
            }
        }
        self.records.remove(token);
    }

    /// Forgets the holders that have expired. Who let a claim expire is a suspect.
    fn settle(&mut self) {
        let expired: Vec<String> = match self.kind {
            Kind::Mutex | Kind::Exact => {
                let value = self.value.as_ref().map(|value| &value.token);
                self.last
                    .iter()
                    .filter(|last| Some(*last) != value)
                    .cloned()
                    .collect()
            }
            Kind::Semaphore => {
                let ms = self.ms();
                let mut expired: Vec<_> = self
                    .permits
                    .iter()
                    .filter(|(_, permits)| permits.ends <= ms)
                    .collect();
                expired.sort_by_key(|(_, permits)| permits.ends);
                expired
                    .into_iter()
                    .map(|(token, _)| token.clone())
                    .collect()
            }
        };
        for token in expired {
            if self
                .records
                .get(&token)
                .is_some_and(|record| record.state == State::Claims)
            {
                self.roster
                    .insert(format!("?{}", instance_of(&token)), self.ms() + CLAIM_MS);
            }
            self.remove(&token);
        }
    }

    fn has_room(&self, weight: u64, limit: u64) -> bool {
        match self.kind {
            Kind::Mutex | Kind::Exact => self.value.is_none() && self.last.is_none(),
            Kind::Semaphore => self.used() + weight <= limit,
        }
    }

    /// Whether there is room; the expired are only forgotten where there seems to be none.
    fn fits(&mut self, weight: u64, limit: u64) -> bool {
        if !self.has_room(weight, limit) {
            self.settle();
        }
        self.has_room(weight, limit)
    }

    fn put(&mut self, token: &str, request: Record, state: State, ms: u64) -> u64 {
        let fence = self.draw();
        // The further ones are its own, too.
        self.fence += self.keeps.saturating_sub(1);
        let ends = self.ms() + ms;
        match self.kind {
            Kind::Mutex | Kind::Exact => {
                self.value = Some(Value {
                    token: token.to_owned(),
                    fence: (self.kind == Kind::Mutex).then_some(fence),
                    ends: Some(ends),
                });
            }
            Kind::Semaphore => {
                self.permits.insert(
                    token.to_owned(),
                    Permits {
                        ends,
                        weight: request.weight,
                    },
                );
                self.summed = true;
            }
        }
        self.grants.push((fence, token.to_owned()));
        if self.kind == Kind::Mutex && state == State::Holds {
            self.records.remove(token);
            return fence;
        }
        if self.kind != Kind::Semaphore {
            self.last = Some(token.to_owned());
        }
        self.records.insert(
            token.to_owned(),
            Record {
                state,
                number: fence,
                ..request
            },
        );
        fence
    }

    fn leave(&mut self, token: &str) -> bool {
        let before = self.queue.len();
        self.queue.retain(|(_, waiter)| waiter != token);
        self.queue.len() < before
    }

    fn drop_waiter(&mut self, token: &str) {
        self.leave(token);
        self.records.remove(token);
        self.dropped += 1;
    }

    fn waits_in_queue(&self, token: &str) -> bool {
        self.queue.iter().any(|(_, waiter)| waiter == token)
    }

    /// Whether nobody is left to use the place.
    fn deserted(&self, token: &str) -> bool {
        let record = self.records.get(token);
        record
            .is_none_or(|record| record.number < self.ms() || !self.is_true_of(&instance_of(token)))
    }

    fn allowed(&self, limit: u64) -> u64 {
        self.limit.unwrap_or(limit)
    }

    /// Hands on in order, in a script of `caller`. Returns the fence of `own`, and whether a
    /// newcomer would be next.
    fn grant(&mut self, caller: &str, own: Option<(&str, u64)>) -> (Option<u64>, bool) {
        let mut skipped = 0;
        if self.value.is_some() {
            return (None, false);
        }
        if !self.queue.is_empty() {
            self.settle();
            if self.is_true_of(&format!("?{caller}")) {
                self.clear(caller);
            }
        }
        while self.dropped < MAX_DROPPED && self.value.is_none() {
            let Some((_, token)) = self.queue.iter().nth(skipped).cloned() else {
                break;
            };
            let own = own.filter(|(own, _)| *own == token);
            let Some(&record) = self.records.get(&token) else {
                self.drop_waiter(&token);
                continue;
            };
            let instance = instance_of(&token);
            let limit = self.allowed(record.limit);
            if own.is_none() && self.deserted(&token) {
                self.drop_waiter(&token);
            } else if record.weight > limit {
                self.push(&instance, format!("n {token} {}", self.stamp()));
                self.drop_waiter(&token);
            } else if !self.fits(record.weight, limit) {
                return (None, false);
            } else if let Some((_, lease_ms)) = own {
                self.leave(&token);
                let request = Record { lease_ms, ..record };
                return (
                    Some(self.put(&token, request, State::Holds, lease_ms)),
                    false,
                );
            } else if record.state == State::AsksAgain {
                return (None, false);
            } else if self.is_true_of(&format!("?{instance}")) {
                skipped += 1;
            } else {
                let ms = record.lease_ms.min(CLAIM_MS);
                let fence = self.put(&token, record, State::Claims, ms);
                let mut text = format!("g {token} {fence} {ms}");
                if self.keeps > 0 {
                    text += &format!(" {}", u64::from(self.others_wait(&instance)));
                }
                if self.push(&instance, text) {
                    self.leave(&token);
                } else {
                    self.remove(&token);
                    self.grants.pop();
                    self.roster.remove(&instance);
                    self.drop_waiter(&token);
                }
            }
        }
        (None, self.queue.len() <= skipped)
    }

    fn push(&mut self, instance: &str, text: String) -> bool {
        let heard = self.listening.contains(instance);
        if heard {
            self.pushes.push((instance.to_owned(), text));
        }
        heard
    }

    /// Whether a place of another process is among the first.
    fn others_wait(&self, instance: &str) -> bool {
        let mut first = self.queue.iter().take(MAX_LOOKED);
        first.any(|(_, token)| instance_of(token) != instance)
    }

    /// The same as a number, where somebody keeps permits.
    fn others(&self, instance: &str) -> Field {
        Field::Is(u64::from(self.keeps > 0 && self.others_wait(instance)))
    }

    /// Tells those who may not know that others than they wait, since `caller` does: all who hold if
    /// nobody waited before, and else who was first.
    fn recall(&mut self, caller: &str, head: Option<String>) {
        let mut holders: Vec<(u64, String)> = match &self.value {
            Some(value) => {
                let ours = value.fence.is_some() || self.last.as_ref() == Some(&value.token);
                ours.then(|| (0, value.token.clone())).into_iter().collect()
            }
            None => {
                let ends = |(token, permits): (&String, &Permits)| (permits.ends, token.clone());
                self.permits.iter().map(ends).collect()
            }
        };
        holders.sort_unstable();
        holders.truncate(MAX_RECALLED);
        let concerned = match head {
            Some(head) => vec![head],
            None => holders.into_iter().map(|(_, token)| token).collect(),
        };
        let mut told = BTreeSet::from([caller.to_owned()]);
        for instance in concerned.iter().map(|token| instance_of(token)) {
            if told.insert(instance.clone()) {
                self.push(&instance, format!("r {} {}", self.stamp(), self.main));
            }
        }
    }

    pub(super) fn recheck(&self, instance: &str, tokens: &[String]) -> Vec<Field> {
        let held = match self.kind {
            Kind::Semaphore => self.used(),
            _ => 1,
        };
        let over = self.limit.is_some_and(|limit| held > limit);
        let others = u64::from(over || self.others_wait(instance));
        let mut answer = vec![self.us, self.stamp(), others];
        answer.extend(
            tokens
                .iter()
                .map(|token| u64::from(self.left(token).is_some())),
        );
        answer.into_iter().map(Field::Is).collect()
    }

    /// Clears a window of a full queue that moves with the clock; returns whether it found a
    /// deserted place.
    fn sweep(&mut self) -> bool {
        let first = (self.us % self.queue.len() as u64) as usize;
        let window: Vec<String> = self
            .queue
            .iter()
            .skip(first)
            .take(MAX_SWEPT)
            .map(|(_, token)| token.clone())
            .collect();
        let deserted: Vec<String> = window
            .into_iter()
            .filter(|token| self.deserted(token))
            .collect();
        for token in &deserted {
            self.drop_waiter(token);
        }
        !deserted.is_empty()
    }

    fn answer(&self, status: u64, rest: &[Field]) -> Vec<Field> {
        let mut answer = vec![
            Field::Is(status),
            Field::Is(self.us),
            Field::Is(self.stamp()),
        ];
        answer.extend(rest);
        answer
    }

    fn more(&self) -> Field {
        Field::Is(u64::from(self.dropped >= MAX_DROPPED))
    }

    pub(super) fn acquire(&mut self, token: &str, ask: &Ask) -> Vec<Field> {
        let instance = instance_of(token);
        self.dropped = 0;
        self.keeps = self.kept.max(u64::from(ask.kept));
        let known = self.records.get(token).copied();
        let others = self.others(&instance);
        if let (None, Some(fence), Some(left)) = (known, self.told(token), self.left(token)) {
            return self.answer(0, &[Field::Is(fence), left, others]);
        }
        if known.is_some_and(|record| record.state.holds()) {
            if let (Some(record), Some(left)) = (known, self.left(token)) {
                return self.answer(0, &[Field::Is(record.number), left, others]);
            }
            self.remove(token);
        }
        let waits = known.filter(|record| !record.state.holds() && self.waits_in_queue(token));
        let mut request = Record {
            state: if ask.pushed {
                State::Waits
            } else {
                State::AsksAgain
            },
            weight: u64::from(ask.weight),
            limit: u64::from(ask.limit),
            lease_ms: ask.lease_ms,
            number: self.ms() + ask.wait_ms,
        };
        if let Some(record) = waits {
            self.speaks(&instance);
            let allowed = self.allowed(record.limit);
            if record.weight > allowed {
                self.drop_waiter(token);
                self.grant(&instance, None);
                return self.answer(6, &[Field::Is(allowed)]);
            }
            request = Record {
                state: request.state,
                ..record
            };
            if request.state != record.state {
                let (_, ticket) = self.place(token).expect("it waits");
                self.note(token, ticket, request);
                request = self.records[token];
            }
        } else {
            if ask.latest_in_ms < 0 {
                return self.answer(4, &[]);
            }
            if self.is_true_of(&format!("!{token}")) {
                return self.answer(5, &[]);
            }
            let allowed = self.allowed(request.limit);
            if request.weight > allowed {
                return self.answer(6, &[Field::Is(allowed)]);
            }
        }
        let (mut fence, next) = self.grant(&instance, Some((token, ask.lease_ms)));
        if fence.is_none()
            && waits.is_none()
            && next
            && self.fits(request.weight, self.allowed(request.limit))
        {
            fence = Some(self.put(token, request, State::Holds, ask.lease_ms));
        }
        if let Some(fence) = fence {
            self.kept = self.keeps;
            let (left, others) = (Field::Is(ask.lease_ms), self.others(&instance));
            return self.answer(0, &[Field::Is(fence), left, others]);
        }
        let mut position = None;
        if waits.is_none() {
            let crowded = self.queue.len() >= ask.max_waiters as usize;
            let full = ask.wait_ms > 0 && crowded && (ask.max_waiters == 0 || !self.sweep());
            if full && ask.pushed && self.is_true_of(&instance) {
                self.speaks(&instance);
            }
            if full || ask.wait_ms == 0 {
                let [next_end, foreign] = self.next_end();
                let waiters = Field::Is(self.queue.len() as u64);
                return self.answer(
                    if full { 3 } else { 2 },
                    &[self.more(), next_end, foreign, waiters],
                );
            }
            if known.is_none() {
                self.remove(token);
            }
            let waiting = self.queue.len() as u64;
            let head = self.queue.first().map(|(_, token)| token.clone());
            let fresh = self.draw();
            let ticket = if ask.ticket > 0 && ask.ticket <= self.us {
                ask.ticket
            } else {
                fresh
            };
            self.leave(token);
            self.queue.insert((ticket, token.to_owned()));
            self.note(token, ticket, request);
            self.speaks(&instance);
            position = (ticket == fresh).then_some(waiting);
            if self.keeps > 0 {
                self.recall(&instance, head);
            }
        }
        self.kept = self.keeps;
        let [next_end, foreign] = self.next_end();
        let entered = Field::Is(u64::from(waits.is_none()));
        let (rank, ticket) = self.place(token).expect("it waits");
        let position = position.unwrap_or(rank);
        self.answer(
            1,
            &[
                self.more(),
                next_end,
                foreign,
                Field::Is(position),
                Field::Is(ticket),
                entered,
            ],
        )
    }

    fn place(&self, token: &str) -> Option<(u64, u64)> {
        let position = self.queue.iter().position(|(_, waiter)| waiter == token)?;
        let (ticket, _) = self.queue.iter().nth(position)?;
        Some((position as u64, *ticket))
    }

    pub(super) fn end(&mut self, token: &str, latest_in_ms: Option<i64>) -> Vec<Field> {
        self.dropped = 0;
        self.keeps = self.kept;
        let holds = self
            .records
            .get(token)
            .is_some_and(|record| record.state.holds());
        let status = if self.left(token).is_some() {
            self.remove(token);
            0
        } else if holds {
            self.remove(token);
            2
        } else {
            self.records.remove(token);
            if self.leave(token) { 1 } else { 2 }
        };
        if let Some(ms) = latest_in_ms.and_then(|ms| u64::try_from(ms).ok()) {
            self.roster.insert(format!("!{token}"), self.ms() + ms);
            self.forget_the_past();
        }
        self.grant(&instance_of(token), None);
        let [us, stamp] = [self.us, self.stamp()].map(Field::Read);
        vec![Field::Is(status), us, stamp, self.more()]
    }

    pub(super) fn renew(
        &mut self,
        instance: &str,
        waits: bool,
        leases: &[(String, u64, u64)],
    ) -> Vec<Field> {
        self.clear(instance);
        let mut answer = vec![Field::Is(self.us), Field::Is(self.stamp())];
        for (token, fence, lease_ms) in leases {
            let known = self.records.get(token).copied();
            let record = known.filter(|record| record.state.holds());
            let held = match known {
                Some(_) => record.map(|record| record.number),
                None => self.told(token),
            };
            answer.push(match (self.left(token), held) {
                (None, _) | (_, None) => {
                    if record.is_some() {
                        self.remove(token);
                    }
                    Field::Minus(-1)
                }
                (_, Some(held)) if held != *fence => Field::Minus(-2),
                (Some(left), Some(_)) => {
                    self.confirm(token, record);
                    self.extend(token, left, *lease_ms)
                }
            });
        }
        if waits {
            self.alive(instance);
            self.forget_the_past();
        }
        answer
    }

    /// The fence of a holder whose value says it.
    fn told(&self, token: &str) -> Option<u64> {
        let value = self.value.as_ref().filter(|value| value.token == token)?;
        value.fence
    }

    /// A claim that was renewed is a full lease.
    fn confirm(&mut self, token: &str, record: Option<Record>) {
        let Some(record) = record else {
            return;
        };
        if self.kind == Kind::Mutex {
            self.records.remove(token);
            self.last = self.last.take().filter(|last| last != token);
        } else {
            let state = State::Holds;
            self.records
                .insert(token.to_owned(), Record { state, ..record });
        }
    }

    fn extend(&mut self, token: &str, left: Field, lease_ms: u64) -> Field {
        let (Field::Is(now) | Field::Left(now)) = left else {
            unreachable!("a lease has not less than nothing")
        };
        let ms = now.max(lease_ms);
        let ends = self.ms() + ms;
        match self.kind {
            Kind::Mutex | Kind::Exact => {
                let value = self.value.as_mut().expect("it has a lease");
                value.ends = Some(ends);
            }
            Kind::Semaphore => {
                let weight = self.permits[token].weight;
                self.permits
                    .insert(token.to_owned(), Permits { ends, weight });
            }
        }
        if self.kind == Kind::Semaphore {
            Field::Is(ms)
        } else {
            Field::Left(ms)
        }
    }
}
