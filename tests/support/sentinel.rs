//! A master with replicas, and sentinels that watch it: all of a test's own, and ended with it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::process::signal;
use super::server::{FREE_PORT, Server, command, free_port, spawn, until_it_answers};
use super::wait::wait_for;

/// What the sentinels call the service.
pub(crate) const SERVICE: &str = "main";
/// How long all may take to find each other, and to fail over, on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
/// How many sentinels have to agree that the master is down.
const QUORUM: usize = 2;

/// One sentinel. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Sentinel {
    child: Mutex<Child>,
    port: u16,
    /// Where it speaks TLS, if its lines say that it does.
    tls_port: u16,
    folder: PathBuf,
    /// Its configuration when it was started.
    lines: Vec<String>,
}

impl Sentinel {
    /// Starts one that watches a server, with further lines of configuration, in which [`FREE_PORT`]
    /// stands for one.
    pub(crate) fn start(watches: &Server, more: &[String]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("portcullis-sentinel-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        // Somebody else may take the port between the look and the start: then try another.
        for _ in 0..10 {
            let (port, tls_port) = (free_port(), free_port());
            let mut lines = vec![
                format!("port {port}"),
                "bind 127.0.0.1".to_owned(),
                format!("dir {}", folder.display()),
                format!(
                    "sentinel monitor {SERVICE} 127.0.0.1 {} {QUORUM}",
                    watches.known_port()
                ),
                format!("sentinel down-after-milliseconds {SERVICE} 500"),
                format!("sentinel failover-timeout {SERVICE} 3000"),
            ];
            let named = |line: &String| {
                let line = line.replace("SERVICE", SERVICE);
                line.replace(FREE_PORT, &tls_port.to_string())
            };
            lines.extend(more.iter().map(named));
            fs::write(folder.join("conf"), lines.join("\n")).expect("the folder can be written");
            if let Some(child) = launch(&folder, port) {
                let child = Mutex::new(child);
                return Self {
                    child,
                    port,
                    tls_port,
                    folder,
                    lines,
                };
            }
        }
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        panic!("no sentinel starts: {log}");
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The value of a line that it was started with.
    #[track_caller]
    pub(crate) fn option(&self, name: &str) -> &str {
        let mut values = self.lines.iter().filter_map(|line| line.strip_prefix(name));
        values.next().expect("it was started with this line").trim()
    }

    pub(crate) const fn tls_port(&self) -> u16 {
        self.tls_port
    }

    pub(crate) fn freeze(&self) {
        signal(self.child().id(), "STOP");
    }

    pub(crate) fn thaw(&self) {
        signal(self.child().id(), "CONT");
    }

    pub(crate) fn kill(&self) {
        let mut child = self.child();
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }

    /// Starts it again, with what it knew when it was killed.
    pub(crate) fn restart(&self) {
        let child = launch(&self.folder, self.port).expect("its port is still free");
        *self.child() = child;
    }

    /// What it answers, on a connection of its own; `None` where it does not answer.
    pub(crate) fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        let client = redis::Client::open(("127.0.0.1", self.port)).ok()?;
        let limit = Duration::from_secs(1);
        let mut connection = client.get_connection_with_timeout(limit).ok()?;
        connection.set_read_timeout(Some(limit)).ok()?;
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query(&mut connection).ok()
    }

    /// Which port it names for the master.
    pub(crate) fn named(&self) -> Option<u16> {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let (_, port): (String, u16) = self.ask(&words)?;
        Some(port)
    }

    fn knows(&self, field: &str) -> Option<usize> {
        let fields: Vec<(String, String)> = self.ask(&["SENTINEL", "MASTER", SERVICE])?;
        let found = fields.into_iter().find(|(name, _)| name == field)?;
        found.1.parse().ok()
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let mut child = self.child();
        // Neither can be helped while dropping.
        let _ = child.kill();
        let _ = child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn launch(folder: &std::path::Path, port: u16) -> Option<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .expect("the folder can be written");
    let mut command = command();
    command
        .arg(folder.join("conf"))
        .arg("--sentinel")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a file can be shared"))
        .stderr(log);
    let child = spawn(command).expect("the binary can be run");
    until_it_answers(child, port).ok()
}

/// A master, two replicas and three sentinels.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// The first is the master when they start.
    pub(crate) nodes: Vec<Server>,
    pub(crate) sentinels: Vec<Sentinel>,
}

impl Fleet {
    /// Starts one, and waits until all know each other.
    pub(crate) async fn start() -> Self {
        Self::start_with(Server::start_with(&Self::LEADS), Vec::new(), &[]).await
    }

    /// With these servers, the last of which may be made here, and further lines for the sentinels,
    /// in which `SERVICE` stands for its name, and `FREE_PORT` for that of a sentinel's TLS.
    pub(crate) async fn start_with(
        master: Server,
        mut replicas: Vec<Server>,
        lines: &[String],
    ) -> Self {
        while replicas.len() < 2 {
            replicas.push(Server::start_with(&Self::follows(&master)));
        }
        let mut nodes = vec![master];
        nodes.append(&mut replicas);
        let sentinels: Vec<_> = (0..3).map(|_| Sentinel::start(&nodes[0], lines)).collect();
        let fleet = Self { nodes, sentinels };
        fleet.until_whole().await;
        fleet
    }

    /// The options of a replica.
    pub(crate) fn follows(master: &Server) -> [&'static str; 5] {
        let port = Box::leak(master.known_port().to_string().into_boxed_str());
        let [delay, none] = Self::LEADS;
        ["--replicaof", "127.0.0.1", port, delay, none]
    }

    /// The options of every node: replicas are served at once. A test has no use for the wait that
    /// lets several share a copy.
    pub(crate) const LEADS: [&'static str; 2] = ["--repl-diskless-sync-delay", "0"];

    /// Waits until each sentinel knows the others and the replicas.
    pub(crate) async fn until_whole(&self) {
        wait_for(
            "all sentinels know each other and the replicas",
            LIMIT,
            async || {
                self.sentinels.iter().all(|sentinel| {
                    sentinel.knows("num-other-sentinels") == Some(self.sentinels.len() - 1)
                        && sentinel.knows("num-slaves") == Some(self.nodes.len() - 1)
                })
            },
        )
        .await;
        let last = &self.nodes[1..];
        wait_for("the replicas are up", LIMIT, async || {
            last.iter().all(|node| {
                let info: Option<String> = try_ask(node, &["INFO", "replication"]);
                info.is_some_and(|info| info.contains("master_link_status:up"))
            })
        })
        .await;
    }

    /// Waits until the replicas have all that the master wrote.
    pub(crate) async fn until_replicated(&self) {
        let offset = |node: &Server, name: &str| {
            let info: String = try_ask(node, &["INFO", "replication"])?;
            let found = info.lines().find_map(|line| line.strip_prefix(name));
            found?.trim().parse::<u64>().ok()
        };
        wait_for("the replicas have all", LIMIT, async || {
            let master = offset(&self.nodes[0], "master_repl_offset:");
            master.is_some()
                && self.nodes[1..]
                    .iter()
                    .all(|node| offset(node, "slave_repl_offset:") >= master)
        })
        .await;
    }

    /// Its address, as a user would write it.
    pub(crate) fn url(&self) -> String {
        let ports: Vec<u16> = self.sentinels.iter().map(Sentinel::port).collect();
        Self::url_of(&ports)
    }

    pub(crate) fn url_of(ports: &[u16]) -> String {
        let hosts: Vec<_> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The node that most sentinels name.
    pub(crate) fn master(&self) -> Option<&Server> {
        let named: Vec<_> = self.sentinels.iter().filter_map(Sentinel::named).collect();
        let is_named = |node: &&Server| {
            2 * named
                .iter()
                .filter(|&&port| port == node.known_port())
                .count()
                > self.sentinels.len()
        };
        self.nodes.iter().find(is_named)
    }

    /// Waits until a sentinel names another master than `old`, and gives that and when it was seen.
    pub(crate) async fn until_switched(&self, old: &Server) -> (&Server, Instant) {
        let mut found = None;
        wait_for("a sentinel names another master", LIMIT, async || {
            let named = self.sentinels.iter().filter_map(Sentinel::named);
            let mut others = named.filter(|&port| port != old.known_port());
            found = others
                .next()
                .and_then(|port| self.nodes.iter().find(|node| node.known_port() == port));
            found.is_some()
        })
        .await;
        (found.expect("it was found"), Instant::now())
    }
}

/// What a node answers on a connection of its own, if it does.
pub(crate) fn try_ask<T: redis::FromRedisValue>(node: &Server, words: &[&str]) -> Option<T> {
    let client = redis::Client::open(node.url()).ok()?;
    let limit = Duration::from_secs(1);
    let mut connection = client.get_connection_with_timeout(limit).ok()?;
    connection.set_read_timeout(Some(limit)).ok()?;
    let mut command = redis::Cmd::new();
    command.arg(words);
    command.query(&mut connection).ok()
}
