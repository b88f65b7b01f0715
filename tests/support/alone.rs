//! Tests that have a process to themselves, and what of its memory is in use.

use std::process::Command;
use std::time::Instant;

/// Whether the tests are to be as thorough as they can, however long that takes.
pub(crate) fn is_slow() -> bool {
    std::env::var_os("PORTCULLIS_SLOW").is_some_and(|value| value == "1")
}

/// Runs `measure` as the test `name` in a process of its own, on a runtime that is built there.
pub(crate) fn alone(
    name: &str,
    runtime: &mut tokio::runtime::Builder,
    measure: impl AsyncFnOnce(),
) {
    const ROLE: &str = "PORTCULLIS_TEST_ALONE";
    if std::env::var_os(ROLE).is_none() {
        let myself = std::env::current_exe().expect("a running test has a binary");
        let output = Command::new(myself)
            .args(["--exact", name, "--include-ignored", "--nocapture"])
            .arg("--test-threads=1")
            .env(ROLE, name)
            .output()
            .expect("the test's own binary runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        println!("{said}{failed}");
        assert!(output.status.success(), "{name} failed");
        // A name that no test has would be a success too.
        assert!(said.contains("1 passed"), "{name} did not run");
        return;
    }
    let runtime = runtime.build().expect("the system has room for a runtime");
    let begun = Instant::now();
    runtime.block_on(measure());
    println!("in {:?}", begun.elapsed());
}

/// What of this process' memory is resident, in bytes.
pub(crate) fn resident() -> u64 {
    told("VmRSS:")
}

fn told(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the system tells");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kilobytes: u64 = number.expect("a size").parse().expect("a number");
    kilobytes * 1_024
}

/// What is resident and the allocator would not give out again: all that is free is filled, which
/// makes it resident if it was not, until the allocator has to ask the system for more.
pub(crate) fn in_use() -> u64 {
    /// Beside which what an allocator adds to each is not worth counting.
    const BLOCK: usize = 8_000;
    /// More than what the allocator asks for when little is missing.
    const ASKED: u64 = 2_000_000;
    // Blocks that are linked need no list of them, which would take memory itself.
    struct Link(
        Option<Box<Self>>,
        #[expect(dead_code, reason = "it takes room")] [u8; BLOCK],
    );
    let before = told("VmData:");
    let mut chain = None;
    let mut filled = 0;
    while told("VmData:") < before + ASKED {
        for _ in 0..100 {
            chain = Some(Box::new(Link(chain, [1; BLOCK])));
            filled += size_of::<Link>() as u64;
        }
    }
    let in_use = resident().saturating_sub(filled);
    // One by one: a chain that is dropped at once is dropped by recursion.
    while let Some(link) = chain {
        chain = link.0;
    }
    in_use
}
