//! Layers in front of HTTP services and others, over a real server: contract, holding, refusals,
//! loss.

#[path = "../support/mod.rs"]
mod support;

mod contract;
mod fixture;
mod held;
mod holding;
mod keys;
mod lost;
mod outage;
mod plain;
mod positions;
mod rate_limit;
mod recovery;
mod refusals;
mod settings;
mod tcp;
