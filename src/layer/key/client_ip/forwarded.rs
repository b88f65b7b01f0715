//! `Forwarded` (RFC 7239): elements between commas, each made of pairs between semicolons.

use std::borrow::Cow;
use std::iter;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::FORWARDED;

use super::node;

/// Whom its elements name, from the right, over all lines; `None` where one names no address.
pub(super) fn from_right(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(FORWARDED).iter().rev();
    lines
        .flat_map(|line| elements(line.as_bytes()))
        .map(named_for)
}

/// The elements of a line from the right: a quote that somebody on the left has not closed does not
/// reach what proxies have appended.
fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    iter::from_fn(move || {
        let line = rest?;
        let comma = last_comma(line);
        rest = comma.map(|comma| &line[..comma]);
        Some(comma.map_or(line, |comma| &line[comma + 1..]))
    })
}

/// The last comma outside of quoted strings. Of the quotes in one, those that belong to its text
/// have a backslash in front, and the one that opens it has not.
fn last_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (index, byte) in line.iter().enumerate().rev() {
        match byte {
            b'"' => quoted = !quoted || line[..index].ends_with(b"\\"),
            b',' if !quoted => return Some(index),
            _ => {}
        }
    }
    None
}

/// The address in an element's `for`, of which there has to be one.
fn named_for(element: &[u8]) -> Option<IpAddr> {
    let mut rest = element;
    let mut found = None;
    loop {
        // White space is not allowed here, but written by some.
        rest = rest.trim_ascii();
        if let Some(behind) = rest.strip_prefix(b";") {
            rest = behind;
            continue;
        }
        if rest.is_empty() {
            return found;
        }
        let equals = rest.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        let (value, behind) = value_of(value)?;
        if !name.iter().all(|&byte| is_token(byte)) || !matches!(behind.first(), None | Some(b';'))
        {
            return None;
        }
        if name.eq_ignore_ascii_case(b"for") {
            if found.is_some() {
                return None;
            }
            found = Some(node::address(&value)?);
        }
        rest = behind;
    }
}

/// Splits a value, without its quotes, from what is behind it.
fn value_of(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|&byte| byte == b';');
        let (value, behind) = text.split_at(end.unwrap_or(text.len()));
        let value = value.trim_ascii_end();
        // Proxies leave out the quotes that colons and brackets need, so no more is asked.
        let plain = !value
            .iter()
            .any(|&byte| byte == b'"' || byte.is_ascii_whitespace());
        return plain.then_some((value.into(), behind));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((index, &byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value.into(), quoted[index + 1..].trim_ascii_start())),
            b'\\' => value.push(*bytes.next()?.1),
            _ => value.push(byte),
        }
    }
    None
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
