//! What is known of each server, and whether it can be asked.
//!
//! A server is asked while it is connected, has not been silent for too long, and may vote: a silent
//! one costs every acquisition a request that is to be cleaned up later, so it is only probed.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use super::Core;
use crate::backend::quorum::arrival::{Arrival, SPREAD};
use crate::backend::quorum::call::Who;
use crate::backend::server::Term;
use crate::backend::server::clock::ServerClock;
use crate::backend::server::recent::Recent;
use crate::backend::server::reply::Failure;
use crate::backend::server::reply::failure::Trouble;
use crate::error::BackendErrorKind;
use crate::time::Instant;
use crate::token::Token;

#[derive(Debug, Default)]
pub(super) struct Server {
    /// Whether it is connected.
    pub(super) up: bool,
    /// Whether it was tried.
    pub(super) tried: bool,
    /// Since when it can't be asked, having been tried.
    pub(super) away_since: Option<Instant>,
    /// Whether its inbox is confirmed.
    pub(super) listening: bool,
    /// Whether it ever was.
    pub(super) listened: bool,
    pub(super) clock: ServerClock,
    offset: Offset,
    pub(super) trouble: Option<Trouble>,
    /// Who it is: another after a restart or a failover.
    run_id: Option<String>,
    term: Option<Term>,
    /// Counts those that came in its place, and may have lost what was known there.
    pub(super) life: u64,
    /// When the last of them did, as far as leases are concerned.
    born: Option<Instant>,
    /// When it was connected, and how long it surely had its data by then; `None` if a restart loses
    /// none.
    age: Option<(Instant, Duration)>,
    /// What was ended there.
    pub(super) recent: Recent<Who>,
    /// The requests under way, and since when nothing was heard of them.
    pub(super) in_flight: usize,
    unheard: Option<Instant>,
    /// Who is to be asked for when there is room.
    pub(super) line: VecDeque<Token>,
    /// It was silent for too long.
    silent: bool,
    /// It is none of its own, and so has no vote.
    twin_of: Option<usize>,
}

/// By how much a server's clock is ahead of ours, at the least: an answer that lay around says too
/// little, so the greatest of the last while counts.
#[derive(Debug, Clone, Copy, Default)]
struct Offset {
    greatest: Option<i128>,
    before: Option<i128>,
    since: Option<Instant>,
}

impl Offset {
    const WINDOW: Duration = Duration::from_secs(5);

    fn observe(&mut self, us: u64, now: Instant) {
        if self
            .since
            .is_none_or(|since| now.since(since) > Self::WINDOW)
        {
            self.before = self.greatest.take();
            self.since = Some(now);
        }
        let offset = i128::from(us) - i128::from(now.as_nanos() / 1000);
        self.greatest = self.greatest.max(Some(offset));
    }

    fn us(&self, now: Instant) -> Option<u64> {
        let offset = self.greatest.max(self.before)?;
        u64::try_from(i128::from(now.as_nanos() / 1000) + offset).ok()
    }
}

impl Core {
    /// Whether the server can be asked for a lease of this length.
    pub(super) fn votes(&self, now: Instant, server: usize, ttl: Duration) -> bool {
        self.is_well(server) && self.is_old_enough(now, server, ttl)
    }

    /// Whether the server can be asked for anything.
    pub(super) fn is_well(&self, server: usize) -> bool {
        let server = &self.servers[server];
        server.up && !server.silent && server.twin_of.is_none()
    }

    /// Whether all leases have ended that the server may have lost in a restart.
    fn is_old_enough(&self, now: Instant, server: usize, ttl: Duration) -> bool {
        let age = self.servers[server].age.filter(|_| self.options.quarantine);
        age.is_none_or(|(since, age)| now.since(since) + age >= ttl)
    }

    /// When the last of the connected servers has been up for so long, if that is not yet.
    pub(super) fn old_enough_at(&self, now: Instant, ttl: Duration) -> Instant {
        let servers = self.servers.iter().enumerate();
        let young = servers.filter(|(at, server)| server.up && !self.is_old_enough(now, *at, ttl));
        let ready = young.filter_map(|(_, server)| {
            let (since, age) = server.age?;
            Some(since.after(ttl.saturating_sub(age)))
        });
        ready.min().unwrap_or(Instant::FAR)
    }

    /// The time by the middle one of the servers' clocks: a minority that is wrong moves it little.
    /// Unknown until a majority was heard of, since the first to answer could be the one that is wrong.
    pub(super) fn estimate(&self, now: Instant) -> Option<u64> {
        let clocks = self.servers.iter();
        let mut clocks: Vec<u64> = clocks.filter_map(|server| server.offset.us(now)).collect();
        clocks.sort_unstable();
        let known = clocks.len() > self.servers.len() / 2;
        known.then(|| clocks[(clocks.len() - 1) / 2])
    }

    pub(super) fn time_seen(&mut self, now: Instant, server: usize, us: u64) {
        self.servers[server].clock.observe(us, now);
        self.servers[server].offset.observe(us, now);
    }

    pub(super) fn arrived(&mut self, now: Instant, server: usize, arrival: Arrival) {
        let twin = arrival.run_id.as_ref().and_then(|id| {
            let others = self.servers.iter().enumerate();
            let mut twins = others.filter(|(at, other)| {
                *at != server && other.up && other.run_id.as_ref() == Some(id)
            });
            twins.next().map(|(at, _)| at)
        });
        if let Some(twin) = twin {
            tracing::error!(
                server = server + 1,
                same_as = twin + 1,
                "two addresses of the quorum lead to one server; it has one vote"
            );
        }
        let known = &mut self.servers[server];
        let other = arrival.run_id.is_some() && known.run_id.is_some();
        let other = other && known.run_id != arrival.run_id;
        // It ran while the one was there that we knew: no restart of that.
        let gone_for = known.away_since.map(|since| now.since(since));
        let beside = other && arrival.uptime > gone_for;
        let moved = known.term.is_some_and(|term| term != arrival.term);
        // One that took another's place may have lost what that one had, however long it has run.
        if moved {
            known.born = Some(now.after(SPREAD));
        } else if beside || other && !arrival.durable {
            known.born = Some(now);
        }
        if other || moved {
            known.life += 1;
            known.clock = ServerClock::default();
            known.offset = Offset::default();
        }
        known.term = Some(arrival.term);
        let told = arrival.age(now).map(|age| (now, age));
        let born = known.born.map(|born| {
            if born > now {
                (born, Duration::ZERO)
            } else {
                (now, now.since(born))
            }
        });
        known.age = match (told, born) {
            // It begins to count later.
            (_, Some(born)) if born.0 > now => Some(born),
            (Some(told), Some(born)) => Some(if told.1 < born.1 { told } else { born }),
            (told, born) => told.or(born),
        };
        known.run_id = arrival.run_id;
        known.twin_of = twin;
        known.up = true;
        known.tried = true;
        known.trouble = None;
        known.silent = false;
        known.unheard = None;
        known.in_flight = 0;
        known.away_since = None;
        self.time_seen(now, server, arrival.us);
    }

    pub(super) fn departed(&mut self, now: Instant, server: usize, trouble: Option<Trouble>) {
        let known = &mut self.servers[server];
        known.up = false;
        known.tried = true;
        if trouble.is_some() {
            known.trouble = trouble;
        }
        known.away_since.get_or_insert(now);
        self.clear_line(server);
    }

    pub(super) fn sent_to(&mut self, now: Instant, server: usize) {
        let known = &mut self.servers[server];
        known.in_flight += 1;
        known.unheard.get_or_insert(now);
    }

    /// A request was answered, or given up.
    pub(super) fn heard_of(&mut self, now: Instant, server: usize, sent: Instant, answered: bool) {
        let known = &mut self.servers[server];
        known.in_flight = known.in_flight.saturating_sub(1);
        if answered {
            known.unheard = (known.in_flight > 0).then_some(now);
            if now.since(sent) < self.options.silence {
                self.well_again(now, server);
            }
        }
    }

    /// It answers promptly.
    pub(in crate::backend::quorum) fn well_again(&mut self, now: Instant, server: usize) {
        let known = &mut self.servers[server];
        if known.up && std::mem::take(&mut known.silent) {
            known.away_since = None;
            self.ask_those_without(now, server);
        }
    }

    /// When the next server counts as silent.
    pub(super) fn silence_at(&self) -> Option<Instant> {
        let waiting = self
            .servers
            .iter()
            .filter(|server| server.up && !server.silent);
        let unheard = waiting.filter_map(|server| server.unheard);
        unheard.min().map(|since| since.after(self.options.silence))
    }

    pub(super) fn look_for_silence(&mut self, now: Instant) {
        let silence = self.options.silence;
        let mut changed = false;
        for server in &mut self.servers {
            let silent = |since: Instant| now.since(since) >= silence;
            if server.up && !server.silent && server.unheard.is_some_and(silent) {
                server.silent = true;
                server.away_since.get_or_insert(now);
                changed = true;
            }
        }
        if changed {
            self.bridge_all(now);
        }
    }

    /// Whether it is connected and silent, so that somebody has to try it.
    pub(in crate::backend::quorum) fn is_silent(&self, server: usize) -> bool {
        self.servers[server].up && self.servers[server].silent
    }

    /// Whether it was tried, and can't be asked.
    pub(in crate::backend::quorum) fn is_away(&self, server: usize) -> bool {
        self.servers[server].away_since.is_some()
    }

    /// Since when fewer servers than needed can be asked.
    pub(super) fn outage(&self, needed: usize) -> Option<Instant> {
        let away = self.servers.iter().filter_map(|server| server.away_since);
        let mut away: Vec<Instant> = away.collect();
        away.sort_unstable();
        away.get(self.servers.len() - needed).copied()
    }

    /// Why the server gives no vote, without one of its answers.
    pub(super) fn absence(
        &self,
        now: Instant,
        server: usize,
        ttl: Duration,
    ) -> (BackendErrorKind, Cow<'static, str>) {
        let known = &self.servers[server];
        if let Some(twin) = known.twin_of {
            let cause = format!("it is server {}, and has one vote", twin + 1);
            (BackendErrorKind::Unsupported, cause.into())
        } else if known.silent {
            Failure::Unknown(None).in_words(None)
        } else if known.up && !self.is_old_enough(now, server, ttl) {
            let cause = "started less than a TTL ago, and may have lost leases";
            (BackendErrorKind::NotServing, cause.into())
        } else if known.up {
            Failure::Unknown(None).in_words(None)
        } else {
            Failure::NotSent.in_words(known.trouble.as_ref())
        }
    }

    /// The same in a few words, of one that is away.
    pub(in crate::backend::quorum) fn cause_of_absence(
        &self,
        now: Instant,
        server: usize,
    ) -> Cow<'static, str> {
        self.absence(now, server, Duration::ZERO).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::quorum::core::Options;
    use crate::backend::server::{Reign, Settings};

    const TTL: Duration = Duration::from_secs(10);
    const HOUR: Duration = Duration::from_secs(3_600);

    fn core(servers: usize) -> Core {
        let options = Options {
            server_timeout: None,
            silence: Duration::from_millis(200),
            quarantine: true,
            room: 2,
        };
        Core::new(servers, Settings::default(), options)
    }

    /// Of a server that has run for an hour.
    fn arrival(run_id: Option<&str>) -> Arrival {
        Arrival {
            us: 0,
            run_id: run_id.map(str::to_owned),
            term: 0,
            uptime: Some(HOUR),
            reign: None,
            durable: false,
            evicts: None,
        }
    }

    /// One of three servers, that has run for an hour.
    struct Seat {
        core: Core,
        now: Instant,
    }

    impl Seat {
        fn new() -> Self {
            Self {
                core: core(3),
                now: Instant::from_nanos(0).after(10 * HOUR),
            }
        }

        fn pass(&mut self, time: Duration) {
            self.now = self.now.after(time);
        }

        /// Whether it has a vote when it is there again, and if not in what time it has one.
        fn arrives(
            &mut self,
            run_id: &str,
            change: impl FnOnce(&mut Arrival),
        ) -> Result<(), Duration> {
            self.core.departed(self.now, 0, None);
            self.pass(Duration::from_millis(1));
            let mut arrival = arrival(Some(run_id));
            change(&mut arrival);
            self.core.arrived(self.now, 0, arrival);
            let at = self.core.old_enough_at(self.now, TTL);
            if self.core.votes(self.now, 0, TTL) {
                assert_eq!(at, Instant::FAR);
                return Ok(());
            }
            assert!(!self.core.votes(at.before(Duration::from_nanos(1)), 0, TTL));
            assert!(self.core.votes(at, 0, TTL));
            Err(at.since(self.now))
        }
    }

    #[test]
    fn a_clock_that_is_wrong_dates_nothing_though_it_is_the_first_to_answer() {
        const RIGHT: u64 = 1_700_000_000_000_000;
        for wrong in [RIGHT - 3_600_000_000, RIGHT + 3_600_000_000] {
            let mut core = core(5);
            let now = Instant::from_nanos(1_000_000_000);
            let clocks = [wrong, RIGHT, RIGHT, RIGHT, RIGHT];
            for (server, us) in clocks.into_iter().enumerate() {
                let arrival = Arrival {
                    us,
                    ..arrival(None)
                };
                core.linked(now, server, arrival);
                let expected = (server >= 2).then_some(RIGHT);
                assert_eq!(core.estimate(now), expected, "{server}");
            }
        }
    }

    #[test]
    fn another_server_has_no_vote_for_a_ttl_however_often_it_is_connected_to() {
        let mut seat = Seat::new();
        assert_eq!(seat.arrives("one", |_| ()), Ok(()));
        assert_eq!(seat.arrives("one", |_| ()), Ok(()));
        assert_eq!(seat.arrives("other", |_| ()), Err(TTL));
        let passed = Duration::from_secs(4);
        seat.pass(passed);
        let left = TTL - passed - Duration::from_millis(1);
        assert_eq!(seat.arrives("other", |_| ()), Err(left));
        seat.pass(left);
        assert_eq!(seat.arrives("other", |_| ()), Ok(()));
    }

    #[test]
    fn one_that_loses_nothing_in_a_restart_votes_at_once_and_one_that_ran_beside_it_does_not() {
        let mut seat = Seat::new();
        let durable = |arrival: &mut Arrival| arrival.durable = true;
        assert_eq!(seat.arrives("one", durable), Ok(()));
        let restarted = |arrival: &mut Arrival| {
            arrival.durable = true;
            arrival.uptime = Some(Duration::ZERO);
        };
        assert_eq!(seat.arrives("again", restarted), Ok(()));
        assert_eq!(seat.arrives("other", durable), Err(TTL));
    }

    #[test]
    fn in_another_term_it_has_no_vote_until_all_have_heard_whatever_sentinels_say_of_its_reign() {
        let mut seat = Seat::new();
        let of_term = |term: Term| {
            move |arrival: &mut Arrival| {
                arrival.term = term;
                arrival.durable = true;
                let since = Instant::from_nanos(0);
                let since = Some(since);
                arrival.reign = Some(Reign { since });
            }
        };
        assert_eq!(seat.arrives("one", of_term(1)), Ok(()));
        assert_eq!(seat.arrives("other", of_term(2)), Err(TTL + SPREAD));
        let passed = Duration::from_secs(2);
        seat.pass(passed);
        let left = TTL + SPREAD - passed - Duration::from_millis(1);
        assert_eq!(seat.arrives("other", of_term(2)), Err(left));
        seat.pass(left);
        assert_eq!(seat.arrives("other", of_term(2)), Ok(()));
        // And back.
        assert_eq!(seat.arrives("one", of_term(3)), Err(TTL + SPREAD));
    }
}
