//! What serves processes that keep permits, broken on purpose.

use super::Mutation;

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "nobody is noted for keeping what it is granted",
        changes: &[(
            "if fence then\n  if gate.kept > noted then",
            "if fence then\n  if false then",
        )],
        found_by: &[
            "who_keeps_is_noted_with_its_grant",
            "what_is_noted_lasts_as_long_as_the_lease",
        ],
    },
    Mutation {
        name: "the quick way of a semaphore forgets who keeps",
        changes: &[("if string.sub(ARGV[4], -2) ~= \" 0\" then", "if false then")],
        found_by: &[
            "who_keeps_is_noted_with_its_grant",
            "a_recall_looks_at_128_holders",
        ],
    },
    Mutation {
        name: "the quick way of a semaphore takes all for keepers",
        changes: &[("if string.sub(ARGV[4], -2) ~= \" 0\" then", "if true then")],
        found_by: &["who_keeps_is_noted_with_its_grant"],
    },
    Mutation {
        name: "the quickest way of a mutex forgets who keeps",
        changes: &[(
            "if free and string.sub(ARGV[4], -2) == \" 0\" then",
            "if free then",
        )],
        found_by: &[
            "who_keeps_is_noted_with_its_grant",
            "local_hand_offs_of_a_mutex_have_fences_of_their_own",
        ],
    },
    Mutation {
        name: "what is noted has no end",
        changes: &[(
            "  if kept > 0 then\n    keep(records, math.max(lease_ms, KEEP_MS))\n  end\n",
            "",
        )],
        found_by: &[
            "who_keeps_is_noted_with_its_grant",
            "what_is_noted_lasts_as_long_as_the_lease",
        ],
    },
    Mutation {
        name: "what is noted ends before a long lease",
        changes: &[(
            "  if kept > 0 then\n    keep(records, math.max(lease_ms, KEEP_MS))",
            "  if kept > 0 then\n    keep(records, KEEP_MS)",
        )],
        found_by: &["what_is_noted_lasts_as_long_as_the_lease"],
    },
    Mutation {
        name: "who waits is not noted for keeping",
        changes: &[(
            "end\nif gate.kept > noted then\n  redis.call(\"HSET\", records, \"K\", kept)\nend\nkeep",
            "end\nkeep",
        )],
        found_by: &[
            "who_keeps_is_noted_with_its_place",
            "who_keeps_is_noted_with_its_next_question",
            "who_is_told_of_its_turn_has_fences_of_its_own",
        ],
    },
    Mutation {
        name: "who waits is noted as it enters only",
        changes: &[(
            "end\nif gate.kept > noted then\n  redis.call(\"HSET\", records, \"K\", kept)\nend\nkeep",
            "end\nif entered and gate.kept > noted then\n  redis.call(\"HSET\", records, \"K\", kept)\nend\nkeep",
        )],
        found_by: &["who_keeps_is_noted_with_its_next_question"],
    },
    Mutation {
        name: "who keeps is noted before it has got anything",
        changes: &[(
            "if kept > noted then\n  gate.kept = kept\n",
            "if kept > noted then\n  gate.kept = kept\n  redis.call(\"HSET\", records, \"K\", kept)\n",
        )],
        found_by: &["a_busy_try_of_who_keeps_leaves_nothing"],
    },
    Mutation {
        name: "the last to come says how many fences are kept",
        changes: &[
            (
                "if kept > noted then\n  gate.kept",
                "if kept > 0 then\n  gate.kept",
            ),
            ("if gate.kept > noted then", "if kept > 0 then"),
        ],
        found_by: &["the_most_fences_that_anybody_asks_for_are_kept"],
    },
    Mutation {
        name: "what is noted is not read",
        changes: &[("gate.kept = tonumber(fields[3]) or 0", "gate.kept = 0")],
        found_by: &[
            "the_first_in_line_recalls_every_process_that_holds",
            "a_push_tells_whether_others_wait",
            "who_is_told_of_its_turn_has_fences_of_its_own",
        ],
    },
    Mutation {
        name: "recalls where nobody keeps",
        changes: &[
            ("if entered and gate.kept > 0 then", "if entered then"),
            ("or fields[3] or ends[2]", "or true"),
        ],
        found_by: &["where_nobody_keeps_nobody_is_told"],
    },
    Mutation {
        name: "answers of others where nobody keeps",
        changes: &[("while gate.kept > 0 and gate.waiters", "while gate.waiters")],
        found_by: &["where_nobody_keeps_nobody_is_told"],
    },
    Mutation {
        name: "pushes of others where nobody keeps",
        changes: &[
            (
                "  if gate.kept > 0 then\n    text =",
                "  if true then\n    text =",
            ),
            ("elseif plain and not fields[5] then", "elseif false then"),
        ],
        found_by: &[
            "where_nobody_keeps_nobody_is_told",
            "a_push_names_token_fence_and_length",
        ],
    },
    Mutation {
        name: "no recall",
        changes: &[("  recall(gate, head)\n", "")],
        found_by: &[
            "the_first_in_line_recalls_every_process_that_holds",
            "who_follows_recalls_the_first_in_line",
            "who_comes_back_to_the_front_recalls_who_was_there",
            "who_waits_for_its_own_permits_recalls_nothing",
            "a_recall_looks_at_128_holders",
            "stamps_order_rechecks_among_grants_and_recalls",
        ],
    },
    Mutation {
        name: "the quick way into the queue recalls nobody",
        changes: &[("or fields[3] or ends[2]", "or ends[2]")],
        found_by: &[
            "the_first_in_line_recalls_every_process_that_holds",
            "who_follows_recalls_the_first_in_line",
        ],
    },
    Mutation {
        name: "the quick way into the queue takes who keeps",
        changes: &[("([1-9]%d*) (%d+) 0 1 0$", "([1-9]%d*) (%d+) 0 1 %d+$")],
        found_by: &["who_keeps_is_noted_with_its_place"],
    },
    Mutation {
        name: "the quick way to hand over does not tell of others",
        changes: &[("elseif plain and not fields[5] then", "elseif plain then")],
        found_by: &[
            "a_push_tells_whether_others_wait",
            "who_is_told_of_its_turn_has_fences_of_its_own",
        ],
    },
    Mutation {
        name: "every question recalls",
        changes: &[("if entered and gate.kept > 0 then", "if gate.kept > 0 then")],
        found_by: &["a_recall_is_not_repeated"],
    },
    Mutation {
        name: "the server takes what is kept for who waits",
        changes: &[(
            "  recall(gate, head)\n",
            "  recall(gate, head)\n  for _, holder in ipairs(holders_list(gate)) do\n    holders_remove(gate, holder, 1)\n  end\n",
        )],
        found_by: &["a_recall_takes_nothing"],
    },
    Mutation {
        name: "whoever follows recalls all",
        changes: &[(
            "ipairs(head and {head} or holders_list(gate))",
            "ipairs(holders_list(gate))",
        )],
        found_by: &["who_follows_recalls_the_first_in_line"],
    },
    Mutation {
        name: "whoever follows recalls nobody",
        changes: &[("ipairs(head and {head} or", "ipairs(head and {} or")],
        found_by: &[
            "who_follows_recalls_the_first_in_line",
            "who_comes_back_to_the_front_recalls_who_was_there",
        ],
    },
    Mutation {
        name: "who comes back to the front counts as who was there",
        changes: &[
            (
                "  head = gate.kept > 0 and",
                "  local none = gate.kept > 0 and",
            ),
            (
                "  redis.call(\"ZADD\", queue, text, token)\n",
                "  redis.call(\"ZADD\", queue, text, token)\n  head = none and redis.call(\"ZRANGE\", queue, \"0\", \"0\")[1]\n",
            ),
        ],
        found_by: &["who_comes_back_to_the_front_recalls_who_was_there"],
    },
    Mutation {
        name: "the last in line counts as the first",
        changes: &[(
            "redis.call(\"ZRANGE\", queue, \"0\", \"0\")[1]",
            "redis.call(\"ZRANGE\", queue, \"-1\", \"-1\")[1]",
        )],
        found_by: &["who_follows_recalls_the_first_in_line"],
    },
    Mutation {
        name: "a process is recalled for itself",
        changes: &[("local told = {[gate.caller] = true}", "local told = {}")],
        found_by: &[
            "who_waits_for_its_own_permits_recalls_nothing",
            "who_follows_recalls_the_first_in_line",
        ],
    },
    Mutation {
        name: "a process is recalled for each of its permits",
        changes: &[("      told[instance] = true\n", "")],
        found_by: &["the_first_in_line_recalls_every_process_that_holds"],
    },
    Mutation {
        name: "the first to hold is recalled alone",
        changes: &[(
            "      redis.pcall(PUBLISH, inbox_of(gate.roster, instance), text)\n",
            "      redis.pcall(PUBLISH, inbox_of(gate.roster, instance), text)\n      break\n",
        )],
        found_by: &["the_first_in_line_recalls_every_process_that_holds"],
    },
    Mutation {
        name: "a recall by call",
        changes: &[(
            "redis.pcall(PUBLISH, inbox_of(gate.roster, instance), text)",
            "redis.call(PUBLISH, inbox_of(gate.roster, instance), text)",
        )],
        found_by: &["a_refused_recall_costs_no_place"],
    },
    Mutation {
        name: "a recall without a stamp",
        changes: &[(
            "local text = \"r \" .. digits(gate_stamp(gate))",
            "local text = \"r \" .. digits(gate.us)",
        )],
        found_by: &[
            "the_first_in_line_recalls_every_process_that_holds",
            "stamps_order_rechecks_among_grants_and_recalls",
        ],
    },
    Mutation {
        name: "a recall of another gate",
        changes: &[("\" \" .. gate.main\n", "\" \" .. gate.queue\n")],
        found_by: &["the_first_in_line_recalls_every_process_that_holds"],
    },
    Mutation {
        name: "a stranger is taken for one of ours",
        changes: &[(
            "return (gate.told or gate.holder and gate.holder == gate.last) and",
            "return gate.holder and",
        )],
        found_by: &["a_recall_is_not_for_a_stranger"],
    },
    Mutation {
        name: "all holders are looked at",
        changes: &[(
            "redis.call(\"ZRANGE\", gate.main, \"0\", \"127\")",
            "redis.call(\"ZRANGE\", gate.main, \"0\", \"-1\")",
        )],
        found_by: &["a_recall_looks_at_128_holders"],
    },
    Mutation {
        name: "fewer holders are looked at",
        changes: &[(
            "redis.call(\"ZRANGE\", gate.main, \"0\", \"127\")",
            "redis.call(\"ZRANGE\", gate.main, \"0\", \"126\")",
        )],
        found_by: &["a_recall_looks_at_128_holders"],
    },
    Mutation {
        name: "whoever waits is another",
        changes: &[("if instance_of(token) ~= instance then", "if true then")],
        found_by: &[
            "an_answer_tells_whether_others_wait",
            "a_push_tells_whether_others_wait",
            "a_recheck_tells_whether_others_wait",
            "places_of_ones_own_are_looked_past_up_to_64",
        ],
    },
    Mutation {
        name: "only the first is looked at",
        changes: &[
            ("local from, to = 0, 1\n", "local from, to = 0, 0\n"),
            ("    from, to = to + 1, 63\n", "    from, to = 64, 64\n"),
        ],
        found_by: &[
            "an_answer_tells_whether_others_wait",
            "a_push_tells_whether_others_wait",
            "places_of_ones_own_are_looked_past_up_to_64",
        ],
    },
    Mutation {
        name: "places are looked at twice over, and the third is not",
        changes: &[("    from, to = to + 1, 63\n", "    from, to = to + 2, 63\n")],
        found_by: &["who_is_looked_for_may_have_any_of_the_first_places"],
    },
    Mutation {
        name: "all places are looked at",
        changes: &[
            (
                "    from, to = to + 1, 63\n",
                "    from, to = to + 1, to + 62\n",
            ),
            ("and from < 64 do", "do"),
        ],
        found_by: &["places_of_ones_own_are_looked_past_up_to_64"],
    },
    Mutation {
        name: "one place less is looked at",
        changes: &[(
            "    from, to = to + 1, 63\n",
            "    from, to = to == 1 and 2 or 64, 62\n",
        )],
        found_by: &["places_of_ones_own_are_looked_past_up_to_64"],
    },
    Mutation {
        name: "an answer to who asks again does not tell of others",
        changes: &[("fence, left, others(gate, gate.caller)}", "fence, left, 0}")],
        found_by: &[
            "an_answer_tells_whether_others_wait",
            "places_of_ones_own_are_looked_past_up_to_64",
        ],
    },
    Mutation {
        name: "an answer with a grant does not tell of others",
        changes: &[(
            "fence, lease_ms, others(gate, gate.caller)}",
            "fence, lease_ms, 0}",
        )],
        found_by: &["an_answer_tells_whether_others_wait"],
    },
    Mutation {
        name: "a push does not tell of others",
        changes: &[("others(gate, instance_of(token))\n", "0\n")],
        found_by: &["a_push_tells_whether_others_wait"],
    },
    Mutation {
        name: "a push tells its caller's others",
        changes: &[(
            "others(gate, instance_of(token))\n",
            "others(gate, gate.caller)\n",
        )],
        found_by: &["a_push_tells_whether_others_wait"],
    },
    Mutation {
        name: "a recheck believes all",
        changes: &[("holders_hold(gate, ARGV[index]) and 1 or 0", "1")],
        found_by: &["a_recheck_tells_who_holds"],
    },
    Mutation {
        name: "a recheck believes nothing",
        changes: &[("holders_hold(gate, ARGV[index]) and 1 or 0", "0")],
        found_by: &["a_recheck_tells_who_holds", "a_recall_takes_nothing"],
    },
    Mutation {
        name: "a recheck asks for the first token alone",
        changes: &[("for index = 2, #ARGV do", "for index = 2, 2 do")],
        found_by: &["a_recheck_tells_who_holds"],
    },
    Mutation {
        name: "a recheck takes what is over for held",
        changes: &[(
            "return ends and ends > gate.ms and ends - gate.ms or nil",
            "return ends and ends - gate.ms or nil",
        )],
        found_by: &["a_recheck_tells_who_holds"],
    },
    Mutation {
        name: "a recheck hears of others only where it is noted that somebody keeps",
        changes: &[(
            "ms = math.floor(us / 1000), kept = 1}",
            "ms = math.floor(us / 1000), kept = redis.call(\"HEXISTS\", records, \"K\")}",
        )],
        found_by: &["a_recheck_tells_whether_others_wait"],
    },
    Mutation {
        name: "a recheck without a stamp",
        changes: &[(
            "gate.drawn = clock_read(clock)\ngate.waiters",
            "gate.drawn = 0\ngate.waiters",
        )],
        found_by: &["stamps_order_rechecks_among_grants_and_recalls"],
    },
    Mutation {
        name: "a recheck that says that its process lives",
        changes: &[(
            "local answer = {us, gate_stamp(gate), over and 1 or others(gate, instance)}",
            "redis.call(\"PEXPIRE\", queue, 1)\nredis.call(\"DEL\", records)\nlocal answer = {us, gate_stamp(gate), over and 1 or others(gate, instance)}",
        )],
        found_by: &["a_recheck_writes_nothing"],
    },
    Mutation {
        name: "no fences for local hand-offs",
        changes: &[("if gate.kept > 1 then", "if false then")],
        found_by: &[
            "local_hand_offs_of_a_mutex_have_fences_of_their_own",
            "who_is_told_of_its_turn_has_fences_of_its_own",
        ],
    },
    Mutation {
        name: "a fence too few for local hand-offs",
        changes: &[("fence + gate.kept - 1", "fence + gate.kept - 2")],
        found_by: &[
            "local_hand_offs_of_a_mutex_have_fences_of_their_own",
            "who_is_told_of_its_turn_has_fences_of_its_own",
        ],
    },
    Mutation {
        name: "a fence more than is asked for",
        changes: &[
            ("if gate.kept > 1 then", "if gate.kept > 0 then"),
            ("fence + gate.kept - 1", "fence + gate.kept"),
        ],
        found_by: &["without_local_hand_offs_a_grant_takes_one_fence"],
    },
    Mutation {
        name: "fences for local hand-offs without a trace",
        changes: &[(
            "    redis.call(\"SET\", gate.clock, digits(gate.drawn), \"PX\", keep_for(digits(ms)))\n  end\n  local sum",
            "  end\n  local sum",
        )],
        found_by: &["local_hand_offs_of_a_mutex_have_fences_of_their_own"],
    },
    Mutation {
        name: "a clock without an end",
        changes: &[(
            "digits(gate.drawn), \"PX\", keep_for(digits(ms)))\n  end\n  local sum",
            "digits(gate.drawn))\n  end\n  local sum",
        )],
        found_by: &["local_hand_offs_of_a_mutex_have_fences_of_their_own"],
    },
    Mutation {
        name: "a stamp before the fences for local hand-offs",
        changes: &[(
            "    gate.drawn = fence + gate.kept - 1\n    redis.call(\"SET\", gate.clock, digits(gate.drawn),",
            "    redis.call(\"SET\", gate.clock, digits(fence + gate.kept - 1),",
        )],
        found_by: &["local_hand_offs_of_a_mutex_have_fences_of_their_own"],
    },
];
