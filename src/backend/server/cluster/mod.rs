//! Many servers that share the slots: which node owns which, and what is kept for each.
//!
//! Every node's connections are links of the driver, so what is true of one server's (a breaker, a
//! generation, requests whose outcome is unknown and never sent again blindly) is true of each
//! node's. This decides which there are. The core knows only which link carries a tag's calls.
//!
//! The client's own support for clusters is not used: it sends again what it got no answer to.

pub(super) mod asking;
mod ears;
pub(super) mod map;
#[cfg(feature = "cluster")]
pub(super) mod pooled;
pub(super) mod redirect;
pub(super) mod seeds;
mod steering;
pub(super) mod view;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use self::map::{Map, Number};
use self::redirect::Address;
use self::seeds::Seeds;
use super::Settings;
use super::backoff::Backoff;
use super::core::{Channel, Routes, Topic};
use super::origin::Origin;
use crate::key::Tag;
use crate::time::Instant;

/// How often nodes are asked who owns what although nothing tells of a change: a master that hangs
/// is found though nobody needs it right now.
const REGULAR: Duration = Duration::from_secs(10);
/// How often while something is wrong, or seems to have changed: a failover is to be known well
/// before it matters. Ever more rarely, since a fleet may ask the same nodes.
const TROUBLED: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(500));
/// How many nodes are asked at a time: more than one, since one may be wrong.
const ASKED: usize = 5;
/// How many are tried where none is connected.
const TRIED: usize = 16;

pub(super) struct Cluster {
    seeds: Seeds,
    map: Map,
    /// Of each node.
    connections: usize,
    /// Whether each node is to be connected to.
    wanted: Vec<bool>,
    /// When nodes are asked next; never before the first use.
    look_at: Instant,
    looked: Instant,
    /// How many looks in a row were for something wrong, or a change that was not found.
    troubled: u32,
    /// Whether an answer made the next look so early.
    hurries: bool,
    /// Who is being asked.
    asking: HashSet<Address>,
    /// How many looks in a row were answered by nobody.
    failed: u32,
    /// What is listened to, and at which node.
    topics: HashMap<Topic, Option<Number>>,
    ears: HashMap<Number, Ear>,
    last_ear: u64,
}

/// A subscription at one node.
struct Ear {
    id: u64,
    changes: UnboundedSender<Channel>,
}

impl Cluster {
    pub(super) fn new(seeds: Seeds, settings: &Settings) -> Self {
        Self {
            seeds,
            map: Map::new(),
            connections: settings.connections,
            wanted: Vec::new(),
            look_at: Instant::FAR,
            looked: Instant::from_nanos(0),
            troubled: 0,
            hurries: false,
            asking: HashSet::new(),
            failed: 0,
            topics: HashMap::new(),
            ears: HashMap::new(),
            last_ear: 0,
        }
    }

    pub(super) const fn next_look(&self) -> Instant {
        self.look_at
    }

    fn routes(&self) -> Routes {
        Routes::to_owners(self.connections, Arc::clone(self.map.owners()))
    }

    /// How many links there are for all nodes that have a number, and that to nowhere.
    fn links(&self) -> usize {
        1 + self.map.len() * self.connections
    }

    /// The node at the other end of a link.
    fn node_of(&self, link: usize) -> Option<Number> {
        let index = link.checked_sub(1)? / self.connections;
        Number::try_from(index + 1).ok()
    }

    fn links_of(&self, node: Number) -> std::ops::Range<usize> {
        let first = 1 + (usize::from(node) - 1) * self.connections;
        first..first + self.connections
    }

    fn nodes(&self) -> impl Iterator<Item = Number> + use<> {
        1..=Number::try_from(self.map.len()).unwrap_or(Number::MAX)
    }

    fn is_wanted(&self, node: Number) -> bool {
        let wanted = self.wanted.get(usize::from(node) - 1);
        wanted.copied().unwrap_or(false)
    }

    pub(super) fn origin_of(&self, link: usize) -> Option<Arc<Origin>> {
        let node = self.map.address(self.node_of(link)?)?;
        self.seeds.origin_for_commands(node).map(Arc::new)
    }

    fn origin_at(&self, node: &Address) -> Option<Arc<Origin>> {
        self.seeds.origin(node).map(Arc::new)
    }

    /// A tag that the node at the other end of a link owns.
    pub(super) fn tag_at(&self, link: usize) -> Option<Tag> {
        let node = self.node_of(link)?;
        let slot = self.map.owners().iter().position(|owner| *owner == node)?;
        u16::try_from(slot).ok().map(Tag::of_slot)
    }

    /// The node at which a topic is heard of.
    fn place_of(&self, topic: &Topic) -> Option<Number> {
        self.map.owner(match topic {
            Topic::Grants(tag) => tag.slot(),
            // Anywhere: what is published on it reaches all nodes.
            Topic::Released(channel) => Tag::of_key(channel).slot(),
        })
    }

    /// Which nodes to ask, of those that are connected and those that are known.
    fn candidates(&self, connected: &[Address], random: u32) -> Vec<Address> {
        if connected.is_empty() {
            let mut all: Vec<Address> = self.seeds.addresses().collect();
            for address in self.map.addresses() {
                if !all.contains(address) {
                    all.push(address.clone());
                }
            }
            all.truncate(TRIED);
            return all;
        }
        let start = random as usize % connected.len();
        let round = connected.iter().cycle().skip(start);
        round.take(connected.len().min(ASKED)).cloned().collect()
    }

    /// The next look is to be soon.
    fn hurry(&mut self, now: Instant, random: u32) {
        let soon = self.looked.after(TROUBLED.pause(self.troubled, random));
        self.look_at = self.look_at.min(soon.max(now));
    }

    /// A look begins.
    fn looks(&mut self, now: Instant, is_troubled: bool, random: u32) {
        self.looked = now;
        let hurries = std::mem::take(&mut self.hurries);
        self.troubled = if is_troubled || hurries {
            self.troubled + 1
        } else {
            0
        };
        // With half of it at random, as all pauses.
        self.look_at = now.after(REGULAR / 2 + REGULAR / 2 * random / 256);
    }
}

#[cfg(test)]
mod tests {
    use super::view::{Claim, View};
    use super::*;

    /// Two masters, which own half of the slots each, of those that were named as a and b.
    fn cluster() -> Cluster {
        let seeds = Seeds::parse("redis+cluster://a:1,b:2").expect("an address");
        let settings = Settings {
            connections: 2,
            ..Settings::default()
        };
        let mut cluster = Cluster::new(seeds, &settings);
        let claim = |host: &str, port, slots| Claim {
            id: host.to_owned(),
            address: Address::new(host, port),
            epoch: 1,
            slots: vec![slots],
            replicas: vec![Address::new(host, port + 10)],
        };
        let view = View {
            claims: vec![claim("a", 1, 0..=8_191), claim("b", 2, 8_192..=16_383)],
            without: Vec::new(),
        };
        cluster.map.told(Instant::now(), view);
        cluster
    }

    #[test]
    fn each_slot_is_carried_by_a_link_to_its_owner() {
        let cluster = cluster();
        let routes = cluster.routes();
        let mut used = HashSet::new();
        for slot in 0..16_384 {
            let link = routes.link(Tag::of_slot(slot));
            assert_eq!(cluster.node_of(link), cluster.map.owner(slot));
            let node = cluster.map.owner(slot).expect("it has an owner");
            assert!(cluster.links_of(node).contains(&link));
            used.insert(link);
        }
        assert_eq!(used.len() + 1, cluster.links());
    }

    #[test]
    fn a_key_to_try_a_node_with_is_in_a_slot_that_it_has() {
        let cluster = cluster();
        for node in cluster.nodes() {
            for link in cluster.links_of(node) {
                let tag = cluster.tag_at(link).expect("it owns slots");
                assert_eq!(cluster.map.owner(tag.slot()), Some(node));
            }
        }
        assert_eq!(cluster.tag_at(0), None);
    }

    #[test]
    fn who_is_connected_is_asked_and_else_all_who_are_known() {
        let cluster = cluster();
        let known: HashSet<u16> = [1, 2, 11, 12].into();
        let asked = cluster.candidates(&[], 0);
        assert_eq!(asked.len(), known.len());
        assert_eq!(
            asked.iter().map(|node| node.port).collect::<HashSet<_>>(),
            known
        );
        let many: Vec<Address> = (0..20).map(|port| Address::new("c", port)).collect();
        for random in 0..256 {
            let asked: HashSet<Address> = cluster.candidates(&many, random).into_iter().collect();
            assert_eq!(asked.len(), ASKED);
        }
    }

    #[test]
    fn looks_that_find_nothing_become_rarer_and_are_made_now_and_then_anyway() {
        let mut cluster = cluster();
        let start = Instant::now();
        let mut now = start;
        for _ in 0..100 {
            cluster.hurries = true;
            cluster.hurry(now, 255);
            now = now.max(cluster.look_at);
            cluster.looks(now, false, 255);
        }
        let took = now.since(start);
        assert!(
            (40..=51).contains(&took.as_secs()),
            "{took:?} for 100 looks"
        );
        assert!(cluster.next_look() <= now.after(REGULAR));
    }
}
