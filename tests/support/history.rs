//! What happened at a gate, and the judges of it: exclusion, fences, order. Judges come with
//! histories that they must refuse.
//!
//! All times are of one machine's monotonic clock, in nanoseconds, so that histories of several
//! processes can be joined.

use std::sync::{Arc, Mutex, PoisonError};

/// One holding of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    /// When it was asked for: before the call.
    pub(crate) asked: u64,
    /// When the holder first knew that it held.
    pub(crate) acquired: u64,
    /// When it let go, or was to know that it had lost, whichever is earlier.
    pub(crate) ended: u64,
    pub(crate) fence: u64,
    pub(crate) weight: u32,
}

/// One wait in a gate's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Just before it was asked for.
    pub(crate) asked: u64,
    /// When it was first known to stand in the queue: an answer, or a look at the server.
    pub(crate) queued: u64,
    pub(crate) weight: u32,
    /// The fence it was granted with, which is the order of the grants on the server; `None` if it
    /// was not granted.
    pub(crate) fence: Option<u64>,
}

/// A log that many tasks write.
#[derive(Debug, Clone, Default)]
pub(crate) struct History(Arc<Mutex<Log>>);

#[derive(Debug, Default)]
struct Log {
    holds: Vec<Hold>,
    waits: Vec<Wait>,
}

impl History {
    /// The clock of all histories.
    pub(crate) fn now() -> u64 {
        let reading = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        reading.tv_sec as u64 * 1_000_000_000 + reading.tv_nsec as u64
    }

    pub(crate) fn held(&self, hold: Hold) {
        self.log(|log| log.holds.push(hold));
    }

    pub(crate) fn waited(&self, wait: Wait) {
        self.log(|log| log.waits.push(wait));
    }

    pub(crate) fn holds(&self) -> Vec<Hold> {
        self.log(|log| log.holds.clone())
    }

    pub(crate) fn waits(&self) -> Vec<Wait> {
        self.log(|log| log.waits.clone())
    }

    /// Panics unless every judge is content with the history of a gate of `cap` permits.
    pub(crate) fn assert_sound(&self, cap: u32) {
        let holds = self.holds();
        let verdicts = [
            cap_kept(&holds, cap),
            fences_rise(&holds),
            order_kept(&self.waits()),
        ];
        for verdict in verdicts {
            if let Err(problem) = verdict {
                panic!("{problem}");
            }
        }
    }

    fn log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// M1 and S0: at no moment is more held than `cap`, weights counted. A hold includes its first
/// moment and not its last.
pub(crate) fn cap_kept(holds: &[Hold], cap: u32) -> Result<(), String> {
    let most = most_inside(holds);
    if most > u64::from(cap) {
        Err(format!("{most} inside at once, of {cap}"))
    } else {
        Ok(())
    }
}

/// The greatest sum of weights held at one moment, by a sweep over all beginnings and ends.
pub(crate) fn most_inside(holds: &[Hold]) -> u64 {
    let held = holds.iter().filter(|hold| hold.acquired < hold.ended);
    let mut events: Vec<(u64, i64)> = held
        .flat_map(|hold| {
            [
                (hold.acquired, i64::from(hold.weight)),
                (hold.ended, -i64::from(hold.weight)),
            ]
        })
        .collect();
    // At one moment ends come first, because they are negative.
    events.sort_unstable();
    let mut inside = 0;
    let mut most = 0;
    for (_, change) in events {
        inside += change;
        most = most.max(inside);
    }
    most.unsigned_abs()
}

/// M3: whoever acquired before another asked has the smaller fence, and no fence is given twice.
/// For holds that don't overlap at all, as a mutex', the order of acquiring is the order of the
/// fences too: see [`fences_follow_holds`].
pub(crate) fn fences_rise(holds: &[Hold]) -> Result<(), String> {
    let mut fences: Vec<u64> = holds.iter().map(|hold| hold.fence).collect();
    fences.sort_unstable();
    if let Some(twice) = fences.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("fence {} was given twice", twice[0]));
    }
    let before = holds.iter().map(|hold| (hold.acquired, hold.fence));
    let after = holds.iter().map(|hold| (hold.asked, hold.fence));
    match inversion(before.collect(), after.collect()) {
        Some((early, late)) => Err(format!(
            "fence {early} was acquired before {late} was asked for"
        )),
        None => Ok(()),
    }
}

/// M3 for a mutex: in the order of acquiring, each fence is greater than all before it.
pub(crate) fn fences_follow_holds(holds: &[Hold]) -> Result<(), String> {
    let mut holds: Vec<&Hold> = holds.iter().collect();
    holds.sort_unstable_by_key(|hold| hold.acquired);
    match holds.windows(2).find(|pair| pair[0].fence >= pair[1].fence) {
        Some(pair) => Err(format!(
            "fence {} was followed by {}",
            pair[0].fence, pair[1].fence
        )),
        None => Ok(()),
    }
}

/// F1: of two waits of one weight, the one known to stand in the queue before the other was asked
/// for is granted first.
pub(crate) fn order_kept(waits: &[Wait]) -> Result<(), String> {
    let mut weights: Vec<u32> = waits.iter().map(|wait| wait.weight).collect();
    weights.sort_unstable();
    weights.dedup();
    for weight in weights {
        let granted = || {
            waits
                .iter()
                .filter(|wait| wait.weight == weight)
                .filter_map(|wait| Some((wait, wait.fence?)))
        };
        let before = granted().map(|(wait, fence)| (wait.queued, fence));
        let after = granted().map(|(wait, fence)| (wait.asked, fence));
        if let Some((early, late)) = inversion(before.collect(), after.collect()) {
            return Err(format!(
                "the grant with fence {late} overtook the one with fence {early}, weight {weight}"
            ));
        }
    }
    Ok(())
}

/// L1 at the end of a run: nobody who was to be served was left out.
pub(crate) fn all_granted(waits: &[Wait]) -> Result<(), String> {
    match waits.iter().filter(|wait| wait.fence.is_none()).count() {
        0 => Ok(()),
        left => Err(format!("{left} of {} waits were not served", waits.len())),
    }
}

/// Finds a pair whose first lies strictly before the second in time, and has the greater number: by
/// a prefix maximum.
fn inversion(mut before: Vec<(u64, u64)>, mut after: Vec<(u64, u64)>) -> Option<(u64, u64)> {
    before.sort_unstable();
    after.sort_unstable();
    let mut passed = before.into_iter().peekable();
    let mut greatest = None;
    for (time, number) in after {
        while let Some((_, early)) = passed.next_if(|&(earlier, _)| earlier < time) {
            greatest = greatest.max(Some(early));
        }
        if let Some(greatest) = greatest.filter(|&greatest| greatest > number) {
            return Some((greatest, number));
        }
    }
    None
}
