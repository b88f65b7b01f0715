//! Releases of this crate that share gates (fault 50): what a later one wrote is kept, and is never a
//! second lock. What it may append to a record is passed over.

use std::time::Duration;

use portcullis::{BackendErrorKind, LostReason};

use crate::common::{
    LIMIT, LONG, failure, give_back, promptly, queue, refusal, served, served_within, take,
    until_waiting, waiting, within,
};
use crate::leftovers::ask;
use crate::rig::{Rig, ServerRig};
use crate::support::wait_for;
use crate::{SOON, keeps, key, mutex, plain_mutex, plain_semaphore, semaphore};

/// Shorter than a claim.
const SHORT: Duration = Duration::from_secs(2);

/// The fields of the records of the only gate of one kind that are about tokens.
async fn records(rig: &ServerRig, letters: &str) -> (String, Vec<(String, String)>) {
    let key = key(rig, letters).await.expect("something is recorded");
    let mut fields: Vec<(String, String)> = ask(&mut rig.server.connection(), &["HGETALL", &key]);
    fields.retain(|(name, _)| name.len() > 1);
    (key, fields)
}

/// Fault 50; M1, F1: all that is recorded has a further field, from its first moment on.
#[tokio::test]
async fn fields_that_a_later_release_appends_are_passed_over() {
    let rig = ServerRig::start();
    let ours = rig.handle();
    let (a, b) = (mutex(&ours, LONG), mutex(&rig.handle(), SHORT));
    let permits = [&ours, &rig.handle()].map(|handle| semaphore(handle, 1, SOON));
    let (guard, permit) = (take(&a).await, take(&permits[0]).await);
    // With an end of its own, and a short lease, since of the usual wait nothing is recorded.
    let (next, next_permit) = (queue(&b.max_wait(LONG)), queue(&permits[1]));
    let seen = plain_mutex(&ours, LONG);
    until_waiting(&seen, 1).await;
    until_waiting(&plain_semaphore(&ours, 1, SOON), 1).await;
    for letters in ["mr", "sr"] {
        let (key, fields) = records(&rig, letters).await;
        assert!(!fields.is_empty());
        for (token, record) in fields {
            let longer = format!("{record} 77 and more");
            ask::<i64>(
                &mut rig.server.connection(),
                &["HSET", &key, &token, &longer],
            );
        }
    }
    crate::throughout(SOON, "renewals go on", || permit.is_held()).await;
    assert_eq!(waiting(&seen).await, Some(1));
    give_back(guard).await;
    give_back(permit).await;
    give_back(served(next).await).await;
    give_back(served(next_permit).await).await;
    rig.settled().await;
}

/// Fault 50; M1: this release does not know what the value says, except that somebody holds.
#[tokio::test]
async fn a_lock_that_a_later_release_wrote_is_never_a_second_one() {
    let rig = ServerRig::start();
    let (a, b) = (mutex(&rig.handle(), SOON), mutex(&rig.handle(), SOON));
    let guard = take(&a).await;
    let main = key(&rig, "m").await.expect("it is held");
    let mut connection = rig.server.connection();
    let value: String = ask(&mut connection, &["GET", &main]);
    // As if another process, of that release, had it.
    let theirs = format!("{}{} shared 7", &value[1..], &value[..1]);
    ask::<String>(&mut connection, &["SET", &main, &theirs, "PX", "8000"]);
    let reason = within(LIMIT, "it is told", guard.lost()).await;
    assert_eq!(reason, LostReason::Gone);
    drop(guard);
    let busy = refusal(b.try_lock().await);
    assert!(busy.retry_after().is_some(), "{busy}");
    let next = queue(&b);
    let newcomer = refusal(a.try_lock().await);
    assert_eq!(newcomer.kind(), portcullis::RefusalKind::Busy);
    // Its lease ends like any other.
    let next = served_within(LIMIT, next).await;
    let left: String = ask(&mut connection, &["GET", &main]);
    assert!(!left.ends_with("shared 7"), "{left}");
    give_back(next).await;
    rig.settled().await;
}

/// Fault 50; S0: a holder's record of another version.
#[tokio::test]
async fn permits_that_a_later_release_recorded_stay_taken() {
    let rig = ServerRig::start();
    let ours = rig.handle();
    let (a, b) = (semaphore(&ours, 2, LONG), semaphore(&rig.handle(), 2, LONG));
    let seen = plain_semaphore(&ours, 2, LONG);
    let both = [take(&a).await, take(&a).await];
    let (key, fields) = records(&rig, "sr").await;
    let mut connection = rig.server.connection();
    for (token, record) in &fields {
        let later = record.replacen('1', "2", 1);
        ask::<i64>(&mut connection, &["HSET", &key, token, &later]);
    }
    let busy = refusal(b.try_acquire().await);
    assert_eq!(busy.kind(), portcullis::RefusalKind::Busy);
    // Who asks about one in this release's words is told, and nothing is freed.
    for permit in both {
        if keeps() {
            // Its process has it back, and asks the server when nobody there wants it.
            give_back(permit).await;
            continue;
        }
        let answer = promptly("it is told", permit.release()).await;
        let error = answer.expect_err("it is of another version");
        assert_eq!(error.kind(), BackendErrorKind::Incompatible, "{error}");
    }
    wait_for("nothing is kept", LIMIT, async || a.kept().idle == 0).await;
    // Behind those questions, on the same connection.
    assert_eq!(waiting(&seen).await, Some(0));
    let busy = refusal(b.try_acquire().await);
    assert_eq!(busy.kind(), portcullis::RefusalKind::Busy);
    let next = queue(&b);
    until_waiting(&seen, 1).await;
    // That release gives one back.
    let main = crate::key(&rig, "s").await.expect("they are held");
    let (token, _) = &fields[0];
    ask::<i64>(&mut connection, &["HSET", &key, "S", "1"]);
    ask::<i64>(&mut connection, &["HDEL", &key, token]);
    ask::<i64>(&mut connection, &["ZREM", &main, token]);
    let next = served_within(LIMIT, next).await;
    let busy = refusal(b.try_acquire().await);
    assert_eq!(busy.kind(), portcullis::RefusalKind::Busy);
    give_back(next).await;
    assert!(failure_free(&b).await);
}

/// Whether a permit can be had and given back.
async fn failure_free(permits: &portcullis::Semaphore) -> bool {
    match promptly("a try ends", permits.try_acquire()).await {
        Ok(permit) => {
            give_back(permit).await;
            true
        }
        other => {
            failure(other);
            false
        }
    }
}
