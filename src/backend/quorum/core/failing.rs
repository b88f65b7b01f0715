//! What a caller is told when no quorum could be had: how each server stood.

use std::borrow::Cow;

use super::vote::Stand;
use super::{Core, Entry};
use crate::backend::server::reply::Failure;
use crate::error::{BackendError, BackendErrorKind, ServerVote};
use crate::time::Instant;
use crate::token::Token;

/// How one server stood, in words, and what it said if that was an error.
#[derive(Debug)]
pub(in crate::backend::quorum) struct Stood {
    vote: ServerVote,
    words: Cow<'static, str>,
    error: Option<redis::RedisError>,
}

impl Stood {
    pub(in crate::backend::quorum) fn given(words: &'static str) -> Self {
        Self {
            vote: ServerVote::Given,
            words: words.into(),
            error: None,
        }
    }

    /// It can't give its vote, whatever is asked.
    pub(in crate::backend::quorum) fn unfit() -> Self {
        Self {
            vote: ServerVote::Failed(BackendErrorKind::Unsupported),
            words: "it does not fit".into(),
            error: None,
        }
    }

    /// With what its own error says.
    pub(in crate::backend::quorum) fn of_error(error: &BackendError) -> Self {
        Self {
            vote: ServerVote::Failed(error.kind()),
            words: error.to_string().into(),
            error: None,
        }
    }

    fn failed((kind, words): (BackendErrorKind, Cow<'static, str>), failure: &Failure) -> Self {
        let error = match failure {
            Failure::Unknown(Some(error))
            | Failure::NotNow(_, error)
            | Failure::Final(_, error) => Some(error.clone()),
            Failure::NotSent | Failure::Unknown(None) | Failure::NoScript => None,
        };
        Self {
            vote: ServerVote::Failed(kind),
            words,
            error,
        }
    }
}

impl Core {
    pub(super) fn waiter_error(&self, now: Instant, token: Token) -> BackendError {
        let Some(Entry::Waiting(waiter)) = self.entries.get(&token) else {
            return BackendError::background_ended();
        };
        let ttl = waiter.request.terms.ttl.get();
        let stood = waiter.votes.iter().enumerate().map(|(server, vote)| {
            let given = vote.grant(now).is_some();
            match &vote.stand {
                _ if given => Stood::given("held"),
                Stand::Busy(_) | Stand::Full(_) | Stand::Queued(_) => Stood {
                    vote: ServerVote::Busy,
                    words: "held by others".into(),
                    error: None,
                },
                Stand::Failed(failure) if !matches!(**failure, Failure::NotSent) => {
                    let trouble = self.servers[server].trouble.as_ref();
                    Stood::failed(failure.in_words(trouble), failure)
                }
                Stand::Unasked | Stand::Failed(_) | Stand::Held(_) => {
                    let error = self.servers[server].trouble.as_ref();
                    let away = !self.servers[server].up;
                    Stood {
                        error: error.filter(|_| away).map(|trouble| trouble.error.clone()),
                        ..Stood::failed(self.absence(now, server, ttl), &Failure::NotSent)
                    }
                }
            }
        });
        let doing = format!("acquiring `{}`", waiter.request.resource.gate);
        no_quorum(
            &doing,
            now.since(waiter.since).as_millis(),
            waiter.needed,
            stood.collect(),
        )
    }

    pub(super) fn ending_error(&self, now: Instant, token: Token) -> BackendError {
        let Some(Entry::Ending(ending)) = self.entries.get(&token) else {
            return BackendError::background_ended();
        };
        let stood = ending.rest.iter().enumerate().map(|(server, rest)| {
            let trouble = self.servers[server].trouble.as_ref();
            match &rest.failure {
                _ if !rest.todo => Stood::given("answered"),
                Some(failure) => Stood::failed(failure.in_words(trouble), failure),
                None if self.servers[server].up => {
                    let silent = Failure::Unknown(None);
                    Stood::failed(silent.in_words(None), &silent)
                }
                None => Stood::failed(Failure::NotSent.in_words(trouble), &Failure::NotSent),
            }
        });
        let doing = format!("releasing `{}`", ending.who.resource.gate);
        let needed = ending.held.map_or(1, |(_, needed)| needed);
        let elapsed = now.since(ending.since).as_millis();
        no_quorum(&doing, elapsed, needed, stood.collect())
    }
}

pub(in crate::backend::quorum) fn no_quorum(
    doing: &str,
    elapsed: u128,
    needed: usize,
    stood: Vec<Stood>,
) -> BackendError {
    let votes: Vec<ServerVote> = stood.iter().map(|stood| stood.vote).collect();
    let given = votes.iter().filter(|vote| **vote == ServerVote::Given);
    let given = given.count();
    let kinds: Vec<BackendErrorKind> = votes
        .iter()
        .filter_map(|vote| match vote {
            ServerVote::Failed(kind) => Some(*kind),
            ServerVote::Given | ServerVote::Busy => None,
        })
        .collect();
    // What most have in common; of kinds that are as many, the first.
    let common = |kind: &BackendErrorKind| kinds.iter().filter(|other| *other == kind).count();
    let kind = kinds.iter().rev().copied().max_by_key(common);
    let kind = kind.unwrap_or(BackendErrorKind::TimedOut);
    let of_kind = |stood: &&Stood| stood.vote == ServerVote::Failed(kind);
    let source = stood
        .iter()
        .filter(of_kind)
        .find_map(|stood| stood.error.clone());
    let servers = votes.len();
    let mut text = format!(
        "{doing} (after {elapsed} ms): {given} of {servers} servers gave their vote, and {needed} \
         are needed"
    );
    for (server, stood) in stood.iter().enumerate() {
        let mark = if server == 0 { ':' } else { ';' };
        text.push_str(&format!("{mark} server {}: {}", server + 1, stood.words));
    }
    text.push_str("; see to those that fail");
    BackendError::of_servers(kind, text, source, votes)
}
