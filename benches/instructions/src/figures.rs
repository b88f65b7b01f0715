//! Instructions by path, as they are noted in a file, and their comparison.

use std::fmt::{self, Write as _};

/// By how much a path may become longer without a word.
pub(crate) const ALLOWED_PERCENT: u64 = 5;

/// What stands in front of the compiler's version in the file.
const COMPILER: &str = "# Taken with ";

/// The instructions of each path, and what compiled them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) compiler: String,
    pub(crate) paths: Vec<(String, u64)>,
}

/// Whether what was counted will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// Something deviates, and the compiler may be the reason: nobody is to blame.
    OtherCompiler,
}

/// All figures side by side.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) text: String,
    pub(crate) verdict: Verdict,
}

impl Figures {
    /// Reads what [`Display`](fmt::Display) writes. Lines of another form are passed over.
    pub(crate) fn parse(text: &str) -> Self {
        let compiler = text.lines().find_map(|line| line.strip_prefix(COMPILER));
        let paths = text.lines().filter_map(|line| {
            let (path, count) = line.split_once(' ')?;
            Some((path.to_owned(), count.trim().parse().ok()?))
        });
        Self {
            compiler: compiler.unwrap_or_default().to_owned(),
            paths: paths.collect(),
        }
    }

    /// Compares what was counted to what was noted.
    pub(crate) fn compare(&self, noted: &Self) -> Comparison {
        let mut text = format!("{:22} {:>8} {:>8}", "path", "noted", "counted");
        let mut deviates = false;
        for (path, count) in &self.paths {
            let before = noted.paths.iter().find(|(name, _)| name == path);
            let _ = match before {
                Some((_, before)) => {
                    let percent = 100.0 * (*count as f64 / *before as f64 - 1.0);
                    let longer = 100 * count > (100 + ALLOWED_PERCENT) * before;
                    deviates |= longer;
                    let mark = if longer { "  <-- longer" } else { "" };
                    write!(
                        text,
                        "\n{path:22} {before:8} {count:8} {percent:+6.1} %{mark}"
                    )
                }
                None => {
                    deviates = true;
                    write!(text, "\n{path:22} {:>8} {count:8}  <-- not noted", "-")
                }
            };
        }
        let verdict = match deviates {
            false => Verdict::Passed,
            true if noted.compiler == self.compiler => Verdict::Failed,
            true => Verdict::OtherCompiler,
        };
        Comparison { text, verdict }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Instructions of hot paths, each time: `scripts/test --instructions` compares them."
        )?;
        writeln!(
            f,
            "# Another compiler makes other figures; only against the same one they are judged."
        )?;
        writeln!(f, "{COMPILER}{}", self.compiler)?;
        for (path, count) in &self.paths {
            writeln!(f, "{path:22} {count:8}")?;
        }
        Ok(())
    }
}

/// What valgrind says at its end: `==4711== Collected : 123456`.
pub(crate) fn collected(said: &str) -> Option<u64> {
    let line = said
        .lines()
        .find_map(|line| line.split_once("Collected : "))?;
    line.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(compiler: &str, count: u64) -> Figures {
        Figures {
            compiler: compiler.to_owned(),
            paths: vec![("semaphore".to_owned(), count)],
        }
    }

    fn verdict(counted: &Figures) -> Verdict {
        counted.compare(&figures("rustc 1", 1_000)).verdict
    }

    #[test]
    fn what_is_written_is_read_again() {
        let figures = figures("rustc 1.95.0 (59807616e) for x86_64", 123);
        assert_eq!(Figures::parse(&figures.to_string()), figures);
    }

    #[test]
    fn a_path_may_become_a_little_longer_or_much_shorter() {
        assert_eq!(verdict(&figures("rustc 1", 1_050)), Verdict::Passed);
        assert_eq!(verdict(&figures("rustc 1", 100)), Verdict::Passed);
        assert_eq!(verdict(&figures("rustc 1", 1_051)), Verdict::Failed);
    }

    #[test]
    fn another_compiler_fails_nothing() {
        assert_eq!(verdict(&figures("rustc 2", 9_000)), Verdict::OtherCompiler);
        assert_eq!(verdict(&figures("rustc 2", 1_000)), Verdict::Passed);
    }

    #[test]
    fn a_path_without_a_figure_fails() {
        let mut counted = figures("rustc 1", 1_000);
        counted.paths.push(("layer".to_owned(), 1));
        assert_eq!(verdict(&counted), Verdict::Failed);
    }

    #[test]
    fn the_count_is_what_valgrind_says_at_its_end() {
        let said = "==1== Events    : Ir\n==1== Collected : 123456\n==1== \n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("valgrind: not found"), None);
    }
}
