//! What `INFO` says of a server.

use redis::Value;

use crate::check::{Persistence, Role, Server};

/// The oldest version that knows all commands.
const OLDEST: [u32; 2] = [6, 2];

/// The answer to `INFO`.
#[derive(Debug)]
pub(super) struct Info<'a>(&'a str);

impl<'a> Info<'a> {
    /// `None` if it is no text.
    pub(super) fn read(answer: &'a Value) -> Option<Self> {
        match answer {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().map(Self),
            Value::VerbatimString { text, .. } => Some(Self(text)),
            _ => None,
        }
    }

    fn field(&self, name: &str) -> Option<&'a str> {
        self.0.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key == name).then(|| value.trim())
        })
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.field(name)?.parse().ok()
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.field(name).map(|value| value == "1")
    }

    pub(super) fn server(&self) -> Server {
        let valkey = self.field("valkey_version");
        let redis = self.field("redis_version");
        Server {
            name: match (valkey, redis) {
                (Some(_), _) => Some("Valkey"),
                (None, Some(_)) => Some("Redis"),
                (None, None) => None,
            },
            version: valkey.or(redis).map(str::to_owned),
            role: match self.field("role") {
                Some("master") => Some(Role::Master),
                Some("slave" | "replica") => Some(Role::Replica),
                _ => None,
            },
            replicas: self.number("connected_slaves"),
            sentinels: None,
            is_cluster: self.flag("cluster_enabled"),
            maxmemory: self.number("maxmemory"),
            maxmemory_policy: self.field("maxmemory_policy").map(str::to_owned),
            persistence: (self.appends() == Some(true)).then_some(Persistence::AppendOnly),
            round_trip: None,
            clock_ahead_ms: None,
        }
    }

    /// Whether each write goes to a file.
    pub(super) fn appends(&self) -> Option<bool> {
        self.flag("aof_enabled")
    }

    /// Whether it takes writes only while replicas are in reach: then it counts those.
    pub(super) fn waits_for_replicas(&self) -> bool {
        self.field("min_slaves_good_slaves").is_some()
    }

    /// How many replicas are up to date, or nearly so; `None` if it does not tell of replicas.
    pub(super) fn replicas_online(&self) -> Option<u32> {
        let count: u32 = self.number("connected_slaves")?;
        let is_online = |number: &u32| {
            let replica = self.field(&format!("slave{number}"));
            replica.is_some_and(|replica| replica.contains("state=online"))
        };
        u32::try_from((0..count).filter(is_online).count()).ok()
    }

    /// The version, if it is too old. Every Valkey is new enough.
    pub(super) fn too_old(&self) -> Option<String> {
        if self.field("valkey_version").is_some() {
            return None;
        }
        let version = self.field("redis_version")?;
        let mut numbers = version.split('.').map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
            return None;
        };
        ([major, minor] < OLDEST).then(|| version.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "# Server\r\nredis_version:6.0.16\r\nrole:slave\r\nconnected_slaves:0\r\n\
                       aof_enabled:1\r\nmaxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\n";

    #[test]
    fn a_server_is_known_by_what_it_tells() {
        let answer = Value::BulkString(OLD.into());
        let info = Info::read(&answer).expect("a text");
        let server = info.server();
        assert_eq!(
            (server.name, server.role),
            (Some("Redis"), Some(Role::Replica))
        );
        assert_eq!(server.maxmemory, Some(1 << 20));
        assert_eq!(server.persistence, Some(Persistence::AppendOnly));
        assert_eq!(
            (server.is_cluster, info.waits_for_replicas()),
            (None, false)
        );
        assert_eq!(info.too_old().as_deref(), Some("6.0.16"));
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (text, too_old) in [
            ("redis_version:6.1.9", true),
            ("redis_version:5.0.14", true),
            ("redis_version:6.2.0", false),
            ("redis_version:10.0.1", false),
            ("redis_version:255.255.255", false),
            ("redis_version:unstable", false),
            ("redis_version:6.0.0\r\nvalkey_version:8.1.0", false),
            ("", false),
        ] {
            assert_eq!(Info(text).too_old().is_some(), too_old, "{text}");
        }
    }
}
