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
        assert!(words.keys()[..3].iter().all(is_there), "a gate's keys hold its name");
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

    pub(super) fn roster(&self) -> &str {
        &self.words.keys()[3]
    }

    pub(super) fn words(&self) -> &Words {
        &self.words
    }

    /// The call at the gate `name`, for the acquisition `number` of the process.
    pub(super) fn call(&self, name: &str, number: usize) -> Words {
        let token = format!("{}{number:022}", self.instance());
        let keys: Vec<_> =
            self.words.keys().iter().map(|key| key.replace(&self.name, name)).collect();
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let mut arguments: Vec<_> = self.words.arguments().iter().map(String::as_str).collect();
        arguments[0] = &token;
        self.words.with(&keys, &arguments)
    }
}
