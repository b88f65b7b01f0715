//! What a slice of time cost: the processor's time of each process, script calls, system calls.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::ConnectionLike;

use super::support::Server;

/// What was used up to some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) calls: u64,
    pub(crate) server: Duration,
    pub(crate) client: Duration,
}

impl Used {
    /// By `server`, and by this process.
    pub(crate) fn so_far(server: &Server) -> Self {
        Self {
            calls: commands(server, &["evalsha", "eval"]),
            server: ran(server.pid()),
            client: ran(std::process::id()),
        }
    }

    pub(crate) fn since(self, begin: Self) -> Self {
        Self {
            calls: self.calls - begin.calls,
            server: self.server - begin.server,
            client: self.client - begin.client,
        }
    }
}

/// How often clients have called each of `names`, or scripts have.
pub(crate) fn commands(server: &Server, names: &[&str]) -> u64 {
    stat(server, names, "calls")
}

/// The microseconds that the server has spent in each of `names`.
pub(crate) fn microseconds(server: &Server, names: &[&str]) -> u64 {
    stat(server, names, "usec")
}

fn stat(server: &Server, names: &[&str], field: &str) -> u64 {
    let stats = info(server, "commandstats");
    let lines = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let mut fields = rest.split(',').filter_map(|pair| pair.split_once('='));
        let figure = fields.find(|(name, _)| *name == field)?.1;
        names.contains(&name).then(|| figure.parse::<u64>().ok())?
    });
    lines.sum()
}

/// A section of INFO.
pub(crate) fn info(server: &Server, section: &str) -> String {
    let mut command = redis::cmd("INFO");
    command.arg(section);
    let mut connection = server.connection();
    let answer = connection.req_command(&command);
    redis::from_redis_value(answer.expect("INFO is answered")).expect("INFO answers with text")
}

/// One field of a section of INFO, as a number.
pub(crate) fn info_number(server: &Server, section: &str, field: &str) -> f64 {
    let text = info(server, section);
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let value = lines.find(|(name, _)| *name == field);
    let value = value.unwrap_or_else(|| panic!("INFO {section} has no {field}"));
    value.1.trim().parse().expect("a number")
}

/// The time that a process' threads have run; zero where the system does not tell.
pub(crate) fn ran(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program's name stands in brackets and may hold spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    // Linux tells them in hundredths of a second on every platform.
    Duration::from_millis(10 * ticks)
}

/// The time that those threads of a process have run which it has now, to the nanosecond; zero where
/// the system does not tell. For slices too short for [`ran`].
pub(crate) fn threads_ran(pid: u32) -> Duration {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Duration::ZERO;
    };
    let times = threads.filter_map(|thread| {
        let told = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        told.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}

/// The memory that a process has resident, in bytes; zero where the system does not tell.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Counts a process' system calls by `perf`, where that is installed and allowed.
#[derive(Debug)]
pub(crate) struct SystemCalls(Option<Child>);

impl SystemCalls {
    pub(crate) fn of(pid: u32) -> Self {
        let perf = Command::new("perf")
            .args([
                "stat",
                "--field-separator",
                ";",
                "--event",
                "raw_syscalls:sys_enter",
            ])
            .args(["--pid", &pid.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        Self(perf.ok())
    }

    /// `None` where nothing could be counted.
    pub(crate) fn end(self) -> Option<u64> {
        let child = self.0?;
        // As Ctrl-C does: it prints what it has counted.
        let interrupt = ["-INT", &child.id().to_string()];
        Command::new("kill").args(interrupt).status().ok()?;
        let output = child.wait_with_output().ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = text.lines().find(|line| line.contains("raw_syscalls"))?;
        line.split(';').next()?.parse().ok()
    }
}
