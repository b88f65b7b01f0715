//! Inboxes that say nothing or too little (faults 19 and 21). More of them are in
//! `tests/behavior/server/messages.rs`.

use tokio::task::JoinSet;

use crate::common::{
    LIMIT, LONG, PROMPT, give_back, queue, served, served_within, until_waiting, visit, within,
};
use crate::rig::{Rig, ServerRig};
use crate::support::{Flow, History, Mode, Proxy, wait_for};
use crate::{CLAIM, UNHEARD, inboxes, keeps, mutex, plain_mutex, through};

/// Fault 19; L1, M1, F1: the inbox is in order, and all that is said there is lost.
#[tokio::test]
#[ignore = "each hand-over takes a claim: `scripts/test --faults`"]
async fn everybody_is_served_in_order_though_no_push_ever_arrives() {
    let rig = ServerRig::start();
    let (one, other) = (
        Proxy::start(rig.server.port()),
        Proxy::start(rig.server.port()),
    );
    let handles = [&one, &other].map(|proxy| {
        proxy.set_subscribers(Mode::EatMessages);
        through(proxy).build().expect("valid")
    });
    let locks = [&handles[0], &handles[1]].map(|handle| mutex(handle, LONG));
    let history = History::default();
    // A try opens no inbox, where nothing is kept that might be recalled.
    let guard = plain_mutex(&rig.handle(), LONG)
        .try_lock()
        .await
        .expect("it is free");
    let mut tasks = JoinSet::new();
    for number in 0..4_u32 {
        let (lock, history) = (locks[number as usize % 2].clone(), history.clone());
        tasks.spawn(async move { visit(&lock, &history).await });
        // Of each process that keeps permits one place serves all who wait there.
        let places = if keeps() { number.min(1) } else { number } + 1;
        until_waiting(&plain_mutex(&handles[0], LONG), places.into()).await;
    }
    wait_for("both listen", LIMIT, async || {
        inboxes(&rig.server).len() == 2
    })
    .await;
    give_back(guard).await;
    // A claim that nobody heard of, and a question after it, for each.
    within(4 * UNHEARD, "all are served", tasks.join_all()).await;
    history.assert_sound(1);
    assert_eq!(history.holds().len(), 4);
    for lock in &locks {
        give_back(
            within(PROMPT, "it is free", lock.lock())
                .await
                .expect("free"),
        )
        .await;
    }
    rig.settled().await;
}

/// Fault 21; L1: an inbox that is read more slowly than it is written to.
#[tokio::test]
async fn a_slow_reader_is_cut_off_by_the_server_and_listens_again() {
    let rig = ServerRig::start();
    let limit = "pubsub 262144 0 0";
    rig.server
        .command(&["CONFIG", "SET", "client-output-buffer-limit", limit])
        .await;
    let proxy = Proxy::start(rig.server.port());
    // The only inbox is to be ours.
    let (ours, theirs) = (
        mutex(&through(&proxy).build().expect("valid"), LONG),
        plain_mutex(&rig.handle(), LONG),
    );
    let guard = theirs.try_lock().await.expect("it is free");
    let next = queue(&ours);
    until_waiting(&theirs, 1).await;
    wait_for("it listens", LIMIT, async || {
        inboxes(&rig.server).len() == 1
    })
    .await;
    let inbox = inboxes(&rig.server).remove(0);
    proxy.set_subscribers(Mode::Flows {
        requests: Flow::Pass,
        replies: Flow::Throttle(20_000),
    });
    // 10 MB/s, say, into 20 kB/s.
    let junk = "x".repeat(10_000);
    let id = async || -> Option<String> {
        let clients: String = crate::leftovers::ask(
            &mut rig.server.connection(),
            &["CLIENT", "LIST", "TYPE", "pubsub"],
        );
        Some(clients.split_once("id=")?.1.split_once(' ')?.0.to_owned())
    };
    let before = id().await;
    assert!(before.is_some());
    wait_for("the server cuts it off", LIMIT, async || {
        let mut pipeline = redis::pipe();
        for _ in 0..200 {
            pipeline.cmd("PUBLISH").arg(&inbox).arg(&junk).ignore();
        }
        pipeline
            .query::<()>(&mut rig.server.connection())
            .expect("published");
        id().await != before
    })
    .await;
    proxy.set_subscribers(Mode::Pass);
    wait_for("it listens again", UNHEARD, async || {
        inboxes(&rig.server).len() == 1
    })
    .await;
    give_back(guard).await;
    give_back(served_within(2 * CLAIM, next).await).await;
    // And the next one by a push again.
    let guard = theirs.try_lock().await.expect("it is free");
    let next = queue(&ours);
    until_waiting(&theirs, 1).await;
    give_back(guard).await;
    give_back(served(next).await).await;
    rig.settled().await;
}
