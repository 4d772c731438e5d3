//! Loss, reordering and duplication of single packets.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use nearpath_testkit::lab::LinkConditions;
use nearpath_testkit::need_root;

use crate::faults::two_machines::{TwoMachines, calm_link, run_on_one_thread};

const MEGABYTE: usize = 1 << 20;
const MS: Duration = Duration::from_millis(1);

/// Small calls, many at once, and beside them large ones, on one connection.
async fn check_small_and_large_calls(place: &TwoMachines, small: usize, large: usize) {
    let line = place.caller.dial().await;
    let lengths = (0..small)
        .map(|k| k % 3000)
        .chain(std::iter::repeat_n(MEGABYTE, large));
    let calls = stream::iter(lengths).map(|length| place.caller.call(&line, length));
    let outcomes: Vec<_> = calls.buffer_unordered(32).collect().await;
    for outcome in outcomes {
        let number = outcome.unwrap();
        assert_eq!(place.handler.run_count(number), 1, "call {number}");
    }
    assert_eq!(place.handler.call_count(), small + large);
}

/// Connections for one call each, most of them with it in the first flight.
async fn call_on_new_connections(place: &TwoMachines, count: usize) -> usize {
    let mut early = 0;
    for _ in 0..count {
        let line = place.caller.dial().await;
        early += usize::from(line.is_early());
        place.caller.call(&line, 100).await.unwrap();
        line.close();
    }
    assert_eq!(place.handler.call_count(), count);
    assert!(place.handler.all_ran_once());
    early
}

#[test]
fn one_packet_in_ten_is_lost() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(
            &LinkConditions {
                loss: 0.1,
                ..calm_link()
            },
            0,
        )
        .await;
        check_small_and_large_calls(&place, 300, 3).await;
        assert!(
            place
                .link_counts(|counts| counts.lost)
                .iter()
                .all(|lost| *lost > 50),
            "packets were lost both ways"
        );
    });
}

#[test]
fn one_packet_in_five_is_overtaken() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(
            &LinkConditions {
                reorder: 0.2,
                late: 3 * MS,
                ..calm_link()
            },
            0,
        )
        .await;
        check_small_and_large_calls(&place, 300, 3).await;
        assert!(
            place
                .link_counts(|counts| counts.late)
                .iter()
                .all(|late| *late > 50)
        );
    });
}

#[test]
fn one_packet_in_three_comes_twice() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(
            &LinkConditions {
                duplicate: 0.33,
                ..calm_link()
            },
            0,
        )
        .await;
        check_small_and_large_calls(&place, 300, 3).await;
        assert!(
            place
                .link_counts(|counts| counts.duplicated)
                .iter()
                .all(|twice| *twice > 50)
        );
    });
}

#[test]
fn first_flights_that_are_lost_doubled_and_overtaken_run_once() {
    need_root!();
    run_on_one_thread(async {
        let bad_link = LinkConditions {
            loss: 0.1,
            duplicate: 0.3,
            reorder: 0.1,
            late: 5 * MS,
            ..calm_link()
        };
        let place = TwoMachines::new(&bad_link, 4).await;
        let early = call_on_new_connections(&place, 40).await;
        assert!(early > 5, "calls went in the first flight: {early}");
        assert!(
            place
                .link_counts(|counts| counts.duplicated)
                .iter()
                .all(|twice| *twice > 20)
        );
        assert!(
            place
                .link_counts(|counts| counts.lost)
                .iter()
                .all(|lost| *lost > 5)
        );
    });
}

#[test]
fn a_path_that_takes_1280_octets() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(
            &LinkConditions {
                mtu: 1280,
                ..calm_link()
            },
            0,
        )
        .await;
        let line = place.caller.dial().await;
        place.caller.call(&line, MEGABYTE).await.unwrap();
        let mtu = line.connection().stats().path.current_mtu;
        assert!(mtu <= 1252, "{mtu} and 28 octets of headers do not fit");
    });
}

#[test]
fn longer_packets_vanish_from_the_beginning() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(
            &LinkConditions {
                largest_packet: Some(1400),
                ..calm_link()
            },
            0,
        )
        .await;
        check_small_and_large_calls(&place, 50, 2).await;
        assert!(
            place
                .link_counts(|counts| counts.swallowed)
                .iter()
                .all(|swallowed| *swallowed > 0),
            "probes were sent"
        );
    });
}

#[test]
fn longer_packets_vanish_from_one_moment_on() {
    need_root!();
    run_on_one_thread(async {
        let place = TwoMachines::new(&calm_link(), 0).await;
        let line = place.caller.dial().await;
        while line.connection().stats().path.current_mtu == 1200 {
            place.caller.call(&line, 100).await.unwrap();
        }
        place.caller.call(&line, MEGABYTE).await.unwrap(); // the worker's side has found its length, too
        place
            .link
            .set_conditions(&LinkConditions {
                largest_packet: Some(1300),
                ..calm_link()
            })
            .unwrap();
        let number = place.caller.call(&line, MEGABYTE).await.unwrap();
        assert_eq!(place.handler.run_count(number), 1);
        assert!(line.connection().stats().path.black_holes_detected > 0);
        assert!(
            place
                .link_counts(|counts| counts.swallowed)
                .iter()
                .all(|swallowed| *swallowed > 0)
        );
    });
}
