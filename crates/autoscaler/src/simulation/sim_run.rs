//! One run of the autoscaler against a trace.

use std::time::{Duration, Instant};

use nearpath_types::policy::ScaleSettings;

use super::function_model::TICKS_PER_SECOND;
use super::{FunctionModel, LoadTrace};
use crate::{Autoscaler, CounterRate, LoadSample};

/// Longest wait that is not late.
const MAX_WAIT_SECONDS: f64 = 1.0;

/// Course of a run, with one value per second.
#[derive(Debug, Default)]
pub(super) struct SimRun {
    pub(super) desired: Vec<u32>,
    pub(super) ready: Vec<u32>,
    /// Replicas times seconds, those that start included.
    pub(super) replica_seconds: f64,
    /// Requests that have arrived and that were served at the end of each tick.
    ticks: Vec<(f64, f64)>,
}

/// Waits for a replica in a run.
#[derive(Debug, Default)]
pub(super) struct WaitTimes {
    /// Longest wait, in seconds.
    pub(super) max_seconds: f64,
    /// Share of the requests that waited for more than a second, in percent.
    pub(super) late_percent: f64,
}

impl SimRun {
    /// Calculates the waits of requests that are served in the order of their arrival.
    pub(super) fn wait_times(&self) -> WaitTimes {
        let mut waits = WaitTimes::default();
        let (mut before, mut late, mut served_at) = (0.0, 0.0, 0);
        for (tick, &(arrived, _)) in self.ticks.iter().enumerate() {
            // Sums of many parts are a little off.
            while served_at < self.ticks.len() && self.ticks[served_at].1 < arrived - 1e-6 {
                served_at += 1;
            }
            if arrived > before {
                let ticks = served_at.saturating_sub(tick);
                let seconds = ticks as f64 / f64::from(TICKS_PER_SECOND);
                waits.max_seconds = waits.max_seconds.max(seconds);
                late += (arrived - before) * f64::from(u8::from(seconds > MAX_WAIT_SECONDS));
            }
            before = arrived;
        }
        waits.late_percent = 100.0 * late / before.max(1.0);
        waits
    }

    /// Changes from more replicas to fewer or the reverse, within so many seconds from `start`.
    pub(super) fn direction_changes(&self, start: usize, seconds: usize) -> usize {
        let end = (start + seconds).min(self.desired.len());
        let changes = self.desired[start..end]
            .windows(2)
            .filter(|pair| pair[0] != pair[1]);
        let directions: Vec<bool> = changes.map(|pair| pair[1] > pair[0]).collect();
        directions
            .windows(2)
            .filter(|pair| pair[0] != pair[1])
            .count()
    }

    fn record(&mut self, function: &FunctionModel) {
        self.replica_seconds += f64::from(function.replicas()) / f64::from(TICKS_PER_SECOND);
        let served = function.arrived - function.open;
        self.ticks.push((function.arrived, served));
    }
}

/// Runs a trace, with one sample per second and one more for the first request of a sleeping
/// function.
pub(super) fn simulate(
    settings: ScaleSettings,
    function: FunctionModel,
    trace: &LoadTrace,
) -> SimRun {
    simulate_sampled(settings, function, trace, |_| true)
}

/// Runs a trace, with samples in some seconds only.
pub(super) fn simulate_sampled(
    settings: ScaleSettings,
    mut function: FunctionModel,
    trace: &LoadTrace,
    mut has_sample: impl FnMut(usize) -> bool,
) -> SimRun {
    let start = Instant::now();
    let mut scaler = Autoscaler::new(settings, start, function.replicas());
    let (mut run, mut rate) = (SimRun::default(), CounterRate::default());
    for (second, requests) in trace.rates.iter().enumerate() {
        let tick_requests = requests / f64::from(TICKS_PER_SECOND);
        for _ in 0..TICKS_PER_SECOND {
            function.accept(tick_requests);
            if function.replicas() == 0 && tick_requests > 0.0 {
                scale(&mut scaler, &mut function, &mut rate, start);
            }
            function.serve();
            run.record(&function);
        }
        if has_sample(second) {
            scale(&mut scaler, &mut function, &mut rate, start);
        }
        run.desired.push(function.replicas());
        run.ready.push(function.ready);
    }
    run
}

fn scale(
    scaler: &mut Autoscaler,
    function: &mut FunctionModel,
    rate: &mut CounterRate,
    start: Instant,
) {
    let now = start + function.now;
    let sample = LoadSample {
        arrival_rate_milli: rate.read(now, function.arrived as u64),
        in_flight: Some(function.in_flight()),
        cpu_milli: Some(function.cpu_milli()),
        queued_messages: Some(function.in_flight()),
        ready: function.ready,
        starting: function.starting.len() as u32,
    };
    scaler.observe(now, &sample);
    function.scale_to(scaler.decide(now).replicas);
}

/// Delays of a forked, a packaged and a large program.
pub(super) const START_DELAYS: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_secs(1),
    Duration::from_secs(10),
];
