//! Permits that a process keeps for its own next requests, beside those that go over the server each
//! time: several processes that want the same ones.

use std::time::Duration;

use portcullis::{Keeping, Semaphore, SemaphorePermit};
use serde::{Deserialize, Serialize};

use super::{Group, runtime};
use crate::child::Role;
use crate::contention::{self, Entrance, Slice, Work, contend, fresh_key, own_key, warm_up};
use crate::measure::{Spread, interleave_cold, ratio, side};
use crate::peers::gates;
use crate::report::{Report, Target};
use crate::support::Server;

pub(crate) const GROUP: Group = Group {
    name: "home",
    about: "Eight permits that several processes want, kept at home and not.",
    run,
};

pub(crate) const ROLE: Role = Role { name: "home", play };

const ROUNDS: usize = 3;
const SLICE: Duration = Duration::from_secs(3);
const LIMIT: u32 = 8;

/// What the processes of a fleet do.
#[derive(Debug)]
struct Scene {
    name: &'static str,
    /// The tasks of each process.
    tasks: &'static [u32],
    hold: Duration,
}

const SATURATED: Scene = Scene {
    name: "5 ms, 4 processes with 16 tasks each",
    tasks: &[16; 4],
    hold: Duration::from_millis(5),
};
const SKEWED: Scene = Scene {
    name: "5 ms, 2 processes with 38 tasks and 2",
    tasks: &[38, 2],
    hold: Duration::from_millis(5),
};
const TINY: Scene = Scene {
    name: "no work at all, 2 processes with 16 tasks each",
    tasks: &[16; 2],
    hold: Duration::ZERO,
};

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    url: String,
    key: String,
    keeps: bool,
    tasks: u32,
    hold: Duration,
}

impl Entrance for Semaphore {
    type Inside = SemaphorePermit;

    async fn enter(&self) -> Option<SemaphorePermit> {
        self.acquire().await.ok()
    }

    async fn leave(permit: SemaphorePermit) -> bool {
        permit.release().await.is_ok()
    }
}

fn play(task: &str, all_ready: &mut dyn FnMut()) -> String {
    let task: Task = serde_json::from_str(task).expect("a task of this role");
    let turns = runtime().block_on(async {
        let gates = gates(&task.url);
        let semaphore = |key: &str| {
            let semaphore = gates.semaphore(key, LIMIT).expect("a limit in range");
            if task.keeps {
                semaphore
                    .keep_permits(Keeping::default())
                    .expect("in range")
            } else {
                semaphore
            }
        };
        warm_up(&semaphore(&own_key())).await;
        let work = Work {
            tasks: task.tasks,
            hold: task.hold,
        };
        contend(&semaphore(&task.key), work, all_ready).await
    });
    serde_json::to_string(&turns).expect("turns are plain data")
}

fn run(report: &mut Report) {
    let server = Server::start();
    let [_, kept] = compare(report, &server, &SATURATED);
    let figure = |figure: fn(&Slice) -> f64| Spread::of(kept.iter().map(figure));
    let of_ideal = figure(|slice| slice.acquisitions() / ideal(slice));
    report.target("home, of what is possible", Target::AtLeast(0.95), of_ideal);
    let scripts = figure(Slice::scripts);
    report.target("home, scripts per request", Target::AtMost(0.5), scripts);
    let fairness = figure(Slice::fairness);
    report.target("home, Jain", Target::AtLeast(0.98), fairness);

    let [plain, kept] = compare(report, &server, &SKEWED);
    let waits = ratio(&kept, &plain, |slice| slice.wait_of(1, 0.99));
    let what =
        "home, wait p99 of the process with few tasks, relative to permits that are not kept";
    report.target(what, Target::AtMost(1.5), waits);

    let [plain, kept] = compare(report, &server, &TINY);
    let more = ratio(&kept, &plain, Slice::acquisitions);
    report.text(&format!("Kept, relative to not kept: {more}."));
}

/// Acquisitions per second, were no permit ever idle.
fn ideal(slice: &Slice) -> f64 {
    f64::from(LIMIT) / slice.mean_hold() * 1e3
}

/// Both ways, not kept first.
fn compare(report: &mut Report, server: &Server, scene: &Scene) -> [Vec<Slice>; 2] {
    let mut sides =
        [false, true].map(|keeps| side(move || async move { measure(server, scene, keeps) }));
    let seen = runtime().block_on(interleave_cold(ROUNDS, &mut sides));
    let rows: Vec<_> = ["over the server", "kept"]
        .iter()
        .zip(&seen)
        .map(|(name, slices)| row(name, slices))
        .collect();
    report.text(&format!("**{}**", scene.name));
    let columns = [
        "",
        "acquisitions/s",
        "of what is possible",
        "script calls each",
        "wait p50, ms",
        "wait p99, ms",
        "wait p99 of the last process, ms",
        "Jain",
        "inside at most",
    ];
    report.table(&columns, &rows);
    for (name, slices) in ["not kept", "kept"].iter().zip(&seen) {
        if let Some(trouble) = Slice::trouble(slices, name) {
            report.text(&trouble);
        }
        let most = slices.iter().map(|slice| slice.most_inside).max();
        assert!(
            most <= Some(u64::from(LIMIT)),
            "{most:?} were inside at once"
        );
    }
    let mut seen = seen.into_iter();
    [(); 2].map(|()| seen.next().expect("both were measured"))
}

fn measure(server: &Server, scene: &Scene, keeps: bool) -> Slice {
    let key = fresh_key();
    let task = |tasks: &u32| Task {
        url: server.url(),
        key: key.clone(),
        keeps,
        tasks: *tasks,
        hold: scene.hold,
    };
    let tasks: Vec<_> = scene.tasks.iter().map(task).collect();
    contention::measure_mixed(server, ROLE.name, &tasks, scene.tasks, SLICE)
}

fn row(name: &str, slices: &[Slice]) -> Vec<String> {
    let spread = |figure: fn(&Slice) -> f64| Spread::of(slices.iter().map(figure)).to_string();
    vec![
        name.to_owned(),
        spread(Slice::acquisitions),
        spread(|slice| slice.acquisitions() / ideal(slice)),
        spread(Slice::scripts),
        spread(|slice| slice.wait(0.5)),
        spread(|slice| slice.wait(0.99)),
        spread(|slice| slice.wait_of(slice.processes() - 1, 0.99)),
        spread(Slice::fairness),
        spread(|slice| slice.most_inside as f64),
    ]
}
