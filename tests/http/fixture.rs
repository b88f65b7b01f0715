//! What these tests share: gates on a server of their own, a probing service, a body under control.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{self, Arc};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame};
use portcullis::layer::BoxError;
use portcullis::{Builder, Mutex, Portcullis, Semaphore};
use tokio::sync::mpsc;
use tower::Service;
use tracing::Level;

use crate::support::{Server, wait_for};

/// How long what is to happen promptly may take on a busy machine: neither the TTL nor the 3 s of
/// an unconfirmed claim can explain it.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(2);

/// Of all gates, unless a test is about its end.
const TTL: Duration = Duration::from_secs(30);

/// Of gates whose loss is waited for: seen at the next renewal, after a third of it.
pub(crate) const SHORT_TTL: Duration = Duration::from_secs(1);

/// How long the loss of a lease with the short TTL may take to be seen.
pub(crate) const SEEN: Duration = Duration::from_secs(10);

/// A gate of each kind, and the server under them, or the quorum of so many. Released ones are seen
/// on the servers, not by asking the layer.
pub(crate) struct Fixture<const N: usize> {
    pub(crate) servers: [Server; N],
    pub(crate) gates: Portcullis,
}

impl Fixture<1> {
    pub(crate) fn new() -> Self {
        Self::on_servers()
    }
}

impl<const N: usize> Fixture<N> {
    pub(crate) fn on_servers() -> Self {
        let servers = std::array::from_fn(|_| Server::start());
        // Longer time-outs than the default: tests run many at once, and these are not about them.
        let patient = builder(&servers)
            .command_timeout(SEEN)
            .connect_timeout(SEEN);
        let patient = patient.admission_budget(SEEN);
        let gates = if N > 1 {
            patient.server_timeout(Duration::from_secs(1)).build()
        } else {
            patient.build()
        };
        Self {
            servers,
            gates: gates.expect("local addresses"),
        }
    }

    /// Of another handle, with the time-outs that users have.
    pub(crate) fn builder(&self) -> Builder {
        builder(&self.servers)
    }

    pub(crate) fn semaphore(&self, limit: u32) -> Semaphore {
        let semaphore = self.gates.semaphore("reports", limit);
        semaphore
            .and_then(|semaphore| semaphore.ttl(TTL))
            .expect("in range")
    }

    pub(crate) fn mutex(&self) -> Mutex {
        self.gates.mutex("withdraw").ttl(TTL).expect("in range")
    }

    /// Waits until all `limit` permits can be taken at once.
    pub(crate) async fn wait_until_free(&self, limit: u32) {
        let semaphore = self.semaphore(limit).max_wait(Duration::ZERO);
        let free = async || semaphore.acquire_many(limit).await.is_ok();
        wait_for("all permits are back", PROMPTLY, free).await;
    }

    pub(crate) async fn wait_until_unlocked(&self) {
        let mutex = self.mutex();
        wait_for("the lock is back", PROMPTLY, async || {
            mutex.try_lock().await.is_ok()
        })
        .await;
    }

    /// Whether none of `limit` permits can be taken.
    pub(crate) async fn is_full(&self, limit: u32) -> bool {
        self.semaphore(limit).try_acquire().await.is_err()
    }

    /// Waits until so many stand in the queues, of all gates together.
    pub(crate) async fn wait_until_queued(&self, expected: usize) {
        let what = format!("{expected} in the queue");
        wait_for(&what, PROMPTLY, async || self.queued().await == expected).await;
    }

    /// On the server where most do.
    async fn queued(&self) -> usize {
        let mut most = 0;
        for server in &self.servers {
            let mut queued = 0;
            for key in server.keys_with("portcullis:").await {
                if key.contains("}:sq:") || key.contains("}:mq:") {
                    let length = server.command(&["ZCARD", &key]).await;
                    queued += redis::from_redis_value::<usize>(length).expect("a number");
                }
            }
            most = most.max(queued);
        }
        most
    }

    /// Takes from the servers what the only holder of all gates holds, as a loss of their data would.
    pub(crate) async fn forget_holders(&self) {
        for server in &self.servers {
            for key in server.keys_with("portcullis:").await {
                if key.contains("}:s:") || key.contains("}:m:") {
                    server.command(&["DEL", &key]).await;
                }
            }
        }
    }
}

/// Of a handle for which all servers of a quorum vote at once, though they have just started.
fn builder(servers: &[Server]) -> Builder {
    match servers {
        [server] => Portcullis::builder().url(server.url()),
        servers => {
            let urls = servers.iter().map(Server::url);
            Portcullis::builder().quorum(urls).quarantine(false)
        }
    }
}

type Answer =
    dyn Fn(Request<String>) -> BoxFuture<'static, Result<Response<Pieces>, Broken>> + Send + Sync;

/// An inner service that insists on tower's contract: polled ready before each call, and its clones
/// anew.
#[derive(Clone)]
pub(crate) struct Probe {
    ready: Readiness,
    calls: Arc<AtomicUsize>,
    answer: Arc<Answer>,
}

struct Readiness(bool);

impl Clone for Readiness {
    fn clone(&self) -> Self {
        Self(false)
    }
}

impl Probe {
    pub(crate) fn new<F>(answer: impl Fn(Request<String>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<Pieces>, Broken>> + Send + 'static,
    {
        let answer = move |request| -> BoxFuture<'static, _> { Box::pin(answer(request)) };
        Self {
            ready: Readiness(false),
            calls: Arc::default(),
            answer: Arc::new(answer),
        }
    }

    /// Answers every request with what a channel brings.
    pub(crate) fn answering(body: impl Fn() -> Pieces + Send + Sync + 'static) -> Self {
        Self::new(move |_| {
            let body = body();
            async { Ok(Response::new(body)) }
        })
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Service<Request<String>> for Probe {
    type Response = Response<Pieces>;
    type Error = Broken;
    type Future = BoxFuture<'static, Result<Response<Pieces>, Broken>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        self.ready = Readiness(true);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert!(self.ready.0, "called without having been polled ready");
        self.ready = Readiness(false);
        self.calls.fetch_add(1, Ordering::SeqCst);
        (self.answer)(request)
    }
}

/// The inner service's own error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken")
    }
}

impl std::error::Error for Broken {}

/// A body whose pieces a test sends.
pub(crate) struct Pieces {
    pieces: mpsc::UnboundedReceiver<Result<&'static str, Broken>>,
    /// After so many pieces it says that it has ended; else it has to be polled once more.
    announced: Option<usize>,
    panics: bool,
}

pub(crate) type Sender = mpsc::UnboundedSender<Result<&'static str, Broken>>;

impl Pieces {
    pub(crate) fn channel() -> (Sender, Self) {
        let (sender, pieces) = mpsc::unbounded_channel();
        (
            sender,
            Self {
                pieces,
                announced: None,
                panics: false,
            },
        )
    }

    pub(crate) fn empty() -> Self {
        Self::channel().1.announcing(0)
    }

    /// One that never brings anything.
    pub(crate) fn silent() -> Self {
        let (sender, pieces) = Self::channel();
        // Its receiver waits for as long as the process lives.
        Box::leak(Box::new(sender));
        pieces
    }

    pub(crate) fn announcing(mut self, pieces: usize) -> Self {
        self.announced = Some(pieces);
        self
    }

    pub(crate) fn panicking_when_dropped(mut self) -> Self {
        self.panics = true;
        self
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let piece = ready!(self.pieces.poll_recv(cx));
        if let Some(left) = &mut self.announced {
            *left = left.saturating_sub(1);
        }
        let frame = |piece: &'static str| Frame::data(Bytes::from_static(piece.as_bytes()));
        Poll::Ready(piece.map(|piece| piece.map(frame).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.announced == Some(0)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        assert!(!self.panics, "this body panics when it is dropped");
    }
}

pub(crate) fn request() -> Request<String> {
    Request::get("/").body(String::new()).expect("a path")
}

/// What is logged at level `ERROR` in this thread.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<sync::Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::ERROR)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().expect("no panic");
        let text = str::from_utf8(&bytes).expect("text");
        text.lines().map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut *self.0.lock().expect("no panic"), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
