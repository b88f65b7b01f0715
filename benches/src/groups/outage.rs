//! What requests see of a server that stands still for ten seconds, under each policy.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, Response, StatusCode};
use portcullis::layer::OnOutage;
use portcullis::{ConcurrencyLimitLayer, Portcullis};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval_at};
use tower::{Layer, ServiceExt, service_fn};

use super::Group;
use crate::measure::{Spread, quantile, short};
use crate::peers::gates;
use crate::report::{Report, Target};
use crate::support::Server;

pub(crate) const GROUP: Group = Group {
    name: "outage",
    about: "500 requests per second and policy, each working for 5 ms and waiting for no turn, while the server stands still for 10 s.",
    run,
};

const EVERY: Duration = Duration::from_millis(2);
const WORK: Duration = Duration::from_millis(5);
const BEFORE: Duration = Duration::from_secs(2);
const FROZEN: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(3);
/// How long the breaker may take to open, and the gates to be back.
const SETTLED: Duration = Duration::from_secs(1);
const BUDGET_MS: f64 = 100.0;
const LOCALLY: u32 = 5;
/// More than ever come at once.
const PERMITS: u32 = 10_000;

/// One request: when it began, how long it took, how it was answered.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Duration,
    ms: f64,
    status: StatusCode,
}

/// A policy, or no gate at all.
struct Lane {
    name: &'static str,
    policy: Option<OnOutage>,
}

const LANES: [Lane; 4] = [
    Lane {
        name: "no layer",
        policy: None,
    },
    Lane {
        name: "Refuse",
        policy: Some(OnOutage::Refuse),
    },
    Lane {
        name: "Allow",
        policy: Some(OnOutage::Allow),
    },
    Lane {
        name: "Local(5)",
        policy: Some(OnOutage::Local(LOCALLY)),
    },
];

fn run(report: &mut Report) {
    let server = Server::start();
    let gates = gates(&server.url());
    let seen = super::runtime().block_on(watch(&server, &gates));
    let ungated = &seen[0].0;
    let [before, frozen, open, after] = [
        Duration::ZERO..BEFORE,
        BEFORE..BEFORE + FROZEN,
        BEFORE + SETTLED..BEFORE + FROZEN,
        BEFORE + FROZEN + SETTLED..BEFORE + FROZEN + AFTER,
    ];
    let p99 = |seen: &[Seen], during: &std::ops::Range<Duration>| {
        let mut times: Vec<f64> = within(seen, during).map(|seen| seen.ms).collect();
        times.sort_by(f64::total_cmp);
        quantile(&times, 0.99)
    };
    let served = |seen: &[Seen], during: &std::ops::Range<Duration>| {
        let all = within(seen, during).count();
        let served = within(seen, during).filter(|seen| seen.status == StatusCode::OK);
        served.count() as f64 / all as f64
    };
    let mut rows = Vec::new();
    for (lane, (seen, most)) in LANES.iter().zip(&seen) {
        let mut row = vec![lane.name.to_owned()];
        for during in [&before, &frozen, &open, &after] {
            row.push(format!("{} ms", short(p99(seen, during))));
            row.push(format!("{:.1} %", served(seen, during) * 100.0));
        }
        row.push(most.to_string());
        rows.push(row);
    }
    let columns = [
        "policy",
        "p99 before",
        "served",
        "p99 frozen",
        "served",
        "p99 open",
        "served",
        "p99 after",
        "served",
        "most at once, frozen",
    ];
    report.table(&columns, &rows);
    report.text("*Open* leaves out the first second, *after* the first second after the thaw.");
    let bound = BUDGET_MS + 2.0 * p99(ungated, &frozen);
    let one = |figure: f64| Spread::of([figure]);
    for (number, expected) in [(1, 0.0), (2, 1.0)] {
        let (name, seen) = (LANES[number].name, &seen[number].0);
        let slow = p99(seen, &frozen) / bound;
        let what = format!("frozen, {name}: p99 relative to budget + 2 × ungated p99");
        report.target(&what, Target::AtMost(1.0), one(slow));
        let what =
            format!("… p99 while the breaker is open, relative to the ungated p99 (`{name}`)");
        let open_p99 = p99(seen, &open) / p99(ungated, &open);
        report.target(&what, Target::AtMost(2.0), one(open_p99));
        let share = served(seen, &open);
        let what = format!("… share of requests that are let through meanwhile (`{name}`)");
        let target = if expected > 0.0 {
            Target::AtLeast(1.0)
        } else {
            Target::AtMost(0.0)
        };
        report.target(&what, target, one(share));
        let what = format!("… share served later than 1 s after the thaw (`{name}`)");
        report.target(&what, Target::AtLeast(1.0), one(served(seen, &after)));
    }
    let most = seen[3].1 as f64;
    let what = "… most at once in this process with `Local(5)`";
    report.target(what, Target::AtMost(f64::from(LOCALLY)), one(most));
}

fn within<'a>(
    seen: &'a [Seen],
    during: &'a std::ops::Range<Duration>,
) -> impl Iterator<Item = &'a Seen> {
    seen.iter().filter(|seen| during.contains(&seen.at))
}

/// All lanes at once: what their requests saw, and how many of each worked at once while the server
/// stood still and the breaker was open.
async fn watch(server: &Server, gates: &Portcullis) -> Vec<(Vec<Seen>, usize)> {
    let begin = Instant::now();
    let mut lanes = Vec::new();
    for lane in &LANES {
        let (told, mut seen) = unbounded_channel();
        let most = Arc::new(AtomicUsize::new(0));
        let asking = tokio::spawn(ask(
            begin,
            gates.clone(),
            lane.policy,
            told,
            Arc::clone(&most),
        ));
        lanes.push(async move {
            asking.await.expect("no panic");
            let mut all = Vec::new();
            while let Some(one) = seen.recv().await {
                all.push(one);
            }
            (all, most.load(Ordering::Relaxed))
        });
    }
    let faults = async {
        tokio::time::sleep(BEFORE).await;
        server.freeze();
        tokio::time::sleep(FROZEN).await;
        server.thaw();
    };
    tokio::join!(faults, futures_util::future::join_all(lanes)).1
}

async fn ask(
    begin: Instant,
    gates: Portcullis,
    policy: Option<OnOutage>,
    told: UnboundedSender<Seen>,
    most: Arc<AtomicUsize>,
) {
    let at_work = Arc::new(AtomicUsize::new(0));
    let work = service_fn(move |_: Request<()>| {
        let (at_work, most) = (Arc::clone(&at_work), Arc::clone(&most));
        async move {
            let now = at_work.fetch_add(1, Ordering::Relaxed) + 1;
            if (BEFORE + SETTLED..BEFORE + FROZEN).contains(&begin.elapsed()) {
                most.fetch_max(now, Ordering::Relaxed);
            }
            tokio::time::sleep(WORK).await;
            at_work.fetch_sub(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    let permits = gates.semaphore("outage", PERMITS).expect("in range");
    let layer = ConcurrencyLimitLayer::new(permits).max_wait(Duration::ZERO);
    let gated = policy.map(|policy| layer.on_outage(policy).layer(work.clone()));
    let mut ticks = interval_at(begin.into(), EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while begin.elapsed() < BEFORE + FROZEN + AFTER {
        let due = ticks.tick().await.into_std();
        let (gated, work, told) = (gated.clone(), work.clone(), told.clone());
        tokio::spawn(async move {
            let request = Request::new(());
            let status = match gated {
                Some(gated) => gated.oneshot(request).await.map(|answer| answer.status()),
                None => work.oneshot(request).await.map(|answer| answer.status()),
            };
            let _ = told.send(Seen {
                at: due.saturating_duration_since(begin),
                ms: due.elapsed().as_secs_f64() * 1e3,
                status: status.unwrap_or_else(|error| match error {}),
            });
        });
    }
}
