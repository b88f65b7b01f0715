//! Gates on a majority of servers, each of which fails on its own, and each behind a network of its
//! own and of each process'.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use portcullis::Portcullis;

use crate::home::{BEAT, CLAIM, Home, PREFIX, Remote, leftovers_on};
use crate::support::{FakeClock, Mode, Proxy, Server, wait_for};
use crate::world::World;

/// How many servers there are, of which a lock tolerates two to fail.
pub(crate) const SERVERS: usize = 5;

/// How long each has for its vote.
const VOTE: Duration = Duration::from_millis(150);

/// How many seconds a clock is set ahead or back at most: longer than any lease.
pub(crate) const STEP: u64 = 8;

/// How long any command has, before there are faults.
const COMMAND: Duration = Duration::from_secs(1);

/// How long servers that have just started may take until they vote.
const READY: Duration = Duration::from_secs(30);

/// One server and all that can befall it.
#[derive(Debug)]
pub(crate) struct Voter {
    pub(crate) server: Server,
    /// In front of it, behind those of all processes.
    pub(crate) network: Proxy,
    pub(crate) clock: Option<FakeClock>,
}

#[derive(Debug)]
pub(crate) struct Quorum {
    pub(crate) voters: Vec<Voter>,
    /// Whether one that was restarted has no vote until it can have lost nothing.
    quarantine: bool,
    /// Which of them somebody breaks.
    broken: Mutex<[bool; SERVERS]>,
}

impl Quorum {
    /// One of which the clock can be set, if there is to be one.
    pub(crate) fn start(with_clock: Option<usize>) -> Self {
        let voters = (0..SERVERS).map(|server| {
            let clock = (with_clock == Some(server)).then(FakeClock::start);
            let server = clock.as_ref().map_or_else(Server::start, Server::start_by);
            Voter {
                network: Proxy::start(server.port()),
                server,
                clock,
            }
        });
        Self {
            voters: voters.collect(),
            quarantine: true,
            broken: Mutex::default(),
        }
    }

    /// All vote at once, though they have just started: none is to be restarted.
    pub(crate) fn without_quarantine(self) -> Self {
        Self {
            quarantine: false,
            ..self
        }
    }

    /// Waits until enough of them vote on leases of this length.
    pub(crate) async fn until_they_vote(&self, ttl: Duration) {
        let (gates, _links) = self.connect(COMMAND);
        let look = gates.mutex("look").ttl(ttl).expect("in range");
        wait_for("they vote", READY, async || look.lock().await.is_ok()).await;
    }

    /// Whether this server is now the caller's to break, and nobody else's.
    pub(crate) fn breaks(&self, server: usize) -> bool {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut broken[server], true)
    }

    pub(crate) fn is_whole(&self, server: usize) {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken[server] = false;
    }
}

impl Remote for Quorum {
    const NEEDED: usize = SERVERS / 2 + 1;

    fn links(proxies: &Vec<Proxy>) -> &[Proxy] {
        proxies
    }
}

impl Home for Quorum {
    type Proxy = Vec<Proxy>;

    const EXACT: bool = false;

    /// Each server has its own queue; where votes are split, who came first may give way.
    const ORDERED: bool = false;

    /// As on one server, and until one that was restarted votes again, or a lease ends on one whose
    /// clock was set back.
    const RECOVERY: Duration = CLAIM
        .saturating_add(BEAT)
        .saturating_add(Duration::from_secs(8 + STEP));

    fn connect(&self, timeout: Duration) -> (Portcullis, Vec<Proxy>) {
        let networks = self.voters.iter().map(|voter| &voter.network);
        let links: Vec<Proxy> = networks
            .map(|network| Proxy::start(network.port()))
            .collect();
        let gates = Portcullis::builder()
            .quorum(links.iter().map(Proxy::url))
            .prefix(PREFIX)
            .command_timeout(timeout)
            .server_timeout(VOTE)
            .quarantine(self.quarantine)
            .build();
        (gates.expect("the settings are right"), links)
    }

    async fn heal(world: &World<Self>) {
        for process in world.processes() {
            for link in &process.proxy {
                link.set(Mode::Pass);
            }
        }
    }

    async fn answers(&self, within: Duration) -> bool {
        let asked = self.voters.iter().map(|voter| voter.server.answers(within));
        let answered = futures_util::future::join_all(asked).await;
        2 * answered.into_iter().filter(|answered| *answered).count() > SERVERS
    }

    fn kept_longer(&self) -> Duration {
        let clocks = self.voters.iter().any(|voter| voter.clock.is_some());
        Duration::from_secs(if clocks { STEP } else { 0 })
    }

    async fn dump(&self) -> String {
        let mut text = String::new();
        for (number, voter) in self.voters.iter().enumerate() {
            let _ = writeln!(text, "server {}: {}", number + 1, voter.server.dump().await);
        }
        text
    }

    async fn leftovers(&self, name: &str) -> Result<(), String> {
        for (number, voter) in self.voters.iter().enumerate() {
            let left = leftovers_on(&voter.server, name, self.kept_longer()).await;
            left.map_err(|left| format!("on server {}: {left}", number + 1))?;
        }
        Ok(())
    }
}
