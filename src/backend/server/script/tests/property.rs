//! Any sequence of requests, faults and clock steps: the scripts answer as the model does, leave
//! the same state, and keep their invariants.
//!
//! A semaphore lives by the given clock alone. A mutex' key expires by the server's own, so before
//! each step its TTL is set to what the model says is left; mutex clocks move by whole seconds, and
//! a run that was paused for that long counts for nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::model::{CLAIM_MS, Field, Model, Permits, Value};
use super::rig::{Ask, Rig, START_US, Scripts, TRY, instance, token};
use super::support::Server;
use crate::key::Kind;

const PROCESSES: [char; 3] = ['A', 'B', 'C'];
const TOKENS: u32 = 3;
/// Some 5 s for each kind.
const CASES: u32 = 300;
/// Less than the shortest TTL that a step can begin with.
const TOO_SLOW: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
enum Step {
    Acquire {
        by: usize,
        number: u32,
        ask: Ask,
        place: Place,
    },
    End {
        by: usize,
        number: u32,
        latest_in_ms: Option<i64>,
    },
    /// The end of one that holds, if any does.
    Release(usize),
    /// The same in one call with an acquire by another process, or by another token of its own.
    Swap {
        nth: usize,
        by: usize,
        number: u32,
        ask: Ask,
    },
    /// All processes say that they live.
    Heartbeats,
    Renew {
        by: usize,
        waits: bool,
        leases: Vec<(u32, bool, u64)>,
    },
    /// Of tokens of any process.
    Recheck {
        by: usize,
        tokens: Vec<(usize, u32)>,
    },
    Clock {
        us: i64,
    },
    Listen {
        by: usize,
    },
    Deafen {
        by: usize,
    },
    Limit(Option<u64>),
    Lose(Key),
    Foreign {
        ttl_ms: Option<u64>,
    },
    Delete,
    Persist,
}

/// Which ticket an acquire brings.
#[derive(Debug, Clone, Copy)]
enum Place {
    Fresh,
    Last,
    Ahead,
}

#[derive(Debug, Clone, Copy)]
enum Key {
    Main,
    Queue,
    Records,
    Roster,
    Clock,
    All,
}

fn ask(kind: Kind) -> impl Strategy<Value = (Ask, Place)> {
    let lease = match kind {
        Kind::Mutex | Kind::Exact => prop_oneof![Just(2_000_u64), Just(10_000), Just(100_000)],
        Kind::Semaphore => prop_oneof![Just(1_u64), Just(2_000), Just(10_000)],
    };
    let latest = prop_oneof![9 => 0_i64..1_000, 1 => -2_i64..0];
    let wait = prop_oneof![2 => Just(0_u64), 1 => 1_u64..5_000, 4 => Just(86_400_000)];
    let queue = prop_oneof![8 => Just(100_u32), 3 => 0_u32..4];
    let place =
        prop_oneof![6 => Just(Place::Fresh), 2 => Just(Place::Last), 1 => Just(Place::Ahead)];
    let weight = prop_oneof![3 => Just(1_u32), 2 => 1_u32..4];
    // Half of all gates have somebody who keeps permits, sooner or later.
    let most = if kind == Kind::Semaphore { 2_u32 } else { 5 };
    let kept = prop_oneof![6 => Just(0_u32), 1 => 1_u32..most];
    (
        weight,
        1_u32..5,
        lease,
        latest,
        wait,
        queue,
        prop::bool::weighted(0.8),
        (place, kept),
    )
        .prop_map(
            move |(
                weight,
                limit,
                lease_ms,
                latest_in_ms,
                wait_ms,
                max_waiters,
                pushed,
                (place, kept),
            )| {
                let (weight, limit) = if kind == Kind::Semaphore {
                    (weight, limit)
                } else {
                    (1, 1)
                };
                (
                    Ask {
                        weight,
                        limit,
                        lease_ms,
                        latest_in_ms,
                        wait_ms,
                        max_waiters,
                        pushed,
                        kept,
                        ..TRY
                    },
                    place,
                )
            },
        )
}

fn clock(kind: Kind) -> BoxedStrategy<i64> {
    let seconds = prop_oneof![4 => 1_i64..5, 1 => 5_i64..120, 1 => -10_i64..0]
        .prop_map(|seconds| seconds * 1_000_000);
    match kind {
        Kind::Mutex | Kind::Exact => prop_oneof![1 => 0_i64..5, 2 => seconds].boxed(),
        Kind::Semaphore => prop_oneof![
            1 => 0_i64..5,
            2 => -2_000_i64..5_000,
            2 => seconds,
            1 => (-1_i64..2).prop_map(|off| CLAIM_MS as i64 * 1000 + off * 1000),
        ]
        .boxed(),
    }
}

fn step(kind: Kind) -> impl Strategy<Value = Step> {
    let by = 0..PROCESSES.len();
    let number = 0..TOKENS;
    let latest = prop::option::weighted(0.3, -2_i64..2_000);
    let lease = prop_oneof![Just(2_000_u64), Just(10_000), Just(30_000)];
    let tokens = prop::collection::vec((by.clone(), number.clone()), 0..4);
    let leases = prop::collection::vec((number.clone(), prop::bool::weighted(0.9), lease), 0..3);
    let key = prop_oneof![
        Just(Key::Main),
        Just(Key::Queue),
        Just(Key::Records),
        Just(Key::Roster),
        Just(Key::Clock),
        Just(Key::All)
    ];
    let foreign = prop_oneof![
        prop_oneof![Just(None), Just(Some(5_000_u64))].prop_map(|ttl_ms| Step::Foreign { ttl_ms }),
        Just(Step::Delete),
        Just(Step::Persist),
    ]
    // No stranger writes to a semaphore.
    .prop_map(move |step| {
        if kind == Kind::Semaphore {
            Step::Heartbeats
        } else {
            step
        }
    });
    let limit = prop::option::of(0_u64..5).prop_map(Step::Limit);
    prop_oneof![
        40 => (by.clone(), number.clone(), ask(kind)).prop_map(|(by, number, (ask, place))| Step::Acquire { by, number, ask, place }),
        12 => any::<usize>().prop_map(Step::Release),
        12 => (any::<usize>(), by.clone(), number.clone(), ask(kind))
            .prop_map(|(nth, by, number, (ask, _))| Step::Swap { nth, by, number, ask }),
        6 => Just(Step::Heartbeats),
        12 => (by.clone(), number, latest).prop_map(|(by, number, latest_in_ms)| Step::End { by, number, latest_in_ms }),
        12 => (by.clone(), any::<bool>(), leases).prop_map(|(by, waits, leases)| Step::Renew { by, waits, leases }),
        6 => (by.clone(), tokens).prop_map(|(by, tokens)| Step::Recheck { by, tokens }),
        12 => clock(kind).prop_map(|us| Step::Clock { us }),
        4 => by.clone().prop_map(|by| Step::Listen { by }),
        2 => by.prop_map(|by| Step::Deafen { by }),
        1 => limit,
        1 => key.prop_map(Step::Lose),
        3 => foreign,
    ]
}

/// The two that run side by side, and what is known of their past.
struct Run<'a> {
    rig: &'a mut Rig,
    model: Model,
    fences: HashMap<String, u64>,
    tickets: HashMap<String, u64>,
    /// The greatest number drawn since the clock was last lost.
    drawn: u64,
    seen_grants: usize,
    lost: bool,
    foreign: bool,
}

/// The server as it stands.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    value: Option<String>,
    permits: BTreeMap<String, u64>,
    queue: BTreeSet<(u64, String)>,
    records: BTreeMap<String, String>,
    roster: BTreeMap<String, u64>,
    /// The clock of the tag; 0 if it has none.
    drawn: u64,
}

macro_rules! check {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(TestCaseError::fail(format!($($text)+)));
        }
    };
}

impl Run<'_> {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.settle_ttl();
        let before = self.see();
        let clock = self.model.ms();
        match step {
            Step::Acquire {
                by,
                number,
                ask,
                place,
            } => {
                let token = token(PROCESSES[*by], *number);
                let mut ask = ask.clone();
                ask.ticket = match place {
                    Place::Fresh => 0,
                    Place::Last => self.tickets.get(&token).copied().unwrap_or(0),
                    Place::Ahead => self.model.us + 1_000_000,
                };
                let answer = self
                    .rig
                    .acquire(&token, &ask)
                    .map_err(TestCaseError::fail)?;
                self.agree(&answer, &self.model.clone().acquire(&token, &ask))?;
                self.model.acquire(&token, &ask);
                self.keep_in_mind(&token, &answer);
                check!(
                    answer[2].unsigned_abs() >= self.model.fence,
                    "a stamp below what was drawn"
                );
            }
            Step::End {
                by,
                number,
                latest_in_ms,
            } => {
                self.end(&token(PROCESSES[*by], *number), *latest_in_ms)?;
            }
            Step::Release(nth) => {
                if let Some(token) = self.holder(*nth) {
                    self.end(&token, None)?;
                }
            }
            Step::Swap {
                nth,
                by,
                number,
                ask,
            } => {
                let next = token(PROCESSES[*by], *number);
                // No token is used again.
                if let Some(token) = self.holder(*nth).filter(|token| *token != next) {
                    self.swap(&token, &next, ask)?;
                }
            }
            Step::Heartbeats => {
                for process in PROCESSES {
                    let answer = self.rig.heartbeat(process).map_err(TestCaseError::fail)?;
                    let expected = self.model.renew(&instance(process), true, &[]);
                    self.agree(&answer, &expected)?;
                }
            }
            Step::Renew { by, waits, leases } => {
                let lease = |&(number, right, lease_ms): &(u32, bool, u64)| {
                    let token = token(PROCESSES[*by], number);
                    let fence = self.fences.get(&token).copied().unwrap_or(7);
                    (token, fence - u64::from(!right), lease_ms)
                };
                let leases: Vec<_> = leases.iter().map(lease).collect();
                let by = instance(PROCESSES[*by]);
                let answer = self
                    .rig
                    .renew(&by, *waits, &leases)
                    .map_err(TestCaseError::fail)?;
                let expected = self.model.renew(&by, *waits, &leases);
                self.agree(&answer, &expected)?;
                let after = self.see();
                check!(after.queue == before.queue, "a renewal changes the queue");
                check!(
                    after
                        .permits
                        .keys()
                        .all(|token| before.permits.contains_key(token)),
                    "a renewal makes a holder"
                );
                check!(
                    after
                        .records
                        .keys()
                        .all(|token| before.records.contains_key(token)),
                    "a renewal makes a record"
                );
            }
            Step::Recheck { by, tokens } => {
                let tokens: Vec<String> = tokens
                    .iter()
                    .map(|(by, number)| token(PROCESSES[*by], *number))
                    .collect();
                let by = instance(PROCESSES[*by]);
                let answer = self
                    .rig
                    .recheck(&by, &tokens)
                    .map_err(TestCaseError::fail)?;
                let expected = self.model.recheck(&by, &tokens);
                self.agree(&answer, &expected)?;
                check!(
                    answer[1].unsigned_abs() >= self.model.fence,
                    "a stamp below what was drawn"
                );
            }
            Step::Clock { us } => {
                let us = self.model.us.saturating_add_signed(*us).max(START_US / 2);
                self.model.set_clock(us);
                self.rig.us = us;
                self.settle_ttl();
            }
            Step::Listen { by } => {
                self.rig.listen(&instance(PROCESSES[*by]));
                self.model.listening.insert(instance(PROCESSES[*by]));
            }
            Step::Deafen { by } => {
                self.rig.deafen(&instance(PROCESSES[*by]));
                self.model.listening.remove(&instance(PROCESSES[*by]));
            }
            Step::Limit(limit) => self.override_limit(*limit),
            Step::Lose(key) => self.lose(*key),
            Step::Foreign { ttl_ms } => {
                let main = self.rig.gate.main().to_owned();
                self.rig.command(&["SET", &main, "stranger"]);
                if let Some(ttl_ms) = ttl_ms {
                    self.rig.command(&["PEXPIRE", &main, &ttl_ms.to_string()]);
                }
                let ends = ttl_ms.map(|ms| self.model.ms() + ms);
                self.model.value = Some(Value {
                    token: "stranger".to_owned(),
                    fence: None,
                    ends,
                });
                self.foreign = true;
            }
            Step::Delete => self.lose(Key::Main),
            Step::Persist => {
                let main = self.rig.gate.main().to_owned();
                self.rig.command(&["PERSIST", &main]);
                if let Some(value) = &mut self.model.value {
                    value.ends = None;
                }
                self.foreign = true;
            }
        }
        let heard = self.rig.heard();
        check!(
            heard == self.model.pushes,
            "heard {heard:?}, expected {:?}",
            self.model.pushes
        );
        for (_, text) in &heard {
            let words: Vec<&str> = text.split(' ').collect();
            if let ["g", token, fence, ..] = words[..] {
                self.fences.insert(
                    token.to_owned(),
                    fence.parse().expect("a fence is a number"),
                );
            }
        }
        self.model.pushes.clear();
        let after = self.see();
        self.agree_on_state(&after)?;
        self.keep_invariants(&before, &after, clock)
    }

    /// One of our own tokens that hold.
    fn holder(&self, nth: usize) -> Option<String> {
        let holders = self.model.value.iter().map(|value| &value.token);
        let holders = holders.chain(self.model.permits.keys());
        let ours: Vec<&String> = holders.filter(|token| token.len() > 12).collect();
        let at = nth.checked_rem(ours.len())?;
        Some(ours[at].clone())
    }

    /// Each part is answered as by itself, one after the other.
    fn swap(&mut self, token: &str, next: &str, ask: &Ask) -> Result<(), TestCaseError> {
        let both = self.rig.swap((token, None), (next, ask));
        let (ended, asked) = both.map_err(TestCaseError::fail)?;
        let expected = self.model.end(token, None);
        self.agree(&ended.map_err(TestCaseError::fail)?, &expected)?;
        let expected = self.model.acquire(next, ask);
        let asked = asked.map_err(TestCaseError::fail)?;
        self.agree(&asked, &expected)?;
        self.keep_in_mind(next, &asked);
        Ok(())
    }

    /// The fence or the ticket that an acquire was answered with.
    fn keep_in_mind(&mut self, token: &str, answer: &[i64]) {
        if answer[0] == 0 {
            self.fences
                .insert(token.to_owned(), answer[3].unsigned_abs());
        } else if answer[0] == 1 {
            self.tickets
                .insert(token.to_owned(), answer[7].unsigned_abs());
        }
    }

    fn end(&mut self, token: &str, latest_in_ms: Option<i64>) -> Result<(), TestCaseError> {
        let answer = self
            .rig
            .end_unanswered(token, latest_in_ms)
            .map_err(TestCaseError::fail)?;
        let expected = self.model.end(token, latest_in_ms);
        self.agree(&answer, &expected)?;
        let after = self.see();
        check!(!after.holds(token) || self.lost, "an ended token holds");
        check!(
            !after.records.contains_key(token),
            "an ended token has a record"
        );
        Ok(())
    }

    /// Sets the TTL of a mutex' key to what the model says is left of it.
    fn settle_ttl(&mut self) {
        if self.model.kind != Kind::Semaphore {
            let main = self.rig.gate.main().to_owned();
            match &self.model.value {
                None => self.rig.command(&["DEL", &main]),
                Some(Value { ends: None, .. }) => self.rig.command(&["PERSIST", &main]),
                Some(Value {
                    ends: Some(ends), ..
                }) => {
                    let left = ends - self.model.ms();
                    self.rig.command(&["PEXPIRE", &main, &left.to_string()])
                }
            };
        }
    }

    /// As an operator would, who keeps the key from staying for ever.
    fn override_limit(&mut self, limit: Option<u64>) {
        let records = self.rig.gate.records().to_owned();
        match limit {
            Some(limit) => {
                self.rig
                    .command(&["HSET", &records, "L", &limit.to_string()]);
                if self.rig.number(&["PTTL", &records]) == -1 {
                    self.rig.command(&["PEXPIRE", &records, "60000"]);
                }
            }
            None => {
                self.rig.command(&["HDEL", &records, "L"]);
            }
        }
        self.model.limit = limit;
    }

    fn lose(&mut self, key: Key) {
        let [main, queue, records, roster, clock]: [String; 5] =
            self.rig.keys().try_into().expect("a gate has five keys");
        let model = &mut self.model;
        let lost = |one: fn(Key) -> bool| one(key) || matches!(key, Key::All);
        if lost(|key| matches!(key, Key::Clock)) {
            model.fence = 0;
            self.drawn = 0;
            self.rig.command(&["DEL", &clock]);
        }
        if lost(|key| matches!(key, Key::Main)) {
            model.value = None;
            model.permits.clear();
            self.rig.command(&["DEL", &main]);
        }
        if lost(|key| matches!(key, Key::Queue)) {
            model.lose_queue();
            self.rig.command(&["DEL", &queue]);
        }
        if lost(|key| matches!(key, Key::Records)) {
            model.lose_records();
            model.last = None;
            model.limit = None;
            model.summed = false;
            // Nobody knows the weights any more: each counts as 1.
            model.permits = model
                .permits
                .iter()
                .map(|(token, old)| (token.clone(), Permits { weight: 1, ..*old }))
                .collect();
            self.rig.command(&["DEL", &records]);
        }
        if lost(|key| matches!(key, Key::Roster)) {
            model.roster.clear();
            self.rig.command(&["DEL", &roster]);
        }
        self.lost |= match key {
            Key::Roster | Key::Clock => false,
            // As when it expires.
            Key::Main => model.kind == Kind::Semaphore,
            Key::Queue | Key::Records | Key::All => true,
        };
    }

    fn agree(&self, answer: &[i64], expected: &[Field]) -> Result<(), TestCaseError> {
        let same = |(&number, &field): (&i64, &Field)| match field {
            Field::Is(value) => u64::try_from(number) == Ok(value),
            Field::Minus(value) => number == value,
            Field::Read(value) => number == 0 || u64::try_from(number) == Ok(value),
            Field::Left(ms) => {
                let slack = TOO_SLOW.as_millis() as u64;
                u64::try_from(number).is_ok_and(|number| number <= ms && number + slack >= ms)
            }
        };
        let agrees = answer.len() == expected.len() && answer.iter().zip(expected).all(same);
        check!(
            agrees,
            "answered {answer:?}, expected {expected:?} at {}",
            self.model.us
        );
        Ok(())
    }

    fn agree_on_state(&self, seen: &Seen) -> Result<(), TestCaseError> {
        let model = &self.model;
        let record = |(token, record): (&String, &super::model::Record)| {
            let state = record.state.letter();
            (
                token.clone(),
                format!(
                    "1{state} {} {} {} {}",
                    record.weight, record.limit, record.lease_ms, record.number
                ),
            )
        };
        let mut records: BTreeMap<String, String> = model.recorded().iter().map(record).collect();
        if let Some(limit) = model.limit {
            records.insert("L".to_owned(), limit.to_string());
        }
        let sum = match model.kind {
            Kind::Mutex | Kind::Exact => model.last.clone(),
            // Of an empty semaphore the sum says nothing.
            Kind::Semaphore if model.permits.is_empty() => seen.records.get("S").cloned(),
            Kind::Semaphore if model.summed => Some(
                model
                    .permits
                    .values()
                    .map(|permits| permits.weight)
                    .sum::<u64>()
                    .to_string(),
            ),
            Kind::Semaphore => None,
        };
        records.extend(sum.map(|sum| ("S".to_owned(), sum)));
        if model.kept > 0 {
            records.insert("K".to_owned(), model.kept.to_string());
        }
        let expected = Seen {
            value: model.value.as_ref().map(|value| match value.fence {
                Some(fence) => format!("{} {fence}", value.token),
                None => value.token.clone(),
            }),
            permits: model
                .permits
                .iter()
                .map(|(token, permits)| (token.clone(), permits.ends))
                .collect(),
            queue: model.queue.clone(),
            records,
            roster: model.roster.clone(),
            drawn: model.fence,
        };
        check!(
            *seen == expected,
            "the server has {seen:#?}, expected {expected:#?}"
        );
        Ok(())
    }

    /// What holds whatever the model says.
    fn keep_invariants(
        &mut self,
        before: &Seen,
        after: &Seen,
        clock: u64,
    ) -> Result<(), TestCaseError> {
        let model = &self.model;
        for key in self.rig.keys() {
            let left = self.rig.number(&["PTTL", &key]);
            let mine = key != self.rig.gate.main() || !self.foreign;
            check!(left != -1 || !mine, "{key} has no TTL");
        }
        let grants = &model.grants[self.seen_grants..];
        for (fence, token) in grants {
            check!(
                *fence > self.drawn,
                "{token} got {fence}, after {}",
                self.drawn
            );
            self.drawn = *fence;
        }
        // One script may grant several: each is judged by what was held when it came, which
        // excludes those after it.
        let mut held = model.held();
        for (fence, token) in grants.iter().rev() {
            let told = |value: &Value| value.token == *token && value.fence == Some(*fence);
            let (weight, limit) = match model.records.get(token) {
                Some(record) if record.number == *fence => (record.weight, record.limit),
                None if model.value.as_ref().is_some_and(told) => (1, 1),
                Some(_) | None => continue,
            };
            let limit = model.limit.unwrap_or(limit);
            check!(held <= limit, "{held} held of {limit} when {token} came");
            held -= weight;
        }
        self.seen_grants = model.grants.len();
        self.drawn = self.drawn.max(model.fence);
        if !self.lost {
            for token in after.records.keys().filter(|name| name.len() > 1) {
                let waits = after.queue.iter().any(|(_, waiter)| waiter == token);
                let held = after.holds(token) || after.records.get("S") == Some(token);
                check!(
                    waits != held,
                    "the record of {token} is of a waiter or of a holder"
                );
            }
        }
        for (token, ends) in &before.permits {
            if let (Some(now), true) = (after.permits.get(token), *ends > clock) {
                check!(
                    now >= ends || self.lost,
                    "the lease of {token} was cut from {ends} to {now}"
                );
            }
        }
        Ok(())
    }

    fn see(&mut self) -> Seen {
        let [main, queue, records, roster, clock]: [String; 5] =
            self.rig.keys().try_into().expect("a gate has five keys");
        let number = |text: &str| text.parse::<f64>().map_or(0, |number| number as u64);
        let mut scores = |key: &str| -> Vec<(String, u64)> {
            let flat = self.rig.texts(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
            flat.chunks(2)
                .map(|pair| (pair[0].clone(), number(&pair[1])))
                .collect()
        };
        let queue = scores(&queue)
            .into_iter()
            .map(|(token, ticket)| (ticket, token))
            .collect();
        let roster = scores(&roster).into_iter().collect();
        let permits = if self.model.kind == Kind::Semaphore {
            scores(&main).into_iter().collect()
        } else {
            BTreeMap::new()
        };
        let value = match self.model.kind {
            Kind::Mutex | Kind::Exact => self.text(&main),
            Kind::Semaphore => None,
        };
        let drawn = self.text(&clock).map_or(0, |drawn| number(&drawn));
        let flat = self.rig.texts(&["HGETALL", &records]);
        let records = flat
            .chunks(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect();
        Seen {
            value,
            permits,
            queue,
            records,
            roster,
            drawn,
        }
    }

    fn text(&mut self, key: &str) -> Option<String> {
        redis::from_redis_value(self.rig.command(&["GET", key])).expect("text or nothing")
    }
}

impl Seen {
    fn holds(&self, token: &str) -> bool {
        let value = self
            .value
            .as_deref()
            .and_then(|value| value.split(' ').next());
        value == Some(token) || self.permits.contains_key(token)
    }
}

fn scripts_agree_with_the_model(kind: Kind) {
    let server = Server::start();
    let mut rig = Rig::new(&server, Scripts::with_given_clock(), kind);
    for process in PROCESSES {
        rig.listen(&instance(process));
    }
    let config = Config {
        cases: CASES,
        source_file: Some(file!()),
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let steps = prop::collection::vec(step(kind), 1..60);
    let rig = std::cell::RefCell::new(rig);
    let outcome = runner.run(&steps, |steps| {
        let mut rig = rig.borrow_mut();
        rig.reset();
        for process in PROCESSES {
            rig.listen(&instance(process));
        }
        let mut model = Model::new(kind, START_US, rig.gate.main());
        model.listening.extend(PROCESSES.map(instance));
        let mut run = Run {
            rig: &mut rig,
            model,
            fences: HashMap::new(),
            tickets: HashMap::new(),
            drawn: 0,
            seen_grants: 0,
            lost: false,
            foreign: false,
        };
        for step in &steps {
            let begun = Instant::now();
            let outcome = run.step(step);
            if kind != Kind::Semaphore && begun.elapsed() > TOO_SLOW {
                return Ok(());
            }
            outcome?;
        }
        Ok(())
    });
    if let Err(problem) = outcome {
        panic!("{problem}");
    }
}

#[test]
fn mutex_scripts_agree_with_the_model() {
    scripts_agree_with_the_model(Kind::Mutex);
}

#[test]
fn scripts_of_a_mutex_that_others_know_agree_with_the_model() {
    scripts_agree_with_the_model(Kind::Exact);
}

#[test]
fn semaphore_scripts_agree_with_the_model() {
    scripts_agree_with_the_model(Kind::Semaphore);
}
