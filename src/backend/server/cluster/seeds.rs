//! The nodes that a user names, and how all nodes are connected to.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::redirect::Address;
use crate::backend::server::origin::{Origin, Source};
use crate::error::ConfigError;

const NO_ADDRESS: &str = "not the address of a cluster, such as \
                          redis+cluster://user:password@node-1:6379,node-2:6379";

const NEEDS_TLS: &str = "TLS (rediss+cluster://) needs this crate's feature `tls`";

/// At least one node's address, with the credentials and whatever else all nodes share.
#[derive(Clone)]
pub(crate) struct Seeds(Vec<ConnectionInfo>);

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
            .map(Self)
    }

    /// Those that `change` makes of each.
    pub(crate) fn each(
        self,
        change: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, ConfigError>,
    ) -> Result<Self, ConfigError> {
        self.0
            .into_iter()
            .map(change)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    #[cfg_attr(
        not(feature = "tls"),
        allow(dead_code, reason = "asked for what only TLS has")
    )]
    pub(crate) fn infos(&self) -> &[ConnectionInfo] {
        &self.0
    }

    /// The nodes that were named.
    pub(in crate::backend::server) fn addresses(&self) -> impl Iterator<Item = Address> {
        self.0.iter().filter_map(|info| address(info.addr()))
    }

    /// Where connections to a node come from.
    pub(in crate::backend::server) fn origin(&self, node: &Address) -> Option<Origin> {
        let info = Box::new(self.info(node)?);
        Some(Origin::new(Source::Server(info), None))
    }

    /// How to connect to a node: as to the first that was named, or to that one as it was named.
    fn info(&self, node: &Address) -> Option<ConnectionInfo> {
        let is_it = |info: &&ConnectionInfo| address(info.addr()).as_ref() == Some(node);
        let info = self.0.iter().find(is_it).or_else(|| self.0.first())?;
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
        f.debug_tuple("Seeds").field(&self.0.len()).finish()
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

fn address(place: &ConnectionAddr) -> Option<Address> {
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
