//! Every command that scripts run, tried by itself, so that each missing right is named.
//!
//! All are tried on one key that holds a text for some seconds. A server judges a user's rights
//! before it looks at a key's type, so those of other types fail there, and leave nothing behind.

use redis::Pipeline;

use super::{KEEP, Outcome, Survey};
use crate::check::{Finding, Severity};
use crate::error::BackendError;

/// Stands for the key.
const KEY: &str = "KEY";

/// What a script runs, apart from `SET`, `PEXPIRE` and `DEL`, which frame these, and `PUBLISH`, which
/// is tried where somebody listens.
const COMMANDS: [(&str, &[&str]); 18] = [
    ("+exists", &["EXISTS", KEY]),
    ("+get", &["GET", KEY]),
    ("+hdel", &["HDEL", KEY, "f"]),
    ("+hget", &["HGET", KEY, "f"]),
    ("+hmget", &["HMGET", KEY, "f"]),
    ("+hset", &["HSET", KEY, "f", "v"]),
    ("+mget", &["MGET", KEY]),
    ("+pttl", &["PTTL", KEY]),
    ("+time", &["TIME"]),
    ("+zadd", &["ZADD", KEY, "1", "m"]),
    ("+zcard", &["ZCARD", KEY]),
    ("+zmscore", &["ZMSCORE", KEY, "m"]),
    ("+zrange", &["ZRANGE", KEY, "0", "0"]),
    ("+zrangebyscore", &["ZRANGEBYSCORE", KEY, "0", "0"]),
    ("+zrank", &["ZRANK", KEY, "m"]),
    ("+zrem", &["ZREM", KEY, "m"]),
    ("+zremrangebyscore", &["ZREMRANGEBYSCORE", KEY, "0", "0"]),
    ("+zscore", &["ZSCORE", KEY, "m"]),
];

/// What would make a key if there were none.
const MAKERS: [&str; 2] = ["+hset", "+zadd"];

impl Survey {
    /// Tries all commands that are `needed`, by their names in scripts, and the rights to the keys of
    /// others. Returns whether scripts may be sent whole.
    pub(in crate::backend) async fn try_commands(
        &mut self,
        needed: impl Fn(&str) -> bool,
        exact: &[String],
    ) -> Result<bool, BackendError> {
        let keep = KEEP.as_millis().to_string();
        let key = self.place.main().to_owned();
        let set = vec!["SET", &key, "check", "PX", &keep];
        let expire = vec!["PEXPIRE", &key, &keep];
        let framed = vec![("+set", set), ("+pexpire", expire.clone())];
        let [is_set, expires] = self.try_each(&framed).await?[..] else {
            return Ok(false);
        };
        // Where neither is allowed, what makes a key would leave it for good; that is found when the
        // others are mended.
        let may_make = is_set || expires;
        let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
        for (rule, words) in COMMANDS.into_iter().filter(|(_, words)| needed(words[0])) {
            if may_make || !MAKERS.contains(&rule) {
                let words = words
                    .iter()
                    .map(|&word| if word == KEY { &key } else { word });
                commands.push((rule, words.collect()));
            }
        }
        if expires {
            commands.push(("+pexpire", expire));
        }
        commands.push(("+del", vec!["DEL", &key]));
        self.try_each(&commands).await?;

        let may_eval = !self.inspector.settings.preloaded && {
            let whole = self.ask_one(&["EVAL", "return 1", "1", &key]).await?;
            let outcome = self.judge(whole, Some(("+eval", Severity::Warning)))?;
            !matches!(outcome, Outcome::Denied)
        };
        // By a digest that no script has.
        let by_digest = self.ask_one(&["EVALSHA", &"0".repeat(40), "0"]).await?;
        self.judge(by_digest, Some(("+evalsha", Severity::Problem)))?;
        if self.inspector.settings.replicas.is_some() {
            // For none, which are there at once.
            let waited = self.ask_one(&["WAIT", "0", "0"]).await?;
            self.judge(waited, Some(("+wait", Severity::Problem)))?;
        }
        for key in exact {
            // Whoever may run a script with a key may do all with it. Nothing is done.
            let words: &[&str] = if may_eval {
                &["EVAL", "return 1", "1", key]
            } else {
                &["PTTL", key]
            };
            let answer = self.ask_one(words).await?;
            let known = self.findings.len();
            if matches!(self.judge(answer, None)?, Outcome::Denied) {
                // It is this key that is denied, not those under the prefix.
                self.findings.truncate(known);
                self.lacks(format!("~{key}"), Severity::Problem);
            }
        }
        Ok(may_eval)
    }

    /// Tries commands in one round trip; says of each whether it was done.
    async fn try_each(
        &mut self,
        commands: &[(&str, Vec<&str>)],
    ) -> Result<Vec<bool>, BackendError> {
        let mut pipeline = Pipeline::new();
        for (_, words) in commands {
            pipeline.cmd(words[0]).arg(&words[1..]);
        }
        let mut done = Vec::with_capacity(commands.len());
        for ((rule, _), answer) in commands.iter().zip(self.ask(&pipeline).await?) {
            let outcome = self.judge(answer, Some((rule, Severity::Problem)))?;
            match &outcome {
                // As is meant: the key is of another type.
                Outcome::Failed(code) if code == "WRONGTYPE" => {}
                Outcome::Failed(code) => {
                    let (command, code) = (rule.trim_start_matches('+').to_owned(), code.clone());
                    self.find(Finding::CommandFails { command, code });
                }
                Outcome::Done(_) | Outcome::NotNow | Outcome::Denied => {}
            }
            done.push(matches!(outcome, Outcome::Done(_)));
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::super::script::{Publish, Script};
    use super::*;

    fn commands<'a>(scripts: impl Iterator<Item = &'a Script>) -> BTreeSet<&'a str> {
        let mut run = BTreeSet::new();
        for script in scripts {
            for call in ["redis.call(\"", "redis.pcall(\""] {
                let rest = script.code.split(call).skip(1);
                run.extend(rest.filter_map(|rest| rest.split('"').next()));
            }
        }
        run
    }

    /// The same that `scripts/check acl` holds against SECURITY.md.
    #[test]
    fn every_command_of_every_script_is_tried() {
        let run = commands(Script::all(Publish::Plain));
        let of_quorum = commands(crate::backend::quorum::scripts());
        assert!(of_quorum.is_subset(&run), "{of_quorum:?}");
        let mut tried: BTreeSet<&str> = COMMANDS.iter().map(|(_, words)| words[0]).collect();
        tried.extend(["SET", "PEXPIRE", "DEL", "PUBLISH"]);
        assert_eq!(tried, run);
        for (rule, words) in COMMANDS {
            assert_eq!(rule[1..], words[0].to_lowercase());
        }
    }
}
