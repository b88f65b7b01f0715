//! Which address is the client's, and how much of it makes the key.

mod generated;
mod samples;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::{HeaderValue, Request};

use super::*;

const FORWARDED: &str = "forwarded";
const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// A proxy, as all in the networks of [`trusting`].
const PROXY: &str = "10.0.0.1";

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Trusts 10.0.0.0/8 and fd00::/8, and counts whole addresses.
fn trusting(header: &str) -> ClientIpKey {
    let client = match header {
        FORWARDED => client_ip().forwarded(),
        _ => client_ip().x_forwarded_for(),
    };
    let client = client.try_trust(["10.0.0.0/8", "fd00::/8"]);
    let client = client.and_then(|client| client.ipv6_prefix(128));
    client.expect("networks and a prefix")
}

fn head(peer: IpAddr, header: &'static str, lines: &[impl AsRef<[u8]>]) -> Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.extensions.insert(peer);
    for line in lines {
        let line = HeaderValue::from_bytes(line.as_ref()).expect("what a request may bring");
        parts.headers.append(header, line);
    }
    parts
}

/// The client that is found behind `peer`.
fn found(peer: IpAddr, header: &'static str, lines: &[impl AsRef<[u8]>]) -> IpAddr {
    let client = trusting(header).client(&head(peer, header, lines));
    client.expect("a peer")
}

fn key(client: &ClientIpKey, parts: &mut Parts) -> Key {
    let key = client.make_key(parts).expect("a peer");
    key.expect("every request has a client")
}

#[test]
fn a_long_header_is_read_in_linear_time() {
    for bytes in [
        ",10.1.1.1",
        ",for=10.1.1.1",
        ",for=\"10.1.1.1\"",
        "for=10.1.1.1;",
        "\"",
        "\\\"",
        "\\",
        ",",
        ";",
        " ",
    ] {
        for header in [FORWARDED, X_FORWARDED_FOR] {
            let line = bytes.repeat((1 << 18) / bytes.len());
            let begun = Instant::now();
            found(address(PROXY), header, &[line]);
            let took = begun.elapsed();
            // Some milliseconds; one that is quadratic takes far longer.
            assert!(
                took < Duration::from_secs(5),
                "{header} of {bytes:?}: {took:?}"
            );
        }
    }
}

/// Of a client that is the peer.
fn key_of(client: &ClientIpKey, peer: IpAddr) -> Key {
    key(client, &mut head(peer, FORWARDED, &[""; 0]))
}

// Case C129.
#[test]
fn addresses_of_one_ipv6_network_are_one_key() {
    let (client, network) = (client_ip(), 0x2001_0db8_0000_0001_u128 << 64);
    let one = key_of(&client, address("2001:db8:0:1::"));
    for host in 0..1000_u128 {
        let host = host.wrapping_mul(0x9e37_79b9_7f4a_7c15) & u128::from(u64::MAX);
        let peer = IpAddr::from((network | host).to_be_bytes());
        assert_eq!(key_of(&client, peer), one, "{peer}");
    }
    assert_eq!(one, Key::from("2001:db8:0:1::/64"));
    let neighbor = address("2001:db8:0:2::");
    assert_ne!(key_of(&client, neighbor), one);

    let client = client.ipv6_prefix(56).expect("in range");
    let one = key_of(&client, address("2001:db8:0:1::"));
    assert_eq!(key_of(&client, neighbor), one);
    assert_eq!(one, Key::from("2001:db8::/56"));
    assert_ne!(key_of(&client, address("2001:db8:0:100::")), one);
}

#[test]
fn as_much_of_an_address_counts_as_is_set() {
    let (low, high) = (address("::1"), address("8000::1"));
    for (bits, text) in [(1, "8000::/1"), (127, "8000::/127"), (128, "8000::1")] {
        let client = client_ip().ipv6_prefix(bits).expect("in range");
        assert_eq!(key_of(&client, high), Key::from(text));
        assert_ne!(key_of(&client, low), Key::from(text));
    }
    let peer = address("203.0.113.7");
    assert_eq!(key_of(&client_ip(), peer), Key::from("203.0.113.7"));
    for (bits, text) in [
        (1, "128.0.0.0/1"),
        (24, "203.0.113.0/24"),
        (32, "203.0.113.7"),
    ] {
        let client = client_ip().ipv4_prefix(bits).expect("in range");
        assert_eq!(key_of(&client, peer), Key::from(text));
    }
    for (error, field) in [
        (client_ip().ipv4_prefix(0), "ipv4_prefix"),
        (client_ip().ipv4_prefix(33), "ipv4_prefix"),
        (client_ip().ipv6_prefix(0), "ipv6_prefix"),
        (client_ip().ipv6_prefix(129), "ipv6_prefix"),
        (
            client_ip().try_trust(["10.0.0.0/8", "10.0.0.0/33"]),
            "trust",
        ),
    ] {
        assert_eq!(error.expect_err("out of range").field(), field);
    }
}

#[test]
fn an_ipv4_peer_of_a_listener_for_both_families_is_ipv4() {
    let mapped = address("::ffff:203.0.113.7");
    assert_eq!(key_of(&client_ip(), mapped), Key::from("203.0.113.7"));
    let found = found(address("::ffff:10.0.0.1"), FORWARDED, &["for=203.0.113.7"]);
    assert_eq!(found, address("203.0.113.7"));
}

#[test]
fn the_peer_is_found_where_servers_put_it() {
    let (mut parts, ()) = Request::new(()).into_parts();
    let socket = |last| SocketAddr::from(([203, 0, 113, last], 4711));
    let seen = |parts: &Parts, last: u8| {
        let client = client_ip().client(parts).expect("a peer");
        assert_eq!(client, socket(last).ip());
    };
    parts.extensions.insert(socket(1).ip());
    seen(&parts, 1);
    parts.extensions.insert(socket(2));
    seen(&parts, 2);
    #[cfg(feature = "axum")]
    {
        use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
        parts.extensions.insert(MockConnectInfo(socket(3)));
        seen(&parts, 3);
        parts.extensions.insert(ConnectInfo(socket(4)));
        seen(&parts, 4);
    }
    let own = client_ip().peer(move |_| Some(socket(5).ip()));
    assert_eq!(own.client(&parts).expect("a peer"), socket(5).ip());
}

#[test]
fn a_set_up_that_cannot_tell_clients_apart_is_an_error_that_says_what_to_do() {
    let mut parts = head(address(PROXY), FORWARDED, &["for=203.0.113.7"]);
    let assert_misconfigured = |parts: &mut Parts, client: ClientIpKey, remedy: &str| {
        let error = client.make_key(parts).expect_err(remedy);
        assert!(error.is_misconfigured());
        assert!(error.to_string().contains(remedy), "{error}");
    };
    let half = client_ip().trust([address(PROXY)]);
    assert_misconfigured(
        &mut parts,
        half,
        "add `.forwarded()` or `.x_forwarded_for()`",
    );
    let half = client_ip().forwarded();
    assert_misconfigured(&mut parts, half, "add `.trust(..)`");
    assert_misconfigured(&mut parts, client_ip().peer(|_| None), "every request");
    parts.extensions = http::Extensions::new();
    let remedy = "into_make_service_with_connect_info::<SocketAddr>()";
    assert_misconfigured(&mut parts, client_ip(), remedy);
}

#[test]
fn no_proxies_is_a_set_up_too() {
    let client = client_ip().forwarded().trust([] as [IpNet; 0]);
    let mut parts = head(address(PROXY), FORWARDED, &["for=203.0.113.7"]);
    assert_eq!(key(&client, &mut parts), Key::from(PROXY));
}
