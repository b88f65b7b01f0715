//! Ways that are barred: each is told by its kind, with what to do about it, in time, and without a
//! secret anywhere.
//!
//! `texts.txt` has what is told. It is written anew by running these tests with `BLESS=1`.

use std::any::Any;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use portcullis::BackendErrorKind::{
    NotPermitted, Protocol, Unauthenticated, Unreachable, Unsupported, Untrusted,
};
use portcullis::{BackendError, BackendErrorKind, Portcullis, Tls};
use rustix::thread::{Uid, set_thread_uid};

use crate::certificates::{Authority, Identity, self_signed};
use crate::common::{LIMIT, failure, within};
use crate::heard::heard;
use crate::place::{Folder, NAMES, TlsServer, impatient};
use crate::support::Server;

#[path = "../../src/snapshot.rs"]
#[allow(dead_code, reason = "each user has its own part")]
mod snapshot;

const TEXTS: &str = "tests/connections/texts.txt";
/// So many are tried at once: each tries over and over until its time is up.
const AT_ONCE: usize = 5;
const PASSWORD: &str = "pass-4711";

/// Handles that are to fail, each with what keeps its server there.
type Barred = Vec<(&'static str, BackendErrorKind, Portcullis, Arc<dyn Any>)>;

/// What is told at last: a busy machine may not get through a handshake at first.
pub(crate) async fn refused(handle: &Portcullis, kinds: &[BackendErrorKind]) -> BackendError {
    let begun = Instant::now();
    loop {
        let lock = handle.mutex("lock");
        let error = failure(within(LIMIT, "it fails", lock.try_lock()).await);
        let is_told = kinds.contains(&error.kind()) && !error.to_string().contains("server yet");
        if is_told || begun.elapsed() > LIMIT {
            assert!(kinds.contains(&error.kind()), "{kinds:?}: {error}");
            return error;
        }
    }
}

/// It tells neither a secret nor an address, in no form.
fn assert_silent(error: &BackendError) {
    let mut said = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(error) = source {
        write!(said, "\n{error} {error:?}").expect("a text takes more text");
        source = error.source();
    }
    for secret in [
        PASSWORD,
        "127.0.0.1",
        "localhost",
        "/portcullis",
        ".example",
        "PRIVATE",
    ] {
        assert!(!said.contains(secret), "{said}");
    }
}

async fn by_credentials(barred: &mut Barred) {
    let server = Server::start();
    for user in [
        &[
            "somebody",
            "on",
            &format!(">{PASSWORD}"),
            "~*",
            "&*",
            "+@all",
        ][..],
        &["limited", "on", "nopass", "~*", "&*", "+@all", "-select"],
        &["default", "resetpass", ">another"],
    ] {
        server.command(&[&["ACL", "SETUSER"], user].concat()).await;
    }
    let port = server.port();
    let server: Arc<dyn Any> = Arc::new(server);
    for (situation, kind, credentials, place) in [
        (
            "a wrong password",
            Unauthenticated,
            "somebody:wrong-pass-4711@",
            "",
        ),
        ("an unknown user", Unauthenticated, "nobody:pass-4711@", ""),
        ("no credentials", Unauthenticated, "", ""),
        (
            "a wrong password, by RESP3",
            Unauthenticated,
            "somebody:wrong-pass-4711@",
            "?protocol=resp3",
        ),
        (
            "no credentials, by RESP3",
            Unauthenticated,
            "",
            "?protocol=resp3",
        ),
        ("no such database", Unsupported, "somebody:pass-4711@", "99"),
        (
            "no right to another database",
            NotPermitted,
            "limited:any@",
            "2",
        ),
    ] {
        let url = format!("redis://{credentials}127.0.0.1:{port}/{place}");
        let handle = impatient(&url).build().expect("an address");
        barred.push((situation, kind, handle, Arc::clone(&server)));
    }
}

fn by_certificates(barred: &mut Barred) {
    let (authority, clients) = (Authority::new(), Authority::new());
    let valid = authority.server(&NAMES);
    let trusting = || Tls::new().root_certificate(&authority.certificate);
    for (situation, shown, tls) in [
        (
            "a server of an authority that is not named",
            &valid,
            Tls::new(),
        ),
        (
            "a server of another authority than the one named",
            &valid,
            Tls::new().root_certificate(&clients.certificate),
        ),
        (
            "a server of an authority that was made anew",
            &Authority::named("the one").server(&NAMES),
            Tls::new().root_certificate(&Authority::named("the one").certificate),
        ),
        (
            "a server without an authority",
            &self_signed(&NAMES),
            trusting(),
        ),
        (
            "an expired server",
            &authority.expired_server(&NAMES),
            trusting(),
        ),
        (
            "a server by another name",
            &authority.server(&["elsewhere.example"]),
            trusting(),
        ),
        (
            "a client's certificate shown by a server",
            &authority.client(),
            trusting(),
        ),
    ] {
        let server = TlsServer::showing(shown);
        let handle = impatient(&server.tls_url()).tls(tls).build().expect("ok");
        let server: Arc<dyn Any> = Arc::new(server);
        barred.push((situation, Untrusted, handle, Arc::clone(&server)));
    }
    let with =
        |identity: Identity| trusting().client_certificate(identity.certificate, identity.key);
    for (situation, tls, versions) in [
        ("no client certificate", trusting(), "TLSv1.3"),
        ("no client certificate, by TLS 1.2", trusting(), "TLSv1.2"),
        (
            "a client certificate of another authority",
            with(authority.client()),
            "TLSv1.3",
        ),
    ] {
        let server = TlsServer::asking(&valid, &clients, &["--tls-protocols", versions]);
        let handle = impatient(&server.tls_url()).tls(tls).build().expect("ok");
        let server: Arc<dyn Any> = Arc::new(server);
        barred.push((situation, Untrusted, handle, Arc::clone(&server)));
    }
    let server = TlsServer::showing(&valid);
    let url = format!("redis://127.0.0.1:{}/", server.port);
    let handle = impatient(&url).build().expect("ok");
    barred.push((
        "no TLS where TLS is spoken",
        Unreachable,
        handle,
        Arc::new(server),
    ));
}

fn by_socket(barred: &mut Barred) {
    let folder = Folder::new();
    let socket = folder.path().join("redis.sock");
    let path = socket.to_str().expect("a plain name");
    let url = format!("unix://{path}");
    let handle = impatient(&format!("{url}.not"));
    let handle = handle.build().expect("an address");
    barred.push(("no such socket", Unreachable, handle, Arc::new(())));

    let server = Server::start_with(&["--unixsocket", path]);
    fs::set_permissions(&socket, Permissions::from_mode(0o000)).expect("it is ours");
    // Who may do anything becomes somebody else first; the handle's thread then is that one's, too.
    let built = std::thread::spawn(move || {
        if rustix::process::geteuid().is_root() {
            set_thread_uid(Uid::from_raw(65534)).expect("root may be anybody");
        }
        impatient(&url).build().expect("an address")
    });
    let handle = built.join().expect("no panic");
    let server = Arc::new((server, folder));
    barred.push(("no right to the socket", Unreachable, handle, server));
}

#[tokio::test]
async fn each_barred_way_is_told_with_what_to_do() {
    heard();
    let mut barred = Barred::new();
    by_credentials(&mut barred).await;
    by_certificates(&mut barred);
    by_socket(&mut barred);
    let mut errors = Vec::new();
    for some in barred.chunks(AT_ONCE) {
        let some = some.iter().map(async |(situation, kind, handle, _)| {
            let error = refused(handle, &[*kind]).await;
            (situation, kind, error)
        });
        errors.extend(join_all(some).await);
    }
    let mut text = String::new();
    for (situation, kind, error) in errors {
        assert_silent(&error);
        // But for the time that it took.
        let told = error.to_string();
        let (_, what) = told.split_once("): ").expect("an action and a cause");
        writeln!(text, "{situation} | {kind} | {what}").expect("a text takes more text");
    }
    snapshot::assert(TEXTS, &text);
    let said = heard();
    assert!(said.contains("the server is away"), "nothing was heard");
    for secret in [PASSWORD, "PRIVATE"] {
        assert!(!said.contains(secret), "a secret was told");
    }
}

/// The server may take the first bytes for a request that is not complete, and wait for its rest.
#[tokio::test]
async fn tls_where_none_is_spoken_fails_in_time() {
    let server = Server::start();
    let url = format!("rediss://127.0.0.1:{}/", server.port());
    let handle = impatient(&url).build().expect("ok");
    let error = refused(&handle, &[Unreachable, Protocol]).await;
    assert!(error.to_string().contains("TLS"), "{error}");
    assert_silent(&error);
}

/// Whatever listens there, and says nothing.
#[tokio::test]
async fn tls_where_nobody_answers_fails_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("the loopback interface is up");
    let port = silent.local_addr().expect("it is bound").port();
    let handle = impatient(&format!("rediss://127.0.0.1:{port}/")).build();
    let handle = handle.expect("ok");
    let error = refused(&handle, &[Unreachable]).await;
    assert!(
        error.to_string().contains("is this a port for TLS?"),
        "{error}"
    );
}
