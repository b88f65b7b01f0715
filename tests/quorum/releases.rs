//! What is told of releases on an exact key's own channel, `<key>:released`, at each server.

use std::time::{Duration, Instant};

use redis::Value;

use crate::common::{LIMIT, LONG, PROMPT, give_back, queue, served, take};
use crate::servers::Servers;
use crate::support::wait_for;

const KEY: &str = "payment_processing";
const CHANNEL: &str = "payment_processing:released";

#[tokio::test]
async fn a_release_is_told_to_other_clients_at_each_server() {
    let servers = Servers::start(3);
    let mutex = servers.handle().mutex_at(KEY).ttl(LONG).expect("in range");
    let mut connections: Vec<_> = servers
        .servers
        .iter()
        .map(|server| server.connection())
        .collect();
    let mut channels = Vec::new();
    for connection in &mut connections {
        let mut channel = connection.as_pubsub();
        channel.subscribe(CHANNEL).expect("subscribed");
        channel
            .set_read_timeout(Some(PROMPT))
            .expect("a time-out above zero");
        channels.push(channel);
    }
    for _ in 0..3 {
        let guard = take(&mutex).await;
        wait_for("it is held on all", LIMIT, async || guard.held_on() == 3).await;
        give_back(guard).await;
        for channel in &mut channels {
            channel.get_message().expect("it is told");
        }
    }
}

/// Each message makes a waiter ask, sooner than it would by itself.
#[tokio::test]
async fn a_release_that_others_tell_of_is_heard_at_any_server() {
    const MESSAGES: u32 = 50;
    let servers = Servers::start(3);
    let mutex = servers.handle().mutex_at(KEY).ttl(LONG).expect("in range");
    for server in &servers.servers {
        let set = server
            .command(&["SET", KEY, "foreign", "PX", "30000"])
            .await;
        assert_eq!(set, Value::Okay);
    }
    let next = queue(&mutex);
    for server in &servers.servers {
        wait_for("it listens", LIMIT, async || {
            server.command(&["PUBLISH", CHANNEL, "1"]).await == Value::Int(1)
        })
        .await;
    }
    let begun = Instant::now();
    for message in 0..MESSAGES {
        let server = &servers.servers[message as usize % 3];
        let calls = servers.servers[0].script_calls().await;
        server.command(&["PUBLISH", CHANNEL, "1"]).await;
        wait_for("it asks", LIMIT, async || {
            servers.servers[0].script_calls().await > calls
        })
        .await;
    }
    // By itself it asks every 125 ms at most.
    assert!(
        begun.elapsed() < MESSAGES * Duration::from_millis(125),
        "{:?}",
        begun.elapsed()
    );
    for server in &servers.servers {
        server.command(&["DEL", KEY]).await;
        server.command(&["PUBLISH", CHANNEL, "1"]).await;
    }
    give_back(served(next).await).await;
    for server in &servers.servers {
        wait_for("it listens no longer", LIMIT, async || {
            server.command(&["PUBLISH", CHANNEL, "1"]).await == Value::Int(0)
        })
        .await;
    }
    servers.settled().await;
}
