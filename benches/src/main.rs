//! Compares the crate with what else a fleet can do, and with its physical limit, interleaved in
//! one run; writes what it has seen to `target/bench/report.md`.
//!
//! Run it with `scripts/bench`. It starts servers of its own. Absolute figures drift with the
//! machine; only ratios within one run count.

mod child;
mod contention;
mod cost;
mod delay;
mod groups;
mod lane;
mod measure;
mod monitor;
mod peers;
mod report;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;

use self::groups::GROUPS;
use self::report::Report;

fn main() -> ExitCode {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.first().is_some_and(|first| first == child::ROLE) {
        return child::main(&names[1..]);
    }
    if names == ["--list"] {
        for group in &GROUPS {
            println!("{:15} {}", group.name, group.about);
        }
        return ExitCode::SUCCESS;
    }
    if names.is_empty() {
        names = GROUPS.iter().map(|group| group.name.to_owned()).collect();
    }
    let mut chosen = Vec::new();
    for name in &names {
        let Some(group) = GROUPS.iter().find(|group| group.name == name) else {
            let known: Vec<_> = GROUPS.iter().map(|group| group.name).collect();
            eprintln!("there is no group {name:?}; there are: {}", known.join(" "));
            return ExitCode::FAILURE;
        };
        chosen.push(group);
    }
    let mut report = Report::begin();
    for group in chosen {
        report.section(group.name, group.about);
        (group.run)(&mut report);
        // After each group: what was seen is kept if a later one fails.
        report.write();
    }
    ExitCode::SUCCESS
}
