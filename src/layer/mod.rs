//! Gates in front of services: [`MutexLayer`] lets one request through at a time,
//! [`ConcurrencyLimitLayer`] so many, and [`RateLimitLayer`] so many in a time, counted over all
//! processes that share a server.
//!
//! A request waits for its turn inside the response future, is handed to the inner service when it
//! holds, and holds until the last byte of its answer is out; at a rate limit nothing is held, and
//! it waits only if it is told to. Put a gate on the route that needs
//! it; on the router only what all its routes share. Use `route_layer`, which routers and method
//! routers have: `layer` gates what no handler answers too, so that a 404 or a 405 takes a permit,
//! or is a 400 for want of a key.
//!
//! ```no_run
//! # fn example() -> Result<axum::Router, Box<dyn std::error::Error>> {
//! use axum::Router;
//! use axum::routing::get;
//! use portcullis::{ConcurrencyLimitLayer, Portcullis};
//!
//! let gates = Portcullis::builder().url("redis://127.0.0.1/").build()?;
//! let reports = gates.semaphore("reports", 10)?;
//! let app: Router = Router::new()
//!     .route("/reports", get(async || "costly").route_layer(ConcurrencyLimitLayer::new(reports)))
//!     .route("/healthz", get(async || "never gated"));
//! # Ok(app) }
//! ```
//!
//! # Customized
//!
//! One lock per account, at most half a second of waiting, held only until the answer's head is
//! ready; the handler sends the [fencing token](crate::FencingToken) along with its write.
//!
//! ```no_run
//! # fn example(gates: portcullis::Portcullis) -> axum::Router {
//! use std::time::Duration;
//! use axum::Router;
//! use axum::routing::post;
//! use portcullis::layer::{HoldUntil, KeyError, NotHeld};
//! use portcullis::{Held, MutexLayer};
//!
//! async fn withdraw(held: Held) -> Result<String, NotHeld> {
//!     let lease = held.lease("withdraw")?;
//!     Ok(format!("written under fence {}", lease.fencing_token()))
//! }
//!
//! let one_per_account = MutexLayer::new(gates.mutex("withdraw"))
//!     .key(|parts: &http::request::Parts| {
//!         let account = parts.headers.get("x-account").and_then(|value| value.to_str().ok());
//!         account.map(str::to_owned).ok_or(KeyError::missing("header x-account"))
//!     })
//!     .max_wait(Duration::from_millis(500))
//!     .hold_until(HoldUntil::Response);
//! Router::new().route("/withdraw", post(withdraw).route_layer(one_per_account))
//! # }
//! ```
//!
//! # Rate limits
//!
//! By default a request that is over quota is refused at once, by 429 and the time at which it would
//! be let through if nobody else came. With a [`max_wait`](RateLimitLayer::max_wait) it books its
//! turn, if that comes in time, and waits for it. [`cost`](RateLimitLayer::cost) and
//! [`quotas`](RateLimitLayer::quotas) are by request, and [`refund`](RateLimitLayer::refund) gives
//! back what its answer says is not to be paid for. One reply of the server decides, and says what
//! is told: see [`RateHeaders`].
//!
//! ```
//! # fn example(gates: portcullis::Portcullis) -> Result<(), portcullis::ConfigError> {
//! use portcullis::layer::{RateHeaders, header};
//! use portcullis::{Quota, RateLimitLayer};
//!
//! let quotas = [Quota::per_second(10).burst(20), Quota::per_day(5_000)];
//! let layer = RateLimitLayer::new(gates.rate_limiter("api", quotas)?)
//!     .key(header("x-api-key"))
//!     .refund(|answer| if answer.status.is_server_error() { 1 } else { 0 })
//!     .headers(RateHeaders::default().on_success());
//! # let _ = layer;
//! # Ok(()) }
//! ```
//!
//! # Refusals
//!
//! HTTP callers get an answer, never an error: `application/problem+json` whose `type` is stable
//! and begins with `urn:problem-type:portcullis:`. No gate, key, holder or server address is in it.
//! [`on_refusal`](MutexLayer::on_refusal) changes or replaces it. The inner service's own error
//! passes through.
//!
//! | situation | status | `Retry-After` | `type` ends in | gRPC |
//! | --- | --- | --- | --- | --- |
//! | all permits taken, not waited | 503 | estimate | `at-capacity` | `RESOURCE_EXHAUSTED` |
//! | mutex held, not waited | 409 or [423](LockedStatus) | holder's remaining TTL | `locked` | `ABORTED` |
//! | over quota, or its turn comes too late | 429 | time to its turn | `over-quota` | `RESOURCE_EXHAUSTED` |
//! | as many wait as may | 503 | estimate | `queue-full` | `RESOURCE_EXHAUSTED` |
//! | waited longer than `max_wait` | 503 | estimate | `waited-too-long` | `RESOURCE_EXHAUSTED` |
//! | lease lost, with [`OnLost::Abort`] | 503 | 1 | `lease-lost` | `UNAVAILABLE` |
//! | handle shutting down | 503 | 1 | `shutting-down` | `UNAVAILABLE` |
//! | server failed, or was away with [`OnOutage::Refuse`] | 503 | 1 | `unavailable` | `UNAVAILABLE` |
//! | no permit, or more permits or units than there ever are | 400 | none | `never-fits` | `INVALID_ARGUMENT` |
//! | key can't be read | 400 or 401, see [`KeyError`] | none | `no-key` | `INVALID_ARGUMENT` or `UNAUTHENTICATED` |
//! | set up so that such a request can't pass | 503 | none | `misconfigured` | `INTERNAL` |
//!
//! `Retry-After` is in whole seconds, rounded up, at least 1. Of a quota it is exact: who comes then
//! is let through, unless others have come before. The estimate is the time to the first end of a
//! lease, should nobody release before: an upper bound where requests are shorter than
//! their TTL, and with the default TTL up to 10 s. Scripts of other origins may read it
//! (`Access-Control-Expose-Headers`), if a CORS layer outside of the gate lets them read anything;
//! one with a list of its own replaces that header, so name `retry-after` in it. Answers are not to
//! be stored (`Cache-Control: no-store`). What is misconfigured is logged once for each cause, at
//! level error, with what to do.
//!
//! A browser's preflight is a request, too: put the CORS layer outside of the gate, which answers it
//! there, or exempt it by [`applies_to`](MutexLayer::applies_to).
//!
//! With the feature `tonic`, a layer made with `grpc()` answers gRPC requests by the status in the
//! last column, with `google.rpc.RetryInfo` among its details and the header
//! `grpc-retry-pushback-ms` where `Retry-After` would be; and a caller's `grpc-timeout` shortens its
//! wait. In front of a tonic client's `Channel` such a layer caps outgoing calls, with no adapter in
//! between. An answer under way whose lease is lost ends with the status in its trailers. Without
//! `grpc()` a tonic client sees `INTERNAL`, since it can't read the problem.
//!
//! An answer's body becomes a [`HeldBody`]. To switch a gate off, leave it in and let it apply to
//! nothing: `.applies_to(move |_| enabled)`. Where tower asks for one type with and without a gate,
//! as `option_layer` does, put `map_response(|response| response.map(axum::body::Body::new))` around
//! the gate.
//!
//! # When a lease is lost
//!
//! A lease is lost when its renewals do not get through until its TTL is over, or when the server
//! forgot it: another may hold from then on. [`OnLost::Abort`] drops the handler and answers 503;
//! an answer under way ends with an error, so that its reader sees that it is not whole.
//! [`OnLost::Continue`] lets both go on. Mutexes abort unless told otherwise, semaphores continue:
//! one request too many for a moment is cheaper than one cut off.
//!
//! # When the server is away
//!
//! It is away when it can't be reached, does not answer in time, or says that it can't serve: it
//! loads its data, has no master, is out of memory, has too few replicas. [`OnOutage`] says what
//! becomes of requests then: [`Refuse`](OnOutage::Refuse) answers 503,
//! [`Allow`](OnOutage::Allow) lets them through as if there were no gate, and
//! [`Local`](OnOutage::Local) counts in this process alone. Callers are told of no quotas meanwhile.
//! A handler sees by
//! [`Held::is_degraded`] that it was let through so. Whatever the policy, a request is kept for its
//! `max_wait` and the handle's [admission budget](crate::Builder::admission_budget) at most, 100 ms
//! by default.
//!
//! A circuit breaker spares requests even that. It opens when three attempts to connect have failed
//! or one took too long, when a connection has been silent for the `command_timeout`, or when five
//! admissions in a row ran out of their budget without a word of the server. While it is open no
//! request is spent on finding out: the background thread tries the server at least twice a second,
//! or once in a `connect_timeout` where attempts to connect get no answer, and the gates are back
//! within a second of its recovery, or that time-out if it is longer. Only what is no service opens it; a no
//! of a server that serves, such as a missing right, does not, and is answered 503 under every
//! policy. An outage is logged once, at its beginning and at its end.
//!
//! What is fit for a gate depends on what it protects. A lock in front of money refuses. A limit
//! that spares a database may count locally, at the fleet's limit divided by the number of
//! processes. A gate that only smooths the load may allow.
//!
//! ```no_run
//! # fn example(gates: portcullis::Portcullis) -> Result<(), portcullis::ConfigError> {
//! use portcullis::ConcurrencyLimitLayer;
//! use portcullis::layer::OnOutage;
//!
//! let reports = gates.semaphore("reports", 10)?;
//! let layer = ConcurrencyLimitLayer::new(reports).on_outage(OnOutage::Local(3));
//! # let _ = layer;
//! # Ok(()) }
//! ```
//!
//! Leases that are held when the server goes away last until their TTL is over, and are then lost. Who
//! waits in the server's queue at that moment keeps its place, which outlasts many an outage: the
//! policy decides when its `max_wait` is over. When the server is back, those that were let through
//! without it are not counted by it: they go on beside those that it lets in.
//!
//! # Several gates
//!
//! Order them, from the outside in, by how cheap their no is: rate limit, permits, mutex. A request
//! takes them in that order and gives them back together; of a rate limit it has used its units,
//! also if an inner gate refuses it, unless a [`refund`](RateLimitLayer::refund) gives them back.
//! Rate limits that stand one behind the other are asked one after the other; several quotas of one
//! limiter are asked at once, and all or nothing is used. An outer permit is held while the request
//! waits at an inner gate: with 10 permits outside and one lock inside, 10 requests for the same
//! lock occupy all permits and those for other locks wait too. Where that matters, let the inner
//! gate not wait, or raise the number of permits. All routes must take shared gates in the same
//! order: two requests that hold one gate each and wait for the other's only part when a `max_wait`
//! runs out. A lock is not taken twice on one way: a request that comes to one that it holds, by
//! the same handle, is answered at once as misconfigured, since it would wait for itself.
//!
//! A service that is ready when it is called stays so while its request waits: a local limit
//! *inside* a gate is occupied for that time; outside of it, it also bounds how many wait.
//!
//! # Cancel safety
//!
//! Dropped while it waits, a response future gives up its place in the queue; at a rate limit it
//! gives back a turn that is the last one booked, and forfeits another. Dropped in the
//! handler, it drops the handler and gives the lease back; so does dropping the body before its
//! end. A client that pipelines requests is not seen to go while one of them is unread. Nothing of
//! this needs a runtime. If the process ends at that moment the lease stays on the server until its
//! TTL is over.

mod admission;
mod body;
mod deadline;
mod demand;
mod door;
pub mod future;
#[cfg(feature = "tonic")]
mod grpc;
mod held;
mod key;
mod misconfigured;
mod problem;
mod rate_headers;
mod rate_limit;
mod rejection;
mod service;
mod settings;

pub use self::body::HeldBody;
pub use self::deadline::grpc_timeout;
pub use self::demand::Demand;
pub use self::held::{Held, Kept, NotHeld};
pub use self::key::{
    BoxedKey, ClientIpKey, ExtensionKey, HeaderKey, IpNet, KeyError, MadeKey, MakeKey, OptionalKey,
    UnauthenticatedKey, client_ip, extension, header,
};
#[cfg(feature = "axum")]
pub use self::key::{PathParamKey, RouteKey, path_param, route};
pub use self::rate_headers::RateHeaders;
pub use self::rate_limit::RateLimitLayer;
pub use self::rejection::{Rejection, RejectionKind};
pub use self::service::{ConcurrencyLimitLayer, Gated, Http, MutexLayer, Plain};
pub use self::settings::{HoldUntil, LockedStatus, OnLost, OnOutage};

/// What services of any kind fail with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
