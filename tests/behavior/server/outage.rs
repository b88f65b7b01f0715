//! Calls that meet a server, or a path to it, which fails: each ends within its bound, and leaves
//! nothing once it can be cleaned up.

use std::future::IntoFuture;
use std::time::Duration;

use portcullis::{BackendErrorKind, LockError, Mutex, Portcullis, RefusalKind, Release};
use tokio::task::JoinSet;

use super::{Nuisance, UNHEARD, mutex, semaphore, through};
use crate::common::{
    Gate, Guard, LIMIT, LONG, PROMPT, all_done, failure, give_back, promptly, queue, refusal,
    served, take, until_waiting, waiting, within,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::{Flow, History, Hold, Mode, Proxy, wait_for};

/// The two ways in which a call can tell that it got no answer.
fn assert_unanswered(error: &portcullis::BackendError) {
    let kinds = [BackendErrorKind::Unreachable, BackendErrorKind::TimedOut];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

async fn key_of_the_holder(rig: &ServerRig) -> Option<String> {
    let keys = rig.server.keys_with("suite:").await;
    keys.into_iter().find(|key| key.contains("}:m:"))
}

/// C91.
#[tokio::test]
async fn every_call_to_a_frozen_server_ends_in_time() {
    let rig = ServerRig::start();
    let handle = rig.builder().build().expect("valid");
    let (held, free) = (mutex(&handle), mutex(&handle).keyed("free"));
    let guard = take(&held).await;
    let short = free.clone().max_wait(Duration::from_secs(1));
    let waiter = queue(&held.clone().max_wait(Duration::from_secs(2)));
    until_waiting(&held, 1).await;
    rig.server.freeze();
    let (tried, waited, given_back) = promptly("each call ends", async {
        tokio::join!(free.try_lock(), short.lock(), guard.release())
    })
    .await;
    assert_unanswered(&failure(tried));
    assert_unanswered(&failure(waited));
    assert_unanswered(&given_back.expect_err("nobody answered"));
    // This one has a place, so it may say either that it waited too long or that it can't know.
    match promptly("a wait ends", waiter).await.expect("no panic") {
        Err(LockError::Refused(refusal)) => assert_eq!(refusal.kind(), RefusalKind::WaitedTooLong),
        Err(LockError::Backend(error)) => assert_unanswered(&error),
        other => panic!("{other:?}"),
    }
    rig.server.thaw();
    // What was applied late is cleaned up, and new calls work.
    rig.settled().await;
    drop((take(&held).await, take(&free).await));
    rig.settled().await;
}

/// C99.
#[tokio::test]
async fn every_call_to_a_dead_server_ends_in_time() {
    let rig = ServerRig::start();
    let (used, fresh) = (
        rig.builder().build().expect("valid"),
        rig.builder().build().expect("valid"),
    );
    give_back(take(&mutex(&used)).await).await;
    rig.server.kill();
    let begun = std::time::Instant::now();
    let mut calls = JoinSet::new();
    for handle in [&used, &fresh] {
        for number in 0..100 {
            let mutex = mutex(handle)
                .max_wait(Duration::from_secs(1))
                .keyed(number % 7);
            calls.spawn(async move { failure(mutex.lock().await) });
        }
        let mutex = mutex(handle);
        calls.spawn(async move { failure(mutex.try_lock().await) });
    }
    for error in promptly("all calls end", calls.join_all()).await {
        assert_eq!(error.kind(), BackendErrorKind::Unreachable, "{error}");
    }
    assert!(begun.elapsed() < PROMPT);
    rig.server.restart();
    for handle in [&used, &fresh] {
        let mutex = mutex(handle).max_wait(LONG);
        give_back(
            within(LIMIT, "it is back", mutex.lock())
                .await
                .expect("it is back"),
        )
        .await;
    }
    rig.settled().await;
}

/// Fault 45.
#[tokio::test]
async fn a_handle_made_before_its_server_is_there_works_when_it_is() {
    let rig = ServerRig::start();
    rig.server.kill();
    let patient = mutex(&rig.handle()).max_wait(LONG);
    let early = queue(&patient);
    rig.server.restart();
    let guard = within(LIMIT, "it is served", early)
        .await
        .expect("no panic")
        .expect("served");
    give_back(guard).await;
    let nowhere = Portcullis::builder()
        .url("redis://no-such-host.invalid/")
        .build()
        .expect("valid");
    let error = failure(within(LIMIT, "it ends", mutex(&nowhere).try_lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Unreachable);
}

/// What a fleet finds that comes back to a server which is short of time: if each connection brought
/// it the scripts anew, none would be there in time.
#[tokio::test]
async fn a_path_on_which_scripts_take_too_long_serves_where_the_server_has_them() {
    let rig = ServerRig::start();
    give_back(take(&mutex(&rig.handle())).await).await;
    let proxy = Proxy::start(rig.server.port());
    // In the time that a connection may take, about a tenth of them.
    proxy.set(Mode::Flows {
        requests: Flow::Throttle(20_000),
        replies: Flow::Pass,
    });
    let handle = through(&proxy).build().expect("valid");
    let asked = queue(&mutex(&handle).max_wait(LONG));
    let guard = within(LIMIT, "it is connected", asked).await;
    give_back(guard.expect("no panic").expect("served")).await;
    rig.settled().await;
}

/// C07, fault 5: the acquire ran, and nobody was told.
#[tokio::test]
async fn an_acquire_whose_answer_is_lost_is_not_counted_twice() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let handle = through(&proxy).build().expect("valid");
    let permits = semaphore(&handle, 2).max_wait(LONG);
    for lock in [true, false] {
        give_back(take(&mutex(&handle)).await).await;
        proxy.set(Mode::EatReplies);
        if lock {
            let asked = queue(&mutex(&handle).max_wait(LONG));
            wait_for("it holds, by the server", LIMIT, async || {
                key_of_the_holder(&rig).await.is_some()
            })
            .await;
            let main = key_of_the_holder(&rig).await.expect("it holds");
            let value: String = ask(&mut rig.server.connection(), &["GET", &main]);
            let fence = value
                .rsplit(' ')
                .next()
                .and_then(|fence| fence.parse().ok());
            proxy.set(Mode::Pass);
            let guard = within(LIMIT, "it is told", asked)
                .await
                .expect("no panic")
                .expect("held");
            // The same holding, and no second one.
            assert_eq!(Some(guard.fencing_token().get()), fence);
            give_back(guard).await;
        } else {
            let asked = queue(&permits);
            wait_for("it holds, by the server", LIMIT, async || {
                rig.server
                    .keys_with("suite:")
                    .await
                    .iter()
                    .any(|key| key.contains("}:s:"))
            })
            .await;
            proxy.set(Mode::Pass);
            let permit = within(LIMIT, "it is told", asked)
                .await
                .expect("no panic")
                .expect("held");
            let both = [permit, take(&permits).await];
            assert_eq!(waiting(&permits).await, Some(0));
            for permit in both {
                give_back(permit).await;
            }
        }
        // One release was enough.
        rig.settled().await;
    }
}

/// Fault 7: it would arrive when nobody wants it any more.
#[tokio::test]
async fn an_acquire_that_arrives_too_late_creates_nothing() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let handle = through(&proxy).connections(1).build().expect("valid");
    give_back(take(&mutex(&handle)).await).await;
    let mut connection = rig.server.connection();
    let keys = rig.server.keys_with("suite:").await;
    let clock = keys
        .iter()
        .find(|key| key.ends_with("}:clock"))
        .expect("it was held");
    let drawn: u64 = ask(&mut connection, &["GET", clock]);
    for _ in 0..3 {
        proxy.set(Mode::HoldRequests);
        let error = failure(promptly("it ends", mutex(&handle).try_lock()).await);
        assert_unanswered(&error);
        proxy.set(Mode::Pass);
        rig.settled().await;
        // Not even for a moment: no fencing token was drawn for it.
        assert_eq!(ask::<u64>(&mut connection, &["GET", clock]), drawn);
    }
    give_back(
        within(LIMIT, "it works", mutex(&handle).lock())
            .await
            .expect("it is free"),
    )
    .await;
}

/// Fault 6.
#[tokio::test]
async fn an_answer_that_arrives_too_late_changes_nothing() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let handle = through(&proxy).build().expect("valid");
    let lock = mutex(&handle);
    give_back(take(&lock).await).await;
    for _ in 0..3 {
        proxy.set_commands(Mode::HoldReplies);
        assert_unanswered(&failure(promptly("it ends", lock.try_lock()).await));
        proxy.set_commands(Mode::Pass);
        rig.settled().await;
    }
    // Late for one attempt is in time for a wait.
    proxy.set_commands(Mode::Delay(Duration::from_millis(150)));
    let slow = within(LIMIT, "it is served", lock.clone().max_wait(LONG).lock()).await;
    proxy.set_commands(Mode::Pass);
    drop(slow.expect("it is free"));
    rig.settled().await;
}

/// C03.
#[tokio::test]
async fn a_release_that_fails_goes_on_in_the_background() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let lock = mutex(&through(&proxy).build().expect("valid"));
    for mode in [Mode::Cut, Mode::BlackHole, Mode::EatReplies] {
        let lost_answer = mode == Mode::EatReplies;
        let guard = within(LIMIT, "taken", lock.clone().max_wait(LONG).lock())
            .await
            .expect("free");
        proxy.set(mode);
        let error = promptly("it tells", guard.release())
            .await
            .expect_err("nobody answered");
        assert_unanswered(&error);
        assert_eq!(key_of_the_holder(&rig).await.is_none(), lost_answer);
        proxy.set(Mode::Pass);
        wait_for("it is given back", PROMPT, async || {
            key_of_the_holder(&rig).await.is_none()
        })
        .await;
    }
    rig.settled().await;
}

/// C39.
#[tokio::test]
async fn a_place_that_could_not_be_left_costs_the_next_one_no_ttl() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let (a, b) = (
        mutex(&rig.handle()),
        mutex(&through(&proxy).build().expect("valid")),
    );
    let guard = take(&a).await;
    let leaving = queue(&b.max_wait(Duration::from_secs(1)));
    until_waiting(&a, 1).await;
    proxy.set(Mode::BlackHole);
    let next = queue(&a);
    until_waiting(&a, 2).await;
    let left = promptly("its wait ends", leaving).await.expect("no panic");
    left.expect_err("it is held");
    give_back(guard).await;
    let next = within(UNHEARD, "the next one is served", next)
        .await
        .expect("no panic");
    give_back(next.expect("its turn comes")).await;
    proxy.set(Mode::Pass);
    rig.settled().await;
}

/// C23.
#[tokio::test]
async fn an_inbox_that_can_not_be_opened_harms_neither_this_wait_nor_the_next() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    let (a, b) = (
        mutex(&rig.handle()),
        mutex(&through(&proxy).build().expect("valid")),
    );
    proxy.set_subscribers(Mode::BlackHole);
    let guard = a.try_lock().await.expect("it is free");
    let first = queue(&b);
    until_waiting(&a, 1).await;
    give_back(guard).await;
    give_back(served(first).await).await;
    let guard = a.try_lock().await.expect("it is free");
    let second = queue(&b);
    until_waiting(&a, 1).await;
    proxy.set_subscribers(Mode::Pass);
    wait_for("it listens", LIMIT, async || {
        let inboxes: Vec<String> = ask(
            &mut rig.server.connection(),
            &["PUBSUB", "CHANNELS", "suite:inbox:*"],
        );
        inboxes.len() == 1
    })
    .await;
    give_back(guard).await;
    give_back(served(second).await).await;
    rig.settled().await;
}

/// C31.
#[tokio::test]
async fn a_try_needs_no_inbox() {
    let rig = ServerRig::start();
    let proxy = Proxy::start(rig.server.port());
    proxy.set_subscribers(Mode::BlackHole);
    let (a, b) = (
        mutex(&rig.handle()),
        mutex(&through(&proxy).build().expect("valid")),
    );
    // Who does not want to wait needs none; who holds has not waited.
    let guard = a.try_lock().await.expect("it is free");
    for _ in 0..100 {
        let busy = refusal(promptly("a try ends", b.try_lock()).await);
        assert_eq!(busy.kind(), RefusalKind::Busy);
    }
    let stats: String = ask(&mut rig.server.connection(), &["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_subscribe"));
    give_back(guard).await;
    rig.settled().await;
}

/// Visits that a broken connection may keep from coming in or from knowing how their release went;
/// none is counted that did not hold.
async fn try_to_visit<G: Gate>(gate: &G, history: &History) {
    let asked = History::now();
    match gate.enter().await {
        Ok(guard) => {
            let acquired = History::now();
            tokio::task::yield_now().await;
            let ended = History::now();
            history.held(Hold {
                asked,
                acquired,
                ended,
                fence: guard.fence(),
                weight: 1,
            });
            match guard.give_back().await {
                Ok(answer) => assert_eq!(answer, Release::Released),
                Err(error) => assert_unanswered(&error),
            }
        }
        Err(LockError::Backend(error)) => assert_unanswered(&error),
        Err(refused) => panic!("{refused}"),
    }
}

async fn visits_among(rig: &ServerRig, turns: u32) -> History {
    let history = History::default();
    let mut tasks = JoinSet::new();
    for handle in [rig.handle(), rig.handle()] {
        for _ in 0..6 {
            let (mutex, history) = (mutex(&handle), history.clone());
            tasks.spawn(async move {
                for _ in 0..turns {
                    try_to_visit(&mutex, &history).await;
                }
            });
        }
    }
    all_done(tasks).await;
    history.assert_sound(1);
    history
}

/// Fault 17.
#[tokio::test]
async fn nobody_is_forgotten_while_inboxes_die_all_the_time() {
    let rig = ServerRig::start();
    let pause = Duration::from_millis(50);
    let nuisance = Nuisance::start(&rig.server, pause, &["CLIENT", "KILL", "TYPE", "pubsub"]);
    let history = visits_among(&rig, 20).await;
    // The connections for commands live, so nothing may fail.
    assert_eq!(history.holds().len(), 2 * 6 * 20);
    drop(nuisance);
    rig.settled().await;
}

/// Fault 18, C93.
#[tokio::test]
async fn exclusion_holds_while_all_connections_die_all_the_time() {
    let rig = ServerRig::start();
    let pause = Duration::from_millis(50);
    let nuisance = Nuisance::start(&rig.server, pause, &["CLIENT", "KILL", "SKIPME", "yes"]);
    let history = visits_among(&rig, 10).await;
    assert!(
        history.holds().len() > 60,
        "{} of 120 came in",
        history.holds().len()
    );
    drop(nuisance);
    rig.settled().await;
}

/// C93: what is safe to repeat is repeated.
#[tokio::test]
async fn calls_on_connections_that_died_meanwhile_succeed() {
    let rig = ServerRig::start();
    let handle = rig.handle();
    let lock = mutex(&handle);
    give_back(take(&lock).await).await;
    for _ in 0..3 {
        rig.server
            .command(&["CLIENT", "KILL", "SKIPME", "yes"])
            .await;
        give_back(take(&lock).await).await;
        let mut tasks = JoinSet::new();
        for number in 0..100 {
            let lock = lock.keyed(number);
            tasks.spawn(async move { drop(lock.lock().await.expect("it is free")) });
        }
        rig.server
            .command(&["CLIENT", "KILL", "SKIPME", "yes"])
            .await;
        all_done(tasks).await;
    }
    rig.settled().await;
}

/// Fault 29.
#[tokio::test]
async fn a_server_that_is_busy_with_another_script_is_waited_for() {
    let rig = ServerRig::start_with(&["--lua-time-limit", "50"]);
    let lock = mutex(&rig.builder().build().expect("valid")).max_wait(LONG);
    let held = [
        take(&lock).await,
        take(&lock.keyed("one")).await,
        take(&lock.keyed("more")).await,
    ];
    let mut connection = rig.server.connection();
    let looping = std::thread::spawn(move || {
        let looped = redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .query::<()>(&mut connection);
        looped.expect_err("it is killed");
    });
    let mut other = rig.server.connection();
    wait_for("it is busy", LIMIT, async || {
        let ping: redis::RedisResult<String> = redis::cmd("PING").query(&mut other);
        ping.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    let waiter = queue(&lock);
    let tried = failure(promptly("a try ends", lock.keyed("other").try_lock()).await);
    let kinds = [BackendErrorKind::ServerBusy, BackendErrorKind::TimedOut];
    assert!(kinds.contains(&tried.kind()), "{tried:?}");
    assert!(!waiter.is_finished());
    // These are refused over a connection that is in order, and tried again all the same.
    for guard in held {
        promptly("a release tells", guard.release())
            .await
            .expect_err("nobody served it");
    }
    redis::cmd("SCRIPT")
        .arg("KILL")
        .query::<()>(&mut other)
        .expect("it can be killed");
    give_back(served(waiter).await).await;
    looping.join().expect("the loop ends");
    promptly("all are given back", rig.settled()).await;
}

/// Fault 28.
#[tokio::test]
async fn a_paused_server_is_waited_for() {
    let rig = ServerRig::start();
    let handle = rig.builder().build().expect("valid");
    let held = take(
        &mutex(&handle)
            .ttl(Duration::from_secs(9))
            .expect("in range"),
    )
    .await;
    rig.server
        .command(&["CLIENT", "PAUSE", "1500", "WRITE"])
        .await;
    let patient = mutex(&handle).keyed("other").max_wait(LONG);
    give_back(
        within(LIMIT, "it is served", patient.lock())
            .await
            .expect("it is free"),
    )
    .await;
    assert!(held.is_held());
    give_back(held).await;
    rig.settled().await;
}

/// Fault 36: a master that was demoted keeps its connections open, and answers that it only reads.
#[tokio::test]
async fn a_server_that_became_a_replica_is_waited_for() {
    let rig = ServerRig::start();
    let handle = rig.builder().build().expect("valid");
    let lock = mutex(&handle).max_wait(LONG);
    let guard = take(&lock).await;
    rig.server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let waiter = queue(&lock.keyed("other"));
    let tried = failure(promptly("a try ends", lock.keyed("other").try_lock()).await);
    assert_ne!(tried.kind(), BackendErrorKind::ForeignData, "{tried:?}");
    // A replica says that it holds nothing, or that it may not write: neither means that it was
    // lost.
    promptly("a release tells", guard.release())
        .await
        .expect_err("nobody served it");
    assert!(!waiter.is_finished());
    rig.server.command(&["REPLICAOF", "NO", "ONE"]).await;
    give_back(served(waiter).await).await;
    promptly("all is given back", rig.settled()).await;
}

/// C97, fault 46.
#[tokio::test]
async fn a_server_without_room_is_asked_ever_more_rarely() {
    let rig = ServerRig::start_with(&["--maxclients", "5"]);
    let handles: Vec<Portcullis> = (0..10)
        .map(|_| rig.builder().build().expect("valid"))
        .collect();
    let locks: Vec<Mutex> = handles.iter().map(mutex).collect();
    let mut calls = JoinSet::new();
    for lock in &locks {
        let lock = lock.clone();
        calls.spawn(async move { lock.try_lock().await.map(drop) });
    }
    for result in promptly("all calls end", calls.join_all()).await {
        if let Err(LockError::Backend(error)) = result {
            assert_unanswered(&error);
        }
    }
    drop(locks);
    drop(handles);
    // Nobody is left, so there is room for the question.
    let mut refused = 0;
    wait_for("there is room", LIMIT, async || {
        let Ok(stats) = rig.server.try_command(&["INFO", "stats"]).await else {
            return false;
        };
        let stats: String = redis::from_redis_value(stats).expect("text");
        let count = stats
            .lines()
            .find_map(|line| line.strip_prefix("rejected_connections:"));
        refused = count
            .and_then(|count| count.parse::<u64>().ok())
            .expect("it is counted");
        true
    })
    .await;
    // 20 connections, each tried at 20 ms, doubled each time: some 8 times before the calls gave
    // up, and as often before the handles ended. Without a pause it would be thousands.
    assert!((1..=20 * 25).contains(&refused), "{refused} refused");
}

/// Whoever connects is told this, over and over for each thing it says.
fn stranger(words: Vec<u8>) -> String {
    use std::io::{Read, Write};

    let listener =
        std::net::TcpListener::bind("127.0.0.1:0").expect("the loopback interface is up");
    let address = listener
        .local_addr()
        .expect("a bound socket has an address");
    // It ends with the process: the accept has nobody to wake it.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), words) = (stream, words.clone()) else {
                return;
            };
            std::thread::spawn(move || {
                let mut heard = [0; 65536];
                while let Ok(1..) = stream.read(&mut heard) {
                    if words.is_empty() || stream.write_all(&words).is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}/")
}

/// Somebody else's port: nothing that is said there makes a call hang, panic or succeed.
#[tokio::test]
async fn what_is_no_redis_is_an_error_in_time_whatever_it_says() {
    let http = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec();
    let noise: Vec<u8> = (0..4096u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut answers = vec![Vec::new(), http, noise, b"*1\r\n".repeat(100_000)];
    for text in [
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*0\r\n",
        "_\r\n",
        "#t\r\n",
        "%1\r\n+a\r\n+b\r\n",
        "*2\r\n:1\r\n:2\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n",
        "*2147483647\r\n",
        "*9223372036854775807\r\n",
        "%9223372036854775807\r\n",
        "$2147483647\r\n",
        "$9223372036854775807\r\n",
        "-ERR\r\n",
        "-\r\n",
        "-NOSCRIPT no\r\n",
        "+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
        "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n",
        "*2\r\n$20\r\n99999999999999999999\r\n$1\r\n0\r\n",
        "*2\r\n$19\r\n9223372036854775807\r\n$6\r\n999999\r\n",
    ] {
        answers.push(text.repeat(40).into_bytes());
        answers.push(text.into());
    }
    let mut tasks = JoinSet::new();
    for words in answers {
        let told = String::from_utf8_lossy(&words[..words.len().min(40)]).into_owned();
        let handle = Portcullis::builder().url(stranger(words)).build();
        let handle = handle.expect("valid");
        tasks.spawn(async move {
            let lock = mutex(&handle);
            for _ in 0..3 {
                let error = failure(within(LIMIT, &told, lock.try_lock()).await);
                let _ = (error.is_outage(), error.to_string());
            }
            let looked = handle.check().into_future();
            let looked = within(LIMIT, &told, looked).await;
            if let Ok(report) = looked {
                assert!(!report.is_ok(), "{told:?}: {report}");
            }
        });
    }
    all_done(tasks).await;
}
