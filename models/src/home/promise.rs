//! What must hold in every state, or be reached in some.

use stateright::Property;

use super::Fleet;
use super::state::{Body, Mode, Slot, State, Token, Violation, owner};
use super::world::{LEASE, PROCESSES};

/// After how many ticks of rest nothing is left: what lingers, or the leases of who crashed.
const REST: u8 = LEASE + 2;

/// No more are inside than there are permits, over all processes.
pub const EXCLUSION: &str = "exclusion";
/// Who believes to hold is known to the server, until the same time.
pub const HOLDERS_ARE_KNOWN: &str = "who holds is known as a holder";
/// After a loss of data the excess ends with the next question.
pub const EXCESS_ENDS: &str = "the excess ends with the next question";
/// A process that waits is served soon, whatever others do.
pub const NO_STARVATION: &str = "no process starves";
/// Passes overtake who waits so often and no more.
pub const OVERTAKING: &str = "overtaking is bounded";
/// No permit is idle while others wait.
pub const PROMPT: &str = "nothing is idle while others wait";
/// No permit is used once its `end` was sent.
pub const END_IS_FINAL: &str = "no use after end";
/// Who was let in keeps its lease for as long as it is used.
pub const LEASES_LAST: &str = "a lease outlives its use";
/// What may be lost is not handed on.
pub const CHECKED: &str = "nothing is handed on that may be lost";
/// What is over stands neither in the queue nor among the holders.
pub const NO_ORPHANS: &str = "no orphans";
/// When nobody wants anything any more, nothing is left.
pub const NOTHING_LEFT: &str = "nothing is left";
/// Somewhere a recall makes a process give back: the world is not empty.
pub const RECALLS: &str = "a recall is followed";

pub(super) fn all() -> Vec<Property<Fleet>> {
    vec![
        Property::always(EXCLUSION, |model: &Fleet, state: &State| {
            state.ghost.flushed || state.inside() <= model.world.capacity.into()
        }),
        Property::always(HOLDERS_ARE_KNOWN, holders_are_known),
        Property::always(EXCESS_ENDS, |model: &Fleet, state: &State| {
            state.ghost.excess <= model.world.excess
        }),
        Property::always(NO_STARVATION, |model: &Fleet, state: &State| {
            let mut hungry = state.ghost.hungry.iter();
            hungry.all(|ticks| *ticks <= model.world.patience)
        }),
        Property::always(OVERTAKING, |model: &Fleet, state: &State| {
            let mut overtaken = state.ghost.overtaken.iter();
            overtaken.all(|passes| *passes <= model.world.overtaking())
        }),
        Property::always(PROMPT, |model: &Fleet, state: &State| {
            let mut kept = state.ghost.kept.iter();
            kept.all(|ticks| *ticks <= model.world.promptness)
        }),
        Property::always(END_IS_FINAL, |_, state| {
            has_not(state, Violation::UsedAfterEnd)
        }),
        Property::always(LEASES_LAST, |_, state| has_not(state, Violation::Expired)),
        Property::always(CHECKED, |_, state| has_not(state, Violation::Unchecked)),
        Property::always(NO_ORPHANS, no_orphans),
        Property::always(NOTHING_LEFT, |_, state: &State| state.ghost.rest <= REST),
        Property::sometimes(RECALLS, |_, state: &State| state.ghost.recalled),
    ]
}

const fn has_not(state: &State, violation: Violation) -> bool {
    state.ghost.violations & violation as u8 == 0
}

fn holders_are_known(_: &Fleet, state: &State) -> bool {
    state.ghost.flushed
        || (0..state.server.holders.len() as Token).all(|token| {
            state.homes[owner(token)].mode == Mode::Crashed
                || match state.slot(token) {
                    Slot::Idle { left, .. } | Slot::Used { left, .. } => {
                        left == 0 || left == state.server.holders[token as usize]
                    }
                    Slot::Free | Slot::Seeking(_) | Slot::Ending(_) => true,
                }
        })
}

fn no_orphans(_: &Fleet, state: &State) -> bool {
    // A tombstone is lost with the data, and so is what a grant was for: there the lease ends it.
    state.ghost.flushed
        || (0..state.server.holders.len() as Token).all(|token| {
            let known = state.holds(token) || state.waits(token);
            !known
                || state.homes[owner(token)].mode == Mode::Crashed
                || state.slot(token) != Slot::Free
        })
}

fn is_empty(state: &State) -> bool {
    let mut holders = state.server.holders.iter();
    let mut homes = state.homes.iter().filter(|home| home.mode == Mode::Running);
    // Places of the dead are dropped by whoever comes to them.
    let dead = |token: &Token| state.homes[owner(*token)].mode == Mode::Crashed;
    state.server.queue.iter().all(dead)
        && holders.all(|left| *left == 0)
        && homes.all(|home| home.slots.iter().all(|slot| *slot == Slot::Free))
}

/// Whether a permit is idle though a place of another process is in the queue.
fn keeps(state: &State, process: usize) -> bool {
    let up = |process: usize| state.homes[process].mode == Mode::Running;
    let slots = &state.homes[process].slots;
    let mut places = state.server.queue.iter().map(|place| owner(*place));
    up(process)
        && slots.iter().any(|slot| matches!(slot, Slot::Idle { .. }))
        && places.any(|other| other != process && up(other))
}

/// Ends what is counted for as long as it lasts.
pub(super) fn reset(state: &mut State) {
    for process in 0..PROCESSES {
        if !keeps(state, process) {
            state.ghost.kept[process] = 0;
        }
    }
}

/// Judges how things are when a tick has come.
pub(super) fn count(model: &Fleet, state: &mut State) {
    let world = &model.world;
    let mut ghost = state.ghost;
    for (process, home) in state.homes.iter().enumerate() {
        if home.waiting == 0 || home.mode != Mode::Running {
            ghost.hungry[process] = 0;
            ghost.overtaken[process] = 0;
        } else {
            ghost.hungry[process] = (ghost.hungry[process] + 1).min(world.patience + 1);
        }
    }
    for process in 0..PROCESSES {
        if keeps(state, process) {
            ghost.kept[process] = (ghost.kept[process] + 1).min(world.promptness + 1);
        }
    }
    ghost.excess = if state.inside() > world.capacity.into() {
        (ghost.excess + 1).min(world.excess + 1)
    } else {
        0
    };
    let wanted = state.homes.iter().any(|home| {
        home.mode != Mode::Crashed
            && (home.waiting > 0
                || home.mode == Mode::Paused
                || home
                    .slots
                    .iter()
                    .any(|slot| matches!(slot, Slot::Used { .. })))
    });
    let comes = state.is_under_way(|body| matches!(body, Body::Acquire(..)));
    ghost.rest = if wanted || comes || is_empty(state) {
        0
    } else {
        (ghost.rest + 1).min(REST + 1)
    };
    state.ghost = ghost;
}
