//! A server of a quorum that sentinels name: the replica that takes its place may lack the last
//! leases, so it has no vote until these have ended, however long it has run.

use std::time::{Duration, Instant};

use portcullis::check::Finding;
use portcullis::{Builder, Portcullis};

use crate::load::Load;
use crate::support::sentinel::{Fleet, try_ask};
use crate::support::{Server, wait_for};

/// Of a lease; a failover takes less, if the machine is not very slow.
const TTL: Duration = Duration::from_secs(8);
/// How long all may take until a failover is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// A service and two servers.
struct Seats {
    fleet: Fleet,
    others: [Server; 2],
}

impl Seats {
    async fn start() -> Self {
        Self {
            others: [Server::start(), Server::start()],
            fleet: Fleet::start().await,
        }
    }

    fn builder(&self) -> Builder {
        let others = self.others.iter().map(Server::url);
        Portcullis::builder().quorum([self.fleet.url()].into_iter().chain(others))
    }

    fn handle(&self) -> Portcullis {
        self.builder().build().expect("a valid configuration")
    }

    /// Waits until a lock with this TTL is held on all of them.
    async fn until_all_vote(&self, handle: &Portcullis, ttl: Duration) {
        let mutex = handle.mutex("look").ttl(ttl).expect("in range");
        wait_for("all have a vote", FORGOTTEN, async || {
            let Ok(guard) = mutex.lock().await else {
                return false;
            };
            tokio::time::sleep(Duration::from_millis(20)).await;
            guard.held_on() == 3
        })
        .await;
    }
}

/// What a plain client does.
async fn set(server: &Server, key: &str) {
    let ttl = TTL.as_millis().to_string();
    let words = ["SET", key, "stranger", "NX", "PX", &ttl];
    assert_eq!(server.command(&words).await, redis::Value::Okay);
}

#[tokio::test]
async fn a_lease_that_a_failover_forgets_keeps_everybody_out_until_it_has_ended() {
    let seats = Seats::start().await;
    let before = seats.handle();
    seats.until_all_vote(&before, TTL).await;
    // A lease on two of three, of which the replicas are not told.
    let old = &seats.fleet.nodes[0];
    for replica in &seats.fleet.nodes[1..] {
        replica.freeze();
    }
    old.cut_replicas_off().await;
    let taken = Instant::now();
    set(old, "withdraw").await;
    set(&seats.others[0], "withdraw").await;
    old.kill();
    for replica in &seats.fleet.nodes[1..] {
        replica.thaw();
    }
    let (master, _) = seats.fleet.until_switched(old).await;
    let forgotten = master.command(&["EXISTS", "withdraw"]).await;
    assert_eq!(forgotten, redis::Value::Int(0), "the new master lacks it");
    // One that followed the failover, and one that knows of none.
    let after = seats.handle();
    let locks = [before, after].map(|handle| handle.mutex_at("withdraw").ttl(TTL).expect("valid"));
    // The sentinels' own clocks tell of it in the meantime.
    let young = |finding: &Finding| {
        matches!(finding, Finding::AtServer { server: 1, finding, .. }
            if matches!(**finding, Finding::TooYoung { .. }))
    };
    // A sentinel that has not heard of it yet may be the first to answer.
    wait_for("it is too young for a vote", FORGOTTEN, async || {
        let report = seats.handle().check().await;
        report.is_ok_and(|report| report.findings().iter().any(young))
    })
    .await;
    let mut free = [false; 2];
    wait_for("it is free again for both", FORGOTTEN, async || {
        for (lock, free) in locks.iter().zip(&mut free) {
            let Ok(guard) = lock.try_lock().await else {
                continue;
            };
            let held = taken.elapsed();
            assert!(held >= TTL, "two hold, {held:?} after the first began");
            *free = guard.release().await.is_ok();
        }
        free == [true; 2]
    })
    .await;
    // It has a vote in the end.
    seats.until_all_vote(&seats.handle(), TTL).await;
}

#[tokio::test]
#[ignore = "slow: scripts/test --topologies"]
async fn under_load_a_failover_of_one_seat_lets_no_two_in() {
    let seats = Seats::start().await;
    let ttl = Duration::from_secs(2);
    let look = seats.handle();
    seats.until_all_vote(&look, ttl).await;
    let lock = |handle: &Portcullis| handle.mutex("withdraw").ttl(ttl).expect("in range");
    let mut load = Load::start([seats.handle(), seats.handle()], lock);
    load.goes_on("all is well").await;
    for _ in 0..2 {
        let old = seats.fleet.master().expect("most name one");
        old.kill();
        load.goes_on("the others go on").await;
        seats.fleet.until_switched(old).await;
        // Who begins here knows of no failover.
        load.join(&lock(&seats.handle()));
        load.goes_on("a failover").await;
        seats.until_all_vote(&look, ttl).await;
        load.goes_on("it is over").await;
        old.restart();
        wait_for("it follows the new master", FORGOTTEN, async || {
            let info: Option<String> = try_ask(old, &["INFO", "replication"]);
            info.is_some_and(|info| info.contains("master_link_status:up"))
        })
        .await;
    }
    load.assert_sound().await;
}
