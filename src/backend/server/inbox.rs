//! The subscription on which this process is told of its grants.
//!
//! A connection of its own, never a pooled one, kept up by this task: confirmed before anybody
//! relies on it, asked for an answer while it is silent (a send into a dead connection succeeds),
//! and replaced when it fails. In a cluster there is one for each node at which somebody waits,
//! with a channel for each tag.

mod channels;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, Msg, PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;

use super::backoff::Backoff;
use super::cluster::redirect::Redirect;
use super::core::{Channel, Topic};
use super::origin::{Origin, Term, moved};
use super::reply::Failure;
use super::script::Publish;
use super::subscription::Subscription;
use super::{Settings, link};
use crate::error::BackendErrorKind;
use crate::key::{Prefix, Tag};
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
/// How many channels are joined in one round trip.
const BATCH: usize = 64;
/// How soon a tag's channel that could not be had is tried again: its slot may be on its way.
const AGAIN: Duration = Duration::from_millis(100);

/// What becomes of the subscription.
#[derive(Debug)]
pub(in crate::backend) enum Inbox {
    Up,
    Down,
    /// It can't be had for longer than a hiccup; again with each further attempt.
    Failing(RedisError),
    /// The server's user may not use channels.
    Forbidden(RedisError),
    /// A tag's own channel was confirmed, or is lost.
    Heard {
        tag: Tag,
        listening: bool,
    },
    /// A tag's own channel is another node's.
    Moved(Redirect),
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
    pub(in crate::backend) prefix: Prefix,
    pub(in crate::backend) instance: Instance,
    /// Whether it listens at a node of a cluster.
    pub(in crate::backend) in_cluster: bool,
    pub(in crate::backend) tell: T,
    pub(in crate::backend) changes: UnboundedReceiver<Channel>,
}

/// What is to be heard, and what of it is not yet.
#[derive(Debug, Default)]
struct Topics {
    joined: HashSet<Topic>,
    missing: HashSet<Tag>,
}

impl Topics {
    fn change(&mut self, change: Channel) {
        match change {
            Channel::Join(topic) => {
                self.joined.insert(topic);
            }
            Channel::Leave(topic) => {
                self.joined.remove(&topic);
            }
        }
    }
}

/// A connection that is up.
struct Session {
    subscription: Subscription,
    publish: Publish,
}

impl<T: Fn(Inbox) + Clone + Send + Sync + 'static> Listener<T> {
    /// Runs until the driver is gone.
    pub(in crate::backend) async fn run(mut self) {
        let mut topics = Topics::default();
        let mut attempts = 0;
        loop {
            let term = self.origin.term();
            match self.listen(&mut topics).await {
                Ok(Gone) => return,
                Err(Broken { error, was_up }) => {
                    topics.missing.clear();
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
                    if !self.wait(pause, term, &mut topics).await {
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
    async fn wait(&mut self, pause: Duration, term: Term, topics: &mut Topics) -> bool {
        let origin = Arc::clone(&self.origin);
        let (pause, left) = (sleep(pause), origin.left(term));
        tokio::pin!(pause, left);
        loop {
            tokio::select! {
                () = &mut pause => return true,
                () = &mut left => return true,
                change = self.changes.recv() => match change {
                    Some(change) => topics.change(change),
                    None => return false,
                },
            }
        }
    }

    /// Listens until the connection fails or the driver is gone.
    async fn listen(&mut self, topics: &mut Topics) -> Result<Gone, Broken> {
        let (lost, mut losses) = unbounded_channel();
        let (mut session, term) = self.begin(lost).await.map_err(Broken::down)?;
        let origin = Arc::clone(&self.origin);
        let left = origin.left(term);
        tokio::pin!(left);
        // Before the channels of others: they may be many, and no grant waits for them.
        self.tell(Inbox::Up);
        let all: Vec<Topic> = topics.joined.iter().cloned().collect();
        self.join_all(&mut session, &all, topics)
            .await
            .map_err(Broken::up)?;
        loop {
            tokio::select! {
                () = session.subscription.ended() => return Err(Broken::up(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into())),
                // What a server tells that was replaced is nothing to wait for.
                () = &mut left => return Err(Broken::up(moved())),
                change = self.changes.recv() => {
                    let Some(change) = change else { return Ok(Gone) };
                    let mut changes = vec![change];
                    while changes.len() < BATCH && let Ok(change) = self.changes.try_recv() {
                        changes.push(change);
                    }
                    self.change(&mut session, changes, topics).await.map_err(Broken::up)?;
                }
                Some(channel) = losses.recv() => self.lost(&channel, topics),
                () = sleep(AGAIN), if !topics.missing.is_empty() => {
                    let missing: Vec<Topic> = topics.missing.iter().map(|tag| Topic::Grants(*tag)).collect();
                    self.join_all(&mut session, &missing, topics).await.map_err(Broken::up)?;
                }
                () = sleep(HEALTH) => {
                    session.subscription.ping().await.map_err(Broken::up)?;
                }
            }
        }
    }

    /// Opens a connection, and has this process' one channel confirmed, where it has one.
    async fn begin(&self, lost: UnboundedSender<String>) -> Result<(Session, Term), RedisError> {
        let ((mut subscription, term), mut publish) = if self.in_cluster {
            ((self.open_to_slots(lost).await?, 0), Publish::Sharded)
        } else {
            (self.open().await?, Publish::Plain)
        };
        if self.in_cluster {
            let mut info = Cmd::new();
            info.arg("INFO").arg("server");
            publish = link::publishes(&subscription.ask_one(&info).await?);
        }
        if publish == Publish::Plain {
            let channel = self.prefix.inbox(&self.instance);
            subscription.subscribe(&channel).await?;
        }
        let session = Session {
            subscription,
            publish,
        };
        Ok((session, term))
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

    async fn open_to_slots(
        &self,
        lost: UnboundedSender<String>,
    ) -> Result<Subscription, RedisError> {
        let tell = self.tell.clone();
        let cut = Arc::new(Notify::new());
        let told = Arc::clone(&cut);
        let receive = move |info: PushInfo| -> Result<(), ()> {
            match (info.kind, info.data.as_slice()) {
                (
                    PushKind::Message | PushKind::SMessage,
                    [Value::BulkString(channel), Value::BulkString(text)],
                ) => {
                    let channel = String::from_utf8_lossy(channel).into_owned();
                    let text = text.clone();
                    tell(Inbox::Message {
                        term: 0,
                        channel,
                        text,
                    });
                }
                (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                    let _ = lost.send(String::from_utf8_lossy(channel).into_owned());
                }
                (PushKind::Disconnection, _) => told.notify_one(),
                _ => {}
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new().set_push_sender(receive);
        let opened = self.origin.listen_to_slots(&self.settings, config).await?;
        Ok(Subscription::to_slots(opened, cut, &self.settings))
    }
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
