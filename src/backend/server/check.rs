//! A look at the server before it is relied on: what it is, what its user may do, whether scripts
//! and pushes work.
//!
//! It has connections of its own, and keys that it makes up, so no gate in use notices it. Whatever
//! it writes ends by itself, should it be cut short.

pub(in crate::backend) mod attend;
mod commands;
mod info;
mod pushes;
pub(in crate::backend) mod scripts;

use std::time::Duration;

use redis::{Pipeline, RedisError, Value};
use tokio::time::timeout;

use self::attend::Looker;
use self::info::Info;
use super::advice::Denied;
use super::call::Names;
use super::cluster::asking::{ask_all, masters};
use super::core::failing::{Progress, Stage};
use super::link;
use super::origin::Origin;
use super::reply::Failure;
use super::reply::failure::Trouble;
use super::script::Publish;
use super::wire::Wire;
use super::{Settings, reply};
use crate::check::{Finding, Persistence, Report, Role, Server, Severity};
use crate::error::{BackendError, BackendErrorKind};
use crate::key::{Kind, Prefix, Resource, Tag};
use crate::time::Instant;
use crate::token::Instance;

/// How long what is written on the way may stay.
const KEEP: Duration = Duration::from_secs(5);
/// In place of a code.
const NONSENSE: &str = "an answer that it never gives";
/// How many round trips are measured.
const ROUND_TRIPS: usize = 5;
/// How many names are made up to find one in a master's slots.
const DRAWS: usize = 2_000;

/// Looks at a handle's server.
#[derive(Debug, Clone)]
pub(in crate::backend) struct Inspector {
    pub(in crate::backend) origin: Origin,
    pub(in crate::backend) settings: Settings,
    pub(in crate::backend) prefix: Prefix,
}

impl Looker for Inspector {
    async fn look(self, exact: Vec<String>) -> Result<Report, BackendError> {
        let exact = &*exact;
        let mut report = Report::default();
        let Some(seeds) = self.origin.seeds().cloned() else {
            let (server, findings) = self.look_at_one(exact, false, |_| true).await?;
            report.add(server, findings);
            return Ok(report);
        };
        let began = Instant::now();
        let map = ask_all(&seeds, &self.settings).await;
        let map = map.map_err(|error| self.no_connection(began, error))?;
        for master in masters(&map) {
            let origin = map
                .address(master)
                .and_then(|node| seeds.origin_for_commands(node));
            let Some(origin) = origin else { continue };
            let is_here = |tag: Tag| map.owner(tag.slot()) == Some(master);
            let mut here = exact.to_vec();
            here.retain(|key| is_here(Tag::of_key(key)));
            let inspector = Self {
                origin,
                ..self.clone()
            };
            let (server, findings) = inspector.look_at_one(&here, true, is_here).await?;
            report.add(server, findings);
        }
        Ok(report)
    }
}

impl Inspector {
    fn no_connection(&self, began: Instant, error: RedisError) -> BackendError {
        progress(began, self.settings.connect_timeout).failed(Some(&Trouble::of(error)), None)
    }

    /// An instance whose keys are in a slot that the server has.
    fn draw(&self, is_here: impl Fn(Tag) -> bool) -> Result<Instance, BackendError> {
        let mut instance = None;
        for _ in 0..DRAWS {
            let Ok(drawn) = Instance::draw() else {
                let text = "the system gives no random numbers, so no names can be made up";
                return Err(BackendError::new(BackendErrorKind::Refused, text, None));
            };
            if is_here(Resource::probe(&self.prefix, Kind::Mutex, &drawn).tag) {
                return Ok(drawn);
            }
            instance = Some(drawn);
        }
        // None of the slots that gates have is there; then all is tried elsewhere, and sent on.
        instance.ok_or_else(BackendError::background_ended)
    }

    async fn look_at_one(
        self,
        exact: &[String],
        in_cluster: bool,
        is_here: impl Fn(Tag) -> bool,
    ) -> Result<(Server, Vec<Finding>), BackendError> {
        let mut survey = self.begin(in_cluster, is_here).await?;
        survey.introduce().await?;
        survey.try_cluster().await?;
        #[cfg(feature = "sentinel")]
        survey.ask_sentinels().await;
        survey.measure().await?;
        let may_eval = survey.try_commands(|_| true, exact).await?;
        let scripts = link::all_scripts(survey.publish);
        survey.load_scripts(&scripts, may_eval).await?;
        survey.run_scripts(may_eval).await?;
        survey.try_pushes(exact).await?;
        Ok((survey.server, survey.findings))
    }

    /// Connects to the server, as somebody whose keys are there.
    pub(in crate::backend) async fn begin(
        self,
        in_cluster: bool,
        is_here: impl Fn(Tag) -> bool,
    ) -> Result<Survey, BackendError> {
        let instance = self.draw(is_here)?;
        let began = Instant::now();
        let connection = self.origin.connect(&self.settings).await;
        let connection = connection.map_err(|error| self.no_connection(began, error))?;
        Ok(Survey {
            connection: connection.connection,
            place: Resource::probe(&self.prefix, Kind::Mutex, &instance),
            names: Names::new(self.prefix.clone()),
            asked: began,
            in_cluster,
            publish: Publish::Plain,
            inspector: self,
            instance,
            server_us: None,
            server: Server::default(),
            findings: Vec::new(),
        })
    }
}

fn progress(began: Instant, limit: Duration) -> Progress {
    Progress {
        doing: "checking the server".to_owned(),
        stage: Stage::Asking,
        elapsed: Instant::now().since(began),
        limit: Some(limit),
    }
}

/// One look under way.
pub(in crate::backend) struct Survey {
    inspector: Inspector,
    connection: Wire,
    /// Who tries the rights; known to nobody else.
    pub(in crate::backend) instance: Instance,
    /// Where commands are tried.
    place: Resource,
    pub(in crate::backend) names: Names,
    /// Whether it is the node of a cluster that it is meant to be.
    in_cluster: bool,
    publish: Publish,
    /// When the last request was sent.
    asked: Instant,
    /// The server's clock at the last look at it.
    server_us: Option<(u64, Instant)>,
    pub(in crate::backend) server: Server,
    pub(in crate::backend) findings: Vec<Finding>,
}

/// What a request came to that the server answered.
enum Outcome {
    Done(Value),
    /// It would be done, but for the state that the server is in, which has been noted.
    NotNow,
    /// The user lacks a right, which has been noted if it is known.
    Denied,
    /// It was refused with this code.
    Failed(String),
}

impl Survey {
    /// Adds what was not found before.
    pub(in crate::backend) fn find(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    fn lacks(&mut self, rule: impl Into<String>, severity: Severity) {
        let rule = rule.into();
        self.find(Finding::MissingRight { rule, severity });
    }

    /// How long each request may take.
    pub(in crate::backend) fn patience(&self) -> Duration {
        self.inspector.settings.command_timeout
    }

    /// One round trip.
    async fn ask(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, BackendError> {
        let (limit, began) = (self.patience(), Instant::now());
        self.asked = began;
        let sending = self
            .connection
            .send_packed_commands(pipeline, 0, pipeline.len());
        let failure = match timeout(limit, sending).await {
            Ok(Ok(values)) if values.len() == pipeline.len() => return Ok(values),
            Ok(Ok(_)) => {
                let error = "answers and requests do not match";
                let error = (redis::ErrorKind::UnexpectedReturnType, error).into();
                Failure::Final(BackendErrorKind::Protocol, error)
            }
            Ok(Err(error)) => Failure::of_connection(error),
            Err(_) => Failure::Unknown(None),
        };
        Err(progress(began, limit).failed(None, Some(&failure)))
    }

    pub(in crate::backend) async fn ask_one(
        &mut self,
        words: &[&str],
    ) -> Result<Value, BackendError> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd(words[0]).arg(&words[1..]);
        let mut values = self.ask(&pipeline).await?;
        Ok(values.pop().unwrap_or(Value::Nil))
    }

    /// What an answer says of the server and of its user's rights, noted. `rule` is what the user
    /// needs for it beside keys and channels.
    ///
    /// Fails where the server can't be judged now: it loads, is busy, or wants credentials.
    fn judge(
        &mut self,
        value: Value,
        rule: Option<(&str, Severity)>,
    ) -> Result<Outcome, BackendError> {
        let Value::ServerError(error) = value else {
            return Ok(Outcome::Done(value));
        };
        let failure = Failure::of_server(error);
        let (kind, error) = match &failure {
            Failure::NotNow(kind, error) | Failure::Final(kind, error) => (*kind, error),
            Failure::NoScript => return Ok(Outcome::Failed("NOSCRIPT".to_owned())),
            Failure::NotSent | Failure::Unknown(_) => return Ok(Outcome::NotNow),
        };
        let code = error.code().unwrap_or("ERR").to_owned();
        match (kind, &*code) {
            (BackendErrorKind::NotServing, "READONLY" | "MASTERDOWN") => {
                self.find(Finding::Replica);
                Ok(Outcome::NotNow)
            }
            (BackendErrorKind::NotServing, "CLUSTERDOWN" | "TRYAGAIN")
            | (BackendErrorKind::Unsupported, "ASK" | "CROSSSLOT" | "MOVED") => {
                if !self.in_cluster {
                    self.find(Finding::Cluster);
                }
                Ok(Outcome::NotNow)
            }
            (BackendErrorKind::Refused, _) => {
                self.find(Finding::Declines { code });
                Ok(Outcome::NotNow)
            }
            (BackendErrorKind::NotPermitted, "NOPERM") => {
                self.denied(error, rule);
                Ok(Outcome::Denied)
            }
            (
                BackendErrorKind::NotServing
                | BackendErrorKind::ServerBusy
                | BackendErrorKind::Unauthenticated
                | BackendErrorKind::NotPermitted,
                _,
            ) => Err(progress(self.asked, self.patience()).failed(None, Some(&failure))),
            _ => Ok(Outcome::Failed(code)),
        }
    }

    fn denied(&mut self, error: &RedisError, rule: Option<(&str, Severity)>) {
        let details = error.detail().unwrap_or_default();
        match (Denied::read(details), rule) {
            (Denied::Key, _) => {
                let rule = self.inspector.prefix.keys_rule();
                self.lacks(rule, Severity::Problem);
            }
            (Denied::Channel, _) => {
                let rule = self.inspector.prefix.inboxes_rule();
                self.lacks(rule, Severity::Warning);
            }
            // Old servers name a command without the part of it that is meant.
            (Denied::Command(Some(command)), Some((rule, severity)))
                if rule[1..].starts_with(command) =>
            {
                self.lacks(rule, severity);
            }
            (Denied::Command(Some(command)), _) => {
                self.lacks(format!("+{command}"), Severity::Problem);
            }
            // One in a script: only there none is named.
            (Denied::Command(None), _) => {}
        }
    }

    /// Asks the server who it is.
    pub(in crate::backend) async fn introduce(&mut self) -> Result<(), BackendError> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("TIME").cmd("INFO");
        let answers: [Value; 2] = self.ask(&pipeline).await?.try_into().unwrap_or_default();
        let [time, info] = answers;
        if let Outcome::Failed(code) = self.judge(time, Some(("+time", Severity::Problem)))? {
            let command = "time".to_owned();
            self.find(Finding::CommandFails { command, code });
        }
        match self.judge(info, Some(("+info", Severity::Note)))? {
            Outcome::Done(info) => {
                if self.in_cluster {
                    self.publish = link::publishes(&info);
                }
                if let Some(info) = Info::read(&info) {
                    self.learn(&info).await?;
                } else {
                    self.untold("version, role and settings", "INFO");
                }
            }
            Outcome::Failed(_) => self.untold("version, role and settings", "INFO"),
            Outcome::NotNow | Outcome::Denied => {}
        }
        Ok(())
    }

    /// What only a cluster needs.
    async fn try_cluster(&mut self) -> Result<(), BackendError> {
        if !self.in_cluster {
            return Ok(());
        }
        for (rule, severity, words) in [
            (
                "+cluster|slots",
                Severity::Problem,
                &["CLUSTER", "SLOTS"][..],
            ),
            ("+cluster|nodes", Severity::Warning, &["CLUSTER", "NODES"]),
            ("+asking", Severity::Warning, &["ASKING"]),
        ] {
            let answer = self.ask_one(words).await?;
            if let Outcome::Failed(code) = self.judge(answer, Some((rule, severity)))? {
                let command = rule.trim_start_matches('+').to_owned();
                self.find(Finding::CommandFails { command, code });
            }
        }
        Ok(())
    }

    fn untold(&mut self, what: &'static str, command: &'static str) {
        self.find(Finding::Unknown { what, command });
    }

    async fn learn(&mut self, info: &Info<'_>) -> Result<(), BackendError> {
        self.server = info.server();
        if let Some(version) = info.too_old() {
            self.find(Finding::TooOld { version });
        }
        if self.server.is_cluster == Some(true) && !self.in_cluster {
            self.find(Finding::Cluster);
        }
        if self.server.role == Some(Role::Replica) {
            self.find(Finding::Replica);
        }
        if let (Some(policy), Some(1..)) =
            (self.server.maxmemory_policy.clone(), self.server.maxmemory)
            && policy != "noeviction"
        {
            self.find(Finding::Evicts { policy });
        }
        if let Some(replicas) = self.inspector.settings.replicas {
            if let Some(online) = info.replicas_online()
                && self.server.role != Some(Role::Replica)
                && online < replicas.least
            {
                let least = replicas.least;
                self.find(Finding::TooFewReplicas { online, least });
            }
        } else if let Some(replicas @ 1..) = self.server.replicas
            && !info.waits_for_replicas()
        {
            self.find(Finding::UnconfirmedWrites { replicas });
        }
        if info.appends() == Some(false) {
            let snapshots = self.snapshots().await?;
            self.server.persistence = snapshots.map(|snapshots| {
                if snapshots {
                    Persistence::Snapshots
                } else {
                    Persistence::None
                }
            });
            self.find(Finding::NotDurable { snapshots });
        }
        Ok(())
    }

    /// Whether it takes snapshots; `None` where it does not tell.
    async fn snapshots(&mut self) -> Result<Option<bool>, BackendError> {
        let answer = self.ask_one(&["CONFIG", "GET", "save"]).await?;
        let points: Option<Vec<String>> = redis::from_redis_value(answer).ok();
        let points = points.and_then(|pair| pair.into_iter().nth(1));
        if points.is_none() {
            self.untold("snapshots", "CONFIG GET");
        }
        Ok(points.map(|points| !points.is_empty()))
    }

    /// Asks the sentinels that led here how many of them there are.
    #[cfg(feature = "sentinel")]
    pub(in crate::backend) async fn ask_sentinels(&mut self) {
        let settings = &self.inspector.settings;
        let Some(sentinels) = self.inspector.origin.found_by(settings).await else {
            return;
        };
        let (known, silent) = (sentinels.known, sentinels.known - sentinels.answering);
        if silent > 0 {
            self.find(Finding::SilentSentinels { known, silent });
        }
        if sentinels.telling < sentinels.answering {
            self.find(Finding::UntoldFailovers);
        }
        self.server.sentinels = Some(sentinels);
    }

    /// Measures how far away it is, and how far its clock is apart.
    pub(in crate::backend) async fn measure(&mut self) -> Result<(), BackendError> {
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let (sent, wall) = (Instant::now(), std::time::SystemTime::now());
            let time = self.ask_one(&["TIME"]).await?;
            let Ok(us) = reply::time(&time) else {
                // A no has been noted.
                if !matches!(time, Value::ServerError(_)) {
                    let (command, code) = ("time".to_owned(), NONSENSE.to_owned());
                    self.find(Finding::CommandFails { command, code });
                }
                return Ok(());
            };
            let trip = Instant::now().since(sent);
            self.server_us = Some((us, sent));
            let wall = wall
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default();
            let wall_us = (wall + trip / 2).as_micros();
            let ahead_us = i128::from(us) - i128::try_from(wall_us).unwrap_or_default();
            trips.push((trip, i64::try_from(ahead_us / 1000).unwrap_or(i64::MAX)));
        }
        // The shortest trip tells the clock best, the middle one is what to expect.
        trips.sort_unstable();
        let (round_trip, command_timeout) = (
            trips[ROUND_TRIPS / 2].0,
            self.inspector.settings.command_timeout,
        );
        self.server.clock_ahead_ms = Some(trips[0].1);
        self.server.round_trip = Some(round_trip);
        if round_trip > command_timeout / 4 {
            self.find(Finding::Slow {
                round_trip,
                command_timeout,
            });
        }
        Ok(())
    }
}
