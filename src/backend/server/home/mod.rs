//! Permits at home: what a process keeps of a gate for its own next request, and gives back the
//! moment another process wants it.
//!
//! A home stands between a gate and its place on the server. What it keeps are plain leases of that
//! place, so the server knows nothing of their uses: only their owner's end, or expiry, frees one.

mod agent;
mod others;
mod permits;
mod rooms;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};

use self::rooms::{Effects, Entry, Rooms, Rouse, end_use};
use super::Seat;
use super::core::Command;
use crate::backend::{Acquire, Keep, Kept, Place, ReleaseAnswer, Terms, Waiting};
use crate::error::BackendError;
use crate::key::Resource;
use crate::lease::{Lease, LeaseMode, LeaseState, LostReason};
use crate::time::Instant;
use crate::token::{FencingToken, Token};

/// What the core hears of gates that permits are kept of.
#[derive(Debug, Clone)]
pub(super) enum News {
    /// Nothing is served where a seeker is under way. It is left there: what follows for those whom it is
    /// for is a question of what each of them hopes for.
    Away(BackendError),
    /// Something is served there again.
    Back,
    /// Whether other processes wait, by a word that the server gave at this stamp.
    Others { stamp: u64, wait: bool },
    /// An acquire has got a place in the server's queue: with the time to the end of the first lease that
    /// stands in its way, if it is known.
    Queued(Option<Duration>),
    /// The server did not know a lease that was ended.
    Gone,
    /// The answer to [`Command::Recheck`], if there was one.
    Rechecked(Option<(u64, bool)>),
}

/// All homes of a handle, by their main keys.
pub(super) struct Homes {
    homes: Mutex<HashMap<Box<str>, Weak<Home>>>,
    /// Those that begin to keep something.
    attended: UnboundedSender<Arc<Home>>,
    /// How many homes there are: most handles have none.
    count: AtomicUsize,
}

impl Homes {
    pub(super) fn new() -> (Arc<Self>, UnboundedReceiver<Arc<Home>>) {
        let (attended, receiver) = unbounded_channel();
        let homes = Self {
            homes: Mutex::default(),
            attended,
            count: AtomicUsize::new(0),
        };
        (Arc::new(homes), receiver)
    }

    /// The home of a gate; one for all who name it. The first one's limit counts: who has another
    /// asks the server.
    pub(super) fn of(
        self: &Arc<Self>,
        resource: Resource,
        keep: Keep,
        limit: u32,
        commands: &UnboundedSender<Command>,
    ) -> Arc<Home> {
        let mut homes = self.lock();
        if let Some(home) = homes.get(resource.main()).and_then(Weak::upgrade) {
            return home;
        }
        let resource = Arc::new(resource);
        let home = Arc::new_cyclic(|myself: &Weak<Home>| Home {
            rooms: Mutex::new(Rooms::new(myself.clone(), keep, limit)),
            myself: Weak::clone(myself),
            homes: Arc::clone(self),
            limit,
            seat: Arc::new(Seat::new(commands, Arc::clone(&resource))),
            commands: commands.clone(),
            resource,
            wake: Notify::new(),
        });
        homes.insert(home.resource.main().into(), Arc::downgrade(&home));
        self.count.store(homes.len(), Ordering::Relaxed);
        home
    }

    /// The home of a gate, for who keeps nothing of it itself. The server takes both for one process, so
    /// it tells neither that the other waits.
    pub(super) fn beside(&self, resource: &Resource) -> Option<Arc<Home>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.lock().get(resource.main()).and_then(Weak::upgrade)
    }

    /// Tells the home of a gate, if there is one.
    pub(super) fn tell(&self, now: Instant, main: &str, news: &News) {
        let home = self.lock().get(main).and_then(Weak::upgrade);
        if let Some(home) = home {
            home.hear(now, news);
        }
    }

    /// Refuses all that is asked from here on, and gives back what nobody uses.
    pub(super) fn close(&self) {
        let homes: Vec<Arc<Home>> = self.lock().values().filter_map(Weak::upgrade).collect();
        for home in homes {
            home.change(Instant::now(), Rooms::close).run();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Weak<Home>>> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Attends to all homes of a handle.
pub(super) async fn attend(mut homes: UnboundedReceiver<Arc<Home>>) {
    while let Some(home) = homes.recv().await {
        tokio::spawn(agent::attend(home));
    }
}

/// One gate's home in this process.
pub(super) struct Home {
    myself: Weak<Self>,
    homes: Arc<Homes>,
    /// Where what is kept comes from.
    seat: Arc<dyn Place>,
    commands: UnboundedSender<Command>,
    resource: Arc<Resource>,
    limit: u32,
    rooms: Mutex<Rooms>,
    wake: Notify,
}

impl Home {
    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is kept, and wakes the agent if that can't wait until it looks by itself.
    fn change<T>(&self, now: Instant, change: impl FnOnce(&mut Rooms) -> T) -> T {
        let mut rooms = self.rooms();
        let changed = change(&mut rooms);
        let rouse = rooms.rouse(now);
        drop(rooms);
        self.heed(rouse);
        changed
    }

    fn heed(&self, rouse: Rouse) {
        match rouse {
            Rouse::Rest => {}
            Rouse::Wake => self.wake.notify_one(),
            Rouse::Attend => {
                if let Some(myself) = self.myself.upgrade() {
                    // Fails if the background thread has ended; then all futures say so.
                    let _ = self.homes.attended.send(myself);
                }
            }
        }
    }

    /// Fails as the backend's own sending does.
    fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    async fn roused(&self) {
        self.wake.notified().await;
    }

    /// Asks the server for a permit to keep.
    fn seek(&self, terms: &Terms) -> Acquire {
        self.seat.acquire(&self.seat, terms)
    }

    fn hear(&self, now: Instant, news: &News) {
        let effects = self.change(now, |rooms| match news {
            News::Away(cause) => {
                rooms.away(now, cause);
                Effects::default()
            }
            News::Back => {
                rooms.is_back();
                Effects::default()
            }
            News::Others { stamp, wait } => rooms.told(now, *stamp, *wait),
            News::Queued(next_end) => rooms.queued(now, *next_end),
            News::Gone => {
                rooms.doubt(now);
                Effects::default()
            }
            News::Rechecked(answer) => rooms.answered(now, *answer),
        });
        effects.run();
    }

    /// Whether such a request may use what was kept of another.
    fn serves(&self, terms: &Terms) -> bool {
        terms.weight == 1
            && terms.mode == LeaseMode::Renewed
            && terms.delay.is_none()
            && terms.limit == self.limit
    }

    // Apart from what most requests go through: that is to be short, since behind each system call a
    // processor finds little of it in its caches.
    #[inline(never)]
    fn enter(
        &self,
        mut rooms: MutexGuard<'_, Rooms>,
        now: Instant,
        myself: &Arc<dyn Place>,
        terms: &Terms,
    ) -> Acquire {
        let entry = rooms.enter(now, terms);
        let rouse = rooms.rouse(now);
        drop(rooms);
        self.heed(rouse);
        match entry {
            Entry::Waits(id, answer) => {
                let token = Token::local(id, 0);
                Acquire::Waiting(Waiting::new(answer, Arc::clone(myself), token))
            }
            Entry::Refused(refusal) => Acquire::Ready(Err(refusal.into())),
            Entry::Elsewhere => self.pass_by(terms),
        }
    }

    /// A request that the home can't serve asks the server itself. What is kept here must not keep it
    /// from its turn.
    pub(super) fn pass_by(&self, terms: &Terms) -> Acquire {
        let Some(home) = self.myself.upgrade() else {
            return self.seat.acquire(&self.seat, terms);
        };
        self.change(Instant::now(), Rooms::passed_by).run();
        let beside: Arc<dyn Place> = Arc::new(Beside { home });
        self.seat.acquire(&beside, terms)
    }
}

impl Place for Home {
    fn acquire(&self, myself: &Arc<dyn Place>, terms: &Terms) -> Acquire {
        if !self.serves(terms) {
            return self.pass_by(terms);
        }
        let now = Instant::now();
        let mut rooms = self.rooms();
        if let Some((mark, fence)) = rooms.take(now) {
            // Most find one, and nothing is due any earlier for that.
            drop(rooms);
            return Acquire::Ready(Ok(Lease::new(Arc::clone(myself), mark, fence)));
        }
        self.enter(rooms, now, myself, terms)
    }

    fn cancel(&self, token: Token) {
        let id = token.parts().0;
        let gone = self.change(Instant::now(), |rooms| rooms.leave(id));
        drop(gone);
    }

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        let now = Instant::now();
        let mark = token.parts().0;
        if let Some((effects, rouse)) = end_use(self.rooms(), now, mark, answer) {
            self.heed(rouse);
            effects.run();
        }
    }

    fn state(&self, token: Token, fence: FencingToken) -> Arc<LeaseState> {
        match self.rooms().whole(token.parts().0) {
            Some(whole) => LeaseState::use_of(&whole, token, fence),
            None => LeaseState::over(token, fence, LostReason::Expired),
        }
    }

    fn kept(&self) -> Kept {
        self.rooms().tally()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let mut homes = self.homes.lock();
        // Another may have been made for the same gate meanwhile.
        let main = self.resource.main();
        if homes.get(main).is_some_and(|home| home.strong_count() == 0) {
            homes.remove(main);
            self.homes.count.store(homes.len(), Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Home").field(&self.resource.gate).finish()
    }
}

/// The place of a request that passes its home by: as long as it waits or holds, nothing is kept
/// that it might need.
struct Beside {
    home: Arc<Home>,
}

impl Place for Beside {
    fn acquire(&self, _myself: &Arc<dyn Place>, terms: &Terms) -> Acquire {
        self.home.seek(terms)
    }

    fn cancel(&self, token: Token) {
        self.home.seat.cancel(token);
    }

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        self.home.seat.release(token, answer);
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.home.rooms().went_by();
    }
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Beside")
            .field(&self.home.resource.gate)
            .finish()
    }
}
