//! Who asks for looks, and who shares one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::backend::CheckAnswer;
use crate::check::Report;
use crate::error::BackendError;

/// A look that somebody asked for.
#[derive(Debug)]
pub(in crate::backend) struct Look {
    /// Keys that gates may be taken at verbatim.
    pub(in crate::backend) exact: Vec<String>,
    pub(in crate::backend) answer: CheckAnswer,
}

/// Who looks at all that a handle relies on.
pub(in crate::backend) trait Looker: Clone + Send + 'static {
    fn look(self, exact: Vec<String>) -> impl Future<Output = Result<Report, BackendError>> + Send;
}

/// Has looks taken until the handle is gone and the last look has ended.
///
/// Looks at one thing follow each other, and all who ask meanwhile share the next: as many at once
/// as ask, as a probe of readiness may, would be a load and find the server slow.
pub(in crate::backend) async fn attend(looker: impl Looker, mut looks: UnboundedReceiver<Look>) {
    let mut under_way = JoinSet::new();
    // Who waits for the next look, for each that is under way.
    let mut next: HashMap<Vec<String>, Vec<CheckAnswer>> = HashMap::new();
    let mut is_open = true;
    // What is under way still has something to give back. Each of its steps has a deadline.
    while is_open || !under_way.is_empty() {
        tokio::select! {
            look = looks.recv(), if is_open => match look {
                None => is_open = false,
                Some(Look { exact, answer }) => match next.entry(exact) {
                    Entry::Occupied(mut next) => next.get_mut().push(answer),
                    Entry::Vacant(next) => {
                        let exact = next.key().clone();
                        next.insert(Vec::new());
                        under_way.spawn(look_for(looker.clone(), exact, vec![answer]));
                    }
                },
            },
            Some(ended) = under_way.join_next() => {
                // It can't fail: what may panic runs in a task of its own.
                let Ok(exact) = ended else { continue };
                let mut answers = next.remove(&exact).unwrap_or_default();
                answers.retain(|answer| !answer.is_closed());
                if !answers.is_empty() {
                    next.insert(exact.clone(), Vec::new());
                    under_way.spawn(look_for(looker.clone(), exact, answers));
                }
            }
        }
    }
}

/// One look for all who have asked for it; gives what was looked at.
async fn look_for(
    looker: impl Looker,
    exact: Vec<String>,
    answers: Vec<CheckAnswer>,
) -> Vec<String> {
    let look = tokio::spawn(looker.look(exact.clone()));
    let found = look
        .await
        .unwrap_or_else(|_| Err(BackendError::background_ended()));
    for answer in answers {
        // Who does not wait for it any more needs no answer.
        let _ = answer.send(found.clone());
    }
    exact
}
