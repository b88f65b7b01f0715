//! One connection that listens.
//!
//! The protocol is that of the address: RESP2, which all that speak Redis' protocol know, unless it
//! asks for RESP3. Neither needs `HELLO` unless it is asked for.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use futures_core::Stream;
use redis::aio::{PubSub, PubSubSink};
use redis::{Msg, RedisError, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Settings;
use super::link::timed_out;

/// Closed when it is dropped.
pub(super) struct Subscription {
    requests: PubSubSink,
    /// One task, which delivers until the connection ends.
    delivery: JoinSet<()>,
    patience: Duration,
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
            requests,
            delivery,
            patience: settings.command_timeout,
        }
    }

    /// Returns when the server has confirmed.
    pub(super) async fn subscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        bounded(self.patience, self.requests.subscribe(channel)).await
    }

    pub(super) async fn unsubscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        bounded(self.patience, self.requests.unsubscribe(channel)).await
    }

    /// Asks for an answer, which may be a no: somebody is there, all the same.
    pub(super) async fn ping(&mut self) -> Result<Value, RedisError> {
        bounded(self.patience, self.requests.ping()).await
    }

    /// Returns when the connection has ended.
    pub(super) async fn ended(&mut self) {
        self.delivery.join_next().await;
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

async fn bounded<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let answer = timeout(patience, work).await;
    answer.unwrap_or_else(|_| Err(timed_out()))
}
