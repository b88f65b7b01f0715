//! Real threads, which meet on the way where nothing is locked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use super::super::Memory;
use crate::error::{LockError, RefusalKind};
use crate::key::Prefix;
use crate::lease::{LeaseMode, Release};
use crate::portcullis::Portcullis;
use crate::semaphore::{Semaphore, SemaphorePermit};
use crate::time::{Clock, Ttl};

const TASKS: u64 = 8;
const ROUNDS: usize = 1_500;
const HANGS: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

struct Visitor {
    semaphore: Semaphore,
    limit: u32,
    /// Permits held, but for those that may run out.
    inside: Arc<AtomicU32>,
    random: u64,
    fences: Vec<u64>,
}

impl Visitor {
    /// Xorshift, so that each run asks for the same.
    fn below(&mut self, end: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        u32::try_from(self.random >> 32).unwrap_or(0) % end
    }

    async fn come_and_go(mut self) -> Vec<u64> {
        for _ in 0..ROUNDS {
            self.visit().await;
        }
        self.fences
    }

    async fn visit(&mut self) {
        let semaphore = self.semaphore.clone();
        match self.below(16) {
            0..4 => {
                let permit = semaphore.acquire().await.expect("it waits for its turn");
                self.hold(permit, 1).await;
            }
            4..6 => match semaphore.try_acquire().await {
                Ok(permit) => self.hold(permit, 1).await,
                Err(error) => assert_eq!(kind(&error), Some(RefusalKind::Busy)),
            },
            6..8 => match semaphore.max_wait(Duration::from_millis(1)).acquire().await {
                Ok(permit) => self.hold(permit, 1).await,
                Err(error) => assert_eq!(kind(&error), Some(RefusalKind::WaitedTooLong)),
            },
            8..10 => {
                let weight = 1 + self.below(self.limit);
                let acquired = semaphore.acquire_many(weight).await;
                self.hold(acquired.expect("it waits for its turn"), weight)
                    .await;
            }
            10..12 => {
                let permit = semaphore.acquire().await.expect("it waits for its turn");
                // As nobody takes it away, it is held whenever it is looked at.
                assert!(permit.is_held() && permit.remaining() <= Ttl::DEFAULT.get());
                let lost = permit.lost();
                self.hold(permit, 1).await;
                drop(lost);
            }
            12..14 => {
                let short = semaphore.ttl(SHORT).expect("its TTL is in range");
                let fixed = short.lease(LeaseMode::Fixed).expect("it is a mode");
                let permit = fixed.acquire().await.expect("it waits for its turn");
                self.note(&permit);
                if self.below(128) == 0 {
                    permit.lost().await;
                    assert!(!permit.is_held());
                    assert_eq!(answer(permit).await, Release::NoLongerHeld);
                }
            }
            _ => {
                let patience = self.below(4);
                tokio::select! {
                    biased;
                    permit = semaphore.acquire() => {
                        self.hold(permit.expect("it waits for its turn"), 1).await;
                    }
                    () = turns(patience) => {}
                }
            }
        }
    }

    async fn hold(&mut self, permit: SemaphorePermit, weight: u32) {
        let others = self.inside.fetch_add(weight, Ordering::SeqCst);
        assert!(others + weight <= self.limit, "{others} are held already");
        self.note(&permit);
        turns(self.below(3)).await;
        self.inside.fetch_sub(weight, Ordering::SeqCst);
        if self.below(2) == 0 {
            assert_eq!(answer(permit).await, Release::Released);
        }
    }

    fn note(&mut self, permit: &SemaphorePermit) {
        let fence = permit.fencing_token().get();
        assert!(self.fences.last() < Some(&fence), "a fence came late");
        self.fences.push(fence);
    }
}

async fn turns(turns: u32) {
    for _ in 0..turns {
        yield_now().await;
    }
}

async fn answer(permit: SemaphorePermit) -> Release {
    let answer = permit.release().await;
    answer.expect("nothing is out")
}

fn kind(error: &LockError) -> Option<RefusalKind> {
    match error {
        LockError::Refused(refusal) => Some(refusal.kind()),
        LockError::Backend(_) => None,
    }
}

async fn crowd(limit: u32) {
    let memory = Memory::new(Clock::System);
    let gates = Portcullis::on_memory(&memory, Prefix::default());
    let semaphore = gates
        .semaphore("crowd", limit)
        .expect("the limit is in range");
    let inside = Arc::new(AtomicU32::new(0));
    let mut visitors = JoinSet::new();
    for number in 1..=TASKS {
        let visitor = Visitor {
            semaphore: semaphore.clone(),
            limit,
            inside: Arc::clone(&inside),
            random: number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            fences: Vec::new(),
        };
        visitors.spawn(visitor.come_and_go());
    }
    let all = timeout(HANGS, visitors.join_all()).await;
    let mut fences = all.expect("every visitor gets its turn").concat();
    let last = semaphore.clone().max_wait(Duration::ZERO);
    let permits = last.acquire_many(limit).await;
    let permits = permits.expect("all is given back");
    fences.push(permits.fencing_token().get());
    drop(permits);
    for site in memory.sites.all() {
        // The keeper may be about to look at what has ended meanwhile.
        let entered = timeout(HANGS, async {
            loop {
                if let Some(fence) = site.turnstile().enter(limit, Ttl::DEFAULT) {
                    return fence;
                }
                yield_now().await;
            }
        });
        fences.push(entered.await.expect("without a crowd nothing is locked"));
    }
    let given = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), given, "a fence was given twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_that_comes_and_goes_in_all_ways_is_let_in_one_by_one() {
    crowd(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_that_comes_and_goes_in_all_ways_is_let_in_three_by_three() {
    crowd(3).await;
}
