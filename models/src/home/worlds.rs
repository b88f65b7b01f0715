//! The worlds that the checker exhausts.

use super::world::{Clock, Faults, Load, World};

const ENDLESS: Load = Load::Endless;
const fn some(requests: u8) -> Load {
    Load::Requests(requests)
}

const NONE: Faults = World::new("", 1, ENDLESS, ENDLESS).faults;

/// The worlds of every test run.
#[must_use]
pub fn small() -> Vec<World> {
    vec![
        World::new("one permit", 1, some(2), some(2)),
        World::new("two permits", 2, some(2), some(2)),
        World::new("one permit, endless load", 1, ENDLESS, some(1)),
        World {
            crowd: 1,
            ..World::new("two permits, endless load", 2, ENDLESS, some(1))
        },
        World {
            crowd: 1,
            ..World::new("one permit, endless loads", 1, ENDLESS, ENDLESS)
        },
        World {
            loads: [some(1), some(1), some(1)],
            ..World::new("three processes", 2, some(1), some(1))
        },
        World {
            recalls_lost: true,
            promptness: 1,
            patience: 3,
            ..World::new("one permit, no recalls", 1, ENDLESS, some(1))
        },
        World {
            recalls_lost: true,
            promptness: 1,
            patience: 3,
            crowd: 1,
            ..World::new("two permits, no recalls", 2, ENDLESS, some(1))
        },
        World {
            renews: false,
            ..World::new("leases end, one permit", 1, some(2), some(2))
        },
        World {
            renews: false,
            crowd: 1,
            ..World::new("leases end, endless load", 1, ENDLESS, some(1))
        },
        World {
            clock: Clock::Behind,
            ..World::new("clock behind", 1, some(2), some(2))
        },
        World {
            clock: Clock::Stands,
            ..World::new("clock that stands", 1, some(2), some(2))
        },
        World {
            faults: Faults { cancel: 1, ..NONE },
            ..World::new("cancel", 1, some(2), some(2))
        },
        World {
            faults: Faults { crash: 1, ..NONE },
            patience: 5,
            ..World::new("crash", 2, some(2), some(2))
        },
        World {
            faults: Faults { pause: 1, ..NONE },
            patience: 5,
            ..World::new("pause, one permit", 1, some(2), some(2))
        },
        World {
            faults: Faults { pause: 1, ..NONE },
            patience: 5,
            ..World::new("pause", 2, some(2), some(1))
        },
        World {
            faults: Faults { lose: 1, ..NONE },
            patience: 5,
            promptness: 2,
            ..World::new("lost message", 1, some(2), some(1))
        },
        World {
            faults: Faults { delay: 1, ..NONE },
            patience: 5,
            promptness: 2,
            ..World::new("late message, one permit", 1, some(2), some(1))
        },
        World {
            faults: Faults { delay: 1, ..NONE },
            patience: 5,
            promptness: 2,
            ..World::new("late message", 2, some(2), some(1))
        },
        World {
            faults: Faults {
                duplicate: 1,
                delay: 1,
                ..NONE
            },
            patience: 5,
            promptness: 2,
            ..World::new("acquire that runs twice", 1, some(1), some(1))
        },
        World {
            faults: Faults { flush: 1, ..NONE },
            patience: 5,
            promptness: 2,
            excess: 1,
            ..World::new("data loss, one permit", 1, some(2), some(2))
        },
        World {
            faults: Faults { flush: 1, ..NONE },
            patience: 5,
            promptness: 2,
            excess: 1,
            ..World::new("data loss", 2, some(3), some(1))
        },
        World {
            faults: Faults { flush: 1, ..NONE },
            falls_back: true,
            patience: 5,
            promptness: 2,
            excess: 1,
            crowd: 1,
            ..World::new("data loss, clock set back", 1, ENDLESS, some(1))
        },
    ]
}
