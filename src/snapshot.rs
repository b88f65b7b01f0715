//! Texts that people read, kept in files, so that a change of wording is seen in review.

use std::fs;
use std::path::{Path, PathBuf};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Whether files are to be written anew instead of compared.
pub(crate) fn is_blessed() -> bool {
    std::env::var_os("BLESS").is_some()
}

/// Empty where there is no file yet.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(file(path)).unwrap_or_default()
}

/// Panics unless the file at `path` in the package says `text`. With `BLESS=1` it is written anew.
pub(crate) fn assert(path: &str, text: &str) {
    if is_blessed() {
        fs::write(file(path), text).expect("the package's folder can be written");
        return;
    }
    let kept = read(path);
    let differs = |(kept, told): &(&str, &str)| kept != told;
    let lines = kept.lines().chain(std::iter::repeat("(nothing)"));
    let first = lines.zip(text.lines().chain(["(nothing)"])).find(differs);
    assert!(
        kept == text,
        "{path} says otherwise, first here: {first:#?}\nif the change is meant, run this test with BLESS=1"
    );
}
