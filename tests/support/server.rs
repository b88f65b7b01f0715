//! A redis-server of the test's own, which ends with it.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use redis::{ConnectionLike, Value};

use super::clock::FakeClock;
use super::process::{process_state, signal};
use super::wait::wait_for;

/// How long a server may take to answer its first PING, on a busy machine.
const READY: Duration = Duration::from_secs(20);
/// How long one command may take.
const COMMAND: Duration = Duration::from_secs(10);

/// As the value of an option: a port that is free.
pub(crate) const FREE_PORT: &str = "<a free port>";

/// A running redis-server without persistence, with a port and a folder of its own. Killed when
/// dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Mutex<Child>,
    port: u16,
    folder: PathBuf,
    options: Vec<String>,
    clock: Option<FakeClock>,
}

impl Server {
    /// Starts one, and waits until it answers.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with further command-line options.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        Self::launch(options, None)
    }

    /// Starts one whose wall clock can be set.
    pub(crate) fn start_by(clock: &FakeClock) -> Self {
        Self::launch(&[], Some(clock.clone()))
    }

    /// Starts one that may become a node of a cluster: its second port, ten thousand above the first,
    /// must stay below those that the system gives to whoever asks.
    pub(crate) fn start_node(options: &[&str]) -> Self {
        Self::launch_at(free_pair_of_ports, options, None)
    }

    /// Starts one that may have replicas, which are not kept waiting for others to join them.
    pub(crate) fn start_master() -> Self {
        Self::start_with(&["--repl-diskless-sync-delay", "0"])
    }

    /// Starts a replica of `master`, and waits until it has caught up, and its master knows that.
    pub(crate) fn start_replica(master: &Self) -> Self {
        let port = master.port.to_string();
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &port]);
        replica.until_told("master_link_status:up");
        master.until_told(&format!("port={},state=online", replica.port));
        replica
    }

    /// Waits until this server says so of its replication.
    fn until_told(&self, words: &str) {
        let mut connection = self.connection();
        let begun = Instant::now();
        loop {
            let mut info = redis::cmd("INFO");
            let info: String = info
                .arg("replication")
                .query(&mut connection)
                .expect("INFO answers with text");
            if info.contains(words) {
                return;
            }
            assert!(begun.elapsed() < READY, "it does not follow: {info}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Cuts its replicas off; those that live connect again.
    pub(crate) async fn cut_replicas_off(&self) {
        self.command(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    }

    /// Starts one with further options and a wall clock that can be set.
    pub(crate) fn start_with_clock(options: &[&str], clock: &FakeClock) -> Self {
        Self::launch(options, Some(clock.clone()))
    }

    fn launch(options: &[&str], clock: Option<FakeClock>) -> Self {
        Self::launch_at(free_port, options, clock)
    }

    fn launch_at(free_port: fn() -> u16, options: &[&str], clock: Option<FakeClock>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("portcullis-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        // Somebody else may take the port between the look and the start: then try another.
        for _ in 0..10 {
            let port = free_port();
            let chosen = |&option: &&str| match option {
                FREE_PORT => free_port().to_string(),
                other => other.to_owned(),
            };
            let options: Vec<String> = options.iter().map(chosen).collect();
            if let Ok(child) = launch(port, &folder, &options, clock.as_ref()) {
                return Self {
                    child: Mutex::new(child),
                    port,
                    folder,
                    options,
                    clock,
                };
            }
        }
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        panic!("{} did not start: {log}", binary().display());
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The value of an option that it was started with.
    #[track_caller]
    pub(crate) fn option(&self, name: &str) -> &str {
        let at = self.options.iter().position(|option| option == name);
        let value = at.and_then(|at| self.options.get(at + 1));
        value.expect("it was started with this option")
    }

    /// The port that other servers know it by: that for TLS, where they speak it among themselves.
    pub(crate) fn known_port(&self) -> u16 {
        if self
            .options
            .iter()
            .any(|option| option == "--tls-replication")
        {
            self.option("--tls-port").parse().expect("a port")
        } else {
            self.port
        }
    }

    /// The port over which the nodes of a cluster talk among themselves.
    pub(crate) fn bus_port(&self) -> u16 {
        if self.options.iter().any(|option| option == "--cluster-port") {
            self.option("--cluster-port").parse().expect("a port")
        } else {
            self.port + 10_000
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child().id()
    }

    /// Stops the process as a whole (SIGSTOP): sockets stay open, nothing is answered. What is sent
    /// meanwhile runs after [`thaw`](Self::thaw).
    pub(crate) fn freeze(&self) {
        signal(self.pid(), "STOP");
        // The signal is delivered a moment after it was sent; on Linux that can be seen.
        let begun = Instant::now();
        while process_state(self.pid()).is_some_and(|state| state != 'T') {
            assert!(begun.elapsed() < COMMAND, "the server does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn thaw(&self) {
        signal(self.pid(), "CONT");
    }

    /// Crashes it (SIGKILL): all data is gone.
    pub(crate) fn kill(&self) {
        let mut child = self.child();
        child.kill().expect("the server is our child");
        child.wait().expect("the server is our child");
    }

    /// Starts it again on the same port, empty, whether it runs or not.
    pub(crate) fn restart(&self) {
        self.kill();
        let begun = Instant::now();
        let child = loop {
            match launch(self.port, &self.folder, &self.options, self.clock.as_ref()) {
                Ok(child) => break child,
                Err(error) => assert!(
                    begun.elapsed() < READY,
                    "the server does not restart: {error}"
                ),
            }
        };
        *self.child() = child;
    }

    /// A blocking connection, without time-outs.
    pub(crate) fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("our own URL is valid");
        client
            .get_connection_with_timeout(COMMAND)
            .expect("the server accepts connections")
    }

    /// Sends one command on a connection of its own, as `redis-cli` would, and panics if it is
    /// refused.
    pub(crate) async fn command(&self, words: &[&str]) -> Value {
        self.try_command(words)
            .await
            .unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Sends one command on a connection of its own.
    pub(crate) async fn try_command(&self, words: &[&str]) -> redis::RedisResult<Value> {
        let client = redis::Client::open(self.url())?;
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(COMMAND))
            .set_response_timeout(Some(COMMAND));
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query_async(&mut connection).await
    }

    /// How many script calls clients have sent so far: EVALSHA, EVAL, FCALL and SCRIPT LOAD. The
    /// commands inside scripts are counted under their own names.
    pub(crate) async fn script_calls(&self) -> u64 {
        // Up to 6.2 all of SCRIPT is counted as one.
        self.calls_of(&["evalsha", "eval", "fcall", "script|load", "script"])
            .await
    }

    /// The same without those that load scripts, as each new connection does.
    pub(crate) async fn script_runs(&self) -> u64 {
        self.calls_of(&["evalsha", "eval", "fcall"]).await
    }

    async fn calls_of(&self, counted: &[&str]) -> u64 {
        let info = self.command(&["INFO", "commandstats"]).await;
        let info: String = redis::from_redis_value(info).expect("INFO answers with text");
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            counted
                .contains(&name)
                .then(|| rest.split(',').next()?.parse::<u64>().ok())?
        };
        info.lines().filter_map(calls).sum()
    }

    /// The keys that begin with `prefix`, sorted.
    pub(crate) async fn keys_with(&self, prefix: &str) -> Vec<String> {
        let keys = self.command(&["KEYS", "*"]).await;
        let mut keys: Vec<String> = redis::from_redis_value(keys).expect("KEYS answers with names");
        keys.retain(|key| key.starts_with(prefix));
        keys.sort();
        keys
    }

    /// Waits until no key begins with `prefix`.
    pub(crate) async fn wait_until_no_keys(&self, prefix: &str, deadline: Duration) {
        let what = format!("no key begins with {prefix:?}");
        wait_for(&what, deadline, async || {
            self.keys_with(prefix).await.is_empty()
        })
        .await;
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut child = self.child();
        // Neither can be helped while dropping, and the folder lies under the temporary one.
        let _ = child.kill();
        let _ = child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn binary() -> PathBuf {
    std::env::var_os("PORTCULLIS_REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from)
}

pub(super) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback interface is up");
    listener
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}

/// A free port, of which the one that lies ten thousand above is free too, and not one that the system
/// gives away.
fn free_pair_of_ports() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Each process begins elsewhere.
    let start = std::process::id().wrapping_mul(7919);
    for _ in 0..12_000 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_700 + (start.wrapping_add(step) % 12_000) as u16;
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
    panic!("no two free ports that lie ten thousand apart");
}

/// Starts a server and waits until it is this one that answers on `port`.
fn launch(
    port: u16,
    folder: &Path,
    options: &[String],
    clock: Option<&FakeClock>,
) -> io::Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))?;
    let mut command = command();
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--port", &port.to_string(), "--dir"])
        .arg(folder)
        .args(options)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    if let Some(clock) = clock {
        clock.rules(&mut command);
    }
    let child = spawn(command)?;
    if let Some(clock) = clock {
        clock.ruled(child.id());
    }
    until_it_answers(child, port)
}

/// The beginning of what starts a server.
pub(super) fn command() -> Command {
    let binary = binary();
    // Whatever ends the test's process, however suddenly, ends the server: where this tool of
    // util-linux is at hand.
    let command = if which("setpriv") {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&binary);
        command
    } else {
        Command::new(&binary)
    };
    if !which(&binary) {
        panic!(
            "these tests need a server of their own, and {} is not there: `apt-get install redis-server`, \
             or name a binary in PORTCULLIS_REDIS_SERVER",
            binary.display()
        );
    }
    command
}

pub(super) fn until_it_answers(mut child: Child, port: u16) -> io::Result<Child> {
    let begun = Instant::now();
    while !answers(port, child.id()) {
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("it ended: {status}")));
        }
        if begun.elapsed() > READY {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it does not answer",
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(child)
}

/// Whether the process `pid` answers on `port`, and not somebody who was faster to take it.
fn answers(port: u16, pid: u32) -> bool {
    let Ok(client) = redis::Client::open(("127.0.0.1", port)) else {
        return false;
    };
    let Ok(mut connection) = client.get_connection_with_timeout(Duration::from_secs(1)) else {
        return false;
    };
    let info =
        connection.req_packed_command(&redis::cmd("INFO").arg("server").get_packed_command());
    let info = info
        .and_then(|info| Ok(redis::from_redis_value::<String>(info)?))
        .unwrap_or_default();
    info.lines().any(|line| line == format!("process_id:{pid}"))
}

fn which(program: impl AsRef<Path>) -> bool {
    let program = program.as_ref();
    if program.components().count() > 1 {
        return program.is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Spawns from one thread that lives as long as the process: the death signal is sent when the
/// *thread* that spawned ends, and a test's thread may end before the server that it shares.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Mutex<mpsc::Sender<Order>>> = LazyLock::new(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in orders {
                // Who ordered waits for it.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (sender, answer) = mpsc::channel();
    let spawner = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    spawner.send((command, sender)).map_err(io::Error::other)?;
    drop(spawner);
    answer.recv().map_err(io::Error::other)?
}
