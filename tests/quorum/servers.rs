//! Servers of a quorum, each behind a network that can fail.

use std::time::Duration;

use portcullis::{Builder, Mutex, Portcullis};

use crate::common::LIMIT;
use crate::leftovers::leftovers;
use crate::support::{Mode, Proxy, Server, wait_for};

pub(crate) struct Servers {
    pub(crate) servers: Vec<Server>,
    pub(crate) proxies: Vec<Proxy>,
}

/// A way in which a server fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failing {
    Killed,
    Frozen,
    BlackHoled,
    /// By a second in each direction.
    Slow,
}

impl Failing {
    pub(crate) const ALL: [Self; 4] = [Self::Killed, Self::Frozen, Self::BlackHoled, Self::Slow];
}

impl Servers {
    pub(crate) fn start(count: usize) -> Self {
        let servers: Vec<Server> = (0..count).map(|_| Server::start()).collect();
        let proxies = servers.iter().map(|server| Proxy::start(server.port()));
        Self {
            proxies: proxies.collect(),
            servers,
        }
    }

    /// Of a handle for which all servers vote at once, though they have just started. They have time for
    /// it on a busy machine, and less than one that is slow takes.
    pub(crate) fn builder(&self) -> Builder {
        let urls = self.proxies.iter().map(Proxy::url);
        let builder = Portcullis::builder().quorum(urls).quarantine(false);
        builder.server_timeout(Duration::from_millis(200))
    }

    pub(crate) fn handle(&self) -> Portcullis {
        self.builder().build().expect("a valid configuration")
    }

    pub(crate) fn fail(&self, server: usize, way: Failing) {
        match way {
            Failing::Killed => self.servers[server].kill(),
            Failing::Frozen => self.servers[server].freeze(),
            Failing::BlackHoled => self.proxies[server].set(Mode::BlackHole),
            Failing::Slow => self.proxies[server].set(Mode::Delay(Duration::from_secs(1))),
        }
    }

    pub(crate) fn mend(&self, server: usize, way: Failing) {
        match way {
            Failing::Killed => self.servers[server].restart(),
            Failing::Frozen => self.servers[server].thaw(),
            Failing::BlackHoled | Failing::Slow => self.proxies[server].set(Mode::Pass),
        }
    }

    /// Waits until nothing is left of all that was acquired and waited for on one server.
    pub(crate) async fn settled_at(&self, server: usize) {
        let mut connection = self.servers[server].connection();
        let mut left = Vec::new();
        wait_for("nothing is left", LIMIT, async || {
            let now = leftovers(&mut connection);
            if now != left {
                left = now;
                eprintln!("left on server {}: {left:#?}", server + 1);
            }
            left.is_empty()
        })
        .await;
    }

    pub(crate) async fn settled(&self) {
        for server in 0..self.servers.len() {
            self.settled_at(server).await;
        }
    }

    /// Waits until a lock is held on so many servers again.
    pub(crate) async fn until_held_on(&self, mutex: &Mutex, count: usize) {
        wait_for("the servers are used", LIMIT, async || {
            match mutex.lock().await {
                Ok(guard) => {
                    // The answers that it did not need to wait for.
                    let mut left = 20;
                    while guard.held_on() < count && left > 0 {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        left -= 1;
                    }
                    guard.held_on() == count
                }
                Err(_) => false,
            }
        })
        .await;
    }
}
