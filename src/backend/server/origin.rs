//! Where connections come from: those for commands, and the one for the subscription.
//!
//! Both are looked up anew at each attempt to connect, so who asks for them knows no topology.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    RedisError,
};
use tokio::time::timeout;

use super::Settings;
use super::link::{open, timed_out};
use crate::error::ConfigError;

/// Where commands go.
#[derive(Clone)]
pub(crate) enum Source {
    Server(Box<ConnectionInfo>),
    Pool(deadpool_redis::Pool),
}

impl Source {
    /// The server that is meant when none is named.
    pub(crate) fn local() -> Result<Self, ConfigError> {
        let info = "redis://127.0.0.1/".into_connection_info();
        info.map(|info| Self::Server(Box::new(info)))
            .map_err(|_| ConfigError::new("url", "the default address is not understood"))
    }
}

/// Without the address, which may hold a password.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server(_) => "Server",
            Self::Pool(_) => "Pool",
        })
    }
}

/// Where a handle's connections come from.
#[derive(Clone)]
pub(crate) struct Origin {
    source: Source,
    /// Where to listen, if that is not where commands go.
    subscriber: Option<Box<ConnectionInfo>>,
}

impl Origin {
    pub(crate) fn new(source: Source, subscriber: Option<ConnectionInfo>) -> Self {
        let subscriber = subscriber.map(Box::new);
        Self { source, subscriber }
    }

    /// Opens a connection for commands, on which nothing was said yet but who we are.
    pub(super) async fn connect(
        &self,
        settings: &Settings,
    ) -> Result<MultiplexedConnection, RedisError> {
        match &self.source {
            Source::Server(info) => {
                open((**info).clone(), settings, AsyncConnectionConfig::new()).await
            }
            Source::Pool(pool) => detach(pool.clone(), settings.connect_timeout).await,
        }
    }

    /// Whether there is a place to listen at: a pool can't receive pushes.
    pub(in crate::backend) const fn can_listen(&self) -> bool {
        self.subscriber.is_some() || matches!(self.source, Source::Server(_))
    }

    /// Opens a connection that receives pushes, as `config` says.
    pub(super) async fn listen(
        &self,
        settings: &Settings,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let info = match (&self.subscriber, &self.source) {
            (Some(info), _) | (None, Source::Server(info)) => (**info).clone(),
            (None, Source::Pool(_)) => {
                return Err((ErrorKind::InvalidClientConfig, "there is no subscriber").into());
            }
        };
        let redis = info.redis_settings().clone();
        let redis = redis.set_protocol(ProtocolVersion::RESP3);
        open(info.set_redis_settings(redis), settings, config).await
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin")
            .field("source", &self.source)
            .field("has_subscriber", &self.subscriber.is_some())
            .finish()
    }
}

/// Takes a connection out of a pool for good.
async fn detach(
    pool: deadpool_redis::Pool,
    patience: Duration,
) -> Result<MultiplexedConnection, RedisError> {
    // In a task of its own: a checkout that is dropped half-way destroys the connection it was
    // about to give. The pool itself ends a wait for a free place, or attempts would pile up in
    // front of an exhausted one.
    let mut timeouts = pool.timeouts();
    timeouts.wait = Some(timeouts.wait.map_or(patience, |wait| wait.min(patience)));
    let checkout = tokio::spawn(async move {
        let connection = match pool.timeout_get(&timeouts).await {
            // A pool that was built without a runtime knows no time-outs.
            Err(deadpool_redis::PoolError::NoRuntimeSpecified) => pool.get().await,
            other => other,
        };
        connection.map(deadpool_redis::Connection::take)
    });
    match timeout(patience, checkout).await {
        Ok(Ok(Ok(connection))) => Ok(connection),
        Ok(Ok(Err(deadpool_redis::PoolError::Backend(error)))) => Err(error),
        Ok(Ok(Err(_)) | Err(_)) => Err((ErrorKind::Io, "the pool gave no connection").into()),
        Err(_) => Err(timed_out()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_prints_no_password() {
        let info = "redis://user:secret@127.0.0.1/"
            .into_connection_info()
            .expect("a valid address");
        assert_eq!(
            format!("{:?}", Origin::new(Source::Server(Box::new(info)), None)),
            "Origin { source: Server, has_subscriber: false }"
        );
    }
}
