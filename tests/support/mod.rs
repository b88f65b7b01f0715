//! What tests share: an own server, a faulty network in front of it, a history of what happened and
//! its judges.
//!
//! Use it by `mod support;` from `tests/*.rs`, and by one `#[path]` from inside the crate.
//!
//! tokio's paused clock does not move Redis's clock: a lease ends when the server's wall clock says
//! so. Tests that let one end wait for it, by [`wait_for`] and never by a hopeful sleep;
//! [`wait_for`] itself measures by the real clock.

#![allow(dead_code, reason = "each test binary uses its own part")]

mod alone;
mod clock;
mod cluster;
mod frames;
pub(crate) mod history;
mod poll;
mod process;
mod proxy;
pub(crate) mod sentinel;
mod server;
mod user;
mod wait;

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use self::{
    alone::{alone, in_use, is_slow, resident},
    clock::FakeClock,
    cluster::Cluster,
    history::{History, Hold, Wait},
    poll::{poll_k_times, poll_k_times_and_wake},
    process::{Other, my_role, say, signal},
    proxy::{Flow, Mode, Proxy},
    server::{FREE_PORT, Server},
    user::recommended,
    wait::wait_for,
};
