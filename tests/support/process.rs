//! Other processes: the test binary starts itself in a role, listens to what it says, and sends it
//! signals.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::wait::wait_for;

/// How long another process may take for anything, on a busy machine.
const LIMIT: Duration = Duration::from_secs(25);
const ROLE: &str = "PORTCULLIS_TEST_ROLE";

/// Another process. Killed when dropped, and ended by its own watch if we are killed.
#[derive(Debug)]
pub(crate) struct Other {
    child: Child,
    said: Receiver<String>,
}

impl Other {
    /// Starts this binary's test of the name `test` as `role`, which it finds by [`my_role`], and
    /// waits until it says that it is ready.
    pub(crate) fn start(test: &str, role: &str, dress: impl FnOnce(&mut Command)) -> Self {
        let myself = std::env::current_exe().expect("a running test has a binary");
        let mut command = Command::new(myself);
        command
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        dress(&mut command);
        let mut child = command.spawn().expect("the test's own binary runs");
        let said = listen(child.stdout.take().expect("it is piped"));
        let other = Self { child, said };
        assert_eq!(other.hear(), "ready");
        other
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    #[track_caller]
    pub(crate) fn hear(&self) -> String {
        self.said
            .recv_timeout(LIMIT)
            .expect("the other process says something")
    }

    /// The next line, if it has said one already.
    pub(crate) fn heard(&self) -> Option<String> {
        match self.said.recv_timeout(Duration::ZERO) {
            Ok(said) => Some(said),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the other process has ended"),
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Stops it (SIGSTOP), and returns when it has stopped.
    pub(crate) async fn stop(&self) {
        self.signal("STOP");
        self.until_stopped().await;
    }

    pub(crate) async fn until_stopped(&self) {
        wait_for("it is stopped", LIMIT, async || {
            process_state(self.pid()).is_none_or(|state| state == 'T')
        })
        .await;
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// Waits until it ends by itself.
    pub(crate) async fn until_ended(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_for("it ends", LIMIT, async || {
            ended = self.child.try_wait().expect("it is our child");
            ended.is_some()
        })
        .await;
        ended.expect("it has ended")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads what it says: what follows an `@`, because the test harness writes on the same lines.
fn listen(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some((_, said)) = line.split_once('@')
                && sender.send(said.to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// The role in which this process was started, if it is another's. From here on it ends with that
/// one.
pub(crate) fn my_role() -> Option<String> {
    let role = std::env::var(ROLE).ok()?;
    // Who started us holds the other end open for as long as it lives.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    Some(role)
}

/// Tells who started us.
pub(crate) fn say(words: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "@{words}").expect("who started us listens");
    output.flush().expect("who started us listens");
}

/// By the shell's own `kill`: the program of that name is missing on small systems.
pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -{name} {pid}")])
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "can't send {name} to {pid}"
    );
}

/// The letter that Linux shows for a process: `T` for a stopped one. `None` where there is no
/// /proc.
pub(crate) fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
