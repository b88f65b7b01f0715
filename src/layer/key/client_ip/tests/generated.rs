//! Chains of proxies as generated, read as by a model; and whatever clients may send.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::{FORWARDED, PROXY, X_FORWARDED_FOR, address, found, head, key, trusting};

fn is_trusted(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[0] == 10,
        IpAddr::V6(address) => address.octets()[0] == 0xfd,
    }
}

/// What a proxy may have appended, and how it is written.
#[derive(Debug, Clone)]
struct Hop {
    /// `None` for what is no address.
    address: Option<IpAddr>,
    written: String,
}

fn a_proxy() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 3]>().prop_map(|[a, b, c]| IpAddr::from([10, a, b, c])),
        any::<[u8; 15]>().prop_map(|rest| {
            let mut octets = [0xfd; 16];
            octets[1..].copy_from_slice(&rest);
            IpAddr::from(octets)
        }),
    ]
}

fn an_address() -> impl Strategy<Value = IpAddr> {
    let any = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        // Also those that are written short.
        any::<[u8; 2]>()
            .prop_map(|[a, b]| { IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, a.into(), b.into()]) }),
    ];
    prop_oneof![a_proxy(), any].prop_map(|address| address.to_canonical())
}

/// An address in one of the ways in which it may stand between quotes.
fn node() -> impl Strategy<Value = Hop> {
    let port = select(vec!["", ":0", ":80", ":65535", ":_a", ":_B.c-d_"]);
    (an_address(), port, 0_u8..4).prop_map(|(address, port, how)| {
        let written = match (address, how) {
            (IpAddr::V4(address), 0) => format!("[{}]{port}", address.to_ipv6_mapped()),
            (IpAddr::V4(address), 1) => address.to_ipv6_mapped().to_string(),
            (IpAddr::V4(_), _) => format!("{address}{port}"),
            (IpAddr::V6(_), 0) => address.to_string(),
            (IpAddr::V6(_), 1) => format!("{address}%eth0"),
            (IpAddr::V6(_), 2) => format!("[{address}%25en1]{port}").to_uppercase(),
            (IpAddr::V6(_), _) => format!("[{address}]{port}"),
        };
        Hop {
            address: Some(address),
            written,
        }
    })
}

fn no_node() -> impl Strategy<Value = String> {
    let known = select(vec![
        "unknown",
        "UNKNOWN",
        "_hidden",
        "_",
        "",
        "10.1.1",
        "10.1.1.1.1",
        "10.1.1.256",
        "10.01.1.1",
        "10.1.1.1:",
        "10.1.1.1:x",
        "10.1.1.1:999999",
        "10.1.1.1:_",
        "[10.1.1.1]",
        "10.1.1.1/8",
        "[fd00::1",
        "fd00::1]",
        "[fd00::1]:",
        "[fd00::1]80",
        "[]",
        "fd00::1%",
        "fd00:::1",
        "fd00",
        ":10.1.1.1",
        "localhost",
        "größe",
    ]);
    prop_oneof![known.prop_map(str::to_owned), "[g-z._-]{1,12}"]
}

fn white_space() -> impl Strategy<Value = &'static str> {
    select(vec!["", " ", "\t", "  \t "])
}

fn in_x_forwarded_for() -> impl Strategy<Value = Hop> {
    let hop = prop_oneof![
        4 => node(),
        1 => no_node().prop_map(|written| Hop { address: None, written }),
    ];
    (hop, any::<bool>(), white_space(), white_space()).prop_map(|(hop, quoted, before, behind)| {
        let quote = if quoted { "\"" } else { "" };
        let written = format!("{before}{quote}{}{quote}{behind}", hop.written);
        Hop { written, ..hop }
    })
}

/// Between quotes, a backslash in front of whatever has to have one, and of some that need not.
fn quoted(text: &str, escaped: u64) -> String {
    let mut quoted = String::from("\"");
    for (index, letter) in text.chars().enumerate() {
        if letter == '"' || letter == '\\' || escaped >> (index % 64) & 1 == 1 {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted.push('"');
    quoted
}

fn in_forwarded() -> impl Strategy<Value = Hop> {
    let value = prop_oneof![
        4 => (node(), any::<bool>(), any::<u64>()).prop_map(|(node, plain, escaped)| {
            let value = if plain { node.written } else { quoted(&node.written, escaped) };
            (node.address, vec![value])
        }),
        1 => (no_node(), any::<u64>())
            .prop_map(|(text, escaped)| (None, vec![quoted(&text, escaped)])),
        // Too many of them, and none.
        1 => vec(node(), 2..4)
            .prop_map(|nodes| (None, nodes.into_iter().map(|node| node.written).collect())),
        1 => Just((None, Vec::new())),
    ];
    let name = select(vec!["for", "For", "FOR"]);
    let other = (
        select(vec!["by", "proto", "host", "secret", "x-for"]),
        r#"[ -~]{0,12}"#,
        any::<u64>(),
    );
    let others = vec(other, 0..3);
    let between = select(vec![";", "; ", " ;", ";;"]);
    (value, name, others, between, white_space(), any::<Index>()).prop_map(
        |((address, values), name, others, between, outside, place)| {
            let mut pairs: Vec<String> = others
                .into_iter()
                .map(|(name, text, escaped)| format!("{name}={}", quoted(&text, escaped)))
                .collect();
            for value in values {
                pairs.insert(place.index(pairs.len() + 1), format!("{name}={value}"));
            }
            let written = format!("{outside}{}{outside}", pairs.join(between));
            Hop { address, written }
        },
    )
}

/// The chain in lines of a header.
fn lines(hops: &[Hop], breaks: u64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (index, hop) in hops.iter().enumerate() {
        match lines.last_mut() {
            Some(line) if breaks >> (index % 64) & 1 == 0 => {
                line.push(',');
                line.push_str(&hop.written);
            }
            _ => lines.push(hop.written.clone()),
        }
    }
    lines
}

/// Of the peer and all that were named since there was no address last, the last one that is not
/// trusted, or the first if all are.
fn model(peer: IpAddr, hops: &[Hop]) -> IpAddr {
    let mut chain = Vec::new();
    for hop in hops {
        match hop.address {
            Some(address) => chain.push(address),
            None => chain.clear(),
        }
    }
    chain.push(peer);
    let last = chain.iter().rfind(|address| !is_trusted(**address));
    *last.unwrap_or(&chain[0])
}

/// What a client may send as a header, rich in what the syntax uses.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let may_be_sent = |mut bytes: Vec<u8>| {
        for byte in &mut bytes {
            if byte.is_ascii_control() {
                *byte = b'\t';
            }
        }
        bytes
    };
    prop_oneof![
        vec(any::<u8>(), 0..64).prop_map(may_be_sent),
        r#"(for=|10\.1\.1\.1|203\.0\.113\.9|fd00::1|[",;=\\\[\]:% _a1]){0,16}"#
            .prop_map(String::into_bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn x_forwarded_for_is_read_as_by_the_model(
        peer in an_address(),
        hops in vec(in_x_forwarded_for(), 0..6),
        breaks in any::<u64>(),
    ) {
        let lines = lines(&hops, breaks);
        prop_assert_eq!(found(peer, X_FORWARDED_FOR, &lines), model(peer, &hops), "{:?}", lines);
    }

    #[test]
    fn forwarded_is_read_as_by_the_model(
        peer in an_address(),
        hops in vec(in_forwarded(), 0..6),
        breaks in any::<u64>(),
    ) {
        let lines = lines(&hops, breaks);
        prop_assert_eq!(found(peer, FORWARDED, &lines), model(peer, &hops), "{:?}", lines);
    }

    #[test]
    fn a_spoofed_header_never_changes_the_key_of_an_untrusted_peer(
        peer in an_address().prop_filter("untrusted", |peer| !is_trusted(*peer)),
        header in select(vec![FORWARDED, X_FORWARDED_FOR]),
        lines in vec(anything(), 0..4),
    ) {
        let none: [&str; 0] = [];
        let client = trusting(header);
        let alone = key(&client, &mut head(peer, header, &none));
        prop_assert_eq!(key(&client, &mut head(peer, header, &lines)), alone);
        // Nor does a header that is not the one to be read, whoever sends it.
        let (other, peer) = match header {
            FORWARDED => (X_FORWARDED_FOR, address(PROXY)),
            _ => (FORWARDED, address(PROXY)),
        };
        let alone = key(&client, &mut head(peer, other, &none));
        prop_assert_eq!(key(&client, &mut head(peer, other, &lines)), alone);
    }

    #[test]
    fn a_client_behind_a_proxy_is_who_the_proxy_says_whatever_it_sends_itself(
        client in node().prop_filter("untrusted", |client| !client.address.is_some_and(is_trusted)),
        mut sent in vec(anything(), 1..4),
        line_of_its_own in any::<bool>(),
        proxies in vec(a_proxy(), 0..3),
        header in select(vec![FORWARDED, X_FORWARDED_FOR]),
    ) {
        let written = |node: &str| match header {
            FORWARDED => format!("for=\"{node}\""),
            _ => node.to_owned(),
        };
        let mut appended = written(&client.written);
        for proxy in proxies {
            appended.push_str(", ");
            appended.push_str(&written(&proxy.to_string()));
        }
        if line_of_its_own {
            sent.push(appended.into_bytes());
        } else {
            let line = sent.last_mut().expect("at least one");
            line.extend_from_slice(b", ");
            line.extend_from_slice(appended.as_bytes());
        }
        prop_assert_eq!(Some(found(address(PROXY), header, &sent)), client.address, "{:?}", sent);
    }
}
