//! What a fleet can do for a lock: this crate, and what else there is.

mod broadcast;
mod checkout;
mod overheard;
mod same_scripts;

use std::time::Duration;

use portcullis::Portcullis;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
use serde::{Deserialize, Serialize};

use crate::contention::{Entrance, Turn, Work, contend, own_key, warm_up};

pub(crate) use self::broadcast::Broadcast;
pub(crate) use self::checkout::Checkouts;
pub(crate) use self::overheard::{INSTANCE, Pipe, Words, overhear_pairs, overhear_renewal};
pub(crate) use self::same_scripts::{Bare, Raw, SameScripts};

/// How long a lock is held at most, for all of them.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// A lock for a fleet, of one kind or another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Peer {
    Portcullis,
    /// `rslock` as it is: it gives up after three attempts, up to 200 ms apart.
    RslockDefaults,
    /// `rslock`, asking again after up to 5 ms.
    RslockFast,
    /// Every release is told to all waiters, which then try.
    Broadcast,
}

impl Peer {
    pub(crate) const ALL: [Self; 4] = [
        Self::Portcullis,
        Self::RslockDefaults,
        Self::RslockFast,
        Self::Broadcast,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Portcullis => "portcullis",
            Self::RslockDefaults => "rslock, defaults",
            Self::RslockFast => "rslock, 5 ms retries",
            Self::Broadcast => "broadcast of releases",
        }
    }

    pub(crate) async fn connect(self, url: &str) -> Locks {
        match self {
            Self::Portcullis => Locks::Portcullis(gates(url)),
            Self::RslockDefaults => Locks::Rslock(rslock::LockManager::new(vec![url])),
            Self::RslockFast => {
                let mut manager = rslock::LockManager::new(vec![url]);
                // Its count is per call; a call that gives up is counted as a failure.
                manager.set_retry(200, Duration::from_millis(5));
                Locks::Rslock(manager)
            }
            Self::Broadcast => Locks::Broadcast(Broadcast::connect(url).await),
        }
    }
}

/// A handle as a user would make it, but for its patience: a machine that is busy for a moment makes
/// a slice slow, and need not end the run.
pub(crate) fn gates(url: &str) -> Portcullis {
    let builder = Portcullis::builder().url(url).prefix("bench");
    let builder = builder.command_timeout(Duration::from_secs(20));
    builder.build().expect("valid settings")
}

/// A connection without Nagle's algorithm, shared by all tasks. It waits for answers as long as it
/// takes: with a thousand tasks that all ask at once, half a second is too short.
pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a valid address");
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = Client::open(info.set_tcp_settings(tcp)).expect("a valid address");
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await;
    connection.expect("the server listens")
}

/// Where locks of one kind are taken.
#[derive(Clone)]
pub(crate) enum Locks {
    Portcullis(Portcullis),
    Rslock(rslock::LockManager),
    Broadcast(Broadcast),
}

/// One that is held.
pub(crate) enum Held {
    Portcullis(portcullis::MutexGuard),
    Rslock(rslock::Lock),
    Broadcast(broadcast::Holding),
}

/// The lock of one key as one process has it.
#[derive(Clone)]
struct Lock {
    locks: Locks,
    key: String,
}

impl Entrance for Lock {
    type Inside = Held;

    async fn enter(&self) -> Option<Held> {
        self.locks.attempt(&self.key).await
    }

    async fn leave(held: Held) -> bool {
        held.release().await
    }
}

impl Locks {
    /// Has the tasks of this process contend for the lock of `key`, warm from one of its own.
    pub(crate) async fn contend(
        self,
        key: String,
        work: Work,
        all_ready: &mut dyn FnMut(),
    ) -> Vec<Turn> {
        let own = Lock {
            locks: self.clone(),
            key: own_key(),
        };
        warm_up(&own).await;
        contend(&Lock { locks: self, key }, work, all_ready).await
    }

    /// Waits until the lock is held; also gives how often it was given up before.
    pub(crate) async fn lock(&self, key: &str) -> (Held, u32) {
        let mut failures = 0;
        loop {
            match self.attempt(key).await {
                Some(held) => return (held, failures),
                None => failures += 1,
            }
        }
    }

    /// Waits until the lock is held, or was given up.
    pub(crate) async fn attempt(&self, key: &str) -> Option<Held> {
        match self {
            Self::Portcullis(gates) => {
                let lock = gates.mutex(key).ttl(TTL).expect("in range");
                lock.lock().await.ok().map(Held::Portcullis)
            }
            Self::Rslock(manager) => manager.lock(key, TTL).await.ok().map(Held::Rslock),
            Self::Broadcast(locks) => Some(Held::Broadcast(locks.lock(key).await)),
        }
    }
}

impl Held {
    /// Gives it back, and waits for the answer; false if none came in time.
    pub(crate) async fn release(self) -> bool {
        match self {
            Self::Portcullis(guard) => return guard.release().await.is_ok(),
            Self::Rslock(lock) => lock.release().await,
            Self::Broadcast(holding) => holding.release().await,
        }
        true
    }
}
