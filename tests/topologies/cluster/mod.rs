//! Gates on a cluster: spread, sent on, failed over.

mod check;
mod failover;
mod finding;
mod migration;
mod spread;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use portcullis::{Builder, Mutex, Portcullis};
use tokio::task::JoinSet;

use crate::common::LONG;
use crate::support::{Cluster, History, Hold};

fn builder(cluster: &Cluster) -> Builder {
    Portcullis::builder().url(cluster.url()).prefix("suite")
}

/// A handle whose callers have time for a failover or a migration.
fn patient(cluster: &Cluster) -> Portcullis {
    builder(cluster)
        .command_timeout(Duration::from_secs(2))
        .connect_timeout(Duration::from_secs(10))
        .build()
        .expect("a valid configuration")
}

fn lock(handle: &Portcullis, name: &str) -> Mutex {
    handle.mutex(name).ttl(LONG).expect("in range")
}

/// Names of gates, so many that each master has some.
fn names() -> Vec<String> {
    (0..12).map(|number| format!("gate-{number}")).collect()
}

/// Tasks of two handles that go in and out of gates, until they are told to end.
struct Load {
    ended: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    releases: Arc<Releases>,
    /// The history of each gate.
    histories: Vec<History>,
}

impl Load {
    /// Each handle has two tasks at each gate, so that somebody always waits.
    fn start(handles: &[Portcullis], names: &[String]) -> Self {
        let mut load = Self {
            ended: Arc::new(AtomicBool::new(false)),
            tasks: JoinSet::new(),
            releases: Arc::default(),
            histories: names.iter().map(|_| History::default()).collect(),
        };
        for handle in handles {
            for (name, history) in names.iter().zip(&load.histories) {
                for _ in 0..2 {
                    let (gate, history) = (lock(handle, name), history.clone());
                    let (ended, releases) = (Arc::clone(&load.ended), Arc::clone(&load.releases));
                    load.tasks.spawn(async move {
                        while !ended.load(Ordering::Relaxed) {
                            visit(&gate, &history, &releases).await;
                            tokio::time::sleep(Duration::from_millis(2)).await;
                        }
                    });
                }
            }
        }
        load
    }

    /// How often each gate was held so far.
    fn visits(&self) -> Vec<usize> {
        let of = |history: &History| history.holds().len();
        self.histories.iter().map(of).collect()
    }

    fn releases(&self) -> (usize, Duration) {
        let slowest = self.releases.slowest_ms.load(Ordering::Relaxed) as u64;
        let unanswered = self.releases.unanswered.load(Ordering::Relaxed);
        (unanswered, Duration::from_millis(slowest))
    }

    /// Ends it, and judges what happened. A task that was refused or failed has panicked.
    async fn end(mut self) -> Vec<History> {
        self.ended.store(true, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task.expect("nobody failed");
        }
        for history in &self.histories {
            history.assert_sound(1);
        }
        self.histories
    }
}

/// How releases were answered.
#[derive(Debug, Default)]
struct Releases {
    /// How many were not, in the time that they are waited for. They are delivered all the same.
    unanswered: AtomicUsize,
    /// How long the slowest took.
    slowest_ms: AtomicUsize,
}

/// Goes in and out once, and writes it down.
async fn visit(gate: &Mutex, history: &History, releases: &Releases) {
    let asked = History::now();
    let guard = gate.lock().await.expect("its turn comes");
    let acquired = History::now();
    tokio::task::yield_now().await;
    let (ended, fence) = (History::now(), guard.fencing_token().get());
    history.held(Hold {
        asked,
        acquired,
        ended,
        fence,
        weight: 1,
    });
    let begun = Instant::now();
    if let Err(error) = guard.release().await {
        eprintln!("not answered in time: {error}");
        releases.unanswered.fetch_add(1, Ordering::Relaxed);
    }
    let took = begun.elapsed().as_millis() as usize;
    releases.slowest_ms.fetch_max(took, Ordering::Relaxed);
}
