//! Changes of direction on a load that only has noise.

use std::time::Duration;

use nearpath_types::policy::{ScaleMetric, ScaleSettings};

use super::cost::{function_for, settings};
use super::load_trace::{noise, poisson, ramps};
use super::random::SeededRandom;
use super::{LoadTrace, SimRun, simulate, simulate_sampled};

/// Seconds until a run has filled its windows.
const WARM_UP_SECONDS: usize = 300;
/// Length of the windows in which changes are counted, in seconds.
const COUNT_SECONDS: usize = 600;
/// Most changes from more to fewer replicas or the reverse within ten minutes.
const MAX_DIRECTION_CHANGES: usize = 2;

/// An hour of noise around multiples of what replicas carry, where the smallest change of the load
/// wants another replica, and between them.
fn steady_traces() -> Vec<LoadTrace> {
    let rates = [45.0, 90.0, 440.0, 450.0, 470.0, 900.0];
    let noises = rates.into_iter().flat_map(|rate| {
        let seed = rate as u64;
        [
            poisson(rate, 3_600, seed),
            noise(rate, 10.0, 3_600, seed),
            noise(rate, 20.0, 3_600, seed),
        ]
    });
    noises.collect()
}

fn run(trace: &LoadTrace, settings: ScaleSettings) -> SimRun {
    let start_delay = Duration::from_secs(1);
    simulate(settings, function_for(trace, &settings, start_delay), trace)
}

fn run_sampled(trace: &LoadTrace, has_sample: impl FnMut(usize) -> bool) -> SimRun {
    let (settings, start_delay) = (settings(ScaleMetric::Rps), Duration::from_secs(1));
    let function = function_for(trace, &settings, start_delay);
    simulate_sampled(settings, function, trace, has_sample)
}

fn largest_count(run: &SimRun) -> usize {
    let starts = (WARM_UP_SECONDS..run.desired.len() - COUNT_SECONDS).step_by(30);
    starts
        .map(|start| run.direction_changes(start, COUNT_SECONDS))
        .max()
        .unwrap_or(0)
}

#[test]
fn noise_changes_the_direction_rarely() {
    for metric in [
        ScaleMetric::Rps,
        ScaleMetric::Capacity,
        ScaleMetric::Cpu,
        ScaleMetric::Queue,
    ] {
        for trace in steady_traces() {
            let count = largest_count(&run(&trace, settings(metric)));
            println!("{} of {}, {metric}: {count}", trace.name, trace.rates[0]);
            assert!(
                count <= MAX_DIRECTION_CHANGES,
                "{} {metric}: {count}",
                trace.name
            );
        }
    }
}

/// The control: the same check fails where the scale-down window is missing.
#[test]
fn without_a_scale_down_window_the_same_noise_flaps() {
    let broken = ScaleSettings {
        down_window: Duration::ZERO,
        ..settings(ScaleMetric::Rps)
    };
    let counts: Vec<usize> = steady_traces()
        .iter()
        .map(|trace| largest_count(&run(trace, broken)))
        .collect();
    println!("direction changes in ten minutes: {counts:?}");
    assert!(
        counts
            .iter()
            .any(|&count| count > 2 * MAX_DIRECTION_CHANGES),
        "{counts:?}"
    );
}

#[test]
fn rare_and_lost_samples_change_the_direction_rarely() {
    let mut random = SeededRandom::new(3);
    for trace in steady_traces() {
        let rare = run_sampled(&trace, |second| second % 5 == 0);
        let lost = run_sampled(&trace, |_| random.next_share() > 0.3);
        for count in [largest_count(&rare), largest_count(&lost)] {
            assert!(count <= MAX_DIRECTION_CHANGES, "{}: {count}", trace.name);
        }
    }
}

/// A node that is away for 20 s of every 70 s: replicas follow the load up, and none stops.
#[test]
fn gaps_in_every_window_stop_no_replica() {
    let run = run_sampled(&ramps(), |second| second % 70 >= 20);
    assert_eq!(run.direction_changes(0, run.desired.len()), 0);
    assert!(run.desired.last() >= Some(&20), "{:?}", run.desired.last());
}
