//! More waiters than may wait, and more keys than anybody has (faults 47 and 48).

use std::time::Duration;

use portcullis::{LockError, RefusalKind};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::common::{LIMIT, LONG, give_back, take, within};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{resident, say, wait_for};
use crate::{handle, keeps, key, mutex, start};

/// Fault 48; W1, C1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_who_want_to_wait_as_many_wait_as_may() {
    const CROWD: usize = 10_000;
    const SEATS: u32 = 500;
    const WAVE: usize = 500;
    // A process that keeps permits counts who waits there, and has one place for all of them.
    let (places, may_wait) = if keeps() {
        (2, 2 * SEATS)
    } else {
        (SEATS, SEATS)
    };
    let rig = ServerRig::start();
    // A debug build on a busy machine has much to do.
    let patient = || rig.builder().command_timeout(LIMIT).build().expect("valid");
    let locks = [patient(), patient()].map(|handle| mutex(&handle, LONG).max_waiters(SEATS));
    let guard = take(&locks[0]).await;
    let mut crowd = JoinSet::new();
    let (mut came, mut turned_away) = (0, 0);
    wait_for("the others are turned away", 2 * LIMIT, async || {
        if let Some(queue) = key(&rig, "mq").await {
            let length: i64 = ask(&mut rig.server.connection(), &["ZCARD", &queue]);
            assert!(length <= i64::from(places), "{length} wait");
        }
        while let Some(ended) = crowd.try_join_next() {
            match ended.expect("no task panics") {
                Err(LockError::Refused(refusal)) => {
                    assert_eq!(refusal.kind(), RefusalKind::QueueFull, "{refusal}");
                    turned_away += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        // In waves: ten thousand requests at one instant would be in the way of heartbeats, and who
        // is not heard of for three seconds gives up its places.
        while came < CROWD && came - turned_away < may_wait as usize + WAVE {
            let lock = locks[came % 2].clone();
            crowd.spawn(async move { lock.lock().await.map(drop) });
            came += 1;
        }
        turned_away == CROWD - may_wait as usize
    })
    .await;
    let queue = key(&rig, "mq").await.expect("they wait");
    let length: i64 = ask(&mut rig.server.connection(), &["ZCARD", &queue]);
    assert_eq!(length, i64::from(places));
    // They give up, all at once, and the queue is as if nobody had been there.
    crowd.shutdown().await;
    wait_for("nobody waits", LIMIT, async || {
        ask::<i64>(&mut rig.server.connection(), &["ZCARD", &queue]) == 0
    })
    .await;
    assert!(guard.is_held());
    give_back(guard).await;
    give_back(take(&locks[1]).await).await;
    rig.settled().await;
}

/// How many keys are used before the first look, and between that and the second.
const FIRST: u64 = 10_000;
const MORE: u64 = 30_000;
/// How many are held as their process is killed.
const HELD: u64 = 2_000;
const TTL: Duration = Duration::from_secs(2);
const MINUTE: Duration = Duration::from_secs(60);
/// How many keys are used before their homes have gone, and how long that takes.
const BATCH: usize = 2_000;
const HOME: Duration = Duration::from_millis(1_200);
/// How many keys are in use at once.
const WORKERS: usize = 32;

/// The role of one that is asked for ever new keys.
pub(crate) fn use_many_keys(url: &str) {
    let gates = handle(url);
    let runtime = Runtime::new().expect("the system has room for a runtime");
    runtime.block_on(async {
        let lock = mutex(&gates, TTL);
        let use_each = async |from: u64, to: u64| {
            let mut tasks = JoinSet::new();
            for worker in 0..WORKERS as u64 {
                let lock = lock.clone();
                tasks.spawn(async move {
                    for number in (from..to).filter(|number| number % WORKERS as u64 == worker) {
                        let guard = lock.keyed(format!("key {number}")).lock().await;
                        give_back(guard.expect("it is free")).await;
                    }
                });
            }
            tasks.join_all().await;
        };
        let used = async |from: u64, to: u64| {
            if !keeps() {
                return use_each(from, to).await;
            }
            // The home of a gate stays for up to a second after its last use. So as many are there each
            // time, however fast the machine is.
            for batch in (from..to).step_by(BATCH) {
                use_each(batch, to.min(batch + BATCH as u64)).await;
                tokio::time::sleep(HOME).await;
            }
        };
        say("ready");
        used(0, FIRST).await;
        say(&(resident() / 1024).to_string());
        used(FIRST, FIRST + MORE).await;
        say(&(resident() / 1024).to_string());
        let mut guards = Vec::new();
        for number in 0..HELD {
            let guard = lock.keyed(format!("held {number}")).lock().await;
            guards.push(guard.expect("it is free"));
        }
        say("they are held");
        std::future::pending::<()>().await;
    });
}

/// Fault 47.
#[tokio::test]
#[ignore = "takes half a minute in a debug build, and two minutes where permits are kept: `scripts/test --faults`"]
async fn keys_that_are_used_once_leave_nothing_in_either_process() {
    let rig = ServerRig::start();
    let mut other = start(&rig.server, "use many keys", |_| {});
    let hear = async || {
        let mut said = None;
        wait_for("it says something", Duration::from_secs(120), async || {
            said = other.heard();
            said.is_some()
        })
        .await;
        said.expect("it said something")
    };
    let number = async || hear().await.parse::<u64>().expect("a number");
    let before = number().await;
    let keys = async || {
        let keys = rig.server.keys_with("suite:").await;
        keys.into_iter().filter(|key| key.contains("}:m:")).count()
    };
    // Those that are in use at this moment.
    assert!(keys().await <= WORKERS);
    let after = number().await;
    println!("{before} kB, and {after} kB after {MORE} more keys");
    // 100 bytes of each would be 3 MB.
    assert!(after <= before + 2_000, "{before} kB, then {after} kB");
    assert_eq!(hear().await, "they are held");
    assert_eq!(keys().await, usize::try_from(HELD).unwrap_or(0));
    other.kill();
    let ended = async { wait_for("all have ended", LIMIT, async || keys().await == 0).await };
    within(2 * TTL, "its leases end with their TTL", ended).await;
    // A clock and a roster for each of 256 tags, and nothing of the keys.
    // The server throws what has expired away when it comes to it.
    // Of a gate that was kept, that it was is known for a minute.
    let room = if keeps() { MINUTE + LIMIT } else { LIMIT };
    wait_for("the server has room again", room, async || {
        ask::<u64>(&mut rig.server.connection(), &["DBSIZE"]) <= 512
    })
    .await;
    rig.settled().await;
}
