//! Gates on a cluster: spread, sent on, failed over.

mod check;
mod failover;
mod finding;
mod home;
mod migration;
mod pools;
mod preloaded;
mod spread;
mod tls;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use portcullis::{Builder, Mutex, Portcullis};
use tokio::task::JoinSet;

use crate::common::{Gate, Guard as _, LONG};
use crate::support::{Cluster, History, Hold, wait_for};

/// Whether its servers know channels of slots.
async fn is_sharded(cluster: &Cluster) -> bool {
    let info = cluster.nodes[0].command(&["INFO", "server"]).await;
    let info: String = redis::from_redis_value(info).expect("text");
    !info.contains("redis_version:6.")
}

/// How long a failover may take, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a release may take before it is written down.
const SLOW: Duration = Duration::from_millis(100);

fn builder(cluster: &Cluster) -> Builder {
    Portcullis::builder().url(cluster.url()).prefix("suite")
}

/// A handle whose callers have time for a failover or a migration.
fn patient(cluster: &Cluster) -> Portcullis {
    patiently(builder(cluster))
}

fn patiently(builder: Builder) -> Portcullis {
    builder
        .command_timeout(Duration::from_secs(2))
        .connect_timeout(Duration::from_secs(30))
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
        Self::at(handles, names, lock)
    }

    /// The same, at gates that are made so.
    fn at<G: Gate>(
        handles: &[Portcullis],
        names: &[String],
        gate: impl Fn(&Portcullis, &str) -> G,
    ) -> Self {
        let mut load = Self {
            ended: Arc::new(AtomicBool::new(false)),
            tasks: JoinSet::new(),
            releases: Arc::default(),
            histories: names.iter().map(|_| History::default()).collect(),
        };
        for handle in handles {
            for (name, history) in names.iter().zip(&load.histories) {
                for _ in 0..2 {
                    let (gate, history) = (gate(handle, name), history.clone());
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

    /// Waits until each gate was held so many times more.
    async fn until_all_are_used(&self, more: usize) {
        let before = self.visits();
        wait_for("all gates are used", LIMIT, async || {
            let mut visits = self.visits().into_iter().zip(&before);
            visits.all(|(now, before)| now >= before + more)
        })
        .await;
    }

    /// How many releases were not answered, in the time that they are waited for. They are delivered all the
    /// same.
    fn unanswered(&self) -> usize {
        self.releases.unanswered.load(Ordering::Relaxed)
    }

    /// How much later releases were answered, at the most, than they were asked for, or than the last of
    /// these moves ended that they fell into.
    fn latest(&self, moves: &[(Instant, Instant)]) -> Duration {
        let slow = self.releases.slow.lock().expect("nobody panics with it");
        let late = |&(asked, answered): &(Instant, Instant)| {
            let into = moves
                .iter()
                .filter(|(begun, ended)| *begun < answered && asked < *ended);
            let ends = into.map(|(_, ended)| (*ended).min(answered));
            answered - ends.max().unwrap_or(asked)
        };
        slow.iter().map(late).max().unwrap_or_default()
    }

    /// Ends it, and judges what happened. A task that was refused or failed has panicked.
    async fn end(self) -> Vec<History> {
        let histories = self.end_unjudged().await;
        for history in &histories {
            history.assert_sound(1);
        }
        histories
    }

    async fn end_unjudged(mut self) -> Vec<History> {
        self.ended.store(true, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task.expect("nobody failed");
        }
        self.histories
    }
}

/// How releases were answered.
#[derive(Debug, Default)]
struct Releases {
    unanswered: AtomicUsize,
    /// When those were asked for and answered that took a while.
    slow: std::sync::Mutex<Vec<(Instant, Instant)>>,
}

/// Goes in and out once, and writes it down.
async fn visit<G: Gate>(gate: &G, history: &History, releases: &Releases) {
    let asked = History::now();
    let guard = gate.enter().await.expect("its turn comes");
    let acquired = History::now();
    tokio::task::yield_now().await;
    let (ended, fence) = (History::now(), guard.fence());
    history.held(Hold {
        asked,
        acquired,
        ended,
        fence,
        weight: 1,
    });
    let begun = Instant::now();
    if let Err(error) = guard.give_back().await {
        eprintln!("not answered in time: {error}");
        releases.unanswered.fetch_add(1, Ordering::Relaxed);
    }
    if begun.elapsed() > SLOW {
        let mut slow = releases.slow.lock().expect("nobody panics with it");
        slow.push((begun, Instant::now()));
    }
}
