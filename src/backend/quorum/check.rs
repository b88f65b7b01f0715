//! A look at all servers of a quorum: each is looked at as a single one is, with the scripts that
//! run there, and a majority has to fit.

use std::sync::Arc;

use redis::Value;
use tokio::task::JoinSet;

use super::arrival::Arrival;
use super::call::{Ask, Body, Call, Mode, Who};
use super::core::Options;
use super::core::failing::{Stood, no_quorum};
use super::{reply, rule, script};
use crate::backend::server::check::attend::Looker;
use crate::backend::server::check::scripts::{LEASE, Run};
use crate::backend::server::check::{Inspector, Survey};
use crate::backend::server::link;
use crate::backend::server::{Origin, Settings};
use crate::check::{Finding, Report, Server, Severity};
use crate::error::BackendError;
use crate::key::{Kind, Prefix, Resource};
use crate::time::{Instant, Ttl};

/// Looks at all servers of a handle.
#[derive(Debug, Clone)]
pub(super) struct Panel {
    pub(super) origins: Vec<Origin>,
    pub(super) settings: Settings,
    pub(super) prefix: Prefix,
    pub(super) options: Options,
}

/// What was found at one server.
struct Found {
    server: Server,
    findings: Vec<Finding>,
    run_id: Option<String>,
}

impl Found {
    fn fits(&self) -> bool {
        let problem = |finding: &Finding| finding.severity() == Severity::Problem;
        !self.findings.iter().any(problem)
    }
}

impl Looker for Panel {
    async fn look(self, exact: Vec<String>) -> Result<Report, BackendError> {
        let began = Instant::now();
        let servers = self.origins.len();
        let exact: Arc<[String]> = exact.into();
        let mut looks = JoinSet::new();
        for (server, origin) in self.origins.iter().enumerate() {
            let look = self.clone().look_at(origin.clone(), Arc::clone(&exact));
            looks.spawn(async move { (server, look.await) });
        }
        // One that panicked was not asked.
        let mut found: Vec<Result<Found, BackendError>> = Vec::new();
        found.resize_with(servers, || Err(BackendError::background_ended()));
        while let Some(ended) = looks.join_next().await {
            if let Ok((server, look)) = ended {
                found[server] = look;
            }
        }
        tell_twins(&mut found);
        report(began, found)
    }
}

/// Two addresses that lead to one server have one vote, and it is the first's.
fn tell_twins(found: &mut [Result<Found, BackendError>]) {
    for server in 1..found.len() {
        let (before, rest) = found.split_at_mut(server);
        let Some(Ok(this)) = rest.first_mut() else {
            continue;
        };
        let is_it = |other: &Result<Found, BackendError>| matches!(other, Ok(other) if other.run_id.is_some() && other.run_id == this.run_id);
        if let Some(other) = before.iter().position(is_it) {
            this.findings.push(Finding::SameServer { other: other + 1 });
        }
    }
}

/// What all of it comes to. Fails where it is decided by servers that could not be asked: they
/// may fit, or not.
fn report(began: Instant, found: Vec<Result<Found, BackendError>>) -> Result<Report, BackendError> {
    let (servers, needed) = (found.len(), rule::needed(found.len(), 1));
    let fit = |found: &&Result<Found, BackendError>| matches!(found, Ok(found) if found.fits());
    let usable = found.iter().filter(fit).count();
    let unasked = found.iter().filter(|found| found.is_err()).count();
    if usable < needed && usable + unasked >= needed {
        let elapsed = Instant::now().since(began).as_millis();
        let stood = found.iter().map(|found| match found {
            Ok(found) if found.fits() => Stood::given("it fits"),
            Ok(_) => Stood::unfit(),
            Err(error) => Stood::of_error(error),
        });
        let stood = stood.collect();
        return Err(no_quorum("checking the quorum", elapsed, needed, stood));
    }
    let mut report = Report::of_quorum(needed);
    for (server, found) in found.into_iter().enumerate() {
        let (told, findings) = match found {
            Ok(found) => (found.server, found.findings),
            Err(error) => {
                let cause = error.to_string();
                (Server::default(), vec![Finding::Unasked { cause }])
            }
        };
        let at_server = |finding| Finding::AtServer {
            server: server + 1,
            finding: Box::new(finding),
        };
        report.add(told, findings.into_iter().map(at_server).collect());
    }
    let mut of_all = Vec::new();
    if usable < needed {
        of_all.push(Finding::NoMajority { usable, needed });
    }
    if servers.is_multiple_of(2) {
        of_all.push(Finding::EvenNumber { servers });
    }
    report.find(of_all);
    Ok(report)
}

impl Panel {
    async fn look_at(self, origin: Origin, exact: Arc<[String]>) -> Result<Found, BackendError> {
        let inspector = Inspector {
            origin: origin.clone(),
            settings: self.settings.clone(),
            prefix: self.prefix.clone(),
        };
        let mut survey = inspector.begin(false, |_| true).await?;
        survey.introduce().await?;
        #[cfg(feature = "sentinel")]
        survey.ask_sentinels().await;
        survey.measure().await?;
        let needed = |command: &str| {
            let call = format!("(\"{command}\"");
            script::all().any(|script| script.code.contains(&call))
        };
        let may_eval = survey.try_commands(needed, &exact).await?;
        let scripts = link::scripts(script::all());
        survey.load_scripts(&scripts, may_eval).await?;
        self.try_votes(&mut survey, may_eval).await?;
        survey.try_pushes(&exact).await?;
        let run_id = self.judge_age(&origin, &mut survey).await?;
        let mut findings = survey.findings;
        // A quorum answers for these by its quarantine, which has findings of its own.
        findings.retain(|finding| {
            let one = Finding::NotDurable { snapshots: None };
            std::mem::discriminant(finding) != std::mem::discriminant(&one)
                && !matches!(
                    finding,
                    Finding::UnconfirmedWrites { .. } | Finding::Slow { .. }
                )
        });
        let server_timeout = self.options.server_timeout(Ttl::DEFAULT);
        if let Some(round_trip) = survey.server.round_trip
            && round_trip > server_timeout / 2
        {
            findings.push(Finding::SlowVote {
                round_trip,
                server_timeout,
            });
        }
        Ok(Found {
            server: survey.server,
            findings,
            run_id,
        })
    }

    /// Notes whether the server's votes count as yet, and whether they should; gives its `run_id`.
    async fn judge_age(
        &self,
        origin: &Origin,
        survey: &mut Survey,
    ) -> Result<Option<String>, BackendError> {
        let (term, now) = (origin.term(), Instant::now());
        let mut told = Vec::with_capacity(Arrival::QUESTIONS.len());
        for question in Arrival::QUESTIONS {
            told.push(survey.ask_one(question).await?);
        }
        let arrival = Arrival::read(0, None, (term, origin.reign(term)), &told);
        let age = arrival.age(now);
        if !self.options.quarantine {
            if age.is_some() {
                survey.find(Finding::Forgetful);
            }
        } else if let Some(age) = age {
            if arrival.uptime.is_none() {
                survey.find(Finding::Ageless);
            } else if age < Ttl::DEFAULT.get() {
                survey.find(Finding::TooYoung { age });
            }
        }
        Ok(arrival.run_id)
    }

    /// Runs each script at a gate that nobody has: takes it, renews it, gives it back.
    async fn try_votes(&self, survey: &mut Survey, may_eval: bool) -> Result<(), BackendError> {
        let Some((token, latest_ms)) = survey.who_tries() else {
            return Ok(());
        };
        for kind in Kind::ALL {
            let who = Who {
                token,
                ticket: 1,
                weight: 1,
                limit: 1,
                resource: Arc::new(Resource::probe(&self.prefix, kind, &survey.instance)),
            };
            let ask = Ask {
                lease: LEASE,
                latest_ms,
                max_waiters: 0,
                mode: Mode::Try,
                pushed: false,
                fence: 1,
            };
            let held = run(survey, may_eval, &who, Body::Ask(ask), |value| {
                let asked = reply::asked(value).ok()?.outcome;
                match asked {
                    reply::Asked::Held { fence, .. } => Some(fence),
                    _ => None,
                }
            });
            // What could not be taken can't be renewed and given back; that has been noted, too.
            let Some(fence) = held.await? else { continue };
            let renew = Body::Renew {
                fence,
                agreed: true,
                lease: LEASE,
            };
            let renewed = |value: &Value| reply::renewed(value).ok()?.outcome;
            run(survey, may_eval, &who, renew, renewed).await?;
            let end = Body::End {
                latest_ms: 0,
                stay: false,
                pushed: false,
            };
            let released = |value: &Value| reply::ended(value).ok()?.outcome.then_some(());
            run(survey, may_eval, &who, end, released).await?;
        }
        survey.clear_up().await
    }
}

/// Runs one script; gives what `read` makes of its answer, and notes one that it makes nothing of.
async fn run<T>(
    survey: &mut Survey,
    may_eval: bool,
    who: &Who,
    body: Body,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, BackendError> {
    let call = Call {
        server: 0,
        sent: Instant::now(),
        who: who.clone(),
        body,
    };
    let instance = survey.instance;
    let script = &call.script().name;
    let run = Run {
        script,
        by_digest: call.command(false, &instance, &mut survey.names),
        whole: call.command(true, &instance, &mut survey.names),
    };
    let answers = survey.run_all(vec![run], may_eval).await?;
    let Some(Some(answer)) = answers.into_iter().next() else {
        return Ok(None);
    };
    let read = read(&answer);
    if read.is_none() {
        survey.nonsense(script.clone());
    }
    Ok(read)
}
