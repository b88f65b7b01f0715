//! All that this process has said by `tracing`, since it first asked.

use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tracing_subscriber::filter::EnvFilter;

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

impl io::Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

static HEARD: LazyLock<Heard> = LazyLock::new(|| {
    let heard = Heard::default();
    let writer = heard.clone();
    // Of the client and of TLS, too: what they say shows up in the same log.
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("trace"))
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    heard
});

pub(crate) fn heard() -> String {
    let heard = HEARD.0.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&heard).into_owned()
}
