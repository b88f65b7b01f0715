//! Gates in memory against what a process without a fleet would take: tokio's own semaphore.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::Portcullis;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Group, runtime};
use crate::measure::{Spread, interleave, ratio, short, side};
use crate::report::{Report, Target};

pub(crate) const GROUP: Group = Group {
    name: "memory_backend",
    about: "Semaphores in memory, in pairs of acquire and release per second, relative to tokio's `Semaphore::acquire_owned`.",
    run,
};

const ROUNDS: usize = 9;
const SLICE: Duration = Duration::from_millis(300);
/// A clock is looked at once in so many pairs.
const CHUNK: u64 = 64;

/// Who contends for what.
#[derive(Clone, Copy)]
struct Regime {
    name: &'static str,
    tasks: usize,
    /// Permits of each semaphore.
    limit: u32,
    /// Whether all tasks share one.
    shared: bool,
    /// Whether a holder lets others run before it gives back.
    yields: bool,
    /// The least ratio that will do.
    target: f64,
}

const fn alone(name: &'static str, tasks: usize, target: f64) -> Regime {
    Regime {
        name,
        tasks,
        limit: 8,
        shared: false,
        yields: false,
        target,
    }
}

const fn contended(name: &'static str, tasks: usize, limit: u32) -> Regime {
    Regime {
        name,
        tasks,
        limit,
        shared: true,
        yields: true,
        target: 0.7,
    }
}

const REGIMES: [Regime; 7] = [
    alone("1 thread", 1, 0.9),
    alone("2 threads, each its own", 2, 1.2),
    Regime {
        shared: true,
        ..alone("2 threads, one with room", 2, 1.2)
    },
    contended("16 tasks for 1", 16, 1),
    contended("256 tasks for 4", 256, 4),
    contended("256 tasks for 1", 256, 1),
    contended("4096 tasks for 64", 4096, 64),
];

fn run(report: &mut Report) {
    let mut rows = Vec::new();
    runtime().block_on(async {
        for regime in REGIMES {
            let [ours, theirs] = compare(regime).await;
            let relative = ratio(&ours, &theirs, |rate| *rate);
            let what = format!("in memory, {}, relative to `acquire_owned`", regime.name);
            report.target(&what, Target::AtLeast(regime.target), relative);
            rows.push(vec![
                regime.name.to_owned(),
                short(Spread::of(ours).median),
                short(Spread::of(theirs).median),
                relative.to_string(),
            ]);
        }
    });
    report.table(&["", "pairs/s", "of `acquire_owned`", "ratio"], &rows);
}

/// The rates of both, round by round: ours first.
async fn compare(regime: Regime) -> [Vec<f64>; 2] {
    let memory = Portcullis::in_memory();
    let bench = memory.semaphore("bench", regime.limit).expect("in range");
    // Gates are shared by name, not by handing a reference around.
    let ours: Vec<_> = (0..regime.tasks)
        .map(|task| bench.keyed(if regime.shared { 0 } else { task }))
        .collect();
    let one = Arc::new(Semaphore::new(regime.limit as usize));
    let theirs: Vec<_> = (0..regime.tasks)
        .map(|_| match regime.shared {
            true => Arc::clone(&one),
            false => Arc::new(Semaphore::new(regime.limit as usize)),
        })
        .collect();
    let mut sides = vec![
        side(|| rate(&ours, regime.yields)),
        side(|| rate(&theirs, regime.yields)),
    ];
    let seen = interleave(ROUNDS, &mut sides).await;
    seen.try_into().expect("as many as there are sides")
}

/// What is taken and given back.
trait Gate: Clone + Send + 'static {
    type Permit: Send;

    fn enter(&self) -> impl Future<Output = Self::Permit> + Send;
}

impl Gate for Arc<Semaphore> {
    type Permit = OwnedSemaphorePermit;

    async fn enter(&self) -> OwnedSemaphorePermit {
        let permit = Self::clone(self).acquire_owned().await;
        permit.expect("it is not closed")
    }
}

impl Gate for portcullis::Semaphore {
    type Permit = portcullis::SemaphorePermit;

    async fn enter(&self) -> portcullis::SemaphorePermit {
        self.acquire().await.expect("nobody refuses")
    }
}

/// Pairs of acquire and release per second that the tasks, one for each of `gates`, reach within a
/// slice.
///
/// Not by [`lane::rate`](crate::lane::rate): beside pairs that take a tenth of a microsecond, its
/// look at the clock in each turn would weigh more than they do.
async fn rate<G: Gate>(gates: &[G], yields: bool) -> f64 {
    let begun = Instant::now();
    let workers: Vec<_> = gates
        .iter()
        .map(|gate| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let mut pairs = 0_u64;
                while begun.elapsed() < SLICE {
                    for _ in 0..CHUNK {
                        let permit = gate.enter().await;
                        if yields {
                            tokio::task::yield_now().await;
                        }
                        drop(permit);
                    }
                    pairs += CHUNK;
                    tokio::task::yield_now().await;
                }
                pairs
            })
        })
        .collect();
    let mut pairs = 0;
    for worker in workers {
        pairs += worker.await.expect("no worker panics");
    }
    pairs as f64 / begun.elapsed().as_secs_f64()
}
