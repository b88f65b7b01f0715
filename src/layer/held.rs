//! Who owns the lease of a request, and what its handler sees of it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use http::Extensions;
use http::request::Parts;

use super::settings::OnLost;
use crate::gate::{Gate, Identity};
use crate::lease::{Lease, LeaseView, Lost, LostReason};

/// The owner of a request's lease, beside those who [keep](Held::keep) it; the last one to go gives
/// it back.
pub(super) struct Hold {
    owner: Owner,
    on_lost: OnLost,
    /// Made when the request first waits for something else. Boxed, so that a body stays `Unpin`
    /// behind a gate.
    lost: Option<Pin<Box<Lost>>>,
}

impl Hold {
    /// Shows the lease of `gate` in the request's `extensions`, if it has some.
    #[inline]
    pub(super) fn new(
        gate: Identity,
        lease: Lease,
        on_lost: OnLost,
        extensions: Option<&mut Extensions>,
        degraded: Option<&Arc<str>>,
    ) -> Self {
        let shown = Arc::new(Shown {
            gate,
            owned: Mutex::new(Owned {
                lease: Some(lease),
                owners: 1,
            }),
            view: OnceLock::new(),
        });
        if let Some(extensions) = extensions {
            Held::pass(extensions, Some(Arc::clone(&shown)), degraded);
        }
        Self {
            owner: Owner(shown),
            on_lost,
            lost: None,
        }
    }

    /// Polls the request's `work`, unless the lease is lost and the request is to end with it.
    pub(super) fn poll_while_held<T>(
        hold: &mut Option<Self>,
        cx: &mut Context<'_>,
        work: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, LostReason>> {
        let hold = hold.as_mut().filter(|hold| hold.on_lost == OnLost::Abort);
        let Some(hold) = hold else {
            return work(cx).map(Ok);
        };
        // Looked at before and after: an answer that comes after the loss may rest on what another
        // has changed, also if the process was stopped or blocked within this one poll.
        if let Some(reason) = hold.seen_lost(cx) {
            return Poll::Ready(Err(reason));
        }
        match work(cx) {
            Poll::Ready(done) => Poll::Ready(hold.seen_lost(cx).map_or(Ok(done), Err)),
            // Watched only where there is something to wait for: most work is done at once.
            Poll::Pending => hold.poll_lost(cx).map(Err),
        }
    }

    /// One look, which sets up no watch unless it is lost.
    fn seen_lost(&mut self, cx: &mut Context<'_>) -> Option<LostReason> {
        if self.owner.0.is_held() {
            return None;
        }
        match self.poll_lost(cx) {
            Poll::Ready(reason) => Some(reason),
            Poll::Pending => None,
        }
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<LostReason> {
        if self.lost.is_none() {
            let owned = self.owner.0.owned();
            let state = owned.lease.as_ref().map(|lease| Arc::clone(lease.state()));
            // To ask for it may wake others who watch the lease.
            drop(owned);
            self.lost = state.map(|state| Box::pin(state.lost()));
        }
        match &mut self.lost {
            Some(lost) => lost.as_mut().poll(cx),
            // Never: an owner has its lease.
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.owner).finish()
    }
}

/// One lease of a request, and what is seen of it, also after its end. In one piece: each request
/// needs one.
struct Shown {
    gate: Identity,
    owned: Mutex<Owned>,
    /// Made when somebody first looks; when the request ends at the latest, if then somebody is left
    /// who may look. Most requests end without.
    view: OnceLock<LeaseView>,
}

struct Owned {
    /// `None` once it was given back.
    lease: Option<Lease>,
    owners: usize,
}

impl Shown {
    /// Nothing is dropped or written, and nobody woken, while it is locked: each may run anything.
    fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` only where nobody asks: the lease has ended, and nobody was left who could look.
    fn view(&self) -> Option<&LeaseView> {
        if let Some(lease) = &self.owned().lease {
            self.view.get_or_init(|| LeaseView::new(lease.state()));
        }
        self.view.get()
    }

    fn is_held(&self) -> bool {
        let owned = self.owned();
        owned
            .lease
            .as_ref()
            .is_some_and(|lease| lease.state().is_held())
    }

    fn is_owned(&self) -> bool {
        self.owned().lease.is_some()
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shown")
            .field(self.gate.name())
            .field(&self.view())
            .finish()
    }
}

/// One of those who own a lease together. The last one to go gives it back.
struct Owner(Arc<Shown>);

impl Owner {
    /// One more, if there is one yet.
    fn of(shown: &Arc<Shown>) -> Option<Self> {
        let mut owned = shown.owned();
        owned.lease.as_ref()?;
        owned.owners += 1;
        drop(owned);
        Some(Self(Arc::clone(shown)))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut owned = self.0.owned();
        owned.owners -= 1;
        if owned.owners > 0 {
            return;
        }
        let lease = owned.lease.take();
        if let Some(lease) = &lease
            && Arc::strong_count(&self.0) > 1
        {
            self.0.view.get_or_init(|| LeaseView::new(lease.state()));
        }
        drop(owned);
        drop(lease);
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.view().fmt(f)
    }
}

/// What a request holds: one lease of each gate that it has passed on its way.
///
/// An extractor for axum's handlers: **that needs the feature `axum`**. Every gate puts it into the
/// request's extensions, with the leases of those further out; it is empty where no gate was
/// passed. It only looks: its clones, wherever they are kept, do not hold. To hold beyond the
/// answer, for an upgraded connection or a spawned job, see [`keep`](Self::keep).
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
#[derive(Clone, Default)]
pub struct Held {
    innermost: Option<Arc<Shown>>,
    /// Of the gates further out, from the inside out. Not a chain from each to the next: a long one
    /// would overflow the stack when it is dropped. Most requests pass one gate, and have none here.
    outer: Vec<Arc<Shown>>,
    /// The gates that let it through by themselves, since their server was away.
    degraded: Vec<Arc<str>>,
}

impl Held {
    /// Notes in a request's `extensions` that it has passed one more gate: by which lease, and
    /// whether its server was away.
    #[inline]
    fn pass(
        extensions: &mut Extensions,
        innermost: Option<Arc<Shown>>,
        degraded: Option<&Arc<str>>,
    ) {
        // What was cloned of it before is not changed: a request that is tried twice under one outer gate
        // must not meet the leases of its first try.
        let held: &mut Self = extensions.get_or_insert_default();
        held.outer = held.living();
        held.innermost = innermost;
        if let Some(gate) = degraded
            && !held.degraded.contains(gate)
        {
            held.degraded.push(Arc::clone(gate));
        }
    }

    /// Notes that `gate` let the request through without a lease.
    pub(super) fn pass_ungated(extensions: &mut Extensions, gate: &Arc<str>) {
        Self::pass(extensions, None, Some(gate));
    }

    /// Whether the gate with this name let the request through by itself, since its server was
    /// away: see [`OnOutage`](super::OnOutage). Then requests in other processes may be let through,
    /// too, and what must not happen twice needs another guard. There is no lease with
    /// [`Allow`](super::OnOutage::Allow); with [`Local`](super::OnOutage::Local) there is one of this
    /// process alone, whose fencing token compares with no other process'.
    #[must_use]
    pub fn is_degraded(&self, gate: &str) -> bool {
        self.degraded.iter().any(|name| **name == *gate)
    }

    /// What a request holds when it comes to a gate; `None` where it passed none.
    pub(super) fn of(head: &Parts) -> Option<&Self> {
        head.extensions.get()
    }

    /// Whether a lease of `gate` is among them, and has not ended.
    pub(super) fn is_at(&self, gate: &Gate) -> bool {
        self.leases()
            .any(|shown| gate.is(&shown.gate) && shown.is_held())
    }

    /// From the inside out.
    fn leases(&self) -> impl Iterator<Item = &Arc<Shown>> {
        self.innermost.iter().chain(&self.outer)
    }

    /// Those that have not been given back, for one more gate to take over. A request may bring
    /// along what it held on an earlier way, and would be told that it holds not all of that; and
    /// one that goes round would bring more each time.
    fn living(&self) -> Vec<Arc<Shown>> {
        let living = self.leases().filter(|shown| shown.is_owned());
        living.cloned().collect()
    }

    fn not_passed(&self, gate: &str) -> NotHeld {
        if self.is_degraded(gate) {
            return NotHeld(Absence::Ungated(gate.into()));
        }
        let mut passed: Vec<_> = self
            .leases()
            .map(|shown| format!("`{}`", shown.gate.name()))
            .collect();
        passed.reverse();
        let passed = if passed.is_empty() {
            "no gate".into()
        } else {
            format!("only {}", passed.join(", ")).into()
        };
        let gate = gate.into();
        NotHeld(Absence::NotPassed { gate, passed })
    }

    /// The lease of the gate with this name: what [`Portcullis::mutex`](crate::Portcullis::mutex)
    /// or [`semaphore`](crate::Portcullis::semaphore) was called with. Of several, the innermost.
    ///
    /// # Errors
    ///
    /// If the request passed no such gate, was exempt from it, or was let through
    /// [without a lease](Self::is_degraded).
    pub fn lease(&self, gate: &str) -> Result<LeaseView, NotHeld> {
        let found = self.leases().find(|shown| **shown.gate.name() == *gate);
        found
            .and_then(|shown| shown.view().cloned())
            .ok_or_else(|| self.not_passed(gate))
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
        if self.leases().next().is_none() && self.degraded.is_empty() {
            return Err(NotHeld(Absence::Nothing));
        }
        let owner = |shown: &Arc<Shown>| {
            Owner::of(shown)
                .ok_or_else(|| NotHeld(Absence::GivenBack((**shown.gate.name()).into())))
        };
        let owners = self.leases().map(owner).collect::<Result<_, _>>()?;
        Ok(Kept {
            held: self.clone(),
            owners,
        })
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.leases()).finish()
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
    owners: Vec<Owner>,
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
#[error(transparent)]
pub struct NotHeld(Absence);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Absence {
    #[error("the request holds no lease of the gate `{gate}`: it passed {passed}")]
    NotPassed { gate: Box<str>, passed: Box<str> },
    #[error("the gate `{0}` let the request through without a lease, since its server was away")]
    Ungated(Box<str>),
    #[error("the request holds nothing to keep: it passed no gate")]
    Nothing,
    #[error("the request has given back its lease of the gate `{0}` already")]
    GivenBack(Box<str>),
}

#[cfg(feature = "axum")]
mod extract {
    use std::convert::Infallible;

    use axum::extract::FromRequestParts;
    use axum::response::{IntoResponse, Response};
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

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    use std::task::{Wake, Waker};
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::backend::memory::Memory;
    use crate::backend::{Acquire, Place, ReleaseAnswer, Terms};
    use crate::key::Prefix;
    use crate::lease::{LeaseMode, LeaseState};
    use crate::mutex::Mutex;
    use crate::portcullis::Portcullis;
    use crate::time::{Clock, Instant};
    use crate::token::{FencingToken, Token};

    fn lock(name: &str) -> Mutex {
        Portcullis::in_memory().mutex(name)
    }

    /// One that is lost after 1 ms.
    fn short_lock(name: &str) -> Mutex {
        let lock = lock(name).lease(LeaseMode::MaxHold(Duration::from_millis(1)));
        lock.expect("long enough")
    }

    async fn hold(lock: &Mutex, extensions: &mut Extensions) -> Hold {
        let lease = lock.gate.enter(1, None).await.expect("a free lock");
        let gate = lock.gate.identity(None);
        Hold::new(gate, lease, OnLost::Abort, Some(extensions), None)
    }

    fn held(extensions: &Extensions) -> Held {
        extensions.get().cloned().expect("shown")
    }

    async fn pass_1_ms() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    #[tokio::test]
    async fn who_looks_first_when_it_was_given_back_sees_that_it_was_not_lost() {
        let mut extensions = Extensions::new();
        let hold = hold(&lock("a"), &mut extensions).await;
        drop(hold);
        let lease = held(&extensions).lease("a").expect("behind this gate");
        assert!(!lease.is_held());
        assert!(lease.lost().now_or_never().is_none());
    }

    #[tokio::test]
    async fn who_looks_first_when_it_was_lost_and_its_request_is_over_sees_the_loss() {
        let mut extensions = Extensions::new();
        let hold = hold(&short_lock("a"), &mut extensions).await;
        pass_1_ms().await;
        drop(hold);
        let lease = held(&extensions).lease("a").expect("behind this gate");
        assert_eq!(lease.lost().now_or_never(), Some(LostReason::Expired));
    }

    #[tokio::test]
    async fn what_was_kept_beyond_the_request_is_seen_when_it_is_over_too() {
        let mut extensions = Extensions::new();
        let outer = hold(&lock("outer"), &mut extensions).await;
        let inner = hold(&lock("inner"), &mut extensions).await;
        let held = held(&extensions);
        let kept = held.keep().expect("held");
        drop((inner, outer));
        drop(kept);
        for gate in ["outer", "inner"] {
            assert!(!held.lease(gate).expect("behind this gate").is_held());
        }
    }

    #[tokio::test]
    async fn what_an_earlier_pass_has_given_back_is_not_taken_over() {
        let mut extensions = Extensions::new();
        drop(hold(&lock("earlier"), &mut extensions).await);
        let _hold = hold(&lock("a"), &mut extensions).await;
        let held = held(&extensions);
        let kept = held.keep().expect("all that it holds");
        assert!(kept.lease("a").expect("behind this gate").is_held());
        assert!(kept.lease("earlier").is_err());
    }

    #[tokio::test]
    async fn a_gate_that_is_passed_again_leaves_those_further_out_in_sight() {
        let (outer, inner) = (lock("outer"), lock("inner"));
        let mut extensions = Extensions::new();
        let _outer = hold(&outer, &mut extensions).await;
        drop(hold(&inner, &mut extensions).await);
        let _inner = hold(&inner, &mut extensions).await;
        let kept = held(&extensions).keep().expect("all that it holds");
        assert_eq!(kept.owners.len(), 2);
        for gate in ["outer", "inner"] {
            assert!(kept.lease(gate).expect("behind this gate").is_held());
        }
    }

    #[tokio::test]
    async fn a_request_that_goes_round_takes_no_trail_along() {
        let gates = [lock("a"), lock("b")];
        let mut extensions = Extensions::new();
        let mut last = None;
        for pass in 0..10_000 {
            // Each pass begins before the one before it is over.
            last = Some(hold(&gates[pass % 2], &mut extensions).await);
        }
        assert_eq!(held(&extensions).leases().count(), 2);
        drop(last);
    }

    #[tokio::test]
    async fn a_long_way_through_gates_is_no_burden_to_the_stack() {
        let gates = Portcullis::in_memory();
        let permits = gates.semaphore("a", 3_000).expect("in range");
        let mut extensions = Extensions::new();
        let mut holds = Vec::new();
        for _ in 0..3_000 {
            let lease = permits.gate.enter(1, None).await.expect("a free permit");
            let gate = permits.gate.identity(None);
            let hold = Hold::new(gate, lease, OnLost::Continue, Some(&mut extensions), None);
            holds.push(hold);
        }
        assert_eq!(held(&extensions).leases().count(), holds.len());
        drop(holds);
        // As little as any thread has.
        let drops = std::thread::Builder::new().stack_size(64 * 1024);
        let dropped = drops.spawn(move || drop(extensions)).expect("a thread");
        dropped.join().expect("no panic");
    }

    /// Looks whether the books of a lease are free when it is woken, or written to.
    struct Looks {
        shown: Arc<Shown>,
        free: AtomicBool,
        times: AtomicUsize,
    }

    impl Looks {
        fn at(extensions: &Extensions) -> Arc<Self> {
            let shown = held(extensions).innermost.expect("shown");
            Arc::new(Self {
                shown,
                free: AtomicBool::new(true),
                times: AtomicUsize::new(0),
            })
        }

        fn look(&self) {
            self.times.fetch_add(1, Ordering::SeqCst);
            if self.shown.owned.try_lock().is_err() {
                self.free.store(false, Ordering::SeqCst);
            }
        }

        fn found_them_free(&self) -> bool {
            self.times.load(Ordering::SeqCst) > 0 && self.free.load(Ordering::SeqCst)
        }
    }

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            self.look();
        }
    }

    impl fmt::Write for &Looks {
        fn write_str(&mut self, _: &str) -> fmt::Result {
            self.look();
            Ok(())
        }
    }

    /// Of which nothing is taken back.
    #[derive(Debug)]
    struct Nowhere;

    impl Place for Nowhere {
        fn acquire(&self, _myself: &Arc<dyn Place>, _terms: &Terms) -> Acquire {
            Acquire::Ended
        }

        fn cancel(&self, _token: Token) {}

        fn release(&self, _token: Token, _answer: Option<oneshot::Sender<ReleaseAnswer>>) {}
    }

    #[test]
    fn nobody_is_woken_while_the_books_of_a_lease_are_locked() {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Clock::made({
            let now = Arc::clone(&now);
            move || Instant::from_nanos(now.load(Ordering::SeqCst))
        });
        let (token, fence) = (Token::of(1), FencingToken::new(1));
        let state = LeaseState::new(clock, token, fence, Instant::from_nanos(10));
        let lease = Lease::shared(Arc::new(Nowhere), state);
        let mut extensions = Extensions::new();
        let gate = lock("a").gate.identity(None);
        let hold = Hold::new(gate, lease, OnLost::Abort, Some(&mut extensions), None);
        let looks = Looks::at(&extensions);
        let waker = Waker::from(Arc::clone(&looks));
        let view = held(&extensions).lease("a").expect("behind this gate");
        let mut lost = pin!(view.lost());
        let mut cx = Context::from_waker(&waker);
        assert!(lost.as_mut().poll(&mut cx).is_pending());
        now.store(10, Ordering::SeqCst);
        let mut cx = Context::from_waker(Waker::noop());
        let polled = Hold::poll_while_held(&mut Some(hold), &mut cx, |_| Poll::<()>::Pending);
        assert_eq!(polled, Poll::Ready(Err(LostReason::Expired)));
        assert!(looks.found_them_free());
    }

    #[test]
    fn who_looks_first_settles_nothing_that_concerns_others_while_the_books_are_locked() {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Clock::made({
            let now = Arc::clone(&now);
            move || Instant::from_nanos(now.load(Ordering::SeqCst))
        });
        let gates = Portcullis::on_memory(&Memory::new(clock), Prefix::default());
        let permits = gates.semaphore("a", 2).expect("in range");
        let permits = permits.max_wait(Duration::from_nanos(10));
        let mut extensions = Extensions::new();
        let entered = permits.gate.enter(1, None).now_or_never();
        let lease = entered.expect("at once").expect("a free permit");
        let gate = permits.gate.identity(None);
        let _hold = Hold::new(gate, lease, OnLost::Continue, Some(&mut extensions), None);
        let looks = Looks::at(&extensions);
        let waker = Waker::from(Arc::clone(&looks));
        let mut cx = Context::from_waker(&waker);
        let mut waits = pin!(permits.acquire_many(2));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        now.store(10, Ordering::SeqCst);
        let view = held(&extensions).lease("a").expect("behind this gate");
        assert!(view.is_held() && looks.free.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn nothing_is_written_while_the_books_of_a_lease_are_locked() {
        let mut extensions = Extensions::new();
        let _hold = hold(&lock("a"), &mut extensions).await;
        let looks = Looks::at(&extensions);
        let kept = held(&extensions).keep().expect("held");
        write!(&mut &*looks, "{kept:?}").expect("it writes nothing");
        assert!(looks.found_them_free());
    }

    #[tokio::test]
    async fn work_that_is_done_only_after_the_loss_counts_for_nothing() {
        let lock = lock("a").lease(LeaseMode::MaxHold(Duration::from_millis(50)));
        let mut hold = Some(hold(&lock.expect("long enough"), &mut Extensions::new()).await);
        let mut cx = Context::from_waker(Waker::noop());
        let polled = Hold::poll_while_held(&mut hold, &mut cx, |_| {
            std::thread::sleep(Duration::from_millis(60));
            Poll::Ready(())
        });
        assert_eq!(polled, Poll::Ready(Err(LostReason::Expired)));
    }

    #[tokio::test]
    async fn nothing_of_the_work_is_done_once_the_lease_is_lost() {
        let mut hold = Some(hold(&short_lock("a"), &mut Extensions::new()).await);
        pass_1_ms().await;
        let mut cx = Context::from_waker(Waker::noop());
        let polled = Hold::poll_while_held(&mut hold, &mut cx, |_| -> Poll<()> {
            panic!("polled after the loss")
        });
        assert_eq!(polled, Poll::Ready(Err(LostReason::Expired)));
    }
}
