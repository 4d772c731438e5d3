//! `ring`: messages around a circle of processes in shared memory, by each way to be woken, beside bare descriptors.
//!
//! One after another round the circle: 2 parties are a ping-pong, 3 are gateway, function, function. CPU time is that of all
//! parties together, by a whole round.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::{Outcome, seconds};
use crate::compare::{Better, Comparison, Goal, ROUNDS, Ratio};
use crate::shm_ring::{self, Plan, Variant};

const VARIANTS: [(&str, Variant); 6] = [
    ("bare", Variant::Bare),
    ("futex", Variant::Futex),
    ("eventfd", Variant::Eventfd),
    ("strict", Variant::Strict),
    ("sockmap", Variant::Sockmap),
    ("poll", Variant::Poll),
];
const CIRCLES: [(&str, u16); 2] = [("ping-pong", 2), ("chain", 3)];
const PLACES: [(&str, usize); 2] = [("one core", 1), ("two cores", 2)];

/// Options of `ring`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// How long a measurement is, in seconds
    #[arg(long, default_value = "0.4", value_parser = seconds)]
    duration: Duration,

    /// How long it runs before counting, in seconds
    #[arg(long, default_value = "0.1", value_parser = seconds)]
    warm_up: Duration,

    /// Requests underway at a time, at most 64, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = clap::value_parser!(u64).range(1..=64))]
    in_flight: Vec<u64>,
}

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let names = VARIANTS.map(|(name, _)| name);
    let mut comparison = Comparison::new("ring", args.rounds);
    for (circle, parties) in CIRCLES {
        for (place, cores) in PLACES
            .into_iter()
            .filter(|(_, cores)| *cores <= crate::peers::cores())
        {
            for &in_flight in &args.in_flight {
                let plan = Plan {
                    parties,
                    cores,
                    in_flight,
                    warm_up: args.warm_up,
                    duration: args.duration,
                };
                let case = format!("{circle}, {place}, {in_flight}");
                let one = async |variant: usize| shm_ring::measure(plan, VARIANTS[variant].1);
                comparison.case::<io::Error>(&case, &names, one).await?;
                eprintln!("measured: {case}");
            }
        }
    }
    goals(&mut comparison);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Only the chain on one core, one at a time, has goals.
fn goals(comparison: &mut Comparison) {
    let case = "chain, one core, 1";
    let p50 = || Goal {
        value: |row| row.p50_us,
        better: Better::Lower,
        goal: 1.6,
    };
    comparison.ratio(
        &format!("p50, {case}, futex/bare"),
        case,
        "futex",
        "bare",
        p50(),
    );
    if let Some(value) = comparison.value(case, "futex", |row| row.p50_us) {
        comparison.figure(Ratio {
            name: format!("p50 µs, {case}, futex"),
            value,
            better: Better::Lower,
            goal: 15.0,
        });
    }
}
