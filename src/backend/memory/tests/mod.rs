//! The memory against a model that is too plain to be wrong, and under many threads at once.

#[cfg(feature = "test-util")]
mod against_a_model;
#[cfg(feature = "test-util")]
mod besides;
mod many_threads;
#[cfg(feature = "test-util")]
mod model;
#[cfg(feature = "test-util")]
mod what_leases_tell;
