//! Which address of a chain of proxies is the client's.

use std::net::IpAddr;

use super::trusted::Trusted;

/// Walks from the peer to those whose requests it passed on, each of whom the one before names:
/// `hops` from the right, `None` for what is no address. Who is not trusted is not asked.
pub(super) fn client(
    peer: IpAddr,
    trusted: &Trusted,
    hops: impl IntoIterator<Item = Option<IpAddr>>,
) -> IpAddr {
    let mut client = peer;
    let mut hops = hops.into_iter();
    while trusted.contains(client) {
        // What stands left of something unreadable was named by nobody who is known to be trusted.
        let Some(Some(hop)) = hops.next() else {
            break;
        };
        client = hop;
    }
    client
}
