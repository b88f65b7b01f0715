//! Permits at home: what a process keeps for its own next requests, and how others get it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portcullis::{
    ConfigError, Keeping, LeaseMode, LostReason, Mutex, Portcullis, RefusalKind, Release,
    Semaphore, SemaphorePermit,
};
use tokio::task::JoinSet;

use super::{mutex, semaphore, through};
use crate::common::{
    LIMIT, LONG, all_done, failure, give_back, promptly, queue, refusal, served, take,
    until_waiting, visit, within,
};
use crate::rig::{Rig, ServerRig};
use crate::support::history::most_inside;
use crate::support::{History, Mode, Proxy, wait_for};

/// So long that nothing is given back for it while a test runs.
const NEVER: Duration = Duration::from_secs(1);

fn keeping(handle: &Portcullis, limit: u32) -> Semaphore {
    let keeping = Keeping::default().linger(NEVER);
    semaphore(handle, limit)
        .keep_permits(keeping)
        .expect("in range")
}

/// The same, through a proxy that can lose what the server tells it.
fn keeping_through(proxy: &Proxy, limit: u32) -> Semaphore {
    let handle = through(proxy).command_timeout(Duration::from_secs(2));
    keeping(&handle.build().expect("valid"), limit)
}

/// How many permits are held on the server.
async fn held(rig: &ServerRig) -> u64 {
    let main = rig.server.keys_with("suite:{").await;
    let Some(main) = main.iter().find(|key| key.ends_with(":s:reports")) else {
        return 0;
    };
    let count = rig.server.command(&["ZCARD", main]).await;
    redis::from_redis_value(count).expect("a number")
}

/// Keeps `gate` busy by some tasks, until it is dropped.
struct Busy {
    ended: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Busy {
    fn start(gate: &Semaphore, tasks: usize) -> Self {
        let (ended, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut set = JoinSet::new();
        for _ in 0..tasks {
            let (gate, ended, done) = (gate.clone(), Arc::clone(&ended), Arc::clone(&done));
            set.spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    let permit = gate.acquire().await.expect("its turn comes");
                    tokio::task::yield_now().await;
                    drop(permit);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self {
            ended,
            done,
            tasks: set,
        }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    async fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        all_done(self.tasks).await;
    }
}

#[tokio::test]
async fn a_permit_that_is_kept_serves_the_next_requests_without_the_server() {
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), 3);
    give_back(take(&gate).await).await;
    let (begun, calls) = (Instant::now(), rig.server.script_runs().await);
    for _ in 0..1_000 {
        assert_eq!(
            gate.acquire()
                .await
                .expect("kept")
                .release()
                .await
                .expect("at home"),
            Release::Released
        );
    }
    let spent = rig.server.script_runs().await - calls;
    let asked = 2 + begun.elapsed().as_millis() as u64 / 50;
    assert!(spent <= asked, "{spent} calls, of which {asked} may ask");
    let kept = gate.kept();
    assert!(kept.reused >= 1_000, "{kept:?}");
    drop(gate);
    rig.settled().await;
}

#[tokio::test]
async fn a_permit_that_nobody_uses_is_given_back() {
    let rig = ServerRig::start();
    let gate = semaphore(&rig.handle(), 3)
        .keep_permits(Keeping::default())
        .expect("in range");
    give_back(take(&gate).await).await;
    wait_for("it is given back", LIMIT, async || held(&rig).await == 0).await;
    let kept = gate.kept();
    assert_eq!((kept.idle, kept.used, kept.lingered), (0, 0, 1));
    rig.settled().await;
}

#[tokio::test]
async fn what_is_kept_is_given_back_when_another_process_waits_for_it() {
    let rig = ServerRig::start();
    let (a, b) = (keeping(&rig.handle(), 2), semaphore(&rig.handle(), 2));
    let (first, second) = (take(&a).await, take(&a).await);
    drop((first, second));
    assert_eq!(a.kept().idle, 2);
    let permit = promptly("it is recalled", b.acquire()).await.expect("free");
    // Both, since whoever waits may want more than one.
    assert_eq!((a.kept().idle, a.kept().recalled), (0, 2));
    give_back(permit).await;
    rig.settled().await;
}

#[tokio::test]
async fn a_process_whose_recalls_are_lost_gives_back_what_it_keeps_all_the_same() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let (a, b) = (keeping_through(&proxy, 1), semaphore(&rig.handle(), 1));
    give_back(take(&a).await).await;
    proxy.set_subscribers(Mode::EatMessages);
    let permit = promptly("it is found by asking", b.acquire()).await;
    give_back(permit.expect("free")).await;
    assert_eq!(a.kept().recalled, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_always_busy_starves_no_other() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let (a, b) = (keeping_through(&proxy, 2), semaphore(&rig.handle(), 2));
    let busy = Busy::start(&a, 8);
    wait_for("it is busy", LIMIT, async || busy.done() > 100).await;
    for mode in [Mode::Pass, Mode::EatMessages] {
        proxy.set_subscribers(mode);
        for _ in 0..20 {
            give_back(
                promptly("its turn comes", b.acquire())
                    .await
                    .expect("granted"),
            )
            .await;
        }
    }
    proxy.set_subscribers(Mode::Pass);
    busy.end().await;
    drop(a);
    rig.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_that_goes_from_process_to_process_costs_one_call() {
    let rig = ServerRig::start();
    let gates = [rig.handle(), rig.handle()].map(|handle| keeping(&handle, 4));
    let busy = gates.each_ref().map(|gate| Busy::start(gate, 6));
    let done = || busy.each_ref().map(Busy::done);
    // All that were served by a permit that another had in this process before.
    let again = || -> u64 {
        let kept = gates.iter().map(Semaphore::kept);
        kept.map(|kept| kept.passed + kept.reused).sum()
    };
    wait_for("both are busy", LIMIT, async || {
        done().iter().all(|done| *done > 100)
    })
    .await;
    let (before, served) = (done().iter().sum::<u64>(), again());
    let calls = rig.server.script_runs().await;
    wait_for("they go on", LIMIT, async || {
        done().iter().sum::<u64>() > before + 4_000
    })
    .await;
    let calls = rig.server.script_runs().await - calls;
    let turns = done().iter().sum::<u64>() - before - (again() - served);
    // An end and an acquire are two, where they are not found at once.
    assert!(
        turns > 500 && calls < turns * 3 / 2,
        "{calls} calls for {turns} turns"
    );
    for busy in busy {
        busy.end().await;
    }
    drop(gates);
    rig.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_keep_permits_never_hold_more_than_there_are_and_all_get_on() {
    const CAP: u32 = 3;
    let rig = ServerRig::start();
    let history = History::default();
    let mut tasks = JoinSet::new();
    let mut gates = Vec::new();
    for number in 0..4 {
        let handle = rig.handle();
        // One does not keep any.
        let gate = if number == 3 {
            semaphore(&handle, CAP)
        } else {
            keeping(&handle, CAP)
        };
        for _ in 0..6 {
            let (gate, history) = (gate.clone(), history.clone());
            tasks.spawn(async move {
                for _ in 0..25 {
                    visit(&gate, &history).await;
                }
            });
        }
        gates.push(gate);
    }
    all_done(tasks).await;
    let holds = history.holds();
    assert_eq!(holds.len(), 4 * 6 * 25);
    assert!(most_inside(&holds) <= u64::from(CAP));
    let used: u64 = gates
        .iter()
        .map(|gate| gate.kept().passed + gate.kept().reused)
        .sum();
    assert!(used > 0, "none was used twice");
    drop(gates);
    rig.settled().await;
}

#[tokio::test]
async fn permits_are_given_back_while_the_runtime_of_their_users_is_blocked() {
    let rig = ServerRig::start();
    let (a, b) = (keeping(&rig.handle(), 1), semaphore(&rig.handle(), 1));
    let (kept, is_kept) = std::sync::mpsc::channel();
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let user = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("it starts").block_on(async {
            give_back(take(&a).await).await;
            kept.send(()).expect("somebody listens");
            // As a handler that computes.
            let _ = blocked.recv();
            a.kept().recalled
        })
    });
    is_kept.recv().expect("it keeps one");
    let permit = promptly("it is recalled", b.acquire()).await.expect("free");
    drop(unblock);
    assert_eq!(user.join().expect("no panic"), 1);
    give_back(permit).await;
    rig.settled().await;
}

#[tokio::test]
async fn a_request_for_several_permits_is_not_starved_by_what_its_own_process_keeps() {
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), 3);
    let busy = Busy::start(&gate, 6);
    for _ in 0..5 {
        let three = promptly("its turn comes", gate.acquire_many(3)).await;
        give_back(three.expect("granted")).await;
    }
    busy.end().await;
    drop(gate);
    rig.settled().await;
}

#[tokio::test]
async fn a_shutdown_gives_back_what_is_kept_at_once() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let gate = keeping(&handle, 3);
    let (used, idle) = (take(&gate).await, take(&gate).await);
    drop(idle);
    let ending = tokio::spawn(async move { handle.shutdown(LIMIT).await });
    wait_for("what is idle is given back", LIMIT, async || {
        held(&rig).await == 1
    })
    .await;
    let refused = refusal(gate.acquire().await);
    assert_eq!(refused.kind(), RefusalKind::ShuttingDown);
    drop(used);
    let report = within(LIMIT, "the shutdown ends", ending)
        .await
        .expect("no panic");
    assert_eq!(report.abandoned, 0);
    assert_eq!(held(&rig).await, 0);
}

#[tokio::test]
async fn a_handle_that_is_dropped_gives_back_what_it_keeps() {
    let rig = ServerRig::start();
    let (a, b) = (keeping(&rig.handle(), 1), semaphore(&rig.handle(), 1));
    give_back(take(&a).await).await;
    drop(a);
    give_back(promptly("it is free", b.acquire()).await.expect("free")).await;
    rig.settled().await;
}

#[tokio::test]
async fn a_loss_of_data_ends_what_is_kept_and_what_is_in_use() {
    let rig = ServerRig::start();
    let (a, b) = (keeping(&rig.handle(), 2), semaphore(&rig.handle(), 2));
    let (used, idle) = (take(&a).await, take(&a).await);
    drop(idle);
    rig.server.command(&["FLUSHALL"]).await;
    // Nobody else waits: only by asking can it be found that they are gone.
    let reason = within(LIMIT, "the loss is noticed", used.lost()).await;
    assert_eq!(reason, LostReason::Gone);
    let (first, second) = (take(&b).await, take(&b).await);
    drop(used);
    wait_for("nothing is kept", LIMIT, async || {
        a.kept().idle + a.kept().used == 0
    })
    .await;
    let third = queue(&a);
    tokio::task::yield_now().await;
    give_back(first).await;
    give_back(served(third).await).await;
    give_back(second).await;
    drop(a);
    rig.settled().await;
}

#[tokio::test]
async fn a_server_that_was_away_finds_nobody_who_believes_in_what_it_lost() {
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), 2);
    give_back(take(&gate).await).await;
    rig.server.restart();
    wait_for("what was kept is forgotten", LIMIT, async || {
        gate.kept().idle == 0
    })
    .await;
    give_back(
        promptly("the server is back", gate.acquire())
            .await
            .expect("free"),
    )
    .await;
    drop(gate);
    rig.settled().await;
}

#[tokio::test]
async fn keyed_siblings_keep_their_own_permits_and_share_them_with_all_of_their_name() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let reports = keeping(&handle, 1);
    give_back(take(&reports.keyed("a")).await).await;
    let calls = rig.server.script_runs().await;
    let again = take(&keeping(&handle, 1).keyed("a")).await;
    assert_eq!(reports.keyed("a").kept().reused, 1);
    assert!(
        rig.server.script_runs().await <= calls + 2,
        "but for its questions"
    );
    give_back(take(&reports.keyed("b")).await).await;
    drop((again, reports));
    rig.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_passes_from_request_to_request_with_fences_that_rise() {
    let rig = ServerRig::start();
    let history = History::default();
    let mut tasks = JoinSet::new();
    let mut gates = Vec::new();
    for handoffs in [4, 4, 0] {
        let gate = mutex(&rig.handle())
            .local_handoffs(handoffs)
            .expect("in range");
        for _ in 0..5 {
            let (gate, history) = (gate.clone(), history.clone());
            tasks.spawn(async move {
                for _ in 0..20 {
                    visit(&gate, &history).await;
                }
            });
        }
        gates.push(gate);
    }
    all_done(tasks).await;
    history.assert_sound(1);
    let passed: Vec<u64> = gates.iter().map(|gate| gate.kept().passed).collect();
    assert!(passed[0] + passed[1] > 0 && passed[2] == 0, "{passed:?}");
    drop(gates);
    rig.settled().await;
}

#[tokio::test]
async fn a_mutex_without_handoffs_queues_all_who_wait_where_all_processes_see_them() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let passing = mutex(&handle).local_handoffs(4).expect("in range");
    let gate = passing.local_handoffs(0).expect("in range");
    let other = mutex(&rig.handle());
    let guard = take(&other).await;
    let mut queued = Vec::new();
    for place in 1..=3 {
        queued.push(queue(&gate));
        until_waiting(&other, place).await;
    }
    give_back(guard).await;
    for next in queued {
        give_back(served(next).await).await;
    }
    rig.settled().await;
}

#[tokio::test]
async fn requests_that_come_at_once_find_all_that_is_free_though_none_may_wait() {
    const ALL: u32 = 8;
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), ALL).max_waiters(0);
    let (mut waits, mut tries) = (JoinSet::new(), JoinSet::new());
    for _ in 0..ALL {
        let (patient, hasty) = (gate.keyed("patient"), gate.keyed("hasty"));
        waits.spawn(async move { patient.acquire().await });
        tries.spawn(async move { hasty.try_acquire().await });
    }
    let (waited, tried) = (all_done(waits).await, all_done(tries).await);
    for permit in waited.iter().chain(&tried) {
        assert!(permit.is_ok(), "{permit:?}");
    }
    let full = refusal(gate.keyed("patient").acquire().await);
    assert_eq!(full.kind(), RefusalKind::QueueFull);
    let busy = refusal(gate.keyed("hasty").try_acquire().await);
    assert_eq!(busy.kind(), RefusalKind::Busy);
    drop((waited, tried, gate));
    rig.settled().await;
}

#[tokio::test]
async fn a_refusal_tells_of_the_first_lease_to_end_wherever_the_permits_are() {
    let rig = ServerRig::start();
    let (here, there) = (rig.handle(), rig.handle());
    for holder in [&here, &there] {
        let permit = take(&keeping(holder, 1)).await;
        let gate = keeping(&here, 1);
        let waited = gate.clone().max_wait(Duration::from_millis(50));
        let busy = refusal(gate.try_acquire().await);
        let late = refusal(promptly("it ends", waited.acquire()).await);
        assert_eq!(
            (busy.kind(), late.kind()),
            (RefusalKind::Busy, RefusalKind::WaitedTooLong)
        );
        for refusal in [busy, late] {
            let told = refusal.retry_after().expect("its lease ends");
            assert!(told <= permit.remaining() + LIMIT, "{refusal}");
        }
        drop((permit, gate, waited));
        wait_for("nothing is kept", LIMIT, async || held(&rig).await == 0).await;
    }
    rig.settled().await;
}

#[tokio::test]
async fn a_mutex_is_never_kept_for_who_does_not_wait() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let gate: Mutex = mutex(&handle).local_handoffs(64).expect("in range");
    give_back(take(&gate).await).await;
    let kept = gate.kept();
    assert_eq!((kept.idle, kept.used), (0, 0));
    rig.settled().await;
}

#[tokio::test]
async fn a_kept_permit_tells_no_order() {
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), 2);
    let first: SemaphorePermit = take(&gate).await;
    let second = take(&gate).await;
    assert_eq!(
        (first.fencing_token().get(), second.fencing_token().get()),
        (0, 0)
    );
    drop((first, second, gate));
    rig.settled().await;
}

#[tokio::test]
async fn a_wait_at_home_ends_at_its_limit_and_one_that_was_dropped_takes_no_turn() {
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), 1);
    let permit = take(&gate).await;
    let brief = gate.clone().max_wait(Duration::from_millis(100));
    let refused = refusal(within(LIMIT, "its wait ends", brief.acquire()).await);
    assert_eq!(refused.kind(), RefusalKind::WaitedTooLong);
    let refused = refusal(gate.try_acquire().await);
    assert_eq!(refused.kind(), RefusalKind::Busy);
    let dropped = queue(&gate);
    let next = queue(&gate);
    tokio::task::yield_now().await;
    dropped.abort();
    let _ = dropped.await;
    give_back(permit).await;
    give_back(served(next).await).await;
    drop((gate, brief));
    rig.settled().await;
}

#[tokio::test]
async fn a_wait_that_is_over_before_the_server_can_answer_refuses_nobody_who_finds_a_permit() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let gate = keeping_through(&proxy, 3);
    give_back(take(&gate.keyed("else")).await).await;
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let brief = gate.clone().max_wait(Duration::from_millis(1));
    let permit = promptly("it is free", brief.acquire()).await;
    give_back(permit.expect("nobody else wants it")).await;
    // Nor is a server that does not answer a gate that is full.
    proxy.set(Mode::BlackHole);
    let away = within(LIMIT, "it is told", brief.keyed("b").acquire()).await;
    failure(away);
}

#[tokio::test]
async fn who_keeps_permits_starves_nobody_in_its_own_process_who_does_not() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let plain = semaphore(&handle, 2);
    let gate = keeping(&handle, 2);
    let busy = Busy::start(&gate, 8);
    wait_for("it is busy", LIMIT, async || busy.done() > 100).await;
    for _ in 0..10 {
        let permit = promptly("its turn comes", plain.acquire()).await;
        give_back(permit.expect("granted")).await;
    }
    busy.end().await;
    drop(gate);
    // There is no home any more.
    give_back(take(&plain).await).await;
    drop(plain);
    rig.settled().await;
}

#[tokio::test]
async fn a_limit_that_an_operator_lowers_binds_a_process_that_is_alone_and_busy() {
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), 4);
    let busy = Busy::start(&gate, 8);
    wait_for("it has all", LIMIT, async || held(&rig).await == 4).await;
    let records = rig.server.keys_with("suite:{").await;
    let records = records.iter().find(|key| key.ends_with(":sr:reports"));
    let records = records.expect("permits are recorded");
    rig.server.command(&["HSET", records, "L", "1"]).await;
    wait_for("it has one", LIMIT, async || held(&rig).await == 1).await;
    let before = busy.done();
    wait_for("it gets on", LIMIT, async || busy.done() > before + 100).await;
    busy.end().await;
    rig.server.command(&["HDEL", records, "L"]).await;
    drop(gate);
    rig.settled().await;
}

#[tokio::test]
async fn a_limit_that_an_operator_raises_is_found_by_who_does_not_wait() {
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), 2);
    let mut inside = vec![take(&gate).await, take(&gate).await];
    let records = rig.server.keys_with("suite:{").await;
    let records = records.iter().find(|key| key.ends_with(":sr:reports"));
    let records = records.expect("permits are recorded");
    rig.server.command(&["HSET", records, "L", "7"]).await;
    wait_for("all are found", LIMIT, async || {
        inside.extend(gate.try_acquire().await);
        inside.len() == 7
    })
    .await;
    let busy = refusal(gate.try_acquire().await);
    assert_eq!(busy.kind(), RefusalKind::Busy);
    rig.server.command(&["HDEL", records, "L"]).await;
    drop((inside, gate));
    rig.settled().await;
}

#[tokio::test]
async fn a_recall_that_was_forged_ends_no_keeping_for_good() {
    let rig = ServerRig::start();
    let gate = keeping(&rig.handle(), 2);
    give_back(take(&gate).await).await;
    let listens = async || {
        let channels = ["PUBSUB", "CHANNELS", "suite:inbox:*"];
        let channels = rig.server.command(&channels).await;
        redis::from_redis_value::<Vec<String>>(channels).expect("names")
    };
    wait_for("it listens", LIMIT, async || listens().await.len() == 1).await;
    let main = rig.server.keys_with("suite:{").await;
    let main = main.iter().find(|key| key.ends_with(":s:reports"));
    // Later than any that the server will say.
    let recall = format!("r {} {}", (1_u64 << 53) - 1, main.expect("it is held"));
    let inbox = listens().await.remove(0);
    rig.server.command(&["PUBLISH", &inbox, &recall]).await;
    wait_for("it is recalled", LIMIT, async || gate.kept().recalled == 1).await;
    wait_for("permits are kept again", LIMIT, async || {
        give_back(take(&gate).await).await;
        gate.kept().reused > 0
    })
    .await;
    drop(gate);
    rig.settled().await;
}

#[tokio::test]
async fn what_can_not_be_kept_is_refused_when_it_is_built() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let text = |built: Result<Semaphore, ConfigError>| built.expect_err("refused").to_string();
    let kept = || keeping(&handle, 2);
    let plain = || semaphore(&handle, 2);
    let fixed = plain().lease(LeaseMode::Fixed).expect("in range");
    for refused in [
        text(kept().lease(LeaseMode::Fixed)),
        text(fixed.keep_permits(Keeping::default())),
        text(kept().lease(LeaseMode::MaxHold(LONG))),
        text(kept().lock_delay(LONG)),
        text(plain().keep_permits(Keeping::default().passes(1001))),
        text(plain().keep_permits(Keeping::default().turn(LONG))),
        text(plain().keep_permits(Keeping::default().linger(Duration::ZERO))),
    ] {
        assert!(
            refused.contains("keep") || refused.contains("out of range"),
            "{refused}"
        );
    }
    assert!(mutex(&handle).local_handoffs(65).is_err());
    assert!(handle.mutex_at("job").local_handoffs(1).is_err());
}
