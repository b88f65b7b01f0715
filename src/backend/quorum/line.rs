//! The way to one server: keeps a connection up, carries requests over it and tells what comes back.
//!
//! A task for each server, on the handle's background thread. Attempts to connect are paced; so a
//! server that is away costs a few packets, however much is asked for.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep_until, timeout};

use super::arrival::Arrival;
use super::call::Call;
use super::driver::Event;
use super::script;
use crate::backend::server::backoff::Backoff;
use crate::backend::server::call::Names;
use crate::backend::server::link;
use crate::backend::server::reply::Failure;
use crate::backend::server::reply::failure::Trouble;
use crate::backend::server::wire::Wire;
use crate::backend::server::{Origin, Settings, Term};
use crate::key::Prefix;
use crate::time::Instant;
use crate::token::Instance;

/// So many requests share a write.
const BATCH: usize = 16;
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// What a line is to do.
#[derive(Debug)]
pub(super) enum Order {
    Send(Vec<Call>),
    /// Asks the server for anything, to see whether it answers promptly.
    Probe,
}

/// What a line reports.
#[derive(Debug)]
pub(super) enum News {
    Up(Arrival),
    Down(Option<Trouble>),
    Answered(Vec<Call>, Result<Vec<Value>, Failure>),
    /// A probe was answered in time.
    Prompt,
}

pub(super) struct Line {
    pub(super) server: usize,
    pub(super) origin: Arc<Origin>,
    pub(super) settings: Settings,
    pub(super) prefix: Prefix,
    pub(super) instance: Instance,
    /// How soon a prompt server answers.
    pub(super) prompt: Duration,
    pub(super) events: UnboundedSender<Event>,
    pub(super) orders: UnboundedReceiver<Order>,
}

/// What the requests under way on a connection tell the line.
enum Came {
    /// Something was answered.
    Answer,
    /// Nothing came for so long, since this was sent.
    Silence(Instant),
    Broken,
    /// Scripts that are missing, and the calls that need them.
    Missing(Vec<Call>),
}

impl Line {
    /// Runs until the driver is gone.
    pub(super) async fn run(mut self) {
        let mut names = Names::new(self.prefix.clone());
        let mut failures = 0;
        loop {
            let since = tokio::time::Instant::now();
            match self.connect().await {
                Ok((connection, term, arrival)) => {
                    self.tell(News::Up(arrival));
                    let served = self.serve(&connection, term, &mut names).await;
                    self.tell(News::Down(None));
                    match served {
                        Served::Gone => return,
                        Served::Some => failures = 0,
                        Served::None => {}
                    }
                }
                Err(error) => {
                    let trouble = Trouble::of(error);
                    let cause = &*trouble.cause;
                    tracing::debug!(server = self.server + 1, cause, "no connection to a server");
                    self.tell(News::Down(Some(trouble)));
                }
            }
            let random = self.instance.jitter(failures + self.server as u32);
            let pause = RETRY.pause(failures, random);
            failures += 1;
            // Counted from the beginning of the attempt, but a short pause there is.
            let least = tokio::time::Instant::now() + RETRY.pause(0, random);
            if !self.pause(least.max(since + pause)).await {
                return;
            }
        }
    }

    fn tell(&self, news: News) {
        // A driver that is gone needs to know nothing.
        let _ = self.events.send(Event::Line(self.server, news));
    }

    /// Lets time pass; what is asked meanwhile is not sent. False when the driver is gone.
    async fn pause(&mut self, until: tokio::time::Instant) -> bool {
        let pause = sleep_until(until);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => return true,
                order = self.orders.recv() => match order {
                    Some(Order::Send(calls)) => self.tell(News::Answered(calls, Err(Failure::NotSent))),
                    Some(Order::Probe) => {}
                    None => return false,
                },
            }
        }
    }

    async fn connect(&self) -> Result<(Wire, Term, Arrival), RedisError> {
        // In a task of its own: a panic in somebody's resolver must not end the attempts.
        let (origin, settings) = (Arc::clone(&self.origin), self.settings.clone());
        let probe = self.prefix.probe();
        let attempt = async move {
            let scripts = |_| script::all();
            let mut fresh = link::connect(&origin, &settings, &probe, false, scripts).await?;
            let mut look = Pipeline::new();
            for question in Arrival::QUESTIONS {
                look.cmd(question[0]).arg(&question[1..]);
            }
            let look = fresh.connection.send_packed_commands(&look, 0, look.len());
            let told = timeout(settings.connect_timeout, look).await;
            let told = told.map_err(|_| link::timed_out())??;
            let reached = (fresh.term, origin.reign(fresh.term));
            let arrival = Arrival::read(fresh.us, fresh.evicts, reached, &told);
            Ok::<_, RedisError>((fresh.connection, fresh.term, arrival))
        };
        let attempt = tokio::spawn(attempt).await;
        attempt.unwrap_or_else(|_| Err((redis::ErrorKind::Client, "connecting panicked").into()))
    }

    async fn serve(&mut self, connection: &Wire, term: Term, names: &mut Names) -> Served {
        let origin = Arc::clone(&self.origin);
        let (came, mut coming) = unbounded_channel();
        let mut answered = Instant::now();
        let mut served = Served::None;
        loop {
            tokio::select! {
                biased;
                event = coming.recv() => match event {
                    Some(Came::Answer) => {
                        answered = Instant::now();
                        served = Served::Some;
                    }
                    // The other side may be gone without a word.
                    Some(Came::Silence(sent)) if answered < sent => return served,
                    Some(Came::Silence(_)) => {}
                    Some(Came::Missing(calls)) => {
                        answered = Instant::now();
                        self.load(connection);
                        self.send(connection, term, calls, true, names, &came);
                    }
                    Some(Came::Broken) | None => return served,
                },
                // Another server has taken its place, and nothing that this one says counts.
                () = origin.left(term) => return served,
                order = self.orders.recv() => match order {
                    Some(Order::Send(calls)) => {
                        let mut calls = calls.into_iter();
                        while calls.len() > 0 {
                            let batch = calls.by_ref().take(BATCH).collect();
                            self.send(connection, term, batch, false, names, &came);
                        }
                    }
                    Some(Order::Probe) => self.probe(connection, &came),
                    None => return Served::Gone,
                },
            }
        }
    }

    /// One write and one timer for several requests.
    fn send(
        &self,
        connection: &Wire,
        term: Term,
        calls: Vec<Call>,
        whole: bool,
        names: &mut Names,
        came: &UnboundedSender<Came>,
    ) {
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in &calls {
            tracing::trace!(
                script = call.script().name,
                server = self.server + 1,
                "call"
            );
            pipeline.add_command(call.command(whole, &self.instance, names));
        }
        let (mut connection, came) = (connection.clone(), came.clone());
        let (events, server) = (self.events.clone(), self.server);
        let (patience, preloaded) = (self.settings.command_timeout, self.settings.preloaded);
        let (sent, origin) = (Instant::now(), Arc::clone(&self.origin));
        tokio::spawn(async move {
            let sending = connection.send_packed_commands(&pipeline, 0, calls.len());
            let (result, event) = match timeout(patience, origin.within(term, sending)).await {
                Ok(Ok(mut values)) if values.len() == calls.len() => {
                    let missing = |value: &Value| matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT");
                    if !whole && !preloaded && values.iter().any(missing) {
                        // They did not run, so they may go again, with their text.
                        let (mut done, mut again) = (Vec::new(), Vec::new());
                        let mut rest = Vec::new();
                        for (call, value) in calls.into_iter().zip(values.drain(..)) {
                            if missing(&value) {
                                again.push(call);
                            } else {
                                done.push(call);
                                rest.push(value);
                            }
                        }
                        let _ = came.send(Came::Missing(again));
                        let _ = events.send(Event::Line(server, News::Answered(done, Ok(rest))));
                        return;
                    }
                    (Ok(values), Came::Answer)
                }
                Ok(Ok(_)) => {
                    let error = (
                        redis::ErrorKind::UnexpectedReturnType,
                        "answers and requests do not match",
                    );
                    (Err(Failure::Unknown(Some(error.into()))), Came::Broken)
                }
                Ok(Err(error)) => (Err(Failure::of_connection(error)), Came::Broken),
                Err(_) => (Err(Failure::Unknown(None)), Came::Silence(sent)),
            };
            // First that nothing more can be sent on it.
            let _ = came.send(event);
            let _ = events.send(Event::Line(server, News::Answered(calls, result)));
        });
    }

    fn probe(&self, connection: &Wire, came: &UnboundedSender<Came>) {
        let (mut connection, came) = (connection.clone(), came.clone());
        let (events, server, patience) = (self.events.clone(), self.server, self.prompt);
        let mut get = Cmd::new();
        get.arg("GET").arg(self.prefix.probe());
        let deaf = self.settings.command_timeout.saturating_sub(patience);
        tokio::spawn(async move {
            let sent = Instant::now();
            let asking = connection.send_packed_command(&get);
            tokio::pin!(asking);
            match timeout(patience, &mut asking).await {
                Ok(Ok(_)) => {
                    let _ = came.send(Came::Answer);
                    let _ = events.send(Event::Line(server, News::Prompt));
                }
                Ok(Err(_)) => {
                    let _ = came.send(Came::Broken);
                }
                Err(_) => {
                    let event = match timeout(deaf, asking).await {
                        Ok(Ok(_)) => Came::Answer,
                        Ok(Err(_)) => Came::Broken,
                        Err(_) => Came::Silence(sent),
                    };
                    let _ = came.send(event);
                }
            }
        });
    }

    /// Loads the scripts again: the server has forgotten them.
    fn load(&self, connection: &Wire) {
        let (mut connection, patience) = (connection.clone(), self.settings.command_timeout);
        tokio::spawn(async move {
            let pipeline = link::scripts(script::all());
            // Without it each request goes with its text, which is slower and no less right.
            let loading = connection.send_packed_commands(&pipeline, 0, pipeline.len());
            let _ = timeout(patience, loading).await;
        });
    }
}

/// What a connection was good for.
enum Served {
    Some,
    None,
    /// The driver is gone.
    Gone,
}
