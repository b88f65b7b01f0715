//! The scripts of a vote against a server: the laws that they keep, and what happens when they are
//! broken on purpose.
//!
//! All but the clock is as in production: `lib/now.lua` is swapped for one that takes the time as
//! the last argument.

mod laws;
mod mutations;
mod rig;
