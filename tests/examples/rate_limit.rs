//! An API with quotas.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{Method, StatusCode};

use crate::example::{Answer, Caller, Example, LONG};
use crate::support::{Server, wait_for};

const NAME: &str = "rate_limit";

async fn served(settings: &[(&str, &str)]) -> (Example, Caller) {
    let mut example = Example::start(NAME, settings);
    let caller = Caller::of(&mut example).await;
    (example, caller)
}

async fn ask(caller: &Caller, path: &str, headers: &[(&str, &str)]) -> Answer {
    caller.ask_with(Method::GET, path, headers).await
}

/// What is left of the quota for a minute.
fn left(answer: &Answer) -> u32 {
    let told = answer.header("ratelimit").expect("it is told");
    let rest = told.strip_prefix("\"minute\";r=").expect(told);
    let (left, _) = rest.split_once(';').expect(told);
    left.parse().expect(told)
}

const BOB: (&str, &str) = ("x-api-key", "bob");

#[tokio::test]
async fn a_search_costs_five_of_bobs_ten_and_ada_has_a_hundred() {
    let (_example, caller) = served(&[]).await;
    let item = ask(&caller, "/items/7", &[BOB]).await;
    assert_eq!(item.status, StatusCode::OK);
    let policy = item.header("ratelimit-policy");
    let told = r#""minute";q=10;w=60, "day";q=1000;w=86400"#;
    assert_eq!(policy, Some(told));
    assert_eq!(left(&item), 9);
    let search = ask(&caller, "/search", &[BOB]).await;
    assert_eq!((search.status, left(&search)), (StatusCode::OK, 4));
    let refused = ask(&caller, "/search", &[BOB]).await;
    assert_eq!(refused.problem(), (429, "over-quota".to_owned()));
    assert_eq!(left(&refused), 4);
    let seconds: u64 = refused
        .header("retry-after")
        .expect("told")
        .parse()
        .expect("a number");
    assert!((1..=6).contains(&seconds), "{seconds}");
    assert_eq!(
        ask(&caller, "/items/7", &[BOB]).await.status,
        StatusCode::OK
    );

    let ada = ask(&caller, "/search", &[("x-api-key", "ada")]).await;
    assert_eq!((ada.status, left(&ada)), (StatusCode::OK, 95));
    let unknown = ask(&caller, "/search", &[]).await;
    assert_eq!(unknown.problem(), (401, "no-key".to_owned()));
    assert_eq!(unknown.header("ratelimit"), None);
}

#[tokio::test]
async fn what_was_not_changed_costs_nothing() {
    let (_example, caller) = served(&[]).await;
    for _ in 0..15 {
        wait_for("all is given back", LONG, async || {
            let unchanged = ask(&caller, "/items/7", &[BOB, ("if-none-match", "\"7\"")]).await;
            assert_eq!(unchanged.status, StatusCode::NOT_MODIFIED);
            left(&unchanged) == 9
        })
        .await;
    }
}

#[tokio::test]
async fn mails_wait_for_their_turn_over_all_processes_that_share_a_server() {
    let server = Server::start();
    let url = server.url();
    let settings = [("REDIS_URL", &*url), ("MAX_WAIT_MS", "60000")];
    let ((_one, first), (_other, second)) = (served(&settings).await, served(&settings).await);
    let begun = Instant::now();
    let callers = [&first, &second, &first, &second];
    let answers = join_all(callers.map(|caller| caller.get("/mails"))).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
    // The last has three turns of 500 ms before it.
    assert!(
        begun.elapsed() >= Duration::from_millis(1_450),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn told_to_end_it_ends_well() {
    let (example, caller) = served(&[]).await;
    assert_eq!(caller.get("/healthz").await.body, "ok");
    example.terminate().await;
    example.end().await.assert_well_and_in_memory();
}
