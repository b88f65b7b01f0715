//! The hand-off protocol as a model: one key, its server, two or three processes and their faults.
//!
//! Two more models stand beside it: votes of a quorum, and permits that processes keep at home.
//!
//! `README.md` says what is modeled, which worlds are exhausted and which rule each mutation
//! breaks.

pub mod config;
pub mod handoff;
pub mod home;
pub mod message;
pub mod mutation;
mod process;
pub mod properties;
pub mod quorum;
mod server;
pub mod state;
pub mod worlds;
