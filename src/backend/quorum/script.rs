//! The scripts that run on each server of a quorum: one vote at a time.

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use crate::backend::server::Script;
use crate::key::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Acquire,
    End,
    Renew,
}

const ALL: [Verb; 3] = [Verb::Acquire, Verb::End, Verb::Renew];

const LIB: &str = concat!(
    include_str!("../../lua/lib/now.lua"),
    include_str!("../../lua/lib/number.lua"),
    include_str!("../../lua/lib/lifetime.lua"),
    include_str!("../../lua/lib/keep.lua"),
    include_str!("../../lua/lib/instance.lua"),
    include_str!("../../lua/lib/inbox.lua"),
    include_str!("../../lua/lib/roster.lua"),
    include_str!("../../lua/quorum/queue.lua"),
    include_str!("../../lua/quorum/fence.lua"),
);

fn assemble(kind: Kind, verb: Verb) -> Script {
    let (place, holders) = match kind {
        Kind::Mutex | Kind::Exact => ("mutex", include_str!("../../lua/quorum/string_holders.lua")),
        Kind::Semaphore => (
            "semaphore",
            include_str!("../../lua/quorum/zset_holders.lua"),
        ),
    };
    let (name, body) = match verb {
        Verb::Acquire => ("acquire", include_str!("../../lua/quorum/acquire.lua")),
        Verb::End => ("end", include_str!("../../lua/quorum/end.lua")),
        Verb::Renew => ("renew", include_str!("../../lua/quorum/renew.lua")),
    };
    Script::of(
        format!("quorum/{place}/{name}"),
        [LIB, holders, body].concat(),
    )
}

/// Those of locks, under a name of ours or at an exact key, then those of semaphores.
static SCRIPTS: LazyLock<Vec<Script>> = LazyLock::new(|| {
    [Kind::Mutex, Kind::Semaphore]
        .into_iter()
        .flat_map(|kind| ALL.map(|verb| assemble(kind, verb)))
        .collect()
});

pub(super) fn get(kind: Kind, verb: Verb) -> &'static Script {
    let first = match kind {
        Kind::Mutex | Kind::Exact => 0,
        Kind::Semaphore => ALL.len(),
    };
    &SCRIPTS[first + verb as usize]
}

/// Every one, to load them.
pub(crate) fn all() -> impl Iterator<Item = &'static Script> {
    SCRIPTS.iter()
}
