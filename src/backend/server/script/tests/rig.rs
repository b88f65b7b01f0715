//! One gate on a server of the test's own, its scripts run by hand at a time of the test's
//! choosing.

use std::time::Duration;

use redis::{ConnectionLike, RedisError, RedisResult, Value};

use super::super::{Publish, Script, Verb};
use super::support::Server;
use crate::backend::server::reply::{Failure, numbers, whole_acquired, whole_ended};
use crate::key::{Kind, Prefix, Resource, Shared};

/// The clock's file, swapped: the time is the last argument, and the scripts never see it there.
pub(super) const GIVEN_CLOCK: &str = "
local given_us = table.remove(ARGV)
local function now()
  return given_us
end
";

pub(super) const KINDS: [Kind; 3] = Kind::ALL;

/// Where all clocks start, in microseconds: a whole second.
pub(super) const START_US: u64 = 1_800_000_000_000_000;

/// What precedes an instance in the name of its inbox.
pub(super) const CHANNEL: &str = "t:inbox:";

/// The inbox at the end of which other clients' channel lies, as far as the rig is concerned.
pub(super) const RELEASED: &str = "released";

/// The whole texts, by kind and verb.
#[derive(Clone)]
pub(super) struct Scripts(Vec<String>);

impl Scripts {
    /// The real ones, but for the clock.
    pub(super) fn with_given_clock() -> Self {
        Self::made(|kind, verb| Script::new(kind, verb, Publish::Plain, GIVEN_CLOCK).code)
    }

    pub(super) fn made(text: impl Fn(Kind, Verb) -> String) -> Self {
        let all = KINDS
            .into_iter()
            .flat_map(|kind| Verb::ALL.map(|verb| (kind, verb)));
        Self(all.map(|(kind, verb)| text(kind, verb)).collect())
    }

    pub(super) fn code(&self, kind: Kind, verb: Verb) -> &str {
        &self.0[kind as usize * Verb::ALL.len() + verb as usize]
    }

    /// Replaces a piece of text wherever it occurs; returns in how many scripts.
    pub(super) fn replace(&mut self, piece: &str, by: &str) -> usize {
        let mut found = 0;
        for code in &mut self.0 {
            if code.contains(piece) {
                *code = code.replace(piece, by);
                found += 1;
            }
        }
        found
    }
}

/// What an acquire asks for, where it differs from the usual.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) weight: u32,
    pub(super) limit: u32,
    pub(super) lease_ms: u64,
    /// How much later than the clock the request may run.
    pub(super) latest_in_ms: i64,
    pub(super) wait_ms: u64,
    pub(super) max_waiters: u32,
    pub(super) ticket: u64,
    pub(super) pushed: bool,
    pub(super) kept: u32,
}

/// Asks for the only permit, without waiting.
pub(super) const TRY: Ask = Ask {
    weight: 1,
    limit: 1,
    lease_ms: 10_000,
    latest_in_ms: 1_000,
    wait_ms: 0,
    max_waiters: 100,
    ticket: 0,
    pushed: true,
    kept: 0,
};

/// Asks for the only permit, and waits for it: as long as one does that has no deadline of its own.
pub(super) const WAIT: Ask = Ask {
    wait_ms: 86_400_000,
    ..TRY
};

/// The process `letter`.
pub(super) fn instance(letter: char) -> String {
    format!("instance---{letter}")
}

/// The token `number` of the process `letter`.
pub(super) fn token(letter: char, number: u32) -> String {
    format!("{}token-{number:016}", instance(letter))
}

/// An error is the text of a script's failure.
pub(super) type Answer = Result<Vec<i64>, String>;

/// A gate and who works at it.
pub(super) struct Rig {
    pub(super) kind: Kind,
    pub(super) us: u64,
    pub(super) gate: Resource,
    pub(super) shared: Shared,
    scripts: Scripts,
    server: redis::Connection,
    inboxes: redis::Connection,
    open: Vec<String>,
}

impl Rig {
    pub(super) fn new(server: &Server, scripts: Scripts, kind: Kind) -> Self {
        let prefix = Prefix::new("t").expect("a plain prefix");
        let name = "gate".into();
        let gate = match kind {
            Kind::Exact => Resource::exact(&prefix, "gate", &name),
            Kind::Mutex | Kind::Semaphore => Resource::named(&prefix, kind, &name, None),
        };
        let (commands, inboxes) = (server.connection(), server.connection());
        let mut rig = Self {
            kind,
            us: START_US,
            shared: prefix.shared(gate.tag),
            gate,
            scripts,
            server: commands,
            inboxes,
            open: Vec::new(),
        };
        rig.subscription("SUBSCRIBE", "marker");
        rig.reset();
        rig
    }

    /// Forgets all data, closes all inboxes and starts the clock afresh, as the user who may do
    /// everything.
    pub(super) fn reset(&mut self) {
        self.us = START_US;
        self.command(&["AUTH", "default", "any"]);
        self.command(&["CONFIG", "SET", "maxmemory", "0"]);
        self.command(&["FLUSHALL"]);
        // Heard out first: the answer to what follows would else be a message.
        self.heard();
        for instance in std::mem::take(&mut self.open) {
            self.subscription("UNSUBSCRIBE", &instance);
        }
    }

    pub(super) fn ms(&self) -> u64 {
        self.us / 1000
    }

    /// Lets time pass. A mutex' key expires by the server's own clock, so its TTL is moved along by
    /// hand.
    pub(super) fn pass(&mut self, ms: u64) {
        self.us += ms * 1000;
        if self.kind != Kind::Semaphore {
            let main = self.gate.main().to_owned();
            match self.number(&["PTTL", &main]) {
                left if left < 0 => 0,
                left if left as u64 <= ms => self.number(&["DEL", &main]),
                left => self.number(&["PEXPIRE", &main, &(left as u64 - ms).to_string()]),
            };
        }
    }

    pub(super) fn acquire(&mut self, token: &str, ask: &Ask) -> Answer {
        let arguments = self.to_acquire(token, ask);
        let value = self.run(Verb::Acquire, &self.keys(), arguments)?;
        whole_acquired(&value, Duration::from_millis(ask.lease_ms)).map_err(|_| garbled(&value))
    }

    fn to_acquire(&self, token: &str, ask: &Ask) -> Vec<String> {
        let latest = self.ms().saturating_add_signed(ask.latest_in_ms) * 1000 + 999;
        let terms = [
            u64::from(ask.weight),
            u64::from(ask.limit),
            ask.wait_ms,
            u64::from(ask.max_waiters),
            ask.ticket,
            u64::from(ask.pushed),
            u64::from(ask.kept),
        ];
        vec![
            token.to_owned(),
            ask.lease_ms.to_string(),
            latest.to_string(),
            terms.map(|number| number.to_string()).join(" "),
        ]
    }

    pub(super) fn end(&mut self, token: &str) -> Answer {
        self.end_unanswered(token, None)
    }

    /// Ends a token whose acquire may still run until `latest_in_ms` from here.
    pub(super) fn end_unanswered(&mut self, token: &str, latest_in_ms: Option<i64>) -> Answer {
        let arguments = self.to_end(token, latest_in_ms);
        let value = self.run(Verb::End, &self.keys(), arguments)?;
        whole_ended(&value).map_err(|_| garbled(&value))
    }

    fn to_end(&self, token: &str, latest_in_ms: Option<i64>) -> Vec<String> {
        let latest = latest_in_ms.map_or(0, |ms| self.ms().saturating_add_signed(ms));
        let released = format!("{CHANNEL}{RELEASED}");
        let released = if self.kind == Kind::Exact {
            &released
        } else {
            ""
        };
        [token, &latest.to_string(), released]
            .map(str::to_owned)
            .into()
    }

    /// Ends one token and asks by another, in one call; gives what was said to each.
    pub(super) fn swap(
        &mut self,
        (ends, latest_in_ms): (&str, Option<i64>),
        (asks, ask): (&str, &Ask),
    ) -> Result<(Answer, Answer), String> {
        let arguments = [self.to_end(ends, latest_in_ms), self.to_acquire(asks, ask)].concat();
        let value = self.run(Verb::Swap, &self.keys(), arguments)?;
        let Value::Array(parts) = &value else {
            return Err(garbled(&value));
        };
        let [ended, asked] = parts.as_slice() else {
            return Err(garbled(&value));
        };
        let told = |part: &Value| match part {
            Value::ServerError(error) => Err(format!("{:?}", Failure::of_server(error.clone()))),
            part => numbers(part).map_err(|_| garbled(part)),
        };
        Ok((told(ended), told(asked)))
    }

    /// Renews leases at this gate: tokens, fences, and how long from here.
    pub(super) fn renew(
        &mut self,
        instance: &str,
        waits: bool,
        leases: &[(String, u64, u64)],
    ) -> Answer {
        let mut keys = vec![
            self.shared.roster.to_string(),
            self.shared.clock.to_string(),
        ];
        let mut arguments = vec![instance.to_owned(), u8::from(waits).to_string()];
        for (token, fence, lease_ms) in leases {
            keys.extend([self.gate.main().to_owned(), self.gate.records().to_owned()]);
            arguments.extend([token.clone(), fence.to_string(), lease_ms.to_string()]);
        }
        self.run_renew(&keys, arguments)
    }

    /// The same with any keys.
    pub(super) fn run_renew(&mut self, keys: &[String], arguments: Vec<String>) -> Answer {
        let value = self.run(Verb::Renew, keys, arguments)?;
        numbers(&value).map_err(|_| garbled(&value))
    }

    /// Asks which of these the process has, and whether others wait.
    pub(super) fn recheck(&mut self, instance: &str, tokens: &[String]) -> Answer {
        let [main, queue, records, _, clock]: [String; 5] =
            self.keys().try_into().expect("a gate has five keys");
        let arguments = [&[instance.to_owned()], tokens].concat();
        let value = self.run(Verb::Recheck, &[main, queue, records, clock], arguments)?;
        numbers(&value).map_err(|_| garbled(&value))
    }

    pub(super) fn heartbeat(&mut self, letter: char) -> Answer {
        self.renew(&instance(letter), true, &[])
    }

    /// Runs a script with the rig's time.
    pub(super) fn run(
        &mut self,
        verb: Verb,
        keys: &[String],
        mut arguments: Vec<String>,
    ) -> Result<Value, String> {
        arguments.push(self.us.to_string());
        let mut command = redis::cmd("EVAL");
        command
            .arg(self.scripts.code(self.kind, verb))
            .arg(keys.len())
            .arg(keys)
            .arg(arguments);
        // Not by `query`, which takes an error inside of an answer for all of it.
        match self
            .server
            .req_packed_command(&command.get_packed_command())
        {
            Ok(Value::ServerError(error)) => Err(RedisError::from(error).to_string()),
            answer => answer.map_err(|error| error.to_string()),
        }
    }

    pub(super) fn keys(&self) -> Vec<String> {
        [
            self.gate.main(),
            self.gate.queue(),
            self.gate.records(),
            &self.shared.roster,
            &self.shared.clock,
        ]
        .map(str::to_owned)
        .into()
    }

    /// Opens an inbox: of the process with this instance.
    pub(super) fn listen(&mut self, instance: &str) {
        self.open.push(instance.to_owned());
        self.subscription("SUBSCRIBE", instance);
    }

    /// Closes an inbox, as when its connection ends.
    pub(super) fn deafen(&mut self, instance: &str) {
        self.open.retain(|open| open != instance);
        self.subscription("UNSUBSCRIBE", instance);
    }

    fn subscription(&mut self, command: &str, instance: &str) {
        let packed = redis::cmd(command)
            .arg(format!("{CHANNEL}{instance}"))
            .get_packed_command();
        let answer = self.inboxes.req_packed_command(&packed);
        answer.expect("the server is up");
    }

    /// What the open inboxes have heard since the last look, in order: instance and text.
    pub(super) fn heard(&mut self) -> Vec<(String, String)> {
        self.number(&["PUBLISH", &format!("{CHANNEL}marker"), "end"]);
        let mut heard = Vec::new();
        loop {
            let message = self.inboxes.recv_response().expect("the server is up");
            let (_, channel, text): (String, String, String) =
                redis::from_redis_value(message).expect("a message has three parts");
            match channel.strip_prefix(CHANNEL) {
                Some("marker") => return heard,
                Some(instance) => heard.push((instance.to_owned(), text)),
                None => heard.push((channel, text)),
            }
        }
    }

    /// Sends a command that the server takes.
    pub(super) fn command(&mut self, words: &[&str]) -> Value {
        self.try_command(words)
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub(super) fn try_command(&mut self, words: &[&str]) -> RedisResult<Value> {
        redis::Cmd::new().arg(words).query(&mut self.server)
    }

    pub(super) fn number(&mut self, words: &[&str]) -> i64 {
        redis::from_redis_value(self.command(words)).expect("the command answers with a number")
    }

    pub(super) fn texts(&mut self, words: &[&str]) -> Vec<String> {
        redis::from_redis_value(self.command(words)).expect("the command answers with texts")
    }

    /// All keys, byte by byte.
    pub(super) fn snapshot(&mut self) -> Vec<Value> {
        self.keys()
            .iter()
            .map(|key| self.command(&["DUMP", key]))
            .collect()
    }

    /// Whether anybody holds or has held, as far as the main key tells.
    pub(super) fn is_held(&mut self) -> bool {
        let main = self.gate.main().to_owned();
        self.number(&["EXISTS", &main]) == 1
    }

    pub(super) fn waiters(&mut self) -> i64 {
        let queue = self.gate.queue().to_owned();
        self.number(&["ZCARD", &queue])
    }

    /// Writes by hand that `letter` lives.
    pub(super) fn revive(&mut self, letter: char) {
        let (roster, ends) = (
            self.shared.roster.to_string(),
            (self.ms() + 3_000).to_string(),
        );
        self.number(&["ZADD", &roster, &ends, &instance(letter)]);
    }

    /// Whether the server compiles all scripts.
    pub(super) fn compiles(&mut self) -> bool {
        let codes = self.scripts.0.clone();
        codes
            .iter()
            .all(|code| self.try_command(&["SCRIPT", "LOAD", code]).is_ok())
    }

    /// Runs other scripts from here on.
    pub(super) fn install(&mut self, scripts: Scripts) {
        self.scripts = scripts;
    }
}

/// A nil that slipped into an answer, say.
fn garbled(value: &Value) -> String {
    format!("answered {value:?}")
}
