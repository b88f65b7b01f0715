//! A script in a browser that asks another origin.

use std::time::Duration;

use axum::Router;
use axum::response::Html;
use axum::routing::{get, post};
use http::Method;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::route::Route;

/// Asks until it is let in, as it is told, with a header that makes the browser ask first whether it
/// may; and tells its own origin what it saw.
const PAGE: &str = r#"<!doctype html><script type="module">
const seen = [];
for (let turn = 0; turn < 5; turn++) {
  const answer = await fetch("URL", { headers: { "x-turn": String(turn) } });
  const pause = answer.headers.get("retry-after");
  const text = await answer.text();
  seen.push({ status: answer.status, pause, text });
  if (answer.ok) break;
  await new Promise((resume) => setTimeout(resume, 1000 * Number(pause)));
}
await fetch("/seen", { method: "POST", body: JSON.stringify(seen) });
</script>"#;

#[tokio::test]
#[ignore = "needs Chromium: scripts/test --browser"]
async fn a_script_of_another_origin_reads_retry_after_and_comes_back() {
    let route = Route::serve().await;
    let page = PAGE.replace("URL", &route.url());
    let (sender, mut seen) = mpsc::unbounded_channel();
    let own = Router::new()
        .route("/", get(async move || Html(page)))
        .route(
            "/seen",
            post(async move |body: String| drop(sender.send(body))),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address");
    tokio::spawn(async move { axum::serve(listener, own).await });

    // Held until the browser was refused once: it takes its time to start.
    let permit = route.occupy_for_long().await;
    let profile = std::env::temp_dir().join(format!("portcullis-browser-{}", address.port()));
    let mut browser = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("http://{address}/"))
        // It complains of much that a machine without a desktop lacks.
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("chromium is installed: scripts/test --browser does it");
    let limit = Duration::from_secs(60);
    let refused = async {
        while route.visits.of(&Method::GET).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(permit);
        seen.recv().await.expect("the page tells what it saw")
    };
    let told = tokio::time::timeout(limit, refused).await.expect("in time");
    let _ = browser.kill().await;
    let _ = std::fs::remove_dir_all(profile);

    let seen: Vec<serde_json::Value> = serde_json::from_str(&told).expect("JSON");
    assert_eq!(seen.last().expect("it asked")["status"], 200, "{told}");
    assert_eq!(seen.last().expect("it asked")["text"], "in", "{told}");
    assert_eq!(seen[0]["status"], 503, "{told}");
    assert!(seen[0]["pause"].is_string(), "{told}");
    // The preflights were answered outside of the gate.
    assert!(!route.visits.of(&Method::OPTIONS).is_empty());
    route.assert_came_back_in_time();
}
