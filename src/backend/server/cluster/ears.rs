//! Where in a cluster this process hears of its grants: a subscription at each node that has a slot
//! somebody waits in.

use super::Ear;
use super::map::Number;
use crate::backend::server::core::{Channel, Topic};
use crate::backend::server::driver::Driver;
use crate::backend::server::inbox::Inbox;
use crate::time::Instant;

impl Driver {
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
    pub(super) fn move_topics(&mut self, now: Instant) {
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
