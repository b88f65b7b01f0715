//! State on a Redis or Valkey server.
//!
//! One background thread with a runtime of its own keeps the connections, the inbox, the waiters
//! and the renewals of a handle. So a guard can be dropped without a runtime and after its runtime
//! has ended, a blocked worker delays no renewal, and a handle can be shared by many short-lived
//! runtimes. Callers talk to it through a channel that never blocks.

mod call;
mod clock;
mod core;
mod driver;
mod inbox;
mod link;
mod reply;
mod script;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::ConnectionInfo;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use self::core::{Command, Core};
use self::driver::{Driver, Event};
pub(crate) use self::link::Origin;
use super::{Acquire, Backend, ReleaseAnswer, Request, ShutdownReport};
use crate::error::{BackendError, BackendErrorKind, ConfigError};
use crate::key::Prefix;
use crate::lease::LeaseState;
use crate::token::{Instance, Token};

/// What a user can set of the connections.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) connections: usize,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: 2,
            command_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_secs(1),
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ConfigError> {
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
        ] {
            if !timeouts.contains(&timeout) {
                return Err(ConfigError::out_of_range(
                    field,
                    format!("{timeout:?}"),
                    "10 ms to 60 s",
                ));
            }
        }
        Ok(())
    }
}

/// A handle's way to its background thread.
pub(crate) struct ServerBackend {
    commands: UnboundedSender<Command>,
    myself: Weak<Self>,
}

impl ServerBackend {
    pub(crate) fn start(
        origin: Origin,
        subscriber: Option<ConnectionInfo>,
        prefix: &Prefix,
        settings: Settings,
    ) -> Result<Arc<dyn Backend>, ConfigError> {
        settings.check()?;
        let subscriber = match &origin {
            Origin::Server(info) => Some(subscriber.unwrap_or_else(|| info.clone())),
            Origin::Pool(_) => subscriber,
        };
        let instance = Instance::draw()?;
        let (commands, receiver) = unbounded_channel();
        let backend = Arc::new_cyclic(|myself| Self {
            commands,
            myself: Weak::clone(myself),
        });
        let core = Core::new(Weak::<Self>::clone(&backend.myself), settings.clone());
        let (driver, events) =
            Driver::new(core, origin, subscriber, settings, instance, prefix.clone());
        start_thread(driver, receiver, events).map_err(|error| {
            ConfigError::new(
                "background thread",
                format!("it can't be started ({error})"),
            )
        })?;
        Ok(backend)
    }

    /// The thread outlives every handle, so this only fails if it has panicked; then all futures
    /// say so.
    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

/// Starts the background thread. It makes its runtime itself: one that could not be handed over
/// would be dropped here, and runtimes must not be dropped on another's threads.
fn start_thread(
    driver: Driver,
    commands: UnboundedReceiver<Command>,
    events: UnboundedReceiver<Event>,
) -> std::io::Result<()> {
    let (started, result) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .name("portcullis".to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            // Who started this waits for it.
            match runtime {
                Ok(runtime) => {
                    let _ = started.send(Ok(()));
                    runtime.block_on(driver.run(commands, events));
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        })?;
    result
        .recv()
        .unwrap_or_else(|_| Err(std::io::ErrorKind::BrokenPipe.into()))
}

impl Backend for ServerBackend {
    fn acquire(&self, request: Request) -> Acquire {
        let (Ok(token), Some(backend)) = (Token::draw(), self.myself.upgrade()) else {
            let text = "the system gives no random numbers, so no token can be drawn";
            let error = BackendError::new(BackendErrorKind::Refused, text, None);
            return Acquire::ready(Err(error.into()));
        };
        let (sender, answer) = oneshot::channel();
        self.tell(Command::Acquire {
            token,
            request,
            answer: sender,
        });
        Acquire::new(answer, backend, token)
    }

    fn cancel(&self, token: Token) {
        self.tell(Command::Cancel(token));
    }

    fn release(&self, lease: &Arc<LeaseState>, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        self.tell(Command::Release {
            token: lease.token(),
            answer,
        });
    }

    fn shutdown(&self, deadline: Duration, answer: oneshot::Sender<ShutdownReport>) {
        self.tell(Command::Shutdown { deadline, answer });
    }
}

impl fmt::Debug for ServerBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBackend").finish_non_exhaustive()
    }
}
