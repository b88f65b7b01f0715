//! Leases that replicas have outlive their master: `Builder::min_replicas` and failovers.

use portcullis::{LockError, MutexGuard, RefusalKind};
use tokio::task::JoinHandle;

use super::*;
use crate::common::{Guard, give_back, queue, refusal, served, take, until_waiting, within};
use crate::support::sentinel::SERVICE;

/// Much longer than it takes until a failover is over and the replica that is left follows, also
/// where the sentinels need a second vote.
const TTL: Duration = Duration::from_secs(20);
/// How long replicas have: a whole failover.
const PATIENCE: Duration = Duration::from_secs(8);
/// How many locks of each kind.
const LOCKS: usize = 12;

/// One whose leases are known to a replica when they are handed out.
fn careful(fleet: &Fleet) -> Portcullis {
    let builder = builder(&fleet.url()).min_replicas(1, PATIENCE);
    builder.build().expect("in range")
}

fn locks(handle: &Portcullis, kind: &str) -> Vec<Mutex> {
    let mutex = handle.mutex("withdraw").ttl(TTL).expect("in range");
    let names = (0..LOCKS).map(|number| format!("{kind}-{number}"));
    names.map(|name| mutex.keyed(name)).collect()
}

fn permits_of(handle: &Portcullis) -> Semaphore {
    let semaphore = handle.semaphore("reports", 2).expect("in range");
    semaphore.ttl(TTL).expect("in range")
}

/// How often clients have asked a node to wait for replicas.
fn waits(node: &Server) -> u64 {
    let info: String = ask(&mut node.connection(), &["INFO", "commandstats"]);
    let calls = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_wait:calls="))
        .and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// How many locks are held, as a node's keys tell.
fn held_at(node: &Server) -> usize {
    let keys: Vec<String> = ask(&mut node.connection(), &["KEYS", "suite:*:m:*"]);
    keys.len()
}

/// Asks again after each failure of an outage.
async fn at_last(gate: &Mutex, mut asked: JoinHandle<Result<MutexGuard, LockError>>) -> MutexGuard {
    loop {
        match within(LIMIT, "it is answered", asked)
            .await
            .expect("no panic")
        {
            Ok(guard) => return guard,
            Err(LockError::Backend(error)) if error.kind().is_outage() => asked = queue(gate),
            Err(error) => panic!("neither granted nor an outage: {error}"),
        }
    }
}

/// Tries each lock by turns, as one who asks for no acknowledgement and gets what the server
/// grants.
fn try_all(gates: Vec<Mutex>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            for gate in &gates {
                // Refused, or away.
                if let Ok(guard) = gate.try_lock().await {
                    panic!("granted twice: {guard:?}");
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

/// R3 with C117: whatever was handed out is known to a replica; whatever was not is handed out by
/// the new master.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn no_lease_that_was_handed_out_is_granted_twice_after_a_crash_of_the_master() {
    let fleet = Fleet::start().await;
    let (a, b, other) = (careful(&fleet), careful(&fleet), handle(&fleet));
    // Granted directly, and by a hand-off.
    let (known, theirs) = (locks(&a, "known"), locks(&b, "known"));
    let mut held = Vec::new();
    for (number, gate) in known.iter().enumerate() {
        if number % 2 == 0 {
            held.push(take(gate).await);
        } else {
            let before = take(&theirs[number]).await;
            let asked = queue(gate);
            until_waiting(&theirs[number], 1).await;
            give_back(before).await;
            held.push(served(asked).await);
        }
    }
    let permits = (take(&permits_of(&a)).await, take(&permits_of(&b)).await);
    let waiters: Vec<_> = theirs.iter().map(queue).collect();
    for gate in &known {
        until_waiting(gate, 1).await;
    }

    // From here on the master is alone, and what it grants is known to nobody.
    let old = &fleet.nodes[0];
    for replica in &fleet.nodes[1..] {
        replica.freeze();
    }
    old.cut_replicas_off().await;
    let late = locks(&a, "late");
    let asked: Vec<_> = late.iter().map(queue).collect();
    eventually("the master grants the late ones", async || {
        held_at(old) == 2 * LOCKS
    })
    .await;
    for asked in &asked {
        assert!(!asked.is_finished(), "handed out though no replica has it");
    }
    let crashed = Instant::now();
    old.kill();
    for replica in &fleet.nodes[1..] {
        replica.thaw();
    }
    let probing = try_all(locks(&other, "known"));
    let (new, switched) = fleet.until_switched(old).await;

    let mut late_held = Vec::new();
    for (gate, asked) in late.iter().zip(asked) {
        late_held.push(at_last(gate, asked).await);
    }
    println!(
        "failover {:?}, what was under way is granted {:?} after it",
        switched - crashed,
        switched.elapsed()
    );
    assert!(waits(new) > 0, "the new master was not asked to wait");
    let late_probing = try_all(locks(&other, "late"));
    // Until all that the new master did not renew is over.
    while crashed.elapsed() < TTL {
        let all = held.iter().chain(&late_held);
        assert!(all.clone().all(MutexGuard::is_held), "a lease was lost");
        assert!(permits.0.is_held() && permits.1.is_held());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let full = refusal(permits_of(&other).try_acquire().await);
    assert_eq!(full.kind(), RefusalKind::Busy);
    for probing in [probing, late_probing] {
        assert!(!probing.is_finished(), "a lock was granted twice");
        probing.abort();
        // What it was in the middle of is a refusal, and has come back.
        let _ = probing.await;
    }

    for (held, waiter) in held.into_iter().zip(waiters) {
        let fence = held.fence();
        assert!(!waiter.is_finished());
        give_back(held).await;
        let next = served(waiter).await;
        assert!(next.fence() > fence, "{} after {fence}", next.fence());
        give_back(next).await;
    }
    for held in late_held {
        give_back(held).await;
    }
    give_back(permits.0).await;
    give_back(permits.1).await;
    eventually("nothing is left", async || {
        crate::leftovers::leftovers(&mut new.connection()).is_empty()
    })
    .await;
    assert_mortal(&fleet.nodes[1..]);
}

/// The connection that waits moves as all others, also from a master that lives on.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn after_a_failover_on_command_the_new_master_is_asked_to_wait_and_the_old_one_is_not() {
    let fleet = Fleet::start().await;
    let gates = careful(&fleet);
    let gate = mutex(&gates);
    let old = &fleet.nodes[0];
    let held = take(&gate).await;
    assert!(waits(old) > 0);
    fleet.until_replicated().await;
    let done: Option<String> = fleet.sentinels[0].ask(&["SENTINEL", "FAILOVER", SERVICE]);
    assert_eq!(done.as_deref(), Some("OK"));
    let (new, switched) = fleet.until_switched(old).await;
    soon(switched, "it listens to the new one", async || {
        inboxes(new) == 1
    })
    .await;
    let before = waits(old);
    assert!(held.is_held());
    give_back(held).await;
    for _ in 0..5 {
        let asked = queue(&gate);
        give_back(at_last(&gate, asked).await).await;
    }
    assert!(waits(new) >= 5, "{} waits", waits(new));
    assert_eq!(waits(old), before);
    assert_mortal(&fleet.nodes);
}
