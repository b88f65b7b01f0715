//! What is known of each server, and whether it can be asked.
//!
//! A server is asked while it is connected, has not been silent for too long, and may vote: a silent
//! one costs every acquisition a request that is to be cleaned up later, so it is only probed.

use std::borrow::Cow;
use std::time::Duration;

use super::Core;
use crate::backend::quorum::line::Arrival;
use crate::backend::server::clock::ServerClock;
use crate::backend::server::reply::Failure;
use crate::backend::server::reply::failure::Trouble;
use crate::error::BackendErrorKind;
use crate::time::Instant;

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
    /// When it was connected, and how long it surely had its data by then; `None` if a restart loses
    /// none.
    age: Option<(Instant, Duration)>,
    /// The requests under way, and since when nothing was heard of them.
    in_flight: usize,
    unheard: Option<Instant>,
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
        let replaced =
            arrival.run_id.is_some() && known.run_id.is_some() && known.run_id != arrival.run_id;
        // One that took another's place may have lost what that one had, however long it has run.
        let age = if replaced {
            Duration::ZERO
        } else {
            arrival.uptime
        };
        known.age = (!arrival.durable).then_some((now, age));
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
    use super::super::Options;
    use super::*;
    use crate::backend::server::Settings;

    const RIGHT: u64 = 1_700_000_000_000_000;

    fn arrival(us: u64) -> Arrival {
        Arrival {
            us,
            run_id: None,
            uptime: Duration::from_secs(3600),
            durable: false,
            evicts: None,
        }
    }

    #[test]
    fn a_clock_that_is_wrong_dates_nothing_though_it_is_the_first_to_answer() {
        let options = Options {
            server_timeout: None,
            silence: Duration::from_millis(200),
            quarantine: false,
        };
        for wrong in [RIGHT - 3_600_000_000, RIGHT + 3_600_000_000] {
            let mut core = Core::new(5, Settings::default(), options.clone());
            let now = Instant::from_nanos(1_000_000_000);
            let clocks = [wrong, RIGHT, RIGHT, RIGHT, RIGHT];
            for (server, us) in clocks.into_iter().enumerate() {
                core.linked(now, server, arrival(us));
                let expected = (server >= 2).then_some(RIGHT);
                assert_eq!(core.estimate(now), expected, "{server}");
            }
        }
    }
}
