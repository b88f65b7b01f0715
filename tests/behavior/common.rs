//! Words that all sentences use.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use portcullis::{
    BackendError, LockError, Mutex, MutexGuard, Refusal, RefusalKind, Release, Releasing,
    Semaphore, SemaphorePermit,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::support::{History, Hold, wait_for};

/// The TTL of gates whose promptness is shown: no test lasts so long.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// What happens within this time did not happen because a lease of [`LONG`] ended.
pub(crate) const PROMPT: Duration = Duration::from_secs(3);
/// How long anything may take that must happen at all, on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(25);

/// A mutex or a semaphore, as far as they are alike.
pub(crate) trait Gate: Clone + Send + Sync + 'static {
    type Guard: Guard;

    fn enter(&self) -> impl Future<Output = Result<Self::Guard, LockError>> + Send;
    fn try_enter(&self) -> impl Future<Output = Result<Self::Guard, LockError>> + Send;
}

pub(crate) trait Guard: Debug + Send + Sync + 'static {
    fn fence(&self) -> u64;
    fn give_back(self) -> Releasing;
}

impl Gate for Mutex {
    type Guard = MutexGuard;

    async fn enter(&self) -> Result<MutexGuard, LockError> {
        self.lock().await
    }

    async fn try_enter(&self) -> Result<MutexGuard, LockError> {
        self.try_lock().await
    }
}

impl Gate for Semaphore {
    type Guard = SemaphorePermit;

    async fn enter(&self) -> Result<SemaphorePermit, LockError> {
        self.acquire().await
    }

    async fn try_enter(&self) -> Result<SemaphorePermit, LockError> {
        self.try_acquire().await
    }
}

impl Guard for MutexGuard {
    fn fence(&self) -> u64 {
        self.fencing_token().get()
    }

    fn give_back(self) -> Releasing {
        self.release()
    }
}

impl Guard for SemaphorePermit {
    fn fence(&self) -> u64 {
        self.fencing_token().get()
    }

    fn give_back(self) -> Releasing {
        self.release()
    }
}

/// Panics with `what` unless `future` is done promptly.
pub(crate) async fn promptly<T>(what: &str, future: impl Future<Output = T>) -> T {
    within(PROMPT, what, future).await
}

pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    timeout(limit, future)
        .await
        .unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}

/// The refusal that an acquire was to end in.
pub(crate) fn refusal<T: Debug>(result: Result<T, LockError>) -> Refusal {
    match result {
        Err(LockError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// The failure that an acquire was to end in.
pub(crate) fn failure<T: Debug>(result: Result<T, LockError>) -> BackendError {
    match result {
        Err(LockError::Backend(error)) => error,
        other => panic!("no failure of the backend: {other:?}"),
    }
}

/// Takes what is free, promptly.
pub(crate) async fn take<G: Gate>(gate: &G) -> G::Guard {
    promptly("what is free is taken", gate.enter())
        .await
        .expect("it is free")
}

/// Gives back what is still held, and waits for the answer.
pub(crate) async fn give_back(guard: impl Guard) {
    let answer = promptly("a release is answered", guard.give_back()).await;
    assert_eq!(answer.expect("the backend answers"), Release::Released);
}

/// Asks for a turn in a task of its own, which the gate's queue can be looked at beside.
pub(crate) fn queue<G: Gate>(gate: &G) -> JoinHandle<Result<G::Guard, LockError>> {
    let gate = gate.clone();
    tokio::spawn(async move { gate.enter().await })
}

/// Waits until a task of [`queue`] has its turn, promptly.
pub(crate) async fn served<T>(task: JoinHandle<Result<T, LockError>>) -> T {
    served_within(PROMPT, task).await
}

/// The same where it takes more than that.
pub(crate) async fn served_within<T>(limit: Duration, task: JoinHandle<Result<T, LockError>>) -> T {
    let result = within(limit, "its turn comes", task)
        .await
        .expect("the task does not panic");
    result.expect("its turn comes")
}

/// How many wait at a gate whose permits are all out, as a refused try tells.
pub(crate) async fn waiting<G: Gate>(gate: &G) -> Option<u64> {
    match gate.try_enter().await {
        Err(LockError::Refused(refusal)) if refusal.kind() == RefusalKind::Busy => {
            refusal.position()
        }
        other => panic!("not busy: {other:?}"),
    }
}

pub(crate) async fn until_waiting<G: Gate>(gate: &G, count: u64) {
    wait_for(&format!("{count} wait"), LIMIT, async || {
        waiting(gate).await == Some(count)
    })
    .await;
}

/// Goes in and out once, and writes it down.
pub(crate) async fn visit<G: Gate>(gate: &G, history: &History) {
    let work = tokio::task::yield_now();
    let guard = note(history, 1, gate.enter(), work).await;
    let answer = guard.expect("its turn comes").give_back().await;
    assert_eq!(answer.expect("the backend answers"), Release::Released);
}

/// Enters, and writes down what is held for as long as the work takes. It is still held then.
pub(crate) async fn note<G: Guard>(
    history: &History,
    weight: u32,
    entering: impl Future<Output = Result<G, LockError>>,
    work: impl Future,
) -> Result<G, LockError> {
    let asked = History::now();
    let guard = entering.await?;
    let acquired = History::now();
    work.await;
    history.held(Hold {
        asked,
        acquired,
        ended: History::now(),
        fence: guard.fence(),
        weight,
    });
    Ok(guard)
}

/// Waits until all tasks are done, none of which may panic.
pub(crate) async fn all_done<T: 'static>(tasks: JoinSet<T>) -> Vec<T> {
    within(LIMIT, "all tasks are done", tasks.join_all()).await
}
