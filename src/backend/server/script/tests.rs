//! The scripts against a server: their headers, the laws they keep, a plain model of one gate, and
//! what happens when they are broken on purpose.
//!
//! All but the clock is as in production: `lib/now.lua` is swapped for one that takes the time as
//! the last argument, so that tests move it at will, also back.

mod headers;
mod laws;
mod model;
mod mutations;
mod previous;
mod property;
mod rates;
mod rig;

#[path = "../../../../tests/support/mod.rs"]
pub(in crate::backend) mod support;
