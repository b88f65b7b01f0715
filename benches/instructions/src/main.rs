//! Counts, by valgrind, the instructions of hot paths that need no server, and holds them against
//! the figures in `benches/instructions.txt`.
//!
//! Run it with `scripts/test --instructions`. Counts are nearly the same on a busy machine as on an
//! idle one, which times are not.

mod figures;
mod paths;

use std::process::{Command, ExitCode, Stdio};

use self::figures::{Figures, Verdict};
use self::paths::PATHS;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../instructions.txt");
/// The first argument of a process whose instructions are counted; a path and a number follow.
const WALK: &str = "walk";
/// How often a path is walked, in one process and in another: the difference has no start-up in it.
const TIMES: [u64; 2] = [1_000, 6_000];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => compare(),
        ["--write"] => write(),
        [WALK, name, times] => walk(name, times),
        _ => {
            eprintln!("usage: instructions [--write]");
            ExitCode::FAILURE
        }
    }
}

fn walk(name: &str, times: &str) -> ExitCode {
    let path = PATHS
        .iter()
        .find(|path| path.name == name)
        .expect("a path that there is");
    (path.walk)(times.parse().expect("a number"));
    ExitCode::SUCCESS
}

fn compare() -> ExitCode {
    let text = std::fs::read_to_string(FILE).expect("the figures lie beside this program's source");
    let noted = Figures::parse(&text);
    let counted = count();
    let comparison = counted.compare(&noted);
    println!("{}", comparison.text);
    match comparison.verdict {
        Verdict::Passed => ExitCode::SUCCESS,
        Verdict::OtherCompiler => {
            println!(
                "Not judged: the figures were taken with {}, and this is {}.",
                noted.compiler, counted.compiler
            );
            ExitCode::SUCCESS
        }
        Verdict::Failed => {
            eprintln!(
                "instructions: a path has become more than {} % longer, or has no figure. If that is meant to be, \
                 write the new figures down with\n  \
                 cargo run --release --locked --package instructions -- --write\n\
                 and commit benches/instructions.txt.",
                figures::ALLOWED_PERCENT
            );
            ExitCode::FAILURE
        }
    }
}

fn write() -> ExitCode {
    let counted = count();
    std::fs::write(FILE, counted.to_string()).expect("the source can be written");
    print!("{counted}");
    ExitCode::SUCCESS
}

fn count() -> Figures {
    let paths = PATHS.iter().map(|path| {
        let [few, many] = TIMES.map(|times| instructions(path.name, times));
        let each = (many - few) as f64 / (TIMES[1] - TIMES[0]) as f64;
        (path.name.to_owned(), each.round() as u64)
    });
    Figures {
        compiler: compiler(),
        paths: paths.collect(),
    }
}

/// What this program was compiled with, where the toolchain has not changed since.
fn compiler() -> String {
    let output = Command::new("rustc")
        .arg("--version")
        .output()
        .expect("rustc has compiled this");
    let version = String::from_utf8_lossy(&output.stdout);
    format!("{} for {}", version.trim(), std::env::consts::ARCH)
}

/// All instructions of a process that walks a path so many times.
fn instructions(path: &str, times: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("this program"))
        .args([WALK, path, &times.to_string()])
        .stdout(Stdio::null())
        .output()
        .expect("valgrind is installed: apt-get install valgrind");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{path} failed: {said}");
    figures::collected(&said).unwrap_or_else(|| panic!("valgrind does not tell: {said}"))
}
