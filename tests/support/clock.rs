//! A wall clock that a test sets, for the processes that it starts: by libfaketime.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The wall clock of the processes that it rules. Their other clocks go on.
#[derive(Debug, Clone)]
pub(crate) struct FakeClock {
    file: Arc<ClockFile>,
    library: PathBuf,
}

#[derive(Debug)]
struct ClockFile {
    path: PathBuf,
    /// The processes that it rules.
    pids: Mutex<Vec<u32>>,
}

impl FakeClock {
    /// One that is right.
    pub(crate) fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("portcullis-clock-{}-{number}", std::process::id());
        let clock = Self {
            file: Arc::new(ClockFile {
                path: std::env::temp_dir().join(name),
                pids: Mutex::default(),
            }),
            library: library(),
        };
        clock.set(0);
        clock
    }

    /// Sets it so many seconds ahead of the machine's, at once.
    pub(crate) fn set(&self, ahead: i64) {
        let path = &self.file.path;
        // In one step: whoever reads it meanwhile must not find half of it.
        let fresh = path.with_extension("new");
        fs::write(&fresh, format!("{ahead:+}\n")).expect("the temporary folder can be written");
        fs::rename(&fresh, path).expect("the temporary folder can be written");
    }

    /// Has the process that `command` starts live by it.
    pub(crate) fn rules(&self, command: &mut Command) {
        // libc after it: a server whose allocator is jemalloc, as Debian's, asks that for the time
        // before libfaketime is ready to answer, which itself allocates to become so.
        let preloaded = format!("{} libc.so.6", self.library.display());
        command
            .env("LD_PRELOAD", preloaded)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file.path)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    /// Remembers a process that it rules: what the library shares among processes outlives one that
    /// is killed, and is removed with the clock.
    pub(crate) fn ruled(&self, pid: u32) {
        let mut pids = self
            .file
            .pids
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        pids.push(pid);
    }
}

impl Drop for ClockFile {
    fn drop(&mut self) {
        // It lies in the temporary folder.
        let _ = fs::remove_file(&self.path);
        let pids = self.pids.get_mut().unwrap_or_else(PoisonError::into_inner);
        for pid in pids {
            for name in ["faketime_shm_", "sem.faketime_sem_"] {
                let _ = fs::remove_file(format!("/dev/shm/{name}{pid}"));
            }
        }
    }
}

fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("PORTCULLIS_LIBFAKETIME") {
        return path.into();
    }
    let folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"];
    let below = folders.iter().flat_map(|folder| {
        let inside = fs::read_dir(folder).into_iter().flatten().flatten();
        inside
            .map(|entry| entry.path())
            .chain([PathBuf::from(folder)])
    });
    below
        .map(|folder| folder.join("faketime/libfaketime.so.1"))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!(
                "this test sets clocks by libfaketime, which is not there: `apt-get install faketime`, \
                 or name libfaketime.so.1 in PORTCULLIS_LIBFAKETIME"
            )
        })
}
