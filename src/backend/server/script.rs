//! The scripts that run on the server: their text, joined from `src/lua`, and their hashes.

use std::sync::LazyLock;

use crate::key::Kind;

/// What a script does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Acquire,
    End,
    Renew,
    Recheck,
    Swap,
}

impl Verb {
    const ALL: [Self; 5] = [
        Self::Acquire,
        Self::End,
        Self::Renew,
        Self::Recheck,
        Self::Swap,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::End => "end",
            Self::Renew => "renew",
            Self::Recheck => "recheck",
            Self::Swap => "swap",
        }
    }

    const fn body(self) -> &'static str {
        match self {
            Self::Acquire => include_str!("../../lua/lease/acquire.lua"),
            Self::End => include_str!("../../lua/lease/end.lua"),
            Self::Renew => include_str!("../../lua/lease/renew.lua"),
            Self::Recheck => include_str!("../../lua/lease/recheck.lua"),
            Self::Swap => include_str!("../../lua/lease/swap.lua"),
        }
    }
}

/// How scripts tell a process of its grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Publish {
    /// On its one channel, by `PUBLISH`.
    Plain,
    /// On its channel of the gate's tag, by `SPUBLISH`: on the nodes of a cluster, from Redis 7 on.
    Sharded,
}

impl Publish {
    const ALL: [Self; 2] = [Self::Plain, Self::Sharded];

    const fn part(self) -> &'static str {
        match self {
            Self::Plain => include_str!("../../lua/lib/inbox.lua"),
            Self::Sharded => include_str!("../../lua/lib/shard_inbox.lua"),
        }
    }
}

/// The parts in front of a script's body. Each uses functions of those before it only.
const NOW: &str = include_str!("../../lua/lib/now.lua");
/// All that the quickest way needs.
const DRAWING: &str = concat!(
    include_str!("../../lua/lib/number.lua"),
    include_str!("../../lua/lib/lifetime.lua"),
    include_str!("../../lua/lib/clock.lua"),
);
const BASICS: &str = concat!(
    include_str!("../../lua/lib/keep.lua"),
    include_str!("../../lua/lib/record.lua"),
    include_str!("../../lua/lib/instance.lua"),
);
const ROSTER: &str = include_str!("../../lua/lib/roster.lua");
const STRING_HOLDERS: &str = include_str!("../../lua/lib/string_holders.lua");
const FENCED: &str = "local FENCED = true\n";
const UNFENCED: &str = "local FENCED = false\n";
const ZSET_HOLDERS: &str = include_str!("../../lua/lib/zset_holders.lua");
const HAND_OFF: &str = concat!(
    include_str!("../../lua/lib/gate.lua"),
    include_str!("../../lua/lib/others.lua"),
    include_str!("../../lua/lib/grant.lua")
);
/// What only who may enter a queue needs.
const RECALL: &str = include_str!("../../lua/lib/recall.lua");

/// What a swap runs: the bodies of an end that no quick way has begun and of an acquire, as functions of
/// their arguments.
const SWAPPED: [&str; 6] = [
    quick(Kind::Exact, Verb::End),
    "local function lease_end(ARGV)\n",
    Verb::End.body(),
    "end\nlocal function lease_acquire(ARGV)\n",
    Verb::Acquire.body(),
    "end\n",
];

/// All of the script for rates but the clock.
const RATE: &str = concat!(
    include_str!("../../lua/lib/number.lua"),
    include_str!("../../lua/rate/quick.lua"),
    include_str!("../../lua/rate/gcra.lua"),
    include_str!("../../lua/rate/sliding.lua"),
    include_str!("../../lua/rate/strict.lua"),
    include_str!("../../lua/rate/state.lua"),
    include_str!("../../lua/rate/take.lua"),
);

/// What answers where nobody else wants the gate, before the rest of the script is even defined: a
/// function costs as much as a command, whether it is called or not.
const fn quick(kind: Kind, verb: Verb) -> &'static str {
    match (kind, verb) {
        (Kind::Mutex, Verb::Acquire) => include_str!("../../lua/quick/string_acquire.lua"),
        (Kind::Mutex, Verb::End) => include_str!("../../lua/quick/string_end.lua"),
        (Kind::Semaphore, Verb::Acquire) => include_str!("../../lua/quick/zset_acquire.lua"),
        (Kind::Semaphore, Verb::End) => include_str!("../../lua/quick/zset_end.lua"),
        (Kind::Exact, Verb::End) => include_str!("../../lua/quick/exact_end.lua"),
        (Kind::Exact, Verb::Acquire) | (_, Verb::Renew | Verb::Recheck | Verb::Swap) => "",
    }
}

/// What answers where nobody else wants a mutex, in front of all that it needs nothing of.
const fn quickest(kind: Kind, verb: Verb) -> &'static str {
    match (kind, verb) {
        (Kind::Mutex, Verb::Acquire) => include_str!("../../lua/quick/string_take.lua"),
        (Kind::Mutex, Verb::End) => include_str!("../../lua/quick/string_release.lua"),
        (Kind::Exact | Kind::Semaphore, _) | (_, Verb::Renew | Verb::Recheck | Verb::Swap) => "",
    }
}

/// One script: for one kind of gate, or for all quotas.
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) code: String,
    pub(crate) sha: String,
}

impl Script {
    fn new(kind: Kind, verb: Verb, publish: Publish, now: &str) -> Self {
        let (place, setting, holders) = match kind {
            Kind::Mutex => ("mutex", FENCED, STRING_HOLDERS),
            Kind::Exact => ("exact", UNFENCED, STRING_HOLDERS),
            Kind::Semaphore => ("semaphore", UNFENCED, ZSET_HOLDERS),
        };
        let (released, taken, recall, parts) = match verb {
            Verb::End => (quickest(kind, verb), "", "", &[][..]),
            Verb::Acquire => ("", quickest(kind, verb), RECALL, &[][..]),
            Verb::Renew | Verb::Recheck => ("", "", "", &[][..]),
            Verb::Swap => ("", "", RECALL, &SWAPPED[..]),
        };
        let code = [
            released,
            now,
            DRAWING,
            taken,
            BASICS,
            publish.part(),
            quick(kind, verb),
            ROSTER,
            setting,
            holders,
            HAND_OFF,
            recall,
            &parts.concat(),
            verb.body(),
        ];
        let name = match publish {
            Publish::Plain => format!("{place}/{}", verb.name()),
            Publish::Sharded => format!("{place}/{}/sharded", verb.name()),
        };
        Self::of(name, code.concat())
    }

    fn of_rates(now: &str) -> Self {
        Self::of("rate/take".to_owned(), [now, RATE].concat())
    }

    pub(crate) fn of(name: String, code: String) -> Self {
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { name, code, sha }
    }

    pub(crate) fn get(kind: Kind, verb: Verb, publish: Publish) -> &'static Self {
        &SCRIPTS[publish as usize][kind as usize * Verb::ALL.len() + verb as usize]
    }

    /// The one for rates.
    pub(crate) fn take() -> &'static Self {
        &TAKE
    }

    /// Every script of every server.
    pub(crate) fn each() -> impl Iterator<Item = &'static Self> {
        SCRIPTS.iter().flatten().chain([Self::take()])
    }

    /// Every script of a server, to load them.
    pub(crate) fn all(publish: Publish) -> impl Iterator<Item = &'static Self> {
        SCRIPTS[publish as usize].iter().chain([Self::take()])
    }
}

static TAKE: LazyLock<Script> = LazyLock::new(|| Script::of_rates(NOW));

static SCRIPTS: LazyLock<[Vec<Script>; Publish::ALL.len()]> = LazyLock::new(|| {
    Publish::ALL.map(|publish| {
        Kind::ALL
            .into_iter()
            .flat_map(|kind| Verb::ALL.map(|verb| Script::new(kind, verb, publish, NOW)))
            .collect()
    })
});

#[cfg(test)]
pub(in crate::backend) mod tests;
