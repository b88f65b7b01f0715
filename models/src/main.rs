//! Exhausts the worlds and prints what it found: `--full` adds the large ones, `--walk` walks
//! through the large ones at random instead.

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use models::config::Config;
use models::handoff::Handoff;
use models::properties;
use models::worlds;
use stateright::{Checker, Model, UniformChooser};

/// Generated states, of which about a third are new, after which a search is cut off.
const MOST_STATES: usize = 20_000_000;

/// How long each world is walked through.
const WALK: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let asks = |flag: &str| env::args().any(|argument| argument == flag);
    let mut sound = true;
    println!("| world | states | steps | time | |");
    println!("| --- | --- | --- | --- | --- |");
    if asks("--walk") {
        for config in worlds::large() {
            let walker = model(&config).checker().timeout(WALK);
            sound &= report(&config, || {
                walker.spawn_simulation(1, UniformChooser).join()
            });
        }
    } else {
        let large = if asks("--full") {
            worlds::large()
        } else {
            Vec::new()
        };
        for config in worlds::small().into_iter().chain(large) {
            let searcher = model(&config).checker().target_state_count(MOST_STATES);
            sound &= report(&config, || searcher.spawn_bfs().join());
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

fn report<C: Checker<Handoff>>(config: &Config, check: impl FnOnce() -> C) -> bool {
    let start = Instant::now();
    let checker = check();
    let cut = if checker.state_count() >= MOST_STATES {
        "cut off"
    } else {
        ""
    };
    println!(
        "| {} | {} | {} | {:.1?} | {cut} |",
        config.name,
        checker.unique_state_count(),
        checker.max_depth(),
        start.elapsed()
    );
    let mut sound = true;
    for (property, path) in checker.discoveries() {
        if property != properties::HANDS_OVER {
            sound = false;
            println!("\nviolated: {property}");
            for action in path.into_actions() {
                println!("  {action:?}");
            }
        }
    }
    sound
}
