//! What a look at the server finds before a service relies on it: whether it fits, what is missing,
//! and what to do.
//!
//! [`Portcullis::check`](crate::Portcullis::check) looks, and [`Portcullis::connect`] builds a handle
//! and insists on a server that fits, or on a majority of those of a [quorum](crate::quorum).
//!
//! [`Portcullis::connect`]: crate::Portcullis::connect

mod finding;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

pub use self::finding::{Finding, Severity};
use crate::backend::Backend;
use crate::error::{BackendError, ConfigError};

/// A look at the server that is about to begin: await it.
#[derive(Debug)]
#[must_use = "nothing is looked at until it is awaited"]
pub struct Check {
    backend: Arc<dyn Backend>,
    exact: Vec<String>,
}

impl Check {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let exact = Vec::new();
        Self { backend, exact }
    }

    /// Also looks for the rights to a key that is taken verbatim, and to its channel
    /// `<key>:released`: what [`mutex_at`](crate::Portcullis::mutex_at) needs. The key is not read
    /// and not changed.
    pub fn at(mut self, key: impl Into<String>) -> Self {
        self.exact.push(key.into());
        self
    }
}

impl IntoFuture for Check {
    type Output = Result<Report, BackendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (sender, answer) = oneshot::channel();
            self.backend.check(self.exact, sender);
            answer
                .await
                .unwrap_or_else(|_| Err(BackendError::background_ended()))
        })
    }
}

/// What was found. Its `Display` is for people who read a log at start-up: a line for the server, and
/// one for each finding, the worst first.
///
/// # Examples
///
/// ```no_run
/// # async fn example(gates: portcullis::Portcullis) -> Result<(), Box<dyn std::error::Error>> {
/// let report = gates.check().await?;
/// eprintln!("{report}");
/// if !report.is_ok() {
///     std::process::exit(1);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// None where gates are in memory, which no server could be unfit for.
    servers: Vec<Server>,
    findings: Vec<Finding>,
    /// How many of the servers of a quorum are needed.
    needed: Option<usize>,
}

impl Report {
    /// Of a quorum, where so many servers are needed.
    pub(crate) fn of_quorum(needed: usize) -> Self {
        Self {
            needed: Some(needed),
            ..Self::default()
        }
    }

    /// Adds what was found at a server, as far as it was not found at another.
    pub(crate) fn add(&mut self, server: Server, findings: Vec<Finding>) {
        self.servers.push(server);
        self.find(findings);
    }

    /// Adds what was found of none of the servers, or of all together.
    pub(crate) fn find(&mut self, findings: Vec<Finding>) {
        for finding in findings {
            if !self.findings.contains(&finding) {
                self.findings.push(finding);
            }
        }
        // Stable, so that findings of one severity stay in the order in which they came up.
        self.findings.sort_by_key(Finding::severity);
    }

    /// Whether there is no [`Problem`](Severity::Problem).
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.problems().next().is_none()
    }

    /// All that was found, the worst first.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Those without which the gates would not work.
    pub fn problems(&self) -> impl Iterator<Item = &Finding> {
        let problem = |finding: &&Finding| finding.severity() == Severity::Problem;
        self.findings.iter().filter(problem)
    }

    /// What is known of the server, or of the first of several; `None` of gates in memory.
    #[must_use]
    pub fn server(&self) -> Option<&Server> {
        self.servers.first()
    }

    /// What is known of each server: of a cluster, the masters; of a quorum, all servers in the order
    /// in which they were named, also those that could not be asked.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.servers.is_empty() {
            f.write_str("gates in this process' memory")?;
        }
        if let Some(needed) = self.needed {
            let servers = self.servers.len();
            writeln!(f, "a quorum: {needed} of {servers} servers are needed")?;
        }
        for (number, server) in self.servers.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            if self.needed.is_some() {
                write!(f, "server {}: ", number + 1)?;
            }
            server.fmt(f)?;
        }
        for finding in &self.findings {
            write!(f, "\n{}: {finding}", finding.severity())?;
        }
        Ok(())
    }
}

/// A server, as far as it tells of itself and as it was seen. `None` is what it does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    /// `Redis` or `Valkey`.
    pub name: Option<&'static str>,
    /// Its version: `7.0.15`.
    pub version: Option<String>,
    /// What it is to others.
    pub role: Option<Role>,
    /// How many replicas are connected to it.
    pub replicas: Option<u32>,
    /// The sentinels that name it as the master, where they were asked.
    pub sentinels: Option<Sentinels>,
    /// Whether it is a node of a cluster.
    pub is_cluster: Option<bool>,
    /// The limit of its memory in bytes, 0 for none.
    pub maxmemory: Option<u64>,
    /// What it does at that limit: `noeviction`.
    pub maxmemory_policy: Option<String>,
    /// What a restart leaves of its data.
    pub persistence: Option<Persistence>,
    /// How long it takes to answer the smallest request: the median of a few.
    pub round_trip: Option<Duration>,
    /// By how many milliseconds its clock is ahead of this machine's wall clock, give or take half a
    /// round trip. Leases need no agreement of the two.
    pub clock_ahead_ms: Option<i64>,
}

/// What a server is to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// It takes writes.
    Master,
    /// It repeats what its master tells it.
    Replica,
}

/// The sentinels of a service, as far as they answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sentinels {
    /// The service whose master they name.
    pub service: String,
    /// How many were given.
    pub known: usize,
    /// How many of them name a master.
    pub answering: usize,
    /// How many of those may be listened to for failovers.
    pub telling: usize,
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            service,
            known,
            answering,
            ..
        } = self;
        write!(
            f,
            "named for `{service}` by {answering} of {known} sentinels"
        )
    }
}

/// What a restart of the server leaves of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Persistence {
    /// All but the last moment: `appendonly yes`.
    AppendOnly,
    /// What the last snapshot has: `save`.
    Snapshots,
    /// Nothing.
    None,
}

/// In one line.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.unwrap_or("a server that tells nothing of itself"))?;
        if let Some(version) = &self.version {
            write!(f, " {version}")?;
        }
        match (self.is_cluster, self.role) {
            (Some(true), _) => f.write_str(", a node of a cluster")?,
            (_, Some(Role::Master)) => {
                let replicas = self.replicas.unwrap_or_default();
                let plural = if replicas == 1 { "" } else { "s" };
                write!(f, ", a master with {replicas} replica{plural}")?;
            }
            (_, Some(Role::Replica)) => f.write_str(", a replica")?,
            (_, None) => {}
        }
        if let Some(sentinels) = &self.sentinels {
            write!(f, ", {sentinels}")?;
        }
        f.write_str(match self.persistence {
            Some(Persistence::AppendOnly) => ", append-only file",
            Some(Persistence::Snapshots) => ", snapshots",
            Some(Persistence::None) => ", no persistence",
            None => "",
        })?;
        if let Some(policy) = &self.maxmemory_policy {
            match self.maxmemory {
                Some(0) | None => write!(f, ", {policy} without a limit")?,
                Some(bytes) => write!(f, ", {policy} at {} MiB", bytes >> 20)?,
            }
        }
        if let Some(round_trip) = self.round_trip {
            write!(f, ", answers in {:.1} ms", round_trip.as_secs_f64() * 1e3)?;
        }
        match self.clock_ahead_ms {
            Some(ahead @ 1..) => write!(f, ", clock {ahead} ms ahead"),
            Some(behind @ ..0) => write!(f, ", clock {} ms behind", behind.unsigned_abs()),
            Some(0) | None => Ok(()),
        }
    }
}

/// Why [`Portcullis::connect`](crate::Portcullis::connect) gave no handle.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// A setting can't be kept.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server could not be asked.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The server was asked, and does not fit: see the [problems](Report::problems).
    #[error("the server does not fit:\n{0}")]
    Unfit(Report),
}
