//! What a waiting task takes of its process' memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portcullis::Portcullis;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::child::{Role, fleet};
use crate::cost;
use crate::groups::runtime;
use crate::measure::{Spread, short};
use crate::peers::gates;
use crate::report::{Report, Target};
use crate::support::Server;

/// A process in which many tasks wait.
pub(crate) const ROLE: Role = Role { name: "wait", play };

const WAITERS: usize = 20_000;
/// So many ask at once: all together would wait for their answers longer than the crate allows.
const AT_ONCE: usize = 500;
const ROUNDS: usize = 3;

/// What they wait for.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Awaited {
    /// A permit of tokio's semaphore: what a task that waits takes at least.
    Tokio,
    /// A lock in memory.
    Memory,
    /// A lock on the server at this address.
    Server(String),
}

pub(super) fn run(report: &mut Report) {
    let server = Server::start();
    let sides = [
        ("a permit of tokio's semaphore", Awaited::Tokio),
        ("a mutex in memory", Awaited::Memory),
        ("a mutex on Redis", Awaited::Server(server.url())),
    ];
    let mut seen = sides.each_ref().map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (awaited, seen) in sides.iter().zip(&mut seen) {
            let (bytes, ()) = fleet::<f64, ()>(ROLE.name, &[&awaited.1], |_| ());
            seen.extend(bytes);
        }
    }
    let more = |side: usize| {
        let pairs = seen[side].iter().zip(&seen[0]);
        Spread::of(pairs.map(|(ours, bare)| ours - bare))
    };
    let rows: Vec<_> = (0..sides.len())
        .map(|side| {
            let bytes = Spread::of(seen[side].iter().copied());
            vec![
                sides[side].0.to_owned(),
                bytes.to_string(),
                short(more(side).median),
            ]
        })
        .collect();
    report.text(&format!(
        "**{WAITERS} tasks that wait in one process**, in resident bytes. What a task takes that waits for nothing of ours is the first row."
    ));
    report.table(
        &["each waits for", "bytes per waiter", "more than the first"],
        &rows,
    );
    for (side, place) in [(1, "in memory"), (2, "on Redis")] {
        let what = format!("process bytes per waiter {place}, beyond the bare task");
        report.target(&what, Target::AtMost(1024.0), more(side));
    }
}

fn play(task: &str, all_ready: &mut dyn FnMut()) -> String {
    let awaited: Awaited = serde_json::from_str(task).expect("what to wait for");
    all_ready();
    let bytes = runtime().block_on(async {
        match awaited {
            Awaited::Tokio => {
                let semaphore = Arc::new(Semaphore::new(1));
                let _held = Arc::clone(&semaphore).acquire_owned().await;
                grown(
                    &semaphore,
                    |semaphore| semaphore.acquire_owned(),
                    || usize::MAX,
                )
                .await
            }
            Awaited::Memory => locks(&Portcullis::in_memory(), || usize::MAX).await,
            Awaited::Server(url) => locks(&gates(&url), || queued(&url)).await,
        }
    });
    bytes.to_string()
}

async fn locks(gates: &Portcullis, waiting: impl Fn() -> usize) -> f64 {
    let lock = gates.mutex("awaited").max_waiters(2 * WAITERS as u32);
    let _held = lock.lock().await.expect("own keys are free");
    let enter = |lock: portcullis::Mutex| async move { lock.lock().await };
    grown(&lock, enter, waiting).await
}

/// The resident bytes that each waiter adds, once they have all asked and `waiting` counts as many.
async fn grown<G, F>(gate: &G, enter: impl Fn(G) -> F, waiting: impl Fn() -> usize) -> f64
where
    G: Clone,
    F: Future + Send + 'static,
{
    let asked = Arc::new(AtomicUsize::new(0));
    let before = cost::resident(std::process::id());
    let mut tasks = Vec::with_capacity(WAITERS);
    while tasks.len() < WAITERS {
        tasks.extend((0..AT_ONCE).map(|_| {
            let (entered, asked) = (enter(gate.clone()), Arc::clone(&asked));
            tokio::spawn(async move {
                asked.fetch_add(1, Ordering::Relaxed);
                drop(entered.await);
            })
        }));
        while asked.load(Ordering::Relaxed) < tasks.len() || waiting() < tasks.len() {
            assert!(
                !tasks.iter().any(JoinHandle::is_finished),
                "a waiter was refused"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    // The last answers are still to be worked through.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let after = cost::resident(std::process::id());
    for task in &tasks {
        task.abort();
    }
    after.saturating_sub(before) as f64 / WAITERS as f64
}

/// How many wait at the one lock that anybody waits at.
fn queued(url: &str) -> usize {
    let client = redis::Client::open(url).expect("a valid address");
    let mut connection = client.get_connection().expect("the server listens");
    let queues = redis::cmd("KEYS")
        .arg("*:mq:*")
        .query::<Vec<String>>(&mut connection);
    let queues = queues.expect("answered");
    let lengths = queues.iter().map(|queue| {
        redis::cmd("ZCARD")
            .arg(queue)
            .query::<usize>(&mut connection)
            .expect("answered")
    });
    lengths.sum()
}
