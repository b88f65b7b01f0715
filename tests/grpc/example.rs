//! `examples/tonic_service.rs` does what its docs say, as a process of its own.

use std::net::SocketAddr;
use std::time::Duration;

use tonic::Code;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

use crate::fixture::{ask, channel, promptly, retry_after, serving};
use crate::process::Example;

async fn start(settings: &[(&str, &str)]) -> (Example, SocketAddr) {
    let mut example = Example::start("tonic_service", settings);
    let address = example.address().await;
    (example, address.parse().expect("an address"))
}

#[tokio::test]
async fn as_many_watch_as_there_are_permits_and_the_service_ends_in_order() {
    let (example, address) = start(&[("CAP", "1"), ("MAX_WAIT_MS", "0")]).await;
    let mut client = HealthClient::new(channel(address));
    let watching = promptly("a head", client.watch(ask())).await;
    let mut watching = watching.expect("a free permit").into_inner();
    let message = promptly("a message", watching.message()).await;
    assert_eq!(message.expect("whole"), Some(serving()));

    let status = promptly("an answer", client.watch(ask())).await;
    let status = status.expect_err("the permit is taken");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(retry_after(&status).is_some_and(|delay| delay >= Duration::from_secs(1)));

    // Another service of the same server is not gated.
    let mut reflection = ServerReflectionClient::new(channel(address));
    let nothing = futures_util::stream::empty::<ServerReflectionRequest>();
    let answer = promptly("an answer", reflection.server_reflection_info(nothing)).await;
    answer.expect("not gated");

    example.terminate().await;
    let message = promptly("a message", watching.message()).await;
    let message = message.expect("whole").expect("before the end");
    assert_eq!(message.status().as_str_name(), "NOT_SERVING");
    let end = promptly("an end", watching.message()).await;
    assert!(end.expect("a regular end").is_none());
    // While its clients keep their connections.
    let ended = promptly("it ends", example.end()).await;
    ended.assert_well_and_in_memory();
    assert!(ended.output.is_empty(), "{:?}", ended.output);
}

#[tokio::test]
async fn the_same_program_is_a_client_that_says_what_it_is_told() {
    let (server, address) = start(&[("CAP", "1"), ("MAX_WAIT_MS", "50")]).await;
    let url = format!("http://{address}");
    let watch = || Example::start("tonic_service", &[("WATCH", &url)]);
    let mut first = watch();
    assert_eq!(first.hear("SERVING").await, "");

    let mut second = watch();
    let told = second.hear("ResourceExhausted: ").await;
    assert!(told.starts_with("The request's turn did not come in time; try again in "));
    assert!(promptly("it ends", second.end()).await.status.success());

    // One that is killed gives its permit back, since its connection breaks.
    drop(first);
    let mut third = watch();
    while third.hear("").await != "SERVING" {
        promptly("it ends", third.end()).await;
        third = watch();
    }
    server.terminate().await;
    assert_eq!(third.hear("NOT_SERVING").await, "");
    let third = promptly("it ends", third.end()).await;
    assert!(third.status.success() && third.output.is_empty());
    let server = promptly("it ends", server.end()).await;
    server.assert_well_and_in_memory();
}
