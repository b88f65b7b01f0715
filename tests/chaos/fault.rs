//! What is done to the system: to one process' network, to the server, to the channels, to a key;
//! to the servers of a quorum, and to gates in memory.

mod memory;
mod quorum;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::home::{Home, Links, PREFIX, Remote};
use crate::judge::{Loss, Silence, Taken};
use crate::now;
use crate::random::Random;
use crate::support::{Flow, Hold, Mode};
use crate::world::{Kind, World};

/// The faults of a run, until they are told to stop. Then all is healed.
#[derive(Debug)]
pub(crate) struct Faults {
    end: CancellationToken,
    tasks: JoinSet<()>,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            end: CancellationToken::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Cuts all subscriptions every `period`.
    pub(crate) fn kill_subscriptions(&mut self, world: &Arc<World>, period: Duration) {
        let (world, end) = (Arc::clone(world), self.end.clone());
        self.tasks.spawn(async move {
            let mut connection = None;
            while !end.is_cancelled() {
                let kill = ["CLIENT", "KILL", "TYPE", "pubsub"];
                world.counts.faults.fetch_add(1, Ordering::Relaxed);
                let _ = ask(&world, &mut connection, &kill).await;
                sleep(period).await;
            }
        });
    }

    /// Crashes a process about every `period`.
    pub(crate) fn crash<S: Remote>(&mut self, world: &Arc<World<S>>, seed: u64, period: Duration) {
        let (world, end) = (Arc::clone(world), self.end.clone());
        let mut random = Random::stream(seed, 2_000_000);
        self.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = end.cancelled() => return,
                    () = sleep(random.part(period, 50, 150)) => {}
                }
                let slot = random.below(64);
                world.crash(usize::try_from(slot).unwrap_or(0), random.chance(50));
            }
        });
    }

    /// Breaks the network of the process in `slot`, again and again in one of many ways.
    pub(crate) fn break_network<S: Remote>(
        &mut self,
        world: &Arc<World<S>>,
        seed: u64,
        slot: usize,
    ) {
        let (world, end) = (Arc::clone(world), self.end.clone());
        let mut random = Random::stream(seed, 3_000_000 + slot as u64);
        self.tasks.spawn(async move {
            while !end.is_cancelled() {
                pause(&end, random.millis(100, 1500)).await;
                if !end.is_cancelled() {
                    network_fault(&world, slot, &mut random).await;
                }
            }
        });
    }

    /// Does to the server what admins, kernels and crashes do.
    pub(crate) fn break_server(&mut self, world: &Arc<World>, seed: u64) {
        let (world, end) = (Arc::clone(world), self.end.clone());
        let mut random = Random::stream(seed, 4_000_000);
        self.tasks.spawn(async move {
            while !end.is_cancelled() {
                pause(&end, random.millis(100, 1500)).await;
                if !end.is_cancelled() {
                    server_fault(&world, &mut random).await;
                }
            }
        });
    }

    /// Publishes to every inbox, a thousand times a second and with pauses: garbage, repetitions,
    /// what was meant for others.
    pub(crate) fn spoof(&mut self, world: &Arc<World>, seed: u64) {
        let (world, end) = (Arc::clone(world), self.end.clone());
        self.tasks.spawn(async move {
            let mut random = Random::stream(seed, 5_000_000);
            while !end.is_cancelled() {
                // Whatever cuts its connections is no concern of this test's.
                let _ = spoof_for_a_while(&world, &end, &mut random).await;
                pause(&end, random.millis(100, 2000)).await;
            }
        });
    }

    /// Locks the exact keys as plain clients do: `SET NX PX`, and a delete if it is still theirs.
    pub(crate) fn lock_plainly(&mut self, world: &Arc<World>, seed: u64) {
        let exact: Vec<usize> = (0..world.places.len())
            .filter(|&gate| world.places[gate].kind == Kind::Exact)
            .collect();
        for gate in exact {
            let (world, end) = (Arc::clone(world), self.end.clone());
            self.tasks.spawn(async move {
                let mut random = Random::stream(seed, 6_000_000 + gate as u64);
                let mut connection = None;
                while !end.is_cancelled() {
                    lock_once(&world, &mut connection, gate, &mut random).await;
                    pause(&end, random.millis(5, 300)).await;
                }
            });
        }
    }

    /// Ends them, and returns when all is as it was.
    pub(crate) async fn stop<S: Home>(mut self, world: &World<S>) {
        self.end.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("the faults themselves do not panic");
        }
        S::heal(world).await;
        world.note("quiet".to_owned());
        world.quiet.store(now(), Ordering::Relaxed);
    }
}

async fn pause(end: &CancellationToken, time: Duration) {
    let _ = timeout(time, end.cancelled()).await;
}

/// One command on a connection that is kept; made anew after a failure.
async fn ask(
    world: &World,
    kept: &mut Option<redis::aio::MultiplexedConnection>,
    words: &[&str],
) -> Option<Value> {
    if kept.is_none() {
        let client = redis::Client::open(world.server.url()).ok()?;
        let second = Some(Duration::from_secs(1));
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(second)
            .set_response_timeout(second);
        *kept = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .ok();
    }
    let mut command = redis::Cmd::new();
    command.arg(words);
    let answer = command.query_async(kept.as_mut()?).await;
    if answer.is_err() {
        *kept = None;
    }
    answer.ok()
}

async fn network_fault<S: Remote>(world: &World<S>, slot: usize, random: &mut Random) {
    let process = world.process(slot);
    let links = S::some_links(&process.proxy, random);
    let count = links.count();
    // What still works suffices for no renewal.
    let cut_off = S::links(&process.proxy).len() - count < S::NEEDED;
    let time = random.part(process.timeout, 20, 200);
    world.counts.faults.fetch_add(1, Ordering::Relaxed);
    let (name, mode, silent) = match random.below(11) {
        0 => {
            links.cut();
            world.note(format!("process {}: cut once", process.number));
            return;
        }
        1 if random.chance(50) => {
            world.crash(slot, random.chance(50));
            return;
        }
        1 => ("cut", Mode::Cut, true),
        2 => ("black hole", Mode::BlackHole, true),
        3 => ("replies eaten", Mode::EatReplies, true),
        4 => ("requests eaten", Mode::EatRequests, true),
        5 => ("requests held", Mode::HoldRequests, true),
        6 => ("replies held", Mode::HoldReplies, true),
        7 => ("half open", Mode::HalfOpen, true),
        8 => {
            let late = random.part(process.timeout, 5, 150);
            world.note(format!("process {}: overtaken by {late:?}", process.number));
            links.set_commands(Mode::Flows {
                requests: Flow::Delay(late),
                replies: Flow::Pass,
            });
            sleep(random.part(process.timeout, 5, 60)).await;
            links.part();
            links.set_commands(Mode::Pass);
            return;
        }
        9 => (
            "delay",
            Mode::Delay(random.part(process.timeout, 5, 100)),
            false,
        ),
        _ => {
            subscriber_fault(world, process.number, &links, random).await;
            return;
        }
    };
    // Late and yet in time for the command: after the lease, where that is short.
    let time = if mode == Mode::HoldReplies && random.chance(60) {
        random.part(process.timeout, 50, 95)
    } else {
        time
    };
    // Longer ones leave the leases to run out.
    let time = if mode != Mode::HoldReplies && random.chance(20) {
        time + random.millis(300, 3000)
    } else {
        time
    };
    world.note(format!(
        "process {}: {name} for {time:?} on {count} links",
        process.number
    ));
    links.set(mode);
    let from = now();
    sleep(time).await;
    let to = now();
    links.set(Mode::Pass);
    if silent && cut_off {
        world.silence(Silence {
            process: Some(process.number),
            from,
            to,
        });
    }
    // A half-open connection stays silent until it is cut.
    if mode == Mode::HalfOpen && random.chance(50) {
        links.cut();
    }
}

/// Pushes that are late, lost, or late and in a heap, while commands get through.
async fn subscriber_fault<S: Remote>(
    world: &World<S>,
    process: usize,
    links: &Links<'_>,
    random: &mut Random,
) {
    let (name, mode) = match random.below(3) {
        0 => ("late", Mode::Delay(random.millis(50, 1500))),
        1 => (
            "lost",
            Mode::Flows {
                requests: Flow::Pass,
                replies: Flow::Eat,
            },
        ),
        _ => ("held", Mode::HoldReplies),
    };
    let time = random.millis(200, 3000);
    world.note(format!(
        "process {process}: pushes {name} for {time:?} on {} links",
        links.count()
    ));
    links.set_subscribers(mode);
    sleep(time).await;
    links.set_subscribers(Mode::Pass);
}

async fn server_fault(world: &Arc<World>, random: &mut Random) {
    let ttl = random.pick(&world.places).ttl;
    let begun = now();
    world.counts.faults.fetch_add(1, Ordering::Relaxed);
    let words = |words: &'static str| words.split(' ').collect::<Vec<_>>();
    let note = |name: String| world.note(format!("server: {name}"));
    match random.below(100) {
        0..25 => {
            note("subscriptions killed".to_owned());
            let _ = world
                .server
                .try_command(&words("CLIENT KILL TYPE pubsub"))
                .await;
        }
        25..40 => {
            note("clients killed".to_owned());
            let _ = world
                .server
                .try_command(&words("CLIENT KILL TYPE normal"))
                .await;
            if random.chance(50) {
                let _ = world
                    .server
                    .try_command(&words("CLIENT KILL TYPE pubsub"))
                    .await;
            }
        }
        40..55 => {
            note("scripts flushed".to_owned());
            let _ = world.server.try_command(&words("SCRIPT FLUSH")).await;
        }
        55..70 => {
            let time = random.part(ttl, 10, 200);
            note(format!("frozen for {time:?}"));
            let frozen = Arc::clone(world);
            blocking(move || frozen.server.freeze()).await;
            let from = now();
            sleep(time).await;
            let to = now();
            world.silence(Silence {
                process: None,
                from,
                to,
            });
            world.server.thaw();
        }
        70..82 => {
            let time = random.millis(50, 1500);
            let what = *random.pick(&["WRITE", "ALL"]);
            note(format!("paused for {time:?}: {what}"));
            let millis = time.as_millis().to_string();
            let _ = world
                .server
                .try_command(&["CLIENT", "PAUSE", &millis, what])
                .await;
            sleep(time).await;
        }
        82..93 => {
            note("flushed".to_owned());
            let _ = world.server.try_command(&words("FLUSHALL")).await;
            world.lost_data(Loss {
                from: begun,
                to: now(),
            });
        }
        _ => {
            note("restarted".to_owned());
            let time = random.millis(0, 500);
            let restarted = Arc::clone(world);
            blocking(move || {
                restarted.server.kill();
                std::thread::sleep(time);
                restarted.server.restart();
            })
            .await;
            world.lost_data(Loss {
                from: begun,
                to: now(),
            });
        }
    }
}

async fn blocking(work: impl FnOnce() + Send + 'static) {
    tokio::task::spawn_blocking(work)
        .await
        .expect("signals are sent and servers start");
}

/// Listens to every inbox, and gives back what it heard, late, twice, broken, or to others.
async fn spoof_for_a_while(
    world: &World,
    end: &CancellationToken,
    random: &mut Random,
) -> redis::RedisResult<()> {
    let client = redis::Client::open(world.server.url())?;
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let second = Some(Duration::from_secs(1));
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(second)
        .set_response_timeout(second)
        .set_push_sender(sender);
    let listening = format!("{}?protocol=resp3", world.server.url());
    let mut listener = redis::Client::open(listening)?
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    listener.psubscribe(format!("{PREFIX}:inbox:*")).await?;
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(second)
        .set_response_timeout(second);
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    let mut messages: Vec<Vec<u8>> = Vec::new();
    let until = std::time::Instant::now() + random.millis(500, 3000);
    let mut inboxes: Vec<Vec<u8>> = Vec::new();
    let mut rounds = 0_u64;
    while !end.is_cancelled() && std::time::Instant::now() < until {
        while let Ok(push) = heard.try_recv() {
            if let [
                Value::BulkString(_),
                Value::BulkString(_),
                Value::BulkString(text),
            ] = push.data.as_slice()
                && text.starts_with(b"g ")
                && messages.len() < 1000
            {
                messages.push(text.clone());
            }
        }
        if rounds.is_multiple_of(50) {
            let mut channels = redis::cmd("PUBSUB");
            inboxes = channels
                .arg("CHANNELS")
                .arg(format!("{PREFIX}:inbox:*"))
                .query_async(&mut connection)
                .await?;
        }
        rounds += 1;
        let mut pipeline = redis::pipe();
        for _ in 0..10 {
            if inboxes.is_empty() {
                break;
            }
            let text = garbage(&messages, random);
            pipeline
                .cmd("PUBLISH")
                .arg(random.pick(&inboxes))
                .arg(text)
                .ignore();
            world.counts.spoofs.fetch_add(1, Ordering::Relaxed);
        }
        let () = pipeline.query_async(&mut connection).await?;
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Anything but a grant that the server did not make: who could forge one knows the tokens, and
/// needs no forgery.
fn garbage(messages: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let real = (!messages.is_empty()).then(|| random.pick(messages).clone());
    match (random.below(5), real) {
        // Repeated, however late, to its own inbox or another's.
        (0..=2, Some(real)) => real,
        (3, Some(mut real)) => {
            let length = usize::try_from(random.below(40)).unwrap_or(0);
            real.truncate(length);
            real
        }
        (_, Some(real)) => [&real[..], b" 7"].concat(),
        (_, None) => (0..random.below(60))
            .map(|_| random.below(256) as u8)
            .collect(),
    }
}

async fn lock_once(
    world: &World,
    connection: &mut Option<redis::aio::MultiplexedConnection>,
    gate: usize,
    random: &mut Random,
) {
    const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    let place = &world.places[gate];
    let token = format!("plain-{}", random.next());
    let ttl = random.part(place.ttl, 10, 150);
    let millis = ttl.as_millis().to_string();
    let asked = now();
    let answer = ask(
        world,
        connection,
        &["SET", &place.name, &token, "NX", "PX", &millis],
    )
    .await;
    if !matches!(answer, Some(Value::Okay)) {
        return;
    }
    world.counts.foreign.fetch_add(1, Ordering::Relaxed);
    let acquired = now();
    let deadline = asked + u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
    sleep(random.part(ttl, 0, 90)).await;
    let ended = now().min(deadline);
    let hold = Hold {
        asked,
        acquired,
        ended,
        fence: 0,
        weight: 1,
    };
    world.took(Taken {
        process: usize::MAX,
        task: gate,
        foreign: true,
        ..Taken::new(gate, hold, deadline - asked)
    });
    if random.chance(80) {
        let _ = ask(
            world,
            connection,
            &["EVAL", RELEASE, "1", &place.name, &token],
        )
        .await;
    }
    if random.chance(50) {
        let _ = ask(
            world,
            connection,
            &["PUBLISH", &format!("{}:released", place.name), "1"],
        )
        .await;
    }
}
