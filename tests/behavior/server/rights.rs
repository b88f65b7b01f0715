//! Servers and users that allow less than all: each way down works, only slower.

use std::time::Duration;

use portcullis::deadpool_redis::{Config, Pool, Runtime};
use portcullis::{Mutex, Portcullis};
use redis::IntoConnectionInfo;
use tokio::task::JoinSet;

use super::{Nuisance, UNHEARD, mutex, semaphore};
use crate::common::{
    LIMIT, all_done, give_back, queue, served, take, until_waiting, visit, within,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{History, wait_for};

fn pool(rig: &ServerRig) -> Pool {
    let config = Config::from_url(rig.server.url());
    config
        .create_pool(Some(Runtime::Tokio1))
        .expect("a valid configuration")
}

fn inboxes(rig: &ServerRig) -> Vec<String> {
    ask(
        &mut rig.server.connection(),
        &["PUBSUB", "CHANNELS", "suite:inbox:*"],
    )
}

/// A handle of a user who may do all but what `rights` take away.
async fn limited(rig: &ServerRig, rights: &[&str]) -> Portcullis {
    let all = [
        "ACL", "SETUSER", "limited", "reset", "on", ">open", "~*", "&*", "+@all",
    ];
    rig.server.command(&[&all, rights].concat()).await;
    let url = format!("redis://limited:open@127.0.0.1:{}/", rig.server.port());
    rig.builder().url(url).build().expect("valid")
}

/// The connections that listen.
fn listening(rig: &ServerRig) -> Vec<String> {
    let clients: String = ask(
        &mut rig.server.connection(),
        &["CLIENT", "LIST", "TYPE", "pubsub"],
    );
    let ids = clients.lines().filter_map(|line| line.split(' ').next());
    ids.map(str::to_owned).collect()
}

/// How often somebody was denied to `PING`.
fn denied_pings(rig: &ServerRig) -> u64 {
    let info: String = ask(&mut rig.server.connection(), &["INFO", "commandstats"]);
    let line = info.lines().find(|line| line.starts_with("cmdstat_ping:"));
    let count = line.and_then(|line| line.split_once("rejected_calls=")?.1.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

/// A no is an answer: it keeps watch over a silent subscription as well.
#[tokio::test]
async fn without_the_right_to_ping_the_subscription_stays() {
    let rig = ServerRig::start();
    let lock = mutex(&limited(&rig, &["-ping"]).await);
    let guard = take(&lock).await;
    let next = queue(&lock);
    wait_for("it listens", LIMIT, async || inboxes(&rig).len() == 1).await;
    let before = listening(&rig);
    wait_for("it was denied twice", LIMIT, async || {
        denied_pings(&rig) >= 2
    })
    .await;
    assert_eq!(listening(&rig), before);
    give_back(guard).await;
    give_back(served(next).await).await;
}

/// Both exclude each other, both wait, both hand over.
async fn assert_useful(one: &Mutex, other: &Mutex) {
    let history = History::default();
    for (holder, waiter) in [(one, other), (other, one), (one, one)] {
        let guard = take(holder).await;
        let next = queue(waiter);
        until_waiting(holder, 1).await;
        give_back(guard).await;
        let next = within(UNHEARD, "its turn comes", next)
            .await
            .expect("no panic");
        give_back(next.expect("its turn comes")).await;
    }
    let mut tasks = JoinSet::new();
    for mutex in [one, other] {
        for _ in 0..3 {
            let (mutex, history) = (mutex.clone(), history.clone());
            tasks.spawn(async move { visit(&mutex, &history).await });
        }
    }
    all_done(tasks).await;
    history.assert_sound(1);
}

#[tokio::test]
async fn a_pool_with_a_subscriber_is_pushed_to() {
    let rig = ServerRig::start();
    let pool = pool(&rig);
    let subscriber = rig
        .server
        .url()
        .into_connection_info()
        .expect("our own URL is valid");
    let handle = rig
        .builder()
        .pool(pool.clone())
        .subscriber(subscriber)
        .build()
        .expect("valid");
    assert_useful(&mutex(&handle), &mutex(&rig.handle())).await;
    // The other handle's is closed once its thread has seen that it was dropped.
    wait_for("its inbox is the only one", LIMIT, async || {
        inboxes(&rig).len() == 1
    })
    .await;
    // What was taken from it is not missed there.
    assert_eq!(pool.status().size, 0);
    let spare = pool.get().await.expect("it has room");
    drop((handle, spare));
    rig.settled().await;
}

#[tokio::test]
async fn a_pool_alone_asks_by_a_timer() {
    let rig = ServerRig::start();
    let handle = rig.builder().pool(pool(&rig)).build().expect("valid");
    let lock = mutex(&handle);
    let guard = take(&lock).await;
    let next = queue(&mutex(&rig.handle()).keyed("other"));
    drop(within(LIMIT, "unrelated", next).await);
    let next = queue(&lock);
    until_waiting(&lock, 1).await;
    give_back(guard).await;
    // Not by a push: nobody listens. And not by the TTL either.
    give_back(served(next).await).await;
    assert!(inboxes(&rig).is_empty());
    assert_useful(&lock, &mutex(&rig.handle())).await;
    rig.settled().await;
}

/// Fault 22.
#[tokio::test]
async fn a_user_without_channels_asks_by_a_timer() {
    let rig = ServerRig::start();
    let handle = limited(&rig, &["resetchannels"]).await;
    let lock = mutex(&handle);
    let guard = take(&lock).await;
    let next = queue(&lock);
    until_waiting(&lock, 1).await;
    give_back(guard).await;
    give_back(served(next).await).await;
    // Its releases are whole, though it can't tell anybody of them.
    assert_useful(&lock, &mutex(&rig.handle())).await;
    let (permits, others) = (semaphore(&handle, 2), semaphore(&rig.handle(), 2));
    let held = [take(&permits).await, take(&permits).await];
    let next = queue(&others);
    until_waiting(&permits, 1).await;
    drop(held);
    let next = within(UNHEARD, "its turn comes", next)
        .await
        .expect("no panic");
    give_back(next.expect("its turn comes")).await;
    rig.settled().await;
}

#[tokio::test]
async fn a_user_with_the_right_to_its_inboxes_is_pushed_to() {
    let rig = ServerRig::start();
    let other = rig.handle();
    let handle = limited(&rig, &["resetchannels"]).await;
    assert_useful(&mutex(&handle), &mutex(&other)).await;
    assert_eq!(inboxes(&rig).len(), 1);
    let handle = limited(&rig, &["resetchannels", "&suite:inbox:*"]).await;
    assert_useful(&mutex(&handle), &mutex(&other)).await;
    assert_eq!(inboxes(&rig).len(), 2);
    rig.settled().await;
}

#[tokio::test]
async fn a_user_without_script_load_sends_scripts_whole() {
    let rig = ServerRig::start();
    let handle = limited(&rig, &["-script"]).await;
    assert_useful(&mutex(&handle), &mutex(&handle)).await;
    let stats: String = ask(&mut rig.server.connection(), &["INFO", "commandstats"]);
    assert!(stats.lines().any(|line| line.starts_with("cmdstat_eval:")));
    rig.settled().await;
}

/// Fault 1.
#[tokio::test]
async fn scripts_that_are_forgotten_all_the_time_are_loaded_again() {
    let rig = ServerRig::start();
    let pause = Duration::from_millis(5);
    let nuisance = Nuisance::start(&rig.server, pause, &["SCRIPT", "FLUSH"]);
    let history = History::default();
    let mut tasks = JoinSet::new();
    for handle in [rig.handle(), rig.handle()] {
        for _ in 0..8 {
            let (lock, history) = (mutex(&handle), history.clone());
            tasks.spawn(async move {
                for _ in 0..20 {
                    visit(&lock, &history).await;
                }
            });
        }
    }
    // No error reached anybody.
    all_done(tasks).await;
    drop(nuisance);
    assert_eq!(history.holds().len(), 2 * 8 * 20);
    history.assert_sound(1);
    // And a renewal finds its script again.
    let renewed = take(
        &mutex(&rig.handle())
            .ttl(Duration::from_millis(900))
            .expect("ok"),
    )
    .await;
    rig.server.command(&["SCRIPT", "FLUSH"]).await;
    let begun = std::time::Instant::now();
    wait_for("two TTLs have passed", LIMIT, async || {
        assert!(renewed.is_held());
        begun.elapsed() > Duration::from_millis(1_800)
    })
    .await;
    give_back(renewed).await;
    rig.settled().await;
}
