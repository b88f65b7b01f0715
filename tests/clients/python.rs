//! Python's requests, with the `Retry` of urllib3.

use std::path::{Path, PathBuf};

use tokio::process::Command;

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

/// A folder with requests in it.
async fn packages() -> PathBuf {
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

#[tokio::test]
async fn it_comes_back_by_itself_after_retry_after() {
    let packages = packages().await;
    let route = Route::serve().await;
    let _permit = route.occupy().await;
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT, &route.url()]);
    python.env("PYTHONPATH", packages);
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    assert_eq!(run(python).await.trim(), "200 in");
    route.assert_came_back_in_time();
}
