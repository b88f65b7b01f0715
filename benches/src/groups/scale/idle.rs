//! Keys that were used once: nothing of them stays on the server.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use portcullis::Portcullis;

use super::used_memory;
use crate::cost;
use crate::measure::Spread;
use crate::peers::gates;
use crate::report::{Report, Target};
use crate::support::Server;

/// Half of them mutexes, half of them semaphores.
const KEYS: usize = 20_000;
/// The side keys last for 60.5 s after their last use; the server then has to come upon them.
const KEPT: Duration = Duration::from_secs(70);

/// A server whose keys were all used, and are so no longer.
pub(super) struct Used {
    server: Server,
    before: f64,
    peak: f64,
    since: Instant,
}

impl Used {
    pub(super) async fn leave() -> Self {
        let server = Server::start();
        // What the first use of each script and command takes belongs to no key.
        use_gates(&gates(&server.url()), 1).await;
        keys(&server);
        let before = used_memory(&server).await;
        use_gates(&gates(&server.url()), KEYS / 2).await;
        Self {
            peak: used_memory(&server).await,
            server,
            before,
            since: Instant::now(),
        }
    }

    pub(super) async fn judge(self, report: &mut Report) {
        tokio::time::sleep(KEPT.saturating_sub(self.since.elapsed())).await;
        let left = keys(&self.server);
        let each = |used: f64| (used - self.before) / KEYS as f64;
        let after = each(used_memory(&self.server).await);
        // To whole bytes: the server's own buffers come and go, and are a fraction of one each.
        let after = Spread::of([after.round().max(0.0)]);
        report.target(
            "server bytes per idle key, 70 s after its use",
            Target::AtMost(0.0),
            after,
        );
        let expired = cost::info_number(&self.server, "stats", "expired_keys");
        report.text(&format!(
            "{KEYS} locks and semaphores were taken and given back: {:.0} bytes each right after, {} bytes 70 s later; {expired} keys have expired, {left} are left.",
            each(self.peak), after.median,
        ));
    }
}

/// How many keys the server has.
fn keys(server: &Server) -> u64 {
    let answer = redis::cmd("DBSIZE").query(&mut server.connection());
    answer.expect("it is answered")
}

/// Takes and gives back a permit and a lock for each number, and ends.
async fn use_gates(gates: &Portcullis, each: usize) {
    let lock = gates.mutex("idle");
    let permits = gates.semaphore("idle", 10).expect("in range");
    let uses = stream::iter(0..each).map(|number| {
        let (lock, permits) = (lock.keyed(number), permits.keyed(number));
        async move {
            let guard = lock.lock().await.expect("own keys are free");
            guard.release().await.expect("answered");
            let permit = permits.acquire().await.expect("own keys are free");
            permit.release().await.expect("answered");
        }
    });
    uses.buffer_unordered(256).collect::<()>().await;
    gates.shutdown(Duration::from_secs(5)).await;
}
