//! A lock of each task's own: what taking and giving back costs when nobody else wants it.

use std::time::Duration;

use super::{Group, runtime};
use crate::cost::{SystemCalls, Used};
use crate::delay;
use crate::lane::rate;
use crate::measure::{Side, Spread, interleave, ratio, short, side};
use crate::peers::{Bare, Checkouts, Peer, Raw, SameScripts, connect};
use crate::report::{Report, Target};
use crate::support::Server;

pub(crate) const GROUP: Group = Group {
    name: "uncontended",
    about: "Acquire and release of a lock of each task's own, in pairs per second.",
    run,
};

const ROUNDS: usize = 7;
const SLICE: Duration = Duration::from_millis(500);
/// A round trip as between two zones of one region.
const ONE_WAY: Duration = Duration::from_micros(1_200);

const OURS: &str = "portcullis";
const BARE: &str = "same scripts, bare connection";
const RAW: &str = "same scripts, raw in blocks";
const CHECKOUT: &str = "same scripts, checkout per operation";
const RSLOCK: &str = "rslock";

/// What a slice has shown.
struct Slice {
    rate: f64,
    calls: f64,
    server_us: f64,
    client_us: f64,
}

fn run(report: &mut Report) {
    runtime().block_on(async {
        let server = Server::start();
        let scripts = SameScripts::overhear(&server, 256).await;
        let url = server.url();
        for tasks in [1, 16, 256] {
            let seen = compare(report, &server, &url, &scripts, tasks, true).await;
            targets(report, &seen, tasks);
        }
        let far = delay::in_front_of(server.port(), ONE_WAY);
        for tasks in [16, 256] {
            let seen = compare(report, &server, &far, &scripts, tasks, false).await;
            let rslock = ratio(seen.of(OURS), seen.of(RSLOCK), |slice| slice.rate);
            let what = format!("{tasks} tasks at 2.4 ms, relative to rslock");
            report.target(&what, Target::AtLeast(1.8), rslock);
        }
        system_calls(report, &server).await;
    });
}

/// All sides' slices.
struct Seen(Vec<(&'static str, Vec<Slice>)>);

impl Seen {
    fn of(&self, name: &str) -> &[Slice] {
        let mut sides = self.0.iter();
        &sides
            .find(|side| side.0 == name)
            .expect("a side that was measured")
            .1
    }
}

async fn compare(
    report: &mut Report,
    server: &Server,
    url: &str,
    scripts: &SameScripts,
    tasks: usize,
    near: bool,
) -> Seen {
    let gates = crate::peers::gates(url);
    let bare = Bare {
        connection: connect(url).await,
        scripts: scripts.clone(),
    };
    let checkouts = Checkouts::open(url, scripts.clone());
    let rslock = Peer::RslockDefaults.connect(url).await;
    let mut names = vec![OURS, BARE, CHECKOUT, RSLOCK];
    let mut sides: Vec<Side<'_, Slice>> = vec![
        side(|| {
            measured(
                server,
                rate(tasks, SLICE, |task| {
                    let lock = gates.mutex("own").keyed(task);
                    move || {
                        let lock = lock.clone();
                        async move {
                            let guard = lock.lock().await.expect("own keys are free");
                            guard.release().await.expect("answered");
                        }
                    }
                }),
            )
        }),
        side(|| {
            measured(
                server,
                rate(tasks, SLICE, |task| {
                    let bare = bare.clone();
                    move || bare.clone().pair(task)
                }),
            )
        }),
        side(|| {
            measured(
                server,
                rate(tasks, SLICE, |task| {
                    let checkouts = checkouts.clone();
                    move || checkouts.clone().pair(task)
                }),
            )
        }),
        side(|| {
            measured(
                server,
                rate(tasks, SLICE, |task| {
                    let locks = rslock.clone();
                    move || {
                        let locks = locks.clone();
                        async move {
                            let (held, _) = locks.lock(&format!("rslock:{task}")).await;
                            held.release().await;
                        }
                    }
                }),
            )
        }),
    ];
    if near {
        names.push(RAW);
        sides.push(side(|| measured(server, raw(server, scripts, tasks))));
    }
    let seen = interleave(ROUNDS, &mut sides).await;
    let seen = Seen(names.into_iter().zip(seen).collect());
    let place = if near {
        "on loopback"
    } else {
        "at a round trip of 2.4 ms"
    };
    report.text(&format!("**{tasks} tasks {place}**"));
    let rows: Vec<_> = seen
        .0
        .iter()
        .map(|(name, slices)| row(name, slices, &seen))
        .collect();
    let columns = [
        "",
        "pairs/s",
        "portcullis relative to it",
        "script calls/pair",
        "server µs/pair",
        "client µs/pair",
    ];
    report.table(&columns, &rows);
    seen
}

fn row(name: &str, slices: &[Slice], seen: &Seen) -> Vec<String> {
    let median = |figure: fn(&Slice) -> f64| short(Spread::of(slices.iter().map(figure)).median);
    vec![
        name.to_owned(),
        median(|slice| slice.rate),
        ratio(seen.of(OURS), slices, |slice| slice.rate).to_string(),
        median(|slice| slice.calls),
        median(|slice| slice.server_us),
        median(|slice| slice.client_us),
    ]
}

fn targets(report: &mut Report, seen: &Seen, tasks: usize) {
    let rows: &[(&str, f64)] = match tasks {
        16 => &[(RAW, 0.45), (RSLOCK, 0.9)],
        256 => &[(BARE, 0.95), (RAW, 0.75), (CHECKOUT, 3.5), (RSLOCK, 1.0)],
        _ => &[],
    };
    for (than, bound) in rows {
        let figure = ratio(seen.of(OURS), seen.of(than), |slice| slice.rate);
        report.target(
            &format!("{tasks} tasks, relative to {than}"),
            Target::AtLeast(*bound),
            figure,
        );
    }
}

async fn measured(server: &Server, slice: impl Future<Output = f64>) -> Slice {
    let begin = Used::so_far(server);
    let begun = std::time::Instant::now();
    let rate = slice.await;
    let pairs = rate * begun.elapsed().as_secs_f64();
    let used = Used::so_far(server).since(begin);
    Slice {
        rate,
        calls: used.calls as f64 / pairs,
        server_us: used.server.as_secs_f64() * 1e6 / pairs,
        client_us: used.client.as_secs_f64() * 1e6 / pairs,
    }
}

/// On a thread of its own: it blocks.
async fn raw(server: &Server, scripts: &SameScripts, tasks: usize) -> f64 {
    let mut raw = Raw::connect(server.port(), scripts.clone());
    let blocks = tokio::task::spawn_blocking(move || {
        let begun = std::time::Instant::now();
        let mut blocks = 0_u32;
        while begun.elapsed() < SLICE {
            raw.pairs(tasks);
            blocks += 1;
        }
        f64::from(blocks) / begun.elapsed().as_secs_f64()
    });
    blocks.await.expect("no panic") * tasks as f64
}

/// In a slice of its own: counting costs time.
async fn system_calls(report: &mut Report, server: &Server) {
    let gates = crate::peers::gates(&server.url());
    let mut rows = Vec::new();
    for tasks in [1, 16, 256] {
        let counts = [std::process::id(), server.pid()].map(SystemCalls::of);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = std::time::Instant::now();
        let rate = rate(tasks, SLICE, |task| {
            let lock = gates.mutex("own").keyed(task);
            move || {
                let lock = lock.clone();
                async move {
                    let guard = lock.lock().await.expect("own keys are free");
                    guard.release().await.expect("answered");
                }
            }
        })
        .await;
        let pairs = rate * begun.elapsed().as_secs_f64();
        let counts = counts.map(|count| {
            let calls = count.end().map(|calls| short(calls as f64 / pairs));
            calls.unwrap_or_else(|| "not counted: no `perf`".to_owned())
        });
        rows.push([tasks.to_string()].into_iter().chain(counts).collect());
    }
    report.text("System calls of portcullis, each pair:");
    report.table(&["tasks", "client", "server"], &rows);
}
