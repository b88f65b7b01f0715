//! One gate's place on a server of the test's own, its scripts run by hand at a time of the test's
//! choosing.

use std::collections::VecDeque;

use redis::{ConnectionLike, FromRedisValue};

use super::super::{Verb, get};
use crate::backend::server::script::tests::support::Server;
use crate::key::Kind;

/// What the scripts have in place of the server's clock.
const GIVEN_CLOCK: &str = "
local given_us = table.remove(ARGV)
local function now()
  return given_us
end
";
const VERBS: [Verb; 3] = [Verb::Acquire, Verb::End, Verb::Renew];
pub(super) const KINDS: [Kind; 2] = [Kind::Mutex, Kind::Semaphore];

pub(super) const MAIN: &str = "t:{x}:m";
pub(super) const QUEUE: &str = "t:{x}:q";
pub(super) const ROSTER: &str = "t:{x}:roster";
pub(super) const CLOCK: &str = "t:{x}:clock";
/// Where the end of what was told is told.
const MARKER: &str = "marker";
/// Where other clients hear of releases.
pub(super) const RELEASED: &str = "released";

pub(super) const HELD: i64 = 0;
pub(super) const QUEUED: i64 = 1;
pub(super) const BUSY: i64 = 2;
pub(super) const FULL: i64 = 3;
pub(super) const LATE: i64 = 4;
pub(super) const ENDED: i64 = 5;

pub(super) const RELEASE: i64 = 0;
pub(super) const CANCELLED: i64 = 1;
pub(super) const GONE: i64 = 2;

pub(super) const TRY: u8 = 0;
pub(super) const WAIT: u8 = 1;
pub(super) const FILL: u8 = 2;

/// Of leases, in ms.
pub(super) const LEASE: u64 = 10_000;

/// The whole texts, by kind and verb.
#[derive(Clone)]
pub(super) struct Scripts(Vec<String>);

impl Scripts {
    pub(super) fn sound() -> Self {
        let now = include_str!("../../../../lua/lib/now.lua");
        let all = KINDS
            .into_iter()
            .flat_map(|kind| VERBS.map(|verb| get(kind, verb)));
        let given = |code: &String| {
            assert!(code.contains(now), "the clock is in front");
            code.replace(now, GIVEN_CLOCK)
        };
        Self(all.map(|script| given(&script.code)).collect())
    }

    /// Replaces a piece of text wherever it occurs; whether it does.
    pub(super) fn replace(&mut self, piece: &str, by: &str) -> bool {
        let found = self.0.iter().any(|code| code.contains(piece));
        for code in &mut self.0 {
            *code = code.replace(piece, by);
        }
        found
    }
}

/// Who asks, and what for, where it differs from the usual.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) name: String,
    pub(super) lease: u64,
    pub(super) latest_in: i64,
    pub(super) limit: u32,
    pub(super) max_waiters: u32,
    pub(super) mode: u8,
    pub(super) pushed: bool,
    pub(super) fence: u64,
}

/// The acquisition of process `letter` with this ticket.
pub(super) fn ask(letter: char, ticket: u32, mode: u8) -> Ask {
    weighing(letter, ticket, mode, 1)
}

pub(super) fn weighing(letter: char, ticket: u32, mode: u8, weight: u32) -> Ask {
    Ask {
        name: format!("instance---{letter}token{ticket}.{ticket}.{weight}"),
        lease: LEASE,
        latest_in: 1_000,
        limit: 1,
        max_waiters: 100,
        mode,
        pushed: true,
        fence: 1,
    }
}

pub(super) struct Rig {
    pub(super) kind: Kind,
    pub(super) ms: u64,
    scripts: Scripts,
    server: redis::Connection,
    /// The channels that are listened to.
    listens: Vec<String>,
    inboxes: redis::Connection,
    told: VecDeque<String>,
}

impl Rig {
    pub(super) fn new(server: &Server, kind: Kind) -> Self {
        let mut rig = Self {
            kind,
            ms: 1_800_000_000_000,
            scripts: Scripts::sound(),
            server: server.connection(),
            listens: Vec::new(),
            inboxes: server.connection(),
            told: VecDeque::new(),
        };
        rig.subscription("SUBSCRIBE", MARKER);
        rig
    }

    /// Forgets all, and takes these scripts.
    pub(super) fn reset(&mut self, scripts: &Scripts) {
        self.scripts = scripts.clone();
        self.ms = 1_800_000_000_000;
        self.command::<()>(&["FLUSHALL"]);
        // Heard out first: the answer to what follows would else be a message.
        while self.heard().is_some() {}
        for channel in std::mem::take(&mut self.listens) {
            self.subscription("UNSUBSCRIBE", &channel);
        }
    }

    pub(super) fn command<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query(&mut self.server).expect("it is answered")
    }

    pub(super) fn exists(&mut self, key: &str) -> bool {
        self.command(&["EXISTS", key])
    }

    pub(super) fn is_queued(&mut self, ask: &Ask) -> bool {
        let score: Option<f64> = self.command(&["ZSCORE", QUEUE, &ask.name]);
        score.is_some()
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.ms += ms;
    }

    /// Listens for the process `letter`.
    pub(super) fn listen(&mut self, letter: char) {
        self.subscribe(format!("t:inbox:instance---{letter}"));
    }

    pub(super) fn subscribe(&mut self, channel: String) {
        self.subscription("SUBSCRIBE", &channel);
        self.listens.push(channel);
    }

    fn subscription(&mut self, command: &str, channel: &str) {
        let packed = redis::cmd(command).arg(channel).get_packed_command();
        let answer = self.inboxes.req_packed_command(&packed);
        answer.expect("the server is up");
    }

    /// What was told next, if anything was.
    pub(super) fn heard(&mut self) -> Option<String> {
        self.command::<()>(&["PUBLISH", MARKER, "end"]);
        loop {
            let message = self.inboxes.recv_response().expect("the server is up");
            let (_, channel, text): (String, String, String) =
                redis::from_redis_value(message).expect("a message has three parts");
            if channel == MARKER {
                return self.told.pop_front();
            }
            self.told.push_back(text);
        }
    }

    fn run(&mut self, verb: Verb, keys: &[&str], arguments: &[String]) -> Result<Vec<i64>, String> {
        let kind = usize::from(self.kind == Kind::Semaphore);
        let code = &self.scripts.0[kind * VERBS.len() + verb as usize];
        let mut command = redis::cmd("EVAL");
        command.arg(code).arg(keys.len()).arg(keys);
        command.arg(arguments).arg(self.ms * 1_000);
        let answer = command.query(&mut self.server);
        let mut answer: Vec<i64> = answer.map_err(|error| error.to_string())?;
        // A law looks at what a broken script may not say.
        answer.resize(6, i64::MIN);
        // Whatever a client leaves ends by itself.
        for key in [MAIN, QUEUE, ROSTER, CLOCK] {
            if self.command::<i64>(&["PTTL", key]) == -1 {
                return Err(format!("{key} stays for ever"));
            }
        }
        Ok(answer)
    }

    pub(super) fn acquire(&mut self, ask: &Ask) -> Result<Vec<i64>, String> {
        let latest = self.ms.saturating_add_signed(ask.latest_in);
        let (limit, waiters, mode) = (ask.limit, ask.max_waiters, ask.mode);
        let (pushed, fence) = (u8::from(ask.pushed), ask.fence);
        let terms = format!("{limit} {waiters} {mode} {pushed} {fence}");
        let arguments = [
            ask.name.clone(),
            ask.lease.to_string(),
            latest.to_string(),
            terms,
        ];
        self.run(Verb::Acquire, &[MAIN, QUEUE, ROSTER, CLOCK], &arguments)
    }

    /// With how much later an ask of it may run, if one may.
    pub(super) fn end(
        &mut self,
        ask: &Ask,
        latest_in: Option<u64>,
        stay: bool,
    ) -> Result<i64, String> {
        let latest = latest_in.map_or(0, |ms| self.ms + ms);
        let arguments = [
            ask.name.clone(),
            latest.to_string(),
            if stay { "2" } else { "0" }.to_owned(),
            ask.limit.to_string(),
            RELEASED.to_owned(),
        ];
        let answer = self.run(Verb::End, &[MAIN, QUEUE, ROSTER], &arguments)?;
        Ok(answer[0])
    }

    pub(super) fn renew(
        &mut self,
        ask: &Ask,
        lease: u64,
        fence: u64,
        agreed: bool,
    ) -> Result<Vec<i64>, String> {
        let arguments = [
            ask.name.clone(),
            lease.to_string(),
            fence.to_string(),
            u8::from(agreed).to_string(),
        ];
        self.run(Verb::Renew, &[MAIN, CLOCK], &arguments)
    }

    /// How long the lease of `ask` runs on the server.
    pub(super) fn left(&mut self, ask: &Ask) -> i64 {
        match self.kind {
            Kind::Mutex | Kind::Exact => self.command(&["PTTL", MAIN]),
            Kind::Semaphore => {
                let ends: Option<f64> = self.command(&["ZSCORE", MAIN, &ask.name]);
                ends.map_or(-2, |ends| ends as i64 - self.ms as i64)
            }
        }
    }
}
