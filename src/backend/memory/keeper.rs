//! Watches the clock for all sites, from a thread of its own or, on a runtime's clock, from a task
//! there.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::Memory;
use crate::backend::thread;
use crate::time::{Clock, Instant};

/// Timers stand still while a machine is suspended, and leases do not: so often it looks though
/// nothing is due.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Keeper {
    /// Started with the first alarm: who never waits with a limit needs none.
    started: AtomicBool,
    /// When it looks next; `FAR` while it does, so that an alarm that is set meanwhile rings.
    wakes_at: AtomicU64,
    bell: Arc<Notify>,
}

impl Keeper {
    pub(super) fn new() -> Self {
        Self {
            started: AtomicBool::new(false),
            wakes_at: AtomicU64::new(Instant::FAR.as_nanos()),
            bell: Arc::new(Notify::new()),
        }
    }

    /// Makes sure that it looks at `at`. Fails if it can't be started: whoever looks at a gate still
    /// settles what is due there, and the next alarm tries again.
    pub(super) fn wake_by(&self, memory: &Arc<Memory>, at: Instant) -> io::Result<()> {
        if !self.started.load(Ordering::Acquire) && !self.started.swap(true, Ordering::AcqRel) {
            self.start(memory)
                .inspect_err(|_| self.started.store(false, Ordering::Release))?;
        }
        if at.as_nanos() < self.wakes_at.load(Ordering::SeqCst) {
            self.bell.notify_one();
        }
        Ok(())
    }

    fn start(&self, memory: &Arc<Memory>) -> io::Result<()> {
        let keep = keep(Arc::downgrade(memory), Arc::clone(&self.bell));
        match &memory.clock {
            #[cfg(feature = "test-util")]
            Clock::Runtime(runtime, _) => {
                runtime.spawn(keep);
                Ok(())
            }
            Clock::System => thread::spawn(|| keep),
            // What is due is settled by who looks: another thread's readings would come in between.
            #[cfg(test)]
            Clock::Made(_) => Ok(()),
        }
    }
}

/// To be called where no ledger is locked, as all that logs: a subscriber may run anything.
pub(super) fn log_not_started(error: &io::Error) {
    tracing::error!(%error, "no thread can be started: leases and waits may end late");
}

/// The last handle, guard and waiter are gone.
impl Drop for Keeper {
    fn drop(&mut self) {
        self.bell.notify_one();
    }
}

async fn keep(memory: Weak<Memory>, bell: Arc<Notify>) {
    loop {
        let Some(memory_in_use) = memory.upgrade() else {
            return;
        };
        let pause = look(&memory_in_use);
        // Not held while it waits: it would keep itself alive.
        drop(memory_in_use);
        match pause {
            Some(pause) => {
                let _ = tokio::time::timeout(pause, bell.notified()).await;
            }
            None => bell.notified().await,
        }
    }
}

/// Has everybody look in whose alarm has gone off; gives the time to the next one.
fn look(memory: &Arc<Memory>) -> Option<Duration> {
    let wakes_at = &memory.keeper.wakes_at;
    wakes_at.store(Instant::FAR.as_nanos(), Ordering::SeqCst);
    let (due, next) = memory.sites.due(memory.clock.now());
    for alarm in &due {
        alarm.go_off(memory);
    }
    wakes_at.fetch_min(next.as_nanos(), Ordering::SeqCst);
    if next == Instant::FAR {
        return None;
    }
    let pause = next.since(memory.clock.now());
    Some(match memory.clock {
        Clock::System => pause.min(LOOK),
        // Its timers and its clock agree.
        #[cfg(feature = "test-util")]
        Clock::Runtime(..) => pause,
        #[cfg(test)]
        Clock::Made(_) => pause,
    })
}
