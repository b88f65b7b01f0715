//! The one admission behind every layer: read the key, wait at the gate, call the inner service,
//! watch the lease.
//!
//! # Invariants
//!
//! 1. The inner service is called once, and only after the lease was granted or the request found
//!    exempt.
//! 2. The service that is called is the one that was polled ready.
//! 3. From its grant on, a lease has an owner that lives in the future or in what the future
//!    returned.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::request::Parts;
use pin_project::pin_project;
use tower_service::Service;

use super::held::Hold;
use super::key::{KeyError, MakeKey};
use super::problem::{Busy, Rejection};
use super::settings::{HoldUntil, OnLost};
use crate::backend::{Acquire, Wait};
use crate::gate::Gate;
use crate::key::Key;

/// How long a request waits unless its layer or its gate says otherwise.
const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(2);

/// A gate, and how requests pass it.
#[derive(Clone)]
pub(super) struct Admission {
    gate: Gate,
    wait: Wait,
    pub(super) key: Option<Arc<dyn MakeKey>>,
    pub(super) hold_until: HoldUntil,
    pub(super) on_lost: OnLost,
    pub(super) busy: Busy,
}

impl Admission {
    pub(super) fn new(gate: Gate, busy: Busy, on_lost: OnLost) -> Self {
        // A request that waits without end outlives its caller's patience: it gets a bound.
        let wait = match gate.wait() {
            Wait::Unbounded => Wait::AtMost(DEFAULT_MAX_WAIT),
            told @ (Wait::No | Wait::AtMost(_)) => told,
        };
        Self {
            gate,
            wait,
            key: None,
            hold_until: HoldUntil::default(),
            on_lost,
            busy,
        }
    }

    pub(super) fn set_max_wait(&mut self, max_wait: Duration) {
        self.wait = if max_wait.is_zero() {
            Wait::No
        } else {
            Wait::AtMost(max_wait)
        };
    }

    pub(super) fn set_fixed_key(&mut self, key: &Key) {
        self.gate = self.gate.keyed(key);
        self.key = None;
    }

    /// Starts the acquire that a request with this head has to wait for; `None` if it is exempt.
    /// Services without heads give `None` and can't have their key read.
    pub(super) fn begin(&self, head: Option<&mut Parts>) -> Result<Option<Acquire>, KeyError> {
        let Some(make_key) = &self.key else {
            return Ok(Some(self.gate.acquire(1, Some(self.wait))));
        };
        let Some(head) = head else {
            return Err(KeyError::missing("HTTP head"));
        };
        let key = make_key.make_key(head)?;
        Ok(key.map(|key| self.gate.keyed(&key).acquire(1, Some(self.wait))))
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("gate", &self.gate)
            .field("wait", &self.wait)
            .field("keyed", &self.key.is_some())
            .field("hold_until", &self.hold_until)
            .field("on_lost", &self.on_lost)
            .field("busy", &self.busy)
            .finish()
    }
}

/// How a request fared.
pub(super) enum Outcome<T> {
    Answered(T, Option<Hold>),
    Rejected(Rejection),
}

/// One request's way through the gate and the inner service.
#[pin_project]
pub(super) struct Passage<S: Service<Req>, Req> {
    admission: Arc<Admission>,
    #[pin]
    step: Step<S, Req>,
}

#[pin_project(project = StepProjection)]
enum Step<S: Service<Req>, Req> {
    /// The key could not be read.
    Keyless(KeyError),
    Waiting {
        acquire: Acquire,
        ready: Option<(S, Req)>,
        hand_over: fn(&mut Req, &Hold),
    },
    Working {
        #[pin]
        response: S::Future,
        // Behind the inner future: given back after its drop, whatever that does.
        hold: Option<Hold>,
    },
    Ended,
}

impl<S: Service<Req>, Req> Passage<S, Req> {
    /// Sends `request` on its way to `ready`, the service that was polled ready; `acquire` is what
    /// [`begin`](Admission::begin) gave for it. `hand_over` puts the lease into the request.
    pub(super) fn new(
        admission: &Arc<Admission>,
        acquire: Result<Option<Acquire>, KeyError>,
        mut ready: S,
        request: Req,
        hand_over: fn(&mut Req, &Hold),
    ) -> Self {
        let step = match acquire {
            Ok(Some(acquire)) => Step::Waiting {
                acquire,
                ready: Some((ready, request)),
                hand_over,
            },
            Ok(None) => Step::Working {
                response: ready.call(request),
                hold: None,
            },
            Err(error) => Step::Keyless(error),
        };
        Self {
            admission: Arc::clone(admission),
            step,
        }
    }

    pub(super) fn admission(&self) -> &Admission {
        &self.admission
    }
}

impl<S: Service<Req>, Req> Future for Passage<S, Req> {
    type Output = Result<Outcome<S::Response>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut step = this.step;
        let rejection = loop {
            match step.as_mut().project() {
                StepProjection::Keyless(error) => break Rejection::Key(error.clone()),
                StepProjection::Waiting {
                    acquire,
                    ready,
                    hand_over,
                } => {
                    let lease = match ready!(Pin::new(acquire).poll(cx)) {
                        Ok(lease) => lease,
                        Err(error) => break Rejection::Lock(error),
                    };
                    let gate = Arc::clone(this.admission.gate.name());
                    let hold = Hold::new(gate, lease, this.admission.on_lost);
                    let (mut service, mut request) = ready.take().expect("an acquire ends once");
                    hand_over(&mut request, &hold);
                    let response = service.call(request);
                    step.set(Step::Working {
                        response,
                        hold: Some(hold),
                    });
                }
                StepProjection::Working { response, hold } => {
                    // Looked at first: an answer that comes after the loss may rest on what another
                    // has changed.
                    if let Some(held) = hold
                        && let Poll::Ready(reason) = held.poll_lost(cx)
                    {
                        break Rejection::Lost(reason);
                    }
                    let answer = ready!(response.poll(cx));
                    // Taken also when the service failed: its caller may keep this future for long.
                    let hold = hold.take();
                    return Poll::Ready(answer.map(|answer| Outcome::Answered(answer, hold)));
                }
                StepProjection::Ended => panic!("polled after it has ended"),
            }
        };
        let gate = this.admission.gate.name();
        match &rejection {
            Rejection::Lost(reason) => tracing::warn!(%gate, %reason, "request aborted"),
            Rejection::Key(_) | Rejection::Lock(_) => {
                tracing::debug!(%gate, %rejection, "request refused");
            }
        }
        // Drops the handler, or the request that has waited.
        step.set(Step::Ended);
        Poll::Ready(Ok(Outcome::Rejected(rejection)))
    }
}

impl<S: Service<Req>, Req> fmt::Debug for Passage<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match &self.step {
            Step::Keyless(_) => "Keyless",
            Step::Waiting { .. } => "Waiting",
            Step::Working { .. } => "Working",
            Step::Ended => "Ended",
        };
        f.debug_struct("Passage")
            .field("admission", &self.admission)
            .field("step", &step)
            .finish()
    }
}
