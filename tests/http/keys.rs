//! What makes a gate's key, in front of real routes: which requests share a gate, and what becomes
//! of those that have no key.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path};
use axum::routing::{any, get, post};
use http::header::{HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use portcullis::layer::{KeyError, MakeKey, client_ip, extension, header, path_param, route};
use portcullis::{Key, MutexLayer, Portcullis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt};

use crate::fixture::Log;

/// A lock for each key, for which nobody waits.
fn lock(key: impl MakeKey + 'static) -> MutexLayer {
    let mutex = Portcullis::in_memory().mutex("keyed");
    MutexLayer::new(mutex).max_wait(Duration::ZERO).key(key)
}

/// A route with a parameter and one without, each behind the lock.
fn app(lock: &MutexLayer) -> Router {
    Router::new()
        .route("/accounts/{id}", any(async || "in").layer(lock.clone()))
        .route("/reports", get(async || "in").layer(lock.clone()))
}

fn get_from(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).expect("a path")
}

fn with(header: &'static str, values: &[&str]) -> Request<Body> {
    let mut request = get_from("/reports");
    for value in values {
        let value = HeaderValue::from_str(value).expect("a value");
        let name = HeaderName::from_static(header);
        request.headers_mut().append(name, value);
    }
    request
}

fn from_peer(peer: impl Into<IpAddr>) -> Request<Body> {
    let mut request = get_from("/reports");
    let peer = SocketAddr::new(peer.into(), 4711);
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    let response = app.clone().oneshot(request).await;
    response.expect("routers do not fail")
}

async fn status(app: &Router, request: Request<Body>) -> StatusCode {
    send(app, request).await.status()
}

/// Whether the second request finds the lock of the first one held. It is while the answer is not
/// read.
async fn share(app: &Router, one: Request<Body>, other: Request<Body>) -> bool {
    let first = send(app, one).await;
    assert_eq!(first.status(), StatusCode::OK);
    match status(app, other).await {
        StatusCode::OK => false,
        StatusCode::CONFLICT => true,
        other => panic!("{other}"),
    }
}

/// The end of a refusal's `type`, after its status.
async fn refusal(response: Response<Body>) -> (u16, String) {
    let (head, body) = response.into_parts();
    assert!(!head.headers.contains_key(RETRY_AFTER));
    let body = body.collect().await.expect("a whole body").to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(problem["status"], head.status.as_u16());
    let kind = problem["type"].as_str().expect("a type");
    let kind = kind.strip_prefix("urn:problem-type:portcullis:");
    (
        head.status.as_u16(),
        kind.expect("a type of this crate").to_owned(),
    )
}

async fn refused(app: &Router, request: Request<Body>) -> (u16, String) {
    refusal(send(app, request).await).await
}

fn no_key() -> (u16, String) {
    (400, "no-key".to_owned())
}

/// Every request is refused, and what to do is logged once, with all of `remedy` in it.
async fn assert_misconfigured(app: &Router, request: impl Fn() -> Request<Body>, remedy: &[&str]) {
    let (log, _guard) = Log::start();
    for _ in 0..3 {
        let refused = refused(app, request()).await;
        assert_eq!(refused, (503, "misconfigured".to_owned()));
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in remedy
        .iter()
        .chain(&["keyed", "this request can't have a key: "])
    {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
}

#[tokio::test]
async fn a_routes_requests_share_a_gate_whatever_their_path_and_other_routes_have_theirs() {
    let app = app(&lock(route()));
    let request = |method: &str, path: &str| {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let request = Request::builder().method(method).uri(path);
        request.body(Body::empty()).expect("a path")
    };
    let one = || request("GET", "/accounts/7");
    assert!(share(&app, one(), request("GET", "/accounts/8?a=b")).await);
    assert!(share(&app, one(), request("HEAD", "/accounts/7")).await);
    assert!(!share(&app, one(), request("POST", "/accounts/7")).await);
    assert!(!share(&app, one(), request("GET", "/reports")).await);
    // A caller can't make up a gate of its own.
    let made_up = request("BREW", "/accounts/7");
    assert!(share(&app, made_up, request("WHEN", "/accounts/7")).await);
}

#[tokio::test]
async fn a_route_in_a_nested_router_has_its_whole_path() {
    let lock = lock(route());
    let inner = || Router::new().route("/reports", get(async || "in").layer(lock.clone()));
    let app = Router::new()
        .nest("/{tenant}", inner())
        .nest_service("/as/service", inner());
    let (one, other) = ("/acme/reports", "/other/reports");
    assert!(share(&app, get_from(one), get_from(other)).await);
    assert!(!share(&app, get_from(one), get_from("/as/service/reports")).await);
}

#[tokio::test]
async fn a_gate_per_route_where_there_is_no_route_says_so_once() {
    let remedy = [
        "`route()`",
        "`Router::layer` covers",
        "`Router::route_layer`",
    ];
    let elsewhere = || get_from("/elsewhere");
    let routes = || Router::new().route("/reports", get(async || "in"));
    let covered = routes().layer(lock(route()));
    assert_eq!(status(&covered, get_from("/reports")).await, StatusCode::OK);
    assert_misconfigured(&covered, elsewhere, &remedy).await;
    let without_routes: Router = Router::new().layer(lock(route()));
    assert_misconfigured(&without_routes, elsewhere, &remedy).await;
    let fallback = routes().fallback(async || "in").layer(lock(route()));
    assert_misconfigured(&fallback, elsewhere, &remedy).await;
    let around = Router::new().fallback_service(lock(route()).layer(routes()));
    assert_misconfigured(&around, || get_from("/reports"), &remedy).await;

    // The remedy helps.
    let covered = routes().route_layer(lock(route()));
    assert_eq!(status(&covered, get_from("/reports")).await, StatusCode::OK);
    assert_eq!(status(&covered, elsewhere()).await, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_path_parameter_is_decoded_as_the_handler_does() {
    let handler = async |Path(id): Path<String>| id;
    let app = Router::new().route(
        "/accounts/{id}/withdraw",
        post(handler).layer(lock(path_param("id"))),
    );
    let request = |id: &str| {
        let request = Request::post(format!("/accounts/{id}/withdraw"));
        request.body(Body::empty()).expect("a path")
    };
    for (one, other, same) in [
        ("7", "7", true),
        ("7", "%37", true),
        ("a%2Fb", "%61%2fb", true),
        ("a%252Fb", "a%2Fb", false),
        ("gr%C3%B6%C3%9Fe", "größe", true),
        ("7", "8", false),
        ("7", "07", false),
        ("a", "A", false),
        ("a+b", "a%20b", false),
    ] {
        // What a handler sees as one thing is one key.
        let read = async |id| send(&app, request(id)).await.into_body().collect().await;
        let [first, second] = [read(one).await, read(other).await];
        let [first, second] = [first, second].map(|body| body.expect("a whole body").to_bytes());
        assert_eq!(first == second, same, "{one} {other}");
        assert_eq!(
            share(&app, request(one), request(other)).await,
            same,
            "{one} {other}"
        );
    }
    assert_eq!(refused(&app, request("%FF")).await, no_key());
}

#[tokio::test]
async fn a_path_parameter_that_a_route_does_not_have_is_named_with_those_it_has() {
    let app = || {
        Router::new()
            .route("/{tenant}/{account}/withdraw", get(async || "in"))
            .route("/reports", get(async || "in"))
            .layer(lock(path_param("id")))
    };
    let other = || get_from("/acme/7/withdraw");
    let remedy = [
        "`path_param(\"id\")`",
        "`/{tenant}/{account}/withdraw`",
        "only the parameters `tenant`, `account`",
        "put the layer on the routes that have `{id}`",
    ];
    assert_misconfigured(&app(), other, &remedy).await;
    let none = ["`/reports` has no parameters"];
    assert_misconfigured(&app(), || get_from("/reports"), &none).await;
    let no_route = ["no route was matched"];
    assert_misconfigured(&app(), || get_from("/else/where"), &no_route).await;

    let inner = Router::new().route("/{id}", get(async || "in").layer(lock(path_param("id"))));
    let app = Router::new().nest_service("/{id}", inner);
    assert_misconfigured(&app, || get_from("/7/8"), &["several of this name"]).await;
}

#[tokio::test]
async fn a_strangers_unknown_path_does_not_hide_what_is_wrong_with_a_route() {
    let app = Router::new()
        .route("/reports", get(async || "in"))
        .route("/{tenant}/withdraw", get(async || "in"))
        .layer(lock(path_param("id")));
    let (log, _guard) = Log::start();
    for path in ["/no/such/path", "/reports", "/acme/withdraw"].repeat(2) {
        assert_eq!(refused(&app, get_from(path)).await.0, 503);
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (line, cause) in
        lines
            .iter()
            .zip(["no route was matched", "`/reports`", "`/{tenant}/withdraw`"])
    {
        assert!(line.contains(cause), "{cause}: {line}");
    }
}

#[tokio::test]
async fn callers_can_not_fill_the_log_with_what_is_misconfigured() {
    let by_caller = |parts: &Parts| {
        let path = parts.uri.path().to_owned();
        Err::<Key, _>(KeyError::misconfigured(path))
    };
    let app = app(&lock(by_caller));
    let (log, _guard) = Log::start();
    for account in 0..100 {
        let path = format!("/accounts/{}", account % 50);
        assert_eq!(refused(&app, get_from(&path)).await.0, 503);
    }
    assert_eq!(log.lines().len(), 16);
}

#[tokio::test]
async fn an_optional_part_of_the_path_lets_pass_who_takes_another_route_or_none() {
    let routes = || {
        Router::new()
            .route("/accounts/{id}", get(async || "in"))
            .route("/reports", get(async || "in"))
    };
    let (log, _guard) = Log::start();
    let app = routes().layer(lock(path_param("id").optional()));
    let account = || get_from("/accounts/7");
    assert!(share(&app, account(), account()).await);
    assert!(!share(&app, get_from("/reports"), get_from("/reports")).await);
    assert_eq!(
        status(&app, get_from("/nowhere")).await,
        StatusCode::NOT_FOUND
    );
    let app = routes().layer(lock(route().optional()));
    assert!(share(&app, account(), account()).await);
    assert_eq!(
        status(&app, get_from("/nowhere")).await,
        StatusCode::NOT_FOUND
    );
    assert!(log.lines().is_empty(), "{:?}", log.lines());
}

#[tokio::test]
async fn a_path_parameter_that_is_empty_or_too_long_is_no_key() {
    let app = Router::new()
        .route("/accounts/{id}/withdraw", get(async || "in"))
        .route_layer(lock(path_param("id")));
    let request = |id: &str| get_from(&format!("/accounts/{id}/withdraw"));
    let long = "x".repeat(257);
    assert!(share(&app, request(&long[1..]), request(&long[1..])).await);
    for unusable in ["", &long] {
        assert_eq!(
            refused(&app, request(unusable)).await,
            no_key(),
            "{unusable:?}"
        );
    }
}

#[tokio::test]
async fn a_header_makes_the_key_and_has_to_be_there_once() {
    let app = app(&lock(header("x-tenant")));
    let of = |tenants: &[&str]| with("x-tenant", tenants);
    assert!(share(&app, of(&["acme"]), of(&["acme"])).await);
    assert!(!share(&app, of(&["acme"]), of(&["other"])).await);
    assert!(!share(&app, of(&["acme"]), of(&["acme:"])).await);
    for unusable in [
        &[][..],
        &["acme", "acme"],
        &["acme", "other"],
        &[""],
        &["\t"],
    ] {
        assert_eq!(refused(&app, of(unusable)).await, no_key(), "{unusable:?}");
    }
    let long = "x".repeat(257);
    assert!(share(&app, of(&[&long[1..]]), of(&[&long[1..]])).await);
    assert_eq!(refused(&app, of(&[&long])).await, no_key());
}

#[tokio::test]
async fn a_key_that_is_missing_is_asked_for_with_a_challenge() {
    let challenge = r#"Bearer realm="accounts""#;
    let tenant = header("x-tenant").unauthenticated(HeaderValue::from_static(challenge));
    let app = app(&lock(tenant));
    let response = send(&app, get_from("/reports")).await;
    assert_eq!(response.headers()[WWW_AUTHENTICATE], challenge);
    assert_eq!(refusal(response).await, (401, "no-key".to_owned()));
    let response = send(&app, with("x-tenant", &["acme", "other"])).await;
    assert!(!response.headers().contains_key(WWW_AUTHENTICATE));
    assert_eq!(refusal(response).await, no_key());
}

#[tokio::test]
async fn an_optional_key_that_is_missing_lets_the_request_pass_ungated() {
    let app = app(&lock(header("x-tenant").optional()));
    let of = |tenants: &[&str]| with("x-tenant", tenants);
    assert!(!share(&app, of(&[]), of(&[])).await);
    assert!(share(&app, of(&["acme"]), of(&["acme"])).await);
    assert_eq!(refused(&app, of(&["acme", "acme"])).await, no_key());
}

#[tokio::test]
async fn an_identity_that_an_outer_layer_found_makes_the_key() {
    #[derive(Clone)]
    struct Account(u64);

    let of = |account: Option<u64>| {
        let mut request = get_from("/reports");
        if let Some(account) = account {
            request.extensions_mut().insert(Account(account));
        }
        request
    };
    let account = extension(|account: &Account| account.0);
    let known = app(&lock(account.clone()));
    assert!(share(&known, of(Some(7)), of(Some(7))).await);
    assert!(!share(&known, of(Some(7)), of(Some(8))).await);
    assert_eq!(refused(&known, of(None)).await, no_key());
    let asked = app(&lock(
        account.unauthenticated(HeaderValue::from_static("Bearer")),
    ));
    assert_eq!(refused(&asked, of(None)).await, (401, "no-key".to_owned()));
}

#[tokio::test]
async fn several_parts_make_one_key() {
    let app = app(&lock((header("x-tenant"), path_param("id"))));
    let of = |tenant: &str, id: &str| {
        let request = Request::get(format!("/accounts/{id}")).header("x-tenant", tenant);
        request.body(Body::empty()).expect("a path")
    };
    assert!(share(&app, of("acme", "7"), of("acme", "%37")).await);
    assert!(!share(&app, of("acme", "7"), of("acme", "8")).await);
    assert!(!share(&app, of("acme", "7"), of("other", "7")).await);
    assert!(!share(&app, of("a:b", "c"), of("a", "b:c")).await);
    assert_eq!(refused(&app, get_from("/accounts/7")).await, no_key());

    let app = self::app(&lock((header("x-tenant").optional(), path_param("id"))));
    let (one, other) = (get_from("/accounts/7"), get_from("/accounts/7"));
    assert!(
        !share(&app, one, other).await,
        "a part that is missing lets pass"
    );
}

// Case C129.
#[tokio::test]
async fn a_thousand_addresses_of_one_network_share_a_gate() {
    let app = app(&lock(client_ip()));
    let peer = |host: u64| {
        let network = 0x2001_0db8_0000_0001_u128 << 64;
        from_peer(Ipv6Addr::from_bits(network | u128::from(host)))
    };
    let held = send(&app, peer(0)).await;
    assert_eq!(held.status(), StatusCode::OK);
    for host in 1..=1000_u64 {
        let host = host.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert_eq!(status(&app, peer(host)).await, StatusCode::CONFLICT);
    }
    drop(held);
    let neighbor: IpAddr = "2001:db8:0:2::".parse().expect("an address");
    assert!(!share(&app, peer(0), from_peer(neighbor)).await);
    let [plain, mapped, next] = ["203.0.113.7", "::ffff:203.0.113.7", "203.0.113.8"]
        .map(|text| text.parse::<IpAddr>().expect("an address"));
    assert!(share(&app, from_peer(plain), from_peer(mapped)).await);
    assert!(!share(&app, from_peer(plain), from_peer(next)).await);
}

#[tokio::test]
async fn what_proxies_say_counts_if_they_are_trusted() {
    let networks = ["10.0.0.0/8"];
    let by_list = client_ip().x_forwarded_for().try_trust(networks);
    let by_rfc = client_ip().forwarded().try_trust(networks);
    for (key, name, pattern) in [
        (by_list, "x-forwarded-for", "{}"),
        (by_rfc, "forwarded", "for=\"{}\";proto=https"),
    ] {
        let app = app(&lock(key.expect("networks")));
        let of = |peer: &str, clients: &[&str]| {
            let mut request = from_peer(peer.parse::<IpAddr>().expect("an address"));
            for client in clients {
                let value = pattern.replace("{}", client);
                let value = HeaderValue::from_str(&value).expect("a value");
                request.headers_mut().append(name, value);
            }
            request
        };
        let client = || of("10.0.0.1", &["203.0.113.7"]);
        assert!(share(&app, client(), of("203.0.113.7", &[])).await);
        assert!(share(&app, client(), of("10.0.0.2", &["1.2.3.4", "203.0.113.7"])).await);
        assert!(share(&app, client(), of("10.0.0.1", &["::ffff:203.0.113.7"])).await);
        assert!(!share(&app, client(), of("10.0.0.1", &["203.0.113.8"])).await);
        // Who is not a proxy can't choose.
        assert!(!share(&app, client(), of("198.51.100.1", &["203.0.113.7"])).await);
    }
}

/// Sends requests over TCP to `app`, served in one of axum's ways.
async fn statuses<S>(requests: usize, serve: impl FnOnce(TcpListener) -> S) -> Vec<String>
where
    S: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = tokio::spawn(serve(listener));
    let mut statuses = Vec::new();
    for _ in 0..requests {
        let mut stream = TcpStream::connect(address).await.expect("a listener");
        let request = b"GET /reports HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.0.0.1\r\n\
            connection: close\r\n\r\n";
        stream.write_all(request).await.expect("connected");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("text");
        statuses.push(answer[9..12].to_owned());
    }
    server.abort();
    statuses
}

#[tokio::test]
async fn the_peer_of_a_served_request_is_known_if_it_is_served_so() {
    let gates = Portcullis::in_memory();
    let mutex = gates.mutex("keyed");
    let app = app(&MutexLayer::new(mutex.clone())
        .max_wait(Duration::ZERO)
        .key(client_ip()));
    let served = app
        .clone()
        .into_make_service_with_connect_info::<SocketAddr>();
    let _held = mutex.keyed("127.0.0.1").lock().await.expect("a free lock");
    let statuses_of = statuses(2, |listener| async { axum::serve(listener, served).await });
    assert_eq!(statuses_of.await, ["409", "409"]);

    let (log, _guard) = Log::start();
    let statuses_of = statuses(3, |listener| async { axum::serve(listener, app).await });
    assert_eq!(statuses_of.await, ["503", "503", "503"]);
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("into_make_service_with_connect_info"),
        "{}",
        lines[0]
    );
}
