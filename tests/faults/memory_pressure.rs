//! A server that throws keys away to have room (fault 25). One that refuses instead is in
//! `tests/behavior/server/refusals.rs`, and the warning in `tests/traces.rs`.

use portcullis::LostReason;
use redis::Value;

use crate::common::{LIMIT, queue, take, until_waiting, within};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::{SOON, key, mutex, plain_mutex};

/// Fault 25; M3, M4, L1.
#[tokio::test]
async fn who_is_evicted_learns_it_by_the_next_renewal_and_waiters_are_served() {
    let rig = ServerRig::start();
    let theirs = rig.handle();
    let (a, b) = (mutex(&rig.handle(), SOON), mutex(&theirs, SOON));
    let guard = take(&a).await;
    let waiters = [queue(&b), queue(&a)];
    until_waiting(&plain_mutex(&theirs, SOON), 2).await;
    let main = key(&rig, "m").await.expect("it is held");
    let mut connection = rig.server.connection();
    let info: String = ask(&mut connection, &["INFO", "memory"]);
    let used: u64 = info
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .and_then(|used| used.trim().parse().ok())
        .expect("it is told");
    let room = (used + 1_000_000).to_string();
    for words in [["maxmemory", &room], ["maxmemory-policy", "allkeys-lru"]] {
        rig.server
            .command(&["CONFIG", "SET", words[0], words[1]])
            .await;
    }
    let lost = tokio::spawn(guard.lost());
    let junk = "x".repeat(10_000);
    let mut number = 0;
    let filling = async {
        // Each is newer than anything of ours, and what is oldest goes.
        while ask::<i64>(&mut connection, &["EXISTS", &main]) == 1 {
            for _ in 0..50 {
                number += 1;
                ask::<Value>(
                    &mut connection,
                    &["SET", &format!("filler:{number}"), &junk],
                );
            }
            tokio::task::yield_now().await;
        }
    };
    within(LIMIT, "it is evicted", filling).await;
    let reason = within(LIMIT, "its loss is told", lost).await;
    assert_eq!(reason.expect("no panic"), LostReason::Gone);
    assert!(!guard.is_held());
    let mut last = guard.fencing_token();
    rig.server
        .command(&["CONFIG", "SET", "maxmemory", "0"])
        .await;
    let mut tasks = tokio::task::JoinSet::new();
    for waiter in waiters {
        tasks.spawn(async move {
            let guard = waiter.await.expect("no panic").expect("its turn comes");
            let fence = guard.fencing_token();
            drop(guard);
            fence
        });
    }
    let mut fences = within(LIMIT, "all are served", tasks.join_all()).await;
    fences.sort();
    for fence in fences {
        assert!(fence > last, "fencing tokens rise though keys are evicted");
        last = fence;
    }
    drop(guard);
    let mut connection = rig.server.connection();
    for number in 1..=number {
        ask::<i64>(&mut connection, &["DEL", &format!("filler:{number}")]);
    }
    rig.settled().await;
}
