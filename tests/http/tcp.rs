//! Clients over TCP that go away at the worst moment, and answers without a body.

use std::convert::Infallible;
use std::future::pending;
use std::mem;
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

use crate::contract::{Place, in_each_place};
use crate::fixture::{Broken, PROMPTLY};

in_each_place! {
    everywhere {
        clients_that_go_away_while_they_wait_leave_the_queue,
        clients_that_go_away_from_the_handler_give_the_permit_back,
        clients_that_go_away_in_mid_body_give_the_permit_back,
        clients_that_go_away_give_the_permit_to_who_waits,
        a_handler_that_panics_ends_its_connection_and_gives_the_permit_back,
        a_body_that_fails_ends_its_connection_and_gives_the_permit_back,
        an_answer_without_a_body_gives_the_permit_back_while_its_connection_lives,
        a_refusal_is_a_whole_answer_and_its_connection_goes_on,
    }
}

/// An axum server behind a gate of one permit; tells of each handler that is entered.
struct Served<P> {
    place: P,
    address: SocketAddr,
    entered: mpsc::UnboundedReceiver<()>,
}

impl<P: Place> Served<P> {
    async fn start() -> Self {
        let place = P::start();
        let (enter, entered) = mpsc::unbounded_channel();
        let gate =
            || ConcurrencyLimitLayer::new(place.semaphore(1)).max_wait(Duration::from_secs(30));
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
            .route("/panic", get(panics).layer(gate()))
            .route("/broken", get(async || broken()).layer(gate()))
            .route(
                "/nothing",
                delete(async || StatusCode::NO_CONTENT).layer(gate()),
            );
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        tokio::spawn(async { axum::serve(listener, app).await });
        Self {
            place,
            address,
            entered,
        }
    }

    async fn wait_until_entered(&mut self) {
        let entered = timeout(PROMPTLY, self.entered.recv()).await;
        entered.expect("in time").expect("the server runs");
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

async fn panics() {
    panic!("this handler panics");
}

/// Fails after its first piece.
fn broken() -> Body {
    let pieces = [Ok(Bytes::from_static(b"first")), Err(Broken)];
    Body::from_stream(stream::iter(pieces))
}

/// Reads until the server closes the connection.
async fn read_to_end(client: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = client.read_to_end(&mut text);
    timeout(PROMPTLY, read)
        .await
        .expect("closed in time")
        .expect("the connection holds");
    String::from_utf8(text).expect("text")
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

async fn clients_that_go_away_while_they_wait_leave_the_queue<P: Place>() {
    let served = Served::<P>::start().await;
    let held = served.place.semaphore(1).acquire().await;
    let held = held.expect("a free permit");
    for _ in 0..P::ROUNDS {
        let client = served.send("GET /quick").await;
        served.place.wait_until_full_for(1, 1).await;
        drop(client);
        served.place.wait_until_full_for(1, 0).await;
    }
    drop(held);
    served.place.wait_until_free(1).await;
}

async fn clients_that_go_away_from_the_handler_give_the_permit_back<P: Place>() {
    let mut served = Served::<P>::start().await;
    for _ in 0..P::ROUNDS {
        let client = served.send("GET /stuck").await;
        served.wait_until_entered().await;
        assert!(served.place.is_full(1).await);
        drop(client);
        served.place.wait_until_free(1).await;
    }
}

async fn clients_that_go_away_in_mid_body_give_the_permit_back<P: Place>() {
    let served = Served::<P>::start().await;
    for _ in 0..P::ROUNDS {
        let mut client = served.send("GET /stream").await;
        read_until(&mut client, "first").await;
        assert!(served.place.is_full(1).await);
        drop(client);
        served.place.wait_until_free(1).await;
    }
}

async fn clients_that_go_away_give_the_permit_to_who_waits<P: Place>() {
    let mut served = Served::<P>::start().await;
    let mut inside = served.send("GET /stuck").await;
    for _ in 0..P::ROUNDS {
        served.wait_until_entered().await;
        let next = served.send("GET /stuck").await;
        served.place.wait_until_full_for(1, 1).await;
        drop(mem::replace(&mut inside, next));
    }
    served.wait_until_entered().await;
    drop(inside);
    served.place.wait_until_free(1).await;
}

async fn a_handler_that_panics_ends_its_connection_and_gives_the_permit_back<P: Place>() {
    let served = Served::<P>::start().await;
    let mut client = served.send("GET /panic").await;
    assert_eq!(read_to_end(&mut client).await, "");
    served.place.wait_until_free(1).await;
}

async fn a_body_that_fails_ends_its_connection_and_gives_the_permit_back<P: Place>() {
    let served = Served::<P>::start().await;
    let mut client = served.send("GET /broken").await;
    let answer = read_to_end(&mut client).await;
    // Without the empty chunk that ends a whole body.
    assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
    served.place.wait_until_free(1).await;
}

async fn an_answer_without_a_body_gives_the_permit_back_while_its_connection_lives<P: Place>() {
    let served = Served::<P>::start().await;
    for line in [
        "HEAD /stream",
        "HEAD /quick",
        "DELETE /nothing",
        "GET /quick",
    ] {
        let mut client = served.send(line).await;
        let head = read_until(&mut client, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 20"), "{head}");
        served.place.wait_until_free(1).await;
        drop(client);
    }
}

async fn a_refusal_is_a_whole_answer_and_its_connection_goes_on<P: Place>() {
    let served = Served::<P>::start().await;
    let held = served
        .place
        .semaphore(1)
        .acquire()
        .await
        .expect("a free permit");
    served.place.gates().shutdown(Duration::ZERO).await;
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
