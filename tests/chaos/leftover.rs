//! Acquisitions that are given up while the network breaks: whatever order their requests reach the
//! server in, nothing of them stays.

use std::sync::Arc;
use std::time::Duration;

use portcullis::LeaseMode;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::home::Remote;
use crate::random::Random;
use crate::support::{Flow, Mode, wait_for};
use crate::watch;
use crate::world::{Ask, Place, Process, World};

/// So long that no lease can have ended by itself when it is looked for.
const TTL: Duration = Duration::from_secs(30);

/// One round: a few gates, each wanted several times, all given up within `process`' command
/// time-out, while a fault lasts.
pub(crate) async fn round<S: Remote>(
    world: &Arc<World<S>>,
    slot: usize,
    number: usize,
    random: &mut Random,
) {
    let process = world.process(slot);
    let places: Vec<Place> = (0..6)
        .map(|gate| {
            let name = format!("round-{slot}-{number}-{gate}");
            if gate % 2 == 0 {
                Place::mutex(&name, TTL)
            } else {
                Place::semaphore(&name, 2, TTL)
            }
        })
        .collect();
    let mut tasks = JoinSet::new();
    for (index, place) in places.iter().enumerate() {
        for turn in 0..3 {
            let mut random = Random::stream(random.next(), (index * 3 + turn) as u64);
            let begin = random.part(process.timeout, 0, 40);
            let end = random.part(process.timeout, 0, 80);
            let waits = random.chance(30);
            let (process, place) = (Arc::clone(&process), place.clone());
            tasks.spawn(async move {
                sleep(begin).await;
                give_up(process, place, end, waits).await;
            });
        }
    }
    let fault = break_once(&process, random).await;
    while let Some(ended) = tasks.join_next().await {
        ended.expect("tasks do not panic");
    }
    let what = format!(
        "round {number} of process {} ({fault}): neither holder nor waiter is left",
        process.number
    );
    let patience = 2 * process.timeout + Duration::from_secs(5);
    let start = format!("round-{slot}-{number}-");
    let clean = async || world.server.leftovers(&start).await.is_ok();
    if timeout(patience, wait_for(&what, 2 * patience, clean))
        .await
        .is_err()
    {
        let left = world.server.leftovers(&start).await;
        world.problem(format!(
            "{what}, but {left:?}\n{}",
            watch::dump(world).await
        ));
    }
}

async fn give_up<S: Remote>(process: Arc<Process<S>>, place: Place, after: Duration, waits: bool) {
    let max_wait = (!waits).then_some(TTL);
    let ask = Ask {
        weight: place.cap,
        limit: place.cap,
        mode: LeaseMode::Renewed,
        max_wait,
    };
    let work = async {
        // Held until it is given up, or lost with the rest.
        let guard = process.acquire(&place, ask).await;
        std::future::pending::<()>().await;
        drop(guard);
    };
    let _ = timeout(after, work).await;
}

/// Breaks the network once while acquisitions begin, and heals it.
async fn break_once<S: Remote>(process: &Process<S>, random: &mut Random) -> String {
    let links = S::some_links(&process.proxy, random);
    let late = random.part(process.timeout, 20, 99);
    match random.below(6) {
        0..3 => {
            // The requests under way arrive after those on the next connection: while they may
            // still create something, or later.
            let late = if random.chance(40) {
                late + process.timeout
            } else {
                late
            };
            links.set_commands(Mode::Flows {
                requests: Flow::Delay(late),
                replies: Flow::Pass,
            });
            sleep(random.part(process.timeout, 5, 40)).await;
            links.part();
            links.set_commands(Mode::Pass);
            format!("overtaken by {late:?}")
        }
        3 => {
            links.set_commands(Mode::EatReplies);
            sleep(late).await;
            links.set_commands(Mode::Pass);
            format!("replies eaten for {late:?}")
        }
        4 => {
            links.set_commands(Mode::HoldRequests);
            sleep(late).await;
            links.set_commands(Mode::Pass);
            format!("requests held for {late:?}")
        }
        _ => {
            sleep(random.part(process.timeout, 0, 40)).await;
            links.cut();
            "cut".to_owned()
        }
    }
}
