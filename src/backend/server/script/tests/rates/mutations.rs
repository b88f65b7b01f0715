//! The script for rates broken on purpose: some sequence of calls finds each way to break it.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRng, TestRunner};

use super::property::{Calls, run, steps, worlds};
use super::rig::{Rig, script};
use crate::backend::server::script::tests::support::Server;

/// A name, a piece of the script, and what takes its place.
const MUTATIONS: &[(&str, &str, &str)] = &[
    // The quick way.
    (
        "quick: one unit too many",
        "if after <= ARGV[8] * interval",
        "if after <= (ARGV[8] + 1) * interval",
    ),
    (
        "quick: whatever the interval",
        "if counted == interval and at <= us",
        "if at <= us",
    ),
    ("quick: whatever the clock", " and at <= us then", " then"),
    (
        "quick: what is booked is overtaken",
        "quotas == 1 and first.letter == \"g\" and state.booked <= state.at",
        "quotas == 1 and first.letter == \"g\"",
    ),
    (
        "quick: of whatever quota",
        " and string.sub(value, 21) == id then",
        " then",
    ),
    (
        "quick: a key without TTL stays",
        "if debt > 0 and redis.call(\"PTTL\", KEYS[1]) ~= -1",
        "if debt > 0",
    ),
    (
        "quick: kept too short",
        "digits(math.ceil(after / 1000))",
        "digits(math.ceil(after / 1100))",
    ),
    (
        "quick: a denial writes",
        "      return -debt",
        "      redis.call(\"SET\", KEYS[1], value, \"PX\", 1)\n      return -debt",
    ),
    (
        "quick: what has drained counts double",
        "debt = math.max(at + owed - us, 0)",
        "debt = at + owed - us",
    ),
    // GCRA.
    (
        "gcra: earlier by a unit",
        "(cost - burst) * kept.scale, us)",
        "(cost - burst - 1) * kept.scale, us)",
    ),
    (
        "gcra: rescaled downwards",
        "math.ceil(debt / kept.scale * scale)",
        "math.floor(debt / kept.scale * scale)",
    ),
    (
        "gcra: not rescaled",
        "debt = math.min(math.ceil(debt / kept.scale * scale), FAR_US)",
        "debt = debt + 0",
    ),
    (
        "gcra: taken from the past",
        "kept.drained = math.max(kept.drained, us) + cost",
        "kept.drained = kept.drained + cost",
    ),
    (
        "gcra: a debt without bound",
        "math.min(debt + cost * kept.scale, math.max(debt, 2 * burst * kept.scale))",
        "debt + cost * kept.scale",
    ),
    (
        "gcra: not set back",
        "kept.drained = math.max(kept.drained - by, 0)",
        "kept.drained = kept.drained",
    ),
    (
        "gcra: one more remains",
        "math.floor(math.max(burst * kept.scale - debt, 0) / kept.scale)",
        "math.ceil(math.max(burst * kept.scale - debt, 0) / kept.scale)",
    ),
    // Sliding-window counter.
    (
        "sliding: a fixed window",
        "return 0, passed == 1 and kept.current or 0",
        "return 0, 0",
    ),
    (
        "sliding: the wrong window before",
        "return 0, passed == 1 and kept.current or 0",
        "return 0, passed == 1 and kept.previous or 0",
    ),
    (
        "sliding: rounded down",
        "math.ceil(previous * weight_at",
        "math.floor(previous * weight_at",
    ),
    (
        "sliding: a step early",
        "start + (steps - weight) * step",
        "start + (steps - weight - 1) * step",
    ),
    (
        "sliding: all fits into the next window",
        "current, previous = 0, current\n",
        "current, previous = 0, 0\n",
    ),
    (
        "sliding: new windows without what was used",
        "    gather(kept)\n    kept.scale = scale",
        "    kept.scale = scale",
    ),
    (
        "sliding: set back without its windows",
        "  gather(kept)\n  kept.last",
        "  kept.last",
    ),
    (
        "sliding: forgotten too early",
        "return start + 2 * kept.scale",
        "return start + kept.scale",
    ),
    (
        "sliding: a debt without bound",
        "math.min(cost, math.max(2 * limit - used_at(kept, us), 0))",
        "cost",
    ),
    (
        "sliding: a refund twice",
        "kept.previous - (cost - recent)",
        "kept.previous - cost",
    ),
    // Strict log.
    (
        "strict: what is a window old still counts",
        "+ kept.scale <= us then",
        "+ kept.scale < us then",
    ),
    (
        "strict: one blocks too few",
        "length(kept) - (limit - cost)",
        "length(kept) - (limit - cost) - 1",
    ),
    (
        "strict: the same instant counts once",
        "string.rep(struct.pack(\"<d\", us), cost)",
        "struct.pack(\"<d\", us)",
    ),
    (
        "strict: without a look at the time",
        "math.max(us, time_of(kept, blocking) + kept.scale)",
        "time_of(kept, blocking) + kept.scale",
    ),
    (
        "strict: a debt without bound",
        "math.min(cost, math.max(2 * limit - used, 0))",
        "cost",
    ),
    (
        "strict: refunds the oldest",
        "string.sub(kept.times, 1, 8 * math.max(length(kept) - cost, 0))",
        "string.sub(kept.times, 8 * cost + 1)",
    ),
    (
        "strict: not set back",
        "math.max(time_of(kept, index) - by, 0)",
        "time_of(kept, index)",
    ),
    (
        "strict: forgotten too early",
        "time_of(kept, count) + kept.scale or 0\nend\n\nstrict.set_back",
        "time_of(kept, count) or 0\nend\n\nstrict.set_back",
    ),
    // The state.
    (
        "state: set back, and not noted",
        "  state.at = us\n  return true",
        "  return true",
    ),
    (
        "state: bookings are not set back",
        "state.booked = math.max(state.booked - by, 0)",
        "state.booked = state.booked",
    ),
    (
        "state: bookings are forgotten",
        "if state.booked > state.at then",
        "if false then",
    ),
    (
        "state: kept for the first quota only",
        "ends = math.max(ends, quota.method.ends(quota.kept))",
        "ends = ends > 0 and ends or quota.method.ends(quota.kept)",
    ),
    (
        "state: whose name is forgotten",
        "first.kept.scale) .. (first.id ~= \"0\" and first.id or \"\")",
        "first.kept.scale)",
    ),
    // The call.
    (
        "not all or nothing",
        "  if admitted then\n    for _, turn",
        "  if true then\n    for _, turn",
    ),
    (
        "a shadow refuses",
        "if not turn.shadow then",
        "if true then",
    ),
    (
        "a shadow that would refuse counts",
        "turn.used = turn.earliest and turn.earliest <= used_at",
        "turn.used = true",
    ),
    (
        "any booking is admitted",
        "admitted = ready - us <= tonumber(ARGV[3])",
        "admitted = true",
    ),
    (
        "a middle turn is given back",
        "if value == ARGV[4] then",
        "if value then",
    ),
    (
        "no turn is given back",
        "if value == ARGV[4] then",
        "if false then",
    ),
    (
        "a refund between bookings",
        "if value and not pending then",
        "if value then",
    ),
    (
        "a checked call overtakes",
        "turn.method.earliest(turn.kept, us, turn.capacity, cost), state.booked)",
        "turn.method.earliest(turn.kept, us, turn.capacity, cost), us)",
    ),
    (
        "a denial writes",
        "elseif value and (stepped or redis.call(\"PTTL\", key) == -1) then",
        "elseif value then",
    ),
    (
        "a denial with the clock set back is not noted",
        "(stepped or redis.call(\"PTTL\", key) == -1)",
        "redis.call(\"PTTL\", key) == -1",
    ),
    (
        "a key without TTL stays",
        "(stepped or redis.call(\"PTTL\", key) == -1)",
        "stepped",
    ),
    (
        "quotas of others are dropped",
        "if not mine[quota.id] and",
        "if false and",
    ),
    (
        "the larger scale counts",
        "if turn.scale < turn.kept.scale then",
        "if turn.scale ~= turn.kept.scale then",
    ),
    (
        "the old scale stays",
        "turn.method.rescale(turn.kept, math.max(us, booked), turn.scale)",
        "local _ = turn",
    ),
    (
        "what is booked drains before it is used",
        "turn.method.rescale(turn.kept, math.max(state.at, state.booked), turn.scale)",
        "turn.method.rescale(turn.kept, state.at, turn.scale)",
    ),
    (
        "another algorithm's state is read",
        "quota.id == turn.id and quota.letter == turn.letter",
        "quota.id == turn.id",
    ),
    (
        "a reset keeps the key",
        "elseif op == \"x\" then\n  redis.call(\"DEL\", key)",
        "elseif op == \"x\" then\n  redis.call(\"EXISTS\", key)",
    ),
    (
        "what remains ignores bookings",
        "booked > us and 0 or turn.method.remaining",
        "turn.method.remaining",
    ),
];

/// So many sequences have to do in each world.
const TRIES: u32 = 40;

#[test]
fn each_mutation_is_found_by_some_calls() {
    let server = Server::start();
    let sound = script();
    let mut rig = Rig::new(&server, &sound);
    let worlds = worlds();
    let mut unfound = Vec::new();
    for (name, piece, by) in MUTATIONS {
        assert_eq!(sound.matches(piece).count(), 1, "{name}: {piece:?}");
        rig.install(&sound.replace(piece, by));
        let config = Config::default();
        let rng = TestRng::deterministic_rng(config.rng_algorithm);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let mut find = || {
            for _ in 0..TRIES {
                for world in &worlds {
                    let steps = steps(world).new_tree(&mut runner).expect("it is plain");
                    if let Err(problem) =
                        run(&mut rig, world, &steps.current(), &mut Calls::default())
                    {
                        return Some(format!("{}, {problem}", world.name));
                    }
                }
            }
            None
        };
        match find() {
            Some(how) => println!("{name}: {how}"),
            None => unfound.push(*name),
        }
    }
    assert!(unfound.is_empty(), "not found: {unfound:#?}");
}
