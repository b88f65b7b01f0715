//! Failovers seen by a fleet of processes: each holds and waits in its own. The test binary runs
//! itself as the others.

use std::path::Path;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::*;
use crate::common::{Gate, Guard};
use crate::place::Folder;
use crate::support::{History, Hold, Other, my_role, say};

const WORKERS: usize = 3;
/// How long each holds.
const WORK: Duration = Duration::from_millis(10);
/// How many permits there are.
const PERMITS: u32 = 2;
/// How many processes go in and out.
const PROCESSES: usize = 3;

/// Goes in and out, and says so, until the file `end` is there; what fails in an outage is tried
/// again.
async fn work(gate: impl Gate, name: &str, end: &Path) {
    while !end.exists() {
        let asked = History::now();
        let Ok(guard) = gate.enter().await else {
            sleep(WORK).await;
            continue;
        };
        let acquired = History::now();
        sleep(WORK).await;
        let ended = History::now();
        say(&format!(
            "{name} {asked} {acquired} {ended} {}",
            guard.fence()
        ));
        // It may fail in an outage, and is delivered later.
        let _ = guard.give_back().await;
    }
}

/// The other process. As a test of its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_process() {
    let Some(role) = my_role() else {
        return;
    };
    let var = |name| std::env::var(name).expect("set along with the role");
    let end = std::path::PathBuf::from(var("PORTCULLIS_TEST_END"));
    let handle = builder(&var("PORTCULLIS_TEST_URL"))
        .build()
        .expect("a valid address");
    say("ready");
    let kept = handle.mutex("kept").ttl(LONG).expect("in range");
    match role.as_str() {
        "work" => {
            let mut tasks = JoinSet::new();
            for _ in 0..WORKERS {
                let (gate, until) = (mutex(&handle), end.clone());
                tasks.spawn(async move { work(gate, "mutex", &until).await });
                let (gate, until) = (semaphore(&handle, PERMITS), end.clone());
                tasks.spawn(async move { work(gate, "semaphore", &until).await });
            }
            tasks.join_all().await;
        }
        "hold until told" => {
            let guard = kept.lock().await.expect("it is free");
            say(&guard.fence().to_string());
            while !end.exists() {
                sleep(WORK).await;
            }
            say(&guard.is_held().to_string());
            let ended = History::now();
            let released = guard.release().await.expect("the server answers");
            say(&format!("{ended} {released:?}"));
        }
        "wait" => {
            let guard = kept.lock().await.expect("its turn comes");
            say(&format!("{} {}", History::now(), guard.fence()));
        }
        other => panic!("no such role: {other}"),
    }
    handle.shutdown(LONG).await;
    say("done");
    std::future::pending::<()>().await;
}

fn start(fleet: &Fleet, role: &str, end: &Path) -> Other {
    Other::start("sentinel::processes::other_process", role, |command| {
        command
            .env("PORTCULLIS_TEST_URL", fleet.url())
            .env("PORTCULLIS_TEST_END", end);
    })
}

/// One process that works, and what it has told so far.
struct Worker {
    process: Other,
    mutex: Vec<Hold>,
    semaphore: Vec<Hold>,
    is_done: bool,
}

impl Worker {
    fn start(fleet: &Fleet, end: &Path) -> Self {
        Self {
            process: start(fleet, "work", end),
            mutex: Vec::new(),
            semaphore: Vec::new(),
            is_done: false,
        }
    }

    fn listen(&mut self) {
        while let Some(said) = self.process.heard() {
            let words: Vec<&str> = said.split(' ').collect();
            let [name, times @ ..] = &words[..] else {
                unreachable!("a split text has a part");
            };
            let numbers: Vec<u64> = times.iter().filter_map(|word| word.parse().ok()).collect();
            let holds = match *name {
                "mutex" => &mut self.mutex,
                "semaphore" => &mut self.semaphore,
                "done" => {
                    self.is_done = true;
                    continue;
                }
                _ => panic!("not understood: {said}"),
            };
            let [asked, acquired, ended, fence] = numbers[..] else {
                panic!("not understood: {said}");
            };
            holds.push(Hold {
                asked,
                acquired,
                ended,
                fence,
                weight: 1,
            });
        }
    }

    /// When it entered the later one of both gates for the first time since then.
    fn entered(&self, since: u64) -> Option<u64> {
        let first = |holds: &[Hold]| {
            let entered = holds.iter().map(|hold| hold.acquired);
            entered.filter(|&acquired| acquired > since).min()
        };
        Some(first(&self.mutex)?.max(first(&self.semaphore)?))
    }
}

/// Waits until every process was served at both gates since then, and gives when the last was.
async fn all_served(workers: &mut [Worker], since: u64) -> u64 {
    let mut last = None;
    eventually("every process is served", async || {
        workers.iter_mut().for_each(Worker::listen);
        let entered: Option<Vec<u64>> =
            workers.iter().map(|worker| worker.entered(since)).collect();
        last = entered.and_then(|entered| entered.into_iter().max());
        last.is_some()
    })
    .await;
    last.expect("there are processes")
}

/// What `hang` does not do is a crash.
async fn a_fleet_of_processes_is_served_after(hang: bool) {
    let fleet = Fleet::start().await;
    let folder = Folder::new();
    let (end, release) = (folder.path().join("end"), folder.path().join("release"));
    let mut workers: Vec<_> = (0..PROCESSES)
        .map(|_| Worker::start(&fleet, &end))
        .collect();
    let holder = start(&fleet, "hold until told", &release);
    let fence: u64 = holder.hear().parse().expect("a fence");
    let waiter = start(&fleet, "wait", &release);
    let kept = handle(&fleet).mutex("kept").ttl(LONG).expect("in range");
    crate::common::until_waiting(&kept, 1).await;
    all_served(&mut workers, History::now()).await;

    let old = &fleet.nodes[0];
    let gone = Instant::now();
    if hang {
        old.freeze();
    } else {
        old.kill();
    }
    let (_, switched) = fleet.until_switched(old).await;
    let since = History::now() - u64::try_from(switched.elapsed().as_nanos()).expect("short");
    let last = all_served(&mut workers, since).await;
    let took = Duration::from_nanos(last - since);
    println!(
        "failover {:?}, all served {took:?} after it",
        switched - gone
    );
    assert!(took < SOON, "all are served {took:?} after the failover");

    if hang {
        old.thaw();
        until_demoted(old).await;
        all_served(&mut workers, History::now()).await;
    }
    // Who held before the failover holds until it gives back, and then who waited is served.
    assert_eq!(waiter.heard(), None);
    folder.file("release", "");
    assert_eq!(holder.hear(), "true", "it is held");
    let said = holder.hear();
    let (ended, released) = said.split_once(' ').expect("two words");
    assert_eq!(released, "Released");
    let said = waiter.hear();
    let (entered, next) = said.split_once(' ').expect("two words");
    let (ended, entered): (u64, u64) = (
        ended.parse().expect("a time"),
        entered.parse().expect("a time"),
    );
    assert!(
        next.parse::<u64>().expect("a fence") > fence,
        "{next} after {fence}"
    );
    let took = Duration::from_nanos(entered.saturating_sub(ended));
    assert!(ended < entered && took < SOON, "{took:?}");

    folder.file("end", "");
    eventually("all come to an end", async || {
        workers.iter_mut().for_each(Worker::listen);
        workers.iter().all(|worker| worker.is_done)
    })
    .await;
    let joined = |of: fn(&Worker) -> &Vec<Hold>| {
        let history = History::default();
        let all = workers.iter().flat_map(of);
        all.for_each(|&hold| history.held(hold));
        history
    };
    let (mutex, semaphore) = (joined(|it| &it.mutex), joined(|it| &it.semaphore));
    println!(
        "{} and {} holds",
        mutex.holds().len(),
        semaphore.holds().len()
    );
    mutex.assert_sound(1);
    semaphore.assert_sound(PERMITS);
    let nodes = if hang {
        &fleet.nodes[..]
    } else {
        &fleet.nodes[1..]
    };
    assert_mortal(nodes);
}

/// R3: the master crashes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn processes_that_hold_and_wait_go_on_after_a_crash_of_the_master() {
    a_fleet_of_processes_is_served_after(false).await;
}

/// R3: it hangs, and wakes when another was promoted.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: scripts/test --topologies"]
async fn processes_that_hold_and_wait_go_on_after_the_master_hung_and_woke() {
    a_fleet_of_processes_is_served_after(true).await;
}
