//! The hot paths, each walked over and over.
//!
//! On one thread and with the same keys each time, so that the same instructions run: only how far
//! a hash table has to look depends on its random seed, and the gates in memory have a thread of
//! their own, which sleeps while nobody waits.

use std::convert::Infallible;
use std::hint::black_box;

use http::{Request, Response};
use portcullis::{ConcurrencyLimitLayer, Key, Portcullis};
use tower::{Layer, ServiceExt, service_fn};

/// Something that is done for each request.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    /// Does it so many times.
    pub(crate) walk: fn(u64),
}

pub(crate) const PATHS: [Path; 5] = [
    Path {
        name: "semaphore-in-memory",
        walk: semaphore,
    },
    Path {
        name: "keyed-mutex-in-memory",
        walk: keyed_mutex,
    },
    Path {
        name: "layer-in-memory",
        walk: layer,
    },
    Path {
        name: "key-of-two",
        walk: key_of_two,
    },
    Path {
        name: "key-escaped",
        walk: key_escaped,
    },
];

/// Takes a permit and gives it back.
fn semaphore(times: u64) {
    let semaphore = Portcullis::in_memory()
        .semaphore("permits", 8)
        .expect("in range");
    on_one_thread(async {
        for _ in 0..times {
            drop(black_box(semaphore.acquire().await.expect("there is room")));
        }
    });
}

/// Takes the lock of one account and gives it back, beginning with the account.
fn keyed_mutex(times: u64) {
    let mutex = Portcullis::in_memory().mutex("withdraw");
    on_one_thread(async {
        for _ in 0..times {
            let lock = mutex.keyed(black_box(4711_u64));
            drop(black_box(lock.lock().await.expect("nobody else holds it")));
        }
    });
}

/// Lets a request through to a handler that answers at once.
fn layer(times: u64) {
    let semaphore = Portcullis::in_memory()
        .semaphore("requests", 8)
        .expect("in range");
    let handler =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = ConcurrencyLimitLayer::new(semaphore).layer(handler);
    on_one_thread(async {
        for _ in 0..times {
            let answer = service.clone().oneshot(Request::new(String::new())).await;
            let Ok(answer) = answer;
            assert!(black_box(answer).status().is_success(), "there is room");
        }
    });
}

/// Makes the key of a tenant's account.
fn key_of_two(times: u64) {
    for _ in 0..times {
        drop(black_box(Key::of((black_box("acme"), black_box(4711_u64)))));
    }
}

/// Makes a key of a request's path, of which some characters are escaped.
fn key_escaped(times: u64) {
    for _ in 0..times {
        drop(black_box(Key::from(black_box(
            "/accounts/Zürich (west):4711/transfers?to=a b",
        ))));
    }
}

fn on_one_thread(walk: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(walk);
}
