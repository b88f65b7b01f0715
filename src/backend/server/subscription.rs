//! One connection that listens.
//!
//! The protocol is that of the address: RESP2, which all that speak Redis' protocol know, unless it
//! asks for RESP3. Neither needs `HELLO` unless it is asked for. Channels of slots, on the nodes of a
//! cluster, are listened to in RESP3, since the client knows them in no other.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use redis::aio::{MultiplexedConnection, PubSub, PubSubSink};
use redis::{Cmd, Msg, Pipeline, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Settings;
use super::link::timed_out;

/// Closed when it is dropped.
pub(super) struct Subscription {
    wire: Wire,
    patience: Duration,
}

enum Wire {
    Plain {
        requests: PubSubSink,
        /// One task, which delivers until the connection ends.
        delivery: JoinSet<()>,
    },
    Slots {
        connection: MultiplexedConnection,
        /// Told when the connection has ended.
        cut: Arc<Notify>,
    },
}

impl Subscription {
    /// Delivers from a task of its own: a grant must not wait for the answer to a request.
    pub(super) fn new(
        opened: PubSub,
        settings: &Settings,
        deliver: impl Fn(Msg) + Send + 'static,
    ) -> Self {
        let (requests, mut messages) = opened.split();
        let mut delivery = JoinSet::new();
        delivery.spawn(async move {
            let mut next = async || {
                std::future::poll_fn(|context| Pin::new(&mut messages).poll_next(context)).await
            };
            while let Some(message) = next().await {
                deliver(message);
            }
        });
        Self {
            wire: Wire::Plain { requests, delivery },
            patience: settings.command_timeout,
        }
    }

    /// One that was opened to listen to channels of slots, and delivers by itself.
    pub(super) fn to_slots(
        connection: MultiplexedConnection,
        cut: Arc<Notify>,
        settings: &Settings,
    ) -> Self {
        Self {
            wire: Wire::Slots { connection, cut },
            patience: settings.command_timeout,
        }
    }

    /// Returns when the server has confirmed.
    pub(super) async fn subscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        match &mut self.wire {
            Wire::Plain { requests, .. } => {
                bounded(self.patience, requests.subscribe(channel)).await
            }
            Wire::Slots { connection, .. } => {
                bounded(self.patience, connection.subscribe(channel)).await
            }
        }
    }

    pub(super) async fn unsubscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        match &mut self.wire {
            Wire::Plain { requests, .. } => {
                bounded(self.patience, requests.unsubscribe(channel)).await
            }
            Wire::Slots { connection, .. } => {
                bounded(self.patience, connection.unsubscribe(channel)).await
            }
        }
    }

    /// Asks for an answer, which may be a no: somebody is there, all the same.
    pub(super) async fn ping(&mut self) -> Result<Value, RedisError> {
        match &mut self.wire {
            Wire::Plain { requests, .. } => bounded(self.patience, requests.ping()).await,
            Wire::Slots { .. } => {
                let mut ping = Pipeline::new();
                ping.cmd("PING");
                let answer = self.ask(&ping).await?.pop().unwrap_or(Value::Nil);
                match answer {
                    // Said by the server of a channel, and taken for the answer to this.
                    Value::Push { .. } => Err(out_of_step()),
                    answer => Ok(answer),
                }
            }
        }
    }

    /// Joins the channel of a slot.
    pub(super) async fn join_slot(&mut self, channel: &str) -> Result<(), RedisError> {
        let mut join = Pipeline::new();
        join.cmd("SSUBSCRIBE").arg(channel);
        let answer = self.ask(&join).await?.pop().unwrap_or(Value::Nil);
        answer.extract_error().map(drop)
    }

    /// What the server answers to each of some commands.
    pub(super) async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        match &mut self.wire {
            Wire::Slots { connection, .. } => {
                let asking = connection.send_packed_commands(commands, 0, commands.len());
                bounded(self.patience, asking).await
            }
            Wire::Plain { .. } => Err(out_of_step()),
        }
    }

    /// Asks one thing.
    pub(super) async fn ask_one(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        let mut commands = Pipeline::new();
        commands.add_command(command.clone());
        let mut answers = self.ask(&commands).await?;
        Ok(answers.pop().unwrap_or(Value::Nil))
    }

    /// Returns when the connection has ended.
    pub(super) async fn ended(&mut self) {
        match &mut self.wire {
            Wire::Plain { delivery, .. } => {
                delivery.join_next().await;
            }
            Wire::Slots { cut, .. } => cut.notified().await,
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

/// Answers are no longer those to the requests before them.
pub(super) fn out_of_step() -> RedisError {
    let what = "an answer to something else";
    (redis::ErrorKind::UnexpectedReturnType, what).into()
}

async fn bounded<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let answer = timeout(patience, work).await;
    answer.unwrap_or_else(|_| Err(timed_out()))
}
