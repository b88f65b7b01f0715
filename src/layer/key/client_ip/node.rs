//! An address as proxies write it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reads an address, with or without a port, IPv6 in brackets or without; `None` for anything else,
/// such as `unknown` and obfuscated names.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    if let Some(bracketed) = text.strip_prefix('[') {
        let (inside, behind) = bracketed.split_once(']')?;
        if !behind.is_empty() && !is_port(behind.strip_prefix(':')?) {
            return None;
        }
        return ipv6(inside);
    }
    match text.split_once(':') {
        None => ipv4(text),
        // Without brackets a second colon makes it an IPv6 address, and leaves no place for a port.
        Some((_, behind)) if behind.contains(':') => ipv6(text),
        Some((host, port)) if is_port(port) => ipv4(host),
        Some(_) => None,
    }
}

fn ipv4(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|address: Ipv4Addr| address.into())
}

/// The zone says by which of its links the proxy reaches the client: nothing that tells clients
/// apart here.
fn ipv6(text: &str) -> Option<IpAddr> {
    let address = match text.split_once('%') {
        Some((_, "")) => return None,
        Some((address, _)) => address,
        None => text,
    };
    let address: Ipv6Addr = address.parse().ok()?;
    Some(address.to_canonical())
}

/// A number, or an obfuscated one (RFC 7239, section 6).
fn is_port(text: &str) -> bool {
    let obfuscated = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match text.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(obfuscated),
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
