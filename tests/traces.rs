//! What the crate tells by `tracing` and by its types' `Debug` and `Display`: warnings, each once,
//! and never a secret (C09, C131).
//!
//! A binary of its own, because there is one subscriber per process; the tests take turns at it.

#[path = "behavior/common.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod common;
#[path = "behavior/leftovers.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod leftovers;
mod support;

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Debug;
use std::future::pending;
use std::io;
use std::sync::mpsc;
use std::sync::{Arc, LazyLock, Mutex as StdMutex, PoisonError};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use futures_util::FutureExt;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use portcullis::deadpool_redis::{Config, Runtime};
use portcullis::layer::{OnLost, OnOutage};
use portcullis::test_util::MemoryServer;
use portcullis::{
    ConcurrencyLimitLayer, Key, LeaseMode, LockError, Mutex, MutexGuard, Portcullis, Semaphore,
};
use tower::{Layer, ServiceExt, service_fn};
use tracing::span;
use tracing_subscriber::filter::EnvFilter;

use common::{
    LIMIT, LONG, failure, give_back, promptly, queue, refusal, served, take, until_waiting, within,
};
use leftovers::ask;
use support::{Server, wait_for};

/// What was said since the process began.
#[derive(Clone, Default)]
struct Heard(Arc<StdMutex<Vec<u8>>>);

impl io::Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The one subscriber, and whose turn it is.
struct Stage {
    heard: Heard,
    turn: tokio::sync::Mutex<()>,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let heard = Heard::default();
    let writer = heard.clone();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("portcullis=trace"))
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    Stage {
        heard,
        turn: tokio::sync::Mutex::default(),
    }
});

/// A test's turn to listen, from its beginning on.
struct Turn {
    from: usize,
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

impl Turn {
    async fn take() -> Self {
        let turn = STAGE.turn.lock().await;
        let from = STAGE
            .heard
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        Self { from, _turn: turn }
    }

    fn heard(&self) -> String {
        let heard = STAGE.heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&heard[self.from..]).into_owned()
    }

    /// The warnings that contain `words`.
    fn warnings(&self, words: &str) -> usize {
        let heard = self.heard();
        heard
            .lines()
            .filter(|line| line.contains("WARN") && line.contains(words))
            .count()
    }
}

fn mutex(handle: &Portcullis) -> Mutex {
    handle.mutex("withdraw").ttl(LONG).expect("in range")
}

fn semaphore(handle: &Portcullis) -> Semaphore {
    handle
        .semaphore("reports", 2)
        .expect("in range")
        .ttl(LONG)
        .expect("in range")
}

/// A server, and a handle on it as users have it.
fn start() -> (Server, Portcullis) {
    let server = Server::start();
    let handle = Portcullis::builder().url(server.url()).build();
    (server, handle.expect("valid"))
}

/// A wait and a hand-over within one handle, so that what depends on waiting is tried.
async fn wait_once(handle: &Portcullis) {
    let lock = mutex(handle);
    let guard = take(&lock).await;
    let next = queue(&lock);
    until_waiting(&lock, 1).await;
    give_back(guard).await;
    give_back(served(next).await).await;
}

/// Everything that can be printed, printed.
#[derive(Default)]
struct Printed {
    all: String,
    errors: String,
}

impl Printed {
    fn debug(&mut self, value: &impl Debug) {
        self.all += &format!("{value:?}\n{value:#?}\n");
    }

    fn error(&mut self, error: &impl Error) {
        let mut text = format!("{error}\n{error:?}\n{error:#?}\n");
        let mut cause = error.source();
        while let Some(error) = cause {
            text += &format!("{error} {error:?}\n");
            cause = error.source();
        }
        self.all += &text;
        self.errors += &text;
    }
}

/// C131.
#[tokio::test]
async fn neither_passwords_nor_tokens_nor_inboxes_are_ever_told() {
    const PASSWORD: &str = "p@ss:w0rd/4711";
    const ENCODED: &str = "p%40ss%3Aw0rd%2F4711";
    let turn = Turn::take().await;
    let server = Server::start();
    let mut connection = server.connection();
    let allow = format!(">{PASSWORD}");
    server
        .command(&[
            "ACL", "SETUSER", "somebody", "on", &allow, "~*", "&*", "+@all",
        ])
        .await;
    let address = format!("127.0.0.1:{}", server.port());
    let url = format!("redis://somebody:{ENCODED}@{address}/");
    let mut printed = Printed::default();

    let builder = Portcullis::builder().url(url.as_str()).prefix("suite");
    printed.debug(&builder);
    let pool = Config::from_url(url.as_str())
        .create_pool(Some(Runtime::Tokio1))
        .expect("valid");
    let info = redis::IntoConnectionInfo::into_connection_info(url.as_str()).expect("valid");
    let pooled = Portcullis::builder().pool(pool).subscriber(info);
    printed.debug(&pooled);
    printed.debug(&pooled.build().expect("valid"));
    let handle = builder.build().expect("valid");
    printed.debug(&handle);

    // A whole life: holding, waiting, being lost, being refused, failing.
    let (lock, permits) = (mutex(&handle), semaphore(&handle));
    let short = lock
        .keyed("short")
        .ttl(Duration::from_millis(600))
        .expect("in range");
    printed.debug(&(
        &lock,
        &permits,
        &handle.mutex_at("exact"),
        Key::from("account-4711"),
    ));
    let (guard, permit) = (take(&lock).await, take(&permits).await);
    let fixed = short.clone().lease(LeaseMode::Fixed).expect("in range");
    let (lost, exact) = (take(&fixed).await, take(&handle.mutex_at("exact")).await);
    printed.debug(&(&guard, &permit, &lost, guard.lost(), guard.fencing_token()));
    let waiter = queue(&lock);
    until_waiting(&lock, 1).await;
    let refused = refusal(lock.try_lock().await);
    printed.error(&refused);
    printed.error(&LockError::from(refused));
    let reason = within(LIMIT, "it is lost", lost.lost()).await;
    printed.error(&reason);
    printed.debug(&(&lost, lost.lost()));

    let mut secrets = vec![PASSWORD.to_owned(), ENCODED.to_owned()];
    for key in server.keys_with("").await {
        let kind: String = ask(&mut connection, &["TYPE", &key]);
        match kind.as_str() {
            // Fences are no secrets: neither that of a clock nor the one behind a token.
            "string" if key.ends_with(":clock") => {}
            "string" => {
                let value: String = ask(&mut connection, &["GET", &key]);
                secrets.extend(value.split(' ').next().map(str::to_owned));
            }
            "zset" => {
                let members: Vec<String> = ask(&mut connection, &["ZRANGE", &key, "0", "-1"]);
                secrets.extend(members);
            }
            _ => {
                let fields: Vec<String> = ask(&mut connection, &["HKEYS", &key]);
                secrets.extend(fields.into_iter().filter(|field| field.len() > 1));
            }
        }
    }
    let inboxes: Vec<String> = ask(&mut connection, &["PUBSUB", "CHANNELS", "*:inbox:*"]);
    assert_eq!(inboxes.len(), 1);
    let instance = inboxes[0]
        .rsplit(':')
        .next()
        .expect("its last part")
        .to_owned();
    assert!(
        secrets
            .iter()
            .filter(|secret| secret.starts_with(&instance))
            .count()
            >= 4
    );
    // Whatever begins with it, it is found by it.
    secrets.push(instance);

    let releasing = guard.release();
    printed.debug(&releasing);
    printed.debug(&promptly("answered", releasing).await);
    give_back(served(waiter).await).await;
    drop((permit, exact, lost));
    // Another value under a key; a crash; a wrong password; nobody there; an address that is none.
    let held = take(&short).await;
    for key in server.keys_with("suite:").await {
        if key.contains("}:m:") {
            server.command(&["SET", &key, "foreign"]).await;
        }
    }
    within(LIMIT, "it is lost", held.lost()).await;
    server.kill();
    printed.error(&failure(lock.try_lock().await));
    let error = promptly("answered", held.release()).await;
    printed.debug(&error);
    server.restart();
    server
        .command(&[
            "ACL", "SETUSER", "somebody", "on", ">other", "~*", "&*", "+@all",
        ])
        .await;
    let wrong = Portcullis::builder()
        .url(url.as_str())
        .build()
        .expect("valid");
    printed.error(&failure(mutex(&wrong).try_lock().await));
    let nowhere = format!("redis://somebody:{ENCODED}@no-such-host.invalid/");
    let nowhere = Portcullis::builder().url(nowhere).build().expect("valid");
    printed.error(&failure(
        within(LIMIT, "it fails", mutex(&nowhere).try_lock()).await,
    ));
    for wrong in [
        format!("http://somebody:{ENCODED}@host/"),
        format!("redis://{ENCODED}:{ENCODED}@"),
    ] {
        if let Err(error) = Portcullis::builder().url(wrong).build() {
            printed.error(&error);
        }
    }
    printed.debug(&handle.shutdown(Duration::from_millis(100)).await);

    let told = turn.heard() + &printed.all;
    assert!(
        told.contains("lost a lease") && told.contains("withdraw"),
        "{told}"
    );
    for secret in &secrets {
        assert!(
            !told.contains(secret.as_str()),
            "{secret:?} was told:\n{told}"
        );
    }
    assert!(
        !printed.errors.contains(&address),
        "an address was told:\n{}",
        printed.errors
    );
}

#[tokio::test]
async fn that_waiters_ask_by_a_timer_is_told_once() {
    let turn = Turn::take().await;
    let server = Server::start();
    let pool = Config::from_url(server.url())
        .create_pool(Some(Runtime::Tokio1))
        .expect("valid");
    let handle = Portcullis::builder()
        .pool(pool)
        .prefix("suite")
        .build()
        .expect("valid");
    for _ in 0..3 {
        wait_once(&handle).await;
    }
    assert_eq!(turn.warnings("no pushes"), 1, "{}", turn.heard());
}

#[tokio::test]
async fn that_channels_are_forbidden_is_told_once() {
    let turn = Turn::take().await;
    let server = Server::start();
    let user = [
        "ACL",
        "SETUSER",
        "mute",
        "on",
        ">open",
        "~*",
        "resetchannels",
        "+@all",
    ];
    server.command(&user).await;
    let url = format!("redis://mute:open@127.0.0.1:{}/", server.port());
    let handle = Portcullis::builder()
        .url(url)
        .prefix("suite")
        .build()
        .expect("valid");
    for _ in 0..3 {
        wait_once(&handle).await;
    }
    wait_for("it is told", LIMIT, async || turn.warnings("no pushes") > 0).await;
    assert_eq!(turn.warnings("no pushes"), 1, "{}", turn.heard());
}

/// C09.
#[tokio::test]
async fn that_the_server_may_evict_locks_is_told_once() {
    let turn = Turn::take().await;
    let evicting = [
        "--maxmemory",
        "100mb",
        "--maxmemory-policy",
        "allkeys-random",
    ];
    for (options, warnings) in [
        (&evicting[..], 1),
        (
            &["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"],
            1,
        ),
        (&["--maxmemory-policy", "allkeys-lru"], 1),
    ] {
        let server = Server::start_with(options);
        let handle = Portcullis::builder()
            .url(server.url())
            .build()
            .expect("valid");
        drop(take(&mutex(&handle)).await);
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        give_back(take(&mutex(&handle)).await).await;
        assert_eq!(
            turn.warnings("evict"),
            warnings,
            "{options:?}: {}",
            turn.heard()
        );
    }
}

/// One line for each outage, and its cause, without address or secret.
#[tokio::test]
async fn why_there_is_no_connection_is_told_once() {
    const WORDS: &str = "the server is away";
    let turn = Turn::take().await;
    let server = Server::start();
    server
        .command(&[
            "ACL", "SETUSER", "u", "on", ">right", "~*", "&*", "+@all", "-time",
        ])
        .await;
    let port = server.port();
    for (url, cause) in [
        ("redis://127.0.0.1:1/".to_owned(), "connection refused"),
        ("redis://no..name/".to_owned(), "DNS"),
        (
            format!("redis://u:wrong-4711@127.0.0.1:{port}/"),
            "credentials refused",
        ),
        (
            format!("redis://u:wrong-4711@127.0.0.1:{port}/?protocol=resp3"),
            "WRONGPASS",
        ),
        (format!("redis://u:right@127.0.0.1:{port}/"), "NOPERM"),
        (format!("redis://127.0.0.1:{port}/99"), "database refused"),
    ] {
        let before = turn.warnings(WORDS);
        let handle = Portcullis::builder().url(url).build().expect("valid");
        for _ in 0..2 {
            failure(within(LIMIT, "it fails", mutex(&handle).try_lock()).await);
        }
        wait_for("it is told", LIMIT, async || turn.warnings(WORDS) > before).await;
        let heard = turn.heard();
        assert_eq!(turn.warnings(WORDS), before + 1, "{cause}: {heard}");
        let warning = heard.lines().rfind(|line| line.contains("WARN"));
        let warning = warning.expect("one was counted");
        assert!(warning.contains(cause), "{cause}: {warning}");
        for secret in ["4711", "127.0.0.1", "no..name", &port.to_string()] {
            assert!(!warning.contains(secret), "{secret}: {warning}");
        }
    }
}

/// However long it lasts, whatever waits and whatever is asked meanwhile.
#[tokio::test]
async fn an_outage_is_told_of_at_its_beginning_and_at_its_end() {
    let turn = Turn::take().await;
    let (server, handle) = start();
    // From here on it listens for pushes.
    wait_once(&handle).await;
    for way in ["killed", "frozen"] {
        let backs = |turn: &Turn| turn.heard().matches("the server is back").count();
        let (warned, back) = (turn.warnings(""), backs(&turn));
        if way == "killed" {
            server.kill();
        } else {
            server.freeze();
        }
        let begun = std::time::Instant::now();
        // Longer than the subscription is tried for without a word.
        while begun.elapsed() < Duration::from_secs(5) {
            failure(within(LIMIT, "it fails", mutex(&handle).try_lock()).await);
        }
        if way == "killed" {
            server.restart();
        } else {
            server.thaw();
        }
        wait_for("it is told", LIMIT, async || backs(&turn) > back).await;
        wait_once(&handle).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let heard = turn.heard();
        assert_eq!(turn.warnings(""), warned + 1, "{way}: {heard}");
        assert_eq!(backs(&turn), back + 1, "{way}: {heard}");
    }
}

/// One that comes and goes is one.
#[tokio::test]
async fn a_server_that_stumbles_all_the_time_is_told_of_once() {
    let turn = Turn::take().await;
    let (server, handle) = start();
    let layer = ConcurrencyLimitLayer::new(semaphore(&handle)).on_outage(OnOutage::Allow);
    let layer = layer.max_wait(Duration::ZERO);
    let gated = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    wait_once(&handle).await;
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        server.freeze();
        let freezing = std::time::Instant::now();
        while freezing.elapsed() < Duration::from_millis(150) {
            join_all((0..10).map(|_| gated.clone().oneshot(Request::new(())))).await;
        }
        server.thaw();
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let backs = |turn: &Turn| turn.heard().matches("the server is back").count();
    wait_for("it is told", LIMIT, async || backs(&turn) > 0).await;
    let heard = turn.heard();
    assert_eq!(turn.warnings(""), 1, "{heard}");
    assert_eq!(backs(&turn), 1, "{heard}");
}

#[tokio::test]
async fn a_healthy_life_gives_no_cause_to_warn() {
    let turn = Turn::take().await;
    let (_server, handle) = start();
    for _ in 0..3 {
        wait_once(&handle).await;
    }
    drop(take(&semaphore(&handle)).await);
    assert_eq!(handle.shutdown(LONG).await.abandoned, 0);
    assert_eq!(turn.warnings(""), 0, "{}", turn.heard());
}

/// Its thread tries to deliver a release for a while. Nobody is left whom it concerns that it can't,
/// and a process that ends its server after its handle, as a test does, has no outage.
#[tokio::test]
async fn what_befalls_the_server_of_a_handle_that_nobody_has_any_more_is_no_cause_to_warn() {
    let turn = Turn::take().await;
    let (server, handle) = start();
    let guard = take(&mutex(&handle)).await;
    drop(handle);
    server.freeze();
    drop(guard);
    server.kill();
    // The second time, it has said all there was to say of the first.
    wait_for("it tries to connect", LIMIT, async || {
        turn.heard().matches("no connection to the server").count() > 1
    })
    .await;
    assert_eq!(turn.warnings(""), 0, "{}", turn.heard());
}

/// One line for a lease that is lost, with what finds it, and one for an outage, not for each call
/// in it.
#[tokio::test]
async fn a_lost_lease_is_told_with_its_gate_and_fence() {
    let turn = Turn::take().await;
    let (_server, handle) = start();
    let fixed = mutex(&handle)
        .keyed("account-4711")
        .ttl(Duration::from_millis(300));
    let fixed = fixed
        .expect("in range")
        .lease(LeaseMode::Fixed)
        .expect("in range");
    let guard = take(&fixed).await;
    within(LIMIT, "it is lost", guard.lost()).await;
    let fence = guard.fencing_token().to_string();
    wait_for("it is told", LIMIT, async || {
        turn.warnings("lost a lease") > 0
    })
    .await;
    assert_eq!(turn.warnings("withdraw"), 1, "{}", turn.heard());
    assert_eq!(turn.warnings(&fence), 1, "{}", turn.heard());
    // What a request brought is not a program's to tell.
    assert!(!turn.heard().contains("account-4711"));
    drop(guard);
}

/// One line, however many requests are aborted.
#[tokio::test]
async fn requests_whose_leases_are_lost_together_give_one_warning() {
    let turn = Turn::take().await;
    let server = MemoryServer::new();
    let semaphore = server.handle().semaphore("reports", 100).expect("in range");
    let layer = ConcurrencyLimitLayer::new(semaphore).on_lost(OnLost::Abort);
    let gated = layer.layer(service_fn(|_: Request<()>| {
        pending::<Result<Response<Body>, Infallible>>()
    }));
    let requests = (0..100).map(|_| gated.clone().oneshot(Request::new(())));
    let mut requests = Box::pin(join_all(requests));
    assert!(requests.as_mut().now_or_never().is_none());
    assert_eq!(server.expire("reports"), 100);
    for answer in requests.await {
        let answer = answer.expect("an answer");
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    let heard = turn.heard();
    assert_eq!(turn.warnings(""), 1, "{heard}");
    assert_eq!(turn.warnings("reports"), 1, "{heard}");
    assert_eq!(turn.warnings("count=100"), 1, "{heard}");
}

/// Whoever has looked at them and at however many keys they are.
#[tokio::test]
async fn leases_that_a_shutdown_ends_give_one_warning_for_each_gate() {
    let turn = Turn::take().await;
    let handle = Portcullis::in_memory();
    let (lock, permits) = (mutex(&handle), semaphore(&handle));
    let mut guards: Vec<MutexGuard> = Vec::new();
    for account in 0..20 {
        let guard = take(&lock.keyed(format!("account-{account}"))).await;
        // Every other one is looked at.
        assert!(account % 2 == 0 || guard.is_held());
        guards.push(guard);
    }
    let permit = take(&permits).await;
    assert!(permit.is_held());
    handle.shutdown(Duration::ZERO).await;
    let heard = turn.heard();
    assert_eq!(turn.warnings(""), 2, "{heard}");
    assert_eq!(turn.warnings("count=20"), 1, "{heard}");
    let fence = permit.fencing_token().get();
    assert_eq!(turn.warnings(&format!("fencing_token={fence}")), 1);
    drop((guards, permit));
}

/// Told of a loss, it tries the gate itself, as one does that sends what it is told through it.
struct Returning {
    lock: StdMutex<Option<Mutex>>,
    got_in: mpsc::Sender<bool>,
}

impl tracing::Subscriber for Returning {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("portcullis") && *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, _: &tracing::Event<'_>) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = lock.as_ref() {
            let answer = lock.try_lock().now_or_never();
            let _ = self.got_in.send(matches!(answer, Some(Ok(_))));
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn who_is_told_of_a_loss_in_memory_may_pass_the_gate() {
    let _turn = Turn::take().await;
    for looks in [true, false] {
        let (got_in, told) = mpsc::channel();
        // In a thread of its own: a deadlock would keep the runtime from its end.
        thread::spawn(move || {
            let server = MemoryServer::new();
            let lock = mutex(&server.handle());
            let guard = lock.try_lock().now_or_never();
            let guard = guard.expect("at once").expect("a free lock");
            assert!(!looks || guard.is_held());
            let returning = Returning {
                lock: StdMutex::new(Some(lock)),
                got_in,
            };
            let told = tracing::subscriber::set_default(returning);
            server.expire("withdraw");
            drop(told);
        });
        assert_eq!(told.recv_timeout(LIMIT), Ok(true), "looks: {looks}");
    }
}
