//! Any order of events, with messages that are lost, late, repeated, replayed or forged: whoever is
//! told that it holds does hold, by a plain server's book.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::backend::server::core::Entry;
use crate::backend::server::reply::{Acquired, Crowd, Ended, Rechecked, Renewed};

const TTL_MS: u64 = 10_000;
const CLAIM_MS: u64 = 3_000;

/// What happens next; numbers choose among what there is.
#[derive(Debug, Clone)]
enum Step {
    Lock {
        waits: bool,
        keeps: bool,
    },
    /// A home asks about what is held here.
    Question,
    GiveUp(usize),
    Release(usize),
    /// A home ends what is held, and asks for the next at once.
    Swap(usize),
    Pass(u64),
    /// The server runs a request that is under way.
    Run(usize),
    /// The answer of one that was run comes in, or is lost.
    Hear(usize),
    Miss(usize),
    /// It comes in, and no replica has what was acknowledged by it.
    Few(usize),
    /// The next push comes in, or is lost; or one comes again that came before.
    Push,
    DropPush,
    Replay(usize),
    /// Somebody else writes to the inbox: of a token that he has made up, or of one that he has seen,
    /// with a fence of an earlier time.
    Forge {
        token: u128,
        fence: u64,
        left_ms: u64,
    },
    Stale {
        of: usize,
        left_ms: u64,
    },
    /// By anybody, with any date.
    Recall(u64),
    Link {
        up: bool,
        second: bool,
    },
    Inbox(bool),
    /// The other node owns all from here on, and we are not told yet; or are.
    Move,
    Learn,
    /// A request that is under way is refused, since its slot is about to move.
    Refuse(usize),
    /// Of an end and an acquire in one call the server runs the first, and refuses the second.
    Deny(usize),
    /// The client runs an acquire again that was run before.
    Repeat(usize),
}

/// Where it is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum World {
    One,
    /// One whose replicas have to have each lease.
    Replicated,
    /// Two nodes, between which all moves.
    Cluster,
    /// The same, over a client that sends again by itself.
    Repeating,
}

impl World {
    fn desk(self) -> Desk {
        match self {
            Self::One => Desk::new(),
            Self::Replicated => Desk::with_replicas(),
            Self::Cluster | Self::Repeating => Desk::of_many(Settings {
                repeats: self == Self::Repeating,
                ..Settings::default()
            }),
        }
    }

    fn has_nodes(self) -> bool {
        matches!(self, Self::Cluster | Self::Repeating)
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<(bool, bool)>().prop_map(|(waits, keeps)| Step::Lock { waits, keeps }),
        2 => Just(Step::Question),
        1 => any::<u64>().prop_map(Step::Recall),
        1 => any::<usize>().prop_map(Step::GiveUp),
        3 => any::<usize>().prop_map(Step::Release),
        3 => any::<usize>().prop_map(Step::Swap),
        3 => (0..4_000_u64).prop_map(Step::Pass),
        12 => any::<usize>().prop_map(Step::Run),
        12 => any::<usize>().prop_map(Step::Hear),
        1 => any::<usize>().prop_map(Step::Miss),
        1 => any::<usize>().prop_map(Step::Few),
        4 => Just(Step::Push),
        1 => Just(Step::DropPush),
        2 => any::<usize>().prop_map(Step::Replay),
        2 => (any::<u128>(), any::<u64>(), any::<u64>())
            .prop_map(|(token, fence, left_ms)| Step::Forge { token, fence, left_ms }),
        2 => (any::<usize>(), any::<u64>()).prop_map(|(of, left_ms)| Step::Stale { of, left_ms }),
        1 => any::<(bool, bool)>().prop_map(|(up, second)| Step::Link { up, second }),
        1 => any::<bool>().prop_map(Step::Inbox),
        1 => Just(Step::Move),
        1 => Just(Step::Learn),
        2 => any::<usize>().prop_map(Step::Refuse),
        2 => any::<usize>().prop_map(Step::Deny),
        2 => any::<usize>().prop_map(Step::Repeat),
    ];
    proptest::collection::vec(step, 1..120)
}

/// A mutex on a server, written down plainly.
#[derive(Default)]
struct Book {
    clock: u64,
    /// Who holds by which fence, and until when, in ms of the desk.
    holder: Option<(Token, u64, u64)>,
    queue: VecDeque<(Token, u64)>,
    ended: Vec<Token>,
    pushes: VecDeque<(Token, u64)>,
    /// How long each token's lease is.
    lease_ms: u64,
}

impl Book {
    fn draw(&mut self, ms: u64) -> u64 {
        self.clock = (self.clock + 1).max((SERVER + ms) * 1000);
        self.clock
    }

    /// Lets go who is over, and hands on; the caller's own grant needs no push.
    fn grant(&mut self, ms: u64, caller: Option<Token>) {
        if self.holder.is_some_and(|(_, _, end)| end <= ms) {
            self.holder = None;
        }
        if self.holder.is_none()
            && let Some((token, _)) = self.queue.pop_front()
        {
            let fence = self.draw(ms);
            let own = caller == Some(token);
            let length = if own { self.lease_ms } else { CLAIM_MS };
            self.holder = Some((token, fence, ms + length));
            if !own {
                self.pushes.push_back((token, fence));
            }
        }
    }

    fn acquire(&mut self, ms: u64, ask: &Ask) -> Acquired {
        if SERVER + ms > ask.latest_ms {
            return Acquired::Late;
        }
        if self.ended.contains(&ask.token) {
            return Acquired::Ended;
        }
        let known = self.queue.iter().any(|(token, _)| *token == ask.token);
        let held = |book: &Self| match book.holder {
            Some((token, fence, end)) if token == ask.token && end > ms => Some(Acquired::Held {
                fence: FencingToken::new(fence),
                left: Duration::from_millis(end - ms),
                others: !book.queue.is_empty(),
                stamp: book.clock,
            }),
            _ => None,
        };
        if let Some(held) = held(self) {
            return held;
        }
        let ticket = if ask.ticket > 0 {
            ask.ticket
        } else {
            self.draw(ms)
        };
        if !known {
            self.queue.push_back((ask.token, ticket));
            self.queue
                .make_contiguous()
                .sort_by_key(|(_, ticket)| *ticket);
        }
        self.grant(ms, Some(ask.token));
        if let Some(held) = held(self) {
            return held;
        }
        let crowd = Crowd {
            more: false,
            next_end: self
                .holder
                .map(|(_, _, end)| Duration::from_millis(end.saturating_sub(ms))),
            foreign: false,
            waiting: 0,
        };
        if ask.wait == Some(Duration::ZERO) {
            self.queue.retain(|(token, _)| *token != ask.token);
            return Acquired::Busy(crowd);
        }
        Acquired::Queued {
            stamp: self.clock,
            ticket,
            crowd,
            entered: !known,
        }
    }

    fn end(&mut self, ms: u64, end: &End) -> Ended {
        let token = end.token;
        if end.latest_ms > 0 {
            self.ended.push(token);
        }
        let found = if self
            .holder
            .is_some_and(|(holder, _, end)| holder == token && end > ms)
        {
            self.holder = None;
            Ended::Released
        } else if self.queue.iter().any(|(waiter, _)| *waiter == token) {
            self.queue.retain(|(waiter, _)| *waiter != token);
            Ended::Cancelled
        } else {
            Ended::Gone
        };
        self.grant(ms, None);
        found
    }

    fn recheck(&self, ms: u64, tokens: &[Token]) -> Rechecked {
        let holds = |token: &Token| {
            let holder = self.holder;
            holder.is_some_and(|(holder, _, end)| holder == *token && end > ms)
        };
        Rechecked {
            stamp: self.clock,
            others: !self.queue.is_empty(),
            held: tokens.iter().map(holds).collect(),
        }
    }

    fn renew(&mut self, ms: u64, token: Token, fence: u64) -> Renewed {
        match &mut self.holder {
            Some((holder, theirs, end)) if *holder == token && *theirs == fence && *end > ms => {
                *end = (*end).max(ms + self.lease_ms);
                Renewed::Left(Duration::from_millis(*end - ms))
            }
            _ => Renewed::Gone,
        }
    }
}

/// What the server has to say to a request that it ran.
enum Said {
    Acquired(Acquired),
    Ended(Ended),
    /// With who held then.
    Renewed(u64, Vec<Renewed>, Option<(Token, u64, u64)>),
    Rechecked(Rechecked),
    Swapped(Ended, Acquired),
}

struct Play {
    world: World,
    book: Book,
    /// Over which link each went.
    sent: Vec<(usize, Call)>,
    /// The acquires that were run.
    run: Vec<Ask>,
    /// The node that has it all, of two.
    owner: u16,
    up: [bool; 2],
    said: Vec<(Call, Said)>,
    waiting: Vec<Answer>,
    held: Vec<Lease>,
    /// All that was ever pushed.
    seen: Vec<(Token, u64)>,
    delay_ms: u64,
    /// Whose leases were lengthened by a renewal that ran when they were not held here any more: they
    /// end by themselves, and later than we wait for that.
    lengthened: Vec<Token>,
    /// By fence: until when a lease lasts at the least on the replica that acknowledged it.
    replicated: HashMap<u64, u64>,
}

fn pick<T>(from: &mut Vec<T>, which: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(which % from.len()))
}

impl Play {
    fn push(desk: &mut Desk, token: Token, fence: u64, left_ms: u64) {
        let (fence, left) = (FencingToken::new(fence), Duration::from_millis(left_ms));
        let others = false;
        let push = Push::Grant {
            token,
            fence,
            left,
            others,
        };
        desk.core.push(desk.now(), push);
    }

    fn new(world: World, delay_ms: u64) -> Self {
        let lease_ms = TTL_MS + delay_ms;
        Self {
            world,
            book: Book {
                lease_ms,
                ..Book::default()
            },
            sent: Vec::new(),
            run: Vec::new(),
            owner: 1,
            up: [true; 2],
            said: Vec::new(),
            waiting: Vec::new(),
            held: Vec::new(),
            seen: Vec::new(),
            delay_ms,
            lengthened: Vec::new(),
            replicated: HashMap::new(),
        }
    }

    fn home(&self) -> usize {
        if self.world.has_nodes() {
            usize::from(self.owner)
        } else {
            0
        }
    }

    /// Calls follow the owner; what was heard at the former one is not heard any more.
    fn learn(&self, desk: &mut Desk) {
        if self.world.has_nodes() && desk.core.link_of(tag()) != self.home() {
            desk.core.rerouted(desk.now(), owned_by(self.owner), 3);
            desk.core.ear_changed(desk.now(), tag(), false);
        }
    }

    /// Sends on what a node does not serve, as the driver does.
    fn send_on(&mut self, desk: &mut Desk, call: Call) {
        self.learn(desk);
        if self.up[usize::from(self.owner) - 1] {
            self.sent.push((self.home(), call));
        } else {
            Self::hear(desk, &call, Err(Failure::NotSent));
        }
    }

    fn run(&mut self, desk: &Desk, call: Call) {
        let ms = desk.ms;
        let said = match &call.body {
            Body::Acquire(ask) => {
                self.run.push(again(ask));
                Said::Acquired(self.book.acquire(ms, ask))
            }
            Body::End(end) => Said::Ended(self.book.end(ms, end)),
            Body::Swap(swap) => {
                let (end, ask) = &**swap;
                self.run.push(again(ask));
                let ended = self.book.end(ms, end);
                Said::Swapped(ended, self.book.acquire(ms, ask))
            }
            Body::Renew(renew) => {
                let lease = |lease: &crate::backend::server::call::Extend| {
                    self.book.renew(ms, lease.token, lease.fence.get())
                };
                let told = renew.leases.iter().map(lease).collect();
                for lease in &renew.leases {
                    let entry = desk.core.entries.get(&lease.token);
                    if matches!(entry, None | Some(Entry::Ending(_))) {
                        self.lengthened.push(lease.token);
                    }
                }
                Said::Renewed(self.book.clock, told, self.book.holder)
            }
            Body::Recheck(recheck) => Said::Rechecked(self.book.recheck(ms, &recheck.tokens)),
            Body::Take(_) | Body::Unbook(_) => unreachable!("quotas have a fuzz of their own"),
        };
        self.said.push((call, said));
    }

    /// What is to be acknowledged is told in whole, as the driver does it.
    fn hear_acknowledged(&mut self, desk: &mut Desk, call: Call, said: Said, replicas: u32) {
        let Said::Renewed(stamp, told, on_replica) = said else {
            unreachable!("the server answers what was asked");
        };
        if let (Some((_, fence, end)), 1..) = (on_replica, replicas) {
            let known = self.replicated.entry(fence).or_default();
            *known = (*known).max(end);
        }
        let left = told.iter().map(|told| match told {
            Renewed::Left(left) => i64::try_from(left.as_millis()).expect("small"),
            _ => -1,
        });
        let numbers = [0, i64::try_from(stamp).expect("small")]
            .into_iter()
            .chain(left);
        let value = Value::Array(numbers.map(Value::Int).collect());
        desk.core
            .acknowledged(desk.now(), call, Ok(value), replicas);
    }

    /// What is lost by the answer to a question is not held by the book, now or ever.
    fn hear_rechecked(&self, desk: &mut Desk, call: &Call, said: Said) {
        let held = self.held.iter().filter(|lease| lease.state().is_held());
        let held: Vec<&Lease> = held.collect();
        Self::hear(desk, call, Ok(said));
        let lost = held.iter().filter(|lease| !lease.state().is_held());
        for lease in lost.filter(|lease| lease.state().deadline() > desk.now()) {
            let fence = lease.fencing_token().get();
            let holds = self.book.holder.filter(|(_, holder, _)| *holder == fence);
            assert_eq!(holds, None, "{lease:?} was lost, and holds by the book");
        }
    }

    fn hear(desk: &mut Desk, call: &Call, said: Result<Said, Failure>) {
        let now = desk.now();
        match (&call.body, said) {
            (Body::Acquire(ask), Ok(Said::Acquired(told))) => {
                desk.core.acquired(now, call.sent, ask, Ok(told));
            }
            (Body::End(end), Ok(Said::Ended(told))) => {
                desk.core.ended(now, end.token, Ok((told, false)));
            }
            (Body::Renew(renew), Ok(Said::Renewed(stamp, told, _))) => {
                desk.core.renewed(now, call.sent, renew, Ok((stamp, told)));
            }
            (Body::Recheck(recheck), Ok(Said::Rechecked(told))) => {
                desk.core.rechecked(now, recheck, Ok(told));
            }
            (Body::Recheck(recheck), Err(failure)) => {
                desk.core.rechecked(now, recheck, Err(failure));
            }
            (Body::Swap(swap), Ok(Said::Swapped(ended, asked))) => {
                desk.core.ended(now, swap.0.token, Ok((ended, false)));
                desk.core.acquired(now, call.sent, &swap.1, Ok(asked));
            }
            (Body::Swap(swap), Err(failure)) => {
                desk.core.ended(now, swap.0.token, Err(failure.clone()));
                desk.core.acquired(now, call.sent, &swap.1, Err(failure));
            }
            (Body::Acquire(ask), Err(failure)) => {
                desk.core.acquired(now, call.sent, ask, Err(failure));
            }
            (Body::End(end), Err(failure)) => desk.core.ended(now, end.token, Err(failure)),
            (Body::Renew(renew), Err(failure)) => {
                desk.core.renewed(now, call.sent, renew, Err(failure));
            }
            _ => unreachable!("the server answers what was asked"),
        }
    }

    fn step(&mut self, desk: &mut Desk, step: Step) {
        match step {
            Step::Lock { waits, keeps } => {
                let wait = if waits { Wait::Unbounded } else { Wait::No };
                let mut request = Desk::request(wait, TTL_MS);
                request.terms.kept = u32::from(keeps);
                request.terms.delay =
                    Delay::new(Duration::from_millis(self.delay_ms)).expect("in range");
                self.waiting.push(desk.acquire(request).1);
            }
            Step::Question => {
                let held = self.held.iter().map(|lease| lease.state().token());
                let tokens = held.take(5).collect();
                let resource = Desk::request(Wait::No, TTL_MS).resource;
                let question = Command::Recheck { resource, tokens };
                desk.core.command(desk.now(), question);
            }
            Step::Recall(stamp) => {
                let main = Desk::request(Wait::No, TTL_MS).resource.main().into();
                desk.core.push(desk.now(), Push::Recall { stamp, main });
            }
            // Dropping it cancels nothing here, as there is no place behind it: what is granted to
            // nobody is given back.
            Step::GiveUp(which) => drop(pick(&mut self.waiting, which)),
            Step::Release(which) => drop(pick(&mut self.held, which)),
            Step::Swap(which) => {
                self.step(
                    desk,
                    Step::Lock {
                        waits: true,
                        keeps: true,
                    },
                );
                self.step(desk, Step::Release(which));
            }
            Step::Pass(ms) => desk.pass(ms),
            Step::Run(which) => {
                if let Some((link, call)) = pick(&mut self.sent, which) {
                    if link == self.home() {
                        self.run(desk, call);
                    } else {
                        self.send_on(desk, call);
                    }
                }
            }
            Step::Hear(which) => {
                if let Some((call, said)) = pick(&mut self.said, which) {
                    if call.is_acknowledged() {
                        self.hear_acknowledged(desk, call, said, 1);
                    } else if matches!(call.body, Body::Recheck(_)) {
                        self.hear_rechecked(desk, &call, said);
                    } else {
                        Self::hear(desk, &call, Ok(said));
                    }
                }
            }
            Step::Miss(which) => {
                if let Some((call, _)) = pick(&mut self.said, which) {
                    if call.is_acknowledged() {
                        desk.unacknowledged(call, Failure::Unknown(None));
                    } else {
                        Self::hear(desk, &call, Err(Failure::Unknown(None)));
                    }
                }
            }
            Step::Few(which) => {
                if let Some((call, said)) = pick(&mut self.said, which) {
                    if call.is_acknowledged() {
                        self.hear_acknowledged(desk, call, said, 0);
                    } else {
                        self.said.push((call, said));
                    }
                }
            }
            Step::Push => {
                if let Some((token, fence)) = self.book.pushes.pop_front() {
                    self.seen.push((token, fence));
                    Self::push(desk, token, fence, CLAIM_MS);
                }
            }
            Step::DropPush => drop(self.book.pushes.pop_front()),
            Step::Replay(which) => {
                if !self.seen.is_empty() {
                    let (token, fence) = self.seen[which % self.seen.len()];
                    Self::push(desk, token, fence, CLAIM_MS);
                }
            }
            Step::Forge {
                token,
                fence,
                left_ms,
            } => {
                // A made-up one of 128 bits is none of ours; ours are small here.
                let token = Token::of(token | 1 << 127);
                Self::push(desk, token, fence >> 11, left_ms >> 11);
            }
            Step::Stale { of, left_ms } => {
                if !self.seen.is_empty() {
                    let (token, fence) = self.seen[of % self.seen.len()];
                    // With more time than it had, and by a fence from before the first.
                    let earlier = fence.min(SERVER * 1000 - 1);
                    Self::push(desk, token, earlier, left_ms >> 11);
                }
            }
            Step::Link { up, second } if self.world.has_nodes() => {
                self.up[usize::from(second)] = up;
                let link = 1 + usize::from(second);
                desk.core.link_changed(desk.now(), link, up);
            }
            Step::Link { up, .. } => desk.core.link_changed(desk.now(), 0, up),
            Step::Inbox(up) => {
                desk.core.inbox_changed(desk.now(), up);
                desk.core.ear_changed(desk.now(), tag(), up);
            }
            Step::Move => self.owner = 3 - self.owner,
            Step::Learn => self.learn(desk),
            Step::Refuse(which) => {
                if self.world.has_nodes()
                    && let Some((_, call)) = pick(&mut self.sent, which)
                {
                    let error = redis::make_extension_error("TRYAGAIN".to_owned(), None);
                    let failure = Failure::NotNow(BackendErrorKind::NotServing, error);
                    Self::hear(desk, &call, Err(failure));
                }
            }
            Step::Deny(which) => {
                if let Some((link, call)) = pick(&mut self.sent, which) {
                    match &call.body {
                        Body::Swap(swap) if link == self.home() => {
                            let ended = self.book.end(desk.ms, &swap.0);
                            desk.core
                                .ended(desk.now(), swap.0.token, Ok((ended, false)));
                            let error = redis::make_extension_error("OOM".to_owned(), None);
                            let failure = Failure::Final(BackendErrorKind::Refused, error);
                            desk.core
                                .acquired(desk.now(), call.sent, &swap.1, Err(failure));
                        }
                        _ => self.sent.push((link, call)),
                    }
                }
            }
            Step::Repeat(which) => {
                if self.world == World::Repeating && !self.run.is_empty() {
                    let ask = &self.run[which % self.run.len()];
                    self.book.acquire(desk.ms, ask);
                }
            }
        }
    }

    /// Takes what was handed over, and compares it with the book.
    fn judge(&mut self, desk: &Desk) -> Result<(), TestCaseError> {
        let mut open = Vec::new();
        for mut answer in std::mem::take(&mut self.waiting) {
            match answer.try_recv() {
                Ok(Ok(lease)) => self.held.push(lease),
                Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {}
                Err(oneshot::error::TryRecvError::Empty) => open.push(answer),
            }
        }
        self.waiting = open;
        for lease in &self.held {
            // Its owner has not given it back, so it holds for the delay beyond what was believed in.
            let delay = Duration::from_millis(self.delay_ms);
            let last = lease.state().deadline().after(delay);
            let believed = lease.state().is_held() && lease.state().deadline() > desk.now();
            if !believed && (self.delay_ms == 0 || last <= desk.now()) {
                continue;
            }
            let fence = lease.fencing_token().get();
            let until = |end: u64| desk.start.after(Duration::from_millis(end));
            let book = self.book.holder.filter(|(_, holder, _)| *holder == fence);
            let held = book.is_some_and(|(_, _, end)| until(end) >= last);
            prop_assert!(held, "{lease:?} holds here, and not by the book");
            if self.world == World::Replicated {
                let held = self
                    .replicated
                    .get(&fence)
                    .is_some_and(|&end| until(end) >= last);
                prop_assert!(held, "{lease:?} holds here, and not on a replica");
            }
        }
        // Whoever holds by the book, somebody here would end it.
        if let Some((token, _, end)) = self.book.holder {
            let is_known = end <= desk.ms
                || desk.core.entries.contains_key(&token)
                || self.lengthened.contains(&token);
            prop_assert!(is_known, "{token:?} holds by the book, and for nobody");
        }
        Ok(())
    }
}

/// The same request, as a client sends it that got no answer.
fn again(ask: &Ask) -> Ask {
    Ask {
        resource: Arc::clone(&ask.resource),
        ..*ask
    }
}

proptest! {
    #[test]
    fn nobody_holds_but_by_the_servers_book(
        steps in steps(),
        delay_ms in prop_oneof![2 => Just(0), 1 => 1..4_000_u64],
        world in prop_oneof![
            Just(World::One), Just(World::Replicated), Just(World::Cluster), Just(World::Repeating),
        ],
    ) {
        let mut desk = world.desk();
        let mut play = Play::new(world, delay_ms);
        for step in steps {
            play.step(&mut desk, step);
            let calls = desk.calls();
            let link = desk.core.link_of(tag());
            play.sent.extend(calls.into_iter().map(|call| (link, call)));
            play.judge(&desk)?;
        }
    }
}
