//! Attends to one home on the background thread: so recalls are answered and idle permits given back
//! though the runtime of their users is blocked.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Home;
use super::rooms::Start;
use crate::backend::Acquire;
use crate::backend::server::core::Command;
use crate::error::LockError;
use crate::lease::Lease;
use crate::time::Instant;

/// What came of an acquire that was started for who waits here.
struct Found {
    tries: Option<u64>,
    started: Instant,
    /// How much of it has to be left for another use: half of what a grant is worth at first.
    least: Duration,
    result: Result<Lease, LockError>,
}

/// Until nothing is kept, and nobody waits.
pub(super) async fn attend(home: Arc<Home>) {
    let mut seekers = JoinSet::new();
    loop {
        let now = Instant::now();
        let (turn, effects) = home.rooms().turn(now);
        effects.run();
        if turn.stop {
            // Dropped, each of them is cancelled.
            seekers = JoinSet::new();
        }
        // Before the background thread does anything else: what ends and what is sought are found by it at
        // once, and go to the server as one call.
        for start in turn.start {
            let acquire = home.seek(&start.terms);
            seekers.spawn(find(start, now, acquire));
        }
        if let Some(tokens) = turn.question {
            home.tell(Command::Recheck {
                resource: Arc::clone(&home.resource),
                tokens,
            });
        }
        let Some(rest) = turn.rest else { return };
        tokio::select! {
            biased;
            Some(found) = seekers.join_next() => {
                // None panics: each awaits one channel.
                if let Ok(found) = found {
                    home.found(found);
                }
            }
            () = home.roused() => {}
            () = sleep(rest) => {}
        }
    }
}

async fn find(start: Start, started: Instant, acquire: Acquire) -> Found {
    Found {
        tries: start.tries,
        started,
        least: start.terms.claim() / 2,
        result: acquire.await,
    }
}

impl Home {
    fn found(&self, found: Found) {
        let now = Instant::now();
        let (tries, started) = (found.tries, found.started);
        let effects = match found.result {
            Ok(lease) => self.rooms().arrived(now, lease, tries, found.least),
            Err(error) => self.rooms().returned(now, error, tries, started),
        };
        effects.run();
    }
}
