//! Which locks are the same one, and which are not (C133).

use portcullis::Portcullis;

use crate::common::{LONG, PROMPT, refusal, take};
use crate::rig::Rig;
use crate::support::wait_for;

fn mutex(handle: &Portcullis, name: &str) -> portcullis::Mutex {
    handle.mutex(name).ttl(LONG).expect("in range")
}

pub(crate) async fn keys_kinds_names_and_prefixes_do_not_meet<R: Rig>() {
    let rig = R::start();
    let handle = rig.handle();
    let elsewhere = rig.handle_with_prefix("elsewhere");
    let semaphore = handle
        .semaphore("a", 1)
        .expect("in range")
        .ttl(LONG)
        .expect("in range");
    // All of these are held at once.
    let _mutexes = [
        take(&mutex(&handle, "a")).await,
        take(&mutex(&handle, "a").keyed("b")).await,
        take(&mutex(&handle, "a").keyed("c")).await,
        take(&mutex(&handle, "a:b")).await,
        take(&mutex(&handle, "a").keyed("b:c")).await,
        take(&mutex(&handle, "a:b").keyed("c")).await,
        take(&mutex(&elsewhere, "a")).await,
    ];
    let _permits = [take(&semaphore).await, take(&semaphore.keyed("b")).await];
    // And a key that replaces another is the same lock as that key alone.
    let same = mutex(&handle, "a").keyed("x").keyed("b");
    refusal(same.try_lock().await);
}

pub(crate) async fn any_text_is_a_name_and_distinct_texts_are_distinct_locks<R: Rig>() {
    let rig = R::start();
    let (a, b) = (mutex(&rig.handle(), "a"), mutex(&rig.handle(), "a"));
    let huge = "x".repeat(1 << 20);
    let other = format!("{huge}y");
    let texts = [
        "",
        " ",
        ":",
        "{",
        "}",
        "{a}",
        "{}",
        "a\0b",
        "a\r\nb",
        "\r\nFLUSHALL\r\n",
        "%",
        "%3A",
        "~",
        "ä",
        "🚪",
        "*",
        "?",
        "[a]",
        "a b",
        &huge,
        &other,
    ];
    let mut guards = Vec::new();
    for text in texts {
        guards.push(take(&a.keyed(text)).await);
        refusal(b.keyed(text).try_lock().await);
        guards.push(take(&mutex(&rig.handle(), text)).await);
    }
    assert!(guards.iter().all(portcullis::MutexGuard::is_held));
    drop(guards);
    wait_for("all are given back", PROMPT, async || {
        b.keyed("").try_lock().await.is_ok()
    })
    .await;
    rig.settled().await;
}
