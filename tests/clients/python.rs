//! Python's requests, with the `Retry` of urllib3.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::route::{Route, run};

/// By default it comes back to a 503 with `Retry-After`, and to no other.
const SCRIPT: &str = "
import sys
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

session = requests.Session()
session.mount('http://', HTTPAdapter(max_retries=Retry(total=5)))
answer = session.get(sys.argv[1], timeout=30)
print(answer.status_code, answer.text)
";

/// It asks a hundred times, one after the other, and comes back as often as it is told to.
const HUNDRED: &str = "
import sys
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

session = requests.Session()
session.headers['x-api-key'] = 'me'
session.mount('http://', HTTPAdapter(max_retries=Retry(total=100)))
seen = [session.get(sys.argv[1], timeout=30).status_code for _ in range(100)]
print(seen.count(200))
";

/// A folder with requests in it; fetched by the first who asks.
async fn packages() -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let _turn = ONE_AT_A_TIME.lock().await;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-requests");
    if !folder.join("requests/adapters.py").is_file() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-compile"])
            .args([
                "--disable-pip-version-check",
                "--root-user-action",
                "ignore",
            ])
            .arg("--target")
            .arg(&folder)
            .args(["requests==2.32.3", "urllib3==2.2.3"]);
        run(pip).await;
    }
    folder
}

async fn python(script: &str, url: &str) -> String {
    let mut python = Command::new("python3");
    python.args(["-c", script, url]);
    python.env("PYTHONPATH", packages().await);
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    run(python).await.trim().to_owned()
}

#[tokio::test]
async fn it_comes_back_by_itself_after_retry_after() {
    packages().await;
    let route = Route::serve().await;
    // Held until it was refused once: it takes its time to start.
    let permit = route.occupy_for_long().await;
    let url = route.url();
    let (printed, ()) = tokio::join!(python(SCRIPT, &url), async {
        while route.visits.of(&Method::GET).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(permit);
    });
    assert_eq!(printed, "200 in");
    route.assert_came_back_in_time();
}

#[tokio::test]
async fn it_sends_a_hundred_requests_at_ten_in_a_second_by_obeying_headers_alone() {
    packages().await;
    let route = Route::serve().await;
    assert_eq!(python(HUNDRED, &route.limited_url()).await, "100");
    let visits = route.visits.of(&Method::GET);
    let refused = visits.len() - 100;
    // It is told to wait for whole seconds, in which ten come back: refused once in each.
    assert!((1..=10).contains(&refused), "{refused} were refused");
    // Ten at once, and then ten in a second.
    let took = visits[visits.len() - 1] - visits[0];
    assert!(took >= Duration::from_millis(8_500), "{took:?}");
}
