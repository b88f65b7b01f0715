//! A pool of the user's that asks sentinels.

use std::time::Instant;

use portcullis::deadpool_redis::Runtime;
use portcullis::deadpool_redis::sentinel::{Manager, Pool, SentinelServerType};
use portcullis::{LockError, Sentinel};

use super::*;

use crate::support::sentinel::SERVICE;
use crate::turns::{hand_over, hold_and_queue};

fn pooled(fleet: &Fleet) -> Portcullis {
    let sentinels = fleet.sentinels.iter();
    let urls: Vec<_> = sentinels
        .map(|it| format!("redis://127.0.0.1:{}", it.port()))
        .collect();
    let kind = SentinelServerType::Master;
    let manager = Manager::new(urls.clone(), SERVICE.to_owned(), None, kind);
    let pool = Pool::builder(manager.expect("valid addresses")).max_size(4);
    let pool = pool.runtime(Runtime::Tokio1).build().expect("a valid size");
    let service = Sentinel::new(SERVICE, urls);
    let builder = Portcullis::builder().sentinel_pool(pool, service);
    builder.prefix("suite").build().expect("valid settings")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn connections_from_a_pool_follow_a_failover_and_pushes_come() {
    let fleet = Fleet::start().await;
    let (a, b) = (pooled(&fleet), pooled(&fleet));
    let (a, b) = (mutex(&a), mutex(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    fleet.until_replicated().await;
    let old = &fleet.nodes[0];
    old.freeze();
    let (new, switched) = until_both_listen(&fleet, old).await;
    println!("moved {:?} after the switch", Instant::now() - switched);
    old.thaw();
    // The pool asks one sentinel, which may be the last to know.
    eventually("the pool leads to the new one", async || {
        matches!(a.try_lock().await, Err(LockError::Refused(_)))
            && matches!(b.try_lock().await, Err(LockError::Refused(_)))
    })
    .await;
    hand_over(held, waiter).await;
    assert_eq!((inboxes(old), inboxes(new)), (0, 2));
}
