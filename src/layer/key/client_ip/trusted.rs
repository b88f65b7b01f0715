//! The networks that proxies are in.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::error::ConfigError;

#[derive(Debug, Clone, Default)]
pub(super) struct Trusted(Vec<IpNet>);

impl Trusted {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

impl Extend<IpNet> for Trusted {
    fn extend<I: IntoIterator<Item = IpNet>>(&mut self, networks: I) {
        self.0.extend(networks.into_iter().map(canonical));
    }
}

/// Reads a network or an address, as it may stand in a list between commas.
pub(super) fn parse(text: &str) -> Result<IpNet, ConfigError> {
    let text = text.trim();
    let network = text.parse().ok();
    let address = || text.parse().ok().map(|address: IpAddr| address.into());
    network.or_else(address).ok_or_else(|| {
        ConfigError::new(
            "trust",
            format!("{text:?} is no network such as 10.0.0.0/8, and no address"),
        )
    })
}

/// A network of IPv4 addresses written as IPv6 would contain none: those are looked for as IPv4.
fn canonical(network: IpNet) -> IpNet {
    if let IpNet::V6(mapped) = network
        && let Some(address) = mapped.addr().to_ipv4_mapped()
        && let Some(prefix) = mapped.prefix_len().checked_sub(96)
        && let Ok(network) = Ipv4Net::new(address, prefix)
    {
        return network.into();
    }
    network
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusted(networks: &[&str]) -> Trusted {
        let mut trusted = Trusted::default();
        trusted.extend(networks.iter().map(|text| parse(text).expect(text)));
        trusted
    }

    #[test]
    fn a_network_contains_its_addresses_and_an_address_itself() {
        let trusted = trusted(&["10.0.0.0/8", " 192.0.2.1 ", "fd00::/8", "2001:db8::1"]);
        for inside in ["10.255.0.1", "192.0.2.1", "fd12::1", "2001:db8::1"] {
            assert!(trusted.contains(inside.parse().expect(inside)), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.2", "fe80::1", "2001:db8::2", "::1"] {
            assert!(
                !trusted.contains(outside.parse().expect(outside)),
                "{outside}"
            );
        }
    }

    #[test]
    fn a_network_of_ipv4_written_as_ipv6_contains_ipv4() {
        let trusted = trusted(&["::ffff:10.0.0.0/104", "::ffff:192.0.2.1"]);
        for inside in ["10.255.0.1", "192.0.2.1"] {
            assert!(trusted.contains(inside.parse().expect(inside)), "{inside}");
        }
        assert!(!trusted.contains("11.0.0.1".parse().expect("an address")));
    }

    #[test]
    fn what_is_no_network_is_named() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "localhost",
            "fd00::/129",
            "10.0.0.1 10.0.0.2",
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error.field(), "trust");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
