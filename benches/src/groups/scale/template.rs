//! Overheard calls as templates: of other keys, for other tokens, with leases and waits that outlast
//! the run.

use crate::peers::{INSTANCE, Words};

/// How long a lease or a wait lasts that is to outlast the run, in milliseconds.
pub(super) const HOUR: &str = "3600000";

/// The places of an acquire's arguments, as `lease/acquire.lua` lists them.
const LIMIT: usize = 3;
const LEASE: usize = 4;
const WAIT: usize = 6;
const MAX_WAITERS: usize = 7;
const PUSHED: usize = 9;

/// A call and the text in its keys that stands for which of many it is.
#[derive(Debug, Clone)]
pub(super) struct Template {
    words: Words,
    name: String,
}

impl Template {
    /// Of an acquire that was overheard at a gate named `name`: its lease lasts, and it does not
    /// wait.
    pub(super) fn acquire(words: &Words, name: &str) -> Self {
        let mut words = words.clone().with_token(words.token());
        words.set_argument(LEASE, HOUR);
        words.set_argument(WAIT, "0");
        Self::new(words, name)
    }

    /// The same that waits, behind any number of others, and hears of its turn.
    pub(super) fn wait(words: &Words, name: &str) -> Self {
        let mut words = words.clone().with_token(words.token());
        words.set_argument(LEASE, HOUR);
        words.set_argument(WAIT, HOUR);
        words.set_argument(MAX_WAITERS, "1000000");
        words.set_argument(PUSHED, "1");
        Self::new(words, name)
    }

    pub(super) fn end(words: &Words, name: &str) -> Self {
        Self::new(words.clone().with_token(words.token()), name)
    }

    fn new(words: Words, name: &str) -> Self {
        let is_there = |key: &String| key.contains(name);
        assert!(
            words.keys()[..3].iter().all(is_there),
            "a gate's keys hold its name"
        );
        Self {
            words,
            name: name.to_owned(),
        }
    }

    pub(super) fn limit(mut self, limit: usize) -> Self {
        self.words.set_argument(LIMIT, &limit.to_string());
        self
    }

    /// The process that it comes from.
    pub(super) fn instance(&self) -> &str {
        &self.words.token()[..INSTANCE]
    }

    /// What precedes an instance in the name of its inbox.
    pub(super) fn channel(&self) -> &str {
        &self.words.arguments()[1]
    }

    /// What all gates of a hash tag share: their roster and their clock.
    pub(super) fn of_tag(&self) -> [&str; 2] {
        [3, 4].map(|key| self.words.keys()[key].as_str())
    }

    /// The call at the gate `name`, for the acquisition `number` of the process.
    pub(super) fn call(&self, name: &str, number: usize) -> Words {
        let token = format!("{}{number:022}", self.instance());
        let keys: Vec<_> = self
            .words
            .keys()
            .iter()
            .map(|key| key.replace(&self.name, name))
            .collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let mut arguments: Vec<_> = self.words.arguments().iter().map(String::as_str).collect();
        arguments[0] = &token;
        self.words.with(&keys, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACQUIRE: &str = "EVALSHA abc 5 p:{t}:m:own:1 p:{t}:mq:own:1 p:{t}:mr:own:1 p:{t}:roster p:{t}:clock \
                           abcdefghijkl-token p:inbox: 1 1 10000 1796026260000 86400000 10000 0 0";

    #[test]
    fn a_call_is_for_another_gate_and_another_token_of_the_same_process() {
        let call = Template::acquire(&Words::of(ACQUIRE), "own:1").call("held:7", 7);
        let gate = [
            "p:{t}:m:held:7",
            "p:{t}:mq:held:7",
            "p:{t}:mr:held:7",
            "p:{t}:roster",
            "p:{t}:clock",
        ];
        assert_eq!(call.keys(), gate);
        assert_eq!(call.token(), "abcdefghijkl0000000000000000000007");
        assert_eq!(call.arguments()[LEASE], HOUR);
        assert_eq!(call.arguments()[WAIT], "0");
    }

    #[test]
    fn one_that_waits_is_told_by_push() {
        let call = Template::wait(&Words::of(ACQUIRE), "own:1").call("line", 0);
        assert_eq!(call.arguments()[WAIT], HOUR);
        assert_eq!(call.arguments()[PUSHED], "1");
    }

    #[test]
    fn a_template_knows_whose_calls_it_makes() {
        let template = Template::acquire(&Words::of(ACQUIRE), "own:1");
        assert_eq!(template.instance(), "abcdefghijkl");
        assert_eq!(template.channel(), "p:inbox:");
        assert_eq!(template.of_tag(), ["p:{t}:roster", "p:{t}:clock"]);
    }
}
