//! redis-py, which tests of other languages' clients need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A folder with redis-py in it.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
        let has = |folder: &Path| folder.join("redis/lock.py").is_file();
        if !has(&folder) {
            let log = Command::new("python3")
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                ])
                .args(["--no-compile", "--target"])
                .arg(&folder)
                .arg("redis==5.2.1")
                .output()
                .expect("these tests need python3 on the PATH");
            let told = String::from_utf8_lossy(&log.stderr);
            assert!(
                has(&folder),
                "these tests need redis-py, and pip can't fetch it: {told}"
            );
        }
        folder
    })
}
