//! A rolling deploy: processes with the scripts of the layout before this one share gates with
//! processes that have these, and never are there two holders.
//!
//! `previous/` is that layout, as it was. When keys, values or records change, what they were goes
//! there, and this file says whether both may work side by side.

use std::time::Instant;

use proptest::prelude::*;
use redis::Value;

use super::super::Verb;
use super::rig::{Answer, CHANNEL, Rig, Scripts, TRY, WAIT, instance, token};
use super::support::Server;
use crate::backend::server::reply::{numbers, renewal, status};
use crate::key::Kind;

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!("previous/", $name, ".lua"))
    };
}

const BASICS: [&str; 4] = [
    text!("number"),
    text!("lifetime"),
    text!("clock"),
    text!("record"),
];
const LEASE_MS: u64 = 10_000;

/// The clock's file, swapped as it was then.
const CLOCK: &str = "
local given_us = tonumber(table.remove(ARGV))
local function now()
  return given_us, string.format(\"%.0f\", given_us)
end
";

/// The scripts of the layout before, as they were joined.
fn scripts() -> Scripts {
    let joined = |kind, verb| {
        let (setting, holders) = match kind {
            Kind::Mutex => ("local FENCED = true\n", text!("string_holders")),
            Kind::Exact => ("local FENCED = false\n", text!("string_holders")),
            Kind::Semaphore => ("", text!("zset_holders")),
        };
        let quick = match (kind, verb) {
            (Kind::Mutex, Verb::Acquire) => text!("string_acquire"),
            (Kind::Mutex, Verb::End) => text!("string_end"),
            (Kind::Semaphore, Verb::Acquire) => text!("zset_acquire"),
            (Kind::Semaphore, Verb::End) => text!("zset_end"),
            (Kind::Exact, _) | (_, Verb::Renew | Verb::Recheck | Verb::Swap) => "",
        };
        let body = match verb {
            Verb::Acquire => text!("acquire"),
            Verb::End => text!("end"),
            Verb::Renew => text!("renew"),
            // Not known there, and not asked for.
            Verb::Recheck | Verb::Swap => "",
        };
        let parts = [
            quick,
            text!("roster"),
            setting,
            holders,
            text!("gate"),
            text!("grant"),
            body,
        ];
        [&[CLOCK], &BASICS[..], &parts].concat().concat()
    };
    Scripts::made(joined)
}

/// Which layout a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Previous,
    This,
}

/// Who takes part: one process of each letter, with one token.
const ACTORS: [(char, Layout); 6] = [
    ('a', Layout::Previous),
    ('b', Layout::This),
    ('c', Layout::Previous),
    ('d', Layout::This),
    ('e', Layout::Previous),
    ('f', Layout::This),
];

#[derive(Debug, Clone, Copy)]
enum Deed {
    Acquire { actor: usize, waits: bool },
    End(usize),
    Renew(usize),
    Beat(usize),
    Pass(u64),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let actor = 0..ACTORS.len();
    let deed = prop_oneof![
        6 => (actor.clone(), any::<bool>())
            .prop_map(|(actor, waits)| Deed::Acquire { actor, waits }),
        4 => actor.clone().prop_map(Deed::End),
        3 => actor.clone().prop_map(Deed::Renew),
        2 => actor.prop_map(Deed::Beat),
        2 => (0..4_000_u64).prop_map(Deed::Pass),
    ];
    proptest::collection::vec(deed, 1..60)
}

/// Both layouts at one gate, and what each actor knows that it holds.
struct Fleet {
    rig: Rig,
    begun: Instant,
    limit: u32,
    /// The number of each actor's token: a new one after each end.
    turns: [u32; ACTORS.len()],
    held: [Option<(u64, u64)>; ACTORS.len()],
}

impl Fleet {
    fn new(server: &Server, kind: Kind) -> Self {
        let mut rig = Rig::new(server, Scripts::with_given_clock(), kind);
        for (letter, _) in ACTORS {
            rig.listen(&instance(letter));
        }
        Self {
            rig,
            begun: Instant::now(),
            limit: if kind == Kind::Semaphore { 2 } else { 1 },
            turns: [0; ACTORS.len()],
            held: [None; ACTORS.len()],
        }
    }

    fn token(&self, actor: usize) -> String {
        token(ACTORS[actor].0, self.turns[actor])
    }

    fn speak_as(&mut self, layout: Layout) {
        self.rig.install(match layout {
            Layout::Previous => scripts(),
            Layout::This => Scripts::with_given_clock(),
        });
    }

    fn acquire(&mut self, actor: usize, waits: bool) -> Answer {
        let (token, layout) = (self.token(actor), ACTORS[actor].1);
        self.speak_as(layout);
        let mut ask = if waits { WAIT } else { TRY };
        ask.limit = self.limit;
        if layout == Layout::This {
            return self.rig.acquire(&token, &ask);
        }
        let arguments = [
            token,
            CHANNEL.to_owned(),
            ask.weight.to_string(),
            ask.limit.to_string(),
            ask.lease_ms.to_string(),
            self.rig
                .ms()
                .saturating_add_signed(ask.latest_in_ms)
                .to_string(),
            ask.wait_ms.to_string(),
            ask.max_waiters.to_string(),
            ask.ticket.to_string(),
            u8::from(ask.pushed).to_string(),
        ];
        self.previously(Verb::Acquire, arguments.into())
    }

    fn end(&mut self, actor: usize) -> Answer {
        let (token, layout) = (self.token(actor), ACTORS[actor].1);
        self.speak_as(layout);
        self.held[actor] = None;
        self.turns[actor] += 1;
        if layout == Layout::This {
            return self.rig.end(&token);
        }
        let arguments = [&token, CHANNEL, "0", ""].map(str::to_owned);
        self.previously(Verb::End, arguments.into())
    }

    fn previously(&mut self, verb: Verb, arguments: Vec<String>) -> Answer {
        let keys = self.rig.keys();
        let value: Value = self.rig.run(verb, &keys, arguments)?;
        numbers(&value).map_err(|_| format!("answered {value:?}"))
    }

    fn renew(&mut self, actor: usize) -> Answer {
        let (letter, layout) = ACTORS[actor];
        self.speak_as(layout);
        let leases = self.held[actor].map(|(fence, _)| (self.token(actor), fence, LEASE_MS));
        let leases: Vec<_> = leases.into_iter().collect();
        self.rig.renew(&instance(letter), true, &leases)
    }

    fn act(&mut self, deed: Deed) -> Result<(), String> {
        match deed {
            Deed::Acquire { actor, waits } => {
                let answer = self.acquire(actor, waits)?;
                if answer[0] == status::HELD {
                    let (fence, left) = (answer[3] as u64, answer[4] as u64);
                    self.held[actor] = Some((fence, self.rig.ms() + left));
                }
            }
            Deed::End(actor) => drop(self.end(actor)?),
            Deed::Renew(actor) => {
                let answer = self.renew(actor)?;
                let left = answer.get(2).copied().unwrap_or(renewal::GONE);
                self.held[actor] = match self.held[actor] {
                    Some((fence, _)) if left >= 0 => Some((fence, self.rig.ms() + left as u64)),
                    _ => None,
                };
            }
            Deed::Beat(actor) => {
                let (letter, layout) = ACTORS[actor];
                self.speak_as(layout);
                self.rig.heartbeat(letter)?;
            }
            Deed::Pass(ms) => self.rig.pass(ms),
        }
        for (inbox, push) in self.rig.heard() {
            let Some(actor) = ACTORS
                .iter()
                .position(|(letter, _)| inbox == instance(*letter))
            else {
                continue;
            };
            let words: Vec<_> = push.split(' ').collect();
            if let ["g", token, fence, left] = words[..]
                && token == self.token(actor)
            {
                let number = |word: &str| word.parse::<u64>().map_err(|_| push.clone());
                self.held[actor] = Some((number(fence)?, self.rig.ms() + number(left)?));
            }
        }
        Ok(())
    }

    /// How many surely hold by what they were told. The keys of mutexes expire by the server's own
    /// clock, which goes on while the rig's stands still.
    fn holders(&self) -> usize {
        let now = self.rig.ms() + self.begun.elapsed().as_millis() as u64 + 1;
        let held = self.held.iter().flatten();
        held.filter(|(_, until)| *until > now).count()
    }
}

#[test]
fn processes_of_two_layouts_never_hold_together_and_leave_nothing() {
    let server = Server::start();
    for kind in Kind::ALL {
        let cases = ProptestConfig::with_cases(24);
        proptest!(cases, |(deeds in deeds())| {
            let mut fleet = Fleet::new(&server, kind);
            for deed in deeds {
                fleet.act(deed).map_err(TestCaseError::fail)?;
                let holders = fleet.holders();
                prop_assert!(holders <= fleet.limit as usize, "{kind:?}: {holders} hold");
            }
            for actor in 0..ACTORS.len() {
                fleet.act(Deed::End(actor)).map_err(TestCaseError::fail)?;
            }
            // Whoever comes next, of either layout, finds all of it free.
            for actor in [0, 1] {
                fleet.act(Deed::Acquire { actor, waits: false }).map_err(TestCaseError::fail)?;
                prop_assert_eq!(fleet.holders(), 1, "{:?}", kind);
                fleet.act(Deed::End(actor)).map_err(TestCaseError::fail)?;
            }
        });
    }
}

/// Each in turn, through a queue of both: nobody waits for ever.
#[test]
fn a_queue_of_two_layouts_is_served_to_its_end() {
    let server = Server::start();
    for kind in Kind::ALL {
        let mut fleet = Fleet::new(&server, kind);
        let mut waiting: Vec<usize> = (0..ACTORS.len()).collect();
        // As their processes do: each asks again every 3 s, and says that it lives every second.
        for second in 0.. {
            assert!(second < 60, "{kind:?}: {waiting:?} wait still");
            for actor in waiting.clone() {
                let deed = if second % 3 == 0 {
                    Deed::Acquire { actor, waits: true }
                } else {
                    Deed::Beat(actor)
                };
                fleet.act(deed).expect("a script that runs");
                if fleet.held[actor].is_some() {
                    fleet.act(Deed::End(actor)).expect("a script that runs");
                    waiting.retain(|other| *other != actor);
                }
            }
            if waiting.is_empty() {
                break;
            }
            fleet.act(Deed::Pass(1_000)).expect("time passes");
        }
    }
}
