//! Reactions to single changes of the load.

use std::time::Duration;

use nearpath_types::policy::{ScaleMetric, ScaleSettings};

use super::cost::{function_for, settings};
use super::load_trace::{bursts, steady, step};
use super::{FunctionModel, LoadTrace, simulate};

/// Second of the step.
const STEP_AT: usize = 120;
/// Replicas that serve 1000 requests per second without any to spare.
const STEP_REPLICAS: u32 = 20;

/// Returns the seconds after the step until enough replicas are ready.
fn seconds_to_serve_step(metric: ScaleMetric, start_delay: Duration) -> usize {
    let (trace, settings) = (step(STEP_AT, 300), settings(metric));
    let run = simulate(
        settings,
        function_for(&trace, &settings, start_delay),
        &trace,
    );
    let after = &run.ready[STEP_AT..];
    after
        .iter()
        .position(|&ready| ready >= STEP_REPLICAS)
        .unwrap()
        + 1
}

#[test]
fn a_step_has_enough_replicas_within_ten_seconds() {
    for metric in [ScaleMetric::Rps, ScaleMetric::Capacity, ScaleMetric::Queue] {
        for (start_millis, limit) in [(20, 10), (1_000, 10), (10_000, 20)] {
            let seconds = seconds_to_serve_step(metric, Duration::from_millis(start_millis));
            println!("{metric}, start of {start_millis} ms: enough after {seconds} s");
            assert!(seconds <= limit, "{metric}, {start_millis} ms: {seconds} s");
        }
    }
}

/// CPU time shows an overload only up to what the replicas can use, here twice the target. Each start
/// therefore at most doubles the replicas, and a step of 100 times the load takes several.
#[test]
fn a_step_by_cpu_time_takes_several_starts() {
    let seconds = seconds_to_serve_step(ScaleMetric::Cpu, Duration::from_secs(1));
    println!("cpu, start of 1000 ms: enough after {seconds} s");
    assert!(seconds <= 15, "{seconds} s");
}

/// After a start of ten seconds, nearly ten thousand requests wait. The target alone would want two
/// thousand replicas for them.
#[test]
fn slow_starts_add_replicas_for_arrivals_alone() {
    for metric in [ScaleMetric::Capacity, ScaleMetric::Queue] {
        let settings = ScaleSettings {
            max_replicas: 1_000,
            ..settings(metric)
        };
        let trace = step(STEP_AT, STEP_AT + 16);
        let start_delay = Duration::from_secs(10);
        let run = simulate(
            settings,
            function_for(&trace, &settings, start_delay),
            &trace,
        );
        let most = run.desired.iter().max().unwrap();
        assert!((STEP_REPLICAS..=24).contains(most), "{metric}: {most}");
    }
}

/// Replicas that never become ready are the same: they add no others without end.
#[test]
fn starts_that_never_succeed_stay_few() {
    let trace = step(STEP_AT, 1_800);
    for metric in [ScaleMetric::Rps, ScaleMetric::Capacity, ScaleMetric::Queue] {
        let settings = ScaleSettings {
            max_replicas: 1_000,
            ..settings(metric)
        };
        let start_delay = Duration::from_secs(86_400);
        let run = simulate(
            settings,
            function_for(&trace, &settings, start_delay),
            &trace,
        );
        let most = run.desired.iter().max().unwrap();
        assert!(*most <= 24, "{metric}: {most}");
    }
}

/// A slow dependency causes a backlog without more arrivals: replicas follow by half of the
/// ready ones at a time.
#[test]
fn longer_requests_start_more_replicas() {
    let settings = settings(ScaleMetric::Capacity);
    let mut function = FunctionModel::new(50.0, Duration::from_secs(1), 5);
    let calm = simulate(settings, function.clone(), &steady(200.0, 120));
    function.replica_rate = 10.0;
    let slow = simulate(settings, function, &steady(200.0, 120));
    assert_eq!(calm.desired.last(), Some(&5));
    assert!(*slow.ready.last().unwrap() >= 20, "{:?}", slow.ready);
}

#[test]
fn a_burst_from_zero_is_one_start_and_ends_at_zero() {
    for metric in [ScaleMetric::Rps, ScaleMetric::Capacity] {
        for start_millis in [20, 1_000, 10_000] {
            check_burst(metric, Duration::from_millis(start_millis));
        }
    }
}

fn check_burst(metric: ScaleMetric, start_delay: Duration) {
    let settings = ScaleSettings {
        scale_to_zero: true,
        ..settings(metric)
    };
    let trace: LoadTrace = bursts(1_800, 1);
    let run = simulate(
        settings,
        function_for(&trace, &settings, start_delay),
        &trace,
    );
    assert!(run.desired[..10].iter().all(|&replicas| replicas == 0));
    let burst_end = 11;
    assert!(run.desired[burst_end - 1] >= 16, "{:?}", run.desired);
    let served = start_delay.as_secs() as usize + 5;
    assert!(run.wait_times().max_seconds <= served as f64);
    let asleep_at = run.desired[burst_end..]
        .iter()
        .position(|&replicas| replicas == 0);
    let asleep_after = asleep_at.unwrap() as u64;
    let zero_duration = settings.zero_duration.as_secs();
    // The last request may have waited for a start, and samples come once a second.
    let latest = zero_duration + served as u64 + 2;
    assert!(
        (zero_duration..=latest).contains(&asleep_after),
        "{asleep_after}"
    );
}
