//! `X-Forwarded-For`: addresses between commas.

use std::net::IpAddr;

use http::HeaderMap;

use super::node;

/// Its addresses from the right, over all lines; `None` for what is no address.
pub(super) fn from_right(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    let items = lines.flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','));
    items.map(|item| node::address(unquoted(item.trim_ascii())))
}

/// Some proxies write quotes here too.
fn unquoted(item: &[u8]) -> &[u8] {
    let inside = item.strip_prefix(b"\"");
    inside
        .and_then(|inside| inside.strip_suffix(b"\""))
        .unwrap_or(item)
}
