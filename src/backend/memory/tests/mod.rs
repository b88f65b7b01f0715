//! The memory against a model that is too plain to be wrong, and under many threads at once.

#[cfg(feature = "test-util")]
mod against_a_model {
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
}

/// What the model does not say.
#[cfg(feature = "test-util")]
mod besides {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use super::super::Memory;
    use crate::error::{LockError, RefusalKind};
    use crate::key::Prefix;
    use crate::portcullis::Portcullis;
    use crate::time::{Clock, Ttl};

    /// Writes down who was woken.
    struct Bell(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            let mut rung = self.1.lock().unwrap_or_else(PoisonError::into_inner);
            rung.push(self.0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_lost_is_woken_before_its_successor() {
        let memory = Memory::new(Clock::of_runtime());
        let mutex = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
        let rung = Arc::new(Mutex::new(Vec::new()));
        let waker = |name| Waker::from(Arc::new(Bell(name, Arc::clone(&rung))));
        let guard = mutex.lock().await.expect("nobody holds");
        let mut lost = pin!(guard.lost());
        let mut next = pin!(mutex.lock());
        let (holder, successor) = (waker("holder"), waker("successor"));
        assert!(
            lost.as_mut()
                .poll(&mut Context::from_waker(&holder))
                .is_pending()
        );
        assert!(
            next.as_mut()
                .poll(&mut Context::from_waker(&successor))
                .is_pending()
        );
        assert_eq!(memory.expire("north"), 1);
        let rung = rung.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(*rung, ["holder", "successor"]);
    }

    /// So that the keeper has no turn before what comes next.
    fn advance_quietly(ms: u64) {
        let mut advance = pin!(tokio::time::advance(Duration::from_millis(ms)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(advance.as_mut().poll(&mut context).is_pending());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_was_over_before_an_outage_does_not_fail_by_it() {
        let memory = Memory::new(Clock::of_runtime());
        let mutex = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
        let guard = mutex.lock().await.expect("nobody holds");
        let patient = mutex.clone().max_wait(Duration::from_millis(30));
        let mut waiting = pin!(patient.lock());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        advance_quietly(30);
        memory.set_out(true);
        let refused = waiting.await.expect_err("it is held");
        assert!(matches!(
            refused,
            LockError::Refused(refusal) if refusal.kind() == RefusalKind::WaitedTooLong
        ));
        drop(guard);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_served_when_an_outage_ends_does_not_lose_what_others_lost_by_it() {
        let memory = Memory::new(Clock::of_runtime());
        let handle = Portcullis::on_memory(&memory, Prefix::default());
        let short = |limit| {
            let semaphore = handle.semaphore("north", limit).expect("it is in range");
            let ttl = Duration::from_millis(90);
            semaphore.ttl(ttl).expect("it is in range")
        };
        let two = short(2).acquire_many(2).await.expect("nobody holds");
        let third = short(3).acquire().await.expect("one is left");
        let next = short(2);
        let mut waiting = pin!(next.acquire());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        memory.set_out(true);
        advance_quietly(90);
        memory.set_out(false);
        assert!(!two.is_held() && !third.is_held());
        assert!(waiting.await.expect("all is free").is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_told_to_retry_when_what_was_given_back_in_an_outage_would_have_ended() {
        let memory = Memory::new(Clock::of_runtime());
        let handle = Portcullis::on_memory(&memory, Prefix::default());
        let mutex = handle.mutex("north");
        let guard = mutex.lock().await.expect("nobody holds");
        let mut waiting = pin!(mutex.lock());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        memory.set_out(true);
        drop(guard);
        handle.shutdown(Duration::ZERO).await;
        let refused = waiting.await.expect_err("the handle is shut down");
        assert!(matches!(
            refused,
            LockError::Refused(refusal) if refusal.retry_after().is_none()
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_let_in_after_an_outage_has_come_to_a_gate() {
        let memory = Memory::new(Clock::of_runtime());
        let gate = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
        memory.set_out(true);
        // One that has asked before it began.
        for site in memory.sites.all() {
            assert_eq!(site.turnstile().enter(1, Ttl::DEFAULT), None);
        }
        memory.set_out(false);
        assert!(gate.try_lock().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_let_in_before_the_end_of_an_outage_has_come_to_a_gate_does_not_lose_by_it() {
        let memory = Memory::new(Clock::of_runtime());
        let gate = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
        memory.set_out(true);
        advance_quietly(20_000);
        memory.out.store(false, Ordering::Relaxed);
        let guard = gate.try_lock().await.expect("nobody holds");
        assert!(guard.is_held());
        for site in memory.sites.all() {
            site.change(&memory, |ledger, _| ledger.renew_again());
        }
        advance_quietly(20_000);
        assert!(guard.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_that_its_handle_makes_again_stays_without_a_lock() {
        let memory = Memory::new(Clock::of_runtime());
        let handle = Portcullis::on_memory(&memory, Prefix::default());
        let gates = [handle.mutex("north"), handle.mutex("north")];
        for site in memory.sites.all() {
            let entered = site.turnstile().enter(1, Ttl::DEFAULT);
            assert!(entered.is_some() && site.turnstile().leave());
        }
        drop(gates);
    }
}

/// What a lease tells while a thread stands still for a while between two of its steps.
#[cfg(feature = "test-util")]
mod what_leases_tell {
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
}

/// What is expected, with nothing in it but lists that are searched through.
#[cfg(feature = "test-util")]
mod model {
    use std::time::Duration;

    use crate::backend::{ShutdownReport, Wait};
    use crate::error::{BackendErrorKind, RefusalKind};
    use crate::lease::{LeaseMode, LostReason, Release};

    /// Milliseconds, since the start or long.
    pub(super) type Ms = u64;

    /// By gate. A third of each is a whole number.
    pub(super) const TTL: [Ms; 2] = [90, 300];

    pub(super) const LONGEST_DELAY: Ms = 200;

    #[derive(Debug, Clone, Copy)]
    pub(super) struct Ask {
        pub(super) gate: usize,
        pub(super) weight: u32,
        pub(super) limit: u32,
        pub(super) mode: LeaseMode,
        pub(super) delay: Ms,
        pub(super) wait: Wait,
        pub(super) max_waiters: u32,
    }

    /// How an acquire ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Outcome {
        Granted,
        Refused {
            kind: RefusalKind,
            position: Option<u64>,
            retry_after: Option<Duration>,
        },
        Failed(BackendErrorKind),
    }

    #[derive(Debug, Default)]
    pub(super) struct Model {
        now: Ms,
        out: bool,
        claims: Vec<Claim>,
        gates: [Gate; 2],
        processes: Vec<Process>,
        grants: u64,
    }

    /// Claims by their index.
    #[derive(Debug, Default)]
    struct Gate {
        holders: Vec<usize>,
        /// Those that were lost and keep others out, until when.
        delayed: Vec<(Ms, usize)>,
        queue: Vec<usize>,
    }

    /// An acquire and the lease that it gets.
    #[derive(Debug)]
    struct Claim {
        process: usize,
        ask: Ask,
        give_up: Option<Ms>,
        outcome: Option<Outcome>,
        /// The number of its grant among all.
        grant: u64,
        /// When it ends however often it is renewed.
        last: Option<Ms>,
        /// When it ends if nothing is done.
        end: Option<Ms>,
        /// When it was looked at first.
        looked_at: Option<Ms>,
        /// Set though nobody looks.
        why_lost: Option<LostReason>,
        /// What who has looked at it finds.
        lost: Option<LostReason>,
        /// What its watchers were told.
        told: Option<LostReason>,
        /// Its owner has given it back, and is told nothing any more.
        finished: bool,
        /// A shutdown waits for its end.
        awaited: bool,
    }

    #[derive(Debug, Default)]
    struct Process {
        closed: bool,
        deadline: Option<Ms>,
        cut_at: Option<Ms>,
        left: usize,
        released: usize,
        abandoned: usize,
    }

    fn ms(duration: Duration) -> Ms {
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
    }

    impl Claim {
        const fn ttl(&self) -> Ms {
            TTL[self.ask.gate]
        }

        /// What is left of it at a moment, if it is held.
        fn left(&self, now: Ms) -> Option<Ms> {
            let renewed = (self.ask.mode != LeaseMode::Fixed).then(|| {
                let since_renewal = |since: Ms| (now - since) % (self.ttl() / 3);
                self.ttl() - self.looked_at.map_or(0, since_renewal)
            });
            let to_end = self.end.map(|end| end.saturating_sub(now));
            renewed.into_iter().chain(to_end).min()
        }
    }

    /// When to come back, as far as it means anything: with a handle that shuts down nobody can, and
    /// how long its guards, which are cut at that moment, would have held depends on who is told
    /// first.
    pub(super) fn told(kind: RefusalKind, retry_after: Option<Duration>) -> Option<Duration> {
        retry_after.filter(|_| kind != RefusalKind::ShuttingDown)
    }

    impl Model {
        pub(super) fn start(&mut self) -> usize {
            self.processes.push(Process::default());
            self.processes.len() - 1
        }

        pub(super) fn outcome(&self, id: usize) -> Option<Outcome> {
            self.claims[id].outcome
        }

        /// The gate and the number of a grant.
        pub(super) fn grant_of(&self, id: usize) -> (usize, u64) {
            (self.claims[id].ask.gate, self.claims[id].grant)
        }

        pub(super) const fn advance(&mut self, ms: Ms) {
            self.now += ms;
        }

        /// The keeper has its turn.
        pub(super) fn keep(&mut self) {
            for gate in 0..self.gates.len() {
                self.settle(gate);
            }
            for process in 0..self.processes.len() {
                let cut_at = self.processes[process].cut_at;
                if cut_at.is_some_and(|at| at <= self.now) {
                    self.cut(process);
                }
            }
        }

        pub(super) fn acquire(&mut self, process: usize, ask: Ask) -> usize {
            let id = self.claims.len();
            self.claims.push(Claim {
                process,
                ask,
                give_up: None,
                outcome: None,
                grant: 0,
                last: None,
                end: None,
                looked_at: None,
                why_lost: None,
                lost: None,
                told: None,
                finished: false,
                awaited: false,
            });
            if ask.weight > ask.limit {
                self.claims[id].outcome = Some(Outcome::Refused {
                    kind: RefusalKind::NeverFits,
                    position: None,
                    retry_after: None,
                });
                return id;
            }
            self.settle(ask.gate);
            let waiting = self.gates[ask.gate].queue.len();
            if self.processes[process].closed {
                self.claims[id].outcome = Some(Outcome::Refused {
                    kind: RefusalKind::ShuttingDown,
                    position: None,
                    retry_after: None,
                });
            } else if self.out {
                self.fail(id);
            } else if waiting == 0 && self.fits(id) {
                self.grant(id);
            } else if ask.wait == Wait::No {
                self.refuse(id, RefusalKind::Busy, waiting);
            } else if waiting >= ask.max_waiters as usize {
                self.refuse(id, RefusalKind::QueueFull, waiting);
            } else {
                if let Wait::AtMost(wait) = ask.wait {
                    self.claims[id].give_up = Some(self.now + ms(wait));
                }
                self.gates[ask.gate].queue.push(id);
            }
            id
        }

        /// The future of an acquire is dropped, perhaps with an answer in it that nobody has seen.
        pub(super) fn give_up(&mut self, id: usize) {
            let gate = self.claims[id].ask.gate;
            self.settle(gate);
            self.leave_queue(id);
            self.hand_on(gate);
            if self.claims[id].outcome == Some(Outcome::Granted) {
                let _ = self.release(id);
            }
        }

        pub(super) fn release(&mut self, id: usize) -> Result<Release, BackendErrorKind> {
            // Its own account tells whoever has looked that it is over, settled or not.
            let over = self.claims[id].looked_at.is_some() && !self.is_held(id);
            if over || self.claims[id].lost.is_some() {
                return Ok(Release::NoLongerHeld);
            }
            self.claims[id].finished = true;
            let gate = self.claims[id].ask.gate;
            self.settle(gate);
            let held = self.gates[gate].holders.contains(&id);
            if held {
                self.end(id, Some(LostReason::ShutDown));
            }
            self.hand_on(gate);
            match held {
                _ if self.out => Err(BackendErrorKind::Unreachable),
                true => Ok(Release::Released),
                false => Ok(Release::NoLongerHeld),
            }
        }

        /// Tells how a lease was lost that is looked at. That settles nothing.
        pub(super) fn look(&mut self, id: usize) -> Option<LostReason> {
            if self.claims[id].looked_at.is_none() {
                self.claims[id].looked_at = Some(self.now);
                self.claims[id].lost = self.claims[id].why_lost;
            }
            let lost = match self.claims[id].lost {
                None if !self.is_held(id) => Some(LostReason::Expired),
                lost => lost,
            };
            self.claims[id].told = lost;
            lost
        }

        /// What the watchers of a lease were told.
        pub(super) fn told(&self, id: usize) -> Option<LostReason> {
            self.claims[id].told
        }

        pub(super) fn is_held(&self, id: usize) -> bool {
            let claim = &self.claims[id];
            let over = claim.end.is_some_and(|end| end <= self.now);
            self.gates[claim.ask.gate].holders.contains(&id) && !over
        }

        pub(super) fn remaining(&self, id: usize) -> Duration {
            let left = self.claims[id].left(self.now).unwrap_or(0);
            Duration::from_millis(if self.is_held(id) { left } else { 0 })
        }

        pub(super) fn expire(&mut self, gate: usize) -> usize {
            self.settle(gate);
            let holders = self.gates[gate].holders.clone();
            for id in &holders {
                self.lose(*id, LostReason::Expired, self.now);
            }
            self.hand_on(gate);
            holders.len()
        }

        pub(super) fn set_out(&mut self, out: bool) {
            if self.out == out {
                return;
            }
            for gate in 0..self.gates.len() {
                self.settle(gate);
            }
            self.out = out;
            for gate in 0..self.gates.len() {
                for id in self.gates[gate].holders.clone() {
                    let claim = &mut self.claims[id];
                    claim.end = if out {
                        claim.left(self.now).map(|left| self.now + left)
                    } else {
                        claim.last
                    };
                }
                self.hand_on(gate);
            }
        }

        pub(super) fn shut_down(&mut self, process: usize, deadline: Ms) {
            if self.report(process).is_some() {
                return;
            }
            let at = self.now + deadline;
            let earlier = self.processes[process].deadline.is_none_or(|old| at < old);
            if earlier {
                self.processes[process].deadline = Some(at);
            }
            if !self.processes[process].closed {
                self.processes[process].closed = true;
                for gate in 0..self.gates.len() {
                    self.settle(gate);
                    self.close(gate, process);
                    self.hand_on(gate);
                }
            }
            if deadline == 0 {
                self.cut(process);
            } else if earlier && self.report(process).is_none() {
                self.processes[process].cut_at = Some(at);
            }
        }

        /// What a shutdown tells, when it has ended.
        pub(super) fn report(&self, process: usize) -> Option<ShutdownReport> {
            let process = &self.processes[process];
            (process.closed && process.left == 0).then_some(ShutdownReport {
                released: process.released,
                abandoned: process.abandoned,
            })
        }

        fn close(&mut self, gate: usize, process: usize) {
            for id in self.gates[gate].queue.clone() {
                if self.claims[id].process == process {
                    let rank = self.leave_queue(id);
                    self.refuse(id, RefusalKind::ShuttingDown, rank);
                }
            }
            for id in self.gates[gate].holders.clone() {
                if self.claims[id].process == process {
                    self.claims[id].awaited = true;
                    self.processes[process].left += 1;
                }
            }
        }

        fn cut(&mut self, process: usize) {
            for gate in 0..self.gates.len() {
                self.settle(gate);
                for id in self.gates[gate].holders.clone() {
                    if self.claims[id].process == process {
                        self.lose(id, LostReason::ShutDown, self.now);
                    }
                }
                self.hand_on(gate);
            }
        }

        /// Lets happen what is due, in order. A lease that ends at the moment at which a wait does
        /// is handed on before.
        fn settle(&mut self, gate: usize) {
            loop {
                let Gate {
                    holders,
                    delayed,
                    queue,
                } = &self.gates[gate];
                let due = |at: Option<Ms>| at.filter(|at| *at <= self.now);
                let ends = holders.iter().filter_map(|id| {
                    let at = due(self.claims[*id].end)?;
                    Some((at, 0, *id))
                });
                let delays = delayed
                    .iter()
                    .filter_map(|(at, id)| Some((due(Some(*at))?, 0, *id)));
                let limits = queue.iter().filter_map(|id| {
                    let at = due(self.claims[*id].give_up)?;
                    Some((at, 1, *id))
                });
                match ends.chain(delays).chain(limits).min() {
                    None => return,
                    Some((at, 0, id)) if holders.contains(&id) => {
                        self.lose(id, LostReason::Expired, at);
                    }
                    Some((_, 0, id)) => {
                        self.gates[gate]
                            .delayed
                            .retain(|(_, delayed)| *delayed != id);
                    }
                    Some((_, _, id)) => {
                        let rank = self.leave_queue(id);
                        if self.out {
                            self.fail(id);
                        } else {
                            self.refuse(id, RefusalKind::WaitedTooLong, rank);
                        }
                    }
                }
                self.hand_on(gate);
            }
        }

        fn hand_on(&mut self, gate: usize) {
            while let Some(head) = self.gates[gate].queue.first().copied()
                && !self.out
                && self.fits(head)
            {
                self.leave_queue(head);
                self.grant(head);
            }
        }

        fn fits(&self, id: usize) -> bool {
            let ask = &self.claims[id].ask;
            let Gate {
                holders, delayed, ..
            } = &self.gates[ask.gate];
            let delayed = delayed.iter().map(|(_, id)| id);
            let held = holders.iter().chain(delayed);
            let held: u32 = held.map(|id| self.claims[*id].ask.weight).sum();
            held + ask.weight <= ask.limit
        }

        fn grant(&mut self, id: usize) {
            self.grants += 1;
            let claim = &mut self.claims[id];
            claim.grant = self.grants;
            claim.outcome = Some(Outcome::Granted);
            claim.last = match claim.ask.mode {
                LeaseMode::Renewed => None,
                LeaseMode::MaxHold(longest) => Some(self.now + ms(longest)),
                LeaseMode::Fixed => Some(self.now + claim.ttl()),
            };
            claim.end = claim.last;
            self.gates[claim.ask.gate].holders.push(id);
        }

        fn refuse(&mut self, id: usize, kind: RefusalKind, ahead: usize) {
            let gate = &self.gates[self.claims[id].ask.gate];
            let claim = |id: &usize| &self.claims[*id];
            let ends = gate.holders.iter().filter_map(|id| {
                let end = claim(id).end?;
                Some((end, claim(id).grant, claim(id).ask.delay))
            });
            let delays = gate
                .delayed
                .iter()
                .map(|(at, id)| (*at, claim(id).grant, 0));
            let first = ends.chain(delays).min();
            let first = first.map(|(end, _, delay)| end.saturating_sub(self.now) + delay);
            // Renewed, it always has its TTL left, and all agree on that.
            let renewed = gate.holders.iter().any(|id| claim(id).end.is_none());
            let ask = &self.claims[id].ask;
            let renewed = renewed.then_some(TTL[ask.gate] + ask.delay);
            let retry_after = first.into_iter().chain(renewed).min();
            let retry_after = retry_after.map(Duration::from_millis);
            self.claims[id].outcome = Some(Outcome::Refused {
                kind,
                position: Some(ahead as u64),
                retry_after: told(kind, retry_after),
            });
        }

        fn fail(&mut self, id: usize) {
            self.claims[id].outcome = Some(Outcome::Failed(BackendErrorKind::Unreachable));
        }

        /// Gives how many waited in front.
        fn leave_queue(&mut self, id: usize) -> usize {
            let queue = &mut self.gates[self.claims[id].ask.gate].queue;
            let rank = queue.iter().take_while(|waiter| **waiter != id).count();
            queue.retain(|waiter| *waiter != id);
            rank
        }

        fn lose(&mut self, id: usize, reason: LostReason, at: Ms) {
            let claim = &mut self.claims[id];
            claim.why_lost = Some(reason);
            if claim.looked_at.is_some() && !claim.finished {
                claim.lost = Some(reason);
                claim.told = Some(reason);
            }
            let Ask { gate, delay, .. } = claim.ask;
            if delay == 0 {
                self.end(id, Some(reason));
                return;
            }
            self.gates[gate].delayed.push((at + delay, id));
            let process = claim.process;
            let abandoned = claim.awaited && reason == LostReason::ShutDown;
            self.end(id, None);
            self.processes[process].abandoned += usize::from(abandoned);
        }

        /// It is not held any more: by its owner's will or its loss, or, for none, with a delay.
        fn end(&mut self, id: usize, how: Option<LostReason>) {
            let released = how == Some(LostReason::ShutDown);
            let claim = &mut self.claims[id];
            self.gates[claim.ask.gate]
                .holders
                .retain(|holder| *holder != id);
            if std::mem::take(&mut claim.awaited) {
                let process = &mut self.processes[claim.process];
                process.left -= 1;
                process.released += usize::from(released);
            }
        }
    }
}

/// Real threads, which meet on the way where nothing is locked.
mod many_threads {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::task::{JoinSet, yield_now};
    use tokio::time::timeout;

    use super::super::Memory;
    use crate::error::{LockError, RefusalKind};
    use crate::key::Prefix;
    use crate::lease::{LeaseMode, Release};
    use crate::portcullis::Portcullis;
    use crate::semaphore::{Semaphore, SemaphorePermit};
    use crate::time::{Clock, Ttl};

    const TASKS: u64 = 8;
    const ROUNDS: usize = 1_500;
    const HANGS: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(50);

    struct Visitor {
        semaphore: Semaphore,
        limit: u32,
        /// Permits held, but for those that may run out.
        inside: Arc<AtomicU32>,
        random: u64,
        fences: Vec<u64>,
    }

    impl Visitor {
        /// Xorshift, so that each run asks for the same.
        fn below(&mut self, end: u32) -> u32 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            u32::try_from(self.random >> 32).unwrap_or(0) % end
        }

        async fn come_and_go(mut self) -> Vec<u64> {
            for _ in 0..ROUNDS {
                self.visit().await;
            }
            self.fences
        }

        async fn visit(&mut self) {
            let semaphore = self.semaphore.clone();
            match self.below(16) {
                0..4 => {
                    let permit = semaphore.acquire().await.expect("it waits for its turn");
                    self.hold(permit, 1).await;
                }
                4..6 => match semaphore.try_acquire().await {
                    Ok(permit) => self.hold(permit, 1).await,
                    Err(error) => assert_eq!(kind(&error), Some(RefusalKind::Busy)),
                },
                6..8 => match semaphore.max_wait(Duration::from_millis(1)).acquire().await {
                    Ok(permit) => self.hold(permit, 1).await,
                    Err(error) => assert_eq!(kind(&error), Some(RefusalKind::WaitedTooLong)),
                },
                8..10 => {
                    let weight = 1 + self.below(self.limit);
                    let acquired = semaphore.acquire_many(weight).await;
                    self.hold(acquired.expect("it waits for its turn"), weight)
                        .await;
                }
                10..12 => {
                    let permit = semaphore.acquire().await.expect("it waits for its turn");
                    // As nobody takes it away, it is held whenever it is looked at.
                    assert!(permit.is_held() && permit.remaining() <= Ttl::DEFAULT.get());
                    let lost = permit.lost();
                    self.hold(permit, 1).await;
                    drop(lost);
                }
                12..14 => {
                    let short = semaphore.ttl(SHORT).expect("its TTL is in range");
                    let fixed = short.lease(LeaseMode::Fixed).expect("it is a mode");
                    let permit = fixed.acquire().await.expect("it waits for its turn");
                    self.note(&permit);
                    if self.below(128) == 0 {
                        permit.lost().await;
                        assert!(!permit.is_held());
                        assert_eq!(answer(permit).await, Release::NoLongerHeld);
                    }
                }
                _ => {
                    let patience = self.below(4);
                    tokio::select! {
                        biased;
                        permit = semaphore.acquire() => {
                            self.hold(permit.expect("it waits for its turn"), 1).await;
                        }
                        () = turns(patience) => {}
                    }
                }
            }
        }

        async fn hold(&mut self, permit: SemaphorePermit, weight: u32) {
            let others = self.inside.fetch_add(weight, Ordering::SeqCst);
            assert!(others + weight <= self.limit, "{others} are held already");
            self.note(&permit);
            turns(self.below(3)).await;
            self.inside.fetch_sub(weight, Ordering::SeqCst);
            if self.below(2) == 0 {
                assert_eq!(answer(permit).await, Release::Released);
            }
        }

        fn note(&mut self, permit: &SemaphorePermit) {
            let fence = permit.fencing_token().get();
            assert!(self.fences.last() < Some(&fence), "a fence came late");
            self.fences.push(fence);
        }
    }

    async fn turns(turns: u32) {
        for _ in 0..turns {
            yield_now().await;
        }
    }

    async fn answer(permit: SemaphorePermit) -> Release {
        let answer = permit.release().await;
        answer.expect("nothing is out")
    }

    fn kind(error: &LockError) -> Option<RefusalKind> {
        match error {
            LockError::Refused(refusal) => Some(refusal.kind()),
            LockError::Backend(_) => None,
        }
    }

    async fn crowd(limit: u32) {
        let memory = Memory::new(Clock::System);
        let gates = Portcullis::on_memory(&memory, Prefix::default());
        let semaphore = gates
            .semaphore("crowd", limit)
            .expect("the limit is in range");
        let inside = Arc::new(AtomicU32::new(0));
        let mut visitors = JoinSet::new();
        for number in 1..=TASKS {
            let visitor = Visitor {
                semaphore: semaphore.clone(),
                limit,
                inside: Arc::clone(&inside),
                random: number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
                fences: Vec::new(),
            };
            visitors.spawn(visitor.come_and_go());
        }
        let all = timeout(HANGS, visitors.join_all()).await;
        let mut fences = all.expect("every visitor gets its turn").concat();
        let last = semaphore.clone().max_wait(Duration::ZERO);
        let permits = last.acquire_many(limit).await;
        let permits = permits.expect("all is given back");
        fences.push(permits.fencing_token().get());
        drop(permits);
        for site in memory.sites.all() {
            // The keeper may be about to look at what has ended meanwhile.
            let entered = timeout(HANGS, async {
                loop {
                    if let Some(fence) = site.turnstile().enter(limit, Ttl::DEFAULT) {
                        return fence;
                    }
                    yield_now().await;
                }
            });
            fences.push(entered.await.expect("without a crowd nothing is locked"));
        }
        let given = fences.len();
        fences.sort_unstable();
        fences.dedup();
        assert_eq!(fences.len(), given, "a fence was given twice");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_crowd_that_comes_and_goes_in_all_ways_is_let_in_one_by_one() {
        crowd(1).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_crowd_that_comes_and_goes_in_all_ways_is_let_in_three_by_three() {
        crowd(3).await;
    }
}
