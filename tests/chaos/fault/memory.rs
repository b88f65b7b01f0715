//! What is done to gates in memory: leases expire, processes end, nothing can be reached.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis::test_util::MemoryServer;
use portcullis::{LeaseMode, LockError, RefusalKind};
use tokio::time::timeout;

use super::{Faults, pause};
use crate::judge::{Cut, Silence};
use crate::now;
use crate::random::Random;
use crate::support::poll_k_times;
use crate::task::{LATE, nanos};
use crate::world::{Ask, World};

type Memory = World<MemoryServer>;

impl Faults {
    /// Has all leases of some gate run out, again and again, with pauses in this range of ms.
    pub(crate) fn expire_leases(&mut self, world: &Arc<Memory>, seed: u64, pauses: Range<u64>) {
        let (world, end) = (Arc::clone(world), self.end.clone());
        let mut random = Random::stream(seed, 7_000_000);
        self.tasks.spawn(async move {
            while !end.is_cancelled() {
                pause(&end, random.millis(pauses.start, pauses.end)).await;
                expire(&world, &mut random);
            }
        });
    }

    /// Ends a process, and puts another in its place.
    pub(crate) fn end_processes(&mut self, world: &Arc<Memory>, seed: u64, pauses: Range<u64>) {
        let (world, end) = (Arc::clone(world), self.end.clone());
        let mut random = Random::stream(seed, 8_000_000);
        self.tasks.spawn(async move {
            while !end.is_cancelled() {
                pause(&end, random.millis(pauses.start, pauses.end)).await;
                end_process(&world, &mut random).await;
            }
        });
    }

    /// Keeps everybody from the gates for a while, mostly a short one: up to `most` ms.
    pub(crate) fn go_out(&mut self, world: &Arc<Memory>, seed: u64, pauses: Range<u64>, most: u64) {
        let (world, end) = (Arc::clone(world), self.end.clone());
        let mut random = Random::stream(seed, 9_000_000);
        self.tasks.spawn(async move {
            while !end.is_cancelled() {
                pause(&end, random.millis(pauses.start, pauses.end)).await;
                let most = if random.chance(60) { most / 10 } else { most };
                let time = random.millis(0, most.max(1));
                world.counts.faults.fetch_add(1, Ordering::Relaxed);
                world.note(format!("out for {time:?}"));
                world.goes_out();
                world.server.outage(true);
                let from = now();
                pause(&end, time).await;
                let to = now();
                world.server.outage(false);
                world.is_back();
                world.silence(Silence {
                    process: None,
                    from,
                    to,
                });
            }
        });
    }
}

fn expire(world: &Memory, random: &mut Random) {
    let gate = usize::try_from(random.below(world.places.len() as u64)).unwrap_or(0);
    let name = &world.places[gate].name;
    let from = now();
    let count = world.server.expire(name);
    world.cut(Cut {
        gate: Some(gate),
        process: None,
        from,
        to: now(),
    });
    world.counts.faults.fetch_add(1, Ordering::Relaxed);
    world.counts.expired.fetch_add(count, Ordering::Relaxed);
    world.note(format!("{name}: {count} expired"));
}

async fn end_process(world: &Memory, random: &mut Random) {
    let slot = usize::try_from(random.below(64)).unwrap_or(0);
    let process = world.replace(slot);
    world.counts.crashes.fetch_add(1, Ordering::Relaxed);
    if random.chance(25) {
        // Who holds or waits by it goes on.
        world.note(format!("process {}: its handle is dropped", process.number));
        return;
    }
    if random.chance(50) {
        process.dead.cancel();
    }
    let most = if random.chance(30) {
        Duration::ZERO
    } else {
        random.millis(0, 300)
    };
    world.note(format!("process {} ends in {most:?}", process.number));
    // Another one may be called meanwhile, and ends it sooner; or the first is forgotten, and goes
    // on.
    let sooner = random.chance(30).then(|| random.part(most, 0, 100));
    let due = now() + nanos(sooner.unwrap_or(most));
    let gates = process.gates.clone();
    let another = sooner.map(|sooner| tokio::spawn(async move { gates.shutdown(sooner).await }));
    if random.chance(20) {
        poll_k_times(process.gates.shutdown(most), 1).await;
    }
    let patience = most + Duration::from_nanos(LATE);
    match timeout(patience, process.gates.shutdown(most)).await {
        Ok(report) if report.abandoned == 0 => {}
        other => world.problem(format!("process {} ended with {other:?}", process.number)),
    }
    if let Some(another) = another {
        another.await.expect("a shutdown does not panic");
    }
    let place = random.pick(&world.places);
    let ask = Ask {
        weight: 1,
        limit: place.cap,
        mode: LeaseMode::Renewed,
        max_wait: None,
    };
    match process.acquire(place, ask).await {
        Err(LockError::Refused(refusal)) if refusal.kind() == RefusalKind::ShuttingDown => {}
        other => world.problem(format!(
            "process {} had ended, and yet: {other:?}",
            process.number
        )),
    }
    world.cut(Cut {
        gate: None,
        process: Some(process.number),
        from: due,
        to: now(),
    });
}
