//! The requests that go to a server: which script, with which keys and arguments.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::reply::Trace;
use super::script::{Publish, Script, Verb};
use crate::backend::{self, Op};
use crate::key::{Kind, Prefix, Resource, Shared, Subject, Tag};
use crate::rate_limit::{Id, Method};
use crate::time::Instant;
use crate::token::{FencingToken, Instance, Token};

/// How long a waiter without a deadline of its own may stand in the queue. The client asks again
/// long before.
pub(in crate::backend) const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// One request, with all that its answer needs to be understood.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) sent: Instant,
    pub(super) body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    Acquire(Ask),
    End(End),
    /// Both at one gate: an end and then an acquire, each answered as by itself.
    Swap(Box<(End, Ask)>),
    Renew(Renew),
    Recheck(Recheck),
    Take(Take),
    Unbook(Unbook),
}

#[derive(Debug)]
pub(super) struct Ask {
    pub(super) token: Token,
    pub(super) resource: Arc<Resource>,
    pub(super) weight: u32,
    pub(super) limit: u32,
    pub(super) lease: Duration,
    /// The server's time after which it must create nothing.
    pub(super) latest_ms: u64,
    /// How long to stand in the queue; `None` for a day.
    pub(super) wait: Option<Duration>,
    pub(super) max_waiters: u32,
    /// The place to re-enter with, 0 for a fresh one.
    pub(super) ticket: u64,
    /// Whether a push would be heard.
    pub(super) pushed: bool,
    /// As in [`Terms`].
    pub(super) kept: u32,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) token: Token,
    pub(super) resource: Arc<Resource>,
    /// The greatest `latest_ms` of this token's unanswered acquires, 0 if all are answered.
    pub(super) latest_ms: u64,
}

#[derive(Debug)]
pub(super) struct Renew {
    pub(super) tag: Tag,
    pub(super) kind: Kind,
    /// Whether this process has waiters under this tag.
    pub(super) waits: bool,
    /// Whether replicas have to have it before it counts: it takes the connection for that.
    pub(super) acknowledged: bool,
    pub(super) leases: Vec<Extend>,
}

#[derive(Debug)]
pub(super) struct Extend {
    pub(super) token: Token,
    pub(super) resource: Arc<Resource>,
    pub(super) fence: FencingToken,
    pub(super) lease: Duration,
}

/// Asks which of a gate's kept permits are there still, and whether others wait.
#[derive(Debug)]
pub(super) struct Recheck {
    pub(super) resource: Arc<Resource>,
    /// At most [`MOST_RECHECKED`].
    pub(super) tokens: Vec<Token>,
}

/// How many permits one call may ask about: 1 us each.
pub(super) const MOST_RECHECKED: usize = 64;

/// A call at the quotas of a subject.
#[derive(Debug)]
pub(super) struct Take {
    /// Whose it is in this process.
    pub(super) id: u64,
    pub(super) subject: Arc<Subject>,
    pub(super) take: backend::Take,
}

/// Gives a booking back.
#[derive(Debug, Clone)]
pub(super) struct Unbook {
    /// Which one it is in this process.
    pub(super) id: u64,
    pub(super) subject: Arc<Subject>,
    pub(super) trace: Trace,
}

impl Call {
    pub(super) fn tag(&self) -> Tag {
        match &self.body {
            Body::Acquire(ask) => ask.resource.tag,
            Body::End(end) => end.resource.tag,
            Body::Swap(swap) => swap.0.resource.tag,
            Body::Renew(renew) => renew.tag,
            Body::Recheck(recheck) => recheck.resource.tag,
            Body::Take(take) => take.subject.tag,
            Body::Unbook(unbook) => unbook.subject.tag,
        }
    }

    /// Whether replicas have to have what it leaves.
    pub(super) const fn is_acknowledged(&self) -> bool {
        matches!(&self.body, Body::Renew(renew) if renew.acknowledged)
    }

    pub(super) fn script(&self, publish: Publish) -> &'static Script {
        match &self.body {
            Body::Acquire(ask) => Script::get(ask.resource.kind, Verb::Acquire, publish),
            Body::End(end) => Script::get(end.resource.kind, Verb::End, publish),
            Body::Swap(swap) => Script::get(swap.0.resource.kind, Verb::Swap, publish),
            Body::Renew(renew) => Script::get(renew.kind, Verb::Renew, publish),
            Body::Recheck(recheck) => Script::get(recheck.resource.kind, Verb::Recheck, publish),
            Body::Take(_) | Body::Unbook(_) => Script::take(),
        }
    }

    /// The command for the server: by hash, or whole where the server does not know the script.
    pub(super) fn command(
        &self,
        publish: Publish,
        whole: bool,
        instance: &Instance,
        names: &mut Names,
    ) -> Cmd {
        let script = self.script(publish);
        let mut cmd = Cmd::with_capacity(20, 600);
        let shared = names.of(self.tag());
        if whole {
            cmd.arg("EVAL").arg(&script.code);
        } else {
            cmd.arg("EVALSHA").arg(&script.sha);
        }
        match &self.body {
            Body::Acquire(ask) => {
                gate_keys(&mut cmd, &ask.resource, shared);
                ask_arguments(&mut cmd, ask, instance);
            }
            Body::End(end) => {
                gate_keys(&mut cmd, &end.resource, shared);
                end_arguments(&mut cmd, end, instance);
            }
            Body::Swap(swap) => {
                let (end, ask) = &**swap;
                gate_keys(&mut cmd, &end.resource, shared);
                end_arguments(&mut cmd, end, instance);
                ask_arguments(&mut cmd, ask, instance);
            }
            Body::Renew(renew) => {
                cmd.arg(2 + 2 * renew.leases.len())
                    .arg(&*shared.roster)
                    .arg(&*shared.clock);
                for lease in &renew.leases {
                    cmd.arg(lease.resource.main()).arg(lease.resource.records());
                }
                cmd.arg(instance.as_str()).arg(u8::from(renew.waits));
                for lease in &renew.leases {
                    cmd.arg(&lease.token.text(instance)[..])
                        .arg(lease.fence.get())
                        .arg(millis(lease.lease));
                }
            }
            Body::Recheck(Recheck { resource, tokens }) => {
                debug_assert!(tokens.len() <= MOST_RECHECKED, "{} tokens", tokens.len());
                cmd.arg(4)
                    .arg(resource.main())
                    .arg(resource.queue())
                    .arg(resource.records())
                    .arg(&*shared.clock)
                    .arg(instance.as_str());
                for token in tokens {
                    cmd.arg(&token.text(instance)[..]);
                }
            }
            Body::Take(take) => {
                cmd.arg(1).arg(take.subject.key());
                take_arguments(&mut cmd, &take.take);
            }
            Body::Unbook(Unbook { subject, trace, .. }) => {
                cmd.arg(1).arg(subject.key()).arg("u").arg(0);
                cmd.arg(&*trace.before).arg(&*trace.after);
            }
        }
        cmd
    }
}

/// What the calls of a handle name besides their gates, made once for each.
#[derive(Debug)]
pub(in crate::backend) struct Names {
    prefix: Prefix,
    channels: String,
    shared: HashMap<Tag, Shared>,
}

impl Names {
    pub(in crate::backend) fn new(prefix: Prefix) -> Self {
        Self {
            channels: prefix.inbox_channels(),
            prefix,
            shared: HashMap::new(),
        }
    }

    /// What precedes an instance in the name of its inbox.
    pub(in crate::backend) fn channels(&self) -> &str {
        &self.channels
    }

    /// The keys that all gates of a tag share.
    pub(in crate::backend) fn of(&mut self, tag: Tag) -> &Shared {
        let shared = self.shared.entry(tag);
        shared.or_insert_with(|| self.prefix.shared(tag))
    }
}

/// As `rate/take.lua` lists them.
pub(super) fn take_arguments(cmd: &mut Cmd, take: &backend::Take) {
    let (op, max_wait) = match take.op {
        Op::Check => ("c", Duration::ZERO),
        Op::Peek => ("p", Duration::ZERO),
        Op::Book(max_wait) => ("b", max_wait),
        Op::Refund => ("r", Duration::ZERO),
        Op::Debit => ("d", Duration::ZERO),
        Op::Reset => ("x", Duration::ZERO),
    };
    cmd.arg(op)
        .arg(take.cost)
        .arg(u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX));
    for rule in take.quotas.rules() {
        match &rule.id {
            Id::Place(place) => cmd.arg(*place),
            Id::Name(name) => cmd.arg(&**name),
        };
        let method = match rule.method {
            Method::Gcra => "g",
            Method::Sliding => "s",
            Method::Strict => "l",
        };
        cmd.arg(method)
            .arg(u8::from(rule.shadow))
            .arg(rule.scale_us)
            .arg(rule.capacity);
    }
}

/// As `lease/end.lua` lists them.
fn end_arguments(cmd: &mut Cmd, end: &End, instance: &Instance) {
    cmd.arg(&end.token.text(instance)[..])
        .arg(end.latest_ms)
        .arg(end.resource.released.as_deref().unwrap_or_default());
}

/// As `lease/acquire.lua` lists them.
fn ask_arguments(cmd: &mut Cmd, ask: &Ask, instance: &Instance) {
    let wait = millis(ask.wait.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT));
    let (weight, limit, ticket) = (ask.weight, ask.limit, ask.ticket);
    let (max_waiters, pushed) = (ask.max_waiters, u8::from(ask.pushed));
    let kept = ask.kept;
    let latest_us = ask.latest_ms.saturating_mul(1000).saturating_add(999);
    // One argument for all that a quick answer hardly looks at: each of its own costs.
    cmd.arg(&ask.token.text(instance)[..])
        .arg(millis(ask.lease))
        .arg(latest_us)
        .arg(format!(
            "{weight} {limit} {wait} {max_waiters} {ticket} {pushed} {kept}"
        ));
}

fn gate_keys(cmd: &mut Cmd, resource: &Resource, shared: &Shared) {
    cmd.arg(5)
        .arg(resource.main())
        .arg(resource.queue())
        .arg(resource.records())
        .arg(&*shared.roster)
        .arg(&*shared.clock);
}

/// Whole milliseconds, at least one: the scripts take no zero for a duration that is not nothing.
pub(in crate::backend) fn millis(duration: Duration) -> u64 {
    if duration.is_zero() {
        0
    } else {
        u64::try_from(duration.as_millis())
            .unwrap_or(u64::MAX)
            .max(1)
    }
}

#[cfg(test)]
mod tests {
    use redis::Arg;

    use super::*;

    /// What follows the script in the command.
    fn words(body: Body, instance: &Instance) -> Vec<String> {
        let mut names = Names::new(Prefix::new("t").expect("a plain prefix"));
        let sent = Instant::now();
        let command = Call { sent, body }.command(Publish::Plain, false, instance, &mut names);
        let text = |arg: Arg<&[u8]>| match arg {
            Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            other => panic!("no word: {other:?}"),
        };
        command.args_iter().skip(2).map(text).collect()
    }

    fn gate() -> Arc<Resource> {
        let prefix = Prefix::new("t").expect("a plain prefix");
        Arc::new(Resource::named(
            &prefix,
            Kind::Semaphore,
            &"gate".into(),
            None,
        ))
    }

    #[test]
    fn an_acquire_says_what_its_caller_keeps() {
        let instance = Instance::draw().expect("the system has randomness");
        let ask = Ask {
            token: Token::of(9),
            resource: gate(),
            weight: 1,
            limit: 8,
            lease: Duration::from_secs(10),
            latest_ms: 7,
            wait: None,
            max_waiters: 100,
            ticket: 0,
            pushed: true,
            kept: 1,
        };
        let words = words(Body::Acquire(ask), &instance);
        assert_eq!(words[9], "1 8 86400000 100 0 1 1");
    }

    #[test]
    fn a_recheck_names_its_gate_and_its_tokens() {
        let instance = Instance::draw().expect("the system has randomness");
        let (resource, tokens) = (gate(), [7, 9].map(Token::of));
        let recheck = Recheck {
            resource: Arc::clone(&resource),
            tokens: tokens.into(),
        };
        let words = words(Body::Recheck(recheck), &instance);
        let keys = [resource.main(), resource.queue(), resource.records()];
        assert_eq!(
            (&*words[0], &words[1..4]),
            ("4", &keys.map(str::to_owned)[..])
        );
        assert!(words[4].ends_with(":clock"));
        assert_eq!(words[5], instance.as_str());
        let texts = tokens.map(|token| token.text(&instance));
        let texts = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
        assert_eq!(words[6..], texts);
    }
}
