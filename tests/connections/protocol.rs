//! Both protocols, and servers that know only one.

use portcullis::BackendErrorKind;

use crate::common::{LIMIT, failure, within};
use crate::place::{builder, impatient};
use crate::sharing::share;
use crate::support::Server;

#[tokio::test]
async fn gates_are_shared_over_either_protocol() {
    let server = Server::start();
    let by = |protocol: &str| {
        let url = format!("{}?protocol={protocol}", server.url());
        builder(&url).build().expect("ok")
    };
    share(&server.url(), &by("resp3"), &by("resp2")).await;
}

/// A server, or something in front of it, that does not know `HELLO`. No ACL forbids that.
#[tokio::test]
async fn gates_are_shared_where_hello_is_unknown() {
    let server = Server::start_with(&["--rename-command", "HELLO", ""]);
    let handle = || builder(&server.url()).build().expect("ok");
    share(&server.url(), &handle(), &handle()).await;
}

#[tokio::test]
async fn who_asks_for_a_protocol_that_the_server_does_not_know_is_told() {
    let server = Server::start_with(&["--rename-command", "HELLO", ""]);
    let url = format!("{}?protocol=resp3", server.url());
    let handle = impatient(&url).build().expect("ok");
    let error = failure(within(LIMIT, "it fails", handle.mutex("lock").lock()).await);
    assert_eq!(error.kind(), BackendErrorKind::Unsupported);
    assert!(error.to_string().contains("protocol=resp3"), "{error}");
}
