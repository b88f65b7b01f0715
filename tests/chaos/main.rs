//! Chaos with a seed: a fleet at a few gates while its network, its processes and its server break,
//! or what there is to break in memory; the history is judged afterwards.
//!
//! `PORTCULLIS_CHAOS_SEED` chooses the plan and is printed; `PORTCULLIS_CHAOS_SECONDS` is how long
//! the faults go on (20 by default, half of it on a quorum, a quarter in memory),
//! `PORTCULLIS_CHAOS_ACQUISITIONS` how many there are in the tests that count them (2,000 by
//! default, 10,000 by `scripts/test --chaos`; ten times as many by a fleet in memory, half of that
//! by one process). A seed fixes what is done and asked, not how the machine schedules it: a
//! failure may need several runs to come again.

mod fault;
mod home;
mod judge;
mod leftover;
mod quorum;
mod random;
mod soak;
#[path = "../support/mod.rs"]
mod support;
mod task;
mod trace;
mod watch;
mod world;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::test_util::MemoryServer;

use self::fault::Faults;
use self::home::{Home, Remote};
use self::quorum::Quorum;
use self::random::Random;
use self::support::Server;
use self::task::Habits;
use self::trace::Observer;
use self::watch::Stalls;
use self::world::{Place, World};

/// How many tasks keep what they get.
const KEEPERS: usize = 16;

/// How they do, at gates of their own.
const KEEPING: Habits = Habits {
    drops: 5,
    lingers: 40,
    limits: 10,
    hold_ms: 20,
    ..Habits::PLAIN
};

/// How many processes of a hundred keep permits, where some do: whether one does is its seed's affair.
const SOME: u64 = 60;

/// How many problems of one run are worth reading.
const TOLD: usize = 20;

/// How long a machine that does not stand still may keep somebody waiting, in ns.
const PATIENCE: u64 = 200_000_000;

const SEED: u64 = 20_260_729;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_default();
    if text.is_empty() {
        default
    } else {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} takes a number"))
    }
}

/// The clock of all that is judged, in ns: the crate's own, which counts the time that the machine
/// sleeps.
fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let reading = rustix::time::clock_gettime(CLOCK);
    reading.tv_sec as u64 * 1_000_000_000 + reading.tv_nsec as u64
}

fn seed() -> u64 {
    let seed = number("PORTCULLIS_CHAOS_SEED", SEED);
    println!("PORTCULLIS_CHAOS_SEED={seed}");
    seed
}

/// Who is to be seen when a run goes wrong: `RUST_LOG=portcullis=debug` shows what the crate says.
fn listen() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
}

/// A fleet of `tasks` over the processes of a world.
struct Fleet {
    tasks: tokio::task::JoinSet<()>,
}

impl Fleet {
    fn start<S: Home>(
        world: &Arc<World<S>>,
        seed: u64,
        tasks: usize,
        habits: Habits,
        enough: usize,
    ) -> Self {
        let mut fleet = Self {
            tasks: tokio::task::JoinSet::new(),
        };
        fleet.add(world, seed, 0..tasks, habits, enough);
        fleet
    }

    fn add<S: Home>(
        &mut self,
        world: &Arc<World<S>>,
        seed: u64,
        tasks: Range<usize>,
        habits: Habits,
        enough: usize,
    ) {
        for task in tasks {
            self.tasks.spawn(task::run(
                Arc::clone(world),
                task,
                task,
                seed,
                habits,
                enough,
            ));
        }
    }

    async fn join(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("tasks do not panic");
        }
    }
}

/// Does `work` unless somebody is stuck, which fails the test with all that is known of it.
async fn unless_stuck<S: Home, T>(world: &World<S>, work: impl Future<Output = T>) -> T {
    tokio::select! {
        output = work => output,
        stuck = watch::stuck(world) => panic!("{stuck}"),
    }
}

/// Lets a fleet go on under faults for so long, and ends it.
async fn under_faults<S: Home>(
    world: &Arc<World<S>>,
    fleet: &mut Fleet,
    faults: Faults,
    seconds: u64,
) {
    let faulty = async {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        faults.stop(world).await;
        // As long again as a fault can have an effect: the fleet recovers by itself, under load. Some
        // faults set all gates right: what goes wrong without them shows now.
        tokio::time::sleep(Duration::from_secs(4)).await;
        world.closing.cancel();
        fleet.join().await;
    };
    unless_stuck(world, faulty).await;
}

async fn judge<S: Home>(world: &Arc<World<S>>, observer: Option<Observer>, stalls: &Stalls) {
    let begun = Instant::now();
    let left = unless_stuck(world, watch::nothing_is_left(world)).await;
    let trace = observer.map(Observer::finish);
    println!("{}", watch::describe(world));
    if let Some(trace) = &trace {
        println!("{}", trace.describe());
    }
    println!("{}", stalls.describe());
    println!("nothing left after {:?}", begun.elapsed());
    let patience = PATIENCE + 2 * stalls.longest();
    let mut problems = watch::verdict(world, trace.as_ref(), patience);
    problems.extend(left.err());
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems[..problems.len().min(TOLD)].join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_by_a_fleet_that_drops_and_crashes_and_loses_its_subscriptions_end_well() {
    acquisitions_end_well(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_by_a_fleet_that_keeps_permits_and_crashes_end_well() {
    acquisitions_end_well(SOME).await;
}

async fn acquisitions_end_well(keepers: u64) {
    listen();
    let seed = seed();
    let enough =
        usize::try_from(number("PORTCULLIS_CHAOS_ACQUISITIONS", 2000)).unwrap_or(usize::MAX);
    let ttl = Duration::from_secs(2);
    let places = vec![
        Place::mutex("m1", ttl),
        Place::mutex("m2", ttl),
        Place::mutex("m3", ttl),
        Place::exact("x1", ttl),
        Place::semaphore("s2", 2, ttl),
        Place::semaphore("s4", 4, ttl),
    ];
    let gates = (0, places.len());
    let timeouts = (500, 500);
    let world = World::start_keeping(Server::start(), seed, places, 8, timeouts, keepers);
    let world = Arc::new(world);
    world.quiet.store(0, std::sync::atomic::Ordering::Relaxed);
    let observer = Observer::start(world.server.port(), true);
    let stalls = Stalls::watch();
    let mut faults = Faults::new();
    faults.kill_subscriptions(&world, Duration::from_millis(50));
    faults.crash(&world, seed, Duration::from_secs(2));
    let habits = Habits {
        drops: 15,
        gates,
        ..Habits::PLAIN
    };
    let begun = Instant::now();
    let mut fleet = Fleet::start(&world, seed, 200, habits, enough);
    unless_stuck(&world, fleet.join()).await;
    println!("{enough} acquisitions in {:?}", begun.elapsed());
    faults.stop(&world).await;
    judge(&world, Some(observer), &stalls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_leaves_nothing_though_requests_overtake_each_other() {
    let seconds = number("PORTCULLIS_CHAOS_SECONDS", 20) / 2;
    give_up_in_rounds(Server::start(), seconds, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_leaves_nothing_where_permits_are_kept() {
    let seconds = number("PORTCULLIS_CHAOS_SECONDS", 20) / 4;
    give_up_in_rounds(Server::start(), seconds, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_leaves_nothing_on_any_server_of_a_quorum() {
    let seconds = number("PORTCULLIS_CHAOS_SECONDS", 20).div_ceil(4);
    let servers = Quorum::start(None).without_quarantine();
    give_up_in_rounds(servers, seconds, 0).await;
}

async fn give_up_in_rounds<S: Remote>(server: S, seconds: u64, keepers: u64) {
    listen();
    let seed = seed();
    let end = Instant::now() + Duration::from_secs(seconds);
    let world = World::start_keeping(server, seed, Vec::new(), 3, (150, 400), keepers);
    let world = Arc::new(world);
    let rounds = (0..3).map(async |slot| {
        let mut random = Random::stream(seed, slot as u64);
        let mut number = 0;
        while Instant::now() < end {
            leftover::round(&world, slot, number, &mut random).await;
            number += 1;
        }
        number
    });
    let count: usize = futures_util::future::join_all(rounds)
        .await
        .into_iter()
        .sum();
    let problems = world.problems();
    println!("{count} rounds");
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
    assert!(count > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_under_random_faults() {
    under_random_faults(number("PORTCULLIS_CHAOS_SECONDS", 20), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_of_which_some_keep_permits_under_random_faults() {
    under_random_faults(number("PORTCULLIS_CHAOS_SECONDS", 20), SOME).await;
}

async fn under_random_faults(seconds: u64, keepers: u64) {
    listen();
    let seed = seed();
    let mut random = Random::new(seed);
    // Short ones end more often.
    let mut ttl = || {
        if random.chance(50) {
            random.millis(300, 800)
        } else {
            random.millis(800, 3000)
        }
    };
    let mut places: Vec<Place> = ["m1", "m2", "m3"]
        .map(|name| Place::mutex(name, ttl()))
        .into();
    places.push(Place::exact("x1", ttl()));
    let semaphores = ["s1", "s2", "s3"].map(|name| (name, ttl()));
    for (name, ttl) in semaphores {
        let cap = 1 + u32::try_from(random.below(4)).unwrap_or(0);
        places.push(Place::semaphore(name, cap, ttl));
    }
    let shared = places.len();
    // Gates that two each want and hold for long: what befalls a lease is seen best while it is
    // held.
    for gate in 0..KEEPERS / 2 {
        places.push(Place::mutex(&format!("k{gate}"), random.millis(300, 600)));
    }
    for place in &places {
        println!("{place:?}");
    }
    let processes = 4;
    let timeouts = (150, 900);
    let world = World::start_keeping(Server::start(), seed, places, processes, timeouts, keepers);
    let world = Arc::new(world);
    let observer = Observer::start(world.server.port(), false);
    let stalls = Stalls::watch();
    let mut faults = Faults::new();
    for slot in 0..processes {
        faults.break_network(&world, seed, slot);
    }
    faults.break_server(&world, seed);
    faults.spoof(&world, seed);
    faults.lock_plainly(&world, seed);
    let habits = Habits {
        drops: 20,
        lingers: 4,
        limits: 25,
        hold_ms: 20,
        gates: (0, shared),
        ..Habits::PLAIN
    };
    let mut fleet = Fleet::start(&world, seed, 60, habits, usize::MAX);
    let keeping = Habits {
        gates: (shared, KEEPERS / 2),
        ..KEEPING
    };
    fleet.add(&world, seed, 60..60 + KEEPERS, keeping, usize::MAX);
    under_faults(&world, &mut fleet, faults, seconds).await;
    judge(&world, Some(observer), &stalls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_on_a_quorum_under_random_faults() {
    let seconds = number("PORTCULLIS_CHAOS_SECONDS", 20).div_ceil(2);
    on_a_quorum(Quorum::start(None), seconds).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "sets clocks by libfaketime: `scripts/test --chaos SEED`"]
async fn a_fleet_on_a_quorum_of_which_a_clock_steps_too() {
    let seconds = number("PORTCULLIS_CHAOS_SECONDS", 20).div_ceil(2);
    let clock = Random::new(seed()).below(quorum::SERVERS as u64);
    on_a_quorum(Quorum::start(usize::try_from(clock).ok()), seconds).await;
}

async fn on_a_quorum(servers: Quorum, seconds: u64) {
    listen();
    let seed = seed();
    let mut random = Random::new(seed);
    // So short that servers vote again soon after a restart, and long enough for a busy machine.
    let mut ttl = || random.millis(600, 2500);
    let mut places: Vec<Place> = ["m1", "m2", "m3"]
        .map(|name| Place::mutex(name, ttl()))
        .into();
    places.push(Place::exact("x1", ttl()));
    for (name, cap) in [("s1", 1), ("s2", 2), ("s3", 3)] {
        places.push(Place::semaphore(name, cap, ttl()));
    }
    let shared = places.len();
    for gate in 0..KEEPERS / 4 {
        places.push(Place::mutex(&format!("k{gate}"), ttl()));
    }
    for place in &places {
        println!("{place:?}");
    }
    servers.until_they_vote(Duration::from_millis(2500)).await;
    let processes = 3;
    let world = Arc::new(World::start(servers, seed, places, processes, (200, 900)));
    let stalls = Stalls::watch();
    let mut faults = Faults::new();
    for slot in 0..processes {
        faults.break_network(&world, seed, slot);
    }
    faults.break_servers(&world, seed);
    faults.step_clocks(&world, seed);
    let habits = Habits {
        drops: 20,
        lingers: 8,
        limits: 25,
        hold_ms: 20,
        gates: (0, shared),
        ..Habits::PLAIN
    };
    let mut fleet = Fleet::start(&world, seed, 30, habits, usize::MAX);
    let keeping = Habits {
        gates: (shared, KEEPERS / 4),
        ..KEEPING
    };
    fleet.add(&world, seed, 30..30 + KEEPERS / 2, keeping, usize::MAX);
    under_faults(&world, &mut fleet, faults, seconds).await;
    judge(&world, None, &stalls).await;
    let granted = world
        .counts
        .granted
        .load(std::sync::atomic::Ordering::Relaxed);
    assert!(granted > 0, "nobody got in");
}

/// What in memory a fleet does besides.
const IN_MEMORY: Habits = Habits {
    drops: 20,
    limits: 30,
    narrows: 50,
    hurries: 30,
    dozes: 20,
    blind: 20,
    strays: 3,
    squats: 1,
    ..Habits::PLAIN
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_in_memory_by_a_fleet_that_drops_and_loses_and_shuts_down_end_well() {
    listen();
    let seed = seed();
    let enough = number("PORTCULLIS_CHAOS_ACQUISITIONS", 2000).saturating_mul(10);
    let enough = usize::try_from(enough).unwrap_or(usize::MAX);
    let ttl = |place: usize| Duration::from_millis(50 + 10 * place as u64);
    let mut places: Vec<Place> = (0..8)
        .map(|place| Place::mutex(&format!("m{place}"), ttl(place)))
        .collect();
    places.push(Place::exact("x1", ttl(4)));
    for (place, cap) in [1, 2, 3, 5, 8, 13].into_iter().enumerate() {
        places.push(Place::semaphore(&format!("s{cap}"), cap, ttl(place)));
    }
    let habits = Habits {
        lingers: 2,
        bursts: 1,
        hold_ms: 0,
        gates: (0, places.len()),
        ..IN_MEMORY
    };
    let world = Arc::new(World::start(MemoryServer::new(), seed, places, 8, (0, 0)));
    // Nothing that is done here holds up anybody for longer than a moment.
    world.quiet.store(0, std::sync::atomic::Ordering::Relaxed);
    let stalls = Stalls::watch();
    let mut faults = Faults::new();
    faults.expire_leases(&world, seed, 5..50);
    faults.end_processes(&world, seed, 20..200);
    faults.go_out(&world, seed, 100..500, 40);
    let begun = Instant::now();
    let mut fleet = Fleet::start(&world, seed, 200, habits, enough);
    unless_stuck(&world, fleet.join()).await;
    println!("{enough} acquisitions in {:?}", begun.elapsed());
    faults.stop(&world).await;
    judge(&world, None, &stalls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_alone_in_memory_that_mostly_finds_its_gates_free() {
    listen();
    let seed = seed();
    let enough = number("PORTCULLIS_CHAOS_ACQUISITIONS", 2000).div_ceil(2);
    let enough = usize::try_from(enough).unwrap_or(usize::MAX);
    // When it ends, another joins it: so each round has its own.
    for round in 0..10 {
        alone(seed + round, enough).await;
    }
}

async fn alone(seed: u64, enough: usize) {
    let ttl = Duration::from_millis(50);
    let places = vec![
        Place::mutex("m1", ttl),
        Place::mutex("m2", ttl),
        Place::semaphore("s2", 2, ttl),
        Place::semaphore("s3", 3, ttl),
    ];
    let habits = Habits {
        drops: 2,
        lingers: 1,
        lingers_for: 400,
        bursts: 20,
        limits: 2,
        narrows: 5,
        blind: 95,
        hastes: 95,
        strays: 0,
        gates: (0, places.len()),
        ..IN_MEMORY
    };
    let world = World::start(MemoryServer::new(), seed, places, 1, (0, 0));
    let world = Arc::new(world);
    world.quiet.store(0, std::sync::atomic::Ordering::Relaxed);
    for place in &world.places {
        world.process(0).keep(place);
    }
    let stalls = Stalls::watch();
    let mut faults = Faults::new();
    faults.expire_leases(&world, seed, 2..40);
    faults.end_processes(&world, seed, 50..300);
    faults.go_out(&world, seed, 20..200, 150);
    let mut fleet = Fleet::start(&world, seed, 6, habits, enough);
    unless_stuck(&world, fleet.join()).await;
    faults.stop(&world).await;
    judge(&world, None, &stalls).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_in_memory_under_random_faults() {
    listen();
    let seed = seed();
    let seconds = number("PORTCULLIS_CHAOS_SECONDS", 20).div_ceil(4);
    let mut random = Random::new(seed);
    let mut places: Vec<Place> = ["m1", "m2", "m3"]
        .map(|name| Place::mutex(name, random.millis(50, 800)))
        .into();
    for name in ["s1", "s2", "s3", "s4"] {
        let cap = 1 + u32::try_from(random.below(6)).unwrap_or(0);
        places.push(Place::semaphore(name, cap, random.millis(50, 800)));
    }
    let shared = places.len();
    // Gates that a few each want and hold for long: little happens there by which another mistake
    // would be mended.
    for gate in 0..KEEPERS / 2 {
        places.push(Place::mutex(&format!("k{gate}"), random.millis(800, 1500)));
    }
    let kept = places.len() - shared;
    for gate in 0..2 * KEEPERS {
        let name = format!("l{gate}");
        places.push(Place::semaphore(&name, 2, random.millis(800, 1500)));
    }
    let wavered = places.len() - shared - kept;
    for place in &places {
        println!("{place:?}");
    }
    let world = Arc::new(World::start(MemoryServer::new(), seed, places, 4, (0, 0)));
    world.quiet.store(0, std::sync::atomic::Ordering::Relaxed);
    let stalls = Stalls::watch();
    let mut faults = Faults::new();
    faults.expire_leases(&world, seed, 50..400);
    faults.end_processes(&world, seed, 100..1000);
    faults.go_out(&world, seed, 300..2000, 1500);
    let habits = Habits {
        lingers: 4,
        hold_ms: 4,
        gates: (0, shared),
        ..IN_MEMORY
    };
    let mut fleet = Fleet::start(&world, seed, 60, habits, usize::MAX);
    let keeping = Habits {
        lingers: 100,
        squats: 30,
        gates: (shared, kept),
        ..IN_MEMORY
    };
    let keepers = 60..60 + 3 * kept;
    // These give up when they wait for what others behind them would fit into.
    let wavering = Habits {
        drops: 70,
        drops_ms: 2000,
        drops_by_time: 100,
        rests_ms: 3000,
        lingers: 100,
        limits: 0,
        narrows: 100,
        hurries: 100,
        gates: (shared + kept, wavered),
        ..IN_MEMORY
    };
    let waverers = keepers.end..keepers.end + 6 * wavered;
    fleet.add(&world, seed, keepers, keeping, usize::MAX);
    fleet.add(&world, seed, waverers, wavering, usize::MAX);
    under_faults(&world, &mut fleet, faults, seconds).await;
    judge(&world, None, &stalls).await;
}
