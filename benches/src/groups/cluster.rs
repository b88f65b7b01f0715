//! A cluster beside one server: what more masters bring, and what being sent to the right one
//! costs.

use std::time::Duration;

use portcullis::Portcullis;

use super::{Group, runtime};
use crate::lane::rate;
use crate::measure::{Side, Spread, interleave, ratio, side};
use crate::report::Report;
use crate::support::{Cluster, Server};

pub(crate) const GROUP: Group = Group {
    name: "cluster",
    about: "Acquire and release of a lock of each task's own, in pairs per second, on one server, on a cluster of one master, and \
            on one of three.",
    run,
};

const ROUNDS: usize = 7;
const SLICE: Duration = Duration::from_millis(500);

fn run(report: &mut Report) {
    runtime().block_on(async {
        let server = Server::start();
        let (one, three) = (Cluster::start(1, 0).await, Cluster::start(3, 0).await);
        let on_cluster = |cluster: &Cluster| Portcullis::builder().url(cluster.url()).build();
        let places = [
            (
                "one server",
                Portcullis::builder().url(server.url()).build(),
            ),
            ("a cluster of one master", on_cluster(&one)),
            ("a cluster of three masters", on_cluster(&three)),
        ];
        let places = places.map(|(name, gates)| (name, gates.expect("a valid configuration")));
        for tasks in [1, 16, 256] {
            let mut sides: Vec<Side<'_, f64>> = places
                .iter()
                .map(|(_, gates)| side(move || pairs(gates, tasks)))
                .collect();
            let seen = interleave(ROUNDS, &mut sides).await;
            report.text(&format!("**{tasks} tasks**"));
            let rows: Vec<Vec<String>> = places
                .iter()
                .zip(&seen)
                .map(|((name, _), rates)| {
                    vec![
                        (*name).to_owned(),
                        Spread::of(rates.iter().copied()).to_string(),
                        ratio(rates, &seen[0], |rate| *rate).to_string(),
                    ]
                })
                .collect();
            report.table(&["", "pairs/s", "relative to one server"], &rows);
        }
    });
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
