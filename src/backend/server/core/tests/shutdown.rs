//! The end of a handle.

use super::*;

#[test]
fn a_shutdown_refuses_waiters_leaves_guards_until_its_deadline_and_then_ends_them() {
    let mut desk = Desk::new();
    let (_, lease) = desk.holder();
    let (_, mut waiting) = desk.queued_waiter();
    let (sender, mut report) = oneshot::channel();
    let deadline = Duration::from_secs(1);
    desk.core.errand(
        desk.now(),
        Errand::Shutdown {
            deadline,
            answer: sender,
        },
    );
    assert_eq!(refused(&mut waiting), RefusalKind::ShuttingDown);
    let (_, mut newcomer) = desk.lock();
    assert_eq!(refused(&mut newcomer), RefusalKind::ShuttingDown);
    assert!(lease.state().is_held());
    let call = desk.call();
    desk.ended(call, 1);
    assert!(report.try_recv().is_err(), "a guard still lives");
    desk.pass(1000);
    assert!(!lease.state().is_held());
    let call = desk.call();
    desk.ended(call, 0);
    let report = report.try_recv().expect("all is ended");
    assert_eq!((report.released, report.abandoned), (1, 0));
}

#[test]
fn a_shutdown_counts_what_the_server_did_not_take_back() {
    let mut desk = Desk::new();
    let (_, _lease) = desk.holder();
    let (sender, mut report) = oneshot::channel();
    desk.core.errand(
        desk.now(),
        Errand::Shutdown {
            deadline: Duration::ZERO,
            answer: sender,
        },
    );
    desk.pass(0);
    desk.pass(1000);
    let report = report.try_recv().expect("it does not wait for ever");
    assert_eq!((report.released, report.abandoned), (0, 1));
}
