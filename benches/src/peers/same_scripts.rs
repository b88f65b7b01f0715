//! The scripts that the crate sends, without the crate: overheard once, then sent over a bare
//! connection, or over a socket in blocks.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;

use super::gates;
use crate::monitor::Monitor;
use crate::support::Server;

/// Later than any deadline: what is sent again must not be too late.
const NEVER_LATE: &str = "9007199254740991";
/// The length of a token's part that is the same for all of a process.
pub(crate) const INSTANCE: usize = 12;

/// One call, as the words that a client sends.
#[derive(Debug, Clone)]
struct Words(Vec<String>);

/// What the crate sends to take and to give back a lock of its own, for each of many tasks.
#[derive(Debug, Clone)]
pub(crate) struct SameScripts {
    pairs: Arc<[[Words; 2]]>,
    token: String,
    drawn: Arc<AtomicU64>,
}

impl SameScripts {
    /// Listens to what the server is sent while `tasks` locks are taken and given back.
    pub(crate) async fn overhear(server: &Server, tasks: usize) -> Self {
        let mut monitor = Monitor::start(server);
        let gates = gates(&server.url());
        let mut pairs = Vec::new();
        let mut token = String::new();
        for task in 0..tasks {
            let guard = gates.mutex("own").keyed(task).lock().await;
            let guard = guard.expect("own keys are free");
            guard.release().await.expect("answered");
            let pair = [(); 2].map(|()| Words::overhear(&mut monitor));
            token = pair[1].token().to_owned();
            pairs.push(pair.map(|words| words.with_token_and_deadline("TOKEN")));
        }
        gates.shutdown(std::time::Duration::from_secs(5)).await;
        Self {
            pairs: pairs.into(),
            token,
            drawn: Arc::default(),
        }
    }

    /// Of the same form and the same process as those that were overheard, and new.
    fn draw(&self) -> String {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        let width = self.token.len() - INSTANCE;
        format!("{}{number:0width$}", &self.token[..INSTANCE])
    }

    /// The calls of one task's next pair.
    pub(super) fn commands(&self, task: usize) -> [redis::Cmd; 2] {
        let token = self.draw();
        [0, 1].map(|half| {
            let mut command = redis::Cmd::new();
            for word in &self.pairs[task][half].0 {
                command.arg(if word == "TOKEN" { &token } else { word });
            }
            command
        })
    }

    /// The same, as bytes.
    fn pair(&self, task: usize) -> [Vec<u8>; 2] {
        let token = self.draw();
        [0, 1].map(|half| self.pairs[task][half].packed(&token))
    }
}

impl Words {
    /// The next call of a script.
    fn overhear(monitor: &mut Monitor) -> Self {
        loop {
            let words = monitor.next();
            if words[0] == "EVALSHA" {
                return Self(words);
            }
        }
    }

    /// The last word that looks like a token: scripts are named by digests, which are of hexadecimal
    /// digits alone.
    fn token(&self) -> &str {
        let keys: usize = self.0[2].parse().expect("how many keys there are");
        &self.0[3 + keys]
    }

    fn with_token_and_deadline(mut self, token: &str) -> Self {
        let own = self.token().to_owned();
        for word in &mut self.0 {
            if *word == own {
                token.clone_into(word);
            } else if word.len() == 13 && word.bytes().all(|byte| byte.is_ascii_digit()) {
                NEVER_LATE.clone_into(word);
            }
        }
        self
    }

    fn packed(&self, token: &str) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", self.0.len()).into_bytes();
        for word in &self.0 {
            let word = if word == "TOKEN" { token } else { word };
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        bytes
    }
}

/// The same scripts on a multiplexed connection of the caller's runtime.
#[derive(Clone)]
pub(crate) struct Bare {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) scripts: SameScripts,
}

impl Bare {
    pub(crate) async fn pair(mut self, task: usize) {
        for command in self.scripts.commands(task) {
            let answer: Vec<i64> =
                command.query_async(&mut self.connection).await.expect("answered");
            assert_eq!(answer[0], 0, "own keys are free");
        }
    }
}

/// The same scripts on a socket: for all tasks at once in one write, and all answers are awaited.
pub(crate) struct Raw {
    stream: TcpStream,
    scripts: SameScripts,
    answers: Vec<u8>,
}

impl Raw {
    pub(crate) fn connect(port: u16, scripts: SameScripts) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP connection");
        let answers = vec![0; 1 << 16];
        Self {
            stream,
            scripts,
            answers,
        }
    }

    /// One pair for each of `tasks` tasks.
    pub(crate) fn pairs(&mut self, tasks: usize) {
        let pairs: Vec<_> = (0..tasks).map(|task| self.scripts.pair(task)).collect();
        for half in [0, 1] {
            let block: Vec<u8> = pairs.iter().flat_map(|pair| pair[half].iter().copied()).collect();
            self.stream.write_all(&block).expect("the server reads");
            let mut answered = 0;
            while answered < tasks {
                let length = self.stream.read(&mut self.answers).expect("the server answers");
                // Each answer is one array.
                let begun = self.answers[..length].iter().filter(|&&byte| byte == b'*');
                answered += begun.count();
            }
        }
    }
}
