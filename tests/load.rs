//! Many keys and many leases at a server: nothing of them stays, in the process or on the server.
//!
//! With `PORTCULLIS_SLOW=1` as many as a busy service sees in a day; else fewer, and as much less is
//! allowed. `--nocapture` shows the figures.

#![cfg(target_os = "linux")]

mod support;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use portcullis::layer::{Http, OnOutage};
use portcullis::{ConcurrencyLimitLayer, Portcullis};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};

use support::{Server, alone, in_use, is_slow, resident, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
/// 20 MB of a million.
const ALLOWED_PER_KEY: u64 = 20;
/// What the allocator and the runtime keep at hand, whatever the number of keys.
const ALLOWED_ONCE: u64 = 2_000_000;
const TASKS: usize = 64;

fn keys() -> u64 {
    if is_slow() { 1_000_000 } else { 50_000 }
}

fn on_two_threads(name: &str, measure: impl AsyncFnOnce()) {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    alone(name, threads.worker_threads(2).enable_all(), measure);
}

fn handle(server: &Server) -> Portcullis {
    let builder = Portcullis::builder().url(server.url());
    // These are not about time-outs.
    let builder = builder.command_timeout(LIMIT).admission_budget(LIMIT);
    builder.build().expect("a local address")
}

fn by_path(parts: &Parts) -> Option<String> {
    Some(parts.uri.path().to_owned())
}

/// A gate by the request's path, with a permit for each.
fn gate(gates: &Portcullis) -> ConcurrencyLimitLayer<Http> {
    let permits = gates.semaphore("paths", 1).expect("in range");
    ConcurrencyLimitLayer::new(permits).key(by_path)
}

/// A request for each number below `count`, `TASKS` at a time, each of another path.
async fn visit(layer: &ConcurrencyLimitLayer<Http>, count: u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let end = NEXT.load(Ordering::Relaxed) + count;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(Empty::<&[u8]>::new()))
        }));
        tasks.spawn(async move {
            loop {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    break;
                }
                let request = Request::get(format!("/{number}")).body(());
                let answer = service.clone().oneshot(request.expect("a path")).await;
                let status = answer.unwrap_or_else(|error| match error {}).status();
                assert_eq!(status, StatusCode::OK);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.expect("no panic");
    }
}

async fn is_back(what: &str, before: u64) {
    let goal = before + keys() * ALLOWED_PER_KEY + ALLOWED_ONCE;
    wait_for(&format!("{what}: memory is back"), LIMIT, async || {
        let resident = resident();
        let used = if resident > goal { in_use() } else { resident };
        println!(
            "{what}: {} kB resident, {} in use, {} before",
            resident / 1024,
            used / 1024,
            before / 1024
        );
        used <= goal
    })
    .await;
}

#[test]
fn keys_that_requests_bring_leave_nothing_with_and_without_a_server() {
    on_two_threads(
        "keys_that_requests_bring_leave_nothing_with_and_without_a_server",
        async || {
            let server = Server::start();
            let gates = handle(&server);
            let layer = gate(&gates);
            visit(&layer, 2_000).await;
            let before = in_use();
            visit(&layer, keys()).await;
            is_back("with a server", before).await;
            server.kill();
            // Quick to find out that it is away.
            let gates = Portcullis::builder().url(server.url()).build();
            let layer = gate(&gates.expect("a local address")).on_outage(OnOutage::Local(1));
            visit(&layer, keys()).await;
            is_back("without a server", before).await;
        },
    );
}

/// What clients have sent, but for what asks that.
async fn calls(server: &Server) -> u64 {
    server.script_calls().await
}

#[test]
fn leases_that_were_renewed_leave_no_renewal_no_subscription_and_no_key() {
    on_two_threads(
        "leases_that_were_renewed_leave_no_renewal_no_subscription_and_no_key",
        async || {
            let pairs: u32 = if is_slow() { 100_000 } else { 5_000 };
            let server = Server::start();
            let gates = handle(&server);
            // Renewed every 17 ms, and held for longer now and then.
            let lock = gates.mutex("short").ttl(Duration::from_millis(50));
            let lock = lock.expect("in range");
            let mut tasks = JoinSet::new();
            for task in 0..TASKS as u32 {
                let lock = lock.clone();
                tasks.spawn(async move {
                    for turn in 0..pairs / TASKS as u32 {
                        // Some by themselves, some after a wait.
                        let key = if turn % 2 == 0 { task } else { task % 8 };
                        let guard = lock.keyed(key).lock().await.expect("in time");
                        if turn % 8 == task % 8 {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        drop(guard);
                    }
                });
            }
            while let Some(task) = tasks.join_next().await {
                task.expect("no panic");
            }
            // What is still under way was released before, so a lull means that nothing is left.
            let mut said = calls(&server).await;
            wait_for("no renewal goes on", LIMIT, async || {
                tokio::time::sleep(Duration::from_millis(500)).await;
                let before = std::mem::replace(&mut said, calls(&server).await);
                said == before
            })
            .await;
            let keys = server.keys_with("portcullis:").await;
            let stray = |key: &&String| !key.ends_with("}:clock") && !key.ends_with("}:roster");
            let stray: Vec<_> = keys.iter().filter(stray).collect();
            assert!(stray.is_empty(), "{stray:?}");
            drop((lock, gates));
            wait_for("no subscription is left", LIMIT, async || {
                let channels = server.command(&["PUBSUB", "CHANNELS"]).await;
                channels == redis::Value::Array(Vec::new())
            })
            .await;
        },
    );
}
