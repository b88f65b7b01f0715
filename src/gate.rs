//! What mutexes and semaphores share: a named place on a backend, and how to ask for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop::cooperative;

use crate::backend::quorum::rule;
use crate::backend::{Acquire, Backend, Keep, Kept, Place, Terms, Wait};
use crate::error::{ConfigError, LockError, Refusal};
use crate::key::{Key, Kind, Prefix, Resource};
use crate::lease::{Lease, LeaseMode};
use crate::time::{Delay, Instant, Ttl};

/// As many may wait at one key unless the user says otherwise.
const DEFAULT_MAX_WAITERS: u32 = 10_000;

#[derive(Clone)]
pub(crate) struct Gate {
    backend: Arc<dyn Backend>,
    prefix: Prefix,
    origin: Origin,
    /// Which of its siblings it is.
    key: Option<Key>,
    place: Arc<dyn Place>,
    /// Whether this process keeps what it gets, and how.
    keep: Option<Keep>,
    terms: Terms,
}

/// What the place's name is made from.
#[derive(Clone, PartialEq, Eq)]
enum Origin {
    Named(Kind, Arc<str>),
    Exact(Arc<str>),
}

impl Origin {
    fn resource(&self, prefix: &Prefix, key: Option<&Key>) -> Resource {
        match (self, key) {
            (Self::Named(kind, name), key) => Resource::named(prefix, *kind, name, key),
            (Self::Exact(start), None) => Resource::exact(prefix, start, start),
            (Self::Exact(start), Some(key)) => {
                Resource::exact(prefix, &format!("{start}:{key}"), start)
            }
        }
    }

    fn name(&self) -> &Arc<str> {
        match self {
            Self::Named(_, name) | Self::Exact(name) => name,
        }
    }
}

/// Tells a gate from others, without keeping its handle alive.
pub(crate) struct Identity {
    /// Where it lives. Means something only while the backend does, as during a lease of it.
    backend: usize,
    origin: Origin,
    key: Option<Key>,
}

impl Identity {
    /// As [`Gate::name`].
    pub(crate) fn name(&self) -> &Arc<str> {
        self.origin.name()
    }
}

impl Gate {
    pub(crate) fn named(
        backend: Arc<dyn Backend>,
        prefix: Prefix,
        kind: Kind,
        name: &str,
        limit: u32,
    ) -> Self {
        Self::new(backend, prefix, Origin::Named(kind, name.into()), limit)
    }

    pub(crate) fn exact(backend: Arc<dyn Backend>, prefix: Prefix, key: &str) -> Self {
        Self::new(backend, prefix, Origin::Exact(key.into()), 1)
    }

    fn new(backend: Arc<dyn Backend>, prefix: Prefix, origin: Origin, limit: u32) -> Self {
        let terms = Terms {
            weight: 1,
            limit,
            ttl: Ttl::DEFAULT,
            mode: LeaseMode::default(),
            delay: Delay::default(),
            wait: Wait::Unbounded,
            max_waiters: DEFAULT_MAX_WAITERS,
            bridge: None,
            kept: 0,
        };
        let place = backend.place(origin.resource(&prefix, None));
        Self {
            backend,
            prefix,
            origin,
            key: None,
            place,
            keep: None,
            terms,
        }
    }

    pub(crate) fn keyed(&self, key: Key) -> Self {
        let resource = self.origin.resource(&self.prefix, Some(&key));
        Self {
            place: self.place(resource),
            key: Some(key),
            ..self.clone()
        }
    }

    fn place(&self, resource: Resource) -> Arc<dyn Place> {
        match self.keep {
            Some(keep) => self.backend.home(resource, keep, self.terms.limit),
            None => self.backend.place(resource),
        }
    }

    /// The same gate, of which this process keeps what it gets.
    pub(crate) fn keep(mut self, keep: Keep) -> Result<Self, ConfigError> {
        if self.backend.servers() > 1 {
            let problem = "nothing is kept over a quorum of servers; use a handle on one server";
            return Err(ConfigError::new(keep.setting(), problem));
        }
        self.keep = Some(keep);
        self.check_keep()?;
        let resource = self.origin.resource(&self.prefix, self.key.as_ref());
        self.place = self.place(resource);
        Ok(self)
    }

    /// The same gate, of which each request asks the server.
    pub(crate) fn keep_nothing(mut self) -> Self {
        self.keep = None;
        let resource = self.origin.resource(&self.prefix, self.key.as_ref());
        self.place = self.place(resource);
        self
    }

    /// Refuses what can't be kept.
    fn check_keep(&self) -> Result<(), ConfigError> {
        let problem = if self.terms.mode != LeaseMode::Renewed {
            "what is kept for the next request is renewed for as long; take a `lease` that is renewed"
        } else if !self.terms.delay.is_none() {
            "what is kept for the next request has no `lock_delay`; set one of them"
        } else {
            return Ok(());
        };
        self.keep.map_or(Ok(()), |keep| {
            Err(ConfigError::new(keep.setting(), problem))
        })
    }

    pub(crate) fn kept(&self) -> Kept {
        self.place.kept()
    }

    /// The same gate in this process alone, with so many permits.
    pub(crate) fn local(&self, limit: u32) -> Self {
        let backend = self.backend.local();
        let resource = self.origin.resource(&self.prefix, self.key.as_ref());
        Self {
            place: backend.place(resource),
            backend: Arc::clone(backend),
            keep: None,
            terms: Terms {
                limit,
                ..self.terms
            },
            ..self.clone()
        }
    }

    /// The moment, by the clock that its waits go by.
    pub(crate) fn now(&self) -> Instant {
        self.backend.now()
    }

    /// Whether it is a lock, which has no room for two of one request.
    pub(crate) const fn is_mutex(&self) -> bool {
        matches!(
            self.origin,
            Origin::Named(Kind::Mutex, _) | Origin::Exact(_)
        )
    }

    /// Whether others may use its key as it is.
    pub(crate) const fn is_exact(&self) -> bool {
        matches!(self.origin, Origin::Exact(_))
    }

    /// Of this gate, or of its sibling by `key`.
    #[inline]
    pub(crate) fn identity(&self, key: Option<Key>) -> Identity {
        Identity {
            backend: self.backend_address(),
            origin: self.origin.clone(),
            key: key.or_else(|| self.key.clone()),
        }
    }

    /// Whether `other` is the identity of this gate.
    pub(crate) fn is(&self, other: &Identity) -> bool {
        self.backend_address() == other.backend
            && self.origin == other.origin
            && self.key == other.key
    }

    fn backend_address(&self) -> usize {
        Arc::as_ptr(&self.backend).addr()
    }

    /// Which of its siblings it was.
    pub(crate) fn into_key(self) -> Option<Key> {
        self.key
    }

    pub(crate) fn ttl(mut self, ttl: Duration) -> Result<Self, ConfigError> {
        self.terms.ttl = Ttl::new(ttl)?;
        Ok(self)
    }

    pub(crate) fn lease(mut self, mode: LeaseMode) -> Result<Self, ConfigError> {
        self.terms.mode = mode.checked()?;
        self.check_keep()?;
        Ok(self)
    }

    pub(crate) fn lock_delay(mut self, delay: Duration) -> Result<Self, ConfigError> {
        if self.backend.servers() > 1 && !delay.is_zero() {
            let problem = "it is not kept over a quorum of servers; use a handle on one server";
            return Err(ConfigError::new("lock_delay", problem));
        }
        self.terms.delay = Delay::new(delay)?;
        self.check_keep()?;
        Ok(self)
    }

    pub(crate) fn max_wait(mut self, max_wait: Duration) -> Self {
        self.terms.wait = Wait::at_most(max_wait);
        self
    }

    pub(crate) fn max_waiters(mut self, max_waiters: u32) -> Self {
        self.terms.max_waiters = max_waiters;
        self
    }

    /// As errors, traces and [`Held`](crate::Held) name it.
    pub(crate) fn name(&self) -> &Arc<str> {
        self.origin.name()
    }

    pub(crate) fn tolerates(&self) -> usize {
        rule::tolerated(self.backend.servers(), self.terms.limit)
    }

    pub(crate) fn wait(&self) -> Wait {
        self.terms.wait
    }

    /// Waits for a lease; `wait` replaces the configured one.
    #[inline]
    pub(crate) const fn enter(&self, weight: u32, wait: Option<Wait>) -> Entering<'_> {
        Entering {
            gate: self,
            weight,
            wait,
            acquire: None,
        }
    }

    /// Starts an acquire; `limit` and `wait` replace the configured ones, and `bridge` is what
    /// [`Terms`] says.
    pub(crate) fn acquire(
        &self,
        weight: u32,
        limit: Option<u32>,
        wait: Option<Wait>,
        bridge: Option<Duration>,
    ) -> Acquire {
        let limit = limit.unwrap_or(self.terms.limit);
        match self.count_in(weight, limit) {
            Some(lease) => Acquire::Ready(Ok(lease)),
            None => self.ask(weight, limit, wait, bridge),
        }
    }

    /// A lease that is to be had by being counted, as most are where state lives in this process:
    /// nothing more is put together for it.
    #[inline]
    fn count_in(&self, weight: u32, limit: u32) -> Option<Lease> {
        if weight != 1 || !self.terms.only_count() {
            return None;
        }
        let ttl = self.terms.ttl;
        let fence = self.place.count_in(limit, ttl)?;
        Some(Lease::counted(Arc::clone(&self.place), ttl, fence))
    }

    #[inline(never)]
    fn ask(
        &self,
        weight: u32,
        limit: u32,
        wait: Option<Wait>,
        bridge: Option<Duration>,
    ) -> Acquire {
        if weight == 0 || weight > limit {
            return Acquire::Ready(Err(Refusal::never_fits(weight, limit).into()));
        }
        let terms = Terms {
            weight,
            limit,
            wait: wait.unwrap_or(self.terms.wait),
            bridge,
            ..self.terms
        };
        self.place.acquire(&self.place, &terms)
    }
}

/// An acquire that begins when it is polled.
///
/// Written by hand. Each waiting task has one, and the compiler would keep the acquire in it more
/// than once. And what is had at once is handed on in registers, with no part of it passed through
/// memory that others write to: that would cost as much as all the rest.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Entering<'a> {
    gate: &'a Gate,
    weight: u32,
    wait: Option<Wait>,
    /// Once it has begun.
    acquire: Option<Acquire>,
}

impl Future for Entering<'_> {
    type Output = Result<Lease, LockError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.acquire.is_none() {
            // What is ready at once, again and again, would keep other tasks from their turn.
            ready!(Pin::new(&mut cooperative(std::future::ready(()))).poll(cx));
            let limit = self.gate.terms.limit;
            if let Some(lease) = self.gate.count_in(self.weight, limit) {
                return Poll::Ready(Ok(lease));
            }
        }
        ready!(self.work(cx));
        match self.acquire.replace(Acquire::Ended) {
            Some(Acquire::Ready(answer)) => Poll::Ready(answer),
            _ => panic!("polled after it has ended"),
        }
    }
}

impl Entering<'_> {
    /// Goes on until the answer is there.
    #[inline(never)]
    fn work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let acquire = self.acquire.get_or_insert_with(|| {
            self.gate
                .ask(self.weight, self.gate.terms.limit, self.wait, None)
        });
        acquire.poll_ready(cx)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("name", self.name())
            .field("limit", &self.terms.limit)
            .field("ttl", &self.terms.ttl.get())
            .field("mode", &self.terms.mode)
            .field("lock_delay", &self.terms.delay.get())
            .field("wait", &self.terms.wait)
            .field("max_waiters", &self.terms.max_waiters)
            .finish_non_exhaustive()
    }
}

/// The settings that each primitive takes, to the letter the same.
macro_rules! gate_settings {
    () => {
        /// Sets how long the server keeps a lease that nobody renews: 50 ms to 24 h, 10 s by
        /// default.
        ///
        /// It bounds how long others wait for a holder that died. All processes should agree on it.
        ///
        /// # Errors
        ///
        /// If it is out of range.
        pub fn ttl(self, ttl: Duration) -> Result<Self, ConfigError> {
            Ok(Self {
                gate: self.gate.ttl(ttl)?,
            })
        }

        /// Sets how long a lease lasts while its guard lives: renewed until dropped by default.
        ///
        /// # Errors
        ///
        /// If it is [`LeaseMode::MaxHold`] of nothing.
        pub fn lease(self, mode: LeaseMode) -> Result<Self, ConfigError> {
            Ok(Self {
                gate: self.gate.lease(mode)?,
            })
        }

        /// Sets for how long nobody else gets in after a lease that was not given back: 0 to 60 s, 0
        /// by default.
        ///
        /// Set it where the protected resource can't compare [fencing tokens](crate::FencingToken):
        /// what a lost holder has under way at that resource then has this time to die out. It is as
        /// long as a request to the resource may take, at the most.
        ///
        /// A guard that is dropped or released while its lease holds gives it back, and then there is
        /// no delay. Any other end is followed by it: the holder died, was paused, could not renew,
        /// reached the end of [`Fixed`](crate::LeaseMode::Fixed) or
        /// [`MaxHold`](crate::LeaseMode::MaxHold), or still held when a
        /// [shutdown](crate::Portcullis::shutdown) ended; also where its guard is dropped later. Only
        /// a server that has lost the lease itself, or an operator who removes it, knows of no delay.
        ///
        /// On the server the lease lasts this much longer, and others are told so when they are
        /// refused; the guard's `remaining` knows nothing of it. It is each holder's own: a process
        /// without it delays nobody, and waits for those that have it.
        ///
        /// # Errors
        ///
        /// If it is out of range.
        pub fn lock_delay(self, delay: Duration) -> Result<Self, ConfigError> {
            Ok(Self {
                gate: self.gate.lock_delay(delay)?,
            })
        }

        /// Sets how long to wait for a turn, independent of the TTL: unlimited by default, not at
        /// all for zero.
        #[must_use]
        pub fn max_wait(self, max_wait: Duration) -> Self {
            Self {
                gate: self.gate.max_wait(max_wait),
            }
        }

        /// How many of the servers may fail while the gate can still be entered: 0 on one server or in
        /// memory, and what the number of servers allows on a [quorum](crate::quorum).
        #[must_use]
        pub fn tolerates(&self) -> usize {
            self.gate.tolerates()
        }

        /// Sets how many may wait at one key before newcomers are refused: 10,000 by default, over
        /// all processes. With [`keep_permits`](crate::Semaphore::keep_permits) or
        /// [`local_handoffs`](crate::Mutex::local_handoffs) those who wait in this process.
        #[must_use]
        pub fn max_waiters(self, max_waiters: u32) -> Self {
            Self {
                gate: self.gate.max_waiters(max_waiters),
            }
        }
    };
}
pub(crate) use gate_settings;
