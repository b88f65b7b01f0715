//! What is done to gates in memory: leases expire, processes end, nothing can be reached.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis::test_util::MemoryServer;
use portcullis::{LeaseMode, LockError, RefusalKind, Release};
use tokio::time::timeout;

use super::{Faults, pause};
use crate::judge::{Cut, Look, Silence, Taken};
use crate::now;
use crate::random::Random;
use crate::support::{Hold, poll_k_times};
use crate::task::{LATE, nanos};
use crate::world::{Ask, Guard, Place, Process, World};

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
                let process = world.process(usize::try_from(random.below(64)).unwrap_or(0));
                let held = Unseen::take(&world, &process, &mut random).await;
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
                if let Some(held) = held {
                    let lost = to > from + held.taken.ttl;
                    held.end(&world, lost).await;
                }
            }
        });
    }
}

/// A lease that nobody looks at while something befalls it.
struct Unseen {
    guard: Guard,
    taken: Taken,
}

impl Unseen {
    /// Takes one if it is to be had at once.
    async fn take(
        world: &Memory,
        process: &Process<MemoryServer>,
        random: &mut Random,
    ) -> Option<Self> {
        let gate = usize::try_from(random.below(world.places.len() as u64)).unwrap_or(0);
        let place = &world.places[gate];
        let asked = now();
        let acquiring = process.acquire(place, at_once(place));
        let guard = poll_k_times(acquiring, 1).await?.ok()?;
        let acquired = now();
        let hold = Hold {
            asked,
            acquired,
            ended: acquired,
            fence: guard.fence(),
            weight: 1,
        };
        let taken = Taken {
            process: process.number,
            limit: place.cap,
            ..Taken::new(gate, hold, nanos(place.ttl))
        };
        Some(Self { guard, taken })
    }

    /// Lets it go. It was not held any more, if `lost`.
    async fn end(mut self, world: &Memory, lost: bool) {
        let at = now();
        self.taken.let_go = at;
        let answer = self.guard.release().await;
        if lost {
            let by = now();
            self.taken.looks.push(Look {
                at,
                by,
                held: false,
                deadline: 0,
            });
            if !matches!(answer, Ok(Release::NoLongerHeld)) && !world.was_out(at, by) {
                let place = &world.places[self.taken.gate].name;
                world.problem(format!("{place} is held at {at}: {answer:?}"));
            }
        }
        world.took(self.taken);
    }
}

fn at_once(place: &Place) -> Ask {
    Ask {
        weight: 1,
        limit: place.cap,
        mode: LeaseMode::Renewed,
        max_wait: Some(Duration::ZERO),
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
    let held = Unseen::take(world, &process, random).await;
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
    if random.chance(20) {
        poll_k_times(process.gates.shutdown(most), 1).await;
    }
    let calls = sooner.into_iter().chain([most]).map(|deadline| {
        let gates = process.gates.clone();
        tokio::spawn(async move {
            let patience = deadline + Duration::from_nanos(LATE);
            timeout(patience, gates.shutdown(deadline)).await
        })
    });
    for call in calls.collect::<Vec<_>>() {
        match call.await.expect("a shutdown does not panic") {
            Ok(report) if report.abandoned == 0 => {}
            other => world.problem(format!("process {} ended with {other:?}", process.number)),
        }
    }
    world.cut(Cut {
        gate: None,
        process: Some(process.number),
        from: due,
        to: now(),
    });
    if let Some(held) = held {
        held.end(world, true).await;
    }
    let place = random.pick(&world.places);
    match process.acquire(place, at_once(place)).await {
        Err(LockError::Refused(refusal)) if refusal.kind() == RefusalKind::ShuttingDown => {}
        other => world.problem(format!(
            "process {} had ended, and yet: {other:?}",
            process.number
        )),
    }
}
