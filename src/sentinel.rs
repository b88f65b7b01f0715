//! Sentinels by which the master of a service is found: what a user says of them.

use std::fmt;

use redis::{ConnectionInfo, IntoConnectionInfo, RedisError};

use crate::address;
use crate::error::ConfigError;

const PORT: &str = "26379";
const PROBLEM: &str = "not the address of sentinels, such as \
                       redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster/0";

/// Sentinels, and the service whose master they are asked for.
///
/// All of them are asked at once, and the one that knows of the latest failover is believed, so any
/// that answers will do. They are asked anew whenever a connection is needed, at the addresses that
/// are given here, and each is listened to for failovers.
///
/// The same as a URL is `redis+sentinel://[user:password@]host:26379,host2:26379/service[/db]`, where
/// user and password are those of the data nodes; those that the sentinels want follow as
/// `?sentinel_username=…&sentinel_password=…`. Without a port, 26379 is meant.
/// `rediss+sentinel://` speaks TLS with both.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), portcullis::ConfigError> {
/// use portcullis::{Portcullis, Sentinel};
///
/// let sentinels = ["redis://:theirs@10.0.0.1:26379", "redis://:theirs@10.0.0.2:26379"];
/// let service = Sentinel::new("mymaster", sentinels).nodes_like("redis://me:mine@localhost/");
/// let gates = Portcullis::builder().url(service).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "it is for a builder"]
pub struct Sentinel {
    pub(crate) service: String,
    pub(crate) sentinels: Vec<ConnectionInfo>,
    /// As a node is connected to, but for its address.
    node: Option<ConnectionInfo>,
    problem: Option<ConfigError>,
}

impl Sentinel {
    /// The service as the sentinels call it, and their addresses, with the credentials that they
    /// want. Name all of them: one is enough only as long as it lives.
    pub fn new<S: IntoConnectionInfo>(
        service: impl Into<String>,
        sentinels: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut given = Self {
            service: service.into(),
            sentinels: Vec::new(),
            node: None,
            problem: None,
        };
        for sentinel in sentinels {
            match sentinel.into_connection_info() {
                Ok(info) => given.sentinels.push(info),
                Err(error) => given.fail("sentinel", &error),
            }
        }
        given
    }

    /// How to connect to the service's servers: with the user, password, database, protocol and TLS
    /// of this address. Its host and port mean nothing.
    ///
    /// Without it: with no credentials and no TLS, to database 0.
    ///
    /// With a `rediss://` address, the nodes' certificates have to be for the addresses that the
    /// sentinels name, which are those that they announce (`replica-announce-ip`), and the ports those
    /// for TLS (`tls-replication yes`).
    pub fn nodes_like(mut self, node: impl IntoConnectionInfo) -> Self {
        match node.into_connection_info() {
            Ok(info) => self.node = Some(info),
            Err(error) => self.fail("nodes_like", &error),
        }
        self
    }

    fn fail(&mut self, field: &'static str, error: &RedisError) {
        let problem = || ConfigError::new(field, address::problem(error));
        self.problem.get_or_insert_with(problem);
    }

    /// Fails where nothing could be found by it.
    pub(crate) fn checked(self) -> Result<(Self, ConnectionInfo), ConfigError> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        if self.service.is_empty() {
            let problem = "it is empty; take the name that `sentinel monitor` gives it";
            return Err(ConfigError::new("service", problem));
        }
        if self.sentinels.is_empty() {
            return Err(ConfigError::new("sentinels", "there is none to ask"));
        }
        let node = match &self.node {
            Some(node) => node.clone(),
            None => "redis://localhost/"
                .into_connection_info()
                .map_err(|error| ConfigError::new("nodes_like", address::problem(&error)))?,
        };
        Ok((self, node))
    }

    /// Reads a URL; `None` if it is not one of sentinels.
    pub(crate) fn read(url: &str) -> Option<Result<Self, ConfigError>> {
        let (scheme, rest) = url.split_once("://")?;
        let plain = scheme.strip_suffix("+sentinel")?;
        let read = match plain {
            "redis" | "rediss" | "valkey" | "valkeys" => Self::parts(plain, rest),
            _ => None,
        };
        Some(read.ok_or_else(|| ConfigError::new("url", PROBLEM)))
    }

    fn parts(plain: &str, rest: &str) -> Option<Self> {
        let (rest, fragment) = rest
            .split_once('#')
            .map_or((rest, None), |(rest, fragment)| (rest, Some(fragment)));
        let fragment = fragment.map(|fragment| format!("#{fragment}"));
        let fragment = fragment.as_deref().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/')?;
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        // In a user's name or password it is %40: this one is of a later host.
        if user.matches('@').count() > 1 {
            return None;
        }
        let (service, db) = path.split_once('/').unwrap_or((path, ""));
        let (mut username, mut password, mut others) = (None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sentinel_username", value)) => username = Some(decoded(value)?),
                Some(("sentinel_password", value)) => password = Some(decoded(value)?),
                _ => others.push(pair),
            }
        }
        let others = others.join("&");
        let node = format!("{plain}://{user}localhost/{db}?{others}{fragment}");
        let sentinels = hosts.split(',').map(|host| {
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| !port.contains(']'));
            let port = if has_port {
                String::new()
            } else {
                format!(":{PORT}")
            };
            (!host.is_empty()).then(|| format!("{plain}://{host}{port}/{fragment}"))
        });
        let sentinels: Vec<String> = sentinels.collect::<Option<_>>()?;
        let mut read = Self::new(decoded(service)?, sentinels).nodes_like(node);
        if read.service.is_empty() {
            return None;
        }
        for info in &mut read.sentinels {
            let mut redis = info.redis_settings().clone();
            if let Some(username) = &username {
                redis = redis.set_username(username);
            }
            if let Some(password) = &password {
                redis = redis.set_password(password);
            }
            *info = info.clone().set_redis_settings(redis);
        }
        // Of the parts nobody knows the names.
        if let Some(problem) = &mut read.problem {
            let text = if problem.to_string().contains("TLS") {
                address::NEEDS_TLS
            } else {
                PROBLEM
            };
            *problem = ConfigError::new("url", text);
        }
        Some(read)
    }
}

/// Without addresses, which may name users and hold passwords.
impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinel")
            .field("service", &self.service)
            .field("sentinels", &self.sentinels.len())
            .finish_non_exhaustive()
    }
}

/// What `%XX` stands for; `None` where that is no text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            // It would take a sign for a digit.
            if digits.starts_with('+') {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use redis::ConnectionAddr;

    use super::*;

    fn read(url: &str) -> (Sentinel, ConnectionInfo) {
        let read = Sentinel::read(url).expect("its scheme is one of ours");
        read.and_then(Sentinel::checked).expect("a valid address")
    }

    #[test]
    fn a_url_names_service_sentinels_and_both_credentials() {
        let (given, node) = read(
            "redis+sentinel://shop:p%40ss@one:1,two,[::1]:3,[::2]/my%2Emaster/7\
             ?sentinel_username=asks&sentinel_password=a%2Fb&protocol=resp3",
        );
        assert_eq!(given.service, "my.master");
        let asked: Vec<String> = given
            .sentinels
            .iter()
            .map(|info| info.addr().to_string())
            .collect();
        assert_eq!(asked, ["one:1", "two:26379", "::1:3", "::2:26379"]);
        for info in &given.sentinels {
            assert_eq!(info.redis_settings().username(), Some("asks"));
            assert_eq!(info.redis_settings().password(), Some("a/b"));
            assert_eq!(info.redis_settings().db(), 0);
        }
        let node = node.redis_settings();
        assert_eq!(
            (node.username(), node.password(), node.db(), node.protocol()),
            (Some("shop"), Some("p@ss"), 7, redis::ProtocolVersion::RESP3)
        );
    }

    #[test]
    fn without_credentials_nobody_is_sent_any() {
        let (given, node) = read("valkey+sentinel://one/main");
        for info in given.sentinels.iter().chain([&node]) {
            let redis = info.redis_settings();
            assert_eq!((redis.username(), redis.password()), (None, None));
            assert!(matches!(info.addr(), ConnectionAddr::Tcp(..)));
        }
        // Those of the data nodes are not sent to sentinels.
        let (given, _) = read("redis+sentinel://shop:secret@one,two/main");
        for info in given.sentinels {
            assert_eq!(info.redis_settings().password(), None);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_without_its_password() {
        for rest in [
            "",
            "one",
            "one/",
            "/main",
            "one,/main",
            "one:x/main",
            "one/main/x",
            "one/main?sentinel_password=%zz",
            "one/main?sentinel_password=%+1",
            "a:secret@one,b:secret@two/main",
        ] {
            let url = format!("redis+sentinel://{rest}");
            let read = Sentinel::read(&url).expect("its scheme is one of ours");
            let error = read
                .and_then(Sentinel::checked)
                .expect_err(rest)
                .to_string();
            assert!(
                error.contains("redis+sentinel://sentinel-1"),
                "{rest}: {error}"
            );
            assert!(!error.contains("secret"), "{rest}: {error}");
        }
        assert!(Sentinel::read("redis://one/").is_none());
        assert!(Sentinel::read("http+sentinel://one/main").is_some_and(|read| read.is_err()));
        let none = Sentinel::new("main", Vec::<&str>::new()).checked();
        assert!(none.is_err_and(|error| error.to_string().contains("none to ask")));
    }

    #[test]
    fn debug_prints_no_password() {
        let (given, _) = read("redis+sentinel://shop:secret@one/main?sentinel_password=secret");
        assert!(!format!("{given:?}").contains("secret"));
    }
}
