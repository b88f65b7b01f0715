//! What the server itself did, read from MONITOR: who entered a queue, who left it, who was
//! granted, and past whom.
//!
//! The public surface does not say when a wait has reached the queue, so the order of waits can
//! only be judged with the server's help. A grant and its client's hold are matched by the fence.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::now;

/// The first characters of a token name its process.
const INSTANCE: usize = 12;

/// How long the mark of a suspect stands, in ns, and a little more for the way here.
const MARK: u64 = 3_500_000_000;

/// By how much `latest` may be rounded up, in us.
const ROUNDED: u64 = 1000;

/// The longest pause between two commands of a server in use, in s.
const SLEPT: u64 = 20;

/// How many commands are kept for who has to find out what went wrong.
const RECENT: usize = 600;

/// One gate, as the server's commands show it.
#[derive(Debug, Default)]
struct Gate {
    queue: BTreeSet<(u64, String)>,
    places: HashMap<String, Place>,
    fence: u64,
    /// Who left the queue last: its own grant follows.
    leaving: Option<String>,
}

#[derive(Debug, Clone)]
struct Place {
    ticket: u64,
    /// When the place was known here.
    known: u64,
    /// It was out of the queue, or passed over: its order is no longer promised.
    disturbed: bool,
    /// Its process surely knows the ticket, and so has to bring it along.
    told: bool,
}

/// The last acquire of a token: of each, one is under way at a time.
#[derive(Debug)]
struct Asked {
    /// The connection that it came on.
    from: String,
    /// When its process stops waiting for the answer, or a little earlier: by the server's clock, in
    /// us.
    latest: u64,
}

/// A grant to a waiter that had stood in the queue undisturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) fence: u64,
    /// When its place in the queue was known.
    pub(crate) queued: u64,
}

/// When a lease was lengthened, and until when: both by the server's clock, in us.
pub(crate) type Lease = Vec<(u64, u64)>;

/// The state of all gates, from the lines of MONITOR.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    gates: HashMap<String, Gate>,
    /// By hash tag: the processes that are passed over.
    suspects: HashMap<String, HashSet<String>>,
    served: HashMap<String, Vec<Served>>,
    /// Who holds each string key.
    holders: HashMap<String, String>,
    leases: HashMap<String, Lease>,
    /// The token of each grant, by gate and fence.
    granted: HashMap<(String, u64), String>,
    /// A mutex' grant, of which the next line tells whether it was pushed.
    unsure: Option<(String, u64, String)>,
    problems: Vec<String>,
    /// Whether a place that was lost must be taken up again by whoever was told its ticket.
    strict: bool,
    /// By token, where that is judged.
    asked: HashMap<String, Asked>,
    grants: u64,
    reentries: u64,
    /// How many of these came back with another ticket, and may never have heard of the first.
    untold: u64,
    gaps: u64,
    /// The last commands, to be told with the first problem.
    recent: VecDeque<String>,
    /// The server's clock in the last line, in s.
    time: u64,
    /// Until when marks of suspects may stand that nobody saw being made.
    blind: u64,
    /// Since when, by the server's clock in us, all grants were seen; `None` until the next line
    /// tells the time.
    seen_since: Option<u64>,
}

impl Trace {
    pub(crate) fn new(strict: bool) -> Self {
        Self {
            strict,
            seen_since: Some(0),
            ..Self::default()
        }
    }

    /// Nobody looked for a while, or the server lost its data: what was known of the queues is
    /// worth nothing.
    fn forget(&mut self, now: u64) {
        self.gates.clear();
        self.suspects.clear();
        self.holders.clear();
        self.leases.clear();
        self.asked.clear();
        self.gaps += 1;
        self.blind = now + MARK;
        self.seen_since = None;
    }

    fn line(&mut self, line: &str, now: u64) {
        let Some((head, rest)) = line.split_once("] \"") else {
            return;
        };
        // Nothing for that long means that the machine slept, and what the server kept has expired
        // meanwhile.
        let time = head
            .trim_start_matches('+')
            .split('.')
            .next()
            .map_or(0, number);
        if self.time > 0 && time > self.time + SLEPT {
            self.forget(now);
        }
        self.time = time;
        // Most lines only read: they are passed over before they cost anything.
        let verb = rest.split('"').next().unwrap_or_default();
        let writes = ["ZADD", "ZREM", "HSET", "SET", "PEXPIRE", "PUBLISH"].contains(&verb);
        let calls = self.strict && ["EVALSHA", "EVAL"].contains(&verb);
        if !writes && !calls && !verb.eq_ignore_ascii_case("FLUSHALL") {
            return;
        }
        let words: Vec<&str> = rest
            .trim_end()
            .trim_end_matches('"')
            .split("\" \"")
            .collect();
        if !calls {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(rest.chars().take(300).collect());
        }
        let us = number(
            &head
                .trim_start_matches('+')
                .split(' ')
                .next()
                .unwrap_or_default()
                .replace('.', ""),
        );
        self.seen_since.get_or_insert(us);
        if !head.ends_with("lua") {
            if words[0].eq_ignore_ascii_case("FLUSHALL") {
                self.forget(now);
            }
            if calls {
                let from = head.split_once(' ').map_or("", |(_, from)| from);
                self.called(from, &words, us);
            }
            return;
        }
        if let Some((gate, fence, token)) = self.unsure.take() {
            // A claim is named in the records next, by the same script; a whole lease is not.
            let pushed =
                matches!(words.as_slice(), ["HSET", _, "S", holder, ..] if *holder == token);
            self.grant(&gate, fence, &token, pushed, now);
        }
        match words.as_slice() {
            ["ZADD", key, ticket, token] => {
                if let Some(gate) = gate_of(key, 'q') {
                    self.enter(gate, number(ticket), token, now);
                } else if let (Some(tag), Some(suspect)) =
                    (key.strip_suffix(":roster"), token.strip_prefix('?'))
                {
                    self.suspects
                        .entry(tag.to_owned())
                        .or_default()
                        .insert(suspect.to_owned());
                } else if !key.ends_with(":roster") {
                    self.lengthen(token, us, 1000 * number(ticket));
                }
            }
            ["SET", key, value, "PX", ms] if !key.ends_with(":clock") => {
                let (token, fence) = value.split_once(' ').unwrap_or((value, ""));
                self.holders.insert((*key).to_owned(), token.to_owned());
                self.lengthen(token, us, us + 1000 * number(ms));
                if let Some(gate) = gate_of_main(key)
                    && !fence.is_empty()
                {
                    self.unsure = Some((gate, number(fence), token.to_owned()));
                }
            }
            ["PEXPIRE", key, ms] => {
                if let Some(token) = self.holders.get(*key).cloned() {
                    self.lengthen(&token, us, us + 1000 * number(ms));
                }
            }
            ["ZADD", _, "XX", "GT", end, token] => self.lengthen(token, us, 1000 * number(end)),
            ["ZREM", key, token] => {
                if let Some(gate) = gate_of(key, 'q') {
                    self.leave(&gate, token);
                } else if let (Some(tag), Some(suspect)) =
                    (key.strip_suffix(":roster"), token.strip_prefix('?'))
                {
                    self.suspects
                        .entry(tag.to_owned())
                        .or_default()
                        .remove(suspect);
                }
            }
            ["HSET", key, .., token, record]
                if record.starts_with("1h ") || record.starts_with("1c ") =>
            {
                let fence = record.rsplit(' ').next().map_or(0, number);
                if let Some(gate) = gate_of(key, 'r') {
                    self.grant(&gate, fence, token, record.starts_with("1c "), now);
                }
            }
            _ => {}
        }
    }

    /// A ticket is learnt from an answer, which may be lost. It surely was not if the token's next
    /// acquire offers the ticket, or comes so soon that its process can't have stopped waiting for
    /// the answer; on the same connection, since one that breaks takes its answers along.
    fn called(&mut self, from: &str, words: &[&str], us: u64) {
        let [_, _, _, _, queue, .., token, _, latest, terms] = words else {
            return;
        };
        let Some(offered) = ticket_in(terms) else {
            return;
        };
        let latest = number(latest);
        let answered = self.asked.get(*token).is_some_and(|last| {
            // The same once more is the script's text, for a server that did not know it.
            last.from == from && last.latest != latest && us + ROUNDED < last.latest
        });
        let from = from.to_owned();
        self.asked
            .insert((*token).to_owned(), Asked { from, latest });
        let place = gate_of(queue, 'q')
            .and_then(|gate| self.gates.get_mut(&gate))
            .and_then(|gate| gate.places.get_mut(*token));
        if let Some(place) = place {
            place.told |= offered > 0 || answered;
        }
    }

    fn enter(&mut self, name: String, ticket: u64, token: &str, now: u64) {
        let strict = self.strict;
        let gate = self.gates.entry(name).or_default();
        gate.queue.insert((ticket, token.to_owned()));
        let Some(place) = gate.places.get_mut(token) else {
            let place = Place {
                ticket,
                known: now,
                disturbed: false,
                told: false,
            };
            gate.places.insert(token.to_owned(), place);
            return;
        };
        self.reentries += 1;
        place.disturbed = true;
        let first = std::mem::replace(&mut place.ticket, ticket);
        if !strict || first == ticket {
            return;
        }
        if place.told {
            self.problems.push(format!(
                "{token} came back with ticket {ticket} in place of {first}"
            ));
        } else {
            self.untold += 1;
        }
    }

    fn leave(&mut self, gate: &str, token: &str) {
        let gate = self.gates.entry(gate.to_owned()).or_default();
        if let Some(place) = gate.places.get(token) {
            gate.queue.remove(&(place.ticket, token.to_owned()));
        }
        gate.leaving = Some(token.to_owned());
    }

    /// A grant is told of by what is written with it: a mutex' value, a record, or both. A renewed
    /// claim writes its record again.
    fn grant(&mut self, name: &str, fence: u64, token: &str, pushed: bool, now: u64) {
        let known = self
            .granted
            .insert((name.to_owned(), fence), token.to_owned());
        // A renewal may write the record of a grant that nobody saw.
        let unseen = self.seen_since.is_some_and(|since| fence < since);
        if unseen || known.is_some_and(|known| known == token) {
            return;
        }
        self.grants += 1;
        let tag = name.split_inclusive('}').next().unwrap_or_default();
        let suspects = self.suspects.get(tag);
        let gate = self.gates.entry(name.to_owned()).or_default();
        if fence <= gate.fence {
            self.problems.push(format!(
                "{name}: fence {fence} was drawn after {}",
                gate.fence
            ));
        }
        gate.fence = fence;
        // Pushed, it stands in the queue still; granted in its own answer, it has just left it.
        let waited = pushed || gate.leaving.take().is_some_and(|leaving| leaving == token);
        let place = gate.places.get(token).filter(|_| waited);
        if waited && place.is_none() {
            // It entered while nobody looked.
            return;
        }
        // Who never waited stands behind all that do.
        let (mine, undisturbed) = place.map_or((u64::MAX, None), |place| {
            (place.ticket, (!place.disturbed).then_some(place.known))
        });
        if let Some(queued) = undisturbed {
            self.served
                .entry(name.to_owned())
                .or_default()
                .push(Served { fence, queued });
        }
        let passed: Vec<(u64, String)> = gate
            .queue
            .range(..(mine, String::new()))
            .filter(|(_, other)| other != token)
            .cloned()
            .collect();
        for (ticket, other) in passed {
            let marked = other.get(..INSTANCE).is_some_and(|instance| {
                suspects.is_some_and(|suspects| suspects.contains(instance))
            });
            let suspect = marked || now < self.blind;
            if !suspect {
                if self.problems.is_empty() {
                    let here = self
                        .recent
                        .iter()
                        .filter(|line| line.contains(tag) || line.starts_with("FLUSH"));
                    let lines: Vec<&str> = here.map(String::as_str).collect();
                    self.problems.push(lines.join("\n"));
                }
                self.problems.push(format!(
                    "{name}: {token} with ticket {mine} was granted past {other} with ticket {ticket}"
                ));
            }
            if let Some(place) = gate.places.get_mut(&other) {
                place.disturbed = true;
            }
        }
    }

    fn lengthen(&mut self, token: &str, at: u64, end: u64) {
        self.leases
            .entry(token.to_owned())
            .or_default()
            .push((at, end));
    }

    /// How the lease of a grant was lengthened, as far as it was seen.
    pub(crate) fn lease(&self, name: &str, fence: u64) -> Option<&Lease> {
        self.leases
            .get(self.granted.get(&(name.to_owned(), fence))?)
    }

    /// The whole name of a gate, from the end of it.
    pub(crate) fn name_of(&self, gate: &str) -> Option<String> {
        self.granted
            .keys()
            .find(|(name, _)| name.ends_with(gate))
            .map(|(name, _)| name.clone())
    }

    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// How many grants' order can be judged with their clients' help.
    fn undisturbed(&self) -> usize {
        self.served.values().map(Vec::len).sum()
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "server: {} grants, {} in undisturbed order, {} re-entries ({} untold), {} gaps",
            self.grants,
            self.undisturbed(),
            self.reentries,
            self.untold,
            self.gaps
        )
    }

    /// What was granted in order at each gate, by a part of its key.
    pub(crate) fn served(&self, gate: &str) -> Vec<Served> {
        self.served
            .iter()
            .filter(|(name, _)| name.ends_with(gate))
            .flat_map(|(_, served)| served.clone())
            .collect()
    }
}

/// The gate to which a queue (`q`) or the records (`r`) belong: "p:{tag}:mq:name" is
/// "p:{tag}m:name".
fn gate_of(key: &str, part: char) -> Option<String> {
    let (tag, rest) = key.split_once("}:")?;
    let mut letters = rest.chars();
    let kind = letters.next()?;
    (letters.next()? == part && letters.next()? == ':')
        .then(|| format!("{tag}}}{kind}:{}", letters.as_str()))
}

/// The ticket that an acquire offers, from the last of its arguments: "<weight> <limit> <wait_ms>
/// <max_waiters> <ticket> <pushed> <kept>". Nothing of other calls.
fn ticket_in(terms: &str) -> Option<u64> {
    let terms: Result<Vec<u64>, _> = terms.split(' ').map(str::parse).collect();
    let [_, _, _, _, ticket, _, _] = *terms.ok()? else {
        return None;
    };
    Some(ticket)
}

/// Of a mutex' own key.
fn gate_of_main(key: &str) -> Option<String> {
    let (tag, rest) = key.split_once("}:")?;
    rest.starts_with("m:").then(|| format!("{tag}}}{rest}"))
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| text.parse::<f64>().map_or(0, |number| number as u64))
}

/// Follows a server until it is dropped.
#[derive(Debug)]
pub(crate) struct Observer {
    trace: Arc<Mutex<Trace>>,
    end: Arc<AtomicBool>,
    hurry: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    pub(crate) fn start(port: u16, strict: bool) -> Self {
        Self::follow(port, Trace::new(strict))
    }

    /// Follows one that others use already.
    pub(crate) fn join(port: u16) -> Self {
        let mut trace = Trace::new(false);
        trace.forget(now());
        Self::follow(port, trace)
    }

    fn follow(port: u16, trace: Trace) -> Self {
        let trace = Arc::new(Mutex::new(trace));
        let end = Arc::new(AtomicBool::new(false));
        let hurry = Arc::new(AtomicBool::new(false));
        let (written, ended) = (Arc::clone(&trace), Arc::clone(&end));
        let hurried = Arc::clone(&hurry);
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let _ = follow(port, &written, &ended, &hurried);
                // At the end, what was seen is judged.
                if !ended.load(Ordering::Relaxed) {
                    lock(&written).forget(now());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self {
            trace,
            end,
            hurry,
            thread: Some(thread),
        }
    }

    /// What was seen so far, of a server that goes on. By how much it has lengthened leases
    /// meanwhile may not have been heard yet, so nothing is said of that.
    pub(crate) fn break_off(self) -> Trace {
        self.hurry.store(true, Ordering::Relaxed);
        let mut trace = self.finish();
        trace.leases.clear();
        trace
    }

    /// What was seen, when it was enough.
    pub(crate) fn finish(mut self) -> Trace {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the observer does not panic");
        }
        std::mem::take(&mut *lock(&self.trace))
    }
}

fn lock(trace: &Mutex<Trace>) -> std::sync::MutexGuard<'_, Trace> {
    trace.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `PORTCULLIS_CHAOS_TRACE` names a file for all that MONITOR says: large, and the last word on
/// what the server did.
fn record() -> Option<std::fs::File> {
    let path = std::env::var_os("PORTCULLIS_CHAOS_TRACE")?;
    std::fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .ok()
}

fn follow(
    port: u16,
    trace: &Mutex<Trace>,
    end: &AtomicBool,
    hurry: &AtomicBool,
) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    socket.write_all(b"MONITOR\r\n")?;
    let mut reader = BufReader::with_capacity(1 << 18, socket);
    let mut line = Vec::new();
    let mut record = record();
    loop {
        match reader.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) if line.ends_with(b"\n") => {
                if let Some(file) = &mut record {
                    file.write_all(&line)?;
                }
                lock(trace).line(&String::from_utf8_lossy(&line), now());
                line.clear();
                if hurry.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
            Ok(_) => {}
            // What was read so far stays in the line. At the end, what the server had to say has
            // been heard.
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) =>
            {
                if end.load(Ordering::Relaxed) {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "AAAAAAAAAAAA-1";
    const TWO: &str = "BBBBBBBBBBBB-2";

    fn trace(strict: bool, commands: &[&str]) -> Trace {
        let mut trace = Trace::new(strict);
        // The last one says nothing, and shows that what came before it is whole.
        for (time, command) in commands.iter().chain(&["PUBLISH a b"]).enumerate() {
            trace.line(&scripted(command), time as u64);
        }
        trace
    }

    /// As a script says it.
    fn scripted(command: &str) -> String {
        let words: Vec<String> = command
            .split(' ')
            .map(|word| {
                let word = word.replace("ONE", ONE).replace("TWO", TWO);
                format!("\"{}\"", word.replace('_', " "))
            })
            .collect();
        format!("+1700000000.000001 [0 lua] {}\r\n", words.join(" "))
    }

    fn told(trace: &Trace) -> bool {
        !trace.problems().is_empty()
    }

    const ENTER_ONE: &str = "ZADD p:{t}:mq:a 10 ONE";
    const ENTER_TWO: &str = "ZADD p:{t}:mq:a 20 TWO";
    const GRANT_ONE: &str = "HSET p:{t}:mr:a S ONE ONE 1c_1_1_300_30";
    const GRANT_TWO: &str = "SET p:{t}:m:a TWO_40 PX 300";
    const PUSH_TWO: &str = "HSET p:{t}:mr:a S TWO TWO 1c_1_1_300_40";
    const LEAVE_ONE: &str = "ZREM p:{t}:mq:a ONE";
    const LEAVE_TWO: &str = "ZREM p:{t}:mq:a TWO";

    #[test]
    fn grants_in_order_are_served() {
        let trace = trace(
            true,
            &[
                ENTER_ONE, ENTER_TWO, GRANT_ONE, LEAVE_ONE, LEAVE_TWO, GRANT_TWO,
            ],
        );
        assert!(trace.problems().is_empty(), "{:?}", trace.problems());
        assert_eq!(
            trace.served(":a"),
            [
                Served {
                    fence: 30,
                    queued: 0
                },
                Served {
                    fence: 40,
                    queued: 1
                }
            ]
        );
    }

    #[test]
    fn a_push_is_told_by_the_name_in_the_records_alone() {
        // One whose name looks like the beginning of a record.
        let hand_over = [
            "ZADD p:{t}:mq:a 10 1cAAAAAAAAAA-1",
            ENTER_TWO,
            "SET p:{t}:m:a 1cAAAAAAAAAA-1_30 PX 300",
            "HSET p:{t}:mr:a S 1cAAAAAAAAAA-1",
            "ZREM p:{t}:mq:a 1cAAAAAAAAAA-1",
            GRANT_TWO,
            "HSET p:{t}:mr:a S TWO",
        ];
        let trace = trace(true, &hand_over);
        assert!(trace.problems().is_empty(), "{:?}", trace.problems());
        assert_eq!(trace.grants, 2);
        assert_eq!(trace.served(":a").len(), 2);
    }

    #[test]
    fn an_overtaker_is_seen_whether_it_waited_or_not() {
        for overtaking in [
            &[ENTER_ONE, ENTER_TWO, PUSH_TWO][..],
            &[ENTER_ONE, ENTER_TWO, LEAVE_TWO, GRANT_TWO],
            &[ENTER_ONE, GRANT_TWO],
        ] {
            assert!(told(&trace(true, overtaking)), "{overtaking:?}");
        }
        // It may have entered before the first that was seen.
        assert!(!told(&trace(true, &[ENTER_ONE, PUSH_TWO])));
    }

    #[test]
    fn a_suspect_may_be_passed_until_it_speaks() {
        let marked = [
            ENTER_ONE,
            ENTER_TWO,
            "ZADD p:{t}:roster 99 ?AAAAAAAAAAAA",
            LEAVE_TWO,
            GRANT_TWO,
        ];
        assert!(trace(true, &marked).problems().is_empty());
        let spoken = [
            ENTER_ONE,
            ENTER_TWO,
            "ZADD p:{t}:roster 99 ?AAAAAAAAAAAA",
            "ZREM p:{t}:roster ?AAAAAAAAAAAA",
            LEAVE_TWO,
            GRANT_TWO,
        ];
        assert!(told(&trace(true, &spoken)));
    }

    /// Asks for ONE, enters it with ticket 10 and drops it; asks again for `second`, and enters it with
    /// ticket 50.
    fn back_at_the_end(strict: bool, second: &str) -> Trace {
        let mut trace = Trace::new(strict);
        // Its answer is waited for until 500 ms.
        let first = "000.0 1 500 0";
        for (ask, then) in [
            (first, &[ENTER_ONE, LEAVE_ONE][..]),
            (second, &["ZADD p:{t}:mq:a 50 ONE"]),
        ] {
            trace.line(&asking(ask), 0);
            for command in then {
                trace.line(&scripted(command), 0);
            }
        }
        trace
    }

    /// Its time in ms, its connection, until when its answer is waited for in ms, and the ticket.
    fn asking(ask: &str) -> String {
        let [time, from, latest, ticket] = *ask.split(' ').collect::<Vec<_>>() else {
            panic!("{ask}: four words");
        };
        let time = time.replace('.', "");
        format!(
            "+1700000000.{time:0<6} [0 127.0.0.1:{from}] \"EVALSHA\" \"sha\" \"5\" \"p:{{t}}:m:a\" \"p:{{t}}:mq:a\" \
             \"p:{{t}}:mr:a\" \"p:{{t}}:roster\" \"p:{{t}}:clock\" \"{ONE}\" \"300\" \"1700000000{latest}999\" \
             \"1 1 86400000 10000 {ticket} 1 0\"\r\n"
        )
    }

    #[test]
    fn a_place_that_its_process_was_told_of_is_taken_up_again() {
        let back = [ENTER_ONE, LEAVE_ONE, ENTER_ONE];
        assert!(trace(true, &back).problems().is_empty());
        // Asked for again while the first answer was waited for still: that had come.
        for soon in ["050.0 1 550 0", "498.9 1 998 0"] {
            assert!(told(&back_at_the_end(true, soon)), "{soon}");
            assert!(back_at_the_end(false, soon).problems().is_empty());
        }
        // However late, if it knows what it does not get.
        for known in ["520.0 1 999 10", "520.0 2 999 10"] {
            assert!(told(&back_at_the_end(true, known)), "{known}");
        }
    }

    #[test]
    fn who_may_have_missed_the_answer_with_its_ticket_has_lost_no_place() {
        for missed in [
            // It had waited for it until then.
            "500.0 1 999 0",
            // With its connection.
            "050.0 2 550 0",
            // It was the text that was asked for.
            "050.0 1 500 0",
        ] {
            let trace = back_at_the_end(true, missed);
            assert!(
                trace.problems().is_empty(),
                "{missed}: {:?}",
                trace.problems()
            );
            assert_eq!(trace.untold, 1);
        }
    }

    #[test]
    fn who_was_told_later_is_not_excused_for_what_was_lost_before() {
        let mut trace = back_at_the_end(true, "520.0 1 960 0");
        // Asks as a waiter does, with and without the ticket that it knows by now.
        trace.line(&asking("600.0 1 999 0"), 0);
        trace.line(&scripted(LEAVE_ONE), 0);
        trace.line(&scripted("ZADD p:{t}:mq:a 50 ONE"), 0);
        assert!(trace.problems().is_empty(), "{:?}", trace.problems());
        trace.line(&scripted(LEAVE_ONE), 0);
        trace.line(&scripted("ZADD p:{t}:mq:a 90 ONE"), 0);
        assert!(told(&trace));
    }

    #[test]
    fn a_grant_that_is_written_twice_is_one() {
        let twice = [
            ENTER_ONE,
            ENTER_TWO,
            "SET p:{t}:m:a ONE_30 PX 300",
            GRANT_ONE,
            LEAVE_ONE,
            LEAVE_TWO,
            GRANT_TWO,
        ];
        let trace = trace(true, &twice);
        assert!(trace.problems().is_empty(), "{:?}", trace.problems());
        assert_eq!(trace.grants, 2);
    }

    #[test]
    fn a_renewal_of_what_nobody_saw_granted_is_no_falling_fence() {
        let mut joined = Trace::new(true);
        joined.forget(0);
        let line = |command: &str| {
            let words: Vec<String> = command
                .split(' ')
                .map(|word| format!("\"{word}\""))
                .collect();
            let words = words.join(" ").replace('_', " ");
            format!("+1700000000.000001 [0 lua] {words}\r\n")
        };
        joined.line(
            &line("HSET p:{t}:sr:a S 2 TWO 1h_1_2_300_1700000000000040"),
            1,
        );
        joined.line(
            &line("HSET p:{t}:sr:a S 2 ONE 1h_1_2_300_1600000000000030"),
            2,
        );
        assert!(joined.problems().is_empty(), "{:?}", joined.problems());
        joined.line(
            &line("HSET p:{t}:sr:a S 2 ONE 1h_1_2_300_1700000000000030"),
            3,
        );
        assert!(told(&joined));
    }

    #[test]
    fn a_fence_that_falls_is_seen() {
        let falling = [GRANT_TWO, GRANT_ONE];
        assert!(told(&trace(true, &falling)));
    }
}
