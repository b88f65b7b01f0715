//! Who waits at one place, first come, first served.

use std::collections::VecDeque;

/// Below this length gaps are not worth a thought.
const SMALL: usize = 32;

/// Each waiter has a ticket, by which it can leave from anywhere. That leaves a gap, so that nobody
/// behind it has to move: gaps at the front go at once, the others when they outnumber the waiters.
#[derive(Debug)]
pub(crate) struct Queue<W> {
    /// Tickets rise, and the front is no gap.
    places: VecDeque<(u64, Option<W>)>,
    waiting: usize,
    last_ticket: u64,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self {
            places: VecDeque::new(),
            waiting: 0,
            last_ticket: 0,
        }
    }
}

impl<W> Queue<W> {
    /// How many wait.
    pub(crate) const fn len(&self) -> usize {
        self.waiting
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The ticket of the next who comes.
    pub(crate) const fn next_ticket(&self) -> u64 {
        self.last_ticket + 1
    }

    /// Lets a waiter stand at the end.
    pub(crate) fn push(&mut self, waiter: W) {
        self.last_ticket += 1;
        self.places.push_back((self.last_ticket, Some(waiter)));
        self.waiting += 1;
        self.tidy();
    }

    pub(crate) fn front(&self) -> Option<&W> {
        self.places.front()?.1.as_ref()
    }

    /// The ticket of the front.
    pub(crate) fn first(&self) -> Option<u64> {
        self.places.front().map(|(ticket, _)| *ticket)
    }

    pub(crate) fn get(&self, ticket: u64) -> Option<&W> {
        self.places[self.index(ticket)?].1.as_ref()
    }

    pub(crate) fn pop(&mut self) -> Option<(u64, W)> {
        let (ticket, waiter) = self.places.pop_front()?;
        self.waiting -= 1;
        self.tidy();
        waiter.map(|waiter| (ticket, waiter))
    }

    /// Takes a waiter out, from wherever it stands.
    pub(crate) fn remove(&mut self, ticket: u64) -> Option<W> {
        if self.first() == Some(ticket) {
            return self.pop().map(|(_, waiter)| waiter);
        }
        let index = self.index(ticket)?;
        let waiter = self.places[index].1.take()?;
        self.waiting -= 1;
        self.tidy();
        Some(waiter)
    }

    /// How many stand in front of a waiter.
    pub(crate) fn rank(&self, ticket: u64) -> usize {
        let index = self.index(ticket).unwrap_or(self.places.len());
        let ahead = self.places.iter().take(index);
        ahead.filter(|(_, waiter)| waiter.is_some()).count()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &W)> {
        self.places
            .iter()
            .filter_map(|(ticket, waiter)| Some((*ticket, waiter.as_ref()?)))
    }

    fn index(&self, ticket: u64) -> Option<usize> {
        // Mostly it is the front, or nobody has left yet and each stands where its ticket says.
        let guess = usize::try_from(ticket.checked_sub(self.first()?)?).ok()?;
        if self
            .places
            .get(guess)
            .is_some_and(|place| place.0 == ticket)
        {
            return Some(guess);
        }
        self.places
            .binary_search_by_key(&ticket, |(ticket, _)| *ticket)
            .ok()
    }

    fn tidy(&mut self) {
        while matches!(self.places.front(), Some((_, None))) {
            self.places.pop_front();
        }
        if self.places.capacity() > SMALL {
            self.tidy_much();
        }
    }

    #[inline(never)]
    fn tidy_much(&mut self) {
        if self.places.len() > SMALL && self.places.len() > 2 * self.waiting {
            self.places.retain(|(_, waiter)| waiter.is_some());
        }
        if self.places.len() < self.places.capacity() / 8 {
            self.places.shrink_to(2 * self.places.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push,
        Pop,
        Remove(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Push),
            1 => Just(Step::Pop),
            2 => any::<usize>().prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_list_from_which_anybody_can_leave(steps in prop::collection::vec(step(), 0..400)) {
            let mut queue = Queue::default();
            let mut model: Vec<u64> = Vec::new();
            let mut given = 0;
            for step in steps {
                match step {
                    Step::Push => {
                        given += 1;
                        prop_assert_eq!(queue.next_ticket(), given);
                        queue.push(given);
                        model.push(given);
                    }
                    Step::Pop => {
                        let first = (!model.is_empty()).then(|| model.remove(0));
                        prop_assert_eq!(queue.pop(), first.map(|first| (first, first)));
                    }
                    Step::Remove(pick) => {
                        // One that waits, or one that has left already.
                        let ticket = pick as u64 % (given + 1);
                        let stands = model.iter().position(|waiter| *waiter == ticket);
                        if let Some(rank) = stands {
                            prop_assert_eq!(queue.rank(ticket), rank);
                        }
                        prop_assert_eq!(queue.get(ticket).copied(), stands.map(|_| ticket));
                        prop_assert_eq!(queue.remove(ticket), stands.map(|index| model.remove(index)));
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
                prop_assert_eq!(queue.front(), model.first());
                prop_assert_eq!(queue.first(), model.first().copied());
                prop_assert!(queue.iter().map(|(_, waiter)| *waiter).eq(model.iter().copied()));
                prop_assert!(queue.places.len() <= SMALL.max(2 * model.len()));
            }
        }
    }

    #[test]
    fn gaps_are_closed_by_who_comes_too() {
        let mut queue = Queue::default();
        for waiter in 0..SMALL {
            queue.push(waiter);
        }
        // More gaps than waiters, in a queue that is short.
        for ticket in 2..=SMALL as u64 / 2 + 2 {
            assert!(queue.remove(ticket).is_some());
        }
        queue.push(SMALL);
        assert!(queue.places.len() <= 2 * queue.len());
    }

    #[test]
    fn a_crowd_that_leaves_behind_one_who_stays_leaves_no_room_taken() {
        let mut queue = Queue::default();
        queue.push(0);
        for crowd in 1..=100_000 {
            queue.push(crowd);
        }
        for ticket in 2..=100_001 {
            assert!(queue.remove(ticket).is_some());
        }
        assert_eq!(queue.front(), Some(&0));
        assert!(queue.places.capacity() <= 4 * SMALL);
    }
}
