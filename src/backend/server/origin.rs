//! Where connections come from: those for commands, and the one for the subscription.
//!
//! Both are looked up anew at each attempt to connect, so who asks for them knows no topology.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionInfo, ErrorKind, IntoConnectionInfo, Msg, ProtocolVersion,
    RedisError,
};
use tokio::time::timeout;

use super::Settings;
use super::cluster::seeds::Seeds;
use super::link::{open, open_to_listen, open_with, timed_out};
use super::subscription::Subscription;
use crate::error::ConfigError;

/// Where commands go.
#[derive(Clone)]
pub(crate) enum Source {
    Server(Box<ConnectionInfo>),
    Pool(deadpool_redis::Pool),
    /// To many servers: the driver finds out which, and has an origin for each.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(dead_code, reason = "nobody can name one")
    )]
    Cluster(Seeds),
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
            Self::Cluster(_) => "Cluster",
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

    /// The nodes that were named, where there are many servers.
    pub(super) const fn seeds(&self) -> Option<&Seeds> {
        match &self.source {
            Source::Cluster(seeds) => Some(seeds),
            Source::Server(_) | Source::Pool(_) => None,
        }
    }

    /// Opens a connection for commands, on which nothing was said yet but who we are.
    pub(super) async fn connect(
        &self,
        settings: &Settings,
    ) -> Result<MultiplexedConnection, RedisError> {
        match &self.source {
            Source::Server(info) => open((**info).clone(), settings).await,
            Source::Pool(pool) => detach(pool.clone(), settings.connect_timeout).await,
            Source::Cluster(_) => Err(no_one_server()),
        }
    }

    /// Whether there is a place to listen at: a pool can't receive pushes.
    pub(super) const fn can_listen(&self) -> bool {
        self.subscriber.is_some() || matches!(self.source, Source::Server(_))
    }

    /// Opens a connection to listen, over which `deliver` is given each message.
    pub(super) async fn listen(
        &self,
        settings: &Settings,
        deliver: impl Fn(Msg) + Send + 'static,
    ) -> Result<Subscription, RedisError> {
        let info = match (&self.subscriber, &self.source) {
            (Some(info), _) | (None, Source::Server(info)) => (**info).clone(),
            (None, Source::Pool(_)) => {
                return Err((ErrorKind::InvalidClientConfig, "there is no subscriber").into());
            }
            (None, Source::Cluster(_)) => return Err(no_one_server()),
        };
        let opened = open_to_listen(info, settings).await?;
        Ok(Subscription::new(opened, settings, deliver))
    }
}

impl Origin {
    /// Opens a connection on which channels of slots can be listened to, which is a matter of RESP3;
    /// what is heard is given to whom `config` names.
    pub(super) async fn listen_to_slots(
        &self,
        settings: &Settings,
        config: AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let Source::Server(info) = &self.source else {
            return Err(no_one_server());
        };
        let redis = info.redis_settings().clone();
        let redis = redis.set_protocol(ProtocolVersion::RESP3);
        let info = (**info).clone().set_redis_settings(redis);
        open_with(info, settings, config).await
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

/// Nobody asks a cluster as a whole: its nodes have origins of their own.
fn no_one_server() -> RedisError {
    let what = "a cluster is many servers";
    (ErrorKind::InvalidClientConfig, what).into()
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
