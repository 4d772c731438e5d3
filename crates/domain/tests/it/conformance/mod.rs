//! Duties of every mode of delivery, by one list of cases: `ring::…`, `sockmap::…`, `poll::…`.
//!
//! Endpoints are threads or processes over real sockets and memory; with `sockmap` the kernel
//! carries their descriptors.

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
mod trust;

/// Makes a test of each case in each mode; a mode that this machine cannot do is skipped, and says
/// why.
macro_rules! conformance {
    ($($mode:ident = $name:ident),*: $cases:tt) => {
        $(mod $name {
            conformance! { @ $mode $cases }
        })*
    };
    (@ $mode:ident { $($file:ident: $($case:ident),*;)* }) => {
        use crate::conformance::node::{DeliveryMode, unmet_requirement};
        $($(
            #[test]
            fn $case() {
                match unmet_requirement(DeliveryMode::$mode) {
                    Some(why) => nearpath_testkit::skip!("{why}"),
                    None => crate::conformance::$file::$case(DeliveryMode::$mode),
                }
            }
        )*)*
    };
}

conformance! { Ring = ring, Sockmap = sockmap, Poll = poll: {
    talk:
        a_chain_of_two_functions_answers, an_undeclared_edge_cannot_be_called, ten_megabytes_both_ways,
        thousands_of_calls_are_spread_over_two_instances, an_endpoint_that_waits_still_receives_calls, events_have_no_response,
        a_deadline_ends_the_wait_and_cancels_at_the_peer, calls_beyond_the_credit_are_not_sent,
        a_withdrawn_instance_finishes_its_open_calls, a_response_with_an_invalid_head_becomes_an_error, bodies_above_the_limit_are_reported;
    trust:
        a_caller_cannot_name_itself, only_a_watchdog_answers_for_the_platform;
    deaths:
        callers_of_a_killed_instance_fail_at_once, gateway_calls_fail_and_another_instance_takes_over,
        slots_of_killed_callers_are_reclaimed, an_endpoint_that_breaks_the_protocol_is_disconnected, unknown_messages_and_members_are_ignored,
        a_call_against_the_edge_breaks_the_channel, a_broken_channel_is_replaced;
    drafts:
        a_body_written_in_place_is_not_copied, control_a_body_in_private_memory_is_copied,
        a_body_without_room_for_its_head_is_sent_as_a_copy, a_received_body_is_forwarded_without_a_copy, a_body_with_other_readers_is_copied,
        an_event_loop_sends_drafts, drafts_beyond_the_slots_use_private_memory;
    streams:
        an_echo_runs_both_ways_at_once, blocking_endpoints_stream_bodies, a_slow_reader_stops_only_its_own_writer,
        unread_parts_are_bounded_by_the_window, a_peer_notices_when_the_other_stops_reading_or_writing, streaming_and_buffering_endpoints_interoperate,
        a_response_of_a_killed_function_is_aborted, an_unread_body_is_written_to_its_end;
    ledger:
        counters_are_exact_and_outlive_channels_and_domain,
        held_bytes_are_reported_per_function, the_membership_lists_endpoints_and_channels;
    fans:
        parallel_calls_return_in_order_when_one_fails,
        the_first_of_several_responses_is_returned_early,
        a_topic_reaches_each_subscriber_once, the_gateway_takes_events_for_other_nodes, an_alias_is_a_name_of_one_caller;
    pages:
        huge_pages_are_used_when_available;
    limits:
        backpressure_loses_no_event, credit_for_events_is_returned, slots_are_reclaimed_after_a_death_between_push_and_send;
}}

/// The same in a strict domain.
macro_rules! strictly {
    (@ $mode:ident { $($file:ident: $($case:ident),*;)* }) => {
        use crate::conformance::node::{DeliveryMode, strictly, unmet_requirement};
        $($(
            #[test]
            fn $case() {
                match unmet_requirement(DeliveryMode::$mode) {
                    Some(why) => nearpath_testkit::skip!("{why}"),
                    None => strictly(|| crate::conformance::$file::$case(DeliveryMode::$mode)),
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
            a_chain_of_two_functions_answers, an_undeclared_edge_cannot_be_called, ten_megabytes_both_ways,
            thousands_of_calls_are_spread_over_two_instances, an_endpoint_that_waits_still_receives_calls, events_have_no_response,
            a_deadline_ends_the_wait_and_cancels_at_the_peer, calls_beyond_the_credit_are_not_sent,
            a_withdrawn_instance_finishes_its_open_calls, a_response_with_an_invalid_head_becomes_an_error, bodies_above_the_limit_are_reported;
        deaths:
            callers_of_a_killed_instance_fail_at_once, gateway_calls_fail_and_another_instance_takes_over;
        streams:
            an_echo_runs_both_ways_at_once, blocking_endpoints_stream_bodies, a_slow_reader_stops_only_its_own_writer,
            unread_parts_are_bounded_by_the_window, a_peer_notices_when_the_other_stops_reading_or_writing,
            streaming_and_buffering_endpoints_interoperate, a_response_of_a_killed_function_is_aborted,
            an_unread_body_is_written_to_its_end;
        drafts:
            a_body_written_in_place_is_not_copied, control_a_body_in_private_memory_is_copied,
            a_body_without_room_for_its_head_is_sent_as_a_copy, a_received_body_is_forwarded_without_a_copy, a_body_with_other_readers_is_copied,
            an_event_loop_sends_drafts, drafts_beyond_the_slots_use_private_memory;
        ledger:
            counters_are_exact_and_outlive_channels_and_domain, the_membership_lists_endpoints_and_channels;
        fans:
            the_first_of_several_responses_is_returned_early,
            a_topic_reaches_each_subscriber_once, the_gateway_takes_events_for_other_nodes, an_alias_is_a_name_of_one_caller;
        limits:
            backpressure_loses_no_event, credit_for_events_is_returned;
        strict:
            an_endpoint_without_strict_isolation_is_refused, only_a_sealed_pool_is_accepted, no_channel_is_opened_before_the_pool_arrives,
            events_are_read_before_a_channel_ends;
    }}
}

mod idle_endpoints {
    mod ring {
        conformance! { @ Ring { limits: an_idle_endpoint_never_runs; } }
    }
    mod sockmap {
        conformance! { @ Sockmap { limits: an_idle_endpoint_never_runs; } }
    }
    mod poll {
        conformance! { @ Poll { limits: a_polling_endpoint_runs_all_the_time; } }
    }
}

mod carried_by_sockmap {
    conformance! { @ Sockmap {
        carried: a_forged_channel_number_disconnects_its_sender, a_library_without_sockmap_is_refused,
            a_channel_that_cannot_be_made_is_reported_and_retried;
    } }
}
