//! The ways to a server: TLS, with certificates on one side or both, Unix sockets, users, databases
//! and both protocols; and what is told where a way is barred.
//!
//! TLS is only in the system's server, which scripts/install brings.

#[path = "../behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
#[path = "../support/mod.rs"]
mod support;

mod barred;
mod certificates;
mod database;
mod heard;
mod place;
mod protocol;
mod sharing;
mod tls;
mod unix;
