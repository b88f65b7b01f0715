//! What a task of the fleet does: asks, waits or gives up, holds, lets go, and writes down what it
//! saw.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portcullis::{LeaseMode, LockError, RefusalKind, Release};
use tokio::task::coop::{has_budget_remaining, unconstrained};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use crate::home::Home;
use crate::judge::{Look, Taken};
use crate::now;
use crate::random::Random;
use crate::support::{Hold, poll_k_times, poll_k_times_and_wake};
use crate::world::{Acquiring, Ask, Guard, Kind, Place, Process, Waiting, World};

/// How late `lost()` may come though the task was awake, on a machine that is busy with other
/// things, in ns.
pub(crate) const LATE: u64 = 2_000_000_000;

/// What the tasks of a run like to do, in percent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    /// Drops its future at some moment or poll.
    pub(crate) drops: u64,
    /// The longest after which it does, in ms.
    pub(crate) drops_ms: u64,
    /// Does so at a moment, not at a poll.
    pub(crate) drops_by_time: u64,
    /// Holds for longer than a moment.
    pub(crate) lingers: u64,
    /// The longest that this takes, in percent of the TTL.
    pub(crate) lingers_for: u64,
    /// Else holds for no longer than it takes to say so.
    pub(crate) hastes: u64,
    /// Asks, and lets go or gives up, so often in a row that others do so at the same instant.
    pub(crate) bursts: u64,
    /// Rests for so long after it gave up, in ms, so that it does not mend what that broke.
    pub(crate) rests_ms: u64,
    /// Uses another mode than the renewed one.
    pub(crate) limits: u64,
    /// The end of the usual hold, in ms.
    pub(crate) hold_ms: u64,
    /// Which gates it goes to: the first, and how many.
    pub(crate) gates: (usize, usize),
    /// Asks by a limit of its own, and for any weight up to it.
    pub(crate) narrows: u64,
    /// Gives its wait less time than anything takes.
    pub(crate) hurries: u64,
    /// Looks whether it holds only after a while.
    pub(crate) dozes: u64,
    /// Never looks whether it holds.
    pub(crate) blind: u64,
    /// Lets go on a thread without a runtime.
    pub(crate) strays: u64,
    /// Keeps the guard of a lost lease for long.
    pub(crate) squats: u64,
}

impl Habits {
    /// Nobody does anything but hold for a moment.
    pub(crate) const PLAIN: Self = Self {
        drops: 0,
        drops_ms: 60,
        drops_by_time: 0,
        lingers: 0,
        lingers_for: 150,
        hastes: 0,
        bursts: 0,
        rests_ms: 0,
        limits: 0,
        hold_ms: 2,
        gates: (0, 1),
        narrows: 0,
        hurries: 0,
        dozes: 0,
        blind: 0,
        strays: 0,
        squats: 0,
    };
}

/// Draws nothing for what is never done, so that the plans of those who don't do it stay.
fn does(random: &mut Random, percent: u64) -> bool {
    percent > 0 && random.chance(percent)
}

/// One task: number `task` of the fleet, in process slot `slot`. It ends when the world closes or
/// `enough` were granted.
pub(crate) async fn run<S: Home>(
    world: Arc<World<S>>,
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

fn ask<S: Home>(world: &World<S>, gate: usize, random: &mut Random, habits: Habits) -> Ask {
    let place = &world.places[gate];
    let (mut limit, mut weight) = (place.cap, 1);
    if place.kind == Kind::Semaphore && does(random, habits.narrows) {
        limit = one_to(limit, random);
        weight = one_to(limit, random);
    } else if place.kind == Kind::Semaphore && place.cap > 1 && random.chance(30) {
        weight = 2;
    }
    let mode = match random.below(100) {
        share if share >= habits.limits => LeaseMode::Renewed,
        share if share % 2 == 0 => LeaseMode::Fixed,
        _ => LeaseMode::MaxHold(random.part(place.ttl, 10, 300)),
    };
    let max_wait = match random.below(100) {
        0..10 => Some(Duration::ZERO),
        10..25 if does(random, habits.hurries) => {
            Some(Duration::from_nanos(1 + random.below(100_000)))
        }
        10..25 => Some(random.millis(1, 500)),
        _ => None,
    };
    Ask {
        weight,
        limit,
        mode,
        max_wait,
    }
}

fn one_to(most: u32, random: &mut Random) -> u32 {
    1 + u32::try_from(random.below(most.into())).unwrap_or(0)
}

async fn step<S: Home>(
    world: &Arc<World<S>>,
    process: &Arc<Process<S>>,
    task: usize,
    random: &mut Random,
    habits: Habits,
) {
    let gate = habits.gates.0 + usize::try_from(random.below(habits.gates.1 as u64)).unwrap_or(0);
    let place = &world.places[gate];
    if does(random, habits.bursts) {
        burst(world, process, place, random).await;
    }
    let ask = ask(world, gate, random, habits);
    let asked = now();
    world.wait_begins(
        task,
        Waiting {
            gate,
            process: process.number,
            since: asked,
            pended: None,
            ask,
        },
    );
    let acquiring = noting_its_wait(world, task, process.acquire(place, ask));
    let outcome = if random.chance(habits.drops) {
        give_up(world, acquiring, random, habits).await
    } else {
        Some(acquiring.await)
    };
    let acquired = now();
    let pended = world.wait_ends(task);
    if let Some(outcome) = &outcome {
        judge_wait(world, task, ask, (asked, acquired), outcome);
    }
    match outcome {
        None => {
            world.counts.dropped.fetch_add(1, Ordering::Relaxed);
            if habits.rests_ms > 0 {
                sleep(random.millis(0, habits.rests_ms)).await;
            }
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
                process: process.number,
                task,
                limit: ask.limit,
                pended,
                longest,
                ..Taken::new(gate, hold, ttl)
            };
            hold_on(world, process, guard, taken, random, habits).await;
        }
        Some(Err(LockError::Refused(_))) => {
            world.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        Some(Err(error)) => {
            world.counts.failed.fetch_add(1, Ordering::Relaxed);
            let kind = match &error {
                LockError::Backend(error) => format!("{:?}", error.kind()),
                other => other.to_string(),
            };
            let brief = matches!(ask.mode, LeaseMode::MaxHold(_));
            world.failed(asked, kind, brief);
            if world.is_quiet() && !world.was_out(asked, acquired) {
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

/// Many acquisitions that end in the poll that begins them. Too short to be judged one by one: what
/// they break is seen by the others.
async fn burst<S: Home>(
    world: &World<S>,
    process: &Process<S>,
    place: &Place,
    random: &mut Random,
) {
    let mut last = 0;
    for _ in 0..500 {
        let ask = Ask {
            weight: 1,
            limit: place.cap,
            mode: LeaseMode::Renewed,
            max_wait: random.chance(50).then_some(Duration::ZERO),
        };
        let acquired = unconstrained(poll_k_times(process.acquire(place, ask), 1)).await;
        if let Some(Ok(guard)) = acquired {
            let before = std::mem::replace(&mut last, guard.fence());
            if last <= before {
                world.problem(format!("{}: {last} after {before}", place.name));
            }
            world.counts.in_bursts.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An acquire that notes when its first poll has left it waiting.
fn noting_its_wait<S: Home>(
    world: &Arc<World<S>>,
    task: usize,
    mut acquiring: Acquiring,
) -> Acquiring {
    let world = Arc::clone(world);
    let mut asked = false;
    Box::pin(poll_fn(move |cx| {
        // Without one it lets other tasks run before it asks.
        let asks = !asked && has_budget_remaining();
        let poll = acquiring.as_mut().poll(cx);
        if asks && poll.is_pending() {
            world.wait_pends(task);
        }
        asked |= asks;
        poll
    }))
}

/// A wait ends neither before its limit nor long after it.
fn judge_wait<S: Home>(
    world: &World<S>,
    task: usize,
    ask: Ask,
    (asked, ended): (u64, u64),
    outcome: &Result<Guard, LockError>,
) {
    let Some(limit) = ask.max_wait.map(nanos) else {
        return;
    };
    if let Err(LockError::Refused(refusal)) = outcome
        && refusal.kind() == RefusalKind::WaitedTooLong
        && ended < asked + limit
    {
        world.problem(format!("task {task} gave up at {ended}: {asked}, {ask:?}"));
    }
    let overtime = ended.saturating_sub(asked + limit);
    world
        .counts
        .overtime_us
        .fetch_max(overtime / 1000, Ordering::Relaxed);
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Drops the future at some time or poll, unless it is ready before.
async fn give_up<S: Home>(
    world: &World<S>,
    mut acquiring: Acquiring,
    random: &mut Random,
    habits: Habits,
) -> Option<Result<Guard, LockError>> {
    let polls = usize::try_from(random.below(4)).unwrap_or(0);
    let by_time = does(random, habits.drops_by_time);
    let outcome = match random.below(3) {
        _ if by_time => give_up_in_time(&mut acquiring, random, habits).await,
        0 => poll_k_times(acquiring.as_mut(), polls).await,
        1 => timeout(
            Duration::from_secs(1),
            poll_k_times_and_wake(acquiring.as_mut(), polls),
        )
        .await
        .ok()
        .flatten(),
        _ => give_up_in_time(&mut acquiring, random, habits).await,
    };
    if does(random, habits.strays) {
        world.drop_elsewhere(acquiring);
    }
    outcome
}

async fn give_up_in_time(
    acquiring: &mut Acquiring,
    random: &mut Random,
    habits: Habits,
) -> Option<Result<Guard, LockError>> {
    let time = random.millis(0, habits.drops_ms);
    timeout(time, acquiring.as_mut()).await.ok()
}

/// A guard in use, which writes its hold down when it ends: also if its process crashes meanwhile.
struct InUse<S: Home> {
    world: Arc<World<S>>,
    process: Arc<Process<S>>,
    guard: Option<Guard>,
    taken: Option<Taken>,
    /// Nobody looks at it.
    blind: bool,
}

impl<S: Home> InUse<S> {
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

    /// Ends the hold. What comes after is no longer its owner's. Gives the guard, and whether it
    /// was held until now.
    fn end(&mut self) -> Option<(Guard, bool)> {
        let held = self.look();
        if !held {
            self.world.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.log(now());
        Some((self.guard.take()?, held))
    }

    /// Writes the hold down, which is let go after this moment.
    fn log(&mut self, let_go: u64) {
        if let Some(taken) = self.taken.take() {
            self.world.took(Taken { let_go, ..taken });
        }
    }
}

/// The hold lasts as long as the guard says so, and no longer than its last known deadline.
fn look(guard: &Guard, taken: &mut Taken) -> bool {
    let at = now();
    let (held, remaining) = (guard.is_held(), guard.remaining());
    let by = now();
    // Lost between the two.
    let held = held && !remaining.is_zero();
    let deadline = at + nanos(remaining);
    if held {
        // It was held at `at`, surely; later looks or its deadline may set the end further off.
        taken.hold.ended = taken.hold.ended.max(at);
        taken.seen = taken.seen.max(at);
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
            by,
            held,
            deadline: if held { deadline } else { 0 },
        });
    }
    held
}

impl<S: Home> Drop for InUse<S> {
    /// Dropped while it holds: its process has crashed. The guard is not given back, and believes
    /// that it holds until its deadline.
    fn drop(&mut self) {
        if self.blind {
            self.log(now());
            return;
        }
        let (Some(guard), Some(mut taken)) = (self.guard.take(), self.taken.take()) else {
            return;
        };
        let (world, process) = (Arc::clone(&self.world), Arc::clone(&self.process));
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let log = Arc::clone(&world);
        world.bury(async move {
            while look(&guard, &mut taken) {
                sleep(Duration::from_millis(5)).await;
            }
            // Long after, it is not held either.
            sleep(Duration::from_millis(500)).await;
            look(&guard, &mut taken);
            log.took(taken);
            drop((guard, process));
        });
    }
}

async fn hold_on<S: Home>(
    world: &Arc<World<S>>,
    process: &Arc<Process<S>>,
    guard: Guard,
    taken: Taken,
    random: &mut Random,
    habits: Habits,
) {
    let ttl = Duration::from_nanos(taken.ttl);
    // Where leases are short there is more to see, and less to wait for.
    let lingers = habits.lingers * 1_000_000_000 / taken.ttl.max(300_000_000);
    let length = if random.chance(lingers) {
        random.part(ttl, 5, habits.lingers_for)
    } else if does(random, habits.hastes) {
        Duration::ZERO
    } else {
        random.millis(0, habits.hold_ms + 1)
    };
    let mut in_use = InUse {
        world: Arc::clone(world),
        process: Arc::clone(process),
        guard: Some(guard),
        taken: Some(taken),
        blind: does(random, habits.blind),
    };
    if in_use.blind {
        if length.is_zero() {
            yield_now().await;
        } else {
            sleep(length).await;
        }
        end_unseen(world, in_use, random, habits).await;
        return;
    }
    if does(random, habits.dozes) {
        sleep(random.part(length, 0, 100)).await;
    }
    in_use.look();
    let watches = random.chance(50);
    watch(world, &mut in_use, length, watches, random, habits).await;
    if does(random, habits.strays) {
        world.drop_elsewhere(in_use.end());
        return;
    }
    match random.below(4) {
        0 => {
            if let Some((guard, held)) = in_use.end() {
                let asked = now();
                let answer = guard.release().await;
                judge_release(world, held, answer, asked);
            }
        }
        1 => {
            if let Some((guard, _)) = in_use.end() {
                drop(guard.release());
            }
        }
        _ => drop(in_use.end()),
    }
}

/// Holds for a while, or until it hears that it has lost.
async fn watch<S: Home>(
    world: &World<S>,
    in_use: &mut InUse<S>,
    length: Duration,
    watches: bool,
    random: &mut Random,
    habits: Habits,
) {
    let Some(ttl) = in_use.taken.as_ref().map(|taken| taken.ttl) else {
        return;
    };
    // In a task of its own: that one looks only when it is woken.
    let mut watcher = JoinSet::new();
    if let Some(guard) = in_use.guard.as_ref().filter(|_| watches) {
        watcher.spawn(guard.lost());
    }
    let begun = std::time::Instant::now();
    let mut looked = now();
    while begun.elapsed() < length {
        let pause = (length - begun.elapsed().min(length)).min(Duration::from_millis(10));
        let mut fired = tokio::select! {
            _ = watcher.join_next(), if watches => true,
            () = sleep(pause) => false,
        };
        if !fired {
            looked = now();
            if !in_use.look() && watches {
                let heard = timeout(Duration::from_nanos(LATE), watcher.join_next()).await;
                if heard.is_err() {
                    world.problem(format!(
                        "is_held() was false at {looked}, lost() never came"
                    ));
                }
                fired = true;
            }
        }
        if fired {
            let fired = now();
            if in_use.look() {
                world.problem(format!("lost() fired at {fired} and is_held() is true"));
            }
            // Late is what a look after the deadline could have seen: that the task itself came
            // late says nothing.
            let deadline = in_use.deadline();
            if let Some(late) = deadline.and_then(|deadline| looked.checked_sub(deadline)) {
                world
                    .counts
                    .late_us
                    .fetch_max(late / 1000, Ordering::Relaxed);
                if late > LATE {
                    world.problem(format!("lost() came {late} ns late, at {fired}"));
                }
            }
            // A stubborn owner keeps the guard for a while: nothing may revive it, and nobody has
            // to wait for it.
            if does(random, habits.squats) {
                sleep(random.millis(1500, 2500)).await;
                in_use.look();
            } else if random.chance(50) {
                sleep(random.part(Duration::from_nanos(ttl), 1, 60)).await;
                in_use.look();
            }
            return;
        }
    }
}

/// Lets go of a guard that nobody looked at.
async fn end_unseen<S: Home>(
    world: &World<S>,
    mut in_use: InUse<S>,
    random: &mut Random,
    habits: Habits,
) {
    let let_go = now();
    let Some(guard) = in_use.guard.take() else {
        return;
    };
    if does(random, habits.strays) {
        world.drop_elsewhere(guard);
    } else if random.chance(50) {
        drop(guard);
    } else {
        let answer = guard.release().await;
        // The answer is as good as a look.
        if let Some(taken) = &mut in_use.taken {
            match answer {
                Ok(Release::Released) => (taken.hold.ended, taken.seen) = (let_go, let_go),
                Ok(Release::NoLongerHeld) => {
                    world.counts.lost.fetch_add(1, Ordering::Relaxed);
                    taken.looks.push(Look {
                        at: let_go,
                        by: now(),
                        held: false,
                        deadline: 0,
                    });
                }
                Err(_) => {}
            }
        }
        judge_release(world, true, answer, let_go);
    }
    in_use.log(let_go);
}

/// Where answers are exact: what was lost is not said to be released, and only an outage keeps an
/// answer back.
fn judge_release<S: Home>(
    world: &World<S>,
    held: bool,
    answer: Result<Release, portcullis::BackendError>,
    asked: u64,
) {
    if !S::EXACT {
        return;
    }
    match answer {
        Ok(Release::Released) if !held => {
            world.problem(format!("lost before {asked}, and yet released"));
        }
        Err(error) if !world.was_out(asked, now()) => {
            world.problem(format!("released at {asked}: {error}"));
        }
        Ok(_) | Err(_) => {}
    }
}
