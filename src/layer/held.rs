//! Who owns the lease of a request, and what its handler sees of it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use super::settings::OnLost;
use crate::lease::{Lease, LeaseView, Lost, LostReason};

/// The owner of a request's lease, beside those who [keep](Held::keep) it; the last one to go gives
/// it back.
pub(super) struct Hold {
    gate: Arc<str>,
    lease: Arc<Lease>,
    /// Only where a loss is to end the request. Boxed, so that a body stays `Unpin` behind a gate.
    lost: Option<Pin<Box<Lost>>>,
}

impl Hold {
    pub(super) fn new(gate: Arc<str>, lease: Lease, on_lost: OnLost) -> Self {
        let lost = match on_lost {
            OnLost::Abort => Some(Box::pin(lease.state().lost())),
            OnLost::Continue => None,
        };
        Self {
            gate,
            lease: Arc::new(lease),
            lost,
        }
    }

    /// Ready when the lease is lost and its request is to end with it.
    pub(super) fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<LostReason> {
        match &mut self.lost {
            Some(lost) => lost.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold")
            .field(&self.gate)
            .field(&self.lease)
            .finish()
    }
}

/// What a request holds: one lease of each gate that it has passed on its way.
///
/// Every gate puts it into the request's extensions, with the leases of those further out. With the
/// feature `axum` it is an extractor too, and empty where no gate was passed. It only looks: its
/// clones, wherever they are kept, do not hold. To hold beyond the answer, for an upgraded
/// connection or a spawned job, see [`keep`](Self::keep).
///
/// # Examples
///
/// ```
/// use portcullis::Held;
/// use portcullis::layer::NotHeld;
///
/// async fn withdraw(request: http::Request<String>) -> Result<String, NotHeld> {
///     let held = request.extensions().get::<Held>().cloned().unwrap_or_default();
///     let lease = held.lease("withdraw")?;
///     Ok(format!("UPDATE accounts SET .. WHERE fence <= {}", lease.fencing_token()))
/// }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Held {
    leases: Arc<[HeldLease]>,
}

#[derive(Debug, Clone)]
struct HeldLease {
    gate: Arc<str>,
    view: LeaseView,
    owner: Weak<Lease>,
}

impl Held {
    /// Appends a lease. What others cloned before does not see it: a request that is tried twice
    /// under one outer gate must not meet the leases of its first try.
    pub(super) fn and(&self, hold: &Hold) -> Self {
        let view = LeaseView::new(hold.lease.state());
        let added = HeldLease {
            gate: Arc::clone(&hold.gate),
            view,
            owner: Arc::downgrade(&hold.lease),
        };
        Self {
            leases: self.leases.iter().cloned().chain([added]).collect(),
        }
    }

    fn not_held(&self, gate: &str) -> NotHeld {
        let passed: Vec<&str> = self.leases.iter().map(|lease| &*lease.gate).collect();
        NotHeld {
            gate: gate.into(),
            passed: passed.join("`, `").into(),
        }
    }

    /// The lease of the gate with this name: what [`Portcullis::mutex`](crate::Portcullis::mutex)
    /// or [`semaphore`](crate::Portcullis::semaphore) was called with. Of several, the innermost.
    ///
    /// # Errors
    ///
    /// If the request passed no such gate, or was exempt from it.
    pub fn lease(&self, gate: &str) -> Result<LeaseView, NotHeld> {
        let found = self.leases.iter().rev().find(|lease| &*lease.gate == gate);
        found
            .map(|lease| lease.view.clone())
            .ok_or_else(|| self.not_held(gate))
    }

    /// Becomes an owner of all that the request holds, beyond its answer, until the result is
    /// dropped.
    ///
    /// The gates' [`OnLost`](super::OnLost) applies to the request only: what goes on longer looks
    /// after [`Kept::lease`] itself.
    ///
    /// # Errors
    ///
    /// If the request holds nothing, or some of it has been given back already.
    ///
    /// # Examples
    ///
    /// ```
    /// # use portcullis::Held;
    /// # use portcullis::layer::NotHeld;
    /// async fn start_export(held: Held) -> Result<&'static str, NotHeld> {
    ///     let kept = held.keep()?;
    ///     tokio::spawn(async move {
    ///         // .. the export ..
    ///         drop(kept);
    ///     });
    ///     Ok("started, and nobody else can until it is done")
    /// }
    /// ```
    pub fn keep(&self) -> Result<Kept, NotHeld> {
        if self.leases.is_empty() {
            return Err(self.not_held("any"));
        }
        let owner = |held: &HeldLease| {
            held.owner
                .upgrade()
                .ok_or_else(|| self.not_held(&held.gate))
        };
        let owners = self.leases.iter().map(owner).collect::<Result<_, _>>()?;
        Ok(Kept {
            held: self.clone(),
            owners,
        })
    }
}

/// An owner of a request's leases that outlives the request.
///
/// # Drop
///
/// Gives the leases back, if the request has ended too. Needs no runtime, as with
/// [`MutexGuard`](crate::MutexGuard).
#[must_use = "what is kept is given back when this is dropped"]
pub struct Kept {
    held: Held,
    owners: Vec<Arc<Lease>>,
}

impl Kept {
    /// As [`Held::lease`].
    ///
    /// # Errors
    ///
    /// If no gate of this name was passed.
    pub fn lease(&self, gate: &str) -> Result<LeaseView, NotHeld> {
        self.held.lease(gate)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.owners).finish()
    }
}

/// The request does not hold what it was asked for: the route has no gate of that name, or it has
/// given its lease back.
///
/// With the feature `axum`, a handler that returns it answers 500: the route is not set up as its
/// handler expects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the request holds no lease of the gate `{gate}`; the gates that it passed: `{passed}`")]
pub struct NotHeld {
    gate: Box<str>,
    passed: Box<str>,
}

#[cfg(feature = "axum")]
mod extract {
    use std::convert::Infallible;

    use axum_core::extract::FromRequestParts;
    use axum_core::response::{IntoResponse, Response};
    use http::StatusCode;
    use http::request::Parts;

    use super::{Held, NotHeld};

    impl<S: Sync> FromRequestParts<S> for Held {
        type Rejection = Infallible;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
            Ok(parts.extensions.get().cloned().unwrap_or_default())
        }
    }

    impl IntoResponse for NotHeld {
        fn into_response(self) -> Response {
            // Told to those who run the service; its callers are not told of gates.
            tracing::error!(%self, "a handler expects another gate");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
