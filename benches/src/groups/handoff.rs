//! One lock that all want: how fast it goes from one to the next, how long each waits, and what
//! waiting costs.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Group, runtime};
use crate::child::{Role, fleet};
use crate::contention::{self, Slice, Turn, Work, fresh_key};
use crate::delay;
use crate::measure::{Side, Spread, interleave_cold, quantile, ratio, short, side};
use crate::monitor;
use crate::peers::{INSTANCE, Peer, connect, gates};
use crate::report::{Line, Report, Target};
use crate::support::Server;

pub(crate) const GROUP: Group = Group {
    name: "handoff",
    about: "A mutex that all tasks of all processes want.",
    run,
};

pub(crate) const ROLE: Role = Role {
    name: "handoff",
    play,
};

const ROUNDS: usize = 3;
const PROCESSES: u32 = 4;
/// A round trip as between two zones of one region.
const ONE_WAY: Duration = Duration::from_micros(1_200);

/// Who contends, and for how long it is looked at.
#[derive(Debug, Clone, Copy)]
struct Regime {
    processes: u32,
    waiters: u32,
    hold: Duration,
    slice: Duration,
}

const REGIMES: [Regime; 4] = [
    Regime::without_hold(1, 16, 1_000),
    Regime::without_hold(PROCESSES, 16, 1_000),
    Regime::without_hold(PROCESSES, 128, 1_500),
    // Each task is to have several turns.
    Regime::without_hold(PROCESSES, 1_000, 3_000),
];

impl Regime {
    const fn without_hold(processes: u32, waiters: u32, slice_ms: u64) -> Self {
        Self {
            processes,
            waiters,
            hold: Duration::ZERO,
            slice: Duration::from_millis(slice_ms),
        }
    }

    const fn work(self) -> Work {
        Work {
            tasks: self.waiters / self.processes,
            hold: self.hold,
        }
    }

    fn name(self) -> String {
        format!("{} × {}", self.processes, self.waiters)
    }

    /// What its processes are told.
    fn tasks(self, peer: Peer, url: &str) -> Vec<Task> {
        let task = Task {
            peer,
            url: url.to_owned(),
            key: fresh_key(),
            work: self.work(),
        };
        vec![task; self.processes as usize]
    }

    fn measure(self, server: &Server, peer: Peer, url: &str) -> Slice {
        let tasks = self.tasks(peer, url);
        let slice = contention::measure(
            server,
            ROLE.name,
            &tasks,
            self.work(),
            self.slice,
            sends(peer),
        );
        assert!(
            peer != Peer::Portcullis || slice.overlaps == 0,
            "{} holds began within another",
            slice.overlaps
        );
        slice
    }
}

/// The commands that its clients send, none of which its scripts call.
const fn sends(peer: Peer) -> &'static [&'static str] {
    match peer {
        Peer::Portcullis => &["evalsha", "eval", "ping"],
        Peer::RslockDefaults | Peer::RslockFast | Peer::Broadcast => &["evalsha", "eval", "set"],
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    peer: Peer,
    url: String,
    key: String,
    work: Work,
}

fn play(task: &str, all_ready: &mut dyn FnMut()) -> String {
    let task: Task = serde_json::from_str(task).expect("a task of this role");
    let turns = runtime().block_on(async {
        let locks = task.peer.connect(&task.url).await;
        locks.contend(task.key, task.work, all_ready).await
    });
    serde_json::to_string(&turns).expect("turns are plain data")
}

fn run(report: &mut Report) {
    report.text(
        "Figures are medians over rounds; *each* is per acquisition. A wait that is under way when \
         its slice ends counts as long as it was seen, so those about as long as a slice are lower bounds.",
    );
    let server = Server::start();
    runtime().block_on(async {
        let mut by_waiters = Vec::new();
        for regime in REGIMES {
            let seen = compare(report, &server, regime).await;
            targets(report, &seen, regime);
            if regime.processes == PROCESSES {
                by_waiters.push((regime.waiters, seen));
            }
        }
        plots(report, &by_waiters);
        holding(report, &server).await;
        far(report, &server).await;
        waiting(report, &server).await;
    });
}

/// All peers' slices, in the order of [`Peer::ALL`].
struct Seen(Vec<Vec<Slice>>);

impl Seen {
    fn of(&self, peer: Peer) -> &[Slice] {
        let position = Peer::ALL.iter().position(|other| *other == peer);
        &self.0[position.expect("all were measured")]
    }

    /// A figure of this crate relative to another peer's.
    fn relative(&self, to: Peer, figure: impl Fn(&Slice) -> f64) -> Spread {
        ratio(self.of(Peer::Portcullis), self.of(to), figure)
    }
}

async fn compare(report: &mut Report, server: &Server, regime: Regime) -> Seen {
    let url = server.url();
    let mut sides: Vec<Side<'_, Slice>> = Vec::new();
    for peer in Peer::ALL {
        let url = &url;
        sides.push(side(
            move || async move { regime.measure(server, peer, url) },
        ));
    }
    let seen = Seen(interleave_cold(ROUNDS, &mut sides).await);
    let hold = match regime.hold.as_millis() {
        0 => "no hold".to_owned(),
        ms => format!("held for {ms} ms"),
    };
    report.text(&format!(
        "**{} (processes × waiters in total), {hold}**",
        regime.name()
    ));
    let columns = [
        "",
        "hand-offs/s",
        "portcullis relative to it",
        "failed attempts each",
        "script calls each",
        "commands each",
        "idle p50, ms",
        "wait p50, ms",
        "wait p99, ms",
        "Jain",
        "overlaps",
        "server µs each",
        "clients µs each",
    ];
    let rows: Vec<_> = Peer::ALL.iter().map(|peer| row(*peer, &seen)).collect();
    report.table(&columns, &rows);
    for peer in Peer::ALL {
        if let Some(trouble) = Slice::trouble(seen.of(peer), peer.name()) {
            report.text(&trouble);
        }
    }
    seen
}

fn row(peer: Peer, seen: &Seen) -> Vec<String> {
    let slices = seen.of(peer);
    let median = |figure: fn(&Slice) -> f64| short(median(slices, figure));
    vec![
        peer.name().to_owned(),
        median(Slice::handoffs),
        seen.relative(peer, Slice::handoffs).to_string(),
        median(Slice::failures),
        median(Slice::scripts),
        median(Slice::commands),
        median(Slice::idle_p50),
        median(|slice| slice.wait(0.5)),
        median(|slice| slice.wait(0.99)),
        median(Slice::fairness),
        slices
            .iter()
            .map(|slice| slice.overlaps)
            .sum::<u64>()
            .to_string(),
        median(Slice::server),
        median(Slice::clients),
    ]
}

fn median(slices: &[Slice], figure: impl Fn(&Slice) -> f64) -> f64 {
    Spread::of(slices.iter().map(figure)).median
}

fn targets(report: &mut Report, seen: &Seen, regime: Regime) {
    let ours = seen.of(Peer::Portcullis);
    let name = regime.name();
    let scripts = Spread::of(ours.iter().map(Slice::scripts));
    report.target(
        &format!("{name}, script calls per acquisition"),
        Target::AtMost(2.05),
        scripts,
    );
    let bound = match (regime.processes, regime.waiters) {
        (PROCESSES, 16) => 2.0,
        (PROCESSES, 128) => 6.0,
        (PROCESSES, 1_000) => 25.0,
        _ => return,
    };
    let faster = seen.relative(Peer::RslockFast, Slice::handoffs);
    let what = format!("{name}, hand-offs/s relative to 5 ms retries");
    report.target(&what, Target::AtLeast(bound), faster);
    if regime.waiters == 1_000 {
        let fairness = Spread::of(ours.iter().map(Slice::fairness));
        report.target(
            &format!("{name}, Jain fairness"),
            Target::AtLeast(0.98),
            fairness,
        );
    }
}

fn plots(report: &mut Report, by_waiters: &[(u32, Seen)]) {
    let lines = |figure: fn(&Slice) -> f64| {
        Peer::ALL.map(|peer| {
            let points = by_waiters
                .iter()
                .map(|(waiters, seen)| (f64::from(*waiters), median(seen.of(peer), figure)));
            Line {
                name: peer.name().to_owned(),
                // A logarithmic axis has no place for nothing at all.
                points: points.filter(|(_, figure)| *figure > 0.0).collect(),
            }
        })
    };
    let title = "Hand-offs by the number of waiters in 4 processes";
    report.plot(
        "handoffs",
        title,
        ["waiters", "hand-offs/s"],
        &lines(Slice::handoffs),
    );
    let title = "What 99 of 100 wait at most, by the number of waiters in 4 processes";
    let p99 = lines(|slice| slice.wait(0.99));
    report.plot("waits", title, ["waiters", "wait p99, ms"], &p99);
}

/// With something to do while the lock is held.
async fn holding(report: &mut Report, server: &Server) {
    let regime = Regime {
        processes: PROCESSES,
        waiters: 16,
        hold: Duration::from_millis(5),
        slice: Duration::from_secs(2),
    };
    let seen = compare(report, server, regime).await;
    let p99 = seen.relative(Peer::RslockDefaults, |slice| slice.wait(0.99));
    let what = "held for 5 ms, wait p99 relative to rslock's defaults";
    report.target(what, Target::AtMost(1.0 / 9.0), p99);
}

/// At a distance a hand-off takes a round trip: the release goes there, the grant comes back.
async fn far(report: &mut Report, server: &Server) {
    const SLICE: Duration = Duration::from_secs(1);
    let url = delay::in_front_of(server.port(), ONE_WAY);
    let regime = Regime::without_hold(PROCESSES, 16, SLICE.as_millis() as u64);
    let mut sides: Vec<Side<'_, f64>> = vec![
        side(|| async { regime.measure(server, Peer::Portcullis, &url).idle_p50() }),
        side(|| ping_p50(&url, SLICE)),
    ];
    let seen = interleave_cold(ROUNDS, &mut sides).await;
    let [handoff, ping] = [0, 1].map(|side| Spread::of(seen[side].iter().copied()));
    report.text(&format!(
        "At a round trip of 2.4 ms, {}, no hold: from a release to the next hold {handoff} ms, a \
         PING {ping} ms (medians).",
        regime.name()
    ));
    let relative = ratio(&seen[0], &seen[1], |p50| *p50);
    report.target(
        "hand-off p50 relative to a PING at 2.4 ms",
        Target::AtMost(1.1),
        relative,
    );
}

/// The median of what a PING takes, in milliseconds.
async fn ping_p50(url: &str, slice: Duration) -> f64 {
    let mut connection = connect(url).await;
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < slice {
        let sent = Instant::now();
        let answer: redis::RedisResult<()> = redis::cmd("PING").query_async(&mut connection).await;
        answer.expect("PING is answered");
        times.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    quantile(&times, 0.5)
}

/// What the server is sent while one holds and all others wait.
async fn waiting(report: &mut Report, server: &Server) {
    const WATCHED: Duration = Duration::from_secs(3);
    let url = server.url();
    let regime = Regime::without_hold(PROCESSES, 128, 0);
    let tasks = regime.tasks(Peer::Portcullis, &url);
    let holder = gates(&url);
    let held = holder
        .mutex(&tasks[0].key)
        .lock()
        .await
        .expect("nobody else is here yet");
    let (_, sent): (Vec<Vec<Turn>>, _) = fleet(ROLE.name, &tasks, |_| {
        // Until all stand in line.
        thread::sleep(Duration::from_secs(1));
        monitor::overhear(server, WATCHED)
    });
    held.release().await.expect("it was renewed");
    let sent = Sent::of(&sent, WATCHED);
    report.text(&format!(
        "One process holds for 5 s while {} wait in {PROCESSES} others: within {} s clients sent {} \
         commands, as MONITOR shows them. {} were heartbeats and renewals, {} were questions whether \
         a waiter still has its place, {} were PINGs of subscriptions. A question takes the place of \
         a heartbeat: beyond is what a process sent more often than one script call in a second and \
         one PING in three, and all else: {}.",
        regime.waiters,
        WATCHED.as_secs(),
        sent.all,
        sent.renewals,
        sent.questions,
        sent.pings,
        sent.beyond,
    ));
    let beyond = Spread::of([sent.beyond as f64]);
    report.target(
        "commands while everybody waits, beyond heartbeats",
        Target::AtMost(0.0),
        beyond,
    );
}

/// What clients of this crate have sent, by its purpose.
#[derive(Debug, Default, PartialEq)]
struct Sent {
    all: usize,
    renewals: usize,
    questions: usize,
    pings: usize,
    beyond: usize,
}

impl Sent {
    /// Of processes that all have one hash tag.
    fn of(commands: &[Vec<String>], time: Duration) -> Self {
        // Of what comes once in a period, one more than there are periods can fall into the time.
        let at_most = |period: u64| (time.as_secs() / period + 1) as usize;
        let mut sent = Self {
            all: commands.len(),
            ..Self::default()
        };
        let mut by_process: HashMap<&str, usize> = HashMap::new();
        for words in commands {
            match words[0].as_str() {
                "EVALSHA" | "EVAL" => {
                    let keys: usize = words[2].parse().expect("how many keys there are");
                    // Who renews names two keys of the tag and two for each lease; who asks, five.
                    if keys.is_multiple_of(2) {
                        sent.renewals += 1;
                    } else {
                        sent.questions += 1;
                    }
                    // Either says first who it is; a waiter's token begins with its process.
                    *by_process.entry(&words[3 + keys][..INSTANCE]).or_default() += 1;
                }
                "PING" => sent.pings += 1,
                _ => sent.beyond += 1,
            }
        }
        // These do not say whose they are.
        let processes = by_process.len();
        sent.beyond += sent.pings.saturating_sub(processes * at_most(3));
        let calls = by_process.into_values();
        sent.beyond += calls
            .map(|calls| calls.saturating_sub(at_most(1)))
            .sum::<usize>();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: &str = "EVALSHA sha 2 roster clock process-0001 1";
    const RENEWAL: &str = "EVALSHA sha 4 roster clock a b process-0002 0 token";
    const QUESTION: &str = "EVALSHA sha 5 a b c roster clock process-0001-token";

    /// Within a second.
    fn sent(commands: &[&str]) -> Sent {
        let words = |command: &&str| command.split(' ').map(str::to_owned).collect();
        let commands: Vec<_> = commands.iter().map(words).collect();
        Sent::of(&commands, Duration::from_secs(1))
    }

    #[test]
    fn what_keeps_alive_is_not_beyond() {
        let seen = sent(&[BEAT, RENEWAL, QUESTION, "PING"]);
        let expected = Sent {
            all: 4,
            renewals: 2,
            questions: 1,
            pings: 1,
            beyond: 0,
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_one_process_sends_too_often_is_beyond() {
        assert_eq!(sent(&[BEAT, BEAT, QUESTION]).beyond, 1);
        assert_eq!(sent(&[BEAT, BEAT, RENEWAL, RENEWAL]).beyond, 0);
        assert_eq!(sent(&[BEAT, "PING", "PING", "TIME"]).beyond, 2);
    }
}
