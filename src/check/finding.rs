//! One thing that was found, how bad it is, and what to do about it.

use std::fmt;
use std::time::Duration;

/// How bad a [`Finding`] is: the worst is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The gates don't work.
    Problem,
    /// They work, with a risk or a cost.
    Warning,
    /// Worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// One thing that was found. Its `Display` says what it is, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Finding {
    /// The server's user lacks a right.
    #[non_exhaustive]
    MissingRight {
        /// What to add to the user's ACL: `+zadd`, `~shop:*`, `&shop:inbox:*`.
        rule: String,
        /// How much depends on it.
        severity: Severity,
    },
    /// It is a replica, which takes no writes.
    Replica,
    /// It is a node of a cluster, and the handle was given it as the only server.
    Cluster,
    /// It is older than Redis 6.2.
    #[non_exhaustive]
    TooOld {
        /// Its version.
        version: String,
    },
    /// It declines to write.
    #[non_exhaustive]
    Declines {
        /// What it answers: `OOM`, `NOREPLICAS`, `MISCONF`.
        code: String,
    },
    /// A script is not there, and the handle [loads none](crate::Builder::preloaded_scripts).
    #[non_exhaustive]
    NotLoaded {
        /// Which one: `mutex/acquire`.
        script: String,
    },
    /// A script fails, or answers what it never answers.
    #[non_exhaustive]
    ScriptFails {
        /// Which one: `mutex/acquire`.
        script: String,
        /// What it fails with.
        code: String,
    },
    /// A request that gates need is refused for another reason than a right.
    #[non_exhaustive]
    CommandFails {
        /// Which one.
        command: String,
        /// What it fails with.
        code: String,
    },
    /// It may remove leases that are held, to make room.
    #[non_exhaustive]
    Evicts {
        /// Its `maxmemory-policy`.
        policy: String,
    },
    /// What is held is forgotten at a restart, in whole or in part.
    #[non_exhaustive]
    NotDurable {
        /// Whether it takes snapshots, and so forgets only what came after the last; `None` where it
        /// does not tell.
        snapshots: Option<bool>,
    },
    /// It has replicas, and confirms writes that none of them has.
    #[non_exhaustive]
    UnconfirmedWrites {
        /// How many.
        replicas: u32,
    },
    /// Fewer replicas are in reach than have to acknowledge each lease: see
    /// [`Builder::min_replicas`](crate::Builder::min_replicas).
    #[non_exhaustive]
    TooFewReplicas {
        /// How many are.
        online: u32,
        /// How many have to.
        least: u32,
    },
    /// It is slow to answer, as measured by the handle's `command_timeout`.
    #[non_exhaustive]
    Slow {
        /// The median of a few round trips.
        round_trip: Duration,
        /// The setting.
        command_timeout: Duration,
    },
    /// The handle has a pool and no subscriber: waiters ask again by a timer.
    NoSubscriber,
    /// There is no connection to the subscriber, or it refuses to subscribe.
    #[non_exhaustive]
    SubscriberFails {
        /// Why.
        cause: String,
    },
    /// What is published is not heard by the subscriber, which is another server.
    Unheard,
    /// Sentinels do not answer: should the others be lost, a failover is not followed.
    #[non_exhaustive]
    SilentSentinels {
        /// How many there are.
        known: usize,
        /// How many of them do not answer.
        silent: usize,
    },
    /// The user at the sentinels may not listen to them.
    UntoldFailovers,
    /// Of one server of a [quorum](crate::quorum). What would be a [problem](Severity::Problem)
    /// elsewhere is a warning here: that server has no vote, and a minority may lack theirs.
    #[non_exhaustive]
    AtServer {
        /// Which one, from 1, in the order in which they were named.
        server: usize,
        /// What was found there.
        finding: Box<Self>,
    },
    /// It could not be asked.
    #[non_exhaustive]
    Unasked {
        /// Why.
        cause: String,
    },
    /// So few servers of a quorum fit that it lets nobody in.
    #[non_exhaustive]
    NoMajority {
        /// How many servers fit.
        usable: usize,
        /// How many have to.
        needed: usize,
    },
    /// A quorum of an even number of servers, which tolerates no more failures than one less.
    #[non_exhaustive]
    EvenNumber {
        /// How many there are.
        servers: usize,
    },
    /// Two addresses of a quorum lead to one server, which has one vote.
    #[non_exhaustive]
    SameServer {
        /// The other one, from 1.
        other: usize,
    },
    /// It may have lost leases of a quorum in a restart or a failover, and has no vote until they
    /// have ended: see [`Builder::quarantine`](crate::Builder::quarantine).
    #[non_exhaustive]
    TooYoung {
        /// For how long it surely has had its data.
        age: Duration,
    },
    /// It does not tell for how long it has run, which the
    /// [quarantine](crate::Builder::quarantine) relies on.
    Ageless,
    /// A restart makes it forget leases of a quorum, and nothing keeps it from giving its vote again:
    /// the [quarantine](crate::Builder::quarantine) is off.
    Forgetful,
    /// It answers too late for its vote to count, or nearly so.
    #[non_exhaustive]
    SlowVote {
        /// The median of a few round trips.
        round_trip: Duration,
        /// How long it has for its vote, at gates with the default TTL.
        server_timeout: Duration,
    },
    /// It does not tell.
    #[non_exhaustive]
    Unknown {
        /// What it does not tell.
        what: &'static str,
        /// By which command it would.
        command: &'static str,
    },
}

impl Finding {
    /// How bad it is.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        match self {
            Self::MissingRight { severity, .. } => *severity,
            Self::AtServer { finding, .. } => match finding.severity() {
                Severity::Problem => Severity::Warning,
                milder => milder,
            },
            Self::Replica
            | Self::Cluster
            | Self::Unasked { .. }
            | Self::NoMajority { .. }
            | Self::SameServer { .. }
            | Self::TooOld { .. }
            | Self::Declines { .. }
            | Self::NotLoaded { .. }
            | Self::ScriptFails { .. }
            | Self::CommandFails { .. } => Severity::Problem,
            Self::Evicts { .. }
            | Self::NotDurable { .. }
            | Self::UnconfirmedWrites { .. }
            | Self::TooFewReplicas { .. }
            | Self::Slow { .. }
            | Self::NoSubscriber
            | Self::SubscriberFails { .. }
            | Self::SilentSentinels { .. }
            | Self::UntoldFailovers
            | Self::EvenNumber { .. }
            | Self::TooYoung { .. }
            | Self::Ageless
            | Self::Forgetful
            | Self::SlowVote { .. }
            | Self::Unheard => Severity::Warning,
            Self::Unknown { .. } => Severity::Note,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingRight { rule, severity } => {
                write!(f, "the server's user lacks `{rule}`; ")?;
                f.write_str(without(rule, *severity))?;
                f.write_str("; see the ACL in SECURITY.md")
            }
            Self::Replica => f.write_str(
                "the server is a replica and takes no writes; name the address of its master",
            ),
            Self::Cluster => f.write_str(
                "the server is a node of a cluster; give the address of the cluster, redis+cluster://",
            ),
            Self::TooOld { version } => write!(
                f,
                "the server's version is {version}; take Redis 6.2 or later, or Valkey"
            ),
            Self::Declines { code } => {
                let what = match &**code {
                    "OOM" => "it is out of memory; raise its maxmemory, or let it hold less",
                    "NOREPLICAS" => "too few replicas are in reach; see its min-replicas-to-write",
                    "MISCONF" => "it can't persist its data; see its log",
                    _ => "see its log",
                };
                write!(f, "the server declines to write ({code}): {what}")
            }
            Self::NotLoaded { script } => write!(
                f,
                "the script {script} is not on the server, and this handle brings it none; load \
                 those of this release on every server that may be the master (see \
                 `portcullis::scripts`)"
            ),
            Self::ScriptFails { script, code } => write!(
                f,
                "the script {script} fails ({code}); is the server Redis 6.2 or later, or Valkey, \
                 with no command renamed?"
            ),
            Self::CommandFails { command, code } => write!(
                f,
                "the command {command} fails ({code}); is the server Redis 6.2 or later, or Valkey, \
                 with no command renamed?"
            ),
            Self::Evicts { policy } => write!(
                f,
                "the server may evict keys that are held (maxmemory-policy {policy}); set it to \
                 noeviction"
            ),
            Self::NotDurable {
                snapshots: Some(true),
            } => f.write_str(
                "a restart of the server forgets what was held since its last snapshot, and gives \
                 it anew; set appendonly yes",
            ),
            Self::NotDurable { snapshots: None } => f.write_str(
                "a restart of the server forgets what was held, all of it or what came after a \
                 snapshot, and gives it anew; set appendonly yes",
            ),
            Self::NotDurable {
                snapshots: Some(false),
            } => f.write_str(
                "a restart of the server forgets all that was held, and gives it anew; set \
                 appendonly yes",
            ),
            Self::UnconfirmedWrites { .. } => f.write_str(
                "a failover to a replica may forget what was held, and give it anew; take \
                 `min_replicas`, or set min-replicas-to-write 1",
            ),
            Self::TooFewReplicas { online, least } => write!(
                f,
                "{online} of the {least} replicas are in reach that have to acknowledge each lease \
                 (min_replicas), so all are refused; see why they are not connected"
            ),
            Self::Slow {
                round_trip,
                command_timeout,
            } => write!(
                f,
                "the server takes {} ms to answer, of a command_timeout of {} ms; raise that, or \
                 move closer",
                round_trip.as_millis(),
                command_timeout.as_millis()
            ),
            Self::NoSubscriber => f.write_str(
                "a pool can't receive pushes, so waiters ask again every 100 to 250 ms; name its \
                 server to `subscriber` too",
            ),
            Self::SubscriberFails { cause } => write!(
                f,
                "there is no subscription ({cause}), so waiters ask again every 100 to 250 ms; check \
                 the subscriber's address"
            ),
            Self::Unheard => f.write_str(
                "what is published is not heard, so waiters ask again every few seconds; let \
                 `subscriber` name the pool's server, and no replica of it",
            ),
            Self::SilentSentinels { known, silent } => write!(
                f,
                "{silent} of {known} sentinels do not answer; check that they run, and their \
                 addresses"
            ),
            Self::UntoldFailovers => f.write_str(
                "a sentinel's user may not listen, so a failover is noticed by asking every second; \
                 add `+subscribe &+switch-master &+promoted-slave`",
            ),
            Self::AtServer { server, finding } => {
                write!(f, "server {server}")?;
                if finding.severity() == Severity::Problem {
                    f.write_str(" has no vote")?;
                }
                f.write_str(": ")?;
                match &**finding {
                    Self::Cluster => f.write_str(
                        "the server is a node of a cluster, whose nodes fail over to each other; name \
                         a server of its own",
                    ),
                    other => other.fmt(f),
                }
            }
            Self::Unasked { cause } => write!(f, "it could not be asked: {cause}"),
            Self::NoMajority { usable, needed } => write!(
                f,
                "{usable} of the {needed} servers fit that are needed to let anybody in; see to the \
                 others"
            ),
            Self::EvenNumber { servers } => write!(
                f,
                "a quorum of {servers} servers tolerates no more failures than one of {}; name an odd \
                 number",
                servers.saturating_sub(1)
            ),
            Self::SameServer { other } => write!(
                f,
                "its address leads to server {other}, which has one vote; name independent servers"
            ),
            Self::TooYoung { age } => write!(
                f,
                "the server may have lost leases {} s ago, in a restart or a failover, so it has no \
                 vote at gates whose TTL is longer, until that is over",
                age.as_secs()
            ),
            Self::Ageless => f.write_str(
                "the server does not tell for how long it has run, so it has no vote until a TTL after \
                 each connection; let its user run INFO",
            ),
            Self::Forgetful => f.write_str(
                "a restart of the server forgets what was held, and the quarantine is off that would \
                 keep it from voting until that has ended; turn it on, or set appendonly yes and \
                 appendfsync always",
            ),
            Self::SlowVote {
                round_trip,
                server_timeout,
            } => write!(
                f,
                "the server takes {} ms to answer, and has {} ms for its vote (server_timeout); raise \
                 that, or move closer",
                round_trip.as_millis(),
                server_timeout.as_millis()
            ),
            Self::Unknown { what, command } => write!(
                f,
                "the server does not tell its {what}; let its user run {command}, or look there"
            ),
        }
    }
}

/// What becomes of gates where a right is missing.
fn without(rule: &str, severity: Severity) -> &'static str {
    match rule {
        "+eval" | "+script|load" if severity == Severity::Problem => {
            "without either of `+eval` and `+script|load` no script gets to the server"
        }
        "+cluster|nodes" => "a master that was replaced may be believed for a moment",
        "+asking" => "rate limits are not told while their slot moves",
        "+publish" | "+subscribe" | "+spublish" | "+ssubscribe" => {
            "waiters ask again every 100 to 250 ms"
        }
        "+ping" => "each look after a silent subscription leaves a line in its ACL LOG",
        "+unsubscribe" => "a subscription to the channel of a key is never ended",
        "+eval" => "calls may fail for a moment after a SCRIPT FLUSH",
        "+script|exists" => "each new connection brings it all scripts, also those that it has",
        "+script|load" => "each script is sent whole when it is first needed",
        "+info" => "it can't be told whether the server evicts keys, persists or replicates",
        channel if channel.starts_with('&') && channel.ends_with(":released") => {
            "releases by other clients are found by a timer"
        }
        channel if channel.starts_with('&') => "waiters ask again every 100 to 250 ms",
        _ => "gates don't work without it",
    }
}
