//! Connections from a user's pool of clients that each lead to all nodes of a cluster.
//!
//! Such a client follows redirections by itself, and sends again what it got no answer to: until
//! its caller has gone, and up to sixteen times. So each link has a client of its own, each command
//! goes by itself (of several in one request, all would be sent again because one was sent on), and
//! to the node that the link is for. That an answered request may yet run again is known to the
//! core, as [`Settings::repeats`](crate::backend::server::Settings::repeats).

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use deadpool_redis::cluster::{ClusterConnection, Connection, Pool};
use deadpool_redis::{PoolError, TimeoutType, Timeouts};
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ConnectionInfo, Pipeline, RedisError, ServerError, Value};
use tokio::time::timeout;

use super::asking::no_address;
use super::redirect::Address;
use super::seeds::address;
use crate::backend::server::Settings;
use crate::backend::server::origin::{Tap, bounded, detach};

/// How long a pool that knows no time-outs may take to make a client.
const LONGEST: Duration = Duration::from_secs(5);

/// A client, and the node that is asked by it.
#[derive(Clone)]
pub(in crate::backend) struct ToNode {
    client: ClusterConnection,
    node: Address,
}

impl Tap for Pool {
    type Taken = ClusterConnection;

    /// To make a client is ended as well: it asks one node after the other.
    fn timeouts(&self, patience: Duration) -> Timeouts {
        bounded(Self::timeouts(self), patience)
    }

    async fn take(&self, timeouts: Option<&Timeouts>) -> Result<ClusterConnection, PoolError> {
        let connection = match timeouts {
            Some(timeouts) => self.timeout_get(timeouts).await,
            // Whoever comes next waits for the end of this.
            None => timeout(LONGEST, self.get())
                .await
                .unwrap_or(Err(PoolError::Timeout(TimeoutType::Create))),
        };
        connection.map(Connection::take)
    }
}

impl ToNode {
    /// Takes a client out of the pool, to ask a node.
    pub(in crate::backend::server) async fn take(
        pool: &Pool,
        node: &ConnectionInfo,
        settings: &Settings,
    ) -> Result<Self, RedisError> {
        let node = address(node.addr()).ok_or_else(no_address)?;
        let client = detach(pool.clone(), settings.connect_timeout).await?;
        Ok(Self { client, node })
    }

    pub(in crate::backend::server) async fn send(&self, cmd: &Cmd) -> Result<Value, RedisError> {
        let (host, port) = (self.node.host.clone(), self.node.port);
        let node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::ByAddress { host, port });
        let mut client = self.client.clone();
        match client.route_command(cmd.clone(), node).await {
            // What the server says is an answer, as over a connection of our own.
            Err(error) => ServerError::try_from(error).map(Value::ServerError),
            answer => answer,
        }
    }

    /// All at once, and in their order unless one has to be sent again.
    ///
    /// Fails if one of them gets no answer: which of the others ran is unknown then.
    pub(in crate::backend::server) async fn send_all(
        &self,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, RedisError> {
        let send = |cmd: &Cmd| {
            let (node, cmd) = (self.clone(), cmd.clone());
            Step::Asking(Box::pin(async move { node.send(&cmd).await }))
        };
        let mut steps: Vec<Step> = pipeline.cmd_iter().map(send).collect();
        poll_fn(|context| {
            let mut is_done = true;
            for step in &mut steps {
                if let Step::Asking(asking) = step {
                    match asking.as_mut().poll(context) {
                        Poll::Ready(Ok(answer)) => *step = Step::Answered(answer),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => is_done = false,
                    }
                }
            }
            if is_done {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await?;
        let answer = |step| match step {
            Step::Answered(answer) => Some(answer),
            Step::Asking(_) => None,
        };
        Ok(steps.into_iter().filter_map(answer).collect())
    }
}

/// Without the client, which may print addresses.
impl fmt::Debug for ToNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToNode").finish_non_exhaustive()
    }
}

/// How far one of several requests is.
enum Step {
    Asking(Pin<Box<dyn Future<Output = Result<Value, RedisError>> + Send>>),
    Answered(Value),
}
