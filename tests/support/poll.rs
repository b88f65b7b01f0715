//! Futures that are dropped after a number of polls, for cancellation as a matrix.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Polls `future` up to `k` times, each time it is woken, and drops it right after the last one
/// unless it was ready by then.
pub(crate) async fn poll_k_times<F: Future>(future: F, k: usize) -> Option<F::Output> {
    run(future, k, false).await
}

/// Like [`poll_k_times`], but drops `future` only when it has been woken once more: with its result
/// in reach, and not taken.
pub(crate) async fn poll_k_times_and_wake<F: Future>(future: F, k: usize) -> Option<F::Output> {
    run(future, k, true).await
}

async fn run<F: Future>(future: F, k: usize, until_woken: bool) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == k {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == k && !until_woken => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
