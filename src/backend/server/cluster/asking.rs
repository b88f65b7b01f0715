//! One node asked for its view of the cluster, and all that were named for theirs.

use std::collections::BTreeSet;
use std::sync::Arc;

use redis::RedisError;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::map::{Map, Number};
use super::redirect::Address;
use super::seeds::Seeds;
use super::view::{self, View};
use crate::backend::server::Settings;
use crate::backend::server::link::timed_out;
use crate::backend::server::origin::Origin;
use crate::backend::server::wire::Wire;
use crate::time::Instant;

/// Over the connection that there is, or over one of its own.
pub(super) async fn ask(
    node: &Address,
    connection: Option<Wire>,
    origin: Option<Arc<Origin>>,
    settings: &Settings,
) -> Result<View, RedisError> {
    let mut connection = match (connection, origin) {
        (Some(connection), _) => connection,
        (None, Some(origin)) => origin.connect(settings).await?.connection,
        (None, None) => return Err(no_address()),
    };
    let questions = view::questions();
    let asking = connection.send_packed_commands(&questions, 0, questions.len());
    let answers = timeout(settings.command_timeout, asking).await;
    view::read(&node.host, answers.map_err(|_| timed_out())??)
}

/// What all together tell who were named and answer.
///
/// # Errors
///
/// Why one does not, if none does.
pub(in crate::backend::server) async fn ask_all(
    seeds: &Seeds,
    settings: &Settings,
) -> Result<Map, RedisError> {
    let (mut map, mut known, mut asking) = (Map::new(), false, JoinSet::new());
    for node in seeds.addresses() {
        let (origin, settings) = (seeds.origin(&node).map(Arc::new), settings.clone());
        asking.spawn(async move { ask(&node, None, origin, &settings).await });
    }
    let mut failure = no_address();
    while let Some(asked) = asking.join_next().await {
        match asked {
            Ok(Ok(view)) => {
                map.told(Instant::now(), view);
                known = true;
            }
            Ok(Err(error)) => failure = error,
            // It panicked, in somebody's resolver maybe.
            Err(_) => {}
        }
    }
    if known { Ok(map) } else { Err(failure) }
}

/// The masters that own a slot.
pub(in crate::backend::server) fn masters(map: &Map) -> BTreeSet<Number> {
    let owners = map.owners().iter().copied();
    owners.filter(|owner| *owner != 0).collect()
}

pub(super) fn no_address() -> RedisError {
    (redis::ErrorKind::Client, "the node has no address").into()
}
