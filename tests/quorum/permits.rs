//! Semaphores over a quorum.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::common::{LIMIT, LONG, note, within};
use crate::servers::{Failing, Servers};
use crate::support::History;

#[tokio::test]
async fn permits_are_kept_apart_while_as_many_servers_fail_as_are_tolerated() {
    let servers = Servers::start(7);
    let history = History::default();
    let mut tasks = JoinSet::new();
    for server in [1, 4] {
        servers.fail(server, Failing::BlackHoled);
    }
    for _ in 0..2 {
        let handle = servers.handle();
        let semaphore = handle
            .semaphore("reports", 2)
            .expect("it tolerates failures");
        assert_eq!(semaphore.tolerates(), 2);
        for _ in 0..6 {
            let semaphore = semaphore.clone().ttl(LONG).expect("in range");
            let history = history.clone();
            tasks.spawn(async move {
                for _ in 0..5 {
                    let moment = tokio::time::sleep(Duration::from_millis(2));
                    let permit = note(&history, 1, semaphore.acquire(), moment).await;
                    drop(permit.expect("its turn comes"));
                }
            });
        }
    }
    within(2 * LIMIT, "all are served", tasks.join_all()).await;
    history.assert_sound(2);
    for server in [1, 4] {
        servers.mend(server, Failing::BlackHoled);
    }
    servers.settled().await;
}
