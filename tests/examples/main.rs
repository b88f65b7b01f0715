//! The examples keep what they promise: each runs as a process of its own, in memory or on a
//! server, and is driven from outside.

#[path = "../support/mod.rs"]
mod support;

#[path = "../connections/certificates.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod certificates;
#[path = "../connections/place.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod place;

mod axum_per_route;
mod example;
mod load_scripts;
mod outbound_client;
mod rate_limit;
mod server;
mod websocket;
