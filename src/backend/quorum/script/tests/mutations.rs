//! The scripts broken on purpose: each way to break them is found by some law, and each law finds
//! one.

use std::collections::BTreeSet;

use super::laws::LAWS;
use super::rig::{KINDS, Rig, Scripts};
use crate::backend::server::script::tests::support::Server;

/// A name, and a piece of text with what takes its place.
type Mutation = (&'static str, &'static str, &'static str);

const MUTATIONS: &[Mutation] = &[
    ("no deadline", "if ms > latest_ms then", "if false then"),
    (
        "a deadline that is none",
        "if ms > latest_ms then",
        "if ms >= latest_ms then",
    ),
    (
        "no tombstones are seen",
        "if redis.call(\"ZSCORE\", roster, \"!\" .. name) then",
        "if false then",
    ),
    (
        "no tombstone is left",
        "if latest_ms >= ms then\n  roster_note",
        "if false then\n  roster_note",
    ),
    (
        "a tombstone is left by all",
        "if latest_ms >= ms then\n  roster_note",
        "if true then\n  latest_ms = ms + 1000\n  roster_note",
    ),
    ("a tombstone is too short", "latest_ms - ms, ms)", "0, ms)"),
    (
        "nobody has to wait for a turn",
        "if room and turn then",
        "if room then",
    ),
    ("nobody needs room", "if room and turn then", "if turn then"),
    (
        "the older waits, too",
        "ticket < first_ticket or",
        "false or",
    ),
    (
        "a fill waits for its turn",
        "if wait and mode ~= FILL then",
        "if wait then",
    ),
    (
        "a fill draws a fence",
        "  if mode == FILL then\n    fence_raise(clock, fence, lease_ms)",
        "  if false then\n    fence_raise(clock, fence, lease_ms)",
    ),
    (
        "a fill that is repeated draws a fence",
        "  if mode == FILL then\n    fence_raise(clock, least, lease_ms)",
        "  if false then\n    fence_raise(clock, least, lease_ms)",
    ),
    (
        "a fill is not noted",
        "    fence_raise(clock, fence, lease_ms)\n  else\n    fence = fence_draw(clock, least",
        "    fence = fence\n  else\n    fence = fence_draw(clock, least",
    ),
    (
        "a fill that is repeated is not noted",
        "    fence_raise(clock, least, lease_ms)\n    return",
        "    return",
    ),
    (
        "an agreed fence is not noted",
        "if agreed then\n  fence_raise(clock, fence, lease_ms)",
        "if agreed then\n  fence = fence",
    ),
    (
        "a fence that was passed is taken",
        "  fence = fence_draw(clock, fence, lease_ms)\nend\nreturn",
        "  fence_raise(clock, fence, lease_ms)\nend\nreturn",
    ),
    (
        "fences go by the proposal alone",
        "math.max((tonumber(redis.call(\"GET\", clock)) or 0) + 1, least)",
        "least",
    ),
    (
        "fences go by the server alone",
        "math.max((tonumber(redis.call(\"GET\", clock)) or 0) + 1, least)",
        "(tonumber(redis.call(\"GET\", clock)) or 0) + 1",
    ),
    ("fences stand still", "or 0) + 1, least)", "or 0), least)"),
    (
        "fences are lowered",
        "if (tonumber(redis.call(\"GET\", clock)) or 0) < fence then",
        "if true then",
    ),
    (
        "a clock that stays for ever",
        "digits(fence), \"PX\", math.max(lease_ms, KEEP_MS))",
        "digits(fence))",
    ),
    (
        "who is served keeps its place",
        "  if queued then\n    redis.call(\"ZREM\", queue, name)\n  end\n  local fence",
        "  local fence",
    ),
    (
        "what is left is told to nobody",
        "if wait and not holders_full(main, ms, limit) then\n    queue_tell(queue, roster, ms)",
        "if false then\n    queue_tell(queue, roster, ms)",
    ),
    (
        "a full place is offered",
        "if wait and not holders_full(main, ms, limit) then",
        "if wait then",
    ),
    (
        "who only tries waits",
        "if mode ~= WAIT then\n  if queued",
        "if false then\n  if queued",
    ),
    (
        "a place stays though it is not needed",
        "    -- A majority holds it: it needs no place, and by this answer has none.\n    redis.call(\"ZREM\", queue, name)",
        "    redis.call(\"ZCARD\", queue)",
    ),
    (
        "no queue is full",
        "if waiters >= max_waiters then",
        "if false then",
    ),
    (
        "a queue by the order of arrival",
        "redis.call(\"ZADD\", queue, digits(ticket), name)\n  alive()",
        "redis.call(\"ZADD\", queue, redis.call(\"ZCARD\", queue), name)\n  alive()",
    ),
    (
        "who waits says nothing",
        "redis.call(\"ZADD\", queue, digits(ticket), name)\n  alive()",
        "redis.call(\"ZADD\", queue, digits(ticket), name)",
    ),
    (
        "who asks again says nothing",
        "elseif mode == WAIT then\n  alive()",
        "elseif mode == WAIT then\n  queued = queued",
    ),
    (
        "who polls says that it listens",
        "pushed == \"1\" and instance or \"~\" .. instance",
        "instance",
    ),
    (
        "who polls says nothing",
        "listens or polls then",
        "listens then",
    ),
    (
        "the dead are waited for",
        "if listens or polls then",
        "if true then",
    ),
    (
        "a queue that stays for ever",
        "end\nkeep(queue, KEEP_MS)\nreturn {QUEUED",
        "end\nredis.call(\"PERSIST\", queue)\nreturn {QUEUED",
    ),
    (
        "who is in front is not counted",
        "redis.call(\"ZRANK\", queue, name), older}",
        "0, older}",
    ),
    (
        "who is in the way is not told",
        "older, next_ms, foreign = first_ticket, 0, 0",
        "older, next_ms, foreign = -1, 0, 0",
    ),
    (
        "asking again tells the whole lease",
        "fence_draw(clock, least, lease_ms), holders_left(main, name, ms)}",
        "fence_draw(clock, least, lease_ms), lease_ms}",
    ),
    (
        "asking again lengthens",
        "if mine then\n",
        "if mine then\n  holders_extend(main, name, ms, lease_ms)\n",
    ),
    (
        "nobody is asked who holds",
        "if redis.call(\"GET\", main) == name then\n    return redis.call(\"DEL\", main) == 1",
        "if true then\n    return redis.call(\"DEL\", main) == 1",
    ),
    (
        "what ran out is released",
        "and redis.call(\"ZREM\", main, name) == 1 and ends > ms",
        "and redis.call(\"ZREM\", main, name) == 1",
    ),
    (
        "an end leaves the place",
        "elseif redis.call(\"ZREM\", queue, name) == 1 and status == GONE then",
        "elseif redis.call(\"ZSCORE\", queue, name) and status == GONE then",
    ),
    (
        "who gives way loses its place",
        "  if status == RELEASED then\n    redis.call(\"ZADD\", queue",
        "  if false then\n    redis.call(\"ZADD\", queue",
    ),
    (
        "who gives way is not alive",
        "    roster_note(roster, ARGV[3] == \"2\"",
        "    digits(0, ARGV[3] == \"2\"",
    ),
    (
        "who gives way gets a place for nothing",
        "  if status == RELEASED then\n    redis.call(\"ZADD\", queue",
        "  if true then\n    redis.call(\"ZADD\", queue",
    ),
    ("who gives way tells itself", "or name == except or", "or"),
    (
        "nobody is told of a release",
        "  queue_tell(queue, roster, ms, stays and name)",
        "  queue = queue",
    ),
    (
        "all ends are told",
        "and not holders_full(main, ms, limit) then\n  queue_tell(queue, roster, ms, stays",
        "then\n  queue_tell(queue, roster, ms, stays",
    ),
    (
        "other clients hear nothing",
        "  redis.pcall(\"PUBLISH\", channel, \"1\")",
        "  channel = channel",
    ),
    (
        "other clients hear of each end",
        "if status == RELEASED and channel",
        "if channel",
    ),
    (
        "whom nobody hears keeps its place",
        "      return\n    end\n    redis.call(\"ZREM\", queue, name)\n  end\nend",
        "      return\n    end\n    return\n  end\nend",
    ),
    (
        "a renewal that creates",
        "if not holders_look(main, name, ms, 0, 0) then",
        "if not holders_look(main, name, ms, 0, 0) and not holders_put(main, name, ms, lease_ms) and false then",
    ),
    (
        "a renewal of anybody's lease",
        "return value == name, not value, -1, 0, 0",
        "return true, not value, -1, 0, 0",
    ),
    (
        "a renewal that lengthens nothing",
        "holders_extend(main, name, ms, lease_ms)\nif agreed",
        "if agreed",
    ),
    (
        "a renewal that shortens",
        "  if redis.call(\"PTTL\", main) < lease_ms then\n",
        "  if true then\n",
    ),
    (
        "a renewal that shortens a permit",
        "\"XX\", \"GT\"",
        "\"XX\"",
    ),
    ("a stranger is one of us", "ticket and 0 or 1", "0"),
    (
        "a lease without an end",
        "redis.call(\"SET\", main, name, \"PX\", lease_ms)",
        "redis.call(\"SET\", main, name)",
    ),
    ("permits weigh nothing", "used + (weight or 1)", "used + 1"),
    (
        "who asks weighs nothing",
        "used + weight <= limit",
        "used < limit",
    ),
    (
        "permits that ran out are counted",
        "redis.call(\"ZREMRANGEBYSCORE\", main, \"-inf\", ms)",
        "redis.call(\"ZCARD\", main)",
    ),
    (
        "holders of permits are nobody",
        "math.max(youngest, ticket or -1)",
        "-1",
    ),
    (
        "a holder of a lock is nobody",
        "return false, false, ticket or -1,",
        "return false, false, -1,",
    ),
    (
        "the end of a lease is not told",
        "redis.call(\"PTTL\", main), ticket and",
        "0, ticket and",
    ),
];

/// The laws that are broken, by either kind.
fn broken(rigs: &mut [Rig], scripts: &Scripts) -> BTreeSet<&'static str> {
    let mut broken = BTreeSet::new();
    for rig in rigs {
        for (law, uphold) in LAWS {
            rig.reset(scripts);
            let found = uphold(rig).is_err();
            if found {
                broken.insert(*law);
            }
        }
    }
    broken
}

#[test]
fn each_mutation_is_found_by_a_law_and_each_law_finds_one() {
    // One for each kind, which would else hear each other's pushes.
    let servers = KINDS.map(|_| Server::start());
    let mut rigs: Vec<Rig> = servers
        .iter()
        .zip(KINDS)
        .map(|(server, kind)| Rig::new(server, kind))
        .collect();
    let sound = Scripts::sound();
    let by_nothing = broken(&mut rigs, &sound);
    let (mut missed, mut used) = (Vec::new(), BTreeSet::new());
    for (name, piece, by) in MUTATIONS {
        let mut scripts = sound.clone();
        assert!(
            scripts.replace(piece, by),
            "{name}: no script has {piece:?}"
        );
        let found = broken(&mut rigs, &scripts);
        println!("{name}: {found:?}");
        // What fails to compile breaks every law, and shows nothing.
        if found.is_empty() || found.len() == LAWS.len() {
            missed.push(*name);
        }
        used.extend(found);
    }
    assert_eq!(by_nothing, BTreeSet::new());
    assert!(
        missed.is_empty(),
        "found by no law, or does not run: {missed:#?}"
    );
    let idle: Vec<_> = LAWS.iter().filter(|(law, _)| !used.contains(law)).collect();
    assert!(idle.is_empty(), "laws of nothing: {idle:?}");
}
