//! The decisions of a handle, with any event after any other and the clock in hand.

mod acknowledging;
mod delaying;
mod ending;
mod failing;
mod fuzz;
mod granting;
mod holding;
mod keeping;
mod outage;
mod routing;
mod shutdown;
mod speaking;
mod swapping;
mod taking;
mod turns_fuzz;
mod waiting;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::sync::oneshot;

use super::{Channel, Command, Core, Routes};
use crate::backend::errand::{Errand, Request};
use crate::backend::server::call::{Ask, Body, Call, End, Renew};
use crate::backend::server::reply::{Failure, Push};
use crate::backend::server::{Replicas, Settings};
use crate::backend::{Acquire, Place, ReleaseAnswer, Terms, Wait};
use crate::error::{BackendErrorKind, LockError, RefusalKind};
use crate::key::{Key, Kind, Prefix, Resource, SLOTS, Tag};
use crate::lease::{Lease, LeaseMode, Release};
use crate::time::{Delay, Instant, Ttl};
use crate::token::{FencingToken, Token};

/// The server's clock when ours reads zero, in ms.
const SERVER: u64 = 1_700_000_000_000;

/// Notes what dropped leases ask for, as the channel to the background thread does.
#[derive(Debug, Default)]
struct Drops(Mutex<Vec<Errand>>);

impl Place for Drops {
    fn acquire(&self, _: &Arc<dyn Place>, _: &Terms) -> Acquire {
        unreachable!("the core is asked directly")
    }

    fn cancel(&self, token: Token) {
        self.note(Errand::Cancel(token));
    }

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        self.note(Errand::Release { token, answer });
    }
}

impl Drops {
    fn note(&self, errand: Errand) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(errand);
    }
}

type Answer = oneshot::Receiver<Result<Lease, LockError>>;

/// A core at a clock that the test moves. It starts at the real one, because guards read that.
struct Desk {
    core: Core,
    drops: Arc<Drops>,
    start: Instant,
    ms: u64,
    tokens: u128,
}

impl Desk {
    /// Connected, with its inbox confirmed.
    fn new() -> Self {
        Self::with(Settings::default())
    }

    /// The same, where one replica has to have each lease, which it has 200 ms to acknowledge.
    fn with_replicas() -> Self {
        Self::with(Settings {
            replicas: Some(Replicas {
                least: 1,
                patience: Duration::from_millis(200),
            }),
            ..Settings::default()
        })
    }

    fn with(settings: Settings) -> Self {
        let drops = Arc::new(Drops::default());
        let settings = Settings {
            connections: 1,
            ..settings
        };
        let mut desk = Self {
            core: Core::new(settings),
            drops,
            start: Instant::now(),
            ms: 0,
            tokens: 0,
        };
        desk.core.time_seen(0, SERVER * 1000, desk.now());
        desk.core.link_changed(desk.now(), 0, true);
        desk.core.inbox_changed(desk.now(), true);
        desk
    }

    /// Of many nodes, two of which are connected by one link each; the first owns all. No channel is
    /// confirmed.
    fn of_many(settings: Settings) -> Self {
        let mut desk = Self::with(settings.clone());
        let settings = Settings {
            connections: 1,
            ..settings
        };
        desk.core = Core::of_many(settings);
        desk.core.rerouted(desk.now(), owned_by(1), 3);
        for link in [1, 2] {
            desk.core.time_seen(link, SERVER * 1000, desk.now());
            desk.core.link_changed(desk.now(), link, true);
        }
        desk
    }

    fn now(&self) -> Instant {
        self.start.after(Duration::from_millis(self.ms))
    }

    fn server_us(&self) -> u64 {
        (SERVER + self.ms) * 1000
    }

    fn pass(&mut self, ms: u64) {
        self.ms += ms;
        self.core.tick(self.now());
    }

    fn request(wait: Wait, ttl_ms: u64) -> Request {
        let prefix = Prefix::new("t").expect("a plain prefix");
        Request {
            resource: Arc::new(Resource::named(&prefix, Kind::Mutex, &"gate".into(), None)),
            terms: Terms {
                weight: 1,
                limit: 1,
                ttl: Ttl::new(Duration::from_millis(ttl_ms)).expect("in range"),
                mode: LeaseMode::Renewed,
                delay: Delay::default(),
                wait,
                max_waiters: 10,
                bridge: None,
                kept: 0,
            },
        }
    }

    fn acquire(&mut self, request: Request) -> (Token, Answer) {
        self.tokens += 1;
        let token = Token::of(self.tokens);
        let (sender, answer) = oneshot::channel();
        self.core.errand(
            self.now(),
            Errand::Acquire {
                token,
                request,
                place: Arc::<Drops>::clone(&self.drops),
                answer: sender,
            },
        );
        (token, answer)
    }

    fn lock(&mut self) -> (Token, Answer) {
        self.acquire(Self::request(Wait::Unbounded, 10_000))
    }

    fn calls(&mut self) -> Vec<Call> {
        let dropped: Vec<Errand> = self
            .drops
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
            .collect();
        for errand in dropped {
            self.core.errand(self.now(), errand);
        }
        self.core.take_calls()
    }

    /// The one call that is to be sent now.
    fn call(&mut self) -> Call {
        let mut calls = self.calls();
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls.remove(0)
    }

    fn no_call(&mut self) {
        let calls = self.calls();
        assert!(calls.is_empty(), "{calls:?}");
    }

    /// Answers a call with the numbers that a script gives after its status and the server's clock.
    fn answer(&mut self, call: Call, numbers: &[i64]) {
        let value = Value::Array(numbers.iter().copied().map(Value::Int).collect());
        self.core.answer(self.now(), call, Ok(value));
    }

    fn held(&mut self, call: Call, fence: u64, left_ms: i64) {
        let us = self.server_us() as i64;
        self.answer(call, &[0, us, us.max(fence as i64), fence as i64, left_ms]);
    }

    fn queued(&mut self, call: Call, stamp: u64, ticket: u64, next_ms: i64) {
        let us = self.server_us() as i64;
        self.answer(
            call,
            &[1, us, stamp as i64, 0, next_ms, 0, 0, ticket as i64, 0],
        );
    }

    fn queued_anew(&mut self, call: Call, stamp: u64, ticket: u64) {
        let us = self.server_us() as i64;
        self.answer(
            call,
            &[1, us, stamp as i64, 0, 5000, 0, 0, ticket as i64, 1],
        );
    }

    fn ended(&mut self, call: Call, status: i64) {
        let us = self.server_us() as i64;
        self.answer(call, &[status, us, us, 0]);
    }

    fn renewed(&mut self, call: Call, left: &[i64]) {
        let us = self.server_us() as i64;
        let mut numbers = vec![us, us];
        numbers.extend(left);
        self.answer(call, &numbers);
    }

    /// The same, when so many replicas have it.
    fn acknowledged(&mut self, call: Call, left: &[i64], replicas: u32) {
        let us = self.server_us() as i64;
        let numbers = [us, us].into_iter().chain(left.iter().copied());
        let value = Value::Array(numbers.map(Value::Int).collect());
        self.core
            .acknowledged(self.now(), call, Ok(value), replicas);
    }

    fn unacknowledged(&mut self, call: Call, failure: Failure) {
        self.core.acknowledged(self.now(), call, Err(failure), 0);
    }

    fn fail(&mut self, call: Call, failure: Failure) {
        self.core.answer(self.now(), call, Err(failure));
    }

    fn push(&mut self, token: Token, fence: u64) {
        let left = Duration::from_secs(3);
        self.core.push(
            self.now(),
            Push::Grant {
                token,
                fence: FencingToken::new(fence),
                left,
                others: false,
            },
        );
    }

    /// A waiter that the server has queued, with its answer still to come.
    fn queued_waiter(&mut self) -> (Token, Answer) {
        let (token, answer) = self.lock();
        let call = self.call();
        let ticket = self.server_us();
        self.queued(call, ticket, ticket, 5000);
        (token, answer)
    }

    fn holder(&mut self) -> (Token, Lease) {
        let (token, mut answer) = self.lock();
        let call = self.call();
        let fence = self.server_us();
        self.held(call, fence, 10_000);
        (token, granted(&mut answer))
    }
}

/// All slots have this owner, to which one link leads.
fn owned_by(node: u16) -> Routes {
    Routes::to_owners(1, vec![node; SLOTS].into())
}

/// Of what desks ask for.
fn tag() -> Tag {
    Desk::request(Wait::No, 1000).resource.tag
}

fn granted(answer: &mut Answer) -> Lease {
    answer
        .try_recv()
        .expect("it is answered")
        .expect("it is granted")
}

fn refused(answer: &mut Answer) -> RefusalKind {
    match answer.try_recv().expect("it is answered") {
        Err(LockError::Refused(refusal)) => refusal.kind(),
        other => panic!("not refused: {other:?}"),
    }
}

fn failed(answer: &mut Answer) -> BackendErrorKind {
    match answer.try_recv().expect("it is answered") {
        Err(LockError::Backend(error)) => error.kind(),
        other => panic!("not failed: {other:?}"),
    }
}

fn is_open(answer: &mut Answer) -> bool {
    matches!(answer.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

fn ask(call: &Call) -> &Ask {
    match &call.body {
        Body::Acquire(ask) => ask,
        other => panic!("not an acquire: {other:?}"),
    }
}

fn end(call: &Call) -> &End {
    match &call.body {
        Body::End(end) => end,
        other => panic!("not an end: {other:?}"),
    }
}

fn renew(call: &Call) -> &Renew {
    match &call.body {
        Body::Renew(renew) => renew,
        other => panic!("not a renewal: {other:?}"),
    }
}

fn left_ms(desk: &Desk, lease: &Lease) -> u64 {
    u64::try_from(lease.state().deadline().since(desk.now()).as_millis()).expect("small")
}

fn broken() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}
