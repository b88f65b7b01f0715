//! Where connections come from: those for commands, and the one for the subscription.
//!
//! Both are looked up anew at each attempt to connect, so who asks for them knows no topology.

use std::fmt;
#[cfg(feature = "sentinel")]
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{PoolError, Timeouts};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionInfo, ErrorKind, IntoConnectionInfo, Msg, ProtocolVersion,
    RedisError,
};
use tokio::time::timeout;

use super::Settings;
#[cfg(feature = "cluster")]
use super::cluster::pooled::ToNode;
use super::cluster::seeds::Seeds;
use super::link::{open, open_to_listen, timed_out};
#[cfg(feature = "sentinel")]
use super::sentinel::{Sentinels, pooled};
use super::subscription::Subscription;
use super::wire::Wire;
use crate::error::ConfigError;
#[cfg(feature = "sentinel")]
use crate::sentinel::Sentinel;
use crate::time::Instant;

/// Counts the servers that were believed to be the one: a connection of an earlier term is to be
/// given up, and nothing that comes over it counts.
pub(in crate::backend) type Term = u64;

/// Of a server that took another's place, or may have.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) struct Reign {
    /// Since when it has surely been the one; `None` if that is not known.
    pub(in crate::backend) since: Option<Instant>,
}

/// A connection, and when it was made.
pub(super) struct Reached {
    pub(super) connection: Wire,
    pub(super) term: Term,
}

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
    /// To one node of those, by clients of a user's pool.
    #[cfg(feature = "cluster")]
    Node(Box<ConnectionInfo>, deadpool_redis::cluster::Pool),
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<Sentinels>),
    #[cfg(feature = "sentinel")]
    SentinelPool(deadpool_redis::sentinel::Pool, Arc<Sentinels>),
}

impl Source {
    /// The server that is meant when none is named.
    pub(crate) fn local() -> Result<Self, ConfigError> {
        let info = "redis://127.0.0.1/".into_connection_info();
        info.map(|info| Self::Server(Box::new(info)))
            .map_err(|_| ConfigError::new("url", "the default address is not understood"))
    }

    #[cfg(feature = "sentinel")]
    pub(crate) fn sentinel(given: Sentinel) -> Result<Self, ConfigError> {
        Ok(Self::Sentinel(Sentinels::new(given)?))
    }

    #[cfg(feature = "sentinel")]
    pub(crate) fn sentinel_pool(
        pool: deadpool_redis::sentinel::Pool,
        given: Sentinel,
    ) -> Result<Self, ConfigError> {
        Ok(Self::SentinelPool(pool, Sentinels::new(given)?))
    }

    /// The same with what `secured` makes of each address.
    pub(crate) fn secured(
        self,
        secured: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, ConfigError>,
    ) -> Result<Self, ConfigError> {
        Ok(match self {
            Self::Server(info) => Self::Server(Box::new(secured(*info)?)),
            Self::Pool(pool) => Self::Pool(pool),
            Self::Cluster(seeds) => Self::Cluster(seeds.each(secured)?),
            #[cfg(feature = "cluster")]
            Self::Node(info, pool) => Self::Node(Box::new(secured(*info)?), pool),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) => Self::Sentinel(sentinels.secured(secured)?),
            #[cfg(feature = "sentinel")]
            Self::SentinelPool(pool, sentinels) => {
                Self::SentinelPool(pool, sentinels.secured(secured)?)
            }
        })
    }

    /// That of the one server to which all goes, where it is known.
    fn address(&self) -> Option<&ConnectionInfo> {
        match self {
            Self::Server(info) => Some(&**info),
            #[cfg(feature = "cluster")]
            Self::Node(info, _) => Some(&**info),
            _ => None,
        }
    }

    /// The addresses that were named, but for those that a pool has.
    #[cfg(feature = "tls")]
    pub(crate) fn named(&self) -> Vec<&ConnectionInfo> {
        match self {
            Self::Server(info) => vec![&**info],
            Self::Pool(_) => Vec::new(),
            Self::Cluster(seeds) => seeds.infos().iter().collect(),
            #[cfg(feature = "cluster")]
            Self::Node(info, _) => vec![&**info],
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinels) | Self::SentinelPool(_, sentinels) => sentinels.named(),
        }
    }
}

/// Without the address, which may hold a password.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server(_) => "Server",
            Self::Pool(_) => "Pool",
            Self::Cluster(_) => "Cluster",
            #[cfg(feature = "cluster")]
            Self::Node(..) => "Node",
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => "Sentinel",
            #[cfg(feature = "sentinel")]
            Self::SentinelPool(..) => "SentinelPool",
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
            _ => None,
        }
    }

    /// Whether there may be another term than the first.
    pub(super) const fn can_move(&self) -> bool {
        match &self.source {
            Source::Server(_) | Source::Pool(_) | Source::Cluster(_) => false,
            #[cfg(feature = "cluster")]
            Source::Node(..) => false,
            #[cfg(feature = "sentinel")]
            Source::Sentinel(_) | Source::SentinelPool(..) => true,
        }
    }

    /// The term that it is. The same for ever where one server is named.
    pub(in crate::backend) fn term(&self) -> Term {
        match &self.source {
            Source::Server(_) | Source::Pool(_) | Source::Cluster(_) => 0,
            #[cfg(feature = "cluster")]
            Source::Node(..) => 0,
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) | Source::SentinelPool(_, sentinels) => sentinels.term(),
        }
    }

    /// Whether it may be another server at the next connect; if so, since when the server of `term`
    /// has surely been the one.
    #[cfg_attr(
        not(feature = "sentinel"),
        allow(unused_variables, reason = "only sentinels name another server")
    )]
    pub(in crate::backend) fn reign(&self, term: Term) -> Option<Reign> {
        match &self.source {
            Source::Server(_) | Source::Pool(_) | Source::Cluster(_) => None,
            #[cfg(feature = "cluster")]
            Source::Node(..) => None,
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) | Source::SentinelPool(_, sentinels) => Some(Reign {
                since: sentinels.named_since(term),
            }),
        }
    }

    /// Returns when it is another term.
    #[cfg_attr(
        not(feature = "sentinel"),
        allow(unused_variables, reason = "only sentinels name another server")
    )]
    pub(in crate::backend) async fn left(&self, term: Term) {
        match &self.source {
            Source::Server(_) | Source::Pool(_) | Source::Cluster(_) => {
                std::future::pending::<()>().await;
            }
            #[cfg(feature = "cluster")]
            Source::Node(..) => std::future::pending::<()>().await,
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) | Source::SentinelPool(_, sentinels) => {
                sentinels.left(term).await;
            }
        }
    }

    /// Does `work` while it is that term, and fails when it is not any more.
    pub(in crate::backend) async fn within<T>(
        &self,
        term: Term,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        tokio::select! {
            biased;
            () = self.left(term) => Err(moved()),
            result = work => result,
        }
    }

    /// Opens a connection for commands, on which nothing was said yet but who we are.
    pub(super) async fn connect(&self, settings: &Settings) -> Result<Reached, RedisError> {
        let config = AsyncConnectionConfig::new();
        let (connection, term) = match &self.source {
            Source::Server(info) => (open((**info).clone(), settings, config).await?, 0),
            Source::Pool(pool) => (detach(pool.clone(), settings.connect_timeout).await?, 0),
            Source::Cluster(_) => return Err(no_one_server()),
            #[cfg(feature = "cluster")]
            Source::Node(info, pool) => {
                let connection = Wire::Pooled(ToNode::take(pool, info, settings).await?);
                return Ok(Reached {
                    connection,
                    term: 0,
                });
            }
            #[cfg(feature = "sentinel")]
            Source::Sentinel(sentinels) => {
                let (info, term) = sentinels.master(settings).await?;
                let opening = open(info, settings, config);
                (self.within(term, opening).await?, term)
            }
            #[cfg(feature = "sentinel")]
            Source::SentinelPool(pool, sentinels) => {
                let (info, term) = sentinels.master(settings).await?;
                let taking = pooled::take(pool, info, settings);
                (self.within(term, taking).await?, term)
            }
        };
        let connection = Wire::Direct(connection);
        Ok(Reached { connection, term })
    }

    /// Whether there is a place to listen at: a pool can't receive pushes.
    pub(in crate::backend) const fn can_listen(&self) -> bool {
        self.subscriber.is_some() || !matches!(self.source, Source::Pool(_))
    }

    /// Opens a connection to listen, over which `deliver` is given each message.
    pub(super) async fn listen(
        &self,
        settings: &Settings,
        deliver: impl Fn(Term, Msg) + Send + 'static,
    ) -> Result<(Subscription, Term), RedisError> {
        let (info, term) = self.listened_to(settings).await?;
        let opening = open_to_listen(info, settings);
        let opened = self.within(term, opening).await?;
        let deliver = move |message| deliver(term, message);
        Ok((Subscription::new(opened, settings, deliver), term))
    }

    #[cfg_attr(
        not(feature = "sentinel"),
        allow(
            clippy::unused_async,
            unused_variables,
            reason = "only sentinels have to be asked"
        )
    )]
    async fn listened_to(&self, settings: &Settings) -> Result<(ConnectionInfo, Term), RedisError> {
        match (&self.subscriber, &self.source) {
            #[cfg(feature = "sentinel")]
            (None, Source::Sentinel(sentinels) | Source::SentinelPool(_, sentinels)) => {
                sentinels.master(settings).await
            }
            (Some(info), _) => Ok(((**info).clone(), self.term())),
            (None, Source::Pool(_)) => {
                Err((ErrorKind::InvalidClientConfig, "there is no subscriber").into())
            }
            (None, one) => {
                let info = one.address().ok_or_else(no_one_server)?;
                Ok((info.clone(), 0))
            }
        }
    }

    /// Which sentinels there are, where they are asked; for a look.
    #[cfg(feature = "sentinel")]
    pub(super) async fn found_by(&self, settings: &Settings) -> Option<crate::check::Sentinels> {
        match &self.source {
            Source::Server(_) | Source::Pool(_) | Source::Cluster(_) => None,
            #[cfg(feature = "cluster")]
            Source::Node(..) => None,
            Source::Sentinel(sentinels) | Source::SentinelPool(_, sentinels) => {
                Some(sentinels.survey(settings).await)
            }
        }
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
        let info = self.source.address().ok_or_else(no_one_server)?;
        let redis = info.redis_settings().clone();
        let redis = redis.set_protocol(ProtocolVersion::RESP3);
        let info = info.clone().set_redis_settings(redis);
        open(info, settings, config).await
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

#[cfg(feature = "sentinel")]
pub(super) fn moved() -> RedisError {
    super::sentinel::lost::Lost::moved().into()
}

/// Never: there is one term only.
#[cfg(not(feature = "sentinel"))]
pub(super) fn moved() -> RedisError {
    (ErrorKind::Client, "the server has changed").into()
}

/// A pool of the user's.
pub(super) trait Tap: Send + 'static {
    /// What it has.
    type Taken: Send + 'static;

    /// How long it may take for what.
    fn timeouts(&self, patience: Duration) -> Timeouts;

    /// Takes a connection out of it for good.
    fn take(
        &self,
        timeouts: Option<&Timeouts>,
    ) -> impl Future<Output = Result<Self::Taken, PoolError>> + Send;
}

impl Tap for deadpool_redis::Pool {
    type Taken = MultiplexedConnection;

    /// The pool itself ends a wait for a free place, or attempts would pile up in front of an
    /// exhausted one.
    fn timeouts(&self, patience: Duration) -> Timeouts {
        let mut timeouts = Self::timeouts(self);
        timeouts.wait = Some(timeouts.wait.map_or(patience, |wait| wait.min(patience)));
        timeouts
    }

    async fn take(&self, timeouts: Option<&Timeouts>) -> Result<MultiplexedConnection, PoolError> {
        let connection = match timeouts {
            Some(timeouts) => self.timeout_get(timeouts).await,
            None => self.get().await,
        };
        connection.map(deadpool_redis::Connection::take)
    }
}

/// A pool's own time-outs, each no longer than that.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(super) fn bounded(given: Timeouts, patience: Duration) -> Timeouts {
    let least = |given: Option<Duration>| Some(given.map_or(patience, |it| it.min(patience)));
    Timeouts {
        wait: least(given.wait),
        create: least(given.create),
        recycle: least(given.recycle),
    }
}

/// Gives a connection that a pool gave.
pub(super) async fn detach<T: Tap>(pool: T, patience: Duration) -> Result<T::Taken, RedisError> {
    // In a task of its own: a checkout that is dropped half-way destroys the connection it was
    // about to give.
    let checkout = tokio::spawn(async move {
        match pool.take(Some(&pool.timeouts(patience))).await {
            // A pool that was built without a runtime knows no time-outs.
            Err(PoolError::NoRuntimeSpecified) => pool.take(None).await,
            other => other,
        }
    });
    match timeout(patience, checkout).await {
        Ok(Ok(Ok(connection))) => Ok(connection),
        Ok(Ok(Err(PoolError::Backend(error)))) => Err(error),
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
