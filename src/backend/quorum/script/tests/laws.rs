//! What each server of a quorum keeps to, whoever asks.

use super::rig::KINDS;
use super::rig::{
    BUSY, CANCELLED, ENDED, FILL, FULL, GONE, HELD, LATE, LEASE, MAIN, QUEUED, RELEASE, RELEASED,
    Rig, Scripts, TRY, WAIT, ask, weighing,
};
use crate::backend::server::script::tests::support::Server;
use crate::key::Kind;

type Law = fn(&mut Rig) -> Result<(), String>;

macro_rules! laws {
    ($($law:ident),* $(,)?) => {
        pub(super) const LAWS: &[(&str, Law)] = &[$((stringify!($law), $law)),*];
    };
}

laws!(
    who_holds_keeps_others_out_and_tells_who_it_is,
    asking_again_lengthens_nothing,
    what_comes_too_late_creates_nothing,
    who_has_ended_gets_nothing,
    an_end_without_an_open_ask_leaves_nothing,
    they_are_served_in_the_order_of_their_tickets,
    nobody_younger_overtakes_and_who_is_older_need_not_wait,
    who_holds_elsewhere_needs_no_turn_but_room,
    a_full_queue_takes_nobody,
    a_try_leaves_no_place,
    the_dead_keep_nobody_waiting,
    who_polls_is_alive_and_told_nothing,
    whom_nobody_hears_is_dropped_and_the_next_is_told,
    permits_are_counted_by_weight,
    nobody_ends_what_is_anothers,
    who_gives_way_keeps_its_place,
    a_release_is_told_to_other_clients_and_a_cancellation_is_not,
    a_renewal_lengthens_only_and_creates_nothing,
    fences_rise_and_follow_what_is_proposed,
    fences_rise_above_what_others_agreed_on,
    a_fence_that_is_written_back_is_drawn_anew_if_it_was_passed,
    a_stranger_is_respected,
    a_cancelled_wait_lets_the_next_try,
);

macro_rules! check {
    ($($that:tt)*) => {
        let holds = $($that)*;
        if !holds {
            return Err(format!("not so, line {}: {}", line!(), stringify!($($that)*)));
        }
    };
}

fn who_holds_keeps_others_out_and_tells_who_it_is(rig: &mut Rig) -> Result<(), String> {
    let (a, b) = (ask('a', 10, TRY), ask('b', 5, TRY));
    check!(rig.acquire(&a)?[0] == HELD);
    let busy = rig.acquire(&b)?;
    check!(busy[0] == BUSY);
    check!(busy[5] == 10 && busy[3] == 0);
    check!(busy[2] > 0 && busy[2] <= LEASE as i64);
    Ok(())
}

fn asking_again_lengthens_nothing(rig: &mut Rig) -> Result<(), String> {
    let mut a = ask('a', 10, TRY);
    check!(rig.acquire(&a)?[0] == HELD);
    a.lease = 10 * LEASE;
    for mode in [TRY, WAIT, FILL] {
        a.mode = mode;
        let again = rig.acquire(&a)?;
        check!(again[0] == HELD);
        check!(again[3] > 0 && again[3] <= LEASE as i64);
        check!(rig.left(&a) <= LEASE as i64);
    }
    Ok(())
}

fn what_comes_too_late_creates_nothing(rig: &mut Rig) -> Result<(), String> {
    let mut a = ask('a', 10, WAIT);
    a.latest_in = -1;
    check!(rig.acquire(&a)?[0] == LATE);
    check!(!rig.exists(MAIN) && !rig.is_queued(&a));
    a.latest_in = 0;
    check!(rig.acquire(&a)?[0] == HELD);
    Ok(())
}

fn who_has_ended_gets_nothing(rig: &mut Rig) -> Result<(), String> {
    let a = ask('a', 10, WAIT);
    check!(rig.end(&a, Some(500), false)? == GONE);
    rig.pass(500);
    // What is true no longer is forgotten then, and no more.
    check!(rig.end(&ask('b', 20, TRY), Some(1), false)? == GONE);
    check!(rig.acquire(&a)?[0] == ENDED);
    check!(!rig.exists(MAIN) && !rig.is_queued(&a));
    Ok(())
}

fn an_end_without_an_open_ask_leaves_nothing(rig: &mut Rig) -> Result<(), String> {
    let a = ask('a', 10, TRY);
    check!(rig.acquire(&a)?[0] == HELD);
    check!(rig.end(&a, None, false)? == RELEASE);
    check!(!rig.exists(MAIN));
    check!(!rig.exists(super::rig::ROSTER));
    Ok(())
}

fn they_are_served_in_the_order_of_their_tickets(rig: &mut Rig) -> Result<(), String> {
    let (holder, b, a) = (ask('h', 1, TRY), ask('b', 20, WAIT), ask('a', 10, WAIT));
    rig.listen('a');
    rig.listen('b');
    check!(rig.acquire(&holder)?[0] == HELD);
    check!(rig.acquire(&b)?[0] == QUEUED);
    let queued = rig.acquire(&a)?;
    check!(queued[0] == QUEUED && queued[4] == 0);
    check!(rig.acquire(&b)?[4] == 1);
    check!(rig.end(&holder, None, false)? == RELEASE);
    check!(rig.heard().as_ref() == Some(&a.name));
    check!(rig.heard().is_none());
    let still = rig.acquire(&b)?;
    check!(still[0] == QUEUED && still[5] == 10);
    check!(rig.acquire(&a)?[0] == HELD);
    check!(!rig.is_queued(&a) && rig.is_queued(&b));
    Ok(())
}

fn nobody_younger_overtakes_and_who_is_older_need_not_wait(rig: &mut Rig) -> Result<(), String> {
    let (holder, b) = (ask('h', 1, TRY), ask('b', 20, WAIT));
    rig.listen('b');
    check!(rig.acquire(&holder)?[0] == HELD);
    check!(rig.acquire(&b)?[0] == QUEUED);
    check!(rig.end(&holder, None, false)? == RELEASE);
    let busy = rig.acquire(&ask('c', 30, TRY))?;
    check!(busy[0] == BUSY && busy[5] == 20);
    check!(rig.acquire(&ask('a', 10, TRY))?[0] == HELD);
    Ok(())
}

fn who_holds_elsewhere_needs_no_turn_but_room(rig: &mut Rig) -> Result<(), String> {
    let (holder, b) = (ask('h', 1, TRY), ask('b', 10, WAIT));
    rig.listen('b');
    check!(rig.acquire(&holder)?[0] == HELD);
    check!(rig.acquire(&b)?[0] == QUEUED);
    let mut c = ask('c', 30, FILL);
    c.fence = 77;
    check!(rig.acquire(&c)?[0] == BUSY);
    check!(!rig.is_queued(&c));
    check!(rig.end(&holder, None, false)? == RELEASE);
    let held = rig.acquire(&c)?;
    check!(held[0] == HELD && held[2] == 77);
    check!(rig.acquire(&c)?[2] == 77);
    Ok(())
}

fn a_full_queue_takes_nobody(rig: &mut Rig) -> Result<(), String> {
    check!(rig.acquire(&ask('h', 1, TRY))?[0] == HELD);
    check!(rig.acquire(&ask('a', 10, WAIT))?[0] == QUEUED);
    let mut b = ask('b', 20, WAIT);
    b.max_waiters = 1;
    let full = rig.acquire(&b)?;
    check!(full[0] == FULL && full[4] == 1);
    check!(!rig.is_queued(&b));
    Ok(())
}

fn a_try_leaves_no_place(rig: &mut Rig) -> Result<(), String> {
    check!(rig.acquire(&ask('h', 1, TRY))?[0] == HELD);
    let mut a = ask('a', 10, TRY);
    check!(rig.acquire(&a)?[0] == BUSY);
    check!(!rig.is_queued(&a));
    a.mode = WAIT;
    check!(rig.acquire(&a)?[0] == QUEUED);
    a.mode = FILL;
    check!(rig.acquire(&a)?[0] == BUSY);
    check!(!rig.is_queued(&a));
    Ok(())
}

fn the_dead_keep_nobody_waiting(rig: &mut Rig) -> Result<(), String> {
    let (holder, a, b) = (ask('h', 1, TRY), ask('a', 10, WAIT), ask('b', 20, WAIT));
    rig.listen('a');
    rig.listen('b');
    check!(rig.acquire(&holder)?[0] == HELD);
    check!(rig.acquire(&a)?[0] == QUEUED);
    rig.pass(3_001);
    check!(rig.acquire(&b)?[0] == QUEUED);
    check!(rig.end(&holder, None, false)? == RELEASE);
    check!(rig.heard().as_ref() == Some(&b.name));
    check!(!rig.is_queued(&a));
    check!(rig.acquire(&b)?[0] == HELD);
    // Who asks again lives on.
    check!(rig.acquire(&a)?[0] == QUEUED);
    rig.pass(2_000);
    check!(rig.acquire(&a)?[0] == QUEUED);
    rig.pass(2_000);
    check!(rig.end(&b, None, false)? == RELEASE);
    check!(rig.acquire(&ask('c', 30, TRY))?[0] == BUSY);
    Ok(())
}

fn who_polls_is_alive_and_told_nothing(rig: &mut Rig) -> Result<(), String> {
    let (holder, mut a) = (ask('h', 1, TRY), ask('a', 10, WAIT));
    a.pushed = false;
    check!(rig.acquire(&holder)?[0] == HELD);
    check!(rig.acquire(&a)?[0] == QUEUED);
    check!(rig.end(&holder, None, false)? == RELEASE);
    check!(rig.is_queued(&a));
    check!(rig.acquire(&ask('c', 30, TRY))?[0] == BUSY);
    check!(rig.acquire(&a)?[0] == HELD);
    Ok(())
}

fn whom_nobody_hears_is_dropped_and_the_next_is_told(rig: &mut Rig) -> Result<(), String> {
    let (holder, a, b) = (ask('h', 1, TRY), ask('a', 10, WAIT), ask('b', 20, WAIT));
    rig.listen('b');
    check!(rig.acquire(&holder)?[0] == HELD);
    check!(rig.acquire(&a)?[0] == QUEUED);
    check!(rig.acquire(&b)?[0] == QUEUED);
    check!(rig.end(&holder, None, false)? == RELEASE);
    check!(rig.heard().as_ref() == Some(&b.name));
    check!(!rig.is_queued(&a));
    Ok(())
}

fn permits_are_counted_by_weight(rig: &mut Rig) -> Result<(), String> {
    if rig.kind != Kind::Semaphore {
        return Ok(());
    }
    let of_three = |letter, ticket, mode, weight| {
        let mut ask = weighing(letter, ticket, mode, weight);
        ask.limit = 3;
        ask
    };
    let (a, b) = (of_three('a', 10, TRY, 2), of_three('b', 20, TRY, 2));
    check!(rig.acquire(&a)?[0] == HELD);
    check!(rig.acquire(&b)?[0] == BUSY);
    rig.listen('c');
    rig.listen('d');
    let (c, d) = (of_three('c', 30, WAIT, 2), of_three('d', 40, WAIT, 1));
    check!(rig.acquire(&c)?[0] == QUEUED);
    check!(rig.acquire(&d)?[0] == QUEUED);
    let e = of_three('e', 5, TRY, 1);
    check!(rig.acquire(&e)?[0] == HELD);
    check!(rig.heard().is_none());
    check!(rig.end(&a, None, false)? == RELEASE);
    check!(rig.heard().as_ref() == Some(&c.name));
    // What is left is the next one's to try.
    check!(rig.end(&e, None, false)? == RELEASE);
    check!(rig.heard().as_ref() == Some(&c.name));
    check!(rig.acquire(&c)?[0] == HELD);
    check!(rig.heard().as_ref() == Some(&d.name));
    check!(rig.acquire(&d)?[0] == HELD);
    // A lease that has run out is worth nothing, whoever looks.
    rig.pass(LEASE);
    check!(rig.end(&c, None, false)? == GONE);
    check!(rig.acquire(&of_three('f', 50, TRY, 3))?[0] == HELD);
    Ok(())
}

fn nobody_ends_what_is_anothers(rig: &mut Rig) -> Result<(), String> {
    let (a, b) = (ask('a', 10, TRY), ask('b', 20, WAIT));
    check!(rig.acquire(&a)?[0] == HELD);
    check!(rig.end(&b, None, false)? == GONE);
    check!(rig.end(&b, None, true)? == GONE);
    check!(!rig.is_queued(&b));
    check!(rig.acquire(&a)?[0] == HELD && rig.left(&a) > 0);
    check!(rig.acquire(&b)?[0] == QUEUED);
    check!(rig.end(&b, None, false)? == CANCELLED);
    check!(!rig.is_queued(&b));
    Ok(())
}

fn who_gives_way_keeps_its_place(rig: &mut Rig) -> Result<(), String> {
    let (a, b) = (ask('a', 10, WAIT), ask('b', 20, WAIT));
    rig.listen('a');
    rig.listen('b');
    check!(rig.acquire(&b)?[0] == HELD);
    check!(rig.acquire(&a)?[0] == QUEUED);
    check!(rig.end(&b, None, true)? == RELEASE);
    check!(rig.heard().as_ref() == Some(&a.name));
    check!(rig.is_queued(&b));
    check!(rig.acquire(&a)?[0] == HELD);
    check!(rig.end(&a, None, false)? == RELEASE);
    check!(rig.heard().as_ref() == Some(&b.name));
    // It does not tell itself: it has just given way.
    check!(rig.acquire(&b)?[0] == HELD);
    check!(rig.end(&b, None, true)? == RELEASE);
    check!(rig.heard().is_none());
    Ok(())
}

fn a_release_is_told_to_other_clients_and_a_cancellation_is_not(
    rig: &mut Rig,
) -> Result<(), String> {
    let (a, b) = (ask('a', 10, TRY), ask('b', 20, WAIT));
    rig.subscribe(RELEASED.to_owned());
    check!(rig.acquire(&a)?[0] == HELD);
    check!(rig.acquire(&b)?[0] == QUEUED);
    check!(rig.end(&b, None, false)? == CANCELLED);
    check!(rig.heard().is_none());
    check!(rig.end(&a, None, false)? == RELEASE);
    check!(rig.heard().as_deref() == Some("1"));
    Ok(())
}

fn a_renewal_lengthens_only_and_creates_nothing(rig: &mut Rig) -> Result<(), String> {
    let (a, b) = (ask('a', 10, TRY), ask('b', 20, TRY));
    check!(rig.renew(&a, LEASE, 1, true)?[0] == GONE);
    check!(!rig.exists(MAIN));
    check!(rig.acquire(&a)?[0] == HELD);
    check!(rig.renew(&b, LEASE, 1, true)?[0] == GONE);
    let longer = rig.renew(&a, 2 * LEASE, 1, true)?;
    check!(longer[0] == HELD && longer[2] >= 2 * LEASE as i64);
    check!(rig.left(&a) > LEASE as i64);
    check!(rig.renew(&a, LEASE / 2, 1, true)?[0] == HELD);
    check!(rig.left(&a) > LEASE as i64);
    Ok(())
}

fn fences_rise_and_follow_what_is_proposed(rig: &mut Rig) -> Result<(), String> {
    let mut last = 0;
    for (turn, least) in [
        (1, 1),
        (2, 1),
        (3, 1_000),
        (4, 7),
        (5, 1_800_000_000_000_000),
    ] {
        let mut a = ask('a', turn, TRY);
        a.fence = least;
        let held = rig.acquire(&a)?;
        check!(held[0] == HELD);
        check!(held[2] > last && held[2] >= least as i64);
        check!(held[2] <= (last + 1).max(least as i64));
        last = held[2];
        // Whatever was told before, the next one is greater.
        let again = rig.acquire(&a)?[2];
        check!(again > last);
        last = again;
        check!(rig.end(&a, None, false)? == RELEASE);
    }
    Ok(())
}

fn fences_rise_above_what_others_agreed_on(rig: &mut Rig) -> Result<(), String> {
    let mut a = ask('a', 10, FILL);
    a.fence = 3_000;
    check!(rig.acquire(&a)?[2] == 3_000);
    check!(rig.end(&a, None, false)? == RELEASE);
    check!(rig.acquire(&ask('b', 15, TRY))?[2] > 3_000);
    check!(rig.end(&ask('b', 15, TRY), None, false)? == RELEASE);
    a.fence = 5_000;
    check!(rig.acquire(&a)?[2] == 5_000);
    // Asked again with another, as after an answer that was lost.
    a.fence = 6_000;
    check!(rig.acquire(&a)?[2] == 6_000);
    check!(rig.renew(&a, LEASE, 1, false)?[3] == 6_001);
    check!(rig.renew(&a, LEASE, 7_000, true)?[3] == 7_000);
    check!(rig.renew(&a, LEASE, 4_000, true)?[3] == 4_000);
    check!(rig.end(&a, None, false)? == RELEASE);
    // One that is behind what was drawn here is the agreed one all the same.
    a.fence = 2_000;
    check!(rig.acquire(&a)?[2] == 2_000);
    check!(rig.end(&a, None, false)? == RELEASE);
    check!(rig.acquire(&ask('b', 20, TRY))?[2] > 7_000);
    Ok(())
}

fn a_fence_that_is_written_back_is_drawn_anew_if_it_was_passed(
    rig: &mut Rig,
) -> Result<(), String> {
    let a = ask('a', 10, TRY);
    check!(rig.acquire(&a)?[0] == HELD);
    check!(rig.renew(&a, LEASE, 500, false)?[3] == 500);
    check!(rig.renew(&a, LEASE, 500, false)?[3] == 501);
    check!(rig.renew(&a, LEASE, 400, false)?[3] == 502);
    Ok(())
}

fn a_stranger_is_respected(rig: &mut Rig) -> Result<(), String> {
    if rig.kind != Kind::Mutex {
        return Ok(());
    }
    rig.command::<()>(&["SET", MAIN, "stranger", "PX", "5000"]);
    let a = ask('a', 10, WAIT);
    let queued = rig.acquire(&a)?;
    check!(queued[0] == QUEUED && queued[3] == 1 && queued[5] == -1);
    check!(queued[2] > 0 && queued[2] <= 5_000);
    check!(rig.end(&a, None, false)? == CANCELLED);
    check!(rig.renew(&a, LEASE, 1, true)?[0] == GONE);
    let value: String = rig.command(&["GET", MAIN]);
    check!(value == "stranger");
    Ok(())
}

fn a_cancelled_wait_lets_the_next_try(rig: &mut Rig) -> Result<(), String> {
    let (holder, a, b) = (ask('h', 1, TRY), ask('a', 10, WAIT), ask('b', 20, WAIT));
    rig.listen('a');
    rig.listen('b');
    check!(rig.acquire(&holder)?[0] == HELD);
    check!(rig.acquire(&a)?[0] == QUEUED);
    check!(rig.acquire(&b)?[0] == QUEUED);
    // While it is held, nobody has anything to try.
    check!(rig.end(&ask('c', 30, TRY), None, false)? == GONE);
    check!(rig.heard().is_none());
    check!(rig.end(&holder, None, false)? == RELEASE);
    check!(rig.heard().as_ref() == Some(&a.name));
    check!(rig.end(&a, None, false)? == CANCELLED);
    check!(rig.heard().as_ref() == Some(&b.name));
    Ok(())
}

#[test]
fn the_scripts_keep_the_laws() {
    let server = Server::start();
    for kind in KINDS {
        for (law, uphold) in LAWS {
            let mut rig = Rig::new(&server, kind);
            rig.reset(&Scripts::sound());
            if let Err(problem) = uphold(&mut rig) {
                panic!("{kind:?}: {law}: {problem}");
            }
        }
    }
}
