//! What the driver does in a cluster: asks who owns what, and lets links follow.

use std::time::Duration;

use redis::{RedisError, make_extension_error};

use super::Ear;
use super::asking::{ask, no_address};
use super::map::Number;
use super::redirect::{Address, Kind, Redirect};
use super::view::View;
use crate::backend::server::call::Call;
use crate::backend::server::core::NOWHERE;
use crate::backend::server::driver::{Driver, Event, Way};
use crate::backend::server::links::Link;
use crate::backend::server::reply::Failure;
use crate::backend::server::reply::failure::Trouble;
use crate::backend::server::wire::Wire;
use crate::error::BackendErrorKind;
use crate::time::Instant;

/// How often a request is sent on: while nodes disagree each may name the other.
const HOPS: u8 = 4;
/// How long a node that takes a slot over stays connected after the last request that was sent on
/// to it.
const IMPORTS: Duration = Duration::from_secs(60);
/// So many looks are answered by nobody before the cluster counts as away.
const ROUNDS: u32 = 2;

impl Driver {
    /// Somebody needs the cluster.
    pub(in crate::backend::server) fn begin_to_look(&mut self, now: Instant) {
        if let Some(cluster) = &mut self.cluster
            && cluster.look_at == Instant::FAR
        {
            cluster.look_at = now;
        }
    }

    /// Something has changed, as it seems.
    pub(in crate::backend::server) fn look_soon(&mut self, now: Instant) {
        if let Some(cluster) = &mut self.cluster {
            cluster.hurries = true;
            let random = self.instance.jitter(cluster.troubled);
            cluster.hurry(now, random);
        }
    }

    /// Asks nodes for their views when that is due.
    pub(in crate::backend::server) fn steer(&mut self, now: Instant) {
        let is_troubled = self.is_troubled();
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        if cluster.look_at == Instant::FAR {
            return;
        }
        let random = self.instance.jitter(cluster.troubled);
        if is_troubled {
            cluster.hurry(now, random);
        }
        if cluster.look_at <= now {
            cluster.looks(now, is_troubled, random);
            self.look(random);
            // What was needed for a while only.
            self.tidy(now);
        }
    }

    /// Whether a node that is needed does not serve, or none is known.
    fn is_troubled(&self) -> bool {
        let Some(cluster) = &self.cluster else {
            return false;
        };
        let fails = |link| !matches!(self.links[link], Link::Up { .. }) || self.core.is_open(link);
        let wanted = cluster.nodes().filter(|node| cluster.is_wanted(*node));
        cluster.map.len() == 0 || wanted.flat_map(|node| cluster.links_of(node)).any(fails)
    }

    fn look(&mut self, random: u32) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let connected = |node: Number| {
            let address = cluster.map.address(node)?.clone();
            let mut links = cluster
                .links_of(node)
                .filter_map(|link| self.links.get(link));
            links.find_map(|link| match link {
                Link::Up { connection, .. } => Some((address.clone(), connection.clone())),
                Link::Idle | Link::Down { .. } | Link::Connecting { .. } => None,
            })
        };
        let connected: Vec<(Address, Wire)> = cluster.nodes().filter_map(connected).collect();
        let addresses: Vec<Address> = connected.iter().map(|(node, _)| node.clone()).collect();
        for node in cluster.candidates(&addresses, random) {
            // One that hangs is not asked again before it was given up.
            if cluster.asking.contains(&node) {
                continue;
            }
            let known = connected.iter().find(|(other, _)| *other == node);
            let connection = known.map(|(_, connection)| connection.clone());
            let origin = cluster.origin_at(&node);
            cluster.asking.insert(node.clone());
            let (settings, events) = (self.settings.clone(), self.events.clone());
            tokio::spawn(async move {
                let to = node.clone();
                // In a task of its own, as attempts to connect are.
                let asking =
                    tokio::spawn(async move { ask(&to, connection, origin, &settings).await });
                let result = asking.await.unwrap_or_else(|_| Err(no_address()));
                let _ = events.send(Event::Viewed { from: node, result });
            });
        }
    }

    /// A node has told of all, or did not.
    pub(in crate::backend::server) fn viewed(
        &mut self,
        now: Instant,
        from: &Address,
        result: Result<View, RedisError>,
    ) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        cluster.asking.remove(from);
        match result {
            Ok(view) => {
                cluster.failed = 0;
                if cluster.map.told(now, view) {
                    cluster.troubled = 0;
                    self.remap(now);
                }
                self.core.served(NOWHERE);
            }
            Err(error) => {
                let slow = error.is_timeout();
                let trouble = Trouble::of(error);
                tracing::debug!(
                    cause = &*trouble.cause,
                    "a node does not tell of its cluster"
                );
                // Another may have answered, or may yet.
                if cluster.map.len() == 0 && cluster.asking.is_empty() {
                    cluster.failed += 1;
                    let is_away = slow || cluster.failed >= ROUNDS;
                    self.core.connect_failed(trouble);
                    if is_away {
                        self.core.trip(now, NOWHERE, Failure::NotSent);
                    }
                }
            }
        }
    }

    /// Lets all follow the map.
    pub(super) fn remap(&mut self, now: Instant) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let (routes, links) = (cluster.routes(), cluster.links());
        self.links.resize_with(links, || Link::Idle);
        self.core.rerouted(now, routes, links);
        self.tidy(now);
        self.move_topics(now);
    }

    /// Connects to the nodes that are needed, and gives up the others.
    fn tidy(&mut self, now: Instant) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        cluster.wanted = cluster.map.wanted(now);
        let of = |wanted: bool| {
            let nodes = cluster
                .nodes()
                .filter(|node| cluster.is_wanted(*node) == wanted);
            let links = nodes.flat_map(|node| cluster.links_of(node));
            links
                .filter(|link| *link < self.links.len())
                .collect::<Vec<usize>>()
        };
        let (wanted, retired) = (of(true), of(false));
        let is_heard =
            |node: &Number, _: &mut Ear| cluster.wanted.get(usize::from(*node) - 1) == Some(&true);
        cluster.ears.retain(is_heard);
        for link in retired {
            self.retire(now, link);
        }
        for link in wanted {
            if matches!(self.links[link], Link::Idle) {
                self.connect(now, link, 0);
            }
        }
    }

    /// Sends requests on that a node did not serve.
    pub(in crate::backend::server) fn send_on(
        &mut self,
        now: Instant,
        by: usize,
        way: Way,
        calls: Vec<(Redirect, Call)>,
    ) {
        for (redirect, _) in &calls {
            self.learn(now, by, redirect);
        }
        self.remap(now);
        if calls
            .iter()
            .any(|(redirect, _)| redirect.kind == Kind::Moved)
        {
            self.look_soon(now);
        }
        let way = Way {
            hops: way.hops + 1,
            whole: false,
            asking: false,
        };
        // In their order, as far as they go the same way.
        let mut sorted: Vec<(usize, bool, Vec<Call>)> = Vec::new();
        for (redirect, call) in calls {
            let asking = redirect.kind == Kind::Ask;
            let link = if asking {
                self.importer(by, &redirect, &call)
            } else {
                self.core.link_of(call.tag())
            };
            let is_up = matches!(self.links.get(link), Some(Link::Up { .. }));
            if is_up && way.hops <= HOPS && (asking || link != by) {
                match sorted.last_mut() {
                    Some((to, as_asking, calls)) if (*to, *as_asking) == (link, asking) => {
                        calls.push(call);
                    }
                    _ => sorted.push((link, asking, vec![call])),
                }
            } else if is_up || asking {
                // It did not run, and there is nobody to ask yet.
                let code = if asking { "ASK" } else { "MOVED" };
                let error = make_extension_error(code.to_owned(), None);
                let failure = Failure::NotNow(BackendErrorKind::NotServing, error);
                self.core.answer(now, call, Err(failure));
            } else {
                self.core.answer(now, call, Err(Failure::NotSent));
            }
        }
        for (link, asking, calls) in sorted {
            // What takes a slot over may not know the scripts, and to ask again would cost more.
            let whole = asking && !self.settings.preloaded;
            self.send_all(
                link,
                calls,
                Way {
                    whole,
                    asking,
                    ..way
                },
            );
        }
    }

    /// Takes in what a redirection says.
    pub(super) fn learn(&mut self, now: Instant, by: usize, redirect: &Redirect) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let teller = cluster
            .node_of(by)
            .and_then(|node| cluster.map.address(node));
        let host = teller.map(|teller| teller.host.clone()).unwrap_or_default();
        let to = redirect.to.clone().told_by(&host);
        match redirect.kind {
            Kind::Moved => {
                cluster.map.moved(now, redirect.slot, to);
            }
            Kind::Ask => {
                cluster.map.want(now, to, now.after(IMPORTS));
            }
        }
    }

    /// The link to who takes a slot over.
    fn importer(&self, by: usize, redirect: &Redirect, call: &Call) -> usize {
        let Some(cluster) = &self.cluster else {
            return NOWHERE;
        };
        let teller = cluster
            .node_of(by)
            .and_then(|node| cluster.map.address(node));
        let host = teller.map(|teller| &*teller.host).unwrap_or_default();
        match cluster.map.find(&redirect.to.clone().told_by(host)) {
            Some(node) => cluster.links_of(node).start + call.tag().link(cluster.connections),
            None => NOWHERE,
        }
    }
}
