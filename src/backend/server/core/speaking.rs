//! What a process says to the server unasked, for each hash tag: that it is alive, that it still
//! holds, and how its waiters stand.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::stamps::Stamps;
use super::{Channel, Core, Due, Entry, Topic};
use crate::backend::server::call::{Body, Call, Extend, Renew};
use crate::backend::server::reply::Crowd;
use crate::key::{Kind, Resource, Tag};
use crate::time::{CLAIM, Instant};
use crate::token::{ByToken, FencingToken, Token};

/// How often a process with waiters says that it is alive.
const BEAT: Duration = Duration::from_millis(CLAIM.as_millis() as u64 / 3);
/// How often it asks where nobody will tell it: a stranger holds, or pushes are not to be had.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(150));
/// How long after an expected end of a lease it asks.
const AFTER_END: Duration = Duration::from_millis(5);
/// How soon after one question another follows because somebody told of a release.
const AFTER_RELEASE: Duration = Duration::from_millis(20);
const SOONEST: Duration = Duration::from_millis(50);
/// What one script renews at most, so that none stalls the server for longer than 0.2 ms: 5 us each
/// where values say all, 12 where records have to be looked at.
const fn batch(kind: Kind) -> usize {
    match kind {
        Kind::Mutex => 32,
        Kind::Exact | Kind::Semaphore => 16,
    }
}

/// The state of one hash tag in this process.
#[derive(Debug)]
pub(super) struct TagState {
    queues: HashMap<Arc<Resource>, Queue>,
    /// The leases that have come to their first renewal. Most are given back before.
    leases: HashSet<Token, ByToken>,
    /// The last sending that said we are alive.
    spoke: Instant,
    pub(super) stamps: Stamps,
    timer: Instant,
}

/// The local waiters of one gate that have a place on the server.
#[derive(Debug)]
struct Queue {
    /// By ticket: the first is granted first, so it asks for all.
    order: BTreeSet<(u64, Token)>,
    /// When to ask, should nobody tell before.
    pump_at: Instant,
    /// When that was done last.
    pumped: Instant,
}

impl Queue {
    fn head(&self) -> Option<Token> {
        self.order.first().map(|(_, token)| *token)
    }
}

impl TagState {
    fn new(now: Instant) -> Self {
        Self {
            queues: HashMap::new(),
            leases: HashSet::default(),
            spoke: now,
            stamps: Stamps::default(),
            timer: Instant::FAR,
        }
    }

    fn next(&self) -> Instant {
        if self.queues.is_empty() {
            return Instant::FAR;
        }
        let pump = self
            .queues
            .values()
            .map(|queue| queue.pump_at)
            .min()
            .unwrap_or(Instant::FAR);
        pump.min(self.spoke.after(BEAT))
    }
}

impl Core {
    fn tag_state(&mut self, now: Instant, resource: &Arc<Resource>) -> &mut TagState {
        self.tags
            .entry(resource.tag)
            .or_insert_with(|| TagState::new(now))
    }

    fn schedule_tag(&mut self, tag: Tag) {
        if let Some(state) = self.tags.get_mut(&tag) {
            let next = state.next();
            self.timers.set(&mut state.timer, next, Due::Tag(tag));
        }
    }

    /// Forgets a tag that nobody waits or holds for long under.
    fn drop_idle_tag(&mut self, tag: Tag) {
        if let Some(state) = self.tags.get(&tag)
            && state.queues.is_empty()
            && state.leases.is_empty()
        {
            self.timers.clear(state.timer, Due::Tag(tag));
            self.tags.remove(&tag);
        }
    }

    /// A request that says we are alive is on its way.
    pub(super) fn spoke(&mut self, now: Instant, tag: Tag) {
        if let Some(state) = self.tags.get_mut(&tag) {
            state.spoke = now;
        }
    }

    /// A request under this tag was answered with a stamp.
    pub(super) fn stamped(&mut self, tag: Tag, stamp: u64, sent: Instant) {
        if let Some(state) = self.tags.get_mut(&tag) {
            state.stamps.seen(stamp, sent);
        }
    }

    /// The server gave a waiter a place, or said again which it has.
    pub(super) fn enqueued(
        &mut self,
        now: Instant,
        resource: &Arc<Resource>,
        token: Token,
        old_ticket: u64,
        ticket: u64,
        crowd: Crowd,
    ) {
        let listening = self.ears.hear(resource.tag);
        let state = self.tag_state(now, resource);
        let joined = !state.queues.contains_key(resource);
        let queue = state
            .queues
            .entry(Arc::clone(resource))
            .or_insert_with(|| Queue {
                order: BTreeSet::new(),
                pump_at: Instant::FAR,
                pumped: Instant::from_nanos(0),
            });
        queue.order.remove(&(old_ticket, token));
        let was_head = queue.head();
        queue.order.insert((ticket, token));
        let pump_at = now.after(pump_delay(listening, crowd, token));
        // Only the first one's own answer may put the question off: a lost push is found by asking
        // for the token it was meant for.
        if was_head.is_none_or(|head| head == token) || queue.head() == Some(token) {
            queue.pump_at = pump_at;
        } else {
            queue.pump_at = queue.pump_at.min(pump_at);
        }
        if joined && let Some(channel) = &resource.released {
            self.channels
                .push(Channel::Join(Topic::Released(channel.clone())));
        }
        self.schedule_tag(resource.tag);
    }

    /// A waiter's place is given up, or has become a lease.
    pub(super) fn dequeued(&mut self, resource: &Arc<Resource>, token: Token, ticket: u64) {
        let Some(state) = self.tags.get_mut(&resource.tag) else {
            return;
        };
        let Some(queue) = state.queues.get_mut(resource) else {
            return;
        };
        queue.order.remove(&(ticket, token));
        if queue.order.is_empty() {
            state.queues.remove(resource);
            if let Some(channel) = &resource.released {
                self.channels
                    .push(Channel::Leave(Topic::Released(channel.clone())));
            }
            self.drop_idle_tag(resource.tag);
        }
    }

    /// Asks for the first local waiter of a gate at once.
    pub(super) fn pump_next(&mut self, now: Instant, resource: &Arc<Resource>) {
        let head = self
            .tags
            .get(&resource.tag)
            .and_then(|state| state.queues.get(resource))
            .and_then(Queue::head);
        if let Some(head) = head {
            self.sync(now, head);
        }
    }

    /// An answer to what was sent at `sent` showed that the server had forgotten the place of
    /// `token`. If that is the one that asks for all of its gate, all are asked for, in their
    /// order, but those whose own question comes after it anyway.
    pub(super) fn forgotten(
        &mut self,
        now: Instant,
        resource: &Arc<Resource>,
        token: Token,
        sent: Instant,
    ) {
        let queue = self
            .tags
            .get(&resource.tag)
            .and_then(|state| state.queues.get(resource));
        let Some(queue) = queue.filter(|queue| queue.head() == Some(token)) else {
            return;
        };
        let others: Vec<Token> = queue
            .order
            .iter()
            .map(|(_, other)| *other)
            .filter(|other| *other != token)
            .collect();
        for other in others {
            if !self.is_asking_since(other, sent) {
                self.sync(now, other);
            }
        }
    }

    /// Somebody told of a release on an exact key's own channel. Anybody may, as often as they
    /// like, so the question that follows is asked soon rather than each time.
    pub(in super::super) fn released_elsewhere(&mut self, now: Instant, channel: &str) {
        for state in self.tags.values_mut() {
            for (resource, queue) in &mut state.queues {
                if resource.released.as_deref() == Some(channel) {
                    let tag = resource.tag;
                    queue.pump_at = queue
                        .pump_at
                        .min(queue.pumped.after(AFTER_RELEASE).max(now));
                    self.schedule_tag(tag);
                    return;
                }
            }
        }
    }

    /// Pushes can't be heard for now: ask as often as for a stranger.
    pub(super) fn poll_soon(&mut self, now: Instant, concerned: impl Fn(Tag) -> bool) {
        let soon = now.after(POLL.0);
        let tags = self.tags.keys().copied();
        let tags: Vec<Tag> = tags.filter(|tag| concerned(*tag)).collect();
        for tag in tags {
            if let Some(state) = self.tags.get_mut(&tag) {
                for queue in state.queues.values_mut() {
                    queue.pump_at = queue.pump_at.min(soon);
                }
            }
            self.schedule_tag(tag);
        }
    }

    /// From here on a lease is renewed along with the others of its tag.
    pub(super) fn renew_with(&mut self, tag: Tag, token: Token) {
        let Some(Entry::Holding(holder)) = self.entries.get(&token) else {
            return;
        };
        let resource = holder.request.resource.clone();
        let spoke = Instant::from_nanos(0);
        let state = self.tag_state(spoke, &resource);
        state.leases.insert(token);
        debug_assert_eq!(tag, resource.tag);
    }

    pub(super) fn renew_without(&mut self, tag: Tag, token: Token) {
        if let Some(state) = self.tags.get_mut(&tag)
            && state.leases.remove(&token)
        {
            self.drop_idle_tag(tag);
        }
    }

    /// Says all that is due for a tag, in as few calls as can be: each question for a waiter and
    /// each renewal is a heartbeat, too.
    pub(super) fn speak(&mut self, now: Instant, tag: Tag) {
        if let Some(state) = self.tags.get_mut(&tag) {
            state.timer = Instant::FAR;
        }
        if self.is_up(tag) {
            self.pump(now, tag);
            self.renew_tag(now, tag);
            self.beat(now, tag);
        } else {
            self.hold_back(now, tag);
        }
        self.schedule_tag(tag);
    }

    /// Nobody hears; the connection that comes up asks for all. Until then only deadlines count.
    fn hold_back(&mut self, now: Instant, tag: Tag) {
        let Some(state) = self.tags.get_mut(&tag) else {
            return;
        };
        state.spoke = now;
        for queue in state.queues.values_mut() {
            queue.pump_at = queue.pump_at.max(now.after(BEAT));
        }
        let leases: Vec<Token> = state.leases.iter().copied().collect();
        for token in leases {
            if let Some(Entry::Holding(holder)) = self.entries.get_mut(&token) {
                holder.postpone(now.after(BEAT));
                self.schedule(token);
            }
        }
    }

    fn pump(&mut self, now: Instant, tag: Tag) {
        let Some(state) = self.tags.get_mut(&tag) else {
            return;
        };
        // A question that is due before the next heartbeat is asked in place of this one.
        let beats = now >= state.spoke.after(BEAT);
        let early = state
            .queues
            .iter()
            .filter(|(_, queue)| beats && queue.pump_at <= now.after(BEAT))
            .min_by_key(|(_, queue)| queue.pump_at)
            .map(|(resource, _)| Arc::clone(resource));
        let mut heads = Vec::new();
        for (resource, queue) in &mut state.queues {
            if queue.pump_at <= now || early.as_ref() == Some(resource) {
                // The answer says when to ask next; without one, ask again in time.
                queue.pump_at = now.after(BEAT);
                queue.pumped = now;
                heads.extend(queue.head());
            }
        }
        for head in heads {
            self.sync(now, head);
        }
    }

    fn renew_tag(&mut self, now: Instant, tag: Tag) {
        let Some(state) = self.tags.get(&tag) else {
            return;
        };
        let waits = !state.queues.is_empty();
        let mut due: [Vec<Extend>; Kind::ALL.len()] = Kind::ALL.map(|_| Vec::new());
        let leases: Vec<Token> = state.leases.iter().copied().collect();
        for token in leases {
            if let Some(Entry::Holding(holder)) = self.entries.get_mut(&token)
                && holder.wants_renewal(now)
            {
                let (fence, lease) = holder.renew(now);
                let resource = holder.request.resource.clone();
                due[resource.kind as usize].push(Extend {
                    token,
                    resource,
                    fence,
                    lease,
                });
                self.schedule(token);
            }
        }
        for (kind, leases) in Kind::ALL.into_iter().zip(due) {
            let mut leases = leases.into_iter();
            while leases.len() > 0 {
                // Collected, not split off: that would leave each batch the room of all.
                let batch = leases.by_ref().take(batch(kind)).collect();
                self.send_renewal(now, tag, kind, waits, batch);
            }
        }
    }

    fn beat(&mut self, now: Instant, tag: Tag) {
        let Some(state) = self.tags.get(&tag) else {
            return;
        };
        if !state.queues.is_empty() && now >= state.spoke.after(BEAT) {
            self.send_renewal(now, tag, Kind::Mutex, true, Vec::new());
        }
    }

    /// Renews one lease that its waiter has to be sure of.
    pub(super) fn renew_one(
        &mut self,
        now: Instant,
        token: Token,
        resource: &Arc<Resource>,
        fence: FencingToken,
        lease: Duration,
    ) {
        if self.is_up(resource.tag) || self.settings.replicas.is_some() {
            let leases = vec![Extend {
                token,
                resource: Arc::clone(resource),
                fence,
                lease,
            }];
            self.send_renewal(now, resource.tag, resource.kind, true, leases);
        }
    }

    fn send_renewal(
        &mut self,
        now: Instant,
        tag: Tag,
        kind: Kind,
        waits: bool,
        leases: Vec<Extend>,
    ) {
        let acknowledged = self.settings.replicas.is_some() && !leases.is_empty();
        // What waits for replicas is no sign of life: it may come late.
        let waits = waits && !acknowledged;
        if waits {
            self.spoke(now, tag);
        }
        let renew = Renew {
            tag,
            kind,
            waits,
            acknowledged,
            leases,
        };
        self.calls.push(Call {
            sent: now,
            body: Body::Renew(renew),
        });
    }
}

/// When to ask, should nobody tell before: shortly after the first end of a lease that was told of,
/// those in front first.
fn pump_delay(listening: bool, crowd: Crowd, token: Token) -> Duration {
    if !listening || crowd.foreign {
        return POLL.0 + POLL.1 * token.jitter(0) / 256;
    }
    let rank = u32::try_from(crowd.waiting.min(16)).unwrap_or(16);
    let end = crowd.next_end.map_or(CLAIM, |end| {
        end + AFTER_END + Duration::from_millis(2) * rank
    });
    end.clamp(SOONEST, CLAIM)
}
