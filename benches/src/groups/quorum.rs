//! A lock on five servers: what the loss of two costs, and how it is handed on among many.

use std::time::{Duration, Instant};

use portcullis::Portcullis;
use serde::{Deserialize, Serialize};

use super::{Group, runtime};
use crate::child::Role;
use crate::contention::{self, Slice, Work, fresh_key};
use crate::measure::{Side, Spread, interleave_cold, quantile, ratio, short, side};
use crate::peers::{Locks, TTL};
use crate::report::{Report, Target};
use crate::support::{Mode, Proxy, Server};

pub(crate) const GROUP: Group = Group {
    name: "quorum",
    about: "A mutex on a majority of five servers.",
    run,
};

pub(crate) const ROLE: Role = Role {
    name: "quorum",
    play,
};

const SERVERS: usize = 5;
const ROUNDS: usize = 3;
const PROCESSES: u32 = 4;
const TASKS: u32 = 64;
const SLICE: Duration = Duration::from_secs(2);
/// How often it is taken and given back for one figure.
const TURNS: usize = 300;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    ours: bool,
    urls: Vec<String>,
    key: String,
    work: Work,
}

/// As in the other groups, patient with a machine that is busy; its servers have just started.
fn gates(urls: &[String]) -> Portcullis {
    let builder = Portcullis::builder().quorum(urls.iter().map(String::as_str));
    let builder = builder.prefix("bench").quarantine(false);
    let builder = builder.command_timeout(Duration::from_secs(20));
    let builder = builder.server_timeout(Duration::from_secs(2));
    builder.build().expect("valid settings")
}

fn play(task: &str, all_ready: &mut dyn FnMut()) -> String {
    let task: Task = serde_json::from_str(task).expect("a task of this role");
    let turns = runtime().block_on(async {
        let locks = if task.ours {
            Locks::Portcullis(gates(&task.urls))
        } else {
            let urls = task.urls.iter().map(String::as_str);
            let mut manager = rslock::LockManager::new(urls.collect());
            // Its count is per call; a call that gives up is counted as a failure.
            manager.set_retry(200, Duration::from_millis(5));
            Locks::Rslock(manager)
        };
        locks.contend(task.key, task.work, all_ready).await
    });
    serde_json::to_string(&turns).expect("turns are plain data")
}

fn run(report: &mut Report) {
    runtime().block_on(async {
        contended(report).await;
        failing(report).await;
    });
}

async fn contended(report: &mut Report) {
    let servers: Vec<Server> = (0..SERVERS).map(|_| Server::start()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let work = Work {
        tasks: TASKS / PROCESSES,
        hold: Duration::ZERO,
    };
    let measure = |ours: bool| {
        let task = Task {
            ours,
            urls: urls.clone(),
            key: fresh_key(),
            work,
        };
        let tasks = vec![task; PROCESSES as usize];
        let sends: &[&str] = if ours {
            &["evalsha", "eval", "ping"]
        } else {
            &["evalsha", "eval", "set"]
        };
        let slice = contention::measure(&servers[0], ROLE.name, &tasks, work, SLICE, sends);
        assert!(!ours || slice.overlaps == 0, "holds began within another");
        slice
    };
    let measure = &measure;
    let mut sides: Vec<Side<'_, Slice>> = [true, false]
        .into_iter()
        .map(|ours| side(move || async move { measure(ours) }))
        .collect();
    let seen = interleave_cold(ROUNDS, &mut sides).await;
    report.text(&format!(
        "**{PROCESSES} × {TASKS} (processes × waiters in total), no hold; commands of one server**"
    ));
    let columns = [
        "",
        "acquisitions/s",
        "failed attempts each",
        "commands each",
        "wait mean, ms",
        "wait p50, ms",
        "wait p99, ms",
        "Jain",
        "overlaps",
    ];
    let median = |slices: &[Slice], figure: fn(&Slice) -> f64| {
        short(Spread::of(slices.iter().map(figure)).median)
    };
    let rows: Vec<Vec<String>> = ["portcullis", "rslock, 5 ms retries"]
        .into_iter()
        .zip(&seen)
        .map(|(name, slices)| {
            vec![
                name.to_owned(),
                median(slices, Slice::acquisitions),
                median(slices, Slice::failures),
                median(slices, Slice::commands),
                median(slices, Slice::mean_wait),
                median(slices, |slice| slice.wait(0.5)),
                median(slices, |slice| slice.wait(0.99)),
                median(slices, Slice::fairness),
                slices
                    .iter()
                    .map(|slice| slice.overlaps)
                    .sum::<u64>()
                    .to_string(),
            ]
        })
        .collect();
    report.table(&columns, &rows);
    report.target(
        "64 waiters of four processes on five servers, acquisitions relative to rslock",
        Target::AtLeast(2.0),
        ratio(&seen[0], &seen[1], Slice::acquisitions),
    );
    let tail = seen[0]
        .iter()
        .map(|slice| slice.wait(0.99) / slice.mean_wait());
    report.target(
        "of these, wait p99 relative to the mean wait",
        Target::AtMost(3.0),
        Spread::of(tail),
    );
}

/// What is wrong with two of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Killed,
    Frozen,
    BlackHoled,
    Slow,
}

impl Wrong {
    const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Killed,
        Self::Frozen,
        Self::BlackHoled,
        Self::Slow,
    ];

    fn set(self, server: &Server, proxy: &Proxy) {
        match self {
            Self::Nothing => {}
            Self::Killed => server.kill(),
            Self::Frozen => server.freeze(),
            Self::BlackHoled => proxy.set(Mode::BlackHole),
            Self::Slow => proxy.set(Mode::Delay(Duration::from_secs(1))),
        }
    }

    fn mend(self, server: &Server, proxy: &Proxy) {
        match self {
            Self::Nothing => {}
            Self::Killed => server.restart(),
            Self::Frozen => server.thaw(),
            Self::BlackHoled | Self::Slow => proxy.set(Mode::Pass),
        }
    }
}

/// The time of a lock and its release, alone, in milliseconds: the median, and the longest.
async fn latency(gates: &Portcullis) -> (f64, f64) {
    let mut times = Vec::with_capacity(TURNS);
    for turn in 0..TURNS {
        let mutex = gates.mutex("alone").keyed(turn).ttl(TTL).expect("in range");
        let begun = Instant::now();
        let guard = mutex.lock().await.expect("a majority is there");
        guard.release().await.expect("a majority is there");
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    (quantile(&times, 0.5), quantile(&times, 1.0))
}

async fn failing(report: &mut Report) {
    let servers: Vec<Server> = (0..SERVERS).map(|_| Server::start()).collect();
    let proxies: Vec<Proxy> = servers
        .iter()
        .map(|server| Proxy::start(server.port()))
        .collect();
    let urls = proxies.iter().map(Proxy::url);
    let gates = Portcullis::builder()
        .quorum(urls)
        .prefix("bench")
        .quarantine(false);
    let gates = gates.build().expect("valid settings");
    let (servers, proxies, gates) = (&servers, &proxies, &gates);
    let mut sides: Vec<Side<'_, (f64, f64)>> = Vec::new();
    for (turn, wrong) in Wrong::ALL.into_iter().enumerate() {
        sides.push(side(move || async move {
            let two = [turn % SERVERS, (turn + 2) % SERVERS];
            for server in two {
                wrong.set(&servers[server], &proxies[server]);
            }
            let seen = latency(gates).await;
            for server in two {
                wrong.mend(&servers[server], &proxies[server]);
            }
            // Until both are used again.
            let look = gates.mutex("look").ttl(TTL).expect("in range");
            loop {
                let guard = look.lock().await.expect("a majority is there");
                tokio::time::sleep(Duration::from_millis(5)).await;
                if guard.held_on() == SERVERS {
                    break;
                }
            }
            seen
        }));
    }
    let seen = interleave_cold(ROUNDS, &mut sides).await;
    report.text("**One task alone: a lock and its release, with two of five servers**");
    let rows: Vec<Vec<String>> = Wrong::ALL
        .iter()
        .zip(&seen)
        .map(|(wrong, slices)| {
            vec![
                format!("{wrong:?}"),
                Spread::of(slices.iter().map(|(median, _)| *median)).to_string(),
                Spread::of(slices.iter().map(|(_, longest)| *longest)).to_string(),
                ratio(slices, &seen[0], |(median, _)| *median).to_string(),
            ]
        })
        .collect();
    report.table(
        &[
            "",
            "median, ms",
            "longest, ms",
            "median relative to healthy",
        ],
        &rows,
    );
    for (wrong, slices) in Wrong::ALL.iter().zip(&seen).skip(1) {
        report.target(
            &format!("latency with two of five servers {wrong:?}, relative to healthy"),
            Target::AtMost(1.5),
            ratio(slices, &seen[0], |(median, _)| *median),
        );
    }
}
