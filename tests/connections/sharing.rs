//! What two handles do with each other, whichever way they come.

use portcullis::check::{Finding, Severity};
use portcullis::{Portcullis, Quota, RefusalKind};

use crate::common::{LONG, give_back, promptly, queue, refusal, served, take, until_waiting};

/// So many turns that asking by a timer, every 100 to 250 ms at best, would not get through them
/// promptly.
const TURNS: usize = 40;

/// Locks, hand-offs by push, permits, quotas, and a look at the server that finds nothing missing.
pub(crate) async fn share(a: &Portcullis, b: &Portcullis) {
    let lock = |handle: &Portcullis| handle.mutex("lock").ttl(LONG).expect("in range");
    let (one, other) = (lock(a), lock(b));
    let mut guard = take(&one).await;
    assert_eq!(refusal(other.try_lock().await).kind(), RefusalKind::Busy);
    // The first wait also makes the subscription.
    let next = queue(&other);
    until_waiting(&one, 1).await;
    give_back(guard).await;
    guard = served(next).await;
    let next = queue(&one);
    until_waiting(&other, 1).await;
    give_back(guard).await;
    guard = served(next).await;
    promptly("turn follows turn", async {
        for turn in 0..TURNS {
            let next = queue(if turn % 2 == 0 { &other } else { &one });
            until_waiting(&lock(a), 1).await;
            give_back(guard).await;
            guard = served(next).await;
        }
        give_back(guard).await;
    })
    .await;

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
