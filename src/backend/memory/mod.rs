//! State in this process: the same semantics without a server.
//!
//! Each name in use has a site with a ledger of holders and waiters under a lock of its own. What
//! is granted is granted under that lock, so no message can be lost, and a lease that is renewed
//! until it is released needs neither clock nor timer: its holder and its place end together. A
//! clock is only looked at for what has an end.

mod keeper;
mod ledger;
mod news;
mod process;
pub(crate) mod rates;
mod sites;
#[cfg(test)]
mod tests;
mod turnstile;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use self::keeper::Keeper;
use self::ledger::{Entered, unreachable};
#[cfg(feature = "test-util")]
use self::news::News;
use self::process::Process;
use self::rates::Rates;
use self::sites::{Site, Sites};
use super::local::Local;
use super::{Acquire, Backend, Place, ReleaseAnswer, ShutdownReport, Take, Taking, Terms, Waiting};
use crate::error::{Refusal, RefusalKind};
use crate::key::{Resource, Subject};
use crate::lease::{Lease, LeaseState, Release};
use crate::time::{Clock, Instant, Ttl};
use crate::token::{FencingToken, Token};

/// What several handles of this process share, as processes share a server.
pub(crate) struct Memory {
    sites: Sites,
    rates: Rates,
    clock: Clock,
    keeper: Keeper,
    /// Whether it plays a server that can't be reached.
    out: AtomicBool,
}

impl Memory {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            sites: Sites::new(),
            rates: Rates::new(),
            clock,
            keeper: Keeper::new(),
            out: AtomicBool::new(false),
        })
    }

    fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed)
    }
}

/// Without the keys in use, which requests have brought.
impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

/// What tests do to it.
#[cfg(feature = "test-util")]
impl Memory {
    /// All leases of a gate are lost now; gives their number.
    pub(crate) fn expire(self: &Arc<Self>, gate: &str) -> usize {
        let sites = self.sites.all();
        let of_gate = sites.iter().filter(|site| &**site.gate() == gate);
        let now = self.clock.now();
        let mut all_news = News::default();
        let expire = |site: &Arc<Site>| {
            let (count, news) = site.change_untold(self, |ledger, news| ledger.expire(now, news));
            all_news.append(news);
            count
        };
        let count = of_gate.map(expire).sum();
        all_news.deliver();
        count
    }

    pub(crate) fn set_out(self: &Arc<Self>, out: bool) {
        if self.out.swap(out, Ordering::Relaxed) == out {
            return;
        }
        for site in self.sites.all() {
            site.change(self, |ledger, _| {
                if out {
                    ledger.stop_renewing(self.clock.now(), site.turnstile().longest_ttl());
                } else {
                    ledger.renew_again();
                }
            });
        }
    }

    /// The gates where somebody holds or waits, with how many do.
    pub(crate) fn busy(self: &Arc<Self>) -> Vec<(Arc<str>, usize, usize)> {
        let count = |site: Arc<Site>| {
            let (held, waiting) = site.change(self, |ledger, _| (ledger.held(), ledger.waiting()));
            (held + waiting > 0).then(|| (Arc::clone(site.gate()), held, waiting))
        };
        self.sites.all().into_iter().filter_map(count).collect()
    }
}

/// One handle's way to the memory.
#[derive(Debug)]
pub(crate) struct MemoryBackend {
    memory: Arc<Memory>,
    process: Arc<Process>,
    local: Local,
}

impl MemoryBackend {
    pub(crate) fn start(memory: &Arc<Memory>) -> Arc<dyn Backend> {
        Arc::new(Self {
            memory: Arc::clone(memory),
            process: Process::new(memory.sites.next_id()),
            local: Local::default(),
        })
    }
}

impl Backend for MemoryBackend {
    fn place(&self, resource: Resource) -> Arc<dyn Place> {
        Arc::new(MemoryPlace {
            site: self
                .memory
                .sites
                .join(resource.main(), &resource.gate, self.process.id()),
            memory: Arc::clone(&self.memory),
            process: Arc::clone(&self.process),
        })
    }

    fn take(&self, subject: &Arc<Subject>, take: Take) -> Taking {
        if self.process.is_closed() {
            return Taking::Ready(Err(Refusal::new(RefusalKind::ShuttingDown).into()));
        }
        if self.memory.is_out() {
            return Taking::Ready(Err(unreachable(take.op.doing(), &subject.limiter).into()));
        }
        let (memory, booked) = (Arc::clone(&self.memory), Arc::clone(subject));
        let process = Arc::clone(&self.process);
        let book = |unbook: Box<rates::Unbook>| {
            self.process
                .turns()
                .book((booked, unbook), move |id, came| {
                    let turn = process.turns().end(id);
                    if let Some((subject, unbook)) = turn.filter(|_| !came) {
                        memory.rates.unbook(&memory.clock, subject.key(), *unbook);
                    }
                })
        };
        let (rates, clock) = (&self.memory.rates, &self.memory.clock);
        Taking::Ready(Ok(rates.take(clock, subject.key(), &take, book)))
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn local(&self) -> &Arc<dyn Backend> {
        self.local.get(&self.memory.clock)
    }

    fn now(&self) -> Instant {
        self.memory.clock.now()
    }

    fn shutdown(&self, deadline: Duration, answer: oneshot::Sender<ShutdownReport>) {
        self.process.shut_down(&self.memory, deadline, answer);
    }
}

/// One handle's way to a site. Apart in memory from its neighbors: each lease counts as a reference
/// to it, and two threads at two places would wait for each other's cache line.
#[repr(align(64))]
struct MemoryPlace {
    site: Arc<Site>,
    memory: Arc<Memory>,
    process: Arc<Process>,
}

impl Place for MemoryPlace {
    fn acquire(&self, myself: &Arc<dyn Place>, terms: &Terms) -> Acquire {
        let entered = self.site.change(&self.memory, |ledger, _| {
            if self.process.is_closed() {
                let refusal = Refusal::new(RefusalKind::ShuttingDown);
                return Entered::Refused(Box::new(refusal.into()));
            }
            if self.memory.is_out() {
                let error = unreachable("acquiring", self.site.gate());
                return Entered::Refused(Box::new(error.into()));
            }
            // The end of an outage may be on its way here.
            #[cfg(feature = "test-util")]
            ledger.renew_again();
            ledger.enter(&self.memory.clock, myself, self.process.id(), terms)
        });
        match entered {
            Entered::Held { mark, fence } => {
                Acquire::Ready(Ok(ledger::lease(Arc::clone(myself), mark, fence)))
            }
            Entered::Queued { answer, ticket } => {
                Acquire::Waiting(Waiting::new(answer, Arc::clone(myself), ticket))
            }
            Entered::Refused(error) => Acquire::Ready(Err(*error)),
        }
    }

    fn count_in(&self, limit: u32, ttl: Ttl) -> Option<FencingToken> {
        if self.process.is_closed() || self.memory.is_out() {
            return None;
        }
        let fence = self.site.turnstile().enter(limit, ttl)?;
        Some(FencingToken::new(fence))
    }

    fn count_out(&self) -> bool {
        self.site.turnstile().leave()
    }

    fn cancel(&self, ticket: Token) {
        self.site
            .change(&self.memory, |ledger, news| ledger.leave(ticket, news));
    }

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        // Who wants no answer has tried to be counted out.
        let counted_out =
            answer.is_some() && Lease::counted_ttl(token).is_some() && self.count_out();
        // What is due is settled first, so what is found has not run out.
        let found = counted_out
            || self
                .site
                .change(&self.memory, |ledger, news| ledger.release(token, news));
        let Some(answer) = answer else { return };
        let _ = answer.send(match found {
            _ if self.memory.is_out() => Err(unreachable("releasing", self.site.gate())),
            true => Ok(Release::Released),
            false => Ok(Release::NoLongerHeld),
        });
    }

    fn state(&self, token: Token, fence: FencingToken) -> Arc<LeaseState> {
        let state = self.site.look(&self.memory, |ledger| {
            ledger.state(&self.memory.clock, token)
        });
        state.unwrap_or_else(|reason| LeaseState::over(token, fence, reason))
    }
}

/// Nobody holds or waits by this place any more: they would refer to it.
impl Drop for MemoryPlace {
    fn drop(&mut self) {
        self.memory.sites.leave(&self.site);
    }
}

impl fmt::Debug for MemoryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryPlace")
            .field(self.site.gate())
            .finish()
    }
}
