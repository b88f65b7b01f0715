//! Exhausts the worlds and prints what it found: `--full` adds the large ones, `--most N` cuts each
//! search off at so many generated states, and `--walk` walks through the large ones at random instead.

use std::env;
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use models::config::Config;
use models::handoff::Handoff;
use models::home::{self, Fleet};
use models::properties;
use models::worlds;
use stateright::{Checker, Model, UniformChooser};

/// Generated states, of which about a third are new, after which a search is cut off by default.
const MOST_STATES: usize = 20_000_000;

/// How long each world is walked through.
const WALK: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let asks = |flag: &str| env::args().any(|argument| argument == flag);
    let mut arguments = env::args().skip_while(|argument| argument != "--most");
    let most = match arguments.nth(1).map(|most| most.parse()) {
        None => MOST_STATES,
        Some(Ok(most)) => most,
        Some(Err(error)) => {
            eprintln!("--most takes a number: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut sound = true;
    println!("| world | states | steps | time | |");
    println!("| --- | --- | --- | --- | --- |");
    if asks("--walk") {
        for config in worlds::large() {
            let walker = model(&config).checker().timeout(WALK);
            sound &= report(config.name, most, || {
                walker.spawn_simulation(1, UniformChooser).join()
            });
        }
        for world in home::worlds::large() {
            let walker = fleet(world).checker().timeout(WALK);
            sound &= report(world.name, most, || {
                walker.spawn_simulation(1, UniformChooser).join()
            });
        }
    } else {
        let (mut configs, mut homes) = (worlds::small(), home::worlds::small());
        if asks("--full") {
            configs.extend(worlds::large());
            homes.extend(home::worlds::large());
        }
        for config in configs {
            let searcher = model(&config).checker().target_state_count(most);
            sound &= report(config.name, most, || searcher.spawn_bfs().join());
        }
        for world in homes {
            let searcher = fleet(world).checker().target_state_count(most);
            sound &= report(world.name, most, || searcher.spawn_bfs().join());
        }
    }
    if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn model(config: &Config) -> Handoff {
    Handoff {
        config: config.clone(),
        mutation: None,
    }
}

const fn fleet(world: home::World) -> Fleet {
    Fleet {
        world,
        mutation: None,
    }
}

fn report<M: Model, C: Checker<M>>(name: &str, most: usize, check: impl FnOnce() -> C) -> bool
where
    M::State: Clone + Debug + PartialEq,
    M::Action: Clone + Debug + PartialEq,
{
    let start = Instant::now();
    let checker = check();
    let cut = if checker.state_count() >= most {
        "cut off"
    } else {
        ""
    };
    println!(
        "| {name} | {} | {} | {:.1?} | {cut} |",
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed()
    );
    let mut sound = true;
    for (property, path) in checker.discoveries() {
        if property != properties::HANDS_OVER && property != home::RECALLS {
            sound = false;
            println!("\nviolated: {property}");
            for action in path.into_actions() {
                println!("  {action:?}");
            }
        }
    }
    sound
}
