//! The layer of a rate limiter: what it asks for each request, and what it tells of the quotas.

use std::marker::PhantomData;
use std::sync::Arc;

use http::request::Parts;
use http::response;

use super::admission::Admission;
use super::demand::Demand;
use super::door::Door;
use super::rate_headers::RateHeaders;
use super::rejection::Busy;
use super::service::Http;
use super::settings::OnLost;
use crate::rate_limit::{Quotas, RateLimiter};

/// Lets so many requests through in a time, over all processes: a [`RateLimiter`] in front of a
/// service.
///
/// The counterpart, for a fleet, of tower's layer of this name. A request that is over quota is
/// refused at once, unless a [`max_wait`](Self::max_wait) lets it wait for its turn, which it has
/// booked then: see [`RateLimiter::until_ready`]. Nothing is held afterwards. See the
/// [module's docs](super) for what it answers and how to combine it.
///
/// A request that is dropped after it was let through has used its units. One whose answer from the
/// server was lost may have, and is treated as in an outage.
///
/// # Examples
///
/// Ten in a second for each client, who is told how many are left:
///
/// ```no_run
/// # fn example(gates: portcullis::Portcullis) -> Result<(), portcullis::ConfigError> {
/// use portcullis::layer::{RateHeaders, header};
/// use portcullis::{Quota, RateLimitLayer};
///
/// let api = gates.rate_limiter("api", [Quota::per_second(10), Quota::per_day(5_000)])?;
/// let layer = RateLimitLayer::new(api)
///     .key(header("x-api-key"))
///     .headers(RateHeaders::default().on_success());
/// # let _ = layer;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a layer does nothing until it is put in front of a service"]
pub struct RateLimitLayer<P = Http> {
    pub(super) admission: Admission,
    pub(super) protocol: PhantomData<fn() -> P>,
}

impl RateLimitLayer {
    /// Puts `limiter` in front of HTTP services; each request costs one unit.
    ///
    /// Requests do not wait, whatever [`RateLimiter::max_wait`] says.
    pub fn new(limiter: RateLimiter) -> Self {
        let door = Door::Limiter(limiter);
        Self {
            admission: Admission::new(door, Busy::AtCapacity, OnLost::Continue),
            protocol: PhantomData,
        }
    }

    /// Sets how many units each request costs, where requests differ: one by default. With 0 it is
    /// let through, whatever was used. With more than a quota allows at once it is answered 400: it
    /// can never fit.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(layer: portcullis::RateLimitLayer) {
    /// use http::request::Parts;
    ///
    /// let layer = layer.cost(|parts: &Parts| if parts.uri.path() == "/search" { 5 } else { 1 });
    /// # let _ = layer; }
    /// ```
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        self.admission.demand = Some(Arc::new(move |parts| Demand::default().weight(cost(parts))));
        self
    }

    /// Sets the quotas of a request, where requests differ: those of the limiter where it gives
    /// `None`, and by default. What was used stays used when a subject's quotas change; see
    /// [`RateLimiter::with_quotas`]. So quotas that differ from caller to caller belong with a key
    /// that does.
    ///
    /// # Examples
    ///
    /// Each tenant by the plan that an outer layer has found:
    ///
    /// ```
    /// # fn example(gates: portcullis::Portcullis) -> Result<(), portcullis::ConfigError> {
    /// use http::request::Parts;
    /// use portcullis::layer::KeyError;
    /// use portcullis::{Quota, Quotas, RateLimitLayer};
    ///
    /// #[derive(Clone)]
    /// struct Tenant {
    ///     id: u64,
    ///     pays: bool,
    /// }
    ///
    /// let paid = Quotas::new([Quota::per_second(100), Quota::per_day(1_000_000)])?;
    /// let layer = RateLimitLayer::new(gates.rate_limiter("api", Quota::per_second(5))?)
    ///     .key(|parts: &Parts| {
    ///         let tenant = parts.extensions.get::<Tenant>();
    ///         tenant.map(|tenant| tenant.id).ok_or(KeyError::missing("tenant"))
    ///     })
    ///     .quotas(move |parts: &Parts| {
    ///         let tenant = parts.extensions.get::<Tenant>();
    ///         tenant.filter(|tenant| tenant.pays).map(|_| paid.clone())
    ///     });
    /// # let _ = layer;
    /// # Ok(()) }
    /// ```
    pub fn quotas(
        mut self,
        quotas: impl Fn(&Parts) -> Option<Quotas> + Send + Sync + 'static,
    ) -> Self {
        self.admission.quotas = Some(Arc::new(quotas));
        self
    }

    /// Sets how many of a request's units are given back when it is answered: none by default, and
    /// never more than it has used. With it, a service that fails instead of answering costs
    /// nothing.
    ///
    /// The answer does not wait for that, and its headers are as of the decision. See
    /// [`RateLimiter::refund`] for when nothing is given back; neither is it if the server can't be
    /// asked.
    ///
    /// # Examples
    ///
    /// What came from a cache costs nothing, and what failed neither:
    ///
    /// ```
    /// # fn example(layer: portcullis::RateLimitLayer) {
    /// use http::response::Parts;
    ///
    /// let layer = layer.refund(|answer: &Parts| {
    ///     let free = answer.headers.contains_key("age") || answer.status.is_server_error();
    ///     if free { u32::MAX } else { 0 }
    /// });
    /// # let _ = layer; }
    /// ```
    pub fn refund(
        mut self,
        refund: impl Fn(&response::Parts) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.admission.refund = Some(Arc::new(refund));
        self
    }

    /// Sets what callers are told of their quotas: `RateLimit-Policy` and `RateLimit` when they are
    /// over quota, by default. While the server is away they are told nothing.
    ///
    /// Several layers add to what those further in have told. Give their quotas different
    /// [names](crate::Quota::named), by which callers tell them apart.
    pub fn headers(mut self, headers: RateHeaders) -> Self {
        self.admission.headers = Some(headers);
        self
    }
}
