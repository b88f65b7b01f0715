//! Routes with gates of their own.

use futures_util::future::join_all;
use http::{Method, StatusCode};

use crate::example::{Answer, Caller, Example, LONG};
use crate::support::{Server, wait_for};

const NAME: &str = "axum_per_route";

async fn served(settings: &[(&str, &str)]) -> (Example, Caller) {
    let mut example = Example::start(NAME, settings);
    let caller = Caller::of(&mut example).await;
    (example, caller)
}

/// Sends eight requests at once to all callers in turn; each is to be let in.
async fn reports_at_once(callers: &[Caller]) -> Vec<Answer> {
    let callers = callers.iter().cycle().take(8);
    join_all(callers.map(|caller| caller.get("/reports?ms=20"))).await
}

/// Judges by the intervals in the answers: at one moment ends come first.
#[track_caller]
fn assert_no_more_than_two_at_once(answers: &[Answer]) {
    let mut changes = Vec::new();
    let mut fences = Vec::new();
    for answer in answers {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let hold = answer.json();
        let number = |name: &str| hold[name].as_u64().expect("a number");
        changes.extend([(number("held_from_us"), 1), (number("held_to_us"), -1)]);
        fences.push(number("fencing_token"));
    }
    changes.sort_unstable();
    let inside = changes.iter().scan(0, |inside, (_, change)| {
        *inside += change;
        Some(*inside)
    });
    assert!(inside.max() <= Some(2), "{changes:?}");
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(
        fences.len(),
        answers.len(),
        "each has its own fencing token"
    );
}

#[tokio::test]
async fn no_more_reports_are_at_work_at_once_than_the_cap_says() {
    let (_example, caller) = served(&[("CAP", "2"), ("MAX_WAIT_MS", "60000")]).await;
    assert_no_more_than_two_at_once(&reports_at_once(&[caller]).await);
}

#[tokio::test]
async fn the_cap_counts_over_all_processes_that_share_a_server() {
    let server = Server::start();
    let url = server.url();
    let settings = [("CAP", "2"), ("MAX_WAIT_MS", "60000"), ("REDIS_URL", &url)];
    let ((_one, first), (_other, second)) = (served(&settings).await, served(&settings).await);
    assert_no_more_than_two_at_once(&reports_at_once(&[first, second]).await);
}

#[tokio::test]
async fn a_report_that_is_refused_is_a_page_that_says_when_to_come_back() {
    let (_example, caller) = served(&[("CAP", "1"), ("MAX_WAIT_MS", "0")]).await;
    let holder = caller.hold(Method::GET, "/reports", None);
    let mut refused = caller.get("/reports").await;
    wait_for("the report is refused", LONG, async || {
        refused = caller.get("/reports").await;
        refused.status == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
    assert_eq!(refused.header("content-type"), Some("text/html"));
    let seconds = refused.header("retry-after").expect("it is temporary");
    let told = format!("come back in {seconds} s");
    assert!(refused.body.contains(&told), "{}", refused.body);

    drop(holder);
    wait_for(
        "its client has gone, the next is let in",
        LONG,
        async || caller.get("/reports").await.status == StatusCode::OK,
    )
    .await;
}

#[tokio::test]
async fn withdrawals_exclude_each_other_account_by_account() {
    let (_example, caller) = served(&[]).await;
    let holder = caller.hold(Method::POST, "/accounts/7/withdraw", None);
    let is_locked = async || {
        let answer = caller.post("/accounts/7/withdraw").await;
        answer.status != StatusCode::OK && answer.problem() == (409, "locked".to_owned())
    };
    wait_for("the account is locked", LONG, is_locked).await;
    // Another spelling of the same account, and another account.
    let same = caller.post("/accounts/%37/withdraw").await;
    assert_eq!(same.problem(), (409, "locked".to_owned()));
    let other = caller.post("/accounts/8/withdraw").await;
    assert_eq!(other.status, StatusCode::OK);
    assert_eq!(other.json()["gate"], "withdraw");

    drop(holder);
    let is_free = async || !is_locked().await;
    wait_for("its client has gone, the account is free", LONG, is_free).await;
}

#[tokio::test]
async fn a_tenant_has_the_permits_of_its_plan_and_an_import_takes_three() {
    let (_example, caller) = served(&[]).await;
    let ask = async |path: &str, tenant| caller.ask(Method::POST, path, tenant).await;
    let never = ask("/imports", Some("bob")).await;
    assert_eq!(never.problem(), (400, "never-fits".to_owned()));
    assert_eq!(never.header("retry-after"), None);
    let unknown = ask("/jobs", None).await;
    assert_eq!(unknown.problem(), (401, "no-key".to_owned()));
    assert_eq!(unknown.header("www-authenticate"), Some("Bearer"));

    // Four permits: with an import and a job at work there is none for another job.
    let _import = caller.hold(Method::POST, "/imports", Some("ada"));
    let _job = caller.hold(Method::POST, "/jobs", Some("ada"));
    wait_for("all of Ada's permits are taken", LONG, async || {
        let answer = ask("/jobs", Some("ada")).await;
        answer.status != StatusCode::OK && answer.problem() == (503, "at-capacity".to_owned())
    })
    .await;
    assert_eq!(ask("/jobs", Some("bob")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_routers_cap_spares_preflights_and_health_checks() {
    let (_example, caller) = served(&[("ALL", "1")]).await;
    let _holder = caller.hold(Method::GET, "/reports", None);
    wait_for("the router is full", LONG, async || {
        let answer = caller.post("/accounts/7/withdraw").await;
        answer.header("x-refused-by") == Some("all")
    })
    .await;
    assert_eq!(caller.get("/healthz").await.body, "ok");
    let preflight = caller.ask(Method::OPTIONS, "/reports", None).await;
    assert_eq!(preflight.status, StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn a_request_of_a_wrong_method_takes_no_permit_of_its_route() {
    let (_example, caller) = served(&[("CAP", "1"), ("MAX_WAIT_MS", "0")]).await;
    let _holder = caller.hold(Method::GET, "/reports", None);
    wait_for("the reports are full", LONG, async || {
        caller.get("/reports").await.status == StatusCode::SERVICE_UNAVAILABLE
    })
    .await;
    let wrong = caller.post("/reports").await;
    assert_eq!(wrong.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn told_to_end_it_ends_well() {
    let (example, caller) = served(&[]).await;
    assert_eq!(caller.get("/healthz").await.body, "ok");
    example.terminate().await;
    example.end().await.assert_well_and_in_memory();
}
