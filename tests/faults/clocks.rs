//! Clocks that jump (faults 30 and 31).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portcullis::{LockError, LostReason, Mutex, MutexGuard, SemaphorePermit};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::common::{
    LIMIT, LONG, PROMPT, give_back, promptly, queue, served, served_within, take, until_waiting,
    waiting, within,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{FakeClock, Mode, Proxy, Server, say, wait_for};
use crate::{
    CLAIM, SOON, assert_later, handle, key, mutex, plain_mutex, plain_semaphore, semaphore, start,
    through, throughout, write,
};

const HOUR: i64 = 3_600;

/// A server, and its clock.
fn start_by_a_clock() -> (ServerRig, FakeClock) {
    let clock = FakeClock::start();
    let server = Server::start_by(&clock);
    (ServerRig::on(server), clock)
}

/// The server's clock, in seconds.
fn time(rig: &ServerRig) -> i64 {
    let (seconds, _): (i64, i64) = ask(&mut rig.server.connection(), &["TIME"]);
    seconds
}

/// Sets the server's clock, and sees that it is.
async fn jump(rig: &ServerRig, clock: &FakeClock, ahead: i64) {
    clock.set(ahead);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    let wall = i64::try_from(wall.unwrap_or_default().as_secs()).unwrap_or(0);
    wait_for("the clock is set", PROMPT, async || {
        (time(rig) - wall - ahead).abs() < 20
    })
    .await;
}

/// A mutex and a semaphore that one handle holds and another waits for.
struct Contested {
    /// The holder's.
    lock: Mutex,
    /// The other's, which tells how many wait.
    seen: Mutex,
    held: (MutexGuard, SemaphorePermit),
    next: (Turn<MutexGuard>, Turn<SemaphorePermit>),
}

type Turn<T> = JoinHandle<Result<T, LockError>>;

async fn contested(rig: &ServerRig) -> Contested {
    let (ours, theirs) = (rig.handle(), rig.handle());
    let (lock, other) = (mutex(&ours, SOON), mutex(&theirs, SOON));
    let permits = [&ours, &theirs].map(|handle| semaphore(handle, 1, SOON));
    let seen = plain_mutex(&theirs, SOON);
    let held = (take(&lock).await, take(&permits[0]).await);
    let next = (queue(&other), queue(&permits[1]));
    until_waiting(&seen, 1).await;
    until_waiting(&plain_semaphore(&theirs, 1, SOON), 1).await;
    Contested {
        lock,
        seen,
        held,
        next,
    }
}

/// Fault 30; M3, M4: the lease is over by the server's clock, and its holder can't know yet. What is
/// written by it is refused.
#[tokio::test]
#[ignore = "needs libfaketime: `scripts/test --faults`"]
async fn a_clock_that_jumps_ahead_ends_leases_early_and_fences_tell_who_is_late() {
    let (rig, clock) = start_by_a_clock();
    let Contested {
        held: (guard, permit),
        next: (next, next_permit),
        ..
    } = contested(&rig).await;
    let lost = tokio::spawn({
        let (lost, also) = (guard.lost(), permit.lost());
        async move { (lost.await, also.await) }
    });
    jump(&rig, &clock, 61).await;
    let both = async { tokio::join!(next, next_permit) };
    let (next, next_permit) = within(2 * CLAIM, "their turns come", both).await;
    let next = next.expect("no panic").expect("its turn comes");
    let next_permit = next_permit.expect("no panic").expect("its turn comes");
    let mut store = rig.server.connection();
    assert!(write(&mut store, next.fencing_token().get()));
    assert!(!write(&mut store, guard.fencing_token().get()));
    assert_later(&next_permit, permit.fencing_token().get());
    // And by the next renewal the old holder knows.
    let told = within(SOON, "the loss is told", lost).await;
    assert_eq!(
        told.expect("no panic"),
        (LostReason::Gone, LostReason::Gone)
    );
    assert!(!guard.is_held() && !permit.is_held());
    assert!(next.is_held() && next_permit.is_held());
    drop((guard, permit));
    throughout(2 * SOON, "they are held", || {
        next.is_held() && next_permit.is_held()
    })
    .await;
    give_back(next).await;
    give_back(next_permit).await;
    ask::<i64>(&mut store, &["DEL", "store"]);
    rig.settled().await;
}

/// Fault 30; M1, M3, L1: whoever lives goes on as before.
#[tokio::test]
#[ignore = "needs libfaketime: `scripts/test --faults`"]
async fn a_clock_that_is_set_back_costs_the_living_nothing() {
    let (rig, clock) = start_by_a_clock();
    let Contested {
        lock,
        seen,
        held: (guard, permit),
        next: (next, next_permit),
    } = contested(&rig).await;
    jump(&rig, &clock, -HOUR).await;
    throughout(2 * SOON, "they are held", || {
        guard.is_held() && permit.is_held() && !next.is_finished() && !next_permit.is_finished()
    })
    .await;
    let fences = (guard.fencing_token(), permit.fencing_token());
    give_back(guard).await;
    give_back(permit).await;
    let (next, next_permit) = (served(next).await, served(next_permit).await);
    assert!(next.fencing_token() > fences.0);
    assert_later(&next_permit, fences.1.get());
    // A claim in the past becomes a whole lease, and lasts.
    throughout(SOON, "they are held", || {
        next.is_held() && next_permit.is_held()
    })
    .await;
    // A wait that begins now is served as any other.
    let last = queue(&lock);
    until_waiting(&seen, 1).await;
    let fence = next.fencing_token();
    give_back(next).await;
    give_back(next_permit).await;
    let last = served(last).await;
    assert!(last.fencing_token() > fence);
    give_back(last).await;
    // What is kept for a next request the server has back a moment later, and by the same clock.
    wait_for("all is given back", LIMIT, async || {
        key(&rig, "s").await.is_none()
    })
    .await;
    clock.set(0);
    rig.settled().await;
}

/// Fault 30; L1: a handle that knew the time a moment ago, and is wrong now.
#[tokio::test]
#[ignore = "needs libfaketime: `scripts/test --faults`"]
async fn a_clock_that_jumps_costs_newcomers_nothing() {
    let (rig, clock) = start_by_a_clock();
    let ours = rig.handle();
    let (lock, other) = (mutex(&ours, LONG), mutex(&rig.handle(), LONG));
    for ahead in [61, 0, -HOUR, HOUR, 0] {
        // Both have heard of the time before it changes.
        for lock in [&lock, &other] {
            give_back(take(lock).await).await;
        }
        jump(&rig, &clock, ahead).await;
        let tried = promptly("a try ends", lock.try_lock()).await;
        let guard = tried.unwrap_or_else(|error| panic!("{ahead}: {error}"));
        assert_eq!(waiting(&other).await, Some(0), "{ahead}");
        let next = queue(&other);
        until_waiting(&plain_mutex(&ours, LONG), 1).await;
        give_back(guard).await;
        give_back(served(next).await).await;
    }
    clock.set(0);
}

/// Fault 30; L2, as far as it goes: nobody can tell how long ago a lease was made that lies in the
/// future. Its gate is free again when the clock says so.
#[tokio::test]
#[ignore = "needs libfaketime: `scripts/test --faults`"]
async fn a_clock_that_is_set_back_keeps_what_dead_holders_left_until_it_has_caught_up() {
    let (rig, clock) = start_by_a_clock();
    let proxy = Proxy::start(rig.server.port());
    let dead = through(&proxy).build().expect("valid");
    let guard = take(&mutex(&dead, SOON)).await;
    proxy.set(Mode::BlackHole);
    jump(&rig, &clock, -HOUR).await;
    // The holder itself is not misled.
    let reason = within(SOON + PROMPT, "its loss is told", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    let main = key(&rig, "m").await.expect("it stays");
    let left: i64 = ask(&mut rig.server.connection(), &["PTTL", &main]);
    assert!(
        (1_000 * (HOUR - 60)..=1_000 * (HOUR + 60)).contains(&left),
        "{left} ms"
    );
    let next = queue(&mutex(&rig.handle(), SOON));
    until_waiting(&mutex(&rig.handle(), SOON), 1).await;
    jump(&rig, &clock, 0).await;
    let next = served_within(2 * CLAIM + SOON, next).await;
    assert!(next.fencing_token() > guard.fencing_token());
    give_back(next).await;
    drop(guard);
    proxy.set(Mode::Pass);
    rig.settled().await;
}

/// A holder's TTL, by a clock of its own that is wrong.
const TTL: Duration = Duration::from_secs(2);

/// The role of a holder that lives by a wrong clock.
pub(crate) fn hold_by_a_wrong_clock(url: &str) {
    let gates = handle(url);
    let runtime = Runtime::new().expect("the system has room for a runtime");
    runtime.block_on(async {
        let lock = mutex(&gates, TTL);
        let guard = lock.lock().await.expect("it is free");
        say("ready");
        let wall = || {
            let wall = SystemTime::now().duration_since(UNIX_EPOCH);
            wall.unwrap_or_default().as_secs()
        };
        let mut before = wall();
        loop {
            // Told each time that its clock has jumped.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = wall();
            if now.abs_diff(before) > 600 {
                say(&format!("jumped by {}", now as i64 - before as i64));
                // Whatever it does by then is as it was: holding, taking, waiting for an end.
                let begun = std::time::Instant::now();
                while begun.elapsed() < 3 * TTL / 2 {
                    assert!(guard.is_held());
                    assert!(guard.remaining() <= TTL);
                    let free = lock.keyed("free").lock().await.expect("it is free");
                    give_back(free).await;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let short = lock.clone().max_wait(Duration::from_millis(300));
                let begun = std::time::Instant::now();
                short.lock().await.expect_err("it is held");
                assert!(begun.elapsed() >= Duration::from_millis(300));
                assert!(begun.elapsed() < Duration::from_secs(3));
                say(&format!("held: {}", guard.is_held()));
            }
            before = now;
        }
    });
}

/// Fault 31; M4.
#[tokio::test]
#[ignore = "needs libfaketime: `scripts/test --faults`"]
async fn a_clients_wall_clock_may_jump_as_it_likes() {
    let rig = ServerRig::start();
    let clock = FakeClock::start();
    let other = start(&rig.server, "hold by a wrong clock", |command| {
        clock.rules(command);
    });
    clock.ruled(other.pid());
    let ours = rig.handle();
    let next = queue(&mutex(&ours, TTL));
    until_waiting(&plain_mutex(&ours, TTL), 1).await;
    for ahead in [HOUR, -HOUR, 400 * 24 * HOUR, 0] {
        clock.set(ahead);
        let jumped = other.hear();
        assert!(jumped.starts_with("jumped by "), "{jumped}");
        assert_eq!(other.hear(), "held: true", "{ahead}");
        assert!(!next.is_finished());
    }
    drop(other);
    give_back(served_within(TTL + 2 * CLAIM, next).await).await;
    let settled = async { rig.settled().await };
    within(LIMIT, "nothing is left", settled).await;
}
