//! Which connection carries which tag's calls: always the same one, so that they run in the order
//! of their sending.

use std::sync::Arc;

use crate::key::Tag;

/// Where calls of tags go whose node is not known: a connection that never comes up.
pub(in crate::backend::server) const NOWHERE: usize = 0;

#[derive(Debug, Clone)]
pub(in crate::backend::server) struct Routes {
    /// How many connections lead to one node.
    connections: usize,
    /// The node of each slot, counted from one, 0 where it is not known; `None` where there is but
    /// one node.
    owners: Option<Arc<[u16]>>,
}

impl Routes {
    /// All to one server.
    pub(in crate::backend::server) const fn to_one(connections: usize) -> Self {
        Self {
            connections,
            owners: None,
        }
    }

    /// To the owner of each slot. The first connection of node `n` is the one behind those of the
    /// nodes before it, and [`NOWHERE`].
    pub(in crate::backend::server) const fn to_owners(
        connections: usize,
        owners: Arc<[u16]>,
    ) -> Self {
        Self {
            connections,
            owners: Some(owners),
        }
    }

    pub(in crate::backend::server) fn link(&self, tag: Tag) -> usize {
        let link = tag.link(self.connections);
        let Some(owners) = &self.owners else {
            return link;
        };
        match owners.get(usize::from(tag.slot())) {
            Some(&node @ 1..) => 1 + (usize::from(node) - 1) * self.connections + link,
            Some(0) | None => NOWHERE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_owner_has_connections_of_its_own_and_unowned_slots_lead_nowhere() {
        let mut owners = vec![1; crate::key::SLOTS];
        owners[100..].fill(3);
        owners[200] = 0;
        let routes = Routes::to_owners(2, owners.into());
        let of = |slot| routes.link(Tag::of_slot(slot));
        assert_eq!([of(0), of(64), of(128), of(192)], [1, 2, 5, 6]);
        assert_eq!(of(200), NOWHERE);
        assert_eq!(Routes::to_one(2).link(Tag::of_slot(64)), 1);
    }
}
