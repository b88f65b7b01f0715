//! What it costs the server that many leases are renewed: the crate's shared calls against a call
//! for each.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use portcullis::{MutexGuard, Portcullis};

use super::{Group, runtime};
use crate::cost;
use crate::measure::{Spread, interleave, ratio, short, side};
use crate::monitor::Monitor;
use crate::peers::{INSTANCE, Pipe, Words, gates, overhear_renewal};
use crate::report::{Report, Target};
use crate::support::Server;

pub(crate) const GROUP: Group = Group {
    name: "renewal",
    about: "10,000 leases that are held and renewed while nothing else runs: the time that the server spends in scripts for each renewed lease.",
    run,
};

const LEASES: usize = 10_000;
const ROUNDS: usize = 4;
/// The length of our leases, and the time between their renewals: a third of it.
const TTL: Duration = Duration::from_secs(12);
const INTERVAL: Duration = Duration::from_secs(4);
/// The length of the others' leases: the crate does not renew them within the run.
const LONG: Duration = Duration::from_secs(600);
/// No script shall stall the server for longer, in microseconds.
const STALL: u64 = 300;

fn run(report: &mut Report) {
    runtime().block_on(async {
        let ours = Ours::hold().await;
        // Each lease's first renewal goes alone: only from then on is it known as one that stays.
        let first = ours.renewed_within(INTERVAL * 7 / 4).await;
        let singles = Singles::hold().await;
        let mut sides = vec![
            side(|| ours.renewed_within(INTERVAL)),
            side(|| singles.renewed_at_once()),
        ];
        let seen = interleave(ROUNDS, &mut sides).await;
        let lost = ours.lost();
        if lost > 0 {
            report.text(&format!("**{lost} leases were lost meanwhile: the figures below tell nothing.**"));
        }
        let relative = ratio(&seen[0], &seen[1], |renewed| renewed.each_us);
        let what = "renewal of 10,000 leases, relative to pipelined single scripts";
        report.target(what, Target::AtMost(0.7), relative);
        let stalls = Spread::of(seen[0].iter().map(|renewed| renewed.stalls as f64));
        let what = "renewals longer than 0.3 ms, in each interval";
        report.target(what, Target::AtMost(0.0), stalls);
        let columns = [
            "", "leases/call", "server µs/lease", "relative to single scripts", "longest call, ms",
        ];
        let rows = [
            row("portcullis", &seen[0], &relative.to_string()),
            row("portcullis, each lease's first", &[first], "not compared"),
            row("single scripts, pipelined", &seen[1], "1"),
        ];
        report.table(&columns, &rows);
        report.text(
            "Calls are timed by the server's clock, so one that was interrupted by another process counts as long.",
        );
    });
}

/// What one time around has shown.
#[derive(Debug, Clone, Copy)]
struct Renewed {
    each_us: f64,
    per_call: f64,
    /// Calls that took longer than allowed, and the longest of those, in milliseconds.
    stalls: usize,
    longest: f64,
}

fn row(name: &str, renewed: &[Renewed], relative: &str) -> Vec<String> {
    let spread = |figure: fn(&Renewed) -> f64| Spread::of(renewed.iter().map(figure));
    let longest = spread(|renewed| renewed.longest).most;
    vec![
        name.to_owned(),
        short(spread(|renewed| renewed.per_call).median),
        spread(|renewed| renewed.each_us).to_string(),
        relative.to_owned(),
        if longest == 0.0 {
            format!("< {}", STALL as f64 / 1e3)
        } else {
            short(longest)
        },
    ]
}

/// The server's counters before something is renewed.
struct Begun {
    looks: u64,
    calls: u64,
    microseconds: u64,
}

impl Begun {
    fn now(server: &Server) -> Self {
        redis(server, &["SLOWLOG", "RESET"]);
        Self {
            looks: looks(server),
            calls: cost::commands(server, &["evalsha"]),
            microseconds: cost::microseconds(server, &["evalsha"]),
        }
    }

    fn renewed(&self, server: &Server) -> Renewed {
        let calls = cost::commands(server, &["evalsha"]) - self.calls;
        let leases = (looks(server) - self.looks - calls) as f64;
        let microseconds = cost::microseconds(server, &["evalsha"]) - self.microseconds;
        let stalls = stalls(server);
        Renewed {
            each_us: microseconds as f64 / leases,
            per_call: leases / calls as f64,
            stalls: stalls.len(),
            longest: stalls.into_iter().max().unwrap_or(0) as f64 / 1e3,
        }
    }
}

/// How often a script has looked at what a key has left: where nothing but renewals runs, once for
/// each lease, and once in each call for the clock of the tag.
fn looks(server: &Server) -> u64 {
    cost::commands(server, &["pttl"])
}

/// A server that notes which calls are too long.
fn server() -> Server {
    let server = Server::start();
    redis(
        &server,
        &[
            "CONFIG",
            "SET",
            "slowlog-log-slower-than",
            &STALL.to_string(),
        ],
    );
    redis(&server, &["CONFIG", "SET", "slowlog-max-len", "100000"]);
    server
}

fn redis(server: &Server, words: &[&str]) -> redis::Value {
    let mut command = redis::Cmd::new();
    command.arg(words);
    command
        .query(&mut server.connection())
        .expect("it is answered")
}

/// How long each script took that took too long, in microseconds.
fn stalls(server: &Server) -> Vec<u64> {
    type Entry = (u64, u64, u64, Vec<String>, String, String);
    let entries = redis(server, &["SLOWLOG", "GET", "-1"]);
    let entries: Vec<Entry> = redis::from_redis_value(entries).expect("the form that Redis gives");
    let scripts = entries
        .into_iter()
        .filter(|entry| entry.3[0].eq_ignore_ascii_case("evalsha"));
    scripts.map(|entry| entry.2).collect()
}

/// Takes all locks, and keeps them.
async fn hold(gates: &Portcullis, ttl: Duration) -> Vec<MutexGuard> {
    let lock = gates.mutex("held").ttl(ttl).expect("in range");
    let locks = stream::iter(0..LEASES).map(|number| {
        let lock = lock.keyed(number);
        async move { lock.lock().await.expect("own keys are free") }
    });
    locks.buffer_unordered(256).collect().await
}

/// Leases that the crate renews.
struct Ours {
    server: Server,
    guards: Vec<MutexGuard>,
}

impl Ours {
    async fn hold() -> Self {
        let server = server();
        let guards = hold(&gates(&server.url()), TTL).await;
        Self { server, guards }
    }

    /// How many leases ended although they were to be renewed.
    fn lost(&self) -> usize {
        self.guards.iter().filter(|guard| !guard.is_held()).count()
    }

    async fn renewed_within(&self, time: Duration) -> Renewed {
        let begun = Begun::now(&self.server);
        tokio::time::sleep(time).await;
        begun.renewed(&self.server)
    }
}

/// Leases of the same kind on a server of their own, each of which is renewed by a call of its own.
struct Singles {
    server: Server,
    _guards: Vec<MutexGuard>,
    renewals: Vec<Words>,
}

impl Singles {
    async fn hold() -> Self {
        let server = server();
        let template = overhear_renewal(&server).await;
        let mut monitor = Monitor::start(&server);
        let guards = hold(&gates(&server.url()), LONG).await;
        let acquires: Vec<_> = (0..LEASES).map(|_| Words::next(&mut monitor)).collect();
        // Asked again with the same token, the server says how it stands: with its fence.
        let answers = Pipe::connect(&server).send(acquires.iter().cloned());
        let lease = LONG.as_millis().to_string();
        let renewal = |(acquire, answer): (&Words, &Vec<i64>)| {
            let [main, _, records, roster, clock] = acquire.keys() else {
                panic!("a gate has five keys");
            };
            let (token, fence) = (acquire.token(), answer[3].to_string());
            let instance = &token[..INSTANCE];
            template.with(
                &[roster, clock, main, records],
                &[instance, "0", token, &fence, &lease],
            )
        };
        let renewals = acquires.iter().zip(&answers).map(renewal).collect();
        Self {
            server,
            _guards: guards,
            renewals,
        }
    }

    /// On a thread of its own: it blocks.
    async fn renewed_at_once(&self) -> Renewed {
        // As long after the renewal before as ours are: sooner, the script would spare itself a write.
        tokio::time::sleep(INTERVAL).await;
        let begun = Begun::now(&self.server);
        let (mut pipe, renewals) = (Pipe::connect(&self.server), self.renewals.clone());
        let sent = tokio::task::spawn_blocking(move || pipe.send(renewals)).await;
        for answer in sent.expect("no panic") {
            assert!(answer[2] > 0, "it is held, and so it is renewed");
        }
        begun.renewed(&self.server)
    }
}
