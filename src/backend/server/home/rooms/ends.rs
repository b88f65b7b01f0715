//! When the waits of those who wait here end.

use std::collections::VecDeque;

use crate::time::Instant;

/// In their order, which is nearly that in which they come: most wait for as long as the one before, so
/// they come at the back and go from the front. Waits without an end are none.
#[derive(Debug, Default)]
pub(super) struct Ends(VecDeque<(Instant, u64)>);

impl Ends {
    pub(super) fn insert(&mut self, end: Instant, id: u64) {
        if end == Instant::FAR {
            return;
        }
        match self.0.back() {
            Some(last) if (end, id) < *last => {
                let at = self.0.partition_point(|other| *other < (end, id));
                self.0.insert(at, (end, id));
            }
            _ => self.0.push_back((end, id)),
        }
    }

    pub(super) fn remove(&mut self, end: Instant, id: u64) {
        if self.0.front() == Some(&(end, id)) {
            self.0.pop_front();
        } else if let Ok(at) = self.0.binary_search(&(end, id)) {
            self.0.remove(at);
        }
    }

    pub(super) fn first(&self) -> Option<Instant> {
        self.0.front().map(|(end, _)| *end)
    }

    /// One whose wait has ended by `now`, no longer counted from here on.
    pub(super) fn pop(&mut self, now: Instant) -> Option<u64> {
        let (end, id) = *self.0.front()?;
        if end > now {
            return None;
        }
        self.0.pop_front();
        Some(id)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_come_and_go_in_any_order_and_are_told_in_theirs(
            steps in prop::collection::vec((0..3_u8, 0..20_u64), 0..200),
        ) {
            let (mut ends, mut model) = (Ends::default(), BTreeSet::new());
            for (id, (step, at)) in (0_u64..).zip(steps) {
                let moment = Instant::from_nanos(at);
                match step {
                    0 => {
                        ends.insert(moment, id);
                        model.insert((moment, id));
                    }
                    1 => {
                        let some = model.iter().nth(at as usize).copied();
                        let (end, id) = some.unwrap_or((moment, id));
                        ends.remove(end, id);
                        model.remove(&(end, id));
                    }
                    _ => {
                        let over = model.first().copied().filter(|(end, _)| *end <= moment);
                        prop_assert_eq!(ends.pop(moment), over.map(|(_, id)| id));
                        model.retain(|other| Some(*other) != over);
                    }
                }
                prop_assert_eq!(ends.first(), model.first().map(|(end, _)| *end));
            }
        }
    }

    #[test]
    fn who_waits_without_an_end_is_not_among_them() {
        let mut ends = Ends::default();
        ends.insert(Instant::FAR, 1);
        ends.remove(Instant::FAR, 1);
        assert_eq!(ends.first(), None);
        assert_eq!(ends.pop(Instant::FAR), None);
    }
}
