//! Where this process would hear of its grants: on one channel, or on one for each tag.

use std::collections::HashMap;
use std::time::Duration;

use super::{Channel, Core, Entry, Topic};
use crate::backend::Wait;
use crate::key::Tag;
use crate::time::Instant;

/// How long a tag's channel is kept after its last use: gates are waited for again and again.
const KEEP: Duration = Duration::from_secs(30);
/// How often it is looked at which are kept.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Ears {
    /// One channel for all; whether it is confirmed.
    One(bool),
    /// One for each tag that somebody waits under.
    ByTag(HashMap<Tag, Ear>),
}

#[derive(Debug)]
pub(super) struct Ear {
    confirmed: bool,
    used: Instant,
}

impl Ears {
    /// Whether a push for a waiter of this tag would be heard.
    pub(super) fn hear(&self, tag: Tag) -> bool {
        match self {
            Self::One(confirmed) => *confirmed,
            Self::ByTag(ears) => ears.get(&tag).is_some_and(|ear| ear.confirmed),
        }
    }
}

impl Core {
    /// Somebody waits under this tag, or asks how it stands.
    pub(super) fn listen(&mut self, now: Instant, tag: Tag) {
        self.wants_inbox = true;
        if let Ears::ByTag(ears) = &mut self.ears {
            let ear = ears.entry(tag).or_insert_with(|| {
                self.channels.push(Channel::Join(Topic::Grants(tag)));
                Ear {
                    confirmed: false,
                    used: now,
                }
            });
            ear.used = now;
        }
    }

    /// Gives up the channels of tags that nobody has waited under for a while. Who waits asks more
    /// often than that.
    pub(super) fn forget_ears(&mut self, now: Instant) {
        let Ears::ByTag(ears) = &mut self.ears else {
            return;
        };
        if now < self.forget_at {
            return;
        }
        self.forget_at = now.after(LOOK);
        let channels = &mut self.channels;
        ears.retain(|tag, ear| {
            let used = now.since(ear.used) < KEEP;
            if !used {
                channels.push(Channel::Leave(Topic::Grants(*tag)));
            }
            used
        });
    }

    /// The inbox was confirmed, or is lost. While it is down nobody can tell us, so we ask; when it
    /// is back we ask once, how all stand.
    pub(in crate::backend::server) fn inbox_changed(&mut self, now: Instant, listening: bool) {
        if let Ears::One(confirmed) = &mut self.ears {
            *confirmed = listening;
        }
        if listening {
            self.sync_waiting(now, |_| true);
        } else {
            self.poll_soon(now, |_| true);
        }
    }

    /// The same of one tag's channel.
    pub(in crate::backend::server) fn ear_changed(
        &mut self,
        now: Instant,
        tag: Tag,
        listening: bool,
    ) {
        let Ears::ByTag(ears) = &mut self.ears else {
            return;
        };
        // Given up meanwhile.
        let Some(ear) = ears.get_mut(&tag) else {
            return;
        };
        let was = std::mem::replace(&mut ear.confirmed, listening);
        if listening {
            self.sync_waiting(now, |other| other == tag);
        } else if was {
            self.poll_soon(now, |other| other == tag);
        }
    }

    /// Asks for all waiters that a confirmed channel concerns, in their order.
    fn sync_waiting(&mut self, now: Instant, concerned: impl Fn(Tag) -> bool) {
        let waits = |(token, entry): (&_, &Entry)| match entry {
            Entry::Waiting(waiter)
                if waiter.request.terms.wait != Wait::No
                    && concerned(waiter.request.resource.tag) =>
            {
                Some((waiter.rank(), *token))
            }
            _ => None,
        };
        let mut waiting: Vec<_> = self.entries.iter().filter_map(waits).collect();
        waiting.sort_unstable();
        for (_, token) in waiting {
            self.sync(now, token);
        }
    }
}
