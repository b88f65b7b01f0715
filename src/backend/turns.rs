//! Turns that a handle has booked and that have not come: each is ended once, by its caller or by
//! the handle's shutdown.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Those of one handle, with what is needed to give each back.
pub(crate) struct Turns<T> {
    booked: BTreeMap<u64, Turn<T>>,
    last: u64,
    closing: watch::Sender<bool>,
}

struct Turn<T> {
    over: Arc<AtomicBool>,
    what: T,
}

/// Says of them how many there are, and not whose.
impl<T> fmt::Debug for Turns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns")
            .field("booked", &self.booked.len())
            .finish_non_exhaustive()
    }
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self {
            booked: BTreeMap::new(),
            last: 0,
            closing: watch::Sender::new(false),
        }
    }
}

impl<T> Turns<T> {
    /// `finish` is told the number of the turn, for [`end`](Self::end), and whether it has come.
    pub(crate) fn book(
        &mut self,
        what: T,
        finish: impl FnOnce(u64, bool) + Send + Sync + 'static,
    ) -> Booking {
        self.last += 1;
        let (id, over) = (self.last, Arc::default());
        let turn = Turn {
            over: Arc::clone(&over),
            what,
        };
        self.booked.insert(id, turn);
        Booking {
            over,
            closing: self.closing.subscribe(),
            finish: Some(Box::new(move |came| finish(id, came))),
        }
    }

    /// Its caller is done with it. `None` if the shutdown was first.
    pub(crate) fn end(&mut self, id: u64) -> Option<T> {
        self.booked.remove(&id).map(|turn| turn.what)
    }

    /// Refuses all that have not come, and gives them, the last one first: so each is the last when
    /// it is given back.
    pub(crate) fn close(&mut self) -> Vec<T> {
        let turns = std::mem::take(&mut self.booked).into_values().rev();
        let pending = turns.filter(|turn| !turn.over.swap(true, Ordering::AcqRel));
        let pending = pending.map(|turn| turn.what).collect();
        self.closing.send_replace(true);
        pending
    }
}

/// A turn that is booked. Dropped before it has come, it is given back if nobody has taken anything
/// after it, else it is forfeited: who booked later sleeps until a moment that counts it.
pub(crate) struct Booking {
    over: Arc<AtomicBool>,
    closing: watch::Receiver<bool>,
    finish: Option<Box<dyn FnOnce(bool) + Send + Sync>>,
}

impl Booking {
    /// Ends when the handle shuts down.
    pub(crate) async fn refused(&mut self) {
        if self.closing.wait_for(|closing| *closing).await.is_err() {
            // Nobody is left to refuse it.
            std::future::pending::<()>().await;
        }
    }

    /// The turn has come; tells whether it had not been refused before.
    pub(crate) fn use_up(mut self) -> bool {
        let came = !self.over.swap(true, Ordering::AcqRel);
        if let Some(finish) = self.finish.take().filter(|_| came) {
            finish(true);
        }
        came
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        if let Some(finish) = self.finish.take()
            && !self.over.swap(true, Ordering::AcqRel)
        {
            finish(false);
        }
    }
}

impl fmt::Debug for Booking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Booking").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    type Told = Arc<Mutex<Vec<(u64, bool)>>>;

    fn book(turns: &mut Turns<&'static str>, what: &'static str, told: &Told) -> Booking {
        let told = Arc::clone(told);
        turns.book(what, move |id, came| {
            told.lock().expect("no panic").push((id, came));
        })
    }

    #[tokio::test]
    async fn each_turn_is_ended_once() {
        let (mut turns, told) = (Turns::default(), Told::default());
        let came = book(&mut turns, "came", &told);
        let dropped = book(&mut turns, "dropped", &told);
        let mut asleep = book(&mut turns, "asleep", &told);
        let mut last = book(&mut turns, "last", &told);
        assert!(came.use_up());
        drop(dropped);
        assert_eq!(*told.lock().expect("no panic"), [(1, true), (2, false)]);
        assert_eq!(turns.end(2), Some("dropped"));
        // The first has come, though nobody has heard of it yet.
        assert_eq!(turns.close(), ["last", "asleep"]);
        asleep.refused().await;
        last.refused().await;
        assert!(!asleep.use_up(), "it was refused before");
        drop(last);
        assert_eq!(turns.end(3), None);
        assert_eq!(told.lock().expect("no panic").len(), 2);
        // One that was under way meanwhile is refused, and gives itself back.
        let mut late = book(&mut turns, "late", &told);
        late.refused().await;
        drop(late);
        assert_eq!(turns.end(5), Some("late"));
    }
}
