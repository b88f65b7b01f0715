//! Any order of events, with messages that are lost, late, repeated, replayed or forged: whoever is
//! told that it holds does hold, by a plain server's book.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;
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
    /// A home asks about what is held here, and about the last to come: it may hold by the answer.
    Question,
    GiveUp(usize),
    Release(usize),
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
    Link(bool),
    Inbox(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<(bool, bool)>().prop_map(|(waits, keeps)| Step::Lock { waits, keeps }),
        2 => Just(Step::Question),
        1 => any::<u64>().prop_map(Step::Recall),
        1 => any::<usize>().prop_map(Step::GiveUp),
        3 => any::<usize>().prop_map(Step::Release),
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
        1 => any::<bool>().prop_map(Step::Link),
        1 => any::<bool>().prop_map(Step::Inbox),
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

    fn end(&mut self, ms: u64, token: Token) -> Ended {
        self.ended.push(token);
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
}

#[derive(Default)]
struct Play {
    book: Book,
    sent: Vec<Call>,
    said: Vec<(Call, Said)>,
    waiting: Vec<Answer>,
    held: Vec<Lease>,
    /// All that was ever pushed.
    seen: Vec<(Token, u64)>,
    delay_ms: u64,
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

    fn run(&mut self, ms: u64, call: Call) {
        let said = match &call.body {
            Body::Acquire(ask) => Said::Acquired(self.book.acquire(ms, ask)),
            Body::End(end) => Said::Ended(self.book.end(ms, end.token)),
            Body::Renew(renew) => {
                let lease = |lease: &crate::backend::server::call::Extend| {
                    self.book.renew(ms, lease.token, lease.fence.get())
                };
                let told = renew.leases.iter().map(lease).collect();
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
                let tokens = held.take(5).chain([Token::of(desk.tokens)]).collect();
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
            Step::Pass(ms) => desk.pass(ms),
            Step::Run(which) => {
                if let Some(call) = pick(&mut self.sent, which) {
                    self.run(desk.ms, call);
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
            Step::Link(up) => desk.core.link_changed(desk.now(), 0, up),
            Step::Inbox(up) => desk.core.inbox_changed(desk.now(), up),
        }
    }

    /// Takes what was handed over, and compares it with the book.
    fn judge(&mut self, desk: &Desk, replicas: bool) -> Result<(), TestCaseError> {
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
            if replicas {
                let held = self
                    .replicated
                    .get(&fence)
                    .is_some_and(|&end| until(end) >= last);
                prop_assert!(held, "{lease:?} holds here, and not on a replica");
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn nobody_holds_but_by_the_servers_book(
        steps in steps(),
        delay_ms in prop_oneof![2 => Just(0), 1 => 1..4_000_u64],
        replicas in any::<bool>(),
    ) {
        let mut desk = if replicas { Desk::with_replicas() } else { Desk::new() };
        let mut play = Play { delay_ms, ..Play::default() };
        play.book.lease_ms = TTL_MS + delay_ms;
        for step in steps {
            play.step(&mut desk, step);
            play.sent.extend(desk.calls());
            play.judge(&desk, replicas)?;
        }
    }
}
