//! Any calls at any times, over gates in memory and the model: both answer alike.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::super::Memory;
use super::model::{Ask, LONGEST_DELAY, Model, Ms, Outcome, TTL, told};
use crate::backend::{ShutdownReport, Wait};
use crate::error::LockError;
use crate::key::Prefix;
use crate::lease::{LeaseMode, LostReason};
use crate::portcullis::Portcullis;
use crate::semaphore::{Semaphore, SemaphorePermit};
use crate::time::{Clock, Ttl};

const GATES: [&str; 2] = ["north", "south"];

#[derive(Clone)]
struct Scenario {
    handles: usize,
    /// When the others join the first handle.
    join_at: usize,
    shut_downs: bool,
    outages: bool,
    looks_at_last: bool,
    steps: Vec<Step>,
}

/// A line per step, to be read when one fails.
impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (handles, join_at) = (self.handles, self.join_at);
        writeln!(f, "{handles} handles, others join at step {join_at}")?;
        writeln!(f, "looks at all at last: {}", self.looks_at_last)?;
        for (index, Step { deed, quiet }) in self.steps.iter().enumerate() {
            let quietly = if *quiet { ", quietly" } else { "" };
            writeln!(f, "{index}: {deed:?}{quietly}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
struct Step {
    deed: Deed,
    /// Neither the keeper nor anybody who waits has a turn after it.
    quiet: bool,
}

/// What is done. Whom it concerns is picked from those who are there.
#[derive(Debug, Clone)]
enum Deed {
    Acquire {
        by: usize,
        ask: Ask,
    },
    Release(usize),
    Drop(usize),
    GiveUp(usize),
    Look(usize),
    Advance(Ms),
    Expire(usize),
    Outage(bool),
    ShutDown(usize, Ms),
    /// No handle knows the gate any more, unless somebody holds or waits there.
    Forget(usize),
}

const PICK: std::ops::Range<usize> = 0..840;

fn asks() -> impl Strategy<Value = Ask> {
    let mode = prop_oneof![
        5 => Just(LeaseMode::Renewed),
        2 => Just(LeaseMode::Fixed),
        2 => prop::sample::select(vec![50, 200, 500])
            .prop_map(|ms| LeaseMode::MaxHold(Duration::from_millis(ms))),
    ];
    let wait = prop_oneof![
        2 => Just(Wait::No),
        3 => prop::sample::select(vec![30, 60, 100, 300])
            .prop_map(|ms| Wait::AtMost(Duration::from_millis(ms))),
        3 => Just(Wait::Unbounded),
    ];
    let weight = prop_oneof![4 => Just(1_u32), 1 => Just(2), 1 => Just(3)];
    let limit = prop::sample::select(vec![1_u32, 2, 3, 3, 5]);
    let gate = prop_oneof![3 => Just(0_usize), 1 => Just(1)];
    let delay = prop_oneof![4 => Just(0), 1 => Just(40), 1 => Just(LONGEST_DELAY)];
    (gate, weight, limit, mode, delay, wait, 1_u32..4).prop_map(
        |(gate, weight, limit, mode, delay, wait, max_waiters)| Ask {
            gate,
            weight,
            limit,
            mode,
            delay,
            wait,
            max_waiters,
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let time = prop::sample::select(vec![10, 20, 30, 50, 90, 100, 300, 1_000]);
    let deadline = prop::sample::select(vec![0, 0, 30, 100, 400]);
    let deed = prop_oneof![
        12 => (PICK, asks()).prop_map(|(by, ask)| Deed::Acquire { by, ask }),
        3 => PICK.prop_map(Deed::Release),
        3 => PICK.prop_map(Deed::Drop),
        2 => PICK.prop_map(Deed::GiveUp),
        4 => PICK.prop_map(Deed::Look),
        5 => time.prop_map(Deed::Advance),
        1 => (0..GATES.len()).prop_map(Deed::Expire),
        2 => any::<bool>().prop_map(Deed::Outage),
        1 => (PICK, deadline).prop_map(|(which, after)| Deed::ShutDown(which, after)),
        1 => (0..GATES.len()).prop_map(Deed::Forget),
    ];
    (deed, prop::bool::weighted(0.2)).prop_map(|(deed, quiet)| Step { deed, quiet })
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let handles = prop_oneof![2 => Just(1_usize), 1 => Just(2), 1 => Just(3)];
    let steps = prop::collection::vec(steps(), 1..50);
    (handles, 0_usize..30, any::<[bool; 3]>(), steps).prop_map(
        |(handles, join_at, [shut_downs, outages, looks_at_last], steps)| Scenario {
            handles,
            join_at,
            shut_downs,
            outages,
            looks_at_last,
            steps,
        },
    )
}

/// A future that is polled when it was woken, and not else: what is not woken hangs.
struct Task<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    woken: Arc<Woken>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<T> Task<T> {
    fn new(future: impl Future<Output = T> + 'static) -> Self {
        Self {
            future: Box::pin(future),
            woken: Arc::new(Woken(AtomicBool::new(true))),
        }
    }

    fn turn(&mut self) -> Option<T> {
        if !self.woken.0.swap(false, Ordering::SeqCst) {
            return None;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}

type Acquired = Result<SemaphorePermit, LockError>;

/// The memory, and those who use it.
struct World {
    model: Model,
    memory: Arc<Memory>,
    /// All that there ever were; the model calls them by their index.
    handles: Vec<Portcullis>,
    /// Those that were not shut down.
    live: Vec<usize>,
    /// What keeps a gate's place in use though nobody holds.
    gates: BTreeMap<(usize, usize), Semaphore>,
    waiting: BTreeMap<usize, Task<Acquired>>,
    permits: BTreeMap<usize, SemaphorePermit>,
    looked_at: Vec<usize>,
    watches: Vec<(usize, Task<LostReason>)>,
    shut_downs: Vec<(usize, Task<ShutdownReport>)>,
    /// By gate and order of the grants.
    fences: BTreeMap<(usize, u64), u64>,
}

impl World {
    fn new(handles: usize) -> Self {
        let memory = Memory::new(Clock::of_runtime());
        let mut world = Self {
            model: Model::default(),
            memory,
            handles: Vec::new(),
            live: Vec::new(),
            gates: BTreeMap::new(),
            waiting: BTreeMap::new(),
            permits: BTreeMap::new(),
            looked_at: Vec::new(),
            watches: Vec::new(),
            shut_downs: Vec::new(),
            fences: BTreeMap::new(),
        };
        world.live = (0..handles).map(|_| world.start()).collect();
        world
    }

    /// One more handle.
    fn start(&mut self) -> usize {
        let handle = Portcullis::on_memory(&self.memory, Prefix::default());
        self.handles.push(handle);
        self.model.start()
    }

    /// Mostly one of the first live handles, sometimes one that was shut down.
    fn pick_handle(&self, pick: usize, joined: usize) -> usize {
        let closed = self.handles.len() - self.live.len();
        if pick % 8 == 7 && closed > 0 {
            let closed = |process: &usize| !self.live.contains(process);
            let all = (0..self.handles.len()).filter(closed);
            return all.cycle().nth(pick / 8).unwrap_or(0);
        }
        self.live[pick % joined]
    }

    async fn run(mut self, scenario: &Scenario) -> TestCaseResult {
        for (index, step) in scenario.steps.iter().enumerate() {
            let joined = if index < scenario.join_at {
                1
            } else {
                scenario.handles
            };
            match &step.deed {
                Deed::ShutDown(..) if !scenario.shut_downs => {}
                Deed::Outage(_) if !scenario.outages => {}
                deed => self.step(deed, joined)?,
            }
            if !step.quiet {
                self.look_around().await?;
            }
        }
        self.finish(scenario).await
    }

    fn step(&mut self, deed: &Deed, joined: usize) -> TestCaseResult {
        let nth = |ids: Vec<usize>, pick: usize| ids.get(pick % ids.len().max(1)).copied();
        let waiting = |world: &Self| world.waiting.keys().copied().collect();
        let holding = |world: &Self| world.permits.keys().copied().collect();
        match *deed {
            Deed::Acquire { by, ask } => {
                let process = self.pick_handle(by, joined);
                self.acquire(process, ask)?;
            }
            Deed::Release(pick) => {
                if let Some(id) = nth(holding(self), pick) {
                    self.release(id)?;
                }
            }
            Deed::Drop(pick) => {
                if let Some(id) = nth(holding(self), pick) {
                    self.permits.remove(&id);
                    self.looked_at.retain(|looked_at| *looked_at != id);
                    let _ = self.model.release(id);
                }
            }
            Deed::GiveUp(pick) => {
                if let Some(id) = nth(waiting(self), pick) {
                    self.waiting.remove(&id);
                    self.model.give_up(id);
                }
            }
            Deed::Look(pick) => {
                if let Some(id) = nth(holding(self), pick) {
                    self.look(id)?;
                }
            }
            Deed::Advance(ms) => {
                // Its first poll moves the clock, and the keeper has no turn before the next.
                let mut advance = pin!(tokio::time::advance(Duration::from_millis(ms)));
                let _ = advance
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
                self.model.advance(ms);
            }
            Deed::Expire(gate) => {
                let ended = self.memory.expire(GATES[gate]);
                prop_assert_eq!(ended, self.model.expire(gate));
            }
            Deed::Outage(out) => {
                self.memory.set_out(out);
                self.model.set_out(out);
            }
            Deed::ShutDown(pick, deadline) => {
                let process = self.pick_handle(pick, joined);
                self.shut_down(process, deadline)?;
            }
            Deed::Forget(gate) => self.gates.retain(|(_, of), _| *of != gate),
        }
        Ok(())
    }

    fn acquire(&mut self, process: usize, ask: Ask) -> TestCaseResult {
        let semaphore = semaphore(&self.handles[process], &ask);
        self.gates
            .entry((process, ask.gate))
            .or_insert_with(|| semaphore.clone());
        let mut task = Task::new(async move {
            match (ask.wait, ask.weight) {
                (Wait::No, 1) => semaphore.try_acquire().await,
                (_, weight) => semaphore.acquire_many(weight).await,
            }
        });
        let id = self.model.acquire(process, ask);
        let answer = task.turn();
        self.compare(id, answer)?;
        if self.model.outcome(id).is_none() {
            self.waiting.insert(id, task);
        }
        Ok(())
    }

    /// An acquire has ended as it should have, or not ended as it should not.
    fn compare(&mut self, id: usize, answer: Option<Acquired>) -> TestCaseResult {
        let found = answer.as_ref().map(|answer| match answer {
            Ok(_) => Outcome::Granted,
            Err(LockError::Refused(refusal)) => Outcome::Refused {
                kind: refusal.kind(),
                position: refusal.position(),
                retry_after: told(refusal.kind(), refusal.retry_after()),
            },
            Err(LockError::Backend(error)) => Outcome::Failed(error.kind()),
        });
        prop_assert_eq!(found, self.model.outcome(id), "acquire {}", id);
        if let Some(Ok(permit)) = answer {
            let grant = self.model.grant_of(id);
            self.fences.insert(grant, permit.fencing_token().get());
            self.permits.insert(id, permit);
        }
        Ok(())
    }

    fn release(&mut self, id: usize) -> TestCaseResult {
        let Some(permit) = self.permits.remove(&id) else {
            return Ok(());
        };
        self.looked_at.retain(|looked_at| *looked_at != id);
        let answer = Task::new(permit.release()).turn();
        let found = answer.map(|answer| answer.map_err(|error| error.kind()));
        prop_assert_eq!(found, Some(self.model.release(id)), "release {}", id);
        Ok(())
    }

    fn look(&mut self, id: usize) -> TestCaseResult {
        let lost = self.model.look(id);
        let permit = &self.permits[&id];
        prop_assert_eq!(permit.is_held(), lost.is_none(), "lease {}", id);
        prop_assert_eq!(permit.remaining(), self.model.remaining(id), "lease {}", id);
        let mut watch = Task::new(permit.lost());
        let told = watch.turn();
        prop_assert_eq!(told, lost, "lease {}", id);
        if told.is_none() {
            self.watches.push((id, watch));
        }
        self.looked_at.push(id);
        Ok(())
    }

    fn shut_down(&mut self, process: usize, deadline: Ms) -> TestCaseResult {
        let handle = self.handles[process].clone();
        let deadline_after = Duration::from_millis(deadline);
        let mut task = Task::new(async move { handle.shutdown(deadline_after).await });
        self.model.shut_down(process, deadline);
        let report = task.turn();
        prop_assert_eq!(
            report,
            self.model.report(process),
            "shutdown of {}",
            process
        );
        if report.is_none() {
            self.shut_downs.push((process, task));
        }
        if let Some(slot) = self.live.iter().position(|live| *live == process) {
            self.live[slot] = self.start();
        }
        Ok(())
    }

    /// Gives everybody a turn, and compares what they see.
    async fn look_around(&mut self) -> TestCaseResult {
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        self.model.keep();
        let mut answers = Vec::new();
        for (id, task) in &mut self.waiting {
            answers.push((*id, task.turn()));
        }
        for (id, answer) in answers {
            if answer.is_some() {
                self.waiting.remove(&id);
            }
            self.compare(id, answer)?;
        }
        for (id, permit) in &self.permits {
            if self.looked_at.contains(id) {
                prop_assert_eq!(permit.is_held(), self.model.is_held(*id), "lease {}", id);
            }
        }
        let mut watches = Vec::new();
        for (id, mut watch) in std::mem::take(&mut self.watches) {
            let told = watch.turn();
            prop_assert_eq!(told, self.model.told(id), "watch of {}", id);
            if told.is_none() {
                watches.push((id, watch));
            }
        }
        self.watches = watches;
        let mut shut_downs = Vec::new();
        for (process, mut task) in std::mem::take(&mut self.shut_downs) {
            let report = task.turn();
            prop_assert_eq!(
                report,
                self.model.report(process),
                "shutdown of {}",
                process
            );
            if report.is_none() {
                shut_downs.push((process, task));
            }
        }
        self.shut_downs = shut_downs;
        Ok(())
    }

    /// Drops all, and looks at what is left.
    async fn finish(mut self, scenario: &Scenario) -> TestCaseResult {
        if scenario.looks_at_last {
            let ids: Vec<usize> = self.permits.keys().copied().collect();
            for id in ids {
                self.look(id)?;
            }
        }
        for id in std::mem::take(&mut self.waiting).into_keys() {
            self.model.give_up(id);
        }
        for id in std::mem::take(&mut self.permits).into_keys() {
            let _ = self.model.release(id);
        }
        self.memory.set_out(false);
        self.model.set_out(false);
        self.look_around().await?;
        self.step(&Deed::Advance(LONGEST_DELAY), 1)?;
        self.look_around().await?;
        prop_assert!(self.memory.busy().is_empty(), "{:?}", self.memory.busy());
        prop_assert!(self.shut_downs.is_empty(), "a shutdown goes on");
        if self.handles.len() == 1 {
            // Nobody has to be told from anybody else.
            for site in self.memory.sites.all() {
                let entered = site.turnstile().enter(1, Ttl::DEFAULT);
                prop_assert!(entered.is_some(), "`{}` stays slow", site.gate());
                site.turnstile().leave();
            }
        }
        for site in self.memory.sites.all() {
            let shown = format!("{site:?}");
            let empty = shown.contains("lost: {}") && shown.contains("lost: []");
            prop_assert!(empty, "a loss is kept that all know of: {}", shown);
        }
        let fences: Vec<_> = std::mem::take(&mut self.fences).into_iter().collect();
        for pair in fences.windows(2) {
            let (((gate, _), fence), ((next_gate, _), next)) = (pair[0], pair[1]);
            prop_assert!(
                gate != next_gate || fence < next,
                "{} before {}",
                fence,
                next
            );
        }
        self.gates.clear();
        prop_assert!(self.memory.sites.all().is_empty(), "a name is left");
        Ok(())
    }
}

/// Where something went wrong before the end, what is left is not given back: that might go
/// wrong too, and hide what did first.
impl Drop for World {
    fn drop(&mut self) {
        let _ = ManuallyDrop::new(std::mem::take(&mut self.waiting));
        let _ = ManuallyDrop::new(std::mem::take(&mut self.permits));
    }
}

fn semaphore(handle: &Portcullis, ask: &Ask) -> Semaphore {
    let semaphore = handle
        .semaphore(GATES[ask.gate], ask.limit)
        .and_then(|semaphore| semaphore.ttl(Duration::from_millis(TTL[ask.gate])))
        .and_then(|semaphore| semaphore.lease(ask.mode))
        .and_then(|semaphore| semaphore.lock_delay(Duration::from_millis(ask.delay)))
        .expect("its settings are in range")
        .max_waiters(ask.max_waiters);
    match ask.wait {
        Wait::No => semaphore.max_wait(Duration::ZERO),
        Wait::AtMost(wait) => semaphore.max_wait(wait),
        Wait::Unbounded => semaphore,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3_000,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_is_asked_of_it_it_does_what_the_model_does(scenario in scenarios()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime can be built");
        // Polled by hand, futures would be told to yield to others now and then.
        let run = async { World::new(scenario.handles).run(&scenario).await };
        runtime.block_on(tokio::task::unconstrained(run))?;
    }
}
