//! The scripts that the crate sends, without the crate: overheard once, then sent over a bare
//! connection, or over a socket in blocks.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;

use super::overheard::{INSTANCE, Words, overhear_pairs, read_answer, went_well};
use crate::support::Server;

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
        let pairs = overhear_pairs(server, "own", tasks).await;
        let token = pairs[0][1].token().to_owned();
        let pairs: Vec<_> = pairs
            .into_iter()
            .map(|pair| pair.map(|words| words.with_token("TOKEN")))
            .collect();
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
            for word in self.pairs[task][half].words() {
                command.arg(if word == "TOKEN" { &token } else { word });
            }
            command
        })
    }

    /// The same, as bytes.
    fn pair(&self, task: usize) -> [Vec<u8>; 2] {
        let token = self.draw();
        [0, 1].map(|half| {
            self.pairs[task][half].packed(|word| if word == "TOKEN" { &token } else { word })
        })
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
            let answer: redis::Value = command
                .query_async(&mut self.connection)
                .await
                .expect("answered");
            assert!(went_well(&answer), "own keys are free");
        }
    }
}

/// The same scripts on a socket: for all tasks at once in one write, and all answers are awaited.
pub(crate) struct Raw {
    stream: BufReader<TcpStream>,
    scripts: SameScripts,
}

impl Raw {
    pub(crate) fn connect(port: u16, scripts: SameScripts) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP connection");
        let stream = BufReader::with_capacity(1 << 16, stream);
        Self { stream, scripts }
    }

    /// One pair for each of `tasks` tasks.
    pub(crate) fn pairs(&mut self, tasks: usize) {
        let pairs: Vec<_> = (0..tasks).map(|task| self.scripts.pair(task)).collect();
        for half in [0, 1] {
            let block: Vec<u8> = pairs
                .iter()
                .flat_map(|pair| pair[half].iter().copied())
                .collect();
            let socket = self.stream.get_mut();
            socket.write_all(&block).expect("the server reads");
            for _ in 0..tasks {
                read_answer(&mut self.stream);
            }
        }
    }
}
