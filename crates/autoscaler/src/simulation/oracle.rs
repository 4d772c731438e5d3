//! The fewest replicas for a trace, by one who knows all of it.

use std::time::Duration;

use super::LoadTrace;

/// Replicas times seconds of the oracle.
///
/// It has the replicas that serve the requests of each second within that second, at the full rate
/// of a replica, but at least `min`. It starts them one start delay ahead, and pays for them from
/// then on. Replicas that would be needed again within a start delay have to stay.
pub(super) fn replica_seconds(
    trace: &LoadTrace,
    replica_rate: f64,
    min: u32,
    start_delay: Duration,
) -> f64 {
    let needed: Vec<u32> = trace
        .rates
        .iter()
        .map(|rate| ((rate / replica_rate).ceil() as u32).max(min))
        .collect();
    let ahead = start_delay.as_secs() as usize;
    // The part of a second that is left: only replicas that are not there yet are paid for it.
    let rest = start_delay.as_secs_f64() - ahead as f64;
    (0..needed.len())
        .map(|second| {
            let upcoming = &needed[second..(second + ahead + 1).min(needed.len())];
            let paid = f64::from(upcoming.iter().copied().max().unwrap_or(0));
            let next = needed.get(second + ahead + 1).copied().unwrap_or(0);
            paid + rest * (f64::from(next) - paid).max(0.0)
        })
        .sum()
}

#[test]
fn the_oracle_pays_for_a_start_ahead_of_a_step() {
    let trace = LoadTrace {
        name: "two steps",
        rates: vec![0.0, 0.0, 0.0, 100.0, 50.0, 0.0],
    };
    let seconds = |millis| replica_seconds(&trace, 50.0, 0, Duration::from_millis(millis));
    assert_eq!(seconds(0), 3.0);
    assert_eq!(seconds(1_000), 5.0);
    assert_eq!(seconds(500), 4.0);
    assert_eq!(replica_seconds(&trace, 50.0, 1, Duration::ZERO), 7.0);
}
