//! State on a Redis or Valkey server.
//!
//! One background thread with a runtime of its own keeps the connections, the inbox, the waiters
//! and the renewals of a handle. So a guard can be dropped without a runtime and after its runtime
//! has ended, a blocked worker delays no renewal, and a handle can be shared by many short-lived
//! runtimes. Callers talk to it through a channel that never blocks.

mod acknowledger;
mod advice;
pub(super) mod backoff;
pub(super) mod call;
pub(super) mod check;
pub(super) mod clock;
mod cluster;
pub(super) mod core;
mod driver;
mod home;
pub(super) mod inbox;
pub(super) mod link;
mod links;
mod origin;
pub(super) mod recent;
pub(super) mod reply;
pub(super) mod script;
#[cfg(feature = "sentinel")]
mod sentinel;
mod subscription;
pub(super) mod weather;
pub(super) mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use self::check::Inspector;
use self::check::attend::{Look, attend};
pub(crate) use self::cluster::seeds::Seeds;
use self::core::{Asked, Command, Core};
use self::driver::Driver;
use self::home::Homes;
pub(crate) use self::origin::{Origin, Source};
pub(in crate::backend) use self::origin::{Reign, Term};
pub(crate) use self::script::Script;
use super::errand::{Errand, ThreadPlace};
use super::local::Local;
use super::{
    Acquire, Backend, CheckAnswer, Keep, Place, ReleaseAnswer, ShutdownReport, Take, Taking, Terms,
    thread,
};
use crate::error::ConfigError;
use crate::key::{Prefix, Resource, Subject};
use crate::time::Clock;
use crate::token::{Instance, Token};

/// What a user can set of the connections.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) connections: usize,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) admission_budget: Duration,
    pub(crate) replicas: Option<Replicas>,
    /// Whether somebody else brings the scripts to the server.
    pub(crate) preloaded: bool,
    /// Whether requests go through a client that may send them again by itself, also one that was
    /// answered meanwhile.
    pub(crate) repeats: bool,
}

/// How many replicas have to have a grant before it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replicas {
    pub(crate) least: u32,
    /// How long they have to acknowledge it.
    pub(crate) patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: 2,
            command_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(1),
            admission_budget: Duration::from_millis(100),
            replicas: None,
            preloaded: false,
            repeats: false,
        }
    }
}

impl Settings {
    /// How long a thread spends on what is left when nobody is.
    pub(super) fn grace(&self) -> Duration {
        self.connect_timeout + 2 * self.command_timeout
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let timeouts = Duration::from_millis(10)..=Duration::from_secs(60);
        if !(1..=4).contains(&self.connections) {
            return Err(ConfigError::out_of_range(
                "connections",
                self.connections,
                "1 to 4",
            ));
        }
        for (field, timeout) in [
            ("command_timeout", self.command_timeout),
            ("connect_timeout", self.connect_timeout),
            ("admission_budget", self.admission_budget),
        ] {
            if !timeouts.contains(&timeout) {
                return Err(ConfigError::out_of_range(
                    field,
                    format!("{timeout:?}"),
                    "10 ms to 60 s",
                ));
            }
        }
        let Some(replicas) = &self.replicas else {
            return Ok(());
        };
        if !(1..=16).contains(&replicas.least) {
            let field = "min_replicas";
            return Err(ConfigError::out_of_range(field, replicas.least, "1 to 16"));
        }
        let patience = Duration::from_millis(1)..=Duration::from_secs(60);
        if !patience.contains(&replicas.patience) {
            return Err(ConfigError::out_of_range(
                "the timeout of min_replicas",
                format!("{:?}", replicas.patience),
                "1 ms to 60 s",
            ));
        }
        Ok(())
    }
}

/// The way to one gate on the server.
type Seat = ThreadPlace<Command>;

/// A handle's way to its background thread.
pub(crate) struct ServerBackend {
    commands: UnboundedSender<Command>,
    looks: UnboundedSender<Look>,
    homes: Arc<Homes>,
    local: Local,
}

impl ServerBackend {
    pub(crate) fn start(
        origin: Origin,
        prefix: &Prefix,
        mut settings: Settings,
    ) -> Result<Arc<dyn Backend>, ConfigError> {
        settings.check()?;
        settings.repeats = origin.seeds().is_some_and(Seeds::has_pool);
        if origin.seeds().is_some() && settings.replicas.is_some() {
            let problem = "it is not known to a cluster yet; let the masters insist on their \
                           replicas, by min-replicas-to-write";
            return Err(ConfigError::new("min_replicas", problem));
        }
        let instance = Instance::draw()?;
        let (commands, receiver) = unbounded_channel();
        let (looks, ordered) = unbounded_channel();
        let inspector = Inspector {
            origin: origin.clone(),
            settings: settings.clone(),
            prefix: prefix.clone(),
        };
        let core = match origin.seeds() {
            None => Core::new(settings.clone()),
            Some(_) => Core::of_many(settings.clone()),
        };
        let (homes, attended) = Homes::new();
        let (driver, events) = Driver::new(
            core,
            origin,
            settings,
            instance,
            prefix.clone(),
            Arc::clone(&homes),
        );
        let work = async move || {
            let looking = tokio::spawn(attend(inspector, ordered));
            // Ends with the thread: who still keeps something holds a sender of commands.
            tokio::spawn(home::attend(attended));
            driver.run(receiver, events).await;
            // Fails if it panicked, of which nothing follows for anybody here.
            let _ = looking.await;
        };
        thread::start(work)?;
        Ok(Arc::new(Self {
            commands,
            looks,
            homes,
            local: Local::default(),
        }))
    }
}

impl Backend for ServerBackend {
    fn place(&self, resource: Resource) -> Arc<dyn Place> {
        Arc::new(ServerPlace {
            seat: Seat::new(&self.commands, Arc::new(resource)),
            homes: Arc::clone(&self.homes),
        })
    }

    fn home(&self, resource: Resource, keep: Keep, limit: u32) -> Arc<dyn Place> {
        self.homes.of(resource, keep, limit, &self.commands)
    }

    fn take(&self, subject: &Arc<Subject>, take: Take) -> Taking {
        let (sender, answer) = oneshot::channel();
        // Fails as the backend's own sending does.
        let _ = self.commands.send(Command::Take {
            take: Box::new(Asked {
                subject: Arc::clone(subject),
                take,
                commands: self.commands.clone(),
            }),
            answer: sender,
        });
        Taking::Waiting(answer)
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
        self.homes.close();
        // The thread outlives every handle, so this only fails if it has panicked; then all futures
        // say so.
        let _ = self
            .commands
            .send(Errand::Shutdown { deadline, answer }.into());
    }
}

impl fmt::Debug for ServerBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBackend").finish_non_exhaustive()
    }
}

impl Drop for ServerBackend {
    /// No gate is left, so nobody asks for what is kept.
    fn drop(&mut self) {
        self.homes.close();
    }
}

/// One gate on the server, for who keeps nothing of it.
struct ServerPlace {
    seat: Seat,
    /// Where others of this process may keep permits of the same gate.
    homes: Arc<Homes>,
}

impl Place for ServerPlace {
    fn acquire(&self, myself: &Arc<dyn Place>, terms: &Terms) -> Acquire {
        match self.homes.beside(self.seat.resource()) {
            Some(home) => home.pass_by(terms),
            None => self.seat.acquire(myself, terms),
        }
    }

    fn cancel(&self, token: Token) {
        self.seat.cancel(token);
    }

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        self.seat.release(token, answer);
    }
}

impl fmt::Debug for ServerPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerPlace")
            .field(&self.seat.resource().gate)
            .finish()
    }
}
