//! What every mode of delivery must do, by one list of cases: `ring::…`, `sockmap::…`, `poll::…`.
//!
//! Parties are threads or processes over real sockets and memory; with `sockmap` the kernel carries their descriptors.
#![allow(clippy::unwrap_used)]

mod carried;
mod deaths;
mod drafts;
mod fans;
mod ledger;
mod limits;
mod node;
mod pages;
mod stranger;
mod streams;
mod strict;
mod talk;

/// Makes a test of each case in each mode; a mode that this machine cannot do is skipped, and says why.
macro_rules! conformance {
    ($($mode:ident = $name:ident),*: $cases:tt) => {
        $(mod $name {
            conformance! { @ $mode $cases }
        })*
    };
    (@ $mode:ident { $($file:ident: $($case:ident),*;)* }) => {
        use crate::node::{Mode, trouble};
        $($(
            #[test]
            fn $case() {
                match trouble(Mode::$mode) {
                    Some(why) => nearpath_testkit::skip!("{why}"),
                    None => crate::$file::$case(Mode::$mode),
                }
            }
        )*)*
    };
}

conformance! { Ring = ring, Sockmap = sockmap, Poll = poll: {
    talk:
        a_chain_of_two, what_is_not_declared_does_not_exist, ten_megabytes_both_ways,
        thousands_at_once_over_two_instances, who_waits_receives_for_others, events_go_one_way,
        a_deadline_ends_the_wait_and_tells_the_peer, more_calls_than_credits_are_not_sent,
        a_withdrawn_instance_finishes_what_it_has, an_answer_that_cannot_be_written_is_an_error, too_large_is_said;
    deaths:
        callers_of_the_dead_hear_of_it_at_once, a_gateways_calls_end_too_and_the_other_instance_goes_on,
        slots_come_back_from_callers_that_are_killed, nonsense_is_disconnected, what_is_not_known_is_passed_over,
        a_call_against_the_edge_breaks_the_channel, a_broken_channel_is_replaced;
    drafts:
        what_is_written_in_place_is_not_copied, control_what_is_not_written_in_place_is_copied,
        what_has_no_room_in_place_goes_all_the_same, what_came_is_passed_on, what_somebody_keeps_is_copied,
        drafts_of_an_event_loop, more_drafts_than_slots;
    streams:
        an_echo_runs_both_ways_at_once, blocking_parties_stream_too, a_slow_reader_stops_the_writer_and_nobody_else,
        what_is_unread_is_a_window, who_stops_reading_or_writing_is_heard, whole_and_streaming_parties_understand_each_other,
        an_answer_whose_function_is_killed_is_broken_off, a_body_that_nobody_reads_is_written_to_its_end;
    ledger:
        counters_are_exact_and_outlive_their_channels_and_their_domain,
        what_a_function_holds_is_counted_against_its_bound, the_roll_says_who_reaches_whom;
    fans:
        a_fan_comes_back_in_order_though_one_part_fails,
        the_first_answer_of_a_fan_is_had_while_others_are_waited_for,
        a_topic_reaches_each_subscriber_once_and_nobody_else, an_alias_is_a_name_of_one_caller;
    pages:
        huge_pages_are_taken_where_they_are_and_done_without_where_not;
    limits:
        backpressure_never_loses, a_death_between_push_and_send_gives_slots_back;
}}

/// The same in a strict domain.
macro_rules! strictly {
    (@ $mode:ident { $($file:ident: $($case:ident),*;)* }) => {
        use crate::node::{Mode, strictly, trouble};
        $($(
            #[test]
            fn $case() {
                match trouble(Mode::$mode) {
                    Some(why) => nearpath_testkit::skip!("{why}"),
                    None => strictly(|| crate::$file::$case(Mode::$mode)),
                }
            }
        )*)*
    };
    ($($mode:ident = $name:ident),*: $cases:tt) => {
        $(mod $name {
            strictly! { @ $mode $cases }
        })*
    };
}

mod strict_domains {
    strictly! { Ring = ring, Sockmap = sockmap, Poll = poll: {
        talk:
            a_chain_of_two, what_is_not_declared_does_not_exist, ten_megabytes_both_ways,
            thousands_at_once_over_two_instances, who_waits_receives_for_others, events_go_one_way,
            a_deadline_ends_the_wait_and_tells_the_peer, more_calls_than_credits_are_not_sent,
            a_withdrawn_instance_finishes_what_it_has, an_answer_that_cannot_be_written_is_an_error, too_large_is_said;
        deaths:
            callers_of_the_dead_hear_of_it_at_once, a_gateways_calls_end_too_and_the_other_instance_goes_on;
        streams:
            an_echo_runs_both_ways_at_once, blocking_parties_stream_too, a_slow_reader_stops_the_writer_and_nobody_else,
            what_is_unread_is_a_window, who_stops_reading_or_writing_is_heard,
            whole_and_streaming_parties_understand_each_other, an_answer_whose_function_is_killed_is_broken_off,
            a_body_that_nobody_reads_is_written_to_its_end;
        drafts:
            what_is_written_in_place_is_not_copied, control_what_is_not_written_in_place_is_copied,
            what_has_no_room_in_place_goes_all_the_same, what_came_is_passed_on, what_somebody_keeps_is_copied,
            drafts_of_an_event_loop, more_drafts_than_slots;
        ledger:
            counters_are_exact_and_outlive_their_channels_and_their_domain, the_roll_says_who_reaches_whom;
        fans:
            the_first_answer_of_a_fan_is_had_while_others_are_waited_for,
            a_topic_reaches_each_subscriber_once_and_nobody_else, an_alias_is_a_name_of_one_caller;
        limits:
            backpressure_never_loses;
        strict:
            who_cannot_is_refused, only_a_sealed_pool_is_taken, nobody_is_introduced_without_a_pool,
            events_are_read_before_a_channel_ends;
    }}
}

mod who_sleeps {
    mod ring {
        conformance! { @ Ring { limits: idle_costs_nothing; } }
    }
    mod sockmap {
        conformance! { @ Sockmap { limits: idle_costs_nothing; } }
    }
    mod poll {
        conformance! { @ Poll { limits: idle_costs_all; } }
    }
}

mod carried_by_the_kernel {
    conformance! { @ Sockmap {
        carried: a_forged_channel_cuts_its_sender_off, a_library_that_cannot_is_refused,
            a_channel_that_cannot_be_made_is_told_and_tried_again;
    } }
}
