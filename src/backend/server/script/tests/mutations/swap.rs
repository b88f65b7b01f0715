//! What ends and asks in one call, broken on purpose.

use super::Mutation;

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "a swap asks before it ends",
        changes: &[
            ("local ended = lease_end(ending)\n", ""),
            ("return {ended, asked}", "return {lease_end(ending), asked}"),
        ],
        found_by: &[
            "a_swap_frees_what_it_ends_for_who_asks",
            "a_swap_hands_on_before_it_asks",
            "a_swap_leaves_and_answers_what_two_calls_would",
        ],
    },
    Mutation {
        name: "a swap ends nothing",
        changes: &[(
            "local ended = lease_end(ending)",
            "local ended = {0, 0, 0, 0}",
        )],
        found_by: &[
            "a_swap_frees_what_it_ends_for_who_asks",
            "a_swap_hands_on_before_it_asks",
            "a_swap_leaves_and_answers_what_two_calls_would",
        ],
    },
    Mutation {
        name: "a swap asks by the token that it ends",
        changes: &[("{ARGV[4], ARGV[5]", "{ARGV[1], ARGV[5]")],
        found_by: &[
            "a_swap_frees_what_it_ends_for_who_asks",
            "a_swap_leaves_and_answers_what_two_calls_would",
        ],
    },
    Mutation {
        name: "a swap leaves no tombstone",
        changes: &[(
            "local ending = {ARGV[1], ARGV[2],",
            "local ending = {ARGV[1], \"0\",",
        )],
        found_by: &["a_swap_leaves_and_answers_what_two_calls_would"],
    },
    Mutation {
        name: "a swap tells other clients nothing",
        changes: &[(
            "local ending = {ARGV[1], ARGV[2], ARGV[3]}",
            "local ending = {ARGV[1], ARGV[2], \"\"}",
        )],
        found_by: &["a_swap_leaves_and_answers_what_two_calls_would"],
    },
    Mutation {
        name: "what a swap asks in vain fails as a whole",
        changes: &[(
            "pcall(lease_acquire, asking)",
            "true, lease_acquire(asking)",
        )],
        found_by: &["what_a_swap_asks_in_vain_undoes_no_end"],
    },
    Mutation {
        name: "what a swap asks in vain is no failure",
        changes: &[("asked = {err = ", "asked = {text = ")],
        found_by: &["what_a_swap_asks_in_vain_undoes_no_end"],
    },
    Mutation {
        name: "what a swap asks in vain is told in words that nobody reads",
        changes: &[("string.gsub(text, \"^ERR \", \"\")", "\"it failed\"")],
        found_by: &["what_a_swap_asks_in_vain_undoes_no_end"],
    },
];
