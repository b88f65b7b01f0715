//! A master crashes, hangs, is cut off from its sentinels, or is demoted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portcullis::Portcullis;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::common::{Gate, Guard, failure, give_back, queue, served, take, until_waiting, within};
use crate::support::{FakeClock, History, Hold};
use crate::turns::{hand_over, hold_and_queue};

/// How many work at each gate of each handle.
const WORKERS: usize = 3;
/// How long each holds.
const WORK: Duration = Duration::from_millis(10);

/// Goes in and out until told to end; what fails in an outage is tried again.
fn work<G: Gate>(gate: G, history: History, end: Arc<AtomicBool>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while !end.load(Ordering::Relaxed) {
            let asked = History::now();
            let Ok(guard) = gate.enter().await else {
                sleep(WORK).await;
                continue;
            };
            let acquired = History::now();
            sleep(WORK).await;
            let ended = History::now();
            history.held(Hold {
                asked,
                acquired,
                ended,
                fence: guard.fence(),
                weight: 1,
            });
            // It may fail in an outage, and is delivered later.
            let _ = guard.give_back().await;
        }
    })
}

/// Three handles that use a mutex and a semaphore.
struct Load {
    handles: Vec<Portcullis>,
    mutex: History,
    semaphore: History,
    end: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    const LIMIT: u32 = 2;

    async fn start(fleet: &Fleet) -> Self {
        let mut load = Self {
            handles: (0..3).map(|_| handle(fleet)).collect(),
            mutex: History::default(),
            semaphore: History::default(),
            end: Arc::default(),
            workers: Vec::new(),
        };
        for handle in &load.handles {
            for _ in 0..WORKERS {
                let gate = mutex(handle);
                let end = Arc::clone(&load.end);
                load.workers.push(work(gate, load.mutex.clone(), end));
                let gate = semaphore(handle, Self::LIMIT);
                let end = Arc::clone(&load.end);
                load.workers.push(work(gate, load.semaphore.clone(), end));
            }
        }
        load.goes_on(History::now(), LIMIT).await;
        load
    }

    /// Waits until both gates were entered ten times since then.
    async fn goes_on(&self, since: u64, limit: Duration) {
        let entered = |history: &History| {
            let holds = history.holds();
            holds.iter().filter(|hold| hold.acquired > since).count()
        };
        wait_for("both gates are entered again", limit, async || {
            entered(&self.mutex) >= 10 && entered(&self.semaphore) >= 10
        })
        .await;
    }

    /// Lets all come to an end.
    async fn end(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            within(LIMIT, "a worker ends", worker)
                .await
                .expect("no panic");
        }
    }

    /// Lets all come to an end, and judges what happened.
    async fn end_and_judge(mut self) {
        self.end().await;
        for history in [&self.mutex, &self.semaphore] {
            let holds = history.holds();
            crate::support::history::fences_rise(&holds).expect("no fence twice");
        }
        self.mutex.assert_sound(1);
        println!(
            "{} and {} holds",
            self.mutex.holds().len(),
            self.semaphore.holds().len()
        );
    }
}

/// R3, C117: the master crashes and never comes back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn after_a_crash_of_the_master_waiters_are_served_by_the_new_one() {
    let fleet = Fleet::start().await;
    let load = Load::start(&fleet).await;
    let crashed = Instant::now();
    fleet.nodes[0].kill();
    let (new, switched) = fleet.until_switched(&fleet.nodes[0]).await;
    let left = (switched + SOON).saturating_duration_since(Instant::now());
    load.goes_on(History::now(), left).await;
    println!(
        "failover {:?}, served {:?} after it",
        switched - crashed,
        switched.elapsed()
    );
    eventually("all listen to the new one", async || inboxes(new) == 3).await;
    load.end_and_judge().await;
    assert_mortal(&fleet.nodes[1..]);
}

/// R3, fault 34: the master hangs, another is promoted, and the first wakes, believing itself the
/// master, with requests that were sent to it long ago.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_master_that_hung_and_wakes_after_the_failover_is_not_believed_in() {
    let fleet = Fleet::start().await;
    let load = Load::start(&fleet).await;
    let old = &fleet.nodes[0];
    let hung = Instant::now();
    old.freeze();
    let (new, switched) = fleet.until_switched(old).await;
    let left = (switched + SOON).saturating_duration_since(Instant::now());
    load.goes_on(History::now(), left).await;
    println!(
        "failover {:?}, served {:?} after it",
        switched - hung,
        switched.elapsed()
    );
    old.thaw();
    load.goes_on(History::now(), SOON).await;
    // Until the sentinels have made it a replica it would take writes.
    until_demoted(old).await;
    assert_eq!(inboxes(old), 0);
    assert_eq!(inboxes(new), 3);
    load.goes_on(History::now(), SOON).await;
    load.end_and_judge().await;
    assert_mortal(&fleet.nodes);
}

/// Fault 34: what was under way at the master that hung is answered when it wakes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_grant_that_the_old_master_gives_when_it_wakes_is_handed_to_nobody() {
    let fleet = Fleet::start().await;
    // So patient that the answer would still be waited for.
    let patient = builder(&fleet.url()).command_timeout(Duration::from_secs(20));
    let patient = patient.build().expect("in range");
    let other = handle(&fleet);
    let (late, first) = (mutex(&patient), mutex(&other));
    // Connected, so that the question goes to the old one.
    give_back(take(&late).await).await;
    give_back(take(&first).await).await;
    fleet.until_replicated().await;
    let old = &fleet.nodes[0];
    old.freeze();
    let asked = queue(&late);
    let (_, switched) = fleet.until_switched(old).await;
    // Told that nobody knows what became of its question, it asked the new one.
    let granted = within(SOON, "the new master grants", asked).await;
    let granted = granted.expect("no panic").expect("it is free");
    println!("granted {:?} after the switch", switched.elapsed());
    give_back(granted).await;
    // And what the old one grants to that question is no grant while somebody else holds.
    let held = take(&first).await;
    let asked = queue(&late);
    until_waiting(&first, 1).await;
    old.thaw();
    until_demoted(old).await;
    assert!(!asked.is_finished(), "the old master's grant was believed");
    assert!(held.is_held());
    give_back(held).await;
    give_back(served(asked).await).await;
}

/// C103, C109: the master is cut off from its sentinels only, and goes on answering all clients.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_master_that_only_its_sentinels_lost_is_left_though_it_answers() {
    let fleet = Fleet::start().await;
    let old = &fleet.nodes[0];
    let (a, b) = (handle(&fleet), handle(&fleet));
    let (a, b) = (mutex(&a), mutex(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    fleet.until_replicated().await;
    // What sentinels need and gates don't: not to be told that it lives, and not to demote it.
    let denied = ["-ping", "-multi", "-exec", "-replicaof", "-slaveof"];
    let user = [&["ACL", "SETUSER", "default"][..], &denied].concat();
    ask::<String>(&mut old.connection(), &user);
    let (new, switched) = fleet.until_switched(old).await;
    soon(switched, "all have moved", async || {
        inboxes(old) == 0 && inboxes(new) == 2
    })
    .await;
    println!("moved {:?} after the switch", switched.elapsed());
    // Still the master to itself, and what it holds is the state from before.
    let role: String = ask(&mut old.connection(), &["INFO", "replication"]);
    assert!(role.contains("role:master"), "{role}");
    assert!(held.is_held());
    hand_over(held, waiter).await;
    let left = crate::leftovers::leftovers(&mut new.connection());
    assert!(left.is_empty(), "{left:?}");
}

/// The master is replaced on command, as an operator does before maintenance.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_failover_on_command_is_followed() {
    let fleet = Fleet::start().await;
    let mut load = Load::start(&fleet).await;
    let command = ["SENTINEL", "FAILOVER", crate::support::sentinel::SERVICE];
    let done: Option<String> = fleet.sentinels[0].ask(&command);
    assert_eq!(done.as_deref(), Some("OK"));
    let (new, switched) = fleet.until_switched(&fleet.nodes[0]).await;
    let left = (switched + SOON).saturating_duration_since(Instant::now());
    load.goes_on(History::now(), left).await;
    eventually("all listen to the new one", async || inboxes(new) == 3).await;
    // Not judged: the old one lives, and grants on until each has heard of the new one.
    load.end().await;
    assert_mortal(&fleet.nodes);
}

/// A lease that was replicated lives on at a new master whose clock is behind, and fences rise.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn leases_and_fences_go_on_at_a_new_master_whose_clock_is_behind() {
    let behind = FakeClock::start();
    behind.set(-5);
    let master = Server::start_with(&Fleet::LEADS);
    let replica = || Server::start_with_clock(&Fleet::follows(&master), &behind);
    let replicas = vec![replica(), replica()];
    let fleet = Fleet::start_with(master, replicas, &[]).await;
    let (a, b) = (handle(&fleet), handle(&fleet));
    let (held, waiter) = hold_and_queue(&mutex(&a), &mutex(&b)).await;
    let (permit, other) = hold_and_queue(&semaphore(&a, 1), &semaphore(&b, 1)).await;
    fleet.until_replicated().await;
    fleet.nodes[0].kill();
    until_both_listen(&fleet, &fleet.nodes[0]).await;
    assert!(held.is_held() && permit.is_held());
    assert!(!waiter.is_finished() && !other.is_finished());
    hand_over(held, waiter).await;
    hand_over(permit, other).await;
    assert_mortal(&fleet.nodes[1..]);
}

/// A lease that ends while there is no master is lost before anybody else enters.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn who_loses_its_lease_in_a_failover_knows_before_the_next_enters() {
    let fleet = Fleet::start().await;
    let (a, b) = (handle(&fleet), handle(&fleet));
    let short = |handle: &Portcullis| {
        let mutex = handle.mutex("short");
        mutex.ttl(Duration::from_millis(1_200)).expect("in range")
    };
    let (a, b) = (short(&a), short(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    fleet.until_replicated().await;
    let old = &fleet.nodes[0];
    old.freeze();
    let (lost, entered) = tokio::join!(
        async {
            within(LIMIT, "the holder is told", held.lost()).await;
            Instant::now()
        },
        async {
            let guard = within(LIMIT, "its turn comes", waiter)
                .await
                .expect("no panic");
            (guard.expect("its turn comes"), Instant::now())
        },
    );
    assert!(lost < entered.1, "{:?} too late", lost - entered.1);
    assert!(entered.0.fence() > held.fence());
    old.thaw();
    until_demoted(old).await;
    give_back(entered.0).await;
    assert_mortal(&fleet.nodes);
}

/// Fault 32: a failover to replicas that lack the lease may grant it twice, and says so to who lost
/// it; fences rise all the same.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn a_failover_that_forgets_a_lease_is_told_and_fences_rise() {
    let fleet = Fleet::start().await;
    let (a, b) = (handle(&fleet), handle(&fleet));
    let (a, b) = (mutex(&a), mutex(&b));
    give_back(take(&b).await).await;
    let old = &fleet.nodes[0];
    for replica in &fleet.nodes[1..] {
        replica.freeze();
    }
    ask::<i64>(
        &mut old.connection(),
        &["CLIENT", "KILL", "TYPE", "replica"],
    );
    let held = take(&a).await;
    old.kill();
    for replica in &fleet.nodes[1..] {
        replica.thaw();
    }
    let next = within(LIMIT, "it is granted again", async {
        loop {
            match b.lock().await {
                Ok(guard) => return guard,
                // While there is no master.
                failed => assert!(failure(failed).kind().is_outage()),
            }
        }
    })
    .await;
    assert!(next.fence() > held.fence());
    within(LONG, "the first holder is told", held.lost()).await;
    assert!(next.is_held());
    give_back(next).await;
}

/// C111: all servers of the service are gone for a while.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn waiters_outlast_the_loss_of_all_data_nodes() {
    let fleet = Fleet::start().await;
    let (a, b) = (handle(&fleet), handle(&fleet));
    let (a, b) = (mutex(&a), mutex(&b));
    let (held, waiter) = hold_and_queue(&a, &b).await;
    for node in &fleet.nodes {
        node.kill();
    }
    let error = failure(within(LIMIT, "a try fails", a.try_lock()).await);
    assert!(error.kind().is_outage(), "{error}");
    // All that was known is forgotten, the place in the queue and the lease with it.
    for node in &fleet.nodes {
        node.restart();
    }
    let next = within(LIMIT, "its turn comes", waiter)
        .await
        .expect("no panic");
    let next = next.expect("its turn comes");
    within(LIMIT, "the first holder is told", held.lost()).await;
    let master = || {
        fleet
            .master()
            .or_else(|| fleet.nodes.first())
            .expect("there are nodes")
    };
    eventually("both listen again", async || inboxes(master()) == 2).await;
    let waiter = queue(&a);
    until_waiting(&b, 1).await;
    give_back(next).await;
    give_back(served(waiter).await).await;
}
