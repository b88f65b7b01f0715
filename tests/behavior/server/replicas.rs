//! Leases that count only when replicas have them: `Builder::min_replicas`.

use std::time::{Duration, Instant};

use portcullis::{BackendErrorKind, LostReason, Mutex, MutexGuard, Portcullis};
use tokio::task::JoinSet;

use super::mutex;
use crate::common::{
    LIMIT, LONG, all_done, failure, give_back, promptly, queue, refusal, served, take, within,
};
use crate::leftovers::{ask, leftovers};
use crate::support::{Server, wait_for};

/// How long replicas have: long enough for a busy machine.
const PATIENCE: Duration = Duration::from_millis(1_200);

fn handle(server: &Server) -> Portcullis {
    let builder = Portcullis::builder()
        .url(server.url())
        .prefix("suite")
        .command_timeout(Duration::from_secs(2))
        .min_replicas(1, PATIENCE);
    builder.build().expect("a valid configuration")
}

/// One that asks for no acknowledgement.
fn trusting(server: &Server) -> Portcullis {
    let builder = Portcullis::builder()
        .url(server.url())
        .prefix("suite")
        .command_timeout(Duration::from_secs(2));
    builder.build().expect("a valid configuration")
}

fn pair() -> (Server, Server) {
    let master = Server::start_master();
    let replica = Server::start_replica(&master);
    (master, replica)
}

/// What the one lock's key says there, if there is one.
async fn held_at(server: &Server) -> Option<String> {
    let keys = server.keys_with("suite:").await;
    let key = keys.iter().find(|key| key.contains("}:m:"))?;
    ask(&mut server.connection(), &["GET", key])
}

async fn until_nothing_is_left(server: &Server) {
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

/// How often clients have asked the server to wait for replicas.
async fn waits(server: &Server) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).await;
    let info: String = redis::from_redis_value(info).expect("a text");
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
    line.map_or(0, |rest| {
        let calls = rest.split(',').next().expect("a number");
        calls.parse().expect("a number")
    })
}

async fn refused(mutex: &Mutex) {
    let error = failure(within(LIMIT, "it is refused", mutex.lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Refused, "{error}");
    assert!(error.is_outage());
    let text = error.to_string();
    assert!(text.contains("0 of 1 replicas acknowledged"), "{text}");
}

#[tokio::test]
async fn who_is_let_in_is_known_to_a_replica_at_that_moment_also_after_a_hand_off() {
    let (master, replica) = pair();
    let (a, b) = (mutex(&handle(&master)), mutex(&handle(&master)));
    let mut guard = take(&a).await;
    for round in 0..20 {
        let known = held_at(&replica).await.expect("the replica has it");
        let fence = guard.fencing_token().get().to_string();
        assert!(known.ends_with(&fence), "{known}, fence {fence}");
        let next = queue(if round % 2 == 0 { &b } else { &a });
        give_back(guard).await;
        guard = served(next).await;
    }
    give_back(guard).await;
    until_nothing_is_left(&master).await;
}

#[tokio::test]
async fn without_a_replica_a_lock_is_refused_and_given_back() {
    let master = Server::start();
    let handle = handle(&master);
    refused(&mutex(&handle)).await;
    until_nothing_is_left(&master).await;
    let error = failure(mutex(&handle).try_lock().await);
    assert_eq!(error.kind(), BackendErrorKind::Refused, "{error}");
    let permits = super::semaphore(&handle, 2);
    let error = failure(permits.acquire().await);
    assert_eq!(error.kind(), BackendErrorKind::Refused, "{error}");
    let exact = handle.mutex_at("payment");
    let error = failure(exact.lock().await);
    assert_eq!(error.kind(), BackendErrorKind::Refused, "{error}");
    until_nothing_is_left(&master).await;
}

#[tokio::test]
async fn while_the_replica_is_stopped_locks_are_refused_and_when_it_is_back_they_are_served() {
    let (master, replica) = pair();
    let gate = mutex(&handle(&master));
    give_back(take(&gate).await).await;
    replica.freeze();
    refused(&gate).await;
    until_nothing_is_left(&master).await;
    replica.thaw();
    wait_for("it is served again", LIMIT, async || {
        gate.lock().await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_hand_off_that_no_replica_has_is_refused_and_given_back() {
    let (master, replica) = pair();
    let (a, b) = (mutex(&handle(&master)), mutex(&handle(&master)));
    let guard = take(&a).await;
    let next = queue(&b);
    crate::common::until_waiting(&trusting(&master).mutex("withdraw"), 1).await;
    replica.freeze();
    give_back(guard).await;
    let error = failure(
        within(LIMIT, "it is refused", next)
            .await
            .expect("no panic"),
    );
    assert_eq!(error.kind(), BackendErrorKind::Refused, "{error}");
    until_nothing_is_left(&master).await;
}

#[tokio::test]
async fn a_future_that_is_dropped_meanwhile_leaves_nothing() {
    let (master, replica) = pair();
    let gate = mutex(&handle(&master));
    give_back(take(&gate).await).await;
    replica.freeze();
    let next = queue(&gate);
    wait_for("it is granted", LIMIT, async || {
        held_at(&master).await.is_some()
    })
    .await;
    next.abort();
    until_nothing_is_left(&master).await;
    assert!(next.await.expect_err("it was aborted").is_cancelled());
}

#[tokio::test]
async fn a_lease_lasts_as_long_as_the_replica_knows_and_not_longer() {
    const TTL: Duration = Duration::from_secs(3);
    let (master, replica) = pair();
    let gate = mutex(&handle(&master)).ttl(TTL).expect("in range");
    let guard = take(&gate).await;
    let begun = Instant::now();
    wait_for("two TTLs have passed", LIMIT, async || {
        assert!(guard.is_held());
        begun.elapsed() > 2 * TTL
    })
    .await;
    let stopped = Instant::now();
    replica.freeze();
    // The server goes on to renew it, and nobody but the server knows.
    let reason = within(LIMIT, "it is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    let lasted = stopped.elapsed();
    assert!(lasted <= TTL + TTL / 5, "{lasted:?}");
    assert!(lasted >= TTL / 3, "{lasted:?}");
}

/// What a wait covers is what its own connection wrote, from Redis 7.2 on: a renewal that finds its
/// lease long enough would wait for nothing.
#[tokio::test]
async fn a_renewal_that_has_nothing_to_write_is_not_taken_for_acknowledged() {
    const TTL: Duration = Duration::from_secs(2);
    let (master, replica) = pair();
    let gate = mutex(&handle(&master)).ttl(TTL).expect("in range");
    let guard = take(&gate).await;
    let begun = Instant::now();
    wait_for("it was renewed", LIMIT, async || {
        assert!(guard.is_held());
        begun.elapsed() > TTL
    })
    .await;
    replica.freeze();
    // The lock's own key, and the clock beside it.
    for key in master.keys_with("suite:{").await {
        master.command(&["PEXPIRE", &key, "3600000"]).await;
    }
    let reason = within(LIMIT, "it is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
}

#[tokio::test]
async fn a_failover_keeps_every_lease_that_was_handed_out() {
    let (master, replica) = pair();
    let a = mutex(&handle(&master));
    let mut guards: Vec<MutexGuard> = Vec::new();
    for number in 0..20_u32 {
        guards.push(take(&a.keyed(number)).await);
    }
    // Some of them by hand-off.
    let mut tasks = JoinSet::new();
    for number in 0..10_u32 {
        let gate = a.keyed(number);
        tasks.spawn(async move { gate.lock().await.expect("its turn comes") });
    }
    for number in 0..10_u64 {
        let trusting = trusting(&master).mutex("withdraw").keyed(number);
        crate::common::until_waiting(&trusting, 1).await;
    }
    for guard in guards.drain(..10) {
        give_back(guard).await;
    }
    guards.extend(all_done(tasks).await);
    // Nothing gets to the replica any more, and these are not handed out.
    replica.freeze();
    master.cut_replicas_off().await;
    let mut tasks = JoinSet::new();
    for number in 20..30_u32 {
        let gate = a.keyed(number);
        tasks.spawn(async move { failure(gate.lock().await).kind() });
    }
    let kinds = all_done(tasks).await;
    assert!(
        kinds.iter().all(|kind| *kind == BackendErrorKind::Refused),
        "{kinds:?}"
    );
    master.kill();
    replica.thaw();
    replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    let b = mutex(&trusting(&replica));
    for number in 0..20_u32 {
        let found = refusal(b.keyed(number).try_lock().await);
        assert_eq!(found.kind(), portcullis::RefusalKind::Busy);
    }
    assert!(guards.iter().all(MutexGuard::is_held));
    for number in 20..30_u32 {
        give_back(take(&b.keyed(number)).await).await;
    }
}

/// Why the option is there: the same without it.
#[tokio::test]
async fn a_failover_may_forget_a_lease_that_nobody_acknowledged() {
    let (master, replica) = pair();
    let a = mutex(&trusting(&master));
    replica.freeze();
    master.cut_replicas_off().await;
    let guard = take(&a).await;
    master.kill();
    replica.thaw();
    replica.command(&["REPLICAOF", "NO", "ONE"]).await;
    let other = take(&mutex(&trusting(&replica))).await;
    assert!(guard.is_held() && other.is_held(), "both hold");
    assert!(
        other.fencing_token() > guard.fencing_token(),
        "which a resource can tell"
    );
}

#[tokio::test]
async fn however_many_wait_for_replicas_they_share_a_few_waits() {
    const LOCKS: usize = 200;
    let (master, replica) = pair();
    let builder = Portcullis::builder().url(master.url()).prefix("suite");
    // Until all have their turns.
    let builder = builder.min_replicas(1, LIMIT);
    let gate = mutex(&builder.build().expect("in range"));
    give_back(take(&gate).await).await;
    replica.freeze();
    let before = waits(&master).await;
    let mut tasks = JoinSet::new();
    for number in 0..LOCKS {
        let gate = gate.keyed(number);
        tasks.spawn(async move { gate.lock().await.expect("a replica has it in the end") });
    }
    wait_for("all are granted", LIMIT, async || {
        let keys = master.keys_with("suite:").await;
        keys.iter().filter(|key| key.contains("}:m:")).count() == LOCKS
    })
    .await;
    replica.thaw();
    let guards = all_done(tasks).await;
    let waited = waits(&master).await - before;
    assert!(
        (1..=8).contains(&waited),
        "{waited} waits for {LOCKS} locks"
    );
    drop(guards);
    until_nothing_is_left(&master).await;
}

#[tokio::test]
async fn a_server_without_memory_goes_on_with_what_is_held() {
    const TTL: Duration = Duration::from_secs(2);
    let (master, _replica) = pair();
    let gate = mutex(&handle(&master)).ttl(TTL).expect("in range");
    let guard = take(&gate).await;
    master.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let begun = Instant::now();
    wait_for("three TTLs have passed", LIMIT, async || {
        assert!(guard.is_held(), "after {:?}", begun.elapsed());
        begun.elapsed() > 3 * TTL
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_breaks_is_replaced() {
    let (master, replica) = pair();
    let gate = mutex(&handle(&master));
    let guard = take(&gate).await;
    for _ in 0..5 {
        // Also one that is waited on, by another lock.
        replica.freeze();
        let other = queue(&gate.keyed("other"));
        let before = waits(&master).await;
        wait_for("it has its turn", LIMIT, async || {
            held_at(&master).await.is_some() && waits(&master).await >= before
        })
        .await;
        master.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        replica.thaw();
        // Whatever became of it, nothing of it stays, and the next is served.
        let _ = within(LIMIT, "it is answered", other)
            .await
            .expect("no panic");
        wait_for("the next is served", LIMIT, async || {
            gate.keyed("other").lock().await.is_ok()
        })
        .await;
    }
    assert!(guard.is_held());
    give_back(guard).await;
    until_nothing_is_left(&master).await;
}

#[tokio::test]
async fn a_script_flush_goes_unnoticed() {
    let (master, _replica) = pair();
    let gate = mutex(&handle(&master));
    for _ in 0..3 {
        let guard = take(&gate).await;
        master.command(&["SCRIPT", "FLUSH"]).await;
        give_back(guard).await;
    }
    until_nothing_is_left(&master).await;
}

#[tokio::test]
async fn a_look_tells_of_replicas_that_are_missing_and_of_the_right_to_wait_for_them() {
    let master = Server::start_master();
    let user = "ACL SETUSER suite on >secret resetchannels resetkeys -@all ~suite:* &suite:inbox:* \
                +evalsha +eval +script|exists +script|load +info +subscribe +ping +del +exists +get +hdel +hget \
                +hmget +hset +mget +pexpire +pttl +publish +set +time +zadd +zcard +zmscore +zrange \
                +zrangebyscore +zrank +zrem +zremrangebyscore +zscore";
    let words: Vec<&str> = user.split_whitespace().collect();
    // Old servers know no parts of commands that are allowed.
    master.command(&words).await;
    let builder = Portcullis::builder()
        .url(format!("redis://suite:secret@127.0.0.1:{}/", master.port()))
        .prefix("suite")
        .command_timeout(Duration::from_secs(2))
        .min_replicas(1, PATIENCE);
    let gates = builder.build().expect("a valid configuration");
    let told = gates.check().await.expect("it answers").to_string();
    assert!(told.contains("0 of the 1 replicas"), "{told}");
    assert!(told.contains("lacks `+wait`"), "{told}");
    let error = failure(promptly("it is told", mutex(&gates).lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::NotPermitted, "{error}");
    assert!(error.to_string().contains("`+wait` is missing"), "{error}");
    until_nothing_is_left(&master).await;

    let _replica = Server::start_replica(&master);
    master.command(&["ACL", "SETUSER", "suite", "+wait"]).await;
    wait_for("it is online", LIMIT, async || {
        let told = gates.check().await.expect("it answers").to_string();
        !told.contains("replicas are in reach") && !told.contains("+wait")
    })
    .await;
    give_back(take(&mutex(&gates)).await).await;
    until_nothing_is_left(&master).await;
}

#[tokio::test]
async fn settings_out_of_range_are_named() {
    for (least, timeout, field) in [
        (0, PATIENCE, "min_replicas"),
        (17, PATIENCE, "min_replicas"),
        (1, Duration::ZERO, "the timeout of min_replicas"),
        (1, 2 * LONG + PATIENCE, "the timeout of min_replicas"),
    ] {
        let builder = Portcullis::builder().min_replicas(least, timeout);
        let error = builder.build().expect_err("out of range");
        assert_eq!(error.field(), field);
    }
}
