//! Gates in memory against `tokio::sync::Semaphore::acquire_owned`, interleaved in one run.
//!
//! Run it with `cargo bench --bench memory`. It prints, for each regime, the median ratio of the
//! two rates with its spread. Absolute rates drift with the machine; only the ratios count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::Portcullis;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
}

const REGIMES: [Regime; 7] = [
    Regime {
        name: "1 thread",
        tasks: 1,
        limit: 8,
        shared: false,
        yields: false,
    },
    Regime {
        name: "2 threads, each its own",
        tasks: 2,
        limit: 8,
        shared: false,
        yields: false,
    },
    Regime {
        name: "2 threads, one with room",
        tasks: 2,
        limit: 8,
        shared: true,
        yields: false,
    },
    Regime {
        name: "16 tasks for 1",
        tasks: 16,
        limit: 1,
        shared: true,
        yields: true,
    },
    Regime {
        name: "256 tasks for 4",
        tasks: 256,
        limit: 4,
        shared: true,
        yields: true,
    },
    Regime {
        name: "256 tasks for 1",
        tasks: 256,
        limit: 1,
        shared: true,
        yields: true,
    },
    Regime {
        name: "4096 tasks for 64",
        tasks: 4096,
        limit: 64,
        shared: true,
        yields: true,
    },
];

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

/// Pairs of acquire and release per second that the tasks of a regime reach within a slice.
async fn rate<G: Gate>(tasks: &[G], regime: Regime) -> f64 {
    let begun = Instant::now();
    let workers: Vec<_> = tasks
        .iter()
        .map(|gate| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let mut pairs = 0_u64;
                while begun.elapsed() < SLICE {
                    for _ in 0..CHUNK {
                        let permit = gate.enter().await;
                        if regime.yields {
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

fn spread(mut ratios: Vec<f64>) -> (f64, f64, f64) {
    ratios.sort_by(f64::total_cmp);
    (
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1],
    )
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        println!("regime                      ratio to acquire_owned [least..most]  pairs/s");
        for regime in REGIMES {
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
            let mut ratios = Vec::new();
            let mut last = 0.0;
            for round in 0..=ROUNDS {
                let theirs = rate(&theirs, regime).await;
                last = rate(&ours, regime).await;
                // The first round warms both sides up.
                if round > 0 {
                    ratios.push(last / theirs);
                }
            }
            let (median, least, most) = spread(ratios);
            let name = regime.name;
            println!("{name:27} {median:.2} [{least:.2}..{most:.2}]  {last:.0}");
        }
    });
}
