//! Permits at home keep their promises in every small world, and each rule is needed in one of them.
use models::home::*;
use stateright::{Checker, HasDiscoveries, Model};
#[test]
fn explore() {
    let which = std::env::var("W").unwrap_or_default();
    for world in worlds::small() {
        if !which.is_empty() && world.name != which {
            continue;
        }
        let model = Fleet {
            world,
            mutation: None,
        };
        let start = std::time::Instant::now();
        let checker = model
            .checker()
            .target_state_count(std::env::var("N").map_or(3_000_000, |n| n.parse().unwrap()))
            .finish_when(match std::env::var("P").as_deref() {
                Ok("prompt") => HasDiscoveries::AnyOf([PROMPT].into()),
                Ok("starve") => HasDiscoveries::AnyOf([NO_STARVATION].into()),
                Ok("left") => HasDiscoveries::AnyOf([NOTHING_LEFT].into()),
                Ok("checked") => HasDiscoveries::AnyOf([CHECKED].into()),
                Ok("over") => HasDiscoveries::AnyOf([OVERTAKING].into()),
                _ => HasDiscoveries::All,
            })
            .spawn_bfs()
            .join();
        println!(
            "{}: {} states of {} depth {} {:?}",
            world.name,
            checker.unique_state_count(),
            checker.state_count(),
            checker.max_depth(),
            start.elapsed()
        );
        for (property, path) in checker.discoveries() {
            println!("   {property}: {} steps", path.clone().into_actions().len());
            if property != RECALLS {
                for (s, a) in path.into_vec() {
                    println!("      {a:?}");
                    if std::env::var("V").is_ok() {
                        for h in &s.homes[..2] {
                            println!(
                                "           {:?} wait {} req {} oth {} kn {} imp {} uns {} {:?}",
                                h.mode,
                                h.waiting,
                                h.requests,
                                h.others,
                                h.known,
                                h.impatient,
                                h.unsure,
                                h.slots
                                    .iter()
                                    .filter(|s| **s != models::home::Slot::Free)
                                    .collect::<Vec<_>>()
                            );
                        }
                        println!(
                            "          q{:?} h{:?} {:?}",
                            s.server.queue, s.server.holders, s.ghost
                        );
                    }
                }
            }
        }
    }
}
