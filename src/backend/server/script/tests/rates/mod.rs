//! The script for rates and its model, side by side: any calls at any times, with clocks that are
//! set back, quotas that change, turns that are given back and keys that lose their TTL.

mod bounds;
mod mutations;
mod property;
mod rig;
