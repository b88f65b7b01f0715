//! Clients over TCP that go away at the worst moment, and answers without a body.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{delete, get};
use futures_util::{StreamExt, stream};
use http::StatusCode;
use portcullis::ConcurrencyLimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::fixture::{Fixture, PROMPTLY};

/// An axum server behind a gate of one permit; tells of each handler that is entered.
struct Served {
    fixture: Fixture,
    address: SocketAddr,
    entered: mpsc::UnboundedReceiver<()>,
}

impl Served {
    async fn start() -> Self {
        let fixture = Fixture::new();
        let (enter, entered) = mpsc::unbounded_channel();
        let gate =
            || ConcurrencyLimitLayer::new(fixture.semaphore(1)).max_wait(Duration::from_secs(30));
        let endless = || {
            let first = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"first")) });
            Body::from_stream(first.chain(stream::pending()))
        };
        let stuck = async move || {
            let _ = enter.send(());
            pending::<()>().await;
        };
        let app: Router = Router::new()
            .route("/stuck", get(stuck).layer(gate()))
            .route("/stream", get(async move || endless()).layer(gate()))
            .route("/quick", get(async || "done").layer(gate()))
            .route(
                "/nothing",
                delete(async || StatusCode::NO_CONTENT).layer(gate()),
            );
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async { axum::serve(listener, app).await });
        Self {
            fixture,
            address,
            entered,
        }
    }

    async fn send(&self, line: &str) -> TcpStream {
        let mut client = TcpStream::connect(self.address)
            .await
            .expect("the server listens");
        let request = format!("{line} HTTP/1.1\r\nhost: test\r\n\r\n");
        client
            .write_all(request.as_bytes())
            .await
            .expect("the server reads");
        client
    }
}

/// Reads until `end` has come, and gives all that came.
async fn read_until(client: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&text).contains(end) {
            let length = client
                .read_buf(&mut text)
                .await
                .expect("the connection holds");
            assert!(length > 0, "closed before {end:?}");
        }
    };
    timeout(PROMPTLY, read).await.expect("an answer in time");
    String::from_utf8(text).expect("text")
}

#[tokio::test]
async fn a_client_that_goes_away_while_it_waits_leaves_the_queue() {
    let served = Served::start().await;
    let held = served
        .fixture
        .semaphore(1)
        .acquire()
        .await
        .expect("a free permit");
    for _ in 0..5 {
        let client = served.send("GET /quick").await;
        served.fixture.wait_until_queued(1).await;
        drop(client);
        served.fixture.wait_until_queued(0).await;
    }
    drop(held);
    served.fixture.wait_until_free(1).await;
}

#[tokio::test]
async fn a_client_that_goes_away_from_the_handler_gives_the_permit_back() {
    let mut served = Served::start().await;
    for _ in 0..5 {
        let client = served.send("GET /stuck").await;
        timeout(PROMPTLY, served.entered.recv())
            .await
            .expect("in time")
            .expect("entered");
        assert!(served.fixture.is_full(1).await);
        drop(client);
        served.fixture.wait_until_free(1).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_in_mid_body_gives_the_permit_back() {
    let served = Served::start().await;
    for _ in 0..5 {
        let mut client = served.send("GET /stream").await;
        read_until(&mut client, "first").await;
        assert!(served.fixture.is_full(1).await);
        drop(client);
        served.fixture.wait_until_free(1).await;
    }
}

#[tokio::test]
async fn an_answer_without_a_body_gives_the_permit_back_while_its_connection_lives() {
    let served = Served::start().await;
    for line in [
        "HEAD /stream",
        "HEAD /quick",
        "DELETE /nothing",
        "GET /quick",
    ] {
        let mut client = served.send(line).await;
        let head = read_until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 20"), "{head}");
        served.fixture.wait_until_free(1).await;
        drop(client);
    }
}

#[tokio::test]
async fn a_refusal_is_a_whole_answer_and_its_connection_goes_on() {
    let served = Served::start().await;
    let held = served
        .fixture
        .semaphore(1)
        .acquire()
        .await
        .expect("a free permit");
    served.fixture.gates.shutdown(Duration::ZERO).await;
    drop(held);
    let mut client = served.send("GET /quick").await;
    let answer = read_until(&mut client, "}").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("content-length: "), "{answer}");
    client
        .write_all(b"GET /quick HTTP/1.1\r\nhost: test\r\n\r\n")
        .await
        .expect("the server reads");
    assert!(
        read_until(&mut client, "}")
            .await
            .starts_with("HTTP/1.1 503")
    );
}
