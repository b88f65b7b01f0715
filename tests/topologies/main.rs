//! Gates on more than one server: a master that sentinels watch over, a cluster.
//!
//! Each test starts servers of its own, and takes seconds: they are ignored unless
//! `scripts/test --topologies` asks for them.

#[path = "../connections/certificates.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod certificates;
#[path = "../behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
#[path = "../behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
#[path = "../connections/place.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod place;
#[path = "../support/mod.rs"]
mod support;

mod cluster;
mod preloading;
mod sentinel;
mod shown;
mod turns;
