//! A cluster beside one server: what more masters bring, and what being sent to the right one
//! costs.

use std::time::Duration;

use portcullis::deadpool_redis::Runtime;
use portcullis::deadpool_redis::cluster::{Manager, Pool};
use portcullis::{Builder, Portcullis};

use super::{Group, runtime};
use crate::lane::rate;
use crate::measure::{Side, Spread, interleave, ratio, side};
use crate::report::{Line, Report};
use crate::support::{Cluster, Server};

pub(crate) const GROUP: Group = Group {
    name: "cluster",
    about: "Acquire and release of a lock of each task's own, in pairs per second: on one server, on a cluster of one master and \
            on one of three, and on the latter over a user's `deadpool_redis::cluster::Pool`. Servers and callers share the \
            machine's cores, so three masters bring no more than the cores that one leaves idle.",
    run,
};

const ROUNDS: usize = 7;
const SLICE: Duration = Duration::from_millis(500);
const TASKS: [u32; 5] = [1, 4, 16, 64, 256];
/// A busy machine slows a round down, and does not end it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Which of the places others are compared with.
const ONE_MASTER: usize = 1;

fn run(report: &mut Report) {
    runtime().block_on(async {
        let server = Server::start();
        let (one, three) = (Cluster::start(1, 0).await, Cluster::start(3, 0).await);
        let places: Vec<(&str, Portcullis)> = [
            ("one server", Portcullis::builder().url(server.url())),
            (
                "a cluster of one master",
                Portcullis::builder().url(one.url()),
            ),
            (
                "a cluster of three masters",
                Portcullis::builder().url(three.url()),
            ),
            ("three masters, over a pool", pooled(&three)),
        ]
        .into_iter()
        .map(|(name, builder)| {
            let patient = builder.command_timeout(PATIENCE);
            (name, patient.build().expect("a valid configuration"))
        })
        .collect();
        let mut lines: Vec<Line> = places
            .iter()
            .map(|(name, _)| Line {
                name: (*name).to_owned(),
                points: Vec::new(),
            })
            .collect();
        for tasks in TASKS {
            let mut sides: Vec<Side<'_, f64>> = places
                .iter()
                .map(|(_, gates)| side(move || pairs(gates, tasks as usize)))
                .collect();
            let seen = interleave(ROUNDS, &mut sides).await;
            report.text(&format!("**{tasks} tasks**"));
            let mut rows = Vec::new();
            for (rates, line) in seen.iter().zip(&mut lines) {
                let spread = Spread::of(rates.iter().copied());
                line.points.push((f64::from(tasks), spread.median));
                rows.push(vec![
                    line.name.clone(),
                    spread.to_string(),
                    ratio(rates, &seen[ONE_MASTER], |rate| *rate).to_string(),
                ]);
            }
            report.table(&["", "pairs/s", "relative to one master"], &rows);
        }
        let title = "Pairs of acquire and release by the number of tasks";
        report.plot("cluster", title, ["tasks", "pairs/s"], &lines);
    });
}

fn pooled(cluster: &Cluster) -> Builder {
    let nodes: Vec<String> = cluster.nodes.iter().map(Server::url).collect();
    let manager = Manager::new(nodes.clone(), false).expect("valid addresses");
    let pool = Pool::builder(manager).runtime(Runtime::Tokio1).build();
    Portcullis::builder().cluster_pool(pool.expect("a valid size"), nodes)
}

async fn pairs(gates: &Portcullis, tasks: usize) -> f64 {
    rate(tasks, SLICE, |task| {
        let lock = gates.mutex("own").keyed(task);
        move || {
            let lock = lock.clone();
            async move {
                let guard = lock.lock().await.expect("own keys are free");
                guard.release().await.expect("answered");
            }
        }
    })
    .await
}
