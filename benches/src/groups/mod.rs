//! What is compared.

mod cluster;
mod handoff;
mod home;
mod layer_overhead;
mod memory_backend;
mod outage;
mod quorum;
mod rate_limit;
mod renewal;
mod scale;
mod semaphore;
mod uncontended;

use super::child::Role;
use super::report::Report;

/// One comparison, as it is asked for on the command line.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&mut Report),
}

pub(crate) const GROUPS: [Group; 12] = [
    uncontended::GROUP,
    handoff::GROUP,
    semaphore::GROUP,
    home::GROUP,
    rate_limit::GROUP,
    renewal::GROUP,
    layer_overhead::GROUP,
    memory_backend::GROUP,
    outage::GROUP,
    cluster::GROUP,
    quorum::GROUP,
    scale::GROUP,
];

pub(crate) const ROLES: [Role; 6] = [
    handoff::ROLE,
    semaphore::ROLE,
    home::ROLE,
    layer_overhead::ROLE,
    quorum::ROLE,
    scale::ROLE,
];

/// A runtime as a service has it, on the two cores that such machines have.
fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}
