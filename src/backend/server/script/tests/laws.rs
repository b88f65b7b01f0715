//! What the scripts promise, each as an example that can be read. They hold for all kinds of gate
//! unless they say otherwise.
//!
//! A law returns what it found broken, so that `mutations` can ask whether it finds a script that
//! was broken on purpose.

use std::time::{Duration, Instant};

use super::rig::{Answer, Ask, KINDS, RELEASED, Rig, Scripts, TRY, WAIT, instance, token};
use super::support::Server;
use crate::backend::server::reply::{renewal, status};
use crate::key::Kind;

pub(super) type Verdict = Result<(), String>;
pub(super) type Law = fn(&mut Rig) -> Verdict;

macro_rules! ensure {
    ($condition:expr) => {
        if !$condition {
            return Err(format!("line {}: not {}", line!(), stringify!($condition)));
        }
    };
}

macro_rules! ensure_eq {
    ($left:expr, $right:expr) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err(format!("line {}: {left:?} is not {right:?}", line!()));
        }
    }};
}

/// Lists the laws, and makes a test of each.
macro_rules! laws {
    ($($name:ident,)*) => {
        pub(super) const LAWS: &[(&str, Law)] = &[$((stringify!($name), $name)),*];

        mod each {
            $(#[test]
            fn $name() {
                super::uphold(super::$name);
            })*
        }
    };
}

mod home;
mod swap;

laws![
    expired_holder_cannot_release_successor,
    a_stranger_cannot_release,
    what_is_over_is_not_released,
    a_release_hands_on_to_the_next_in_line,
    a_cancelled_wait_hands_on,
    any_acquire_hands_on_what_has_expired,
    a_push_names_token_fence_and_length,
    a_claim_ends_early_unless_it_is_renewed,
    stamps_order_answers_among_pushes,
    a_renewed_claim_lasts_its_whole_lease,
    asking_again_extends_nothing,
    asking_again_keeps_the_ticket,
    a_renewal_with_another_fence_extends_nothing,
    a_renewal_names_token_and_fence,
    no_script_shortens_a_lease,
    a_lease_stripped_of_its_ttl_gets_one_back,
    a_renewal_creates_nothing,
    a_lease_said_to_be_gone_stays_gone,
    a_foreign_value_ends_one_lease_of_a_batch_and_no_other,
    a_suspect_is_skipped_in_place_until_it_speaks,
    a_newcomer_does_not_overtake_waiters_of_its_own_process,
    who_speaks_is_served_whatever_it_let_go,
    who_speaks_of_its_own_claim_is_no_suspect,
    who_releases_is_no_suspect,
    a_hung_process_costs_one_claim_for_all_its_waiters,
    a_dead_inbox_is_passed_over_and_costs_no_lease,
    a_dead_process_is_passed_over,
    a_wait_past_its_deadline_is_passed_over,
    a_wait_without_a_deadline_ends_after_a_day,
    a_refused_publish_undoes_the_grant,
    a_waiter_that_asks_by_a_timer_keeps_its_turn,
    a_waiter_that_listens_again_is_told,
    a_large_request_at_the_head_is_not_starved,
    a_full_queue_turns_newcomers_away,
    a_full_queue_of_the_dead_lets_a_newcomer_in,
    who_is_turned_away_says_that_its_waiting_process_lives,
    one_call_clears_a_bounded_number_of_the_dead,
    a_tombstone_keeps_a_late_acquire_out,
    a_tombstone_keeps_out_of_the_queue,
    a_tombstone_lasts_as_long_as_the_request_may,
    a_release_whose_acquire_is_unanswered_leaves_a_tombstone,
    a_late_request_creates_nothing,
    a_busy_try_leaves_nothing,
    a_foreign_type_under_the_key_is_refused_before_anything_is_written,
    a_foreign_holder_is_respected,
    at_maxmemory_a_release_hands_on,
    at_maxmemory_leases_are_renewed,
    an_unknown_protocol_version_is_never_a_second_lock,
    an_operators_limit_override_counts,
    a_gate_without_permits_is_closed_to_all,
    each_request_is_judged_by_its_own_limit,
    fences_rise_over_a_loss_of_data,
    fences_rise_when_the_clock_steps_back,
    tickets_and_fences_share_a_counter,
    a_place_from_before_a_loss_of_data_counts,
    a_place_in_the_future_does_not_count,
    a_lost_queue_is_entered_again,
    a_lost_main_key_frees_no_second_permit,
    lost_records_leave_no_key_without_ttl,
    lost_records_make_no_permit_count_twice,
    side_keys_outlive_the_lease,
    the_clients_clock_decides_nothing,
    a_release_is_told_to_other_clients,
];

/// Each law, with its name.
pub(super) fn all() -> impl Iterator<Item = &'static (&'static str, Law)> {
    LAWS.iter().chain(home::LAWS).chain(swap::LAWS)
}

/// A mutex' key expires by the server's own clock, in laws after one second at the least: a run
/// that was paused for that long shows nothing, and is repeated.
const TOO_SLOW: Duration = Duration::from_millis(800);

fn uphold(law: Law) {
    let server = Server::start();
    for kind in KINDS {
        let mut rig = Rig::new(&server, Scripts::with_given_clock(), kind);
        loop {
            let begun = Instant::now();
            rig.reset();
            match law(&mut rig) {
                Ok(()) => break,
                Err(_) if begun.elapsed() > TOO_SLOW => {}
                Err(problem) => panic!("{kind:?}, {problem}"),
            }
        }
    }
}

fn status_of(answer: &Answer) -> Result<i64, String> {
    answer
        .as_ref()
        .map(|answer| answer[0])
        .map_err(Clone::clone)
}

/// The fence of a held answer.
fn fence(answer: Answer) -> Result<u64, String> {
    let answer = answer?;
    if answer[0] == status::HELD {
        Ok(answer[3].unsigned_abs())
    } else {
        Err(format!("not held: {answer:?}"))
    }
}

/// The ticket of a queued answer.
fn ticket(answer: Answer) -> Result<u64, String> {
    let answer = answer?;
    if answer[0] == status::QUEUED {
        Ok(answer[7].unsigned_abs())
    } else {
        Err(format!("not queued: {answer:?}"))
    }
}

/// The tokens whose grants were heard.
fn granted(rig: &mut Rig) -> Vec<String> {
    let heard = rig.heard();
    let grants = heard.iter().filter_map(|(_, text)| text.strip_prefix("g "));
    grants
        .filter_map(|text| Some(text.split(' ').next()?.to_owned()))
        .collect()
}

fn open(rig: &mut Rig, letters: &[char]) {
    for letter in letters {
        rig.listen(&instance(*letter));
    }
}

/// What is recorded of a token, nothing if it is not known.
fn record(rig: &mut Rig, token: &str) -> String {
    let records = rig.gate.records().to_owned();
    let text = redis::from_redis_value::<Option<String>>(rig.command(&["HGET", &records, token]));
    text.expect("a record is text").unwrap_or_default()
}

fn expired_holder_cannot_release_successor(rig: &mut Rig) -> Verdict {
    let (first, second) = (token('A', 1), token('B', 1));
    fence(rig.acquire(&first, &TRY))?;
    rig.pass(10_001);
    let later = fence(rig.acquire(&second, &TRY))?;
    ensure_eq!(status_of(&rig.end(&first))?, status::GONE);
    ensure_eq!(status_of(&rig.acquire(&token('C', 1), &TRY))?, status::BUSY);
    let renewed = rig.renew(&instance('B'), false, &[(second, later, 10_000)])?;
    ensure!(renewed[2] > 0);
    Ok(())
}

fn a_stranger_cannot_release(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ensure_eq!(status_of(&rig.end(&token('A', 2)))?, status::GONE);
    ensure_eq!(status_of(&rig.end(&token('B', 1)))?, status::GONE);
    ensure_eq!(status_of(&rig.acquire(&token('C', 1), &TRY))?, status::BUSY);
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::RELEASED);
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::GONE);
    Ok(())
}

fn what_is_over_is_not_released(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.pass(10_001);
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::GONE);
    Ok(())
}

fn a_release_hands_on_to_the_next_in_line(rig: &mut Rig) -> Verdict {
    open(rig, &['B', 'C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::RELEASED);
    ensure_eq!(granted(rig), [token('B', 1)]);
    ensure_eq!(status_of(&rig.acquire(&token('D', 1), &TRY))?, status::BUSY);
    ensure_eq!(status_of(&rig.end(&token('B', 1)))?, status::RELEASED);
    ensure_eq!(granted(rig), [token('C', 1)]);
    ticket(rig.acquire(&token('D', 1), &WAIT))?;
    every_key_ends(rig)
}

fn every_key_ends(rig: &mut Rig) -> Verdict {
    for key in rig.keys() {
        ensure!(rig.number(&["PTTL", &key]) != -1);
    }
    Ok(())
}

fn a_cancelled_wait_hands_on(rig: &mut Rig) -> Verdict {
    open(rig, &['C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    // It can't be told, so it holds the others up until it asks again or leaves.
    ticket(rig.acquire(
        &token('B', 1),
        &Ask {
            pushed: false,
            ..WAIT
        },
    ))?;
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.end(&token('A', 1))?;
    ensure!(granted(rig).is_empty());
    ensure_eq!(status_of(&rig.end(&token('B', 1)))?, status::CANCELLED);
    ensure_eq!(granted(rig), [token('C', 1)]);
    Ok(())
}

fn any_acquire_hands_on_what_has_expired(rig: &mut Rig) -> Verdict {
    open(rig, &['B']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    rig.pass(9_000);
    rig.heartbeat('B')?;
    rig.pass(1_001);
    ensure_eq!(status_of(&rig.acquire(&token('C', 1), &TRY))?, status::BUSY);
    ensure_eq!(granted(rig), [token('B', 1)]);
    Ok(())
}

fn a_push_names_token_fence_and_length(rig: &mut Rig) -> Verdict {
    open(rig, &['B']);
    let first = fence(rig.acquire(&token('A', 1), &TRY))?;
    let place = ticket(rig.acquire(
        &token('B', 1),
        &Ask {
            lease_ms: 1_500,
            ..WAIT
        },
    ))?;
    ensure!(place > first);
    rig.pass(700);
    rig.end(&token('A', 1))?;
    let text = format!("g {} {} 1500", token('B', 1), rig.us);
    ensure_eq!(rig.heard(), [(instance('B'), text)]);
    Ok(())
}

fn stamps_order_answers_among_pushes(rig: &mut Rig) -> Verdict {
    open(rig, &['B', 'C', 'E']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    for waiter in ['B', 'C', 'E'] {
        ticket(rig.acquire(&token(waiter, 1), &WAIT))?;
    }
    let mut latest = 0;
    for (holder, clock_us) in [('A', 1_i64), ('B', -1_000), ('C', 0)] {
        let before = rig.heartbeat('D')?[1];
        rig.us = rig.us.saturating_add_signed(clock_us);
        rig.end(&token(holder, 1))?;
        let heard = rig.heard();
        ensure_eq!(heard.len(), 1);
        let pushed = heard[0]
            .1
            .split(' ')
            .nth(2)
            .and_then(|fence| fence.parse::<i64>().ok());
        let pushed = pushed.ok_or("a push has a fence")?;
        // An answer with a smaller stamp must be an earlier one: so none that comes later has it,
        // also when the clock steps back.
        ensure!(pushed > latest);
        ensure!(rig.acquire(&token('D', 1), &WAIT)?[2] >= pushed);
        ensure!(rig.heartbeat('D')?[1] >= pushed);
        ensure!(rig.renew(&instance('D'), false, &[])?[1] >= pushed);
        if clock_us > 0 {
            ensure!(before < pushed);
        }
        latest = pushed;
    }
    Ok(())
}

/// A holds, B waits, A releases: B has a claim.
fn claim(rig: &mut Rig) -> Result<u64, String> {
    open(rig, &['B']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let wait_ms = 3_600_000;
    ticket(rig.acquire(&token('B', 1), &Ask { wait_ms, ..WAIT }))?;
    rig.pass(1);
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('B', 1)]);
    Ok(rig.us)
}

fn a_claim_ends_early_unless_it_is_renewed(rig: &mut Rig) -> Verdict {
    claim(rig)?;
    rig.pass(2_000);
    // A heartbeat says that the process lives, and nothing of what it holds.
    rig.heartbeat('B')?;
    rig.pass(1_001);
    fence(rig.acquire(&token('C', 1), &TRY))?;
    Ok(())
}

fn a_renewed_claim_lasts_its_whole_lease(rig: &mut Rig) -> Verdict {
    let fence = claim(rig)?;
    rig.pass(2_000);
    if rig.kind == Kind::Mutex {
        ensure_eq!(record(rig, "S"), token('B', 1));
        ensure_eq!(record(rig, &token('B', 1)), "");
    } else {
        ensure!(record(rig, &token('B', 1)).starts_with("1c "));
    }
    let renewed = rig.renew(&instance('B'), true, &[(token('B', 1), fence, 10_000)])?;
    ensure_eq!(renewed[2], 10_000);
    // What a mutex' value says no record has to.
    let expected = if rig.kind == Kind::Mutex { "" } else { "1h " };
    let recorded = record(rig, &token('B', 1));
    ensure_eq!(recorded.get(..3).unwrap_or_default(), expected);
    if rig.kind == Kind::Mutex {
        ensure_eq!(record(rig, "S"), "");
    }
    rig.pass(9_000);
    ensure_eq!(status_of(&rig.acquire(&token('C', 1), &TRY))?, status::BUSY);
    Ok(())
}

fn asking_again_extends_nothing(rig: &mut Rig) -> Verdict {
    claim(rig)?;
    rig.pass(2_000);
    let answer = rig.acquire(&token('B', 1), &WAIT)?;
    ensure_eq!(answer[0], status::HELD);
    ensure!(answer[4] <= 1_000);
    rig.pass(1_001);
    fence(rig.acquire(&token('C', 1), &TRY))?;
    Ok(())
}

fn asking_again_keeps_the_ticket(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let place = ticket(rig.acquire(&token('B', 1), &WAIT))?;
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.pass(1_000);
    let again = rig.acquire(&token('B', 1), &WAIT)?;
    // First in line, at the same place, which was not made by this call.
    ensure_eq!([again[6], again[7], again[8]], [0, place.cast_signed(), 0]);
    ensure_eq!(rig.waiters(), 2);
    Ok(())
}

fn a_renewal_with_another_fence_extends_nothing(rig: &mut Rig) -> Verdict {
    let fence = claim(rig)?;
    rig.pass(2_000);
    let lease = (token('B', 1), fence - 1, 10_000);
    ensure_eq!(
        rig.renew(&instance('B'), false, &[lease])?[2],
        renewal::OTHER
    );
    rig.pass(1_001);
    ensure_eq!(status_of(&rig.acquire(&token('C', 1), &TRY))?, status::HELD);
    Ok(())
}

fn a_renewal_names_token_and_fence(rig: &mut Rig) -> Verdict {
    let held = fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.pass(5_000);
    let mut renew = |token: &str, fence: u64| {
        let lease = (token.to_owned(), fence, 10_000);
        rig.renew(&instance('A'), false, &[lease])
            .map(|answer| answer[2])
    };
    ensure_eq!(renew(&token('A', 1), held + 1)?, renewal::OTHER);
    ensure_eq!(renew(&token('A', 2), held)?, renewal::GONE);
    ensure_eq!(renew(&token('A', 1), held)?, 10_000);
    Ok(())
}

fn no_script_shortens_a_lease(rig: &mut Rig) -> Verdict {
    let held = fence(rig.acquire(
        &token('A', 1),
        &Ask {
            lease_ms: 60_000,
            ..TRY
        },
    ))?;
    let renewed = rig.renew(&instance('A'), false, &[(token('A', 1), held, 1_000)])?;
    ensure!(renewed[2] > 50_000);
    rig.pass(30_000);
    ensure_eq!(status_of(&rig.acquire(&token('B', 1), &TRY))?, status::BUSY);
    Ok(())
}

fn a_lease_stripped_of_its_ttl_gets_one_back(rig: &mut Rig) -> Verdict {
    if rig.kind == Kind::Semaphore {
        return Ok(());
    }
    let held = fence(rig.acquire(&token('A', 1), &TRY))?;
    let main = rig.gate.main().to_owned();
    rig.number(&["PERSIST", &main]);
    // What the holder is told must be true until it hears otherwise: the renewal may not fall
    // behind it.
    let told = rig.acquire(&token('A', 1), &TRY)?[4];
    let renewed = rig.renew(&instance('A'), false, &[(token('A', 1), held, 1_000)])?[2];
    let left = rig.number(&["PTTL", &main]);
    ensure!(told > 0 && left > 0);
    ensure!(left + 500 > told && left + 500 > renewed);
    Ok(())
}

fn a_renewal_creates_nothing(rig: &mut Rig) -> Verdict {
    let lease = (token('A', 1), 7, 10_000);
    ensure_eq!(
        rig.renew(&instance('A'), false, &[lease])?[2],
        renewal::GONE
    );
    ensure_eq!(rig.number(&["DBSIZE"]), 0);
    Ok(())
}

fn a_lease_said_to_be_gone_stays_gone(rig: &mut Rig) -> Verdict {
    if rig.kind != Kind::Semaphore {
        return Ok(());
    }
    let held = fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.pass(10_000);
    let lease = (token('A', 1), held, 10_000);
    ensure_eq!(
        rig.renew(&instance('A'), false, std::slice::from_ref(&lease))?[2],
        renewal::GONE
    );
    rig.us -= 5_000_000;
    ensure_eq!(
        rig.renew(&instance('A'), false, &[lease])?[2],
        renewal::GONE
    );
    Ok(())
}

fn a_foreign_value_ends_one_lease_of_a_batch_and_no_other(rig: &mut Rig) -> Verdict {
    let held = fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.command(&["RPUSH", "foreign", "1"]);
    let [main, _, records, roster, clock]: [String; 5] =
        rig.keys().try_into().expect("a gate has five keys");
    let keys = [
        &roster, &clock, "foreign", "other", &main, &records, &main, "foreign",
    ]
    .map(str::to_owned);
    let mut arguments = vec![instance('A'), "0".to_owned()];
    for _ in 0..3 {
        arguments.extend([token('A', 1), held.to_string(), "20000".to_owned()]);
    }
    let answer = rig.run_renew(&keys, arguments)?;
    ensure_eq!(answer[2..], [renewal::GONE, 20_000, renewal::GONE]);
    Ok(())
}

/// A holds; B waits twice, then C. A releases to B, which lets the claim end, and is alive beyond
/// it.
fn hung(rig: &mut Rig) -> Verdict {
    open(rig, &['B', 'C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    ticket(rig.acquire(&token('B', 2), &WAIT))?;
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('B', 1)]);
    rig.pass(2_000);
    rig.heartbeat('B')?;
    rig.heartbeat('C')?;
    rig.pass(1_001);
    Ok(())
}

fn a_suspect_is_skipped_in_place_until_it_speaks(rig: &mut Rig) -> Verdict {
    hung(rig)?;
    // C asks and gets what the other process let go, though that one's second waiter stands in
    // front.
    fence(rig.acquire(&token('C', 1), &WAIT))?;
    ensure_eq!(status_of(&rig.end(&token('C', 1)))?, status::RELEASED);
    ensure!(granted(rig).is_empty());
    ensure_eq!(rig.waiters(), 1);
    rig.heartbeat('B')?;
    ensure_eq!(status_of(&rig.acquire(&token('D', 1), &TRY))?, status::BUSY);
    ensure_eq!(granted(rig), [token('B', 2)]);
    Ok(())
}

fn a_newcomer_does_not_overtake_waiters_of_its_own_process(rig: &mut Rig) -> Verdict {
    hung(rig)?;
    ensure_eq!(status_of(&rig.acquire(&token('B', 3), &TRY))?, status::BUSY);
    ensure_eq!(granted(rig), [token('B', 2)]);
    Ok(())
}

fn who_speaks_is_served_whatever_it_let_go(rig: &mut Rig) -> Verdict {
    if rig.kind != Kind::Semaphore {
        return Ok(());
    }
    open(rig, &['B']);
    let two = Ask { limit: 2, ..WAIT };
    for number in 1..=2 {
        fence(rig.acquire(&token('A', number), &two))?;
    }
    for number in 1..=4 {
        ticket(rig.acquire(&token('B', number), &two))?;
    }
    for number in 1..=2 {
        rig.end(&token('A', number))?;
    }
    ensure_eq!(granted(rig), [token('B', 1), token('B', 2)]);
    rig.pass(2_000);
    rig.heartbeat('B')?;
    rig.pass(1_001);
    let newcomer = rig.acquire(&token('B', 5), &Ask { wait_ms: 0, ..two });
    ensure_eq!(status_of(&newcomer)?, status::BUSY);
    ensure_eq!(granted(rig), [token('B', 3), token('B', 4)]);
    Ok(())
}

/// Whether the process `letter` is passed over.
fn is_suspect(rig: &mut Rig, letter: char) -> bool {
    let roster = rig.shared.roster.to_string();
    let member = format!("?{}", instance(letter));
    rig.number(&["ZCOUNT", &roster, "-inf", "+inf"]) > 0
        && rig.command(&["ZSCORE", &roster, &member]) != redis::Value::Nil
}

fn who_releases_is_no_suspect(rig: &mut Rig) -> Verdict {
    open(rig, &['C']);
    fence(rig.acquire(&token('B', 1), &TRY))?;
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    let (roster, ends) = (
        rig.shared.roster.to_string(),
        (rig.ms() + 3_000).to_string(),
    );
    rig.number(&["ZADD", &roster, &ends, &format!("?{}", instance('B'))]);
    rig.end(&token('B', 1))?;
    ensure_eq!(granted(rig), [token('C', 1)]);
    ensure!(!is_suspect(rig, 'B'));
    Ok(())
}

fn who_speaks_of_its_own_claim_is_no_suspect(rig: &mut Rig) -> Verdict {
    let mut fence = claim(rig)?;
    for way in 0..4 {
        if way > 0 {
            rig.reset();
            fence = claim(rig)?;
        }
        let name = token('B', 1);
        if way < 3 {
            rig.pass(3_001);
        }
        match way {
            0 => ensure_eq!(status_of(&rig.acquire(&name, &WAIT))?, status::HELD),
            1 => ensure_eq!(status_of(&rig.end(&name))?, status::GONE),
            2 => {
                let lease = (name, fence, 10_000);
                ensure_eq!(
                    rig.renew(&instance('B'), false, &[lease])?[2],
                    renewal::GONE
                );
            }
            _ => ensure_eq!(status_of(&rig.end(&name))?, status::RELEASED),
        }
        rig.acquire(&token('C', 1), &TRY)?;
        ensure!(!is_suspect(rig, 'B'));
    }
    Ok(())
}

fn a_hung_process_costs_one_claim_for_all_its_waiters(rig: &mut Rig) -> Verdict {
    open(rig, &['B', 'C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    for number in 0..20 {
        ticket(rig.acquire(&token('B', number), &WAIT))?;
    }
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.end(&token('A', 1))?;
    rig.pass(2_999);
    rig.heartbeat('C')?;
    // Its heartbeat outlasts its claim by a moment.
    rig.revive('B');
    rig.pass(2);
    fence(rig.acquire(&token('C', 1), &WAIT))?;
    Ok(())
}

fn a_dead_inbox_is_passed_over_and_costs_no_lease(rig: &mut Rig) -> Verdict {
    open(rig, &['C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    for number in 0..5 {
        ticket(rig.acquire(&token('B', number), &WAIT))?;
    }
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::RELEASED);
    ensure_eq!(granted(rig), [token('C', 1)]);
    ensure_eq!(rig.waiters(), 0);
    Ok(())
}

fn a_dead_process_is_passed_over(rig: &mut Rig) -> Verdict {
    open(rig, &['B', 'C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.pass(2_000);
    rig.heartbeat('C')?;
    rig.pass(1_001);
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('C', 1)]);
    Ok(())
}

fn a_wait_past_its_deadline_is_passed_over(rig: &mut Rig) -> Verdict {
    open(rig, &['B', 'C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(
        &token('B', 1),
        &Ask {
            wait_ms: 1_000,
            ..WAIT
        },
    ))?;
    ticket(rig.acquire(
        &token('C', 1),
        &Ask {
            wait_ms: 1_001,
            ..WAIT
        },
    ))?;
    every_key_ends(rig)?;
    rig.pass(1_001);
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('C', 1)]);
    Ok(())
}

fn a_wait_without_a_deadline_ends_after_a_day(rig: &mut Rig) -> Verdict {
    const DAY_MS: u64 = 86_400_000;
    open(rig, &['B', 'C']);
    let lease_ms = 2 * DAY_MS;
    fence(rig.acquire(&token('A', 1), &Ask { lease_ms, ..TRY }))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    rig.pass(1_000);
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.pass(DAY_MS - 999);
    rig.revive('B');
    rig.revive('C');
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('C', 1)]);
    Ok(())
}

/// Goes on as a user who may use no channel.
fn the_server_forbids_pushes(rig: &mut Rig) {
    rig.command(&[
        "ACL",
        "SETUSER",
        "mute",
        "reset",
        "on",
        ">secret",
        "resetchannels",
        "~*",
        "+@all",
    ]);
    rig.command(&["AUTH", "mute", "secret"]);
}

fn a_refused_publish_undoes_the_grant(rig: &mut Rig) -> Verdict {
    open(rig, &['B']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let place = ticket(rig.acquire(&token('B', 1), &WAIT))?;
    let waiting = record(rig, &token('B', 1));
    the_server_forbids_pushes(rig);
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::RELEASED);
    ensure!(!rig.is_held());
    ensure_eq!(record(rig, &token('B', 1)), waiting);
    // Its turn is respected, and it takes it by itself.
    ensure_eq!(status_of(&rig.acquire(&token('C', 1), &TRY))?, status::BUSY);
    ensure!(!rig.is_held());
    let held = fence(rig.acquire(&token('B', 1), &WAIT))?;
    ensure!(held > place);
    Ok(())
}

fn a_waiter_that_asks_by_a_timer_keeps_its_turn(rig: &mut Rig) -> Verdict {
    open(rig, &['B', 'C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(
        &token('B', 1),
        &Ask {
            pushed: false,
            ..WAIT
        },
    ))?;
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.end(&token('A', 1))?;
    ensure_eq!(status_of(&rig.acquire(&token('D', 1), &TRY))?, status::BUSY);
    ensure_eq!(
        status_of(&rig.acquire(&token('C', 1), &WAIT))?,
        status::QUEUED
    );
    ensure!(rig.heard().is_empty());
    fence(rig.acquire(
        &token('B', 1),
        &Ask {
            pushed: false,
            ..WAIT
        },
    ))?;
    Ok(())
}

fn a_waiter_that_listens_again_is_told(rig: &mut Rig) -> Verdict {
    open(rig, &['B']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let deaf = Ask {
        pushed: false,
        ..WAIT
    };
    ticket(rig.acquire(&token('B', 1), &deaf))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('B', 1)]);
    Ok(())
}

fn a_large_request_at_the_head_is_not_starved(rig: &mut Rig) -> Verdict {
    if rig.kind != Kind::Semaphore {
        return Ok(());
    }
    open(rig, &['B', 'C']);
    fence(rig.acquire(
        &token('A', 1),
        &Ask {
            weight: 2,
            limit: 3,
            ..TRY
        },
    ))?;
    ticket(rig.acquire(
        &token('B', 1),
        &Ask {
            weight: 3,
            limit: 3,
            ..WAIT
        },
    ))?;
    // There is room for it, but not before its turn.
    ensure_eq!(
        status_of(&rig.acquire(&token('C', 1), &Ask { limit: 3, ..TRY }))?,
        status::BUSY
    );
    ticket(rig.acquire(&token('C', 2), &Ask { limit: 3, ..WAIT }))?;
    rig.end(&token('A', 1))?;
    ensure_eq!(granted(rig), [token('B', 1)]);
    rig.end(&token('B', 1))?;
    ensure_eq!(granted(rig), [token('C', 2)]);
    Ok(())
}

fn a_full_queue_turns_newcomers_away(rig: &mut Rig) -> Verdict {
    let two = Ask {
        max_waiters: 2,
        ..WAIT
    };
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ensure_eq!(
        status_of(&rig.acquire(
            &token('B', 1),
            &Ask {
                max_waiters: 0,
                ..WAIT
            }
        ))?,
        status::FULL
    );
    ticket(rig.acquire(&token('B', 1), &two))?;
    ticket(rig.acquire(&token('C', 1), &two))?;
    let refused = rig.acquire(&token('D', 1), &two)?;
    ensure_eq!([refused[0], refused[6]], [status::FULL, 2]);
    // Whoever is in may ask again.
    ensure_eq!(
        status_of(&rig.acquire(&token('C', 1), &two))?,
        status::QUEUED
    );
    Ok(())
}

fn who_is_turned_away_says_that_its_waiting_process_lives(rig: &mut Rig) -> Verdict {
    let one = Ask {
        max_waiters: 1,
        ..WAIT
    };
    rig.listen(&instance('B'));
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &one))?;
    rig.pass(2_000);
    for turned_away in [token('B', 2), token('C', 1)] {
        ensure_eq!(status_of(&rig.acquire(&turned_away, &one))?, status::FULL);
    }
    // One that waits nowhere is not to be kept in mind.
    let roster = rig.shared.roster.to_string();
    ensure_eq!(rig.texts(&["ZRANGE", &roster, "0", "-1"]), [instance('B')]);
    rig.pass(2_000);
    rig.end(&token('A', 1))?;
    ensure_eq!(rig.heard().len(), 1);
    Ok(())
}

fn a_full_queue_of_the_dead_lets_a_newcomer_in(rig: &mut Rig) -> Verdict {
    let four = Ask {
        max_waiters: 4,
        ..WAIT
    };
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('C', 1), &four))?;
    for number in 0..3 {
        ticket(rig.acquire(&token('B', number), &four))?;
    }
    rig.pass(2_000);
    rig.heartbeat('C')?;
    rig.pass(1_001);
    // They died behind a living head.
    let newcomer = rig.acquire(&token('D', 1), &four)?;
    ensure_eq!([newcomer[0], newcomer[6]], [status::QUEUED, 1]);
    Ok(())
}

fn one_call_clears_a_bounded_number_of_the_dead(rig: &mut Rig) -> Verdict {
    open(rig, &['C']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    for number in 0..70 {
        ticket(rig.acquire(&token('B', number), &WAIT))?;
    }
    ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.pass(3_001);
    rig.heartbeat('C')?;
    let first = rig.end(&token('A', 1))?;
    ensure_eq!(
        [first[0], first[3], rig.waiters()],
        [status::RELEASED, 1, 7]
    );
    ensure!(granted(rig).is_empty());
    // Nobody slips in meanwhile.
    let second = rig.acquire(&token('D', 1), &TRY)?;
    ensure_eq!([second[0], second[3]], [status::BUSY, 0]);
    ensure_eq!(granted(rig), [token('C', 1)]);
    Ok(())
}

fn a_tombstone_keeps_a_late_acquire_out(rig: &mut Rig) -> Verdict {
    for ask in [TRY, WAIT] {
        // The cancel was faster than the acquire that it cancels.
        ensure_eq!(
            status_of(&rig.end_unanswered(&token('A', 1), Some(500)))?,
            status::GONE
        );
        let before = rig.snapshot();
        rig.pass(500);
        let late = Ask {
            latest_in_ms: 0,
            ticket: rig.us - 1_000_000,
            ..ask
        };
        ensure_eq!(
            status_of(&rig.acquire(&token('A', 1), &late))?,
            status::ENDED
        );
        ensure_eq!(rig.snapshot(), before);
        rig.pass(1);
        let late = Ask {
            latest_in_ms: -1,
            ..late
        };
        ensure_eq!(
            status_of(&rig.acquire(&token('A', 1), &late))?,
            status::LATE
        );
        ensure_eq!(rig.snapshot(), before);
    }
    Ok(())
}

fn a_tombstone_keeps_out_of_the_queue(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.end_unanswered(&token('B', 1), Some(500))?;
    let before = rig.snapshot();
    let late = rig.acquire(&token('B', 1), &WAIT);
    ensure_eq!(status_of(&late)?, status::ENDED);
    ensure_eq!(rig.snapshot(), before);
    Ok(())
}

fn a_tombstone_lasts_as_long_as_the_request_may(rig: &mut Rig) -> Verdict {
    let roster = rig.shared.roster.to_string();
    rig.end_unanswered(&token('A', 1), Some(70_000))?;
    let ends = (rig.ms() + 70_000).to_string();
    ensure_eq!(
        rig.texts(&["ZRANGE", &roster, "0", "-1", "WITHSCORES"]),
        [format!("!{}", token('A', 1)), ends]
    );
    ensure!(rig.number(&["PTTL", &roster]) >= 69_000);
    // The next one takes it away when it is over.
    rig.pass(70_001);
    rig.end_unanswered(&token('A', 2), Some(0))?;
    ensure_eq!(rig.number(&["ZCARD", &roster]), 1);
    Ok(())
}

fn a_release_whose_acquire_is_unanswered_leaves_a_tombstone(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let released = rig.end_unanswered(&token('A', 1), Some(500));
    ensure_eq!(status_of(&released)?, status::RELEASED);
    ensure_eq!(
        status_of(&rig.acquire(&token('A', 1), &TRY))?,
        status::ENDED
    );
    Ok(())
}

fn a_late_request_creates_nothing(rig: &mut Rig) -> Verdict {
    for ask in [TRY, WAIT] {
        let late = rig.acquire(
            &token('A', 1),
            &Ask {
                latest_in_ms: -1,
                ..ask
            },
        )?;
        ensure_eq!(late[0], status::LATE);
        ensure_eq!(rig.number(&["DBSIZE"]), 0);
    }
    fence(rig.acquire(
        &token('A', 1),
        &Ask {
            latest_in_ms: 0,
            ..TRY
        },
    ))?;
    let late = Ask {
        latest_in_ms: -1,
        ..WAIT
    };
    ensure_eq!(
        status_of(&rig.acquire(&token('B', 1), &late))?,
        status::LATE
    );
    ensure_eq!(rig.waiters(), 0);
    Ok(())
}

fn a_busy_try_leaves_nothing(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    let before = rig.snapshot();
    let busy = rig.acquire(&token('C', 1), &TRY)?;
    ensure_eq!(
        [busy[0], busy[3], busy[5], busy[6]],
        [status::BUSY, 0, 0, 1]
    );
    ensure!((9_000..=10_000).contains(&busy[4]));
    ensure_eq!(rig.snapshot(), before);
    Ok(())
}

fn a_foreign_type_under_the_key_is_refused_before_anything_is_written(rig: &mut Rig) -> Verdict {
    for spoilt in 0..5 {
        rig.reset();
        open(rig, &['B']);
        fence(rig.acquire(&token('A', 1), &TRY))?;
        ticket(rig.acquire(&token('B', 1), &WAIT))?;
        let key = rig.keys().remove(spoilt);
        rig.command(&["DEL", &key]);
        rig.command(&["RPUSH", &key, "foreign"]);
        let before = rig.snapshot();
        for name in [token('A', 1), token('B', 1), token('C', 1)] {
            for answer in [rig.end(&name), rig.acquire(&name, &WAIT)] {
                ensure!(answer.is_err_and(|error| error.contains("WRONGTYPE")));
            }
        }
        ensure_eq!(rig.snapshot(), before);
        ensure!(rig.heard().is_empty());
    }
    Ok(())
}

fn a_foreign_holder_is_respected(rig: &mut Rig) -> Verdict {
    if rig.kind == Kind::Semaphore {
        return Ok(());
    }
    let main = rig.gate.main().to_owned();
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    rig.command(&["SET", &main, "stranger"]);
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::GONE);
    ensure_eq!(status_of(&rig.end(&token('B', 1)))?, status::CANCELLED);
    let busy = rig.acquire(&token('C', 1), &TRY)?;
    // Without a TTL nobody knows when it ends.
    ensure_eq!([busy[0], busy[4], busy[5]], [status::BUSY, -1, 1]);
    let queued = rig.acquire(&token('D', 1), &WAIT)?;
    ensure_eq!([queued[0], queued[4], queued[5]], [status::QUEUED, -1, 1]);
    rig.end(&token('D', 1))?;
    let value: Option<String> =
        redis::from_redis_value(rig.command(&["GET", &main])).expect("text");
    ensure_eq!(value.as_deref(), Some("stranger"));
    rig.command(&["DEL", &main]);
    fence(rig.acquire(&token('C', 1), &TRY))?;
    Ok(())
}

fn at_maxmemory_a_release_hands_on(rig: &mut Rig) -> Verdict {
    open(rig, &['B']);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    rig.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let before = rig.snapshot();
    for ask in [TRY, WAIT] {
        let asked = rig.acquire(&token('C', 1), &Ask { limit: 5, ..ask });
        ensure!(
            asked.as_ref().is_err_and(|error| error.contains("OOM"))
                || asked.is_ok_and(|answer| answer[0] == status::BUSY)
        );
        ensure_eq!(rig.snapshot(), before);
    }
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::RELEASED);
    ensure_eq!(granted(rig), [token('B', 1)]);
    ensure_eq!(
        status_of(&rig.end_unanswered(&token('C', 1), Some(500)))?,
        status::GONE
    );
    Ok(())
}

fn at_maxmemory_leases_are_renewed(rig: &mut Rig) -> Verdict {
    let fence = claim(rig)?;
    rig.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let renewed = rig.renew(&instance('B'), true, &[(token('B', 1), fence, 10_000)])?;
    ensure_eq!(renewed[2], 10_000);
    Ok(())
}

fn an_unknown_protocol_version_is_never_a_second_lock(rig: &mut Rig) -> Verdict {
    let [_, queue, records, ..]: [String; 5] = rig.keys().try_into().expect("a gate has five keys");
    // A holder of a later release.
    let theirs = fence(rig.acquire(&token('Z', 1), &TRY))?;
    rig.command(&["HSET", &records, &token('Z', 1), "2x anything"]);
    ensure_eq!(status_of(&rig.acquire(&token('A', 1), &TRY))?, status::BUSY);
    let before = rig.snapshot();
    ensure_eq!(
        status_of(&rig.acquire(&token('Z', 1), &TRY))?,
        status::INCOMPATIBLE
    );
    ensure_eq!(status_of(&rig.end(&token('Z', 1)))?, status::INCOMPATIBLE);
    let lease = (token('Z', 1), theirs, 10_000);
    ensure_eq!(
        rig.renew(&instance('Z'), false, &[lease])?[2],
        renewal::INCOMPATIBLE
    );
    ensure_eq!(rig.snapshot(), before);
    // A waiter of a later release: what it wants is not known, and its turn is.
    rig.pass(10_001);
    rig.revive('Z');
    rig.number(&["ZADD", &queue, "1", &token('Z', 2)]);
    rig.command(&["HSET", &records, &token('Z', 2), "2x anything"]);
    ensure_eq!(status_of(&rig.acquire(&token('A', 1), &TRY))?, status::BUSY);
    ensure!(!rig.is_held());
    // Until its process is dead, by which it can't be blocked for ever.
    rig.pass(3_001);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    Ok(())
}

fn an_operators_limit_override_counts(rig: &mut Rig) -> Verdict {
    if rig.kind != Kind::Semaphore {
        return Ok(());
    }
    open(rig, &['B', 'C']);
    let records = rig.gate.records().to_owned();
    let three = Ask {
        weight: 3,
        limit: 3,
        ..WAIT
    };
    fence(rig.acquire(&token('A', 1), &Ask { limit: 3, ..TRY }))?;
    ticket(rig.acquire(&token('B', 1), &three))?;
    ticket(rig.acquire(&token('C', 1), &three))?;
    ticket(rig.acquire(&token('C', 2), &WAIT))?;
    rig.number(&["HSET", &records, "L", "2"]);
    // Each learns that it never fits, by its own question or from the queue, and the others move
    // up.
    let never = rig.acquire(&token('B', 1), &three)?;
    ensure_eq!([never[0], never[3]], [status::NEVER, 2]);
    let heard = rig.heard();
    ensure_eq!(heard.len(), 2);
    ensure!(heard[0].1.starts_with(&format!("n {} ", token('C', 1))));
    ensure!(heard[1].1.starts_with(&format!("g {} ", token('C', 2))));
    ensure_eq!(
        status_of(&rig.acquire(&token('D', 1), &Ask { limit: 9, ..TRY }))?,
        status::BUSY
    );
    ticket(rig.acquire(&token('D', 1), &Ask { limit: 1, ..WAIT }))?;
    rig.number(&["HDEL", &records, "L"]);
    // Its own limit was not forgotten meanwhile.
    ensure!(record(rig, &token('D', 1)).starts_with("1w 1 1 "));
    Ok(())
}

fn a_gate_without_permits_is_closed_to_all(rig: &mut Rig) -> Verdict {
    open(rig, &['B']);
    let records = rig.gate.records().to_owned();
    fence(rig.acquire(&token('A', 1), &TRY))?;
    ticket(rig.acquire(&token('B', 1), &WAIT))?;
    rig.number(&["HSET", &records, "L", "0"]);
    ensure_eq!(
        status_of(&rig.acquire(&token('C', 1), &WAIT))?,
        status::NEVER
    );
    rig.end(&token('A', 1))?;
    let heard = rig.heard();
    ensure_eq!(heard.len(), 1);
    ensure!(heard[0].1.starts_with(&format!("n {} ", token('B', 1))));
    Ok(())
}

fn each_request_is_judged_by_its_own_limit(rig: &mut Rig) -> Verdict {
    if rig.kind != Kind::Semaphore {
        return Ok(());
    }
    let (old, new) = (Ask { limit: 3, ..TRY }, Ask { limit: 2, ..TRY });
    for number in 1..=3 {
        fence(rig.acquire(&token('A', number), &old))?;
    }
    for number in 1..=2 {
        ensure_eq!(status_of(&rig.acquire(&token('B', 1), &new))?, status::BUSY);
        rig.end(&token('A', number))?;
    }
    fence(rig.acquire(&token('B', 1), &new))?;
    ensure_eq!(status_of(&rig.acquire(&token('B', 2), &new))?, status::BUSY);
    fence(rig.acquire(&token('A', 1), &old))?;
    Ok(())
}

fn fences_rise_over_a_loss_of_data(rig: &mut Rig) -> Verdict {
    let mut last = 0;
    for number in 0..20 {
        let next = fence(rig.acquire(&token('A', number), &TRY))?;
        ensure!(next > last);
        last = next;
        rig.command(&["FLUSHALL"]);
        rig.us += 1;
    }
    Ok(())
}

fn fences_rise_when_the_clock_steps_back(rig: &mut Rig) -> Verdict {
    let first = fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.end(&token('A', 1))?;
    rig.us -= 5_000_000;
    let answer = rig.acquire(&token('A', 2), &TRY)?;
    ensure!(answer[3].unsigned_abs() > first);
    // The stamp covers it too.
    ensure!(answer[2] >= answer[3]);
    Ok(())
}

fn tickets_and_fences_share_a_counter(rig: &mut Rig) -> Verdict {
    open(rig, &['B']);
    let mut drawn = vec![fence(rig.acquire(&token('A', 1), &TRY))?];
    drawn.push(ticket(rig.acquire(&token('B', 1), &WAIT))?);
    drawn.push(ticket(rig.acquire(&token('C', 1), &WAIT))?);
    rig.end(&token('A', 1))?;
    let heard = rig.heard();
    ensure_eq!(heard.len(), 1);
    let pushed = heard[0]
        .1
        .split(' ')
        .nth(2)
        .and_then(|fence| fence.parse::<u64>().ok());
    drawn.extend(pushed);
    // All at one moment of the clock.
    ensure_eq!(drawn, (0..4).map(|n| rig.us + n).collect::<Vec<_>>());
    Ok(())
}

fn a_place_from_before_a_loss_of_data_counts(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let first = ticket(rig.acquire(&token('B', 1), &WAIT))?;
    let second = ticket(rig.acquire(&token('C', 1), &WAIT))?;
    rig.command(&["FLUSHALL"]);
    rig.pass(10);
    fence(rig.acquire(&token('D', 1), &TRY))?;
    ticket(rig.acquire(&token('D', 2), &WAIT))?;
    let again = rig.acquire(
        &token('C', 1),
        &Ask {
            ticket: second,
            ..WAIT
        },
    )?;
    ensure_eq!(
        [again[0], again[6], again[7]],
        [status::QUEUED, 0, second.cast_signed()]
    );
    let again = rig.acquire(
        &token('B', 1),
        &Ask {
            ticket: first,
            ..WAIT
        },
    )?;
    ensure_eq!(
        [again[0], again[6], again[7]],
        [status::QUEUED, 0, first.cast_signed()]
    );
    Ok(())
}

fn a_place_in_the_future_does_not_count(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let ahead = rig.us + 1_000;
    let place = ticket(rig.acquire(
        &token('B', 1),
        &Ask {
            ticket: ahead,
            ..WAIT
        },
    ))?;
    ensure!(place < ahead);
    Ok(())
}

fn a_lost_queue_is_entered_again(rig: &mut Rig) -> Verdict {
    let queue = rig.gate.queue().to_owned();
    fence(rig.acquire(&token('A', 1), &TRY))?;
    let place = ticket(rig.acquire(&token('B', 1), &WAIT))?;
    rig.number(&["DEL", &queue]);
    rig.pass(1);
    let again = rig.acquire(
        &token('B', 1),
        &Ask {
            ticket: place,
            ..WAIT
        },
    )?;
    ensure_eq!(
        [again[0], again[7], again[8]],
        [status::QUEUED, place.cast_signed(), 1]
    );
    Ok(())
}

fn a_lost_main_key_frees_no_second_permit(rig: &mut Rig) -> Verdict {
    let main = rig.gate.main().to_owned();
    fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.number(&["DEL", &main]);
    fence(rig.acquire(&token('B', 1), &TRY))?;
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::GONE);
    ensure_eq!(status_of(&rig.acquire(&token('C', 1), &TRY))?, status::BUSY);
    Ok(())
}

fn lost_records_leave_no_key_without_ttl(rig: &mut Rig) -> Verdict {
    let records = rig.gate.records().to_owned();
    fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.number(&["DEL", &records]);
    ensure_eq!(status_of(&rig.end(&token('A', 1)))?, status::RELEASED);
    for key in rig.keys() {
        ensure!(rig.number(&["PTTL", &key]) != -1);
    }
    Ok(())
}

fn lost_records_make_no_permit_count_twice(rig: &mut Rig) -> Verdict {
    let records = rig.gate.records().to_owned();
    let two = Ask { limit: 2, ..TRY };
    if rig.kind != Kind::Semaphore {
        return Ok(());
    }
    fence(rig.acquire(&token('A', 1), &two))?;
    rig.number(&["DEL", &records]);
    // It asks again, because it was never answered, and holds once.
    fence(rig.acquire(&token('A', 1), &two))?;
    fence(rig.acquire(&token('B', 1), &two))?;
    rig.end(&token('A', 1))?;
    fence(rig.acquire(&token('C', 1), &two))?;
    Ok(())
}

fn side_keys_outlive_the_lease(rig: &mut Rig) -> Verdict {
    if rig.kind == Kind::Semaphore {
        return Ok(());
    }
    let side = match rig.kind {
        Kind::Mutex => rig.shared.clock.to_string(),
        Kind::Exact | Kind::Semaphore => rig.gate.records().to_owned(),
    };
    let main = rig.gate.main().to_owned();
    let long = Ask {
        lease_ms: 100_000,
        ..TRY
    };
    // Something that stays, so that they are kept and not made anew.
    let records = rig.gate.records().to_owned();
    rig.number(&["HSET", &records, "L", "1"]);
    for number in 0..5 {
        let begun = Instant::now();
        fence(rig.acquire(&token('A', number), &long))?;
        // Up to Redis 7.0 each write of a script counts from when it ran itself, and the clock's comes
        // first: so much earlier it may end, and a millisecond for the rounding.
        let ran = i64::try_from(begun.elapsed().as_millis()).unwrap_or(i64::MAX) + 1;
        let side = rig.number(&["PTTL", &side]);
        ensure!(rig.number(&["PTTL", &main]) <= side + ran);
        rig.end(&token('A', number))?;
        // Real time has to pass, for the TTL to wear off by more than that.
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn the_clients_clock_decides_nothing(rig: &mut Rig) -> Verdict {
    fence(rig.acquire(&token('A', 1), &TRY))?;
    for hours in [1, 24] {
        let ahead = Ask {
            latest_in_ms: hours * 3_600_000,
            ..TRY
        };
        let answer = rig.acquire(&token('B', 1), &ahead)?;
        ensure_eq!(
            answer[..3],
            [status::BUSY, rig.us.cast_signed(), rig.us.cast_signed()]
        );
    }
    Ok(())
}

fn a_release_is_told_to_other_clients(rig: &mut Rig) -> Verdict {
    if rig.kind != Kind::Exact {
        return Ok(());
    }
    rig.listen(RELEASED);
    fence(rig.acquire(&token('A', 1), &TRY))?;
    rig.end(&token('B', 1))?;
    ensure!(rig.heard().is_empty());
    rig.end(&token('A', 1))?;
    ensure_eq!(rig.heard(), [(RELEASED.to_owned(), "1".to_owned())]);
    Ok(())
}
