//! Scripts broken on purpose: each way to break them is found by the laws that stand beside it.

use std::collections::BTreeMap;

use super::laws::LAWS;
use super::rig::{KINDS, Rig, Scripts};
use super::support::Server;

/// A way to break the scripts: pieces of their text with what takes their place, and the laws that
/// must find out.
struct Mutation {
    name: &'static str,
    changes: &'static [(&'static str, &'static str)],
    found_by: &'static [&'static str],
}

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "no owner check in end",
        changes: &[
            (
                "if holders_hold(gate, token) then\n  holders_remove(gate, token, weight or 1)\n  status",
                "if true then\n  holders_remove(gate, token, weight or 1)\n  status",
            ),
            (
                "if gate.holder == token then\n    redis.call(\"DEL\"",
                "if true then\n    redis.call(\"DEL\"",
            ),
        ],
        found_by: &[
            "a_stranger_cannot_release",
            "expired_holder_cannot_release_successor",
        ],
    },
    Mutation {
        name: "end without grant",
        changes: &[("grant(gate, channel)\nif status", "if status")],
        found_by: &[
            "a_release_hands_on_to_the_next_in_line",
            "at_maxmemory_a_release_hands_on",
        ],
    },
    Mutation {
        name: "end of a queue entry without grant",
        changes: &[(
            "grant(gate, channel)\nif status",
            "if status == RELEASED then\n  grant(gate, channel)\nend\nif status",
        )],
        found_by: &["a_cancelled_wait_hands_on"],
    },
    Mutation {
        name: "acquire without grant",
        changes: &[(
            "local fence, next_in_line = grant(gate, channel, token)",
            "local fence, next_in_line = nil, gate.waiters == 0",
        )],
        found_by: &["any_acquire_hands_on_what_has_expired"],
    },
    Mutation {
        name: "a newcomer overtakes the queue",
        changes: &[(
            "not waits and next_in_line and holders_fit",
            "not waits and holders_fit",
        )],
        found_by: &[
            "a_waiter_that_asks_by_a_timer_keeps_its_turn",
            "a_refused_publish_undoes_the_grant",
        ],
    },
    Mutation {
        name: "a claim is worth the whole lease",
        changes: &[(
            "local ms = math.min(lease_ms, CLAIM_MS)",
            "local ms = lease_ms",
        )],
        found_by: &[
            "a_claim_ends_early_unless_it_is_renewed",
            "a_suspect_is_skipped_in_place_until_it_speaks",
        ],
    },
    Mutation {
        name: "a pump that extends a claim",
        changes: &[(
            "  if left then\n    return {HELD",
            "  if left then\n    holders_extend(gate, token, my_lease)\n    return {HELD",
        )],
        found_by: &["asking_again_extends_nothing"],
    },
    Mutation {
        name: "a re-sent acquire answers the whole lease",
        changes: &[("told or number, left}", "told or number, my_lease}")],
        found_by: &["asking_again_extends_nothing"],
    },
    Mutation {
        name: "a renewal that asks for no fence",
        changes: &[("elseif held ~= fence then", "elseif false then")],
        found_by: &["a_renewal_with_another_fence_extends_nothing"],
    },
    Mutation {
        name: "a renewal that creates",
        changes: &[
            ("if not left or not held then", "if false then"),
            (
                "elseif held ~= fence then",
                "elseif not held then\n    holders_put(gate, token, 1, lease_ms, \"h\", fence)\n    return lease_ms\n  elseif false then",
            ),
        ],
        found_by: &["a_renewal_creates_nothing"],
    },
    Mutation {
        name: "a renewal does not confirm the claim",
        changes: &[(
            "if state == \"c\" then\n    recorded",
            "if false then\n    recorded",
        )],
        found_by: &["a_renewed_claim_lasts_its_whole_lease"],
    },
    Mutation {
        name: "a shortening renewal",
        changes: &[
            ("left = math.max(left, lease_ms)", "left = lease_ms"),
            (
                "if redis.call(\"PTTL\", gate.main) < ms then",
                "if true then",
            ),
            ("\"XX\", \"GT\", ", "\"XX\", "),
        ],
        found_by: &["no_script_shortens_a_lease"],
    },
    Mutation {
        name: "a renewal that falls behind what was told",
        changes: &[(
            "holders_extend(gate, token, left)",
            "holders_extend(gate, token, lease_ms)",
        )],
        found_by: &["a_lease_stripped_of_its_ttl_gets_one_back"],
    },
    Mutation {
        name: "a lease said to be gone is left there",
        changes: &[(
            "      holders_remove(gate, token, weight)\n    end\n    return GONE",
            "    end\n    return GONE",
        )],
        found_by: &["a_lease_said_to_be_gone_stays_gone"],
    },
    Mutation {
        name: "one bad entry ends the batch",
        changes: &[("done, left = pcall(renew, ", "done, left = true, renew(")],
        found_by: &["a_foreign_value_ends_one_lease_of_a_batch_and_no_other"],
    },
    Mutation {
        name: "no suspect mark",
        changes: &[(
            "  roster_note(gate.roster, \"?\" .. instance, CLAIM_MS, gate.ms)\n",
            "",
        )],
        found_by: &[
            "a_suspect_is_skipped_in_place_until_it_speaks",
            "a_hung_process_costs_one_claim_for_all_its_waiters",
        ],
    },
    Mutation {
        name: "a suspect loses its place",
        changes: &[("      passed = passed + 1\n", "      drop(gate, token)\n")],
        found_by: &["a_suspect_is_skipped_in_place_until_it_speaks"],
    },
    Mutation {
        name: "a suspect holds the others up",
        changes: &[("      passed = passed + 1\n", "      return nil, false\n")],
        found_by: &["a_hung_process_costs_one_claim_for_all_its_waiters"],
    },
    Mutation {
        name: "a speaker stays a suspect",
        changes: &[("      roster_clear(gate.roster, gate.caller)\n", "")],
        found_by: &["a_newcomer_does_not_overtake_waiters_of_its_own_process"],
    },
    Mutation {
        name: "cleared before it is settled",
        changes: &[("    holders_settle(gate)\n    -- Not", "    -- Not")],
        found_by: &["who_speaks_is_served_whatever_it_let_go"],
    },
    Mutation {
        name: "a push to nobody counts",
        changes: &[("if heard == 0 then", "if false then")],
        found_by: &["a_dead_inbox_is_passed_over_and_costs_no_lease"],
    },
    Mutation {
        name: "a refused push counts",
        changes: &[("if type(heard) == \"table\" then", "if false then")],
        found_by: &["a_refused_publish_undoes_the_grant"],
    },
    Mutation {
        name: "a refused push forgets the waiter",
        changes: &[(
            "    redis.call(\"HSET\", gate.records, token, waiting)\n",
            "",
        )],
        found_by: &["a_refused_publish_undoes_the_grant"],
    },
    Mutation {
        name: "publish by call",
        changes: &[("local heard = redis.pcall(", "local heard = redis.call(")],
        found_by: &["a_refused_publish_undoes_the_grant"],
    },
    Mutation {
        name: "no heartbeat is asked for",
        changes: &[(
            "deadline and deadline < gate.ms or not alive",
            "deadline and deadline < gate.ms",
        )],
        found_by: &[
            "a_dead_process_is_passed_over",
            "a_full_queue_of_the_dead_lets_a_newcomer_in",
            "an_unknown_protocol_version_is_never_a_second_lock",
        ],
    },
    Mutation {
        name: "no deadline of the wait",
        changes: &[("deadline and deadline < gate.ms or not", "not")],
        found_by: &["a_wait_past_its_deadline_is_passed_over"],
    },
    Mutation {
        name: "who can't be told is granted",
        changes: &[("elseif state == \"p\" then", "elseif false then")],
        found_by: &[
            "a_waiter_that_asks_by_a_timer_keeps_its_turn",
            "a_cancelled_wait_hands_on",
        ],
    },
    Mutation {
        name: "small requests pass a large one",
        changes: &[(
            "elseif not holders_fit(gate, weight, gate_limit(gate, limit)) then\n      return nil, false",
            "elseif not holders_fit(gate, weight, gate_limit(gate, limit)) then\n      passed = passed + 1",
        )],
        found_by: &["a_large_request_at_the_head_is_not_starved"],
    },
    Mutation {
        name: "no bound of the queue",
        changes: &[("gate.waiters >= max_waiters", "false")],
        found_by: &["a_full_queue_turns_newcomers_away"],
    },
    Mutation {
        name: "no sweep of a full queue",
        changes: &[("or not sweep(gate))", "or true)")],
        found_by: &["a_full_queue_of_the_dead_lets_a_newcomer_in"],
    },
    Mutation {
        name: "no bound of the clearing",
        changes: &[("local MAX_DROPPED = 64", "local MAX_DROPPED = 100000")],
        found_by: &["one_call_clears_a_bounded_number_of_the_dead"],
    },
    Mutation {
        name: "no tombstone",
        changes: &[("if latest_ms >= gate.ms then", "if false then")],
        found_by: &[
            "a_tombstone_keeps_a_late_acquire_out",
            "a_tombstone_lasts_as_long_as_the_request_may",
        ],
    },
    Mutation {
        name: "acquire and sync ignore a tombstone",
        changes: &[("if gate.ended then", "if false then")],
        found_by: &["a_tombstone_keeps_a_late_acquire_out"],
    },
    Mutation {
        name: "tombstone without deadline of the request",
        changes: &[("if gate.ms > latest_ms then", "if false then")],
        found_by: &[
            "a_late_request_creates_nothing",
            "a_tombstone_keeps_a_late_acquire_out",
        ],
    },
    Mutation {
        name: "a tombstone for ever",
        changes: &[("  roster_purge(roster, gate.ms)\n", "")],
        found_by: &["a_tombstone_lasts_as_long_as_the_request_may"],
    },
    Mutation {
        name: "who does not wait stays in the queue",
        changes: &[("if wait_ms == 0 or full then", "if full then")],
        found_by: &["a_busy_try_leaves_nothing"],
    },
    Mutation {
        name: "the roster's type is not looked at",
        changes: &[(
            "redis.call(\"ZMSCORE\", roster, gate.caller",
            "redis.pcall(\"ZMSCORE\", roster, gate.caller",
        )],
        found_by: &["a_foreign_type_under_the_key_is_refused_before_anything_is_written"],
    },
    Mutation {
        name: "a stranger's key is taken for an expired one",
        changes: &[
            (
                "return not gate.value",
                "return gate.holder ~= gate.last or not gate.value",
            ),
            ("return gate.value and true", "return false"),
        ],
        found_by: &["a_foreign_holder_is_respected"],
    },
    Mutation {
        name: "a newcomer writes before it may",
        changes: &[(
            "local fence, next_in_line = grant",
            "redis.call(\"HDEL\", records, \"none\")\nlocal fence, next_in_line = grant",
        )],
        found_by: &["at_maxmemory_a_release_hands_on"],
    },
    Mutation {
        name: "a renewal begins with what takes memory",
        changes: &[(
            "roster_clear(roster, instance)\nlocal answer",
            "local answer",
        )],
        found_by: &["at_maxmemory_leases_are_renewed"],
    },
    Mutation {
        name: "another version counts as none",
        changes: &[
            ("if mine and not state then", "if false then"),
            ("if fields[2] and not state then", "if false then"),
        ],
        found_by: &["an_unknown_protocol_version_is_never_a_second_lock"],
    },
    Mutation {
        name: "a waiter of another version is dropped",
        changes: &[(
            "    elseif not state then",
            "    elseif not state then\n      drop(gate, token)\n    elseif not state then",
        )],
        found_by: &["an_unknown_protocol_version_is_never_a_second_lock"],
    },
    Mutation {
        name: "no override of the limit",
        changes: &[("return gate.override or limit", "return limit")],
        found_by: &["an_operators_limit_override_counts"],
    },
    Mutation {
        name: "a waiter that never fits gets no answer",
        changes: &[(
            "if my_weight > gate_limit(gate, my_limit) then",
            "if false then",
        )],
        found_by: &["an_operators_limit_override_counts"],
    },
    Mutation {
        name: "the first limit counts for all",
        changes: &[(
            "return gate.used + weight <= limit\nend",
            "return gate.used + weight <= math.max(limit, 3)\nend",
        )],
        found_by: &["each_request_is_judged_by_its_own_limit"],
    },
    Mutation {
        name: "fence by INCR",
        changes: &[(
            "if not last then\n    return us, text",
            "if not last then\n    return 1, \"1\"",
        )],
        found_by: &["fences_rise_over_a_loss_of_data"],
    },
    Mutation {
        name: "fence by the clock alone",
        changes: &[("if last < us then", "if true then")],
        found_by: &[
            "fences_rise_when_the_clock_steps_back",
            "tickets_and_fences_share_a_counter",
        ],
    },
    Mutation {
        name: "a stamp by the clock alone",
        changes: &[("return math.max(gate.drawn, gate.us)", "return gate.us")],
        found_by: &["fences_rise_when_the_clock_steps_back"],
    },
    Mutation {
        name: "a ticket leaves no trace in the counter",
        changes: &[(
            "local fresh = gate_draw(gate, KEEP_MS)",
            "local fresh = gate.us",
        )],
        found_by: &["tickets_and_fences_share_a_counter"],
    },
    Mutation {
        name: "a new ticket on re-entry",
        changes: &[(
            "old_ticket > 0 and old_ticket <= gate.us and old_ticket or fresh",
            "fresh",
        )],
        found_by: &["a_place_from_before_a_loss_of_data_counts"],
    },
    Mutation {
        name: "a new ticket when asking again",
        changes: &[(
            "keep(queue, KEEP_MS)\nkeep(records",
            "redis.call(\"ZADD\", queue, digits(gate_draw(gate, 0)), token)\nkeep(records",
        )],
        found_by: &["asking_again_keeps_the_ticket"],
    },
    Mutation {
        name: "a ticket from the future counts",
        changes: &[(
            "old_ticket > 0 and old_ticket <= gate.us and",
            "old_ticket > 0 and",
        )],
        found_by: &["a_place_in_the_future_does_not_count"],
    },
    Mutation {
        name: "a record counts as a place",
        changes: &[(
            "state ~= nil and redis.call(\"ZSCORE\", queue, token)",
            "state ~= nil",
        )],
        found_by: &["a_lost_queue_is_entered_again"],
    },
    Mutation {
        name: "what is not there is subtracted",
        changes: &[(
            "if redis.call(\"ZREM\", gate.main, token) == 1 then",
            "if redis.call(\"ZREM\", gate.main, token) then",
        )],
        found_by: &["a_lost_main_key_frees_no_second_permit"],
    },
    Mutation {
        name: "a sum is kept without records",
        changes: &[("    if gate.summed then", "    if true then")],
        found_by: &["lost_records_leave_no_key_without_ttl"],
    },
    Mutation {
        name: "a permit put twice counts twice",
        changes: &[
            (
                "gate.used = gate.used + weight - counted",
                "gate.used = gate.used + weight",
            ),
            ("used = used - 1 + redis", "used = used + 0 * redis"),
        ],
        found_by: &["lost_records_make_no_permit_count_twice"],
    },
    Mutation {
        name: "side keys end a little early",
        changes: &[
            (
                "if redis.call(\"PTTL\", key) < ms then",
                "if redis.call(\"PTTL\", key) < ms - 500 then",
            ),
            (
                "redis.call(\"PEXPIRE\", key, ms + 500)",
                "redis.call(\"PEXPIRE\", key, ms)",
            ),
        ],
        found_by: &["side_keys_outlive_the_lease"],
    },
    Mutation {
        name: "the client's clock",
        changes: &[(
            "clock, token)\n",
            "clock, token)\ngate.us = (latest_ms - 1000) * 1000\n",
        )],
        found_by: &["the_clients_clock_decides_nothing"],
    },
    Mutation {
        name: "a push says nothing of its length",
        changes: &[("fence .. \" \" .. ms", "fence")],
        found_by: &["a_push_names_token_fence_and_length"],
    },
    Mutation {
        name: "times lose digits",
        changes: &[("fence .. \" \" .. ms", "tonumber(fence) .. \" \" .. ms")],
        found_by: &["a_push_names_token_fence_and_length"],
    },
    Mutation {
        name: "one number is drawn twice",
        changes: &[
            ("digits(last + 1)", "digits(last)"),
            ("return last + 1, text", "return last, text"),
        ],
        found_by: &[
            "stamps_order_answers_among_pushes",
            "tickets_and_fences_share_a_counter",
        ],
    },
    Mutation {
        name: "a renewal's stamp by the clock alone",
        changes: &[("math.max(us, clock_read(clock))", "us")],
        found_by: &["stamps_order_answers_among_pushes"],
    },
    Mutation {
        name: "the counter ends before the lease",
        changes: &[(
            "local keep_ms = lease_ms > KEEP_MS and digits(lease_ms) or KEEP",
            "local keep_ms = KEEP",
        )],
        found_by: &["side_keys_outlive_the_lease"],
    },
    Mutation {
        name: "the quick way in passes those who wait",
        changes: &[
            (
                "redis.call(\"EXISTS\", KEYS[1], KEYS[2], KEYS[3], KEYS[4])",
                "redis.call(\"EXISTS\", KEYS[1], KEYS[4])",
            ),
            ("if redis.call(\"EXISTS\", KEYS[2]) == 0 and not", "if not"),
        ],
        found_by: &["a_waiter_that_asks_by_a_timer_keeps_its_turn"],
    },
    Mutation {
        name: "the quick way in passes who holds",
        changes: &[(
            "redis.call(\"EXISTS\", KEYS[1], KEYS[2], KEYS[3], KEYS[4])",
            "redis.call(\"EXISTS\", KEYS[2], KEYS[3], KEYS[4])",
        )],
        found_by: &["a_stranger_cannot_release"],
    },
    Mutation {
        name: "the quick way in ignores a tombstone",
        changes: &[(
            "not redis.call(\"ZSCORE\", KEYS[4], \"!\" .. ARGV[1])",
            "true",
        )],
        found_by: &["a_tombstone_keeps_a_late_acquire_out"],
    },
    Mutation {
        name: "the quick way in is never too late",
        changes: &[
            (
                "if math.floor(us / 1000) <= tonumber(ARGV[6]) then",
                "if true then",
            ),
            (" and ms <= tonumber(ARGV[6]) then", " then"),
        ],
        found_by: &["a_late_request_creates_nothing"],
    },
    Mutation {
        name: "the quick way out hands on to nobody",
        changes: &[
            (
                "redis.call(\"EXISTS\", KEYS[2], KEYS[3]) == 0 then",
                "true then",
            ),
            (
                "if ARGV[3] == \"0\" and redis.call(\"EXISTS\", KEYS[2]) == 0",
                "if true",
            ),
        ],
        found_by: &["a_release_hands_on_to_the_next_in_line"],
    },
    Mutation {
        name: "the quick way out asks for no owner",
        changes: &[(
            "string.sub(value, 1, #ARGV[1] + 1) == ARGV[1] .. \" \"",
            "true",
        )],
        found_by: &["a_stranger_cannot_release"],
    },
    Mutation {
        name: "the quick way out leaves no tombstone",
        changes: &[("if ARGV[3] == \"0\" and redis", "if redis")],
        found_by: &["a_release_whose_acquire_is_unanswered_leaves_a_tombstone"],
    },
    Mutation {
        name: "the quick way out releases what is over",
        changes: &[("if ends > math.floor(us / 1000) then", "if true then")],
        found_by: &["what_is_over_is_not_released"],
    },
    Mutation {
        name: "the quick way out keeps the sum",
        changes: &[("digits(math.max(fields[1] - weight, 0))", "fields[1]")],
        found_by: &["each_request_is_judged_by_its_own_limit"],
    },
    Mutation {
        name: "a renewal of many that asks for no fence",
        changes: &[(
            "if value ~= token .. \" \" .. fence then",
            "if not value then",
        )],
        found_by: &["a_renewal_names_token_and_fence"],
    },
    Mutation {
        name: "a shortening renewal of many",
        changes: &[
            (
                "math.max(left < 0 and CLAIM_MS or left, lease_ms)",
                "lease_ms",
            ),
            ("if left < least then", "if true then"),
        ],
        found_by: &["no_script_shortens_a_lease"],
    },
    Mutation {
        name: "other clients hear of no release",
        changes: &[("  redis.pcall(\"PUBLISH\", released, \"1\")\n", "")],
        found_by: &["a_release_is_told_to_other_clients"],
    },
];

impl Mutation {
    fn apply(&self, sound: &Scripts) -> Scripts {
        let mut broken = sound.clone();
        for (piece, by) in self.changes {
            assert!(
                broken.replace(piece, by) > 0,
                "{}: no script has {piece:?}",
                self.name
            );
        }
        broken
    }
}

#[test]
fn each_mutation_is_found_by_the_laws_beside_it() {
    let server = Server::start();
    let sound = Scripts::with_given_clock();
    let mut found = BTreeMap::new();
    // One kind after the other: the rigs would else hear each other's pushes.
    for kind in KINDS {
        let mut rig = Rig::new(&server, sound.clone(), kind);
        for mutation in MUTATIONS {
            rig.install(mutation.apply(&sound));
            // What fails to compile breaks every law, and shows nothing.
            assert!(rig.compiles(), "{}", mutation.name);
            for law in mutation.found_by {
                let (_, uphold) = LAWS
                    .iter()
                    .find(|(name, _)| name == law)
                    .expect("the law is listed");
                rig.reset();
                if let Err(problem) = uphold(&mut rig) {
                    found.insert((mutation.name, law), format!("{kind:?}, {problem}"));
                }
            }
        }
    }
    for mutation in MUTATIONS {
        for law in mutation.found_by {
            match found.get(&(mutation.name, law)) {
                Some(how) => println!("{}: {law}: {how}", mutation.name),
                None => panic!("{}: not found by {law}", mutation.name),
            }
        }
    }
}

#[test]
fn each_law_finds_some_mutation() {
    for (law, _) in LAWS {
        assert!(
            MUTATIONS
                .iter()
                .any(|mutation| mutation.found_by.contains(law)),
            "{law} may be a law of nothing"
        );
    }
}
