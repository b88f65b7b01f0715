//! Connections from a user's pool that asks sentinels by itself, taken only where they lead to the
//! master that is believed in.
//!
//! The pool does not tell where its connections lead, and it may have asked a sentinel that is
//! behind. So servers are compared by the name that each gives itself when it starts.

use std::time::Duration;

use deadpool_redis::{PoolError, TimeoutType, Timeouts, sentinel};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ConnectionInfo, RedisError, Value};
use tokio::time::timeout;

use super::lost::Lost;
use crate::backend::server::Settings;
use crate::backend::server::link::{self, timed_out};
use crate::backend::server::origin::{Tap, bounded, detach};

/// How long a pool that knows no time-outs may search.
const LONGEST: Duration = Duration::from_secs(5);

pub(in crate::backend::server) async fn take(
    pool: &sentinel::Pool,
    master: ConnectionInfo,
    settings: &Settings,
) -> Result<MultiplexedConnection, RedisError> {
    let asked = async {
        let mut known = link::open(master, settings, AsyncConnectionConfig::new()).await?;
        name(&mut known, settings).await
    };
    let taken = async {
        let mut taken = detach(pool.clone(), settings.connect_timeout).await?;
        let name = name(&mut taken, settings).await?;
        Ok::<_, RedisError>((taken, name))
    };
    let (asked, (taken, name)) = tokio::try_join!(asked, taken)?;
    match (asked, name) {
        (Some(asked), Some(name)) if asked != name => Err(Lost::pool_elsewhere().into()),
        // Without the right to INFO there is nothing to compare.
        _ => Ok(taken),
    }
}

impl Tap for sentinel::Pool {
    type Taken = MultiplexedConnection;

    /// The search is ended as well: the client has no time-outs for it, and others wait for its
    /// end.
    fn timeouts(&self, patience: Duration) -> Timeouts {
        bounded(Self::timeouts(self), patience)
    }

    async fn take(&self, timeouts: Option<&Timeouts>) -> Result<MultiplexedConnection, PoolError> {
        let connection = match timeouts {
            Some(timeouts) => self.timeout_get(timeouts).await,
            // Whoever comes next waits for the end of this.
            None => timeout(LONGEST, self.get())
                .await
                .unwrap_or(Err(PoolError::Timeout(TimeoutType::Create))),
        };
        connection.map(sentinel::Connection::take)
    }
}

/// What a server calls itself from its start to its end.
async fn name(
    connection: &mut MultiplexedConnection,
    settings: &Settings,
) -> Result<Option<String>, RedisError> {
    let mut info = Cmd::new();
    info.arg("INFO").arg("server");
    let asking = connection.send_packed_command(&info);
    let answer = timeout(settings.command_timeout, asking);
    let answer: Value = answer.await.map_err(|_| timed_out())??;
    Ok(link::field(&answer, "run_id:").map(str::to_owned))
}
