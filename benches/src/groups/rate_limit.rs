//! Checks at quotas: what each algorithm costs the server, admitted and denied, in time and memory;
//! and what a denial costs that is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis::{LockError, Portcullis, Quota, RateLimiter};

use super::scale::used_memory;
use super::{Group, runtime};
use crate::cost::{self, Used, microseconds};
use crate::lane::rate;
use crate::measure::{Side, Spread, interleave, ratio, short, side};
use crate::peers::{connect, gates};
use crate::report::{Report, Target};
use crate::support::Server;

pub(crate) const GROUP: Group = Group {
    name: "rate_limit",
    about: "Checks of one unit at quotas of 100 an hour, by 16 tasks with keys of their own.",
    run,
};

const ROUNDS: usize = 7;
const SLICE: Duration = Duration::from_millis(400);
const TASKS: usize = 16;
const UNITS: u32 = 100;
const HOUR: Duration = Duration::from_secs(60 * 60);
/// Of so many keys the memory is told: nearly as many as tables have room for before they double.
const KEYS: usize = 64_000;

/// An algorithm by name.
#[derive(Debug, Clone, Copy)]
enum Algorithm {
    Gcra,
    Sliding,
    Strict,
}

impl Algorithm {
    const ALL: [Self; 3] = [Self::Gcra, Self::Sliding, Self::Strict];

    const fn name(self) -> &'static str {
        match self {
            Self::Gcra => "GCRA",
            Self::Sliding => "sliding window",
            Self::Strict => "strict log",
        }
    }

    /// A limiter that has asked nobody yet, and so knows of no denial.
    fn fresh(self, gates: &Portcullis) -> RateLimiter {
        let (name, quota) = match self {
            Self::Gcra => ("gcra", Quota::per_hour(UNITS)),
            Self::Sliding => ("sliding", Quota::sliding(UNITS, HOUR)),
            Self::Strict => ("strict", Quota::strict(UNITS, HOUR)),
        };
        let limiter = gates.rate_limiter(name, quota);
        limiter.expect("a quota in range")
    }
}

/// What a slice has shown.
struct Slice {
    rate: f64,
    /// By the server's own count.
    script_us: f64,
    server_us: f64,
    client_us: f64,
    calls: f64,
}

fn run(report: &mut Report) {
    runtime().block_on(async {
        checks(report).await;
        denials(report).await;
        memory(report).await;
    });
}

async fn measured(server: &Server, rate: impl Future<Output = f64>) -> Slice {
    const NAMES: [&str; 2] = ["evalsha", "ping"];
    let (begun, used, us) = (
        Instant::now(),
        Used::so_far(server),
        microseconds(server, &NAMES),
    );
    let rate = rate.await;
    let times = rate * begun.elapsed().as_secs_f64();
    let script = (microseconds(server, &NAMES) - us) as f64;
    let used = Used::so_far(server).since(used);
    let each = |time: Duration| time.as_secs_f64() * 1e6 / times;
    Slice {
        rate,
        script_us: script / times,
        server_us: each(used.server),
        client_us: each(used.client),
        calls: used.calls as f64 / times,
    }
}

async fn checks(report: &mut Report) {
    let server = Server::start();
    let gates = gates(&server.url());
    let connection = connect(&server.url()).await;
    let fresh_keys = Arc::new(AtomicU64::new(0));
    let mut names = vec!["PING".to_owned()];
    let mut sides: Vec<Side<'_, Slice>> = vec![side(|| {
        let again = |_| {
            let connection = connection.clone();
            move || {
                let mut connection = connection.clone();
                async move {
                    let ping = redis::cmd("PING");
                    let _: String = ping.query_async(&mut connection).await.expect("answered");
                }
            }
        };
        measured(&server, rate(TASKS, SLICE, again))
    })];
    for algorithm in Algorithm::ALL {
        names.push(format!("{}, admitted", algorithm.name()));
        let (gates, keys) = (&gates, &fresh_keys);
        let server = &server;
        sides.push(side(move || {
            let limiter = algorithm.fresh(gates);
            let again = move |_| {
                let (limiter, keys) = (limiter.clone(), Arc::clone(keys));
                let (mut own, mut used) = (limiter.clone(), UNITS);
                move || {
                    if used == UNITS {
                        used = 0;
                        own = limiter.keyed(keys.fetch_add(1, Ordering::Relaxed));
                    }
                    used += 1;
                    let own = own.clone();
                    async move {
                        own.check().await.expect("it fits");
                    }
                }
            };
            measured(server, rate(TASKS, SLICE, again))
        }));
        names.push(format!("{}, denied by the server", algorithm.name()));
        for task in 0..TASKS {
            let used_up = algorithm.fresh(gates).keyed(format!("used up {task}"));
            used_up.check_n(UNITS).await.expect("it fits");
        }
        sides.push(side(move || {
            let again = move |task| {
                let gates = gates.clone();
                move || {
                    let limiter = algorithm.fresh(&gates).keyed(format!("used up {task}"));
                    async move { denied(&limiter).await }
                }
            };
            measured(server, rate(TASKS, SLICE, again))
        }));
    }
    let seen = interleave(ROUNDS, &mut sides).await;
    drop(sides);
    let median =
        |slices: &[Slice], of: fn(&Slice) -> f64| short(Spread::of(slices.iter().map(of)).median);
    let rows = names.iter().zip(&seen).map(|(name, slices)| {
        vec![
            name.clone(),
            median(slices, |slice| slice.rate),
            ratio(slices, &seen[0], |slice| slice.rate).to_string(),
            Spread::of(slices.iter().map(|slice| slice.script_us)).to_string(),
            median(slices, |slice| slice.server_us),
            median(slices, |slice| slice.client_us),
            median(slices, |slice| slice.calls),
        ]
    });
    let columns = [
        "",
        "per second",
        "relative to PING",
        "µs in the command, by the server's count",
        "server µs",
        "client µs",
        "script calls",
    ];
    report.text("**What a check costs** (100 units are used one by one, then comes the next key; a denial is of a key that is used up, by a limiter that does not know of it)");
    report.table(&columns, &rows.collect::<Vec<_>>());
}

async fn denied(limiter: &RateLimiter) {
    match limiter.check().await {
        Err(LockError::Refused(_)) => {}
        other => panic!("not refused: {other:?}"),
    }
}

/// One key that everybody wants.
async fn denials(report: &mut Report) {
    let server = Server::start();
    let gates = gates(&server.url());
    let hot = || Algorithm::Gcra.fresh(&gates).keyed("hot");
    hot().check_n(UNITS).await.expect("it fits");
    // Denials are believed for a second, and so for all of a slice.
    let known = async || {
        let limiter = hot();
        denied(&limiter).await;
        let again = |_| {
            let limiter = limiter.clone();
            move || {
                let limiter = limiter.clone();
                async move { denied(&limiter).await }
            }
        };
        measured(&server, rate(TASKS, SLICE, again)).await
    };
    let asked = async || {
        let again = |_| {
            let gates = gates.clone();
            move || {
                let limiter = Algorithm::Gcra.fresh(&gates).keyed("hot");
                async move { denied(&limiter).await }
            }
        };
        measured(&server, rate(TASKS, SLICE, again)).await
    };
    let seen = interleave(ROUNDS, &mut [side(known), side(asked)]).await;
    let [known, asked] = [&seen[0], &seen[1]];
    let per_second = |slices: &[Slice]| short(Spread::of(slices.iter().map(|s| s.rate)).median);
    report.text(&format!(
        "**One key that is used up**: {} denials a second by the limiter, {} by the server.",
        per_second(known),
        per_second(asked)
    ));
    report.target(
        "denials of a hot key that are known, relative to asking the server",
        Target::AtLeast(20.0),
        ratio(known, asked, |slice| slice.rate),
    );
    report.target(
        "… script calls for each of them",
        Target::AtMost(0.0),
        Spread::of(known.iter().map(|slice| slice.calls)),
    );
}

/// What a key takes, of many: the server's tables and all.
async fn memory(report: &mut Report) {
    let mut rows = Vec::new();
    for algorithm in Algorithm::ALL {
        for units in [1, 10, UNITS] {
            let bytes = bytes_per_key(algorithm, units).await;
            rows.push(vec![
                algorithm.name().to_owned(),
                units.to_string(),
                short(bytes),
            ]);
            if units == 1 {
                let what = format!("server bytes per subject, {}", algorithm.name());
                report.target(&what, Target::AtMost(150.0), Spread::of([bytes]));
            }
        }
    }
    report.text(&format!(
        "**What is kept of a subject** ({KEYS} of them, by {})",
        allocator()
    ));
    report.table(&["", "units used", "server bytes per subject"], &rows);
}

fn allocator() -> String {
    let memory = cost::info(&Server::start(), "memory");
    let name = memory
        .lines()
        .find_map(|line| line.strip_prefix("mem_allocator:"));
    name.unwrap_or("an unknown allocator").trim().to_owned()
}

async fn bytes_per_key(algorithm: Algorithm, units: u32) -> f64 {
    let server = Server::start();
    let gates = gates(&server.url());
    let limiter = algorithm.fresh(&gates);
    let fill = async |from: usize, keys: usize| {
        let each = keys / TASKS;
        let tasks = (0..TASKS).map(|task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for key in 0..each {
                    let key = from + task * each + key;
                    let check = limiter.keyed(key).check_n(units).await;
                    check.expect("it fits");
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
    };
    // Connections have buffers, too.
    fill(0, 10_000).await;
    let mut connection = connect(&server.url()).await;
    let flush = redis::cmd("FLUSHDB");
    let _: String = flush.query_async(&mut connection).await.expect("answered");
    let before = used_memory(&server).await;
    fill(100_000, KEYS).await;
    (used_memory(&server).await - before) / KEYS as f64
}
