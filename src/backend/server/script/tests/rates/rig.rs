//! One subject on a server, and the same one in memory and in the model.
//!
//! A key expires by the server's own clock and not by the given one, so here each is written for
//! longer than a test takes, and that much is left out of account.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::backend::memory::rates::{Change, Outcome, Rates, State, Unbook, decide};
use crate::backend::server::call::take_arguments;
use crate::backend::server::reply::{self, Trace};
use crate::backend::server::script::Script;
use crate::backend::server::script::tests::rig::{GIVEN_CLOCK, START_US};
use crate::backend::server::script::tests::support::Server;
use crate::backend::{Level, Op, Take, Turns};
use crate::rate_limit::Quotas;
use crate::time::{self, Clock};

const KEY: &str = "t:{a}:l:subject";
/// Added to each TTL, so that no key of a test expires.
const LONG_MS: i64 = 1_000_000;

/// Behind the clock: what writes, writes for longer.
const LASTING: &str = "
local real = redis
local redis = {call = function(...)
  local words = {...}
  if words[1] == 'SET' then
    words[5] = string.format('%.0f', words[5] + 1000000)
  end
  return real.call(unpack(words))
end}
";

pub(super) fn script() -> String {
    Script::of_rates(&[GIVEN_CLOCK, LASTING].concat()).code
}

/// A turn that is booked and has not come.
#[derive(Debug)]
pub(super) struct Booked {
    /// The moment at which it comes.
    pub(super) at: u64,
    pub(super) cost: u32,
    trace: Trace,
    before: Option<State>,
    after: State,
    in_memory: Box<Unbook>,
}

/// The backend in memory, by a clock that is read off `us`.
struct Memory {
    rates: Rates,
    clock: Clock,
    us: Arc<AtomicU64>,
}

impl Memory {
    fn new() -> Self {
        let us = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&us);
        let read = move || time::Instant::from_nanos(read.load(Ordering::Relaxed) * 1000);
        Self {
            rates: Rates::new(),
            clock: Clock::made(read),
            us,
        }
    }

    /// Decides as the model, or tells how it differs.
    fn take(&self, us: u64, take: &Take, outcome: &Outcome) -> Result<Option<Box<Unbook>>, String> {
        self.us.store(us, Ordering::Relaxed);
        let mut booked = None;
        let taken = self.rates.take(&self.clock, KEY, take, |unbook| {
            booked = Some(unbook);
            Turns::default().book((), |_, _| ())
        });
        let same = taken.admitted == outcome.admitted
            && taken.wait.as_micros() == u128::from(outcome.wait)
            && taken.levels == outcome.levels;
        if same {
            Ok(booked)
        } else {
            Err(format!("in memory {take:?}: {taken:?}, not {outcome:?}"))
        }
    }

    fn unbook(&self, us: u64, booked: Unbook) {
        self.us.store(us, Ordering::Relaxed);
        self.rates.unbook(&self.clock, KEY, booked);
    }
}

pub(super) struct Rig {
    server: redis::Connection,
    sha: String,
    model: Option<State>,
    memory: Memory,
    /// What the given clock reads.
    pub(super) us: u64,
    /// The key was stripped of its TTL, and no call has come to it since.
    stripped: bool,
    /// When the last call was.
    asked: Instant,
    /// Between which moments the key ends.
    ends: Option<[Instant; 2]>,
}

/// What both have answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) admitted: bool,
    pub(super) wait: u64,
    pub(super) levels: Box<[Level]>,
    pub(super) booked: Option<Booked>,
    /// It has changed what is kept.
    pub(super) written: bool,
}

impl Rig {
    pub(super) fn new(server: &Server, code: &str) -> Self {
        let mut rig = Self {
            server: server.connection(),
            sha: String::new(),
            model: None,
            memory: Memory::new(),
            us: START_US,
            stripped: false,
            asked: Instant::now(),
            ends: None,
        };
        rig.install(code);
        rig.reset();
        rig
    }

    /// Runs another script from here on.
    pub(super) fn install(&mut self, code: &str) {
        self.sha = self.command(&["SCRIPT", "LOAD", code]);
    }

    pub(super) fn reset(&mut self) {
        let _: Value = self.command(&["FLUSHALL"]);
        self.model = None;
        self.memory = Memory::new();
        self.us = START_US;
        self.stripped = false;
    }

    fn command<T: redis::FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command
            .query(&mut self.server)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn eval(&mut self, us: u64, arguments: impl FnOnce(&mut redis::Cmd)) -> Result<Value, String> {
        self.asked = Instant::now();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(1).arg(KEY);
        arguments(&mut command);
        command.arg(us);
        command
            .query(&mut self.server)
            .map_err(|error| error.to_string())
    }

    fn ask(
        &mut self,
        us: u64,
        take: &Take,
    ) -> Result<(reply::Taken, Outcome, Option<Box<Unbook>>), String> {
        let value = self.eval(us, |command| take_arguments(command, take))?;
        let taken = reply::taken(&value, take).map_err(|_| format!("garbled: {value:?}"))?;
        let rules = take.quotas.rules();
        let outcome = decide(self.model.as_ref(), us, take.op, take.cost, rules);
        let booked = self.memory.take(us, take, &outcome)?;
        Ok((taken, outcome, booked))
    }

    /// Whether the call would be admitted at another time; nothing is changed by that.
    pub(super) fn would(&mut self, us: u64, cost: u32, quotas: &Quotas) -> Result<bool, String> {
        let take = take(Op::Peek, cost, quotas);
        match self.ask(us, &take)? {
            (reply::Taken::Decided { admitted, .. }, outcome, _)
                if admitted == outcome.admitted =>
            {
                Ok(admitted)
            }
            (taken, outcome, _) => Err(format!("{take:?} at {us}: {taken:?}, not {outcome:?}")),
        }
    }

    pub(super) fn call(&mut self, op: Op, cost: u32, quotas: &Quotas) -> Result<Answer, String> {
        let take = take(op, cost, quotas);
        let (taken, outcome, in_memory) = self.ask(self.us, &take)?;
        let reply::Taken::Decided {
            admitted,
            wait,
            levels,
            trace,
        } = taken
        else {
            return Err(format!("{take:?}: {taken:?}"));
        };
        let wait_us = wait.as_micros() as u64;
        let same = admitted == outcome.admitted
            && wait_us == outcome.wait
            && levels == outcome.levels
            && trace.is_some() == (wait_us > 0);
        if !same {
            return Err(format!(
                "{take:?}: {admitted}, {wait_us}, {levels:?}, {trace:?}; the model says {outcome:?}"
            ));
        }
        let before = self.model.clone();
        let written = outcome.change != Change::None;
        self.follow(outcome.change)?;
        let booked = trace.zip(in_memory).map(|(trace, in_memory)| Booked {
            at: self.us + wait_us,
            cost,
            trace,
            before,
            after: self.model.clone().expect("a turn is booked"),
            in_memory,
        });
        Ok(Answer {
            admitted,
            wait: wait_us,
            levels,
            booked,
            written,
        })
    }

    /// Gives a booked turn back; tells whether it was taken back, and not forfeited.
    pub(super) fn unbook(&mut self, booked: Booked) -> Result<bool, String> {
        let Booked {
            trace,
            before,
            after,
            in_memory,
            ..
        } = booked;
        self.memory.unbook(self.us, *in_memory);
        self.eval(self.us, |command| {
            command
                .arg("u")
                .arg(0)
                .arg(&*trace.before)
                .arg(&*trace.after);
        })?;
        let change = State::unbook(self.model.as_ref(), before, &after, self.us);
        let taken_back = change != Change::None;
        if taken_back {
            self.follow(change)?;
        }
        Ok(taken_back)
    }

    pub(super) fn strip(&mut self) {
        let stripped: i64 = self.command(&["PERSIST", KEY]);
        self.stripped |= stripped == 1;
    }

    /// Changes the model as the server was changed, and compares what is kept for how long.
    fn follow(&mut self, change: Change) -> Result<(), String> {
        let written = change != Change::None;
        match change {
            Change::None => {}
            Change::Write(state) => self.model = Some(state),
            Change::Remove => self.model = None,
        }
        let left_ms: i64 = self.command(&["PTTL", KEY]);
        // What says nothing any more, and has lost its TTL, is gone.
        if self.stripped && left_ms == -2 {
            let ends = self.model.as_ref().map_or(0, State::ends);
            if ends <= self.us {
                self.model = None;
            }
        }
        let stripped = std::mem::take(&mut self.stripped);
        let Some(state) = &self.model else {
            return match left_ms {
                -2 => Ok(()),
                _ => Err(format!("left for {left_ms} ms, where nothing should be")),
            };
        };
        let needed_ms = state.ends().saturating_sub(self.us).div_ceil(1000) as i64;
        // Time passes on the server, too.
        let lasts = if written || stripped {
            let late = needed_ms + LONG_MS - left_ms;
            (0..=self.asked.elapsed().as_millis() as i64 + 1).contains(&late)
        } else {
            // Not written again, so it goes on to end when it did.
            self.ends.is_some_and(|[first, last]| {
                let left = |end: Instant, from: Instant| {
                    end.saturating_duration_since(from).as_millis() as i64
                };
                let now = Instant::now();
                (left(first, now) - 1..=left(last, self.asked) + 1).contains(&left_ms)
            })
        };
        if written || stripped {
            let lasts = Duration::from_millis((needed_ms + LONG_MS) as u64);
            self.ends = Some([self.asked + lasts, Instant::now() + lasts]);
        }
        if !lasts {
            return Err(format!(
                "kept for {left_ms} ms, where {needed_ms} are needed"
            ));
        }
        Ok(())
    }
}

pub(super) fn take(op: Op, cost: u32, quotas: &Quotas) -> Take {
    Take {
        op,
        cost,
        quotas: quotas.clone(),
        bridge: None,
    }
}
