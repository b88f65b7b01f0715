//! What a lease tells while a thread stands still for a while between two of its steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;

use super::super::Memory;
use crate::key::Prefix;
use crate::lease::LeaseMode;
use crate::mutex::MutexGuard;
use crate::portcullis::Portcullis;
use crate::time::{Clock, Instant};

const MS: u64 = 1_000_000;
const TTL: Duration = Duration::from_millis(60);
/// No stall is to come.
const NEVER: u64 = u64::MAX;

/// A thread stands still after one of its readings of the clock, and meanwhile another looks at
/// the lease.
#[derive(Default)]
struct Stage {
    now: AtomicU64,
    /// After how many more readings it stands still, and for how long.
    stalls_in: AtomicU64,
    stall: AtomicU64,
    lease: Mutex<Option<Arc<MutexGuard>>>,
    /// Until when the lease was said to hold, in the order in which that was told.
    told: Mutex<Vec<u64>>,
}

impl Stage {
    fn read(&self) -> Instant {
        let now = self.now.load(Ordering::SeqCst);
        let stalls_in = self.stalls_in.load(Ordering::SeqCst);
        if stalls_in != NEVER {
            // Past zero it is `NEVER`: who looks meanwhile does not stand still.
            self.stalls_in
                .store(stalls_in.wrapping_sub(1), Ordering::SeqCst);
        }
        if stalls_in == 0 {
            self.advance(self.stall.load(Ordering::SeqCst));
            self.look();
        }
        Instant::from_nanos(now)
    }

    fn advance(&self, by: u64) {
        self.now.fetch_add(by, Ordering::SeqCst);
    }

    fn look(&self) {
        let lease = lock(&self.lease).clone();
        if let Some(lease) = lease {
            let left = u64::try_from(lease.remaining().as_nanos()).expect("it is short");
            let until = self.now.load(Ordering::SeqCst) + left;
            lock(&self.told).push(until);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays an outage in which a thread stands still for `stall` ns after its reading `number`.
/// False if there are not so many readings.
fn outage_with_stall(mode: LeaseMode, before: u64, number: u64, stall: u64) -> bool {
    let stage = Arc::new(Stage::default());
    stage.stalls_in.store(NEVER, Ordering::SeqCst);
    stage.stall.store(stall, Ordering::SeqCst);
    let clock = Arc::clone(&stage);
    let memory = Memory::new(Clock::made(move || clock.read()));
    let mutex = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
    let mutex = mutex.ttl(TTL).expect("it is in range");
    let mutex = mutex.lease(mode).expect("it is in range");
    let guard = mutex.lock().now_or_never().expect("at once");
    let guard = Arc::new(guard.expect("nobody holds"));
    *lock(&stage.lease) = Some(Arc::clone(&guard));
    stage.look();
    stage.advance(before);
    stage.stalls_in.store(number, Ordering::SeqCst);
    memory.set_out(true);
    let stalled = stage.stalls_in.swap(NEVER, Ordering::SeqCst) == NEVER;
    stage.look();
    memory.set_out(false);
    stage.look();
    stage.advance(21 * MS);
    stage.look();
    *lock(&stage.lease) = None;
    let told = lock(&stage.told);
    assert!(
        told.is_sorted(),
        "{mode:?}, an outage after {before} ns, {stall} ns after reading {number}: {told:?}"
    );
    assert!(guard.is_held());
    stalled
}

#[test]
fn no_deadline_moves_back_when_an_outage_begins_however_long_that_takes() {
    for mode in [
        LeaseMode::Renewed,
        LeaseMode::MaxHold(Duration::from_millis(100)),
    ] {
        for before in [0, 10 * MS, 19 * MS] {
            for stall in [MS, 5 * MS, 15 * MS, 35 * MS] {
                let stalls = |number| outage_with_stall(mode, before, number, stall);
                assert!((0..).take_while(|number| stalls(*number)).count() > 0);
            }
        }
    }
}
