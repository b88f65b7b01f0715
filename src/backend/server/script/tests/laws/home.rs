//! What the scripts promise to processes that keep permits, and to those that wait for them.

use super::super::rig::{Ask, Rig, TRY, WAIT, instance, token};
use super::{
    Law, Verdict, every_key_ends, fence, granted, open, status_of, the_server_forbids_pushes,
    ticket, uphold,
};
use crate::backend::server::reply::status;
use crate::key::Kind;

laws![
    who_keeps_is_noted_with_its_grant,
    who_keeps_is_noted_with_its_place,
    who_keeps_is_noted_with_its_next_question,
    what_is_noted_lasts_as_long_as_the_lease,
    a_busy_try_of_who_keeps_leaves_nothing,
    where_nobody_keeps_nobody_is_told,
    the_first_in_line_recalls_every_process_that_holds,
    a_recall_takes_nothing,
    a_recall_is_not_repeated,
    who_waits_for_its_own_permits_recalls_nothing,
    who_follows_recalls_the_first_in_line,
    who_comes_back_to_the_front_recalls_who_was_there,
    a_recall_is_not_for_a_stranger,
    a_recall_looks_at_128_holders,
    a_refused_recall_costs_no_place,
    an_answer_tells_whether_others_wait,
    a_push_tells_whether_others_wait,
    who_is_looked_for_may_have_any_of_the_first_places,
    places_of_ones_own_are_looked_past_up_to_64,
    a_recheck_tells_who_holds,
    a_recheck_tells_whether_others_wait,
    a_recheck_writes_nothing,
    stamps_order_rechecks_among_grants_and_recalls,
    local_hand_offs_of_a_mutex_have_fences_of_their_own,
    who_is_told_of_its_turn_has_fences_of_its_own,
    the_most_fences_that_anybody_asks_for_are_kept,
    without_local_hand_offs_a_grant_takes_one_fence,
];

/// Keeps what it gets.
const KEEP: Ask = Ask { kept: 1, ..TRY };

/// Keeps what it waits for.
const STAY: Ask = Ask { kept: 1, ..WAIT };

/// So many permits, of which a mutex has one.
fn permits(rig: &Rig, limit: u32) -> u32 {
    if rig.kind == Kind::Semaphore {
        limit
    } else {
        1
    }
}

fn noted(rig: &mut Rig) -> Option<u32> {
    let records = rig.gate.records().to_owned();
    let text = rig.command(&["HGET", &records, "K"]);
    redis::from_redis_value::<Option<u32>>(text).expect("a number or nothing")
}

/// Whom the recalls that were heard were for, in order. All are of the rig's gate and of this stamp.
fn recalled(rig: &mut Rig, stamp: i64) -> Result<Vec<String>, String> {
    let text = format!("r {stamp} {}", rig.gate.main());
    let mut whom = Vec::new();
    for (instance, heard) in rig.heard() {
        ensure_eq!(heard, text);
        whom.push(instance);
    }
    Ok(whom)
}

/// Enters the queue, and tells whom that recalls.
fn enter(rig: &mut Rig, token: &str, ask: &Ask) -> Result<Vec<String>, String> {
    let answer = rig.acquire(token, ask)?;
    ensure_eq!((answer[0], answer[8]), (status::QUEUED, 1));
    ensure!(answer[2] >= answer[7] || ask.ticket > 0);
    recalled(rig, answer[2])
}

/// The last words of the pushed grants.
fn told(rig: &mut Rig) -> Vec<(String, String)> {
    let heard = rig.heard().into_iter();
    let grants = heard.filter(|(_, text)| text.starts_with("g "));
    grants
        .map(|(instance, text)| {
            let words: Vec<&str> = text.split(' ').skip(4).collect();
            (instance, words.join(" "))
        })
        .collect()
}

fn who_keeps_is_noted_with_its_grant(rig: &mut Rig) -> Verdict {
    let limit = permits(rig, 3);
    fence(rig.acquire(&token('A', 1), &Ask { limit, ..TRY }))?;
    ensure_eq!(noted(rig), None);
    rig.end(&token('A', 1))?;
    fence(rig.acquire(&token('B', 1), &Ask { limit, ..KEEP }))?;
    ensure_eq!(noted(rig), Some(1));
    every_key_ends(rig)?;
    // It stays so: others of the process' permits may be there still.
    rig.end(&token('B', 1))?;
    fence(rig.acquire(&token('C', 1), &Ask { limit, ..TRY }))?;
    ensure_eq!(noted(rig), Some(1));
    every_key_ends(rig)
}

fn who_keeps_is_noted_with_its_place(rig: &mut Rig) -> Verdict {
    open(rig, &['B']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &STAY))?;
    ensure_eq!(noted(rig), Some(1));
    every_key_ends(rig)?;
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('B', 1)]);
    ensure_eq!(enter(rig, &token('C', 1), &WAIT)?, [instance('B')]);
    every_key_ends(rig)
}

fn who_keeps_is_noted_with_its_next_question(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &STAY))?;
    let records = rig.gate.records().to_owned();
    rig.number(&["HDEL", &records, "K"]);
    ticket(rig.acquire(&token('B', 1), &STAY))?;
    ensure_eq!(noted(rig), Some(1));
    every_key_ends(rig)
}

fn what_is_noted_lasts_as_long_as_the_lease(rig: &mut Rig) -> Verdict {
    let records = rig.gate.records().to_owned();
    for lease_ms in [10_000, 100_000] {
        fence(rig.acquire(&token('A', 1), &Ask { lease_ms, ..KEEP }))?;
        let left = rig.number(&["PTTL", &records]);
        ensure!(left > 59_000 && left > lease_ms as i64 - 1_000);
        rig.end(&token('A', 1))?;
    }
    Ok(())
}

fn a_busy_try_of_who_keeps_leaves_nothing(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let before = rig.snapshot();
    ensure_eq!(
        status_of(&rig.acquire(&token('B', 1), &KEEP))?,
        status::BUSY
    );
    ensure_eq!(rig.snapshot(), before);
    ensure_eq!(noted(rig), None);
    Ok(())
}

fn where_nobody_keeps_nobody_is_told(rig: &mut Rig) -> Verdict {
    open(rig, &['A', 'B', 'C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    for waiter in ['B', 'C'] {
        ensure!(enter(rig, &token(waiter, 1), &WAIT)?.is_empty());
    }
    let again = rig.acquire(&token('A', 1), &TRY)?;
    ensure_eq!(again.get(5), Some(&0));
    rig.end(&token('A', 1))?;
    ensure_eq!(told(rig), [(instance('B'), String::new())]);
    Ok(())
}

/// Three permits: two of A's and one of B's, or the only one of A's. A has what it keeps by a grant in an answer.
fn kept(rig: &mut Rig) -> Result<Ask, String> {
    open(rig, &['A', 'B', 'C', 'D']);
    let limit = permits(rig, 3);
    let waits = Ask { limit, ..WAIT };
    fence(rig.acquire(&token('A', 1), &Ask { limit, ..KEEP }))?;
    if limit > 1 {
        fence(rig.acquire(&token('B', 1), &Ask { limit, ..KEEP }))?;
        fence(rig.acquire(&token('A', 2), &Ask { limit, ..TRY }))?;
    }
    Ok(waits)
}

fn the_first_in_line_recalls_every_process_that_holds(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    // Also where the clock has been set back, the stamp is of the place.
    rig.us -= 500;
    let whom = enter(rig, &token('C', 1), &waits)?;
    let holders = [instance('A'), instance('B')];
    ensure_eq!(whom, &holders[..permits(rig, 2) as usize]);
    every_key_ends(rig)
}

fn a_recall_takes_nothing(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    enter(rig, &token('C', 1), &waits)?;
    rig.pass(1_000);
    let held = rig.recheck(&instance('A'), &[token('A', 1)])?;
    ensure_eq!(held[2..], [1, 1]);
    ensure_eq!(
        status_of(&rig.acquire(&token('C', 1), &waits))?,
        status::QUEUED
    );
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::RELEASED);
    ensure_eq!(granted(rig), [token('C', 1)]);
    Ok(())
}

fn a_recall_is_not_repeated(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    enter(rig, &token('C', 1), &waits)?;
    ticket(rig.acquire(&token('C', 1), &waits))?;
    ensure!(rig.heard().is_empty());
    Ok(())
}

fn who_waits_for_its_own_permits_recalls_nothing(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    let others = [instance('B')];
    let others = &others[..permits(rig, 2) as usize - 1];
    ensure_eq!(enter(rig, &token('A', 3), &waits)?, others);
    Ok(())
}

fn who_follows_recalls_the_first_in_line(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    enter(rig, &token('C', 1), &waits)?;
    ensure!(enter(rig, &token('C', 2), &waits)?.is_empty());
    ensure_eq!(enter(rig, &token('D', 1), &waits)?, [instance('C')]);
    // As everybody else, C has known since.
    ensure_eq!(enter(rig, &token('A', 3), &waits)?, [instance('C')]);
    Ok(())
}

fn who_comes_back_to_the_front_recalls_who_was_there(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    enter(rig, &token('C', 1), &waits)?;
    let ahead = Ask { ticket: 7, ..waits };
    ensure_eq!(enter(rig, &token('D', 1), &ahead)?, [instance('C')]);
    Ok(())
}

fn a_recall_is_not_for_a_stranger(rig: &mut Rig) -> Verdict {
    if rig.kind == Kind::Semaphore {
        return Ok(());
    }
    open(rig, &['A']);
    let (main, stranger) = (rig.gate.main().to_owned(), token('A', 1));
    rig.command(&["SET", &main, &stranger, "PX", "10000"]);
    ensure!(enter(rig, &token('B', 1), &STAY)?.is_empty());
    Ok(())
}

fn a_recall_looks_at_128_holders(rig: &mut Rig) -> Verdict {
    if rig.kind != Kind::Semaphore {
        return Ok(());
    }
    open(rig, &['A', 'B', 'C']);
    let many = Ask { limit: 129, ..KEEP };
    for number in 0..127 {
        fence(rig.acquire(&token('A', number), &many))?;
    }
    // By the ends of their leases.
    let lease_ms = many.lease_ms + 1;
    for holder in ['B', 'C'] {
        fence(rig.acquire(
            &token(holder, 0),
            &Ask {
                lease_ms,
                ..many.clone()
            },
        ))?;
    }
    let waits = Ask { limit: 129, ..WAIT };
    ensure_eq!(
        enter(rig, &token('D', 1), &waits)?,
        [instance('A'), instance('B')]
    );
    Ok(())
}

fn a_refused_recall_costs_no_place(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    the_server_forbids_pushes(rig);
    ticket(rig.acquire(&token('C', 1), &waits))?;
    ensure_eq!(rig.waiters(), 1);
    Ok(())
}

fn an_answer_tells_whether_others_wait(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    let asks = Ask {
        wait_ms: 0,
        kept: 1,
        ..waits.clone()
    };
    let others = |rig: &mut Rig| Ok::<_, String>(rig.acquire(&token('A', 1), &asks)?[5]);
    ensure_eq!(others(rig)?, 0);
    enter(rig, &token('A', 3), &waits)?;
    ensure_eq!(others(rig)?, 0);
    enter(rig, &token('C', 1), &waits)?;
    ensure_eq!(others(rig)?, 1);
    // The same where a place is left when its turn has come.
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('A', 3)]);
    rig.deafen(&instance('C'));
    let deaf = Ask {
        pushed: false,
        kept: 1,
        ..waits.clone()
    };
    ticket(rig.acquire(&token('C', 1), &deaf))?;
    ticket(rig.acquire(&token('D', 1), &waits))?;
    rig.end(&token('A', 3))?;
    let answer = rig.acquire(&token('C', 1), &deaf)?;
    ensure_eq!((answer[0], answer[5]), (status::HELD, 1));
    rig.end(&token('D', 1))?;
    let answer = rig.acquire(&token('C', 1), &deaf)?;
    ensure_eq!((answer[0], answer[5]), (status::HELD, 0));
    Ok(())
}

fn a_push_tells_whether_others_wait(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    for waiter in [token('C', 1), token('D', 1), token('D', 2)] {
        ticket(rig.acquire(&waiter, &waits))?;
    }
    rig.heard();
    rig.end(&token('A', 1))?;
    ensure_eq!(told(rig), [(instance('C'), "1".to_owned())]);
    // Only its own place is left, and then none.
    for holder in [token('C', 1), token('D', 1)] {
        rig.end(&holder)?;
        ensure_eq!(told(rig), [(instance('D'), "0".to_owned())]);
    }
    Ok(())
}

fn who_is_looked_for_may_have_any_of_the_first_places(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    for place in 0..4 {
        ticket(rig.acquire(&token('C', 1), &waits))?;
        ensure_eq!(rig.recheck(&instance('A'), &[])?[2], 1);
        rig.end(&token('C', 1))?;
        ensure_eq!(rig.recheck(&instance('A'), &[])?[2], 0);
        ticket(rig.acquire(&token('A', 100 + place), &waits))?;
    }
    Ok(())
}

fn places_of_ones_own_are_looked_past_up_to_64(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    for number in 0..63 {
        ticket(rig.acquire(&token('A', 100 + number), &waits))?;
    }
    ticket(rig.acquire(&token('C', 1), &waits))?;
    ensure_eq!(rig.recheck(&instance('A'), &[])?[2], 1);
    ensure_eq!(rig.acquire(&token('A', 1), &waits)?[5], 1);
    rig.end(&token('C', 1))?;
    ticket(rig.acquire(&token('A', 99), &waits))?;
    ticket(rig.acquire(&token('C', 1), &waits))?;
    ensure_eq!(rig.recheck(&instance('A'), &[])?[2], 0);
    ensure_eq!(rig.acquire(&token('A', 1), &waits)?[5], 0);
    Ok(())
}

fn a_recheck_tells_who_holds(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    enter(rig, &token('C', 1), &waits)?;
    let tokens =
        [('A', 1), ('A', 9), ('C', 1), ('B', 1)].map(|(letter, number)| token(letter, number));
    let several = i64::from(permits(rig, 2) - 1);
    let answer = rig.recheck(&instance('A'), &tokens)?;
    ensure_eq!(answer[3..], [1, 0, 0, several]);
    // A claim is held as well.
    rig.end(&token('A', 1))?;
    let answer = rig.recheck(&instance('A'), &tokens)?;
    ensure_eq!(answer[3..], [0, 0, 1, several]);
    // Over, and nobody has looked.
    rig.pass(10_001);
    let answer = rig.recheck(&instance('A'), &tokens)?;
    ensure_eq!(answer[0], rig.us.cast_signed());
    ensure_eq!(answer[3..], [0, 0, 0, 0]);
    Ok(())
}

fn a_recheck_tells_whether_others_wait(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    let others = |rig: &mut Rig, letter| Ok::<_, String>(rig.recheck(&instance(letter), &[])?[2]);
    ensure_eq!(others(rig, 'A')?, 0);
    enter(rig, &token('C', 1), &waits)?;
    ensure_eq!((others(rig, 'A')?, others(rig, 'C')?), (1, 0));
    enter(rig, &token('A', 3), &waits)?;
    ensure_eq!((others(rig, 'A')?, others(rig, 'C')?), (1, 1));
    rig.end(&token('C', 1))?;
    ensure_eq!((others(rig, 'A')?, others(rig, 'C')?), (0, 1));
    // Also when it is forgotten that permits are kept here.
    let records = rig.gate.records().to_owned();
    rig.number(&["HDEL", &records, "K"]);
    ensure_eq!(others(rig, 'C')?, 1);
    Ok(())
}

fn a_recheck_writes_nothing(rig: &mut Rig) -> Verdict {
    let waits = kept(rig)?;
    enter(rig, &token('C', 1), &waits)?;
    for ms in [0, 2_000] {
        rig.us += ms * 1_000;
        let before = rig.snapshot();
        rig.recheck(&instance('A'), &[token('A', 1), token('B', 1)])?;
        ensure_eq!(rig.snapshot(), before);
    }
    ensure!(rig.heard().is_empty());
    Ok(())
}

fn stamps_order_rechecks_among_grants_and_recalls(rig: &mut Rig) -> Verdict {
    open(rig, &['A', 'B']);
    let first = fence(rig.acquire(&token('A', 1), &KEEP))?.cast_signed();
    for clock_us in [1_i64, -1_000, 0] {
        let before = rig.recheck(&instance('A'), &[token('A', 1)])?;
        ensure!(before[1] >= first);
        ensure_eq!(before[2], 0);
        rig.us = rig.us.saturating_add_signed(clock_us);
        let waits = rig.acquire(&token('B', 1), &STAY)?;
        // What it says is newer than "nobody waits", unless the clock steps back.
        ensure!(waits[2] > before[1] || clock_us < 0);
        ensure_eq!(recalled(rig, waits[2])?, [instance('A')]);
        let after = rig.recheck(&instance('A'), &[])?;
        ensure!(after[1] >= waits[2] && after[2] == 1);
        rig.end(&token('B', 1))?;
        rig.us += 1;
    }
    Ok(())
}

fn local_hand_offs_of_a_mutex_have_fences_of_their_own(rig: &mut Rig) -> Verdict {
    if rig.kind == Kind::Semaphore {
        return Ok(());
    }
    // The clock stands, and then steps back.
    let kept = Ask { kept: 9, ..TRY };
    for clock_us in [0_i64, -1_000, 5] {
        let answer = rig.acquire(&token('A', 1), &kept)?;
        let (stamp, first) = (answer[2], fence(Ok(answer))?);
        // What comes later is greater than all of it.
        ensure!(stamp.unsigned_abs() >= first + 8);
        rig.us = rig.us.saturating_add_signed(clock_us);
        ensure!(rig.heartbeat('A')?[1].unsigned_abs() >= first + 8);
        rig.end(&token('A', 1))?;
        let next = fence(rig.acquire(&token('B', 1), &TRY))?;
        ensure!(next > first + 8);
        rig.end(&token('B', 1))?;
    }
    every_key_ends(rig)
}

fn who_is_told_of_its_turn_has_fences_of_its_own(rig: &mut Rig) -> Verdict {
    if rig.kind == Kind::Semaphore {
        return Ok(());
    }
    open(rig, &['B', 'C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &Ask { kept: 9, ..WAIT }))?;
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.heard();
    let mut fences = Vec::new();
    for holder in [token('A', 1), token('B', 1)] {
        rig.end(&holder)?;
        let text = rig.heard().pop().ok_or("somebody was granted")?.1;
        let fence = text.split(' ').nth(2).map(str::parse::<u64>);
        fences.push(fence.and_then(Result::ok).ok_or("a push has a fence")?);
    }
    ensure!(fences[1] > fences[0] + 8);
    Ok(())
}

fn the_most_fences_that_anybody_asks_for_are_kept(rig: &mut Rig) -> Verdict {
    if rig.kind == Kind::Semaphore {
        return Ok(());
    }
    open(rig, &['B', 'C', 'D']);
    fence(rig.acquire(&token('A', 1), &Ask { kept: 9, ..TRY }))?;
    ticket(rig.acquire(&token('B', 1), &Ask { kept: 3, ..WAIT }))?;
    ensure_eq!(noted(rig), Some(9));
    rig.end(&token('A', 1))?;
    fence(rig.acquire(&token('B', 1), &Ask { kept: 3, ..WAIT }))?;
    ensure_eq!(noted(rig), Some(9));
    Ok(())
}

fn without_local_hand_offs_a_grant_takes_one_fence(rig: &mut Rig) -> Verdict {
    open(rig, &['B', 'C']);
    fence(rig.acquire(&token('A', 1), &KEEP))?;
    ticket(rig.acquire(&token('B', 1), &STAY))?;
    let last = ticket(rig.acquire(&token('C', 1), &STAY))?;
    rig.heard();
    for (holder, next, number) in [('A', 'B', 1), ('B', 'C', 2)] {
        rig.end(&token(holder, 1))?;
        let text = rig.heard().pop().ok_or("somebody was granted")?.1;
        let grant = format!("g {} {} ", token(next, 1), last + number);
        ensure!(text.starts_with(&grant));
    }
    Ok(())
}
