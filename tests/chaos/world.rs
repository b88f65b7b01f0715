//! Everything that the tasks of one run share: the gates and where they live, the processes, the
//! log.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use portcullis::{Keeping, LeaseMode, LockError, Lost, Portcullis, Releasing};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::home::{Home, Remote};
use crate::judge::{Cut, Loss, Silence, Stay, Taken};
use crate::now;
use crate::random::Random;
use crate::support::{Mode, Server};

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
    /// Of a keyed one, its own part of the name.
    pub(crate) key: Option<u32>,
    /// The greatest limit that anybody asks by.
    pub(crate) cap: u32,
    pub(crate) ttl: Duration,
}

impl Place {
    pub(crate) fn mutex(name: &str, ttl: Duration) -> Self {
        Self {
            kind: Kind::Mutex,
            name: name.to_owned(),
            key: None,
            cap: 1,
            ttl,
        }
    }

    pub(crate) fn keyed(name: &str, key: u32, ttl: Duration) -> Self {
        Self {
            key: Some(key),
            ..Self::mutex(name, ttl)
        }
    }

    pub(crate) fn exact(name: &str, ttl: Duration) -> Self {
        Self {
            kind: Kind::Exact,
            name: name.to_owned(),
            key: None,
            cap: 1,
            ttl,
        }
    }

    pub(crate) fn semaphore(name: &str, cap: u32, ttl: Duration) -> Self {
        Self {
            kind: Kind::Semaphore,
            name: name.to_owned(),
            key: None,
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
        match self.key {
            None => format!("}}{letter}:{}", self.name),
            Some(key) => format!("}}{letter}:{}:{key}", self.name),
        }
    }
}

/// How one acquisition is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) weight: u32,
    /// Of its semaphore; others may ask by another one.
    pub(crate) limit: u32,
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

/// One handle: to the gates it looks like a process.
#[derive(Debug)]
pub(crate) struct Process<S: Home = Server> {
    pub(crate) number: usize,
    pub(crate) gates: Portcullis,
    pub(crate) proxy: S::Proxy,
    pub(crate) timeout: Duration,
    /// It keeps permits for its own next requests, and hands mutexes on among them.
    keeps: bool,
    /// It has crashed: its tasks are to stop where they stand.
    pub(crate) dead: CancellationToken,
    kept: Mutex<Vec<Gate>>,
}

impl<S: Home> Process<S> {
    pub(crate) fn acquire(&self, place: &Place, ask: Ask) -> Acquiring {
        let right = "the settings are right";
        match self.gate(place, ask.limit) {
            Gate::Mutex(mutex) => {
                let mutex = mutex
                    .ttl(place.ttl)
                    .expect(right)
                    .lease(ask.mode)
                    .expect(right);
                let passes = self.keeps && place.kind == Kind::Mutex;
                let mutex = if passes && ask.mode == LeaseMode::Renewed {
                    mutex.local_handoffs(4).expect(right)
                } else {
                    mutex
                };
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
            Gate::Semaphore(semaphore) => {
                let semaphore = semaphore
                    .ttl(place.ttl)
                    .expect(right)
                    .lease(ask.mode)
                    .expect(right);
                let semaphore = if self.keeps && ask.mode == LeaseMode::Renewed {
                    semaphore.keep_permits(Keeping::default()).expect(right)
                } else {
                    semaphore
                };
                let semaphore = match ask.max_wait {
                    None => semaphore,
                    Some(wait) => semaphore.max_wait(wait),
                };
                let weight = ask.weight;
                Box::pin(async move { semaphore.acquire_many(weight).await.map(Guard::Permit) })
            }
        }
    }

    fn gate(&self, place: &Place, limit: u32) -> Gate {
        match place.kind {
            Kind::Mutex => {
                let mutex = self.gates.mutex(&place.name);
                Gate::Mutex(match place.key {
                    None => mutex,
                    Some(key) => mutex.keyed(key),
                })
            }
            Kind::Exact => Gate::Mutex(self.gates.mutex_at(&place.name)),
            Kind::Semaphore => {
                let semaphore = self.gates.semaphore(&place.name, limit);
                Gate::Semaphore(semaphore.expect("no limit is 0"))
            }
        }
    }

    /// Keeps a gate in use though nobody holds or waits there, as those do who make it once.
    pub(crate) fn keep(&self, place: &Place) {
        lock(&self.kept).push(self.gate(place, place.cap));
    }
}

/// Either kind of gate.
#[derive(Debug)]
enum Gate {
    Mutex(portcullis::Mutex),
    Semaphore(portcullis::Semaphore),
}

/// Counts of what happened, so that a run that tested nothing shows.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) granted: AtomicUsize,
    /// And those that nobody kept.
    pub(crate) in_bursts: AtomicUsize,
    pub(crate) dropped: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    pub(crate) failed: AtomicUsize,
    pub(crate) failed_when_quiet: AtomicUsize,
    /// And what was asked for when the end of the faults was [`SETTLED`] ago.
    pub(crate) failed_when_settled: AtomicUsize,
    pub(crate) lost: AtomicUsize,
    pub(crate) buried: AtomicUsize,
    pub(crate) crashes: AtomicUsize,
    pub(crate) faults: AtomicUsize,
    pub(crate) spoofs: AtomicUsize,
    pub(crate) foreign: AtomicUsize,
    /// Leases that were told to be over.
    pub(crate) expired: AtomicUsize,
    /// The latest that a guard's `lost()` came after its deadline, in us: this machine's scheduling
    /// is in it.
    pub(crate) late_us: AtomicU64,
    /// The most that a wait took beyond its limit, in us, with that in it too.
    pub(crate) overtime_us: AtomicU64,
}

/// How long after the last fault a failure may still be due to it, in ns.
pub(crate) const SETTLED: u64 = 5_000_000_000;

#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) gate: usize,
    pub(crate) process: usize,
    pub(crate) since: u64,
    /// When its first poll had left it waiting.
    pub(crate) pended: Option<u64>,
    pub(crate) ask: Ask,
}

#[derive(Debug)]
pub(crate) struct World<S: Home = Server> {
    pub(crate) server: S,
    pub(crate) places: Vec<Place>,
    pub(crate) counts: Counts,
    /// When each gate was last granted.
    pub(crate) progress: Vec<AtomicU64>,
    /// No faults since then; `u64::MAX` while they go on.
    pub(crate) quiet: AtomicU64,
    /// Nobody asks anew.
    pub(crate) closing: CancellationToken,
    slots: Mutex<Vec<Arc<Process<S>>>>,
    /// Crashed processes go on living, behind their cut network.
    crashed: Mutex<Vec<(u64, Arc<Process<S>>)>>,
    /// Tasks that keep the guards of crashed processes until they are lost.
    graves: Mutex<JoinSet<()>>,
    /// Threads without a runtime, on which something is dropped.
    threads: Mutex<Vec<JoinHandle<()>>>,
    started: AtomicUsize,
    waiting: Mutex<HashMap<usize, Waiting>>,
    log: Mutex<Log>,
    timeouts: (u64, u64),
    /// How many processes of a hundred keep permits.
    keepers: u64,
    seed: u64,
}

#[derive(Debug, Default)]
struct Log {
    taken: Vec<Taken>,
    losses: Vec<Loss>,
    silences: Vec<Silence>,
    cuts: Vec<Cut>,
    outages: Vec<(u64, u64)>,
    stays: Vec<Stay>,
    problems: Vec<String>,
    faults: Vec<(u64, String)>,
    failures: BTreeMap<String, usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Home> World<S> {
    /// Gates and `processes` handles on them, each with a command time-out between these two, in
    /// ms.
    pub(crate) fn start(
        server: S,
        seed: u64,
        places: Vec<Place>,
        processes: usize,
        timeouts: (u64, u64),
    ) -> Self {
        Self::start_keeping(server, seed, places, processes, timeouts, 0)
    }

    /// The same, where of a hundred processes so many keep permits.
    pub(crate) fn start_keeping(
        server: S,
        seed: u64,
        places: Vec<Place>,
        processes: usize,
        timeouts: (u64, u64),
        keepers: u64,
    ) -> Self {
        let world = Self {
            server,
            progress: places.iter().map(|_| AtomicU64::new(now())).collect(),
            places,
            counts: Counts::default(),
            quiet: AtomicU64::new(u64::MAX),
            closing: CancellationToken::new(),
            slots: Mutex::default(),
            crashed: Mutex::default(),
            graves: Mutex::default(),
            threads: Mutex::default(),
            started: AtomicUsize::new(0),
            waiting: Mutex::default(),
            log: Mutex::default(),
            timeouts,
            keepers,
            seed,
        };
        let fleet = (0..processes).map(|_| world.start_process()).collect();
        *lock(&world.slots) = fleet;
        world
    }

    pub(crate) fn start_process(&self) -> Arc<Process<S>> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::stream(self.seed, 1_000_000 + number as u64);
        let timeout = random.millis(self.timeouts.0, self.timeouts.1 + 1);
        // Drawn last, and not at all where nobody does, so that the plans stay.
        let keeps = self.keepers > 0 && random.chance(self.keepers);
        let (gates, proxy) = self.server.connect(timeout);
        Arc::new(Process {
            number,
            gates,
            proxy,
            timeout,
            keeps,
            dead: CancellationToken::new(),
            kept: Mutex::default(),
        })
    }

    /// What the least patient of them gives a request.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.timeouts.0)
    }

    pub(crate) fn process(&self, slot: usize) -> Arc<Process<S>> {
        let slots = lock(&self.slots);
        Arc::clone(&slots[slot % slots.len()])
    }

    pub(crate) fn processes(&self) -> Vec<Arc<Process<S>>> {
        lock(&self.slots).clone()
    }

    /// Puts another process in the place of the one in a slot, which is given.
    pub(crate) fn replace(&self, slot: usize) -> Arc<Process<S>> {
        let fresh = self.start_process();
        let mut slots = lock(&self.slots);
        let length = slots.len();
        std::mem::replace(&mut slots[slot % length], fresh)
    }

    /// Drops something on a thread without a runtime.
    pub(crate) fn drop_elsewhere(&self, thing: impl Send + 'static) {
        let thread = std::thread::spawn(move || drop(thing));
        lock(&self.threads).push(thread);
    }

    /// Has somebody keep the guard of a crashed process until it is lost.
    pub(crate) fn bury(&self, grave: impl Future<Output = ()> + Send + 'static) {
        self.counts.buried.fetch_add(1, Ordering::Relaxed);
        lock(&self.graves).spawn(grave);
    }

    /// Waits until nobody keeps a guard any more.
    pub(crate) async fn all_let_go(&self) {
        let mut graves = std::mem::take(&mut *lock(&self.graves));
        while let Some(ended) = graves.join_next().await {
            ended.expect("who looks at a guard does not panic");
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            thread.join().expect("a drop does not panic");
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed) < now()
    }

    pub(crate) fn wait_begins(&self, task: usize, waiting: Waiting) {
        lock(&self.waiting).insert(task, waiting);
    }

    /// It did not get what it asked for at its first poll.
    pub(crate) fn wait_pends(&self, task: usize) {
        if let Some(waiting) = lock(&self.waiting).get_mut(&task) {
            waiting.pended = Some(now());
        }
    }

    /// Whether it waited, and from when on.
    pub(crate) fn wait_ends(&self, task: usize) -> Option<u64> {
        let waiting = lock(&self.waiting).remove(&task)?;
        let pended = waiting.pended?;
        lock(&self.log).stays.push(Stay {
            gate: waiting.gate,
            from: pended,
            to: now(),
            weight: waiting.ask.weight,
            limit: waiting.ask.limit,
        });
        Some(pended)
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

    pub(crate) fn cut(&self, cut: Cut) {
        lock(&self.log).cuts.push(cut);
    }

    /// From here on its gates may not be reached.
    pub(crate) fn goes_out(&self) {
        lock(&self.log).outages.push((now(), u64::MAX));
    }

    /// From here on they surely are.
    pub(crate) fn is_back(&self) {
        if let Some((_, to)) = lock(&self.log).outages.last_mut() {
            *to = now();
        }
    }

    /// Whether it was out for a moment between these two.
    pub(crate) fn was_out(&self, from: u64, to: u64) -> bool {
        let outages = &lock(&self.log).outages;
        outages.iter().any(|&(out, back)| out <= to && from <= back)
    }

    pub(crate) fn problem(&self, problem: String) {
        lock(&self.log).problems.push(problem);
    }

    /// What was done to the system, for whoever has to find out why it failed.
    pub(crate) fn note(&self, fault: String) {
        lock(&self.log).faults.push((now(), fault));
    }

    /// An acquire failed. A `brief` lease may be over before its answer comes, without any fault.
    pub(crate) fn failed(&self, asked: u64, kind: String, brief: bool) {
        *lock(&self.log).failures.entry(kind).or_default() += 1;
        let quiet = self.quiet.load(Ordering::Relaxed);
        if !brief && asked > quiet.saturating_add(SETTLED) {
            self.counts
                .failed_when_settled
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many acquires failed, by the kind of their failures.
    pub(crate) fn failures(&self) -> BTreeMap<String, usize> {
        lock(&self.log).failures.clone()
    }

    /// Gives the problems so far, and forgets them along with all that was over before a moment:
    /// who was judged and can't concern anybody later. Of what was done to the system it forgets
    /// what was over `longer` before that, since holds that are kept may have begun earlier; and
    /// processes that crashed by then.
    pub(crate) fn forget(&self, before: u64, longer: u64) -> Vec<String> {
        let earlier = before.saturating_sub(longer);
        let gone = {
            let crashed = &mut *lock(&self.crashed);
            let (gone, stay) = std::mem::take(crashed)
                .into_iter()
                .partition::<Vec<_>, _>(|(at, _)| *at < earlier);
            *crashed = stay;
            gone
        };
        // Not under the lock: each takes its proxy along, and a thread with it.
        drop(gone);
        while let Some(ended) = lock(&self.graves).try_join_next() {
            ended.expect("who looks at a guard does not panic");
        }
        let mut log = lock(&self.log);
        log.taken
            .retain(|taken| taken.let_go.max(taken.hold.ended) >= before);
        log.losses.retain(|loss| loss.to >= earlier);
        // One that lasts for ever is a crashed process'.
        log.silences.retain(|silence| {
            silence.to >= earlier && !(silence.to == u64::MAX && silence.from < earlier)
        });
        log.stays.retain(|stay| stay.to >= before);
        log.faults.retain(|(at, _)| *at >= earlier);
        std::mem::take(&mut log.problems)
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

    pub(crate) fn cuts(&self) -> Vec<Cut> {
        lock(&self.log).cuts.clone()
    }

    pub(crate) fn outages(&self) -> Vec<(u64, u64)> {
        lock(&self.log).outages.clone()
    }

    pub(crate) fn stays(&self) -> Vec<Stay> {
        lock(&self.log).stays.clone()
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

    /// Whether processes keep permits of a gate: then who came first in one process may be served after
    /// who came later in another.
    pub(crate) fn keeps(&self, place: &Place) -> bool {
        self.keepers > 0 && place.kind != Kind::Exact
    }

    /// For how long after a loss of data somebody may go on using what was lost, in ns: until it has
    /// asked.
    pub(crate) fn believes_longer(&self) -> u64 {
        if self.keepers > 0 { 50_000_000 } else { 0 }
    }

    /// The longest that a gate with waiters may stand still when nothing is broken any more, and
    /// requests are answered.
    pub(crate) fn bound(&self) -> Duration {
        let ttl = self
            .places
            .iter()
            .map(|place| place.ttl)
            .max()
            .unwrap_or_default();
        ttl + S::RECOVERY
    }
}

impl<S: Remote> World<S> {
    /// Crashes the process in a slot: nothing of it reaches the server from here on, and another
    /// one takes its place. It either dies, which the server sees, or hangs, which nobody sees.
    pub(crate) fn crash(&self, slot: usize, dies: bool) {
        let crashed = self.replace(slot);
        for link in S::links(&crashed.proxy) {
            link.set(if dies {
                Mode::HalfOpen
            } else {
                Mode::BlackHole
            });
        }
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
        lock(&self.crashed).push((from, crashed));
    }
}
