//! Where the gates of a run live: on a server or a quorum behind faulty networks, or in this process'
//! memory.

use std::fmt::{Debug, Write as _};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use portcullis::Portcullis;
use portcullis::test_util::MemoryServer;
use redis::Value;
use tokio::time::timeout;

use crate::random::Random;
use crate::support::{Mode, Proxy, Server};
use crate::world::World;

pub(crate) const PREFIX: &str = "chaos";
/// How long a pushed grant and a heartbeat are worth.
pub(crate) const CLAIM: Duration = Duration::from_secs(3);
pub(crate) const BEAT: Duration = Duration::from_secs(1);

/// How long the server keeps what nobody uses, and a second to look.
const KEPT_MS: i64 = 61_000;

pub(crate) trait Home: Debug + Send + Sync + Sized + 'static {
    /// What stands between a process and its gates.
    type Proxy: Debug + Send + Sync;

    /// Whether what is asked is done when the call returns, and known to be: each single answer can
    /// be judged then.
    const EXACT: bool;

    /// Whether there is one queue, whose order is the order of grants and of fences.
    const ORDERED: bool;

    /// For how long beyond a lease a gate may stand still though nothing is broken any more.
    const RECOVERY: Duration;

    /// A handle as another process would have one.
    fn connect(&self, timeout: Duration) -> (Portcullis, Self::Proxy);

    /// Mends what the faults have left broken.
    fn heal(world: &World<Self>) -> impl Future<Output = ()>;

    /// Whether a plain request is answered in time: where none is, nobody can be served.
    fn answers(&self, within: Duration) -> impl Future<Output = bool> + Send;

    /// All that is known of holders and waiters.
    fn dump(&self) -> impl Future<Output = String>;

    /// How much longer than that their keys may stay: as far as clocks are set back.
    fn kept_longer(&self) -> Duration {
        Duration::ZERO
    }

    /// Looks for what should not be left of the gates in whose keys `name` occurs.
    fn leftovers(&self, name: &str) -> impl Future<Output = Result<(), String>>;
}

/// A place that is reached by networks.
pub(crate) trait Remote: Home {
    /// How many links to it have to work so that anything is granted or renewed.
    const NEEDED: usize;

    /// The links of one process.
    fn links(proxy: &Self::Proxy) -> &[Proxy];

    /// Any of them.
    fn some_links<'a>(proxy: &'a Self::Proxy, random: &mut Random) -> Links<'a> {
        let all = Self::links(proxy);
        if all.len() == 1 {
            // Nothing is drawn, so that the plans stay.
            return Links(all.iter().collect());
        }
        let most = all.len() as u64;
        let (first, count) = (random.below(most), 1 + random.below(most));
        let chosen = (first..first + count).map(|link| &all[(link % most) as usize]);
        Links(chosen.collect())
    }
}

/// Links that break together.
#[derive(Debug)]
pub(crate) struct Links<'a>(Vec<&'a Proxy>);

impl Links<'_> {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.0.iter().for_each(|link| link.set(mode));
    }

    pub(crate) fn set_commands(&self, mode: Mode) {
        self.0.iter().for_each(|link| link.set_commands(mode));
    }

    pub(crate) fn set_subscribers(&self, mode: Mode) {
        self.0.iter().for_each(|link| link.set_subscribers(mode));
    }

    pub(crate) fn cut(&self) {
        self.0.iter().for_each(|link| link.cut());
    }

    pub(crate) fn part(&self) {
        self.0.iter().for_each(|link| link.part());
    }
}

impl Remote for Server {
    const NEEDED: usize = 1;

    fn links(proxy: &Proxy) -> &[Proxy] {
        std::slice::from_ref(proxy)
    }
}

impl Home for Server {
    type Proxy = Proxy;

    const EXACT: bool = false;

    const ORDERED: bool = true;

    const RECOVERY: Duration = CLAIM
        .saturating_add(BEAT)
        .saturating_add(Duration::from_secs(5));

    fn connect(&self, timeout: Duration) -> (Portcullis, Proxy) {
        let proxy = Proxy::start(self.port());
        let gates = Portcullis::builder()
            .url(proxy.url())
            .prefix(PREFIX)
            .command_timeout(timeout)
            .build();
        (gates.expect("the settings are right"), proxy)
    }

    async fn heal(world: &World) {
        for process in world.processes() {
            process.proxy.set(Mode::Pass);
        }
        world.server.command(&["CLIENT", "UNPAUSE"]).await;
    }

    async fn answers(&self, within: Duration) -> bool {
        matches!(
            timeout(within, self.try_command(&["PING"])).await,
            Ok(Ok(_))
        )
    }

    async fn dump(&self) -> String {
        let mut text = String::new();
        let show = async |words: &[&str]| match self.try_command(words).await {
            Ok(value) => redis::from_redis_value::<Vec<String>>(value.clone())
                .map(|words| words.join(" | "))
                .or_else(|_| redis::from_redis_value::<String>(value))
                .unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        let _ = writeln!(text, "TIME {}", show(&["TIME"]).await);
        for key in self.keys_with("").await {
            let kind = show(&["TYPE", &key]).await;
            let value = match kind.as_str() {
                "string" => show(&["GET", &key]).await,
                "hash" => show(&["HGETALL", &key]).await,
                _ => show(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).await,
            };
            let left: i64 = self
                .try_command(&["PTTL", &key])
                .await
                .ok()
                .and_then(|left| redis::from_redis_value(left).ok())
                .unwrap_or(0);
            let _ = writeln!(text, "{key} ({kind}, {left} ms): {value}");
        }
        let _ = writeln!(text, "channels: {}", show(&["PUBSUB", "CHANNELS"]).await);
        text
    }

    async fn leftovers(&self, name: &str) -> Result<(), String> {
        leftovers_on(self, name, Duration::ZERO).await
    }
}

/// Looks for them on one server, where keys may stay so much longer.
pub(crate) async fn leftovers_on(
    server: &Server,
    name: &str,
    longer: Duration,
) -> Result<(), String> {
    let kept = KEPT_MS + i64::try_from(longer.as_millis()).unwrap_or(0);
    let ask = async |words: &[&str]| server.command(words).await;
    let keys = server.keys_with("").await.into_iter();
    for key in keys.filter(|key| key.contains(name)) {
        let left: i64 = redis::from_redis_value(ask(&["PTTL", &key]).await).unwrap_or(-1);
        if left == -2 {
            continue;
        }
        if !(0..=kept).contains(&left) {
            return Err(format!("{key} for {left} ms"));
        }
        if key.ends_with(":roster") || key.ends_with(":clock") {
            continue;
        }
        let kind: String = redis::from_redis_value(ask(&["TYPE", &key]).await).unwrap_or_default();
        if kind == "none" {
            continue;
        }
        // Only the counters of a gate may stay.
        let fields: Vec<String> = match kind.as_str() {
            "hash" => redis::from_redis_value(ask(&["HKEYS", &key]).await).unwrap_or_default(),
            _ => vec![format!("a {kind}")],
        };
        let counters = ["S", "L", "K"];
        let mut stray = fields
            .iter()
            .filter(|field| !counters.contains(&field.as_str()));
        if let Some(field) = stray.next() {
            let all = if kind == "hash" {
                ask(&["HGETALL", &key]).await
            } else {
                Value::Nil
            };
            return Err(format!("{key}: {field}\n{all:?}"));
        }
    }
    Ok(())
}

/// There is no network to break, and nothing on its way.
impl Home for MemoryServer {
    type Proxy = ();

    const EXACT: bool = true;

    const ORDERED: bool = true;

    /// A hand-off takes no time: this is what a busy machine may take.
    const RECOVERY: Duration = Duration::from_secs(5);

    fn connect(&self, _timeout: Duration) -> (Portcullis, ()) {
        (self.handle(), ())
    }

    async fn heal(world: &World<Self>) {
        world.server.outage(false);
    }

    async fn answers(&self, _within: Duration) -> bool {
        true
    }

    async fn dump(&self) -> String {
        idle(self).err().unwrap_or_default()
    }

    async fn leftovers(&self, _name: &str) -> Result<(), String> {
        idle(self)
    }
}

/// Says who holds or waits.
fn idle(server: &MemoryServer) -> Result<(), String> {
    let looked = catch_unwind(AssertUnwindSafe(|| server.assert_idle()));
    looked.map_err(|said| said.downcast_ref::<String>().cloned().unwrap_or_default())
}
