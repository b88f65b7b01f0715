//! What the crate adds to its own scripts: acquire and release of a lock per task, against the same
//! scripts on a bare multiplexed connection of the caller's runtime, interleaved in one run.
//!
//! Run it with `cargo bench --bench uncontended`. It starts a redis-server of its own and prints,
//! for each number of tasks, the median ratio of the two rates with its spread. Absolute rates
//! drift with the machine; only the ratios count.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use portcullis::Portcullis;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Script};

const ROUNDS: usize = 7;
const SLICE: Duration = Duration::from_millis(700);

/// As `src/backend/server/script.rs` joins them.
macro_rules! script {
    ($verb:literal) => {
        concat!(
            include_str!("../src/lua/lib/now.lua"),
            include_str!("../src/lua/lib/lifetime.lua"),
            include_str!("../src/lua/lib/record.lua"),
            include_str!("../src/lua/lib/roster.lua"),
            include_str!("../src/lua/lib/string_holders.lua"),
            include_str!("../src/lua/lib/gate.lua"),
            include_str!("../src/lua/lib/grant.lua"),
            include_str!(concat!("../src/lua/lease/", $verb, ".lua")),
        )
    };
}

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("the loopback interface");
        let port = socket.local_addr().expect("a bound address").port();
        drop(socket);
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed: apt-get install redis-server");
        Self { child, port }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn connect(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a valid address");
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = Client::open(info.set_tcp_settings(tcp)).expect("a valid address");
    loop {
        match client
            .get_multiplexed_async_connection_with_config(&AsyncConnectionConfig::new())
            .await
        {
            Ok(connection) => return connection,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Pairs per second that `tasks` tasks reach within a slice, each repeating what `pair` makes.
async fn rate<W, F>(tasks: usize, pair: impl Fn(usize) -> W) -> f64
where
    W: FnMut() -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let begun = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let mut pair = pair(task);
            tokio::spawn(async move {
                let mut pairs = 0_u64;
                while begun.elapsed() < SLICE {
                    pair().await;
                    pairs += 1;
                }
                pairs
            })
        })
        .collect();
    let mut pairs = 0;
    for worker in workers {
        pairs += worker.await.expect("no worker panics");
    }
    pairs as f64 / begun.elapsed().as_secs_f64()
}

async fn bare_pair(
    mut connection: MultiplexedConnection,
    acquire: &'static Script,
    end: &'static Script,
    keys: [String; 4],
    token: String,
) {
    let mut call = acquire.prepare_invoke();
    for key in &keys {
        call.key(key);
    }
    call.arg(&token)
        .arg("bench:inbox:")
        .arg(1)
        .arg(1)
        .arg(10_000)
        .arg(9_007_199_254_740_991_u64);
    call.arg(86_400_000).arg(10_000).arg(0).arg(1);
    let answer: Vec<i64> = call.invoke_async(&mut connection).await.expect("acquired");
    assert_eq!(answer[0], 0, "own keys are free");
    let mut call = end.prepare_invoke();
    for key in &keys {
        call.key(key);
    }
    call.arg(&token).arg("bench:inbox:").arg(0).arg("");
    let _: Vec<i64> = call.invoke_async(&mut connection).await.expect("released");
}

fn spread(mut ratios: Vec<f64>) -> (f64, f64, f64) {
    ratios.sort_by(f64::total_cmp);
    (
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1],
    )
}

fn main() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let bare = connect(&server.url()).await;
        let gates = Portcullis::builder()
            .url(server.url())
            .prefix("bench")
            .build()
            .expect("valid settings");
        let acquire: &'static Script = Box::leak(Box::new(Script::new(script!("acquire"))));
        let end: &'static Script = Box::leak(Box::new(Script::new(script!("end"))));
        println!("tasks  ratio to the same scripts, bare [least..most]  pairs/s");
        for tasks in [1, 16, 256] {
            let mut ratios = Vec::new();
            let mut ours = 0.0;
            for round in 0..=ROUNDS {
                let theirs = rate(tasks, |task| {
                    let connection = bare.clone();
                    let mut turn = 0_u64;
                    move || {
                        turn += 1;
                        let keys = ["m", "mq", "mr", "r"]
                            .map(|kind| format!("bench:{{b{}}}:{kind}:own:{task}", task % 256));
                        bare_pair(
                            connection.clone(),
                            acquire,
                            end,
                            keys,
                            format!("instance-{task:08}{turn:017}"),
                        )
                    }
                })
                .await;
                ours = rate(tasks, |task| {
                    let lock = gates.mutex("own").keyed(task);
                    move || {
                        let lock = lock.clone();
                        async move {
                            let guard = lock.lock().await.expect("own keys are free");
                            guard.release().await.expect("released");
                        }
                    }
                })
                .await;
                // The first round warms both sides up.
                if round > 0 {
                    ratios.push(ours / theirs);
                }
            }
            let (median, least, most) = spread(ratios);
            println!("{tasks:5}  {median:.2} [{least:.2}..{most:.2}]  {ours:.0}");
        }
    });
}
