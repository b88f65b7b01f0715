//! Lets leases in and out without the ledger's lock, as long as all that matters is their number.
//!
//! One word says how many are in, and how many ever came in. Whatever needs to know more (a waiter,
//! an end, somebody who looks at a lease, a shutdown) closes the turnstile first, under the ledger's
//! lock, and takes these numbers over; when all is calm again it opens the turnstile with them. So
//! an uncontended acquire and its release are one atomic step each.
//!
//! # Invariants
//!
//! 1. Only who has the ledger's lock closes or opens it. Closed, the word does not change.
//! 2. While it is open, all who hold are counted here, and nobody waits.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::time::Ttl;

const CLOSED: u64 = 1 << 63;
/// One lease more inside.
const INSIDE: u64 = 1 << 40;
const MOST_INSIDE: u64 = (CLOSED - 1) / INSIDE;
/// Came in ever: at a million per second the ledger is asked again after twelve days.
const EVER: u64 = INSIDE - 1;

#[derive(Debug)]
pub(super) struct Turnstile {
    word: AtomicU64,
    /// The fence before the first that it gave.
    fence: u64,
    longest_ttl: AtomicU32,
}

/// What the ledger takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) inside: u64,
    /// The last fence given.
    pub(super) fence: u64,
}

impl Turnstile {
    /// Open, with nobody inside.
    pub(super) const fn new(fence: u64) -> Self {
        Self {
            word: AtomicU64::new(0),
            fence,
            longest_ttl: AtomicU32::new(0),
        }
    }

    /// Lets one lease in and gives its fence; `None` if the ledger has to decide.
    pub(super) fn enter(&self, limit: u32, ttl: Ttl) -> Option<u64> {
        self.note(ttl);
        let room = u64::from(limit).min(MOST_INSIDE);
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let full = word / INSIDE >= room;
            if full || word & CLOSED != 0 || word & EVER == EVER {
                return None;
            }
            let entered = word + INSIDE + 1;
            // Acquire: what the holder before did happened before.
            match self.word.compare_exchange_weak(
                word,
                entered,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(self.fence + (entered & EVER)),
                Err(changed) => word = changed,
            }
        }
    }

    /// Lets one of those inside out; false if the ledger has to.
    pub(super) fn leave(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                return false;
            }
            match self.word.compare_exchange_weak(
                word,
                word - INSIDE,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(changed) => word = changed,
            }
        }
    }

    /// Closes it; gives its numbers if it was open.
    pub(super) fn close(&self) -> Option<Count> {
        // Under the lock nobody else opens or closes.
        if self.word.load(Ordering::Relaxed) & CLOSED != 0 {
            return None;
        }
        let word = self.word.fetch_or(CLOSED, Ordering::AcqRel);
        Some(Count {
            inside: word / INSIDE,
            fence: self.fence + (word & EVER),
        })
    }

    /// Opens it with numbers that have changed meanwhile, if it can count so far.
    pub(super) fn open(&self, count: Count) {
        let ever = count.fence - self.fence;
        if count.inside <= MOST_INSIDE && ever <= EVER {
            let word = (count.inside * INSIDE) | ever;
            self.word.store(word, Ordering::Release);
        }
    }

    /// No lease that it let in has a longer one.
    #[cfg(feature = "test-util")]
    pub(super) fn longest_ttl(&self) -> Ttl {
        Ttl::from_ms(self.longest_ttl.load(Ordering::Relaxed))
    }

    /// Takes note of a TTL. Mostly all are alike, which costs no write.
    pub(super) fn note(&self, ttl: Ttl) {
        if self.longest_ttl.load(Ordering::Relaxed) < ttl.as_ms() {
            self.longest_ttl.fetch_max(ttl.as_ms(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Mutex, PoisonError};
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const TTL: Ttl = Ttl::DEFAULT;
    const START: u64 = 1_000_000;

    #[derive(Debug, Clone)]
    enum Step {
        Enter(u32),
        Leave,
        Close,
        /// With so many more inside, or fewer, and so many more fences given.
        Open(i64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0_u32..5).prop_map(Step::Enter),
            4 => Just(Step::Leave),
            1 => Just(Step::Close),
            2 => (-3_i64..4, 0_u64..5).prop_map(|(more, given)| Step::Open(more, given)),
        ];
        prop::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn it_counts_as_a_plain_number_does_and_rests_while_it_is_closed(steps in steps()) {
            let turnstile = Turnstile::new(START);
            let (mut inside, mut fence, mut closed) = (0_u64, START, false);
            for step in steps {
                match step {
                    Step::Enter(limit) => {
                        let enters = !closed && inside < u64::from(limit);
                        if enters {
                            inside += 1;
                            fence += 1;
                        }
                        prop_assert_eq!(turnstile.enter(limit, TTL), enters.then_some(fence));
                    }
                    // Only who is inside leaves.
                    Step::Leave if inside == 0 => {}
                    Step::Leave => {
                        inside -= u64::from(!closed);
                        prop_assert_eq!(turnstile.leave(), !closed);
                    }
                    Step::Close => {
                        let count = (!closed).then_some(Count { inside, fence });
                        closed = true;
                        prop_assert_eq!(turnstile.close(), count);
                    }
                    // Only what is closed is opened.
                    Step::Open(..) if !closed => {}
                    Step::Open(more, given) => {
                        inside = inside.saturating_add_signed(more);
                        fence += given;
                        closed = false;
                        turnstile.open(Count { inside, fence });
                    }
                }
            }
            prop_assert_eq!(turnstile.close(), (!closed).then_some(Count { inside, fence }));
        }

        #[test]
        fn no_ttl_is_longer_than_the_longest_it_notes(
            ttls in prop::collection::vec(50_u32..500, 1..9),
        ) {
            let turnstile = Turnstile::new(START);
            for ttl in &ttls {
                turnstile.note(Ttl::from_ms(*ttl));
            }
            let longest = turnstile.longest_ttl.load(Ordering::Relaxed);
            prop_assert_eq!(Some(&longest), ttls.iter().max());
        }
    }

    #[test]
    fn it_asks_the_ledger_before_a_number_outgrows_its_place_in_the_word() {
        let turnstile = Turnstile::new(START);
        let last = START + EVER;
        turnstile.close();
        let (inside, fence) = (MOST_INSIDE - 1, last - 2);
        turnstile.open(Count { inside, fence });
        assert_eq!(turnstile.enter(u32::MAX, TTL), Some(last - 1));
        assert_eq!(
            turnstile.enter(u32::MAX, TTL),
            None,
            "as many as it can count are inside"
        );
        assert!(turnstile.leave());
        assert_eq!(turnstile.enter(u32::MAX, TTL), Some(last));
        assert!(turnstile.leave());
        assert_eq!(turnstile.enter(u32::MAX, TTL), None, "no fence is left");
        assert_eq!(
            turnstile.close(),
            Some(Count {
                inside,
                fence: last
            })
        );
        for beyond in [(MOST_INSIDE + 1, last), (0, last + 1)] {
            let (inside, fence) = beyond;
            turnstile.open(Count { inside, fence });
            assert_eq!(turnstile.close(), None, "it was opened with {beyond:?}");
        }
    }

    /// Stands in for the ledger, whose lock decides who closes and opens.
    struct Desk {
        turnstile: Turnstile,
        book: Mutex<Count>,
    }

    impl Desk {
        fn ask<T>(&self, opens: bool, decide: impl FnOnce(&mut Count) -> T) -> T {
            let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = self.turnstile.close() {
                *book = count;
            }
            let decided = decide(&mut book);
            if opens {
                self.turnstile.open(*book);
            }
            decided
        }

        fn enter(&self, limit: u32) -> Option<u64> {
            self.turnstile.enter(limit, TTL).or_else(|| {
                self.ask(true, |count| {
                    (count.inside < u64::from(limit)).then(|| {
                        count.inside += 1;
                        count.fence += 1;
                        count.fence
                    })
                })
            })
        }

        fn leave(&self) {
            if !self.turnstile.leave() {
                self.ask(true, |count| count.inside -= 1);
            }
        }
    }

    /// Lets a visitor of each limit come and go while the turnstile is closed and opened.
    fn crowd(limits: [u32; 6], rounds: usize) {
        let most = limits.into_iter().max().unwrap_or(0);
        let desk = Desk {
            turnstile: Turnstile::new(START),
            book: Mutex::new(Count {
                inside: 0,
                fence: START,
            }),
        };
        let (inside, done) = (AtomicU32::new(0), AtomicBool::new(false));
        let visitor = |limit: u32| {
            let mut fences = Vec::new();
            for round in 0..rounds {
                let Some(fence) = desk.enter(limit) else {
                    thread::yield_now();
                    continue;
                };
                let others = inside.fetch_add(1, Ordering::SeqCst);
                assert!(others < most, "{others} were inside already");
                assert!(fences.last() < Some(&fence), "{fence} after {fences:?}");
                fences.push(fence);
                if round % 8 == 0 {
                    thread::yield_now();
                }
                inside.fetch_sub(1, Ordering::SeqCst);
                desk.leave();
            }
            fences
        };
        let closer = || {
            for round in 0.. {
                if done.load(Ordering::SeqCst) {
                    return;
                }
                // Every other time it is left closed, as it is while somebody waits.
                desk.ask(round % 2 == 0, |count| {
                    assert!(count.inside <= u64::from(most), "{count:?}");
                    let before = desk.turnstile.word.load(Ordering::Relaxed);
                    thread::yield_now();
                    let after = desk.turnstile.word.load(Ordering::Relaxed);
                    assert_eq!(before, after, "it is closed");
                });
                thread::yield_now();
            }
        };
        let visitor = &visitor;
        let visits = thread::scope(|scope| {
            let closer = scope.spawn(closer);
            let visitors = limits.map(|limit| scope.spawn(move || visitor(limit)));
            let visits = visitors.map(thread::ScopedJoinHandle::join);
            // Also where a visitor has panicked.
            done.store(true, Ordering::SeqCst);
            closer.join().expect("the closer sees nothing wrong");
            visits
        });
        let visits = visits.map(|visit| visit.expect("no visitor sees anything wrong"));
        let mut fences = visits.concat();
        fences.sort_unstable();
        let (inside, fence) = (0, START + fences.len() as u64);
        desk.ask(false, |count| assert_eq!(*count, Count { inside, fence }));
        assert!(
            fences.into_iter().eq(START + 1..=fence),
            "a fence was given twice"
        );
    }

    #[test]
    fn threads_that_come_and_go_while_it_is_closed_and_opened_are_counted_to_the_last() {
        crowd([1, 1, 2, 2, 3, 3], 3_000);
    }

    #[test]
    fn threads_exclude_each_other_while_it_is_closed_and_opened() {
        crowd([1; 6], 3_000);
    }
}
