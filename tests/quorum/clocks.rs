//! The clock of one of five servers jumps (fault 44): a minority that is wrong lets nobody in, and
//! fences are not its to tell.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portcullis::{Mutex, Portcullis};

use crate::common::{LIMIT, give_back, take, within};
use crate::leftovers::ask;
use crate::load::Load;
use crate::servers::Servers;
use crate::support::{FakeClock, Proxy, Server, wait_for};

const HOUR: i64 = 3_600;
const TTL: Duration = Duration::from_secs(3);

/// Five servers, of which the first has a clock of its own.
struct Skewed {
    servers: Servers,
    clock: FakeClock,
}

impl Skewed {
    fn start() -> Self {
        let clock = FakeClock::start();
        let first = Server::start_by(&clock);
        let mut servers = Servers::start(4);
        servers.proxies.insert(0, Proxy::start(first.port()));
        servers.servers.insert(0, first);
        Self { servers, clock }
    }

    fn handle(&self) -> Portcullis {
        self.servers.handle()
    }

    /// Sets its clock, and sees that it is.
    async fn jump(&self, ahead: i64) {
        self.clock.set(ahead);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let wall = i64::try_from(wall.unwrap_or_default().as_secs()).unwrap_or(0);
        wait_for("the clock is set", LIMIT, async || {
            let mut connection = self.servers.servers[0].connection();
            let (seconds, _): (i64, i64) = ask(&mut connection, &["TIME"]);
            (seconds - wall - ahead).abs() < 30
        })
        .await;
    }
}

fn lock(handle: &Portcullis) -> Mutex {
    handle.mutex("withdraw").ttl(TTL).expect("in range")
}

#[tokio::test]
#[ignore = "needs libfaketime: `scripts/test --faults`"]
async fn under_load_a_clock_that_jumps_lets_no_two_in_and_fences_rise() {
    let skewed = Skewed::start();
    let load = Load::start((0..3).map(|_| skewed.handle()), lock);
    load.goes_on("all is well").await;
    for ahead in [61, 0, -HOUR, 0, HOUR, -HOUR, 0] {
        skewed.jump(ahead).await;
        load.goes_on(&format!("its clock is {ahead} s ahead")).await;
    }
    skewed
        .servers
        .until_held_on(&skewed.handle().mutex("look"), 5)
        .await;
    load.assert_sound().await;
}

#[tokio::test]
#[ignore = "needs libfaketime: `scripts/test --faults`"]
async fn a_lease_that_one_server_ends_early_goes_on_at_the_others_and_is_filled_in() {
    let skewed = Skewed::start();
    let guard = take(&lock(&skewed.handle())).await;
    wait_for("it is held on all", LIMIT, async || guard.held_on() == 5).await;
    let others = lock(&skewed.handle());
    let waiting = tokio::spawn({
        let others = others.clone();
        async move { others.lock().await }
    });
    for ahead in [61, 122] {
        skewed.jump(ahead).await;
        // Who waits is offered that one vote, and has no use for it.
        let fence = guard.fencing_token();
        wait_for("it is renewed there, too", LIMIT, async || {
            skewed.servers.servers[0].script_calls().await > 0 && guard.held_on() == 5
        })
        .await;
        assert!(guard.is_held() && guard.fencing_token() == fence);
        assert!(others.try_lock().await.is_err());
    }
    let fence = guard.fencing_token();
    give_back(guard).await;
    let next = within(LIMIT, "its turn comes", waiting).await;
    let next = next.expect("no panic").expect("its turn comes");
    assert!(next.fencing_token() > fence);
    // Not by the clock that is wrong: others would have to follow it for ever.
    let wall = SystemTime::now().duration_since(UNIX_EPOCH);
    let wall = u64::try_from(wall.unwrap_or_default().as_micros()).unwrap_or(u64::MAX);
    assert!(next.fencing_token().get() < wall + 30_000_000);
}

#[tokio::test]
#[ignore = "needs libfaketime: `scripts/test --faults`"]
async fn what_a_dead_holder_left_where_the_clock_was_set_back_keeps_nobody_out() {
    let skewed = Skewed::start();
    let proxies: Vec<Proxy> = skewed
        .servers
        .servers
        .iter()
        .map(|server| Proxy::start(server.port()))
        .collect();
    let dead = Portcullis::builder().quorum(proxies.iter().map(Proxy::url));
    let dead = dead.quarantine(false).build().expect("valid");
    let guard = take(&lock(&dead)).await;
    wait_for("it is held on all", LIMIT, async || guard.held_on() == 5).await;
    drop(proxies);
    skewed.jump(-HOUR).await;
    let mutex = lock(&skewed.handle());
    let next = within(LIMIT, "it is served when the lease is over", mutex.lock()).await;
    let next = next.expect("a majority is free");
    assert!(!guard.is_held());
    assert!(next.fencing_token() > guard.fencing_token());
    // One believes that the lease of the dead goes on.
    wait_for("four give their vote", LIMIT, async || next.held_on() == 4).await;
}
