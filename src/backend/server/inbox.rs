//! The subscription on which this process is told of its grants.
//!
//! A connection of its own, never a pooled one, kept up by this task: confirmed before anybody
//! relies on it, asked for an answer while it is silent (a send into a dead connection succeeds),
//! and replaced when it fails.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{Msg, RedisError};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::sleep;

use super::Settings;
use super::backoff::Backoff;
use super::core::Channel;
use super::origin::{Origin, Term, moved};
use super::reply::Failure;
use super::subscription::Subscription;
use crate::error::BackendErrorKind;
use crate::time::CLAIM;
use crate::token::Instance;

/// How often a silent subscription is asked for an answer: a deaf one costs a waiter no more than a
/// hung process would.
const HEALTH: Duration = CLAIM;
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// So many attempts fail before it is no hiccup.
const ATTEMPTS: u32 = 7;
/// How long until channels that were forbidden are tried again.
const FORBIDDEN: Duration = Duration::from_secs(60);

/// What becomes of the subscription.
#[derive(Debug)]
pub(in crate::backend) enum Inbox {
    Up,
    Down,
    /// It can't be had for longer than a hiccup; again with each further attempt.
    Failing(RedisError),
    /// The server's user may not use channels.
    Forbidden(RedisError),
    Message {
        term: Term,
        channel: String,
        text: Vec<u8>,
    },
}

/// `T` tells the driver what becomes of it.
pub(in crate::backend) struct Listener<T> {
    pub(in crate::backend) origin: Arc<Origin>,
    pub(in crate::backend) settings: Settings,
    /// The process' own channel.
    pub(in crate::backend) channel: String,
    pub(in crate::backend) instance: Instance,
    pub(in crate::backend) tell: T,
    pub(in crate::backend) changes: UnboundedReceiver<Channel>,
}

impl<T: Fn(Inbox) + Clone + Send + Sync + 'static> Listener<T> {
    /// Runs until the driver is gone.
    pub(in crate::backend) async fn run(mut self) {
        let mut joined = HashSet::new();
        let mut attempts = 0;
        loop {
            let term = self.origin.term();
            match self.listen(&mut joined).await {
                Ok(Gone) => return,
                Err(Broken { error, was_up }) => {
                    if was_up {
                        attempts = 0;
                        self.tell(Inbox::Down);
                    }
                    let mut pause = RETRY.pause(attempts, self.instance.jitter(attempts));
                    attempts += 1;
                    if forbids(&error) {
                        self.tell(Inbox::Forbidden(error));
                        pause = FORBIDDEN;
                    } else {
                        tracing::debug!(code = error.code(), "the subscription failed");
                        if attempts >= ATTEMPTS {
                            self.tell(Inbox::Failing(error));
                        }
                    }
                    if !self.wait(pause, term, &mut joined).await {
                        return;
                    }
                }
            }
        }
    }

    fn tell(&self, inbox: Inbox) {
        (self.tell)(inbox);
    }

    /// Lets time pass, but no more of the term, taking note of the channels asked for. False when the
    /// driver is gone.
    async fn wait(&mut self, pause: Duration, term: Term, joined: &mut HashSet<Box<str>>) -> bool {
        let origin = Arc::clone(&self.origin);
        let (pause, left) = (sleep(pause), origin.left(term));
        tokio::pin!(pause, left);
        loop {
            tokio::select! {
                () = &mut pause => return true,
                () = &mut left => return true,
                change = self.changes.recv() => match change {
                    Some(Channel::Join(channel)) => { joined.insert(channel); }
                    Some(Channel::Leave(channel)) => { joined.remove(&channel); }
                    None => return false,
                },
            }
        }
    }

    /// Listens until the connection fails or the driver is gone.
    async fn listen(&mut self, joined: &mut HashSet<Box<str>>) -> Result<Gone, Broken> {
        let (mut subscription, term) = self.open().await.map_err(Broken::down)?;
        let origin = Arc::clone(&self.origin);
        let left = origin.left(term);
        tokio::pin!(left);
        let subscribed = subscription.subscribe(&self.channel).await;
        subscribed.map_err(Broken::down)?;
        // Before the channels of others: they may be many, and no grant waits for them.
        self.tell(Inbox::Up);
        for channel in joined.iter() {
            join(&mut subscription, channel).await.map_err(Broken::up)?;
        }
        loop {
            tokio::select! {
                () = subscription.ended() => return Err(Broken::up(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into())),
                // What a server tells that was replaced is nothing to wait for.
                () = &mut left => return Err(Broken::up(moved())),
                change = self.changes.recv() => match change {
                    Some(Channel::Join(channel)) => {
                        join(&mut subscription, &channel).await.map_err(Broken::up)?;
                        joined.insert(channel);
                    }
                    Some(Channel::Leave(channel)) => {
                        joined.remove(&channel);
                        tolerate(subscription.unsubscribe(&channel).await).map_err(Broken::up)?;
                    }
                    None => return Ok(Gone),
                },
                () = sleep(HEALTH) => {
                    subscription.ping().await.map_err(Broken::up)?;
                }
            }
        }
    }

    async fn open(&self) -> Result<(Subscription, Term), RedisError> {
        let tell = self.tell.clone();
        // Straight to the driver: a grant has one hop less to make.
        let deliver = move |term: Term, message: Msg| {
            tell(Inbox::Message {
                term,
                channel: message.get_channel_name().to_owned(),
                text: message.get_payload_bytes().to_vec(),
            });
        };
        self.origin.listen(&self.settings, deliver).await
    }
}

/// Listens to another client's channel too, if the server allows it: without it, its key is asked
/// for by a timer.
async fn join(subscription: &mut Subscription, channel: &str) -> Result<(), RedisError> {
    tolerate(subscription.subscribe(channel).await)
}

/// The driver is gone.
struct Gone;

struct Broken {
    error: RedisError,
    was_up: bool,
}

impl Broken {
    fn down(error: RedisError) -> Self {
        Self {
            error,
            was_up: false,
        }
    }

    fn up(error: RedisError) -> Self {
        Self {
            error,
            was_up: true,
        }
    }
}

/// One channel that is forbidden is no reason to give up the others.
fn tolerate(result: Result<(), RedisError>) -> Result<(), RedisError> {
    match result {
        Err(error) if forbids(&error) => {
            tracing::debug!(
                code = error.code(),
                "a channel for releases by other clients is forbidden"
            );
            Ok(())
        }
        other => other,
    }
}

/// Whether the server refuses the channel itself, so that trying again soon is no use.
fn forbids(error: &RedisError) -> bool {
    let server = redis::ServerError::try_from(error.clone());
    server.is_ok_and(|error| {
        matches!(
            Failure::of_server(error),
            // Credentials that are refused may be right again soon.
            Failure::Final(BackendErrorKind::NotPermitted, error) if error.code() == Some("NOPERM")
        )
    })
}
