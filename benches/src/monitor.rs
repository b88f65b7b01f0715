//! What a server is sent: it tells all of it to those who ask it to.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use redis::ConnectionLike;

use super::support::Server;

/// A connection on which the server tells all that it is sent.
#[derive(Debug)]
pub(crate) struct Monitor(BufReader<TcpStream>);

impl Monitor {
    pub(crate) fn start(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
        stream.write_all(b"MONITOR\r\n").expect("it reads");
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line(), "+OK");
        monitor
    }

    /// The words of the next command that a client sends.
    pub(crate) fn next(&mut self) -> Vec<String> {
        loop {
            let line = self.line();
            if let Some(words) = words(&line) {
                return words;
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("the server goes on");
        line.truncate(line.trim_end().len());
        line
    }
}

/// All commands that clients send to `server` during `time`.
pub(crate) fn overhear(server: &Server, time: Duration) -> Vec<Vec<String>> {
    const OVER: &str = "overheard";
    let mut over = redis::cmd("ECHO");
    over.arg(OVER);
    // Before it is listened to, since it introduces itself.
    let mut connection = server.connection();
    let mut monitor = Monitor::start(server);
    thread::sleep(time);
    connection.req_command(&over).expect("ECHO is answered");
    let sent = std::iter::repeat_with(|| monitor.next());
    sent.take_while(|words| words[1..] != [OVER]).collect()
}

/// The words of a command in a line of MONITOR; `None` if a script called it. A word with quotation
/// marks of its own comes apart, as those of `SCRIPT LOAD` do.
fn words(line: &str) -> Option<Vec<String>> {
    let (from, command) = line.split_once("] ")?;
    let words = || command.split('"').skip(1).step_by(2).map(str::to_owned);
    (!from.ends_with(" lua")).then(|| words().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_clients_are_told_from_those_of_scripts() {
        let client = r#"+1700000000.123456 [0 127.0.0.1:40000] "EVALSHA" "abc" "1" "{a}""#;
        assert_eq!(
            words(client).expect("of a client"),
            ["EVALSHA", "abc", "1", "{a}"]
        );
        assert_eq!(words(r#"+1700000000.123456 [0 lua] "GET" "{a}""#), None);
    }
}
