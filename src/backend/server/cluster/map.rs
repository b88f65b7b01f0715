//! Which node owns which slot, from what many nodes tell at different times.
//!
//! # Invariants
//!
//! 1. Of two masters that claim a slot, the one with the later epoch owns it, whoever tells it and
//!    in whatever order. So a node that was cut off for a while, and believes in what was,
//!    convinces nobody who has heard of its successor.
//! 2. What no node has told of for [`MEMORY`] is forgotten: a cluster that was set up anew begins
//!    at low epochs.
//! 3. A node that sends a request on is right about that slot until somebody tells of all.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::redirect::Address;
use super::view::{Claim, View};
use crate::key::SLOTS;
use crate::time::Instant;

/// How long a claim is remembered that nobody repeats.
const MEMORY: Duration = Duration::from_secs(30);
/// After what time nothing that was sent to a node is under way any more, so that its number can be
/// given to another: longer than any time-out.
const RETIRED: Duration = Duration::from_secs(5 * 60);

/// Its place in the list of nodes, counted from one: what is known of a slot's owner is 0 where it
/// is nobody.
pub(in crate::backend::server) type Number = u16;

#[derive(Debug)]
pub(in crate::backend::server) struct Map {
    claims: HashMap<String, (Claim, Instant)>,
    /// All that were ever told of. What is not wanted any more leaves its number to another.
    nodes: Vec<Node>,
    owners: Arc<[Number]>,
}

#[derive(Debug)]
struct Node {
    address: Address,
    /// Until when it is needed, though it may own nothing; or was.
    needed: Instant,
}

impl Map {
    pub(in crate::backend::server) fn new() -> Self {
        Self {
            claims: HashMap::new(),
            nodes: Vec::new(),
            owners: vec![0; SLOTS].into(),
        }
    }

    pub(in crate::backend::server) fn owners(&self) -> &Arc<[Number]> {
        &self.owners
    }

    pub(in crate::backend::server) fn owner(&self, slot: u16) -> Option<Number> {
        let owner = self.owners.get(usize::from(slot)).copied();
        owner.filter(|owner| *owner != 0)
    }

    /// How many numbers were given.
    pub(in crate::backend::server) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(in crate::backend::server) fn address(&self, number: Number) -> Option<&Address> {
        let index = usize::from(number).checked_sub(1)?;
        self.nodes.get(index).map(|node| &node.address)
    }

    /// The number of a node that has one.
    pub(in crate::backend::server) fn find(&self, address: &Address) -> Option<Number> {
        let index = self
            .nodes
            .iter()
            .position(|node| node.address == *address)?;
        Number::try_from(index + 1).ok()
    }

    /// Every master and replica that is known.
    pub(in crate::backend::server) fn addresses(&self) -> impl Iterator<Item = &Address> {
        let claims = self.claims.values();
        claims.flat_map(|(claim, _)| std::iter::once(&claim.address).chain(&claim.replicas))
    }

    /// For each number, whether the node is to be connected to.
    pub(in crate::backend::server) fn wanted(&self, now: Instant) -> Vec<bool> {
        let mut wanted: Vec<bool> = self.nodes.iter().map(|node| now < node.needed).collect();
        for &owner in &*self.owners {
            if let Some(wanted) = usize::from(owner)
                .checked_sub(1)
                .and_then(|index| wanted.get_mut(index))
            {
                *wanted = true;
            }
        }
        wanted
    }

    /// Takes in what a node told. Returns whether a slot has another owner now.
    pub(in crate::backend::server) fn told(&mut self, now: Instant, view: View) -> bool {
        for claim in view.claims {
            let known = self.claims.get(&claim.id);
            if known.is_none_or(|(known, _)| claim.epoch >= known.epoch) {
                self.claims.insert(claim.id.clone(), (claim, now));
            }
        }
        for (id, epoch) in view.without {
            if let Some((known, heard)) = self.claims.get_mut(&id)
                && epoch >= known.epoch
            {
                known.slots.clear();
                *heard = now;
            }
        }
        self.claims
            .retain(|_, (_, heard)| now.since(*heard) < MEMORY);
        self.paint(now)
    }

    /// A request for a slot was sent on to this node.
    pub(in crate::backend::server) fn moved(
        &mut self,
        now: Instant,
        slot: u16,
        to: Address,
    ) -> bool {
        let number = self.number(now, to);
        let owner = self.owners.get(usize::from(slot)).copied();
        if owner.is_none() || owner == Some(number) {
            return false;
        }
        let mut owners = self.owners.to_vec();
        owners[usize::from(slot)] = number;
        self.owners = owners.into();
        true
    }

    /// A node that owns nothing is needed for a while.
    pub(in crate::backend::server) fn want(
        &mut self,
        now: Instant,
        address: Address,
        until: Instant,
    ) -> Number {
        let number = self.number(now, address);
        let node = &mut self.nodes[usize::from(number) - 1];
        node.needed = node.needed.max(until);
        number
    }

    /// In the order of their epochs, so that the later ones cover the earlier.
    fn paint(&mut self, now: Instant) -> bool {
        let mut claims: Vec<_> = self.claims.values().cloned().collect();
        claims.sort_by(|(one, first), (other, second)| {
            (one.epoch, first, &one.id).cmp(&(other.epoch, second, &other.id))
        });
        for (index, wanted) in self.wanted(now).into_iter().enumerate() {
            if wanted {
                let needed = &mut self.nodes[index].needed;
                *needed = (*needed).max(now);
            }
        }
        let mut owners = vec![0; SLOTS];
        for (claim, _) in claims {
            if claim.slots.is_empty() {
                continue;
            }
            let number = self.number(now, claim.address);
            for range in claim.slots {
                owners[usize::from(*range.start())..=usize::from(*range.end())].fill(number);
            }
        }
        let changed = *self.owners != *owners;
        if changed {
            self.owners = owners.into();
        }
        changed
    }

    /// The number of a node: the one that it has, that of one which has not been needed for long,
    /// or a new one.
    fn number(&mut self, now: Instant, address: Address) -> Number {
        let known = self.nodes.iter().position(|node| node.address == address);
        let index = known.unwrap_or_else(|| {
            let node = Node {
                address,
                needed: now,
            };
            let free = |index: usize| {
                let number = Number::try_from(index + 1).unwrap_or(Number::MAX);
                now.since(self.nodes[index].needed) > RETIRED && !self.owners.contains(&number)
            };
            match (0..self.nodes.len()).find(|&index| free(index)) {
                Some(index) => {
                    self.nodes[index] = node;
                    index
                }
                None => {
                    self.nodes.push(node);
                    self.nodes.len() - 1
                }
            }
        });
        Number::try_from(index + 1).unwrap_or(Number::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn node(port: u16) -> Address {
        Address::new("h", port)
    }

    /// A master named by its port, which is also that of its address.
    fn claim(port: u16, epoch: u64, slots: &[std::ops::RangeInclusive<u16>]) -> Claim {
        Claim {
            id: port.to_string(),
            address: node(port),
            epoch,
            slots: slots.to_vec(),
            replicas: Vec::new(),
        }
    }

    fn view(claims: &[Claim]) -> View {
        View {
            claims: claims.to_vec(),
            without: Vec::new(),
        }
    }

    /// The port of a slot's owner.
    fn owner(map: &Map, slot: u16) -> Option<u16> {
        let address = map.address(map.owner(slot)?)?;
        Some(address.port)
    }

    #[test]
    fn whose_epoch_is_later_owns_a_slot_whoever_tells_first() {
        let (old, new) = (claim(1, 1, &[0..=16_383]), claim(2, 8, &[0..=5_460]));
        for views in [[&old, &new], [&new, &old]] {
            let mut map = Map::new();
            for told in views {
                map.told(at(0), view(std::slice::from_ref(told)));
            }
            assert_eq!(owner(&map, 0), Some(2));
            assert_eq!(owner(&map, 5_461), Some(1));
        }
    }

    #[test]
    fn one_that_wakes_and_believes_in_what_was_convinces_nobody() {
        let mut map = Map::new();
        map.told(at(0), view(&[claim(1, 1, &[0..=16_383])]));
        let failed_over = View {
            claims: vec![claim(2, 4, &[0..=16_383])],
            without: vec![("1".to_owned(), 1)],
        };
        assert!(map.told(at(1), failed_over));
        assert!(!map.told(at(2), view(&[claim(1, 1, &[0..=16_383])])));
        assert_eq!(owner(&map, 7), Some(2));
    }

    #[test]
    fn what_nobody_repeats_is_forgotten() {
        let mut map = Map::new();
        map.told(at(0), view(&[claim(1, 99, &[0..=16_383])]));
        map.told(at(1), view(&[claim(2, 1, &[0..=16_383])]));
        assert_eq!(owner(&map, 0), Some(1));
        map.told(at(60), view(&[claim(2, 1, &[0..=16_383])]));
        assert_eq!(owner(&map, 0), Some(2));
    }

    #[test]
    fn a_request_that_is_sent_on_tells_of_its_slot_alone() {
        let mut map = Map::new();
        map.told(at(0), view(&[claim(1, 1, &[0..=16_383])]));
        assert!(map.moved(at(0), 7, node(2)));
        assert!(!map.moved(at(0), 7, node(2)));
        assert_eq!([owner(&map, 6), owner(&map, 7)], [Some(1), Some(2)]);
        assert_eq!(map.wanted(at(1)), [true, true]);
    }

    #[test]
    fn a_node_that_owns_nothing_is_wanted_as_long_as_was_asked() {
        let mut map = Map::new();
        map.told(at(0), view(&[claim(1, 1, &[0..=16_383])]));
        let number = map.want(at(0), node(2), at(60));
        assert_eq!(map.owner(0), Some(1));
        assert!(map.wanted(at(59))[usize::from(number) - 1]);
        assert!(!map.wanted(at(60))[usize::from(number) - 1]);
    }

    #[test]
    fn nodes_that_come_and_go_leave_their_numbers_to_others_after_a_while() {
        let mut map = Map::new();
        for hour in 0..1_000 {
            let port = 1_000 + hour as u16;
            let all = [claim(port, hour + 1, &[0..=16_383])];
            map.told(at(hour * 3_600), view(&all));
            assert_eq!(owner(&map, 0), Some(port));
        }
        assert!(map.len() <= 2, "{}", map.len());
    }

    #[test]
    fn slots_that_nobody_claims_have_no_owner() {
        let mut map = Map::new();
        assert_eq!(map.owner(0), None);
        map.told(at(0), view(&[claim(1, 1, &[5..=9])]));
        assert_eq!([owner(&map, 4), owner(&map, 9)], [None, Some(1)]);
    }
}
