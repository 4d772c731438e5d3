//! `idle`: the cost of warm chains without calls.
//!
//! In the table a "request" is one instance for one second: `cpu` is the CPU time of all processes
//! per instance second, `rps` the wake-ups per second of all processes. There are no latencies. The
//! memory goal is the sidecars' memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::{BenchOutcome, parse_seconds};
use crate::census::{ProcessCensus, ProcessCost};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, ROUNDS, RoundSample, median_of};
use crate::peers::chain_program::ChainProgram;
use crate::peers::many_chains::ManyChains;

const VARIANTS: [&str; 2] = ["ring", "sidecars"];
/// Goal: CPU time of ten warm chains of five functions, in percent of one core.
const GOAL_PERCENT: f64 = 0.5;

/// Programs of the functions: the same in every variant.
const FUNCTION_PROGRAMS: [&str; 2] = ["function", "nearpath-bench"];

/// Options of `idle`.
#[derive(clap::Args)]
pub(crate) struct IdleArgs {
    /// Set the rounds of each variant
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Set the length of a measurement in seconds
    #[arg(long, default_value = "5", value_parser = parse_seconds)]
    duration: Duration,

    /// Set the idle time before the first measurement, in seconds
    #[arg(long, default_value = "10", value_parser = parse_seconds)]
    settle: Duration,

    /// Set the number of chains
    #[arg(long, default_value_t = 10)]
    chains: usize,

    /// Set the number of functions per chain
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=32))]
    length: u64,
}

/// Costs of all measurements, by variant and process name.
type UsageByVariant = BTreeMap<(usize, String), Vec<ProcessCost>>;

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: IdleArgs) -> BenchOutcome {
    let length = args.length as usize;
    let program = ChainProgram::own()?;
    let variants = [
        ManyChains::start_nearpath(&program, args.chains, length).await?,
        ManyChains::start_sidecars(&program, args.chains, length).await?,
    ];
    for variant in &variants {
        variant.warm_chains().await?;
    }
    // Deployment work such as readiness checks and pool filling ends in this time.
    tokio::time::sleep(args.settle).await;
    let (mut comparison, seen) = (
        BenchComparison::new("idle", args.rounds),
        RefCell::new(UsageByVariant::new()),
    );
    let case = format!("{} chains of {} functions", args.chains, args.length);
    let one = async |variant: usize| {
        let lines = watch_usage(&variants[variant].process_ids(), args.duration).await;
        let sample = usage_sample(&lines, args.duration, args.chains * length);
        lines.into_iter().for_each(|(name, line)| {
            seen.borrow_mut()
                .entry((variant, name))
                .or_default()
                .push(line)
        });
        Ok::<_, io::Error>(sample)
    };
    comparison.measure_case(&case, &VARIANTS, one).await?;
    let seen = seen.into_inner();
    print_usage(&seen, args.duration);
    add_figures(&mut comparison, &seen, args.duration, args.chains * length);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn watch_usage(pids: &[u32], window: Duration) -> BTreeMap<String, ProcessCost> {
    let before = ProcessCensus::take_census(pids);
    tokio::time::sleep(window).await;
    before.usage_until(&ProcessCensus::take_census(pids))
}

fn usage_sample(
    lines: &BTreeMap<String, ProcessCost>,
    window: Duration,
    instances: usize,
) -> RoundSample {
    let cpu: Duration = lines.values().map(|line| line.cpu).sum();
    let wakes: u64 = lines.values().map(|line| line.wakes).sum();
    let instance_seconds = instances as f64 * window.as_secs_f64();
    RoundSample {
        // A "request" is an instance for a second, so that the table's columns keep their meaning.
        n: instance_seconds as u64,
        failed: 0,
        // No requests, no latencies; the columns stay for the common format.
        p50_us: 0.0,
        p99_us: 0.0,
        rps: wakes as f64 / window.as_secs_f64(),
        cpu_us_per_request: cpu.as_nanos() as f64 / 1e3 / instance_seconds,
    }
}

/// Prints wake-ups and memory by process: medians over the rounds.
fn print_usage(seen: &UsageByVariant, window: Duration) {
    println!(
        "{:9} {:16} {:>9} {:>11} {:>9} {:>9}",
        "variant", "process", "number", "% of a core", "wakes/s", "PSS KiB"
    );
    for ((variant, name), lines) in seen {
        let wakes = median_of(lines.iter().map(|line| line.wakes as f64)) / window.as_secs_f64();
        let (processes, pss) = lines
            .last()
            .map_or((0, 0), |line| (line.processes, line.pss_kib));
        let percent = cpu_percent(lines, window);
        println!(
            "{:9} {name:16} {processes:>9} {percent:>11.4} {wakes:>9.1} {pss:>9}",
            VARIANTS[*variant]
        );
    }
    println!();
}

fn cpu_percent(lines: &[ProcessCost], window: Duration) -> f64 {
    median_of(lines.iter().map(|line| line.cpu.as_secs_f64())) / window.as_secs_f64() * 100.0
}

fn add_figures(
    comparison: &mut BenchComparison,
    seen: &UsageByVariant,
    window: Duration,
    instances: usize,
) {
    let of = |variant: usize| seen.iter().filter(move |((of, _), _)| *of == variant);
    let cpu = |variant| {
        of(variant)
            .map(|(_, lines)| cpu_percent(lines, window))
            .sum::<f64>()
    };
    let memory = |variant| {
        // The functions are the same program in both variants, so their memory would only blur the
        // difference.
        let beside =
            // PSS shares out pages: without the functions, shared library pages count for the rest
            // alone.
            of(variant).filter(|((_, name), _)| !FUNCTION_PROGRAMS.contains(&name.as_str()));
        beside
            .filter_map(|(_, lines)| lines.last())
            .map(|line| line.pss_kib as f64)
            .sum::<f64>()
            / instances as f64
    };
    let figure = |name: &str, value, goal| GoalRatio {
        name: name.to_owned(),
        value,
        better: BetterDirection::Lower,
        goal,
    };
    comparison.add_figure(figure(
        "CPU of all processes, % of a core, ring",
        cpu(0),
        GOAL_PERCENT,
    ));
    comparison.add_figure(figure(
        "KiB (PSS) per instance, without the function itself, ring",
        memory(0),
        memory(1),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_per_instance_second() {
        let line = ProcessCost {
            processes: 50,
            cpu: Duration::from_millis(5),
            wakes: 40,
            pss_kib: 100,
        };
        let lines = BTreeMap::from([("function".to_owned(), line)]);
        let sample = usage_sample(&lines, Duration::from_secs(10), 50);
        assert_eq!(
            (sample.n, sample.rps, sample.cpu_us_per_request),
            (500, 4.0, 10.0)
        );
    }
}
