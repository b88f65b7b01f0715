//! A background thread with a runtime of its own.

use std::future::Future;
use std::io;

use crate::error::ConfigError;

/// Starts the thread of a handle.
pub(super) fn start<F: Future<Output = ()>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<(), ConfigError> {
    spawn(work).map_err(|error| {
        let problem = format!("it can't be started ({error})");
        ConfigError::new("background thread", problem)
    })
}

/// Starts a thread that runs what `work` makes. It makes its runtime itself: one that could not be
/// handed over would be dropped here, and runtimes must not be dropped on another's threads.
pub(super) fn spawn<F: Future<Output = ()>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> io::Result<()> {
    let (started, result) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name("portcullis".to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            // Who started this waits for it.
            match runtime {
                Ok(runtime) => {
                    let _ = started.send(Ok(()));
                    runtime.block_on(work());
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        })?;
    result
        .recv()
        .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}
