//! What is only true of a server: its keys, its faults, its rights.

mod check;
mod exact_key;
mod home;
mod keys;
mod loss;
mod messages;
mod outage;
mod preloaded;
mod rates;
mod refusals;
mod replicas;
mod rights;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use portcullis::{Builder, Mutex, Portcullis, Semaphore};

use crate::common::LONG;
use crate::support::{Proxy, Server};

/// The most that a push which nobody hears may cost: the claim that it gave, 3 s, and a question
/// after it, twice over. Well below [`LONG`].
const UNHEARD: Duration = Duration::from_secs(12);

fn mutex(handle: &Portcullis) -> Mutex {
    handle.mutex("withdraw").ttl(LONG).expect("in range")
}

fn semaphore(handle: &Portcullis, limit: u32) -> Semaphore {
    handle
        .semaphore("reports", limit)
        .expect("in range")
        .ttl(LONG)
        .expect("in range")
}

fn through(proxy: &Proxy) -> Builder {
    Portcullis::builder().url(proxy.url()).prefix("suite")
}

/// Does something to a server over and over, until it is dropped.
struct Nuisance {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Nuisance {
    fn start(server: &Server, pause: Duration, command: &'static [&'static str]) -> Self {
        let mut connection = server.connection();
        let ended = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let ended = Arc::clone(&ended);
            move || {
                while !ended.load(Ordering::Relaxed) {
                    let mut order = redis::Cmd::new();
                    order.arg(command);
                    let _: redis::Value = order.query(&mut connection).expect("the server obeys");
                    std::thread::sleep(pause);
                }
            }
        });
        Self {
            ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Nuisance {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the nuisance failed");
        }
    }
}
