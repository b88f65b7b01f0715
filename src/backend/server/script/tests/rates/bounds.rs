//! What a quota promises of any window, judged from what was let through.

use crate::backend::Level;
use crate::rate_limit::{Id, Method, Quotas, Rule};

/// What was let through, quota by quota: each promises something of the calls that were judged by it.
#[derive(Debug, Default)]
pub(super) struct Histories(Vec<History>);

/// What was let through by one quota, net of what was given back, by a clock that is never set back.
#[derive(Debug)]
struct History {
    id: Id,
    method: Method,
    /// The most and the least of those that had its name.
    capacity: u32,
    scale_us: u64,
    events: Vec<(u64, i64)>,
}

/// The quotas by which a turn is counted.
#[derive(Debug)]
pub(super) struct Counted(Vec<(Id, Method)>);

impl Histories {
    /// Calls are judged by these, too, from here on.
    pub(super) fn know(&mut self, quotas: &Quotas) {
        for rule in quotas.rules() {
            let history = self.of(&rule.id, rule.method, rule);
            history.capacity = history.capacity.max(rule.capacity);
            history.scale_us = history.scale_us.min(rule.scale_us);
        }
    }

    fn of(&mut self, id: &Id, method: Method, rule: &Rule) -> &mut History {
        let found = self.0.iter().position(|known| known.is(id, method));
        let place = found.unwrap_or_else(|| {
            self.0.push(History {
                id: id.clone(),
                method,
                capacity: rule.capacity,
                scale_us: rule.scale_us,
                events: Vec::new(),
            });
            self.0.len() - 1
        });
        &mut self.0[place]
    }

    /// Something was written: a quota begins anew whose name another algorithm has now.
    pub(super) fn written(&mut self, quotas: &Quotas) {
        for history in &mut self.0 {
            let mut rules = quotas.rules().iter();
            if rules.any(|rule| rule.id == history.id && rule.method != history.method) {
                history.events.clear();
            }
        }
    }

    /// Adds units that were let through. A shadow that would have refused them does not count them.
    pub(super) fn add(
        &mut self,
        at: u64,
        units: u32,
        quotas: &Quotas,
        levels: &[Level],
    ) -> Counted {
        let each = quotas.rules().iter().zip(levels);
        let used = each.filter(|(_, level)| level.retry_after.is_none());
        let used: Vec<_> = used
            .map(|(rule, _)| (rule.id.clone(), rule.method))
            .collect();
        for history in &mut self.0 {
            if used.iter().any(|(id, method)| history.is(id, *method)) {
                history.events.push((at, i64::from(units)));
            }
        }
        Counted(used)
    }

    /// Units were given back to these.
    pub(super) fn refund(&mut self, at: u64, units: u32, quotas: &Quotas) {
        for history in &mut self.0 {
            let mut rules = quotas.rules().iter();
            if rules.any(|rule| history.is(&rule.id, rule.method)) {
                history.events.push((at, -i64::from(units)));
            }
        }
    }

    /// A turn that was given back has never been.
    pub(super) fn remove(&mut self, at: u64, units: u32, counted: &Counted) {
        for history in &mut self.0 {
            if counted.0.iter().any(|(id, method)| history.is(id, *method)) {
                let event = (at, i64::from(units));
                let found = history.events.iter().position(|known| *known == event);
                history.events.remove(found.expect("it was added"));
            }
        }
    }

    pub(super) fn clear(&mut self) {
        for history in &mut self.0 {
            history.events.clear();
        }
    }

    /// Checks each stretch from one event to another, of each quota.
    pub(super) fn keep(&self) -> Result<(), String> {
        self.0.iter().try_for_each(History::keeps)
    }
}

impl History {
    fn is(&self, id: &Id, method: Method) -> bool {
        self.id == *id && self.method == method
    }

    /// Where a rule took the place of another, what was used comes back at the faster rate of the
    /// two, and there is room up to the larger burst.
    fn keeps(&self) -> Result<(), String> {
        let mut events = self.events.clone();
        // What is given back at a moment makes room for what is let through at the same.
        events.sort_unstable();
        for (index, (start, _)) in events.iter().enumerate() {
            if index > 0 && events[index - 1].0 == *start {
                continue;
            }
            let mut sum = 0;
            for (end, units) in &events[index..] {
                sum += units;
                let most = most(
                    self.method,
                    self.capacity.into(),
                    self.scale_us,
                    end - start,
                );
                if let Some(most) = most.filter(|&most| sum > most) {
                    return Err(format!(
                        "{sum} units of {:?} in {} us, where {most} are the most: {events:?}",
                        self.id,
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
///
/// Of a sliding window that was changed, too, by the shortest window and the greatest limit: with each
/// change all that counts is put into the new window as it stands, so what counts never falls but as
/// the window before fades. That holds at most the limit of what was let through, and fades in a window
/// or more; so in less than one, less than a limit fades, and at the end at most a limit counts.
fn most(method: Method, capacity: i64, scale_us: u64, us: u64) -> Option<i64> {
    let window = us < scale_us;
    match method {
        Method::Gcra => Some(capacity + (us / scale_us) as i64),
        Method::Sliding => window.then_some(2 * capacity - 1),
        Method::Strict => window.then_some(capacity),
    }
}
