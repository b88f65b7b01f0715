//! Gates in memory against `tokio::sync::Semaphore::acquire_owned`, interleaved in one run.
//!
//! Run it with `cargo bench --bench memory`. It prints, for each regime, the median ratio of the
//! two rates with its spread. Absolute rates drift with the machine; only the ratios count.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portcullis::Portcullis;
use tokio::sync::Semaphore;

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

/// Pairs per second that the tasks of a regime reach within a slice, each repeating what `pair`
/// makes for the semaphore of this number.
async fn rate<W, F>(regime: Regime, pair: impl Fn(usize) -> W) -> f64
where
    W: FnMut() -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let begun = Instant::now();
    let workers: Vec<_> = (0..regime.tasks)
        .map(|task| {
            let mut pair = pair(if regime.shared { 0 } else { task });
            tokio::spawn(async move {
                let mut pairs = 0_u64;
                while begun.elapsed() < SLICE {
                    for _ in 0..CHUNK {
                        pair().await;
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
            let gates = Portcullis::in_memory();
            let mut ratios = Vec::new();
            let mut ours = 0.0;
            let tokio: Vec<_> = (0..regime.tasks)
                .map(|_| Arc::new(Semaphore::new(regime.limit as usize)))
                .collect();
            for round in 0..=ROUNDS {
                let theirs = rate(regime, |number| {
                    let semaphore = Arc::clone(&tokio[number]);
                    move || {
                        let semaphore = Arc::clone(&semaphore);
                        async move {
                            let permit = semaphore.acquire_owned().await.expect("not closed");
                            if regime.yields {
                                tokio::task::yield_now().await;
                            }
                            drop(permit);
                        }
                    }
                })
                .await;
                ours = rate(regime, |number| {
                    let semaphore = gates
                        .semaphore("bench", regime.limit)
                        .expect("in range")
                        .keyed(number);
                    let semaphore = Arc::new(semaphore);
                    move || {
                        let semaphore = Arc::clone(&semaphore);
                        async move {
                            let permit = semaphore.acquire().await.expect("nobody refuses");
                            if regime.yields {
                                tokio::task::yield_now().await;
                            }
                            drop(permit);
                        }
                    }
                })
                .await;
                // The first round warms both sides up.
                if round > 0 {
                    ratios.push(ours / theirs);
                }
            }
            let (median, least, most) = spread(ratios);
            let name = regime.name;
            println!("{name:27} {median:.2} [{least:.2}..{most:.2}]  {ours:.0}");
        }
    });
}
