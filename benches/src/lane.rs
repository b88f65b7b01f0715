//! Many tasks that repeat something for a slice of time.

use std::future::Future;
use std::time::{Duration, Instant};

/// How often `tasks` tasks did, within `slice`, what `again` makes for each; per second.
pub(crate) async fn rate<W, F>(tasks: usize, slice: Duration, again: impl Fn(usize) -> W) -> f64
where
    W: FnMut() -> F + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let begun = Instant::now();
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let mut again = again(task);
            tokio::spawn(async move {
                let mut times = 0_u64;
                while begun.elapsed() < slice {
                    again().await;
                    times += 1;
                }
                times
            })
        })
        .collect();
    let mut times = 0;
    for worker in workers {
        times += worker.await.expect("no worker panics");
    }
    times as f64 / begun.elapsed().as_secs_f64()
}
