//! Servers and ways to them that fail half-way, or again and again: every request is answered in its
//! time, and the gates are back soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use portcullis::layer::{Http, OnLost, OnOutage};
use portcullis::{ConcurrencyLimitLayer, MutexLayer, Portcullis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::{Layer, ServiceExt};

use crate::fixture::{Broken, PROMPTLY, Pieces, Probe, SEEN, request};
use crate::outage::{NO_WAIT, handle, hold, permits, start, status, until_gated};
use crate::support::{Mode, Proxy, Server, wait_for};

/// The same within what is promised, as a busy machine keeps it.
async fn back_soon(layer: &ConcurrencyLimitLayer<Http>) {
    let begun = std::time::Instant::now();
    until_gated(layer).await;
    let took = begun.elapsed();
    assert!(took < PROMPTLY, "{took:?}");
}

#[tokio::test]
async fn who_is_let_through_by_nobody_any_more_is_gated_again_after_a_black_hole() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let gates = Portcullis::builder()
        .url(proxy.url())
        .build()
        .expect("valid");
    let direct = handle(&server);
    let _held = hold(&permits(&direct, 1)).await;
    let layer = permits(&gates, 1).on_outage(OnOutage::Allow);
    until_gated(&layer).await;
    for step in 0..4 {
        proxy.set(Mode::BlackHole);
        wait_for("it is away", SEEN, async || {
            status(&layer).await == StatusCode::OK
        })
        .await;
        // Somewhere in an attempt to connect.
        tokio::time::sleep(Duration::from_millis(1000 + 300 * step)).await;
        proxy.set(Mode::Pass);
        back_soon(&layer).await;
    }
}

#[tokio::test]
async fn a_slow_server_costs_a_request_its_budget_and_no_more() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let gates = Portcullis::builder()
        .url(proxy.url())
        .build()
        .expect("valid");
    let layer = permits(&gates, 5).on_outage(OnOutage::Allow);
    assert_eq!(status(&layer).await, StatusCode::OK);
    proxy.set(Mode::Delay(Duration::from_millis(60)));
    for _ in 0..60 {
        let mut requests = JoinSet::new();
        for _ in 0..5 {
            let layer = layer.clone();
            requests.spawn(async move { timeout(PROMPTLY, status(&layer)).await });
        }
        for status in requests.join_all().await {
            assert_eq!(status.expect("in bounded time"), StatusCode::OK);
        }
    }
    proxy.set(Mode::Pass);
    let full = permits(&gates, 5);
    let mut held = Vec::new();
    wait_for("all are taken", SEEN, async || {
        let answer = hold(&full).await;
        if answer.status() == StatusCode::OK {
            held.push(answer);
        }
        held.len() == 5
    })
    .await;
    until_gated(&layer).await;
}

/// Requests that come, wait, work and are dropped at any moment while the server comes and goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_come_and_go_in_an_outage_no_permit_is_lost_and_none_too_many_is_out() {
    const SHARED: u32 = 5;
    const LOCAL: u32 = 3;
    let (server, gates) = start();
    let inside = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let probe = Probe::new({
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        move |_| {
            let leave = Leave(Arc::clone(&inside));
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(3)).await;
                drop(leave);
                Ok::<_, Broken>(http::Response::new(Pieces::empty()))
            }
        }
    });
    let layer = permits(&gates, SHARED).max_wait(Duration::from_millis(400));
    let layer = layer.on_outage(OnOutage::Local(LOCAL));
    let mut requests = JoinSet::new();
    for number in 0..3000u64 {
        let gated = layer.layer(probe.clone());
        requests.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number)).await;
            let patience = Duration::from_millis(number * 37 % 600);
            // Some go before they are answered.
            match timeout(patience, gated.oneshot(request())).await {
                Ok(answer) => Some(answer.expect("an answer").status()),
                Err(_) => None,
            }
        });
    }
    for step in 0..6 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.freeze();
        tokio::time::sleep(Duration::from_millis(150 * (step % 3 + 1))).await;
        server.thaw();
        if step == 3 {
            server.restart();
        }
    }
    let mut served = 0;
    for status in timeout(Duration::from_secs(60), requests.join_all())
        .await
        .expect("all end")
    {
        match status {
            Some(StatusCode::OK) => served += 1,
            Some(StatusCode::SERVICE_UNAVAILABLE) | None => {}
            Some(other) => panic!("{other}"),
        }
    }
    assert!(served > 100, "{served}");
    // Of a server that restarts empty, those who hold do not know it at once.
    let bound = usize::try_from(2 * SHARED + LOCAL).expect("small");
    let most = most.load(Ordering::SeqCst);
    assert!(most <= bound, "{most}");
    assert_eq!(inside.load(Ordering::SeqCst), 0);
    // All are back, here as there.
    let semaphore = gates.semaphore("reports", SHARED).expect("in range");
    let whole = semaphore.max_wait(SEEN);
    drop(whole.acquire_many(SHARED).await.expect("all are free"));
    server.kill();
    let held = futures_util::future::join_all((0..LOCAL).map(|_| hold(&layer))).await;
    for answer in &held {
        assert_eq!(answer.status(), StatusCode::OK);
    }
    assert_eq!(status(&layer).await, StatusCode::SERVICE_UNAVAILABLE);
}

/// Counts one out when it is dropped.
struct Leave(Arc<AtomicUsize>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A script of somebody's that runs on, credentials that change, a master that is demoted.
#[tokio::test]
async fn a_server_that_says_that_it_can_not_serve_is_done_without_until_it_can() {
    let server = Server::start_with(&["--lua-time-limit", "50"]);
    let gates = handle(&server);
    let other = handle(&server);
    // They wait a little: that nobody can come in at once, a replica can say, too.
    let allowing = permits(&gates, 1).max_wait(Duration::from_millis(50));
    let allowing = allowing.on_outage(OnOutage::Allow);
    let _held = hold(&permits(&other, 1)).await;
    until_gated(&allowing).await;
    let all_pass = async |what: &str| {
        wait_for(what, SEEN, async || {
            status(&allowing).await == StatusCode::OK
        })
        .await;
        for _ in 0..20 {
            assert_eq!(status(&allowing).await, StatusCode::OK, "{what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };

    server.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    all_pass("demoted").await;
    server.command(&["REPLICAOF", "NO", "ONE"]).await;
    back_soon(&allowing).await;

    let mut connection = server.connection();
    let looping = std::thread::spawn(move || {
        let mut order = redis::cmd("EVAL");
        let looped = order.arg("while true do end").arg(0);
        looped
            .query::<()>(&mut connection)
            .expect_err("it is killed");
    });
    all_pass("busy").await;
    let mut killer = server.connection();
    let killed = redis::cmd("SCRIPT").arg("KILL").query::<()>(&mut killer);
    killed.expect("it can be killed");
    looping.join().expect("the loop ends");
    back_soon(&allowing).await;

    server
        .command(&["CONFIG", "SET", "requirepass", "new-4711"])
        .await;
    let mut admin = redis::Client::open(format!("redis://:new-4711@127.0.0.1:{}/", server.port()))
        .and_then(|client| client.get_connection())
        .expect("it knows the password");
    redis::cmd("CLIENT")
        .arg(&["KILL", "SKIPME", "yes"])
        .exec(&mut admin)
        .expect("it obeys");
    all_pass("rotated").await;
    redis::cmd("CONFIG")
        .arg(&["SET", "requirepass", ""])
        .exec(&mut admin)
        .expect("it obeys");
    back_soon(&allowing).await;
}

/// A way on which packets are lost: nobody is refused, nobody gets through. When it is mended, they
/// reach the server.
struct LostWay(TcpListener, Vec<TcpStream>);

impl LostWay {
    async fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        let address = "127.0.0.1:0".parse().expect("an address");
        socket.bind(address).expect("a free port");
        let listener = socket.listen(1).expect("it listens");
        let address = listener.local_addr().expect("bound");
        // Whoever comes after those who fill its queue is not answered.
        let mut filling = Vec::new();
        while let Ok(stream) =
            timeout(Duration::from_millis(300), TcpStream::connect(address)).await
        {
            filling.push(stream.expect("a connection"));
        }
        Self(listener, filling)
    }

    fn url(&self) -> String {
        format!("redis://{}/", self.0.local_addr().expect("bound"))
    }

    fn mend(self, server: &Server) {
        let port = server.port();
        drop(self.1);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = self.0.accept().await {
                tokio::spawn(async move {
                    let server = TcpStream::connect(("127.0.0.1", port)).await;
                    let mut server = server.expect("it is there");
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
    }
}

#[tokio::test]
async fn gates_are_back_soon_after_a_way_on_which_all_was_lost() {
    let server = Server::start();
    let direct = handle(&server);
    let _held = hold(&permits(&direct, 1)).await;
    for step in 0..2 {
        let way = LostWay::new().await;
        let gates = Portcullis::builder().url(way.url()).build();
        let gates = gates.expect("valid");
        let layer = permits(&gates, 1).on_outage(OnOutage::Allow);
        assert_eq!(status(&layer).await, StatusCode::OK);
        tokio::time::sleep(Duration::from_millis(1500 + 350 * step)).await;
        way.mend(&server);
        back_soon(&layer).await;
    }
}

/// Nobody may have asked meanwhile.
#[tokio::test]
async fn who_comes_first_after_an_outage_is_gated_though_nobody_found_out_before() {
    let (server, gates) = start();
    let direct = handle(&server);
    let layer = permits(&gates, 1).on_outage(OnOutage::Allow);
    for kills in [false, true] {
        let held = hold(&permits(&direct, 1).max_wait(SEEN)).await;
        assert_eq!(held.status(), StatusCode::OK);
        until_gated(&layer).await;
        server.freeze();
        wait_for("it is away", SEEN, async || {
            status(&layer).await == StatusCode::OK
        })
        .await;
        // It counts as away, however that was found out.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(status(&layer).await, StatusCode::OK);
        if kills {
            // What was held is forgotten.
            drop(held);
            server.restart();
            let fresh = handle(&server);
            let held = hold(&permits(&fresh, 1)).await;
            assert_eq!(held.status(), StatusCode::OK);
            tokio::time::sleep(PROMPTLY).await;
            assert_eq!(status(&layer).await, StatusCode::SERVICE_UNAVAILABLE);
        } else {
            server.thaw();
            tokio::time::sleep(PROMPTLY).await;
            assert_eq!(status(&layer).await, StatusCode::SERVICE_UNAVAILABLE);
        }
    }
}

/// Of two connections the server has room for one.
#[tokio::test]
async fn a_connection_that_can_not_be_had_is_an_outage_for_those_gates_only_that_it_carries() {
    const CLIENTS: usize = 12;
    let server = Server::start_with(&["--maxclients", &CLIENTS.to_string()]);
    let mut admin = server.connection();
    let locks = handle(&server);
    let gates = handle(&server);
    let key = |parts: &http::request::Parts| {
        let key = parts.headers.get("x-account")?;
        key.to_str().ok().map(str::to_owned)
    };
    let mut held = Vec::new();
    for account in 0..24 {
        let lock = locks.mutex("withdraw").keyed(account.to_string());
        held.push(lock.lock().await.expect("it is free"));
    }
    let lock = MutexLayer::new(gates.mutex("withdraw")).key(key);
    let lock = lock.max_wait(NO_WAIT).on_outage(OnOutage::Allow);
    let ask = async |account: usize| {
        let mut request = request();
        let value = HeaderValue::from_str(&account.to_string()).expect("digits");
        request.headers_mut().insert("x-account", value);
        let gated = lock.layer(Probe::answering(Pieces::empty));
        let answer = timeout(PROMPTLY, gated.oneshot(request)).await;
        answer
            .expect("in bounded time")
            .expect("an answer")
            .status()
    };
    // All but one place is taken.
    let mut others = Vec::new();
    let connected = |admin: &mut redis::Connection| {
        let list: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(admin)
            .expect("a list");
        list.lines().count()
    };
    for _ in 0..20 {
        while connected(&mut admin) < CLIENTS - 1 {
            others.push(server.connection());
        }
        // Those who looked whether it is there may still go.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut seen = [StatusCode::OK; 24];
    for _ in 0..5 {
        for (account, seen) in seen.iter_mut().enumerate() {
            *seen = ask(account).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let through = seen
        .iter()
        .filter(|&&status| status == StatusCode::OK)
        .count();
    let stopped = seen
        .iter()
        .filter(|&&status| status == StatusCode::CONFLICT)
        .count();
    assert!(
        through > 0 && stopped > 0 && through + stopped == 24,
        "{seen:?}"
    );
    drop(others);
    wait_for("all gates are back", PROMPTLY, async || {
        for account in 0..24 {
            if ask(account).await != StatusCode::CONFLICT {
                return false;
            }
        }
        true
    })
    .await;
    drop(held);
}

#[tokio::test]
async fn requests_that_were_let_in_before_an_outage_lose_their_leases_and_later_ones_need_none() {
    let (server, gates) = start();
    let semaphore = gates.semaphore("reports", 1).expect("in range");
    let semaphore = semaphore.ttl(Duration::from_secs(1)).expect("in range");
    let layer = ConcurrencyLimitLayer::new(semaphore).max_wait(NO_WAIT);
    let layer = layer.on_lost(OnLost::Abort).on_outage(OnOutage::Allow);
    let (enters, mut entered) = mpsc::unbounded_channel();
    let stays = layer.layer(Probe::new(move |_| {
        enters.send(()).expect("the test lives");
        std::future::pending::<Result<_, Broken>>()
    }));
    let early = tokio::spawn(stays.clone().oneshot(request()));
    entered.recv().await.expect("it holds");
    server.kill();
    let aborted = timeout(SEEN, early).await.expect("its lease is lost");
    let aborted = aborted.expect("no panic").expect("an answer");
    assert_eq!(aborted.status(), StatusCode::SERVICE_UNAVAILABLE);
    let mut later = tokio::spawn(stays.oneshot(request()));
    entered.recv().await.expect("it is let through");
    let ended = timeout(PROMPTLY, &mut later).await;
    assert!(ended.is_err(), "it holds nothing that it could lose");
    later.abort();
}

/// A way on which every answer is damaged while it is told to.
async fn damaging(server: &Server) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (port, damages) = (server.port(), Arc::new(AtomicBool::new(false)));
    let told = Arc::clone(&damages);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let damages = Arc::clone(&told);
            let server = TcpStream::connect(("127.0.0.1", port)).await;
            let (mut from, mut to) = server.expect("it is there").into_split();
            let (mut asks, mut hears) = client.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut asks, &mut to).await });
            tokio::spawn(async move {
                let (mut bytes, mut count) = ([0; 4096], 0_usize);
                while let Ok(length @ 1..) = from.read(&mut bytes).await {
                    if damages.load(Ordering::Relaxed) {
                        count += 7;
                        bytes[count % length] ^= 1 << (count % 7);
                    }
                    if hears.write_all(&bytes[..length]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (format!("redis://{address}/"), damages)
}

#[tokio::test]
async fn answers_that_are_damaged_on_their_way_hang_nobody_and_are_over_with_the_damage() {
    let server = Server::start();
    let direct = handle(&server);
    let (url, damages) = damaging(&server).await;
    let gates = Portcullis::builder().url(url).build().expect("valid");
    let allowing = permits(&gates, 1).on_outage(OnOutage::Allow);
    let held = hold(&permits(&direct, 1)).await;
    until_gated(&allowing).await;
    damages.store(true, Ordering::Relaxed);
    for _ in 0..300 {
        let answer = timeout(PROMPTLY, status(&allowing)).await;
        answer.expect("in bounded time");
    }
    damages.store(false, Ordering::Relaxed);
    back_soon(&allowing).await;
    drop(held);
    wait_for("it is free", SEEN, async || {
        status(&permits(&gates, 1)).await == StatusCode::OK
    })
    .await;
}

/// Each with a runtime of its own, which ends in the middle.
#[test]
fn a_handle_that_many_runtimes_share_counts_for_all_of_them_in_an_outage() {
    let (server, gates) = start();
    server.kill();
    let layer = permits(&gates, 9).on_outage(OnOutage::Local(2));
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("the system has room for a runtime")
    };
    let held: Vec<_> = (0..2).map(|_| runtime().block_on(hold(&layer))).collect();
    for answer in &held {
        assert_eq!(answer.status(), StatusCode::OK);
    }
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let patient = layer.clone().max_wait(SEEN);
            std::thread::spawn(move || runtime().block_on(status(&patient)))
        })
        .collect();
    let full = runtime().block_on(status(&layer));
    assert_eq!(full, StatusCode::SERVICE_UNAVAILABLE);
    drop(held);
    for waiter in waiting {
        assert_eq!(waiter.join().expect("no panic"), StatusCode::OK);
    }
}
