//! What the layers cost an axum server, in memory and on a server, beside tower's own limit.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{MethodRouter, get};
use http::request::Parts;
use portcullis::layer::{KeyError, RateHeaders};
use portcullis::{ConcurrencyLimitLayer, Keeping, MutexLayer, Portcullis, Quota, RateLimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Group;
use crate::child::{self, Ready, Role};
use crate::cost;
use crate::measure::{Spread, interleave, ratio, short, side};
use crate::peers::gates;
use crate::report::{Report, Target};
use crate::support::Server;

pub(crate) const GROUP: Group = Group {
    name: "layer_overhead",
    about: "Requests per second over TCP, relative to the same handler without a layer. The server has one thread, and keeps its connections.",
    run,
};

/// The process that serves.
pub(crate) const ROLE: Role = Role {
    name: "serve layers",
    play: serve,
};

const ROUNDS: usize = 41;
const SLICE: Duration = Duration::from_millis(180);
/// What each slice begins with, uncounted: what is kept for the next request has been given back since
/// the slice before.
const WARM_UP: Duration = Duration::from_millis(80);
const HELLO: &str = "Hello, World!";
/// A limit that no number of connections reaches.
const MANY: u32 = 1_000;
/// A limit that makes most of the connections wait.
const FEW: u32 = 8;

/// A handler, and the layers in front of it that are compared to none: few at a time, since the closer
/// two slices lie the less a change of the machine comes between them.
struct Regime {
    name: &'static str,
    path: &'static str,
    connections: usize,
    layers: &'static [Compared],
}

/// A layer by the end of its route's path.
struct Compared {
    name: &'static str,
    path: &'static str,
    /// The least ratio that will do.
    targets: &'static [f64],
}

const fn layer(name: &'static str, path: &'static str, targets: &'static [f64]) -> Compared {
    Compared {
        name,
        path,
        targets,
    }
}

const NONE: Compared = layer("no layer", "none", &[]);
const TOWER: Compared = layer("tower's limit", "tower", &[]);
const LOCKS: Compared = layer("mutex in memory, key per connection", "locks", &[]);
const RATE: Compared = layer("rate limit in memory, key per connection", "rate", &[]);
const SERVER_LOCKS: Compared = layer("mutex on Redis, key per connection", "server-locks", &[]);

const REGIMES: [Regime; 5] = [
    Regime {
        name: "hello world, 32 connections",
        path: "hello",
        connections: 32,
        layers: &[
            TOWER,
            layer("semaphore in memory", "permits", &[0.85]),
            // A permit is given back in the background, and so this one row is both: what was asked
            // of any semaphore, and of one with that.
            layer("semaphore on Redis", "server-permits", &[0.30, 0.38]),
            layer("semaphore on Redis, kept", "kept", &[0.90]),
        ],
    },
    Regime {
        name: "hello world, 32 connections, a key for each",
        path: "hello",
        connections: 32,
        layers: &[
            LOCKS,
            RATE,
            layer("rate limit in memory, with headers", "rate-told", &[]),
            SERVER_LOCKS,
            layer(
                "rate limit on Redis, key per connection",
                "server-rate",
                &[0.40],
            ),
        ],
    },
    // One thread only holds for several requests at once if they let each other run.
    Regime {
        name: "hello world that yields once, 32 connections",
        path: "yields",
        connections: 32,
        layers: &[TOWER, layer("semaphore in memory", "permits", &[]), LOCKS],
    },
    Regime {
        name: "hello world that yields once, a limit of 8 for 32 connections",
        path: "yields",
        connections: 32,
        layers: &[
            layer("tower's limit", "tower-few", &[]),
            layer("semaphore in memory", "permits-few", &[]),
            layer("semaphore on Redis", "server-few", &[]),
            layer("semaphore on Redis, kept", "kept-few", &[0.80]),
        ],
    },
    Regime {
        name: "after 5 ms, 8 connections",
        path: "sleeps",
        connections: 8,
        layers: &[
            TOWER,
            layer("semaphore in memory", "permits", &[]),
            LOCKS,
            layer("semaphore on Redis", "server-permits", &[0.95]),
            SERVER_LOCKS,
        ],
    },
];

fn run(report: &mut Report) {
    let redis = Server::start();
    let mut served = Ready::start(ROLE.name, &redis.url());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        for regime in &REGIMES {
            compare(report, &served, regime).await;
        }
    });
    served.begin();
    served.end::<()>();
}

/// What a slice of time has shown: requests per second, and per second of the server's own time.
struct Slice {
    by_clock: f64,
    by_server: f64,
}

async fn compare(report: &mut Report, served: &Ready, regime: &Regime) {
    let mut connections = Vec::new();
    for _ in 0..regime.connections {
        connections.push(Connection::to(&served.told[0]).await);
    }
    let connections = RefCell::new(connections);
    let rows: Vec<_> = [&NONE].into_iter().chain(regime.layers).collect();
    let ask = |row: &Compared| {
        let path = format!("/{}/{}", regime.path, row.path);
        measured(served, &connections, path)
    };
    let mut sides: Vec<_> = rows.iter().map(|row| side(move || ask(row))).collect();
    let seen = interleave(ROUNDS, &mut sides).await;
    let mut lines = Vec::new();
    for (row, slices) in rows.iter().zip(&seen) {
        let by_clock = ratio(slices, &seen[0], |slice| slice.by_clock);
        for bound in row.targets {
            let what = format!("{}: {}, relative to no layer", regime.name, row.name);
            report.target(&what, Target::AtLeast(*bound), by_clock);
        }
        lines.push(vec![
            row.name.to_owned(),
            short(Spread::of(slices.iter().map(|slice| slice.by_clock)).median),
            by_clock.to_string(),
            ratio(slices, &seen[0], |slice| slice.by_server).to_string(),
        ]);
    }
    report.text(&format!("**{}**", regime.name));
    // The second ratio leaves out where the server waits for its client, and other load moves it
    // less.
    let columns = [
        "",
        "requests/s",
        "ratio",
        "ratio of requests per second of the server's own time",
    ];
    report.table(&columns, &lines);
}

/// Asks for `path` on all connections at once.
async fn measured(served: &Ready, all: &RefCell<Vec<Connection>>, path: String) -> Slice {
    let begun = Instant::now() + WARM_UP;
    let asking: Vec<_> = all
        .take()
        .into_iter()
        .enumerate()
        .map(|(number, mut connection)| {
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-account: {number}\r\n\r\n");
            tokio::spawn(async move {
                let mut requests = 0_u32;
                while begun.elapsed() < SLICE {
                    connection.ask(&request).await;
                    requests += u32::from(Instant::now() > begun);
                }
                (connection, requests)
            })
        })
        .collect();
    tokio::time::sleep_until(begun.into()).await;
    let ran = cost::threads_ran(served.pid());
    let mut requests = 0;
    let mut connections = Vec::new();
    for asking in asking {
        let (connection, asked) = asking.await.expect("no client panics");
        connections.push(connection);
        requests += asked;
    }
    all.replace(connections);
    let ran = cost::threads_ran(served.pid()).saturating_sub(ran);
    Slice {
        by_clock: f64::from(requests) / begun.elapsed().as_secs_f64(),
        by_server: f64::from(requests) / ran.as_secs_f64(),
    }
}

struct Connection(TcpStream);

impl Connection {
    async fn to(address: &str) -> Self {
        let stream = TcpStream::connect(address)
            .await
            .expect("the server listens");
        stream.set_nodelay(true).expect("a TCP connection");
        Self(stream)
    }

    async fn ask(&mut self, request: &str) {
        self.0
            .write_all(request.as_bytes())
            .await
            .expect("the server reads");
        let mut answer = [0; 512];
        let mut filled = 0;
        while !answer[..filled].ends_with(HELLO.as_bytes()) {
            let more = self.0.read(&mut answer[filled..]).await;
            filled += more.expect("the server answers");
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "refused");
        }
    }
}

/// Tells its address, and serves on a thread until its parent says that it is to begin, or is gone:
/// there is nothing to do after that.
fn serve(task: &str, all_ready: &mut dyn FnMut()) -> String {
    let redis: String = serde_json::from_str(task).expect("an address");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("the loopback interface");
    child::tell(&listener.local_addr().expect("a bound address").to_string());
    listener.set_nonblocking(true).expect("a socket");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let yields = async || {
                tokio::task::yield_now().await;
                HELLO
            };
            let sleeps = async || {
                tokio::time::sleep(Duration::from_millis(5)).await;
                HELLO
            };
            let gates = [Portcullis::in_memory(), gates(&redis)];
            let app = routes("hello", &get(async || HELLO), &gates)
                .merge(routes("yields", &get(yields), &gates))
                .merge(routes("sleeps", &get(sleeps), &gates));
            let listener = TcpListener::from_std(listener).expect("a runtime with sockets");
            axum::serve(listener, app).await.expect("it goes on");
        });
    });
    all_ready();
    "null".to_owned()
}

/// The handler behind no layer, and behind each of those that are compared.
fn routes(path: &str, handler: &MethodRouter, [memory, server]: &[Portcullis; 2]) -> Router {
    // Of tower's two the one whose limit is of all connections, as ours: the other is made anew for each,
    // and there would never bind.
    use tower::limit::GlobalConcurrencyLimitLayer as Towers;

    let [many, few] = [MANY, FEW].map(|limit| Towers::new(limit as usize));
    let behind = [
        (NONE.path, handler.clone()),
        ("tower", handler.clone().layer(many)),
        ("tower-few", handler.clone().layer(few)),
        (
            "permits",
            handler.clone().layer(permits(memory, "many", MANY)),
        ),
        (
            "permits-few",
            handler.clone().layer(permits(memory, "few", FEW)),
        ),
        ("locks", handler.clone().layer(locks(memory))),
        (
            "server-permits",
            handler.clone().layer(permits(server, "many", MANY)),
        ),
        (
            "server-few",
            handler.clone().layer(permits(server, "few", FEW)),
        ),
        ("kept", handler.clone().layer(kept(server, "kept", MANY))),
        (
            "kept-few",
            handler.clone().layer(kept(server, "kept-few", FEW)),
        ),
        ("server-locks", handler.clone().layer(locks(server))),
        ("rate", handler.clone().layer(rate(memory))),
        ("rate-told", handler.clone().layer(told(rate(memory)))),
        ("server-rate", handler.clone().layer(rate(server))),
    ];
    behind.into_iter().fold(Router::new(), |router, (end, on)| {
        router.route(&format!("/{path}/{end}"), on)
    })
}

fn permits(gates: &Portcullis, name: &str, limit: u32) -> ConcurrencyLimitLayer {
    ConcurrencyLimitLayer::new(gates.semaphore(name, limit).expect("a limit in range"))
}

fn kept(gates: &Portcullis, name: &str, limit: u32) -> ConcurrencyLimitLayer {
    let semaphore = gates.semaphore(name, limit).expect("a limit in range");
    let kept = semaphore.keep_permits(Keeping::default());
    ConcurrencyLimitLayer::new(kept.expect("in range"))
}

fn locks(gates: &Portcullis) -> MutexLayer {
    MutexLayer::new(gates.mutex("locks")).key(account)
}

/// A quota that no connection uses up.
fn rate(gates: &Portcullis) -> RateLimitLayer {
    let quota = Quota::per_second(10_000).burst(1_000_000_000);
    let limiter = gates.rate_limiter("rate", quota);
    RateLimitLayer::new(limiter.expect("a quota in range")).key(account)
}

fn told(layer: RateLimitLayer) -> RateLimitLayer {
    layer.headers(RateHeaders::default().on_success())
}

fn account(parts: &Parts) -> Result<String, KeyError> {
    let account = parts.headers.get("x-account");
    let account = account.and_then(|account| account.to_str().ok());
    account
        .map(str::to_owned)
        .ok_or(KeyError::missing("header x-account"))
}
