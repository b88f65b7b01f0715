//! What a layer has in front of its service: a gate, which gives leases, or a rate limiter, which
//! takes units. The admission treats both alike.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;

use super::held::Held;
use crate::backend::{Acquire, Wait};
use crate::error::LockError;
use crate::gate::{Gate, Identity};
use crate::key::Key;
use crate::lease::Lease;
use crate::rate_limit::{QuotaReport, Quotas, RateLimiter};
use crate::time::Instant;

#[derive(Clone)]
pub(super) enum Door {
    Gate(Gate),
    Limiter(RateLimiter),
}

/// What one request asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// In permits or units.
    pub(super) weight: u32,
    /// Of how many permits, if not of as many as the gate has.
    pub(super) limit: Option<u32>,
    pub(super) wait: Wait,
    /// As in the backend's [`Terms`](crate::backend::Terms).
    pub(super) bridge: Option<Duration>,
}

impl Door {
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::Gate(gate) => gate.name(),
            Self::Limiter(limiter) => limiter.name(),
        }
    }

    /// How long it lets requests wait, where its layer says nothing else. A limiter does not.
    pub(super) fn wait(&self) -> Wait {
        match self {
            Self::Gate(gate) => gate.wait(),
            Self::Limiter(_) => Wait::No,
        }
    }

    pub(super) fn keyed(&self, key: Key) -> Self {
        match self {
            Self::Gate(gate) => Self::Gate(gate.keyed(key)),
            Self::Limiter(limiter) => Self::Limiter(limiter.keyed(key)),
        }
    }

    /// With other quotas, where it has any.
    pub(super) fn with_quotas(&self, quotas: &Quotas) -> Self {
        match self {
            Self::Gate(gate) => Self::Gate(gate.clone()),
            Self::Limiter(limiter) => Self::Limiter(limiter.with_quotas(quotas)),
        }
    }

    /// By the clock that its waits go by.
    pub(super) fn now(&self) -> Instant {
        match self {
            Self::Gate(gate) => gate.now(),
            Self::Limiter(limiter) => limiter.now(),
        }
    }

    /// The same in this process alone.
    pub(super) fn local(&self, limit: u32) -> Self {
        match self {
            Self::Gate(gate) => Self::Gate(gate.local(limit)),
            Self::Limiter(limiter) => Self::Limiter(limiter.local(limit)),
        }
    }

    /// `weight`, or all that there is in this process alone, where that is `limit`.
    pub(super) fn at_most(&self, weight: u32, limit: u32) -> u32 {
        match self {
            Self::Gate(_) => weight.min(limit),
            Self::Limiter(limiter) => weight.min(limiter.most_at_once()),
        }
    }

    /// Whether a request may come that [would wait for itself](Self::is_held_by).
    pub(super) fn may_be_held(&self) -> bool {
        match self {
            Self::Gate(gate) => gate.is_mutex(),
            Self::Limiter(_) => false,
        }
    }

    /// Whether a request with this head would wait for itself.
    pub(super) fn is_held_by(&self, head: &Parts) -> bool {
        match self {
            Self::Gate(gate) if self.may_be_held() => {
                Held::of(head).is_some_and(|held| held.is_at(gate))
            }
            Self::Gate(_) | Self::Limiter(_) => false,
        }
    }

    /// Which lease of a gate it is; `key` is the one that the request brought.
    #[inline]
    pub(super) fn identity(&self, key: Option<Key>) -> Option<Identity> {
        match self {
            Self::Gate(gate) => Some(gate.identity(key)),
            Self::Limiter(_) => None,
        }
    }

    /// Starts what a request has to wait for, at the door of its key or at the layer's own. Gives
    /// back the key of a gate; a limiter comes back with its answer.
    #[inline]
    pub(super) fn enter(own: Option<Self>, layers: &Self, terms: Terms) -> (Entering, Option<Key>) {
        let Terms {
            weight,
            limit,
            wait,
            bridge,
        } = terms;
        let lease = |gate: &Gate| Entering::Lease(gate.acquire(weight, limit, Some(wait), bridge));
        let limiter = match (own, layers) {
            (Some(Self::Gate(gate)), _) => return (lease(&gate), gate.into_key()),
            (None, Self::Gate(gate)) => return (lease(gate), None),
            (Some(Self::Limiter(limiter)), _) => limiter,
            (None, Self::Limiter(limiter)) => limiter.clone(),
        };
        let entering = Entering::Units(Box::pin(async move {
            let told = match wait {
                Wait::No => limiter.check_bridged(weight, bridge).await,
                Wait::AtMost(wait) => limiter.until_ready_bridged(weight, wait, bridge).await,
                Wait::Unbounded => {
                    limiter
                        .until_ready_bridged(weight, Duration::MAX, bridge)
                        .await
                }
            };
            match told {
                Ok(report) => Ok(Granted::Units(Box::new(Used {
                    limiter,
                    cost: weight,
                    report: Some(report),
                }))),
                Err(error) => Err(Denied {
                    error,
                    door: Some(Box::new(Self::Limiter(limiter))),
                }),
            }
        }));
        (entering, None)
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gate(gate) => gate.fmt(f),
            Self::Limiter(limiter) => limiter.fmt(f),
        }
    }
}

type AskingUnits = dyn Future<Output = Result<Granted, Denied>> + Send + Sync;

/// A request on its way in. Dropped, it gives up its turn.
#[must_use = "futures do nothing unless polled"]
pub(super) enum Entering {
    Lease(Acquire),
    Units(Pin<Box<AskingUnits>>),
}

/// What let a request in. Moved from hand to hand, and so small: what belongs to limiters is
/// behind a box.
pub(super) enum Granted {
    Lease(Lease),
    Units(Box<Used>),
}

/// Why it was not let in.
pub(super) struct Denied {
    pub(super) error: LockError,
    /// The door, unless it is the gate by the key that is kept.
    pub(super) door: Option<Box<Door>>,
}

impl Future for Entering {
    type Output = Result<Granted, Denied>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut *self {
            Self::Lease(acquire) => match ready!(Pin::new(acquire).poll(cx)) {
                Ok(lease) => Ok(Granted::Lease(lease)),
                Err(error) => Err(Denied { error, door: None }),
            },
            Self::Units(asking) => ready!(asking.as_mut().poll(cx)),
        })
    }
}

/// Units that a request has used: nothing is held.
pub(super) struct Used {
    limiter: RateLimiter,
    cost: u32,
    /// How the quotas stood then; of those of this process alone nobody is told.
    report: Option<QuotaReport>,
}

impl Used {
    /// It was counted in this process alone.
    pub(super) fn untold(&mut self) {
        self.report = None;
    }

    pub(super) fn report(&self) -> Option<&QuotaReport> {
        self.report.as_ref()
    }

    /// Gives `units` back, and no more than were used.
    pub(super) fn give_back(&self, units: u32) {
        self.limiter.give_back(units.min(self.cost));
    }
}

impl fmt::Debug for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Used").field(&self.cost).finish()
    }
}
