//! A gRPC server of which one service is gated: so many may watch its health at once, in its own
//! memory, or with `REDIS_URL` over all instances.
//!
//! ```sh
//! cargo run --release --example tonic_service
//! ```
//!
//! It prints `listening on http://127.0.0.1:PORT` when it is ready. With `WATCH` the same program
//! is a client, and watches until it is ended by Ctrl-C:
//!
//! ```sh
//! WATCH=http://127.0.0.1:50051 cargo run --release --example tonic_service
//! ```
//!
//! You see `SERVING`. Start it in three terminals: with two permits, the third one waits for a
//! second and is refused. End one of the others, and the next try is let through.
//!
//! ```text
//! ResourceExhausted: The request's turn did not come in time; try again in 10s
//! ```
//!
//! Any other client sees the same. Reflection is not gated, so `grpcurl` finds what there is to
//! call however many watch:
//!
//! ```sh
//! grpcurl -plaintext 127.0.0.1:50051 list
//! grpcurl -plaintext -v 127.0.0.1:50051 grpc.health.v1.Health/Watch
//! ```
//!
//! Stop the server with Ctrl-C or SIGTERM: those who watch see `NOT_SERVING` and the regular end of
//! their stream, those who wait for a permit are told to try again.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `WATCH` | the server to watch, as a client | none: is a server |
//! | `REDIS_URL` | the server that all instances share; empty is an error | none: in memory |
//! | `PORT` | where to listen; 0 picks a free port | 50051 |
//! | `CAP` | how many calls to the service may be at work at once | 2 |
//! | `MAX_WAIT_MS` | how long a call waits for its turn; 0: not at all | 1000 |
//! | `TTL_MS` | how long the leases of an instance that died stay | 10000 |

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use portcullis::{ConcurrencyLimitLayer, Portcullis};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::Status;
use tonic::service::LayerExt;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

/// How long calls that are under way may take to end.
const GRACE: Duration = Duration::from_secs(30);

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    match given::<String>("WATCH")? {
        None => serve().await,
        Some(url) => {
            if let Err(status) = watch(url).await? {
                println!("{}", told(&status));
            }
            Ok(())
        }
    }
}

async fn serve() -> Result<(), BoxError> {
    let gates = gates()?;
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;

    let permits = gates.semaphore("health", setting("CAP", 2)?)?;
    let permits = permits.ttl(Duration::from_millis(setting("TTL_MS", 10_000)?))?;
    // A call holds until its last message is out: a `Watch` for as long as somebody watches.
    let gate = ConcurrencyLimitLayer::new(permits)
        .max_wait(Duration::from_millis(setting("MAX_WAIT_MS", 1_000)?))
        .grpc();

    // Registered before the server starts, so that a signal in its first moment does not kill it.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (end, ended) = oneshot::channel::<()>();
    let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], setting("PORT", 50_051)?)))?
        .with_nodelay(Some(true));
    println!("listening on http://{}", incoming.local_addr()?);
    let server = Server::builder()
        // Keeps the service's name, by which it is found. `Server::layer` would gate all of them.
        .add_service(gate.named_layer(health))
        .add_service(reflection);
    let serving = tokio::spawn(server.serve_with_incoming_shutdown(incoming, async {
        let _ = ended.await;
    }));

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    // First the server takes no more connections. Then streams that would never end are ended: a
    // service's own, here those of who watches. The gates' shutdown waits for these, and tells who
    // waits for a permit to try again, which is to say elsewhere. A call that is not done by then
    // goes on without its permit, which is given back. At last the answers go out.
    let _ = end.send(());
    let mut reporter = reporter;
    let all = "";
    reporter
        .set_service_status(all, ServingStatus::NotServing)
        .await;
    reporter.clear_service_status(all).await;
    let report = gates.shutdown(GRACE).await;
    if report.abandoned > 0 {
        eprintln!(
            "{} permits could not be given back; they are free when their TTL is over",
            report.abandoned
        );
    }
    // A client that keeps its connection does not keep us.
    if let Ok(served) = timeout(GRACE, serving).await {
        served??;
    }
    Ok(())
}

/// Prints what the server says of its health, until it or the user ends it.
async fn watch(url: String) -> Result<Result<(), Status>, BoxError> {
    let mut client = HealthClient::new(Endpoint::from_shared(url)?.connect().await?);
    let mut statuses = match client.watch(HealthCheckRequest::default()).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Ok(Err(status)),
    };
    loop {
        match statuses.message().await {
            Ok(Some(message)) => println!("{}", message.status().as_str_name()),
            Ok(None) => return Ok(Ok(())),
            Err(status) => return Ok(Err(status)),
        }
    }
}

/// What a client can do with a refusal: it says when trying again can help.
fn told(status: &Status) -> String {
    let text = format!("{:?}: {}", status.code(), status.message());
    let retry = status.get_details_retry_info();
    match retry.and_then(|retry| retry.retry_delay) {
        Some(delay) => format!("{text}; try again in {delay:?}"),
        None => text,
    }
}

fn gates() -> Result<Portcullis, BoxError> {
    let Some(url) = given::<String>("REDIS_URL")? else {
        eprintln!(
            "no REDIS_URL: the gates are in this process' memory; set it to share them with other instances"
        );
        return Ok(Portcullis::in_memory());
    };
    // An empty one is refused like any that is no address: who sets it wants to share.
    let gates = Portcullis::builder().url(url).build();
    gates.map_err(|error| format!("REDIS_URL: {error}").into())
}

/// Reads `name` from the environment.
fn setting<T: FromStr<Err: Error + Send + Sync + 'static>>(
    name: &str,
    default: T,
) -> Result<T, BoxError> {
    Ok(given(name)?.unwrap_or(default))
}

/// Reads `name` from the environment; `None` if it is not set.
fn given<T: FromStr<Err: Error + Send + Sync + 'static>>(
    name: &str,
) -> Result<Option<T>, BoxError> {
    match env::var(name) {
        Ok(text) => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(error) => Err(format!("{name}: {error}").into()),
        },
        Err(env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(format!("{name}: {error}").into()),
    }
}
