//! How a background thread takes what comes in: commands and events, many at a time.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::time::sleep;

use crate::time::Instant;

/// How many commands or events are taken at a time: large enough to spare system calls under load,
/// small enough that the server works on the first while the next are packed.
const INTAKE: usize = 64;
/// Leases are looked at this often though no timer is due: timers stand still while a machine is
/// suspended.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Intake<C, E> {
    commands: UnboundedReceiver<C>,
    events: UnboundedReceiver<E>,
    /// What was taken, to be drained before the next is.
    pub(super) asked: Vec<C>,
    pub(super) heard: Vec<E>,
    deserted: bool,
}

impl<C, E> Intake<C, E> {
    pub(super) fn new(commands: UnboundedReceiver<C>, events: UnboundedReceiver<E>) -> Self {
        Self {
            commands,
            events,
            asked: Vec::with_capacity(INTAKE),
            heard: Vec::with_capacity(INTAKE),
            deserted: false,
        }
    }

    /// Waits until something comes or a timer is due, then takes all that is there, up to a limit.
    pub(super) async fn take(&mut self, timer: Instant) {
        let rest = timer.since(Instant::now()).min(LOOK);
        tokio::select! {
            biased;
            _ = self.events.recv_many(&mut self.heard, INTAKE) => {}
            _ = self.commands.recv_many(&mut self.asked, INTAKE), if !self.deserted => {}
            () = sleep(rest) => {}
        }
        // What has come on the other channel meanwhile shares the same writes.
        while self.heard.len() < INTAKE
            && let Ok(event) = self.events.try_recv()
        {
            self.heard.push(event);
        }
        while self.asked.len() < INTAKE {
            match self.commands.try_recv() {
                Ok(command) => self.asked.push(command),
                Err(TryRecvError::Empty) => break,
                // Known before any event is looked at that came after.
                Err(TryRecvError::Disconnected) => {
                    self.deserted = true;
                    break;
                }
            }
        }
    }

    /// Whether nobody is left who could ask anything.
    pub(super) fn is_deserted(&self) -> bool {
        self.deserted
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    #[tokio::test]
    async fn all_that_was_asked_is_taken_before_it_is_known_that_nobody_is_left() {
        let (commands, asked) = unbounded_channel();
        let (events, heard) = unbounded_channel();
        let mut intake = Intake::new(asked, heard);
        for command in 0..=INTAKE {
            commands.send(command).expect("it is listened to");
        }
        drop(commands);
        events.send("an event").expect("it is listened to");
        intake.take(Instant::FAR).await;
        assert_eq!((intake.asked.len(), intake.heard.len()), (INTAKE, 1));
        assert!(!intake.is_deserted(), "one more has asked");
        intake.asked.clear();
        intake.heard.clear();
        intake.take(Instant::FAR).await;
        assert_eq!(intake.asked, [INTAKE]);
        assert!(intake.is_deserted());
    }
}
