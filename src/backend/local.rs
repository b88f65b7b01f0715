//! Gates of this process alone, for requests that are let through while the server is away.

use std::sync::{Arc, OnceLock};

use super::Backend;
use super::memory::{Memory, MemoryBackend};
use crate::time::Clock;

/// Made when it is first needed: most handles never are without their server. One for all gates of
/// a handle, so that two routes through one gate count together.
#[derive(Debug, Default)]
pub(super) struct Local(OnceLock<Arc<dyn Backend>>);

impl Local {
    /// By the clock of the gates that it stands in for.
    pub(super) fn get(&self, clock: &Clock) -> &Arc<dyn Backend> {
        self.0
            .get_or_init(|| MemoryBackend::start(&Memory::new(clock.clone())))
    }
}
