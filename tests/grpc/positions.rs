//! Where a gate can stand: around a whole server, around one service, in a stack of layers, and in
//! a router that also serves what is not gRPC.

use axum::Router;
use axum::routing::get;
use http::Request as HttpRequest;
use http::request::Parts;
use portcullis::layer::KeyError;
use portcullis::{Quota, RateLimitLayer};
use tonic::server::NamedService;
use tonic::service::{LayerExt, Routes};
use tonic::transport::Server;
use tonic::{Code, Request};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_server::{
    ServerReflection, ServerReflectionServer,
};
use tonic_reflection::server::Builder;
use tower::ServiceBuilder;
use tower::util::MapRequestLayer;

use crate::fixture::{
    Fixture, KEY, LONG, NO_WAIT, Probe, ask, bare_call, channel, grpc_request, http_request,
    incoming, promptly, serve, serve_by_axum,
};

fn reflection() -> ServerReflectionServer<impl ServerReflection> {
    let builder = Builder::configure();
    let builder =
        builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    builder.build_v1().expect("descriptors")
}

async fn check(address: std::net::SocketAddr) -> Code {
    let mut client = HealthClient::new(channel(address));
    let answer = promptly("an answer", client.check(ask())).await;
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

/// A conversation in which nothing is asked.
async fn reflect(address: std::net::SocketAddr) -> Code {
    let mut client = ServerReflectionClient::new(channel(address));
    let nothing = futures_util::stream::empty::<ServerReflectionRequest>();
    let answer = promptly("an answer", client.server_reflection_info(nothing)).await;
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn around_a_server_it_gates_all_its_services() {
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let (address, incoming) = incoming();
    let server = Server::builder()
        .layer(fixture.limit().max_wait(NO_WAIT))
        .add_service(probe)
        .add_service(reflection());
    tokio::spawn(server.serve_with_incoming(incoming));
    let held = fixture.semaphore().acquire().await.expect("a free permit");
    assert_eq!(check(address).await, Code::ResourceExhausted);
    assert_eq!(reflect(address).await, Code::ResourceExhausted);
    drop(held);
    assert_eq!(check(address).await, Code::Ok);
    fixture.until_idle().await;
    assert_eq!(reflect(address).await, Code::Ok);
    fixture.until_idle().await;
}

#[tokio::test]
async fn around_a_server_a_rate_limit_counts_the_calls_of_all_its_services() {
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let (address, incoming) = incoming();
    let two = fixture.gates.rate_limiter("calls", Quota::per(2, LONG));
    let server = Server::builder()
        .layer(RateLimitLayer::new(two.expect("in range")).grpc())
        .add_service(probe)
        .add_service(reflection());
    tokio::spawn(server.serve_with_incoming(incoming));
    assert_eq!(check(address).await, Code::Ok);
    assert_eq!(reflect(address).await, Code::Ok);
    assert_eq!(check(address).await, Code::ResourceExhausted);
    assert_eq!(reflect(address).await, Code::ResourceExhausted);
}

#[tokio::test]
async fn around_a_server_it_can_leave_methods_out() {
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let (address, incoming) = incoming();
    let gate = fixture.limit().max_wait(NO_WAIT);
    let gate = gate.applies_to(|head| !head.uri.path().starts_with("/grpc.health.v1.Health/"));
    let server = Server::builder().layer(gate).add_service(probe);
    let server = server.add_service(reflection());
    tokio::spawn(server.serve_with_incoming(incoming));
    let _held = fixture.semaphore().acquire().await.expect("a free permit");
    assert_eq!(check(address).await, Code::Ok);
    assert_eq!(reflect(address).await, Code::ResourceExhausted);
}

#[tokio::test]
async fn around_one_service_it_gates_only_that_one() {
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let gated = fixture.limit().max_wait(NO_WAIT).named_layer(probe);
    let address = serve(Routes::new(gated).add_service(reflection()));
    let held = fixture.semaphore().acquire().await.expect("a free permit");
    assert_eq!(check(address).await, Code::ResourceExhausted);
    assert_eq!(reflect(address).await, Code::Ok);
    drop(held);
    assert_eq!(check(address).await, Code::Ok);
}

#[tokio::test]
async fn each_service_can_have_a_gate_of_its_own() {
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let health = fixture.limit().max_wait(NO_WAIT).named_layer(probe);
    let reflection = fixture.lock().max_wait(NO_WAIT).named_layer(reflection());
    let address = serve(Routes::new(health).add_service(reflection));
    let _permit = fixture.semaphore().acquire().await.expect("a free permit");
    let _lock = fixture.mutex().lock().await.expect("a free lock");
    assert_eq!(check(address).await, Code::ResourceExhausted);
    assert_eq!(reflect(address).await, Code::Aborted);
}

#[test]
fn a_gated_service_keeps_its_name() {
    fn name<S: NamedService>(_: &S) -> &'static str {
        S::NAME
    }
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let gated = fixture.limit().named_layer(probe);
    assert_eq!(name(&gated), "grpc.health.v1.Health");
    let twice = fixture.lock().named_layer(gated);
    assert_eq!(name(&twice), HealthServer::<Probe>::NAME);
}

#[tokio::test]
async fn two_gates_around_one_service_are_passed_in_their_order() {
    let fixture = Fixture::new();
    let (probe, mut entries) = Probe::new();
    let inner = fixture.lock().named_layer(probe);
    let address = serve(Routes::new(fixture.limit().named_layer(inner)));
    let held = fixture.mutex().lock().await.expect("a free lock");
    let call = tokio::spawn(check(address));
    // It has the outer one's permit, and waits at the inner one.
    let waits = async || fixture.semaphore().try_acquire().await.is_err();
    crate::wait::wait_for("it holds", crate::fixture::PROMPTLY, waits).await;
    entries.assert_none();
    drop(held);
    let code = promptly("its turn", call).await.expect("no panic");
    assert_eq!(code, Code::Ok);
    fixture.until_idle().await;
}

/// Who calls, as an outer layer found out.
#[derive(Clone)]
struct Caller(String);

#[tokio::test]
async fn in_a_stack_it_takes_its_key_from_what_a_layer_further_out_found() {
    let fixture = Fixture::new();
    let identify = MapRequestLayer::new(|mut request: HttpRequest<tonic::body::Body>| {
        let name = request.headers().get("x-caller");
        let name = name.and_then(|name| name.to_str().ok());
        if let Some(caller) = name.map(|name| Caller(name.to_owned())) {
            request.extensions_mut().insert(caller);
        }
        request
    });
    let by_caller = fixture.lock().max_wait(NO_WAIT).key(|head: &Parts| {
        let caller = head.extensions.get::<Caller>();
        caller
            .map(|caller| caller.0.clone())
            .ok_or(KeyError::missing("caller"))
    });
    let (probe, _entries) = Probe::new();
    let (address, incoming) = incoming();
    let stack = ServiceBuilder::new().layer(identify).layer(by_caller);
    let server = Server::builder().layer(stack).add_service(probe);
    tokio::spawn(server.serve_with_incoming(incoming));

    let _held = fixture.mutex().keyed(KEY).lock().await.expect("free");
    let mut client = HealthClient::new(channel(address));
    let mut call = async |caller: Option<&'static str>| {
        let mut request = Request::new(ask());
        if let Some(caller) = caller {
            let caller = tonic::metadata::MetadataValue::from_static(caller);
            request.metadata_mut().insert("x-caller", caller);
        }
        let answer = promptly("an answer", client.check(request)).await;
        answer.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!(call(Some(KEY)).await, Code::Aborted);
    assert_eq!(call(Some("another")).await, Code::Ok);
    assert_eq!(call(None).await, Code::InvalidArgument);
}

#[tokio::test]
async fn in_a_router_one_gate_answers_each_caller_in_its_own_way() {
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let app: Router = Routes::new(probe)
        .into_axum_router()
        .route("/report", get(async || "done"))
        .layer(fixture.limit().max_wait(NO_WAIT))
        .route("/healthz", get(async || "never gated"));
    let address = serve_by_axum(app).await;
    let held = fixture.semaphore().acquire().await.expect("a free permit");
    assert_eq!(check(address).await, Code::ResourceExhausted);
    let report = || HttpRequest::get(format!("http://{address}/report"));
    let (head, body) = bare_call(report()).await;
    assert_eq!(head.status, 503);
    let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(problem["type"], "urn:problem-type:portcullis:at-capacity");
    let healthz = HttpRequest::get(format!("http://{address}/healthz"));
    assert_eq!(bare_call(healthz).await.1, "never gated");
    drop(held);
    assert_eq!(check(address).await, Code::Ok);
    fixture.until_idle().await;
    assert_eq!(bare_call(report()).await.1, "done");
    fixture.until_idle().await;
}

#[tokio::test]
async fn methods_that_do_not_exist_are_answered_by_tonic() {
    let fixture = Fixture::new();
    let (probe, _entries) = Probe::new();
    let address = serve(Routes::new(fixture.limit().named_layer(probe)));
    let (head, _) = bare_call(grpc_request(address)).await;
    assert!(!head.headers.contains_key("grpc-status"), "{head:?}");
    let path = http_request(address).uri(format!("http://{address}/grpc.health.v1.Health/No"));
    let (head, _) = bare_call(path.header("content-type", "application/grpc")).await;
    assert_eq!(head.headers["grpc-status"], "12");
    fixture.until_idle().await;
}
