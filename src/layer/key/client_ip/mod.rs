//! A key from the address of the client.

mod chain;
mod forwarded;
mod node;
mod peer;
mod prefix;
mod trusted;
mod x_forwarded_for;

use std::net::IpAddr;

use http::request::Parts;
use ipnet::IpNet;

use self::peer::Peer;
use self::prefix::Prefixes;
use self::trusted::Trusted;
use super::{KeyError, MakeKey};
use crate::error::ConfigError;
use crate::key::Key;

/// Makes a key of the client's IP address: by default that of the peer, who opened the connection.
///
/// # The peer
///
/// It is what axum's `ConnectInfo<SocketAddr>` says, with the feature `axum` and a service made by
/// `into_make_service_with_connect_info::<SocketAddr>()`; else a
/// [`SocketAddr`](std::net::SocketAddr) or an [`IpAddr`] that somebody has put into the request's
/// extensions, as a server on hyper can; or whatever [`peer`](ClientIpKey::peer) reads, say tonic's
/// `TcpConnectInfo`. Where the peer is not known, requests are answered with 503, and what to do is
/// logged.
///
/// # Behind proxies
///
/// There the peer is the proxy. Name the networks that your proxies are in, by
/// [`trust`](ClientIpKey::trust), and the one header to which all of them append, by
/// [`forwarded`](ClientIpKey::forwarded) (RFC 7239) or
/// [`x_forwarded_for`](ClientIpKey::x_forwarded_for). The header is read from the right, from the
/// peer on, while addresses are trusted; the first that is not is the client, and what stands to
/// its left, which the client may have sent, is not looked at. What is no address (`unknown`, an
/// obfuscated name, nothing, garbage) ends the search too: the client is then the last address
/// found, which is a proxy's. A header of a peer that is not trusted counts for nothing.
///
/// A proxy that passes on a client's header as it came must not be in a trusted network, nor must
/// clients.
///
/// # Networks
///
/// Who has an IPv6 address mostly has 2⁶⁴ of them, so the IPv6 addresses of one `/64` are one key,
/// or of [another prefix](ClientIpKey::ipv6_prefix). IPv4 addresses count each for itself, unless
/// [told otherwise](ClientIpKey::ipv4_prefix). An IPv4 address that is written as IPv6
/// (`::ffff:192.0.2.1`) is an IPv4 address, and zones (`fe80::1%eth0`) are dropped.
///
/// # Examples
///
/// ```
/// use portcullis::ConcurrencyLimitLayer;
/// use portcullis::layer::client_ip;
///
/// # fn example(gates: portcullis::Portcullis) -> Result<(), portcullis::ConfigError> {
/// let client = client_ip().x_forwarded_for().try_trust(["10.0.0.0/8", "fd00::/8"])?;
/// let two_per_client = ConcurrencyLimitLayer::new(gates.semaphore("clients", 2)?).key(client);
/// # Ok(()) }
/// ```
pub fn client_ip() -> ClientIpKey {
    ClientIpKey {
        peer: Peer::Connection,
        header: None,
        trusted: None,
        prefixes: Prefixes::default(),
    }
}

/// Makes a key of the client's IP address; made by [`client_ip`].
#[derive(Debug, Clone)]
#[must_use = "it makes no key until it is given to a layer"]
pub struct ClientIpKey {
    peer: Peer,
    header: Option<Header>,
    trusted: Option<Trusted>,
    prefixes: Prefixes,
}

/// To which the proxies append.
#[derive(Debug, Clone, Copy)]
enum Header {
    Forwarded,
    XForwardedFor,
}

impl ClientIpKey {
    /// Sets how to learn the peer's address, where it is not where [`client_ip`] looks for it.
    ///
    /// # Examples
    ///
    /// Of a server by tonic:
    ///
    /// ```
    /// use portcullis::layer::client_ip;
    /// use tonic::transport::server::TcpConnectInfo;
    ///
    /// let client = client_ip().peer(|parts| {
    ///     let connection = parts.extensions.get::<TcpConnectInfo>()?;
    ///     Some(connection.remote_addr()?.ip())
    /// });
    /// ```
    ///
    /// A proxy that connects by a Unix socket has none: give it one, and trust that.
    ///
    /// ```
    /// use std::net::{IpAddr, Ipv4Addr};
    /// use portcullis::layer::client_ip;
    ///
    /// const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    /// let client = client_ip().peer(|_| Some(PROXY)).trust([PROXY]).x_forwarded_for();
    /// ```
    pub fn peer(mut self, peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        self.peer = Peer::read_by(peer);
        self
    }

    /// Reads `Forwarded` (RFC 7239), if the peer is trusted, and no other header.
    pub fn forwarded(mut self) -> Self {
        self.header = Some(Header::Forwarded);
        self
    }

    /// Reads `X-Forwarded-For`, if the peer is trusted, and no other header.
    pub fn x_forwarded_for(mut self) -> Self {
        self.header = Some(Header::XForwardedFor);
        self
    }

    /// Adds networks, or single addresses, that proxies are in; those that are text, such as
    /// `"10.0.0.0/8"`, by [`try_trust`](Self::try_trust). None by default.
    ///
    /// Trust without a header to read, or a header without trust, is a mistake that would give all
    /// clients of a proxy one key. It shows at the first request: all are answered with 503, and
    /// what to do is logged. Where there are no proxies, as when developing, trust an empty list.
    pub fn trust(mut self, networks: impl IntoIterator<Item = impl Into<IpNet>>) -> Self {
        let trusted = self.trusted.get_or_insert_default();
        trusted.extend(networks.into_iter().map(Into::into));
        self
    }

    /// As [`trust`](Self::trust), of networks as text: `10.0.0.0/8`, `fd00::/8`, or an address.
    ///
    /// # Errors
    ///
    /// If one of them is not a network or an address.
    pub fn try_trust(
        self,
        networks: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, ConfigError> {
        let networks = networks.into_iter();
        let networks: Result<Vec<_>, _> = networks
            .map(|network| trusted::parse(network.as_ref()))
            .collect();
        Ok(self.trust(networks?))
    }

    /// Sets how many leading bits of an IPv6 address count: 1 to 128, 64 by default.
    ///
    /// Providers give a site a `/56` or a `/48`: a smaller number takes more of their neighbors for
    /// one client, a larger one takes one client for many.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn ipv6_prefix(mut self, bits: u8) -> Result<Self, ConfigError> {
        self.prefixes.set_ipv6(bits)?;
        Ok(self)
    }

    /// Sets how many leading bits of an IPv4 address count: 1 to 32, all 32 by default.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn ipv4_prefix(mut self, bits: u8) -> Result<Self, ConfigError> {
        self.prefixes.set_ipv4(bits)?;
        Ok(self)
    }

    fn client(&self, parts: &Parts) -> Result<IpAddr, KeyError> {
        let peer = self.peer.of(parts)?;
        let headers = &parts.headers;
        match (self.header, &self.trusted) {
            (None, None) => Ok(peer),
            (Some(Header::Forwarded), Some(trusted)) => {
                Ok(chain::client(peer, trusted, forwarded::from_right(headers)))
            }
            (Some(Header::XForwardedFor), Some(trusted)) => {
                let hops = x_forwarded_for::from_right(headers);
                Ok(chain::client(peer, trusted, hops))
            }
            (None, Some(_)) => Err(KeyError::misconfigured(
                "`client_ip()` trusts proxies, but reads no header of theirs; add `.forwarded()` \
                 or `.x_forwarded_for()`, whichever all of them append to",
            )),
            (Some(_), None) => Err(KeyError::misconfigured(
                "`client_ip()` reads a header, but trusts no proxy; add `.trust(..)` with the \
                 networks that the proxies are in, or with an empty list where there are none",
            )),
        }
    }
}

impl MakeKey for ClientIpKey {
    fn make_key(&self, parts: &mut Parts) -> Result<Option<Key>, KeyError> {
        let client = self.client(parts)?;
        Ok(Some(self.prefixes.key(client)))
    }
}

#[cfg(test)]
mod tests;
