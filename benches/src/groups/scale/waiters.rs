//! A hand-off while many wait for one lock, and what each waiter takes on the server.
//!
//! Waiters are enqueued over a socket, in the words that the crate sends, by one process that says
//! that it is alive and listens to its inbox. What a hand-off costs the server is then the same as
//! if a task stood behind each of them; what it costs the process is not measured here.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::template::Template;
use super::used_memory;
use crate::cost;
use crate::measure::{Spread, interleave, ratio, short, side};
use crate::peers::{Pipe, Words, overhear_pairs, overhear_renewal};
use crate::report::{Line, Report, Target};
use crate::support::Server;

const WAITERS: [usize; 4] = [1, 100, 10_000, 100_000];
/// Of these the memory is told.
const WEIGHED: usize = 10_000;
const ROUNDS: usize = 7;
/// How many hand-offs a slice has. It has to end before the process is taken for dead.
const HAND_OFFS: usize = 2_000;

pub(super) async fn run(report: &mut Report) {
    let server = Server::start();
    let heartbeat = overhear_renewal(&server).await;
    let pairs = overhear_pairs(&server, "line", WAITERS.len()).await;
    let mut lines = Vec::new();
    for (number, (waiting, pair)) in WAITERS.into_iter().zip(&pairs).enumerate() {
        lines.push(Waiting::enqueue(&server, &heartbeat, pair, number, waiting).await);
    }
    let bytes: Vec<_> = lines.iter().map(|line| line.bytes).collect();
    let lines: Vec<_> = lines.into_iter().map(tokio::sync::Mutex::new).collect();
    let mut sides: Vec<_> = lines
        .iter()
        .map(|line| {
            let server = &server;
            side(async move || line.lock().await.hand_offs(server))
        })
        .collect();
    let seen = interleave(ROUNDS, &mut sides).await;
    let grown = |line: usize| ratio(&seen[line], &seen[0], |us| *us);
    let rows: Vec<_> = (0..WAITERS.len())
        .map(|line| {
            let weighed = WAITERS[line] >= WEIGHED;
            vec![
                WAITERS[line].to_string(),
                Spread::of(seen[line].iter().copied()).to_string(),
                grown(line).to_string(),
                if weighed {
                    short(bytes[line])
                } else {
                    "too few to tell".to_owned()
                },
            ]
        })
        .collect();
    report.text("**A hand-off, while others wait for the same lock** (the end of a lease, which grants the next, and the acquire of a new waiter at the end of the line; waiters were enqueued over a socket, in the words that the crate sends, by one process that is alive and listens)");
    let columns = [
        "waiters",
        "server µs/call",
        "relative to one waiter",
        "server bytes per waiter",
    ];
    report.table(&columns, &rows);
    let last = WAITERS.len() - 1;
    let what = format!(
        "server time per call with {} waiters, relative to one",
        WAITERS[last]
    );
    report.target(&what, Target::AtMost(3.0), grown(last));
    let weighed = (0..WAITERS.len()).filter(|line| WAITERS[*line] >= WEIGHED);
    let bytes = Spread::of(weighed.map(|line| bytes[line]));
    report.target("server bytes per waiter", Target::AtMost(160.0), bytes);
    let median = |line: usize| Spread::of(seen[line].iter().copied()).median;
    let points = (0..WAITERS.len()).map(|line| (WAITERS[line] as f64, median(line)));
    let line = Line {
        name: "portcullis".to_owned(),
        points: points.collect(),
    };
    let axes = ["waiters", "server µs per call"];
    report.plot(
        "scale-waiters",
        "A hand-off while others wait",
        axes,
        &[line],
    );
}

/// One lock, and those who wait for it.
struct Waiting {
    name: String,
    acquire: Template,
    end: Template,
    heartbeat: Words,
    pipe: Pipe,
    /// The acquisitions by number, the holder first.
    queue: VecDeque<usize>,
    drawn: usize,
    /// What each waiter takes on the server.
    bytes: f64,
}

impl Waiting {
    async fn enqueue(
        server: &Server,
        renewal: &Words,
        [acquire, end]: &[Words; 2],
        number: usize,
        waiting: usize,
    ) -> Self {
        let name = format!("line:{number}");
        let acquire = Template::wait(acquire, &name);
        listen(
            server,
            &format!("{}{}", acquire.channel(), acquire.instance()),
        );
        let mut line = Self {
            heartbeat: renewal.with(&acquire.of_tag(), &[acquire.instance(), "1"]),
            end: Template::end(end, &name),
            acquire,
            name,
            pipe: Pipe::connect(server),
            queue: VecDeque::new(),
            drawn: 0,
            bytes: 0.0,
        };
        let holder = line.enter();
        assert_eq!(line.pipe.send([holder])[0][0], 0, "it is free");
        let before = used_memory(server).await;
        let calls: Vec<_> = (0..waiting).map(|_| line.enter()).collect();
        for answer in line.pipe.send(calls) {
            assert_eq!(answer[0], 1, "it is held");
        }
        line.bytes = (used_memory(server).await - before) / waiting as f64;
        line
    }

    /// The call of one more waiter, at the end of the line.
    fn enter(&mut self) -> Words {
        let number = self.drawn;
        self.drawn += 1;
        self.queue.push_back(number);
        self.acquire.call(&self.name, number)
    }

    /// The call by which the holder gives it to the next.
    fn leave(&mut self) -> Words {
        let holder = self.queue.pop_front().expect("somebody holds or waits");
        self.end.call(&self.name, holder)
    }

    /// The microseconds that each call of many hand-offs has taken.
    fn hand_offs(&mut self, server: &Server) -> f64 {
        // Whoever holds since the last slice has held a pushed grant without renewing it, which has
        // run out. The process is alive again, and the first end clears that up.
        let first = [self.heartbeat.clone(), self.leave(), self.enter()];
        self.pipe.send(first);
        let calls: Vec<_> = (0..HAND_OFFS)
            .flat_map(|_| [self.leave(), self.enter()])
            .collect();
        let count = calls.len();
        let before = cost::microseconds(server, &["evalsha"]);
        for answers in self.pipe.send(calls).chunks(2) {
            let [ended, entered] = answers else {
                panic!("two calls each");
            };
            assert_eq!(
                [ended[0], entered[0]],
                [0, 1],
                "the next one holds, and the new one waits"
            );
        }
        (cost::microseconds(server, &["evalsha"]) - before) as f64 / count as f64
    }
}

/// Hears what is published, as a process does that waits: whom nobody hears is passed over. Until
/// the server ends.
fn listen(server: &Server, channel: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a socket");
    stream
        .write_all(format!("SUBSCRIBE {channel}\r\n").as_bytes())
        .expect("it reads");
    let mut heard = vec![0; 1 << 16];
    let subscribed = stream.read(&mut heard).expect("it answers");
    assert!(
        heard[..subscribed].starts_with(b"*3\r\n$9\r\nsubscribe"),
        "it lets us listen"
    );
    stream.set_read_timeout(None).expect("a socket");
    std::thread::spawn(move || while let Ok(1..) = stream.read(&mut heard) {});
}
