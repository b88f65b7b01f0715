//! What must hold in every state, or be reached in some.

use stateright::Property;

use crate::handoff::Handoff;
use crate::message::Body;
use crate::state::{Link, Mode, Phase, State, Violation};

/// No more permits are believed held than there are.
pub const EXCLUSION: &str = "exclusion";
/// Each grant has a higher fencing token than all before.
pub const FENCES_RISE: &str = "fences rise";
/// A living waiter is granted soon after the key is free.
pub const NO_STARVATION: &str = "no living waiter starves";
/// The server learns again of a waiter that it forgot.
pub const NOBODY_FORGOTTEN: &str = "no living waiter is forgotten";
/// What is over stands neither in the queue nor among the holders.
pub const NO_ORPHANS: &str = "no orphans";
/// Nobody overtakes a waiter who lives, hears and fits.
pub const FIFO: &str = "first in, first out among the living";
/// A hung process costs one claim lease.
pub const HANGS_ONCE: &str = "a hung process costs one claim";
/// A guard that is over stays over.
pub const LOSS_IS_FINAL: &str = "loss is final";
/// A guard is not given up while its lease stands.
pub const NO_FALSE_LOSS: &str = "no lease is lost that stands";
/// No script brings an expiry nearer.
pub const NO_SHORTENING: &str = "no expiry is shortened";
/// A script that frees or asks leaves no waiter at the head that fits.
pub const NO_LOST_WAKE_UP: &str = "no wake-up is lost";
/// Who does not wait is refused only for a reason.
pub const NO_FALSE_REFUSAL: &str = "no false refusal";
/// A process that was told to wait does not believe a grant from before.
pub const NO_STALE_GRANT: &str = "no grant is believed after its time";
/// Somewhere a push hands the key over: the world is not empty.
pub const HANDS_OVER: &str = "a grant is pushed";

pub(crate) fn all() -> Vec<Property<Handoff>> {
    vec![
        Property::always(EXCLUSION, exclusion),
        Property::always(FENCES_RISE, |_, state: &State| {
            !state.ghost.has(Violation::FenceNotRising)
        }),
        Property::always(NO_STARVATION, |model: &Handoff, state: &State| {
            state.ghost.starved <= model.config.patience()
        }),
        Property::always(NOBODY_FORGOTTEN, |model: &Handoff, state: &State| {
            state.ghost.forgotten <= model.config.memory()
        }),
        Property::always(NO_ORPHANS, no_orphans),
        Property::always(FIFO, |_, state: &State| {
            !state.ghost.has(Violation::Overtaken)
        }),
        Property::always(HANGS_ONCE, |_, state: &State| {
            !state.ghost.has(Violation::HungTwice)
        }),
        Property::always(LOSS_IS_FINAL, |_, state: &State| {
            !state.ghost.has(Violation::Revived)
        }),
        Property::always(NO_FALSE_LOSS, |_, state: &State| {
            !state.ghost.has(Violation::FalselyLost)
        }),
        Property::always(NO_SHORTENING, |_, state: &State| {
            !state.ghost.has(Violation::Shortened)
        }),
        Property::always(NO_LOST_WAKE_UP, |_, state: &State| {
            !state.ghost.has(Violation::WakeUpLost)
        }),
        Property::always(NO_FALSE_REFUSAL, |_, state: &State| {
            !state.ghost.has(Violation::FalselyRefused)
        }),
        Property::always(NO_STALE_GRANT, |_, state: &State| {
            !state.ghost.has(Violation::StaleGrant)
        }),
        Property::sometimes(HANDS_OVER, |_, state: &State| {
            let mut bodies = state.network.iter().map(|message| message.body);
            bodies.any(|body| matches!(body, Body::Push { .. }))
        }),
    ]
}

fn exclusion(model: &Handoff, state: &State) -> bool {
    !model.config.leases_stand() || believed(model, state) <= model.config.capacity
}

/// The permits that guards, and a plain client, believe to hold.
fn believed(model: &Handoff, state: &State) -> u8 {
    let foreign = state.server.foreign.map_or(0, |_| model.config.capacity);
    let guards = model.config.plans.iter().enumerate();
    let guards = guards.filter(|(token, _)| state.is_held(&model.config, *token));
    foreign + guards.map(|(_, plan)| plan.weight).sum::<u8>()
}

fn no_orphans(model: &Handoff, state: &State) -> bool {
    // A tombstone is data too: after a loss of data only the lease bounds an orphan.
    model.config.faults.flush > 0
        || (0..model.config.plans.len()).all(|token| {
            state.tokens[token].phase != Phase::Done
                || (state.server.queue[token] == 0 && state.server.holders[token].is_none())
        })
}

/// Counts the ticks in which a living waiter could have been granted, or is unknown to the server.
pub(crate) fn count_waiting(model: &Handoff, state: &mut State) {
    let plans = || model.config.plans.iter().enumerate();
    let willing = plans().filter(|(token, plan)| {
        let process = &state.processes[plan.process];
        process.mode == Mode::Running
            && matches!(process.link, Link::Up | Link::Deaf)
            && matches!(
                state.tokens[*token].phase,
                Phase::Waiting | Phase::Confirming
            )
    });
    let widest = willing.map(|(_, plan)| plan.weight).max();
    let could =
        widest.is_some_and(|weight| believed(model, state) + weight <= model.config.capacity);
    let forgotten = plans().any(|(token, _)| {
        model.is_settled_waiter(state, token)
            && state.server.queue[token] == 0
            && state.server.holders[token].is_none()
    });
    let ghost = &mut state.ghost;
    ghost.starved = if could {
        (ghost.starved + 1).min(model.config.patience() + 1)
    } else {
        0
    };
    ghost.forgotten = if forgotten {
        (ghost.forgotten + 1).min(model.config.memory() + 1)
    } else {
        0
    };
}
