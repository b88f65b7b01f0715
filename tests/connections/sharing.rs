//! What two handles do with each other, whichever way they come.

use portcullis::check::{Finding, Severity};
use portcullis::redis;
use portcullis::{Portcullis, Quota, RefusalKind};

use crate::common::{
    LIMIT, LONG, give_back, promptly, queue, refusal, served, take, until_waiting, within,
};

/// So many turns that who listens and hears nothing, and asks every 3 s, would not get through them
/// within [`LIMIT`].
const TURNS: usize = 40;

/// Locks, hand-offs by push, permits, quotas, and a look at the server at `url` that finds nothing
/// missing.
pub(crate) async fn share(url: &str, a: &Portcullis, b: &Portcullis) {
    let lock = |handle: &Portcullis| handle.mutex("lock").ttl(LONG).expect("in range");
    let (one, other) = (lock(a), lock(b));
    let guard = within(LIMIT, "what is free is taken", one.lock()).await;
    let mut guard = guard.expect("it is free");
    assert_eq!(refusal(other.try_lock().await).kind(), RefusalKind::Busy);
    within(LIMIT, "turn follows turn", async {
        for turn in 0..TURNS {
            let next = queue(if turn % 2 == 0 { &other } else { &one });
            until_waiting(&lock(a), 1).await;
            give_back(guard).await;
            guard = served(next).await;
        }
        give_back(guard).await;
    })
    .await;
    // Who can't listen would ask more often: both do.
    assert_eq!(inboxes(url).await, 2);

    let permits = |handle: &Portcullis| {
        let permits = handle.semaphore("permits", 1).expect("in range");
        permits.ttl(LONG).expect("in range")
    };
    let permit = take(&permits(a)).await;
    let busy = refusal(permits(b).try_acquire().await);
    assert_eq!(busy.kind(), RefusalKind::Busy);
    give_back(permit).await;

    let quota = |handle: &Portcullis| {
        let quota = Quota::per_hour(1).burst(1);
        handle.rate_limiter("quota", quota).expect("in range")
    };
    promptly("it is counted", quota(a).check())
        .await
        .expect("it is the first");
    let over = refusal(promptly("it is counted", quota(b).check()).await);
    assert_eq!(over.kind(), RefusalKind::OverQuota);

    let report = promptly("it is looked at", b.check().into_future()).await;
    let report = report.expect("it answers");
    // What the server keeps over a restart is no matter of the way to it.
    let is_of_the_way = |finding: &&Finding| {
        finding.severity() != Severity::Note && !matches!(finding, Finding::NotDurable { .. })
    };
    let found: Vec<String> = report
        .findings()
        .iter()
        .filter(is_of_the_way)
        .map(ToString::to_string)
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

/// How many handles listen.
async fn inboxes(url: &str) -> usize {
    let client = redis::Client::open(url).expect("an address");
    let connection = client.get_multiplexed_async_connection().await;
    let mut command = redis::cmd("PUBSUB");
    command.arg("CHANNELS").arg("way:inbox:*");
    let channels: Vec<String> = command
        .query_async(&mut connection.expect("it answers"))
        .await
        .expect("it tells");
    channels.len()
}
