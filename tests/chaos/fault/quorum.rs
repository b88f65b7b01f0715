//! What is done to the servers of a quorum: as many as it tolerates at a time, and now and then more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::{Faults, blocking, pause};
use crate::judge::Loss;
use crate::now;
use crate::quorum::{Quorum, SERVERS, STEP, Voter};
use crate::random::Random;
use crate::support::Mode;
use crate::world::World;

/// One who breaks a server at a time, and mends it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Breaker {
    /// Between two faults, and for a fault, in ms.
    pub(crate) pauses: (u64, u64),
    pub(crate) lasts: (u64, u64),
    /// Of how many servers at once.
    pub(crate) servers: usize,
}

impl Faults {
    /// Two at a time are broken for long, and for moments a majority is.
    pub(crate) fn break_servers(&mut self, world: &Arc<World<Quorum>>, seed: u64) {
        let one = Breaker {
            pauses: (50, 800),
            lasts: (50, 3000),
            servers: 1,
        };
        let more = Breaker {
            pauses: (2000, 6000),
            lasts: (50, 1200),
            servers: 3,
        };
        for (number, breaker) in [one, one, more].into_iter().enumerate() {
            let (world, end) = (Arc::clone(world), self.end.clone());
            let mut random = Random::stream(seed, 9_000_000 + number as u64);
            self.tasks.spawn(async move {
                while !end.is_cancelled() {
                    pause(&end, random.millis(breaker.pauses.0, breaker.pauses.1)).await;
                    if !end.is_cancelled() {
                        break_some(&world, breaker, &mut random).await;
                    }
                }
            });
        }
    }

    /// Sets clocks ahead and back, and right again. Set ahead one ends leases early, as it does when it
    /// was behind and is set right.
    pub(crate) fn step_clocks(&mut self, world: &Arc<World<Quorum>>, seed: u64) {
        for (number, voter) in world.server.voters.iter().enumerate() {
            let Some(clock) = voter.clock.clone() else {
                continue;
            };
            let (world, end) = (Arc::clone(world), self.end.clone());
            let mut random = Random::stream(seed, 10_000_000 + number as u64);
            self.tasks.spawn(async move {
                let mut ahead = 0;
                while ahead != 0 || !end.is_cancelled() {
                    pause(&end, random.millis(500, 4000)).await;
                    let seconds = i64::try_from(random.below(2 * STEP + 1)).unwrap_or(0);
                    let seconds = seconds - i64::try_from(STEP).unwrap_or(0);
                    let next = if end.is_cancelled() { 0 } else { seconds };
                    world.note(format!("server {}: {next} s ahead", number + 1));
                    world.counts.faults.fetch_add(1, Ordering::Relaxed);
                    let from = now();
                    clock.set(next);
                    if next > ahead {
                        world.lost_data(Loss { from, to: now() });
                    }
                    ahead = next;
                }
            });
        }
    }
}

/// Breaks as many as it can get, each in its own way.
async fn break_some(world: &Arc<World<Quorum>>, breaker: Breaker, random: &mut Random) {
    let first = random.below(SERVERS as u64) as usize;
    let servers = (first..first + SERVERS).map(|server| server % SERVERS);
    let free = servers.filter(|&server| world.server.breaks(server));
    let faults: Vec<_> = free
        .take(breaker.servers)
        .map(|server| {
            let mut random = Random::new(random.next());
            let time = random.millis(breaker.lasts.0, breaker.lasts.1);
            async move {
                server_fault(world, server, time, &mut random).await;
                world.server.is_whole(server);
            }
        })
        .collect();
    futures_util::future::join_all(faults).await;
}

async fn server_fault(
    world: &Arc<World<Quorum>>,
    server: usize,
    time: Duration,
    random: &mut Random,
) {
    let voter = &world.server.voters[server];
    let note = |what: String| world.note(format!("server {}: {what}", server + 1));
    world.counts.faults.fetch_add(1, Ordering::Relaxed);
    match random.below(100) {
        0..20 => {
            note(format!("killed for {time:?}"));
            let killed = Arc::clone(world);
            blocking(move || killed.server.voters[server].server.kill()).await;
            sleep(time).await;
            let started = Arc::clone(world);
            blocking(move || started.server.voters[server].server.restart()).await;
            note("restarted".to_owned());
        }
        20..40 => {
            note(format!("frozen for {time:?}"));
            let frozen = Arc::clone(world);
            blocking(move || frozen.server.voters[server].server.freeze()).await;
            sleep(time).await;
            voter.server.thaw();
        }
        40..88 => break_network(voter, time, random, note).await,
        88..93 => {
            note("scripts flushed, clients killed".to_owned());
            let _ = voter.server.try_command(&["SCRIPT", "FLUSH"]).await;
            for kind in ["pubsub", "normal"] {
                let kill = ["CLIENT", "KILL", "TYPE", kind];
                let _ = voter.server.try_command(&kill).await;
            }
        }
        93..96 => {
            note("flushed".to_owned());
            let from = now();
            let _ = voter.server.try_command(&["FLUSHALL"]).await;
            world.lost_data(Loss { from, to: now() });
        }
        _ => {
            note(format!("paused for {time:?}"));
            let millis = time.as_millis().to_string();
            let pause = ["CLIENT", "PAUSE", &millis, "WRITE"];
            let _ = voter.server.try_command(&pause).await;
            sleep(time).await;
        }
    }
}

async fn break_network(voter: &Voter, time: Duration, random: &mut Random, note: impl Fn(String)) {
    let mode = match random.below(8) {
        0 => Mode::BlackHole,
        1 => Mode::Cut,
        2 => Mode::EatReplies,
        3 => Mode::HoldRequests,
        4 => Mode::HoldReplies,
        5 => Mode::HalfOpen,
        6 => Mode::Delay(Duration::from_secs(1)),
        _ => Mode::Delay(random.millis(1, 150)),
    };
    note(format!("{mode:?} for {time:?}"));
    voter.network.set(mode);
    sleep(time).await;
    voter.network.set(Mode::Pass);
    if mode == Mode::HalfOpen {
        voter.network.cut();
    }
}
