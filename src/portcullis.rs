//! The handle that a process shares, and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::address::IntoAddress;
use crate::backend::memory::{Memory, MemoryBackend};
use crate::backend::quorum::{QuorumBackend, QuorumSettings};
#[cfg(feature = "cluster")]
use crate::backend::server::Seeds;
use crate::backend::server::{Origin, Replicas, ServerBackend, Settings, Source};
use crate::backend::{Backend, ShutdownReport};
use crate::check::{Check, ConnectError, Severity};
use crate::error::ConfigError;
use crate::key::Prefix;
use crate::mutex::Mutex;
use crate::rate_limit::{Quotas, RateLimiter};
use crate::semaphore::Semaphore;
use crate::time::Clock;
#[cfg(feature = "tls")]
use crate::tls::{self, Tls};

/// A process' handle on the gates that it shares with others.
///
/// Cheap to clone; one per process and server is enough, since each has connections and a
/// background thread of its own. When the last clone and the last guard are dropped, the thread
/// delivers what is still to be released, and ends.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use portcullis::Portcullis;
///
/// let gates = Portcullis::builder().url("redis://127.0.0.1/").prefix("shop").build()?;
/// let guard = gates.mutex("nightly-report").lock().await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Portcullis {
    backend: Arc<dyn Backend>,
    prefix: Prefix,
}

impl Portcullis {
    /// Starts to configure a handle.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A handle on a majority of independent servers, with the defaults; see
    /// [`quorum`](crate::quorum) for what that promises.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn main() -> Result<(), portcullis::ConfigError> {
    /// use portcullis::Portcullis;
    ///
    /// let gates = Portcullis::quorum(["redis://a.example/", "redis://b.example/", "redis://c.example/"])?;
    /// assert_eq!(gates.mutex("nightly-report").tolerates(), 1);
    /// # Ok(()) }
    /// ```
    pub fn quorum<S: IntoAddress>(
        servers: impl IntoIterator<Item = S>,
    ) -> Result<Self, ConfigError> {
        Self::builder().quorum(servers).build()
    }

    /// A handle on gates in this process' memory: for development, tests, and services of which
    /// only one instance runs.
    ///
    /// They behave as those on a server do, and end with the process. Each call makes gates of
    /// their own: clone the handle to share them.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use portcullis::Portcullis;
    ///
    /// let gates = Portcullis::in_memory();
    /// let guard = gates.mutex("nightly-report").lock().await?;
    /// assert!(gates.mutex("nightly-report").try_lock().await.is_err());
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn in_memory() -> Self {
        Self::on_memory(&Memory::new(Clock::System), Prefix::default())
    }

    pub(crate) fn on_memory(memory: &Arc<Memory>, prefix: Prefix) -> Self {
        Self {
            backend: MemoryBackend::start(memory),
            prefix,
        }
    }

    /// The lock named `name`. Any name will do; it is one lock for all processes with the same
    /// prefix.
    #[must_use]
    pub fn mutex(&self, name: &str) -> Mutex {
        Mutex::named(Arc::clone(&self.backend), self.prefix.clone(), name)
    }

    /// The lock at a key taken verbatim, to share it with clients that use `SET key token NX PX`
    /// and compare the token before they delete.
    ///
    /// While such a client holds, it is asked for every 100 to 250 ms, since its release tells
    /// nobody; clients that publish to `<key>:released` are heard, and told. A key without TTL is
    /// respected and never removed.
    #[must_use]
    pub fn mutex_at(&self, key: &str) -> Mutex {
        Mutex::exact(Arc::clone(&self.backend), self.prefix.clone(), key)
    }

    /// The semaphore named `name`, of which `limit` permits may be held at once: 1 to 4294967295.
    ///
    /// # Errors
    ///
    /// If the limit is 0.
    pub fn semaphore(&self, name: &str, limit: u32) -> Result<Semaphore, ConfigError> {
        Semaphore::named(Arc::clone(&self.backend), self.prefix.clone(), name, limit)
    }

    /// The rate limiter named `name`: each of its [keys](RateLimiter::keyed) is a subject that may
    /// use so much in a time. To make it asks the server nothing, and clears nothing.
    ///
    /// # Errors
    ///
    /// If a quota is one that can't be kept; see [`Quota`](crate::Quota) for what can.
    ///
    /// # Examples
    ///
    /// ```
    /// use portcullis::{Portcullis, Quota};
    ///
    /// # fn main() -> Result<(), portcullis::ConfigError> {
    /// let gates = Portcullis::in_memory();
    /// let api = gates.rate_limiter("api", Quota::per_second(100).burst(200))?;
    /// let plan = gates.rate_limiter("plan", [Quota::per_second(10), Quota::per_day(5_000)])?;
    /// # Ok(()) }
    /// ```
    pub fn rate_limiter<Q>(&self, name: &str, quotas: Q) -> Result<RateLimiter, ConfigError>
    where
        Q: TryInto<Quotas>,
        ConfigError: From<Q::Error>,
    {
        let (backend, prefix) = (Arc::clone(&self.backend), self.prefix.clone());
        if backend.servers() > 1 {
            let problem = "it is not kept over a quorum of servers, on which nothing is counted \
                           once; use a handle on one server";
            return Err(ConfigError::new("rate_limiter", problem));
        }
        Ok(RateLimiter::named(
            backend,
            prefix,
            name,
            quotas.try_into()?,
        ))
    }

    /// Makes a handle with the defaults on the server at `url`, and [looks](Self::check) whether it
    /// fits: for services that had better not start without it.
    ///
    /// Warnings are told by `tracing`. For other settings there is [`Builder::connect`].
    ///
    /// # Errors
    ///
    /// If the address is none, if the server can't be reached or refuses the credentials, or if it
    /// has a [`Problem`](crate::check::Severity::Problem), such as a missing right.
    ///
    /// # Cancel safety
    ///
    /// As [`check`](Self::check); the handle is dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let gates = portcullis::Portcullis::connect("redis://127.0.0.1/").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: impl IntoAddress) -> Result<Self, ConnectError> {
        Self::builder().url(url).connect().await
    }

    /// Looks whether the server fits: its version, role and settings, whether its user has every
    /// right that gates need, and whether scripts and pushes work. Await what it gives.
    ///
    /// It has a connection of its own and uses no gate of anybody's: it tries each command, and runs
    /// each script, at keys that it makes up under the handle's prefix, and removes them. It takes
    /// about twenty round trips. Looks that are asked for while one is under way share the next. A missing right leaves a line in the server's `ACL LOG`. Of gates
    /// in memory there is nothing to find.
    ///
    /// Of a [quorum](crate::quorum) each server is looked at, and a majority has to fit: what is wrong
    /// with others is a warning that [names](crate::check::Finding::AtServer) them.
    ///
    /// # Errors
    ///
    /// If the server can't be asked: it is not reached within `connect_timeout`, does not answer
    /// within `command_timeout`, refuses the credentials, loads its data, or is busy. What it
    /// answers is in the [report](crate::check::Report), also where that is a problem. Of a quorum, if
    /// those that can't be asked decide whether a majority fits.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the look, which ends in the background. What one that is
    /// cut short leaves on the server ends by itself within about a minute.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(gates: portcullis::Portcullis) -> Result<(), Box<dyn std::error::Error>> {
    /// let report = gates.check().at("payment").await?;
    /// for finding in report.findings() {
    ///     println!("{}: {finding}", finding.severity());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn check(&self) -> Check {
        Check::new(Arc::clone(&self.backend))
    }

    /// Ends this handle's use of its gates: new calls and waiters are refused at once, guards live
    /// on until they are dropped or `deadline` has passed, then all are released and their holders
    /// told that they lost; those with a [`lock_delay`](Mutex::lock_delay) are left to that. So are those that a layer has let through
    /// [by itself](crate::layer::OnOutage::Local).
    ///
    /// Call it when the server that used the gates has ended, before the process does: what was
    /// dropped in the last moment is delivered. Calling it again is harmless.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the shutdown.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let (sender, receiver) = oneshot::channel();
        self.backend.shutdown(deadline, sender);
        // And what layers let through by themselves while the server was away.
        let (sender, local) = oneshot::channel();
        self.backend.local().shutdown(deadline, sender);
        let shared = receiver.await.unwrap_or_default();
        let local = local.await.unwrap_or_default();
        ShutdownReport {
            released: shared.released + local.released,
            abandoned: shared.abandoned + local.abandoned,
        }
    }
}

impl fmt::Debug for Portcullis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Portcullis")
            .field("prefix", &self.prefix)
            .field("backend", &self.backend)
            .finish()
    }
}

/// What a TLS address is told where this crate was built without TLS.
/// Configures a [`Portcullis`].
///
/// | setting | unit and range | default |
/// | --- | --- | --- |
/// | [`url`](Self::url) | `redis://`, `rediss://` (feature `tls`), `unix://`, `redis+sentinel://` (feature `sentinel`), `redis+cluster://` (feature `cluster`) | `redis://127.0.0.1/` |
/// | [`quorum`](Self::quorum) | 3 to 15 servers, of which a majority decides | none: one server |
/// | [`server_timeout`](Self::server_timeout) | 1 ms to 60 s | 50 ms, or TTL/20 |
/// | [`quarantine`](Self::quarantine) | on, off | on |
#[cfg_attr(
    feature = "tls",
    doc = "| [`tls`](Self::tls) | certificates in PEM | the CAs that the system trusts, no certificate of our own |"
)]
/// | [`prefix`](Self::prefix) | 1 to 64 of `A-Z a-z 0-9 - _ . :` | `portcullis` |
/// | [`connections`](Self::connections) | 1 to 4 | 2 |
/// | [`command_timeout`](Self::command_timeout) | 10 ms to 60 s | 500 ms |
/// | [`connect_timeout`](Self::connect_timeout) | 10 ms to 60 s | 1 s |
/// | [`admission_budget`](Self::admission_budget) | 10 ms to 60 s | 100 ms |
/// | [`min_replicas`](Self::min_replicas) | 1 to 16, and 1 ms to 60 s | none |
/// | [`preloaded_scripts`](Self::preloaded_scripts) | on | off: the handle loads them |
#[derive(Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    source: Option<Source>,
    subscriber: Option<redis::ConnectionInfo>,
    url_error: Option<ConfigError>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    prefix: Option<String>,
    settings: Settings,
    /// The servers of a quorum, if it is one.
    servers: Option<Vec<Source>>,
    quorum: QuorumSettings,
}

impl Builder {
    /// Sets the server to use: a URL, or anything that makes a [`redis::ConnectionInfo`].
    ///
    /// | address | what it is |
    /// | --- | --- |
    /// | `redis://host:port/db` | TCP |
    /// | `rediss://host:port/db` | TLS (feature `tls`); its certificate must be for `host` |
    /// | `unix:///path?db=2&user=name&pass=word` | a Unix socket |
    /// | `redis://name:word@host/`, `redis://:word@host/` | user and password, or only a password |
    /// | `…?protocol=resp3` | the protocol from Redis 6 on, in place of the one that all speak |
    /// | `redis+sentinel://host:port,host2:port/service/db` | sentinels that name the server (feature `sentinel`), as a `Sentinel` does |
    /// | `redis+cluster://host:port,host2:port`, `rediss+cluster://…` | a cluster, by some of its nodes (feature `cluster`) |
    ///
    /// The port is 6379, that of a sentinel 26379, and the database 0 where none is named. What is
    /// not a letter or a digit in a name or a password is written `%XX`. Processes share gates only if they use the same
    /// database; another than 0 needs the right to `SELECT`. The protocol makes no difference to
    /// gates: pushes come over both. `#insecure` behind a `rediss://` address is refused.
    ///
    /// Name several nodes of a cluster, since any may be away when the handle is first used; the
    /// others are found. All are connected to with the same credentials, and each master has its own
    /// [`connections`](Self::connections). A gate is on one node with all that belongs to it, and
    /// gates are spread over all by their names. After a master was replaced, and while a slot moves,
    /// calls wait as long as they would for a server that does not serve.
    pub fn url(mut self, server: impl IntoAddress) -> Self {
        match server.into_address() {
            Ok(address) => self.source = Some(address.source),
            Err(error) => self.url_error = Some(error),
        }
        self
    }

    /// Takes a majority of these independent servers in place of one: see [`quorum`](crate::quorum)
    /// for what that promises. An odd number, 3 to 15. Each has one connection for commands, and one
    /// listens.
    pub fn quorum<S: IntoAddress>(mut self, servers: impl IntoIterator<Item = S>) -> Self {
        let mut all = Vec::new();
        for server in servers {
            match server.into_address() {
                Ok(address) => all.push(address.source),
                Err(error) => self.url_error = Some(error),
            }
        }
        self.servers = Some(all);
        self
    }

    /// Sets how long one server of a [quorum](Self::quorum) has for its vote: 1 ms to 60 s, by default
    /// 50 ms or a twentieth of the gate's TTL, whichever is less.
    ///
    /// A request that does not wait for its turn has its answer by then. A server that says nothing for
    /// four times as long, and for 200 ms at least, is not asked until it answers promptly again.
    pub fn server_timeout(mut self, timeout: Duration) -> Self {
        self.quorum.server_timeout = Some(timeout);
        self
    }

    /// Sets whether a server of a [quorum](Self::quorum) that may have lost leases has no vote until
    /// they have ended: on by default.
    ///
    /// It has none while it has run for less than a gate's TTL, as `INFO` tells, or when another server
    /// has taken its place, as after a failover. A server that loses nothing in a restart, with
    /// `appendonly yes` and `appendfsync always`, votes at once.
    ///
    /// Turned off, two processes may hold one lock after a server was restarted within a TTL.
    pub fn quarantine(mut self, quarantine: bool) -> Self {
        self.quorum.quarantine = quarantine;
        self
    }

    /// Takes the connections for commands from a pool of the user's. They are detached from it and
    /// kept, so they leave room in it.
    ///
    /// A pool can't receive pushes: name the server to [`subscriber`](Self::subscriber) too, else
    /// waiters ask again by a timer.
    pub fn pool(mut self, pool: deadpool_redis::Pool) -> Self {
        self.source = Some(Source::Pool(pool));
        self
    }

    /// Takes the connections for commands from a pool of the user's that asks sentinels for the
    /// master, as [`pool`](Self::pool) does. Needs the feature `sentinel`.
    ///
    /// Where to listen, and when to give connections up after a failover, `sentinels` tell: the
    /// pool's, and how to connect to the servers that they name. Each connection is taken only if
    /// it leads to the server that they name: a second one is opened to compare, and closed. The
    /// pool asks one sentinel after the other, and has no time-outs for it of its own: where one
    /// may hang, [`url`](Self::url) finds the master sooner.
    #[cfg(feature = "sentinel")]
    pub fn sentinel_pool(
        mut self,
        pool: deadpool_redis::sentinel::Pool,
        sentinels: crate::Sentinel,
    ) -> Self {
        match Source::sentinel_pool(pool, sentinels) {
            Ok(source) => self.source = Some(source),
            Err(error) => self.url_error = Some(error),
        }
        self
    }

    /// Takes the clients for commands from a pool of the user's that lead to all nodes of a cluster.
    /// Needs the feature `cluster`.
    ///
    /// `nodes` names some nodes of the same cluster, as the pool's manager was given them: over
    /// connections of our own to these, and to those that they tell of, we listen and find out who
    /// owns what. What their addresses say of credentials and TLS holds for all nodes.
    ///
    /// Each of the [`connections`](Self::connections) to each master takes one client out of the
    /// pool for good, and leaves room in it. A client connects to every node: with 1 connection there
    /// are as many sockets as the square of the nodes.
    ///
    /// # What the pool's client does by itself
    ///
    /// It follows redirections, and sends a request again while it has no answer, up to sixteen times
    /// and until the `command_timeout` has passed. Locks and permits stay right: all that is sent for them may run
    /// twice, and whatever an earlier attempt leaves is cleaned up, for which each release and
    /// refusal costs a little more. **Rate limits may count too much**: each time a connection breaks
    /// while a check is under way, the check may count once more, up to 17 times in all, and its answer is
    /// that of the last attempt. While a slot moves, the client repeats what it is told to try again, and says nothing
    /// of it: where that takes longer than the `command_timeout`, a master whose only requests
    /// are for that slot counts as away. With the cluster's [`url`](Self::url) there is none of this; take a pool
    /// only where you must.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use portcullis::deadpool_redis::Runtime;
    /// use portcullis::deadpool_redis::cluster::{Manager, Pool};
    ///
    /// let nodes = vec!["redis://node-1:6379/", "redis://node-2:6379/"];
    /// let manager = Manager::new(nodes.clone(), false)?;
    /// let pool = Pool::builder(manager).max_size(8).runtime(Runtime::Tokio1).build()?;
    /// let gates = portcullis::Portcullis::builder().cluster_pool(pool, nodes).build()?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "cluster")]
    pub fn cluster_pool(
        mut self,
        pool: deadpool_redis::cluster::Pool,
        nodes: impl IntoIterator<Item = impl redis::IntoConnectionInfo>,
    ) -> Self {
        match Seeds::of_pool(pool, nodes) {
            Ok(seeds) => self.source = Some(Source::Cluster(seeds)),
            Err(error) => self.url_error = Some(error),
        }
        self
    }

    /// Sets where to listen for pushes: the server to which the [`pool`](Self::pool) connects.
    pub fn subscriber(mut self, server: redis::ConnectionInfo) -> Self {
        self.subscriber = Some(server);
        self
    }

    /// Sets whom to trust at `rediss://` addresses, and what to show there: of the
    /// [`url`](Self::url), and of the [`subscriber`](Self::subscriber). A [`pool`](Self::pool) has
    /// certificates of its own. Needs the feature `tls`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets what all keys and channels begin with. Processes share gates if they share it.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets how many connections carry commands. One more listens.
    pub fn connections(mut self, connections: usize) -> Self {
        self.settings.connections = connections;
        self
    }

    /// Sets how long to wait for the server's answer to one request before its outcome counts as
    /// unknown.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// Sets how long to wait for a connection.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Sets how long a request at a layer may wait for the server's answer, beyond what its layer
    /// lets it wait for its turn: then the layer's [`OnOutage`](crate::layer::OnOutage) decides. The
    /// very first requests have the time to connect on top.
    ///
    /// Primitives that are called without a layer have the `command_timeout`.
    pub fn admission_budget(mut self, budget: Duration) -> Self {
        self.settings.admission_budget = budget;
        self
    }

    /// Has a lease count only when so many replicas (1 to 16) have it, which they are given `timeout`
    /// (1 ms to 60 s) to say: then it is not forgotten when one of them is promoted.
    ///
    /// A lock or a permit that is granted, and that too few replicas acknowledge in time, is given
    /// back and refused with [`BackendErrorKind::Refused`](crate::BackendErrorKind::Refused), which a
    /// layer treats as an [outage](crate::layer::OnOutage). So is a hand-off by push. A renewal that
    /// they don't acknowledge lengthens nothing: it is tried again, and the lease is lost at its end
    /// if none is acknowledged until then. Take a `timeout` well below the TTLs in use.
    ///
    /// It is no part of a wait for a turn: whoever has its turn within its `max_wait` waits for the
    /// replicas then, for `timeout` and the `command_timeout` at the most.
    ///
    /// # What it costs
    ///
    /// One more connection, and with each lock one more script and the round trip from the server
    /// to its replicas. `WAIT` blocks its connection, so what comes meanwhile shares the next one:
    /// while replicas are slow or missing, an answer takes up to two `timeout`s. The server's user
    /// needs `+wait`, and one key under the prefix is written to.
    ///
    /// # What it does not promise
    ///
    /// It is no consensus. A failover must choose a replica that has acknowledged: with more replicas
    /// than this number, one that has not may be promoted. A replica that is promoted with another
    /// clock ends leases earlier or later. A replica that is restarted before it has written to
    /// its disk has forgotten what it acknowledged. And a master that was cut off, and comes back,
    /// goes on for a while; `min-replicas-to-write` bounds that. Rate limits, places in queues and
    /// releases are not waited for: a failover may forget them, so a quota may be exceeded, and a
    /// lease that was given back may hold for its TTL again. `docs/safety.md` in the repository tells
    /// what each setting of a server gives, and what remains.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example() -> Result<(), portcullis::ConfigError> {
    /// use std::time::Duration;
    ///
    /// let gates = portcullis::Portcullis::builder()
    ///     .url("redis://127.0.0.1/")
    ///     .min_replicas(1, Duration::from_millis(200))
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    pub fn min_replicas(mut self, least: u32, timeout: Duration) -> Self {
        self.settings.replicas = Some(Replicas {
            least,
            patience: timeout,
        });
        self
    }

    /// Relies on [scripts](crate::scripts) that somebody has loaded beforehand: the handle sends none,
    /// so that its user needs neither `EVAL` nor `SCRIPT`.
    ///
    /// While a script is missing, as after a restart or a failover to a server on which nobody has
    /// loaded it, calls that need it fail as if the server were away, and go on when it is there.
    /// [`check`](Portcullis::check) tells which are missing.
    pub fn preloaded_scripts(mut self) -> Self {
        self.settings.preloaded = true;
        self
    }

    /// Makes the handle and starts its background thread. Connects when it is first used, so the
    /// server need not be there yet.
    ///
    /// # Errors
    ///
    /// Names the setting that is out of its range, or that can't be used: an address that is none,
    /// certificates that can't be read.
    pub fn build(mut self) -> Result<Portcullis, ConfigError> {
        if let Some(error) = self.url_error {
            return Err(error);
        }
        let prefix = match &self.prefix {
            Some(prefix) => Prefix::new(prefix)?,
            None => Prefix::default(),
        };
        #[cfg(feature = "tls")]
        if self.tls.is_some() && !self.speaks_tls() {
            let problem = "no address is one of TLS; take rediss:// in place of redis://";
            return Err(ConfigError::new("tls", problem));
        }
        let servers = self.servers.take();
        #[cfg(feature = "tls")]
        let secured = |info| tls::prepare(info, self.tls.as_ref());
        #[cfg(not(feature = "tls"))]
        let secured = without_tls;
        if let Some(servers) = servers {
            if self.source.is_some() || self.subscriber.is_some() {
                let problem =
                    "it is all that a handle needs; name neither url, pool nor subscriber";
                return Err(ConfigError::new("quorum", problem));
            }
            let mut addresses = Vec::new();
            let mut origins = Vec::new();
            for server in servers {
                #[cfg(feature = "cluster")]
                if let Source::Cluster(_) = &server {
                    let problem = "a cluster is no independent server: its nodes fail over to each \
                                   other; name servers of their own";
                    return Err(ConfigError::new("quorum", problem));
                }
                if let Source::Server(info) = &server {
                    let address = info.addr().to_string();
                    if addresses.contains(&address) {
                        let problem = "it names one address twice; name independent servers";
                        return Err(ConfigError::new("quorum", problem));
                    }
                    addresses.push(address);
                }
                origins.push(Origin::new(server.secured(secured)?, None));
            }
            let prefix = prefix.of_quorum();
            let backend = QuorumBackend::start(origins, &prefix, self.settings, &self.quorum)?;
            return Ok(Portcullis { backend, prefix });
        }
        let source = match self.source.take() {
            Some(source) => source.secured(secured)?,
            None => Source::local()?,
        };
        let subscriber = self.subscriber.take().map(secured).transpose()?;
        #[cfg(feature = "cluster")]
        if let (Source::Cluster(_), Some(_)) = (&source, &subscriber) {
            let problem = "in a cluster each master is listened to; name no subscriber";
            return Err(ConfigError::new("subscriber", problem));
        }
        let origin = Origin::new(source, subscriber);
        let backend = ServerBackend::start(origin, &prefix, self.settings)?;
        Ok(Portcullis { backend, prefix })
    }

    #[cfg(feature = "tls")]
    fn speaks_tls(&self) -> bool {
        let servers = self.servers.iter().flatten();
        let named = self.source.iter().chain(servers).flat_map(Source::named);
        let mut servers = named.chain(&self.subscriber);
        servers.any(|info| matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }))
    }

    /// Makes the handle, and [looks](Portcullis::check) whether the server fits. Warnings are told by
    /// `tracing`.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build) and [`Portcullis::check`], and if the server has a
    /// [`Problem`](crate::check::Severity::Problem).
    ///
    /// # Cancel safety
    ///
    /// As [`Portcullis::check`]; the handle is dropped.
    pub async fn connect(self) -> Result<Portcullis, ConnectError> {
        let gates = self.build()?;
        let report = gates.check().await?;
        if !report.is_ok() {
            return Err(ConnectError::Unfit(report));
        }
        for finding in report.findings() {
            match finding.severity() {
                Severity::Problem | Severity::Warning => tracing::warn!("{finding}"),
                Severity::Note => tracing::info!("{finding}"),
            }
        }
        Ok(gates)
    }
}

/// A TLS address is one where somebody else has asked for the client's TLS, too.
#[cfg(not(feature = "tls"))]
fn without_tls(info: redis::ConnectionInfo) -> Result<redis::ConnectionInfo, ConfigError> {
    match info.addr() {
        redis::ConnectionAddr::TcpTls { .. } => {
            Err(ConfigError::new("url", crate::address::NEEDS_TLS))
        }
        _ => Ok(info),
    }
}

/// Without addresses, which may name users and hold passwords.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Builder");
        #[cfg(feature = "tls")]
        shown.field("tls", &self.tls);
        shown
            .field("source", &self.source)
            .field("has_subscriber", &self.subscriber.is_some())
            .field("prefix", &self.prefix)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str) -> String {
        let built = Portcullis::builder().url(url).build();
        built.expect_err("no address of a server").to_string()
    }

    #[test]
    fn what_is_no_address_is_told_what_one_looks_like_and_only_tls_hears_of_tls() {
        for url in [
            "",
            "localhost:6379",
            "http://127.0.0.1/",
            "redis://",
            "redis://127.0.0.1/a",
        ] {
            let problem = problem(url);
            assert!(problem.contains("redis://127.0.0.1:6379/0"), "{problem}");
            assert!(!problem.contains("TLS"), "{problem}");
        }
        for url in ["rediss://127.0.0.1/", "valkeys://127.0.0.1/"] {
            let built = Portcullis::builder().url(url).build();
            assert_eq!(built.is_ok(), cfg!(feature = "tls"));
            if let Err(error) = built {
                assert!(error.to_string().contains("feature `tls`"), "{error}");
            }
        }
    }
}
