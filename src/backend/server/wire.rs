//! A connection for commands as all who send some see it: to one server, or by a user's client that
//! leads to all nodes of a cluster.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};

#[cfg(feature = "cluster")]
use super::cluster::pooled::ToNode;

/// Cheap to clone: all clones share one connection.
#[derive(Debug, Clone)]
pub(in crate::backend) enum Wire {
    Direct(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Pooled(ToNode),
}

impl Wire {
    /// As that of a [`MultiplexedConnection`].
    pub(in crate::backend) async fn send_packed_command(
        &mut self,
        cmd: &Cmd,
    ) -> Result<Value, RedisError> {
        match self {
            Self::Direct(connection) => connection.send_packed_command(cmd).await,
            #[cfg(feature = "cluster")]
            Self::Pooled(node) => node.send(cmd).await,
        }
    }

    /// As that of a [`MultiplexedConnection`].
    pub(in crate::backend) async fn send_packed_commands(
        &mut self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> Result<Vec<Value>, RedisError> {
        match self {
            Self::Direct(connection) => {
                let sending = connection.send_packed_commands(pipeline, offset, count);
                sending.await
            }
            #[cfg(feature = "cluster")]
            Self::Pooled(node) => {
                let mut answers = node.send_all(pipeline).await?;
                Ok(answers.drain(offset..).take(count).collect())
            }
        }
    }
}
