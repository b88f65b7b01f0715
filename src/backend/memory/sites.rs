//! Which places are in use, spread over shards, and when somebody has to look in at which.
//!
//! # Invariants
//!
//! 1. A site is listed while a handle's place refers to it, and no longer: what is named once
//!    leaves nothing.
//! 2. Locks are taken in this order: a shard's names, a ledger, a shard's alarms.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::Memory;
use super::keeper;
use super::ledger::Ledger;
use super::news::News;
use super::process::Process;
use super::turnstile::Turnstile;
use crate::time::Instant;

/// More than threads that are likely to be at work at once.
const SHARDS: usize = 64;
/// Capacity that is worth giving back.
const ROOMY: usize = 64;

/// One gate's place in this process.
#[derive(Debug)]
pub(super) struct Site {
    id: u64,
    name: Arc<str>,
    gate: Arc<str>,
    shard: usize,
    turnstile: Turnstile,
    ledger: Mutex<Ledger>,
}

impl Site {
    /// The gate as errors and traces name it.
    pub(super) const fn gate(&self) -> &Arc<str> {
        &self.gate
    }

    pub(super) const fn turnstile(&self) -> &Turnstile {
        &self.turnstile
    }

    /// Locks the ledger, which knows all from here on.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = self.turnstile.close() {
            ledger.take_over(count);
        }
        ledger
    }

    /// Changes the ledger: first what is due is settled, then it is changed, then what that frees
    /// is handed on; and when the lock is free, those whom it concerns are told.
    #[inline]
    pub(super) fn change<T>(
        self: &Arc<Self>,
        memory: &Arc<Memory>,
        change: impl FnOnce(&mut Ledger, &mut News) -> T,
    ) -> T {
        let (outcome, news) = self.change_untold(memory, change);
        if !news.is_empty() {
            news.deliver();
        }
        outcome
    }

    /// As [`change`](Self::change), but leaves it to the caller to tell those whom it concerns.
    #[inline]
    pub(super) fn change_untold<T>(
        self: &Arc<Self>,
        memory: &Arc<Memory>,
        change: impl FnOnce(&mut Ledger, &mut News) -> T,
    ) -> (T, News) {
        let mut news = News::default();
        let mut ledger = self.ledger();
        if !ledger.is_calm() {
            ledger.settle(&memory.clock, &mut news);
        }
        let outcome = change(&mut ledger, &mut news);
        if !ledger.is_calm() || ledger.alarm != Instant::FAR {
            self.follow_up(memory, &mut ledger, &mut news);
        }
        if let Some(count) = ledger.count() {
            self.turnstile.open(count);
        }
        (outcome, news)
    }

    /// Looks something up, and settles nothing that is due: who looks may have a lock of its own, and so
    /// nobody is told of anything.
    pub(super) fn look<T>(
        self: &Arc<Self>,
        memory: &Arc<Memory>,
        look: impl FnOnce(&mut Ledger) -> T,
    ) -> T {
        let mut ledger = self.ledger();
        let found = look(&mut ledger);
        // What was only counted may have an end from here on. Where no thread can be started for that, who
        // sets the next alarm says so.
        let _ = self.set_alarm(memory, &mut ledger);
        if let Some(count) = ledger.count() {
            self.turnstile.open(count);
        }
        found
    }

    /// Hands on what a change has freed, and sees to it that somebody looks in again.
    fn follow_up(self: &Arc<Self>, memory: &Arc<Memory>, ledger: &mut Ledger, news: &mut News) {
        ledger.hand_on(&memory.clock, news);
        if let Err(error) = self.set_alarm(memory, ledger) {
            news.unwatched(error);
        }
    }

    /// Has somebody look in when the next thing is due. An alarm that is too early is left: it finds
    /// nothing due and is set again, which is cheaper than to move it with each change.
    fn set_alarm(self: &Arc<Self>, memory: &Arc<Memory>, ledger: &mut Ledger) -> io::Result<()> {
        let next = ledger.next_due();
        if next == ledger.alarm || (next > ledger.alarm && next != Instant::FAR) {
            return Ok(());
        }
        let before = std::mem::replace(&mut ledger.alarm, next);
        let alarm = Alarm::Site(Arc::clone(self));
        memory
            .sites
            .move_alarm(memory, self.shard, self.id, before, next, alarm)
    }

    /// One more place of a process refers to it.
    fn used_by(&self, process: u64) {
        let mut ledger = self.ledger();
        if ledger.process() != process {
            ledger.share();
        }
        if let Some(count) = ledger.count() {
            self.turnstile.open(count);
        }
    }

    /// Its alarm has gone off.
    fn look_in(self: &Arc<Self>, memory: &Arc<Memory>) {
        self.ledger().alarm = Instant::FAR;
        self.change(memory, |_, _| ());
    }
}

/// Who is to look at the clock.
#[derive(Debug, Clone)]
pub(super) enum Alarm {
    Site(Arc<Site>),
    Process(Arc<Process>),
}

impl Alarm {
    pub(super) fn go_off(&self, memory: &Arc<Memory>) {
        match self {
            Self::Site(site) => site.look_in(memory),
            Self::Process(process) => process.cut(memory),
        }
    }
}

#[derive(Debug)]
pub(super) struct Sites {
    shards: Box<[Shard]>,
    hasher: RandomState,
    last_id: AtomicU64,
}

/// Apart in memory, so that two threads at two shards don't wait for each other's cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    names: Mutex<Names>,
    alarms: Mutex<BTreeMap<(Instant, u64), Alarm>>,
}

#[derive(Debug, Default)]
struct Names {
    sites: HashMap<Arc<str>, Listed>,
    /// The greatest fence of the sites that were listed here.
    fence: u64,
}

#[derive(Debug)]
struct Listed {
    site: Arc<Site>,
    places: usize,
}

impl Shard {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alarms(&self) -> MutexGuard<'_, BTreeMap<(Instant, u64), Alarm>> {
        self.alarms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sites {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::new(),
            last_id: AtomicU64::new(0),
        }
    }

    /// A number that nobody else has.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The site of this name, for one more place to refer to.
    pub(super) fn join(&self, name: &str, gate: &Arc<str>, process: u64) -> Arc<Site> {
        // Not truncated: the remainder is below 64.
        let shard = (self.hasher.hash_one(name) % SHARDS as u64) as usize;
        let mut names = self.shards[shard].names();
        if let Some(listed) = names.sites.get_mut(name) {
            listed.places += 1;
            let site = Arc::clone(&listed.site);
            site.used_by(process);
            return site;
        }
        let fence = names.fence.max(wall_clock_us());
        let name: Arc<str> = name.into();
        let site = Arc::new(Site {
            id: self.next_id(),
            name: Arc::clone(&name),
            gate: Arc::clone(gate),
            shard,
            turnstile: Turnstile::new(fence),
            ledger: Mutex::new(Ledger::new(Arc::clone(gate), fence, process)),
        });
        let listed = Listed {
            site: Arc::clone(&site),
            places: 1,
        };
        names.sites.insert(name, listed);
        site
    }

    /// A place that referred to the site is gone.
    pub(super) fn leave(&self, site: &Site) {
        let mut names = self.shards[site.shard].names();
        let Some(listed) = names.sites.get_mut(&site.name) else {
            return;
        };
        listed.places -= 1;
        if listed.places > 0 {
            return;
        }
        // Nobody holds or waits there: they would refer to it.
        names.fence = names.fence.max(site.ledger().last_fence());
        names.sites.remove(&site.name);
        let (used, room) = (names.sites.len(), names.sites.capacity());
        if room > ROOMY && used < room / 8 {
            names.sites.shrink_to(2 * used);
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Site>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let names = shard.names();
            all.extend(names.sites.values().map(|listed| Arc::clone(&listed.site)));
        }
        all
    }

    pub(super) fn set_process_alarm(
        &self,
        memory: &Arc<Memory>,
        process: &Arc<Process>,
        at: Instant,
    ) {
        let alarm = Alarm::Process(Arc::clone(process));
        let set = self.move_alarm(memory, 0, self.next_id(), Instant::FAR, at, alarm);
        if let Err(error) = set {
            keeper::log_not_started(&error);
        }
    }

    fn move_alarm(
        &self,
        memory: &Arc<Memory>,
        shard: usize,
        id: u64,
        from: Instant,
        to: Instant,
        alarm: Alarm,
    ) -> io::Result<()> {
        {
            let mut alarms = self.shards[shard].alarms();
            if from != Instant::FAR {
                alarms.remove(&(from, id));
            }
            if to == Instant::FAR {
                return Ok(());
            }
            alarms.insert((to, id), alarm);
        }
        memory.keeper.wake_by(memory, to)
    }

    /// Takes the alarms that have gone off, and tells when the next one does.
    pub(super) fn due(&self, now: Instant) -> (Vec<Alarm>, Instant) {
        let (mut due, mut next) = (Vec::new(), Instant::FAR);
        for shard in &self.shards {
            let mut alarms = shard.alarms();
            while let Some((&(at, _), _)) = alarms.first_key_value() {
                if at > now {
                    next = next.min(at);
                    break;
                }
                due.extend(alarms.pop_first().map(|(_, alarm)| alarm));
            }
        }
        (due, next)
    }
}

/// So that fences rise from one process to the next.
fn wall_clock_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0))
}
