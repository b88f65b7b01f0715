//! Gates over TLS.

use portcullis::deadpool_redis::{Config, Runtime};
use portcullis::redis::IntoConnectionInfo;
use portcullis::{BackendErrorKind, Portcullis, Tls};

use crate::barred::refused;
use crate::certificates::{Authority, self_signed};
use crate::common::{LIMIT, LONG, give_back, queue, served, take, until_waiting, within};
use crate::place::{Folder, NAMES, TlsServer, builder, impatient};
use crate::sharing::share;
use crate::support::{Other, Proxy, my_role, say, wait_for};

#[tokio::test]
async fn gates_are_shared_over_tls_with_an_authority_of_ones_own() {
    let authority = Authority::new();
    let server = TlsServer::showing(&authority.server(&NAMES));
    let tls = || Tls::new().root_certificate(&authority.certificate);
    let by_address = builder(&server.tls_url()).tls(tls()).build().expect("ok");
    let url = format!("rediss://localhost:{}/", server.port);
    let by_name = builder(&url).tls(tls()).build().expect("ok");
    share(&server.url(), &by_address, &by_name).await;
}

#[tokio::test]
async fn gates_are_shared_over_tls_with_client_certificates() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let server = TlsServer::asking(&authority.server(&NAMES), &clients, &[]);
    let handle = || {
        let shown = clients.client();
        let tls = Tls::new()
            // Several authorities, in one text and by several calls.
            .root_certificate(Authority::new().certificate + &Authority::new().certificate)
            .root_certificate(&authority.certificate)
            .client_certificate(shown.certificate, shown.key);
        builder(&server.tls_url()).tls(tls).build().expect("ok")
    };
    share(&server.url(), &handle(), &handle()).await;
}

#[tokio::test]
async fn a_certificate_without_an_authority_can_be_named_itself() {
    let identity = self_signed(&NAMES);
    let server = TlsServer::showing(&identity);
    let tls = || Tls::new().root_certificate(&identity.certificate);
    let handle = || builder(&server.tls_url()).tls(tls()).build().expect("ok");
    share(&server.url(), &handle(), &handle()).await;
}

#[tokio::test]
async fn those_who_come_by_tls_and_those_who_do_not_share_gates() {
    let authority = Authority::new();
    let server = TlsServer::showing(&authority.server(&NAMES));
    let tls = Tls::new().root_certificate(&authority.certificate);
    let private = builder(&server.tls_url()).tls(tls).build().expect("ok");
    let plain = builder(&server.url()).build().expect("ok");
    share(&server.url(), &private, &plain).await;
    share_again(&plain, &private).await;
}

/// A pool of the user's brings its own way; what listens beside it comes by TLS.
#[tokio::test]
async fn a_subscriber_beside_a_pool_comes_by_tls() {
    let authority = Authority::new();
    let server = TlsServer::showing(&authority.server(&NAMES));
    let handle = || {
        let pool = Config::from_url(server.url()).create_pool(Some(Runtime::Tokio1));
        let listening = server.tls_url().into_connection_info().expect("an address");
        builder("redis://127.0.0.1/")
            .pool(pool.expect("valid"))
            .subscriber(listening)
            .tls(Tls::new().root_certificate(&authority.certificate))
            .build()
            .expect("ok")
    };
    share(&server.url(), &handle(), &handle()).await;
}

async fn share_again(a: &Portcullis, b: &Portcullis) {
    let lock = |handle: &Portcullis| handle.mutex("again").ttl(LONG).expect("ok");
    let guard = take(&lock(a)).await;
    let next = queue(&lock(b));
    until_waiting(&lock(a), 1).await;
    give_back(guard).await;
    give_back(served(next).await).await;
}

#[tokio::test]
async fn connections_that_are_cut_are_made_again() {
    let authority = Authority::new();
    let server = TlsServer::showing(&authority.server(&NAMES));
    let proxy = Proxy::start(server.port);
    let url = proxy.url().replace("redis://", "rediss://");
    let tls = || Tls::new().root_certificate(&authority.certificate);
    let handle = || builder(&url).tls(tls()).build().expect("ok");
    let (a, b) = (handle(), handle());
    let lock = |handle: &Portcullis| handle.mutex("lock").ttl(LONG).expect("ok");
    let guard = within(LIMIT, "what is free is taken", lock(&a).lock()).await;
    let guard = guard.expect("it is free");
    let next = queue(&lock(&b));
    until_waiting(&lock(&a), 1).await;
    proxy.cut();
    // Two for commands each, and one that listens.
    wait_for("they are back", LIMIT, async || {
        proxy.connections() >= 5 && lock(&a).try_lock().await.is_err()
    })
    .await;
    assert!(guard.is_held());
    give_back(guard).await;
    give_back(served(next).await).await;
    share_again(&a, &b).await;
}

/// What is not trusted is found by whoever looks, too.
#[tokio::test]
async fn a_look_at_a_server_that_is_not_trusted_says_so() {
    let server = TlsServer::showing(&Authority::new().server(&NAMES));
    let handle = impatient(&server.tls_url()).build().expect("ok");
    refused(&handle, &[BackendErrorKind::Untrusted]).await;
    let error = within(LIMIT, "it fails", handle.check().into_future()).await;
    let error = error.expect_err("nobody vouches for it");
    assert_eq!(error.kind(), BackendErrorKind::Untrusted, "{error}");
}

/// What the system trusts is named by the environment, which another process is given.
#[tokio::test]
async fn without_an_authority_of_ones_own_the_systems_are_trusted() {
    let authority = Authority::new();
    let server = TlsServer::showing(&authority.server(&NAMES));
    let folder = Folder::new();
    let others = [
        (folder.file("ca.crt", &authority.certificate), "held"),
        (
            folder.file("other.crt", &Authority::new().certificate),
            UNKNOWN,
        ),
        (folder.file("none.crt", "") + ".not", UNREADABLE),
    ]
    .map(|(file, outcome)| {
        let other = Other::start("tls::other_process", "lock", |command| {
            command
                .env("SSL_CERT_FILE", file)
                .env("PORTCULLIS_TEST_URL", server.tls_url());
        });
        (other, outcome)
    });
    for (other, outcome) in others {
        let heard = other.hear();
        assert!(heard.contains(outcome), "{heard}");
    }
}

const UNKNOWN: &str = "was issued by nobody who is trusted";
const UNREADABLE: &str = "SSL_CERT_FILE and SSL_CERT_DIR";

/// The other process. As a test of its own it does nothing.
#[tokio::test]
async fn other_process() {
    if my_role().is_none() {
        return;
    }
    let url = std::env::var("PORTCULLIS_TEST_URL").expect("set along with the role");
    say("ready");
    let handle = builder(&url).connections(1).build().expect("ok");
    match handle.mutex("lock").try_lock().await {
        Ok(_) => say("held"),
        Err(error) => say(&error.to_string()),
    }
    std::future::pending::<()>().await;
}
