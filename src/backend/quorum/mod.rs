//! State on a majority of independent servers: the Redlock algorithm, with queues and pushes.
//!
//! Each server gives a vote of its own (`src/lua/quorum`), and whether enough of them are given is
//! decided here, on one background thread like a single server's. Its parts are those of a single
//! server wherever the idea is the same: origins, links, inboxes, clocks, failures, timers.

mod arrival;
mod call;
mod check;
mod core;
mod driver;
mod line;
mod reply;
pub(crate) mod rule;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use self::check::Panel;
use self::core::{Core, Options};
use self::driver::Driver;
pub(crate) use self::script::all as scripts;
use super::errand::{Errand, ThreadPlace};
use super::local::Local;
use super::server::check::attend::{Look, attend};
use super::server::{Origin, Settings};
use super::{
    Acquire, Backend, CheckAnswer, Place, ReleaseAnswer, ShutdownReport, Take, Taking, Terms,
    thread,
};
use crate::error::{BackendError, BackendErrorKind, ConfigError};
use crate::key::{Prefix, Resource, Subject};
use crate::time::Clock;
use crate::token::{Instance, Token};

/// The fewest servers of which one may fail, and the most that are worth asking.
const FEWEST: usize = 3;
const MOST: usize = 15;
/// So many requests are answered well within the time that a server has for its vote, and keep it
/// busy over any network that is near enough for a quorum.
const ROOM: usize = 128;
/// How long no prompt server is silent.
const SILENCE: Duration = Duration::from_millis(200);

/// What a user can set of a quorum.
#[derive(Debug, Clone)]
pub(crate) struct QuorumSettings {
    pub(crate) server_timeout: Option<Duration>,
    pub(crate) quarantine: bool,
}

impl Default for QuorumSettings {
    fn default() -> Self {
        Self {
            server_timeout: None,
            quarantine: true,
        }
    }
}

/// A handle's way to its background thread.
pub(crate) struct QuorumBackend {
    servers: usize,
    commands: UnboundedSender<Errand>,
    looks: UnboundedSender<Look>,
    local: Local,
}

impl QuorumBackend {
    pub(crate) fn start(
        origins: Vec<Origin>,
        prefix: &Prefix,
        settings: Settings,
        quorum: &QuorumSettings,
    ) -> Result<Arc<dyn Backend>, ConfigError> {
        settings.check()?;
        check(origins.len(), quorum)?;
        if settings.replicas.is_some() {
            let problem = "servers of a quorum need no replicas; take more servers";
            return Err(ConfigError::new("min_replicas", problem));
        }
        let silence = quorum
            .server_timeout
            .map_or(SILENCE, |timeout| (4 * timeout).max(SILENCE));
        let options = Options {
            server_timeout: quorum.server_timeout,
            silence,
            quarantine: quorum.quarantine,
            room: ROOM,
        };
        let instance = Instance::draw()?;
        let panel = Panel {
            origins: origins.clone(),
            settings: settings.clone(),
            prefix: prefix.clone(),
            options: options.clone(),
        };
        let (looks, ordered) = unbounded_channel();
        let (commands, receiver) = unbounded_channel();
        let servers = origins.len();
        let core = Core::new(servers, settings.clone(), options);
        let (driver, events) =
            Driver::new(core, origins, settings, silence, instance, prefix.clone());
        let work = async move || {
            let looking = tokio::spawn(attend(panel, ordered));
            driver.run(receiver, events).await;
            // Fails if it panicked, of which nothing follows for anybody here.
            let _ = looking.await;
        };
        thread::start(work)?;
        Ok(Arc::new(Self {
            servers,
            commands,
            looks,
            local: Local::default(),
        }))
    }
}

/// Refuses what is no quorum, and tells of what is a poor one.
fn check(servers: usize, quorum: &QuorumSettings) -> Result<(), ConfigError> {
    let problem = match servers {
        0 => "it names no server; name an odd number of independent servers, 3 or more",
        1 => "it names one server, which is no quorum; name it by `url`",
        2 => {
            "of two servers both are needed, so it fails as soon as one does; name an odd number of \
             independent servers, 3 or more"
        }
        FEWEST..=MOST => "",
        _ => "it takes 3 to 15 servers",
    };
    if !problem.is_empty() {
        return Err(ConfigError::new("quorum", problem));
    }
    if servers.is_multiple_of(2) {
        tracing::warn!(
            servers,
            "an even number of servers in a quorum tolerates no more failures than one less"
        );
    }
    let range = Duration::from_millis(1)..=Duration::from_secs(60);
    match quorum.server_timeout {
        Some(timeout) if !range.contains(&timeout) => Err(ConfigError::out_of_range(
            "server_timeout",
            format!("{timeout:?}"),
            "1 ms to 60 s",
        )),
        _ => Ok(()),
    }
}

/// What is offered on one server only.
fn unsupported(what: &str) -> BackendError {
    let text = format!("{what} over a quorum of servers; use a handle on one server");
    BackendError::new(BackendErrorKind::Unsupported, text, None)
}

impl Backend for QuorumBackend {
    fn place(&self, resource: Resource) -> Arc<dyn Place> {
        Arc::new(QuorumPlace {
            servers: self.servers,
            votes: ThreadPlace::new(&self.commands, Arc::new(resource)),
        })
    }

    fn take(&self, subject: &Arc<Subject>, _take: Take) -> Taking {
        let (sender, answer) = oneshot::channel();
        let what = format!("checking `{}`: rate limits are not kept", subject.limiter);
        let _ = sender.send(Err(unsupported(&what).into()));
        Taking::Waiting(answer)
    }

    fn servers(&self) -> usize {
        self.servers
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn local(&self) -> &Arc<dyn Backend> {
        self.local.get(&Clock::System)
    }

    fn check(&self, exact: Vec<String>, answer: CheckAnswer) {
        // Fails as a shutdown's sending does.
        let _ = self.looks.send(Look { exact, answer });
    }

    fn shutdown(&self, deadline: Duration, answer: oneshot::Sender<ShutdownReport>) {
        // The thread outlives every handle, so this only fails if it has panicked; then all futures
        // say so.
        let _ = self.commands.send(Errand::Shutdown { deadline, answer });
    }
}

impl fmt::Debug for QuorumBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumBackend")
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

/// One gate on all servers.
#[derive(Debug)]
struct QuorumPlace {
    servers: usize,
    votes: ThreadPlace<Errand>,
}

impl Place for QuorumPlace {
    fn acquire(&self, myself: &Arc<dyn Place>, terms: &Terms) -> Acquire {
        if rule::tolerated(self.servers, terms.limit) == 0 {
            let (servers, limit) = (self.servers, terms.limit);
            let text = format!(
                "acquiring `{}`: of {limit} permits a quorum of {servers} servers tolerates no \
                 failure; take fewer permits, or more servers",
                self.votes.resource().gate
            );
            let error = BackendError::new(BackendErrorKind::Unsupported, text, None);
            return Acquire::Ready(Err(error.into()));
        }
        self.votes.acquire(myself, terms)
    }

    fn cancel(&self, token: Token) {
        self.votes.cancel(token);
    }

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        self.votes.release(token, answer);
    }
}
