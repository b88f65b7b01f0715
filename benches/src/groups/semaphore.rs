//! Ten permits that a hundred tasks want: waiting to be told, and asking again and again.

use std::time::Duration;

use portcullis::{Portcullis, Semaphore, SemaphorePermit};
use serde::{Deserialize, Serialize};

use super::{Group, runtime};
use crate::child::Role;
use crate::contention::{self, Entrance, Slice, Work, contend, fresh_key, own_key, warm_up};
use crate::measure::{Side, Spread, interleave_cold, ratio, side};
use crate::peers::gates;
use crate::report::{Report, Target};
use crate::support::Server;

pub(crate) const GROUP: Group = Group {
    name: "semaphore",
    about: "Ten permits, 100 waiters in 4 processes, each of which holds for 5 ms.",
    run,
};

pub(crate) const ROLE: Role = Role {
    name: "semaphore",
    play,
};

const ROUNDS: usize = 3;
const SLICE: Duration = Duration::from_secs(3);
const PROCESSES: u32 = 4;
const LIMIT: u32 = 10;
const WORK: Work = Work {
    tasks: 25,
    hold: Duration::from_millis(5),
};

/// How a task comes by a permit.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Way {
    /// It waits to be told.
    Waits,
    /// It does not wait, and asks again after that many milliseconds.
    Polls(u64),
}

impl Way {
    const ALL: [Self; 3] = [Self::Waits, Self::Polls(5), Self::Polls(50)];

    fn name(self) -> String {
        match self {
            Self::Waits => "portcullis".to_owned(),
            Self::Polls(ms) => format!("polling every {ms} ms"),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    way: Way,
    url: String,
    key: String,
}

/// The semaphore as one process has it.
#[derive(Clone)]
struct Permits {
    semaphore: Semaphore,
    way: Way,
}

impl Permits {
    fn new(gates: &Portcullis, key: &str, way: Way) -> Self {
        let semaphore = gates
            .semaphore(key, LIMIT)
            .expect("a limit that there can be");
        let semaphore = match way {
            Way::Waits => semaphore,
            Way::Polls(_) => semaphore.max_wait(Duration::ZERO),
        };
        Self { semaphore, way }
    }
}

impl Entrance for Permits {
    type Inside = SemaphorePermit;

    async fn enter(&self) -> Option<SemaphorePermit> {
        let permit = self.semaphore.acquire().await.ok();
        if let (None, Way::Polls(ms)) = (&permit, self.way) {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        permit
    }

    async fn leave(permit: SemaphorePermit) -> bool {
        permit.release().await.is_ok()
    }
}

fn play(task: &str, all_ready: &mut dyn FnMut()) -> String {
    let task: Task = serde_json::from_str(task).expect("a task of this role");
    let turns = runtime().block_on(async {
        let gates = gates(&task.url);
        warm_up(&Permits::new(&gates, &own_key(), task.way)).await;
        contend(&Permits::new(&gates, &task.key, task.way), WORK, all_ready).await
    });
    serde_json::to_string(&turns).expect("turns are plain data")
}

fn run(report: &mut Report) {
    let server = Server::start();
    let mut sides: Vec<Side<'_, Slice>> = Vec::new();
    for way in Way::ALL {
        let server = &server;
        sides.push(side(move || async move { measure(server, way) }));
    }
    let seen = runtime().block_on(interleave_cold(ROUNDS, &mut sides));
    let rows: Vec<_> = Way::ALL
        .iter()
        .zip(&seen)
        .map(|(way, slices)| row(*way, slices))
        .collect();
    let columns = [
        "",
        "acquisitions/s",
        "script calls each",
        "failed attempts each",
        "wait p50, ms",
        "wait p99, ms",
        "ideal wait, ms",
        "p99 relative to it",
        "Jain",
        "inside at most",
    ];
    report.table(&columns, &rows);
    for (way, slices) in Way::ALL.iter().zip(&seen) {
        if let Some(trouble) = Slice::trouble(slices, &way.name()) {
            report.text(&trouble);
        }
    }
    let [ours, ..] = &seen[..] else {
        unreachable!("all were measured");
    };
    let most = ours
        .iter()
        .map(|slice| slice.most_inside)
        .max()
        .expect("some rounds");
    assert!(most <= u64::from(LIMIT), "{most} were inside at once");
    let p99 = Spread::of(ours.iter().map(beyond_ideal));
    report.target(
        "semaphore, wait p99 relative to the ideal",
        Target::AtMost(1.2),
        p99,
    );
    for (way, polls) in Way::ALL.iter().zip(&seen).skip(1) {
        let waits = ratio(ours, polls, |slice| slice.wait(0.99));
        report.text(&format!(
            "Wait p99 of portcullis relative to {}: {waits}.",
            way.name()
        ));
    }
}

fn measure(server: &Server, way: Way) -> Slice {
    let key = fresh_key();
    let task = |_| Task {
        way,
        url: server.url(),
        key: key.clone(),
    };
    let tasks: Vec<_> = (0..PROCESSES).map(task).collect();
    // The scripts of the crate ask for no script and no PING.
    contention::measure(
        server,
        ROLE.name,
        &tasks,
        WORK,
        SLICE,
        &["evalsha", "eval", "ping"],
    )
}

/// How long each waits at best, in milliseconds: nobody overtakes, and a permit is never idle.
///
/// All tasks are always either inside or in line, so whoever joins the line is behind
/// `tasks - LIMIT` holds: itself is not among them, and as many as there are permits are under way.
/// `LIMIT` of them end in the time of one hold. Little's law says the same: a task's round lasts
/// `tasks / LIMIT` holds, of which one is its own.
fn ideal(hold: f64) -> f64 {
    let tasks = f64::from(PROCESSES * WORK.tasks);
    (tasks / f64::from(LIMIT) - 1.0) * hold
}

/// By the mean hold that was seen: timers are late, for everybody.
fn beyond_ideal(slice: &Slice) -> f64 {
    slice.wait(0.99) / ideal(slice.mean_hold())
}

fn row(way: Way, slices: &[Slice]) -> Vec<String> {
    let spread = |figure: fn(&Slice) -> f64| Spread::of(slices.iter().map(figure)).to_string();
    vec![
        way.name(),
        spread(Slice::acquisitions),
        spread(Slice::scripts),
        spread(Slice::failures),
        spread(|slice| slice.wait(0.5)),
        spread(|slice| slice.wait(0.99)),
        spread(|slice| ideal(slice.mean_hold())),
        spread(beyond_ideal),
        spread(Slice::fairness),
        spread(|slice| slice.most_inside as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_is_a_simulated_line_in_which_no_permit_is_idle() {
        // Holds of one second, all in step: the moment at which each task comes inside.
        let tasks = PROCESSES * WORK.tasks;
        let mut line: std::collections::VecDeque<_> =
            (0..tasks).map(|task| (task, 0_u32)).collect();
        let mut longest = 0;
        for second in 0..50 {
            let inside: Vec<_> = line.drain(..LIMIT as usize).collect();
            for (task, asked) in inside {
                longest = longest.max(second - asked);
                line.push_back((task, second + 1));
            }
        }
        assert_eq!(f64::from(longest), ideal(1.0));
    }
}
