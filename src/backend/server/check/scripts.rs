//! Every script, run for real at gates that nobody has: take, renew, give back.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};

use super::{NONSENSE, Outcome, Survey};
use crate::backend::server::call::{Ask, Body, Call, End, Extend, Recheck, Renew, Take};
use crate::backend::server::reply::{self, Acquired, Ended, Rechecked, Renewed, Taken};
use crate::backend::server::script::{Script, Verb};
use crate::backend::{self, Op};
use crate::check::{Finding, Severity};
use crate::error::BackendError;
use crate::key::{Kind, Resource, Subject};
use crate::rate_limit::{Quota, Quotas};
use crate::time::Instant;
use crate::token::{FencingToken, Token};

/// The longest that a lease stays that is not given back.
pub(in crate::backend) const LEASE: Duration = Duration::from_secs(1);

/// What no script has.
const NO_DIGEST: &str = "0000000000000000000000000000000000000000";

/// One gate that nobody has, and who holds it.
struct Trial {
    kind: Kind,
    resource: Arc<Resource>,
    token: Token,
    fence: Option<FencingToken>,
}

impl Survey {
    /// Loads scripts, unless somebody else does.
    pub(in crate::backend) async fn load_scripts(
        &mut self,
        scripts: &Pipeline,
        may_eval: bool,
    ) -> Result<(), BackendError> {
        if self.inspector.settings.preloaded {
            return Ok(());
        }
        let mut known = Pipeline::new();
        known.cmd("SCRIPT").arg("EXISTS").arg(NO_DIGEST);
        for answer in self.ask(&known).await? {
            let rule = Some(("+script|exists", Severity::Note));
            if let Outcome::Failed(code) = self.judge(answer, rule)? {
                let command = "script|exists".to_owned();
                self.find(Finding::CommandFails { command, code });
            }
        }
        let mut may_load = true;
        for answer in self.ask(scripts).await? {
            let rule = Some(("+script|load", Severity::Note));
            match self.judge(answer, rule)? {
                Outcome::Denied => may_load = false,
                Outcome::Failed(code) => {
                    let command = "script|load".to_owned();
                    self.find(Finding::CommandFails { command, code });
                }
                Outcome::Done(_) | Outcome::NotNow => {}
            }
        }
        if !may_load && !may_eval {
            // No script gets to the server: that is no mere cost.
            for finding in &mut self.findings {
                if let Finding::MissingRight { rule, severity } = finding
                    && ["+script|load", "+eval"].contains(&&**rule)
                {
                    *severity = Severity::Problem;
                }
            }
        }
        Ok(())
    }

    /// Who is to try them, and until when on the server's clock; `None` where they can't be tried.
    pub(in crate::backend) fn who_tries(&self) -> Option<(Token, u64)> {
        // A script that is denied a command half-way would leave what it wrote before.
        if self.findings.iter().any(is_missing_right) {
            return None;
        }
        // Without a clock there is no deadline to give them; that has been noted.
        let (us, seen) = self.server_us?;
        let later = Instant::now().since(seen) + self.patience();
        let latest_ms = us / 1000 + u64::try_from(later.as_millis()).unwrap_or_default();
        Some((Token::draw().ok()?, latest_ms))
    }

    pub(super) async fn run_scripts(&mut self, may_eval: bool) -> Result<(), BackendError> {
        let Some((token, latest_ms)) = self.who_tries() else {
            return Ok(());
        };
        let mut trials = Vec::new();
        for kind in Kind::ALL {
            let resource = Resource::probe(&self.inspector.prefix, kind, &self.instance);
            trials.push(Trial {
                kind,
                resource: resource.into(),
                token,
                fence: None,
            });
        }
        let acquires = trials.iter().map(|trial| trial.acquire(latest_ms));
        let answers = self.run_calls(acquires.collect(), may_eval).await?;
        for (trial, answer) in trials.iter_mut().zip(answers) {
            let Some(answer) = answer else { continue };
            match reply::acquired(&answer, LEASE).map(|reply| reply.outcome) {
                Ok(Acquired::Held { fence, .. }) => trial.fence = Some(fence),
                _ => self.nonsense(
                    Script::get(trial.kind, Verb::Acquire, self.publish)
                        .name
                        .clone(),
                ),
            }
        }
        // What could not be taken can't be renewed and given back; that has been noted, too.
        trials.retain(|trial| trial.fence.is_some());
        let renewals = trials.iter().map(Trial::renewal).collect();
        for (trial, answer) in trials.iter().zip(self.run_calls(renewals, may_eval).await?) {
            if let Some(answer) = answer {
                let left = reply::renewed(&answer).map(|reply| reply.outcome.1);
                if !matches!(left.as_deref(), Ok([Renewed::Left(_)])) {
                    self.nonsense(
                        Script::get(trial.kind, Verb::Renew, self.publish)
                            .name
                            .clone(),
                    );
                }
            }
        }
        let questions = trials.iter().map(Trial::question).collect();
        for (trial, answer) in trials
            .iter()
            .zip(self.run_calls(questions, may_eval).await?)
        {
            if let Some(answer) = answer {
                let rechecked = reply::rechecked(&answer).map(|reply| reply.outcome);
                if !matches!(&rechecked, Ok(Rechecked { others: false, held, .. }) if held == &[true])
                {
                    self.nonsense(
                        Script::get(trial.kind, Verb::Recheck, self.publish)
                            .name
                            .clone(),
                    );
                }
            }
        }
        self.try_swaps(&mut trials, may_eval).await?;
        let ends = trials.iter().map(Trial::end).collect();
        for (trial, answer) in trials.iter().zip(self.run_calls(ends, may_eval).await?) {
            if let Some(answer) = answer {
                let ended = reply::ended(&answer).map(|reply| reply.outcome.0);
                if ended != Ok(Ended::Released) {
                    self.nonsense(
                        Script::get(trial.kind, Verb::End, self.publish)
                            .name
                            .clone(),
                    );
                }
            }
        }
        self.try_quotas(may_eval).await?;
        self.clear_up().await
    }

    /// Gives each of the gates back and takes it again at once, by another token.
    async fn try_swaps(
        &mut self,
        trials: &mut [Trial],
        may_eval: bool,
    ) -> Result<(), BackendError> {
        // By a deadline of their own: some time has passed.
        let Some((next, latest_ms)) = self.who_tries() else {
            return Ok(());
        };
        let swaps = trials.iter().map(|trial| trial.swap(next, latest_ms));
        let answers = self.run_calls(swaps.collect(), may_eval).await?;
        for (trial, answer) in trials.iter_mut().zip(answers) {
            let Some(answer) = answer else { continue };
            let parts = match &answer {
                Value::Array(parts) => parts.as_slice(),
                _ => &[],
            };
            let ended = parts.first().map(reply::ended);
            let asked = parts.get(1).map(|asked| reply::acquired(asked, LEASE));
            if let (Some(Ok(ended)), Some(Ok(asked))) = (ended, asked)
                && ended.outcome.0 == Ended::Released
                && matches!(asked.outcome, Acquired::Held { .. })
            {
                trial.token = next;
            } else {
                self.nonsense(
                    Script::get(trial.kind, Verb::Swap, self.publish)
                        .name
                        .clone(),
                );
            }
        }
        Ok(())
    }

    /// Uses a unit of a quota that nobody has, and forgets it.
    async fn try_quotas(&mut self, may_eval: bool) -> Result<(), BackendError> {
        let subject = Arc::new(Subject::probe(&self.inspector.prefix, &self.instance));
        // One that is back after a second, should this look be cut short.
        let Ok(quotas) = Quotas::new([Quota::per_second(1)]) else {
            return Ok(());
        };
        for op in [Op::Check, Op::Reset] {
            let take = backend::Take {
                op,
                cost: 1,
                quotas: quotas.clone(),
                bridge: None,
            };
            let call = Call {
                sent: Instant::now(),
                body: Body::Take(Take {
                    id: 0,
                    subject: Arc::clone(&subject),
                    take: take.clone(),
                }),
            };
            let answers = self.run_calls(vec![call], may_eval).await?;
            for answer in answers.into_iter().flatten() {
                let taken = reply::taken(&answer, &take);
                if !matches!(taken, Ok(Taken::Decided { admitted: true, .. })) {
                    self.nonsense(Script::take().name.clone());
                }
            }
        }
        Ok(())
    }

    /// Removes what a script that failed half-way may have left without an end. The keys that a tag's
    /// gates share are theirs, and end by themselves.
    pub(in crate::backend) async fn clear_up(&mut self) -> Result<(), BackendError> {
        let fails = |finding: &Finding| matches!(finding, Finding::ScriptFails { .. });
        if !self.findings.iter().any(fails) {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        for kind in Kind::ALL {
            let place = Resource::probe(&self.inspector.prefix, kind, &self.instance);
            for key in [place.main(), place.queue(), place.records()] {
                pipeline.cmd("DEL").arg(key);
            }
        }
        self.ask(&pipeline).await.map(drop)
    }

    pub(in crate::backend) fn nonsense(&mut self, script: String) {
        let code = NONSENSE.to_owned();
        self.find(Finding::ScriptFails { script, code });
    }

    async fn run_calls(
        &mut self,
        calls: Vec<Call>,
        may_eval: bool,
    ) -> Result<Vec<Option<Value>>, BackendError> {
        let (publish, instance) = (self.publish, self.instance);
        let runs = calls.iter().map(|call| {
            let mut command = |whole| call.command(publish, whole, &instance, &mut self.names);
            Run {
                script: &call.script(publish).name,
                by_digest: command(false),
                whole: command(true),
            }
        });
        let runs = runs.collect();
        self.run_all(runs, may_eval).await
    }

    /// Runs scripts in one round trip, or two where the server does not know some; what each answers
    /// that is done.
    pub(in crate::backend) async fn run_all(
        &mut self,
        runs: Vec<Run<'_>>,
        may_eval: bool,
    ) -> Result<Vec<Option<Value>>, BackendError> {
        let mut answers = Vec::with_capacity(runs.len());
        if runs.is_empty() {
            return Ok(answers);
        }
        let mut pipeline = Pipeline::with_capacity(runs.len());
        for run in &runs {
            pipeline.add_command(run.by_digest.clone());
        }
        let by_digest = self.ask(&pipeline).await?;
        for (run, answer) in runs.iter().zip(by_digest) {
            let mut outcome = self.judge(answer, Some(("+evalsha", Severity::Problem)))?;
            if may_eval && matches!(&outcome, Outcome::Failed(code) if code == "NOSCRIPT") {
                let mut pipeline = Pipeline::new();
                pipeline.add_command(run.whole.clone());
                let whole = self.ask(&pipeline).await?;
                let whole = whole.into_iter().next().unwrap_or(Value::Nil);
                outcome = self.judge(whole, None)?;
            }
            let script = run.script.to_owned();
            answers.push(match outcome {
                Outcome::Done(value) => Some(value),
                Outcome::Failed(code)
                    if code == "NOSCRIPT" && self.inspector.settings.preloaded =>
                {
                    self.find(Finding::NotLoaded { script });
                    None
                }
                Outcome::Failed(code) => {
                    self.find(Finding::ScriptFails { script, code });
                    None
                }
                Outcome::Denied => {
                    // All that it runs was allowed by itself.
                    let code = "NOPERM".to_owned();
                    self.find(Finding::ScriptFails { script, code });
                    None
                }
                Outcome::NotNow => None,
            });
        }
        Ok(answers)
    }
}

/// A script to run, and how to send it.
pub(in crate::backend) struct Run<'a> {
    pub(in crate::backend) script: &'a str,
    pub(in crate::backend) by_digest: Cmd,
    pub(in crate::backend) whole: Cmd,
}

fn is_missing_right(finding: &Finding) -> bool {
    matches!(finding, Finding::MissingRight { severity, .. } if *severity == Severity::Problem)
}

impl Trial {
    fn ask(&self, token: Token, latest_ms: u64) -> Ask {
        Ask {
            token,
            resource: self.resource.clone(),
            weight: 1,
            limit: 1,
            lease: LEASE,
            latest_ms,
            wait: Some(Duration::ZERO),
            max_waiters: 0,
            ticket: 0,
            pushed: false,
            kept: 0,
        }
    }

    fn acquire(&self, latest_ms: u64) -> Call {
        Call {
            sent: Instant::now(),
            body: Body::Acquire(self.ask(self.token, latest_ms)),
        }
    }

    fn swap(&self, next: Token, latest_ms: u64) -> Call {
        let ask = self.ask(next, latest_ms);
        Call {
            sent: Instant::now(),
            body: Body::Swap(Box::new((self.give_back(), ask))),
        }
    }

    fn renewal(&self) -> Call {
        let lease = Extend {
            token: self.token,
            resource: self.resource.clone(),
            fence: self.fence.unwrap_or(FencingToken::new(0)),
            lease: LEASE,
        };
        let renew = Renew {
            acknowledged: false,
            tag: self.resource.tag,
            kind: self.kind,
            waits: false,
            leases: vec![lease],
        };
        Call {
            sent: Instant::now(),
            body: Body::Renew(renew),
        }
    }

    fn question(&self) -> Call {
        let recheck = Recheck {
            resource: self.resource.clone(),
            tokens: vec![self.token],
        };
        Call {
            sent: Instant::now(),
            body: Body::Recheck(recheck),
        }
    }

    fn give_back(&self) -> End {
        End {
            token: self.token,
            resource: self.resource.clone(),
            latest_ms: 0,
        }
    }

    fn end(&self) -> Call {
        Call {
            sent: Instant::now(),
            body: Body::End(self.give_back()),
        }
    }
}
