//! A few processes' cores and a few servers, on a network that loses, delays and reorders: whatever
//! happens, permits are kept apart, fences rise, and in the end all are served and nothing is left.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::mpsc::{Receiver as Released, Sender as Releases, channel};

use proptest::prelude::*;
use redis::Value;
use tokio::sync::oneshot;

use super::*;
use crate::backend::quorum::call::Mode;
use crate::backend::{Acquire, Place, ReleaseAnswer, Terms, Wait};
use crate::error::LockError;
use crate::key::{Kind, Prefix};
use crate::lease::{Lease, LeaseMode, LeaseState, Release};
use crate::time::Delay;

const MS: u64 = 1_000_000;
const TTL: Duration = Duration::from_millis(500);
/// Times of the test lie so far off that no lease seems over by the machine's own clock.
const START: u64 = 1 << 60;

type Name = (u64, Token);

/// One server, as its scripts are.
#[derive(Debug, Default, Clone)]
struct Fake {
    /// With their weight and the end of their lease.
    holders: BTreeMap<Name, (u32, u64)>,
    queue: BTreeSet<Name>,
    ended: HashSet<Token>,
    fence: u64,
    /// By how much its clock is ahead, in ms.
    ahead: u64,
}

/// What a server was asked, apart from its call: it may arrive late, when nobody waits for the answer.
#[derive(Debug, Clone)]
struct Request {
    name: Name,
    weight: u32,
    limit: u32,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Ask {
        lease: u64,
        latest: u64,
        max_waiters: u32,
        mode: Mode,
        fence: u64,
    },
    End {
        latest: u64,
        stay: bool,
    },
    Renew {
        fence: u64,
        agreed: bool,
        lease: u64,
    },
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("short")
}

impl Request {
    fn of(call: &Call) -> Self {
        let what = match &call.body {
            Body::Ask(ask) => What::Ask {
                lease: millis(ask.lease),
                latest: ask.latest_ms,
                max_waiters: ask.max_waiters,
                mode: ask.mode,
                fence: ask.fence,
            },
            Body::End {
                latest_ms, stay, ..
            } => What::End {
                latest: *latest_ms,
                stay: *stay,
            },
            Body::Renew {
                fence,
                agreed,
                lease,
            } => What::Renew {
                fence: *fence,
                agreed: *agreed,
                lease: millis(*lease),
            },
        };
        Self {
            name: (call.who.ticket, call.who.token),
            weight: call.who.weight,
            limit: call.who.limit,
            what,
        }
    }
}

fn draw(last: &mut u64, fill: bool, least: u64) -> u64 {
    if fill {
        *last = (*last).max(least);
        return least;
    }
    *last = (*last + 1).max(least);
    *last
}

impl Fake {
    fn ms(&self, now: Instant) -> u64 {
        now.as_nanos() / MS + self.ahead
    }

    fn used(&self) -> u32 {
        self.holders.values().map(|(weight, _)| weight).sum()
    }

    /// Runs a request; gives the answer, and who is told.
    fn run(&mut self, now: Instant, request: &Request) -> (Value, Option<Name>) {
        let ms = self.ms(now);
        let us = i64::try_from(ms * 1000).expect("a time");
        self.holders.retain(|_, (_, ends)| *ends > ms);
        let Request {
            name,
            weight,
            limit,
            ..
        } = *request;
        let int = |number: u64| i64::try_from(number).expect("small");
        let list = |numbers: &[i64]| Value::Array(numbers.iter().map(|n| Value::Int(*n)).collect());
        match request.what {
            What::Ask {
                lease,
                latest,
                max_waiters,
                mode,
                fence,
            } => {
                let fill = mode == Mode::Fill;
                if let Some((_, ends)) = self.holders.get(&name) {
                    return (
                        list(&[
                            0,
                            us,
                            int(draw(&mut self.fence, fill, fence)),
                            int(*ends - ms),
                        ]),
                        None,
                    );
                }
                if !self.queue.contains(&name) {
                    if ms > latest {
                        return (list(&[4, us]), None);
                    }
                    if self.ended.contains(&name.1) {
                        return (list(&[5, us]), None);
                    }
                }
                let room = self.used() + weight <= limit;
                let turn = self.queue.first().is_none_or(|first| *first >= name);
                if room && (fill || turn) {
                    let fence = draw(&mut self.fence, fill, fence);
                    self.holders.insert(name, (weight, ms + lease));
                    self.queue.remove(&name);
                    let told = self.queue.first().copied().filter(|_| self.used() < limit);
                    return (list(&[0, us, int(fence), int(lease)]), told);
                }
                let youngest = self
                    .holders
                    .keys()
                    .last()
                    .map_or(-1, |(ticket, _)| int(*ticket));
                let first = self.queue.first().map_or(-1, |(ticket, _)| int(*ticket));
                let older = if room { first } else { youngest };
                let next = self.holders.values().map(|(_, ends)| ends - ms).min();
                let next = if room { 0 } else { next.unwrap_or(0) };
                let waiters = self.queue.len() as u64;
                let answer = |kind, waiters| list(&[kind, us, int(next), 0, int(waiters), older]);
                if mode != Mode::Wait {
                    self.queue.remove(&name);
                    return (answer(2, waiters), None);
                }
                if !self.queue.contains(&name) && waiters >= u64::from(max_waiters) {
                    return (answer(3, waiters), None);
                }
                self.queue.insert(name);
                let rank = self.queue.iter().position(|other| *other == name);
                (answer(1, rank.unwrap_or(0) as u64), None)
            }
            What::End { latest, stay } => {
                let released = self.holders.remove(&name).is_some();
                let mut status = if released { 0 } else { 2 };
                if stay && released {
                    self.queue.insert(name);
                } else if !stay && self.queue.remove(&name) && !released {
                    status = 1;
                }
                if latest >= ms {
                    self.ended.insert(name.1);
                }
                let first = self.queue.first().copied();
                let told = first.filter(|first| self.used() < limit && !(stay && *first == name));
                (list(&[status, us]), told)
            }
            What::Renew {
                fence,
                agreed,
                lease,
            } => match self.holders.get_mut(&name) {
                Some((_, ends)) => {
                    *ends = (*ends).max(ms + lease);
                    let fence = draw(&mut self.fence, agreed, fence);
                    (list(&[0, us, int(*ends - ms), int(fence)]), None)
                }
                None => (list(&[2, us]), None),
            },
        }
    }
}

/// The connection of a process with a server. What is under way arrives in order.
#[derive(Default)]
struct Wire {
    up: bool,
    requests: VecDeque<(Call, Request)>,
    replies: VecDeque<(Call, Result<Value, Failure>)>,
}

/// Where a lease is given back to.
#[derive(Debug)]
struct Home(std::sync::Mutex<Releases<(usize, Token)>>, usize);

impl Place for Home {
    fn acquire(&self, _: &Arc<dyn Place>, _: &Terms) -> Acquire {
        Acquire::Ended
    }

    fn cancel(&self, _: Token) {}

    fn release(&self, token: Token, _: Option<oneshot::Sender<ReleaseAnswer>>) {
        let sender = self.0.lock().expect("no panic");
        let _ = sender.send((self.1, token));
    }
}

struct Task {
    process: usize,
    token: Token,
    answer: oneshot::Receiver<Result<Lease, LockError>>,
    held: Option<(Lease, Arc<LeaseState>)>,
}

struct World {
    now: Instant,
    limit: u32,
    cores: Vec<Core>,
    servers: Vec<Fake>,
    /// What a replica of each has, and since when.
    replicas: Vec<(Instant, Fake)>,
    /// How often each was replaced by that.
    lives: Vec<u32>,
    wires: Vec<Vec<Wire>>,
    /// Requests of broken connections, that may run at any time.
    late: Vec<(usize, Request)>,
    pushes: Vec<(usize, Token)>,
    tasks: Vec<Task>,
    given: Releases<(usize, Token)>,
    released: Released<(usize, Token)>,
    last_token: u128,
    last_fence: u64,
    fences: HashSet<u64>,
    served: usize,
    resource: Arc<Resource>,
    /// Of each token its process.
    owners: Rc<RefCell<BTreeMap<Token, usize>>>,
}

impl World {
    fn new(processes: usize, servers: usize, limit: u32) -> Self {
        let settings = Settings::default();
        let options = Options {
            server_timeout: None,
            silence: Duration::from_millis(200),
            quarantine: true,
            room: 2,
        };
        let core = || Core::new(servers, settings.clone(), options.clone());
        let kind = if limit == 1 {
            Kind::Mutex
        } else {
            Kind::Semaphore
        };
        let resource = Resource::named(&Prefix::default(), kind, &"a".into(), None);
        let (given, released) = channel();
        let mut world = Self {
            now: Instant::from_nanos(START),
            limit,
            cores: (0..processes).map(|_| core()).collect(),
            servers: (0..servers)
                .map(|server| Fake {
                    ahead: server as u64 * 7,
                    ..Fake::default()
                })
                .collect(),
            replicas: vec![(Instant::from_nanos(START), Fake::default()); servers],
            lives: vec![0; servers],
            wires: (0..processes)
                .map(|_| (0..servers).map(|_| Wire::default()).collect())
                .collect(),
            late: Vec::new(),
            pushes: Vec::new(),
            tasks: Vec::new(),
            given,
            released,
            last_token: 0,
            last_fence: 0,
            fences: HashSet::new(),
            served: 0,
            resource: Arc::new(resource),
            owners: Rc::default(),
        };
        for process in 0..processes {
            for server in 0..servers {
                world.link(process, server);
                world.cores[process].inbox_changed(world.now, server, true);
            }
        }
        world
    }

    fn link(&mut self, process: usize, server: usize) {
        let wire = &mut self.wires[process][server];
        if std::mem::replace(&mut wire.up, true) {
            return;
        }
        let arrival = Arrival {
            us: self.servers[server].ms(self.now) * 1000,
            run_id: Some(format!("{server}-{}", self.lives[server])),
            term: 0,
            uptime: Some(Duration::from_secs(3600)),
            reign: None,
            durable: false,
            evicts: None,
        };
        self.cores[process].linked(self.now, server, arrival);
        self.pick_up(process);
    }

    /// Breaks a connection: what was under way may run late, or never, and is not answered.
    fn cut(&mut self, process: usize, server: usize) {
        let wire = &mut self.wires[process][server];
        if !std::mem::replace(&mut wire.up, false) {
            return;
        }
        let mut calls = Vec::new();
        for (call, request) in wire.requests.drain(..) {
            self.late.push((server, request));
            calls.push(call);
        }
        calls.extend(wire.replies.drain(..).map(|(call, _)| call));
        self.cores[process].unlinked(self.now, server, None);
        for call in calls {
            self.cores[process].answer(self.now, call, Err(Failure::Unknown(None)));
        }
        self.pick_up(process);
    }

    /// Another takes the server's place, that lacks what came last.
    fn replace(&mut self, server: usize) {
        let (since, replica) = &self.replicas[server];
        // What is older than all that is remembered of ends is no failover.
        if self.now.since(*since) > Duration::from_secs(4) {
            return;
        }
        let ahead = self.servers[server].ahead;
        self.servers[server] = Fake {
            ahead,
            ..replica.clone()
        };
        self.lives[server] += 1;
        for process in 0..self.cores.len() {
            self.cut(process, server);
        }
        self.late.retain(|(late, _)| *late != server);
    }

    /// Puts what a core has decided on the wires.
    fn pick_up(&mut self, process: usize) {
        loop {
            let calls = self.cores[process].take_calls();
            if calls.is_empty() {
                return;
            }
            for call in calls {
                let wire = &mut self.wires[process][call.server];
                if wire.up {
                    let request = Request::of(&call);
                    wire.requests.push_back((call, request));
                } else {
                    self.cores[process].answer(self.now, call, Err(Failure::NotSent));
                }
            }
        }
    }

    fn run(&mut self, server: usize, request: &Request) -> Value {
        let (value, told) = self.servers[server].run(self.now, request);
        self.pushes.extend(told.map(|(_, token)| (server, token)));
        value
    }

    fn ask(&mut self, process: usize, wait: Wait) {
        self.last_token += 1;
        let token = Token::of((self.last_token << 64) | (self.last_token * 0x9E37_79B9));
        let (sender, answer) = oneshot::channel();
        let home = Home(std::sync::Mutex::new(self.given.clone()), process);
        let terms = Terms {
            weight: 1,
            limit: self.limit,
            ttl: Ttl::new(TTL).expect("in range"),
            mode: LeaseMode::Renewed,
            delay: Delay::default(),
            wait,
            max_waiters: 100,
            bridge: None,
            kept: 0,
        };
        self.owners.borrow_mut().insert(token, process);
        self.cores[process].errand(
            self.now,
            Errand::Acquire {
                token,
                request: crate::backend::errand::Request {
                    resource: Arc::clone(&self.resource),
                    terms,
                },
                place: Arc::new(home),
                answer: sender,
            },
        );
        self.tasks.push(Task {
            process,
            token,
            answer,
            held: None,
        });
        self.pick_up(process);
    }

    /// Looks who is inside, and that they may be.
    fn look(&mut self) {
        for task in &mut self.tasks {
            if task.held.is_none()
                && let Ok(Ok(lease)) = task.answer.try_recv()
            {
                let state = Arc::clone(lease.state());
                let fence = state.fencing_token().get();
                assert!(self.fences.insert(fence), "{fence} was given twice");
                if self.limit == 1 && state.deadline() > self.now {
                    assert!(fence > self.last_fence, "{fence} after {}", self.last_fence);
                    self.last_fence = fence;
                }
                self.served += 1;
                task.held = Some((lease, state));
            }
        }
        let inside = self.tasks.iter().filter(|task| {
            let held = task.held.as_ref();
            held.is_some_and(|(_, state)| state.deadline() > self.now && state.is_held())
        });
        let inside = inside.count();
        assert!(
            inside <= self.limit as usize,
            "{inside} of {} inside",
            self.limit
        );
    }

    fn give_back(&mut self, task: usize) {
        let task = self.tasks.swap_remove(task);
        let waits = task.held.is_none();
        drop(task.held);
        drop(task.answer);
        if waits {
            self.cores[task.process].errand(self.now, Errand::Cancel(task.token));
        }
        self.take_back();
        self.pick_up(task.process);
    }

    fn take_back(&mut self) {
        while let Ok((process, token)) = self.released.try_recv() {
            let release = Errand::Release {
                token,
                answer: None,
            };
            self.cores[process].errand(self.now, release);
            self.pick_up(process);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        for process in 0..self.cores.len() {
            self.cores[process].tick(self.now);
            self.pick_up(process);
        }
    }

    fn deliver(&mut self, process: usize, server: usize) {
        if let Some((call, request)) = self.wires[process][server].requests.pop_front() {
            let value = self.run(server, &request);
            let reply = (call, Ok(value));
            self.wires[process][server].replies.push_back(reply);
        }
    }

    /// The server says that it can't serve, as one does that has no memory left.
    fn refuse(&mut self, process: usize, server: usize) {
        let wire = &mut self.wires[process][server];
        if let Some((call, _)) = wire.requests.pop_front() {
            wire.replies.push_back((call, Err(Failure::not_loaded())));
        }
    }

    fn reply(&mut self, process: usize, server: usize) {
        if let Some((call, result)) = self.wires[process][server].replies.pop_front() {
            self.cores[process].answer(self.now, call, result);
            self.pick_up(process);
        }
    }

    /// Lets these servers answer all that a process has asked them, and the process hear that.
    fn serve(&mut self, process: usize, servers: &[usize]) {
        for &server in servers {
            while !self.wires[process][server].requests.is_empty() {
                self.deliver(process, server);
            }
            while !self.wires[process][server].replies.is_empty() {
                self.reply(process, server);
            }
        }
        self.take_back();
    }

    /// As the driver does, of a server that was silent.
    fn probe(&mut self, process: usize, server: usize) {
        if self.cores[process].is_silent(server) {
            self.cores[process].well_again(self.now, server);
            self.pick_up(process);
        }
    }

    fn push(&mut self, at: usize) {
        if self.pushes.is_empty() {
            return;
        }
        let (server, token) = self.pushes.swap_remove(at % self.pushes.len());
        let owner = self.owners.borrow().get(&token).copied();
        if let Some(process) = owner {
            self.cores[process].push(self.now, server, token);
            self.pick_up(process);
        }
    }

    fn step(&mut self, step: Step) {
        let (processes, servers) = (self.cores.len(), self.servers.len());
        match step {
            Step::Pass(ms) => self.pass(Duration::from_millis(u64::from(ms))),
            Step::Deliver(a, b) => self.deliver(a as usize % processes, b as usize % servers),
            Step::Reply(a, b) => self.reply(a as usize % processes, b as usize % servers),
            Step::Push(at) => self.push(at as usize),
            Step::Cut(a, b) => self.cut(a as usize % processes, b as usize % servers),
            Step::Link(a, b) => self.link(a as usize % processes, b as usize % servers),
            Step::Probe(a, b) => self.probe(a as usize % processes, b as usize % servers),
            Step::Late(at) if !self.late.is_empty() => {
                let (server, request) = self.late.swap_remove(at as usize % self.late.len());
                self.run(server, &request);
            }
            Step::LosePush(at) if !self.pushes.is_empty() => {
                self.pushes.swap_remove(at as usize % self.pushes.len());
            }
            Step::Lock(a) => self.ask(a as usize % processes, Wait::Unbounded),
            Step::Try(a) => self.ask(a as usize % processes, Wait::No),
            Step::Drop(at) if !self.tasks.is_empty() => {
                self.give_back(at as usize % self.tasks.len());
            }
            Step::Replicate(a) => {
                let server = a as usize % servers;
                self.replicas[server] = (self.now, self.servers[server].clone());
            }
            Step::Replace(a) => self.replace(a as usize % servers),
            Step::Refuse(a, b) => self.refuse(a as usize % processes, b as usize % servers),
            Step::Late(_) | Step::LosePush(_) | Step::Drop(_) => {}
        }
        self.take_back();
        self.look();
    }

    /// All is well from here on: everybody is served, and nothing is left.
    fn settle(&mut self) {
        for round in 0..4000 {
            for process in 0..self.cores.len() {
                for server in 0..self.servers.len() {
                    self.link(process, server);
                    self.probe(process, server);
                    self.serve(process, &[server]);
                }
            }
            while !self.pushes.is_empty() {
                self.push(0);
            }
            self.look();
            if let Some(task) = self.tasks.iter().position(|task| task.held.is_some()) {
                self.give_back(task);
            } else {
                self.tasks.retain(|task| !task.answer.is_terminated());
            }
            self.take_back();
            self.pass(Duration::from_millis(5));
            if self.tasks.is_empty() && self.cores.iter().all(Core::is_idle) {
                for server in &self.servers {
                    assert!(server.queue.is_empty(), "{server:?}");
                    assert!(server.holders.is_empty(), "after {round}: {server:?}");
                }
                return;
            }
        }
        let left: Vec<_> = self.cores.iter().map(|core| &core.entries).collect();
        panic!(
            "not settled: {} tasks, {left:#?}, {:#?}",
            self.tasks.len(),
            self.servers
        );
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Pass(u8),
    Deliver(u8, u8),
    Reply(u8, u8),
    Push(u8),
    LosePush(u8),
    Cut(u8, u8),
    Link(u8, u8),
    Late(u8),
    Probe(u8, u8),
    Lock(u8),
    Try(u8),
    Drop(u8),
    Replicate(u8),
    Replace(u8),
    Refuse(u8, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pair = || (any::<u8>(), any::<u8>());
    let step = prop_oneof![
        12 => (0..30_u8).prop_map(Step::Pass),
        40 => pair().prop_map(|(a, b)| Step::Deliver(a, b)),
        40 => pair().prop_map(|(a, b)| Step::Reply(a, b)),
        12 => any::<u8>().prop_map(Step::Push),
        1 => any::<u8>().prop_map(Step::LosePush),
        2 => pair().prop_map(|(a, b)| Step::Cut(a, b)),
        6 => pair().prop_map(|(a, b)| Step::Link(a, b)),
        3 => any::<u8>().prop_map(Step::Late),
        4 => pair().prop_map(|(a, b)| Step::Probe(a, b)),
        6 => any::<u8>().prop_map(Step::Lock),
        1 => any::<u8>().prop_map(Step::Try),
        6 => any::<u8>().prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 0..600)
}

/// The same where servers are replaced by replicas that are behind.
fn steps_with_failovers() -> impl Strategy<Value = Vec<Step>> {
    let failover = prop_oneof![
        3 => any::<u8>().prop_map(Step::Replicate),
        1 => any::<u8>().prop_map(Step::Replace),
    ];
    steps_among(failover)
}

/// The same where servers refuse what they are asked.
fn steps_with_refusals() -> impl Strategy<Value = Vec<Step>> {
    let refusal = (any::<u8>(), any::<u8>());
    steps_among(refusal.prop_map(|(a, b)| Step::Refuse(a, b)))
}

/// Others among the usual ones.
fn steps_among(others: impl Strategy<Value = Step>) -> impl Strategy<Value = Vec<Step>> {
    let some = prop::collection::vec((any::<prop::sample::Index>(), others), 0..30);
    (steps(), some).prop_map(|(mut steps, some)| {
        for (at, step) in some {
            steps.insert(at.index(steps.len() + 1), step);
        }
        steps
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_lock_on_three_servers_is_held_once_whatever_the_network_does(steps in steps()) {
        let mut world = World::new(3, 3, 1);
        for step in steps {
            world.step(step);
        }
        world.settle();
    }

    #[test]
    fn a_lock_on_five_servers_is_held_once_whatever_the_network_does(steps in steps()) {
        let mut world = World::new(4, 5, 1);
        for step in steps {
            world.step(step);
        }
        world.settle();
    }

    #[test]
    fn a_lock_is_held_once_though_servers_are_replaced_that_lack_what_came_last(
        steps in steps_with_failovers()
    ) {
        let mut world = World::new(3, 3, 1);
        for step in steps {
            world.step(step);
        }
        world.settle();
    }

    #[test]
    fn a_lock_is_held_once_though_servers_refuse_some_of_what_they_are_asked(
        steps in steps_with_refusals()
    ) {
        let mut world = World::new(3, 3, 1);
        for step in steps {
            world.step(step);
        }
        world.settle();
    }

    #[test]
    fn two_permits_on_five_servers_are_kept_apart(steps in steps()) {
        let mut world = World::new(3, 5, 2);
        for step in steps {
            world.step(step);
        }
        world.settle();
    }
}

/// Without this the properties would hold of cores that serve nobody.
#[test]
fn contenders_take_turns_and_split_votes_are_settled_at_once() {
    let mut world = World::new(3, 3, 1);
    for process in 0..3 {
        world.ask(process, Wait::Unbounded);
        world.pass(Duration::from_millis(1));
    }
    // Each process is first at another server.
    for turn in 0..3 {
        for process in 0..3 {
            world.deliver(process, (process + turn) % 3);
        }
    }
    for process in 0..3 {
        for server in 0..3 {
            world.reply(process, server);
        }
    }
    world.look();
    // Nobody has a majority, and without a timer the oldest one gets it.
    for _ in 0..3 {
        for process in 0..3 {
            for server in 0..3 {
                world.deliver(process, server);
                world.reply(process, server);
            }
        }
        while !world.pushes.is_empty() {
            world.push(0);
        }
        world.look();
    }
    assert_eq!(world.served, 1);
    world.settle();
    assert_eq!(world.served, 3);
}

/// A lock on three servers: one process holds it on all of them, and another waits at each.
fn with_a_waiter() -> World {
    let mut world = World::new(2, 3, 1);
    for process in 0..2 {
        world.ask(process, Wait::Unbounded);
        world.serve(process, &[0, 1, 2]);
        world.look();
    }
    assert!(world.servers.iter().all(|server| server.queue.len() == 1));
    world
}

#[test]
fn a_place_is_ended_that_a_server_has_again_though_a_renewal_found_nothing_there() {
    let mut world = with_a_waiter();
    world.step(Step::Replicate(1));
    world.give_back(0);
    world.serve(0, &[0, 1, 2]);
    world.pushes.retain(|(server, _)| *server == 1);
    world.push(0);
    world.serve(1, &[1]);
    // Votes that are given at different times have different fences, and one is written back.
    world.pass(Duration::from_millis(1));
    world.replace(1);
    world.link(0, 1);
    world.link(1, 1);
    world.serve(0, &[1]);
    let again = world.tasks[0].token;
    for server in [0, 2] {
        world.cores[1].push(world.now, server, again);
    }
    world.pick_up(1);
    world.serve(1, &[0, 1, 2]);
    world.serve(1, &[0, 1, 2]);
    world.look();
    assert_eq!(world.served, 2);
    assert_eq!(world.servers[1].queue.len(), 1, "as its replica had it");
    // What that server tells it gets lost.
    world.pushes.clear();
    world.settle();
}

#[test]
fn a_place_is_ended_at_a_server_that_refused_what_it_was_asked_last() {
    for sent in [true, false] {
        let mut world = with_a_waiter();
        // Asked again, as by a timer, it can't tell how it stands there.
        let token = world.tasks[1].token;
        world.cores[1].push(world.now, 1, token);
        let failure = if sent {
            Failure::not_loaded()
        } else {
            Failure::NotSent
        };
        for call in world.cores[1].take_calls() {
            world.cores[1].answer(world.now, call, Err(failure.clone()));
        }
        world.give_back(0);
        world.serve(0, &[0, 1, 2]);
        world.pushes.retain(|(server, _)| *server != 1);
        while !world.pushes.is_empty() {
            world.push(0);
        }
        world.serve(1, &[0, 2]);
        world.serve(1, &[0, 2]);
        world.look();
        assert_eq!(world.served, 2);
        assert_eq!(world.servers[1].queue.len(), 1, "which it was in before");
        world.settle();
    }
}

#[test]
fn what_ended_is_ended_at_a_servers_successor_however_long_that_is_away() {
    let mut world = with_a_waiter();
    world.step(Step::Replicate(1));
    world.give_back(1);
    world.serve(1, &[0, 1, 2]);
    world.replace(1);
    world.link(1, 1);
    // The end is under way again, and gets lost.
    world.cut(1, 1);
    world.late.clear();
    world.pass(Duration::from_secs(60));
    assert_eq!(world.servers[1].queue.len(), 1, "as its replica had it");
    world.settle();
}

#[test]
fn a_place_that_nobody_was_told_of_is_ended_however_long_its_server_is_away() {
    let mut world = World::new(2, 3, 1);
    world.ask(0, Wait::Unbounded);
    world.deliver(0, 1);
    // It has the others' votes, and a place at the one where it is not first.
    world.ask(1, Wait::Unbounded);
    world.serve(1, &[0, 2]);
    world.deliver(1, 1);
    world.cut(1, 1);
    world.look();
    assert_eq!(world.served, 1);
    world.give_back(1);
    world.serve(1, &[0, 2]);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.servers[1].queue.len(), 1);
    world.settle();
}

#[test]
fn a_release_does_not_wait_for_servers_where_nothing_was_held() {
    let mut world = with_a_waiter();
    world.give_back(0);
    world.serve(0, &[0, 2]);
    while !world.pushes.is_empty() {
        world.push(0);
    }
    world.serve(1, &[0, 2]);
    world.look();
    assert_eq!(world.served, 2);
    // At one of them it is only in the queue, and another has lost it.
    world.servers[2].holders.clear();
    let (sender, mut answer) = oneshot::channel();
    let release = Errand::Release {
        token: world.tasks[0].token,
        answer: Some(sender),
    };
    world.cores[1].errand(world.now, release);
    world.pick_up(1);
    world.serve(1, &[0, 2]);
    let answer = answer.try_recv().expect("what is known suffices");
    assert_eq!(answer.expect("no failure"), Release::NoLongerHeld);
    world.settle();
}
