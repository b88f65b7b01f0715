//! The connection on which the server is asked to wait for its replicas.
//!
//! `WAIT` blocks its connection, so it has one of its own. What comes while one is under way shares
//! the next: however many grants there are, they cost one wait at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Pipeline, RedisError, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{sleep, timeout};

use super::backoff::Backoff;
use super::call::{Body, Call, Names, millis};
use super::driver::Event;
use super::link;
use super::origin::{Origin, Reached, Term};
use super::reply::Failure;
use super::script::{Publish, Script};
use super::{Replicas, Settings};
use crate::error::BackendErrorKind;
use crate::key::Prefix;
use crate::time::Instant;
use crate::token::Instance;

/// How many renewals share a wait at most.
const BATCH: usize = 1024;
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));
/// How long the key is kept that is written to, at the least, as all side keys are.
const KEEP: Duration = Duration::from_secs(60);

/// What became of a call, before replicas were waited for.
type Said = (Call, Result<Value, Failure>);

pub(super) struct Acknowledger {
    pub(super) origin: Arc<Origin>,
    pub(super) settings: Settings,
    pub(super) replicas: Replicas,
    pub(super) prefix: Prefix,
    pub(super) instance: Instance,
    pub(super) calls: UnboundedReceiver<Call>,
    pub(super) events: UnboundedSender<Event>,
    /// Set when a connection for commands was replaced: the server may be another one since.
    pub(super) stale: Arc<AtomicBool>,
}

impl Acknowledger {
    /// Runs until the driver is gone.
    pub(super) async fn run(mut self) {
        let mut names = Names::new(self.prefix.clone());
        // Before the first grant, which is not to wait for it.
        let mut connection = self.connect().await.ok();
        let (mut batch, mut failures) = (Vec::with_capacity(BATCH), 0);
        while self.calls.recv_many(&mut batch, BATCH).await > 0 {
            let calls = std::mem::take(&mut batch);
            let usable = !self.stale.swap(false, Ordering::Relaxed);
            let known = connection.take();
            let is_current = |open: &Reached| usable && open.term == self.origin.term();
            let mut open = match known.filter(is_current) {
                Some(open) => open,
                None => match self.connect().await {
                    Ok(open) => open,
                    Err(failure) => {
                        self.tell(self.origin.term(), fail(calls, &failure), 0);
                        sleep(RETRY.pause(failures, self.instance.jitter(failures))).await;
                        failures += 1;
                        continue;
                    }
                },
            };
            failures = 0;
            let term = open.term;
            let (said, replicas) = self.ask(&mut open, calls, &mut names).await;
            match replicas {
                Ok(replicas) => {
                    connection = Some(open);
                    self.tell(term, said, replicas);
                }
                Err(failure) => {
                    let calls = said.into_iter().map(|(call, _)| call);
                    self.tell(term, fail(calls, &failure), 0);
                }
            }
        }
    }

    fn tell(&self, term: Term, said: Vec<Said>, replicas: u32) {
        let said = Event::Acknowledged {
            term,
            said,
            replicas,
        };
        // A driver that is gone needs to know nothing.
        let _ = self.events.send(said);
    }

    async fn connect(&self) -> Result<Reached, Failure> {
        let (origin, settings) = (Arc::clone(&self.origin), self.settings.clone());
        let probe = self.prefix.probe();
        // In a task of its own: a panic in somebody's resolver or pool must not end the attempts.
        let attempt = tokio::spawn(async move {
            link::connect(&origin, &settings, &probe, false, Script::all).await
        });
        match attempt.await {
            Ok(Ok(fresh)) => Ok(Reached {
                connection: fresh.connection,
                term: fresh.term,
            }),
            Ok(Err(error)) => {
                tracing::debug!(code = error.code(), "no connection to wait for replicas on");
                Err(Failure::NotSent)
            }
            Err(_) => Err(Failure::NotSent),
        }
    }

    /// Has the server run the calls, write, and wait for its replicas: gives how many have it all.
    /// Fails where the connection is of no more use.
    async fn ask(
        &self,
        open: &mut Reached,
        mut calls: Vec<Call>,
        names: &mut Names,
    ) -> (Vec<Said>, Result<u32, Failure>) {
        let mut said = Vec::with_capacity(calls.len());
        // Where the server does not know the script, once more with its text.
        for whole in [false, true] {
            let now = Instant::now();
            for call in &mut calls {
                call.sent = now;
            }
            let values = match self.send(open, &calls, whole, names).await {
                Ok(values) => values,
                Err(failure) => {
                    said.extend(fail(calls, &failure));
                    return (said, Err(failure));
                }
            };
            let mut values = values.into_iter();
            let mut unknown = Vec::new();
            for (call, value) in calls.into_iter().zip(values.by_ref()) {
                match value {
                    Value::ServerError(error) => match Failure::of_server(error) {
                        Failure::NoScript if self.settings.preloaded => {
                            said.push((call, Err(Failure::not_loaded())));
                        }
                        Failure::NoScript if !whole => unknown.push(call),
                        failure => said.push((call, Err(failure))),
                    },
                    value => said.push((call, Ok(value))),
                }
            }
            // Those with their text follow, and their wait counts for all.
            if unknown.is_empty() {
                return (said, waited(&values.collect::<Vec<_>>()));
            }
            calls = unknown;
        }
        (said, Err(Failure::NoScript))
    }

    async fn send(
        &self,
        open: &mut Reached,
        calls: &[Call],
        whole: bool,
        names: &mut Names,
    ) -> Result<Vec<Value>, Failure> {
        let mut pipeline = Pipeline::with_capacity(calls.len() + 3);
        for call in calls {
            tracing::trace!(
                script = call.script(Publish::Plain).name,
                "call to be acknowledged"
            );
            pipeline.add_command(call.command(Publish::Plain, whole, &self.instance, names));
        }
        // From Redis 7.2 on a wait covers only what was written before the last write of its own
        // connection; and a renewal that finds its lease long enough writes nothing. The second of
        // these two is done also by a server that is out of memory.
        let (key, keep) = (self.prefix.acknowledged(), millis(keep(calls)));
        pipeline.cmd("SET").arg(&key).arg("").arg("PX").arg(keep);
        pipeline.cmd("PEXPIRE").arg(&key).arg(keep);
        let patience = millis(self.replicas.patience);
        pipeline.cmd("WAIT").arg(self.replicas.least).arg(patience);
        let sending = open
            .connection
            .send_packed_commands(&pipeline, 0, pipeline.len());
        let sending = self.origin.within(open.term, sending);
        let limit = self.replicas.patience + self.settings.command_timeout;
        match timeout(limit, sending).await {
            Ok(Ok(values)) if values.len() == pipeline.len() => Ok(values),
            Ok(Err(error)) => Err(Failure::of_connection(error)),
            Ok(Ok(_)) | Err(_) => Err(Failure::Unknown(None)),
        }
    }
}

/// Beyond the next renewal of each of these.
fn keep(calls: &[Call]) -> Duration {
    let renewals = calls.iter().filter_map(|call| match &call.body {
        Body::Renew(renew) => Some(&renew.leases),
        _ => None,
    });
    let longest = renewals.flatten().map(|lease| lease.lease).max();
    longest.map_or(KEEP, |longest| longest.max(KEEP))
}

fn fail(calls: impl IntoIterator<Item = Call>, failure: &Failure) -> Vec<Said> {
    let failed = |call| (call, Err(failure.clone()));
    calls.into_iter().map(failed).collect()
}

/// How many replicas have all that was written, as the answers to two writes and a wait tell.
fn waited(values: &[Value]) -> Result<u32, Failure> {
    let [set, expire, waited] = values else {
        return Err(Failure::Unknown(None));
    };
    let is_written = matches!(set, Value::Okay) || matches!(expire, Value::Int(1));
    if let (false, Value::ServerError(error)) = (is_written, set) {
        return Err(Failure::of_server(error.clone()));
    }
    match waited {
        Value::Int(replicas) if is_written => Ok(u32::try_from(*replicas).unwrap_or(0)),
        Value::ServerError(error) => Err(match Failure::of_server(error.clone()) {
            // It has become a replica, before or meanwhile.
            Failure::Final(BackendErrorKind::Protocol, error) => Failure::Unknown(Some(error)),
            failure => failure,
        }),
        _ => Err(Failure::Unknown(Some(RedisError::from((
            redis::ErrorKind::UnexpectedReturnType,
            "a wait for replicas was answered with no number",
        ))))),
    }
}
