//! WebSockets that hold a permit for as long as they are open: so many at once in this process'
//! memory, or with `REDIS_URL` over all instances.
//!
//! ```sh
//! cargo run --example websocket
//! ```
//!
//! It prints `listening on http://127.0.0.1:PORT` when it is ready. Then open more than `CAP`, each
//! in a terminal of its own; any client will do, and curl too:
//!
//! ```sh
//! curl -i -N -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
//!     -H 'Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==' 'http://127.0.0.1:3000/echo'
//! ```
//!
//! The first two get `101 Switching Protocols` and a greeting, and stay open. The third is told
//! before it is upgraded:
//!
//! ```text
//! HTTP/1.1 503 Service Unavailable
//! content-type: application/problem+json
//! cache-control: no-store
//! retry-after: 10
//! ..
//! {"type":"urn:problem-type:portcullis:at-capacity","title":"Concurrency limit reached",
//!  "status":503}
//! ```
//!
//! End one of the two with Ctrl-C: the third gets in. Sockets end with the code 1013, "try again
//! later", when their permit is lost, and with 1001, "going away", when the server is told to end
//! by Ctrl-C or SIGTERM.
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `REDIS_URL` | the server that all instances share | none: in memory |
//! | `PORT` | where to listen; 0 picks a free port | 3000 |
//! | `CAP` | how many sockets may be open at once | 2 |
//! | `TTL_MS` | how long the permits of an instance that died stay taken | 10000 |

use std::env;
use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use axum::routing::get;
use portcullis::layer::NotHeld;
use portcullis::{ConcurrencyLimitLayer, Held, LeaseView, Portcullis};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a client may neither say nor take anything, not even a ping: a machine that lost its
/// network can't say goodbye, and must not hold for good.
const SILENCE: Duration = Duration::from_secs(60);

/// How long a client may take to answer a goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long all sockets together may take to end.
const SHUTDOWN: Duration = Duration::from_secs(5);

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let gates = match env::var("REDIS_URL") {
        Ok(url) => Portcullis::builder().url(url).build()?,
        Err(env::VarError::NotPresent) => {
            eprintln!("no REDIS_URL: the gates are in this process' memory; set it to share them");
            Portcullis::in_memory()
        }
        Err(error) => return Err(format!("REDIS_URL: {error}").into()),
    };
    let ttl = Duration::from_millis(setting("TTL_MS", 10_000)?);
    let sockets = gates.semaphore("sockets", setting("CAP", 2)?)?.ttl(ttl)?;
    // No wait: a browser shows nothing while its socket is not open.
    let gate = ConcurrencyLimitLayer::new(sockets).max_wait(Duration::ZERO);

    let end = CancellationToken::new();
    let app = Router::new()
        .route("/echo", get(open).route_layer(gate))
        .with_state(end.clone());
    let listener = TcpListener::bind(("127.0.0.1", setting("PORT", 3000)?)).await?;
    println!("listening on http://{}", listener.local_addr()?);

    let mut terminate = signal(SignalKind::terminate())?;
    let told_to_end = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        end.cancel();
    };
    axum::serve(listener, app)
        .with_graceful_shutdown(told_to_end)
        .await?;
    // To axum an upgraded connection has ended, to the gates it has not: this waits for them.
    gates.shutdown(SHUTDOWN).await;
    Ok(())
}

/// Runs behind the gate, before the upgrade.
async fn open(
    State(end): State<CancellationToken>,
    held: Held,
    upgrade: WebSocketUpgrade,
) -> Result<Response, NotHeld> {
    // The request ends with the upgrade, and its permit would be free again: the socket keeps it.
    // Should the upgrade fail, this is dropped along with the closure.
    let kept = held.keep()?;
    let lease = kept.lease("sockets")?;
    Ok(upgrade.on_upgrade(|socket| async move {
        serve(socket, lease, end).await;
        drop(kept);
    }))
}

/// Ends when the client goes, the permit is lost, or the server is told to end.
async fn serve(mut socket: WebSocket, lease: LeaseView, end: CancellationToken) {
    let greeting = format!(
        "process {} has let you in under fencing token {}",
        std::process::id(),
        lease.fencing_token()
    );
    let (code, reason) = tokio::select! {
        () = talk(&mut socket, greeting) => return,
        lost = lease.lost() => (close_code::AGAIN, lost.to_string()),
        () = end.cancelled() => (close_code::AWAY, "the server is going away".to_owned()),
    };
    let reason = reason.into();
    let goodbye = Message::Close(Some(CloseFrame { code, reason }));
    // Until the client has answered it: a connection closed on unread bytes may lose the goodbye.
    let answered = async {
        if socket.send(goodbye).await.is_ok() {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    let _ = timeout(GOODBYE, answered).await;
}

async fn talk(socket: &mut WebSocket, greeting: String) {
    if socket.send(greeting.into()).await.is_ok() {
        while let Ok(Some(())) = timeout(SILENCE, echo(socket)).await {}
    }
}

/// Sends one message back; `None` when the client has gone. Pings are answered by axum.
async fn echo(socket: &mut WebSocket) -> Option<()> {
    let message = socket.recv().await?.ok()?;
    if let Message::Text(_) | Message::Binary(_) = message {
        socket.send(message).await.ok()?;
    }
    Some(())
}

/// Reads `name` from the environment.
fn setting<T: FromStr<Err: Error>>(name: &str, default: T) -> Result<T, BoxError> {
    match env::var(name) {
        Ok(text) => Ok(text.parse().map_err(|error| format!("{name}: {error}"))?),
        Err(env::VarError::NotPresent) => Ok(default),
        Err(error) => Err(format!("{name}: {error}").into()),
    }
}
