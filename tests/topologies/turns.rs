//! Who holds a gate, and who has it next.

use portcullis::LockError;
use tokio::task::JoinHandle;

use crate::common::{Gate, Guard, give_back, queue, served, take, until_waiting};

/// Whoever waits for its turn.
pub(crate) type Waiter<G> = JoinHandle<Result<<G as Gate>::Guard, LockError>>;

/// The first holds, and the second has a place in the queue.
pub(crate) async fn hold_and_queue<G: Gate>(first: &G, second: &G) -> (G::Guard, Waiter<G>) {
    let held = take(first).await;
    let waiter = queue(second);
    until_waiting(first, 1).await;
    (held, waiter)
}

/// What is held is given back, and who waits has it next, by a later fence.
pub(crate) async fn hand_over<T: Guard>(held: T, waiter: JoinHandle<Result<T, LockError>>) {
    let fence = held.fence();
    give_back(held).await;
    let next = served(waiter).await;
    assert!(next.fence() > fence, "{} after {fence}", next.fence());
    give_back(next).await;
}
