//! What is kept of subjects that come once; what the model does with numbers at their ends.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::backend::Op;
use crate::rate_limit::{Quota, Quotas};

fn take(op: Op, cost: u32, quotas: &Quotas) -> Take {
    Take {
        op,
        cost,
        quotas: quotas.clone(),
        bridge: None,
    }
}

fn kept(rates: &Rates) -> usize {
    let shards = rates.shards.iter();
    shards
        .map(|shard| shard.lock().expect("no panic").subjects.len())
        .sum()
}

#[test]
fn subjects_of_whom_nothing_is_left_take_no_room() {
    let us = Arc::new(AtomicU64::new(1_000_000));
    let read = Arc::clone(&us);
    let clock = Clock::made(move || Instant::from_nanos(read.load(Ordering::Relaxed) * 1_000));
    let rates = Rates::new();
    let quotas = Quotas::new([Quota::per(1, Duration::from_millis(1))]).expect("in range");
    for subject in 0..200_000 {
        us.fetch_add(1, Ordering::Relaxed);
        let take = take(Op::Check, 1, &quotas);
        let taken = rates.take(&clock, &subject.to_string(), &take, |_| unreachable!());
        assert!(taken.admitted);
    }
    // A thousand count at a time; each shard may be as full again, and has some room.
    let kept = kept(&rates);
    assert!(kept <= 2 * 1_000 + SHARDS * FEW, "{kept}");
}

#[test]
fn quotas_at_their_ends_neither_overflow_nor_wrap() {
    let day = Duration::from_secs(24 * 60 * 60);
    let ends = [
        Quota::per(1, 30 * day).burst(33),
        Quota::per(10_000, Duration::from_secs(1)).burst(1_000_000_000),
        Quota::per(1, Duration::from_micros(100)).burst(1),
        Quota::sliding(1_000_000_000, 30 * day),
        Quota::sliding(1, Duration::from_millis(1)),
        Quota::strict(1_000, 30 * day),
        Quota::strict(1, Duration::from_millis(1)),
    ];
    let ops = [
        Op::Check,
        Op::Book(day),
        Op::Debit,
        Op::Refund,
        Op::Peek,
        Op::Book(Duration::ZERO),
    ];
    // A clock far ahead, and one that has just begun; each quota after each other.
    for now in [0, 1, 4_000_000_000_000_000] {
        for first in &ends {
            for second in &ends {
                let mut state: Option<State> = None;
                let both = [first, second, first];
                let both = both.map(|quota| Quotas::new([quota.clone()]).expect("in range"));
                for (number, quotas) in both.iter().enumerate() {
                    for (cost, op) in [1, 2, u32::MAX, 1_000_000_000]
                        .into_iter()
                        .flat_map(|cost| ops.map(|op| (cost, op)))
                    {
                        let now = now + number as u64;
                        let outcome = decide(state.as_ref(), now, op, cost, quotas.rules());
                        assert!(outcome.wait <= day.as_micros() as u64);
                        match outcome.change {
                            Change::None => {}
                            Change::Remove => state = None,
                            Change::Write(written) => {
                                assert!(written.ends() < 1 << 53);
                                state = Some(written);
                            }
                        }
                    }
                }
            }
        }
    }
}
