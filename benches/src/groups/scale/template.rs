//! Overheard calls as templates: of other keys, for other tokens, with leases and waits that outlast
//! the run.

use crate::peers::{INSTANCE, Words};

/// How long a lease or a wait lasts that is to outlast the run, in milliseconds.
pub(super) const HOUR: &str = "3600000";

/// How long one waits that has no deadline of its own, in milliseconds.
const DAY: &str = "86400000";

/// The places of an acquire's arguments, as `lease/acquire.lua` lists them.
const LEASE: usize = 1;
const TERMS: usize = 3;
/// The places of the words in its terms.
const LIMIT: usize = 1;
const WAIT: usize = 2;
const MAX_WAITERS: usize = 3;
const PUSHED: usize = 5;

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
        set_term(&mut words, WAIT, "0");
        Self::new(words, name)
    }

    /// The same that waits, behind any number of others, and hears of its turn.
    pub(super) fn wait(words: &Words, name: &str) -> Self {
        let mut words = words.clone().with_token(words.token());
        words.set_argument(LEASE, HOUR);
        set_term(&mut words, WAIT, DAY);
        set_term(&mut words, MAX_WAITERS, "1000000");
        set_term(&mut words, PUSHED, "1");
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
        set_term(&mut self.words, LIMIT, &limit.to_string());
        self
    }

    /// The process that it comes from.
    pub(super) fn instance(&self) -> &str {
        &self.words.token()[..INSTANCE]
    }

    /// What precedes an instance in the name of its inbox.
    pub(super) fn channel(&self) -> String {
        let prefix = self.of_tag()[0].split(":{").next().unwrap_or_default();
        format!("{prefix}:inbox:")
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

fn set_term(words: &mut Words, index: usize, value: &str) {
    let mut terms: Vec<_> = words.arguments()[TERMS].split(' ').collect();
    terms[index] = value;
    let terms = terms.join(" ");
    words.set_argument(TERMS, &terms);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACQUIRE: &str = "EVALSHA abc 5 p:{t}:m:own:1 p:{t}:mq:own:1 p:{t}:mr:own:1 p:{t}:roster p:{t}:clock \
                           abcdefghijkl-token 10000 1796026260000999 1_1_86400000_10000_0_0";

    fn acquire() -> Words {
        let mut words = Words::of(ACQUIRE);
        let terms = words.arguments()[TERMS].replace('_', " ");
        words.set_argument(TERMS, &terms);
        words
    }

    #[test]
    fn a_call_is_for_another_gate_and_another_token_of_the_same_process() {
        let call = Template::acquire(&acquire(), "own:1").call("held:7", 7);
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
        assert_eq!(call.arguments()[TERMS], "1 1 0 10000 0 0");
    }

    #[test]
    fn one_that_waits_is_told_by_push() {
        let call = Template::wait(&acquire(), "own:1").call("line", 0);
        assert_eq!(call.arguments()[TERMS], "1 1 86400000 1000000 0 1");
    }

    #[test]
    fn a_template_knows_whose_calls_it_makes() {
        let template = Template::acquire(&acquire(), "own:1");
        assert_eq!(template.instance(), "abcdefghijkl");
        assert_eq!(template.channel(), "p:inbox:");
        assert_eq!(template.of_tag(), ["p:{t}:roster", "p:{t}:clock"]);
    }
}
