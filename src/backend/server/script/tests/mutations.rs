//! Scripts broken on purpose: each way to break them is found by the laws that stand beside it.

use std::collections::BTreeMap;

use super::laws;
use super::rig::{KINDS, Rig, Scripts};
use super::support::Server;

/// A way to break the scripts: pieces of their text with what takes their place, and the laws that
/// must find out.
struct Mutation {
    name: &'static str,
    changes: &'static [(&'static str, &'static str)],
    found_by: &'static [&'static str],
}

mod home;
mod swap;

const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "who is turned away says nothing",
        changes: &[("  if full and wanted == \"w\" and", "  if false and")],
        found_by: &["who_is_turned_away_says_that_its_waiting_process_lives"],
    },
    Mutation {
        name: "whoever is turned away is kept in mind",
        changes: &[(
            "wanted == \"w\" and gate.alive >= gate.ms",
            "wanted == \"w\"",
        )],
        found_by: &["who_is_turned_away_says_that_its_waiting_process_lives"],
    },
    Mutation {
        name: "no owner check in end",
        changes: &[
            (
                "elseif holders_hold(gate, token) then\n  holders_remove(gate, token, weight or 1)\n  status",
                "elseif true then\n  holders_remove(gate, token, weight or 1)\n  status",
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
        changes: &[("grant(gate)\nif status", "if status")],
        found_by: &[
            "a_release_hands_on_to_the_next_in_line",
            "at_maxmemory_a_release_hands_on",
        ],
    },
    Mutation {
        name: "end of a queue entry without grant",
        changes: &[(
            "grant(gate)\nif status",
            "if status == RELEASED then\n  grant(gate)\nend\nif status",
        )],
        found_by: &["a_cancelled_wait_hands_on"],
    },
    Mutation {
        name: "acquire without grant",
        changes: &[(
            "local fence, next_in_line = grant(gate, token, lease_ms)",
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
            "  if left and fence then\n    return {HELD",
            "  if left and fence then\n    holders_extend(gate, token, lease_ms)\n    return {HELD",
        )],
        found_by: &["asking_again_extends_nothing"],
    },
    Mutation {
        name: "a re-sent acquire answers the whole lease",
        changes: &[(
            "gate_stamp(gate), fence, left, others(gate, gate.caller)}",
            "gate_stamp(gate), fence, lease_ms, others(gate, gate.caller)}",
        )],
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
            "if state == \"c\" or not state and holders_trace(gate, token) then\n    recorded",
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
            "      redis.call(\"HSET\", gate.records, token, waiting)\n",
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
        changes: &[("if gate.us > latest_us then", "if false then")],
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
            "  if not last or #last == #text",
            "  if not last then\n    return \"1\"\n  end\n  if #last == #text",
        )],
        found_by: &["fences_rise_over_a_loss_of_data"],
    },
    Mutation {
        name: "fence by the clock alone",
        changes: &[(
            "if not last or #last == #text and last < text then",
            "if true then",
        )],
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
        changes: &[
            (
                "local fresh, text = gate_draw(gate, KEEP_MS)",
                "local fresh, text = gate.us, gate.text",
            ),
            (
                "text <= ARGV[3]\n    and clock_draw(KEYS[5], text, KEEP)",
                "text <= ARGV[3] and text",
            ),
        ],
        found_by: &["tickets_and_fences_share_a_counter"],
    },
    Mutation {
        name: "a new ticket on re-entry",
        changes: &[(
            "if old_ticket > 0 and old_ticket <= gate.us then",
            "if false then",
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
            "if old_ticket > 0 and old_ticket <= gate.us then",
            "if old_ticket > 0 then",
        )],
        found_by: &["a_place_in_the_future_does_not_count"],
    },
    Mutation {
        name: "a record counts as a place",
        changes: &[(
            "local waits = ticket and state",
            "local waits = state\nticket = ticket or 7",
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
            "clock, token)\nlocal state, my",
            "clock, token)\ngate.us = latest_us - 1000000\nlocal state, my",
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
        changes: &[("digits(last + 1)", "digits(last)")],
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
        changes: &[("then\n    return lease_ms\n", "then\n    return KEEP\n")],
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
        changes: &[("#text == #ARGV[3] and text <= ARGV[3]", "true")],
        found_by: &["a_late_request_creates_nothing"],
    },
    Mutation {
        name: "the quick way out hands on to nobody",
        changes: &[
            (
                "if mine and redis.call(\"EXISTS\", KEYS[2], KEYS[3]) == 0 then",
                "if mine then",
            ),
            (
                "if ARGV[2] == \"0\" and redis.call(\"EXISTS\", KEYS[2]) == 0",
                "if true",
            ),
        ],
        found_by: &["a_release_hands_on_to_the_next_in_line"],
    },
    Mutation {
        name: "the quick way out asks for no owner",
        changes: &[("string.find(value, ARGV[1] .. \" \", 1, true) == 1", "true")],
        found_by: &["a_stranger_cannot_release"],
    },
    Mutation {
        name: "the quick way out leaves no tombstone",
        changes: &[("ARGV[2] == \"0\" and redis", "redis")],
        found_by: &["a_release_whose_acquire_is_unanswered_leaves_a_tombstone"],
    },
    Mutation {
        name: "the quick way out releases what is over",
        changes: &[(
            "if ends and ends - string.sub(now(), 1, -4) > 0 then",
            "if ends then",
        )],
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
        name: "a renewed claim of a mutex stays one",
        changes: &[(
            "if state == \"c\" or not state and holders_trace(gate, token) then",
            "if state == \"c\" then",
        )],
        found_by: &["a_renewed_claim_lasts_its_whole_lease"],
    },
    Mutation {
        name: "a mutex' claim that ends is no one's fault",
        changes: &[("if FENCED or text and", "if text and")],
        found_by: &["a_suspect_is_skipped_in_place_until_it_speaks"],
    },
    Mutation {
        name: "who asks for what it let go is a suspect",
        changes: &[(
            "or state == \"h\" or holders_trace(gate, token) then\n  local left",
            "or state == \"h\" then\n  local left",
        )],
        found_by: &["who_speaks_of_its_own_claim_is_no_suspect"],
    },
    Mutation {
        name: "who ends what it let go is a suspect",
        changes: &[(
            "elseif state == \"c\" or state == \"h\" or holders_trace(gate, token) then",
            "elseif state == \"c\" or state == \"h\" then",
        )],
        found_by: &["who_speaks_of_its_own_claim_is_no_suspect"],
    },
    Mutation {
        name: "who renews what it let go is a suspect",
        changes: &[(
            "if state == \"c\" or state == \"h\" or holders_trace(gate, token) then\n      -- What",
            "if state == \"c\" or state == \"h\" then\n      -- What",
        )],
        found_by: &["who_speaks_of_its_own_claim_is_no_suspect"],
    },
    Mutation {
        name: "a place without a record is none",
        changes: &[("if ticket and not mine then", "if false then")],
        found_by: &["asking_again_keeps_the_ticket"],
    },
    Mutation {
        name: "a usual wait has no end",
        changes: &[
            (
                "  return holders_usual(ticket)\nend",
                "  return \"w\", 1, 1, CLAIM_MS, math.huge\nend",
            ),
            ("place[2] / 1000 + WAIT_MS", "math.huge"),
        ],
        found_by: &["a_wait_without_a_deadline_ends_after_a_day"],
    },
    Mutation {
        name: "no deadline is unusual",
        changes: &[("and deadline == usual_deadline then", "then")],
        found_by: &["a_wait_past_its_deadline_is_passed_over"],
    },
    Mutation {
        name: "no lease is unusual",
        changes: &[("lease_ms >= least_ms and", "")],
        found_by: &["a_push_names_token_fence_and_length"],
    },
    Mutation {
        name: "who asks by a timer is not unusual",
        changes: &[(
            "if state == \"w\" and weight == usual_weight",
            "if weight == usual_weight",
        )],
        found_by: &["a_waiter_that_asks_by_a_timer_keeps_its_turn"],
    },
    Mutation {
        name: "what was unusual stays recorded",
        changes: &[(
            "    if noted then\n      redis.call(\"HDEL\", gate.records, token)\n    end\n",
            "",
        )],
        found_by: &["a_waiter_that_listens_again_is_told"],
    },
    Mutation {
        name: "the quick way into the queue asks for no tombstone",
        changes: &[("ends[2] or ends[3] or redis", "ends[2] or redis")],
        found_by: &["a_tombstone_keeps_out_of_the_queue"],
    },
    Mutation {
        name: "the quick way into the queue is never too late",
        changes: &[(
            "max_waiters - waiters > 0 and #text == #ARGV[3] and text <= ARGV[3]",
            "max_waiters - waiters > 0",
        )],
        found_by: &["a_late_request_creates_nothing"],
    },
    Mutation {
        name: "the quick way into the queue knows no bound",
        changes: &[("max_waiters - waiters > 0 and", "")],
        found_by: &["a_full_queue_turns_newcomers_away"],
    },
    Mutation {
        name: "the quick way into the queue takes who does not wait",
        changes: &[("([1-9]%d*) (%d+) 0 1 0$", "(%d+) (%d+) 0 1 0$")],
        found_by: &["a_busy_try_leaves_nothing"],
    },
    Mutation {
        name: "the quick way into the queue takes who does not listen",
        changes: &[("([1-9]%d*) (%d+) 0 1 0$", "([1-9]%d*) (%d+) 0 %d 0$")],
        found_by: &["a_waiter_that_asks_by_a_timer_keeps_its_turn"],
    },
    Mutation {
        name: "the quick way into the queue forgets the old place",
        changes: &[("([1-9]%d*) (%d+) 0 1 0$", "([1-9]%d*) (%d+) %d+ 1 0$")],
        found_by: &["a_place_from_before_a_loss_of_data_counts"],
    },
    Mutation {
        name: "the quick way into the queue takes a stranger for one of ours",
        changes: &[("\"^(%S+) %d+$\"", "\"^(%S+)\"")],
        found_by: &["a_foreign_holder_is_respected"],
    },
    Mutation {
        name: "the quick way into the queue takes the holder",
        changes: &[("if holder and holder ~= ARGV[1] then", "if holder then")],
        found_by: &["asking_again_extends_nothing"],
    },
    Mutation {
        name: "the quick way into the queue is taken twice",
        changes: &[(" or redis.call(\"ZSCORE\", KEYS[2], ARGV[1]))", ")")],
        found_by: &["asking_again_keeps_the_ticket"],
    },
    Mutation {
        name: "the quick way into the queue knows no operator",
        changes: &[(
            "not (fields[1] or fields[2] or fields[3] or ends[2]",
            "not (fields[2] or fields[3] or ends[2]",
        )],
        found_by: &["a_gate_without_permits_is_closed_to_all"],
    },
    Mutation {
        name: "the quick way into the queue records no deadline",
        changes: &[("if wait_ms - WAIT_MS ~= 0 or ARGV", "if ARGV")],
        found_by: &["a_wait_past_its_deadline_is_passed_over"],
    },
    Mutation {
        name: "the quick way into the queue records no short lease",
        changes: &[("or ARGV[2] - CLAIM_MS < 0 or", "or")],
        found_by: &["a_push_names_token_fence_and_length"],
    },
    Mutation {
        name: "the quick way into the queue leaves it without TTL",
        changes: &[("    keep(KEYS[2], KEEP_MS)\n", "")],
        found_by: &["a_release_hands_on_to_the_next_in_line"],
    },
    Mutation {
        name: "the quick way into the queue leaves records without TTL",
        changes: &[("      keep(KEYS[3], keep_for(ARGV[2]) + 0)\n", "")],
        found_by: &["a_wait_past_its_deadline_is_passed_over"],
    },
    Mutation {
        name: "the quick way into the queue says of nobody that it lives",
        changes: &[(
            "if (ends[1] or 0) - ms < CLAIM_MS - SAID_MS then",
            "if false then",
        )],
        found_by: &["a_release_hands_on_to_the_next_in_line"],
    },
    Mutation {
        name: "the quick hand-over asks for no heartbeat",
        changes: &[("ends[1] and ends[1] - ms >= 0 and not", "not")],
        found_by: &["a_dead_process_is_passed_over"],
    },
    Mutation {
        name: "the quick hand-over asks for no deadline",
        changes: &[("deadline and deadline - ms >= 0 and", "deadline and")],
        found_by: &["a_wait_past_its_deadline_is_passed_over"],
    },
    Mutation {
        name: "the quick hand-over takes a suspect",
        changes: &[("not (ends[2] or ends[3])", "not ends[3]")],
        found_by: &["a_suspect_is_skipped_in_place_until_it_speaks"],
    },
    Mutation {
        name: "the quick hand-over leaves its caller a suspect",
        changes: &[("not (ends[2] or ends[3])", "not ends[2]")],
        found_by: &["who_releases_is_no_suspect"],
    },
    Mutation {
        name: "the quick hand-over takes who can't be told",
        changes: &[("\"^1w 1 1 (%d+) (%d+)\"", "\"^1[wp] 1 1 (%d+) (%d+)\"")],
        found_by: &["a_waiter_that_asks_by_a_timer_keeps_its_turn"],
    },
    Mutation {
        name: "the quick hand-over knows no operator",
        changes: &[("not (fields[1] or fields[3])", "not fields[3]")],
        found_by: &["a_gate_without_permits_is_closed_to_all"],
    },
    Mutation {
        name: "the quick hand-over knows no other version",
        changes: &[("not (fields[1] or fields[3])", "not fields[1]")],
        found_by: &["an_unknown_protocol_version_is_never_a_second_lock"],
    },
    Mutation {
        name: "the quick hand-over gives a whole lease",
        changes: &[
            (
                "local lease_ms, deadline = CLAIM, nil",
                "local lease_ms, deadline = \"10000\", nil",
            ),
            ("        lease_ms = CLAIM\n", ""),
        ],
        found_by: &["a_claim_ends_early_unless_it_is_renewed"],
    },
    Mutation {
        name: "the quick hand-over says nothing of its length",
        changes: &[("drawn .. \" \" .. lease_ms\n", "drawn\n")],
        found_by: &["a_push_names_token_fence_and_length"],
    },
    Mutation {
        name: "the quick hand-over leaves no trace of a claim",
        changes: &[("      redis.call(\"HSET\", KEYS[3], \"S\", waiter)\n", "")],
        found_by: &["a_suspect_is_skipped_in_place_until_it_speaks"],
    },
    Mutation {
        name: "the quick hand-over leaves a trace without TTL",
        changes: &[("      keep(KEYS[3], KEEP_MS)\n", "")],
        found_by: &["a_release_hands_on_to_the_next_in_line"],
    },
    Mutation {
        name: "the quick hand-over counts a push to nobody",
        changes: &[(
            "if type(heard) == \"number\" and heard > 0 then",
            "if type(heard) == \"number\" then",
        )],
        found_by: &["a_dead_inbox_is_passed_over_and_costs_no_lease"],
    },
    Mutation {
        name: "the quick hand-over counts a refused push",
        changes: &[(
            "if type(heard) == \"number\" and heard > 0 then",
            "if true then",
        )],
        found_by: &["a_refused_publish_undoes_the_grant"],
    },
    Mutation {
        name: "the quick hand-over is not undone",
        changes: &[(
            "      released = true\n      redis.call(\"DEL\", KEYS[1])\n",
            "      released = true\n",
        )],
        found_by: &["a_dead_inbox_is_passed_over_and_costs_no_lease"],
    },
    Mutation {
        name: "the quick hand-over forgets that it has released",
        changes: &[("      released = true\n", "")],
        found_by: &["a_dead_inbox_is_passed_over_and_costs_no_lease"],
    },
    Mutation {
        name: "the quick hand-over leaves the place",
        changes: &[("        redis.call(\"ZREM\", KEYS[2], waiter)\n", "")],
        found_by: &["a_release_hands_on_to_the_next_in_line"],
    },
    Mutation {
        name: "the quick hand-over leaves what is recorded of the wait",
        changes: &[("          redis.call(\"HDEL\", KEYS[3], waiter)\n", "")],
        found_by: &["a_renewed_claim_lasts_its_whole_lease"],
    },
    Mutation {
        name: "the quick hand-over takes memory before it frees some",
        changes: &[(
            "local last = redis.pcall(\"SET\"",
            "local last = redis.call(\"SET\"",
        )],
        found_by: &["at_maxmemory_a_release_hands_on"],
    },
    Mutation {
        name: "the quick way out leaves a trace of the claim",
        changes: &[(
            "    redis.call(\"HDEL\", KEYS[3], \"S\")\n    return 0",
            "    return 0",
        )],
        found_by: &["who_speaks_of_its_own_claim_is_no_suspect"],
    },
    Mutation {
        name: "other clients hear of no release",
        changes: &[("  redis.pcall(\"PUBLISH\", channel, \"1\")\n", "")],
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

fn mutations() -> impl Iterator<Item = &'static Mutation> {
    let homes = home::MUTATIONS.iter();
    MUTATIONS.iter().chain(homes).chain(swap::MUTATIONS)
}

#[test]
fn each_mutation_is_found_by_the_laws_beside_it() {
    let server = Server::start();
    let sound = Scripts::with_given_clock();
    let mut found = BTreeMap::new();
    // One kind after the other: the rigs would else hear each other's pushes.
    for kind in KINDS {
        let mut rig = Rig::new(&server, sound.clone(), kind);
        for mutation in mutations() {
            rig.install(mutation.apply(&sound));
            // What fails to compile breaks every law, and shows nothing.
            assert!(rig.compiles(), "{}", mutation.name);
            for law in mutation.found_by {
                let (_, uphold) = laws::all()
                    .find(|(name, _)| name == law)
                    .expect("the law is listed");
                rig.reset();
                if let Err(problem) = uphold(&mut rig) {
                    found.insert((mutation.name, law), format!("{kind:?}, {problem}"));
                }
            }
        }
    }
    let mut missed = Vec::new();
    for mutation in mutations() {
        for law in mutation.found_by {
            match found.get(&(mutation.name, law)) {
                Some(how) => println!("{}: {law}: {how}", mutation.name),
                None => missed.push(format!("{}: not found by {law}", mutation.name)),
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn each_law_finds_some_mutation() {
    for (law, _) in laws::all() {
        assert!(
            mutations().any(|mutation| mutation.found_by.contains(law)),
            "{law} may be a law of nothing"
        );
    }
}
