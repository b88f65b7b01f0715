//! Commands that the server's user may not call (fault 23), one by one. Channels, scripts and
//! loading are in `tests/behavior/server/rights.rs`.

use std::time::Duration;

use portcullis::{BackendErrorKind, LockError, Portcullis};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::common::{LIMIT, LONG, give_back, queue, take, within};
use crate::leftovers::{immortal, leftovers};
use crate::rig::{Rig, ServerRig};
use crate::support::wait_for;
use crate::{UNHEARD, mutex, semaphore};

/// What the scripts call, as the ACL in SECURITY.md lists it.
const COMMANDS: [&str; 23] = [
    "del",
    "exists",
    "get",
    "hdel",
    "hget",
    "hmget",
    "hset",
    "mget",
    "pexpire",
    "pttl",
    "publish",
    "set",
    "time",
    "zadd",
    "zcard",
    "zmscore",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrem",
    "zremrangebyscore",
    "zscore",
    "info",
];

/// A way through a gate may fail by what is not permitted, and in no other way.
fn permitted<T>(command: &str, doing: &str, result: Result<T, LockError>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(LockError::Backend(error)) => {
            let kind = error.kind();
            assert_eq!(
                kind,
                BackendErrorKind::NotPermitted,
                "-{command}, {doing}: {error}"
            );
            None
        }
        Err(LockError::Refused(refusal)) => {
            // What can't be told of, or cleared away, is in the way until it has ended.
            println!("-{command}, {doing}: {refusal}");
            None
        }
        Err(other) => panic!("-{command}, {doing}: {other}"),
    }
}

/// Uses both kinds of gates in every way, by a user who may not call `command`, beside one who may
/// do all.
async fn use_without(command: &'static str, limited: Portcullis, full: Portcullis) {
    const TTL: Duration = Duration::from_millis(1_500);
    let bound = Duration::from_millis(2_500);
    let (lock, theirs) = (mutex(&limited, TTL).max_wait(bound), mutex(&full, TTL));
    let (permits, others) = (
        semaphore(&limited, 2, TTL).max_wait(bound),
        semaphore(&full, 2, TTL),
    );
    let ends = async |doing: &str, work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        let ended = timeout(UNHEARD, work).await;
        assert!(ended.is_ok(), "-{command}: {doing} does not end");
    };
    // Alone, and for longer than a TTL, so that it is renewed.
    let (one, other) = (lock.clone(), permits.clone());
    ends(
        "to hold",
        Box::pin(async move {
            let guard = permitted(command, "lock", one.lock().await);
            let permit = permitted(command, "acquire", other.acquire_many(2).await);
            tokio::time::sleep(TTL).await;
            if let Some(guard) = guard {
                permitted(
                    command,
                    "release",
                    guard.release().await.map_err(Into::into),
                );
            }
            if let Some(permit) = permit {
                permitted(
                    command,
                    "release",
                    permit.release().await.map_err(Into::into),
                );
            }
        }),
    )
    .await;
    // Behind somebody else, and in front of them.
    let guard = within(LIMIT, "theirs", theirs.lock()).await.expect("ended");
    let permit = within(LIMIT, "theirs", others.acquire_many(2)).await;
    let permit = permit.expect("ended");
    ends(
        "to wait",
        Box::pin(async move {
            let (next, next_permit) = (queue(&lock), queue(&permits));
            tokio::time::sleep(TTL / 5).await;
            drop((guard, permit));
            let guard = permitted(command, "wait", next.await.expect("no panic"));
            let permit = permitted(command, "wait", next_permit.await.expect("no panic"));
            drop((guard, permit));
        }),
    )
    .await;
    let guard = within(LIMIT, "theirs", theirs.lock()).await.expect("ended");
    let permit = within(LIMIT, "theirs", others.acquire_many(2)).await;
    drop((guard, permit.expect("ended")));
}

/// Fault 23; S1, C1: a script that is stopped half-way leaves nothing that stays, and its caller is
/// told why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_denied_is_told_and_leaves_nothing_for_good() {
    let rig = ServerRig::start();
    let mut tasks = JoinSet::new();
    let mut handles = Vec::new();
    for command in COMMANDS {
        let denied = format!("-{command}");
        let words = [
            "ACL", "SETUSER", command, "reset", "on", ">open", "~*", "&*", "+@all", &denied,
        ];
        rig.server.command(&words).await;
        let url = format!("redis://{command}:open@127.0.0.1:{}/", rig.server.port());
        let prefix = format!("suite-{command}");
        let limited = rig
            .builder()
            .url(url)
            .prefix(&prefix)
            .build()
            .expect("valid");
        handles.push(limited.clone());
        tasks.spawn(use_without(
            command,
            limited,
            rig.handle_with_prefix(&prefix),
        ));
    }
    within(3 * LIMIT, "all are done", tasks.join_all()).await;
    let mut connection = rig.server.connection();
    // What keeps permits gives up a place that nobody needs any more a moment later.
    wait_for("nothing stays", LIMIT, async || {
        immortal(&mut connection).is_empty()
    })
    .await;
    // With the right given, each of them is as good as new.
    for (command, limited) in COMMANDS.iter().zip(&handles) {
        let allowed = format!("+{command}");
        rig.server
            .command(&["ACL", "SETUSER", command, &allowed])
            .await;
        let lock = mutex(limited, LONG).max_wait(LONG);
        let guard = within(LIMIT, command, lock.lock()).await;
        give_back(guard.unwrap_or_else(|error| panic!("{command}: {error}"))).await;
        give_back(take(&semaphore(limited, 2, LONG)).await).await;
    }
    wait_for("nothing is left", LIMIT, async || {
        let mut left = leftovers(&mut connection);
        // Of one whose record could not be removed the permits are free all the same, and the
        // record goes with its hash, a minute after that was last used.
        left.retain(|what| !(what.contains("suite-hdel:") && what.contains("}:sr:")));
        left.is_empty()
    })
    .await;
}
