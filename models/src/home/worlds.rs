//! The worlds that the checker exhausts.

use super::world::{Clock, Faults, Load, World};

const ENDLESS: Load = Load::Endless;

const fn some(requests: u8) -> Load {
    Load::Requests(requests)
}

const NONE: Faults = World::new("", 1, ENDLESS, ENDLESS).faults;

/// Two processes without recalls.
const fn unheard(name: &'static str, capacity: u8) -> World {
    World {
        recalls_lost: true,
        promptness: 1,
        patience: 3,
        ..World::new(name, capacity, ENDLESS, some(1))
    }
}

/// Two processes whose first one stands still.
const fn pause(name: &'static str, capacity: u8, first: u8, second: u8) -> World {
    World {
        faults: Faults { pause: 1, ..NONE },
        patience: 8,
        ..World::new(name, capacity, some(first), some(second))
    }
}

/// Two processes, and what happens to messages.
const fn unsure(name: &'static str, capacity: u8, requests: u8, faults: Faults) -> World {
    World {
        faults,
        patience: 5,
        promptness: 2,
        ..World::new(name, capacity, some(requests), some(1))
    }
}

/// Two processes whose server loses its data.
const fn flush(name: &'static str, capacity: u8, first: u8, second: u8) -> World {
    World {
        faults: Faults { flush: 1, ..NONE },
        patience: 5,
        promptness: 2,
        excess: 1,
        ..World::new(name, capacity, some(first), some(second))
    }
}

/// The worlds of every test run.
#[must_use]
pub fn small() -> Vec<World> {
    vec![
        World::new("one permit", 1, some(2), some(2)),
        World::new("two permits", 2, some(2), some(2)),
        World::new("one permit, endless load", 1, ENDLESS, some(1)),
        World {
            loads: [some(1); 3],
            ..World::new("three processes", 2, some(1), some(1))
        },
        unheard("one permit, no recalls", 1),
        World {
            renews: false,
            ..World::new("leases end", 1, some(2), some(2))
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
        pause("pause, one permit", 1, 2, 1),
        pause("pause", 2, 2, 1),
        unsure("lost message", 1, 2, Faults { lose: 1, ..NONE }),
        unsure(
            "late message, one permit",
            1,
            2,
            Faults { delay: 1, ..NONE },
        ),
        unsure("late message", 2, 2, Faults { delay: 1, ..NONE }),
        unsure(
            "acquire that runs twice",
            1,
            1,
            Faults {
                duplicate: 1,
                delay: 1,
                ..NONE
            },
        ),
        flush("data loss, one permit", 1, 2, 1),
        flush("data loss", 2, 3, 1),
        World {
            falls_back: true,
            ..flush("data loss, clock set back", 1, 3, 1)
        },
    ]
}

/// Further worlds of the full run.
#[must_use]
pub fn large() -> Vec<World> {
    vec![
        World {
            crowd: 1,
            ..World::new("two permits, endless load", 2, ENDLESS, some(1))
        },
        World {
            loads: [some(2), some(1), some(1)],
            ..World::new("three processes, more requests", 2, some(2), some(1))
        },
        World {
            crowd: 1,
            ..unheard("two permits, no recalls", 2)
        },
        World {
            renews: false,
            ..World::new("leases end, two permits", 2, some(2), some(2))
        },
        World {
            clock: Clock::Behind,
            ..World::new("clock behind, two permits", 2, some(2), some(2))
        },
        World {
            clock: Clock::Stands,
            ..World::new("clock that stands, two permits", 2, some(2), some(2))
        },
        World {
            faults: Faults { cancel: 1, ..NONE },
            ..World::new("cancel, two permits", 2, some(2), some(2))
        },
        World {
            faults: Faults { crash: 1, ..NONE },
            patience: 5,
            crowd: 1,
            ..World::new("crash, endless load", 1, some(2), ENDLESS)
        },
        unsure(
            "lost message, two permits",
            2,
            3,
            Faults { lose: 1, ..NONE },
        ),
        unsure("two late messages", 1, 2, Faults { delay: 2, ..NONE }),
        unsure(
            "lost and late messages",
            2,
            2,
            Faults {
                lose: 1,
                delay: 1,
                ..NONE
            },
        ),
        World {
            falls_back: true,
            ..flush("data loss, clock set back, two permits", 2, 3, 1)
        },
        World {
            faults: Faults {
                flush: 1,
                delay: 1,
                ..NONE
            },
            excess: 2,
            ..flush("data loss, late message", 2, 2, 1)
        },
    ]
}
