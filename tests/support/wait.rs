//! Waiting for a condition, with a deadline by the real clock.

use std::time::{Duration, Instant};

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks at `condition` until it is true, and panics with `what` when that takes longer than
/// `deadline`.
pub(crate) async fn wait_for(
    what: &str,
    deadline: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) {
    let begun = Instant::now();
    while !condition().await {
        assert!(
            begun.elapsed() < deadline,
            "not within {deadline:?}: {what}"
        );
        tokio::time::sleep(PAUSE).await;
    }
}
