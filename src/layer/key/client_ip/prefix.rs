//! How much of an address counts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::ConfigError;
use crate::key::Key;

/// How many leading bits of an address tell one client from another: at least 1, or a mask would
/// shift by all of an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { ipv4: 32, ipv6: 64 }
    }
}

impl Prefixes {
    pub(super) fn set_ipv4(&mut self, bits: u8) -> Result<(), ConfigError> {
        if !(1..=32).contains(&bits) {
            return Err(ConfigError::out_of_range(
                "ipv4_prefix",
                bits,
                "1 to 32 bits",
            ));
        }
        self.ipv4 = bits;
        Ok(())
    }

    pub(super) fn set_ipv6(&mut self, bits: u8) -> Result<(), ConfigError> {
        if !(1..=128).contains(&bits) {
            return Err(ConfigError::out_of_range(
                "ipv6_prefix",
                bits,
                "1 to 128 bits",
            ));
        }
        self.ipv6 = bits;
        Ok(())
    }

    /// The address, or its network where not all of it counts.
    pub(super) fn key(self, address: IpAddr) -> Key {
        match address {
            IpAddr::V4(address) if self.ipv4 == 32 => address.to_string().into(),
            IpAddr::V4(address) => {
                let bits = self.ipv4;
                let network = address.to_bits() & u32::MAX << (32 - bits);
                format!("{}/{bits}", Ipv4Addr::from_bits(network)).into()
            }
            IpAddr::V6(address) if self.ipv6 == 128 => address.to_string().into(),
            IpAddr::V6(address) => {
                let bits = self.ipv6;
                let network = address.to_bits() & u128::MAX << (128 - bits);
                format!("{}/{bits}", Ipv6Addr::from_bits(network)).into()
            }
        }
    }
}
