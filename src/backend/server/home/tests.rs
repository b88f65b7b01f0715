//! What a home decides, event by event, and that any course of events keeps its promises.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use proptest::prelude::*;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::rooms::{Entry, Rooms, end_use};
use super::{Command, Homes, agent};
use crate::backend::errand::Errand;
use crate::backend::{Acquire, Keep, Place, ReleaseAnswer, Terms, Wait};
use crate::error::{BackendError, BackendErrorKind, LockError, Refusal, RefusalKind};
use crate::key::{Kind, Prefix, Resource};
use crate::lease::{Lease, LeaseMode, LeaseState, LostReason, Release};
use crate::time::{Clock, Delay, Instant, Ttl};
use crate::token::{FencingToken, Token};

const KEEP: Keep = Keep {
    passes: 2,
    turn: Duration::from_millis(20),
    linger: Duration::from_millis(50),
    fences: None,
};

/// What nobody uses stays for longer than a question is due.
const LONG: Keep = Keep {
    linger: Duration::from_secs(1),
    ..KEEP
};

type Answer = oneshot::Receiver<Result<Lease, LockError>>;

/// The server's side: which permits were given back.
#[derive(Debug, Default)]
struct Seat {
    ended: Mutex<Vec<Token>>,
}

impl Seat {
    fn ended(&self) -> Vec<Token> {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Place for Seat {
    fn acquire(&self, _myself: &Arc<dyn Place>, _terms: &Terms) -> Acquire {
        Acquire::Ended
    }

    fn cancel(&self, _token: Token) {}

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(token);
        if let Some(answer) = answer {
            let _ = answer.send(Ok(Release::Released));
        }
    }
}

/// A home around which a test turns the time.
#[derive(Debug)]
struct House {
    rooms: Mutex<Rooms>,
    seat: Arc<Seat>,
    /// In ms since the test began.
    now: AtomicU64,
    start: Instant,
    granted: AtomicU64,
}

impl Place for House {
    fn acquire(&self, _myself: &Arc<dyn Place>, _terms: &Terms) -> Acquire {
        Acquire::Ended
    }

    fn cancel(&self, token: Token) {
        let gone = self.rooms().leave(token.parts().0);
        drop(gone);
    }

    fn release(&self, token: Token, answer: Option<oneshot::Sender<ReleaseAnswer>>) {
        let (now, mark) = (self.now(), token.parts().0);
        if let Some((effects, _)) = end_use(self.rooms(), now, mark, answer) {
            effects.run();
        }
    }

    fn state(&self, token: Token, fence: FencingToken) -> Arc<LeaseState> {
        match self.rooms().whole(token.parts().0) {
            Some(whole) => LeaseState::use_of(&whole, token, fence),
            None => LeaseState::over(token, fence, LostReason::Expired),
        }
    }
}

impl House {
    fn new(keep: Keep, limit: u32) -> Arc<Self> {
        Arc::new_cyclic(|myself: &Weak<Self>| Self {
            rooms: Mutex::new(Rooms::new(myself.clone(), keep, limit)),
            seat: Arc::default(),
            now: AtomicU64::new(0),
            start: Instant::now(),
            granted: AtomicU64::new(0),
        })
    }

    fn rooms(&self) -> std::sync::MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        self.start
            .after(Duration::from_millis(self.now.load(Ordering::SeqCst)))
    }

    fn wait(&self, ms: u64) {
        self.now.fetch_add(ms, Ordering::SeqCst);
    }

    fn enter(self: &Arc<Self>, wait: Wait) -> Result<Lease, Result<(u64, Answer), RefusalKind>> {
        self.take().ok_or_else(|| {
            let entry = self.rooms().enter(self.now(), &terms(wait));
            match entry {
                Entry::Waits(id, answer) => Ok((id, answer)),
                Entry::Refused(refusal) => Err(refusal.kind()),
                Entry::Elsewhere => panic!("it was to be served here"),
            }
        })
    }

    fn take(self: &Arc<Self>) -> Option<Lease> {
        let (mark, fence) = self.rooms().take(self.now())?;
        Some(Lease::new(Arc::clone(self) as _, mark, fence))
    }

    fn waits(self: &Arc<Self>) -> (u64, Answer) {
        match self.enter(Wait::Unbounded) {
            Err(Ok(waits)) => waits,
            other => panic!("it was to wait: {other:?}"),
        }
    }

    fn holds(self: &Arc<Self>) -> Lease {
        match self.enter(Wait::Unbounded) {
            Ok(lease) => lease,
            other => panic!("it was to hold: {other:?}"),
        }
    }

    /// The server grants a permit to a seeker.
    fn arrives(&self) -> Arc<LeaseState> {
        self.arrives_for(None)
    }

    fn arrives_for(&self, tries: Option<u64>) -> Arc<LeaseState> {
        self.comes(tries, false)
    }

    /// The same, of a permit that was lost on its way here.
    fn arrives_too_late_for(&self, tries: Option<u64>) {
        self.comes(tries, true);
    }

    fn comes(&self, tries: Option<u64>, lost: bool) -> Arc<LeaseState> {
        let number = self.granted.fetch_add(1, Ordering::SeqCst) + 1;
        let deadline = self.now().after(Duration::from_secs(10));
        let token = Token::of(u128::from(number));
        let fence = FencingToken::new(1000 * number);
        let state = LeaseState::new(Clock::System, token, fence, deadline);
        let place: Arc<dyn Place> = Arc::clone(&self.seat) as _;
        let lease = Lease::shared(place, Arc::clone(&state));
        if lost {
            state.lose(LostReason::Gone);
        }
        let effects = self
            .rooms()
            .arrived(self.now(), lease, tries, Duration::from_secs(5));
        effects.run();
        state
    }

    fn told(&self, stamp: u64, wait: bool) {
        let effects = self.rooms().told(self.now(), stamp, wait);
        effects.run();
    }

    fn queued(&self) {
        self.queued_for(None);
    }

    /// The server has a place for a seeker, behind leases of which the first ends then.
    fn queued_for(&self, next_end: Option<Duration>) {
        let effects = self.rooms().queued(self.now(), next_end);
        effects.run();
    }

    /// The agent looks, and asks about so many permits, if it does.
    fn asks(&self) -> Option<usize> {
        let (turn, effects) = self.rooms().turn(self.now());
        effects.run();
        turn.question.map(|tokens| tokens.len())
    }

    fn answered(&self, stamp: u64, wait: bool) {
        let effects = self.rooms().answered(self.now(), Some((stamp, wait)));
        effects.run();
    }

    /// The agent looks; gives how many acquires it starts.
    fn turn(&self) -> usize {
        let (turn, effects) = self.rooms().turn(self.now());
        effects.run();
        turn.start.len()
    }

    fn ended(&self) -> usize {
        self.seat.ended().len()
    }
}

fn terms(wait: Wait) -> Terms {
    Terms {
        weight: 1,
        limit: 3,
        ttl: Ttl::DEFAULT,
        mode: LeaseMode::Renewed,
        delay: Delay::default(),
        wait,
        max_waiters: 100,
        bridge: None,
        kept: 1,
    }
}

fn lease_of(answer: &mut Answer) -> Lease {
    match answer.try_recv() {
        Ok(Ok(lease)) => lease,
        other => panic!("it was to hold: {other:?}"),
    }
}

fn pends(answer: &mut Answer) -> bool {
    matches!(answer.try_recv(), Err(TryRecvError::Empty))
}

/// A home in which one request has been served, and is done.
fn with_one_idle(keep: Keep, limit: u32) -> Arc<House> {
    let house = House::new(keep, limit);
    let (_, mut first) = house.waits();
    assert_eq!(house.turn(), 1);
    house.arrives();
    drop(lease_of(&mut first));
    house
}

#[test]
fn a_permit_that_was_given_back_serves_the_next_request() {
    let house = with_one_idle(KEEP, 3);
    for _ in 0..100 {
        drop(house.holds());
    }
    assert_eq!((house.ended(), house.rooms().tally().reused), (0, 100));
}

#[test]
fn an_idle_permit_is_given_back_when_it_has_lingered() {
    let house = with_one_idle(KEEP, 3);
    house.wait(49);
    house.turn();
    assert_eq!(house.ended(), 0);
    house.wait(1);
    house.turn();
    assert_eq!((house.ended(), house.rooms().tally().lingered), (1, 1));
    house.waits();
}

#[test]
fn a_recall_gives_idle_permits_back_at_once_and_those_in_use_when_they_are_done() {
    let house = House::new(KEEP, 3);
    let (_, mut first) = house.waits();
    let (_, mut second) = house.waits();
    house.turn();
    house.arrives();
    house.arrives();
    drop(lease_of(&mut first));
    let used = lease_of(&mut second);
    house.told(5, true);
    assert_eq!((house.ended(), house.rooms().tally().recalled), (1, 1));
    drop(used);
    assert_eq!(house.ended(), 2);
}

#[test]
fn a_permit_passes_to_whoever_waits_here_as_long_as_nobody_else_does() {
    let house = House::new(KEEP, 1);
    let mut waiting: Vec<_> = (0..50).map(|_| house.waits()).collect();
    house.turn();
    house.arrives();
    for (_, answer) in &mut waiting {
        drop(lease_of(answer));
    }
    assert_eq!((house.ended(), house.rooms().tally().passed), (0, 49));
}

#[test]
fn while_others_wait_a_permit_passes_so_many_times() {
    let house = House::new(KEEP, 1);
    let mut waiting: Vec<_> = (0..5).map(|_| house.waits()).collect();
    house.turn();
    house.arrives();
    house.told(5, true);
    for (_, answer) in &mut waiting[..3] {
        drop(lease_of(answer));
    }
    assert!(waiting[3..].iter_mut().all(|(_, answer)| pends(answer)));
    assert_eq!(house.turn(), 1, "another is sought");
    assert_eq!(house.ended(), 1, "the first use, and two passes");
}

#[test]
fn while_others_wait_a_permit_passes_for_no_longer_than_its_turn() {
    let house = House::new(KEEP, 1);
    let (_, mut first) = house.waits();
    let (_, mut second) = house.waits();
    house.turn();
    house.arrives();
    let used = lease_of(&mut first);
    house.told(5, true);
    house.wait(20);
    drop(used);
    assert!(pends(&mut second));
    house.turn();
    assert_eq!(house.ended(), 1);
    // That of the next begins with its grant.
    house.arrives();
    let used = lease_of(&mut second);
    let (_, mut third) = house.waits();
    house.wait(19);
    drop(used);
    drop(lease_of(&mut third));
}

/// A home whose only permit is in use for the last time: two wait here, and others elsewhere.
fn at_the_end_of_a_turn() -> (Arc<House>, Lease) {
    let house = House::new(Keep { passes: 0, ..KEEP }, 1);
    let (_, mut first) = house.waits();
    let _waiting = [house.waits(), house.waits()];
    assert_eq!(house.turn(), 1);
    house.arrives();
    house.told(5, true);
    (house, lease_of(&mut first))
}

#[test]
fn what_is_given_back_leaves_as_the_next_is_sought() {
    let (house, used) = at_the_end_of_a_turn();
    drop(used);
    assert_eq!(house.ended(), 0);
    assert_eq!(house.turn(), 1);
    assert_eq!(house.ended(), 1);
}

#[test]
fn what_is_given_back_waits_for_nothing_where_none_is_sought() {
    let nobody = House::new(KEEP, 1);
    let (_, mut first) = nobody.waits();
    nobody.turn();
    nobody.arrives();
    nobody.told(5, true);
    drop(lease_of(&mut first));
    assert_eq!(nobody.ended(), 1);
    let (house, used) = at_the_end_of_a_turn();
    let away = BackendError::new(BackendErrorKind::Unreachable, "away", None);
    house.rooms().away(house.now(), &away);
    drop(used);
    assert_eq!((house.ended(), house.turn()), (1, 0));
}

#[test]
fn a_shutdown_gives_back_what_was_about_to_leave() {
    let (house, used) = at_the_end_of_a_turn();
    drop(used);
    let effects = house.rooms().close();
    effects.run();
    assert_eq!(house.ended(), 1);
    assert_eq!((house.turn(), house.ended()), (0, 1));
}

#[tokio::test]
async fn what_leaves_and_what_is_sought_are_found_at_once() {
    let (homes, _attended) = Homes::new();
    let (commands, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let prefix = Prefix::new("t").expect("a plain prefix");
    let resource = Resource::named(&prefix, Kind::Semaphore, &"gate".into(), None);
    let keep = Keep { passes: 0, ..KEEP };
    let terms = terms(Wait::Unbounded);
    let home = homes.of(resource, keep, terms.limit, &commands);
    let place: Arc<dyn Place> = Arc::<super::Home>::clone(&home);
    let [first, _second, _third, _fourth] = [(); 4].map(|()| home.acquire(&place, &terms));
    let agent = tokio::spawn(agent::attend(Arc::clone(&home)));
    let mut sought = Vec::new();
    for _ in 0..3 {
        sought.extend(asked.recv().await);
    }
    let Some(Command::Errand(Errand::Acquire { token, answer, .. })) = sought.pop() else {
        panic!("a permit is sought");
    };
    let deadline = Instant::now().after(Duration::from_secs(10));
    let state = LeaseState::new(Clock::System, token, FencingToken::new(1), deadline);
    let lease = Lease::shared(Arc::clone(&home.seat), state);
    answer.send(Ok(lease)).expect("it is waited for");
    let used = first.await.expect("it is its turn");
    let effects = home.rooms().told(Instant::now(), 5, true);
    effects.run();
    drop(used);
    let ended = asked.recv().await;
    let released = |token| {
        Command::Errand(Errand::Release {
            token,
            answer: None,
        })
    };
    assert_eq!(format!("{ended:?}"), format!("{:?}", Some(released(token))));
    let next = asked.try_recv();
    assert!(
        matches!(next, Ok(Command::Errand(Errand::Acquire { .. }))),
        "{next:?}"
    );
    agent.abort();
}

#[test]
fn a_permit_with_less_than_half_of_its_lease_left_is_not_used_again() {
    let house = with_one_idle(KEEP, 3);
    let used = house.holds();
    house.wait(5001);
    drop(used);
    assert_eq!(house.ended(), 1);
    let house = with_one_idle(
        Keep {
            linger: Duration::from_secs(60),
            ..KEEP
        },
        3,
    );
    house.wait(5001);
    house.waits();
    house.turn();
    assert_eq!(house.ended(), 1);
}

#[test]
fn a_use_that_is_over_gives_back_nothing_of_the_next() {
    let house = with_one_idle(KEEP, 3);
    let first = house.holds();
    let mark = first.state().token().parts().0;
    drop(first);
    let second = house.holds();
    let ended = end_use(house.rooms(), house.now(), mark, None);
    let (effects, _) = ended.expect("more is to be done");
    effects.run();
    assert!(second.state().is_held());
    assert_eq!(house.rooms().tally().idle, 0);
}

#[test]
fn as_many_permits_are_sought_as_are_of_use() {
    let house = House::new(KEEP, 3);
    let _waiting: Vec<_> = (0..7).map(|_| house.waits()).collect();
    assert_eq!(house.turn(), 3);
    assert_eq!(house.turn(), 0);
    for _ in 0..3 {
        house.arrives();
    }
    assert_eq!(house.turn(), 1, "an operator may have set a higher limit");
}

#[test]
fn one_permit_that_was_lost_is_not_in_the_way_of_others() {
    let house = House::new(LONG, 2);
    let (_, mut first) = house.waits();
    let (_, mut second) = house.waits();
    house.turn();
    house.arrives();
    let newest = house.arrives();
    drop(lease_of(&mut first));
    drop(lease_of(&mut second));
    newest.lose(LostReason::Gone);
    // Before the agent has looked.
    assert!(house.enter(Wait::No).is_ok());
}

#[test]
fn what_was_sought_for_nobody_is_given_up_after_a_while() {
    let house = House::new(KEEP, 3);
    let (id, answer) = house.waits();
    house.turn();
    house.cancel(Token::local(id, 0));
    drop(answer);
    let stops = || {
        let (turn, effects) = house.rooms().turn(house.now());
        effects.run();
        turn.stop
    };
    assert!(!stops());
    house.wait(50);
    assert!(stops());
}

#[test]
fn what_one_asks_for_by_itself_is_given_up_with_the_rest_when_it_has_gone() {
    let house = House::new(KEEP, 3);
    house.arrives();
    let _used = house.holds();
    let terms = Terms {
        bridge: Some(Duration::ZERO),
        ..terms(Wait::Unbounded)
    };
    let away = BackendError::new(BackendErrorKind::Unreachable, "away", None);
    house.rooms().away(house.now(), &away);
    house.wait(1500);
    let Entry::Waits(id, answer) = house.rooms().enter(house.now(), &terms) else {
        panic!("it was to wait")
    };
    assert_eq!(house.turn(), 1);
    house.cancel(Token::local(id, 0));
    drop(answer);
    let stops = || {
        let (turn, effects) = house.rooms().turn(house.now());
        effects.run();
        turn.stop
    };
    assert!(!stops());
    house.wait(49);
    assert!(!stops());
    house.wait(1);
    assert!(stops());
    assert!(!stops(), "once");
}

#[test]
fn what_comes_for_nobody_is_kept_or_given_back_if_others_wait() {
    let house = House::new(KEEP, 3);
    house.arrives();
    assert_eq!(house.rooms().tally().idle, 1);
    house.told(5, true);
    house.arrives();
    assert_eq!(house.ended(), 2);
}

#[test]
fn nothing_idle_is_handed_out_while_the_server_may_have_forgotten_it() {
    let house = with_one_idle(KEEP, 3);
    house.rooms().doubt(house.now());
    let (_, mut first) = house.waits();
    let (turn, effects) = house.rooms().turn(house.now());
    effects.run();
    assert_eq!(turn.question.map(|tokens| tokens.len()), Some(1));
    assert!(pends(&mut first));
    let effects = house.rooms().answered(house.now(), Some((5, false)));
    effects.run();
    drop(lease_of(&mut first));
    assert_eq!(house.ended(), 0);
}

#[test]
fn an_answer_to_what_was_asked_before_the_doubt_does_not_end_it() {
    let house = with_one_idle(LONG, 3);
    let asks = || {
        let (turn, effects) = house.rooms().turn(house.now());
        effects.run();
        turn.question.is_some()
    };
    house.wait(50);
    assert!(asks());
    house.wait(1);
    house.rooms().doubt(house.now());
    assert!(!asks(), "one is under way");
    let effects = house.rooms().answered(house.now(), Some((5, false)));
    effects.run();
    assert!(house.enter(Wait::Unbounded).is_err());
    house.wait(1);
    assert!(asks());
}

#[test]
fn nothing_idle_is_handed_out_while_the_server_can_not_be_asked() {
    let keep = Keep {
        linger: Duration::from_secs(1),
        ..KEEP
    };
    let house = with_one_idle(keep, 3);
    drop(house.holds());
    let asks = || {
        let (turn, effects) = house.rooms().turn(house.now());
        effects.run();
        turn.question.is_some()
    };
    house.wait(50);
    assert!(asks());
    let answer = |answer| {
        let effects = house.rooms().answered(house.now(), answer);
        effects.run();
    };
    answer(None);
    let (_, mut first) = house.waits();
    assert!(!asks(), "not at once again");
    house.wait(49);
    assert!(!asks());
    house.wait(1);
    assert!(asks());
    assert!(pends(&mut first));
    answer(Some((5, false)));
    drop(lease_of(&mut first));
}

#[test]
fn a_question_without_an_answer_has_all_permits_asked_about_again() {
    let keep = Keep {
        linger: Duration::from_secs(60),
        ..KEEP
    };
    let house = House::new(keep, 100);
    for _ in 0..100 {
        house.arrives();
    }
    let question = || {
        house.wait(50);
        let (turn, effects) = house.rooms().turn(house.now());
        effects.run();
        turn.question.map(|tokens| tokens.len())
    };
    let answer = |answer| {
        let effects = house.rooms().answered(house.now(), answer);
        effects.run();
    };
    assert_eq!(question(), Some(64));
    answer(None);
    assert_eq!(question(), Some(64), "from the first one on");
    answer(Some((5, false)));
    assert!(
        house.enter(Wait::Unbounded).is_err(),
        "36 are left to ask about"
    );
    assert_eq!(question(), Some(36));
    answer(Some((6, false)));
    assert!(house.rooms().tally().idle >= 99);
}

#[test]
fn what_the_server_has_forgotten_is_not_handed_out() {
    let house = House::new(KEEP, 3);
    let state = house.arrives();
    assert!(state.lose(LostReason::Gone));
    house.waits();
    house.turn();
    assert_eq!(house.rooms().tally().idle, 0);
    assert_eq!(house.ended(), 0, "it is ended already");
}

#[test]
fn a_lease_that_comes_too_late_is_given_to_nobody() {
    let house = House::new(KEEP, 3);
    let (_, mut first) = house.waits();
    let token = Token::of(7);
    let over = LeaseState::over(token, FencingToken::new(7), LostReason::Expired);
    let place: Arc<dyn Place> = Arc::clone(&house.seat) as _;
    let lease = Lease::shared(place, over);
    let effects = house
        .rooms()
        .arrived(house.now(), lease, None, Duration::from_secs(5));
    effects.run();
    assert!(pends(&mut first));
}

#[test]
fn who_has_asked_by_itself_for_what_comes_too_late_asks_again() {
    let house = House::new(KEEP, 3);
    let Err(Ok((id, mut answer))) = house.enter(Wait::No) else {
        panic!("it was to ask")
    };
    assert_eq!(house.turn(), 1);
    house.arrives_too_late_for(Some(id));
    assert!(pends(&mut answer));
    assert_eq!(house.turn(), 1, "nobody else asks for it");
    house.arrives_for(Some(id));
    drop(lease_of(&mut answer));
}

#[test]
fn who_comes_in_an_outage_does_not_hope_for_a_seeker_that_hears_nothing() {
    let house = House::new(KEEP, 1);
    house.waits();
    house.turn();
    house.queued();
    let away = BackendError::new(BackendErrorKind::Unreachable, "away", None);
    house.rooms().away(house.now(), &away);
    house.wait(2000);
    // Without an end to its wait or an answer of its own: the core tells it of the outage all the same.
    let (later, mut answer) = house.waits();
    let (turn, effects) = house.rooms().turn(house.now());
    effects.run();
    let tries: Vec<_> = turn.start.iter().map(|start| start.tries).collect();
    assert_eq!(tries, [Some(later)]);
    let now = house.now();
    house
        .rooms()
        .returned(now, away.into(), Some(later), now)
        .run();
    assert!(matches!(answer.try_recv(), Ok(Err(LockError::Backend(_)))));
}

#[test]
fn who_has_time_is_told_at_once_of_what_no_time_will_mend() {
    for (kind, hopes) in [
        (BackendErrorKind::TimedOut, true),
        (BackendErrorKind::NotPermitted, false),
    ] {
        let house = House::new(KEEP, 1);
        let limit = Wait::AtMost(Duration::from_secs(30));
        let Err(Ok((_, mut answer))) = house.enter(limit) else {
            panic!("it was to wait")
        };
        house.turn();
        let error = BackendError::new(kind, "by a test".to_owned(), None);
        let effects = house
            .rooms()
            .returned(house.now(), error.into(), None, house.now());
        effects.run();
        assert_eq!(pends(&mut answer), hopes, "{kind:?}");
    }
}

#[test]
fn a_use_whose_permit_was_lost_tells_why_whenever_it_is_asked() {
    let house = House::new(KEEP, 1);
    let (_, mut first) = house.waits();
    house.turn();
    let state = house.arrives();
    let used = lease_of(&mut first);
    assert!(state.lose(LostReason::ShutDown));
    // The agent looks before anybody else does.
    house.turn();
    assert_eq!(house.rooms().tally().used, 0);
    assert!(!used.state().is_held());
    let reason = used.state().lost().now_or_never();
    assert_eq!(reason, Some(LostReason::ShutDown));
    // Another one is in its place.
    let (_, mut second) = house.waits();
    house.turn();
    house.arrives();
    let next = lease_of(&mut second);
    drop(used);
    assert!(next.state().is_held());
}

#[test]
fn who_does_not_wait_is_refused_at_once_where_all_permits_are_here() {
    let house = House::new(KEEP, 1);
    house.arrives();
    let _used = house.holds();
    let busy = |house: &Arc<House>| matches!(house.enter(Wait::No), Err(Err(RefusalKind::Busy)));
    // But for one now and then, who asks: an operator may have set a higher limit.
    for _ in 0..3 {
        assert!(!busy(&house));
        assert!(busy(&house));
        house.wait(49);
        assert!(busy(&house));
        house.wait(1);
    }
    let lock = Keep {
        fences: Some(4),
        ..KEEP
    };
    let house = House::new(lock, 1);
    let (_, mut first) = house.waits();
    house.arrives();
    let _used = lease_of(&mut first);
    assert!(busy(&house), "there is one lock");
}

#[test]
fn what_an_operator_adds_is_found_by_who_does_not_wait() {
    let house = House::new(KEEP, 2);
    let tries = |house: &Arc<House>| match house.enter(Wait::No) {
        Err(Ok(asks)) => Some(asks),
        Err(Err(_)) => None,
        Ok(_) => panic!("nothing is idle"),
    };
    let mut inside = Vec::new();
    let mut granted = 0;
    for round in 0..4 {
        while let Some((id, mut answer)) = tries(&house) {
            house.turn();
            // There are ten.
            if granted < 10 {
                granted += 1;
                house.arrives_for(Some(id));
                inside.push(lease_of(&mut answer));
            } else {
                let busy = Refusal::new(RefusalKind::Busy);
                let now = house.now();
                house
                    .rooms()
                    .returned(now, busy.into(), Some(id), now)
                    .run();
            }
        }
        let expected = [6, 10, 10, 10][round];
        assert_eq!(granted, expected, "{round}");
        house.wait(50);
    }
}

#[test]
fn who_does_not_wait_gets_the_servers_answer_where_not() {
    let house = House::new(KEEP, 2);
    let Err(Ok((id, mut answer))) = house.enter(Wait::No) else {
        panic!("it was to ask")
    };
    assert_eq!(house.turn(), 1);
    let busy = LockError::Refused(Refusal::new(RefusalKind::Busy));
    let effects = house
        .rooms()
        .returned(house.now(), busy, Some(id), house.now());
    effects.run();
    assert!(matches!(answer.try_recv(), Ok(Err(LockError::Refused(_)))));
    let Err(Ok((id, mut answer))) = house.enter(Wait::No) else {
        panic!("it was to ask")
    };
    house.turn();
    house.arrives_for(Some(id));
    drop(lease_of(&mut answer));
}

#[test]
fn a_wait_ends_at_its_limit_as_a_refusal_or_as_the_outage_it_was() {
    let house = House::new(KEEP, 1);
    let limit = Wait::AtMost(Duration::from_millis(30));
    let Err(Ok((_, mut first))) = house.enter(limit) else {
        panic!("it was to wait")
    };
    house.turn();
    house.queued();
    house.wait(30);
    house.turn();
    let refused = first.try_recv();
    assert!(
        matches!(refused, Ok(Err(LockError::Refused(refusal))) if refusal.kind() == RefusalKind::WaitedTooLong)
    );

    let Err(Ok((_, mut second))) = house.enter(limit) else {
        panic!("it was to wait")
    };
    let (_, mut third) = house.waits();
    let away = BackendError::new(BackendErrorKind::Unreachable, "away", None);
    let effects = house
        .rooms()
        .returned(house.now(), away.into(), None, house.now());
    effects.run();
    assert!(matches!(third.try_recv(), Ok(Err(LockError::Backend(_)))));
    assert!(pends(&mut second));
    let entry = house.rooms().enter(house.now(), &terms(limit));
    assert!(matches!(entry, Entry::Elsewhere));
    house.wait(30);
    house.turn();
    assert!(matches!(second.try_recv(), Ok(Err(LockError::Backend(_)))));
}

/// What a refusal tells of when to come again.
fn retry_after(refused: &Result<Lease, LockError>) -> Option<Duration> {
    match refused {
        Err(LockError::Refused(refusal)) => refusal.retry_after(),
        other => panic!("it was to be refused: {other:?}"),
    }
}

#[test]
fn who_waited_too_long_is_told_of_the_first_lease_to_end_as_the_server_told_a_seeker() {
    let limit = Wait::AtMost(Duration::from_millis(30));
    for (told, expected) in [(Some(700), Some(670)), (None, None), (Some(20), None)] {
        let house = House::new(KEEP, 1);
        let Err(Ok((_, mut answer))) = house.enter(limit) else {
            panic!("it was to wait")
        };
        house.turn();
        house.queued_for(told.map(Duration::from_millis));
        house.wait(30);
        house.turn();
        let refused = answer.try_recv().expect("it is told");
        assert_eq!(
            retry_after(&refused),
            expected.map(Duration::from_millis),
            "{told:?}"
        );
    }
}

#[test]
fn who_is_refused_where_all_permits_are_here_is_told_of_the_first_of_them_to_end() {
    let refused = |house: &Arc<House>, terms: &Terms| {
        let entry = house.rooms().enter(house.now(), terms);
        match entry {
            Entry::Refused(refusal) => refusal.retry_after(),
            _ => panic!("it was to be refused"),
        }
    };
    let house = House::new(KEEP, 2);
    let first = house.arrives();
    let _used = house.holds();
    house.wait(4000);
    house.arrives();
    let _other = house.holds();
    house.wait(1000);
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert!(house.enter(Wait::No).is_err(), "one asks");
    assert_eq!(refused(&house, &terms(Wait::No)), seconds(5));
    let full = Terms {
        max_waiters: 0,
        ..terms(Wait::Unbounded)
    };
    assert_eq!(refused(&house, &full), seconds(5));
    // It is renewed.
    assert!(first.prolong(house.now().after(Duration::from_secs(10))));
    house.wait(1000);
    assert_eq!(refused(&house, &full), seconds(8));
}

#[test]
fn a_wait_that_ends_before_the_server_has_answered_is_refused_when_it_has() {
    let limit = Wait::AtMost(Duration::from_millis(1));
    let late = |house: &Arc<House>| {
        let Err(Ok((_, mut answer))) = house.enter(limit) else {
            panic!("it was to wait")
        };
        house.turn();
        house.wait(5);
        house.turn();
        assert!(pends(&mut answer), "there may be one for it");
        answer
    };
    let house = House::new(KEEP, 1);
    let mut served = late(&house);
    house.arrives();
    let used = lease_of(&mut served);
    drop(used);
    house.rooms().close().run();

    let house = House::new(KEEP, 2);
    let mut refused = late(&house);
    house.queued();
    assert!(matches!(refused.try_recv(), Ok(Err(LockError::Refused(_)))));

    let house = House::new(KEEP, 2);
    let mut failed = late(&house);
    let away = BackendError::new(BackendErrorKind::Unreachable, "away", None);
    let now = house.now();
    house.rooms().returned(now, away.into(), None, now).run();
    assert!(matches!(failed.try_recv(), Ok(Err(LockError::Backend(_)))));

    // All that there are came for others.
    let house = House::new(KEEP, 1);
    let (_, mut first) = house.waits();
    let mut refused = late(&house);
    house.arrives();
    let _used = lease_of(&mut first);
    assert!(matches!(refused.try_recv(), Ok(Err(LockError::Refused(_)))));
}

#[test]
fn who_has_waited_in_vain_for_a_word_of_the_server_asks_for_one_by_itself() {
    let limit = Wait::AtMost(Duration::from_millis(30));
    let late = |bridge: Option<Duration>| {
        let house = House::new(KEEP, 2);
        let terms = Terms {
            bridge,
            ..terms(limit)
        };
        let Entry::Waits(id, mut answer) = house.rooms().enter(house.now(), &terms) else {
            panic!("it was to wait")
        };
        assert_eq!(house.turn(), 1, "for whoever is first here");
        house.wait(30);
        let (turn, effects) = house.rooms().turn(house.now());
        effects.run();
        assert!(pends(&mut answer), "there may be one for it");
        let [own] = &turn.start[..] else {
            panic!("one acquire, of its own: {:?}", turn.start)
        };
        assert_eq!((own.tries, own.terms.wait), (Some(id), Wait::No));
        assert_eq!((own.terms.bridge, own.terms.kept), (bridge, 1));
        assert_eq!(house.turn(), 0, "once");
        (house, id, answer)
    };
    // Of its own time-out, and whatever others have.
    let (house, id, mut failed) = late(Some(Duration::ZERO));
    let silent = BackendError::new(BackendErrorKind::TimedOut, "silent", None);
    let now = house.now();
    house
        .rooms()
        .returned(now, silent.into(), Some(id), now)
        .run();
    assert!(matches!(failed.try_recv(), Ok(Err(LockError::Backend(_)))));

    let (house, id, mut refused) = late(None);
    let soon = Some(Duration::from_millis(700));
    let busy = Refusal::new(RefusalKind::Busy).with_retry_after(soon);
    let now = house.now();
    house
        .rooms()
        .returned(now, busy.into(), Some(id), now)
        .run();
    let Ok(Err(LockError::Refused(refusal))) = refused.try_recv() else {
        panic!("it was to be refused")
    };
    assert_eq!(
        (refusal.kind(), refusal.retry_after()),
        (RefusalKind::WaitedTooLong, soon)
    );

    let (house, id, mut served) = late(None);
    house.arrives();
    drop(lease_of(&mut served));
    house.arrives_for(Some(id));
    assert_eq!(house.rooms().tally().idle, 2);
}

#[test]
fn in_an_outage_who_has_an_answer_of_its_own_asks_for_it_in_its_own_terms() {
    let long = Wait::AtMost(Duration::from_secs(9));
    let hoping = |house: &House, wait, bridge| {
        let bridge = Some(Duration::from_secs(bridge));
        let terms = Terms {
            bridge,
            ..terms(wait)
        };
        match house.rooms().enter(house.now(), &terms) {
            Entry::Waits(id, answer) => (id, answer),
            _ => panic!("it was to wait"),
        }
    };
    let starts = |house: &House| {
        let (turn, effects) = house.rooms().turn(house.now());
        effects.run();
        let asked = |start: super::rooms::Start| {
            let terms = start.terms;
            (start.tries, terms.wait, terms.bridge)
        };
        turn.start.into_iter().map(asked).collect::<Vec<_>>()
    };
    let away = || BackendError::new(BackendErrorKind::Unreachable, "away", None);
    let told = |house: &House, id| {
        let now = house.now();
        house
            .rooms()
            .returned(now, away().into(), Some(id), now)
            .run();
    };

    // Whoever is first, a seeker hopes for nothing but its turn.
    for first in [Some(0), None] {
        let house = House::new(KEEP, 1);
        let mut first = match first {
            Some(bridge) => hoping(&house, long, bridge).1,
            None => house.waits().1,
        };
        assert_eq!(starts(&house), [(None, Wait::Unbounded, None)]);
        let (patient, mut patients) = house.waits();
        let (urgent, mut urgents) = hoping(&house, Wait::Unbounded, 0);
        let (hopes, mut hoped) = hoping(&house, long, 5);
        house.queued();
        assert_eq!(starts(&house), []);
        house.wait(2000);
        house.rooms().away(house.now(), &away());
        house.rooms().away(house.now(), &away());
        let asked = starts(&house);
        let left = Wait::AtMost(Duration::from_secs(7));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert!(asked.contains(&(Some(urgent), Wait::Unbounded, seconds(0))));
        assert!(asked.contains(&(Some(hopes), left, seconds(5))));
        assert!(!asked.iter().any(|(tries, ..)| *tries == Some(patient)));
        assert_eq!(starts(&house), [], "once");
        told(&house, urgent);
        assert!(matches!(urgents.try_recv(), Ok(Err(LockError::Backend(_)))));
        // Who comes later, when it is time to see whether that is over.
        house.wait(1500);
        let (later, _answer) = hoping(&house, long, 1);
        assert_eq!(starts(&house), [(Some(later), long, seconds(1))]);
        assert!(pends(&mut hoped) && pends(&mut patients));
        house.arrives();
        drop(lease_of(&mut first));
        drop(lease_of(&mut patients));
        drop(lease_of(&mut hoped));
        assert_eq!(house.ended(), 0, "the seeker has kept its place");
    }
}

#[test]
fn the_patience_of_one_says_nothing_to_others() {
    let silent = || BackendError::new(BackendErrorKind::TimedOut, "silent", None);
    let house = House::new(KEEP, 2);
    let (_, mut waits) = house.waits();
    let Err(Ok((hasty, mut tries))) = house.enter(Wait::No) else {
        panic!("it was to ask")
    };
    house.turn();
    let (begun, now) = (house.now(), house.now());
    house
        .rooms()
        .returned(now, silent().into(), Some(hasty), begun)
        .run();
    assert!(matches!(tries.try_recv(), Ok(Err(LockError::Backend(_)))));
    assert!(pends(&mut waits), "it has more time");
    // So has who comes next.
    house.wait(1000);
    let Err(Ok((next, mut answer))) = house.enter(Wait::AtMost(Duration::from_millis(30))) else {
        panic!("it was to wait")
    };
    house.turn();
    house.wait(30);
    let (turn, effects) = house.rooms().turn(house.now());
    effects.run();
    assert!(pends(&mut answer));
    assert_eq!(turn.start[0].tries, Some(next));
    house
        .rooms()
        .returned(now, silent().into(), None, begun)
        .run();
    assert!(matches!(waits.try_recv(), Ok(Err(LockError::Backend(_)))));
}

#[test]
fn an_outage_that_is_over_is_no_reason_any_more() {
    let house = House::new(KEEP, 1);
    house.waits();
    house.turn();
    let away = BackendError::new(BackendErrorKind::Unreachable, "away", None);
    let now = house.now();
    house.rooms().returned(now, away.into(), None, now).run();
    house.wait(2000);
    let Err(Ok((_, mut answer))) = house.enter(Wait::AtMost(Duration::from_millis(30))) else {
        panic!("it was to wait")
    };
    house.turn();
    house.queued();
    house.wait(30);
    house.turn();
    assert!(matches!(answer.try_recv(), Ok(Err(LockError::Refused(_)))));
}

#[test]
fn what_comes_for_one_who_does_not_wait_is_not_given_to_who_does() {
    let house = House::new(KEEP, 3);
    let (_, mut waits) = house.waits();
    let Err(Ok((id, mut tries))) = house.enter(Wait::No) else {
        panic!("it was to ask")
    };
    assert_eq!(house.turn(), 2);
    house.arrives_for(Some(id));
    let _used = lease_of(&mut tries);
    assert!(pends(&mut waits));
    house.arrives();
    drop(lease_of(&mut waits));
}

#[test]
fn a_doubt_lasts_until_all_permits_have_been_asked_about() {
    let house = House::new(LONG, 200);
    let states: Vec<_> = (0..150).map(|_| house.arrives()).collect();
    house.rooms().doubt(house.now());
    for asked in [64, 64, 22] {
        assert!(house.enter(Wait::No).is_err(), "nothing is handed out");
        house.wait(1);
        assert_eq!(house.asks(), Some(asked), "at once");
        house.answered(5, false);
    }
    drop(house.holds());

    // What was forgotten is the first that is known of it.
    house.wait(50);
    assert_eq!(house.asks(), Some(64));
    states[0].lose(LostReason::Gone);
    house.answered(6, false);
    assert!(house.enter(Wait::No).is_err(), "nothing is handed out");
    house.wait(1);
    assert_eq!(house.asks(), Some(64), "at once");
}

#[test]
fn nothing_is_passed_on_while_the_server_may_have_lost_it() {
    let house = House::new(LONG, 1);
    house.arrives();
    let used = house.holds();
    let (_, mut waits) = house.waits();
    house.turn();
    house.rooms().doubt(house.now());
    drop(used);
    assert!(pends(&mut waits));

    house.wait(1);
    assert_eq!(house.asks(), Some(1), "at once");
    house.answered(5, false);
    drop(lease_of(&mut waits));
}

#[test]
fn what_is_only_held_is_not_asked_about() {
    let house = House::new(LONG, 3);
    let (_, mut first) = house.waits();
    house.turn();
    house.arrives();
    let used = lease_of(&mut first);
    house.wait(3000);
    let (turn, effects) = house.rooms().turn(house.now());
    effects.run();
    assert_eq!(
        (turn.question, turn.rest),
        (None, Some(Duration::from_secs(1)))
    );
    drop(used);
    assert_eq!(house.asks(), None, "it is kept since now");
    house.wait(49);
    let used = house.holds();
    assert_eq!(house.asks(), None);
    house.wait(1);
    assert_eq!(house.asks(), Some(1), "it is used again");
    drop(used);
}

#[test]
fn a_word_that_no_later_one_undoes_is_asked_about_by_who_holds() {
    let house = House::new(KEEP, 3);
    // As anybody may publish, or the server said before its clock was set back.
    house.told((1 << 53) - 1, true);
    let (_, mut first) = house.waits();
    house.turn();
    house.arrives();
    let used = lease_of(&mut first);
    house.told(7, false);
    house.wait(999);
    assert_eq!(house.asks(), None, "they may wait");
    house.wait(51);
    assert_eq!(house.asks(), Some(1));
    house.answered(8, false);
    drop(used);
    drop(house.holds());
    assert_eq!((house.ended(), house.rooms().tally().reused), (0, 1));
}

#[test]
fn as_many_fences_are_set_aside_as_are_handed_out_whoever_asks() {
    let fenced = Keep {
        fences: Some(40),
        linger: Duration::ZERO,
        ..KEEP
    };
    let house = House::new(fenced, 1);
    house.waits();
    house.rooms().enter(house.now(), &terms(Wait::No));
    let (turn, effects) = house.rooms().turn(house.now());
    effects.run();
    assert!(!turn.start.is_empty());
    assert!(turn.start.iter().all(|start| start.terms.kept == 41));
}

#[test]
fn a_shutdown_gives_back_what_is_idle_and_refuses_who_waits() {
    let house = House::new(KEEP, 2);
    house.arrives();
    house.arrives();
    let used = house.holds();
    let _other = house.holds();
    let (_, mut waiting) = house.waits();
    drop(used);
    drop(lease_of(&mut waiting));
    let effects = house.rooms().close();
    effects.run();
    assert_eq!(house.ended(), 1);
    assert!(matches!(
        house.enter(Wait::Unbounded),
        Err(Err(RefusalKind::ShuttingDown))
    ));
}

#[test]
fn a_request_beside_the_home_counts_as_one_of_another_process() {
    let house = with_one_idle(KEEP, 3);
    let effects = house.rooms().passed_by();
    effects.run();
    assert_eq!(house.ended(), 1);
    house.rooms().went_by();
    house.arrives();
    assert_eq!(house.rooms().tally().idle, 1);
}

#[test]
fn fences_rise_from_pass_to_pass_and_end_with_those_that_were_set_aside() {
    let keep = Keep {
        passes: 2,
        linger: Duration::ZERO,
        fences: Some(2),
        ..KEEP
    };
    let house = House::new(keep, 1);
    let mut waiting: Vec<_> = (0..4).map(|_| house.waits()).collect();
    house.turn();
    house.arrives();
    let fences = waiting[..3].iter_mut().map(|(_, answer)| {
        let lease = lease_of(answer);
        lease.fencing_token().get()
    });
    assert_eq!(fences.collect::<Vec<_>>(), [1000, 1001, 1002]);
    house.turn();
    assert_eq!(house.ended(), 1);
    assert!(pends(&mut waiting[3].1));
    house.arrives();
    drop(lease_of(&mut waiting[3].1));
    assert_eq!(house.ended(), 2, "nobody waits, and nothing is kept");
}

#[test]
fn a_use_is_lost_with_its_permit() {
    let house = House::new(KEEP, 1);
    let state = house.arrives();
    let used = house.holds();
    assert!(used.state().is_held());
    assert!(state.lose(LostReason::Gone));
    assert!(!used.state().is_held());
    drop(used);
    house.turn();
    assert_eq!(house.rooms().tally().used, 0);
}

#[test]
fn why_a_permit_was_lost_is_told_to_a_user_who_looks_later() {
    let house = House::new(KEEP, 1);
    let state = house.arrives();
    let used = house.holds();
    assert!(state.lose(LostReason::ShutDown));
    house.turn();
    house.arrives();
    assert!(!used.state().is_held());
    assert_eq!(used.state().lost_reason(), Some(LostReason::ShutDown));
}

#[derive(Debug, Clone)]
enum Event {
    /// Whether it waits, and whether it has an answer of its own for an outage.
    Enter(bool, bool),
    Away,
    Leave(prop::sample::Index),
    Done(prop::sample::Index),
    Arrive,
    Told(u64, bool),
    Lose(prop::sample::Index),
    Doubt,
    Answer(Option<(u64, bool)>),
    Outsider,
    Pass(u64),
    Turn,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let index = any::<prop::sample::Index>;
    let event = prop_oneof![
        6 => any::<(bool, bool)>().prop_map(|(waits, urgent)| Event::Enter(waits, urgent)),
        1 => Just(Event::Away),
        1 => index().prop_map(Event::Leave),
        6 => index().prop_map(Event::Done),
        4 => Just(Event::Arrive),
        2 => (0..20_u64, any::<bool>()).prop_map(|(stamp, wait)| Event::Told(stamp, wait)),
        1 => index().prop_map(Event::Lose),
        1 => Just(Event::Doubt),
        2 => prop::option::of((0..20_u64, any::<bool>())).prop_map(Event::Answer),
        1 => Just(Event::Outsider),
        2 => (0..40_u64).prop_map(Event::Pass),
        4 => Just(Event::Turn),
    ];
    prop::collection::vec(event, 0..120)
}

/// Who holds and who waits, as they see it.
#[derive(Default)]
struct Street {
    holding: Vec<Lease>,
    waiting: Vec<(u64, Answer)>,
    permits: Vec<Arc<LeaseState>>,
    outsiders: u32,
}

impl Street {
    fn collect(&mut self) {
        let mut still = Vec::new();
        for (id, mut answer) in self.waiting.drain(..) {
            match answer.try_recv() {
                Ok(Ok(lease)) => self.holding.push(lease),
                Ok(Err(_)) => {}
                Err(TryRecvError::Empty) => still.push((id, answer)),
                Err(TryRecvError::Closed) => panic!("a waiter was forgotten"),
            }
        }
        self.waiting = still;
    }
}

proptest! {
    #[test]
    fn no_permit_has_two_uses_and_each_is_given_back_once(events in events()) {
        let house = House::new(KEEP, 3);
        let mut street = Street::default();
        for event in events {
            match event {
                Event::Enter(waits, urgent) => {
                    let terms = Terms {
                        bridge: urgent.then_some(Duration::ZERO),
                        ..terms(if waits { Wait::Unbounded } else { Wait::No })
                    };
                    if let Some(lease) = house.take() {
                        street.holding.push(lease);
                        continue;
                    }
                    let entry = house.rooms().enter(house.now(), &terms);
                    match entry {
                        Entry::Waits(id, answer) => street.waiting.push((id, answer)),
                        Entry::Refused(_) | Entry::Elsewhere => {}
                    }
                }
                Event::Away => {
                    let away = BackendError::new(BackendErrorKind::Unreachable, "away", None);
                    house.rooms().away(house.now(), &away);
                }
                Event::Leave(at) if !street.waiting.is_empty() => {
                    let (id, _answer) = street.waiting.remove(at.index(street.waiting.len()));
                    house.cancel(Token::local(id, 0));
                }
                Event::Done(at) if !street.holding.is_empty() => {
                    drop(street.holding.remove(at.index(street.holding.len())));
                }
                Event::Arrive => street.permits.push(house.arrives()),
                Event::Told(stamp, wait) => house.told(stamp, wait),
                Event::Lose(at) if !street.permits.is_empty() => {
                    street.permits[at.index(street.permits.len())].lose(LostReason::Gone);
                }
                Event::Doubt => house.rooms().doubt(house.now()),
                Event::Answer(answer) => {
                    let effects = house.rooms().answered(house.now(), answer);
                    effects.run();
                }
                Event::Outsider if street.outsiders == 0 => {
                    street.outsiders = 1;
                    let effects = house.rooms().passed_by();
                    effects.run();
                }
                Event::Outsider => {
                    street.outsiders = 0;
                    house.rooms().went_by();
                }
                Event::Pass(ms) => house.wait(ms),
                Event::Turn => { house.turn(); }
                Event::Leave(_) | Event::Done(_) | Event::Lose(_) => {}
            }
            street.collect();
            let ended = house.seat.ended();
            let mut times: HashMap<Token, u32> = HashMap::new();
            for token in &ended {
                *times.entry(*token).or_default() += 1;
            }
            prop_assert!(times.values().all(|times| *times == 1), "ended twice");
            let alive = street.permits.iter().filter(|state| state.is_held()).count();
            let inside = street.holding.iter().filter(|lease| lease.state().is_held()).count();
            prop_assert!(inside <= alive, "{inside} inside on {alive} permits");
            let kept = house.rooms().tally();
            prop_assert!(street.outsiders == 0 || kept.idle == 0, "kept idle beside a request");
        }
        // When all is over nothing is left.
        street.waiting.clear();
        street.holding.clear();
        let effects = house.rooms().close();
        effects.run();
        house.turn();
        let left = street.permits.iter().filter(|state| state.is_held()).count();
        prop_assert_eq!(left, 0, "{:?}", house);
        prop_assert_eq!(house.rooms().tally().used, 0);
    }
}

/// What comes of an acquire that the agent has started.
#[derive(Debug, Clone)]
enum End {
    Held,
    /// Granted, and over before it was taken up.
    TooLate,
    Refused,
    Silent,
    Broken,
}

#[derive(Debug, Clone)]
enum Step {
    /// How long it waits in ms, if not without end, and whether it has an answer of its own for an outage.
    Enter(Option<u64>, bool),
    Leave(prop::sample::Index),
    Done(prop::sample::Index),
    Ends(prop::sample::Index, End),
    Away,
    Queued,
    Doubt,
    Answer(Option<bool>),
    Told(bool),
    Pass(u64),
    Turn,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<prop::sample::Index>;
    let end = prop_oneof![
        Just(End::Held),
        Just(End::TooLate),
        Just(End::Refused),
        Just(End::Silent),
        Just(End::Broken),
    ];
    let wait = prop::option::of(prop_oneof![Just(0_u64), 1..200_u64]);
    let step = prop_oneof![
        6 => (wait, any::<bool>()).prop_map(|(wait, urgent)| Step::Enter(wait, urgent)),
        1 => index().prop_map(Step::Leave),
        4 => index().prop_map(Step::Done),
        4 => (index(), end).prop_map(|(at, end)| Step::Ends(at, end)),
        1 => Just(Step::Away),
        1 => Just(Step::Queued),
        1 => Just(Step::Doubt),
        2 => prop::option::of(any::<bool>()).prop_map(Step::Answer),
        1 => any::<bool>().prop_map(Step::Told),
        2 => (0..80_u64).prop_map(Step::Pass),
        6 => Just(Step::Turn),
    ];
    prop::collection::vec(step, 0..120)
}

/// A home with its agent: what that has under way, and whether it has asked a question.
struct Attended {
    house: Arc<House>,
    street: Street,
    under_way: Vec<(Option<u64>, Instant)>,
    asks: bool,
    stamp: u64,
}

impl Attended {
    fn turn(&mut self) {
        let now = self.house.now();
        let (turn, effects) = self.house.rooms().turn(now);
        effects.run();
        if turn.stop || turn.rest.is_none() {
            self.under_way.clear();
        }
        let started = turn.start.iter().map(|start| (start.tries, now));
        self.under_way.extend(started);
        self.asks |= turn.question.is_some();
    }

    fn answer(&mut self, answer: Option<bool>) {
        if std::mem::take(&mut self.asks) {
            self.stamp += 1;
            let answer = answer.map(|wait| (self.stamp, wait));
            let effects = self.house.rooms().answered(self.house.now(), answer);
            effects.run();
        }
    }

    fn ends(&mut self, at: usize, end: &End) {
        let (tries, started) = self.under_way.swap_remove(at);
        let now = self.house.now();
        let failed = |kind| LockError::from(BackendError::new(kind, "no", None));
        let error = match end {
            End::Held => {
                self.street.permits.push(self.house.arrives_for(tries));
                return;
            }
            End::TooLate => {
                self.house.arrives_too_late_for(tries);
                return;
            }
            End::Refused => Refusal::new(RefusalKind::Busy).into(),
            End::Silent => failed(BackendErrorKind::TimedOut),
            End::Broken => failed(BackendErrorKind::Protocol),
        };
        let effects = self.house.rooms().returned(now, error, tries, started);
        effects.run();
    }
}

proptest! {
    #[test]
    fn whoever_waits_hears_as_soon_as_the_server_serves(steps in steps()) {
        let mut home = Attended {
            house: House::new(KEEP, 3),
            street: Street::default(),
            under_way: Vec::new(),
            asks: false,
            stamp: 0,
        };
        let house = Arc::clone(&home.house);
        for step in steps {
            match step {
                Step::Enter(wait, urgent) => {
                    let wait = wait.map_or(Wait::Unbounded, |ms| Wait::at_most(Duration::from_millis(ms)));
                    let bridge = urgent.then_some(Duration::ZERO);
                    let terms = Terms { bridge, ..terms(wait) };
                    if let Some(lease) = house.take() {
                        home.street.holding.push(lease);
                        continue;
                    }
                    let entry = house.rooms().enter(house.now(), &terms);
                    if let Entry::Waits(id, answer) = entry {
                        home.street.waiting.push((id, answer));
                    }
                }
                Step::Leave(at) if !home.street.waiting.is_empty() => {
                    let (id, _answer) = home.street.waiting.remove(at.index(home.street.waiting.len()));
                    house.cancel(Token::local(id, 0));
                }
                Step::Done(at) if !home.street.holding.is_empty() => {
                    drop(home.street.holding.remove(at.index(home.street.holding.len())));
                }
                Step::Ends(at, end) if !home.under_way.is_empty() => {
                    home.ends(at.index(home.under_way.len()), &end);
                }
                Step::Away => {
                    let away = BackendError::new(BackendErrorKind::Unreachable, "away", None);
                    house.rooms().away(house.now(), &away);
                }
                Step::Queued if !home.under_way.is_empty() => house.queued(),
                Step::Doubt => house.rooms().doubt(house.now()),
                Step::Answer(answer) => home.answer(answer),
                Step::Told(wait) => {
                    home.stamp += 1;
                    house.told(home.stamp, wait);
                }
                Step::Pass(ms) => house.wait(ms),
                Step::Turn => home.turn(),
                Step::Leave(_) | Step::Done(_) | Step::Ends(..) | Step::Queued => {}
            }
            home.street.collect();
            let alive = home.street.permits.iter().filter(|state| state.is_held()).count();
            let inside = home.street.holding.iter().filter(|lease| lease.state().is_held()).count();
            prop_assert!(inside <= alive, "{inside} inside on {alive} permits");
        }
        // From here on all is granted, and nobody holds for long.
        for _ in 0..500 {
            home.turn();
            home.answer(Some(false));
            while !home.under_way.is_empty() {
                home.ends(0, &End::Held);
            }
            home.street.collect();
            home.street.holding.clear();
            house.wait(100);
        }
        prop_assert!(home.street.waiting.is_empty(), "{:?}", house);
        prop_assert!(home.street.permits.iter().all(|state| !state.is_held()), "{:?}", house);
    }
}
