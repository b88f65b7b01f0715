//! At most so much in a time, over all processes that share a server.

mod at_layer;
mod denials;
mod quota;
mod report;
mod rule;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::coop::consume_budget;

use self::denials::Denials;
pub use self::quota::{Quota, Quotas};
pub use self::report::{QuotaReport, QuotaStatus};
pub(crate) use self::rule::{Id, Method, Rule};
use crate::backend::{Backend, Op, Take, Taken};
use crate::error::{LockError, Refusal, RefusalKind};
use crate::key::{Key, Prefix, Subject};
use crate::time::Instant;

/// The furthest turn that is booked.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Quotas that a fleet of processes shares: each subject, told from others by its
/// [key](Self::keyed), may use so many units in a time.
///
/// A call is decided by one script on the server, by the server's clock, for all quotas of the
/// subject at once: admitted by all of them, or nothing is used. What is kept of a subject vanishes
/// by itself when all has come back to it. Cheap to clone. Made by
/// [`Portcullis::rate_limiter`](crate::Portcullis::rate_limiter); the algorithms and their bounds are
/// those of [`Quota`].
///
/// A call whose answer is lost may have used its units: it is not repeated, and fails. So no call
/// counts twice.
///
/// # Changed quotas
///
/// The quotas are told with every call, so that changed ones act with the next; to make a limiter
/// clears nothing. What was used stays used: after ten of ten, twenty leave ten more, and five leave
/// none until six have come back. What was used comes back at the faster of the two rates, from the
/// last call that used any, until one is admitted by the new quota, and at that one's rate from then
/// on. While processes with old and new quotas run at once, each call is judged by its own. A quota
/// whose algorithm has changed begins anew.
///
/// # Denials
///
/// A denial is remembered by the limiter and its clones and siblings, until it would be admitted but
/// for a second at most, and answers calls of the same key for the same or a greater cost without
/// asking the server. What is told of a greater cost is what is known of the smaller: before then it is
/// not worth asking. That is exact as long as nobody gives units back: a [`refund`](Self::refund) or
/// [`reset`](Self::reset) by this limiter is seen at once; one by another process, and a turn that was
/// given back, within that second.
/// Up to 4,096 keys are remembered.
///
/// # Clocks
///
/// If the server's clock is set back, what was used stays used, and comes back from there at the same
/// rate: nobody is locked out, and nothing is free. If it is set forward, that much time has passed.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use portcullis::{LockError, Portcullis, Quota};
///
/// let gates = Portcullis::in_memory();
/// let api = gates.rate_limiter("api", Quota::per_minute(60).burst(2))?;
///
/// let report = api.keyed("alice").check().await?;
/// assert_eq!(report.remaining(), 1);
/// api.keyed("alice").check().await?;
/// let Err(LockError::Refused(refusal)) = api.keyed("alice").check().await else {
///     panic!("two at once are all that she has");
/// };
/// assert!(refusal.retry_after().is_some_and(|after| after.as_millis() <= 1_000));
/// api.keyed("bob").check().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    backend: Arc<dyn Backend>,
    prefix: Prefix,
    name: Arc<str>,
    key: Option<Key>,
    subject: Arc<Subject>,
    quotas: Quotas,
    max_wait: Duration,
    /// Of this limiter, its clones and siblings; none where to ask costs no more than to remember.
    denials: Option<Arc<Denials>>,
}

impl RateLimiter {
    pub(crate) fn named(
        backend: Arc<dyn Backend>,
        prefix: Prefix,
        name: &str,
        quotas: Quotas,
    ) -> Self {
        let name: Arc<str> = name.into();
        let subject = Subject::new(&prefix, &name, None).into();
        let denials = backend.is_remote().then(Arc::default);
        Self {
            backend,
            prefix,
            name,
            key: None,
            subject,
            quotas,
            max_wait: LONGEST_WAIT,
            denials,
        }
    }

    /// The limiter of this name for one tenant, route, user: independent of its siblings. Replaces
    /// an earlier key.
    #[must_use]
    pub fn keyed(&self, key: impl Into<Key>) -> Self {
        let key = key.into();
        let subject = Subject::new(&self.prefix, &self.name, Some(&key));
        Self {
            subject: subject.into(),
            key: Some(key),
            ..self.clone()
        }
    }

    /// The same limiter with other quotas: such as those of the plan that a tenant pays for. What
    /// was used stays used.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example(gates: portcullis::Portcullis) -> Result<(), Box<dyn std::error::Error>> {
    /// use portcullis::{Quota, Quotas};
    ///
    /// let free = Quotas::new([Quota::per_minute(10)])?;
    /// let gold = Quotas::new([Quota::per_minute(1_000)])?;
    /// let api = gates.rate_limiter("api", free)?;
    /// api.keyed("acme").with_quotas(&gold).check().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_quotas(&self, quotas: &Quotas) -> Self {
        Self {
            quotas: quotas.clone(),
            ..self.clone()
        }
    }

    /// Sets how long [`until_ready`](Self::until_ready) waits at most: up to a day, which it is by
    /// default.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self {
            max_wait: max_wait.min(LONGEST_WAIT),
            ..self
        }
    }

    /// Uses one unit, if all quotas have it now.
    ///
    /// # Errors
    ///
    /// [`LockError::Refused`] with [`OverQuota`](RefusalKind::OverQuota) if not, which uses nothing;
    /// its [`retry_after`](Refusal::retry_after) is the first moment at which the call would be
    /// admitted if nobody else uses any, and its [`quotas`](Refusal::quotas) how they stand.
    /// [`LockError::Backend`] if the server failed or could not be asked; the unit may then be used,
    /// unless the failure says that the server was not reached.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the call back: if it was sent, it uses its unit.
    pub async fn check(&self) -> Result<QuotaReport, LockError> {
        self.check_n(1).await
    }

    /// Uses `cost` units at once, if all quotas have them now. Without a cost it is a
    /// [`peek`](Self::peek), which is always admitted.
    ///
    /// # Errors
    ///
    /// [`LockError::Refused`] with [`NeverFits`](RefusalKind::NeverFits), at once, for more than a
    /// quota allows at once; else as [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// As [`check`](Self::check).
    pub async fn check_n(&self, cost: u32) -> Result<QuotaReport, LockError> {
        self.check_bridged(cost, None).await
    }

    /// The same for who has an answer of its own if the server has none; see
    /// [`Take`](crate::backend::Take).
    pub(crate) async fn check_bridged(
        &self,
        cost: u32,
        bridge: Option<Duration>,
    ) -> Result<QuotaReport, LockError> {
        self.fits(cost)?;
        if cost == 0 {
            return self.peek().await;
        }
        let key = self.key.as_ref();
        let denials = self.denials.as_deref();
        if let Some(denials) = denials
            && let Some(report) = denials.find(Instant::now(), key, cost, &self.quotas)
        {
            consume_budget().await;
            return Err(over_quota(report));
        }
        let (epoch, sent) = (denials.map(Denials::epoch), Instant::now());
        let taken = self.take(Op::Check, cost, bridge).await?;
        let report = self.report(&taken);
        if taken.admitted {
            return Ok(report);
        }
        if let (Some(denials), Some(epoch)) = (denials, epoch) {
            let times = [sent, Instant::now()];
            denials.remember(epoch, times, key, cost, &report, &self.quotas);
        }
        Err(over_quota(report))
    }

    /// Tells how the quotas stand, and for each whether it would let one unit through. Uses nothing.
    ///
    /// # Errors
    ///
    /// [`LockError::Backend`] if the server failed or could not be asked, and
    /// [`LockError::Refused`] only if the handle is shutting down.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is harmless.
    pub async fn peek(&self) -> Result<QuotaReport, LockError> {
        self.told(Op::Peek, 1).await
    }

    /// Gives `cost` units back that were used before, such as for a request that failed by no fault
    /// of its caller: to all quotas, and never more than are used.
    ///
    /// While others wait for turns that they have [booked](Self::until_ready), nothing is given back:
    /// their turns are settled, and one more in between would let two through at once.
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the call back. A denial that came meanwhile may then be told
    /// here for up to a second more.
    pub async fn refund(&self, cost: u32) -> Result<QuotaReport, LockError> {
        self.freeing(Op::Refund, cost).await
    }

    /// Uses `cost` units whether there are any or not: what a call turned out to cost beyond what it
    /// was checked for. The debt is paid before the next call is admitted.
    ///
    /// A quota goes no further below zero than its burst, or limit; what exceeds that is forgiven.
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the call back.
    pub async fn debit(&self, cost: u32) -> Result<QuotaReport, LockError> {
        self.told(Op::Debit, cost).await
    }

    /// Forgets all that this subject has used. Who waits for a turn that was booked keeps it.
    ///
    /// # Errors
    ///
    /// As [`peek`](Self::peek).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the call back. A denial that came meanwhile may then be told
    /// here for up to a second more.
    pub async fn reset(&self) -> Result<QuotaReport, LockError> {
        self.freeing(Op::Reset, 0).await
    }

    /// Uses one unit at the first moment at which all quotas have it, and waits until then, for up
    /// to [`max_wait`](Self::max_wait).
    ///
    /// The turn is booked when it is asked for, so it comes after those that were booked before, over
    /// all processes, and the caller sleeps once. Until all that were booked have come, a
    /// [`check`](Self::check) is refused, since it would overtake them. The report is as of the
    /// booking.
    ///
    /// # Errors
    ///
    /// [`LockError::Refused`] with [`OverQuota`](RefusalKind::OverQuota), at once, if the turn would
    /// come too late, and with [`ShuttingDown`](RefusalKind::ShuttingDown) if the handle shuts down
    /// before it has come: all turns that the handle has booked are given back then. Else as
    /// [`check`](Self::check).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the turn back if it is the last one that was booked, else it is
    /// forfeited: a turn is not moved forward once it was told. If the server can't be reached at that
    /// moment, this is tried again until the turn would have come, and for 5 seconds at least; then it
    /// is forfeited, too. What is forfeited stays used, and comes back as the quotas say.
    pub async fn until_ready(&self) -> Result<QuotaReport, LockError> {
        self.until_ready_n(1).await
    }

    /// Uses `cost` units at the first moment at which all quotas have them, and waits until then.
    ///
    /// # Errors
    ///
    /// As [`check_n`](Self::check_n) and [`until_ready`](Self::until_ready).
    ///
    /// # Cancel safety
    ///
    /// As [`until_ready`](Self::until_ready).
    pub async fn until_ready_n(&self, cost: u32) -> Result<QuotaReport, LockError> {
        self.until_ready_bridged(cost, self.max_wait, None).await
    }

    /// The same with another `max_wait`, for who has an answer of its own if the server has none.
    pub(crate) async fn until_ready_bridged(
        &self,
        cost: u32,
        max_wait: Duration,
        bridge: Option<Duration>,
    ) -> Result<QuotaReport, LockError> {
        self.fits(cost)?;
        if cost == 0 {
            return self.peek().await;
        }
        let op = Op::Book(max_wait.min(LONGEST_WAIT));
        let mut taken = self.take(op, cost, bridge).await?;
        let report = self.report(&taken);
        if !taken.admitted {
            return Err(over_quota(report));
        }
        if let Some(mut booking) = taken.booking.take() {
            // From here on: the server has decided before, so the turn can only come a little late.
            let came = tokio::select! {
                biased;
                () = booking.refused() => false,
                () = tokio::time::sleep(taken.wait) => booking.use_up(),
            };
            if !came {
                return Err(Refusal::new(RefusalKind::ShuttingDown).into());
            }
        }
        Ok(report)
    }

    /// The name under which it was made.
    pub(crate) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What never fits is not asked for.
    fn fits(&self, cost: u32) -> Result<(), LockError> {
        let most = self.most_at_once();
        if cost > most {
            return Err(Refusal::costs_too_much(cost, most).into());
        }
        Ok(())
    }

    /// What frees units makes denials untrue: those that are known, and those under way.
    async fn freeing(&self, op: Op, cost: u32) -> Result<QuotaReport, LockError> {
        let forget = || {
            if let Some(denials) = &self.denials {
                denials.forget(self.key.as_ref());
            }
        };
        forget();
        let told = self.told(op, cost).await;
        forget();
        told
    }

    async fn told(&self, op: Op, cost: u32) -> Result<QuotaReport, LockError> {
        let taken = self.take(op, cost, None).await?;
        Ok(self.report(&taken))
    }

    async fn take(&self, op: Op, cost: u32, bridge: Option<Duration>) -> Result<Taken, LockError> {
        // What is ready at once, again and again, would keep other tasks from their turn.
        consume_budget().await;
        let take = Take {
            op,
            cost,
            quotas: self.quotas.clone(),
            bridge,
        };
        self.backend.take(&self.subject, take).await
    }

    fn report(&self, taken: &Taken) -> QuotaReport {
        QuotaReport::new(self.quotas.clone(), taken.levels.clone())
    }
}

fn over_quota(report: QuotaReport) -> LockError {
    let retry_after = report.retry_after();
    Refusal::new(RefusalKind::OverQuota)
        .with_retry_after(retry_after)
        .with_quotas(report)
        .into()
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("name", self.name())
            .field("quotas", &self.quotas)
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}
