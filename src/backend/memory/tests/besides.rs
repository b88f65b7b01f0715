//! What the model does not say.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use super::super::Memory;
use crate::error::{LockError, RefusalKind};
use crate::key::Prefix;
use crate::portcullis::Portcullis;
use crate::time::{Clock, Ttl};

/// Writes down who was woken.
struct Bell(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let mut rung = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        rung.push(self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn who_lost_is_woken_before_its_successor() {
    let memory = Memory::new(Clock::of_runtime());
    let mutex = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
    let rung = Arc::new(Mutex::new(Vec::new()));
    let waker = |name| Waker::from(Arc::new(Bell(name, Arc::clone(&rung))));
    let guard = mutex.lock().await.expect("nobody holds");
    let mut lost = pin!(guard.lost());
    let mut next = pin!(mutex.lock());
    let (holder, successor) = (waker("holder"), waker("successor"));
    assert!(
        lost.as_mut()
            .poll(&mut Context::from_waker(&holder))
            .is_pending()
    );
    assert!(
        next.as_mut()
            .poll(&mut Context::from_waker(&successor))
            .is_pending()
    );
    assert_eq!(memory.expire("north"), 1);
    let rung = rung.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(*rung, ["holder", "successor"]);
}

/// So that the keeper has no turn before what comes next.
fn advance_quietly(ms: u64) {
    let mut advance = pin!(tokio::time::advance(Duration::from_millis(ms)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(advance.as_mut().poll(&mut context).is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_was_over_before_an_outage_does_not_fail_by_it() {
    let memory = Memory::new(Clock::of_runtime());
    let mutex = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
    let guard = mutex.lock().await.expect("nobody holds");
    let patient = mutex.clone().max_wait(Duration::from_millis(30));
    let mut waiting = pin!(patient.lock());
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    advance_quietly(30);
    memory.set_out(true);
    let refused = waiting.await.expect_err("it is held");
    assert!(matches!(
        refused,
        LockError::Refused(refusal) if refusal.kind() == RefusalKind::WaitedTooLong
    ));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn who_is_served_when_an_outage_ends_does_not_lose_what_others_lost_by_it() {
    let memory = Memory::new(Clock::of_runtime());
    let handle = Portcullis::on_memory(&memory, Prefix::default());
    let short = |limit| {
        let semaphore = handle.semaphore("north", limit).expect("it is in range");
        let ttl = Duration::from_millis(90);
        semaphore.ttl(ttl).expect("it is in range")
    };
    let two = short(2).acquire_many(2).await.expect("nobody holds");
    let third = short(3).acquire().await.expect("one is left");
    let next = short(2);
    let mut waiting = pin!(next.acquire());
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    memory.set_out(true);
    advance_quietly(90);
    memory.set_out(false);
    assert!(!two.is_held() && !third.is_held());
    assert!(waiting.await.expect("all is free").is_held());
}

#[tokio::test(start_paused = true)]
async fn nobody_is_told_to_retry_when_what_was_given_back_in_an_outage_would_have_ended() {
    let memory = Memory::new(Clock::of_runtime());
    let handle = Portcullis::on_memory(&memory, Prefix::default());
    let mutex = handle.mutex("north");
    let guard = mutex.lock().await.expect("nobody holds");
    let mut waiting = pin!(mutex.lock());
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    memory.set_out(true);
    drop(guard);
    handle.shutdown(Duration::ZERO).await;
    let refused = waiting.await.expect_err("the handle is shut down");
    assert!(matches!(
        refused,
        LockError::Refused(refusal) if refusal.retry_after().is_none()
    ));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_let_in_after_an_outage_has_come_to_a_gate() {
    let memory = Memory::new(Clock::of_runtime());
    let gate = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
    memory.set_out(true);
    // One that has asked before it began.
    for site in memory.sites.all() {
        assert_eq!(site.turnstile().enter(1, Ttl::DEFAULT), None);
    }
    memory.set_out(false);
    assert!(gate.try_lock().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_is_let_in_before_the_end_of_an_outage_has_come_to_a_gate_does_not_lose_by_it() {
    let memory = Memory::new(Clock::of_runtime());
    let gate = Portcullis::on_memory(&memory, Prefix::default()).mutex("north");
    memory.set_out(true);
    advance_quietly(20_000);
    memory.out.store(false, Ordering::Relaxed);
    let guard = gate.try_lock().await.expect("nobody holds");
    assert!(guard.is_held());
    for site in memory.sites.all() {
        site.change(&memory, |ledger, _| ledger.renew_again());
    }
    advance_quietly(20_000);
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_its_handle_makes_again_stays_without_a_lock() {
    let memory = Memory::new(Clock::of_runtime());
    let handle = Portcullis::on_memory(&memory, Prefix::default());
    let gates = [handle.mutex("north"), handle.mutex("north")];
    for site in memory.sites.all() {
        let entered = site.turnstile().enter(1, Ttl::DEFAULT);
        assert!(entered.is_some() && site.turnstile().leave());
    }
    drop(gates);
}
