//! The layers and the service they make: thin constructors over the one admission.

use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::BoxError;
use super::admission::Admission;
use super::body::HeldBody;
use super::demand::Demand;
use super::door::Door;
use super::future::ResponseFuture;
use super::key::MakeKey;
use super::rate_limit::RateLimitLayer;
use super::rejection::{Busy, Rejection};
use super::settings::{HoldUntil, LockedStatus, OnLost, OnOutage};
use crate::key::Key;
use crate::mutex::Mutex;
use crate::semaphore::Semaphore;

/// Marks layers and services for HTTP: refusals are answers, and the lease is held to the end of
/// the body.
#[derive(Debug, Clone, Copy)]
pub enum Http {}

/// Marks layers and services for anything else: refusals are errors, and the lease is held to the
/// response.
#[derive(Debug, Clone, Copy)]
pub enum Plain {}

/// Lets one request through at a time, over all processes: a [`Mutex`] in front of a service.
///
/// See the [module's docs](super) for what it answers and how to combine it.
///
/// # Examples
///
/// One at a time for each account, by what an outer layer has found out of the caller:
///
/// ```no_run
/// # fn example(gates: portcullis::Portcullis) {
/// use http::request::Parts;
/// use portcullis::MutexLayer;
/// use portcullis::layer::KeyError;
///
/// #[derive(Clone)]
/// struct Account(u64);
///
/// let layer = MutexLayer::new(gates.mutex("withdraw")).key(|parts: &Parts| {
///     let account = parts.extensions.get::<Account>();
///     account.map(|account| account.0).ok_or(KeyError::missing("account"))
/// });
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a layer does nothing until it is put in front of a service"]
pub struct MutexLayer<P = Http> {
    admission: Admission,
    protocol: PhantomData<fn() -> P>,
}

impl MutexLayer {
    /// Puts `mutex` in front of HTTP services.
    ///
    /// A wait that was set on the mutex is kept; where none was, requests wait 2 s at most.
    pub fn new(mutex: Mutex) -> Self {
        let busy = Busy::Locked(LockedStatus::default());
        Self {
            admission: Admission::new(Door::Gate(mutex.gate), busy, OnLost::Abort),
            protocol: PhantomData,
        }
    }

    /// Sets the status for a request that finds the lock held and does not wait: 409 by default.
    pub fn locked_status(mut self, status: LockedStatus) -> Self {
        self.admission.busy = Busy::Locked(status);
        self
    }
}

/// Lets so many requests through at a time, over all processes: a [`Semaphore`] in front of a
/// service.
///
/// The counterpart, for a fleet, of tower's layer of this name. See the [module's docs](super) for
/// what it answers and how to combine it.
///
/// Where most requests find a permit free, [`Semaphore::keep_permits`] spares them the calls to the
/// server.
///
/// # Examples
///
/// ```no_run
/// # fn example(gates: portcullis::Portcullis) -> Result<(), portcullis::ConfigError> {
/// use std::time::Duration;
/// use portcullis::ConcurrencyLimitLayer;
///
/// let reports = gates.semaphore("reports", 10)?;
/// let layer = ConcurrencyLimitLayer::new(reports).max_wait(Duration::from_secs(5));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a layer does nothing until it is put in front of a service"]
pub struct ConcurrencyLimitLayer<P = Http> {
    admission: Admission,
    protocol: PhantomData<fn() -> P>,
}

impl ConcurrencyLimitLayer {
    /// Puts `semaphore` in front of HTTP services; each request takes one permit.
    ///
    /// A wait that was set on the semaphore is kept; where none was, requests wait 2 s at most.
    pub fn new(semaphore: Semaphore) -> Self {
        let door = Door::Gate(semaphore.gate);
        let admission = Admission::new(door, Busy::AtCapacity, OnLost::Continue);
        Self {
            admission,
            protocol: PhantomData,
        }
    }
}

impl ConcurrencyLimitLayer {
    /// Sets what each request asks for, where requests differ: how many permits it takes, and of how
    /// many. One permit, of as many as the semaphore has, by default.
    ///
    /// # Examples
    ///
    /// Each tenant has permits of its own, as many as its plan says; an import takes three:
    ///
    /// ```
    /// # fn example(gates: portcullis::Portcullis) -> Result<(), portcullis::ConfigError> {
    /// use http::request::Parts;
    /// use portcullis::ConcurrencyLimitLayer;
    /// use portcullis::layer::{Demand, KeyError};
    ///
    /// #[derive(Clone)]
    /// struct Tenant {
    ///     id: u64,
    ///     permits: u32,
    /// }
    ///
    /// let layer = ConcurrencyLimitLayer::new(gates.semaphore("work", 4)?)
    ///     .key(|parts: &Parts| {
    ///         let tenant = parts.extensions.get::<Tenant>();
    ///         tenant.map(|tenant| tenant.id).ok_or(KeyError::missing("tenant"))
    ///     })
    ///     .demand(|parts: &Parts| {
    ///         let weight = if parts.uri.path() == "/import" { 3 } else { 1 };
    ///         let plan = parts.extensions.get::<Tenant>();
    ///         Demand::default().weight(weight).limit(plan.map_or(1, |tenant| tenant.permits))
    ///     });
    /// # let _ = layer;
    /// # Ok(()) }
    /// ```
    pub fn demand(mut self, demand: impl Fn(&Parts) -> Demand + Send + Sync + 'static) -> Self {
        self.admission.demand = Some(Arc::new(demand));
        self
    }
}

/// The settings that each layer takes, to the letter the same.
macro_rules! layer_settings {
    ($layer:ident) => {
        impl<P> $layer<P> {
            /// Sets how long a request waits for its turn; zero lets it not wait at all. At a rate
            /// limit it does not by default.
            pub fn max_wait(mut self, max_wait: Duration) -> Self {
                self.admission.set_max_wait(max_wait);
                self
            }

            /// Sets what happens to requests while the server is away: they are answered 503 by
            /// default. See [when the server is away](super#when-the-server-is-away).
            pub fn on_outage(mut self, on_outage: OnOutage) -> Self {
                self.admission.on_outage = on_outage;
                self
            }
        }

        impl $layer {
            /// Sets which of the gate's siblings a request has to pass: by a maker such as
            /// [`header`](super::header), `path_param`, [`extension`](super::extension) or
            /// [`client_ip`](super::client_ip), several of them as a tuple, a closure over the
            /// request's head, or a fixed [`Key`](crate::Key); see [`MakeKey`]. A request for which
            /// it gives `None` passes ungated.
            pub fn key(mut self, key: impl MakeKey + 'static) -> Self {
                self.admission.key = Some(Arc::new(key));
                self
            }

            /// Sets which requests are gated at all; the others pass as if there were no gate. All
            /// are, by default.
            ///
            /// It lets preflights through, and the checks of a platform:
            ///
            /// ```
            /// # fn example(gates: portcullis::Portcullis) {
            /// use http::Method;
            /// use http::request::Parts;
            /// # use portcullis::MutexLayer;
            /// # let layer = MutexLayer::new(gates.mutex("all"));
            /// let layer = layer.applies_to(|parts: &Parts| {
            ///     parts.method != Method::OPTIONS && parts.uri.path() != "/healthz"
            /// });
            /// # let _ = layer; }
            /// ```
            pub fn applies_to(
                mut self,
                applies_to: impl Fn(&Parts) -> bool + Send + Sync + 'static,
            ) -> Self {
                self.admission.applies_to = Some(Arc::new(applies_to));
                self
            }

            /// Sets how long the caller of a request waits by its own account, if that is known: no
            /// request waits longer than that for its turn, nor longer than
            /// [`max_wait`](Self::max_wait).
            pub fn deadline(
                mut self,
                deadline: impl Fn(&Parts) -> Option<Duration> + Send + Sync + 'static,
            ) -> Self {
                self.admission.deadline = Some(Arc::new(deadline));
                self
            }

            /// Sets what becomes of the answer to a request that was not let through: it is given
            /// why, and the answer that the [module's table](super) describes, to change or to
            /// replace.
            ///
            /// ```
            /// # fn example(gates: portcullis::Portcullis) {
            /// use http::HeaderValue;
            /// # use portcullis::MutexLayer;
            /// # let layer = MutexLayer::new(gates.mutex("all"));
            /// let layer = layer.on_refusal(|rejection, mut answer| {
            ///     tracing::info!(%rejection, "sent away");
            ///     answer.headers_mut().insert("x-served-by", HeaderValue::from_static("gate"));
            ///     answer
            /// });
            /// # let _ = layer; }
            /// ```
            ///
            /// Change the answer rather than build another: that would lack `Retry-After`,
            /// `Cache-Control`, `Access-Control-Expose-Headers` and `WWW-Authenticate`. With
            /// `grpc()` a gRPC caller's answer comes here too; its status is in the headers, and a
            /// body is nothing to it:
            ///
            /// ```
            /// # fn example(gates: portcullis::Portcullis) {
            /// use bytes::Bytes;
            /// use http::HeaderValue;
            /// use http::header::CONTENT_TYPE;
            /// # use portcullis::MutexLayer;
            /// # let layer = MutexLayer::new(gates.mutex("all"));
            /// let layer = layer.on_refusal(|rejection, answer| {
            ///     if answer.headers()[CONTENT_TYPE] != "application/problem+json" {
            ///         return answer;
            ///     }
            ///     let (code, title) = (rejection.kind().as_str(), rejection.kind().title());
            ///     let body = format!(r#"{{"error":{{"code":"{code}","message":"{title}"}}}}"#);
            ///     let mut answer = answer.map(|_| Bytes::from(body));
            ///     let json = HeaderValue::from_static("application/json");
            ///     answer.headers_mut().insert(CONTENT_TYPE, json);
            ///     answer
            /// });
            /// # let _ = layer; }
            /// ```
            pub fn on_refusal(
                mut self,
                on_refusal: impl Fn(&Rejection, Response<Bytes>) -> Response<Bytes>
                + Send
                + Sync
                + 'static,
            ) -> Self {
                self.admission.on_refusal = Some(Arc::new(on_refusal));
                self
            }

            /// Answers gRPC requests (those of content type `application/grpc`) as gRPC does: with a
            /// status and retry information in the headers, see the [module's table](super). Their
            /// `grpc-timeout` counts as their [`deadline`](Self::deadline).
            #[cfg(feature = "tonic")]
            pub fn grpc(mut self) -> Self {
                self.admission.grpc = true;
                self
            }

            /// Makes it a layer for services whose requests are not [`http::Request`]: job runners,
            /// queues, anything.
            ///
            /// Takes any request; a lease is held until the response. The service fails with a [`BoxError`]:
            /// the inner service's own error, or a [`LockError`](crate::LockError) or
            /// [`LostReason`](crate::LostReason) to downcast to. There is no HTTP head to read a
            /// key from, so set a fixed one afterwards. What only HTTP can mean makes every call
            /// fail with a [`KeyError`](super::KeyError), if it was set before: `key`,
            /// `applies_to`, `demand`, `cost`, `quotas`, `refund`, `headers`, `deadline`,
            /// `on_refusal` and `grpc`. Axum takes no service
            /// that fails, and says so by "`Infallible: From<Box<dyn Error ..>>` is not satisfied":
            /// leave `plain()` out there.
            ///
            /// HTTP clients do without it, if they take an [`http::Request`], as hyper's does. A
            /// `reqwest::Client` takes a request of its own, and so compiles only behind `plain()`,
            /// which gives back at the answer's head, before its body. To hold to the end of the
            /// body, put the types of `http` around the client, and an HTTP layer around these:
            ///
            /// ```text
            /// ServiceBuilder::new()
            ///     .layer(gate)
            ///     .map_response(http::Response::<reqwest::Body>::from)
            ///     .map_request(|request: http::Request<reqwest::Body>| {
            ///         reqwest::Request::try_from(request).expect("an absolute URI")
            ///     })
            ///     .service(reqwest::Client::new())
            /// ```
            pub fn plain(self) -> $layer<Plain> {
                $layer {
                    admission: self.admission,
                    protocol: PhantomData,
                }
            }
        }

        impl $layer<Plain> {
            /// Sets which of the gate's siblings every request has to pass.
            pub fn key(mut self, key: impl Into<Key>) -> Self {
                self.admission.set_fixed_key(key.into());
                self
            }
        }

        impl<S, P> Layer<S> for $layer<P> {
            type Service = Gated<S, P>;

            fn layer(&self, inner: S) -> Gated<S, P> {
                Gated {
                    inner,
                    admission: Arc::new(self.admission.clone()),
                    protocol: PhantomData,
                }
            }
        }
    };
}
layer_settings!(MutexLayer);
layer_settings!(ConcurrencyLimitLayer);
layer_settings!(RateLimitLayer);

/// The settings of those that hold something while a request is worked on.
macro_rules! lease_settings {
    ($layer:ident) => {
        impl<P> $layer<P> {
            /// Sets what happens to a request whose lease is lost: mutexes abort by default,
            /// semaphores continue.
            pub fn on_lost(mut self, on_lost: OnLost) -> Self {
                self.admission.on_lost = on_lost;
                self
            }
        }

        impl $layer {
            /// Sets how long a request holds: until its response's body has ended by default.
            pub fn hold_until(mut self, hold_until: HoldUntil) -> Self {
                self.admission.hold_until = hold_until;
                self
            }
        }
    };
}
lease_settings!(MutexLayer);
lease_settings!(ConcurrencyLimitLayer);

/// A service behind a gate; made by [`MutexLayer`], [`ConcurrencyLimitLayer`] and
/// [`RateLimitLayer`].
///
/// Its clones share the gate. It is ready whenever the inner service is: requests wait in the
/// [response future](ResponseFuture), and nothing is reserved before they are there.
///
/// "`Gated<..>: Service<_>` is not satisfied" means that the inner service is not one of HTTP: it
/// does not take an [`http::Request`], or does not answer by an [`http::Response`]. Make the layer
/// [`plain`](MutexLayer::plain).
#[derive(Debug, Clone)]
pub struct Gated<S, P = Http> {
    inner: S,
    admission: Arc<Admission>,
    protocol: PhantomData<fn() -> P>,
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Gated<S, Http>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: Body,
{
    type Response = Response<HeldBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, Request<ReqBody>, Http>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (begun, request) = if self.admission.reads_head() {
            let (mut head, body) = request.into_parts();
            let begun = self.admission.begin(Some(&mut head));
            (begun, Request::from_parts(head, body))
        } else {
            (self.admission.begin(None), request)
        };
        ResponseFuture::new(
            &self.admission,
            begun,
            &mut self.inner,
            request,
            |request| Some(request.extensions_mut()),
        )
    }
}

impl<S, Req> Service<Req> for Gated<S, Plain>
where
    S: Service<Req> + Clone,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, Plain>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let begun = self.admission.begin(None);
        ResponseFuture::new(&self.admission, begun, &mut self.inner, request, |_| None)
    }
}
