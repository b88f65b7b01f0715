//! Drives any number of `server` examples at once, and says whether they kept their gates together.
//!
//! Start servers as the `server` example tells. Several need one `REDIS_URL`: without, they do not
//! know of each other. Then:
//!
//! ```sh
//! cargo run --release --example load -- http://127.0.0.1:3000 http://127.0.0.1:3001
//! cargo run --release --example load -- --path '/stream?ms=300' http://127.0.0.1:3000
//! cargo run --release --example load -- --method POST --path '/accounts/7/withdraw?ms=5' --cap 1 \
//!     http://127.0.0.1:3000 http://127.0.0.1:3001
//! ```
//!
//! | option | meaning | default |
//! | --- | --- | --- |
//! | `--connections N` | connections over all servers, each with one request at a time | 64 |
//! | `--seconds N` | how long to send | 20 |
//! | `--path P` | what to ask for | `/reports?ms=50` |
//! | `--method M` | how | GET |
//! | `--cap N` | how many may be inside at once; with 1, fencing tokens must rise | 4 |
//! | `--margin-ms N` | by how much arrivals and entries must differ to be an overtake | 20 |
//!
//! You see how many requests were answered and by which process, the most that were inside at once
//! over all of them, the utilisation (time held ÷ capacity × wall, from the first hold to the
//! last), refusals by status, how long requests waited, and how many were overtaken: arrived by the
//! margin earlier than another that was let in before. The exit code is 1 if more than `--cap` were
//! inside at once, a fencing token was given twice, or those of a gate of 1 did not rise in the
//! order of holding; 2 if nothing could be measured.
//!
//! All servers are taken to run on this machine: their answers carry its wall clock.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let plan = Plan::from_args(env::args().skip(1))?;
    let begun = Instant::now();
    let mut workers = JoinSet::new();
    for number in 0..plan.connections {
        let server = plan.servers[number % plan.servers.len()].clone();
        workers.spawn(drive(server, plan.clone(), begun + plan.time));
    }
    let mut seen = Seen::default();
    while let Some(worker) = workers.join_next().await {
        seen.add(worker?);
    }
    Ok(seen.report(&plan))
}

#[derive(Clone)]
struct Plan {
    servers: Vec<Uri>,
    connections: usize,
    time: Duration,
    method: Method,
    path: String,
    cap: usize,
    margin_us: u64,
}

impl Plan {
    fn from_args(mut args: impl Iterator<Item = String>) -> Result<Self, BoxError> {
        let mut plan = Self {
            servers: Vec::new(),
            connections: 64,
            time: Duration::from_secs(20),
            method: Method::GET,
            path: "/reports?ms=50".to_owned(),
            cap: 4,
            margin_us: 20_000,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} takes a value"));
            match arg.as_str() {
                "--connections" => plan.connections = value()?.parse()?,
                "--seconds" => plan.time = Duration::try_from_secs_f64(value()?.parse()?)?,
                "--path" => plan.path = value()?,
                "--method" => plan.method = value()?.parse()?,
                "--cap" => plan.cap = value()?.parse()?,
                "--margin-ms" => plan.margin_us = value()?.parse::<u64>()?.saturating_mul(1_000),
                server if server.starts_with("http://") => plan.servers.push(server.parse()?),
                other => {
                    return Err(format!("{other}: neither an option nor an http:// address").into());
                }
            }
        }
        if plan.servers.is_empty() || plan.cap == 0 {
            return Err(
                "name at least one server, as http://127.0.0.1:3000, and a cap of at least 1"
                    .into(),
            );
        }
        Ok(plan)
    }

    fn request(&self, server: &Uri) -> Result<Request<Empty<Bytes>>, BoxError> {
        let host = server
            .authority()
            .map_or("", |authority| authority.as_str());
        let request = Request::builder()
            .method(&self.method)
            .uri(&self.path)
            .header(header::HOST, host);
        Ok(request.body(Empty::new())?)
    }
}

/// What a server says of one request: see the `server` example.
#[derive(Deserialize)]
struct Hold {
    pid: u32,
    waited_ms: u64,
    held_from_us: u64,
    held_to_us: u64,
    fencing_token: u64,
}

impl Hold {
    fn arrived_us(&self) -> u64 {
        self.held_from_us.saturating_sub(self.waited_ms * 1_000)
    }
}

#[derive(Default)]
struct Seen {
    holds: Vec<Hold>,
    refusals: BTreeMap<u16, u64>,
    failures: u64,
}

/// Sends one request after the other over one connection, and connects again when that fails.
async fn drive(server: Uri, plan: Plan, end: Instant) -> Seen {
    let mut seen = Seen::default();
    let mut connection = None;
    while Instant::now() < end {
        match ask(&mut connection, &server, &plan).await {
            Ok((StatusCode::OK, body)) => match serde_json::from_slice(&body) {
                Ok(hold) => seen.holds.push(hold),
                Err(_) => seen.failures += 1,
            },
            Ok((status, _)) => *seen.refusals.entry(status.as_u16()).or_default() += 1,
            Err(_) => {
                seen.failures += 1;
                connection = None;
                // A server that was killed is to be missed, not hammered.
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    seen
}

async fn ask(
    connection: &mut Option<SendRequest<Empty<Bytes>>>,
    server: &Uri,
    plan: &Plan,
) -> Result<(StatusCode, Bytes), BoxError> {
    let mut sender = match connection.take() {
        Some(sender) => sender,
        None => connect(server).await?,
    };
    // A server that closes after its answer ends the connection here.
    if sender.ready().await.is_err() {
        sender = connect(server).await?;
    }
    let response = sender.send_request(plan.request(server)?).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    *connection = Some(sender);
    Ok((status, body))
}

async fn connect(server: &Uri) -> Result<SendRequest<Empty<Bytes>>, BoxError> {
    let host = server.host().ok_or("an address without host")?;
    let stream = TcpStream::connect((host, server.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.holds.extend(other.holds);
        self.failures += other.failures;
        for (status, count) in other.refusals {
            *self.refusals.entry(status).or_default() += count;
        }
    }

    fn report(mut self, plan: &Plan) -> ExitCode {
        self.holds
            .sort_unstable_by_key(|hold| (hold.held_from_us, hold.held_to_us));
        let refused: u64 = self.refusals.values().sum();
        println!(
            "requests      {} served, {refused} refused, {} failed",
            self.holds.len(),
            self.failures
        );
        for (status, count) in &self.refusals {
            println!("  status {status}  {count}");
        }
        let (Some(first), Some(last)) = (
            self.holds.first(),
            self.holds.iter().map(|hold| hold.held_to_us).max(),
        ) else {
            println!("nothing was served");
            return ExitCode::from(2);
        };
        for (pid, count) in processes(&self.holds) {
            println!("  process {pid}  {count}");
        }
        let wall = last.saturating_sub(first.held_from_us).max(1);
        let held: u64 = self
            .holds
            .iter()
            .map(|hold| hold.held_to_us.saturating_sub(hold.held_from_us))
            .sum();
        let most = most_inside(&self.holds);
        let twice = repeated_fences(&self.holds);
        println!("most inside   {most} of {}", plan.cap);
        println!(
            "utilisation   {:.3}",
            held as f64 / (plan.cap as f64 * wall as f64)
        );
        println!(
            "rate          {:.1}/s",
            self.holds.len() as f64 * 1e6 / wall as f64
        );
        let mut waits: Vec<u64> = self.holds.iter().map(|hold| hold.waited_ms).collect();
        waits.sort_unstable();
        let [half, most_of, nearly] = [0.5, 0.9, 0.99].map(|share| percentile(&waits, share));
        println!(
            "waited        p50 {half} ms, p90 {most_of} ms, p99 {nearly} ms, max {} ms",
            percentile(&waits, 1.0)
        );
        println!("overtaken     {}", overtaken(&self.holds, plan.margin_us));
        println!("fences        {twice} given twice");
        let mut sound = most <= plan.cap && twice == 0;
        if plan.cap == 1 {
            let falls = self
                .holds
                .windows(2)
                .filter(|pair| pair[0].fencing_token >= pair[1].fencing_token)
                .count();
            println!("              {falls} not above the one before");
            sound &= falls == 0;
        }
        println!("{}", if sound { "sound" } else { "VIOLATED" });
        if sound {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn processes(holds: &[Hold]) -> BTreeMap<u32, u64> {
    let mut counts = BTreeMap::new();
    for hold in holds {
        *counts.entry(hold.pid).or_default() += 1;
    }
    counts
}

/// A sweep over all beginnings and ends; at one moment ends come first.
fn most_inside(holds: &[Hold]) -> usize {
    let changes = holds
        .iter()
        .flat_map(|hold| [(hold.held_from_us, 1), (hold.held_to_us, -1_i64)]);
    let mut changes: Vec<(u64, i64)> = changes.collect();
    changes.sort_unstable();
    let mut inside = 0;
    let mut most = 0;
    for (_, change) in changes {
        inside += change;
        most = most.max(inside);
    }
    usize::try_from(most).unwrap_or_default()
}

fn repeated_fences(holds: &[Hold]) -> usize {
    let mut fences: Vec<u64> = holds.iter().map(|hold| hold.fencing_token).collect();
    fences.sort_unstable();
    fences.windows(2).filter(|pair| pair[0] == pair[1]).count()
}

/// Of an ascending list that is not empty.
fn percentile(sorted: &[u64], share: f64) -> u64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted[index.clamp(1, sorted.len()) - 1]
}

/// How many arrived by the margin before another, and were let in by the margin after it. Both
/// margins allow for the way between a server's socket and the queue, and for a handler that was
/// granted and not yet run.
fn overtaken(holds: &[Hold], margin_us: u64) -> usize {
    let mut by_arrival: Vec<(u64, u64)> = holds
        .iter()
        .map(|hold| (hold.arrived_us(), hold.held_from_us))
        .collect();
    by_arrival.sort_unstable();
    // The earliest entry among all that arrived at or after each.
    let mut earliest: Vec<u64> = by_arrival.iter().map(|&(_, entered)| entered).collect();
    for index in (1..earliest.len()).rev() {
        earliest[index - 1] = earliest[index - 1].min(earliest[index]);
    }
    let overtaken = by_arrival.iter().filter(|&&(arrived, entered)| {
        let later = by_arrival.partition_point(|&(other, _)| other < arrived + margin_us);
        earliest
            .get(later)
            .is_some_and(|&other| other + margin_us < entered)
    });
    overtaken.count()
}
