//! A minority that fails, in any way: the others go on.

use std::time::Duration;

use crate::common::{LIMIT, LONG, give_back, promptly, take};
use crate::load::Load;
use crate::servers::{Failing, Servers};
use crate::support::{Mode, wait_for};

#[tokio::test]
async fn any_two_of_five_may_fail_in_any_way_under_load_and_are_used_again_when_they_are_back() {
    let servers = Servers::start(5);
    let handles = (0..2).map(|_| servers.handle());
    let load = Load::start(handles, |handle| {
        handle.mutex("withdraw").ttl(LONG).expect("in range")
    });
    load.goes_on("all is well").await;
    let look = servers.handle().mutex("look").ttl(LONG).expect("in range");
    let pairs = (0..5).flat_map(|one| (one + 1..5).map(move |other| [one, other]));
    for (failing, way) in pairs.zip(Failing::ALL.into_iter().cycle()) {
        for server in failing {
            servers.fail(server, way);
        }
        load.goes_on(&format!("two are {way:?}")).await;
        for server in failing {
            servers.mend(server, way);
        }
        servers.until_held_on(&look, 5).await;
    }
    load.assert_sound().await;
    servers.settled().await;
}

#[tokio::test]
async fn a_lock_outlives_any_minority_and_is_taken_where_it_was_missing() {
    let servers = Servers::start(5);
    for server in [0, 1] {
        servers.fail(server, Failing::Killed);
    }
    let gates = servers.handle();
    let mutex = gates
        .mutex("withdraw")
        .ttl(Duration::from_secs(3))
        .expect("in range");
    let guard = take(&mutex).await;
    assert_eq!(guard.held_on(), 3);
    for server in [0, 1] {
        servers.mend(server, Failing::Killed);
    }
    wait_for("the missing servers are filled in", LIMIT, async || {
        guard.held_on() == 5
    })
    .await;
    // Two that had it from the start may go now.
    for server in [2, 3] {
        servers.fail(server, Failing::Killed);
    }
    wait_for("it is known that they are gone", LIMIT, async || {
        guard.held_on() == 3
    })
    .await;
    assert!(guard.is_held());
    give_back(guard).await;
}

#[tokio::test]
async fn what_a_slow_server_grants_too_late_is_ended() {
    let servers = Servers::start(5);
    let gates = servers.handle();
    let mutex = gates.mutex("withdraw").ttl(LONG).expect("in range");
    give_back(take(&mutex).await).await;
    servers.proxies[4].set_commands(Mode::HoldRequests);
    for _ in 0..5 {
        give_back(take(&mutex).await).await;
    }
    // By the client: its requests run now, in order.
    servers.proxies[4].set_commands(Mode::Pass);
    servers.settled().await;
    // And also where the end overtakes them, on another connection.
    servers.proxies[4].set_commands(Mode::HoldRequests);
    give_back(take(&mutex).await).await;
    servers.proxies[4].part();
    servers.until_held_on(&mutex, 4).await;
    servers.proxies[4].set_commands(Mode::Pass);
    servers.until_held_on(&mutex, 5).await;
    servers.settled().await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_hardly_asked() {
    let servers = Servers::start(3);
    let gates = servers.handle();
    let mutex = gates.mutex("withdraw").ttl(LONG).expect("in range");
    give_back(take(&mutex).await).await;
    servers.fail(2, Failing::Slow);
    // Until it is known to be silent, each lock asks it.
    wait_for("it is known", LIMIT, async || {
        give_back(take(&mutex).await).await;
        let calls = servers.servers[2].script_calls().await;
        for _ in 0..20 {
            give_back(take(&mutex).await).await;
        }
        servers.servers[2].script_calls().await == calls
    })
    .await;
    servers.mend(2, Failing::Slow);
    servers.until_held_on(&mutex, 3).await;
    servers.settled().await;
}

#[tokio::test]
async fn what_remains_is_never_more_than_a_majority_has() {
    let servers = Servers::start(5);
    for proxy in &servers.proxies {
        proxy.set(Mode::Delay(Duration::from_millis(60)));
    }
    let gates = servers.builder().server_timeout(Duration::from_secs(1));
    let gates = gates.build().expect("a valid configuration");
    let ttl = Duration::from_secs(5);
    let mutex = gates.mutex_at("payment").ttl(ttl).expect("in range");
    for _ in 0..3 {
        let guard = promptly("it is free", mutex.lock())
            .await
            .expect("it is free");
        let mut left = Vec::new();
        let told = guard.remaining();
        for server in &servers.servers {
            let answer = server.command(&["PTTL", "payment"]).await;
            left.push(redis::from_redis_value::<i64>(answer).expect("a number"));
        }
        left.sort_unstable();
        // Asked for after it was told, so a little less is left; what is told leaves out 1 % and the
        // way back.
        let majority = Duration::from_millis(u64::try_from(left[2]).expect("held there"));
        assert!(
            told <= majority + Duration::from_millis(20),
            "{told:?} of {left:?}"
        );
        assert!(told <= ttl - Duration::from_millis(2 * 60 + 52), "{told:?}");
        give_back(guard).await;
    }
}
