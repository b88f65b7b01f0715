//! A fleet that goes on for as long as it is told to, under faults for three quarters of each
//! minute; judged while it goes on, so that what is kept of it does not grow.
//!
//! `PORTCULLIS_SOAK_MINUTES` says for how long. `scripts/soak` runs it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::fault::Faults;
use crate::random::Random;
use crate::support::{Server, resident, wait_for};
use crate::task::Habits;
use crate::trace::Observer;
use crate::watch::{self, Stalls};
use crate::world::{Place, World};
use crate::{Fleet, KEEPING, PATIENCE, SOME, listen, now, number, seed};

/// For how long of a minute there are faults. The rest is long enough to find who is stuck.
const FAULTY: Duration = Duration::from_secs(42);
const PEACE: Duration = Duration::from_secs(18);
/// A process that stood still for so long may have missed an answer, in ns: less than the shortest
/// time-out of the fleet.
const STILL: u64 = 100_000_000;
/// How often the history is judged, and the memory looked at.
const WINDOW: Duration = Duration::from_secs(6);
const LOOK: Duration = Duration::from_secs(1);
/// What was over so long ago is forgotten when it has been judged: longer than any hold, in ns.
const KEPT: u64 = 20_000_000_000;
/// How long the server keeps what nobody uses, and time to look.
const EMPTY: Duration = Duration::from_secs(75);

/// The fewest minutes of which memory is judged.
const STEADY: u64 = 8;

const PROCESSES: usize = 4;

/// Where the machine stood still for so long, in ns, somebody may have heard late of a loss.
const LONG_STILL: u64 = 1_000_000_000;

/// Failures that no fault explains.
const NEVER: [&str; 7] = [
    "Unauthenticated",
    "Untrusted",
    "NotPermitted",
    "ForeignData",
    "Unsupported",
    "Incompatible",
    "Protocol",
];

/// What was promised and not kept, counted by what it is.
#[derive(Debug, Default)]
struct Broken {
    counts: BTreeMap<&'static str, usize>,
    told: usize,
}

impl Broken {
    fn add(&mut self, problems: Vec<String>) {
        for problem in problems {
            *self.counts.entry(class(&problem)).or_default() += 1;
            self.told += 1;
            if self.told <= 20 {
                println!("BROKEN: {problem}");
            }
        }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for class in CLASSES {
            let count = self.counts.get(class).copied().unwrap_or(0);
            let _ = write!(text, "{class} {count}, ");
        }
        text.truncate(text.len().saturating_sub(2));
        text
    }

    fn is_empty(&self) -> bool {
        self.told == 0
    }
}

const CLASSES: [&str; 6] = [
    "overlaps",
    "fence regressions",
    "overtakers",
    "stuck",
    "leaked",
    "others",
];

/// What a judge objects to, from its words; whatever it is, it fails the run.
fn class(problem: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|words| problem.contains(words));
    if says(&["inside at once", "granted at once"]) {
        CLASSES[0]
    } else if says(&["fence"]) && !says(&["overtook"]) {
        CLASSES[1]
    } else if says(&["overtook", "granted past", "came back with ticket"]) {
        CLASSES[2]
    } else if says(&["STUCK"]) {
        CLASSES[3]
    } else if says(&[
        "is left",
        "can't be had",
        "shut down and left",
        "holds for ever",
    ]) {
        CLASSES[4]
    } else {
        CLASSES[5]
    }
}

fn median(sample: &[u64]) -> u64 {
    let mut sorted = sample.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

fn places(random: &mut Random) -> Vec<Place> {
    let mut places: Vec<Place> = ["m1", "m2", "m3"]
        .map(|name| Place::mutex(name, random.millis(300, 3000)))
        .into();
    let ttl = random.millis(300, 3000);
    places.extend((0..8).map(|key| Place::keyed("account", key, ttl)));
    places.push(Place::exact("x1", random.millis(300, 3000)));
    for (name, cap) in [("s1", 1), ("s2", 2), ("s3", 3), ("s5", 5)] {
        places.push(Place::semaphore(name, cap, random.millis(300, 3000)));
    }
    // Two want each of these, and hold for long.
    places.extend((0..8).map(|gate| Place::mutex(&format!("k{gate}"), random.millis(300, 600))));
    places
}

/// A run under way.
struct Soak {
    world: Arc<World>,
    seed: u64,
    observer: Option<Observer>,
    broken: Broken,
    /// For each gate, the greatest fence among the forgotten.
    floors: Vec<u64>,
    resident: Vec<u64>,
    /// The longest that the machine stood still since peace began, in ns.
    stood: u64,
    /// How many heard late of a loss because the machine stood still.
    excused: usize,
    begun: Instant,
}

impl Soak {
    /// Judges what has happened, and forgets what is long over.
    fn judge(&mut self, stalls: &Stalls) {
        let world = &self.world;
        let trace = self.observer.take().map(Observer::break_off);
        self.observer = Some(Observer::join(world.server.port()));
        let (machine, runtime) = stalls.take();
        self.stood = self.stood.max(machine);
        let patience = PATIENCE + 2 * machine.max(runtime);
        let mut problems = watch::verdict(world, trace.as_ref(), patience);
        let before = now().saturating_sub(KEPT);
        for taken in world.taken().iter().filter(|taken| !taken.foreign) {
            let floor = &mut self.floors[taken.gate];
            // A permit that is kept has none.
            let fenced = taken.hold.fence > 0;
            if fenced && taken.hold.asked >= before && taken.hold.fence <= *floor {
                let late = format!("fence {} after {floor}", taken.hold.fence);
                problems.push(format!("{}: {late}", world.places[taken.gate].name));
            }
            if taken.hold.acquired < before {
                *floor = (*floor).max(taken.hold.fence);
            }
        }
        // Its problems are among the judged.
        let _ = world.forget(before, KEPT);
        let before = problems.len();
        if machine > LONG_STILL {
            problems.retain(|problem| !problem.contains("lost() "));
        }
        self.excused += before - problems.len();
        if before > 0 {
            let ms = |ns: u64| ns / 1_000_000;
            println!(
                "stood still: the machine {} ms, the runtime {} ms",
                ms(machine),
                ms(runtime)
            );
        }
        self.broken.add(problems);
    }

    /// Goes on for `time`, and ends early if somebody is stuck.
    async fn go_on(&mut self, time: Duration, stalls: &Stalls) -> bool {
        let world = Arc::clone(&self.world);
        let mut stuck = Box::pin(watch::stuck(&world));
        let end = Instant::now() + time;
        let mut judged = Instant::now();
        while Instant::now() < end {
            tokio::select! {
                biased;
                text = &mut stuck => {
                    self.broken.add(vec![text]);
                    return false;
                }
                () = sleep(LOOK.min(end - Instant::now().min(end))) => {}
            }
            self.resident.push(resident() / 1024);
            if judged.elapsed() >= WINDOW {
                self.judge(stalls);
                judged = Instant::now();
            }
        }
        true
    }

    async fn minute(&mut self, minute: u64, stalls: &Stalls) -> bool {
        let world = Arc::clone(&self.world);
        let seed = self.seed.wrapping_add(minute);
        world.quiet.store(u64::MAX, Ordering::Relaxed);
        let mut faults = Faults::new();
        for slot in 0..PROCESSES {
            faults.break_network(&world, seed, slot);
        }
        faults.break_server(&world, seed);
        faults.spoof(&world, seed);
        faults.lock_plainly(&world, seed);
        let mut well = self.go_on(FAULTY, stalls).await;
        faults.stop(&world).await;
        // What is half open stays so until somebody uses it: that would be a fault, too.
        for process in world.processes() {
            process.proxy.cut();
        }
        if well {
            let failed = || world.counts.failed_when_settled.load(Ordering::Relaxed);
            let before = failed();
            self.stood = 0;
            well = self.go_on(PEACE, stalls).await;
            self.judge(stalls);
            let more = failed() - before;
            // Where the machine itself stood still, nobody else need be at fault.
            if more > 0 && self.stood < STILL {
                let text = format!(
                    "{more} failed in peace, the machine stood still for {} ns",
                    self.stood
                );
                self.broken.add(vec![text]);
            }
        }
        println!("minute {}: {}", minute + 1, self.describe().await);
        well
    }

    async fn describe(&self) -> String {
        let counts = &self.world.counts;
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let info = self.world.server.command(&["INFO", "memory"]).await;
        let info: String = redis::from_redis_value(info).unwrap_or_default();
        let used = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"))
            .and_then(|used| used.trim().parse::<u64>().ok())
            .unwrap_or(0);
        format!(
            "{:.0?}: granted {}, dropped {}, refused {}, failed {} {:?} ({} in peace), lost {}; \
             {} faults, {} crashes; {} (late as the machine stood still: {}); RSS {} kB, server {} kB",
            self.begun.elapsed(),
            read(&counts.granted),
            read(&counts.dropped),
            read(&counts.refused),
            read(&counts.failed),
            self.world.failures(),
            read(&counts.failed_when_settled),
            read(&counts.lost),
            read(&counts.faults),
            read(&counts.crashes),
            self.broken.describe(),
            self.excused,
            resident() / 1024,
            used / 1024,
        )
    }

    /// Whether memory has stopped growing: the last quarter against the second.
    fn growth(&self) -> (u64, u64) {
        let quarter = self.resident.len() / 4;
        let part = |number: usize| median(&self.resident[number * quarter..(number + 1) * quarter]);
        (part(1), part(3))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as it is told to: `scripts/soak MINUTES`"]
async fn a_fleet_that_goes_on_for_long() {
    listen();
    let seed = seed();
    let minutes = number("PORTCULLIS_SOAK_MINUTES", 1).max(1);
    let places = places(&mut Random::new(seed));
    let kept = places.len() - 8;
    let timeouts = (150, 900);
    let world = World::start_keeping(Server::start(), seed, places, PROCESSES, timeouts, SOME);
    let world = Arc::new(world);
    let observer = Observer::start(world.server.port(), false);
    let stalls = Stalls::watch();
    let habits = Habits {
        drops: 20,
        lingers: 4,
        limits: 25,
        narrows: 20,
        hold_ms: 20,
        gates: (0, kept),
        ..Habits::PLAIN
    };
    let mut fleet = Fleet::start(&world, seed, 60, habits, usize::MAX);
    let keeping = Habits {
        gates: (kept, 8),
        ..KEEPING
    };
    fleet.add(&world, seed, 60..76, keeping, usize::MAX);
    let mut soak = Soak {
        floors: vec![0; world.places.len()],
        world: Arc::clone(&world),
        seed,
        observer: Some(observer),
        broken: Broken::default(),
        resident: Vec::new(),
        stood: 0,
        excused: 0,
        begun: Instant::now(),
    };
    for minute in 0..minutes {
        if !soak.minute(minute, &stalls).await {
            break;
        }
    }
    world.closing.cancel();
    tokio::select! {
        () = fleet.join() => {}
        text = watch::stuck(&world) => soak.broken.add(vec![text]),
    }
    soak.judge(&stalls);
    let left = watch::nothing_is_left(&world).await;
    soak.broken.add(left.err().into_iter().collect());
    // Not even what outlives its use by a minute, wherever it lies.
    wait_for("the server is empty", EMPTY, async || {
        world.server.keys_with("").await.is_empty()
    })
    .await;
    let (second, last) = soak.growth();
    println!("at the end: {}", soak.describe().await);
    println!("RSS, medians: {second} kB in the second quarter, {last} kB in the last");
    let failures = world.failures();
    let never: Vec<_> = NEVER
        .iter()
        .filter(|kind| failures.contains_key(**kind))
        .collect();
    assert!(soak.broken.is_empty(), "{}", soak.broken.describe());
    assert!(never.is_empty(), "{failures:?}");
    // In less time the second quarter is no steady state yet: what is kept to be judged still grows.
    assert!(
        minutes < STEADY || last * 100 <= second * 105,
        "memory grows: {second} kB, then {last} kB"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_judges_words_are_told_apart() {
        let hold = |acquired, fence| crate::support::Hold {
            asked: acquired,
            acquired,
            ended: acquired + 10,
            fence,
            weight: 1,
        };
        let said = |verdict: Result<(), String>| class(&verdict.expect_err("it is wrong"));
        let overlapping = [hold(0, 1), hold(5, 2)];
        let falling = [hold(0, 2), hold(50, 1)];
        use crate::support::history::{cap_kept, fences_follow_holds, fences_rise};
        assert_eq!(said(cap_kept(&overlapping, 1)), "overlaps");
        assert_eq!(said(fences_rise(&falling)), "fence regressions");
        assert_eq!(said(fences_follow_holds(&falling)), "fence regressions");
        assert_eq!(
            class("the grant with fence 1 overtook the one"),
            "overtakers"
        );
        assert_eq!(
            class("x: A with ticket 2 was granted past B with ticket 1"),
            "overtakers"
        );
        assert_eq!(class("anything"), "others");
    }
}
