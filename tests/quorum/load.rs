//! Handles that take one lock again and again, each hold noted, until they are told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis::{Mutex, Portcullis};
use tokio::task::JoinSet;

use crate::common::{LIMIT, note, within};
use crate::support::{History, wait_for};

/// How many are to be served before anything goes on.
const SERVED: usize = 20;
/// How many work by each handle.
const WORKERS: usize = 3;

pub(crate) struct Load {
    history: History,
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    workers: JoinSet<()>,
}

impl Load {
    /// Starts workers for each handle, at what `mutex` makes of it.
    pub(crate) fn start(
        handles: impl IntoIterator<Item = Portcullis>,
        mutex: impl Fn(&Portcullis) -> Mutex,
    ) -> Self {
        let mut load = Self {
            history: History::default(),
            stop: Arc::default(),
            served: Arc::default(),
            workers: JoinSet::new(),
        };
        for handle in handles {
            load.join(&mutex(&handle));
        }
        load
    }

    /// Has some more work at it.
    pub(crate) fn join(&mut self, mutex: &Mutex) {
        for _ in 0..WORKERS {
            let (history, stop) = (self.history.clone(), Arc::clone(&self.stop));
            let (mutex, served) = (mutex.clone(), Arc::clone(&self.served));
            self.workers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let moment = tokio::time::sleep(Duration::from_millis(1));
                    if note(&history, 1, mutex.lock(), moment).await.is_ok() {
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    }

    /// Waits until some more are served.
    pub(crate) async fn goes_on(&self, what: &str) {
        let before = self.served.load(Ordering::Relaxed);
        wait_for(what, LIMIT, async || {
            self.served.load(Ordering::Relaxed) >= before + SERVED
        })
        .await;
    }

    /// Stops it; no two held at once, and fences rose.
    pub(crate) async fn assert_sound(self) {
        self.stop.store(true, Ordering::Relaxed);
        within(LIMIT, "all end", self.workers.join_all()).await;
        self.history.assert_sound(1);
    }
}
