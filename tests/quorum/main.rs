//! What is only true of a quorum: a minority of its servers may fail in any way, a majority may not,
//! and what is no quorum is refused. What holds everywhere stands in `tests/behavior`.

#[path = "../behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
#[path = "../http/fixture.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod fixture;
#[path = "../behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
#[path = "../support/mod.rs"]
mod support;

mod building;
mod checks;
mod clocks;
mod fences;
mod interop;
mod layers;
mod load;
mod majority;
mod minority;
mod permits;
mod releases;
mod restarts;
mod sentinels;
mod servers;
mod waiters;
