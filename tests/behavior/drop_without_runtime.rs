//! Guards that are dropped where nothing asynchronous can run any more (C123): none panics, and all
//! are given back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use portcullis::{Mutex, MutexGuard, Portcullis, Release};
use tokio::runtime::{Builder, Runtime};

use crate::common::{LONG, queue, served, take};
use crate::rig::Rig;

fn mutex<R: Rig>(handle: &Portcullis) -> Mutex {
    R::mutex(handle.mutex("job").ttl(LONG).expect("in range"))
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the system has room for a runtime")
}

/// Takes the lock on a thread that has a runtime, and hands it to `then` when that runtime is gone.
fn taken_elsewhere<T: Send>(mutex: &Mutex, then: impl FnOnce(MutexGuard) -> T + Send) -> T {
    let work = || {
        let guard = runtime().block_on(take(mutex));
        then(guard)
    };
    thread::scope(|scope| scope.spawn(work).join().expect("dropping does not panic"))
}

/// Nobody holds any more, long before the TTL: the next one is served.
async fn assert_free<R: Rig>(rig: &R) {
    drop(served(queue(&mutex::<R>(&rig.handle()))).await);
    rig.settled().await;
}

pub(crate) async fn on_a_plain_thread<R: Rig>() {
    let rig = R::start();
    let guard = take(&mutex::<R>(&rig.handle())).await;
    thread::spawn(move || drop(guard))
        .join()
        .expect("dropping does not panic");
    assert_free(&rig).await;
}

pub(crate) async fn after_the_runtime_has_ended<R: Rig>() {
    let rig = R::start();
    let mutex = mutex::<R>(&rig.handle());
    taken_elsewhere(&mutex, drop);
    assert_free(&rig).await;
    // And the answer to a release can be waited for anywhere.
    let releasing = taken_elsewhere(&mutex, MutexGuard::release);
    assert_eq!(releasing.await.expect("answered"), Release::Released);
    assert_free(&rig).await;
}

pub(crate) async fn while_unwinding<R: Rig>() {
    let rig = R::start();
    let mutex = mutex::<R>(&rig.handle());
    taken_elsewhere(&mutex, |guard| {
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(unwound.is_err());
    });
    assert_free(&rig).await;
    let task = tokio::spawn(async move {
        let _guard = take(&mutex).await;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(task.await.is_err_and(|error| error.is_panic()));
    assert_free(&rig).await;
}

pub(crate) async fn as_a_current_thread_runtime_shuts_down<R: Rig>() {
    let rig = R::start();
    let mutex = mutex::<R>(&rig.handle());
    thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = runtime();
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let mutex = &mutex;
            let holds = {
                let mutex = mutex.clone();
                async move {
                    let guard = take(&mutex).await;
                    // One more stands in the queue when all ends.
                    let waits = tokio::spawn({
                        let mutex = mutex.clone();
                        async move { mutex.lock().await }
                    });
                    let _ = sender.send(());
                    let _ = waits.await;
                    drop(guard);
                }
            };
            runtime.spawn(holds);
            runtime.block_on(receiver).expect("it holds");
            drop(runtime);
        });
    });
    assert_free(&rig).await;
}

pub(crate) async fn in_a_local_set<R: Rig>() {
    let rig = R::start();
    let mutex = mutex::<R>(&rig.handle());
    let local = tokio::task::LocalSet::new();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    local.spawn_local({
        let mutex = mutex.clone();
        async move {
            let _guard = take(&mutex).await;
            let _ = sender.send(());
            std::future::pending::<()>().await;
        }
    });
    local.run_until(receiver).await.expect("it holds");
    drop(local);
    assert_free(&rig).await;
}

pub(crate) async fn in_a_blocking_task<R: Rig>() {
    let rig = R::start();
    let guard = take(&mutex::<R>(&rig.handle())).await;
    tokio::task::spawn_blocking(move || drop(guard))
        .await
        .expect("dropping does not panic");
    assert_free(&rig).await;
}

pub(crate) async fn after_the_handle_is_gone<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let mutex = mutex::<R>(&handle);
    let guard = take(&mutex).await;
    drop((handle, mutex));
    // It is renewed and given back all the same.
    assert!(guard.is_held());
    thread::spawn(move || drop(guard))
        .join()
        .expect("dropping does not panic");
    assert_free(&rig).await;
}

pub(crate) async fn one_handle_serves_several_runtimes_one_after_another<R: Rig>() {
    let rig = R::start();
    let mutex = mutex::<R>(&rig.handle());
    let mut last = None;
    for _ in 0..5 {
        let fence = taken_elsewhere(&mutex, |guard| {
            let fence = guard.fencing_token();
            // Another runtime, and in it a wait for the release.
            runtime().block_on(async {
                let next = queue(&mutex);
                tokio::task::yield_now().await;
                drop(guard);
                drop(served(next).await);
            });
            fence
        });
        assert!(last < Some(fence));
        last = Some(fence);
    }
    assert_free(&rig).await;
}
