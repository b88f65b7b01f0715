//! Locks on a majority of independent servers: what that promises, and what not.
//!
//! A handle that [`Portcullis::quorum`](crate::Portcullis::quorum) makes keeps its mutexes and
//! semaphores on N servers that know nothing of each other, by the Redlock algorithm. A lock is held
//! while a majority of all N holds it. So it goes on while a minority is killed, frozen, cut off or
//! slow, without a failover that could forget a lock. Layers, guards and settings are the same.
//!
//! # How many servers
//!
//! An odd number: 3 tolerate one failure, 5 two, 7 three. The majority is one of the servers that
//! were named, never of those that answer. They have to be independent: no replicas of each other,
//! not on one machine. Two addresses that lead to one server are found out, and have one vote.
//!
//! Of `K` permits a [`Semaphore`](crate::Semaphore) needs more than N · K / (K + 1) votes, or `K + 1` could be out, and so
//! tolerates less; [`tolerates`](crate::Semaphore::tolerates) says how much:
//!
//! | servers | lock | 2 permits | 3 | 4 | 5 |
//! | --- | --- | --- | --- | --- | --- |
//! | 3 | 1 | – | – | – | – |
//! | 5 | 2 | 1 | 1 | – | – |
//! | 7 | 3 | 2 | 1 | 1 | 1 |
//!
//! Where it would tolerate none (–) it is refused. All that use a semaphore have to name the same
//! limit.
//!
//! # What is promised
//!
//! No two guards of a lock are held at once, as long as
//!
//! - each lease is kept by a majority of the servers until it has ended. One loses leases before by
//!   eviction, by hand, or by a clock that is set forward. A lock that is held on all of five servers
//!   outlives that of two; one that could be had on three alone outlives none until others have filled
//!   in, and [`held_on`](crate::MutexGuard::held_on) says on how many it is. A restart without data, or
//!   a failover to a replica, is provided for: see below;
//! - the clocks of all others, and of this machine, run at the same rate, within 1 %;
//! - no process goes on as a holder after [`is_held`](crate::MutexGuard::is_held) is false or
//!   [`lost`](crate::MutexGuard::lost) has fired. One that is paused in between, by its garbage
//!   collector or its host, does not notice.
//!
//! The lease counts from before the request was sent that each server answered, less 1 % and 2 ms, and
//! lasts until the first of a majority could end. It is looked at again when the last answer is there.
//!
//! A server that was restarted has no vote until all leases of the gate that it could have lost have
//! ended, which is the gate's TTL: see [`quarantine`](crate::Builder::quarantine). So after all servers
//! were started a gate is refused for one TTL, 10 s by default. It relies on `INFO`, and on all
//! processes naming the same TTL for a gate.
//!
//! A server may be one that [sentinels](crate::Builder::url) name: a seat of the quorum that fails
//! over by itself. A replica that takes its place may lack the last leases, however long it has run.
//! So it counts as a server that was restarted when sentinels began to name it, which they tell,
//! and 5 s more, since other processes hear of it a little later. A process that is cut off from the
//! sentinels together with the old master, and uses that for longer, breaks this: let the master insist
//! on a replica, by `min-replicas-to-write 1`.
//!
//! # Fencing tokens
//!
//! The first two conditions are about time, and the third about what no lock can enforce. Where a
//! second holder would do harm that can't be undone, let the resource refuse smaller [fencing
//! tokens](crate::FencingToken) than it has seen. Guards of a quorum have one, as others have: a lock
//! is handed out only when a majority agrees on it while they hold the lock. It is mostly agreed on with
//! the first answers, else written back, and without agreement there is no guard. A later majority
//! has a server of this one, so its number is greater. Where just that server has lost its data, the
//! number is greater all the same, since all begin at the middle one of the servers' clocks: unless
//! that was set back by more than has passed since. Clients of other libraries that share a key by
//! [`mutex_at`](crate::Portcullis::mutex_at) draw none.
//!
//! # The debate
//!
//! The algorithm is S. Sanfilippo's, in the Redis documentation: *Distributed Locks with Redis*.
//! M. Kleppmann, *How to do distributed locking* (2016), objects that it relies on clocks and on
//! processes that are not paused, and has no fencing tokens: for correctness, take those, or a system of
//! consensus; for mere efficiency one server is enough. Sanfilippo, *Is Redlock safe?* (2016), answers
//! that the time is looked at after the answers, and that rates of clocks are a mild condition. Both
//! are right about what they say. If one server and its restarts suit you, take one server: it is
//! faster. If you need a lock that outlives servers, take this, and check fencing tokens.
//!
//! # Waiting
//!
//! By push, as on one server: who waits stands in a queue on each server, with one ticket, by which
//! all of them serve in the same order. A release tells the first, which asks at once. Who has some
//! of the votes and finds an older one with others gives way. Beside that the first who waits in a
//! process asks again each second.
//!
//! # What is not offered
//!
//! Rate limits, since a count over independent servers counts nothing exactly; `min_replicas` and
//! `lock_delay`; pools; cluster nodes as servers. `connections` does not apply: there is one for
//! commands to each. Of many who ask at once, each server is asked for 128, and the others wait for
//! their turn.
//!
//! # Before it is relied on
//!
//! [`check`](crate::Portcullis::check) and [`Builder::connect`](crate::Builder::connect) look at all servers, name those that do not fit, and insist on a majority.
//!
//! # Failures
//!
//! A call that gets no quorum fails by its deadline, and its [`BackendError`](crate::BackendError)
//! says of [each server](crate::BackendError::servers) whether it gave its vote, was busy, or why it
//! failed. What it held is given back, also where the answer comes later.
//!
//! Keys begin with `<prefix>:quorum:`; the ACL of SECURITY.md suits with that prefix, and with
//! `+config|get` a server's durability is known.
