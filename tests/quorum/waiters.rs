//! Who waits: by push, in order, past lost pushes and dead processes.

use std::time::Duration;

use portcullis::Portcullis;
use tokio::task::JoinSet;

use crate::common::{
    LIMIT, LONG, PROMPT, give_back, promptly, queue, served, take, until_waiting, visit, within,
};
use crate::servers::Servers;
use crate::support::{History, Mode, Other, Proxy, my_role, say};

const URLS: &str = "PORTCULLIS_TEST_QUORUM";

#[tokio::test]
async fn newcomers_that_split_the_votes_are_all_served_promptly() {
    let servers = Servers::start(5);
    let handles: Vec<Portcullis> = (0..5).map(|_| servers.handle()).collect();
    for handle in &handles {
        drop(take(&handle.mutex("warm").ttl(LONG).expect("in range")).await);
    }
    // Each handle has another server that is nearest, by delays of its own.
    for round in 0..20 {
        for (server, proxy) in servers.proxies.iter().enumerate() {
            let late = (server + round) % 5;
            proxy.set(Mode::Delay(Duration::from_millis(late as u64)));
        }
        let history = History::default();
        let mut tasks = JoinSet::new();
        for handle in &handles {
            let mutex = handle.mutex("withdraw").ttl(LONG).expect("in range");
            let history = history.clone();
            tasks.spawn(async move { visit(&mutex, &history).await });
        }
        promptly("all are served", tasks.join_all()).await;
        history.assert_sound(1);
    }
    servers.settled().await;
}

#[tokio::test]
async fn a_lost_push_costs_no_more_than_the_next_look() {
    let servers = Servers::start(3);
    let (a, b) = (servers.handle(), servers.handle());
    let guard = take(&a.mutex("withdraw").ttl(LONG).expect("in range")).await;
    let waiting = queue(&b.mutex("withdraw").ttl(LONG).expect("in range"));
    until_waiting(&a.mutex("withdraw"), 1).await;
    for proxy in &servers.proxies {
        proxy.set_subscribers(Mode::EatMessages);
    }
    give_back(guard).await;
    give_back(served(waiting).await).await;
}

#[tokio::test]
async fn who_may_not_subscribe_asks_by_a_timer() {
    let servers = Servers::start(3);
    for proxy in &servers.proxies {
        proxy.set_subscribers(Mode::Cut);
    }
    let (a, b) = (servers.handle(), servers.handle());
    let guard = take(&a.mutex("withdraw").ttl(LONG).expect("in range")).await;
    let waiting = queue(&b.mutex("withdraw").ttl(LONG).expect("in range"));
    until_waiting(&a.mutex("withdraw"), 1).await;
    give_back(guard).await;
    give_back(served(waiting).await).await;
    drop((a, b));
}

#[tokio::test]
async fn a_process_that_is_killed_while_it_waits_or_holds_is_passed() {
    if let Some(role) = my_role() {
        let urls = std::env::var(URLS).expect("the parent sets it");
        let gates = Portcullis::builder()
            .quorum(urls.split(' '))
            .quarantine(false);
        let gates = gates.build().expect("a valid configuration");
        let mutex = gates.mutex("withdraw").ttl(LONG).expect("in range");
        if role == "stop" {
            drop(take(&gates.mutex("warm")).await);
        }
        say("ready");
        let guard = mutex.lock().await;
        say("inside");
        std::future::pending::<()>().await;
        drop(guard);
    }
    let servers = Servers::start(3);
    let urls: Vec<String> = servers.proxies.iter().map(Proxy::url).collect();
    let me = "waiters::a_process_that_is_killed_while_it_waits_or_holds_is_passed";
    let start = |role| {
        Other::start(me, role, |command| {
            command.env(URLS, urls.join(" "));
        })
    };
    let gates = servers.handle();
    let mutex = gates.mutex("withdraw").ttl(LONG).expect("in range");
    let guard = take(&mutex).await;
    let mut killed = start("kill");
    until_waiting(&mutex, 1).await;
    let stopped = start("stop");
    until_waiting(&mutex, 2).await;
    let waiting = queue(&mutex);
    until_waiting(&mutex, 3).await;
    killed.kill();
    stopped.stop().await;
    give_back(guard).await;
    // One that is hung costs a heartbeat; the TTL is much longer.
    let guard = within(2 * PROMPT, "its turn comes", waiting).await;
    give_back(guard.expect("no panic").expect("its turn comes")).await;
    stopped.signal("CONT");
    assert_eq!(stopped.hear(), "inside");
    drop(stopped);
    let last = within(2 * LIMIT, "its lease ends", mutex.lock()).await;
    give_back(last.expect("its turn comes")).await;
}
