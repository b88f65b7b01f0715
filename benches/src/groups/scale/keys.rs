//! An uncontended pair while many other locks are held, and what each of those takes on the server.

use std::time::{Duration, Instant};

use portcullis::Portcullis;

use super::template::Template;
use super::used_memory;
use crate::cost;
use crate::lane::rate;
use crate::measure::{Spread, interleave, ratio, short, side};
use crate::monitor::Monitor;
use crate::peers::{Pipe, Words, gates, overhear_pairs};
use crate::report::{Line, Report, Target};
use crate::support::Server;

const HELD: [usize; 4] = [1, 1_000, 100_000, 1_000_000];
/// Of these the memory is told: of fewer, it is lost among what the server itself uses.
const WEIGHED: usize = 100_000;
const ROUNDS: usize = 5;
const SLICE: Duration = Duration::from_millis(300);
const TASKS: usize = 16;
/// How many calls are overheard: names are spread over 256 hash tags, and these meet most of them.
const TEMPLATES: usize = 256;

/// A server on which so many locks are held by others.
struct Crowded {
    held: usize,
    server: Server,
    gates: Portcullis,
    /// What each of those takes there.
    bytes: f64,
}

/// What a slice has shown.
struct Slice {
    server_us: f64,
    rate: f64,
}

pub(super) async fn run(report: &mut Report) {
    let mut crowded = Vec::new();
    for held in HELD {
        crowded.push(Crowded::with(held).await);
    }
    let mut sides: Vec<_> = crowded
        .iter()
        .map(|crowded| side(|| crowded.pairs()))
        .collect();
    let seen = interleave(ROUNDS, &mut sides).await;
    drop(sides);
    let grown = |slices: &[Slice]| ratio(slices, &seen[0], |slice| slice.server_us);
    let rows = crowded.iter().zip(&seen).map(|(crowded, slices)| {
        let weighed = crowded.held >= WEIGHED;
        vec![
            crowded.held.to_string(),
            Spread::of(slices.iter().map(|slice| slice.server_us)).to_string(),
            grown(slices).to_string(),
            short(Spread::of(slices.iter().map(|slice| slice.rate)).median),
            if weighed {
                short(crowded.bytes)
            } else {
                "too few to tell".to_owned()
            },
        ]
    });
    let columns = [
        "locks held",
        "server µs/pair",
        "relative to one lock held",
        "pairs/s",
        "server bytes per held lock",
    ];
    report.text("**A pair of acquire and end, while others hold locks** (16 tasks; the other locks were taken over a socket, in the words that the crate sends, with leases of an hour that nobody renews)");
    report.table(&columns, &rows.collect::<Vec<_>>());
    let what = format!(
        "server time per pair with {} locks held, relative to one",
        HELD[3]
    );
    report.target(&what, Target::AtMost(2.0), grown(&seen[3]));
    let weighed = crowded.iter().filter(|crowded| crowded.held >= WEIGHED);
    let bytes = Spread::of(weighed.map(|crowded| crowded.bytes));
    report.target("server bytes per held mutex", Target::AtMost(200.0), bytes);
    let points = crowded.iter().zip(&seen).map(|(crowded, slices)| {
        let median = Spread::of(slices.iter().map(|slice| slice.server_us)).median;
        (crowded.held as f64, median)
    });
    let line = Line {
        name: "portcullis".to_owned(),
        points: points.collect(),
    };
    let axes = ["locks held", "server µs per pair"];
    report.plot(
        "scale-keys",
        "A pair while others hold locks",
        axes,
        &[line],
    );
    drop(crowded);
    permits(report).await;
}

impl Crowded {
    async fn with(held: usize) -> Self {
        let server = Server::start();
        let count = held.min(TEMPLATES);
        let pairs = overhear_pairs(&server, "own", count).await;
        let templates: Vec<_> = pairs
            .iter()
            .enumerate()
            .map(|(number, [acquire, _])| Template::acquire(acquire, &format!("own:{number}")))
            .collect();
        let before = used_memory(&server).await;
        let calls = (0..held)
            .map(|number| templates[number % count].call(&format!("held:{number}"), number));
        let mut pipe = Pipe::connect(&server);
        for answer in pipe.send(calls) {
            assert_eq!(answer[0], 0, "all are free");
        }
        let bytes = (used_memory(&server).await - before) / held as f64;
        let gates = gates(&server.url());
        Self {
            held,
            server,
            gates,
            bytes,
        }
    }

    async fn pairs(&self) -> Slice {
        let begun = Instant::now();
        let microseconds = cost::microseconds(&self.server, &["evalsha"]);
        let rate = rate(TASKS, SLICE, |task| {
            let lock = self.gates.mutex("mine").keyed(task);
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
        let microseconds = cost::microseconds(&self.server, &["evalsha"]) - microseconds;
        Slice {
            server_us: microseconds as f64 / pairs,
            rate,
        }
    }
}

/// What a held permit takes: of one large semaphore, and of many small ones.
async fn permits(report: &mut Report) {
    let mut rows = Vec::new();
    for (semaphores, each) in [(1, WEIGHED), (WEIGHED / 10, 10)] {
        let server = Server::start();
        let gates = gates(&server.url());
        let permits = gates.semaphore("permits", 10).expect("in range").keyed(0);
        let mut monitor = Monitor::start(&server);
        let permit = permits.acquire().await.expect("there is room");
        let template = Template::acquire(&Words::next(&mut monitor), "permits:0").limit(each);
        permit.release().await.expect("answered");
        gates.shutdown(Duration::from_secs(5)).await;
        drop(monitor);
        let before = used_memory(&server).await;
        let calls = (0..semaphores * each)
            .map(|number| template.call(&format!("held:{}", number % semaphores), number));
        for answer in Pipe::connect(&server).send(calls) {
            assert_eq!(answer[0], 0, "there is room");
        }
        let bytes = (used_memory(&server).await - before) / (semaphores * each) as f64;
        let what = format!("server bytes per held permit, {semaphores} semaphores of {each}");
        report.target(&what, Target::AtMost(200.0), Spread::of([bytes]));
        rows.push(vec![semaphores.to_string(), each.to_string(), short(bytes)]);
    }
    report.table(
        &[
            "semaphores",
            "permits held of each",
            "server bytes per permit",
        ],
        &rows,
    );
}
