//! A lock whose releases are told to everybody who waits: what is built most often once polling
//! is too slow.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::{Client, Script};
use tokio::sync::watch;

use super::{TTL, connect};

static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r#"if redis.call("GET", KEYS[1]) == ARGV[1] then
  redis.call("DEL", KEYS[1])
  redis.call("PUBLISH", KEYS[1], "released")
end"#,
    )
});

/// Locks of one process: one connection for commands, one that listens.
#[derive(Clone)]
pub(crate) struct Broadcast {
    connection: MultiplexedConnection,
    /// How many releases of each lock were told of.
    heard: Arc<Mutex<HashMap<String, watch::Sender<u64>>>>,
}

pub(crate) struct Holding {
    locks: Broadcast,
    key: String,
    token: String,
}

impl Broadcast {
    pub(crate) async fn connect(url: &str) -> Self {
        let heard: Arc<Mutex<HashMap<String, watch::Sender<u64>>>> = Arc::default();
        let mut listener = Client::open(url)
            .expect("a valid address")
            .get_async_pubsub()
            .await
            .expect("the server listens");
        listener.psubscribe("*").await.expect("subscribed");
        let told = Arc::clone(&heard);
        tokio::spawn(async move {
            let mut messages = listener.into_on_message();
            while let Some(message) = messages.next().await {
                let heard = told.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(releases) = heard.get(message.get_channel_name()) {
                    releases.send_modify(|releases| *releases += 1);
                }
            }
        });
        Self {
            connection: connect(url).await,
            heard,
        }
    }

    pub(crate) async fn lock(&self, key: &str) -> Holding {
        let token = format!("{:032x}", rand_bits());
        let mut releases = {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            let releases = heard.entry(key.to_owned());
            releases.or_insert_with(|| watch::channel(0).0).subscribe()
        };
        let mut connection = self.connection.clone();
        loop {
            releases.mark_unchanged();
            let mut command = redis::cmd("SET");
            command.arg(key).arg(&token).arg("NX").arg("PX");
            command.arg(TTL.as_millis() as u64);
            let taken: Option<String> = command
                .query_async(&mut connection)
                .await
                .expect("SET is answered");
            if taken.is_some() {
                let (locks, key) = (self.clone(), key.to_owned());
                return Holding { locks, key, token };
            }
            // A message may be lost, for which its like ask again after a while.
            let wait = releases.changed();
            let _ = tokio::time::timeout(std::time::Duration::from_secs(1), wait).await;
        }
    }
}

/// Enough to tell holders apart.
fn rand_bits() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let draw = || u128::from(RandomState::new().hash_one(std::time::Instant::now()));
    draw() << 64 | draw()
}

impl Holding {
    pub(crate) async fn release(mut self) {
        let mut call = RELEASE.key(&self.key);
        call.arg(&self.token);
        let connection = &mut self.locks.connection;
        let answer: redis::RedisResult<()> = call.invoke_async(connection).await;
        answer.expect("EVALSHA is answered");
    }
}
