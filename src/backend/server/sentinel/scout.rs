//! One sentinel, asked and listened to for as long as the handle lives.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind,
    RedisError, Value, from_redis_value,
};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::Sentinels;
use super::decide::Opinion;
use super::lost::Lost;
use crate::backend::server::Settings;
use crate::backend::server::backoff::Backoff;
use crate::backend::server::link::{self, timed_out};
use crate::time::Instant;

/// How often it is asked though nothing was heard: it may be deaf, or deny its channels.
const PERIOD: Duration = Duration::from_secs(1);
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
/// Where failovers are told of: by all who know of it; and, sooner, by who leads it.
const CHANNEL: &str = "+switch-master";
const SOONER: &str = "+promoted-slave";

pub(super) struct Scout {
    pub(super) sentinels: Arc<Sentinels>,
    /// Which of them.
    pub(super) index: usize,
    pub(super) sentinel: ConnectionInfo,
    pub(super) settings: Settings,
    /// When to ask anew.
    pub(super) rounds: watch::Receiver<u64>,
    /// The one in which it was asked last.
    pub(super) round: u64,
    /// Below 256.
    pub(super) random: u32,
}

impl Scout {
    /// Runs until its runtime ends.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            self.round = *self.rounds.borrow_and_update();
            let mut was_up = false;
            let Err(lost) = self.follow(&mut was_up).await;
            if was_up {
                failures = 0;
            }
            tracing::debug!(
                sentinel = self.index,
                cause = &*lost.cause,
                "a sentinel does not answer"
            );
            self.sentinels.fails(self.index, self.round, lost);
            let pause = RETRY.pause(failures, self.random);
            failures += 1;
            // Who needs a connection does not wait for a long pause.
            sleep(RETRY.pause(0, self.random)).await;
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.rounds.changed() => {}
            }
        }
    }

    /// Asks as long as it answers.
    async fn follow(&mut self, was_up: &mut bool) -> Result<std::convert::Infallible, Lost> {
        let (told, cut) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let mut connection = self.open(Arc::clone(&told), Arc::clone(&cut)).await?;
        // First, so that no failover falls between the answer and the subscription.
        let hears = self.listen(&mut connection, CHANNEL).await?;
        if hears {
            self.listen(&mut connection, SOONER).await?;
        }
        loop {
            self.round = *self.rounds.borrow_and_update();
            let opinion = self.ask(&mut connection).await?;
            *was_up = true;
            self.sentinels.says(self.index, self.round, opinion, hears);
            tokio::select! {
                () = told.notified() => {}
                () = cut.notified() => {
                    let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
                    return Err(Lost::of_sentinel(broken.into()));
                }
                _ = self.rounds.changed() => {}
                () = sleep(PERIOD) => {}
            }
        }
    }

    /// Whether it may be listened to; who may not can ask as well.
    async fn listen(
        &self,
        connection: &mut MultiplexedConnection,
        channel: &str,
    ) -> Result<bool, Lost> {
        match self.bounded(connection.subscribe(channel)).await {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some("NOPERM") => Ok(false),
            Err(error) => Err(Lost::of_sentinel(error)),
        }
    }

    /// Its name is looked up anew each time.
    async fn open(
        &self,
        told: Arc<Notify>,
        cut: Arc<Notify>,
    ) -> Result<MultiplexedConnection, Lost> {
        let receive = move |info: PushInfo| -> Result<(), ()> {
            match info.kind {
                PushKind::Message => told.notify_one(),
                PushKind::Disconnection => cut.notify_one(),
                _ => {}
            }
            Ok(())
        };
        let redis = self.sentinel.redis_settings().clone();
        let redis = redis.set_protocol(ProtocolVersion::RESP3);
        let info = self.sentinel.clone().set_redis_settings(redis);
        let config = AsyncConnectionConfig::new().set_push_sender(receive);
        let opened = link::open(info, &self.settings, config).await;
        opened.map_err(Lost::of_sentinel)
    }

    async fn ask(&self, connection: &mut MultiplexedConnection) -> Result<Opinion, Lost> {
        let service = self.sentinels.service();
        let mut questions = Pipeline::with_capacity(2);
        // In this order: while it fails over it tells of the new epoch before the new address is
        // MASTER's, but not before it is that of the second.
        questions.cmd("SENTINEL").arg("MASTER").arg(service);
        questions
            .cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(service);
        let began = Instant::now();
        let asking = connection.send_packed_commands(&questions, 0, questions.len());
        let answers = self.bounded(asking).await.map_err(Lost::of_sentinel)?;
        let [master, address]: [Value; 2] = answers.try_into().map_err(|_| Lost::nonsense())?;
        read(began, master, address)
    }

    async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let limit = self.settings.command_timeout;
        timeout(limit, work)
            .await
            .unwrap_or_else(|_| Err(timed_out()))
    }
}

/// What the answers to both questions come to, which were asked at `asked`. One is enough: a user may
/// have the right to that only.
fn read(asked: Instant, master: Value, address: Value) -> Result<Opinion, Lost> {
    let master = match master.extract_error() {
        Ok(fields) => {
            let fields: Vec<(String, String)> =
                from_redis_value(fields).map_err(|_| Lost::nonsense())?;
            Some(fields)
        }
        Err(_) => None,
    };
    let field = |name: &str| {
        let fields = master.as_ref()?;
        let found = fields.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.clone())
    };
    let pair: Option<(String, String)> = match address.extract_error() {
        // It does not know the service.
        Ok(Value::Nil) => return Err(Lost::unknown_service()),
        Ok(pair) => Some(from_redis_value(pair).map_err(|_| Lost::nonsense())?),
        Err(error) if master.is_none() => return Err(Lost::of_sentinel(error)),
        Err(_) => field("ip").zip(field("port")),
    };
    let (host, port) = pair.ok_or_else(Lost::nonsense)?;
    // A sentinel counts from its last switch, or from its own start. While it fails over, it tells
    // that of the old master beside the address of the next one.
    let is_it = field("ip").as_ref() == Some(&host) && field("port").as_ref() == Some(&port);
    let named_for = field("role-reported-time").filter(|_| is_it);
    let named_for = named_for.and_then(|ms| ms.parse().ok());
    Ok(Opinion {
        since: named_for.map(|ms| asked.before(Duration::from_millis(ms))),
        host,
        port: port.parse().map_err(|_| Lost::nonsense())?,
        epoch: field("config-epoch")
            .and_then(|epoch| epoch.parse().ok())
            .unwrap_or(0),
    })
}
