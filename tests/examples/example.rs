//! A running example, and what it answers.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use axum::body::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long anything that is to happen may take on a busy machine. No lease ends that early where
/// its end could explain what is waited for.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A child process; killed when dropped.
pub(crate) struct Example {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

/// What an example has left when it has ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// What it printed and was not read before.
    pub(crate) output: Vec<String>,
    pub(crate) errors: String,
}

impl Example {
    /// Starts it in memory, unless `REDIS_URL` is among its settings.
    pub(crate) fn start(name: &str, settings: &[(&str, &str)]) -> Self {
        Self::start_with(name, &[], settings)
    }

    /// The same, with words on its command line.
    pub(crate) fn start_with(name: &str, words: &[&str], settings: &[(&str, &str)]) -> Self {
        let mut command = Command::new(binary(name));
        // Whoever runs the tests may have set them.
        for setting in "REDIS_URL CAP ALL MAX_WAIT_MS TTL_MS UPSTREAM CALLS RATE BURST".split(' ') {
            command.env_remove(setting);
        }
        let mut child = command
            .args(words)
            .env("PORT", "0")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the example's binary runs");
        let output = child.stdout.take().expect("it is piped");
        let output = BufReader::new(output).lines();
        Self { child, output }
    }

    /// The rest of its next line, which begins with `start`.
    pub(crate) async fn hear(&mut self, start: &str) -> String {
        let line = timeout(LONG, self.output.next_line()).await;
        let line = line.expect("a line in time").expect("text");
        if let Some(rest) = line.as_deref().and_then(|line| line.strip_prefix(start)) {
            return rest.to_owned();
        }
        panic!("not {start:?}, but {line:?}, and {:?}", self.errors().await);
    }

    /// Waits until it listens.
    pub(crate) async fn address(&mut self) -> String {
        self.hear("listening on http://").await
    }

    /// Sends SIGTERM, by the shell's own `kill`: the program of that name is missing on small
    /// systems.
    pub(crate) async fn terminate(&self) {
        let pid = self.child.id().expect("it was not waited for");
        let kill = format!("kill -TERM {pid}");
        let sent = Command::new("sh").args(["-c", &kill]).status().await;
        assert!(sent.is_ok_and(|sent| sent.success()));
    }

    /// Waits until it has ended by itself, or because it was told to.
    pub(crate) async fn end(mut self) -> Ended {
        let ended = async {
            let mut output = Vec::new();
            while let Some(line) = self.output.next_line().await.expect("text") {
                output.push(line);
            }
            let errors = self.errors().await;
            let status = self.child.wait().await.expect("it is our child");
            Ended {
                status,
                output,
                errors,
            }
        };
        timeout(LONG, ended).await.expect("it ends in time")
    }

    /// All that it has written on its standard error, to the end.
    async fn errors(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            let read = errors.read_to_string(&mut text);
            let _ = timeout(Duration::from_secs(5), read).await;
        }
        text
    }
}

impl Ended {
    /// It was no failure, and said in one line that it shares nothing.
    #[track_caller]
    pub(crate) fn assert_well_and_in_memory(&self) {
        assert!(self.status.success(), "{}: {}", self.status, self.errors);
        assert!(self.errors.starts_with("no REDIS_URL: "), "{}", self.errors);
        assert_eq!(self.errors.lines().count(), 1, "{}", self.errors);
    }
}

/// Beside the tests' own folder. Cargo has built it if it was told to run all tests.
fn binary(name: &str) -> PathBuf {
    let myself = std::env::current_exe().expect("a running test has a binary");
    let profile = myself.ancestors().nth(2).expect("it is in `deps`");
    let binary = profile.join("examples").join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("examples").join(name).with_extension("rs");
    let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    assert!(
        written(&binary) >= written(&source),
        "there is no example `{name}` as new as its source: `cargo build --all-features --examples`"
    );
    binary
}

/// An HTTP client of one example.
#[derive(Clone)]
pub(crate) struct Caller {
    address: String,
    client: Client<HttpConnector, Empty<Bytes>>,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Caller {
    pub(crate) async fn of(example: &mut Example) -> Self {
        Self::at(example.address().await)
    }

    pub(crate) fn at(address: String) -> Self {
        Self {
            address,
            client: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str) -> Answer {
        self.ask(Method::POST, path, None).await
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, tenant: Option<&str>) -> Answer {
        let bearer = tenant.map(|tenant| format!("Bearer {tenant}"));
        let headers: Vec<_> = bearer.iter().map(|it| ("authorization", &**it)).collect();
        self.ask_with(method, path, &headers).await
    }

    pub(crate) async fn ask_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Answer {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new()).expect("a valid request");
        let answered = async {
            let answer = self.client.request(request).await.expect("an answer");
            let (head, body) = answer.into_parts();
            let body = body.collect().await.expect("a whole answer").to_bytes();
            Answer {
                status: head.status,
                headers: head.headers,
                body: String::from_utf8(body.into()).expect("text"),
            }
        };
        timeout(LONG, answered).await.expect("an answer in time")
    }

    /// Asks for work that does not end, again while it is refused, until the result is dropped.
    pub(crate) fn hold(&self, method: Method, path: &str, tenant: Option<&str>) -> JoinSet<()> {
        let caller = self.clone();
        let path = format!("{path}?ms={}", 10 * LONG.as_millis());
        let tenant = tenant.map(str::to_owned);
        let mut holding = JoinSet::new();
        holding.spawn(async move {
            loop {
                caller.ask(method.clone(), &path, tenant.as_deref()).await;
            }
        });
        holding
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().expect("text"))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }

    /// The status, and the end of the problem's type.
    pub(crate) fn problem(&self) -> (u16, String) {
        let problem = self.json();
        let kind = problem["type"].as_str().expect("a type");
        let kind = kind.strip_prefix("urn:problem-type:portcullis:");
        let kind = kind.expect("a type of this crate").to_owned();
        (self.status.as_u16(), kind)
    }
}
