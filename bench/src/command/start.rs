//! `start`: how long instances take from asking for them to ready, and how much of it is the platform's.
//!
//! In the table a "request" is one start: p50 and p99 are the platform's time of one instance (every phase but the tenant's
//! own), rps is instances ready by second since they were asked for, cpu is that of `nearpath up` and all it started.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::Outcome;
use crate::compare::{Better, Comparison, ROUNDS, Ratio, Sample, median};
use crate::cpu::Moment;
use crate::peers::nearpath::{self, NearpathServer};
use crate::tally::Tally;

const VARIANTS: [&str; 2] = ["cat", "python"];
/// The phase that is the tenant's own.
const TENANTS: &str = "handler";
/// Promised: what the platform adds to a start, in milliseconds.
const GOAL_MS: f64 = 20.0;

/// Options of `start`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Instances asked for at once, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,5")]
    instances: Vec<u64>,
}

/// Milliseconds of every phase of every start seen, by case, variant and phase.
type Phases = BTreeMap<(String, &'static str, String), Vec<f64>>;

/// Exit code 1 when the goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let folder = tempfile::tempdir()?;
    let house = NearpathServer::start(folder.path()).await?;
    let (mut comparison, phases) = (
        Comparison::new("start", args.rounds),
        RefCell::new(Phases::new()),
    );
    for &count in &args.instances {
        let case = format!("{count} at once");
        let one = async |variant: usize| {
            let (sample, described) = start(&house, VARIANTS[variant], count).await?;
            note(
                &mut phases.borrow_mut(),
                &case,
                VARIANTS[variant],
                &described,
            );
            Ok::<_, io::Error>(sample)
        };
        comparison.case(&case, &VARIANTS, one).await?;
    }
    let phases = phases.into_inner();
    goals(&mut comparison, &phases);
    print(&phases);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Deploys one instance, then asks for `count` more at once: the folder is on the node by then.
async fn start(house: &NearpathServer, variant: &str, count: u64) -> io::Result<(Sample, Value)> {
    let spec = if variant == "cat" {
        nearpath::cat("start")?
    } else {
        nearpath::python("start")?
    };
    house.deploy(&spec).await?;
    let first = ids(&house.until_available("start", 1).await?);
    let (asked, cpu) = (Instant::now(), Moment::now(&[house.pid()]));
    house.scale("start", count + 1).await?;
    let mut described = house.until_available("start", count + 1).await?;
    let (took, cpu) = (asked.elapsed(), cpu.until(&Moment::now(&[house.pid()])));
    house.remove("start").await?;
    if let Some(instances) = described["instances"].as_array_mut() {
        instances.retain(|instance| !first.contains(&instance["id"]));
    }
    let mut tally = Tally::default();
    for phases in starts(&described) {
        let platform: f64 = phases
            .iter()
            .filter(|(name, _)| *name != TENANTS)
            .map(|(_, ms)| ms)
            .sum();
        tally.add(Ok(Duration::from_secs_f64(platform.max(0.0) / 1e3)));
    }
    let sample = Sample {
        n: count,
        failed: 0,
        p50_us: tally.us(0.5),
        p99_us: tally.us(0.99),
        rps: count as f64 / took.as_secs_f64(),
        cpu_us_per_request: cpu.as_micros() as f64 / count as f64,
    };
    Ok((sample, described))
}

fn ids(described: &Value) -> Vec<Value> {
    described["instances"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|instance| instance["id"].clone())
        .collect()
}

/// The phases of every instance's start, in milliseconds.
fn starts(described: &Value) -> impl Iterator<Item = BTreeMap<String, f64>> {
    let instances = described["instances"].as_array().into_iter().flatten();
    instances.filter_map(|instance| serde_json::from_value(instance["startMs"].clone()).ok())
}

fn note(phases: &mut Phases, case: &str, variant: &'static str, described: &Value) {
    for (phase, ms) in starts(described).flatten() {
        phases
            .entry((case.to_owned(), variant, phase))
            .or_default()
            .push(ms);
    }
}

/// One instance at a time has the goal; many at once share the machine's cores.
fn goals(comparison: &mut Comparison, phases: &Phases) {
    let first = phases
        .keys()
        .next()
        .map(|(case, ..)| case.clone())
        .unwrap_or_default();
    let of_cat = phases.iter().filter(|((case, variant, phase), _)| {
        *case == first && *variant == "cat" && phase != TENANTS
    });
    let value = of_cat.map(|(_, all)| median(all.iter().copied())).sum();
    let name = format!("platform's part of a start, ms, {first}");
    comparison.figure(Ratio {
        name,
        value,
        better: Better::Lower,
        goal: GOAL_MS,
    });
}

fn print(phases: &Phases) {
    println!(
        "{:<12} {:<8} {:<12} {:>9} {:>9}",
        "case", "variant", "phase", "p50 ms", "max ms"
    );
    for ((case, variant, phase), all) in phases {
        let most = all.iter().copied().fold(0.0, f64::max);
        println!(
            "{case:<12} {variant:<8} {phase:<12} {:>9.2} {most:>9.2}",
            median(all.iter().copied())
        );
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn phases_of_all_instances() {
        let described = json!({ "instances": [{ "startMs": { "spawn": 1.5, "handler": 50.0 } }, { "startMs": { "spawn": 2.5 } }] });
        let mut phases = Phases::new();
        note(&mut phases, "1 at once", "cat", &described);
        assert_eq!(
            phases[&("1 at once".to_owned(), "cat", "spawn".to_owned())],
            [1.5, 2.5]
        );
        assert_eq!(phases.len(), 2);
    }
}
