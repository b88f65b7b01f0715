//! What an end and an acquire in one call promise: all that they promise in two.

use super::super::rig::{Ask, Rig, TRY, WAIT, instance, token};
use super::{Law, Verdict, fence, granted, open, ticket, uphold};
use crate::backend::server::reply::status;
use crate::key::Kind;

laws![
    a_swap_frees_what_it_ends_for_who_asks,
    a_swap_hands_on_before_it_asks,
    a_swap_leaves_and_answers_what_two_calls_would,
    what_a_swap_asks_in_vain_undoes_no_end,
];

/// Keeps what it gets, and waits for it.
const STAY: Ask = Ask { kept: 1, ..WAIT };

fn a_swap_frees_what_it_ends_for_who_asks(rig: &mut Rig) -> Verdict {
    let keeps = Ask { kept: 1, ..TRY };
    let first = fence(rig.acquire(&token('A', 1), &keeps))?;
    let (ended, asked) = rig.swap((&token('A', 1), None), (&token('A', 2), &keeps))?;
    ensure_eq!(ended?[0], status::RELEASED);
    ensure!(fence(asked)? > first);
    let tokens = [token('A', 1), token('A', 2)];
    ensure_eq!(rig.recheck(&instance('A'), &tokens)?[3..], [0, 1]);
    Ok(())
}

fn a_swap_hands_on_before_it_asks(rig: &mut Rig) -> Verdict {
    open(rig, &['A', 'B', 'C']);
    fence(rig.acquire(&token('A', 1), &STAY))?;
    for waiter in [token('B', 1), token('A', 2), token('C', 1)] {
        ticket(rig.acquire(&waiter, &STAY))?;
    }
    rig.heard();
    let (ended, asked) = rig.swap((&token('A', 1), None), (&token('A', 3), &STAY))?;
    ensure_eq!(ended?[0], status::RELEASED);
    // Behind all who wait, and beside one of its own.
    let asked = asked?;
    ensure_eq!((asked[0], asked[6], asked[8]), (status::QUEUED, 2, 1));
    ensure_eq!(granted(rig), [token('B', 1)]);
    ensure_eq!(rig.waiters(), 3);
    Ok(())
}

/// What stands at the gate before: who holds, who waits, and how many permits there are.
const BEFORE: [(&str, &str, u32); 7] = [
    ("", "", 1),
    ("A", "", 1),
    ("A", "B", 1),
    ("A", "AB", 1),
    ("A", "BAC", 1),
    ("AB", "C", 2),
    ("B", "A", 1),
];

fn a_swap_leaves_and_answers_what_two_calls_would(rig: &mut Rig) -> Verdict {
    let released = super::RELEASED;
    for (holders, waiters, limit) in BEFORE {
        if limit > 1 && rig.kind != Kind::Semaphore {
            continue;
        }
        for (latest_in_ms, wait_ms) in [(None, STAY.wait_ms), (Some(500), 5_000), (None, 0)] {
            let ask = Ask {
                limit,
                wait_ms,
                ..STAY
            };
            let ends = (&*token('A', 1), latest_in_ms);
            let asks = (&*token('A', 9), &ask);
            let mut seen = Vec::new();
            for joined in [false, true] {
                rig.reset();
                open(rig, &['A', 'B', 'C']);
                rig.listen(released);
                for (number, letter) in (1..).zip(holders.chars()) {
                    fence(rig.acquire(&token(letter, number), &Ask { limit, ..STAY }))?;
                }
                let first = if holders.starts_with('A') { 2 } else { 1 };
                for (number, letter) in (first..).zip(waiters.chars()) {
                    ticket(rig.acquire(&token(letter, number), &Ask { limit, ..STAY }))?;
                }
                rig.heard();
                rig.us += 7_000;
                let (ended, asked) = if joined {
                    rig.swap(ends, asks)?
                } else {
                    (
                        rig.end_unanswered(ends.0, ends.1),
                        rig.acquire(asks.0, asks.1),
                    )
                };
                let (ended, mut asked) = (ended?, asked?);
                if rig.kind != Kind::Semaphore && asked[0] != status::HELD {
                    // How long a mutex is held yet goes by the server's own clock.
                    asked[4] = 0;
                }
                // Of an end the quick ways tell no time.
                let said = (ended[0], ended[3], asked);
                seen.push((said, rig.heard(), rig.snapshot()));
            }
            ensure_eq!(seen[1], seen[0]);
        }
    }
    Ok(())
}

fn what_a_swap_asks_in_vain_undoes_no_end(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &STAY))?;
    // Draws no number, and so can't hold or wait; what ends needs none.
    let rights = ["reset", "on", ">secret", "~*", "&*", "+@all", "-set"];
    rig.command(&[&["ACL", "SETUSER", "thrifty"], &rights[..]].concat());
    rig.command(&["AUTH", "thrifty", "secret"]);
    let (ended, asked) = rig.swap((&token('A', 1), None), (&token('A', 2), &STAY))?;
    ensure_eq!(ended?[0], status::RELEASED);
    // Known for what it is, as a failure of an acquire alone.
    ensure!(asked.is_err_and(|failure| failure.contains("NotPermitted")));
    let tokens = [token('A', 1), token('A', 2)];
    ensure_eq!(rig.recheck(&instance('A'), &tokens)?[3..], [0, 0]);
    Ok(())
}
