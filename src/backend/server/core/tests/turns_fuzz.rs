//! Any order of events at a quota, with requests and answers that are lost, late or repeated, and
//! a shutdown at any time: nothing counts twice, who has its turn has it by a plain server's book,
//! and no turn stays that nobody wants.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::*;
use crate::backend::server::call;
use crate::backend::server::core::Asked;
use crate::backend::{Booking, Op, Take, Taken};
use crate::key::Subject;
use crate::rate_limit::{Quota, Quotas};

/// One unit in so long.
const INTERVAL_MS: u64 = 1_000;

/// What happens next; numbers choose among what there is.
#[derive(Debug, Clone)]
enum Step {
    Check,
    Book {
        max_wait_ms: u64,
    },
    /// A caller is gone that has no answer, or has its turn before it.
    GiveUp(usize),
    Wake(usize),
    Pass(u64),
    /// The server runs a request that is under way.
    Run(usize),
    /// It is lost, or the server does not run it and says so.
    Lose(usize),
    Reject(usize),
    /// The answer of one that was run comes in, or is lost; or it is late, and its connection was
    /// given up before; or a second one comes in.
    Hear(usize),
    Miss(usize),
    Late(usize),
    Replay(usize),
    Link(bool),
    Shutdown,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Check),
        8 => (0..9_000_u64).prop_map(|max_wait_ms| Step::Book { max_wait_ms }),
        4 => any::<usize>().prop_map(Step::GiveUp),
        6 => any::<usize>().prop_map(Step::Wake),
        4 => (0..700_u64).prop_map(Step::Pass),
        16 => any::<usize>().prop_map(Step::Run),
        1 => any::<usize>().prop_map(Step::Lose),
        2 => any::<usize>().prop_map(Step::Reject),
        14 => any::<usize>().prop_map(Step::Hear),
        2 => any::<usize>().prop_map(Step::Miss),
        2 => any::<usize>().prop_map(Step::Late),
        2 => any::<usize>().prop_map(Step::Replay),
        1 => any::<bool>().prop_map(Step::Link),
    ];
    let steps = proptest::collection::vec(step, 1..150);
    (steps, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(mut steps, place, ends)| {
        if ends {
            steps.insert(place.index(steps.len()), Step::Shutdown);
        }
        steps
    })
}

/// What one call has left on the server.
#[derive(Debug, Clone, Copy)]
struct Entry {
    caller: u32,
    /// When the next unit is free.
    free_ms: u64,
}

/// A quota on a server, written down plainly: each write has a number, and what stands is one of
/// them.
#[derive(Default)]
struct Book {
    writes: Vec<Entry>,
    stands: Option<usize>,
    /// How often each caller's call has run.
    ran: BTreeMap<u32, u32>,
    given_back: BTreeSet<u32>,
    /// Not given back, since others had booked after it.
    forfeited: BTreeSet<u32>,
}

impl Book {
    fn text(place: Option<usize>) -> Vec<u8> {
        place
            .map(|place| place.to_string())
            .unwrap_or_default()
            .into()
    }

    fn take(&mut self, ms: u64, take: &Take) -> Value {
        let caller = take.cost;
        *self.ran.entry(caller).or_default() += 1;
        let before = self.stands;
        let at = before.map_or(ms, |place| self.writes[place].free_ms.max(ms));
        let most = match take.op {
            Op::Book(most) => most.as_millis() as u64,
            _ => 0,
        };
        let wait = at - ms;
        let us = |ms: u64| Value::Int(ms as i64 * 1000);
        if wait > most {
            let denied = [Value::Int(0), us(0), Value::Int(0), us(wait), us(wait)];
            return Value::Array(denied.into());
        }
        self.writes.push(Entry {
            caller,
            free_ms: at + INTERVAL_MS,
        });
        self.stands = Some(self.writes.len() - 1);
        let mut answer = vec![Value::Int(1), us(wait), Value::Int(0), us(wait), us(0)];
        if wait > 0 {
            answer.extend([before, self.stands].map(|place| Value::BulkString(Self::text(place))));
        }
        Value::Array(answer)
    }

    fn unbook(&mut self, unbook: &call::Unbook) -> Value {
        let place = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<usize>().ok();
        let after = place(&unbook.trace.after).expect("it was written");
        let caller = self.writes[after].caller;
        if self.stands == Some(after) {
            self.stands = place(&unbook.trace.before);
            self.given_back.insert(caller);
        } else if !self.given_back.contains(&caller) {
            self.forfeited.insert(caller);
        }
        Value::Array(vec![Value::Int(1), Value::Int(0)])
    }
}

/// Who asks, by number: it is told to the server as the cost.
struct Asker {
    number: u32,
    told: oneshot::Receiver<Result<Taken, LockError>>,
}

struct Sleeper {
    number: u32,
    at_ms: u64,
    booking: Booking,
}

struct Play {
    book: Book,
    callers: u32,
    commands: UnboundedSender<Command>,
    said: UnboundedReceiver<Command>,
    sent: Vec<Call>,
    answers: Vec<(Call, Value)>,
    asking: Vec<Asker>,
    asleep: Vec<Sleeper>,
    /// Whose units were used, as they were told.
    served: BTreeSet<u32>,
    refused: BTreeSet<u32>,
    shut: bool,
}

fn pick<T>(from: &mut Vec<T>, which: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(which % from.len()))
}

/// Calls are handed over with their answers, and so have no copies elsewhere.
fn copy(call: &Call) -> Call {
    let body = match &call.body {
        Body::Take(take) => Body::Take(call::Take {
            id: take.id,
            subject: Arc::clone(&take.subject),
            take: take.take.clone(),
        }),
        Body::Unbook(unbook) => Body::Unbook(unbook.clone()),
        other => unreachable!("nobody asks for leases here: {other:?}"),
    };
    Call {
        sent: call.sent,
        body,
    }
}

impl Play {
    fn new() -> Self {
        let (commands, said) = unbounded_channel();
        Self {
            book: Book::default(),
            callers: 0,
            commands,
            said,
            sent: Vec::new(),
            answers: Vec::new(),
            asking: Vec::new(),
            asleep: Vec::new(),
            served: BTreeSet::new(),
            refused: BTreeSet::new(),
            shut: false,
        }
    }

    fn ask(&mut self, desk: &mut Desk, op: Op) {
        self.callers += 1;
        let number = self.callers;
        let prefix = Prefix::new("t").expect("a plain prefix");
        let (answer, told) = oneshot::channel();
        let take = Box::new(Asked {
            subject: Arc::new(Subject::new(&prefix, &"api".into(), None)),
            take: Take {
                op,
                cost: number,
                quotas: Quotas::new([Quota::per_second(1)]).expect("in range"),
                bridge: None,
            },
            commands: self.commands.clone(),
        });
        desk.core
            .command(desk.now(), Command::Take { take, answer });
        self.asking.push(Asker { number, told });
    }

    fn run(&mut self, desk: &Desk, which: usize) {
        let Some(call) = pick(&mut self.sent, which) else {
            return;
        };
        let answer = match &call.body {
            Body::Take(take) => self.book.take(desk.ms, &take.take),
            Body::Unbook(unbook) => self.book.unbook(unbook),
            other => unreachable!("nobody asks for leases here: {other:?}"),
        };
        self.answers.push((call, answer));
    }

    fn shut_down(&mut self, desk: &mut Desk) {
        let (answer, _) = oneshot::channel();
        let deadline = Duration::from_secs(60);
        desk.core
            .errand(desk.now(), Errand::Shutdown { deadline, answer });
        self.shut = true;
    }

    fn step(&mut self, desk: &mut Desk, step: &Step) {
        match *step {
            Step::Check => self.ask(desk, Op::Check),
            Step::Book { max_wait_ms } => {
                self.ask(desk, Op::Book(Duration::from_millis(max_wait_ms)));
            }
            Step::GiveUp(which) => {
                let all = self.asking.len() + self.asleep.len();
                match which.checked_rem(all) {
                    Some(which) if which < self.asking.len() => {
                        drop(self.asking.swap_remove(which));
                    }
                    Some(which) => {
                        drop(self.asleep.swap_remove(which - self.asking.len()));
                    }
                    None => {}
                }
            }
            Step::Wake(which) => {
                if let Some(sleeper) = pick(&mut self.asleep, which) {
                    desk.pass(sleeper.at_ms.saturating_sub(desk.ms));
                    if sleeper.booking.use_up() {
                        self.served.insert(sleeper.number);
                    } else {
                        self.refused.insert(sleeper.number);
                    }
                }
            }
            Step::Pass(ms) => desk.pass(ms),
            Step::Run(which) => self.run(desk, which),
            Step::Lose(which) => {
                if let Some(call) = pick(&mut self.sent, which) {
                    desk.fail(call, Failure::Unknown(None));
                }
            }
            Step::Reject(which) => {
                if let Some(call) = pick(&mut self.sent, which) {
                    desk.fail(
                        call,
                        Failure::NotNow(BackendErrorKind::ServerBusy, broken()),
                    );
                }
            }
            Step::Hear(which) => {
                if let Some((call, answer)) = pick(&mut self.answers, which) {
                    desk.core.answer(desk.now(), call, Ok(answer));
                }
            }
            Step::Miss(which) => {
                if let Some((call, _)) = pick(&mut self.answers, which) {
                    desk.fail(call, Failure::Unknown(None));
                }
            }
            Step::Late(which) => {
                if !self.answers.is_empty() {
                    let call = copy(&self.answers[which % self.answers.len()].0);
                    desk.fail(call, Failure::Unknown(None));
                }
            }
            Step::Replay(which) => {
                // A booking has one owner and its answer one way: a second one would be taken for
                // the turn of a caller that was told of a failure.
                let once = |(_, answer): &&(Call, Value)| match answer {
                    Value::Array(items) => items.len() <= 5,
                    _ => true,
                };
                let again: Vec<_> = self.answers.iter().filter(once).collect();
                if !again.is_empty() {
                    let (call, answer) = again[which % again.len()];
                    desk.core.answer(desk.now(), copy(call), Ok(answer.clone()));
                }
            }
            Step::Link(up) => desk.core.link_changed(desk.now(), 0, up),
            Step::Shutdown => self.shut_down(desk),
        }
    }

    /// Hands over what was said to the thread and to the callers, and compares it with the book.
    fn judge(&mut self, desk: &mut Desk) -> Result<(), TestCaseError> {
        let mut open = Vec::new();
        for Asker { number, mut told } in std::mem::take(&mut self.asking) {
            match told.try_recv() {
                Ok(Ok(taken)) => {
                    prop_assert_eq!(self.book.ran.get(&number), Some(&1));
                    let at_ms = desk.ms + taken.wait.as_millis() as u64;
                    match taken.booking {
                        Some(booking) => self.asleep.push(Sleeper {
                            number,
                            at_ms,
                            booking,
                        }),
                        None if taken.admitted => {
                            self.served.insert(number);
                        }
                        None => {}
                    }
                }
                Ok(Err(_)) | Err(oneshot::error::TryRecvError::Closed) => {}
                Err(oneshot::error::TryRecvError::Empty) => {
                    open.push(Asker { number, told });
                }
            }
        }
        self.asking = open;
        while let Ok(command) = self.said.try_recv() {
            desk.core.command(desk.now(), command);
        }
        self.sent.extend(desk.calls());
        for (caller, times) in &self.book.ran {
            prop_assert!(*times <= 1, "{} counts {} times", caller, times);
        }
        for number in &self.book.given_back {
            prop_assert!(!self.served.contains(number), "{} had its turn", number);
            let asleep = self.asleep.iter().any(|sleeper| sleeper.number == *number);
            prop_assert!(self.shut || !asleep, "{} waits for its turn", number);
        }
        Ok(())
    }

    /// All is well for as long as it takes.
    fn settle(&mut self, desk: &mut Desk) -> Result<(), TestCaseError> {
        desk.core.link_changed(desk.now(), 0, true);
        for _ in 0..8 {
            self.judge(desk)?;
            while !self.sent.is_empty() || !self.answers.is_empty() {
                while !self.sent.is_empty() {
                    // In the order of their sending.
                    let first = self.sent.remove(0);
                    self.sent.push(first);
                    self.run(desk, self.sent.len() - 1);
                }
                for (call, answer) in std::mem::take(&mut self.answers) {
                    desk.core.answer(desk.now(), call, Ok(answer));
                }
                self.judge(desk)?;
            }
            desk.pass(500);
        }
        self.judge(desk)
    }

    /// Whoever sleeps when the handle shuts down is refused, and its turn does not stay.
    fn end(&mut self, desk: &mut Desk) -> Result<(), TestCaseError> {
        self.settle(desk)?;
        let sleepers = std::mem::take(&mut self.asleep);
        let before = self.book.given_back.len();
        self.shut_down(desk);
        // The first attempt of each is lost, before the server or after.
        self.sent.extend(desk.calls());
        for (number, call) in std::mem::take(&mut self.sent).into_iter().enumerate() {
            if number % 2 == 0 {
                self.sent.push(copy(&call));
                self.run(desk, self.sent.len() - 1);
                self.answers.clear();
            }
            desk.fail(call, Failure::Unknown(None));
        }
        let mut unwanted = BTreeSet::new();
        for sleeper in sleepers {
            prop_assert!(!sleeper.booking.use_up(), "{} slept on", sleeper.number);
            unwanted.insert(sleeper.number);
        }
        self.settle(desk)?;
        prop_assert!(self.asking.is_empty() && desk.core.is_idle(desk.now()));
        let stands = self.book.stands.map(|place| self.book.writes[place].caller);
        if let Some(caller) = stands.filter(|caller| unwanted.contains(caller)) {
            let forfeited = self.book.forfeited.contains(&caller);
            prop_assert!(forfeited, "the turn of {} stays, after {}", caller, before);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn nothing_counts_twice_and_no_turn_stays_that_nobody_wants(steps in steps()) {
        let mut desk = Desk::new();
        let mut play = Play::new();
        for step in &steps {
            play.step(&mut desk, step);
            play.judge(&mut desk)?;
        }
        play.end(&mut desk)?;
    }
}
