//! The calls that the crate sends, overheard on the server, and a socket to send their like again.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::gates;
use crate::monitor::Monitor;
use crate::support::Server;

/// Later than any deadline: what is sent again must not be too late.
const NEVER_LATE: &str = "9007199254740991";
/// The length of a token's part that is the same for all of a process.
pub(crate) const INSTANCE: usize = 12;
/// Where a call's keys begin: behind the command, the script's digest and the number of keys.
const KEYS: usize = 3;

/// One call of a script, as the words that a client sends.
#[derive(Debug, Clone)]
pub(crate) struct Words(Vec<String>);

impl Words {
    /// For tests: words with spaces between them.
    #[cfg(test)]
    pub(crate) fn of(text: &str) -> Self {
        Self(text.split(' ').map(str::to_owned).collect())
    }

    /// The next call of a script that is sent.
    pub(crate) fn next(monitor: &mut Monitor) -> Self {
        loop {
            let words = monitor.next();
            if words[0] == "EVALSHA" {
                return Self(words);
            }
        }
    }

    /// A call of the same script, with others.
    pub(crate) fn with(&self, keys: &[&str], arguments: &[&str]) -> Self {
        let count = keys.len().to_string();
        let head = [self.0[0].as_str(), &self.0[1], &count];
        Self(
            [&head, keys, arguments]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect(),
        )
    }

    pub(crate) fn words(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn keys(&self) -> &[String] {
        &self.0[KEYS..self.first_argument()]
    }

    pub(crate) fn arguments(&self) -> &[String] {
        &self.0[self.first_argument()..]
    }

    pub(crate) fn set_argument(&mut self, index: usize, value: &str) {
        let first = self.first_argument();
        value.clone_into(&mut self.0[first + index]);
    }

    fn first_argument(&self) -> usize {
        let keys: usize = self.0[2].parse().expect("how many keys there are");
        KEYS + keys
    }

    /// Of a call that acquires or ends: the token comes first.
    pub(crate) fn token(&self) -> &str {
        &self.arguments()[0]
    }

    /// The same for another token, and never too late.
    pub(crate) fn with_token(mut self, token: &str) -> Self {
        let own = self.token().to_owned();
        for word in &mut self.0 {
            if *word == own {
                token.clone_into(word);
            } else if word.len() == NEVER_LATE.len()
                && word.bytes().all(|byte| byte.is_ascii_digit())
            {
                NEVER_LATE.clone_into(word);
            }
        }
        self
    }

    /// As bytes, with each word replaced by what `instead` gives for it.
    pub(crate) fn packed<'a>(&'a self, instead: impl Fn(&'a str) -> &'a str) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", self.0.len()).into_bytes();
        for word in &self.0 {
            let word = instead(word);
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        bytes
    }
}

/// Listens to what the server is sent while `count` locks `name:0`, `name:1`, … are taken and given
/// back: for each, its acquire and its end.
pub(crate) async fn overhear_pairs(server: &Server, name: &str, count: usize) -> Vec<[Words; 2]> {
    let mut monitor = Monitor::start(server);
    let gates = gates(&server.url());
    let mut pairs = Vec::new();
    for number in 0..count {
        let guard = gates.mutex(name).keyed(number).lock().await;
        let guard = guard.expect("own keys are free");
        guard.release().await.expect("answered");
        pairs.push([Words::next(&mut monitor), Words::next(&mut monitor)]);
    }
    gates.shutdown(Duration::from_secs(5)).await;
    pairs
}

/// Listens to what the server is sent while one lock is held until it is renewed: that renewal.
pub(crate) async fn overhear_renewal(server: &Server) -> Words {
    let gates = gates(&server.url());
    let lock = gates
        .mutex("renewed")
        .ttl(Duration::from_secs(3))
        .expect("in range");
    let guard = lock.lock().await.expect("own keys are free");
    let mut monitor = Monitor::start(server);
    let renewal = Words::next(&mut monitor);
    guard.release().await.expect("answered");
    gates.shutdown(Duration::from_secs(5)).await;
    renewal
}

/// A socket on which calls are sent in blocks.
#[derive(Debug)]
pub(crate) struct Pipe(BufReader<TcpStream>);

impl Pipe {
    /// So many that neither side waits for the other after each.
    const BLOCK: usize = 256;

    pub(crate) fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port()));
        let stream = stream.expect("the server listens");
        stream.set_nodelay(true).expect("a TCP connection");
        Self(BufReader::new(stream))
    }

    /// Sends all calls, and gives their answers: integers, as the answers of all scripts are, whole.
    pub(crate) fn send(&mut self, calls: impl IntoIterator<Item = Words>) -> Vec<Vec<i64>> {
        let mut calls = calls.into_iter();
        let mut answers = Vec::new();
        loop {
            let block: Vec<_> = calls.by_ref().take(Self::BLOCK).collect();
            if block.is_empty() {
                return answers;
            }
            let bytes: Vec<u8> = block
                .iter()
                .flat_map(|call| call.packed(|word| word))
                .collect();
            self.0
                .get_mut()
                .write_all(&bytes)
                .expect("the server reads");
            answers.extend(block.iter().map(|_| read_answer(&mut self.0)));
        }
    }
}

/// An answer as a whole one: a quick one leaves out what follows from the rest. Of an acquire it is
/// the fence alone, as text; of an end it is the status.
pub(super) fn read_answer(from: &mut impl BufRead) -> Vec<i64> {
    match read_head(from) {
        ('*', length) => (0..length).map(|_| read_number(from)).collect(),
        ('$', _) => {
            let fence = read_text(from);
            vec![0, fence, fence, fence]
        }
        (_, status) => vec![status],
    }
}

/// An element of an answer: a number, as such or as text.
fn read_number(from: &mut impl BufRead) -> i64 {
    match read_head(from) {
        ('$', _) => read_text(from),
        (_, number) => number,
    }
}

fn read_head(from: &mut impl BufRead) -> (char, i64) {
    let line = read_line(from);
    let sign = line.chars().next().filter(|sign| "*$:".contains(*sign));
    let head = sign.and_then(|sign| Some((sign, line[1..].parse().ok()?)));
    head.unwrap_or_else(|| panic!("not what a script answers: {line:?}"))
}

fn read_text(from: &mut impl BufRead) -> i64 {
    let line = read_line(from);
    let number = line.parse().ok();
    number.unwrap_or_else(|| panic!("not what a script answers: {line:?}"))
}

fn read_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("the server answers");
    line.trim_end().to_owned()
}

/// Whether an answer says that the lock was free, or that it was released.
pub(super) fn went_well(answer: &redis::Value) -> bool {
    match answer {
        redis::Value::Array(numbers) => numbers.first() == Some(&redis::Value::Int(0)),
        redis::Value::BulkString(_) => true,
        other => *other == redis::Value::Int(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_apart_into_keys_and_arguments() {
        let call = Words::of("EVALSHA abc 2 main records token 5");
        assert_eq!(call.keys(), ["main", "records"]);
        assert_eq!(call.arguments(), ["token", "5"]);
        assert_eq!(call.token(), "token");
    }

    #[test]
    fn another_token_stands_wherever_the_token_stood_and_no_deadline_is_left() {
        let call = Words::of("EVALSHA abc 1 main token 10000 1796026260000999").with_token("other");
        assert_eq!(call.arguments(), ["other", "10000", NEVER_LATE]);
    }

    #[test]
    fn a_call_of_the_same_script_counts_its_keys() {
        let call = Words::of("EVALSHA abc 1 main token").with(&["roster"], &["instance", "1"]);
        assert_eq!(call.words().join(" "), "EVALSHA abc 1 roster instance 1");
    }

    #[test]
    fn a_packed_call_tells_how_many_words_follow_and_how_long_each_is() {
        let call = Words::of("EVALSHA abc 0");
        let packed = call.packed(|word| if word == "abc" { "de" } else { word });
        assert_eq!(packed, b"*3\r\n$7\r\nEVALSHA\r\n$2\r\nde\r\n$1\r\n0\r\n");
    }

    #[test]
    fn answers_are_read_one_by_one() {
        let mut from = &b"*2\r\n:1\r\n:-3\r\n*2\r\n:0\r\n$2\r\n17\r\n$1\r\n7\r\n:2\r\n*0\r\n"[..];
        assert_eq!(read_answer(&mut from), [1, -3]);
        assert_eq!(read_answer(&mut from), [0, 17]);
        assert_eq!(read_answer(&mut from), [0, 7, 7, 7]);
        assert_eq!(read_answer(&mut from), [2]);
        assert!(read_answer(&mut from).is_empty());
    }

    #[test]
    #[should_panic(expected = "NOSCRIPT")]
    fn a_refused_call_is_no_answer() {
        read_answer(&mut &b"-NOSCRIPT no matching script\r\n"[..]);
    }
}
