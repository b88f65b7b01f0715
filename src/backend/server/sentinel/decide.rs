//! Which master is believed in, of those that sentinels name.

use crate::time::Instant;

/// What one sentinel says, or what is believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opinion {
    pub(super) host: String,
    pub(super) port: u16,
    /// How many failovers led to it; 0 where the sentinel does not tell.
    pub(super) epoch: u64,
    /// Since when the sentinel has named it at the least; `None` where it does not tell.
    pub(super) since: Option<Instant>,
}

impl Opinion {
    pub(super) fn names_the_same(&self, other: &Self) -> bool {
        self.host == other.host && self.port == other.port
    }
}

/// What to believe, of all that the living ones of `known` sentinels say last. `None` is no reason
/// to believe something else than before.
///
/// The latest failover counts, and who knows less of it is behind: a sentinel that was stopped or
/// cut off names the old master for a while. Only when more than half of all sentinels agree on
/// less than is believed, they were set up anew.
pub(super) fn decide(
    believed: Option<&Opinion>,
    said: &[&Opinion],
    known: usize,
) -> Option<Opinion> {
    let votes = |opinion: &Opinion| {
        let same =
            |other: &&&Opinion| other.names_the_same(opinion) && other.epoch == opinion.epoch;
        said.iter().filter(same).count()
    };
    // The first of those that are equal.
    let best = said
        .iter()
        .rev()
        .max_by_key(|opinion| (opinion.epoch, votes(opinion)))?;
    let Some(believed) = believed else {
        return Some((*best).clone());
    };
    let is_news = if best.epoch > believed.epoch {
        true
    } else if best.epoch == believed.epoch {
        // That of the believed one is counted too, where somebody still says it.
        votes(best) > votes(believed)
    } else {
        2 * votes(best) > known
    };
    is_news.then(|| (*best).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opinion(host: &str, epoch: u64) -> Opinion {
        let host = host.to_owned();
        Opinion {
            host,
            port: 1,
            epoch,
            since: None,
        }
    }

    /// The host that three sentinels make us believe in.
    fn believed(before: Option<(&str, u64)>, said: &[(&str, u64)]) -> Option<String> {
        let before = before.map(|(host, epoch)| opinion(host, epoch));
        let said: Vec<Opinion> = said
            .iter()
            .map(|&(host, epoch)| opinion(host, epoch))
            .collect();
        let said: Vec<&Opinion> = said.iter().collect();
        decide(before.as_ref(), &said, 3).map(|opinion| opinion.host)
    }

    #[test]
    fn the_latest_failover_counts_whoever_knows_of_it() {
        let said = [("old", 1), ("new", 2), ("old", 1)];
        assert_eq!(believed(None, &said).as_deref(), Some("new"));
        assert_eq!(believed(Some(("old", 1)), &said).as_deref(), Some("new"));
    }

    #[test]
    fn a_sentinel_that_is_behind_is_not_believed() {
        assert_eq!(believed(Some(("new", 2)), &[("old", 1)]), None);
        assert_eq!(believed(Some(("new", 2)), &[]), None);
    }

    #[test]
    fn sentinels_that_were_set_up_anew_are_believed_when_most_agree() {
        let before = Some(("new", 7));
        assert_eq!(
            believed(before, &[("third", 0), ("third", 0)]).as_deref(),
            Some("third")
        );
        assert_eq!(believed(before, &[("third", 0), ("fourth", 0)]), None);
    }

    #[test]
    fn of_those_that_know_the_same_most_decide() {
        let said = [("old", 0), ("new", 0), ("new", 0)];
        assert_eq!(believed(None, &said).as_deref(), Some("new"));
        assert_eq!(believed(Some(("old", 0)), &said).as_deref(), Some("new"));
        assert_eq!(believed(Some(("old", 0)), &[("old", 0), ("new", 0)]), None);
    }
}
