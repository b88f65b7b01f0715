//! Sockets that hold a permit for as long as they are open.

use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::example::{Caller, Example, LONG};
use crate::support::{Server, wait_for};

/// An hour: what was not given back stays taken for the whole test.
const FOREVER: (&str, &str) = ("TTL_MS", "3600000");

struct Served {
    example: Example,
    url: String,
}

impl Served {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let mut example = Example::start("websocket", settings);
        let url = format!("ws://{}/echo", example.address().await);
        Self { example, url }
    }

    /// Opens a socket, and waits for the greeting; else gives the status and the problem.
    async fn open(&self) -> Result<Socket, (u16, String)> {
        let opened = timeout(LONG, connect_async(&self.url)).await;
        match opened.expect("an answer in time") {
            Ok((stream, _)) => {
                let mut socket = Socket(stream);
                let greeting = socket.hear().await.into_text().expect("text");
                assert!(greeting.contains("fencing token"), "{greeting}");
                Ok(socket)
            }
            Err(Error::Http(answer)) => {
                assert!(answer.headers().contains_key("retry-after"));
                let status = answer.status().as_u16();
                let problem = answer.into_body().unwrap_or_default();
                Err((status, String::from_utf8(problem).expect("text")))
            }
            Err(other) => panic!("neither opened nor refused: {other}"),
        }
    }

    async fn is_full(&self) -> bool {
        match self.open().await {
            Ok(_) => false,
            Err((status, problem)) => {
                assert_eq!(status, 503);
                assert!(problem.contains(":at-capacity\""), "{problem}");
                true
            }
        }
    }

    async fn until_one_gets_in(&self) -> Socket {
        let mut socket = None;
        wait_for("a socket gets in", LONG, async || {
            socket = self.open().await.ok();
            socket.is_some()
        })
        .await;
        socket.expect("it was waited for")
    }
}

struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    async fn hear(&mut self) -> Message {
        let message = timeout(LONG, self.0.next()).await.expect("in time");
        message.expect("it is open").expect("it works")
    }

    async fn assert_echoes(&mut self) {
        let message = Message::text("is there an echo?");
        self.0.send(message.clone()).await.expect("it is open");
        assert_eq!(self.hear().await, message);
    }

    /// Waits until it is closed from the other side.
    async fn closed(&mut self) -> CloseCode {
        match self.hear().await {
            Message::Close(Some(frame)) => frame.code,
            other => panic!("no goodbye: {other}"),
        }
    }
}

#[tokio::test]
async fn a_socket_holds_its_permit_until_it_is_closed_and_then_another_gets_in() {
    let served = Served::start(&[("CAP", "2"), FOREVER]).await;
    let mut first = served.open().await.expect("a free permit");
    let mut second = served.open().await.expect("a free permit");
    assert!(served.is_full().await);
    first.assert_echoes().await;
    second.assert_echoes().await;
    assert!(served.is_full().await);

    first.0.close(None).await.expect("it is open");
    let mut third = served.until_one_gets_in().await;
    assert!(served.is_full().await);
    second.assert_echoes().await;
    third.assert_echoes().await;
}

#[tokio::test]
async fn a_request_of_a_wrong_method_takes_no_permit() {
    let mut example = Example::start("websocket", &[("CAP", "1"), FOREVER]);
    let address = example.address().await;
    let url = format!("ws://{address}/echo");
    let served = Served { example, url };
    let _socket = served.open().await.expect("a free permit");
    let answer = Caller::at(address).post("/echo").await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_client_that_goes_without_a_goodbye_gives_its_permit_back() {
    let served = Served::start(&[("CAP", "1"), FOREVER]).await;
    let socket = served.open().await.expect("a free permit");
    assert!(served.is_full().await);
    drop(socket);
    served.until_one_gets_in().await;
}

#[tokio::test]
async fn sockets_are_counted_over_all_processes_that_share_a_server() {
    let server = Server::start();
    let url = server.url();
    let settings = [("CAP", "2"), FOREVER, ("REDIS_URL", &url)];
    let (one, other) = (
        Served::start(&settings).await,
        Served::start(&settings).await,
    );
    let socket = one.open().await.expect("a free permit");
    let _socket = other.open().await.expect("a free permit");
    assert!(one.is_full().await);
    assert!(other.is_full().await);
    drop(socket);
    other.until_one_gets_in().await;
}

#[tokio::test]
async fn a_socket_is_closed_when_its_permit_is_lost() {
    let server = Server::start();
    let url = server.url();
    // Seen at the next renewal, after a third of it.
    let served = Served::start(&[("CAP", "1"), ("TTL_MS", "1000"), ("REDIS_URL", &url)]).await;
    let mut socket = served.open().await.expect("a free permit");
    server.command(&["FLUSHALL"]).await;
    assert_eq!(socket.closed().await, CloseCode::Again);
}

#[tokio::test]
async fn told_to_end_it_says_goodbye_to_its_sockets_and_ends_well() {
    let served = Served::start(&[("CAP", "2"), FOREVER]).await;
    let mut first = served.open().await.expect("a free permit");
    let mut second = served.open().await.expect("a free permit");
    served.example.terminate().await;
    for socket in [&mut first, &mut second] {
        assert_eq!(socket.closed().await, CloseCode::Away);
    }
    served.example.end().await.assert_well_and_in_memory();
}
