//! Whether everybody gets on, and whether nothing is left when all have gone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::home::{CLAIM, Home};
use crate::now;
use crate::trace::Trace;
use crate::world::{Ask, Kind, World};
use crate::{judge, support::history};
use portcullis::LeaseMode;

/// How often it is looked whether somebody is stuck.
const STEP: Duration = Duration::from_millis(200);

/// For how long a place could serve: time in which it answered nobody, or this machine did nothing,
/// counts against no gate.
#[derive(Debug, Default)]
struct Service {
    /// Moments, and how much there was by then.
    ticks: Vec<(u64, u64)>,
}

impl Service {
    /// It was looked again; since the last time there was no more than `most` of it.
    fn tick(&mut self, moment: u64, most: u64) {
        let (last, served) = self.ticks.last().copied().unwrap_or((moment, 0));
        let more = moment.saturating_sub(last).min(most);
        self.ticks.push((moment, served + more));
    }

    fn since(&self, moment: u64) -> u64 {
        let first = self.ticks.partition_point(|(at, _)| *at < moment);
        let last = self.ticks.last().map_or(0, |(_, served)| *served);
        self.ticks.get(first).map_or(0, |(_, served)| last - served)
    }
}

/// Returns with what is stuck, as soon as a gate with waiters stands still for longer than anything
/// can explain: a fault, or a machine on which requests are not answered in their time.
pub(crate) async fn stuck<S: Home>(world: &World<S>) -> String {
    let bound = u64::try_from(world.bound().as_nanos()).unwrap_or(u64::MAX);
    let most = u64::try_from((STEP + world.patience()).as_nanos()).unwrap_or(u64::MAX);
    let mut service = Service::default();
    loop {
        sleep(STEP).await;
        let answers = world.server.answers(world.patience()).await;
        let moment = now();
        service.tick(moment, if answers { most } else { 0 });
        for (task, wait) in world.waiting() {
            let since = world.quiet.load(Ordering::Relaxed).max(wait.since);
            let progress = world.progress[wait.gate].load(Ordering::Relaxed);
            let stands = service.since(since.max(progress));
            if stands > bound {
                let place = &world.places[wait.gate];
                return format!(
                    "STUCK: task {task} of process {} waits at {} since {} ms ({:?}); nobody was granted there for {} ms, in {} ms of which requests were answered\n{}",
                    wait.process,
                    place.name,
                    (moment - wait.since) / 1_000_000,
                    wait.ask,
                    moment.saturating_sub(progress) / 1_000_000,
                    stands / 1_000_000,
                    dump(world).await
                );
            }
        }
    }
}

/// The longest that the machine, and the runtime of the test, stood still: what came late by no
/// more than that was not late.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stalls {
    machine: Arc<AtomicU64>,
    runtime: Arc<AtomicU64>,
}

impl Stalls {
    /// Watches as long as the runtime lives, and the process.
    pub(crate) fn watch() -> Self {
        const STEP: Duration = Duration::from_millis(10);
        let stalls = Self::default();
        let machine = Arc::downgrade(&stalls.machine);
        std::thread::spawn(move || {
            let mut last = now();
            while let Some(longest) = machine.upgrade() {
                std::thread::sleep(STEP);
                longest.fetch_max(
                    now() - std::mem::replace(&mut last, now()),
                    Ordering::Relaxed,
                );
            }
        });
        let runtime = Arc::downgrade(&stalls.runtime);
        tokio::spawn(async move {
            let mut last = now();
            while let Some(longest) = runtime.upgrade() {
                sleep(STEP).await;
                longest.fetch_max(
                    now() - std::mem::replace(&mut last, now()),
                    Ordering::Relaxed,
                );
            }
        });
        stalls
    }

    pub(crate) fn longest(&self) -> u64 {
        let read = |longest: &AtomicU64| longest.load(Ordering::Relaxed);
        read(&self.machine).max(read(&self.runtime))
    }

    /// The longest since this was asked last: of the machine, and of the runtime.
    pub(crate) fn take(&self) -> (u64, u64) {
        let take = |longest: &AtomicU64| longest.swap(0, Ordering::Relaxed);
        (take(&self.machine), take(&self.runtime))
    }

    pub(crate) fn describe(&self) -> String {
        let ms = |longest: &AtomicU64| longest.load(Ordering::Relaxed) / 1_000_000;
        format!(
            "stood still: the machine {} ms, the runtime {} ms",
            ms(&self.machine),
            ms(&self.runtime)
        )
    }
}

/// All that is held and all who wait.
pub(crate) async fn dump<S: Home>(world: &World<S>) -> String {
    let mut text = world.server.dump().await;
    let moment = now();
    let sorted: BTreeMap<_, _> = world.waiting().into_iter().collect();
    for (task, wait) in sorted {
        let place = &world.places[wait.gate].name;
        let _ = writeln!(
            text,
            "task {task}, process {}: waits at {place} for {} ms, {:?}",
            wait.process,
            (moment - wait.since) / 1_000_000,
            wait.ask
        );
    }
    for (at, fault) in world.faults(moment.saturating_sub(30_000_000_000), moment) {
        let _ = writeln!(text, "{} ms ago: {fault}", (moment - at) / 1_000_000);
    }
    text
}

/// All processes shut down; then one that never was there before gets all of each gate, and gives
/// it back, and nothing is left.
pub(crate) async fn nothing_is_left<S: Home>(world: &Arc<World<S>>) -> Result<(), String> {
    for process in world.processes() {
        let report = timeout(
            world.bound(),
            process.gates.shutdown(Duration::from_secs(2)),
        );
        let report = report.await;
        if !matches!(&report, Ok(report) if report.abandoned == 0) {
            return Err(format!(
                "process {} shut down and left {report:?}\n{}",
                process.number,
                dump(world).await
            ));
        }
    }
    if timeout(world.bound(), world.all_let_go()).await.is_err() {
        return Err(format!("somebody holds for ever\n{}", dump(world).await));
    }
    // Where nothing is ever on its way, there is nothing to wait for.
    if S::EXACT
        && let Err(left) = leftovers(world).await
    {
        return Err(format!("{left} when all had gone"));
    }
    let max_wait = if S::EXACT {
        Duration::ZERO
    } else {
        world.bound()
    };
    // A process that hung a moment ago is passed over in place until its heartbeat has ended;
    // whoever comes then clears it away.
    let patience = 2 * CLAIM + world.server.kept_longer();
    let patience = now() + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
    loop {
        let probe = world.start_process();
        for place in &world.places {
            let ask = Ask {
                weight: place.cap,
                limit: place.cap,
                mode: LeaseMode::Renewed,
                max_wait: Some(max_wait),
            };
            match probe.acquire(place, ask).await {
                Ok(guard) => drop(guard.release().await),
                Err(error) => {
                    return Err(format!(
                        "{} can't be had by anybody: {error}\n{}",
                        place.name,
                        dump(world).await
                    ));
                }
            }
        }
        probe.gates.shutdown(Duration::from_secs(2)).await;
        match leftovers(world).await {
            Err(left) if S::EXACT || now() > patience => return Err(format!("{left} is left")),
            Err(_) => sleep(Duration::from_millis(500)).await,
            Ok(()) => return Ok(()),
        }
    }
}

async fn leftovers<S: Home>(world: &World<S>) -> Result<(), String> {
    world.server.leftovers("").await
}

/// All that the judges object to. Without a trace of what the server did, a wait stands in the
/// queue as soon as it was polled. `patience` is how long the machine may keep somebody waiting, in
/// ns.
pub(crate) fn verdict<S: Home>(
    world: &World<S>,
    trace: Option<&Trace>,
    patience: u64,
) -> Vec<String> {
    let mut problems = world.problems();
    let (mut losses, silences, cuts) = (world.losses(), world.silences(), world.cuts());
    if world.believes_longer() > 0 {
        for loss in &mut losses {
            loss.to += world.believes_longer() + patience;
        }
    }
    let outages = world.outages();
    let mut taken = judge::cut_short(world.taken(), &cuts);
    if S::EXACT {
        taken = judge::held_unseen(taken, &cuts, &outages);
    }
    for one in taken.iter().filter(|taken| !taken.foreign) {
        let mut verdicts = vec![
            judge::losses_are_final(&one.looks),
            judge::deadlines_are_earned(one, &silences),
            judge::cuts_are_final(one, &cuts),
        ];
        if S::EXACT {
            verdicts.push(judge::losses_have_causes(one, &cuts, &outages));
            verdicts.push(judge::the_unreachable_grant_nothing(one, &silences));
            verdicts.push(judge::silences_end_leases(one, &silences));
        }
        for problem in verdicts.into_iter().filter_map(Result::err) {
            let one = extract(world, std::slice::from_ref(one));
            problems.push(format!("{problem}\n{one}"));
        }
    }
    let overtime = 1000 * world.counts.overtime_us.load(Ordering::Relaxed);
    if S::EXACT && overtime > patience {
        problems.push(format!("a wait took {overtime} ns beyond its limit"));
    }
    let stays = world.stays();
    for (gate, place) in world.places.iter().enumerate() {
        let here: Vec<_> = taken
            .iter()
            .filter(|taken| taken.gate == gate)
            .cloned()
            .collect();
        let ours: Vec<_> = here
            .iter()
            .filter(|taken| !taken.foreign)
            .cloned()
            .collect();
        let counted = judge::outside_losses(&here, &losses);
        let holds =
            |taken: &[judge::Taken]| taken.iter().map(|taken| taken.hold).collect::<Vec<_>>();
        if let Err(problem) = history::cap_kept(&holds(&counted), place.cap) {
            let crowd = judge::crowd(&counted, place.cap);
            problems.push(format!(
                "{}: {problem}\n{}",
                place.name,
                extract(world, &crowd)
            ));
        }
        // A kept permit of a semaphore has none.
        let fenced = |taken: &[judge::Taken]| {
            let fenced = |taken: &&judge::Taken| {
                taken.hold.fence > 0 || place.kind != Kind::Semaphore || !world.keeps(place)
            };
            taken.iter().filter(fenced).cloned().collect::<Vec<_>>()
        };
        if let Err(problem) = history::fences_rise(&holds(&fenced(&ours))) {
            problems.push(format!("{}: {problem}", place.name));
        }
        let alone = judge::outside_losses(&ours, &losses);
        if S::ORDERED
            && let Err((problem, crowd)) = judge::limits_kept(&fenced(&alone))
        {
            problems.push(format!(
                "{}: {problem}\n{}",
                place.name,
                extract(world, &crowd)
            ));
        }
        // A mutex' holds don't overlap, so their fences rise in the order of acquiring.
        let alone: Vec<_> = holds(&alone)
            .into_iter()
            .filter(|hold| hold.acquired < hold.ended)
            .collect();
        if place.kind != Kind::Semaphore
            && let Err(problem) = history::fences_follow_holds(&alone)
        {
            problems.push(format!("{}: {problem}", place.name));
        }
        let served: Option<BTreeMap<u64, u64>> = trace.map(|trace| {
            trace
                .served(&place.traced())
                .iter()
                .map(|served| (served.fence, served.queued))
                .collect()
        });
        let waits: Vec<history::Wait> = ours
            .iter()
            .map(|taken| history::Wait {
                asked: taken.hold.asked,
                queued: served
                    .as_ref()
                    .map_or(taken.pended, |served| {
                        served.get(&taken.hold.fence).copied()
                    })
                    .unwrap_or(u64::MAX),
                // Strictly first come, first served, so all weights are judged as one.
                weight: 1,
                fence: Some(taken.hold.fence),
            })
            .collect();
        if S::ORDERED
            && !world.keeps(place)
            && let Err(problem) = history::order_kept(&waits)
        {
            problems.push(format!("{}: {problem}", place.name));
        }
        if S::EXACT {
            let stays: Vec<_> = stays
                .iter()
                .filter(|stay| stay.gate == gate)
                .copied()
                .collect();
            let standing = judge::nobody_is_left_standing(&ours, &stays, &outages, patience);
            if let Err(problem) = standing {
                problems.push(format!("{}: {problem}", place.name));
            }
        }
    }
    if let Some(trace) = trace {
        problems.extend(by_the_server(world, trace, &taken));
    }
    problems
}

/// What the server's own account contradicts.
fn by_the_server<S: Home>(world: &World<S>, trace: &Trace, taken: &[judge::Taken]) -> Vec<String> {
    let mut problems: Vec<String> = trace.problems().iter().take(20).cloned().collect();
    let ahead = ahead();
    for (gate, place) in world.places.iter().enumerate() {
        let name = trace.name_of(&place.traced()).unwrap_or_default();
        for one in taken
            .iter()
            .filter(|taken| taken.gate == gate && !taken.foreign)
        {
            if let Some(lease) = trace.lease(&name, one.hold.fence)
                && let Err(problem) = judge::deadlines_are_the_servers(one, lease, ahead)
            {
                problems.push(format!(
                    "{problem}: {lease:?}\n{}",
                    extract(world, std::slice::from_ref(one))
                ));
            }
        }
    }
    problems
}

/// By how much this machine's wall clock, which is the server's, is ahead of the one that is judged
/// by, in us.
fn ahead() -> u64 {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(wall.unwrap_or_default().as_micros()).unwrap_or(0) - now() / 1000
}

/// Some holds, and the faults around them.
pub(crate) fn extract<S: Home>(world: &World<S>, taken: &[judge::Taken]) -> String {
    let from = taken
        .iter()
        .map(|taken| taken.hold.asked)
        .min()
        .unwrap_or(0);
    let to = taken
        .iter()
        .map(|taken| taken.hold.ended)
        .max()
        .unwrap_or(u64::MAX);
    let ms = |at: u64| at as f64 / 1e6 - from as f64 / 1e6;
    let mut text = String::new();
    for one in taken {
        let judge::Taken {
            process,
            task,
            hold,
            looks,
            ttl,
            longest,
            foreign,
            ..
        } = one;
        let _ = writeln!(
            text,
            "  process {process} task {task} foreign {foreign} weight {} fence {} ttl {} ms longest {longest:?}: asked {:.1}, acquired {:.1}, ended {:.1}",
            hold.weight,
            hold.fence,
            ttl / 1_000_000,
            ms(hold.asked),
            ms(hold.acquired),
            ms(hold.ended)
        );
        let last = looks.len().saturating_sub(12);
        for look in &looks[last..] {
            let until = if look.held { ms(look.deadline) } else { 0.0 };
            let _ = writeln!(
                text,
                "    at {:.1}: held {}, until {until:.1}",
                ms(look.at),
                look.held
            );
        }
    }
    for (at, fault) in world.faults(from.saturating_sub(5_000_000_000), to) {
        let _ = writeln!(text, "  at {:.1}: {fault}", ms(at));
    }
    text
}

pub(crate) fn describe<S: Home>(world: &World<S>) -> String {
    let counts = &world.counts;
    let read = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::Relaxed);
    format!(
        "granted {} and {}, dropped {}, refused {}, failed {} ({} when quiet), lost {}, buried {}, \
         {} waits; {} faults, {} crashes, {} outages, {} expired, {} spoofed, {} plain holds, \
         {} losses of data; late by at most: lost() {} us, the end of a wait {} us",
        read(&counts.granted),
        read(&counts.in_bursts),
        read(&counts.dropped),
        read(&counts.refused),
        read(&counts.failed),
        read(&counts.failed_when_quiet),
        read(&counts.lost),
        read(&counts.buried),
        world.stays().len(),
        read(&counts.faults),
        read(&counts.crashes),
        world.outages().len(),
        read(&counts.expired),
        read(&counts.spoofs),
        read(&counts.foreign),
        world.losses().len(),
        counts.late_us.load(Ordering::Relaxed),
        counts.overtime_us.load(Ordering::Relaxed),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_requests_were_answered_counts() {
        let mut service = Service::default();
        assert_eq!(service.since(0), 0);
        for (moment, most) in [(100, 30), (120, 30), (140, 0), (160, 30), (260, 30)] {
            service.tick(moment, most);
        }
        // 20 until 120, nothing until 140, 20 until 160, and 30 of the last 100.
        assert_eq!(service.since(0), 70);
        assert_eq!(service.since(120), 50);
        // From the next look on.
        assert_eq!(service.since(121), 50);
        assert_eq!(service.since(150), 30);
        assert_eq!(service.since(260), 0);
        // Not yet.
        assert_eq!(service.since(u64::MAX), 0);
    }
}
