//! The requests that go to one server of a quorum.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::script::{self, Verb};
use crate::backend::server::Script;
use crate::backend::server::call::{Names, millis};
use crate::key::Resource;
use crate::time::Instant;
use crate::token::{Instance, Token};

/// One request, with all that its answer needs to be understood.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) server: usize,
    pub(super) sent: Instant,
    pub(super) who: Who,
    pub(super) body: Body,
}

/// Whom a request is for, and where.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) token: Token,
    /// By which all servers put those who wait in the same order.
    pub(super) ticket: u64,
    pub(super) weight: u32,
    pub(super) limit: u32,
    pub(super) resource: Arc<Resource>,
}

#[derive(Debug)]
pub(super) enum Body {
    Ask(Ask),
    End {
        /// The greatest `latest_ms` of the unanswered asks, 0 if all are answered.
        latest_ms: u64,
        /// Gives way, and waits on.
        stay: bool,
        /// Whether a push would be heard by who does.
        pushed: bool,
    },
    Renew {
        fence: u64,
        /// Whether it has been agreed on.
        agreed: bool,
        lease: Duration,
    },
}

#[derive(Debug)]
pub(super) struct Ask {
    pub(super) lease: Duration,
    /// The server's time after which it must create nothing.
    pub(super) latest_ms: u64,
    pub(super) max_waiters: u32,
    pub(super) mode: Mode,
    /// Whether a push would be heard.
    pub(super) pushed: bool,
    pub(super) fence: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Try,
    Wait,
    /// A lease that a majority holds is to be held here, too.
    Fill,
}

impl Who {
    /// As the servers store it.
    fn name(&self, instance: &Instance) -> String {
        let token = self.token.text(instance);
        let mut name = String::with_capacity(Token::LENGTH + 24);
        name.push_str(std::str::from_utf8(&token).unwrap_or_default());
        let _ = write!(name, ".{}.{}", self.ticket, self.weight);
        name
    }
}

/// Reads the token in a name of `instance`'s back; `None` for anything else.
pub(super) fn token_of(name: &[u8], instance: &Instance) -> Option<Token> {
    Token::parse(name.get(..Token::LENGTH)?, instance)
}

impl Call {
    pub(super) fn script(&self) -> &'static Script {
        let verb = match &self.body {
            Body::Ask(_) => Verb::Acquire,
            Body::End { .. } => Verb::End,
            Body::Renew { .. } => Verb::Renew,
        };
        script::get(self.who.resource.kind, verb)
    }

    /// The command for the server: by hash, or whole where the server does not know the script.
    pub(super) fn command(&self, whole: bool, instance: &Instance, names: &mut Names) -> Cmd {
        let (script, resource) = (self.script(), &self.who.resource);
        let shared = names.of(resource.tag);
        let mut cmd = Cmd::with_capacity(16, 500);
        if whole {
            cmd.arg("EVAL").arg(&script.code);
        } else {
            cmd.arg("EVALSHA").arg(&script.sha);
        }
        let name = self.who.name(instance);
        match &self.body {
            Body::Ask(ask) => {
                let mode = match ask.mode {
                    Mode::Try => 0,
                    Mode::Wait => 1,
                    Mode::Fill => 2,
                };
                let (limit, waiters) = (self.who.limit, ask.max_waiters);
                let (pushed, fence) = (u8::from(ask.pushed), ask.fence);
                cmd.arg(4).arg(resource.main()).arg(resource.queue());
                cmd.arg(&*shared.roster).arg(&*shared.clock);
                cmd.arg(name).arg(millis(ask.lease)).arg(ask.latest_ms);
                cmd.arg(format!("{limit} {waiters} {mode} {pushed} {fence}"));
            }
            Body::End {
                latest_ms,
                stay,
                pushed,
            } => {
                let stay = if *stay { 1 + u8::from(*pushed) } else { 0 };
                cmd.arg(3).arg(resource.main()).arg(resource.queue());
                cmd.arg(&*shared.roster);
                cmd.arg(name).arg(latest_ms).arg(stay);
                cmd.arg(self.who.limit);
                cmd.arg(resource.released.as_deref().unwrap_or_default());
            }
            Body::Renew {
                fence,
                agreed,
                lease,
            } => {
                cmd.arg(2).arg(resource.main()).arg(&*shared.clock);
                cmd.arg(name).arg(millis(*lease)).arg(fence);
                cmd.arg(u8::from(*agreed));
            }
        }
        cmd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Kind, Prefix};

    #[test]
    fn a_name_says_who_it_is_and_is_read_back_by_its_own_process_alone() {
        let instance = Instance::draw().expect("the system has randomness");
        let resource = Resource::named(&Prefix::default(), Kind::Mutex, &"a".into(), None);
        let who = Who {
            token: Token::of(7),
            ticket: 1_700_000_000_000_000,
            weight: 3,
            limit: 4,
            resource: Arc::new(resource),
        };
        let name = who.name(&instance);
        assert!(name.ends_with(".1700000000000000.3"), "{name}");
        assert_eq!(token_of(name.as_bytes(), &instance), Some(Token::of(7)));
        let other = Instance::draw().expect("the system has randomness");
        assert_eq!(token_of(name.as_bytes(), &other), None);
        assert_eq!(token_of(b"short", &instance), None);
    }
}
