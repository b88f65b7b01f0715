//! Who has opened the connection.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Extensions;
use http::request::Parts;

use crate::layer::key::KeyError;

type Read = dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync;

/// Where the peer's address stands.
#[derive(Clone)]
pub(super) enum Peer {
    /// In the extensions, as servers put it there.
    Connection,
    ReadBy(Arc<Read>),
}

impl Peer {
    pub(super) fn read_by(read: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self::ReadBy(Arc::new(read))
    }

    /// A listener for both families gives IPv4 peers as IPv6: that is undone.
    pub(super) fn of(&self, parts: &Parts) -> Result<IpAddr, KeyError> {
        let (peer, misconfigured) = match self {
            Self::Connection => (
                connect_info(&parts.extensions).or_else(|| plain(&parts.extensions)),
                "`client_ip()` does not find the peer's address; serve by axum's \
                 `into_make_service_with_connect_info::<SocketAddr>()` (needs the feature `axum`), \
                 put a `SocketAddr` into the request's extensions, or read it by `.peer(..)`",
            ),
            Self::ReadBy(read) => (
                read(parts),
                "`client_ip().peer(..)` does not find the peer's address; it has to give one for \
                 every request",
            ),
        };
        match peer {
            Some(peer) => Ok(peer.to_canonical()),
            None => Err(KeyError::misconfigured(misconfigured)),
        }
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connection => "Connection",
            Self::ReadBy(_) => "ReadBy(..)",
        })
    }
}

fn plain(extensions: &Extensions) -> Option<IpAddr> {
    let socket = extensions.get::<SocketAddr>().map(SocketAddr::ip);
    socket.or_else(|| extensions.get().copied())
}

/// As axum's own extractor: the mock of users' tests is second to the real one.
#[cfg(feature = "axum")]
fn connect_info(extensions: &Extensions) -> Option<IpAddr> {
    use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
    let real = extensions.get().map(|ConnectInfo(peer)| peer);
    let peer: Option<&SocketAddr> =
        real.or_else(|| extensions.get().map(|MockConnectInfo(peer)| peer));
    peer.map(SocketAddr::ip)
}

#[cfg(not(feature = "axum"))]
const fn connect_info(_: &Extensions) -> Option<IpAddr> {
    None
}
