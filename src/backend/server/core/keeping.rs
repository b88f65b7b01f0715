//! What is heard of gates that this process keeps permits of: whether others wait, and what the server
//! has forgotten.

use std::sync::Arc;

use super::{Core, Entry};
use crate::backend::server::call::{Body, Call, Recheck};
use crate::backend::server::home::News;
use crate::backend::server::reply::{Failure, Rechecked};
use crate::key::Resource;
use crate::lease::LostReason;
use crate::time::Instant;
use crate::token::Token;

impl Core {
    /// Asks once whether others wait at a gate, and which of these leases the server knows.
    pub(super) fn recheck(&mut self, now: Instant, resource: Arc<Resource>, tokens: Vec<Token>) {
        // Recalls have to be heard for as long as anything is kept.
        self.listen(now, resource.tag);
        let body = Body::Recheck(Recheck { resource, tokens });
        self.calls.push(Call { sent: now, body });
    }

    pub(super) fn rechecked(
        &mut self,
        now: Instant,
        call: &Recheck,
        result: Result<Rechecked, Failure>,
    ) {
        let answer = result.ok().map(|said| {
            for (token, held) in call.tokens.iter().zip(&said.held) {
                // All of them were granted before the question was sent.
                if !held {
                    self.lose(now, *token, LostReason::Gone);
                }
            }
            (said.stamp, said.others)
        });
        self.hear(&call.resource, News::Rechecked(answer));
    }

    /// A grant tells whether others wait.
    pub(super) fn others_told(&mut self, token: Token, stamp: u64, wait: bool) {
        let resource = match self.entries.get(&token) {
            Some(Entry::Waiting(waiter)) if waiter.request.terms.kept > 0 => {
                Arc::clone(&waiter.request.resource)
            }
            _ => return,
        };
        self.hear(&resource, News::Others { stamp, wait });
    }

    /// Another process waits at the gate with this main key.
    pub(super) fn recalled(&mut self, stamp: u64, main: Box<str>) {
        self.news.push((main, News::Others { stamp, wait: true }));
    }

    pub(super) fn hear(&mut self, resource: &Resource, news: News) {
        self.news.push((resource.main().into(), news));
    }
}
