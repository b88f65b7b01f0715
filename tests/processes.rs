//! Processes that die, hang and come back (C35, C53; faults 10 to 12). The test binary runs itself
//! as the other process.
//!
//! With `PORTCULLIS_SLOW=1` two tests take their full time: the minute that side keys outlive their
//! use, and half a minute of waiting. Without it they show the same in seconds, except that the
//! keys are only shown to have an end.

#[path = "behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
#[path = "behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use portcullis::{Keeping, Mutex, Portcullis, RefusalKind, Semaphore};
use tokio::task::JoinSet;

use common::{LIMIT, LONG, give_back, queue, served, take, until_waiting, within};
use leftovers::{ask, leftovers};
use support::{Other, Server, my_role, say, signal, wait_for};

/// What a pushed grant is worth until its process has spoken, and how long a silent process' places
/// are kept.
const CLAIM: Duration = Duration::from_secs(3);
/// How often a process comes that comes every now and then.
const PAUSE: Duration = Duration::from_millis(300);
/// Much longer than the TTLs beside it.
const DELAY: Duration = Duration::from_secs(5);
/// What a store says that refuses a fencing token smaller than one it has seen.
const FENCED_STORE: &str = "local seen = tonumber(redis.call('GET', KEYS[1]) or 0) \
     if tonumber(ARGV[1]) < seen then return 0 end \
     redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000) return 1";

fn is_slow() -> bool {
    std::env::var_os("PORTCULLIS_SLOW").is_some_and(|value| value == "1")
}

fn handle(url: &str) -> Portcullis {
    let builder = Portcullis::builder().url(url).prefix("suite");
    // Generous: a test machine may be busy.
    builder
        .command_timeout(Duration::from_secs(2))
        .build()
        .expect("a valid configuration")
}

fn mutex(handle: &Portcullis, ttl: Duration) -> Mutex {
    handle.mutex("withdraw").ttl(ttl).expect("in range")
}

fn semaphore(handle: &Portcullis, ttl: Duration) -> Semaphore {
    handle
        .semaphore("reports", 4)
        .expect("in range")
        .ttl(ttl)
        .expect("in range")
}

/// The same, of which a process keeps what it gets.
fn keeping(handle: &Portcullis, ttl: Duration, keeping: Keeping) -> Semaphore {
    let permits = semaphore(handle, ttl).keep_permits(keeping);
    permits.expect("in range")
}

fn write(connection: &mut redis::Connection, fence: u64) -> bool {
    ask::<i64>(
        connection,
        &["EVAL", FENCED_STORE, "1", "store", &fence.to_string()],
    ) == 1
}

/// Starts another process that plays `role`, and waits until it is ready.
fn start(server: &Server, role: &str, ttl: Duration) -> Other {
    Other::start("other_process", role, |command| {
        command
            .env("PORTCULLIS_TEST_URL", server.url())
            .env("PORTCULLIS_TEST_TTL_MS", ttl.as_millis().to_string());
    })
}

/// The other process. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_process() {
    let Some(role) = my_role() else {
        return;
    };
    let url = std::env::var("PORTCULLIS_TEST_URL").expect("set along with the role");
    let ttl = std::env::var("PORTCULLIS_TEST_TTL_MS").expect("set along with the role");
    let ttl = Duration::from_millis(ttl.parse().expect("a number"));
    let handle = handle(&url);
    match role.as_str() {
        "hold all permits" => {
            let _permits = semaphore(&handle, ttl)
                .acquire_many(4)
                .await
                .expect("all are free");
            say("ready");
            std::future::pending::<()>().await;
        }
        "hold the lock" => {
            let _guard = mutex(&handle, ttl).lock().await.expect("it is free");
            say("ready");
            std::future::pending::<()>().await;
        }
        "hold the lock, with a delay" => {
            let mutex = mutex(&handle, ttl).lock_delay(DELAY).expect("in range");
            say("ready");
            let guard = mutex.lock().await.expect("its turn comes");
            say("held");
            say(&format!("{:?}", guard.lost().await));
            drop(guard);
            say(&format!(
                "{:?}",
                handle.shutdown(Duration::ZERO).await.released
            ));
            std::future::pending::<()>().await;
        }
        "hold the lock, and hang" => {
            say("ready");
            let guard = mutex(&handle, ttl).lock().await.expect("it is free");
            let fence = guard.fencing_token().get();
            let client = redis::Client::open(url).expect("a valid URL");
            let mut store = client.get_connection().expect("the server is there");
            assert!(write(&mut store, fence));
            say(&fence.to_string());
            // As a laptop falls asleep: all threads at once, and none knows. The signal takes
            // effect a moment after it was sent.
            let mut before = Instant::now();
            signal(std::process::id(), "STOP");
            while before.elapsed() < ttl / 2 {
                before = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
            }
            say(&guard.is_held().to_string());
            say(&write(&mut store, fence).to_string());
            say(&format!("{:?}", guard.lost().await));
            let released = guard.release().await.expect("the server answers");
            say(&format!("{released:?}"));
            std::future::pending::<()>().await;
        }
        "keep all permits" => {
            let longest = Keeping::default().linger(Duration::from_secs(1));
            let gate = keeping(&handle, ttl, longest);
            // Again and again, since what nobody uses is given back.
            for turn in 0_u64.. {
                let all = [(); 4].map(|()| gate.acquire());
                let _all = futures_util::future::try_join_all(all)
                    .await
                    .expect("nobody else wants one");
                if turn == 1 {
                    say("ready");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        "come every now and then" => {
            let gate = keeping(&handle, ttl, Keeping::default());
            say("ready");
            loop {
                drop(gate.acquire().await.expect("its turn comes"));
                say("done");
                tokio::time::sleep(PAUSE).await;
            }
        }
        "come once, and keep nothing" => {
            let gate = keeping(&handle, ttl, Keeping::default());
            drop(gate.acquire().await.expect("it is free"));
            wait_for("it has lingered", LIMIT, async || gate.kept().lingered == 1).await;
            say("ready");
            std::future::pending::<()>().await;
        }
        "keep all permits, and hang" => {
            let longest = Keeping::default().linger(Duration::from_secs(1));
            let gate = keeping(&handle, ttl, longest);
            say("ready");
            let mut used = Vec::new();
            for _ in 0..4 {
                used.push(gate.acquire().await.expect("it is free"));
            }
            // Two wait for the next request, one is in use again, and one for the first time.
            used.truncate(1);
            used.push(gate.acquire().await.expect("it is kept"));
            assert_eq!((gate.kept().idle, gate.kept().used), (2, 2));
            let mut before = Instant::now();
            signal(std::process::id(), "STOP");
            while before.elapsed() < ttl / 2 {
                before = Instant::now();
                std::thread::sleep(Duration::from_millis(1));
            }
            let next = gate.try_acquire().await;
            say(&format!("{:?}", next.err().map(|error| error.to_string())));
            for permit in used {
                say(&permit.is_held().to_string());
                say(&format!("{:?}", permit.lost().await));
            }
            drop(gate.acquire().await.expect("its turn comes"));
            say("served");
            handle.shutdown(LONG).await;
            say("done");
        }
        "wait five times" => {
            let mutex = mutex(&handle, ttl);
            let mut tasks = JoinSet::new();
            for _ in 0..5 {
                let mutex = mutex.clone();
                tasks.spawn(async move { mutex.lock().await.expect("its turn comes") });
            }
            say("ready");
            while let Some(guard) = tasks.join_next().await {
                let guard = guard.expect("no panic");
                say(&guard.fencing_token().get().to_string());
            }
            handle.shutdown(LONG).await;
            say("done");
        }
        other => panic!("no such role: {other}"),
    }
}

/// A crash of all holders, with a hundred waiters elsewhere (C35).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_of_all_holders_everybody_is_served_when_the_ttl_is_over() {
    const TTL: Duration = Duration::from_secs(5);
    let server = Server::start();
    let mut holder = start(&server, "hold all permits", TTL);
    let handles = [handle(&server.url()), handle(&server.url())];
    let mut waiters = JoinSet::new();
    for number in 0..100 {
        let permits = semaphore(&handles[number % 2], TTL);
        waiters.spawn(async move {
            let permit = permits.acquire().await.expect("its turn comes");
            let served = Instant::now();
            drop(permit);
            served
        });
    }
    until_waiting(&semaphore(&handles[0], TTL), 100).await;
    let killed = Instant::now();
    holder.kill();
    let mut served = within(LIMIT, "all are served", waiters.join_all()).await;
    served.sort();
    let (first, last) = (served[0] - killed, served[99] - killed);
    assert!(first <= TTL + TTL / 10, "the first after {first:?}");
    assert!(last <= TTL + TTL / 4, "the last after {last:?}");
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
    if is_slow() {
        let end = Duration::from_secs(60) + TTL;
        server.wait_until_no_keys("suite:", end).await;
    }
}

/// A holder that died, and one that was paused and wakes while the delay goes on; each has its lease
/// by a direct grant, or by a hand-off.
#[tokio::test]
async fn nobody_follows_a_holder_that_died_or_was_paused_before_its_delay_is_over() {
    const TTL: Duration = Duration::from_millis(1_500);
    let server = Server::start();
    let handle = handle(&server.url());
    for (pauses, by_push) in [(false, false), (true, false), (true, true)] {
        let before = if by_push {
            Some(take(&mutex(&handle, LONG)).await)
        } else {
            None
        };
        let mut holder = start(&server, "hold the lock, with a delay", TTL);
        if let Some(before) = before {
            until_waiting(&mutex(&handle, TTL), 1).await;
            give_back(before).await;
        }
        assert_eq!(holder.hear(), "held");
        let next = queue(&mutex(&handle, TTL));
        until_waiting(&mutex(&handle, TTL), 1).await;
        let ended = Instant::now();
        if pauses {
            holder.stop().await;
            wait_for("its TTL is over", LIMIT, async || ended.elapsed() > TTL).await;
            holder.signal("CONT");
            assert_eq!(holder.hear(), "Expired", "what lost says");
            assert_eq!(holder.hear(), "0", "what its shutdown released");
            assert!(!next.is_finished(), "after {:?}", ended.elapsed());
        } else {
            holder.kill();
        }
        let next = within(LIMIT, "it is served", next).await.expect("no panic");
        let waited = ended.elapsed();
        // It was renewed before it ended, at the latest; without the delay the TTL would be all.
        assert!(waited > DELAY, "{waited:?}");
        assert!(waited < DELAY + TTL + CLAIM, "{waited:?}");
        give_back(next.expect("its turn comes")).await;
    }
    // Where it is given back in time, nobody waits.
    let mutex = mutex(&handle, LONG).lock_delay(DELAY).expect("in range");
    let guard = take(&mutex).await;
    let next = queue(&mutex);
    let begun = Instant::now();
    give_back(guard).await;
    give_back(served(next).await).await;
    assert!(begun.elapsed() < DELAY);
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

/// C35, its variant: the holder and a waiter die together.
#[tokio::test]
async fn after_a_crash_of_holder_and_next_waiter_the_one_behind_them_is_served() {
    const TTL: Duration = Duration::from_secs(2);
    let server = Server::start();
    let mut holder = start(&server, "hold the lock", TTL);
    let handle = handle(&server.url());
    let mut waiter = start(&server, "wait five times", TTL);
    until_waiting(&mutex(&handle, TTL), 5).await;
    let next = queue(&mutex(&handle, TTL));
    until_waiting(&mutex(&handle, TTL), 6).await;
    let killed = Instant::now();
    holder.kill();
    waiter.kill();
    let next = within(LIMIT, "it is served", next).await.expect("no panic");
    // Nothing but the holder's TTL had to pass: the dead waiters listen no longer.
    assert!(killed.elapsed() < TTL + CLAIM, "{:?}", killed.elapsed());
    give_back(next.expect("its turn comes")).await;
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

/// Fault 12.
#[tokio::test]
async fn a_process_that_dies_waiting_holds_nobody_up() {
    let server = Server::start();
    let handle = handle(&server.url());
    let lock = mutex(&handle, LONG);
    let guard = take(&lock).await;
    let mut waiter = start(&server, "wait five times", LONG);
    until_waiting(&lock, 5).await;
    let next = queue(&lock);
    until_waiting(&lock, 6).await;
    waiter.kill();
    give_back(guard).await;
    give_back(served(next).await).await;
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

/// The places of the dead do not keep newcomers out, wherever in the queue they are.
#[tokio::test]
async fn a_queue_full_of_dead_waiters_behind_a_living_one_takes_newcomers() {
    let server = Server::start();
    let handle = handle(&server.url());
    let lock = mutex(&handle, LONG);
    let guard = take(&lock).await;
    let next = queue(&lock);
    until_waiting(&lock, 1).await;
    let mut waiter = start(&server, "wait five times", LONG);
    until_waiting(&lock, 6).await;
    let newcomer = lock
        .clone()
        .max_waiters(6)
        .max_wait(Duration::from_millis(50));
    let full = common::refusal(newcomer.lock().await);
    assert_eq!(full.kind(), RefusalKind::QueueFull);
    waiter.kill();
    wait_for("a newcomer may wait", LIMIT, async || {
        common::refusal(newcomer.lock().await).kind() == RefusalKind::WaitedTooLong
    })
    .await;
    give_back(guard).await;
    give_back(served(next).await).await;
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

/// C53, fault 10.
#[tokio::test]
async fn a_holder_that_slept_through_its_ttl_knows_it_and_its_writes_are_refused() {
    const TTL: Duration = Duration::from_secs(2);
    let server = Server::start();
    let handle = handle(&server.url());
    let mut store = server.connection();
    for _ in 0..3 {
        let sleeper = start(&server, "hold the lock, and hang", TTL);
        let old: u64 = sleeper.hear().parse().expect("a fencing token");
        sleeper.until_stopped().await;
        let guard = served(queue(&mutex(&handle, TTL))).await;
        let fence = guard.fencing_token().get();
        assert!(fence > old);
        assert!(write(&mut store, fence));
        sleeper.signal("CONT");
        assert_eq!(sleeper.hear(), "false", "its first is_held");
        assert_eq!(sleeper.hear(), "false", "its write");
        assert_eq!(sleeper.hear(), "Expired", "what lost says");
        assert_eq!(sleeper.hear(), "NoLongerHeld", "what release says");
        assert!(guard.is_held(), "{guard:?}");
        assert!(write(&mut store, fence));
        give_back(guard).await;
    }
    let mut connection = server.connection();
    ask::<i64>(&mut connection, &["DEL", "store"]);
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_process_that_hangs_costs_one_claim_however_many_wait_in_it() {
    // Shorter than the time for which the process still counts as alive: that alone would not spare
    // the others its next claims.
    const TTL: Duration = Duration::from_millis(1_500);
    let server = Server::start();
    let handle = handle(&server.url());
    let lock = mutex(&handle, LONG);
    let guard = take(&lock).await;
    let sleeper = start(&server, "wait five times", TTL);
    until_waiting(&lock, 5).await;
    let next = queue(&lock);
    until_waiting(&lock, 6).await;
    sleeper.stop().await;
    let begun = Instant::now();
    let mut connection = server.connection();
    let keys = server.keys_with("suite:").await;
    let main = keys
        .iter()
        .find(|key| key.contains("}:m:"))
        .expect("it is held")
        .clone();
    let ours: String = ask(&mut connection, &["GET", &main]);
    give_back(guard).await;
    let mut claims = HashSet::new();
    wait_for("the living one is served", LIMIT, async || {
        let holder: Option<String> = ask(&mut connection, &["GET", &main]);
        // The first characters of a token are its process'.
        claims.extend(holder.filter(|holder| holder[..12] != ours[..12]));
        next.is_finished()
    })
    .await;
    let next = next.await.expect("no panic").expect("its turn comes");
    assert_eq!(
        claims.len(),
        1,
        "as many claims were given to a process that hangs"
    );
    assert!(begun.elapsed() < 2 * CLAIM, "{:?}", begun.elapsed());
    // And when it wakes, all of its waiters are served, though their places may have been given up.
    let fence = next.fencing_token().get();
    sleeper.signal("CONT");
    give_back(next).await;
    for _ in 0..5 {
        let later: u64 = sleeper.hear().parse().expect("a fencing token");
        assert!(later > fence);
    }
    assert_eq!(sleeper.hear(), "done");
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

/// C25: what waits costs a process's heartbeat, and nothing more for each that waits in it.
#[tokio::test]
async fn a_hundred_waiters_cost_no_more_calls_than_two() {
    const TTL: Duration = Duration::from_secs(10);
    let time = Duration::from_secs(if is_slow() { 30 } else { 6 });
    let server = Server::start();
    let handles = [handle(&server.url()), handle(&server.url())];
    let guard = take(&mutex(&handles[0], TTL)).await;
    let mut waiters = JoinSet::new();
    for number in 0..100 {
        let lock = mutex(&handles[number % 2], TTL);
        waiters.spawn(async move { drop(lock.lock().await.expect("its turn comes")) });
    }
    until_waiting(&mutex(&handles[1], TTL), 100).await;
    let (before, begun) = (server.script_calls().await, Instant::now());
    let busy = cpu_time();
    wait_for("time has passed", 2 * LIMIT, async || {
        begun.elapsed() > time
    })
    .await;
    let calls = server.script_calls().await - before;
    let busy = cpu_time() - busy;
    let seconds = begun.elapsed().as_secs_f64();
    let allowed = 2.0 * (seconds / (CLAIM / 3).as_secs_f64() + seconds / (TTL / 3).as_secs_f64());
    eprintln!("{calls} calls in {seconds:.1} s, {busy:?} of processor time");
    assert!(
        calls as f64 <= allowed + 10.0,
        "{calls} calls, {allowed:.1} + 10 allowed"
    );
    assert!(guard.is_held());
    give_back(guard).await;
    within(LIMIT, "all are served", waiters.join_all()).await;
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

/// A crash with permits at home: they are missing for as long as those of any holder.
#[tokio::test]
async fn after_a_crash_what_was_kept_is_free_when_the_rest_of_its_ttl_is_over() {
    const TTL: Duration = Duration::from_secs(3);
    let server = Server::start();
    let handle = handle(&server.url());
    let mut keeper = start(&server, "keep all permits", TTL);
    let killed = Instant::now();
    keeper.kill();
    let all = semaphore(&handle, TTL);
    let busy = common::refusal(all.try_acquire().await);
    assert_eq!(busy.kind(), RefusalKind::Busy);
    let permits = within(LIMIT, "they are free", all.acquire_many(4)).await;
    let waited = killed.elapsed();
    assert!(waited <= TTL + TTL / 4, "{waited:?}");
    give_back(permits.expect("its turn comes")).await;
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_process_that_dies_when_it_has_had_nothing_to_do_costs_nobody_anything() {
    let server = Server::start();
    let handle = handle(&server.url());
    for _ in 0..3 {
        let mut idle = start(&server, "come once, and keep nothing", LONG);
        idle.kill();
        let all = semaphore(&handle, LONG).max_wait(Duration::ZERO);
        give_back(all.acquire_many(4).await.expect("all are free at once")).await;
    }
}

/// Where a request comes every 300 ms and its permit is kept for 50 ms, a crash at any moment costs
/// others something in two of ten cases.
#[tokio::test]
async fn a_process_that_dies_with_little_to_do_mostly_costs_nobody_anything() {
    const TRIES: u32 = 10;
    let server = Server::start();
    let handle = handle(&server.url());
    let mut at_once = 0;
    for number in 0..TRIES {
        let mut other = start(&server, "come every now and then", LONG);
        assert_eq!(other.hear(), "done");
        assert_eq!(other.hear(), "done");
        tokio::time::sleep(PAUSE * (2 * number + 1) / (2 * TRIES)).await;
        other.kill();
        let all = semaphore(&handle, LONG).max_wait(Duration::ZERO);
        match all.acquire_many(4).await {
            Ok(permits) => {
                at_once += 1;
                give_back(permits).await;
            }
            // So that it costs the next one nothing.
            Err(_) => drop(server.command(&["FLUSHALL"]).await),
        }
    }
    eprintln!("at once after {at_once} of {TRIES} crashes");
    // It is 8 on an idle machine.
    assert!(at_once >= TRIES / 2, "{at_once} of {TRIES}");
}

/// C53 where permits are kept: none of them is used again, whether it was in use or not.
#[tokio::test]
async fn a_process_that_slept_through_the_ttl_of_what_it_keeps_uses_none_of_it() {
    const TTL: Duration = Duration::from_secs(2);
    let server = Server::start();
    let handle = handle(&server.url());
    for _ in 0..3 {
        let sleeper = start(&server, "keep all permits, and hang", TTL);
        sleeper.until_stopped().await;
        let all = semaphore(&handle, LONG);
        let permits = within(LIMIT, "they are free", all.acquire_many(4)).await;
        let permits = permits.expect("its turn comes");
        sleeper.signal("CONT");
        let tried = sleeper.hear();
        assert!(tried.starts_with("Some("), "one more got in: {tried}");
        for _ in 0..2 {
            assert_eq!(sleeper.hear(), "false", "its is_held");
            assert_eq!(sleeper.hear(), "Expired", "what lost says");
        }
        assert!(permits.is_held());
        give_back(permits).await;
        assert_eq!(sleeper.hear(), "served");
        assert_eq!(sleeper.hear(), "done");
    }
    let mut connection = server.connection();
    wait_for("nothing is left", LIMIT, async || {
        leftovers(&mut connection).is_empty()
    })
    .await;
}

/// What this process has computed so far. Others run tests beside it, so it is only told.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit_once(") ")
        .map(|(_, fields)| fields)
        .unwrap_or_default();
    let ticks = fields
        .split(' ')
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}
