//! The lists of cases, each written once: as `#[test]` functions by a macro, and as a table.

use super::{
    BoardHarness, Case, ClockHarness, LedgerHarness, MutexHarness, Restart, Step, StepClock, board, clock, ledger,
    mutex,
};

/// Hands a list of cases on: to `tests`, with the expression that makes a harness, or to `table`.
#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    (ledger $then:ident $with:tt) => {
        $crate::__cases! { @$then $with ledger
            claim:
                a_fresh_slot_is_granted, a_running_slot_is_held, the_same_instance_with_another_nonce_is_refused,
                the_same_nonce_gets_the_same_grant_and_a_longer_lease, the_same_nonce_never_shortens_the_lease,
                expiry_never_grants, an_ended_slot_stays_ended, a_released_nonce_is_refused,
                eight_released_nonces_are_remembered, only_a_backfill_starts_what_was_not_started,
                what_a_range_covers_is_refused_but_to_operators, an_unknown_plan_is_refused, keys_are_independent,
                a_request_id_is_one_run, a_repeated_request_keeps_its_first_instant, who_asked_is_kept,
                fences_rise_with_each_grant_of_a_plan, fences_are_exact_integers,
                an_old_fingerprint_still_starts_slots, slots_are_read_back_by_key;
            gate:
                skip_accounts_a_live_slot, allow_counts_to_its_number, allow_zero_is_one, queue_one_waits,
                queue_one_supersedes_an_older_slot, cancel_previous_supersedes_an_older_slot,
                what_was_not_started_supersedes_nothing, a_slot_ahead_of_now_supersedes_nothing,
                cancel_previous_marks_older_runs, cancel_previous_keeps_an_older_mark,
                catch_up_waits_at_a_full_gate, run_now_obeys_the_gate_unless_forced, a_run_now_fills_the_gate,
                a_lapsed_run_fills_the_gate, an_open_slot_leaves_the_gate_free, a_started_slot_waits_at_a_full_gate,
                other_plans_leave_the_gate_free;
            cursor:
                a_grant_moves_the_cursor, a_gap_holds_the_cursor, every_row_moves_the_cursor,
                the_cursor_never_moves_back, run_now_leaves_the_cursor_alone, a_foreign_claim_leaves_a_range_behind,
                account_compares_the_cursor, account_is_refused_beyond_now, account_never_moves_back,
                account_over_nothing_writes_nothing, account_moves_over_the_leading_rows,
                account_moves_to_the_end_where_all_have_rows, account_writes_rows_where_there_are_none,
                account_writes_one_range, every_reason_is_kept, account_refuses_slots_out_of_order,
                a_foreign_account_leaves_a_range_behind, an_unknown_plan_is_not_accounted,
                a_cursor_ahead_of_now_is_set_back, a_cursor_within_the_skew_stays,
                a_slot_below_the_cursor_keeps_its_row;
            end:
                a_settlement_is_recorded, a_long_detail_is_cut, a_second_settlement_changes_nothing,
                a_settlement_names_its_term, a_late_settlement_is_lost, one_settlement_is_accepted_in_all,
                the_last_success_is_remembered, a_slot_given_back_is_open, a_stale_give_back_changes_nothing,
                a_sweep_ends_only_what_has_lapsed, a_sweep_names_its_term, a_renewed_lease_is_not_swept,
                a_swept_slot_opens_while_starts_are_left, a_cancelled_slot_is_not_run_again,
                attempts_are_compared_in_the_claim, reruns_have_a_limit, an_open_slot_is_resolved,
                a_started_slot_is_resolved_as_orphaned, a_sweep_leaves_ended_slots_alone;
            lease:
                a_renewal_lengthens_the_lease, a_renewal_never_shortens_the_lease, a_lapsed_lease_is_renewed,
                a_renewal_names_its_term, a_term_that_is_over_is_lost, a_good_lease_is_not_cut,
                a_cancelled_run_hears_it, a_mark_does_not_end_a_run, only_a_running_slot_is_cancelled,
                a_mark_outlives_a_give_back;
            generation:
                a_new_plan_counts_from_now, opening_again_changes_nothing, an_edit_counts_from_now,
                an_edit_back_is_an_edit, an_edit_never_moves_the_cursor_back, an_edit_names_what_it_replaces,
                a_lost_plan_is_opened_again, a_closed_plan_counts_from_its_reopening, close_names_its_generation,
                claims_dont_look_at_closed, reading_changes_nothing, a_namespace_is_no_plan;
            pause:
                a_paused_plan_waits, operators_pass_a_pause, runs_go_on_under_a_pause, the_first_pause_stays,
                resume_names_its_pause, a_pause_lapses_by_the_stores_clock, a_pause_of_all_covers_later_plans,
                an_edit_keeps_the_pause, an_unknown_plan_is_not_paused;
            purge:
                a_purged_slot_is_too_old, fences_rise_after_a_purge, purge_never_passes_the_cursor,
                purge_never_passes_a_running_slot, purge_never_passes_an_open_slot,
                purge_never_reaches_a_running_request, purge_goes_in_steps, purge_by_age_keeps_the_last,
                purge_by_count_spares_the_last_day, purge_deletes_what_was_not_started,
                purge_concerns_its_plan_alone, the_clock_rule_stays_above_low_water;
            read:
                a_sweep_sees_open_and_lapsed_slots, a_sweep_of_nothing_is_empty, a_look_ends_nothing,
                unfinished_slots_are_listed_in_order, history_goes_page_by_page, history_shows_an_interval,
                an_unknown_plan_has_no_history, plans_go_page_by_page, every_state_is_read_back;
            ids:
                hostile_plan_ids_are_plans_of_their_own, hostile_request_ids_are_runs_of_their_own,
                hostile_labels_are_kept, namespaces_and_ids_dont_run_together, numbers_are_kept_exactly;
            batch:
                claims_are_answered_in_order, large_groups_are_answered_whole, ends_are_answered_in_order,
                plan_requests_are_answered_in_order, empty_groups_are_answered,
                a_decision_twice_in_a_group_is_one_grant;
            contention:
                one_of_many_gets_a_slot, runs_of_a_plan_exclude_each_other, one_of_many_ends_is_recorded,
                one_of_many_accounts_is_done, one_decision_asked_by_many_is_one_grant;
        }
    };
    (durable $then:ident $with:tt) => {
        $crate::__cases! { @$then $with ledger
            durable:
                it_says_that_it_is_durable, every_row_survives, a_run_survives, fences_rise_over_a_restart,
                refusals_survive, generations_survive;
        }
    };
    (stepped $then:ident $with:tt) => {
        $crate::__cases! { @$then $with ledger
            step:
                a_lease_from_the_future_is_cut, a_small_step_cuts_nothing,
                ended_stays_ended_when_the_clock_goes_back, ranges_from_the_future_are_withdrawn,
                an_effective_from_in_the_future_is_set_back, a_set_back_stops_at_the_effective_from;
        }
    };
    (mutex $then:ident $with:tt) => {
        $crate::__cases! { @$then $with conformance
            mutex:
                a_free_key_is_locked, a_held_key_is_refused, the_same_nonce_gets_the_same_lease,
                a_lapsed_key_goes_to_another, a_lapsed_nonce_gets_a_new_lease, an_extended_lease_ends_later,
                a_lapsed_lease_is_lost, a_key_given_back_is_free, each_call_names_its_term, keys_are_independent,
                hostile_keys_are_independent, fences_rise_over_the_slots_of_a_plan, holders_exclude_each_other;
        }
    };
    (board $then:ident $with:tt) => {
        $crate::__cases! { @$then $with conformance
            board:
                postings_are_listed_by_key, a_posting_replaces_its_like, kinds_and_namespaces_are_apart,
                what_is_past_its_time_is_gone, one_of_many_takes_a_posting;
        }
    };
    (clock $then:ident $with:tt) => {
        $crate::__cases! { @$then $with conformance
            clock:
                wall_time_goes_on, monotonic_time_never_goes_back, a_wait_ends_at_its_monotonic_time,
                a_wait_ends_at_its_wall_time, a_wait_for_the_past_ends, a_notification_before_the_wait_is_kept,
                a_notification_is_not_hidden_by_the_time, a_notification_ends_another_threads_wait,
                no_notification_is_lost, signals_are_independent, entropy_does_not_repeat;
        }
    };
    (stepped_clock $then:ident $with:tt) => {
        $crate::__cases! { @$then $with conformance
            clock:
                a_wait_for_wall_time_ends_when_it_is_set_back, monotonic_time_does_not_step;
        }
    };
    (@tests ($open:expr) ledger $($module:ident: $($case:ident),+;)+) => {
        $($(
            #[test]
            fn $case() {
                $crate::conformance::ledger::$module::$case(&($open)());
            }
        )+)+
    };
    (@tests ($open:expr) conformance $($module:ident: $($case:ident),+;)+) => {
        $($(
            #[test]
            fn $case() {
                $crate::conformance::$module::$case(&($open)());
            }
        )+)+
    };
    (@table ($harness:ty) ledger $($module:ident: $($case:ident),+;)+) => {
        vec![$($((stringify!($case), ledger::$module::$case::<$harness> as fn(&$harness)),)+)+]
    };
    (@table ($harness:ty) conformance $($module:ident: $($case:ident),+;)+) => {
        vec![$($((stringify!($case), $module::$case::<$harness> as fn(&$harness)),)+)+]
    };
}

/// The cases of every [`Ledger`](timertask_core::seam::Ledger), one `#[test]` each. Takes what makes a fresh
/// [`LedgerHarness`]: the name of a function without arguments, or a closure.
#[macro_export]
macro_rules! ledger_conformance {
    ($open:expr) => {
        $crate::__cases!(ledger tests ($open));
    };
}

/// The cases of ledgers that survive their process, one `#[test]` each. Takes what makes a fresh [`Restart`].
#[macro_export]
macro_rules! durable_ledger_conformance {
    ($open:expr) => {
        $crate::__cases!(durable tests ($open));
    };
}

/// The cases of ledgers whose clock the harness can step, one `#[test]` each. Takes what makes a fresh [`Step`].
#[macro_export]
macro_rules! stepped_ledger_conformance {
    ($open:expr) => {
        $crate::__cases!(stepped tests ($open));
    };
}

/// The cases of every [`Mutex`](timertask_core::seam::Mutex), one `#[test]` each. Takes what makes a fresh
/// [`MutexHarness`].
#[macro_export]
macro_rules! mutex_conformance {
    ($open:expr) => {
        $crate::__cases!(mutex tests ($open));
    };
}

/// The cases of every [`Board`](timertask_core::seam::Board), one `#[test]` each. Takes what makes a fresh
/// [`BoardHarness`].
#[macro_export]
macro_rules! board_conformance {
    ($open:expr) => {
        $crate::__cases!(board tests ($open));
    };
}

/// The cases of every [`Clock`](timertask_core::clock::Clock), one `#[test]` each. Takes what makes a [`ClockHarness`].
#[macro_export]
macro_rules! clock_conformance {
    ($open:expr) => {
        $crate::__cases!(clock tests ($open));
    };
}

/// The cases of clocks that the harness can step, one `#[test]` each. Takes what makes a [`StepClock`].
#[macro_export]
macro_rules! stepped_clock_conformance {
    ($open:expr) => {
        $crate::__cases!(stepped_clock tests ($open));
    };
}

/// The cases of [`ledger_conformance!`](crate::ledger_conformance), by name.
#[must_use]
pub fn ledger_cases<H: LedgerHarness>() -> Vec<Case<H>> {
    __cases!(ledger table (H))
}

/// The cases of [`durable_ledger_conformance!`](crate::durable_ledger_conformance), by name.
#[must_use]
pub fn durable_ledger_cases<H: Restart>() -> Vec<Case<H>> {
    __cases!(durable table (H))
}

/// The cases of [`stepped_ledger_conformance!`](crate::stepped_ledger_conformance), by name.
#[must_use]
pub fn stepped_ledger_cases<H: Step>() -> Vec<Case<H>> {
    __cases!(stepped table (H))
}

/// The cases of [`mutex_conformance!`](crate::mutex_conformance), by name.
#[must_use]
pub fn mutex_cases<H: MutexHarness>() -> Vec<Case<H>> {
    __cases!(mutex table (H))
}

/// The cases of [`board_conformance!`](crate::board_conformance), by name.
#[must_use]
pub fn board_cases<H: BoardHarness>() -> Vec<Case<H>> {
    __cases!(board table (H))
}

/// The cases of [`clock_conformance!`](crate::clock_conformance), by name.
#[must_use]
pub fn clock_cases<H: ClockHarness>() -> Vec<Case<H>> {
    __cases!(clock table (H))
}

/// The cases of [`stepped_clock_conformance!`](crate::stepped_clock_conformance), by name.
#[must_use]
pub fn stepped_clock_cases<H: StepClock>() -> Vec<Case<H>> {
    __cases!(stepped_clock table (H))
}
