//! How long calls hold: until their stream has ended, whoever ends it.

use futures_util::stream;
use portcullis::layer::HoldUntil;
use tokio::sync::mpsc;
use tonic::service::{LayerExt, Routes};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_reflection::server::Builder;

use crate::fixture::{Fixture, ask, channel, promptly, serve, serve_probe, serving};

#[tokio::test]
async fn a_unary_call_gives_back_with_its_answer() {
    let fixture = Fixture::new();
    let (mut client, mut entries) = serve_probe(&fixture.limit());
    entries.stall();
    let call = tokio::spawn({
        let mut client = client.clone();
        async move { client.check(ask()).await }
    });
    let _handler = entries.check().await;
    fixture.until_waiting(0).await;
    entries.go_on();
    let answer = promptly("an answer", call).await.expect("no panic");
    answer.expect("let through");
    fixture.until_idle().await;
    for _ in 0..3 {
        promptly("an answer", client.check(ask()))
            .await
            .expect("let through");
    }
}

#[tokio::test]
async fn a_server_stream_holds_until_its_last_message() {
    let fixture = Fixture::new();
    let (mut client, mut entries) = serve_probe(&fixture.limit());
    let stream = promptly("a head", client.watch(ask())).await;
    let mut stream = stream.expect("let through").into_inner();
    let messages = entries.watch().await;
    for _ in 0..3 {
        messages.send(Ok(serving())).expect("the stream is open");
        let message = promptly("a message", stream.message()).await;
        assert_eq!(message.expect("whole"), Some(serving()));
        fixture.until_waiting(0).await;
    }
    // The next one waits, and is let through at its end.
    let next = tokio::spawn(async move { client.check(ask()).await });
    fixture.until_waiting(1).await;
    drop(messages);
    let end = promptly("an end", stream.message()).await;
    assert_eq!(end.expect("a regular end"), None);
    let next = promptly("its turn", next).await.expect("no panic");
    next.expect("let through");
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_server_stream_that_fails_gives_back_and_keeps_its_own_status() {
    let fixture = Fixture::new();
    let (mut client, mut entries) = serve_probe(&fixture.lock());
    let stream = promptly("a head", client.watch(ask())).await;
    let mut stream = stream.expect("let through").into_inner();
    let messages = entries.watch().await;
    let own = Status::data_loss("its own");
    messages.send(Err(own)).expect("the stream is open");
    let end = promptly("an end", stream.message()).await;
    let status = end.expect_err("the service's own error");
    assert_eq!(
        (status.code(), status.message()),
        (Code::DataLoss, "its own")
    );
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_client_that_drops_a_server_stream_gives_back() {
    let fixture = Fixture::new();
    let (mut client, mut entries) = serve_probe(&fixture.limit());
    for _ in 0..3 {
        let stream = promptly("a head", client.watch(ask())).await;
        let stream = stream.expect("let through");
        let messages = entries.watch().await;
        fixture.until_waiting(0).await;
        drop(stream);
        promptly("the service's stream is dropped", messages.closed()).await;
        fixture.until_idle().await;
    }
}

#[tokio::test]
async fn a_client_that_gives_up_a_unary_call_gives_back() {
    let fixture = Fixture::new();
    let (client, mut entries) = serve_probe(&fixture.limit());
    entries.stall();
    for _ in 0..3 {
        let mut client = client.clone();
        let call = tokio::spawn(async move { client.check(ask()).await });
        let handler = entries.check().await;
        call.abort();
        promptly("the handler is dropped", handler.closed()).await;
        fixture.until_idle().await;
    }
}

#[tokio::test]
async fn a_client_that_gives_up_waiting_leaves_the_queue() {
    let fixture = Fixture::new();
    let held = fixture.semaphore().acquire().await.expect("a free permit");
    let (client, mut entries) = serve_probe(&fixture.limit());
    for _ in 0..3 {
        let mut client = client.clone();
        let call = tokio::spawn(async move { client.check(ask()).await });
        fixture.until_waiting(1).await;
        call.abort();
        fixture.until_waiting(0).await;
    }
    drop(held);
    fixture.until_idle().await;
    entries.assert_none();
}

#[tokio::test]
async fn a_client_whose_connection_breaks_gives_back() {
    let fixture = Fixture::new();
    let (mut client, mut entries) = serve_probe(&fixture.limit());
    let stream = promptly("a head", client.watch(ask())).await;
    let messages = entries.watch().await;
    // With the last client and the last stream goes the connection.
    drop(client);
    drop(stream);
    promptly("the service's stream is dropped", messages.closed()).await;
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_call_that_holds_until_its_response_streams_without_holding() {
    let fixture = Fixture::new();
    let layer = fixture.limit().hold_until(HoldUntil::Response);
    let (mut client, mut entries) = serve_probe(&layer);
    let stream = promptly("a head", client.watch(ask())).await;
    let mut stream = stream.expect("let through").into_inner();
    let messages = entries.watch().await;
    fixture.until_idle().await;
    messages.send(Ok(serving())).expect("the stream is open");
    let message = promptly("a message", stream.message()).await;
    assert_eq!(message.expect("whole"), Some(serving()));
}

type Requests = mpsc::UnboundedSender<ServerReflectionRequest>;

/// A reflection service behind the fixture's gate.
fn reflection(fixture: &Fixture) -> ServerReflectionClient<Channel> {
    let builder = Builder::configure();
    let builder =
        builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let service = builder.build_v1().expect("descriptors");
    let gated = fixture.limit().named_layer(service);
    ServerReflectionClient::new(channel(serve(Routes::new(gated))))
}

/// Begins a call whose client sends what goes into the channel.
async fn converse(
    client: &mut ServerReflectionClient<Channel>,
) -> (Requests, Streaming<ServerReflectionResponse>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let requests = stream::unfold(receiver, async |mut receiver| {
        let request = receiver.recv().await?;
        Some((request, receiver))
    });
    let answers = client.server_reflection_info(requests);
    let answers = promptly("a head", answers).await.expect("let through");
    (sender, answers.into_inner())
}

fn question(message: Option<MessageRequest>) -> ServerReflectionRequest {
    ServerReflectionRequest {
        host: String::new(),
        message_request: message,
    }
}

fn list() -> ServerReflectionRequest {
    question(Some(MessageRequest::ListServices(String::new())))
}

async fn assert_answered(answers: &mut Streaming<ServerReflectionResponse>) {
    let answer = promptly("an answer", answers.message()).await;
    let answer = answer.expect("whole").expect("not the end");
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("not a list: {answer:?}");
    };
    let mut names = list.service.iter().map(|service| &service.name);
    assert!(names.any(|name| name == "grpc.health.v1.Health"));
}

#[tokio::test]
async fn a_conversation_holds_until_both_sides_have_ended() {
    let fixture = Fixture::new();
    let mut client = reflection(&fixture);
    let (requests, mut answers) = converse(&mut client).await;
    for _ in 0..3 {
        requests.send(list()).expect("the call is under way");
        assert_answered(&mut answers).await;
        fixture.until_waiting(0).await;
    }
    drop(requests);
    let end = promptly("an end", answers.message()).await;
    assert!(end.expect("a regular end").is_none());
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_conversation_that_the_service_ends_with_an_error_gives_back() {
    let fixture = Fixture::new();
    let mut client = reflection(&fixture);
    let (requests, mut answers) = converse(&mut client).await;
    requests
        .send(question(None))
        .expect("the call is under way");
    let end = promptly("an end", answers.message()).await;
    let status = end.expect_err("the service's own error");
    assert_eq!(status.code(), Code::InvalidArgument);
    fixture.until_idle().await;
}

#[tokio::test]
async fn a_conversation_that_the_client_drops_gives_back() {
    let fixture = Fixture::new();
    let mut client = reflection(&fixture);
    for _ in 0..3 {
        let (requests, mut answers) = converse(&mut client).await;
        requests.send(list()).expect("the call is under way");
        assert_answered(&mut answers).await;
        drop((requests, answers));
        fixture.until_idle().await;
    }
}
