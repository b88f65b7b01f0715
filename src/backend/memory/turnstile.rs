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
