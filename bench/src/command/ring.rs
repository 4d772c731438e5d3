//! `ring`: messages around a ring of processes in shared memory, by wakeup method, and bare
//! descriptors.
//!
//! Messages pass the ring in sequence: 2 endpoints are a ping-pong, 3 are gateway, function,
//! function. CPU time is that of all endpoints, per round trip.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::{BenchOutcome, parse_seconds};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, ROUNDS, RatioGoal};
use crate::shm_ring::{self, RingPlan, RingVariant};

const VARIANTS: [(&str, RingVariant); 6] = [
    ("bare", RingVariant::Bare),
    ("futex", RingVariant::Futex),
    ("eventfd", RingVariant::Eventfd),
    ("strict", RingVariant::Strict),
    ("sockmap", RingVariant::Sockmap),
    ("poll", RingVariant::Poll),
];
const RING_SIZES: [(&str, u16); 2] = [("ping-pong", 2), ("chain", 3)];
const CORE_PLACES: [(&str, usize); 2] = [("one core", 1), ("two cores", 2)];

/// Options of `ring`.
#[derive(clap::Args)]
pub(crate) struct RingArgs {
    /// Set the rounds of each variant in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Set the length of a measurement in seconds
    #[arg(long, default_value = "0.4", value_parser = parse_seconds)]
    duration: Duration,

    /// Set the warm-up before a measurement, in seconds
    #[arg(long, default_value = "0.1", value_parser = parse_seconds)]
    warm_up: Duration,

    /// Set the numbers of requests in flight, at most 64, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = clap::value_parser!(u64).range(1..=64))]
    in_flight: Vec<u64>,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: RingArgs) -> BenchOutcome {
    let names = VARIANTS.map(|(name, _)| name);
    let mut comparison = BenchComparison::new("ring", args.rounds);
    for (ring, endpoints) in RING_SIZES {
        for (place, cores) in CORE_PLACES
            .into_iter()
            // Pinning to a processor that is not there fails.
            .filter(|(_, cores)| *cores <= crate::peers::count_cores())
        {
            for &in_flight in &args.in_flight {
                let plan = RingPlan {
                    endpoints,
                    cores,
                    in_flight,
                    warm_up: args.warm_up,
                    duration: args.duration,
                };
                let case = format!("{ring}, {place}, {in_flight}");
                let one = async |variant: usize| shm_ring::measure_ring(plan, VARIANTS[variant].1);
                comparison
                    .measure_case::<io::Error>(&case, &names, one)
                    .await?;
                eprintln!("measured: {case}");
            }
        }
    }
    add_goals(&mut comparison);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Adds goals for the chain on one core with one request in flight.
fn add_goals(comparison: &mut BenchComparison) {
    // On one core every hand-over is a context switch: the wake-up's cost is all that differs.
    let case = "chain, one core, 1";
    let p50 = || RatioGoal {
        value: |row| row.p50_us,
        better: BetterDirection::Lower,
        goal: 1.6,
    };
    comparison.add_ratio(
        &format!("p50, {case}, futex/bare"),
        case,
        "futex",
        "bare",
        p50(),
    );
    if let Some(value) = comparison.row_value(case, "futex", |row| row.p50_us) {
        comparison.add_figure(GoalRatio {
            name: format!("p50 µs, {case}, futex"),
            value,
            better: BetterDirection::Lower,
            goal: 15.0,
        });
    }
}
