//! The master of a service, as its sentinels name it.
//!
//! Each sentinel has a task that asks and listens to it ([`scout`]). What they say makes one belief
//! ([`decide`]), which has a number, its *term*: it rises when another server is believed to be
//! the master. A connection is of the term in which it was made, and none of an earlier term is
//! trusted. So a master that was stopped, and wakes when another was promoted, is not believed in.
//!
//! # Invariants
//!
//! 1. Sentinels are asked at the addresses that were given, looked up anew at each connect, however
//!    long they were gone.
//! 2. While none answers nothing changes: connections that are up go on.
//! 3. A term's number is never used again.

mod decide;
pub(super) mod lost;
pub(super) mod pooled;
mod scout;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, RedisError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use self::decide::{Opinion, decide};
use self::lost::Lost;
use self::scout::Scout;
use super::Settings;
use super::origin::Term;
use crate::check;
use crate::error::ConfigError;
use crate::sentinel::Sentinel;
use crate::time;
use crate::token::Instance;

/// How long the others are waited for when one has answered: it may be behind.
const GRACE: Duration = Duration::from_millis(100);

/// The sentinels of a handle.
pub(crate) struct Sentinels {
    service: String,
    sentinels: Vec<ConnectionInfo>,
    /// How to connect to what they name.
    node: ConnectionInfo,
    view: watch::Sender<View>,
    /// Raised by who wants them asked anew.
    rounds: watch::Sender<u64>,
    runs: AtomicBool,
}

struct View {
    belief: Option<Opinion>,
    term: Term,
    /// One for each sentinel.
    reports: Vec<Report>,
}

/// What became of the last question to a sentinel.
struct Report {
    /// In which round it was asked.
    round: u64,
    answer: Option<Result<Opinion, Lost>>,
    /// Whether it lets us hear of failovers.
    hears: bool,
}

impl Sentinels {
    pub(crate) fn new(given: Sentinel) -> Result<Arc<Self>, ConfigError> {
        let (given, node) = given.checked()?;
        Ok(Self::made(given.service, given.sentinels, node))
    }

    fn made(service: String, sentinels: Vec<ConnectionInfo>, node: ConnectionInfo) -> Arc<Self> {
        let reports = sentinels.iter().map(|_| Report {
            round: 0,
            answer: None,
            hears: true,
        });
        let view = View {
            belief: None,
            term: 0,
            reports: reports.collect(),
        };
        Arc::new(Self {
            service,
            sentinels,
            node,
            view: watch::Sender::new(view),
            rounds: watch::Sender::new(0),
            runs: AtomicBool::new(false),
        })
    }

    /// The same, not yet asked, with what `secured` makes of each address.
    pub(super) fn secured(
        &self,
        secured: impl Fn(ConnectionInfo) -> Result<ConnectionInfo, ConfigError>,
    ) -> Result<Arc<Self>, ConfigError> {
        let sentinels = self.sentinels.iter().cloned().map(&secured);
        let sentinels = sentinels.collect::<Result<_, _>>()?;
        let node = secured(self.node.clone())?;
        Ok(Self::made(self.service.clone(), sentinels, node))
    }

    #[cfg(feature = "tls")]
    pub(super) fn named(&self) -> Vec<&ConnectionInfo> {
        self.sentinels.iter().chain([&self.node]).collect()
    }

    fn service(&self) -> &str {
        &self.service
    }

    /// Has them asked from now on, by tasks of the runtime that this is called in.
    fn start(self: &Arc<Self>, settings: &Settings) {
        if self.runs.swap(true, Ordering::Relaxed) {
            return;
        }
        // Without random numbers a fleet's pauses are alike, no more.
        let instance = Instance::draw().ok();
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            let number = u32::try_from(index).unwrap_or_default();
            let scout = Scout {
                sentinels: Arc::clone(self),
                index,
                sentinel: sentinel.clone(),
                settings: settings.clone(),
                rounds: self.rounds.subscribe(),
                round: 0,
                random: instance.map_or(0, |instance| instance.jitter(number)),
            };
            tokio::spawn(scout.run());
        }
    }

    fn says(&self, index: usize, round: u64, opinion: Opinion, hears: bool) {
        self.reported(index, round, Ok(opinion), hears);
    }

    fn fails(&self, index: usize, round: u64, lost: Lost) {
        self.reported(index, round, Err(lost), true);
    }

    fn reported(&self, index: usize, round: u64, answer: Result<Opinion, Lost>, hears: bool) {
        self.view.send_modify(|view| {
            view.reports[index] = Report {
                round,
                answer: Some(answer),
                hears,
            };
            view.decide();
        });
    }

    pub(super) fn term(&self) -> Term {
        self.view.borrow().term
    }

    /// Since when the master of `term` has surely been named, by whoever names it; `None` if that is
    /// not known.
    pub(super) fn named_since(&self, term: Term) -> Option<time::Instant> {
        let view = self.view.borrow();
        let belief = view.belief.as_ref().filter(|_| view.term == term)?;
        let said = view.reports.iter();
        let said = said.filter_map(|report| report.answer.as_ref()?.as_ref().ok());
        let same = |other: &&Opinion| other.names_the_same(belief) && other.epoch == belief.epoch;
        // Each of them is right. One that was started anew knows less, which does no harm.
        said.filter(same).filter_map(|opinion| opinion.since).max()
    }

    /// Returns when another master is believed in than that of `term`.
    pub(super) async fn left(&self, term: Term) {
        let mut view = self.view.subscribe();
        // It can't end: the sender is ours.
        let _ = view.wait_for(|view| view.term != term).await;
    }

    /// Asks all sentinels where the master is, and how to connect to it.
    ///
    /// Returns when more than half have answered, or a moment after the first has.
    pub(super) async fn master(
        self: &Arc<Self>,
        settings: &Settings,
    ) -> Result<(ConnectionInfo, Term), RedisError> {
        let mut view = self.view.subscribe();
        let round = self.ask(settings);
        // They have that long themselves, and know more of why they have failed.
        let mut patience = Instant::now() + settings.connect_timeout + GRACE;
        let mut is_answered = false;
        loop {
            {
                let view = view.borrow_and_update();
                let (says, fails) = view.since(round);
                let known = view.reports.len();
                if let Some(belief) = &view.belief
                    && (2 * says > known || (says > 0 && says + fails == known))
                {
                    return Ok((self.connect_to(belief), view.term));
                }
                if fails == known {
                    return Err(view.lost(round).into());
                }
                if says > 0 && !std::mem::replace(&mut is_answered, true) {
                    patience = patience.min(Instant::now() + GRACE);
                }
            }
            tokio::select! {
                _ = view.changed() => {}
                () = sleep_until(patience) => {
                    let view = view.borrow();
                    return match &view.belief {
                        Some(belief) if is_answered => Ok((self.connect_to(belief), view.term)),
                        _ => Err(view.lost(round).into()),
                    };
                }
            }
        }
    }

    fn ask(self: &Arc<Self>, settings: &Settings) -> u64 {
        let mut round = 0;
        self.rounds.send_modify(|latest| {
            *latest += 1;
            round = *latest;
        });
        self.start(settings);
        round
    }

    fn connect_to(&self, master: &Opinion) -> ConnectionInfo {
        let (host, port) = (master.host.clone(), master.port);
        let addr = match self.node.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.node.clone().set_addr(addr)
    }

    /// What a look tells of them: all that answer in time.
    pub(super) async fn survey(self: &Arc<Self>, settings: &Settings) -> check::Sentinels {
        let mut view = self.view.subscribe();
        let round = self.ask(settings);
        let all = view.wait_for(|view| {
            let (says, fails) = view.since(round);
            says + fails == view.reports.len()
        });
        let _ = timeout(settings.command_timeout, all).await;
        let view = self.view.borrow();
        let answers =
            |report: &&Report| report.round >= round && matches!(report.answer, Some(Ok(_)));
        let answering = view.reports.iter().filter(answers);
        check::Sentinels {
            service: self.service.clone(),
            known: view.reports.len(),
            answering: answering.clone().count(),
            telling: answering.filter(|report| report.hears).count(),
        }
    }
}

impl View {
    fn decide(&mut self) {
        let said = self.reports.iter();
        let said = said.filter_map(|report| report.answer.as_ref()?.as_ref().ok());
        let said: Vec<&Opinion> = said.collect();
        let Some(belief) = decide(self.belief.as_ref(), &said, self.reports.len()) else {
            return;
        };
        let before = self.belief.as_ref();
        if !before.is_some_and(|before| before.names_the_same(&belief)) {
            self.term += 1;
        }
        self.belief = Some(belief);
    }

    /// How many have answered since, and how many have failed.
    fn since(&self, round: u64) -> (usize, usize) {
        let mut counts = (0, 0);
        for report in &self.reports {
            match &report.answer {
                Some(answer) if report.round >= round => match answer {
                    Ok(_) => counts.0 += 1,
                    Err(_) => counts.1 += 1,
                },
                _ => {}
            }
        }
        counts
    }

    /// Why none leads to a master. Who is silent has last failed before: then of that.
    fn lost(&self, round: u64) -> Lost {
        let failed = |since: u64| {
            let recent = self
                .reports
                .iter()
                .filter(move |report| report.round >= since);
            recent.filter_map(|report| report.answer.as_ref()?.as_ref().err())
        };
        let failed = failed(round).chain(failed(0));
        let worst = failed.reduce(|one, other| {
            if other.says_more_than(one) {
                other
            } else {
                one
            }
        });
        worst.cloned().unwrap_or_else(Lost::silent)
    }
}

/// Without addresses, which may name users and hold passwords.
impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("service", &self.service)
            .field("known", &self.sentinels.len())
            .finish_non_exhaustive()
    }
}
