//! A cluster of the test's own, which ends with it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, Value};

use super::server::Server;
use super::wait::wait_for;

/// How long until nodes agree, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const SLOTS: u16 = 16_384;

/// Masters with an even share of the slots each, and replicas of them.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The masters, then the first replica of each, and so on.
    pub(crate) nodes: Vec<Server>,
    pub(crate) masters: usize,
}

impl Cluster {
    /// Starts one, and waits until all its nodes serve. Nodes are given up after a second.
    pub(crate) async fn start(masters: usize, replicas: usize) -> Self {
        Self::start_with(masters, replicas, &[]).await
    }

    /// Starts one whose nodes have further command-line options.
    pub(crate) async fn start_with(masters: usize, replicas: usize, options: &[&str]) -> Self {
        let count = masters * (1 + replicas);
        let usual = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        // Else a first copy waits for more replicas to come.
        let copies = ["--repl-diskless-sync-delay", "0"];
        let options = [&usual[..], &copies, options].concat();
        let nodes = (0..count).map(|_| Server::start_node(&options)).collect();
        let cluster = Self { nodes, masters };
        cluster.join().await;
        cluster
    }

    /// The same, for who can't wait.
    pub(crate) fn start_and_block(masters: usize, replicas: usize) -> Self {
        let start = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime can be made");
            runtime.block_on(Self::start(masters, replicas))
        };
        std::thread::spawn(start).join().expect("it starts")
    }

    async fn join(&self) {
        let share = usize::from(SLOTS).div_ceil(self.masters);
        for (index, node) in self.nodes.iter().enumerate() {
            // Before they meet: of two with one epoch, one has to give way.
            let epoch = (index + 1).to_string();
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
            if index < self.masters {
                let end = ((index + 1) * share).min(usize::from(SLOTS));
                let slots: Vec<String> =
                    (index * share..end).map(|slot| slot.to_string()).collect();
                let words = ["CLUSTER", "ADDSLOTS"].into_iter();
                let words: Vec<&str> = words.chain(slots.iter().map(String::as_str)).collect();
                node.command(&words).await;
            }
        }
        self.until_acquainted().await;
        for (index, node) in self.nodes.iter().enumerate().skip(self.masters) {
            let master = self.id(index % self.masters).await;
            wait_for("it knows its master", LIMIT, async || {
                node.try_command(&["CLUSTER", "REPLICATE", &master])
                    .await
                    .is_ok()
            })
            .await;
        }
        self.until_whole().await;
    }

    /// Introduces all nodes to the first, and waits until they know each other.
    pub(crate) async fn until_acquainted(&self) {
        let count = self.nodes.len().to_string();
        let mut introduced: Option<Instant> = None;
        wait_for("all nodes know each other", LIMIT, async || {
            // Whom a busy machine keeps from answering for a second is forgotten.
            if introduced.is_none_or(|last| last.elapsed() > Duration::from_secs(3)) {
                introduced = Some(Instant::now());
                self.introduce().await;
            }
            for node in &self.nodes {
                let nodes = text(node.try_command(&["CLUSTER", "NODES"]).await);
                if nodes.is_some_and(|nodes| nodes.contains("handshake")) {
                    return false;
                }
            }
            self.all_say("cluster_known_nodes", &count).await
        })
        .await;
    }

    async fn introduce(&self) {
        for node in &self.nodes[1..] {
            let (port, bus) = (node.known_port().to_string(), node.bus_port().to_string());
            let words = ["CLUSTER", "MEET", "127.0.0.1", &port, &bus];
            self.nodes[0].command(&words).await;
        }
    }

    /// Waits until every node that runs sees the cluster serve, and has its copy if it is a
    /// replica.
    pub(crate) async fn until_whole(&self) {
        wait_for("all nodes serve", LIMIT, async || {
            self.all_say("cluster_state", "ok").await
                && self.all_say("cluster_slots_ok", "16384").await
        })
        .await;
        wait_for("all replicas have their copies", LIMIT, async || {
            for node in &self.nodes {
                let info = node.try_command(&["INFO", "replication"]).await;
                if text(info).is_some_and(|info| info.contains("master_link_status:down")) {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Whether each node that answers says so of the cluster.
    async fn all_say(&self, what: &str, value: &str) -> bool {
        let line = format!("{what}:{value}");
        for node in &self.nodes {
            let info = text(node.try_command(&["CLUSTER", "INFO"]).await);
            if info.is_some_and(|info| info.lines().all(|said| said != line)) {
                return false;
            }
        }
        true
    }

    /// An address that names the first nodes.
    pub(crate) fn url(&self) -> String {
        let named = self.nodes.iter().take(3);
        let hosts: Vec<String> = named
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The name by which other nodes know one.
    pub(crate) async fn id(&self, node: usize) -> String {
        let id = self.nodes[node].command(&["CLUSTER", "MYID"]).await;
        text(Ok(id)).expect("a name")
    }

    /// The slot of a key.
    pub(crate) async fn slot(&self, key: &str) -> u16 {
        let slot = self.nodes[self.masters - 1]
            .command(&["CLUSTER", "KEYSLOT", key])
            .await;
        u16::from_redis_value(slot).expect("a number")
    }

    /// Which node owns a slot, as most say who answer.
    pub(crate) async fn owner(&self, slot: u16) -> Option<usize> {
        let mut votes: HashMap<u16, usize> = HashMap::new();
        for node in &self.nodes {
            let Ok(Value::Array(rows)) = node.try_command(&["CLUSTER", "SLOTS"]).await else {
                continue;
            };
            for row in rows {
                let Value::Array(row) = row else { continue };
                if let [Value::Int(start), Value::Int(end), Value::Array(master), ..] = &row[..]
                    && (*start..=*end).contains(&i64::from(slot))
                    && let Some(Value::Int(port)) = master.get(1)
                {
                    *votes.entry(*port as u16).or_default() += 1;
                }
            }
        }
        let (port, _) = votes.into_iter().max_by_key(|(_, votes)| *votes)?;
        self.nodes.iter().position(|node| node.port() == port)
    }

    /// The keys that begin with `prefix` on each master of the beginning.
    pub(crate) async fn keys_with(&self, prefix: &str) -> Vec<Vec<String>> {
        let mut keys = Vec::new();
        for node in &self.nodes[..self.masters] {
            keys.push(node.keys_with(prefix).await);
        }
        keys
    }

    /// Moves a slot with all its keys, as an operator's tool does; `pause` lies between any two
    /// steps.
    pub(crate) async fn migrate(&self, slot: u16, from: usize, to: usize, pause: Duration) {
        let (number, port) = (slot.to_string(), self.nodes[to].known_port().to_string());
        let (giver, taker) = (self.id(from).await, self.id(to).await);
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        target
            .command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &giver])
            .await;
        source
            .command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &taker])
            .await;
        loop {
            tokio::time::sleep(pause).await;
            let keys = source
                .command(&["CLUSTER", "GETKEYSINSLOT", &number, "1"])
                .await;
            let keys: Vec<String> = redis::from_redis_value(keys).expect("names");
            let Some(key) = keys.first() else { break };
            source
                .command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])
                .await;
        }
        tokio::time::sleep(pause).await;
        // The taker first: else both send requests to each other for a moment.
        for node in [target, source] {
            node.command(&["CLUSTER", "SETSLOT", &number, "NODE", &taker])
                .await;
        }
        for node in &self.nodes {
            // Replicas hear of it from their masters.
            let _ = node
                .try_command(&["CLUSTER", "SETSLOT", &number, "NODE", &taker])
                .await;
        }
    }
}

fn text(value: redis::RedisResult<Value>) -> Option<String> {
    redis::from_redis_value(value.ok()?).ok()
}
