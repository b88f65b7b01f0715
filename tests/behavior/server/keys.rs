//! What lies on the server, and for how long (C27, K10).

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{mutex, semaphore};
use crate::common::{LIMIT, LONG, all_done, give_back, queue, served, take, until_waiting};
use crate::leftovers::{ask, immortal};
use crate::rig::{Rig, ServerRig};
use crate::support::wait_for;

#[tokio::test]
async fn no_key_is_without_a_ttl_at_any_time() {
    let rig = ServerRig::start();
    let mut tasks = JoinSet::new();
    for handle in [rig.handle(), rig.handle()] {
        for task in 0..8_u32 {
            let (named, exact) = (mutex(&handle).keyed(task % 3), handle.mutex_at("exact"));
            let semaphore = semaphore(&handle, 3);
            tasks.spawn(async move {
                for _ in 0..20 {
                    let _name = named.lock().await.expect("its turn comes");
                    let _permits = semaphore
                        .acquire_many(1 + task % 3)
                        .await
                        .expect("its turn comes");
                    let _exact = exact.lock().await.expect("its turn comes");
                }
            });
        }
    }
    let mut connection = rig.server.connection();
    wait_for("all tasks are done", LIMIT, async || {
        while tasks
            .try_join_next()
            .transpose()
            .expect("no task panics")
            .is_some()
        {}
        assert_eq!(immortal(&mut connection), Vec::<String>::new());
        tasks.is_empty()
    })
    .await;
    rig.settled().await;
    // The side keys of a lease longer than their minute live as long as it.
    let day = Duration::from_secs(24 * 60 * 60);
    let handle = rig.handle();
    let _held = take(&mutex(&handle).ttl(day).expect("in range")).await;
    let _permit = take(&semaphore(&handle, 1).ttl(day).expect("in range")).await;
    let keys = rig.server.keys_with("suite:").await;
    let tag_of = |key: &str| key.split_inclusive('}').next().map(str::to_owned);
    let of_gates = |key: &&String| key.ends_with(":withdraw") || key.ends_with(":reports");
    let tags: Vec<_> = keys
        .iter()
        .filter(of_gates)
        .map(|key| tag_of(key))
        .collect();
    let mut lasting = 0;
    for key in &keys {
        let clock = key.ends_with(":clock") && tags.contains(&tag_of(key));
        if clock || of_gates(&key) {
            lasting += 1;
            let left: i64 = ask(&mut connection, &["PTTL", key]);
            assert!(left > 86_000_000, "{key}: {left} ms");
        }
    }
    // The mutex, the semaphore with its records, and the clock of each.
    assert_eq!(lasting, 5);
}

/// C27: nothing is stored for waiters that may or may not come.
#[tokio::test]
async fn tries_and_refusals_leave_nothing_that_grows() {
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    let keys_after = async |turns: u32| {
        for _ in 0..turns {
            let guard = a.try_lock().await.expect("it is free");
            b.try_lock().await.expect_err("it is held");
            give_back(guard).await;
        }
        let mut connection = rig.server.connection();
        let mut sizes = Vec::new();
        for key in rig.server.keys_with("").await {
            let size: i64 = ask(&mut connection, &["MEMORY", "USAGE", &key]);
            sizes.push((key, size));
        }
        sizes
    };
    let few = keys_after(10).await;
    assert_eq!(keys_after(500).await, few);
    rig.settled().await;
}

/// C45: neither a renewal nor a heartbeat goes on for what has ended.
#[tokio::test]
async fn when_all_is_given_back_nothing_more_is_said() {
    let rig = ServerRig::start();
    let (a, b) = (rig.handle(), rig.handle());
    let mut tasks = JoinSet::new();
    for task in 0..20_u32 {
        let handle = if task % 2 == 0 { &a } else { &b };
        let short = mutex(handle)
            .ttl(Duration::from_millis(300))
            .expect("in range");
        let (short, semaphore) = (short.keyed(task % 5), semaphore(handle, 2));
        tasks.spawn(async move {
            for _ in 0..10 {
                drop(short.lock().await.expect("its turn comes"));
                drop(semaphore.acquire().await.expect("its turn comes"));
            }
        });
    }
    all_done(tasks).await;
    rig.settled().await;
    let calls = rig.server.script_calls().await;
    let begun = Instant::now();
    // Two heartbeats, and many renewals.
    wait_for("two seconds have passed", LIMIT, async || {
        begun.elapsed() > Duration::from_secs(2)
    })
    .await;
    assert_eq!(rig.server.script_calls().await, calls);
    drop((a, b));
    wait_for("all connections are closed", LIMIT, async || {
        let mut connection = rig.server.connection();
        let clients: String = ask(&mut connection, &["CLIENT", "LIST"]);
        clients.lines().count() == 1
    })
    .await;
}

/// Two script calls for what nobody else wants, and no more for one that waits.
#[tokio::test]
async fn an_acquisition_costs_two_script_calls() {
    const TURNS: u64 = 50;
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle()), mutex(&rig.handle()));
    for mutex in [&a, &b] {
        give_back(take(mutex).await).await;
    }
    let before = rig.server.script_calls().await;
    for _ in 0..TURNS {
        give_back(take(&a).await).await;
    }
    assert_eq!(rig.server.script_calls().await - before, 2 * TURNS);
    let guard = take(&a).await;
    let next = queue(&b);
    until_waiting(&a, 1).await;
    let before = rig.server.script_calls().await;
    let begun = Instant::now();
    give_back(guard).await;
    let next = served(next).await;
    give_back(next).await;
    // The two releases; and a heartbeat and a question, if a second passed on a busy machine.
    let spent = rig.server.script_calls().await - before;
    let unasked = 2 * begun.elapsed().as_secs();
    assert!((2..=2 + unasked + 1).contains(&spent), "{spent}");
    assert!(begun.elapsed() < LONG);
    rig.settled().await;
}
