//! What the driver does in a cluster: asks who owns what, and lets links and subscriptions follow.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, make_extension_error};

use super::Ear;
use super::asking::{ask, no_address};
use super::map::Number;
use super::redirect::{Address, Kind, Redirect};
use super::view::View;
use crate::backend::server::call::Call;
use crate::backend::server::core::{Channel, NOWHERE, Topic};
use crate::backend::server::driver::{Driver, Event, Way};
use crate::backend::server::inbox::Inbox;
use crate::backend::server::links::Link;
use crate::backend::server::reply::Failure;
use crate::backend::server::reply::failure::Trouble;
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
        let connected: Vec<(Address, MultiplexedConnection)> =
            cluster.nodes().filter_map(connected).collect();
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
    fn remap(&mut self, now: Instant) {
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
    fn learn(&mut self, now: Instant, by: usize, redirect: &Redirect) {
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

    /// Listens to something, or no longer.
    pub(in crate::backend::server) fn change_topic(&mut self, change: Channel) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        match change {
            Channel::Join(topic) => {
                let place = cluster.place_of(&topic);
                cluster.topics.insert(topic.clone(), place);
                if let Some(place) = place {
                    self.tell_ear(place, Channel::Join(topic));
                }
            }
            Channel::Leave(topic) => {
                if let Some(Some(place)) = cluster.topics.remove(&topic)
                    && let Some(ear) = cluster.ears.get(&place)
                {
                    let _ = ear.changes.send(Channel::Leave(topic));
                }
            }
        }
    }

    /// Listens to each topic where it is told of.
    fn move_topics(&mut self, now: Instant) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        let moves = |(topic, at): (&Topic, &Option<Number>)| {
            let to = cluster.place_of(topic)?;
            (*at != Some(to)).then(|| (topic.clone(), *at, to))
        };
        let moves: Vec<_> = cluster.topics.iter().filter_map(moves).collect();
        for (topic, from, to) in moves {
            if let Some(cluster) = &mut self.cluster {
                cluster.topics.insert(topic.clone(), Some(to));
                if let Some(ear) = from.and_then(|from| cluster.ears.get(&from)) {
                    let _ = ear.changes.send(Channel::Leave(topic.clone()));
                }
            }
            if let Topic::Grants(tag) = topic {
                self.core.ear_changed(now, tag, false);
            }
            self.tell_ear(to, Channel::Join(topic));
        }
    }

    /// Tells the subscription at a node, which is made if there is none.
    fn tell_ear(&mut self, node: Number, change: Channel) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        if !cluster.ears.contains_key(&node) {
            let Some(origin) = cluster
                .map
                .address(node)
                .and_then(|at| cluster.origin_at(at))
            else {
                return;
            };
            cluster.last_ear += 1;
            let id = cluster.last_ear;
            let changes = self.start_listener(id, origin);
            if let Some(cluster) = &mut self.cluster {
                cluster.ears.insert(node, Ear { id, changes });
            }
        }
        let ear = self
            .cluster
            .as_ref()
            .and_then(|cluster| cluster.ears.get(&node));
        if let Some(ear) = ear {
            let _ = ear.changes.send(change);
        }
    }

    /// What becomes of a subscription at a node.
    pub(in crate::backend::server) fn ear_event(&mut self, now: Instant, id: u64, inbox: Inbox) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let Some(node) = cluster
            .ears
            .iter()
            .find_map(|(node, ear)| (ear.id == id).then_some(*node))
        else {
            // It has been given up.
            return;
        };
        match inbox {
            Inbox::Up => self.warned_inbox = false,
            Inbox::Down => {
                let here = |(topic, at): (&Topic, &Option<Number>)| match topic {
                    Topic::Grants(tag) if *at == Some(node) => Some(*tag),
                    Topic::Grants(_) | Topic::Released(_) => None,
                };
                let here: Vec<_> = cluster.topics.iter().filter_map(here).collect();
                for tag in here {
                    self.core.ear_changed(now, tag, false);
                }
                self.look_soon(now);
            }
            Inbox::Heard { tag, listening } => {
                if cluster.topics.get(&Topic::Grants(tag)) == Some(&Some(node)) {
                    self.core.ear_changed(now, tag, listening);
                    if !listening {
                        self.look_soon(now);
                    }
                }
            }
            Inbox::Moved(redirect) => {
                let by = cluster.links_of(node).start;
                self.learn(now, by, &redirect);
                self.remap(now);
                self.look_soon(now);
            }
            Inbox::Failing(_) | Inbox::Forbidden(_) | Inbox::Message { .. } => {}
        }
    }
}
