//! The behavior suite: each test is a sentence about the crate that a user can rely on.
//!
//! The sentences in the files that `behaviors!` lists hold for every place where gates can live:
//! they ask a [`Rig`](rig::Rig) for handles and know nothing of servers. A further place joins by
//! one line at the end of this file. What is only true of a server (its keys, its faults, its
//! rights) stands in `server/`.
//!
//! "Promptly" means long before a TTL could explain it: within a tenth of [`LONG`](common::LONG).

#[path = "../support/mod.rs"]
mod support;

mod common;
mod leftovers;
mod rig;

mod delay;
mod drop_without_runtime;
mod lease;
mod mutex;
mod names;
mod rate_limit;
mod semaphore;
mod shutdown;

mod server;

/// Makes tests of sentences, each on a rig of its own.
macro_rules! sentences {
    ($only:tt $rig:ty; $($topic:ident { $($sentence:ident,)* })*) => {$(
        mod $topic {
            $(
                #[tokio::test]
                #$only
                async fn $sentence() {
                    crate::$topic::$sentence::<$rig>().await;
                }
            )*
        }
    )*};
}

/// What holds of locks wherever they live, with more of it: for one kind of rig, and with an attribute for all.
macro_rules! locks {
    ($only:tt $rig:ty; $($mutex:ident,)*; $($lease:ident,)*) => {
        sentences! { $only $rig;
            mutex {
                two_handles_exclude_each_other,
                waiters_of_two_handles_are_served_in_the_order_they_came,
                a_release_hands_over_promptly_however_long_the_ttl,
                a_try_is_refused_with_when_to_retry_and_how_many_wait,
                a_wait_ends_at_max_wait,
                a_max_wait_of_zero_is_a_try,
                as_many_wait_as_may_and_the_next_is_refused,
                where_nobody_may_wait_a_free_lock_is_still_taken,
                a_dropped_waiter_gives_its_place_up,
                the_same_task_does_not_get_a_lock_twice,
                a_guard_that_is_dropped_and_one_that_is_released_free_the_lock_alike,
                fencing_tokens_rise_from_holder_to_holder,
                two_tasks_play_ping_pong_without_a_lost_wake_up,
                $($mutex,)*
            }
            lease {
                a_renewed_lease_outlives_its_ttl,
                a_lease_with_max_hold_is_lost_at_its_end,
                a_fixed_lease_is_lost_after_its_ttl,
                an_expired_holder_can_not_release_its_successor,
                while_held_gives_the_work_or_the_reason,
                a_lost_lease_is_never_held_again,
                a_released_lease_is_never_reported_lost,
                a_waiter_outlasts_any_number_of_its_holders_ttls,
                a_lease_after_a_long_wait_is_a_whole_one,
                a_blocked_worker_delays_no_renewal,
                releases_at_once_leave_nothing_to_renew,
                $($lease,)*
            }
            names {
                keys_kinds_names_and_prefixes_do_not_meet,
                any_text_is_a_name_and_distinct_texts_are_distinct_locks,
            }
            drop_without_runtime {
                on_a_plain_thread,
                after_the_runtime_has_ended,
                while_unwinding,
                as_a_current_thread_runtime_shuts_down,
                in_a_local_set,
                in_a_blocking_task,
                after_the_handle_is_gone,
                one_handle_serves_several_runtimes_one_after_another,
            }
        }
    };
}

/// The same of permits.
macro_rules! permits {
    ($only:tt $rig:ty; $($semaphore:ident,)*) => {
        sentences! { $only $rig;
            semaphore {
                no_more_than_the_limit_are_inside,
                a_fresh_one_is_full_and_a_second_handle_finds_none_free,
                a_large_request_is_not_passed_by_small_ones_behind_it,
                permits_that_come_back_at_once_serve_all_whom_they_suffice,
                a_stream_of_small_requests_does_not_starve_a_large_one,
                what_never_fits_is_refused_at_once,
                weights_are_conserved,
                a_try_does_not_overtake_a_waiter,
                an_expired_permit_that_is_released_adds_no_capacity,
                permits_end_one_by_one,
                $($semaphore,)*
            }
            shutdown {
                newcomers_and_waiters_are_refused_at_once_and_guards_live_on,
                guards_that_end_in_time_are_counted_as_released,
                guards_that_stay_are_lost_at_the_deadline,
                a_second_shutdown_is_harmless,
                the_successor_acquires_promptly,
                what_was_dropped_at_the_last_moment_is_delivered,
            }
        }
    };
}

/// Every sentence that holds everywhere but on a quorum. One that is left out here is dead code, which the compiler tells.
macro_rules! behaviors {
    ($place:ident, $rig:ty) => {
        behaviors!($place, $rig, [cfg(test)]);
    };
    ($place:ident, $rig:ty, $only:tt) => {
        mod $place {
            locks! { $only $rig;
                five_thousand_tasks_are_served_with_the_defaults,;
                busy_permits_with_short_ttls_are_not_lost_while_they_are_released,
            }
            permits! { $only $rig;
                each_request_is_judged_by_its_own_limit,
                a_newcomer_with_a_larger_limit_does_not_pass_a_waiter_with_a_smaller_one,
            }
            sentences! { $only $rig;
                delay {
                    a_lease_that_was_not_given_back_keeps_others_out_for_its_delay,
                    a_release_frees_at_once_however_long_the_delay,
                    a_hand_off_is_a_whole_lease_however_long_the_delay,
                    others_are_told_to_come_back_after_the_delay,
                    a_lost_permit_delays_nobody_who_finds_another_free,
                    a_guard_that_outlives_a_shutdown_is_delayed,
                    each_holder_has_its_own_delay,
                    a_delay_is_of_a_minute_at_most,
                }
                rate_limit {
                    a_burst_is_admitted_and_what_exceeds_it_is_told_when,
                    who_comes_back_at_the_announced_time_is_admitted,
                    a_cost_that_never_fits_is_refused_at_once,
                    several_quotas_admit_together_or_use_nothing,
                    a_shadow_refuses_nothing_and_tells_what_it_would_have,
                    changed_quotas_act_at_once_and_what_was_used_stays_used,
                    what_is_refunded_debited_and_reset_counts,
                    keys_and_names_do_not_meet,
                    a_thousand_at_once_are_counted_one_by_one,
                    who_waits_is_served_in_order_and_sleeps_once,
                    a_turn_that_comes_too_late_is_refused_at_once_and_not_booked,
                    a_dropped_turn_is_given_back_only_if_it_is_the_last,
                    a_check_does_not_overtake_who_waits,
                    exactly_what_remains_can_be_used,
                    what_was_used_vanishes_when_it_has_come_back,
                    a_handle_that_shuts_down_admits_nobody,
                    a_handle_that_shuts_down_lets_nobody_sleep_on_and_gives_turns_back,
                }
            }
        }
    };
}

/// Locks on three servers, and what has permits on seven: three tolerate no failure of two permits or
/// more, which is refused.
///
/// Left out are rate limits, which a quorum does not keep; semaphores whose users name different
/// limits, since the number of votes follows from the limit; and one of 25 permits, which would take as
/// many servers and two more.
mod on_a_quorum {
    locks! { [cfg(test)] crate::rig::QuorumRig<3>; five_thousand_tasks_are_served_with_the_defaults,; }
}

mod on_a_quorum_of_seven {
    permits! { [cfg(test)] crate::rig::QuorumRig<7>; }
}

/// What holds also where processes keep permits and hand mutexes on among their own requests.
///
/// Left out is what this trades or changes: the order between processes; how many wait, since a
/// handle that keeps tells those who wait in its own process; and leases that are not renewed or have
/// a delay, which are not kept. Others who use such leases at the same gates are not.
mod where_permits_are_kept {
    sentences! { [cfg(test)] crate::rig::KeepingRig;
        mutex {
            two_handles_exclude_each_other,
            a_max_wait_of_zero_is_a_try,
            where_nobody_may_wait_a_free_lock_is_still_taken,
            the_same_task_does_not_get_a_lock_twice,
            a_guard_that_is_dropped_and_one_that_is_released_free_the_lock_alike,
            fencing_tokens_rise_from_holder_to_holder,
            five_thousand_tasks_are_served_with_the_defaults,
            two_tasks_play_ping_pong_without_a_lost_wake_up,
        }
        lease {
            a_renewed_lease_outlives_its_ttl,
            a_lease_with_max_hold_is_lost_at_its_end,
            a_fixed_lease_is_lost_after_its_ttl,
            an_expired_holder_can_not_release_its_successor,
            while_held_gives_the_work_or_the_reason,
            a_lost_lease_is_never_held_again,
            a_released_lease_is_never_reported_lost,
            a_blocked_worker_delays_no_renewal,
            releases_at_once_leave_nothing_to_renew,
            busy_permits_with_short_ttls_are_not_lost_while_they_are_released,
        }
        drop_without_runtime {
            on_a_plain_thread,
            after_the_runtime_has_ended,
            while_unwinding,
            as_a_current_thread_runtime_shuts_down,
            in_a_local_set,
            in_a_blocking_task,
            after_the_handle_is_gone,
            one_handle_serves_several_runtimes_one_after_another,
        }
        semaphore {
            no_more_than_the_limit_are_inside,
            a_fresh_one_is_full_and_a_second_handle_finds_none_free,
            a_stream_of_small_requests_does_not_starve_a_large_one,
            what_never_fits_is_refused_at_once,
            weights_are_conserved,
            a_try_does_not_overtake_a_waiter,
            each_request_is_judged_by_its_own_limit,
        }
        shutdown {
            newcomers_and_waiters_are_refused_at_once_and_guards_live_on,
            guards_that_end_in_time_are_counted_as_released,
            guards_that_stay_are_lost_at_the_deadline,
            a_second_shutdown_is_harmless,
            what_was_dropped_at_the_last_moment_is_delivered,
        }
        delay {
            a_lease_that_was_not_given_back_keeps_others_out_for_its_delay,
            a_lost_permit_delays_nobody_who_finds_another_free,
            a_guard_that_outlives_a_shutdown_is_delayed,
        }
    }
}

behaviors!(on_a_server, crate::rig::ServerRig);
behaviors!(in_memory, crate::rig::MemoryRig);
behaviors!(
    at_a_url,
    crate::rig::UrlRig,
    [ignore = "`scripts/test --servers own` names the server"]
);
behaviors!(
    on_a_cluster,
    crate::rig::ClusterRig,
    [ignore = "it starts a cluster"]
);
