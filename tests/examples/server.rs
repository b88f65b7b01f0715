//! The server of the README: its quota. What it holds is driven by `load`.

use futures_util::future::join_all;
use http::{Method, StatusCode};

use crate::certificates::Authority;
use crate::example::{Caller, Example};
use crate::place::{Folder, NAMES, TlsServer};
use crate::support::Server;

async fn ping(caller: &Caller, key: &str) -> crate::example::Answer {
    caller
        .ask_with(Method::GET, "/api/ping", &[("x-api-key", key)])
        .await
}

#[tokio::test]
async fn each_key_has_its_burst_over_all_instances() {
    let server = Server::start();
    each_key_has_its_burst(&[("REDIS_URL", &*server.url())]).await;
}

async fn each_key_has_its_burst(settings: &[(&str, &str)]) {
    // None comes back during the test.
    let settings = [settings, &[("RATE", "1"), ("BURST", "7")]].concat();
    let (mut one, mut other) = (
        Example::start("server", &settings),
        Example::start("server", &settings),
    );
    let callers = [Caller::of(&mut one).await, Caller::of(&mut other).await];
    for key in ["a", "b"] {
        let asked = callers.iter().cycle().take(30);
        let answers = join_all(asked.map(|caller| ping(caller, key))).await;
        let let_in = answers
            .iter()
            .filter(|answer| answer.status == StatusCode::OK);
        // One more for each second that they took.
        let let_in = let_in.count();
        assert!((7..=20).contains(&let_in), "{let_in} of {key}");
        for answer in &answers {
            let policy = answer.header("ratelimit-policy");
            assert_eq!(policy, Some(r#""ping";q=7;w=7"#));
            assert!(answer.header("ratelimit").is_some());
            if answer.status != StatusCode::OK {
                assert_eq!(answer.problem(), (429, "over-quota".to_owned()));
                assert_eq!(answer.header("retry-after"), Some("1"));
            }
        }
    }
    assert_eq!(
        callers[0].get("/api/ping").await.problem(),
        (400, "no-key".to_owned())
    );
}

/// With nothing but an address and the CA.
#[tokio::test]
async fn each_key_has_its_burst_over_all_instances_by_tls() {
    let authority = Authority::new();
    let server = TlsServer::showing(&authority.server(&NAMES));
    let folder = Folder::new();
    let file = folder.file("ca.crt", &authority.certificate);
    let url = server.tls_url();
    each_key_has_its_burst(&[("REDIS_URL", &*url), ("SSL_CERT_FILE", &*file)]).await;
}

#[tokio::test]
async fn by_default_ten_at_once() {
    let mut example = Example::start("server", &[]);
    let caller = Caller::of(&mut example).await;
    let answer = ping(&caller, "a").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some(r#""ping";q=10;w=1"#)
    );
    assert_eq!(answer.json()["pong"], true);
}
