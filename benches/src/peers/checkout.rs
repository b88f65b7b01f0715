//! The same scripts by a pool: a connection is taken out for every operation.

use super::SameScripts;
use super::overheard::went_well;

/// As deadpool is used most often, with 16 connections.
#[derive(Clone)]
pub(crate) struct Checkouts {
    pool: deadpool_redis::Pool,
    scripts: SameScripts,
}

impl Checkouts {
    const CONNECTIONS: usize = 16;

    pub(crate) fn open(url: &str, scripts: SameScripts) -> Self {
        let config = deadpool_redis::Config::from_url(url);
        let pool = config.builder().expect("a valid address");
        let pool = pool.max_size(Self::CONNECTIONS);
        let pool = pool.runtime(deadpool_redis::Runtime::Tokio1).build();
        Self {
            pool: pool.expect("valid settings"),
            scripts,
        }
    }

    pub(crate) async fn pair(self, task: usize) {
        for command in self.scripts.commands(task) {
            let mut connection = self.pool.get().await.expect("the server listens");
            let answer: redis::Value = command
                .query_async(&mut connection)
                .await
                .expect("answered");
            assert!(went_well(&answer), "own keys are free");
        }
    }
}
