//! What is in flight between the processes and the server.

use crate::config::Config;
use crate::state::{Fence, Mark, TOKENS, Time, Token};

/// A command of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// The one script that enqueues, grants, reports and re-enters.
    Acquire {
        /// Whose.
        token: Token,
        /// Server time after which it creates nothing.
        latest: Time,
        /// The ticket to re-enter with; 0 is none.
        ticket: Fence,
        /// Whether it was sent before.
        rerun: bool,
    },
    /// Release and cancel.
    End {
        /// Whose.
        token: Token,
        /// Server time until which an acquire must create nothing.
        tombstone: Option<Time>,
    },
    /// Renewal by token and fence; empty, it is the heartbeat.
    Renew {
        /// The fence of each token that is named; 0 is not named.
        fences: [Fence; TOKENS],
    },
}

/// The server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    /// The token holds.
    Held {
        /// Whose.
        token: Token,
        /// Its fencing token.
        fence: Fence,
        /// Until the server's expiry.
        remaining: Time,
    },
    /// The token waits.
    Queued {
        /// Whose.
        token: Token,
        /// Its place.
        ticket: Fence,
        /// Whether a re-run found the token unknown.
        reentered: bool,
    },
    /// The token does not wait.
    Busy {
        /// Whose.
        token: Token,
    },
    /// Too late, or a tombstone stands.
    Refused {
        /// Whose.
        token: Token,
    },
    /// Neither queued nor holding.
    Ended {
        /// Whose.
        token: Token,
    },
    /// What remains of each lease that was named; `None` is gone.
    Renewed {
        /// The fences as named.
        fences: [Fence; TOKENS],
        /// Until the server's expiry.
        remaining: [Option<Time>; TOKENS],
    },
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Body {
    /// To the server.
    Request {
        /// Local time of sending.
        sent: Time,
        /// The command.
        request: Request,
    },
    /// To the process that asked.
    Reply {
        /// Local time of sending of the request.
        sent: Time,
        /// The `latest` of an acquire.
        latest: Option<Time>,
        /// Server time of the run.
        time: Time,
        /// The run.
        mark: Mark,
        /// max(F, `TIME`) of the run.
        stamp: Fence,
        /// The answer.
        reply: Reply,
    },
    /// A grant, to the inbox.
    Push {
        /// Whose.
        token: Token,
        /// Its fencing token.
        fence: Fence,
        /// The run that granted.
        mark: Mark,
    },
}

/// A message in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// The process that sends or receives it.
    pub(crate) process: usize,
    /// Whether time may go on before it arrives.
    pub(crate) late: bool,
    pub(crate) body: Body,
}

impl Message {
    /// Whether it is an answer or a push to this process.
    pub(crate) const fn is_to(&self, process: usize) -> bool {
        self.process == process && !matches!(self.body, Body::Request { .. })
    }

    pub(crate) fn each_server_time(&mut self, visit: &mut impl FnMut(&mut Time)) {
        match &mut self.body {
            Body::Request { request, .. } => match request {
                Request::Acquire { latest, .. } => visit(latest),
                Request::End { tombstone, .. } => tombstone.iter_mut().for_each(visit),
                Request::Renew { .. } => {}
            },
            Body::Reply {
                latest, time, mark, ..
            } => {
                latest.iter_mut().for_each(&mut *visit);
                visit(time);
                mark.time.iter_mut().for_each(visit);
            }
            Body::Push { mark, .. } => mark.time.iter_mut().for_each(visit),
        }
    }

    pub(crate) fn each_local_time(&mut self, visit: &mut impl FnMut(&mut Time)) {
        match &mut self.body {
            Body::Request { sent, .. } | Body::Reply { sent, .. } => visit(sent),
            Body::Push { .. } => {}
        }
    }

    pub(crate) fn each_fence(&mut self, visit: &mut impl FnMut(&mut Fence)) {
        match &mut self.body {
            Body::Request { request, .. } => match request {
                Request::Acquire { ticket, .. } => visit(ticket),
                Request::End { .. } => {}
                Request::Renew { fences } => fences.iter_mut().for_each(visit),
            },
            Body::Reply { stamp, reply, .. } => {
                visit(stamp);
                match reply {
                    Reply::Held { fence, .. } => visit(fence),
                    Reply::Queued { ticket, .. } => visit(ticket),
                    Reply::Renewed { fences, .. } => fences.iter_mut().for_each(visit),
                    Reply::Busy { .. } | Reply::Refused { .. } | Reply::Ended { .. } => {}
                }
            }
            Body::Push { fence, .. } => visit(fence),
        }
    }

    /// Cuts times at the point from which they make no difference.
    pub(crate) fn forget(&mut self, config: &Config, clock_may_step_back: bool) {
        self.each_local_time(&mut |sent| *sent = (*sent).max(-config.horizon()));
        if clock_may_step_back {
            return;
        }
        match &mut self.body {
            Body::Request { request, .. } => match request {
                Request::Acquire { latest, .. } => *latest = (*latest).max(-1),
                Request::End { tombstone, .. } => {
                    tombstone.take_if(|until| *until < 0);
                }
                Request::Renew { .. } => {}
            },
            Body::Reply { latest, .. } => latest
                .iter_mut()
                .for_each(|latest| *latest = (*latest).max(-1)),
            Body::Push { .. } => {}
        }
    }
}
