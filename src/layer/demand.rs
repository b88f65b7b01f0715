//! What one request asks of a semaphore, where requests differ.

/// How many permits a request takes, and of how many there are; see
/// [`ConcurrencyLimitLayer::demand`](super::ConcurrencyLimitLayer::demand).
///
/// # Examples
///
/// ```
/// use portcullis::layer::Demand;
///
/// // An import that counts as three, for a tenant that may have twelve.
/// let demand = Demand::default().weight(3).limit(12);
/// # let _ = demand;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "it says what a request asks for"]
pub struct Demand {
    pub(super) weight: u32,
    pub(super) limit: Option<u32>,
}

impl Demand {
    /// Sets how many permits the request takes: 1 by default. With 0, or more than the limit, it is
    /// answered with 400: it can never fit.
    pub const fn weight(mut self, permits: u32) -> Self {
        self.weight = permits;
        self
    }

    /// Sets how many permits there are, as this request sees it: the semaphore's limit by default.
    ///
    /// It is judged by that against what all hold of the same key; so a limit that differs from
    /// caller to caller belongs with a key that does. A limit of 0 lets nobody in, which is no
    /// caller's fault: such a request is answered with 503 (`misconfigured`), and it is logged.
    /// Send those who may not come away before the gate.
    pub const fn limit(mut self, permits: u32) -> Self {
        self.limit = Some(permits);
        self
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self {
            weight: 1,
            limit: None,
        }
    }
}
