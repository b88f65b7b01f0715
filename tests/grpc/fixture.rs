//! What these tests share: gates in memory, a service that does as a test tells it, servers and
//! clients over TCP.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use futures_util::{Stream, stream};
use http::Request as HttpRequest;
use http::request::Builder;
use http::response::Parts;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use portcullis::test_util::MemoryServer;
use portcullis::{ConcurrencyLimitLayer, LockError, Mutex, MutexLayer, Portcullis, Semaphore};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tonic::service::{LayerExt, Routes};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_types::StatusExt;

use crate::wait::wait_for;

/// How long what is to happen promptly may take on a busy machine: no TTL and no wait of these
/// tests can explain it.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(10);

/// Of leases, and of waits that are not to end by themselves.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) const NO_WAIT: Duration = Duration::ZERO;

/// Words that no caller may read: the gates' names, and a key.
pub(crate) const REPORTS: &str = "gate-of-reports";
pub(crate) const WITHDRAW: &str = "gate-of-withdrawals";
pub(crate) const KEY: &str = "key-of-alice";

/// Gates in a memory that the test has its hands on.
pub(crate) struct Fixture {
    pub(crate) memory: MemoryServer,
    pub(crate) gates: Portcullis,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let memory = MemoryServer::new();
        let gates = memory.handle();
        Self { memory, gates }
    }

    pub(crate) fn semaphore(&self) -> Semaphore {
        let semaphore = self.gates.semaphore(REPORTS, 1);
        let semaphore = semaphore.and_then(|semaphore| semaphore.ttl(LONG));
        semaphore.expect("in range")
    }

    pub(crate) fn mutex(&self) -> Mutex {
        self.gates.mutex(WITHDRAW).ttl(LONG).expect("in range")
    }

    /// The gate of most tests: one permit, and callers that wait for it.
    pub(crate) fn limit(&self) -> ConcurrencyLimitLayer {
        let limit = ConcurrencyLimitLayer::new(self.semaphore());
        limit.max_wait(LONG).grpc()
    }

    pub(crate) fn lock(&self) -> MutexLayer {
        MutexLayer::new(self.mutex()).max_wait(LONG).grpc()
    }

    /// Waits until nobody holds and nobody waits.
    pub(crate) async fn until_idle(&self) {
        wait_for("all is given back", PROMPTLY, async || {
            self.memory.is_idle()
        })
        .await;
    }

    /// Waits until so many wait for the permit, which is taken.
    pub(crate) async fn until_waiting(&self, count: u64) {
        wait_for("they wait", PROMPTLY, async || {
            match self.semaphore().try_acquire().await {
                Err(LockError::Refused(refusal)) => refusal.position() == Some(count),
                other => panic!("the permit is not taken: {other:?}"),
            }
        })
        .await;
    }
}

/// What happens within [`PROMPTLY`].
pub(crate) async fn promptly<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = timeout(PROMPTLY, future).await;
    ended.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// A health service whose calls a test sees, and whose ends it decides.
#[derive(Clone)]
pub(crate) struct Probe {
    entered: mpsc::UnboundedSender<Entered>,
    /// What all `Check`s wait for.
    open: watch::Sender<bool>,
}

/// The calls that the service has got; each `Watch` sends what its test sends.
pub(crate) struct Entries {
    entered: mpsc::UnboundedReceiver<Entered>,
    open: watch::Sender<bool>,
}

pub(crate) enum Entered {
    /// Closed when the handler has gone.
    Check(mpsc::Sender<()>),
    Watch(mpsc::UnboundedSender<Result<HealthCheckResponse, Status>>),
}

impl Probe {
    pub(crate) fn new() -> (HealthServer<Self>, Entries) {
        let (sender, entered) = mpsc::unbounded_channel();
        let open = watch::Sender::new(true);
        let probe = Self {
            entered: sender,
            open: open.clone(),
        };
        (HealthServer::new(probe), Entries { entered, open })
    }
}

impl Entries {
    /// From now on, `Check` does not answer.
    pub(crate) fn stall(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn go_on(&self) {
        self.open.send_replace(true);
    }

    pub(crate) async fn check(&mut self) -> mpsc::Sender<()> {
        match promptly("a call arrives", self.entered.recv()).await {
            Some(Entered::Check(gone)) => gone,
            _ => panic!("another call, or none"),
        }
    }

    pub(crate) async fn watch(
        &mut self,
    ) -> mpsc::UnboundedSender<Result<HealthCheckResponse, Status>> {
        match promptly("a call arrives", self.entered.recv()).await {
            Some(Entered::Watch(sender)) => sender,
            _ => panic!("another call, or none"),
        }
    }

    #[track_caller]
    pub(crate) fn assert_none(&mut self) {
        assert!(
            self.entered.try_recv().is_err(),
            "no call reaches the service"
        );
    }
}

#[async_trait]
impl Health for Probe {
    async fn check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        // Its receiver goes with this handler.
        let (sender, _gone) = mpsc::channel(1);
        // The test may not look.
        let _ = self.entered.send(Entered::Check(sender));
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.expect("we have one");
        Ok(Response::new(serving()))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.entered.send(Entered::Watch(sender));
        let messages = stream::unfold(receiver, async |mut receiver| {
            let message = receiver.recv().await?;
            Some((message, receiver))
        });
        Ok(Response::new(Box::pin(messages)))
    }
}

pub(crate) fn serving() -> HealthCheckResponse {
    HealthCheckResponse { status: 1 }
}

pub(crate) fn ask() -> HealthCheckRequest {
    HealthCheckRequest::default()
}

pub(crate) fn incoming() -> (SocketAddr, TcpIncoming) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let incoming = TcpIncoming::bind(any).expect("a free port");
    let incoming = incoming.with_nodelay(Some(true));
    (incoming.local_addr().expect("bound"), incoming)
}

/// Serves by tonic's own server, without a layer around all.
pub(crate) fn serve(routes: Routes) -> SocketAddr {
    let (address, incoming) = incoming();
    let server = Server::builder().add_routes(routes);
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

/// Serves by axum, which also speaks HTTP/1 and knows no `grpc-timeout`.
pub(crate) async fn serve_by_axum(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// A probe behind `layer`, and a client of it.
pub(crate) fn serve_probe<L>(layer: &L) -> (HealthClient<Channel>, Entries)
where
    L: tower::Layer<HealthServer<Probe>, Service: GatedService>,
{
    let (probe, entries) = Probe::new();
    let address = serve(Routes::new(layer.named_layer(probe)));
    (HealthClient::new(channel(address)), entries)
}

/// What tonic asks of a service.
pub(crate) trait GatedService:
    tower::Service<
        HttpRequest<tonic::body::Body>,
        Response: axum::response::IntoResponse,
        Error = std::convert::Infallible,
        Future: Send,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> GatedService for S where
    S: tower::Service<
            HttpRequest<tonic::body::Body>,
            Response: axum::response::IntoResponse,
            Error = std::convert::Infallible,
            Future: Send,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Connects with its first call.
pub(crate) fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect_lazy()
}

/// What a bare HTTP/2 client sees: tonic's own would end a call at its `grpc-timeout` by itself.
pub(crate) async fn bare_call(request: Builder) -> (Parts, Bytes) {
    let mut client = Client::builder(TokioExecutor::new());
    let client = client.http2_only(true).build_http::<Full<Bytes>>();
    // A message without a field: not compressed, of no length.
    let body = Full::new(Bytes::from_static(&[0; 5]));
    let response = client.request(request.body(body).expect("a request"));
    let response = promptly("an answer", response).await.expect("an answer");
    let (head, body) = response.into_parts();
    let body = promptly("its end", body.collect()).await.expect("a body");
    (head, body.to_bytes())
}

pub(crate) fn grpc_request(address: SocketAddr) -> Builder {
    http_request(address)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
}

/// One to the same method that is not of gRPC.
pub(crate) fn http_request(address: SocketAddr) -> Builder {
    HttpRequest::post(format!("http://{address}/grpc.health.v1.Health/Check"))
}

/// When the status says to try again; both ways to say so agree, and nothing else is in it.
#[track_caller]
pub(crate) fn retry_after(status: &Status) -> Option<Duration> {
    let details = status.check_error_details_vec().expect("details decode");
    assert!(details.len() <= 1, "{details:?}");
    let info = status.get_details_retry_info();
    assert_eq!(info.is_some(), !details.is_empty(), "{details:?}");
    let retry_after = info.and_then(|info| info.retry_delay);
    let pushback = status.metadata().get("grpc-retry-pushback-ms");
    let pushback = pushback.map(|value| value.to_str().expect("digits").parse().expect("a number"));
    assert_eq!(retry_after, pushback.map(Duration::from_millis));
    retry_after
}

/// Checks that a caller reads nothing in it of what only those may know who run the service.
#[track_caller]
pub(crate) fn assert_discreet(status: &Status, secrets: &[&str]) {
    let details = String::from_utf8_lossy(status.details());
    let text = format!("{} {details} {:?}", status.message(), status.metadata());
    for secret in [REPORTS, WITHDRAW, KEY].iter().chain(secrets) {
        assert!(!text.contains(secret), "`{secret}` is in {text}");
    }
}
