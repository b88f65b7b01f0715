//! The one admission behind every layer: read the key, wait at the gate or the limiter, call the
//! inner service, watch the lease or settle what was used.
//!
//! # Invariants
//!
//! 1. The inner service is called once, and only after the lease was granted, the units were used,
//!    the request was found exempt, or its server found away by a policy that allows it.
//! 2. The service that is called is the one that was polled ready.
//! 3. From its grant on, a lease has an owner that lives in the future or in what the future
//!    returned.
//! 4. What a request has used is given back at most once, after its service has answered or failed.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Extensions, Response, response};
use pin_project::pin_project;
use tower_service::Service;

use super::body::OnLoss;
use super::demand::Demand;
use super::door::{Denied, Door, Entering, Granted, Terms, Used};
use super::held::{Held, Hold};
use super::key::{KeyError, MakeKey};
use super::misconfigured::Misconfigured;
use super::problem;
use super::rate_headers::RateHeaders;
use super::rejection::{Busy, Cause, Rejection, RejectionKind};
use super::settings::{HoldUntil, OnLost, OnOutage};
use crate::backend::{Acquire, Wait};
use crate::error::{BackendErrorKind, LockError};
use crate::key::Key;
use crate::rate_limit::Quotas;
use crate::time::Instant;

/// How long a request waits unless its layer or its gate says otherwise.
const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(2);

/// A closure over a request's head.
pub(super) type OfHead<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// A closure over an answer's head.
pub(super) type OfAnswer<T> = Arc<dyn Fn(&response::Parts) -> T + Send + Sync>;

/// A closure over a refusal and its answer.
pub(super) type OnRefusal =
    Arc<dyn Fn(&Rejection, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

/// A gate or a limiter, and how requests pass it.
#[derive(Clone)]
pub(super) struct Admission {
    door: Door,
    wait: Wait,
    pub(super) applies_to: Option<OfHead<bool>>,
    pub(super) key: Option<Arc<dyn MakeKey>>,
    pub(super) demand: Option<OfHead<Demand>>,
    /// The quotas of a request, if not those of the limiter.
    pub(super) quotas: Option<OfHead<Option<Quotas>>>,
    /// How many of the units that a request has used are given back.
    pub(super) refund: Option<OfAnswer<u32>>,
    pub(super) headers: Option<RateHeaders>,
    pub(super) deadline: Option<OfHead<Option<Duration>>>,
    pub(super) hold_until: HoldUntil,
    pub(super) on_lost: OnLost,
    pub(super) on_outage: OnOutage,
    pub(super) busy: Busy,
    pub(super) on_refusal: Option<OnRefusal>,
    /// Whether gRPC requests are treated as such.
    #[cfg(feature = "tonic")]
    pub(super) grpc: bool,
    misconfigured: Arc<Misconfigured>,
}

/// What a request has to wait for.
pub(super) struct Begun {
    way: Result<Way, Cause>,
    /// Whether its caller understands gRPC statuses.
    #[cfg(feature = "tonic")]
    grpc: bool,
}

/// How a request may go on.
enum Way {
    /// It is none of those that are gated.
    Exempt,
    /// Without a lease, since the server is away.
    Ungated,
    Gated(Asked),
}

/// What was asked for.
struct Asked {
    entering: Entering,
    /// The key of a gate that the request brought, if it did.
    key: Option<Key>,
    weight: u32,
    wait: Wait,
    /// When it was asked, where that matters later.
    since: Option<Instant>,
    /// Whether of this process alone, since the server is away.
    local: bool,
}

impl Admission {
    pub(super) fn new(door: Door, busy: Busy, on_lost: OnLost) -> Self {
        // A request that waits without end outlives its caller's patience: it gets a bound.
        let wait = match door.wait() {
            Wait::Unbounded => Wait::AtMost(DEFAULT_MAX_WAIT),
            told @ (Wait::No | Wait::AtMost(_)) => told,
        };
        Self {
            door,
            wait,
            applies_to: None,
            key: None,
            demand: None,
            quotas: None,
            refund: None,
            headers: None,
            deadline: None,
            hold_until: HoldUntil::default(),
            on_lost,
            on_outage: OnOutage::default(),
            busy,
            on_refusal: None,
            #[cfg(feature = "tonic")]
            grpc: false,
            misconfigured: Arc::default(),
        }
    }

    pub(super) fn set_max_wait(&mut self, max_wait: Duration) {
        self.wait = Wait::at_most(max_wait);
    }

    pub(super) fn set_fixed_key(&mut self, key: Key) {
        self.door = self.door.keyed(key);
        self.key = None;
    }

    /// Starts the acquire that a request with this head has to wait for. Services without heads give
    /// `None` and can't have them read; neither can those that have [no need](Self::reads_head) to.
    #[inline]
    pub(super) fn begin(&self, mut head: Option<&mut Parts>) -> Begun {
        Begun {
            #[cfg(feature = "tonic")]
            grpc: head.as_deref().is_some_and(|head| self.speaks_grpc(head)),
            way: match &mut head {
                Some(head) => self.acquire(head),
                None if self.speaks_http() => Err(Cause::Key(KeyError::misconfigured(
                    "a layer made `plain()` has no HTTP to read or to answer: give it a fixed key, and no \
                     `applies_to`, `demand`, `cost`, `quotas`, `refund`, `headers`, `deadline`, \
                     `on_refusal` or `grpc`",
                ))),
                None => self.ask(None, Demand::default(), self.wait),
            },
        }
    }

    fn acquire(&self, head: &mut Parts) -> Result<Way, Cause> {
        if self
            .applies_to
            .as_ref()
            .is_some_and(|applies_to| !applies_to(head))
        {
            return Ok(Way::Exempt);
        }
        let keyed = match &self.key {
            Some(make_key) => match make_key.make_key(head).map_err(Cause::Key)? {
                Some(key) => Some(self.door.keyed(key)),
                None => return Ok(Way::Exempt),
            },
            None => None,
        };
        let own = match self.quotas.as_ref().and_then(|quotas| quotas(head)) {
            Some(quotas) => {
                let door = keyed.as_ref().unwrap_or(&self.door);
                Some(door.with_quotas(&quotas))
            }
            None => keyed,
        };
        let door = own.as_ref().unwrap_or(&self.door);
        if door.is_held_by(head) {
            return Err(Cause::SetUp(
                "the request holds this lock already, and would wait for itself; put the layer on \
                 its way once",
            ));
        }
        let demand = match &self.demand {
            Some(demand) => demand(head),
            None => Demand::default(),
        };
        // Whatever the request asks for, it can't be had: that is nothing to blame its caller for.
        if demand.limit == Some(0) {
            return Err(Cause::SetUp(
                "`demand` gives a limit of 0; refuse such requests before they come to the gate",
            ));
        }
        self.ask(own, demand, self.wait_of(head))
    }

    /// Asks at the door of a request's key, if it brought one.
    #[inline]
    fn ask(
        &self,
        own: Option<Door>,
        Demand { weight, limit }: Demand,
        wait: Wait,
    ) -> Result<Way, Cause> {
        let bridge = match (self.on_outage, wait) {
            (OnOutage::Local(0), _) => {
                return Err(Cause::SetUp(
                    "`OnOutage::Local(0)` lets nobody through; that is `OnOutage::Refuse`",
                ));
            }
            (OnOutage::Refuse, Wait::AtMost(wait)) => wait,
            (OnOutage::Refuse, Wait::Unbounded) => Duration::MAX,
            (OnOutage::Refuse, Wait::No) | (OnOutage::Allow | OnOutage::Local(_), _) => {
                Duration::ZERO
            }
        };
        let counts = matches!(self.on_outage, OnOutage::Local(_));
        let terms = Terms {
            weight,
            limit,
            wait,
            bridge: Some(bridge),
        };
        let since = counts.then(|| self.door.now());
        let (entering, key) = Door::enter(own, &self.door, terms);
        let (entering, refused) = match entering {
            // Nobody was asked: it is the limit that can't be kept there.
            Entering::Lease(Acquire::Ready(Err(LockError::Backend(error))))
                if limit.is_some() && error.kind() == BackendErrorKind::Unsupported =>
            {
                return Err(Cause::SetUp(
                    "`demand` gives a limit of which a quorum of so few servers tolerates no \
                     failure; give a smaller one, or take more servers",
                ));
            }
            Entering::Lease(Acquire::Ready(Err(error))) => {
                (Entering::Lease(Acquire::Ended), Some(error))
            }
            entering => (entering, None),
        };
        let asked = Asked {
            entering,
            key,
            weight,
            wait,
            since,
            local: false,
        };
        match refused {
            Some(error) => self.given_up(asked, Denied { error, door: None }),
            None => Ok(Way::Gated(asked)),
        }
    }

    /// How a request goes on that `door` did not let in.
    fn without(&self, door: &Door, mut asked: Asked, error: LockError) -> Result<Way, Cause> {
        match (error, self.on_outage) {
            (LockError::Backend(failure), OnOutage::Allow) if failure.is_outage() => {
                tracing::debug!(gate = %door.name(), error = %failure, "let through ungated");
                Ok(Way::Ungated)
            }
            (LockError::Backend(failure), OnOutage::Local(limit))
                if failure.is_outage() && !asked.local =>
            {
                let gate = door.name();
                tracing::debug!(%gate, error = %failure, "counted in this process alone");
                let passed = asked
                    .since
                    .map_or(Duration::ZERO, |since| door.now().since(since));
                let left = match asked.wait {
                    Wait::AtMost(wait) => Wait::at_most(wait.saturating_sub(passed)),
                    wait @ (Wait::No | Wait::Unbounded) => wait,
                };
                let local = door.local(limit);
                // Of what the whole fleet has, it asked for no more.
                asked.weight = local.at_most(asked.weight, limit);
                let terms = Terms {
                    weight: asked.weight,
                    limit: None,
                    wait: left,
                    bridge: None,
                };
                // The key is kept as it was.
                asked.entering = Door::enter(Some(local), door, terms).0;
                asked.local = true;
                Ok(Way::Gated(asked))
            }
            // How this process' own part stands is nothing that callers could go by: the server may be
            // back long before there is room in it.
            (LockError::Refused(refusal), _) if asked.local => {
                let refusal = refusal.without_quotas().with_retry_after(None);
                Err(Cause::Lock(refusal.into()))
            }
            (error, _) => Err(Cause::Lock(error)),
        }
    }

    /// The same for one that has waited at the door by `key`.
    fn given_up(&self, asked: Asked, Denied { error, door }: Denied) -> Result<Way, Cause> {
        match (door, asked.key.clone()) {
            (Some(door), _) => self.without(&door, asked, error),
            (None, Some(key)) => self.without(&self.door.keyed(key), asked, error),
            (None, None) => self.without(&self.door, asked, error),
        }
    }

    /// A service that failed has answered nothing that could be paid for.
    fn settle_failure(&self, pass: &Pass) {
        if let (Some(_), Some(used)) = (&self.refund, &pass.used) {
            used.give_back(u32::MAX);
        }
    }

    /// No longer than the layer and the caller both wait.
    fn wait_of(&self, head: &Parts) -> Wait {
        let told = self.deadline.as_ref().and_then(|deadline| deadline(head));
        #[cfg(feature = "tonic")]
        let told = told.into_iter().chain(self.grpc_timeout(head)).min();
        match (self.wait, told) {
            (Wait::AtMost(wait), Some(told)) if told < wait => Wait::at_most(told),
            (Wait::Unbounded, Some(told)) => Wait::at_most(told),
            (wait, _) => wait,
        }
    }

    #[cfg(feature = "tonic")]
    fn speaks_grpc(&self, head: &Parts) -> bool {
        self.grpc && super::grpc::is_grpc(&head.headers)
    }

    #[cfg(feature = "tonic")]
    fn grpc_timeout(&self, head: &Parts) -> Option<Duration> {
        if self.speaks_grpc(head) {
            super::deadline::grpc_timeout(head)
        } else {
            None
        }
    }

    /// Whether the head of a request makes any difference: to take a request apart for it and to put it
    /// together again moves it twice.
    #[inline]
    pub(super) fn reads_head(&self) -> bool {
        self.speaks_http() || self.door.may_be_held()
    }

    /// Whether anything was set that only HTTP can mean.
    fn speaks_http(&self) -> bool {
        #[cfg(feature = "tonic")]
        let grpc = self.grpc;
        #[cfg(not(feature = "tonic"))]
        let grpc = false;
        grpc || self.key.is_some()
            || self.applies_to.is_some()
            || self.demand.is_some()
            || self.quotas.is_some()
            || self.refund.is_some()
            || self.headers.is_some()
            || self.deadline.is_some()
            || self.on_refusal.is_some()
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("door", &self.door)
            .field("wait", &self.wait)
            .field("keyed", &self.key.is_some())
            .field("filtered", &self.applies_to.is_some())
            .field("hold_until", &self.hold_until)
            .field("on_lost", &self.on_lost)
            .field("on_outage", &self.on_outage)
            .field("busy", &self.busy)
            .finish_non_exhaustive()
    }
}

/// Where a request shows what it holds, if it has a place for that.
pub(super) type ExtensionsOf<Req> = fn(&mut Req) -> Option<&mut Extensions>;

/// By what a request was let in: a lease that it holds, units that it has used, or neither.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) hold: Option<Hold>,
    pub(super) used: Option<Box<Used>>,
}

/// How a request fared.
pub(super) enum Outcome<T> {
    Answered(T, Pass),
    Rejected(Rejection),
}

/// One request's way through the gate and the inner service.
#[pin_project]
pub(super) struct Passage<S: Service<Req>, Req> {
    admission: Arc<Admission>,
    #[cfg(feature = "tonic")]
    grpc: bool,
    #[pin]
    step: Step<S, Req>,
}

#[pin_project(project = StepProjection)]
enum Step<S: Service<Req>, Req> {
    /// Not let through, and not yet told so.
    Refused(Option<Cause>),
    Waiting {
        asked: Option<Asked>,
        ready: Option<(S, Req)>,
        extensions: ExtensionsOf<Req>,
    },
    Working {
        #[pin]
        response: S::Future,
        // Behind the inner future: given back after its drop, whatever that does.
        pass: Pass,
    },
    Ended,
}

impl<S: Service<Req>, Req> Step<S, Req> {
    /// Hands `request` to `ready`, with the lease to be seen in it.
    #[inline]
    fn work(
        admission: &Admission,
        entry: Entry,
        ready: &mut S,
        mut request: Req,
        extensions: ExtensionsOf<Req>,
    ) -> Self {
        let name = admission.door.name();
        let mut pass = Pass::default();
        let show_ungated = |request: &mut Req| {
            if let Some(extensions) = extensions(request) {
                Held::pass_ungated(extensions, name);
            }
        };
        match entry {
            Entry::Granted {
                granted: Granted::Lease(lease),
                key,
                local,
            } => {
                let gate = admission.door.identity(key);
                let gate = gate.expect("only gates give leases");
                let extensions = extensions(&mut request);
                let degraded = local.then_some(name);
                let on_lost = admission.on_lost;
                pass.hold = Some(Hold::new(gate, lease, on_lost, extensions, degraded));
            }
            Entry::Granted {
                granted: Granted::Units(mut used),
                local,
                ..
            } => {
                if local {
                    show_ungated(&mut request);
                    used.untold();
                }
                pass.used = Some(used);
            }
            Entry::Ungated => show_ungated(&mut request),
        }
        Self::Working {
            response: ready.call(request),
            pass,
        }
    }
}

/// What a request comes in by.
enum Entry {
    Granted {
        granted: Granted,
        key: Option<Key>,
        local: bool,
    },
    Ungated,
}

impl Entry {
    fn granted(granted: Granted, asked: Asked) -> Self {
        let Asked { key, local, .. } = asked;
        Self::Granted {
            granted,
            key,
            local,
        }
    }
}

impl<S: Service<Req> + Clone, Req> Step<S, Req> {
    /// Leaves the service unready: what it reserved when it was polled ready is for others.
    fn refuse(cause: Cause, ready: &mut S) -> Self {
        let unready = ready.clone();
        *ready = unready;
        Self::Refused(Some(cause))
    }
}

impl<S: Service<Req> + Clone, Req> Passage<S, Req> {
    /// Sends `request` on its way to `ready`, the service that was polled ready; `begun` is what
    /// [`begin`](Admission::begin) gave for it.
    #[inline]
    pub(super) fn new(
        admission: &Arc<Admission>,
        begun: Begun,
        ready: &mut S,
        request: Req,
        extensions: ExtensionsOf<Req>,
    ) -> Self {
        let step = match begun.way {
            // As most are in memory, which spares them the clone.
            Ok(Way::Gated(Asked {
                entering: Entering::Lease(Acquire::Ready(Ok(lease))),
                key,
                local,
                ..
            })) => {
                let granted = Granted::Lease(lease);
                let entry = Entry::Granted {
                    granted,
                    key,
                    local,
                };
                Step::work(admission, entry, ready, request, extensions)
            }
            Ok(Way::Gated(Asked {
                entering: Entering::Lease(Acquire::Ready(Err(error))),
                ..
            })) => Step::refuse(Cause::Lock(error), ready),
            Ok(Way::Gated(asked)) => {
                // The clone may not be ready, so it is the one that stays.
                let unready = ready.clone();
                Step::Waiting {
                    asked: Some(asked),
                    ready: Some((mem::replace(ready, unready), request)),
                    extensions,
                }
            }
            Ok(Way::Ungated) => Step::work(admission, Entry::Ungated, ready, request, extensions),
            Ok(Way::Exempt) => Step::Working {
                response: ready.call(request),
                pass: Pass::default(),
            },
            Err(cause) => Step::refuse(cause, ready),
        };
        Self {
            admission: Arc::clone(admission),
            #[cfg(feature = "tonic")]
            grpc: begun.grpc,
            step,
        }
    }
}

impl<S: Service<Req>, Req> Passage<S, Req> {
    pub(super) fn hold_until(&self) -> HoldUntil {
        self.admission.hold_until
    }

    /// How an answer under way ends when its lease is lost; `None` if by an error.
    #[cfg_attr(
        not(feature = "tonic"),
        expect(clippy::unused_self, reason = "only gRPC has such an end")
    )]
    pub(super) fn on_loss<B>(&self, _answer: &Response<B>) -> Option<OnLoss> {
        #[cfg(feature = "tonic")]
        // An answer of another kind is cut off: its reader would take the trailers for its end.
        if self.grpc && super::grpc::is_grpc(_answer.headers()) {
            return Some(super::grpc::trailers_of_loss);
        }
        None
    }

    /// Gives back what the answer says is not to be paid for, and tells of the quotas in it.
    pub(super) fn settle(&self, used: Option<&Used>, answer: &mut response::Parts) {
        let Some(used) = used else { return };
        if let Some(refund) = &self.admission.refund {
            used.give_back(refund(answer));
        }
        let told = self.admission.headers.filter(|told| told.on_success);
        if let (Some(told), Some(report)) = (told, used.report()) {
            told.write(report, &mut answer.headers);
        }
    }

    /// How the request's caller is told.
    pub(super) fn answer(&self, rejection: &Rejection) -> Response<Bytes> {
        #[cfg(feature = "tonic")]
        let mut answer = if self.grpc {
            super::grpc::response(rejection)
        } else {
            problem::response(rejection)
        };
        #[cfg(not(feature = "tonic"))]
        let mut answer = problem::response(rejection);
        if let Some(quotas) = rejection.quotas() {
            let told = self.admission.headers.unwrap_or_default();
            told.write(quotas, answer.headers_mut());
        }
        match &self.admission.on_refusal {
            Some(on_refusal) => on_refusal(rejection, answer),
            None => answer,
        }
    }
}

impl<S: Service<Req>, Req> Future for Passage<S, Req> {
    type Output = Result<Outcome<S::Response>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut step = this.step;
        let cause = loop {
            match step.as_mut().project() {
                StepProjection::Refused(cause) => break cause.take().expect("told once"),
                StepProjection::Waiting {
                    asked,
                    ready,
                    extensions,
                } => {
                    let waiting = asked.as_mut().expect("an acquire ends once");
                    let answer = ready!(Pin::new(&mut waiting.entering).poll(cx));
                    let ended = asked.take().expect("it was polled");
                    let way = match answer {
                        Ok(granted) => Ok(Entry::granted(granted, ended)),
                        Err(denied) => match this.admission.given_up(ended, denied) {
                            Ok(Way::Gated(again)) => {
                                *asked = Some(again);
                                continue;
                            }
                            Ok(Way::Ungated | Way::Exempt) => Ok(Entry::Ungated),
                            Err(cause) => Err(cause),
                        },
                    };
                    let entry = match way {
                        Ok(entry) => entry,
                        Err(cause) => break cause,
                    };
                    let (mut service, request) = ready.take().expect("an acquire ends once");
                    let extensions = *extensions;
                    step.set(Step::work(
                        this.admission,
                        entry,
                        &mut service,
                        request,
                        extensions,
                    ));
                }
                StepProjection::Working { response, pass } => {
                    let hold = &mut pass.hold;
                    match ready!(Hold::poll_while_held(hold, cx, |cx| response.poll(cx))) {
                        Ok(answer) => {
                            // Taken also when the service failed: its caller may keep this future
                            // for long.
                            let pass = mem::take(pass);
                            // Ended first: what the inner future does when it is dropped is done
                            // before anybody gives the lease back.
                            step.set(Step::Ended);
                            if answer.is_err() {
                                this.admission.settle_failure(&pass);
                            }
                            return Poll::Ready(
                                answer.map(|answer| Outcome::Answered(answer, pass)),
                            );
                        }
                        Err(reason) => break Cause::Lost(reason),
                    }
                }
                StepProjection::Ended => panic!("polled after it has ended"),
            }
        };
        let rejection = Rejection::new(this.admission.door.name(), cause, this.admission.busy);
        match rejection.kind() {
            // The backend has warned of the loss, once for all who lost.
            RejectionKind::LeaseLost => tracing::debug!(%rejection, "request aborted"),
            RejectionKind::Misconfigured => this.admission.misconfigured.log(&rejection),
            _ => tracing::debug!(%rejection, "request refused"),
        }
        // Drops the handler, or the request that has waited.
        step.set(Step::Ended);
        Poll::Ready(Ok(Outcome::Rejected(rejection)))
    }
}

impl<S: Service<Req>, Req> fmt::Debug for Passage<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match &self.step {
            Step::Refused(_) => "Refused",
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

/// Where the lease is granted within the call: gates on a server never do that.
#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Pending, pending};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Waker;

    use futures_util::FutureExt;
    use http::Request;
    use http_body_util::Empty;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::layer::{ConcurrencyLimitLayer, Gated, MutexLayer, Plain};
    use crate::mutex::Mutex;
    use crate::portcullis::Portcullis;

    fn lock() -> Mutex {
        Portcullis::in_memory().mutex("a").max_wait(Duration::ZERO)
    }

    fn gated<S>(lock: &Mutex, inner: S) -> Gated<S, Plain> {
        MutexLayer::new(lock.clone()).plain().layer(inner)
    }

    async fn is_free(lock: &Mutex) -> bool {
        lock.try_lock().await.is_ok()
    }

    /// Its clones have to be polled ready anew, and its requests tell whether they were.
    #[derive(Debug)]
    struct Strict {
        ready: bool,
    }

    impl Clone for Strict {
        fn clone(&self) -> Self {
            Self { ready: false }
        }
    }

    impl Service<()> for Strict {
        type Response = Infallible;
        type Error = Infallible;
        type Future = Pending<Result<Infallible, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            self.ready = true;
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            assert!(mem::take(&mut self.ready), "polled ready");
            pending()
        }
    }

    #[tokio::test]
    async fn who_holds_at_once_or_later_calls_the_service_that_was_polled_ready() {
        let lock = lock().max_wait(Duration::from_secs(10));
        let mut gated = gated(&lock, Strict { ready: false });
        let mut cx = Context::from_waker(Waker::noop());
        let first = gated.ready().await.expect("always").call(());
        let mut second = Box::pin(gated.ready().await.expect("always").call(()));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(second);
        assert!(is_free(&lock).await);
    }

    #[tokio::test]
    async fn a_response_future_that_is_never_polled_leaves_nothing() {
        let lock = lock();
        let mut gated = gated(&lock, Strict { ready: false });
        let response = gated.ready().await.expect("always").call(());
        assert!(!is_free(&lock).await);
        drop(response);
        assert!(is_free(&lock).await);
    }

    /// Gives its output at once, and goes on until its drop: then it tells whether it was alone.
    struct Thorough<T> {
        output: Option<T>,
        lock: Mutex,
        alone: Arc<AtomicBool>,
    }

    impl<T> Unpin for Thorough<T> {}

    impl<T> Future for Thorough<T> {
        type Output = T;

        fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
            Poll::Ready(self.output.take().expect("polled once"))
        }
    }

    impl<T> Drop for Thorough<T> {
        fn drop(&mut self) {
            let alone = is_free(&self.lock).now_or_never() == Some(false);
            self.alone.store(alone, Ordering::Relaxed);
        }
    }

    fn thorough<Req, T: Clone>(
        lock: &Mutex,
        alone: &Arc<AtomicBool>,
        output: T,
    ) -> impl Fn(Req) -> Thorough<T> + Clone + use<Req, T> {
        let (lock, alone) = (lock.clone(), Arc::clone(alone));
        move |_| Thorough {
            output: Some(output.clone()),
            lock: lock.clone(),
            alone: Arc::clone(&alone),
        }
    }

    #[tokio::test]
    async fn what_an_inner_future_does_when_it_is_dropped_is_done_under_the_lease() {
        let (lock, alone) = (lock(), Arc::new(AtomicBool::new(false)));
        let was_alone = || alone.swap(false, Ordering::Relaxed);

        let answering = service_fn(thorough(&lock, &alone, Ok::<_, Infallible>(())));
        assert!(gated(&lock, answering).oneshot(()).await.is_ok());
        assert!(was_alone());
        let failing = service_fn(thorough(&lock, &alone, Err::<Infallible, _>("failed")));
        assert!(gated(&lock, failing).oneshot(()).await.is_err());
        assert!(was_alone());
        for hold_until in [HoldUntil::Body, HoldUntil::Response] {
            let layer = MutexLayer::new(lock.clone()).hold_until(hold_until);
            let empty = Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()));
            let gated = layer.layer(service_fn(thorough(&lock, &alone, empty)));
            assert!(gated.oneshot(Request::new(())).await.is_ok());
            assert!(was_alone(), "{hold_until:?}");
        }
        assert!(is_free(&lock).await);
    }

    /// A head that makes no difference is not looked at: each setting alone makes it count.
    #[tokio::test]
    async fn each_setting_that_reads_the_head_is_heeded_where_it_is_the_only_one() {
        fn read<T>(read: &Arc<AtomicBool>, told: T) -> impl Fn(&Parts) -> T + use<T>
        where
            T: Clone + Send + Sync + 'static,
        {
            let read = Arc::clone(read);
            move |_| {
                read.store(true, Ordering::Relaxed);
                told.clone()
            }
        }
        let permits = Portcullis::in_memory().semaphore("a", 2).expect("in range");
        let layer = || ConcurrencyLimitLayer::new(permits.clone());
        let was = &Arc::new(AtomicBool::new(false));
        let patience = Some(Duration::ZERO);
        let layers = [
            layer().applies_to(read(was, true)),
            layer().key(read(was, Some(7_u64))),
            layer().demand(read(was, Demand::default())),
            layer().deadline(read(was, patience)),
        ];
        for (at, layer) in layers.into_iter().enumerate() {
            let answering = service_fn(|_: Request<()>| async {
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            });
            let answer = layer.layer(answering).oneshot(Request::new(())).await;
            assert!(answer.is_ok_and(|answer| answer.status().is_success()));
            assert!(was.swap(false, Ordering::Relaxed), "setting {at}");
        }
    }

    #[tokio::test]
    async fn a_service_that_panics_when_it_is_called_leaves_nothing() {
        let lock = lock();
        let broken = service_fn(|()| -> Pending<Result<(), Infallible>> { panic!("broken") });
        let mut gated = gated(&lock, broken);
        let call = AssertUnwindSafe(|| drop(gated.call(())));
        assert!(catch_unwind(call).is_err());
        assert!(is_free(&lock).await);
    }
}
