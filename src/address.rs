//! What names the server to use.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError};

#[cfg(feature = "cluster")]
use crate::backend::server::Seeds;
use crate::backend::server::Source;
use crate::error::ConfigError;
#[cfg(feature = "sentinel")]
use crate::sentinel::Sentinel;

pub(crate) const NEEDS_TLS: &str = "TLS (rediss://) needs this crate's feature `tls`; turn it on, or take a \
                                    redis:// or unix:// address";

/// Where state lives, as [`Builder::url`](crate::Builder::url) takes it.
pub struct Address {
    pub(crate) source: Source,
}

/// Without the address itself, which may hold a password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.source).finish()
    }
}

/// What names where state lives: a URL, what makes a [`redis::ConnectionInfo`], or, with the
/// feature `sentinel`, a `Sentinel`.
pub trait IntoAddress {
    /// Reads it; nothing is connected to.
    ///
    /// # Errors
    ///
    /// If it is not the address of a server, or of sentinels. The error does not quote it.
    fn into_address(self) -> Result<Address, ConfigError>;
}

impl IntoAddress for Address {
    fn into_address(self) -> Result<Address, ConfigError> {
        Ok(self)
    }
}

impl IntoAddress for &str {
    fn into_address(self) -> Result<Address, ConfigError> {
        #[cfg(feature = "sentinel")]
        if let Some(read) = Sentinel::read(self) {
            return read?.into_address();
        }
        #[cfg(not(feature = "sentinel"))]
        if self
            .split_once("://")
            .is_some_and(|(scheme, _)| scheme.ends_with("+sentinel"))
        {
            return Err(ConfigError::new(
                "url",
                "sentinels need the crate's feature `sentinel`",
            ));
        }
        #[cfg(feature = "cluster")]
        if Seeds::is_url(self) {
            let source = Source::Cluster(Seeds::parse(self)?);
            return Ok(Address { source });
        }
        #[cfg(not(feature = "cluster"))]
        if self
            .split_once("://")
            .is_some_and(|(scheme, _)| scheme.ends_with("+cluster"))
        {
            return Err(ConfigError::new(
                "url",
                "a cluster needs the crate's feature `cluster`",
            ));
        }
        server(self)
    }
}

impl IntoAddress for String {
    fn into_address(self) -> Result<Address, ConfigError> {
        self.as_str().into_address()
    }
}

impl IntoAddress for &String {
    fn into_address(self) -> Result<Address, ConfigError> {
        self.as_str().into_address()
    }
}

impl IntoAddress for ConnectionInfo {
    fn into_address(self) -> Result<Address, ConfigError> {
        server(self)
    }
}

impl IntoAddress for ConnectionAddr {
    fn into_address(self) -> Result<Address, ConfigError> {
        server(self)
    }
}

impl<T: Into<String>> IntoAddress for (T, u16) {
    fn into_address(self) -> Result<Address, ConfigError> {
        server(self)
    }
}

#[cfg(feature = "sentinel")]
impl IntoAddress for Sentinel {
    fn into_address(self) -> Result<Address, ConfigError> {
        let source = Source::sentinel(self)?;
        Ok(Address { source })
    }
}

fn server(info: impl IntoConnectionInfo) -> Result<Address, ConfigError> {
    let info = info.into_connection_info();
    let info = info.map_err(|error| ConfigError::new("url", problem(&error)))?;
    let source = Source::Server(Box::new(info));
    Ok(Address { source })
}

/// What is wrong with an address. The error itself may quote it, and with it a password: only what
/// it is about is told.
pub(crate) fn problem(error: &RedisError) -> &'static str {
    if error.to_string().contains("TLS") {
        NEEDS_TLS
    } else {
        "not the address of a server, such as redis://127.0.0.1:6379/0 or \
         unix:///run/redis/redis.sock"
    }
}
