//! Fencing tokens: a majority agrees on each.

use std::time::Duration;

use crate::common::{LONG, give_back, note, promptly, take};
use crate::servers::{Failing, Servers};
use crate::support::History;

/// What each server has noted as the greatest.
async fn noted(servers: &Servers) -> Vec<u64> {
    let mut noted = Vec::new();
    for server in &servers.servers {
        let keys = server.keys_with("portcullis:quorum:").await;
        let clock = keys.iter().find(|key| key.ends_with(":clock"));
        let clock = clock.map_or("none", |key| key);
        let value = server.command(&["GET", clock]).await;
        let value: Option<u64> = redis::from_redis_value(value).expect("a number");
        noted.push(value.unwrap_or_default());
    }
    noted
}

#[tokio::test]
async fn a_majority_has_noted_each_fence_however_far_its_servers_were_apart() {
    let servers = Servers::start(5);
    let gates = servers.handle();
    let mutex = gates.mutex("withdraw").ttl(LONG).expect("in range");
    let mut last = take(&mutex).await.fencing_token();
    let keys = servers.servers[0].keys_with("portcullis:quorum:").await;
    let clock = keys.iter().find(|key| key.ends_with(":clock"));
    let clock = clock.expect("there is one").clone();
    for ahead in [1_u64, 1_000, 1_000_000_000] {
        // As after grants that were agreed on without the others.
        for server in 0..3 {
            let far = last.get() + ahead * (server + 1);
            let server = usize::try_from(server).expect("small");
            let server = &servers.servers[server];
            server
                .command(&["SET", &clock, &far.to_string(), "PX", "60000"])
                .await;
        }
        let guard = take(&mutex).await;
        let fence = guard.fencing_token();
        // Each majority has one of the three.
        assert!(
            fence.get() > last.get() + ahead,
            "{fence} after {last}, {ahead} ahead"
        );
        let agreed = noted(&servers).await;
        let enough = agreed.iter().filter(|noted| **noted >= fence.get()).count();
        assert!(enough >= 3, "{fence}: {agreed:?}");
        give_back(guard).await;
        last = fence;
    }
}

#[tokio::test]
async fn fences_rise_while_minorities_change() {
    let servers = Servers::start(5);
    let history = History::default();
    let handles = [servers.handle(), servers.handle()];
    for round in 0..10 {
        let failing = [round % 5, (round + 1) % 5];
        for server in failing {
            servers.fail(server, Failing::BlackHoled);
        }
        for handle in &handles {
            let mutex = handle.mutex("withdraw").ttl(LONG).expect("in range");
            let moment = tokio::time::sleep(Duration::from_millis(1));
            let entering = note(&history, 1, mutex.lock(), moment);
            drop(
                promptly("what is free is taken", entering)
                    .await
                    .expect("it is free"),
            );
        }
        for server in failing {
            servers.mend(server, Failing::BlackHoled);
        }
        // The other two may fail only when these are there again, or they were four.
        let look = handles[0].mutex("look").ttl(LONG).expect("in range");
        servers.until_held_on(&look, 5).await;
    }
    history.assert_sound(1);
}
