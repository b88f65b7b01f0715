//! Other processes of a fleet: this program again, each with a role.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::groups::ROLES;

/// The first argument of a child; its role and its task in JSON follow.
pub(crate) const ROLE: &str = "child";

/// What a child does: it is given its task, gets ready, calls what waits for all others to be ready,
/// and gives what it has seen.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) name: &'static str,
    pub(crate) play: fn(task: &str, all_ready: &mut dyn FnMut()) -> String,
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [name, task] = arguments else {
        eprintln!("a child has a role and a task");
        return ExitCode::FAILURE;
    };
    let role = ROLES
        .iter()
        .find(|role| role.name == name)
        .expect("a role that there is");
    let seen = (role.play)(task, &mut || {
        println!("ready");
        std::io::stdout().flush().expect("the parent reads");
        std::io::stdin()
            .read_line(&mut String::new())
            .expect("the parent says when to begin");
    });
    println!("{seen}");
    ExitCode::SUCCESS
}

/// Tells the parent a line before this child is ready: an address, for instance.
pub(crate) fn tell(line: &str) {
    println!("{line}");
}

/// A child that is ready.
#[derive(Debug)]
pub(crate) struct Ready {
    child: Child,
    /// What it told before that.
    pub(crate) told: Vec<String>,
    /// A line says that all are ready, its end that it is to stop.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Ready {
    /// Starts a child and waits until it is ready.
    pub(crate) fn start(role: &str, task: &impl Serialize) -> Self {
        let task = serde_json::to_string(task).expect("a task is plain data");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([ROLE, role, &task])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let orders = child.stdin.take();
        let mut answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut told = Vec::new();
        loop {
            let mut line = String::new();
            answers
                .read_line(&mut line)
                .expect("a child says that it is ready");
            match line.strip_suffix('\n') {
                Some("ready") => break,
                Some(other) => told.push(other.to_owned()),
                None => panic!("a child has failed"),
            }
        }
        Self {
            child,
            told,
            orders,
            answers,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn begin(&mut self) {
        let orders = self.orders.as_mut().expect("it has not been told to stop");
        orders.write_all(b"\n").expect("a child waits for it");
    }

    /// Tells a child that waits for [`stop`] to come to its end.
    pub(crate) fn stop(&mut self) {
        self.orders = None;
    }

    /// Waits until it has ended, and gives what it has seen.
    pub(crate) fn end<T: DeserializeOwned>(mut self) -> T {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .expect("a child says what it has seen");
        assert!(
            self.child.wait().expect("our child").success(),
            "a child has failed"
        );
        serde_json::from_str(&line).expect("what a child has seen is plain data")
    }
}

/// Within a child: waits until it is told to stop, or its parent is gone.
pub(crate) async fn stop() {
    let read = || std::io::stdin().read_line(&mut String::new());
    let read = tokio::task::spawn_blocking(read).await.expect("no panic");
    assert_eq!(
        read.expect("the parent holds the other end"),
        0,
        "no further order is known"
    );
}

/// Starts a child for each task, lets all begin at once and all stop when `meanwhile` has returned.
/// Gives what they have seen, and what `meanwhile` has.
pub(crate) fn fleet<T: DeserializeOwned, M>(
    role: &str,
    tasks: &[impl Serialize],
    meanwhile: impl FnOnce(&[Ready]) -> M,
) -> (Vec<T>, M) {
    let mut children: Vec<_> = tasks.iter().map(|task| Ready::start(role, task)).collect();
    for child in &mut children {
        child.begin();
    }
    let seen = meanwhile(&children);
    for child in &mut children {
        child.stop();
    }
    (children.into_iter().map(Ready::end).collect(), seen)
}
