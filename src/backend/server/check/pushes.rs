//! The way of a push: subscribed to where the handle listens, published where it commands.

use std::sync::Arc;

use redis::{AsyncConnectionConfig, RedisError, ServerError, Value};

use super::{Outcome, Survey};
use crate::backend::server::reply::failure::Trouble;
use crate::backend::server::script::Publish;
use crate::backend::server::subscription::Subscription;
use crate::check::{Finding, Severity};
use crate::error::BackendError;

impl Survey {
    /// Listens, and publishes what nobody takes for a grant.
    pub(in crate::backend) async fn try_pushes(
        &mut self,
        exact: &[String],
    ) -> Result<(), BackendError> {
        let prefix = &self.inspector.prefix;
        let (channel, publish, subscribe) = match self.publish {
            Publish::Plain => (prefix.inbox(&self.instance), "+publish", "+subscribe"),
            Publish::Sharded => {
                let channel = prefix.shard_inbox(&self.instance, self.place.tag);
                (channel, "+spublish", "+ssubscribe")
            }
        };
        // Kept until the end: who listens is counted.
        let mut listening = self.subscriber().await;
        let mut listens = false;
        if let Some(connection) = &mut listening {
            let subscribed = match self.publish {
                Publish::Plain => connection.subscribe(&channel).await,
                Publish::Sharded => connection.join_slot(&channel).await,
            };
            listens = self.note(subscribed, (subscribe, Severity::Warning))?;
            let pinged = connection.ping().await;
            let pinged = pinged.and_then(|answer| answer.extract_error().map(drop));
            self.note(pinged, ("+ping", Severity::Note))?;
            for key in exact {
                self.try_channel(connection, &format!("{key}:released"))
                    .await?;
            }
        }
        let command = publish.trim_start_matches('+').to_owned();
        let answer = self.ask_one(&[&command, &channel, "check"]).await?;
        match self.judge(answer, Some((publish, Severity::Warning)))? {
            Outcome::Done(Value::Int(0)) if listens => self.find(Finding::Unheard),
            Outcome::Failed(code) => {
                self.find(Finding::CommandFails { command, code });
            }
            Outcome::Done(_) | Outcome::NotNow | Outcome::Denied => {}
        }
        Ok(())
    }

    /// The channel on which other clients of a key tell of releases.
    async fn try_channel(
        &mut self,
        connection: &mut Subscription,
        channel: &str,
    ) -> Result<(), BackendError> {
        let known = self.findings.len();
        let subscribed = connection.subscribe(channel).await;
        let listens = self.note(subscribed, ("+subscribe", Severity::Warning))?;
        if !listens {
            if !self.lacks_already("+subscribe") {
                // Of the channels it is this one that is denied.
                self.findings.truncate(known);
                self.lacks(format!("&{channel}"), Severity::Warning);
            }
            return Ok(());
        }
        let left = connection.unsubscribe(channel).await;
        self.note(left, ("+unsubscribe", Severity::Note))?;
        Ok(())
    }

    fn lacks_already(&self, right: &str) -> bool {
        let is_it = |finding: &Finding| matches!(finding, Finding::MissingRight { rule, .. } if rule == right);
        self.findings.iter().any(is_it)
    }

    async fn subscriber(&mut self) -> Option<Subscription> {
        let (origin, settings) = (&self.inspector.origin, &self.inspector.settings);
        if !origin.can_listen() {
            self.find(Finding::NoSubscriber);
            return None;
        }
        // Nobody takes the pushes: that one would come is seen from where it is sent.
        let listening = if self.in_cluster {
            let config = AsyncConnectionConfig::new();
            let opened = origin.listen_to_slots(settings, config).await;
            opened.map(|opened| Subscription::to_slots(opened, Arc::default(), settings))
        } else {
            let listening = origin.listen(settings, |_, _| ()).await;
            listening.map(|(subscription, _)| subscription)
        };
        match listening {
            Ok(subscription) => Some(subscription),
            Err(error) => {
                let cause = Trouble::of(error).cause.into_owned();
                self.find(Finding::SubscriberFails { cause });
                None
            }
        }
    }

    /// Notes how a request on the subscription went; whether it was done.
    fn note(
        &mut self,
        result: Result<(), RedisError>,
        rule: (&str, Severity),
    ) -> Result<bool, BackendError> {
        let Err(error) = result else { return Ok(true) };
        if let Ok(error) = ServerError::try_from(error.clone()) {
            let outcome = self.judge(Value::ServerError(error), Some(rule))?;
            if matches!(outcome, Outcome::Denied) {
                return Ok(false);
            }
        }
        let cause = Trouble::of(error).cause.into_owned();
        self.find(Finding::SubscriberFails { cause });
        Ok(false)
    }
}
