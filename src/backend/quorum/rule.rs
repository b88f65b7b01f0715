//! How many servers an acquisition needs, and what follows from how it stands at each.

use crate::time::Instant;

/// How many of `servers` have to give their vote so that no more than `limit` permits are out.
///
/// If one more than `limit` were held on `q` servers each, these were (limit + 1) · q votes. Each
/// server gives `limit` at most, and all together servers · limit: so q has to be greater than
/// servers · limit / (limit + 1). For a lock that is the majority.
pub(super) const fn needed(servers: usize, limit: u32) -> usize {
    let (servers, limit) = (servers as u64, limit as u64);
    (servers * limit / (limit + 1) + 1) as usize
}

/// How many of `servers` may fail while a gate of so many permits can still be entered.
pub(crate) const fn tolerated(servers: usize, limit: u32) -> usize {
    servers - needed(servers, limit)
}

/// Until when so many votes are held together, if each is until one of `ends`: their `needed`-th
/// latest. `None` if there are fewer.
pub(super) fn until(ends: impl Iterator<Item = Instant>, needed: usize) -> Option<Instant> {
    let mut ends: Vec<Instant> = ends.collect();
    ends.sort_unstable();
    ends.len().checked_sub(needed).map(|at| ends[at])
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Whether so many can hold at once, each on `votes` servers, where each server lets `limit` in:
    /// by trying all choices. States that differ only in which server is which are one.
    fn can_all_hold(servers: usize, limit: u32, holders: u32, votes: usize) -> bool {
        let choices: Vec<u32> = (0_u32..1 << servers)
            .filter(|choice| choice.count_ones() as usize == votes)
            .collect();
        let mut states = HashSet::from([vec![0; servers]]);
        for _ in 0..holders {
            let mut next = HashSet::new();
            for state in &states {
                for choice in &choices {
                    let mut state: Vec<u32> = state.clone();
                    for (server, load) in state.iter_mut().enumerate() {
                        *load += choice >> server & 1;
                    }
                    if state.iter().all(|load| *load <= limit) {
                        state.sort_unstable();
                        next.insert(state);
                    }
                }
            }
            states = next;
        }
        !states.is_empty()
    }

    #[test]
    fn as_many_votes_as_are_needed_keep_one_more_out_and_one_less_does_not() {
        for servers in 1..=7 {
            for limit in 1..=8 {
                let needed = needed(servers, limit);
                assert!(needed <= servers);
                assert!(can_all_hold(servers, limit, limit, needed));
                assert!(
                    !can_all_hold(servers, limit, limit + 1, needed),
                    "{needed} of {servers} servers let more than {limit} in"
                );
                assert!(
                    needed == 1 || can_all_hold(servers, limit, limit + 1, needed - 1),
                    "{needed} of {servers} servers are more than {limit} permits need"
                );
            }
        }
    }

    #[test]
    fn what_is_tolerated_is_as_documented() {
        let of_five: Vec<usize> = (1..=5).map(|limit| tolerated(5, limit)).collect();
        assert_eq!(of_five, [2, 1, 1, 0, 0]);
        assert_eq!([tolerated(3, 1), tolerated(3, 2)], [1, 0]);
        assert_eq!(tolerated(4, 1), 1);
        assert_eq!(tolerated(9, u32::MAX), 0);
    }

    #[test]
    fn votes_are_held_together_until_the_first_of_so_many_ends() {
        let ends = |times: &[u64]| -> Vec<Instant> {
            times
                .iter()
                .map(|time| Instant::from_nanos(*time))
                .collect()
        };
        let together = |times: &[u64]| until(ends(times).into_iter(), 3);
        assert_eq!(together(&[7, 9]), None);
        assert_eq!(together(&[7, 9, 8]), Some(Instant::from_nanos(7)));
        assert_eq!(together(&[7, 1, 9, 2, 8]), Some(Instant::from_nanos(7)));
    }
}
