//! `start`: the time of an instance's start, and the platform's share of it.
//!
//! In the table a "request" is one start: p50 and p99 are the platform's time of one instance
//! (every phase except the tenant's). rps is ready instances per second since the request. cpu is
//! that of `nearpath up` and its descendants.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::BenchOutcome;
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, ROUNDS, RoundSample, median_of};
use crate::cpu::CpuSnapshot;
use crate::peers::nearpath::{self, NearpathServer};
use crate::tally::RequestTally;

const VARIANTS: [&str; 2] = ["cat", "python"];
/// The tenant's phase.
const TENANT_PHASE: &str = "handler";
/// Goal: the platform's share of a start, in milliseconds.
const GOAL_MS: f64 = 20.0;

/// Options of `start`.
#[derive(clap::Args)]
pub(crate) struct StartArgs {
    /// Set the rounds of each variant in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Set the numbers of concurrently requested instances, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,5")]
    instances: Vec<u64>,
}

/// Milliseconds of every phase of all starts, by case, variant and phase.
type StartPhases = BTreeMap<(String, &'static str, String), Vec<f64>>;

/// Runs the comparison. The exit code is 1 if the goal is missed.
pub(crate) async fn run(args: StartArgs) -> BenchOutcome {
    let folder = tempfile::tempdir()?;
    let server = NearpathServer::start(folder.path()).await?;
    let (mut comparison, phases) = (
        BenchComparison::new("start", args.rounds),
        RefCell::new(StartPhases::new()),
    );
    for &count in &args.instances {
        let case = format!("{count} concurrent");
        let one = async |variant: usize| {
            let spec = spec_of(VARIANTS[variant])?;
            let (sample, described) = measure_start(&server, &spec, count).await?;
            note_phases(
                &mut phases.borrow_mut(),
                &case,
                VARIANTS[variant],
                &described,
            );
            Ok::<_, io::Error>(sample)
        };
        comparison.measure_case(&case, &VARIANTS, one).await?;
    }
    let phases = phases.into_inner();
    add_goals(&mut comparison, &phases);
    print_phases(&phases);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn spec_of(variant: &str) -> io::Result<Value> {
    match variant {
        "cat" => nearpath::cat_spec("start"),
        _ => nearpath::python_spec("start"),
    }
}

/// Deploys one instance of `start`, then requests `count` more at once: the folder is on the node by then.
pub(super) async fn measure_start(
    server: &NearpathServer,
    spec: &Value,
    count: u64,
) -> io::Result<(RoundSample, Value)> {
    server.deploy_function(spec).await?;
    // The first start copies the image to the node, which the later ones do not pay.
    let first = instance_ids(&server.wait_available("start", 1).await?);
    let (started, cpu) = (Instant::now(), CpuSnapshot::read_now(&[server.pid()]));
    server.scale_function("start", count + 1).await?;
    // Before the removal, since the phases are in the description.
    let mut described = server.wait_available("start", count + 1).await?;
    let (took, cpu) = (
        started.elapsed(),
        cpu.spent_until(&CpuSnapshot::read_now(&[server.pid()])),
    );
    // Every round starts from nothing.
    server.remove_function("start").await?;
    if let Some(instances) = described["instances"].as_array_mut() {
        instances.retain(|instance| !first.contains(&instance["id"]));
    }
    let mut tally = RequestTally::default();
    for phases in read_phases(&described) {
        let platform: f64 = phases
            .iter()
            .filter(|(name, _)| *name != TENANT_PHASE)
            .map(|(_, ms)| ms)
            .sum();
        // from_secs_f64 panics below zero, which rounding in JSON could produce.
        tally.record_outcome(Ok(Duration::from_secs_f64(platform.max(0.0) / 1e3)));
    }
    let sample = RoundSample {
        n: count,
        failed: 0,
        p50_us: tally.latency_us(0.5),
        p99_us: tally.latency_us(0.99),
        rps: count as f64 / took.as_secs_f64(),
        cpu_us_per_request: cpu.as_micros() as f64 / count as f64,
    };
    Ok((sample, described))
}

fn instance_ids(described: &Value) -> Vec<Value> {
    described["instances"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|instance| instance["id"].clone())
        .collect()
}

/// Returns the phases of every instance's start, in milliseconds.
fn read_phases(described: &Value) -> impl Iterator<Item = BTreeMap<String, f64>> {
    let instances = described["instances"].as_array().into_iter().flatten();
    instances.filter_map(|instance| serde_json::from_value(instance["startMs"].clone()).ok())
}

fn note_phases(phases: &mut StartPhases, case: &str, variant: &'static str, described: &Value) {
    for (phase, ms) in read_phases(described).flatten() {
        phases
            .entry((case.to_owned(), variant, phase))
            .or_default()
            .push(ms);
    }
}

/// Adds the goal for single starts; concurrent starts share the machine's cores.
fn add_goals(comparison: &mut BenchComparison, phases: &StartPhases) {
    let first = phases
        .keys()
        .next()
        .map(|(case, ..)| case.clone())
        .unwrap_or_default();
    let of_cat = phases.iter().filter(|((case, variant, phase), _)| {
        *case == first && *variant == "cat" && phase != TENANT_PHASE
    });
    let value = of_cat.map(|(_, all)| median_of(all.iter().copied())).sum();
    let name = format!("platform's share of a start, ms, {first}");
    comparison.add_figure(GoalRatio {
        name,
        value,
        better: BetterDirection::Lower,
        goal: GOAL_MS,
    });
}

fn print_phases(phases: &StartPhases) {
    println!(
        "{:<12} {:<8} {:<12} {:>9} {:>9}",
        "case", "variant", "phase", "p50 ms", "max ms"
    );
    for ((case, variant, phase), all) in phases {
        let most = all.iter().copied().fold(0.0, f64::max);
        println!(
            "{case:<12} {variant:<8} {phase:<12} {:>9.2} {most:>9.2}",
            median_of(all.iter().copied())
        );
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn phases_of_all_instances_are_collected() {
        let described = json!({ "instances": [{ "startMs": { "spawn": 1.5, "handler": 50.0 } }, { "startMs": { "spawn": 2.5 } }] });
        let mut phases = StartPhases::new();
        note_phases(&mut phases, "1 concurrent", "cat", &described);
        assert_eq!(
            phases[&("1 concurrent".to_owned(), "cat", "spawn".to_owned())],
            [1.5, 2.5]
        );
        assert_eq!(phases.len(), 2);
    }
}
