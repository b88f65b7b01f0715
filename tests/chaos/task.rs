//! What a task of the fleet does: asks, waits or gives up, holds, lets go, and writes down what it
//! saw.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis::{LeaseMode, LockError};
use tokio::time::{sleep, timeout};

use crate::judge::{Look, Taken};
use crate::now;
use crate::random::Random;
use crate::support::{Hold, poll_k_times, poll_k_times_and_wake};
use crate::world::{Acquiring, Ask, Guard, Kind, Process, Waiting, World};

/// How late `lost()` may come though the task was awake, on a machine that is busy with other
/// things, in ns.
const LATE: u64 = 2_000_000_000;

/// What the tasks of a run like to do, in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    /// Drops its future at some moment or poll.
    pub(crate) drops: u64,
    /// Holds for longer than a moment: up to one and a half TTL.
    pub(crate) lingers: u64,
    /// Uses another mode than the renewed one.
    pub(crate) limits: u64,
    /// The end of the usual hold, in ms.
    pub(crate) hold_ms: u64,
    /// Which gates it goes to: the first, and how many.
    pub(crate) gates: (usize, usize),
}

/// One task: number `task` of the fleet, in process slot `slot`. It ends when the world closes or
/// `enough` were granted.
pub(crate) async fn run(
    world: Arc<World>,
    task: usize,
    slot: usize,
    seed: u64,
    habits: Habits,
    enough: usize,
) {
    let mut random = Random::stream(seed, task as u64);
    while !world.closing.is_cancelled() && world.counts.granted.load(Ordering::Relaxed) < enough {
        let process = world.process(slot);
        tokio::select! {
            biased;
            // Where it stands, its future is dropped; nothing of that gets through to the server
            // any more.
            () = process.dead.cancelled() => {}
            () = step(&world, &process, task, &mut random, habits) => {}
        }
        world.wait_ends(task);
    }
}

fn ask(world: &World, gate: usize, random: &mut Random, habits: Habits) -> Ask {
    let place = &world.places[gate];
    let weight = if place.kind == Kind::Semaphore && place.cap > 1 && random.chance(30) {
        2
    } else {
        1
    };
    let mode = match random.below(100) {
        share if share >= habits.limits => LeaseMode::Renewed,
        share if share % 2 == 0 => LeaseMode::Fixed,
        _ => LeaseMode::MaxHold(random.part(place.ttl, 10, 300)),
    };
    let max_wait = match random.below(100) {
        0..10 => Some(Duration::ZERO),
        10..25 => Some(random.millis(1, 500)),
        _ => None,
    };
    Ask {
        weight,
        mode,
        max_wait,
    }
}

async fn step(
    world: &Arc<World>,
    process: &Arc<Process>,
    task: usize,
    random: &mut Random,
    habits: Habits,
) {
    let gate = habits.gates.0 + usize::try_from(random.below(habits.gates.1 as u64)).unwrap_or(0);
    let place = &world.places[gate];
    let ask = ask(world, gate, random, habits);
    let asked = now();
    world.wait_begins(
        task,
        Waiting {
            gate,
            process: process.number,
            since: asked,
            ask,
        },
    );
    let acquiring = process.acquire(place, ask);
    let outcome = if random.chance(habits.drops) {
        give_up(acquiring, random).await
    } else {
        Some(acquiring.await)
    };
    let acquired = now();
    world.wait_ends(task);
    match outcome {
        None => {
            world.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Some(Ok(guard)) => {
            world.progress[gate].fetch_max(acquired, Ordering::Relaxed);
            world.counts.granted.fetch_add(1, Ordering::Relaxed);
            let ttl = nanos(place.ttl);
            let longest = match ask.mode {
                LeaseMode::MaxHold(longest) => Some(nanos(longest)),
                LeaseMode::Fixed => Some(ttl),
                _ => None,
            };
            let hold = Hold {
                asked,
                acquired,
                ended: acquired,
                fence: guard.fence(),
                weight: ask.weight,
            };
            let taken = Taken {
                gate,
                process: process.number,
                task,
                foreign: false,
                hold,
                looks: Vec::new(),
                ttl,
                longest,
            };
            hold_on(world, process, guard, taken, random, habits).await;
        }
        Some(Err(LockError::Refused(_))) => {
            world.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        Some(Err(error)) => {
            world.counts.failed.fetch_add(1, Ordering::Relaxed);
            if world.is_quiet() {
                world
                    .counts
                    .failed_when_quiet
                    .fetch_add(1, Ordering::Relaxed);
                println!("quiet, and yet at {}: {error}", place.name);
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Drops the future at some time or poll, unless it is ready before.
async fn give_up(acquiring: Acquiring, random: &mut Random) -> Option<Result<Guard, LockError>> {
    let polls = usize::try_from(random.below(4)).unwrap_or(0);
    match random.below(3) {
        0 => poll_k_times(acquiring, polls).await,
        1 => timeout(
            Duration::from_secs(1),
            poll_k_times_and_wake(acquiring, polls),
        )
        .await
        .ok()
        .flatten(),
        _ => timeout(random.millis(0, 60), acquiring).await.ok(),
    }
}

/// A guard in use, which writes its hold down when it ends: also if its process crashes meanwhile.
struct InUse {
    world: Arc<World>,
    process: Arc<Process>,
    guard: Option<Guard>,
    taken: Option<Taken>,
}

impl InUse {
    /// Looks whether it is held, and writes down what has changed.
    fn look(&mut self) -> bool {
        let (Some(guard), Some(taken)) = (&self.guard, &mut self.taken) else {
            return false;
        };
        look(guard, taken)
    }

    /// The last known one.
    fn deadline(&self) -> Option<u64> {
        let looks = &self.taken.as_ref()?.looks;
        looks
            .iter()
            .rev()
            .find(|look| look.held)
            .map(|look| look.deadline)
    }

    /// Ends the hold. What comes after is no longer its owner's.
    fn end(&mut self) -> Option<Guard> {
        self.look();
        if let Some(taken) = self.taken.take() {
            if !taken.looks.last().is_some_and(|look| look.held) {
                self.world.counts.lost.fetch_add(1, Ordering::Relaxed);
            }
            self.world.took(taken);
        }
        self.guard.take()
    }
}

/// The hold lasts as long as the guard says so, and no longer than its last known deadline.
fn look(guard: &Guard, taken: &mut Taken) -> bool {
    let at = now();
    let (held, remaining) = (guard.is_held(), guard.remaining());
    let deadline = at + nanos(remaining);
    if held {
        // It was held at `at`, surely; later looks or its deadline may set the end further off.
        taken.hold.ended = taken.hold.ended.max(at);
    } else if let Some(last) = taken.looks.iter().rev().find(|look| look.held) {
        taken.hold.ended = taken.hold.ended.max(last.deadline.min(at));
    }
    let news = taken
        .looks
        .last()
        .is_none_or(|last| last.held != held || last.deadline.abs_diff(deadline) > 500_000);
    if news {
        taken.looks.push(Look {
            at,
            held,
            deadline: if held { deadline } else { 0 },
        });
    }
    held
}

impl Drop for InUse {
    /// Dropped while it holds: its process has crashed. The guard is not given back, and believes
    /// that it holds until its deadline.
    fn drop(&mut self) {
        let (Some(guard), Some(mut taken)) = (self.guard.take(), self.taken.take()) else {
            return;
        };
        let (world, process) = (Arc::clone(&self.world), Arc::clone(&self.process));
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        world.counts.buried.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            while look(&guard, &mut taken) {
                sleep(Duration::from_millis(5)).await;
            }
            // Long after, it is not held either.
            sleep(Duration::from_millis(500)).await;
            look(&guard, &mut taken);
            world.took(taken);
            drop((guard, process));
        });
    }
}

async fn hold_on(
    world: &Arc<World>,
    process: &Arc<Process>,
    guard: Guard,
    taken: Taken,
    random: &mut Random,
    habits: Habits,
) {
    let ttl = Duration::from_nanos(taken.ttl);
    // Where leases are short there is more to see, and less to wait for.
    let lingers = habits.lingers * 1_000_000_000 / taken.ttl.max(300_000_000);
    let length = if random.chance(lingers) {
        random.part(ttl, 5, 150)
    } else {
        random.millis(0, habits.hold_ms + 1)
    };
    let mut lost = Box::pin(guard.lost());
    let mut in_use = InUse {
        world: Arc::clone(world),
        process: Arc::clone(process),
        guard: Some(guard),
        taken: Some(taken),
    };
    in_use.look();
    let watches = random.chance(50);
    let begun = std::time::Instant::now();
    let mut looked = now();
    while begun.elapsed() < length {
        let pause = (length - begun.elapsed().min(length)).min(Duration::from_millis(10));
        tokio::select! {
            _ = &mut lost, if watches => {
                let fired = now();
                if in_use.look() {
                    world.problem(format!("lost() fired at {fired} and is_held() is true"));
                }
                // Late is what a look after the deadline could have seen: that the task itself came
                // late says nothing.
                if let Some(late) = in_use.deadline().and_then(|deadline| looked.checked_sub(deadline)) {
                    world.counts.late_us.fetch_max(late / 1000, Ordering::Relaxed);
                    if late > LATE {
                        world.problem(format!("lost() came {late} ns late, at {fired}"));
                    }
                }
                // A stubborn owner keeps the guard for a while: nothing may revive it.
                if random.chance(50) {
                    sleep(random.part(ttl, 1, 60)).await;
                    in_use.look();
                }
                break;
            }
            () = sleep(pause) => {}
        }
        looked = now();
        in_use.look();
    }
    drop(lost);
    match random.below(4) {
        0 => {
            if let Some(guard) = in_use.end() {
                let _ = guard.release().await;
            }
        }
        1 => {
            if let Some(guard) = in_use.end() {
                drop(guard.release());
            }
        }
        _ => drop(in_use.end()),
    }
}
