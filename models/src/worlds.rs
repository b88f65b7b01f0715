//! The worlds that the checker exhausts.

use crate::config::{Config, Faults, Plan};

const fn wait(process: usize, weight: u8) -> Plan {
    Plan {
        process,
        weight,
        waits: true,
    }
}

const fn attempt(process: usize, weight: u8) -> Plan {
    Plan {
        process,
        weight,
        waits: false,
    }
}

const NONE: Faults = Faults::NONE;

/// Two processes wait for one permit.
fn rivals() -> Vec<Plan> {
    vec![wait(0, 1), wait(1, 1)]
}

/// One process waits twice.
fn siblings() -> Vec<Plan> {
    vec![wait(0, 1), wait(0, 1)]
}

/// One process waits, and a second process waits twice.
fn crowd() -> Vec<Plan> {
    vec![wait(0, 1), wait(1, 1), wait(1, 1)]
}

/// One process tries, and a second process waits twice.
fn passer_by() -> Vec<Plan> {
    vec![attempt(0, 1), wait(1, 1), wait(1, 1)]
}

/// One process waits, and a second process tries twice.
fn returning() -> Vec<Plan> {
    vec![wait(0, 1), attempt(1, 1), attempt(1, 1)]
}

/// The worlds of every test run.
#[must_use]
pub fn small() -> Vec<Config> {
    vec![
        Config::new("no faults", 1, crowd()),
        Config::new("late cancel", 1, vec![wait(0, 1)]).faults(Faults {
            cancel: 1,
            delay: 2,
            ..NONE
        }),
        Config::new("lost cancel", 1, rivals()).faults(Faults {
            cancel: 1,
            lose: 1,
            ..NONE
        }),
        Config::new(
            "weights, cancel",
            2,
            vec![attempt(0, 1), wait(1, 2), wait(1, 1)],
        )
        .faults(Faults { cancel: 1, ..NONE }),
        Config::new(
            "capacity, lost message",
            2,
            vec![attempt(0, 2), wait(1, 1), wait(1, 1)],
        )
        .faults(Faults { lose: 1, ..NONE }),
        Config::new("client that re-sends", 1, vec![wait(0, 1)])
            .faults(Faults {
                cancel: 1,
                delay: 1,
                duplicate: 1,
                ..NONE
            })
            .resending(),
        Config::new("crash", 1, crowd()).faults(Faults { crash: 1, ..NONE }),
        Config::new(
            "crash, three processes",
            1,
            vec![attempt(0, 1), wait(1, 1), wait(2, 1)],
        )
        .faults(Faults { crash: 1, ..NONE }),
        Config::new(
            "crash, no waiting",
            1,
            vec![wait(0, 1), wait(0, 1), attempt(1, 1)],
        )
        .faults(Faults { crash: 1, ..NONE }),
        Config::new("pause, lost message", 1, rivals()).faults(Faults {
            lose: 1,
            pause: 1,
            ..NONE
        }),
        Config::new("pause, late and missed heartbeat", 1, vec![wait(0, 1)]).faults(Faults {
            delay: 1,
            miss_beat: 1,
            pause: 1,
            ..NONE
        }),
        Config::new("pause, plain client", 1, rivals())
            .faults(Faults {
                foreign: 1,
                pause: 1,
                ..NONE
            })
            .victim(0),
        Config::new("plain client", 1, rivals()).faults(Faults { foreign: 1, ..NONE }),
        Config::new("outage of an inbox", 1, rivals())
            .faults(Faults {
                disconnect: 1,
                foreign: 1,
                ..NONE
            })
            .victim(0),
        Config::new("outage of an inbox on another node", 1, rivals())
            .faults(Faults {
                disconnect: 1,
                foreign: 1,
                ..NONE
            })
            .victim(0)
            .remote(),
        Config::new("two outages of inboxes", 1, rivals()).faults(Faults {
            disconnect: 2,
            ..NONE
        }),
        Config::new("deaf inbox", 1, crowd()).faults(Faults { deafen: 1, ..NONE }),
        Config::new("hung process", 1, passer_by())
            .faults(Faults {
                foreign: 1,
                pause: 1,
                ..NONE
            })
            .victim(1)
            .deaf(1),
        Config::new("siblings, lost push, plain client", 1, siblings()).faults(Faults {
            foreign: 2,
            lose: 1,
            ..NONE
        }),
        Config::new("siblings, data loss, plain client", 1, siblings()).faults(Faults {
            flush: 1,
            foreign: 2,
            ..NONE
        }),
        Config::new("data loss", 1, passer_by()).faults(Faults { flush: 1, ..NONE }),
        Config::new("clock back, pause", 1, rivals())
            .faults(Faults {
                pause: 1,
                step_back: 1,
                ..NONE
            })
            .victim(0),
        Config::new("clock back, pause, third grant", 1, returning())
            .faults(Faults {
                pause: 1,
                step_back: 1,
                ..NONE
            })
            .victim(0),
        Config::new("clock forward, cancel", 1, rivals()).faults(Faults {
            cancel: 1,
            step_forward: 1,
            ..NONE
        }),
        Config::new("wrong wall clock, missed heartbeat", 1, rivals())
            .faults(Faults {
                miss_beat: 1,
                ..NONE
            })
            .wall([0, 2, 0]),
    ]
}

/// The worlds of the full run.
#[must_use]
pub fn large() -> Vec<Config> {
    vec![
        Config::new("late cancel, two processes", 1, rivals()).faults(Faults {
            cancel: 1,
            delay: 1,
            ..NONE
        }),
        Config::new("two late messages", 1, rivals()).faults(Faults { delay: 2, ..NONE }),
        Config::new("late message, third grant", 1, returning())
            .faults(Faults { delay: 1, ..NONE }),
        Config::new("client that re-sends, two processes", 1, rivals())
            .faults(Faults {
                cancel: 1,
                delay: 1,
                duplicate: 1,
                ..NONE
            })
            .resending(),
        Config::new(
            "crash, three waiters",
            1,
            vec![wait(0, 1), wait(1, 1), wait(2, 1)],
        )
        .faults(Faults { crash: 1, ..NONE }),
        Config::new("pause, waiting siblings", 1, crowd()).faults(Faults { pause: 1, ..NONE }),
        Config::new("pause, late message", 1, rivals()).faults(Faults {
            delay: 1,
            pause: 1,
            ..NONE
        }),
        Config::new("pause, late message, longer leases", 1, rivals())
            .faults(Faults {
                delay: 1,
                pause: 1,
                ..NONE
            })
            .times(3, 4),
        Config::new("pause, lost message, passer-by", 1, passer_by())
            .faults(Faults {
                lose: 1,
                pause: 1,
                ..NONE
            })
            .victim(1),
        Config::new("missed heartbeats, pause", 1, rivals()).faults(Faults {
            miss_beat: 2,
            pause: 1,
            ..NONE
        }),
        Config::new("outage of an inbox, waiting siblings", 1, crowd()).faults(Faults {
            disconnect: 1,
            ..NONE
        }),
        Config::new(
            "outage of an inbox on another node, waiting siblings",
            1,
            crowd(),
        )
        .faults(Faults {
            disconnect: 1,
            ..NONE
        })
        .remote(),
        Config::new(
            "long outage of an inbox",
            1,
            vec![wait(1, 1), attempt(0, 1), wait(0, 1)],
        )
        .faults(Faults {
            disconnect: 1,
            foreign: 2,
            ..NONE
        })
        .victim(1),
        Config::new("deaf inbox, late message", 1, passer_by())
            .faults(Faults {
                deafen: 1,
                delay: 1,
                ..NONE
            })
            .victim(1),
        Config::new("restart", 1, rivals()).faults(Faults {
            disconnect: 2,
            flush: 1,
            ..NONE
        }),
        Config::new("data loss, late message", 1, rivals()).faults(Faults {
            delay: 1,
            flush: 1,
            ..NONE
        }),
        Config::new("clock back, pause, lost message", 1, rivals()).faults(Faults {
            lose: 1,
            pause: 1,
            step_back: 1,
            ..NONE
        }),
        Config::new("clock back, pause, plain client", 1, rivals())
            .faults(Faults {
                foreign: 1,
                pause: 1,
                step_back: 1,
                ..NONE
            })
            .victim(0),
        Config::new("clock back, late message", 1, rivals()).faults(Faults {
            delay: 1,
            step_back: 1,
            ..NONE
        }),
        Config::new("clock back twice, pause", 1, rivals()).faults(Faults {
            pause: 1,
            step_back: 2,
            ..NONE
        }),
        Config::new(
            "weights, waiting holder",
            2,
            vec![wait(0, 1), wait(1, 2), wait(1, 1)],
        )
        .faults(Faults {
            cancel: 1,
            lose: 1,
            ..NONE
        }),
    ]
}
