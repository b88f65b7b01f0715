//! Where a node of a cluster sends a request that it does not serve.

use redis::ServerError;

/// What a node answered in place of serving.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend) struct Redirect {
    pub(in crate::backend::server) kind: Kind,
    pub(in crate::backend::server) slot: u16,
    pub(in crate::backend::server) to: Address,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend::server) enum Kind {
    /// The slot has another owner.
    Moved,
    /// The slot is on its way there, and what is asked for has arrived: only this request goes
    /// there.
    Ask,
}

/// One node's, as the cluster's nodes name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::backend::server) struct Address {
    /// Empty where nodes do not know their own: then it is the host of whoever says so.
    pub(in crate::backend::server) host: String,
    pub(in crate::backend::server) port: u16,
}

impl Address {
    pub(in crate::backend::server) fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }

    /// The same, where an unknown host is that of who told of it.
    pub(in crate::backend::server) fn told_by(mut self, host: &str) -> Self {
        // A node that should have a name and has none says "?".
        if self.host.is_empty() || self.host == "?" {
            host.clone_into(&mut self.host);
        }
        self
    }
}

impl Redirect {
    pub(in crate::backend::server) fn of(error: &ServerError) -> Option<Self> {
        Self::read(error.code(), error.details()?)
    }

    /// `MOVED 3999 127.0.0.1:6381`, in which the host may have colons, or be missing.
    fn read(code: &str, details: &str) -> Option<Self> {
        let kind = match code {
            "MOVED" => Kind::Moved,
            "ASK" => Kind::Ask,
            _ => return None,
        };
        let (slot, address) = details.trim().split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let slot: u16 = slot.parse().ok()?;
        (usize::from(slot) < crate::key::SLOTS).then_some(Self {
            kind,
            slot,
            to: Address::new(host.trim_matches(['[', ']']), port.parse().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: &str, details: &str) -> Option<(Kind, u16, String, u16)> {
        let redirect = Redirect::read(code, details)?;
        let Address { host, port } = redirect.to;
        Some((redirect.kind, redirect.slot, host, port))
    }

    #[test]
    fn a_redirection_names_slot_and_node() {
        for (code, details, expected) in [
            (
                "MOVED",
                "3999 127.0.0.1:6381",
                (Kind::Moved, 3999, "127.0.0.1", 6381),
            ),
            (
                "ASK",
                "0 node-7.example:7000",
                (Kind::Ask, 0, "node-7.example", 7000),
            ),
            (
                "MOVED",
                "16383 ::1:6381",
                (Kind::Moved, 16_383, "::1", 6381),
            ),
            ("MOVED", "1 :6381", (Kind::Moved, 1, "", 6381)),
        ] {
            let (kind, slot, host, port) = expected;
            assert_eq!(
                read(code, details),
                Some((kind, slot, host.to_owned(), port))
            );
        }
    }

    #[test]
    fn what_is_none_is_not_followed() {
        for (code, details) in [
            ("TRYAGAIN", "Multiple keys request during rehashing of slot"),
            ("MOVED", ""),
            ("MOVED", "3999"),
            ("MOVED", "16384 127.0.0.1:6381"),
            ("ASK", "-1 127.0.0.1:6381"),
            ("ASK", "1 127.0.0.1:66666"),
        ] {
            assert_eq!(read(code, details), None, "{code} {details}");
        }
    }

    #[test]
    fn a_node_without_a_name_is_where_its_teller_is() {
        assert_eq!(Address::new("", 1).told_by("a"), Address::new("a", 1));
        assert_eq!(Address::new("?", 1).told_by("a"), Address::new("a", 1));
        assert_eq!(Address::new("b", 1).told_by("a"), Address::new("b", 1));
    }
}
