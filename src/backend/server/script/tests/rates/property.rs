//! Any sequence of calls: script and model agree, no bound is exceeded, and what is announced is
//! true.

use std::cell::RefCell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRng, TestRunner};

use super::bounds::{Counted, Histories};
use super::rig::{Booked, Rig, script};
use crate::backend::Op;
use crate::backend::server::script::tests::support::Server;
use crate::rate_limit::{Method, Quota, Quotas};

const CASES: u32 = 80;
const STEPS: usize = 100;
/// At least so many calls are made by each algorithm.
const CALLS: u32 = 10_000;

#[derive(Debug, Clone)]
pub(super) enum Step {
    Call(Call, u32),
    /// The caller of a booked turn is gone.
    Drop(usize),
    /// A part of the scale passes, in 1000ths.
    Pass(u64),
    PassUs(u64),
    /// Until just before the last refused call would be admitted, or until then.
    PassToRetry(bool),
    SetBack(u64),
    Change(usize),
    Strip,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    Check,
    Book(u64),
    Refund,
    Debit,
    Reset,
}

/// What a run is about.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) name: &'static str,
    /// The quotas of one process, and of others to which it changes.
    pub(super) quotas: Vec<Quotas>,
    /// How far passing time goes.
    scale_us: u64,
}

fn quotas(quotas: impl IntoIterator<Item = Quota>) -> Quotas {
    Quotas::new(quotas).expect("in range")
}

pub(super) fn worlds() -> Vec<World> {
    let second = Duration::from_secs(1);
    let ms = Duration::from_millis;
    let world = |name, all: Vec<Quotas>, scale_us| World {
        name,
        quotas: all,
        scale_us,
    };
    vec![
        world(
            "gcra",
            vec![quotas([Quota::per_second(3).burst(5)])],
            1_000_000,
        ),
        world(
            "gcra, under other names",
            vec![
                quotas([Quota::per_second(3).burst(5)]),
                quotas([Quota::per_second(3).burst(5).named("a")]),
                quotas([Quota::per_second(3).burst(5).named("b")]),
            ],
            1_000_000,
        ),
        world("gcra of one", vec![quotas([Quota::per(1, ms(7))])], 7_000),
        world(
            "gcra, changed",
            vec![
                quotas([Quota::per_second(3).burst(5)]),
                quotas([Quota::per_second(7).burst(5)]),
                quotas([Quota::per_minute(20).burst(2)]),
                quotas([Quota::per_second(3).burst(9)]),
            ],
            1_000_000,
        ),
        world(
            "sliding",
            vec![quotas([Quota::sliding(6, second)])],
            1_000_000,
        ),
        world(
            "sliding in long steps",
            vec![quotas([Quota::sliding(
                5,
                Duration::from_micros(86_400_000_001),
            )])],
            86_400_000_000,
        ),
        world(
            "sliding, changed",
            vec![
                quotas([Quota::sliding(6, second)]),
                quotas([Quota::sliding(9, second)]),
                quotas([Quota::sliding(2, ms(300))]),
                quotas([Quota::sliding(6, ms(4_100))]),
            ],
            1_000_000,
        ),
        world(
            "strict",
            vec![quotas([Quota::strict(5, second)])],
            1_000_000,
        ),
        world(
            "strict, changed",
            vec![
                quotas([Quota::strict(5, second)]),
                quotas([Quota::strict(8, ms(700))]),
                quotas([Quota::strict(2, ms(3_000))]),
            ],
            1_000_000,
        ),
        world(
            "several",
            vec![quotas([
                Quota::per_second(10).burst(3),
                Quota::sliding(6, second),
                Quota::strict(9, ms(2_000)).named("log"),
                Quota::per(1, second).burst(2).shadow(),
            ])],
            1_000_000,
        ),
        world(
            "lists that differ",
            vec![
                quotas([Quota::per_second(4), Quota::sliding(6, second).named("a")]),
                quotas([Quota::sliding(6, second).named("a")]),
                quotas([
                    Quota::per_second(3).burst(2).shadow(),
                    Quota::strict(5, second).named("b"),
                    Quota::sliding(5, ms(500)).named("a").shadow(),
                ]),
                quotas([Quota::sliding(6, second), Quota::per_second(3).named("a")]),
            ],
            1_000_000,
        ),
    ]
}

pub(super) fn steps(world: &World) -> impl Strategy<Value = Vec<Step>> + use<> {
    let changes = world.quotas.len();
    let scale = world.scale_us;
    let call = prop_oneof![
        12 => Just(Call::Check),
        5 => (0..3_000_u64).prop_map(move |part| Call::Book(part * scale / 1000)),
        2 => Just(Call::Refund),
        1 => Just(Call::Debit),
    ];
    let step = prop_oneof![
        60 => (call, 1..5_u32).prop_map(|(call, cost)| Step::Call(call, cost)),
        1 => Just(Step::Call(Call::Reset, 0)),
        6 => (0..4_usize).prop_map(Step::Drop),
        10 => (0..400_u64).prop_map(Step::Pass),
        2 => (0..3_000_u64).prop_map(Step::Pass),
        3 => (0..3_u64).prop_map(Step::PassUs),
        12 => any::<bool>().prop_map(Step::PassToRetry),
        2 => (1..5_000_u64).prop_map(Step::SetBack),
        (4 * (changes as u32 - 1)) => (0..changes).prop_map(Step::Change),
        1 => Just(Step::Strip),
    ];
    proptest::collection::vec(step, 1..=2 * STEPS)
}

/// How many calls were judged by each algorithm.
#[derive(Debug, Default)]
pub(super) struct Calls {
    gcra: u32,
    sliding: u32,
    strict: u32,
}

impl Calls {
    fn count(&mut self, quotas: &Quotas) {
        let by = |method| u32::from(quotas.rules().iter().any(|rule| rule.method == method));
        self.gcra += by(Method::Gcra);
        self.sliding += by(Method::Sliding);
        self.strict += by(Method::Strict);
    }
}

/// Runs a sequence on the script, in memory and on the model.
pub(super) fn run(
    rig: &mut Rig,
    world: &World,
    steps: &[Step],
    calls: &mut Calls,
) -> Result<(), String> {
    rig.reset();
    let mut current = &world.quotas[0];
    let mut histories = Histories::default();
    histories.know(current);
    let mut booked: Vec<(Booked, Counted)> = Vec::new();
    let mut retry = 0;
    // What the clock was set back by: added to it, it never was.
    let mut lost = 0;
    for (number, step) in steps.iter().enumerate() {
        let told = |problem: String| format!("step {number}, {step:?}: {problem}");
        match step {
            Step::Pass(part) => rig.us += part * world.scale_us / 1000,
            Step::PassUs(us) => rig.us += us,
            Step::PassToRetry(reached) => {
                rig.us += retry - u64::from(retry > 0 && !reached);
                retry = 0;
            }
            Step::SetBack(part) => {
                let by = part * world.scale_us / 1000;
                rig.us -= by;
                lost += by;
                // Who sleeps does so by another clock.
                for (booked, _) in &mut booked {
                    booked.at -= by;
                }
            }
            Step::Change(index) => {
                current = &world.quotas[*index];
                histories.know(current);
            }
            Step::Strip => rig.strip(),
            Step::Drop(which) => {
                booked.retain(|(booked, _)| booked.at > rig.us);
                if booked.is_empty() {
                    continue;
                }
                let (dropped, counted) = booked.remove(which % booked.len());
                let (at, cost) = (dropped.at + lost, dropped.cost);
                if rig.unbook(dropped).map_err(told)? {
                    histories.remove(at, cost, &counted);
                }
            }
            Step::Call(call, cost) => {
                // What never fits is not asked for.
                let enforced = current.rules().iter().filter(|rule| !rule.shadow);
                let least = enforced.map(|rule| rule.capacity).min().unwrap_or(9);
                let cost = (*cost).min(least);
                let op = match call {
                    Call::Check => Op::Check,
                    Call::Book(us) => Op::Book(Duration::from_micros(*us)),
                    Call::Refund => Op::Refund,
                    Call::Debit => Op::Debit,
                    Call::Reset => Op::Reset,
                };
                let answer = rig.call(op, cost, current).map_err(told)?;
                calls.count(current);
                let now = rig.us + lost;
                if answer.written {
                    histories.written(current);
                }
                match op {
                    Op::Check | Op::Book(_) if answer.admitted => {
                        let at = now + answer.wait;
                        let counted = histories.add(at, cost, current, &answer.levels);
                        booked.extend(answer.booked.map(|booked| (booked, counted)));
                    }
                    Op::Check | Op::Book(_) => {
                        retry = refused(rig, cost, current, &answer.levels).map_err(told)?;
                    }
                    Op::Refund if answer.written => histories.refund(now, cost, current),
                    Op::Reset => histories.clear(),
                    Op::Refund | Op::Debit | Op::Peek => {}
                }
                remains(rig, current, &answer.levels).map_err(told)?;
            }
        }
    }
    histories.keep()
}

/// The announced moment is the first at which the call is admitted.
fn refused(
    rig: &mut Rig,
    cost: u32,
    quotas: &Quotas,
    levels: &[crate::backend::Level],
) -> Result<u64, String> {
    let each = quotas.rules().iter().zip(levels);
    let retries = each.filter(|(rule, _)| !rule.shadow);
    let retry = retries.filter_map(|(_, level)| level.retry_after).max();
    let retry = retry.ok_or("refused by no quota")?.as_micros() as u64;
    if !rig.would(rig.us + retry, cost, quotas)? {
        return Err(format!("not admitted after the announced {retry} us"));
    }
    if rig.would(rig.us + retry - 1, cost, quotas)? {
        return Err(format!("admitted before the announced {retry} us"));
    }
    Ok(retry)
}

/// Exactly what is said to remain can be used.
fn remains(rig: &mut Rig, quotas: &Quotas, levels: &[crate::backend::Level]) -> Result<(), String> {
    let each = quotas.rules().iter().zip(levels);
    let enforced = each.filter(|(rule, _)| !rule.shadow);
    let enforced: Vec<_> = enforced.collect();
    let Some(least) = enforced.iter().map(|(_, level)| level.remaining).min() else {
        return Ok(());
    };
    if least > 0 && !rig.would(rig.us, least, quotas)? {
        return Err(format!("{least} remain, and are refused"));
    }
    if enforced.iter().all(|(rule, _)| least < rule.capacity)
        && rig.would(rig.us, least + 1, quotas)?
    {
        return Err(format!("{least} remain, and one more is admitted"));
    }
    Ok(())
}

#[test]
fn any_calls_are_decided_as_by_the_model_within_the_bounds() {
    let server = Server::start();
    let rig = RefCell::new(Rig::new(&server, &script()));
    let calls = RefCell::new(Calls::default());
    for world in worlds() {
        let config = Config {
            cases: CASES,
            failure_persistence: None,
            ..Config::default()
        };
        let rng = TestRng::deterministic_rng(config.rng_algorithm);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let outcome = runner.run(&steps(&world), |steps| {
            let (mut rig, mut calls) = (rig.borrow_mut(), calls.borrow_mut());
            run(&mut rig, &world, &steps, &mut calls).map_err(TestCaseError::fail)
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(problem, steps)) => panic!("{}: {problem}; {steps:?}", world.name),
            Err(abort) => panic!("{}: {abort}", world.name),
        }
    }
    let calls = calls.into_inner();
    println!("{calls:?}");
    let Calls {
        gcra,
        sliding,
        strict,
    } = calls;
    assert!(
        [gcra, sliding, strict].iter().all(|&made| made >= CALLS),
        "{calls:?}"
    );
}

/// More than a GCRA alone is kept with in short: it is kept as the others are.
#[test]
fn a_debt_that_grew_with_the_interval_is_kept_whole() {
    let server = Server::start();
    let mut rig = Rig::new(&server, &script());
    let fast = quotas([Quota::per_second(10_000).burst(1_000_000_000)]);
    let slow = quotas([Quota::per(1, Duration::from_secs(30 * 24 * 60 * 60))]);
    let call = |rig: &mut Rig, op, cost, quotas| rig.call(op, cost, quotas).expect("as the model");
    assert!(call(&mut rig, Op::Check, 1_000_000_000, &fast).admitted);
    call(&mut rig, Op::Debit, 1, &slow);
    assert!(!call(&mut rig, Op::Check, 1, &slow).admitted);
    call(&mut rig, Op::Check, 1, &fast);
}
