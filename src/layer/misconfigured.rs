//! What is wrong with how a layer is set up, said once for each cause.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::rejection::Rejection;

/// So many causes are logged. A set-up has fewer; a text that a request has a part in could fill
/// the log and the memory.
const MOST: usize = 16;

/// The causes that a layer has logged.
#[derive(Default)]
pub(super) struct Misconfigured(Mutex<HashSet<String>>);

impl Misconfigured {
    /// Logs why a request was refused, unless another was for the same cause.
    pub(super) fn log(&self, rejection: &Rejection) {
        let cause = rejection.to_string();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = logged.len() < MOST && logged.insert(cause);
        drop(logged);
        if is_first {
            tracing::error!(%rejection, "a gate is set up wrongly");
        }
    }
}
