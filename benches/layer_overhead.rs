//! What the layers in memory cost an axum server: requests per second over TCP, relative to the
//! same handler without a layer, interleaved in one run; tower's own limit beside them.
//!
//! Run it with `cargo bench --bench layer_overhead`; it takes a minute. The server is a process of
//! its own with one thread, and keeps its connections. It prints, for each layer, the median of two
//! ratios with its spread: of the requests per second, and of those per second of the server's own
//! time, as Linux tells it. The second is the stricter: it leaves out where the server waits for
//! its client, and is moved less by other load. Absolute figures drift with the machine; only the
//! ratios count.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{MethodRouter, get};
use http::request::Parts;
use portcullis::layer::KeyError;
use portcullis::{ConcurrencyLimitLayer, MutexLayer, Portcullis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ROUNDS: usize = 25;
const SLICE: Duration = Duration::from_millis(150);
/// The first argument of the process that serves.
const SERVE: &str = "serve";
const HELLO: &str = "Hello, World!";
/// A limit that no number of connections reaches.
const MANY: u32 = 1_000;
/// A limit that makes most of the connections wait.
const FEW: u32 = 8;

/// A handler, and the layers in front of it that are compared to none.
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
}

const TOWER: Compared = Compared {
    name: "tower's limit",
    path: "tower",
};
const PERMITS: Compared = Compared {
    name: "semaphore",
    path: "permits",
};
const LOCKS: Compared = Compared {
    name: "mutex, key per connection",
    path: "locks",
};

const REGIMES: [Regime; 3] = [
    Regime {
        name: "hello world, 32 connections",
        path: "hello",
        connections: 32,
        layers: &[TOWER, PERMITS, LOCKS],
    },
    // One thread only holds for several requests at once if they let each other run.
    Regime {
        name: "… that yields once",
        path: "yields",
        connections: 32,
        layers: &[
            TOWER,
            PERMITS,
            LOCKS,
            Compared {
                name: "tower's limit, 8 of 32",
                path: "tower-few",
            },
            Compared {
                name: "semaphore, 8 of 32",
                path: "permits-few",
            },
        ],
    },
    Regime {
        name: "… after 5 ms, 8 connections",
        path: "sleeps",
        connections: 8,
        layers: &[TOWER, PERMITS, LOCKS],
    },
];

/// The handler behind no layer, and behind each of those that are compared.
fn routes(path: &str, handler: &MethodRouter) -> Router {
    use tower::limit::ConcurrencyLimitLayer as Towers;

    let gates = Portcullis::in_memory();
    let permits = |name, limit| {
        ConcurrencyLimitLayer::new(gates.semaphore(name, limit).expect("a limit in range"))
    };
    let locks = MutexLayer::new(gates.mutex("locks")).key(|parts: &Parts| {
        let account = parts.headers.get("x-account");
        let account = account.and_then(|account| account.to_str().ok());
        account
            .map(str::to_owned)
            .ok_or(KeyError::missing("header x-account"))
    });
    let [many, few] = [MANY, FEW].map(|limit| Towers::new(limit as usize));
    let behind = [
        ("none", handler.clone()),
        ("tower", handler.clone().layer(many)),
        ("tower-few", handler.clone().layer(few)),
        ("permits", handler.clone().layer(permits("many", MANY))),
        ("permits-few", handler.clone().layer(permits("few", FEW))),
        ("locks", handler.clone().layer(locks)),
    ];
    behind.into_iter().fold(Router::new(), |router, (end, on)| {
        router.route(&format!("/{path}/{end}"), on)
    })
}

/// Prints its address, and serves until its parent is gone.
async fn serve() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let yields = async || {
        tokio::task::yield_now().await;
        HELLO
    };
    let sleeps = async || {
        tokio::time::sleep(Duration::from_millis(5)).await;
        HELLO
    };
    let app = routes("hello", &get(async || HELLO))
        .merge(routes("yields", &get(yields)))
        .merge(routes("sleeps", &get(sleeps)));
    let listener = TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("the loopback interface");
    println!("{}", listener.local_addr().expect("a bound address"));
    axum::serve(listener, app).await.expect("it goes on");
}

/// The process that serves.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let myself = std::env::current_exe().expect("this program");
        let mut child = Command::new(myself)
            .arg(SERVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let mut address = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut address)
            .expect("it tells its address");
        address.truncate(address.trim_end().len());
        Self { child, address }
    }

    async fn connect(&self) -> Connection {
        let stream = TcpStream::connect(&self.address).await;
        let stream = stream.expect("the server listens");
        stream.set_nodelay(true).expect("a TCP connection");
        Connection(stream)
    }

    /// The time that its one thread has run; zero where the system does not tell.
    fn ran(&self) -> Duration {
        let told = fs::read_to_string(format!("/proc/{}/schedstat", self.child.id()));
        let nanos = told
            .ok()
            .and_then(|told| told.split(' ').next()?.parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Connection(TcpStream);

impl Connection {
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

/// What a slice of time has shown: requests per second, and per second of the server's own time.
struct Slice {
    by_clock: f64,
    by_server: f64,
}

/// Asks for `path` on all connections at once.
async fn measure(server: &Server, connections: &mut Vec<Connection>, path: &str) -> Slice {
    let (begun, ran) = (Instant::now(), server.ran());
    let asking: Vec<_> = connections
        .drain(..)
        .enumerate()
        .map(|(number, mut connection)| {
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-account: {number}\r\n\r\n");
            tokio::spawn(async move {
                let mut requests = 0_u32;
                while begun.elapsed() < SLICE {
                    connection.ask(&request).await;
                    requests += 1;
                }
                (connection, requests)
            })
        })
        .collect();
    let mut requests = 0;
    for asking in asking {
        let (connection, asked) = asking.await.expect("no client panics");
        connections.push(connection);
        requests += asked;
    }
    let ran = server.ran() - ran;
    Slice {
        by_clock: f64::from(requests) / begun.elapsed().as_secs_f64(),
        by_server: f64::from(requests) / ran.as_secs_f64(),
    }
}

fn spread(mut ratios: Vec<f64>) -> (f64, f64, f64) {
    ratios.sort_by(f64::total_cmp);
    (
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1],
    )
}

async fn compare(server: &Server, regime: &Regime) {
    let mut connections = Vec::new();
    for _ in 0..regime.connections {
        connections.push(server.connect().await);
    }
    let none = Compared {
        name: "no layer",
        path: "none",
    };
    let rows: Vec<_> = [&none].into_iter().chain(regime.layers).collect();
    let mut slices: Vec<Vec<Slice>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 0..=ROUNDS {
        // Each round begins with another one, so that none is always behind the same.
        for turn in 0..rows.len() {
            let row = (round + turn) % rows.len();
            let path = format!("/{}/{}", regime.path, rows[row].path);
            let slice = measure(server, &mut connections, &path).await;
            // The first round warms all up.
            if round > 0 {
                slices[row].push(slice);
            }
        }
    }
    println!("{}", regime.name);
    for (row, measured) in rows.iter().zip(&slices) {
        let ratios = |figure: fn(&Slice) -> f64| {
            let pairs = measured.iter().zip(&slices[0]);
            let ratios = pairs.map(|(slice, none)| figure(slice) / figure(none));
            let (median, least, most) = spread(ratios.collect());
            format!("{median:.2} [{least:.2}..{most:.2}]")
        };
        let by_clock = ratios(|slice| slice.by_clock);
        let by_server = ratios(|slice| slice.by_server);
        let rates = measured.iter().map(|slice| slice.by_clock);
        let (rate, ..) = spread(rates.collect());
        println!("  {:26}  {by_clock}  {by_server}  {rate:10.0}", row.name);
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    if std::env::args().nth(1).is_some_and(|first| first == SERVE) {
        runtime.block_on(serve());
        return;
    }
    let server = Server::start();
    println!("ratio [least..most] of         requests per s     … of server time  requests/s");
    runtime.block_on(async {
        for regime in &REGIMES {
            compare(&server, regime).await;
        }
    });
}
