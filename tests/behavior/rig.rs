//! What the suite needs of a place where gates live.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use portcullis::test_util::MemoryServer;
use portcullis::{Builder, Keeping, Mutex, Portcullis, Semaphore};

use crate::common::LIMIT;
use crate::leftovers::{leftovers, leftovers_under};
use crate::support::sentinel::{Fleet, Sentinel};
use crate::support::{Cluster, Server, wait_for};

/// A fresh place where gates live, of one test's own.
pub(crate) trait Rig: Sized {
    /// Whether whoever comes first is served first, whatever its process, and fences say so.
    const ORDERED: bool = true;

    fn start() -> Self;

    /// A handle as another process would have one.
    fn handle(&self) -> Portcullis {
        self.handle_with_prefix("suite")
    }

    fn handle_with_prefix(&self, prefix: &str) -> Portcullis;

    /// A gate as its processes use it.
    fn mutex(mutex: Mutex) -> Mutex {
        mutex
    }

    /// The same of a semaphore.
    fn semaphore(semaphore: Semaphore) -> Semaphore {
        semaphore
    }

    /// Waits until nothing is left of all that was acquired and waited for.
    async fn settled(&self);
}

/// One Redis server. With `PORTCULLIS_TEST_SENTINEL=1` handles find it by a sentinel.
pub(crate) struct ServerRig {
    pub(crate) server: Server,
    sentinel: Option<Sentinel>,
}

impl ServerRig {
    pub(crate) fn start_with(options: &[&str]) -> Self {
        Self::on(Server::start_with(options))
    }

    pub(crate) fn on(server: Server) -> Self {
        let wanted = std::env::var_os("PORTCULLIS_TEST_SENTINEL").is_some_and(|value| value == "1");
        let sentinel = wanted.then(|| Sentinel::start(&server, &[]));
        Self { server, sentinel }
    }

    pub(crate) fn builder(&self) -> Builder {
        let url = match &self.sentinel {
            Some(sentinel) => Fleet::url_of(&[sentinel.port()]),
            None => self.server.url(),
        };
        Portcullis::builder().url(url).prefix("suite")
    }
}

impl Rig for ServerRig {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn handle_with_prefix(&self, prefix: &str) -> Portcullis {
        let builder = self.builder().prefix(prefix);
        // Generous: a test machine may be busy, and what a time-out does is shown elsewhere.
        builder
            .command_timeout(Duration::from_secs(2))
            .build()
            .expect("a valid configuration")
    }

    async fn settled(&self) {
        until_nothing_is_left(&self.server).await;
    }
}

/// One Redis server, whose processes keep permits, and hand mutexes on among their own requests.
pub(crate) struct KeepingRig(ServerRig);

impl Rig for KeepingRig {
    const ORDERED: bool = false;

    fn start() -> Self {
        Self(ServerRig::start())
    }

    fn handle_with_prefix(&self, prefix: &str) -> Portcullis {
        self.0.handle_with_prefix(prefix)
    }

    fn mutex(mutex: Mutex) -> Mutex {
        mutex.local_handoffs(4).expect("they are renewed")
    }

    fn semaphore(semaphore: Semaphore) -> Semaphore {
        let kept = semaphore.keep_permits(Keeping::default());
        kept.expect("they are renewed")
    }

    async fn settled(&self) {
        self.0.settled().await;
    }
}

async fn until_nothing_is_left(server: &Server) {
    let mut connection = server.connection();
    let mut left = Vec::new();
    wait_for("nothing is left", LIMIT, async || {
        let now = leftovers(&mut connection);
        if now != left {
            left = now;
            eprintln!("left: {left:#?}");
        }
        left.is_empty()
    })
    .await;
}

/// A cluster of three masters.
pub(crate) struct ClusterRig {
    cluster: Cluster,
}

impl Rig for ClusterRig {
    fn start() -> Self {
        Self {
            cluster: Cluster::start_and_block(3, 0),
        }
    }

    fn handle_with_prefix(&self, prefix: &str) -> Portcullis {
        let builder = Portcullis::builder().url(self.cluster.url());
        builder
            .prefix(prefix)
            .command_timeout(Duration::from_secs(2))
            .build()
            .expect("a valid configuration")
    }

    async fn settled(&self) {
        for node in &self.cluster.nodes {
            until_nothing_is_left(node).await;
        }
    }
}

/// Somebody else's server, that `PORTCULLIS_TEST_URL` names: under a prefix of the test's own, and
/// never touched but there.
pub(crate) struct UrlRig {
    url: String,
    prefix: String,
}

impl Rig for UrlRig {
    fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let url = std::env::var("PORTCULLIS_TEST_URL");
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let since = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
        Self {
            url: url.expect("PORTCULLIS_TEST_URL names the server to test on"),
            // Distinct for each test of each run, also of those on other machines.
            prefix: format!("t{:x}-{count}-", since.as_nanos()),
        }
    }

    fn handle_with_prefix(&self, prefix: &str) -> Portcullis {
        let prefix = format!("{}{prefix}", self.prefix);
        let builder = Portcullis::builder().url(&*self.url).prefix(prefix);
        let builder = builder.command_timeout(Duration::from_secs(2));
        builder.build().expect("PORTCULLIS_TEST_URL is an address")
    }

    async fn settled(&self) {
        let client = redis::Client::open(&*self.url).expect("an address");
        let mut connection = client.get_connection().expect("the server is there");
        wait_for("nothing is left", LIMIT, async || {
            leftovers_under(&mut connection, &self.prefix).is_empty()
        })
        .await;
    }
}

/// A quorum of so many servers.
pub(crate) struct QuorumRig<const N: usize> {
    servers: [Server; N],
}

impl<const N: usize> Rig for QuorumRig<N> {
    fn start() -> Self {
        Self {
            servers: std::array::from_fn(|_| Server::start()),
        }
    }

    fn handle_with_prefix(&self, prefix: &str) -> Portcullis {
        let servers = self.servers.iter().map(Server::url);
        let builder = Portcullis::builder().quorum(servers).prefix(prefix);
        // As generous as on one server. And servers that have just started vote at once.
        builder
            .command_timeout(Duration::from_secs(2))
            .server_timeout(Duration::from_secs(1))
            .quarantine(false)
            .build()
            .expect("a valid configuration")
    }

    async fn settled(&self) {
        for server in &self.servers {
            until_nothing_is_left(server).await;
        }
    }
}

/// This process' memory.
pub(crate) struct MemoryRig {
    server: MemoryServer,
}

impl Rig for MemoryRig {
    fn start() -> Self {
        Self {
            server: MemoryServer::new(),
        }
    }

    fn handle_with_prefix(&self, prefix: &str) -> Portcullis {
        self.server
            .handle_with_prefix(prefix)
            .expect("a valid prefix")
    }

    async fn settled(&self) {
        wait_for("nothing is left", LIMIT, async || self.server.is_idle()).await;
    }
}
