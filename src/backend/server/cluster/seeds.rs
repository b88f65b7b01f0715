//! The nodes that a user names, and how all nodes are connected to.

use std::fmt;

#[cfg(feature = "cluster")]
use deadpool_redis::cluster::Pool;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::redirect::Address;
use crate::backend::server::origin::{Origin, Source};
use crate::error::ConfigError;

const NO_ADDRESS: &str = "not the address of a cluster, such as \
                          redis+cluster://user:password@node-1:6379,node-2:6379";

const NEEDS_TLS: &str = "TLS (rediss+cluster://) needs this crate's feature `tls`";

/// At least one node's address, with the credentials and whatever else all nodes share.
#[derive(Clone)]
pub(crate) struct Seeds {
    named: Vec<ConnectionInfo>,
    /// Whose clients carry the commands, where those are not our own.
    #[cfg(feature = "cluster")]
    pool: Option<Pool>,
}

impl Seeds {
    /// Whether an address begins as those of clusters do.
    #[cfg(feature = "cluster")]
    pub(crate) fn is_url(url: &str) -> bool {
        scheme(url).is_some()
    }

    /// Reads `redis+cluster://[user:password@]host[:port][,host[:port]]…[/][?option=value]`.
    ///
    /// # Errors
    ///
    /// If it is none; without what it says, which may be a password.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(dead_code, reason = "nobody can name a cluster")
    )]
    pub(crate) fn parse(url: &str) -> Result<Self, ConfigError> {
        let error = || ConfigError::new("url", NO_ADDRESS);
        let (scheme, rest) = scheme(url).ok_or_else(error)?;
        let (place, query) = match rest.split_once('?') {
            Some((place, query)) => (place, format!("?{query}")),
            None => (rest, String::new()),
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        // A password may have an `@`, if not a comma.
        let (who, hosts) = match place.rsplit_once('@') {
            Some((who, hosts)) => (format!("{who}@"), hosts),
            None => (String::new(), place),
        };
        let info = |host: &str| {
            if host.is_empty() || host.contains('/') {
                return Err(error());
            }
            let info = format!("{scheme}://{who}{host}/{query}").into_connection_info();
            info.map_err(|error| {
                if error.to_string().contains("TLS") {
                    ConfigError::new("url", NEEDS_TLS)
                } else {
                    ConfigError::new("url", NO_ADDRESS)
                }
            })
        };
        hosts
            .split(',')
            .map(info)
            .collect::<Result<_, _>>()
            .map(Self::named)
    }

    fn named(named: Vec<ConnectionInfo>) -> Self {
        Self {
            named,
            #[cfg(feature = "cluster")]
            pool: None,
        }
    }

    /// Some nodes of the cluster that a user's pool leads to.
    ///
    /// # Errors
    ///
    /// If there are none, or one is none that can be a node; without what it says, which may be a
    /// password.
    #[cfg(feature = "cluster")]
    pub(crate) fn of_pool(
        pool: Pool,
        nodes: impl IntoIterator<Item = impl IntoConnectionInfo>,
    ) -> Result<Self, ConfigError> {
        let error = |what| ConfigError::new("cluster_pool", what);
        let mut named = Vec::new();
        for node in nodes {
            let info = node.into_connection_info();
            let info = info.map_err(|problem| error(crate::address::problem(&problem)))?;
            if address(info.addr()).is_none() {
                return Err(error("a node of a cluster is reached by TCP or TLS"));
            }
            if info.redis_settings().db() != 0 {
                return Err(error("a cluster has no other database than 0"));
            }
            named.push(info);
        }
        if named.is_empty() {
            return Err(error("name some nodes of the pool's cluster"));
        }
        Ok(Self {
            named,
            pool: Some(pool),
        })
    }

    /// Whether a user's clients carry the commands.
    #[cfg_attr(
        not(feature = "cluster"),
        allow(clippy::unused_self, reason = "there are none")
    )]
    pub(in crate::backend::server) const fn has_pool(&self) -> bool {
        #[cfg(feature = "cluster")]
        return self.pool.is_some();
        #[cfg(not(feature = "cluster"))]
        false
    }

    /// Those that `change` makes of each.
    pub(crate) fn each(
        mut self,
        change: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let named = self.named.into_iter().map(change);
        self.named = named.collect::<Result<_, _>>()?;
        Ok(self)
    }

    #[cfg_attr(
        not(feature = "tls"),
        allow(dead_code, reason = "asked for what only TLS has")
    )]
    pub(crate) fn infos(&self) -> &[ConnectionInfo] {
        &self.named
    }

    /// The nodes that were named.
    pub(in crate::backend::server) fn addresses(&self) -> impl Iterator<Item = Address> {
        self.named.iter().filter_map(|info| address(info.addr()))
    }

    /// Where connections of our own to a node come from.
    pub(in crate::backend::server) fn origin(&self, node: &Address) -> Option<Origin> {
        let info = Box::new(self.info(node)?);
        Some(Origin::new(Source::Server(info), None))
    }

    /// Where those for commands come from.
    pub(in crate::backend::server) fn origin_for_commands(&self, node: &Address) -> Option<Origin> {
        #[cfg(feature = "cluster")]
        if let Some(pool) = &self.pool {
            let info = Box::new(self.info(node)?);
            return Some(Origin::new(Source::Node(info, pool.clone()), None));
        }
        self.origin(node)
    }

    /// How to connect to a node: as to the first that was named, or to that one as it was named.
    fn info(&self, node: &Address) -> Option<ConnectionInfo> {
        let is_it = |info: &&ConnectionInfo| address(info.addr()).as_ref() == Some(node);
        let info = self.named.iter().find(is_it);
        let info = info.or_else(|| self.named.first())?;
        let (to, at) = (node.host.clone(), node.port);
        let place = match info.addr().clone() {
            ConnectionAddr::Tcp(..) => ConnectionAddr::Tcp(to, at),
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host: to,
                port: at,
                insecure,
                tls_params,
            },
            // A Unix socket leads to its own server only.
            _ => return None,
        };
        Some(info.clone().set_addr(place))
    }
}

/// Without addresses, which may hold a password.
impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seeds").field(&self.named.len()).finish()
    }
}

/// The scheme of one server's address, and what follows.
fn scheme(url: &str) -> Option<(&'static str, &str)> {
    let plain = url.strip_prefix("redis+cluster://");
    let plain = plain.or_else(|| url.strip_prefix("valkey+cluster://"));
    if let Some(rest) = plain {
        return Some(("redis", rest));
    }
    let secure = url.strip_prefix("rediss+cluster://");
    let secure = secure.or_else(|| url.strip_prefix("valkeys+cluster://"));
    secure.map(|rest| ("rediss", rest))
}

pub(super) fn address(place: &ConnectionAddr) -> Option<Address> {
    match place {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Address::new(host, *port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(url: &str) -> Vec<(String, u16)> {
        let seeds = Seeds::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let addresses = seeds.addresses();
        addresses.map(|node| (node.host, node.port)).collect()
    }

    #[test]
    fn an_address_names_several_nodes() {
        let (a, b) = (("a".to_owned(), 7000), ("b".to_owned(), 6379));
        assert_eq!(seeds("redis+cluster://a:7000,b"), [a.clone(), b.clone()]);
        assert_eq!(seeds("valkey+cluster://a:7000,b/"), [a.clone(), b]);
        let loopback = ("::1".to_owned(), 7001);
        assert_eq!(seeds("redis+cluster://[::1]:7001,a:7000"), [loopback, a]);
    }

    #[test]
    fn all_nodes_share_credentials_and_options() {
        let url = "redis+cluster://me:p%40ss@a:7000,b:7001/?protocol=resp3";
        let seeds = Seeds::parse(url).expect("an address");
        for node in [Address::new("b", 7001), Address::new("c", 7002)] {
            let info = seeds.info(&node).expect("it is reached by TCP");
            assert_eq!(address(info.addr()), Some(node));
            let redis = info.redis_settings();
            assert_eq!(
                (redis.username(), redis.password()),
                (Some("me"), Some("p@ss"))
            );
            assert_eq!(redis.protocol(), redis::ProtocolVersion::RESP3);
        }
        assert_eq!(format!("{seeds:?}"), "Seeds(2)");
    }

    #[cfg(feature = "cluster")]
    fn pool() -> Pool {
        let manager = deadpool_redis::cluster::Manager::new(vec!["redis://a:7000/"], false);
        let pool = Pool::builder(manager.expect("an address")).build();
        pool.expect("a valid size")
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn beside_a_pool_only_nodes_of_a_cluster_can_be_named() {
        let named = |nodes: &[&str]| {
            let nodes = nodes.iter().copied();
            let builder = crate::Portcullis::builder().cluster_pool(pool(), nodes);
            builder.build().map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(named(&["redis://me:secret@a:7000/", "redis://b"]), Ok(()));
        for (nodes, what) in [
            (&[][..], "name some nodes"),
            (&["redis://a", "unix:///run/redis.sock"], "by TCP or TLS"),
            (&["redis://a/5"], "no other database"),
            (
                &["redis://me:secret@a:port/"],
                "not the address of a server",
            ),
        ] {
            let problem = named(nodes).expect_err(what);
            assert!(problem.contains("cluster_pool"), "{problem}");
            assert!(problem.contains(what), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn nobody_is_named_to_listen_to_beside_a_cluster() {
        let info = "redis://a:7000/".into_connection_info();
        let info = info.expect("an address");
        let pooled = crate::Portcullis::builder().cluster_pool(pool(), [info.clone()]);
        let named = crate::Portcullis::builder().url("redis+cluster://a:7000");
        for builder in [pooled, named] {
            let problem = builder.subscriber(info.clone()).build();
            let problem = problem.expect_err("there is nothing to name").to_string();
            assert!(problem.contains("subscriber"), "{problem}");
        }
    }

    #[test]
    fn what_is_no_address_of_a_cluster_is_told_what_one_looks_like_without_its_password() {
        for url in [
            "redis+cluster://",
            "redis+cluster://,",
            "redis+cluster://a:7000,",
            "redis+cluster://me:secret@a:port",
            "redis+cluster://me:secret@a/5",
            "redis://a",
        ] {
            let problem = Seeds::parse(url).expect_err(url).to_string();
            assert!(problem.contains("redis+cluster://user"), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }
}
