//! Everything that the tasks of one run share: the server, its gates, the processes, the log.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portcullis::{LeaseMode, LockError, Lost, Portcullis, Releasing};
use tokio_util::sync::CancellationToken;

use crate::judge::{Loss, Silence, Taken};
use crate::now;
use crate::random::Random;
use crate::support::{Mode, Proxy, Server};

pub(crate) const PREFIX: &str = "chaos";
/// How long a pushed grant and a heartbeat are worth.
pub(crate) const CLAIM: Duration = Duration::from_secs(3);
pub(crate) const BEAT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Mutex,
    /// A key that plain clients lock too.
    Exact,
    Semaphore,
}

/// A gate and what all its users agree on.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) cap: u32,
    pub(crate) ttl: Duration,
}

impl Place {
    pub(crate) fn mutex(name: &str, ttl: Duration) -> Self {
        Self {
            kind: Kind::Mutex,
            name: name.to_owned(),
            cap: 1,
            ttl,
        }
    }

    pub(crate) fn exact(name: &str, ttl: Duration) -> Self {
        Self {
            kind: Kind::Exact,
            name: name.to_owned(),
            cap: 1,
            ttl,
        }
    }

    pub(crate) fn semaphore(name: &str, cap: u32, ttl: Duration) -> Self {
        Self {
            kind: Kind::Semaphore,
            name: name.to_owned(),
            cap,
            ttl,
        }
    }

    /// How the keys of this gate end, as the observer names it.
    pub(crate) fn traced(&self) -> String {
        let letter = match self.kind {
            Kind::Mutex => 'm',
            Kind::Exact => 'x',
            Kind::Semaphore => 's',
        };
        format!("}}{letter}:{}", self.name)
    }
}

/// How one acquisition is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) weight: u32,
    pub(crate) mode: LeaseMode,
    /// `None`: without end; nothing: not at all.
    pub(crate) max_wait: Option<Duration>,
}

/// Either kind of guard.
#[derive(Debug)]
pub(crate) enum Guard {
    Mutex(portcullis::MutexGuard),
    Permit(portcullis::SemaphorePermit),
}

macro_rules! either {
    ($guard:expr, $inner:ident => $call:expr) => {
        match $guard {
            Guard::Mutex($inner) => $call,
            Guard::Permit($inner) => $call,
        }
    };
}

impl Guard {
    pub(crate) fn is_held(&self) -> bool {
        either!(self, guard => guard.is_held())
    }

    pub(crate) fn remaining(&self) -> Duration {
        either!(self, guard => guard.remaining())
    }

    pub(crate) fn fence(&self) -> u64 {
        either!(self, guard => guard.fencing_token().get())
    }

    pub(crate) fn lost(&self) -> Lost {
        either!(self, guard => guard.lost())
    }

    pub(crate) fn release(self) -> Releasing {
        either!(self, guard => guard.release())
    }
}

pub(crate) type Acquiring = Pin<Box<dyn Future<Output = Result<Guard, LockError>> + Send>>;

/// One handle behind a proxy of its own: to the server it looks like a process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: usize,
    pub(crate) gates: Portcullis,
    pub(crate) proxy: Proxy,
    pub(crate) timeout: Duration,
    /// It has crashed: its tasks are to stop where they stand.
    pub(crate) dead: CancellationToken,
}

impl Process {
    fn start(number: usize, port: u16, timeout: Duration) -> Self {
        let proxy = Proxy::start(port);
        let gates = Portcullis::builder()
            .url(proxy.url())
            .prefix(PREFIX)
            .command_timeout(timeout)
            .build();
        Self {
            number,
            gates: gates.expect("the settings are right"),
            proxy,
            timeout,
            dead: CancellationToken::new(),
        }
    }

    pub(crate) fn acquire(&self, place: &Place, ask: Ask) -> Acquiring {
        let right = "the settings are right";
        match place.kind {
            Kind::Mutex | Kind::Exact => {
                let mutex = if place.kind == Kind::Exact {
                    self.gates.mutex_at(&place.name)
                } else {
                    self.gates.mutex(&place.name)
                };
                let mutex = mutex
                    .ttl(place.ttl)
                    .expect(right)
                    .lease(ask.mode)
                    .expect(right);
                match ask.max_wait {
                    None => Box::pin(async move { mutex.lock().await.map(Guard::Mutex) }),
                    Some(Duration::ZERO) => {
                        Box::pin(async move { mutex.try_lock().await.map(Guard::Mutex) })
                    }
                    Some(wait) => {
                        let mutex = mutex.max_wait(wait);
                        Box::pin(async move { mutex.lock().await.map(Guard::Mutex) })
                    }
                }
            }
            Kind::Semaphore => {
                let semaphore = self.gates.semaphore(&place.name, place.cap).expect(right);
                let semaphore = semaphore
                    .ttl(place.ttl)
                    .expect(right)
                    .lease(ask.mode)
                    .expect(right);
                let weight = ask.weight;
                match ask.max_wait {
                    None => {
                        Box::pin(
                            async move { semaphore.acquire_many(weight).await.map(Guard::Permit) },
                        )
                    }
                    Some(wait) => {
                        let semaphore = semaphore.max_wait(wait);
                        Box::pin(
                            async move { semaphore.acquire_many(weight).await.map(Guard::Permit) },
                        )
                    }
                }
            }
        }
    }
}

/// Counts of what happened, so that a run that tested nothing shows.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) granted: AtomicUsize,
    pub(crate) dropped: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    pub(crate) failed: AtomicUsize,
    pub(crate) failed_when_quiet: AtomicUsize,
    pub(crate) lost: AtomicUsize,
    pub(crate) buried: AtomicUsize,
    pub(crate) crashes: AtomicUsize,
    pub(crate) faults: AtomicUsize,
    pub(crate) spoofs: AtomicUsize,
    pub(crate) foreign: AtomicUsize,
    /// The latest that a guard's `lost()` came after its deadline, in us: this machine's scheduling
    /// is in it.
    pub(crate) late_us: AtomicU64,
}

#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) gate: usize,
    pub(crate) process: usize,
    pub(crate) since: u64,
    pub(crate) ask: Ask,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) places: Vec<Place>,
    pub(crate) counts: Counts,
    /// When each gate was last granted.
    pub(crate) progress: Vec<AtomicU64>,
    /// No faults since then; `u64::MAX` while they go on.
    pub(crate) quiet: AtomicU64,
    /// Nobody asks anew.
    pub(crate) closing: CancellationToken,
    slots: Mutex<Vec<std::sync::Arc<Process>>>,
    /// Crashed processes go on living, behind their cut network.
    crashed: Mutex<Vec<std::sync::Arc<Process>>>,
    started: AtomicUsize,
    waiting: Mutex<HashMap<usize, Waiting>>,
    log: Mutex<Log>,
    timeouts: (u64, u64),
    seed: u64,
}

#[derive(Debug, Default)]
struct Log {
    taken: Vec<Taken>,
    losses: Vec<Loss>,
    silences: Vec<Silence>,
    problems: Vec<String>,
    faults: Vec<(u64, String)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A server and `processes` handles, each with a command time-out between these two, in ms.
    pub(crate) fn start(
        seed: u64,
        places: Vec<Place>,
        processes: usize,
        timeouts: (u64, u64),
    ) -> Self {
        let world = Self {
            server: Server::start(),
            progress: places.iter().map(|_| AtomicU64::new(now())).collect(),
            places,
            counts: Counts::default(),
            quiet: AtomicU64::new(u64::MAX),
            closing: CancellationToken::new(),
            slots: Mutex::default(),
            crashed: Mutex::default(),
            started: AtomicUsize::new(0),
            waiting: Mutex::default(),
            log: Mutex::default(),
            timeouts,
            seed,
        };
        let fleet = (0..processes).map(|_| world.start_process()).collect();
        *lock(&world.slots) = fleet;
        world
    }

    pub(crate) fn start_process(&self) -> std::sync::Arc<Process> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::stream(self.seed, 1_000_000 + number as u64);
        let timeout = random.millis(self.timeouts.0, self.timeouts.1 + 1);
        std::sync::Arc::new(Process::start(number, self.server.port(), timeout))
    }

    pub(crate) fn process(&self, slot: usize) -> std::sync::Arc<Process> {
        let slots = lock(&self.slots);
        std::sync::Arc::clone(&slots[slot % slots.len()])
    }

    pub(crate) fn processes(&self) -> Vec<std::sync::Arc<Process>> {
        lock(&self.slots).clone()
    }

    /// Crashes the process in a slot: nothing of it reaches the server from here on, and another
    /// one takes its place. It either dies, which the server sees, or hangs, which nobody sees.
    pub(crate) fn crash(&self, slot: usize, dies: bool) {
        let fresh = self.start_process();
        let crashed = {
            let mut slots = lock(&self.slots);
            let length = slots.len();
            std::mem::replace(&mut slots[slot % length], fresh)
        };
        crashed.proxy.set(if dies {
            Mode::HalfOpen
        } else {
            Mode::BlackHole
        });
        let from = now();
        crashed.dead.cancel();
        self.silence(Silence {
            process: Some(crashed.number),
            from,
            to: u64::MAX,
        });
        self.note(format!(
            "process {} {}",
            crashed.number,
            if dies { "dies" } else { "hangs for good" }
        ));
        self.counts.crashes.fetch_add(1, Ordering::Relaxed);
        lock(&self.crashed).push(crashed);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) < now()
    }

    pub(crate) fn wait_begins(&self, task: usize, waiting: Waiting) {
        lock(&self.waiting).insert(task, waiting);
    }

    pub(crate) fn wait_ends(&self, task: usize) {
        lock(&self.waiting).remove(&task);
    }

    pub(crate) fn waiting(&self) -> HashMap<usize, Waiting> {
        lock(&self.waiting).clone()
    }

    pub(crate) fn took(&self, taken: Taken) {
        lock(&self.log).taken.push(taken);
    }

    pub(crate) fn lost_data(&self, loss: Loss) {
        lock(&self.log).losses.push(loss);
    }

    pub(crate) fn silence(&self, silence: Silence) {
        lock(&self.log).silences.push(silence);
    }

    pub(crate) fn problem(&self, problem: String) {
        lock(&self.log).problems.push(problem);
    }

    /// What was done to the system, for whoever has to find out why it failed.
    pub(crate) fn note(&self, fault: String) {
        lock(&self.log).faults.push((now(), fault));
    }

    pub(crate) fn taken(&self) -> Vec<Taken> {
        lock(&self.log).taken.clone()
    }

    pub(crate) fn losses(&self) -> Vec<Loss> {
        lock(&self.log).losses.clone()
    }

    pub(crate) fn silences(&self) -> Vec<Silence> {
        lock(&self.log).silences.clone()
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        lock(&self.log).problems.clone()
    }

    /// The faults that began between two moments.
    pub(crate) fn faults(&self, from: u64, to: u64) -> Vec<(u64, String)> {
        lock(&self.log)
            .faults
            .iter()
            .filter(|(at, _)| (from..=to).contains(at))
            .cloned()
            .collect()
    }

    /// The longest that a gate with waiters may stand still when nothing is broken any more.
    pub(crate) fn bound(&self) -> Duration {
        let ttl = self
            .places
            .iter()
            .map(|place| place.ttl)
            .max()
            .unwrap_or_default();
        ttl + CLAIM + BEAT + Duration::from_secs(5)
    }
}
