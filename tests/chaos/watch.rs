//! Whether everybody gets on, and whether nothing is left when all have gone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use crate::now;
use crate::trace::Trace;
use crate::world::{Ask, CLAIM, Kind, World};
use crate::{judge, support::history};
use portcullis::LeaseMode;

/// How long the server keeps what nobody uses, and a second to look.
const KEPT_MS: i64 = 61_000;

/// Returns with what is stuck, as soon as a gate with waiters stands still for longer than anything
/// can explain.
pub(crate) async fn stuck(world: &World) -> String {
    loop {
        sleep(Duration::from_millis(200)).await;
        let moment = now();
        let bound = u64::try_from(world.bound().as_nanos()).unwrap_or(u64::MAX);
        for (task, wait) in world.waiting() {
            let since = world.quiet.load(Ordering::Relaxed).max(wait.since);
            let progress = world.progress[wait.gate].load(Ordering::Relaxed);
            if moment.saturating_sub(since.max(progress)) > bound {
                let place = &world.places[wait.gate];
                return format!(
                    "STUCK: task {task} of process {} waits at {} since {} ms ({:?}); nobody was granted there for {} ms\n{}",
                    wait.process,
                    place.name,
                    (moment - wait.since) / 1_000_000,
                    wait.ask,
                    moment.saturating_sub(progress) / 1_000_000,
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

    pub(crate) fn describe(&self) -> String {
        let ms = |longest: &AtomicU64| longest.load(Ordering::Relaxed) / 1_000_000;
        format!(
            "stood still: the machine {} ms, the runtime {} ms",
            ms(&self.machine),
            ms(&self.runtime)
        )
    }
}

/// All that the server holds and all who wait.
pub(crate) async fn dump(world: &World) -> String {
    let mut text = String::new();
    let show = async |words: &[&str]| match world.server.try_command(words).await {
        Ok(value) => redis::from_redis_value::<Vec<String>>(value.clone())
            .map(|words| words.join(" | "))
            .or_else(|_| redis::from_redis_value::<String>(value))
            .unwrap_or_default(),
        Err(error) => error.to_string(),
    };
    let _ = writeln!(text, "TIME {}", show(&["TIME"]).await);
    for key in world.server.keys_with("").await {
        let kind = show(&["TYPE", &key]).await;
        let value = match kind.as_str() {
            "string" => show(&["GET", &key]).await,
            "hash" => show(&["HGETALL", &key]).await,
            _ => show(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).await,
        };
        let left: i64 = world
            .server
            .try_command(&["PTTL", &key])
            .await
            .ok()
            .and_then(|left| redis::from_redis_value(left).ok())
            .unwrap_or(0);
        let _ = writeln!(text, "{key} ({kind}, {left} ms): {value}");
    }
    let _ = writeln!(text, "channels: {}", show(&["PUBSUB", "CHANNELS"]).await);
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
pub(crate) async fn nothing_is_left(world: &Arc<World>) -> Result<(), String> {
    for process in world.processes() {
        let report = process.gates.shutdown(Duration::from_secs(2)).await;
        if report.abandoned > 0 {
            return Err(format!(
                "process {} shut down and left {report:?}\n{}",
                process.number,
                dump(world).await
            ));
        }
    }
    // A process that hung a moment ago is passed over in place until its heartbeat has ended;
    // whoever comes then clears it away.
    let patience = now() + 2 * u64::try_from(CLAIM.as_nanos()).unwrap_or(u64::MAX);
    loop {
        let probe = world.start_process();
        for place in &world.places {
            let ask = Ask {
                weight: place.cap,
                mode: LeaseMode::Renewed,
                max_wait: Some(world.bound()),
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
            Err(left) if now() > patience => return Err(format!("{left} is left")),
            Err(_) => sleep(Duration::from_millis(500)).await,
            Ok(()) => return Ok(()),
        }
    }
}

async fn leftovers(world: &World) -> Result<(), String> {
    leftovers_of(world, "").await
}

/// Looks for what should not be left of the gates in whose keys `name` occurs.
pub(crate) async fn leftovers_of(world: &World, name: &str) -> Result<(), String> {
    let ask = async |words: &[&str]| world.server.command(words).await;
    for key in world
        .server
        .keys_with("")
        .await
        .into_iter()
        .filter(|key| key.contains(name))
    {
        let left: i64 = redis::from_redis_value(ask(&["PTTL", &key]).await).unwrap_or(-1);
        if left == -2 {
            continue;
        }
        if !(0..=KEPT_MS).contains(&left) {
            return Err(format!("{key} for {left} ms"));
        }
        if key.ends_with(":roster") {
            continue;
        }
        let kind: String = redis::from_redis_value(ask(&["TYPE", &key]).await).unwrap_or_default();
        if kind == "none" {
            continue;
        }
        // Only the counters of a gate may stay.
        let fields: Vec<String> = match kind.as_str() {
            "hash" => redis::from_redis_value(ask(&["HKEYS", &key]).await).unwrap_or_default(),
            _ => vec![format!("a {kind}")],
        };
        if let Some(field) = fields
            .iter()
            .find(|field| !["F", "S", "L"].contains(&field.as_str()))
        {
            let all = if kind == "hash" {
                ask(&["HGETALL", &key]).await
            } else {
                Value::Nil
            };
            return Err(format!("{key}: {field}\n{all:?}"));
        }
    }
    Ok(())
}

/// All that the judges object to.
pub(crate) fn verdict(world: &World, trace: &Trace) -> Vec<String> {
    let mut problems = world.problems();
    problems.extend(trace.problems().iter().take(20).cloned());
    let (taken, losses, silences) = (world.taken(), world.losses(), world.silences());
    for one in taken.iter().filter(|taken| !taken.foreign) {
        for verdict in [
            judge::losses_are_final(&one.looks),
            judge::deadlines_are_earned(one, &silences),
        ] {
            if let Err(problem) = verdict {
                problems.push(format!(
                    "{problem}\n{}",
                    extract(world, std::slice::from_ref(one))
                ));
            }
        }
    }
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
        if let Err(problem) = history::fences_rise(&holds(&ours)) {
            problems.push(format!("{}: {problem}", place.name));
        }
        // A mutex' holds don't overlap, so their fences rise in the order of acquiring.
        let alone = judge::outside_losses(&ours, &losses);
        let alone: Vec<_> = holds(&alone)
            .into_iter()
            .filter(|hold| hold.acquired < hold.ended)
            .collect();
        if place.kind != Kind::Semaphore
            && let Err(problem) = history::fences_follow_holds(&alone)
        {
            problems.push(format!("{}: {problem}", place.name));
        }
        let served: BTreeMap<u64, u64> = trace
            .served(&place.traced())
            .iter()
            .map(|served| (served.fence, served.queued))
            .collect();
        let waits: Vec<history::Wait> = ours
            .iter()
            .map(|taken| history::Wait {
                asked: taken.hold.asked,
                queued: served.get(&taken.hold.fence).copied().unwrap_or(u64::MAX),
                // Strictly first come, first served, so all weights are judged as one.
                weight: 1,
                fence: Some(taken.hold.fence),
            })
            .collect();
        if let Err(problem) = history::order_kept(&waits) {
            problems.push(format!("{}: {problem}", place.name));
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
pub(crate) fn extract(world: &World, taken: &[judge::Taken]) -> String {
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

pub(crate) fn describe(world: &World, trace: &Trace) -> String {
    let counts = &world.counts;
    let read = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::Relaxed);
    format!(
        "granted {}, dropped {}, refused {}, failed {} ({} when quiet), lost {}, buried {}; {} faults, {} crashes, {} spoofed, \
         {} plain holds, {} losses of data; lost() late by {} us at most; server: {} grants, {} in undisturbed order, {} re-entries, \
         {} gaps",
        read(&counts.granted),
        read(&counts.dropped),
        read(&counts.refused),
        read(&counts.failed),
        read(&counts.failed_when_quiet),
        read(&counts.lost),
        read(&counts.buried),
        read(&counts.faults),
        read(&counts.crashes),
        read(&counts.spoofs),
        read(&counts.foreign),
        world.losses().len(),
        counts.late_us.load(Ordering::Relaxed),
        trace.grants,
        trace.undisturbed(),
        trace.reentries,
        trace.gaps,
    )
}
