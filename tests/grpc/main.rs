//! Gates in front of gRPC services and clients, over TCP: what tonic's clients see of refusals,
//! how long streams hold, and where the layers can stand.

#[path = "../support/wait.rs"]
mod wait;

#[path = "../examples/example.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod process;

mod deadlines;
mod example;
mod fixture;
mod lost;
mod outgoing;
mod positions;
mod refusals;
mod streams;
