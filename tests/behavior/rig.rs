//! What the suite needs of a place where gates live.

use std::time::Duration;

use portcullis::test_util::MemoryServer;
use portcullis::{Builder, Portcullis};

use crate::common::LIMIT;
use crate::leftovers::leftovers;
use crate::support::{Cluster, Server, wait_for};

/// A fresh place where gates live, of one test's own.
pub(crate) trait Rig: Sized {
    fn start() -> Self;

    /// A handle as another process would have one.
    fn handle(&self) -> Portcullis {
        self.handle_with_prefix("suite")
    }

    fn handle_with_prefix(&self, prefix: &str) -> Portcullis;

    /// Waits until nothing is left of all that was acquired and waited for.
    async fn settled(&self);
}

/// One Redis server.
pub(crate) struct ServerRig {
    pub(crate) server: Server,
}

impl ServerRig {
    pub(crate) fn start_with(options: &[&str]) -> Self {
        Self {
            server: Server::start_with(options),
        }
    }

    pub(crate) fn builder(&self) -> Builder {
        Portcullis::builder().url(self.server.url()).prefix("suite")
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
        let builder = Portcullis::builder().cluster(self.cluster.url());
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
