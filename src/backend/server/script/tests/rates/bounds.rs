//! What a quota promises of any window, judged from what was let through.

use crate::rate_limit::{Method, Rule};

/// What was let through, net of what was given back, by a clock that is never set back.
#[derive(Debug, Default)]
pub(super) struct History(Vec<(u64, i64)>);

impl History {
    pub(super) fn add(&mut self, at: u64, units: i64) {
        self.0.push((at, units));
    }

    /// A turn that was given back has never been.
    pub(super) fn remove(&mut self, at: u64, units: i64) {
        let found = self.0.iter().position(|event| *event == (at, units));
        self.0.remove(found.expect("it was added"));
    }

    /// Checks each stretch from one event to another. Where a rule took the place of another, what
    /// was used comes back at the faster rate of the two, and there is room up to the larger burst.
    pub(super) fn keeps(&self, rules: &[&Rule]) -> Result<(), String> {
        let capacity = rules.iter().map(|rule| i64::from(rule.capacity)).max();
        let scale_us = rules.iter().map(|rule| rule.scale_us).min();
        let (Some(capacity), Some(scale_us)) = (capacity, scale_us) else {
            return Ok(());
        };
        let mut events = self.0.clone();
        // What is given back at a moment makes room for what is let through at the same.
        events.sort_unstable();
        for (index, (start, _)) in events.iter().enumerate() {
            if index > 0 && events[index - 1].0 == *start {
                continue;
            }
            let mut sum = 0;
            for (end, units) in &events[index..] {
                sum += units;
                let most = most(rules[0].method, capacity, scale_us, end - start);
                if let Some(most) = most.filter(|&most| sum > most) {
                    return Err(format!(
                        "{sum} units in {} us, where {most} are the most: {events:?}",
                        end - start
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The most units from one moment to another, both included; `None` where nothing is said of so long
/// a time.
fn most(method: Method, capacity: i64, scale_us: u64, us: u64) -> Option<i64> {
    let window = us < scale_us;
    match method {
        Method::Gcra => Some(capacity + (us / scale_us) as i64),
        Method::Sliding => window.then_some(2 * capacity - 1),
        Method::Strict => window.then_some(capacity),
    }
}
