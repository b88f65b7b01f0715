//! curl, with and without `--retry`.

use tokio::process::Command;

use crate::route::{Route, run};

fn curl(arguments: &[&str]) -> Command {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error"]).args(arguments);
    command
}

#[tokio::test]
async fn it_sees_the_refusal_as_the_standards_say() {
    let route = Route::serve().await;
    let _permit = route.occupy().await;
    let answer = run(curl(&["--include", &route.url()])).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let head = head.to_lowercase();
    assert!(head.starts_with("http/1.1 503 "), "{head}");
    for line in [
        "content-type: application/problem+json",
        "cache-control: no-store",
        "retry-after: 1",
    ] {
        assert!(head.lines().any(|other| other == line), "{line}: {head}");
    }
    let problem: serde_json::Value = serde_json::from_str(body).expect("the body is JSON");
    assert_eq!(problem["type"], "urn:problem-type:portcullis:at-capacity");
    assert_eq!(problem["status"], 503);
}

#[tokio::test]
async fn it_comes_back_by_itself_after_retry_after() {
    let route = Route::serve().await;
    let _permit = route.occupy().await;
    let answer = run(curl(&["--retry", "5", "--fail", &route.url()])).await;
    assert!(answer.ends_with("in"), "{answer}");
    route.assert_came_back_in_time();
}
