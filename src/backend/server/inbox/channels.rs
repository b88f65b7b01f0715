//! What a subscription listens to: joined, left, and joined again where the server has ended it.

use redis::{Cmd, Pipeline, PushKind, RedisError, Value};

use super::{BATCH, Inbox, Listener, Session, Topics, forbids};
use crate::backend::server::cluster::redirect::Redirect;
use crate::backend::server::core::{Channel, Topic};
use crate::backend::server::script::Publish;
use crate::backend::server::subscription::{Subscription, out_of_step};
use crate::key::Tag;

impl<T: Fn(Inbox) + Clone + Send + Sync + 'static> Listener<T> {
    /// The server has ended a subscription by itself: the slot of its channel has moved.
    pub(super) fn lost(&self, channel: &str, topics: &mut Topics) {
        let is_it = |topic: &&Topic| match topic {
            Topic::Grants(tag) => self.prefix.shard_inbox(&self.instance, *tag) == channel,
            Topic::Released(_) => false,
        };
        // One that we have left is not among them.
        if let Some(&Topic::Grants(tag)) = topics.joined.iter().find(is_it) {
            topics.missing.insert(tag);
            self.tell(Inbox::Heard {
                tag,
                listening: false,
            });
        }
    }

    pub(super) async fn change(
        &self,
        session: &mut Session,
        changes: Vec<Channel>,
        topics: &mut Topics,
    ) -> Result<(), RedisError> {
        let mut new = Vec::new();
        for change in changes {
            match &change {
                Channel::Join(topic) => new.push(topic.clone()),
                Channel::Leave(topic) => {
                    new.retain(|other| other != topic);
                    topics.joined.remove(topic);
                    self.leave(session, topic, topics).await?;
                }
            }
            topics.change(change);
        }
        self.join_all(session, &new, topics).await
    }

    async fn leave(
        &self,
        session: &mut Session,
        topic: &Topic,
        topics: &mut Topics,
    ) -> Result<(), RedisError> {
        match topic {
            Topic::Released(channel) => {
                let leave = session.subscription.unsubscribe(channel);
                tolerate(leave.await)
            }
            Topic::Grants(tag) => {
                topics.missing.remove(tag);
                if session.publish == Publish::Plain {
                    return Ok(());
                }
                let channel = self.prefix.shard_inbox(&self.instance, *tag);
                let mut leave = Cmd::new();
                leave.arg("SUNSUBSCRIBE").arg(&channel);
                match session.subscription.ask_one(&leave).await? {
                    // Nobody is heard there any more, then.
                    Value::ServerError(_) => Ok(()),
                    answer if is_about(&answer, &PushKind::SUnsubscribe, &channel) => Ok(()),
                    _ => Err(out_of_step()),
                }
            }
        }
    }

    pub(super) async fn join_all(
        &self,
        session: &mut Session,
        new: &[Topic],
        topics: &mut Topics,
    ) -> Result<(), RedisError> {
        let mut tags = Vec::new();
        for topic in new {
            match topic {
                Topic::Released(channel) => self.join(&mut session.subscription, channel).await?,
                Topic::Grants(tag) if session.publish == Publish::Sharded => tags.push(*tag),
                // Told on the one channel, which is confirmed.
                Topic::Grants(tag) => self.tell(Inbox::Heard {
                    tag: *tag,
                    listening: true,
                }),
            }
        }
        for tags in tags.chunks(BATCH) {
            self.join_tags(session, tags, topics).await?;
        }
        Ok(())
    }

    /// Joins the channels of some tags: a command for each, since one command is for one slot.
    async fn join_tags(
        &self,
        session: &mut Session,
        tags: &[Tag],
        topics: &mut Topics,
    ) -> Result<(), RedisError> {
        let channel = |tag: &Tag| self.prefix.shard_inbox(&self.instance, *tag);
        let mut pipeline = Pipeline::with_capacity(tags.len());
        for tag in tags {
            pipeline.cmd("SSUBSCRIBE").arg(channel(tag));
        }
        let answers = session.subscription.ask(&pipeline).await?;
        for (tag, answer) in tags.iter().zip(answers) {
            match answer {
                Value::ServerError(error) => {
                    topics.missing.insert(*tag);
                    if let Some(redirect) = Redirect::of(&error) {
                        self.tell(Inbox::Moved(redirect));
                    } else if forbids(&error.clone().into()) {
                        return Err(error.into());
                    }
                }
                answer if is_about(&answer, &PushKind::SSubscribe, &channel(tag)) => {
                    topics.missing.remove(tag);
                    self.tell(Inbox::Heard {
                        tag: *tag,
                        listening: true,
                    });
                }
                _ => return Err(out_of_step()),
            }
        }
        Ok(())
    }

    /// Listens to another client's channel too, if the server allows it: without it, its key is
    /// asked for by a timer.
    async fn join(&self, subscription: &mut Subscription, channel: &str) -> Result<(), RedisError> {
        tolerate(subscription.subscribe(channel).await)
    }
}

/// One channel that is forbidden is no reason to give up the others.
fn tolerate(result: Result<(), RedisError>) -> Result<(), RedisError> {
    match result {
        Err(error) if forbids(&error) => {
            tracing::debug!(
                code = error.code(),
                "a channel for releases by other clients is forbidden"
            );
            Ok(())
        }
        other => other,
    }
}

/// Whether an answer confirms what was asked for `channel`. What a server says by itself of a
/// channel whose slot has moved is taken by the client for the answer to whatever was asked last;
/// all that follows is then one answer late.
fn is_about(answer: &Value, kind: &PushKind, channel: &str) -> bool {
    match answer {
        Value::Push { kind: said, data } => {
            said == kind
                && matches!(data.first(), Some(Value::BulkString(about)) if about == channel.as_bytes())
        }
        _ => false,
    }
}
