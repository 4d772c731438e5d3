//! `idle`: the cost of warm chains without calls.
//!
//! In the table a "request" is one instance for one second: `cpu` is the CPU time of all processes
//! per instance second, `rps` the wake-ups per second of all processes. There are no latencies.
//! Memory has two figures, without and with the functions themselves. Their goals are shares of the
//! sidecars' memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::{BenchOutcome, parse_seconds};
use crate::census::{ProcessCensus, ProcessCost};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, ROUNDS, RoundSample, median_of};
use crate::peers::chain_program::{ChainProgram, ChainProgramKind};
use crate::peers::many_chains::ManyChains;

const VARIANTS: [&str; 2] = ["nearpath", "sidecars"];
/// Goal: CPU time of ten warm chains of five functions, in percent of one core.
const GOAL_PERCENT: f64 = 0.5;
/// Goal: all memory, in relation to the sidecars' and their functions'.
const GOAL_MEMORY: f64 = 0.9;

/// Programs of the functions: the same in every variant.
const FUNCTION_PROGRAMS: [&str; 3] = ["function", "nearpath-bench", "bench-handler"];

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

    /// Measure functions of these kinds
    #[arg(long, value_delimiter = ',', default_value = "sdk,go", value_enum)]
    programs: Vec<ChainProgramKind>,
}

/// Costs of all measurements, by variant and process name.
type UsageByVariant = BTreeMap<(usize, String), Vec<ProcessCost>>;

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) async fn run(args: IdleArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("idle", args.rounds);
    for &kind in &args.programs {
        let program = ChainProgram::prepare(kind)?;
        measure_program(&mut comparison, &program, &args).await?;
    }
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Measures chains of one kind of function. They end here: those of two kinds would share
/// processors.
async fn measure_program(
    comparison: &mut BenchComparison,
    program: &ChainProgram,
    args: &IdleArgs,
) -> io::Result<()> {
    let length = args.length as usize;
    let variants = [
        ManyChains::start_nearpath(program, args.chains, length).await?,
        ManyChains::start_sidecars(program, args.chains, length).await?,
    ];
    for variant in &variants {
        variant.warm_chains().await?;
    }
    // Deployment work such as readiness checks and pool filling ends in this time.
    tokio::time::sleep(args.settle).await;
    let seen = RefCell::new(UsageByVariant::new());
    let case = format!(
        "{}, {} chains of {length} functions",
        program.name(),
        args.chains
    );
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
    print_usage(&case, &seen, args.duration);
    let instances = args.chains * length;
    add_figures(comparison, program.name(), &seen, args.duration, instances);
    Ok(())
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
fn print_usage(case: &str, seen: &UsageByVariant, window: Duration) {
    println!("{case}:");
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
    program: &str,
    seen: &UsageByVariant,
    window: Duration,
    instances: usize,
) {
    let cpu: f64 = usage_of(seen, 0)
        .map(|(_, lines)| cpu_percent(lines, window))
        .sum();
    let mut add = |name: &str, value, goal| {
        comparison.add_figure(GoalRatio {
            name: format!("{name}, {program}, nearpath"),
            value,
            better: BetterDirection::Lower,
            goal,
        });
    };
    add("CPU of all processes, % of a core", cpu, GOAL_PERCENT);
    // The functions are the same program in both variants, so their memory blurs the difference.
    let beside = |variant| {
        let is_beside = |name: &str| !FUNCTION_PROGRAMS.contains(&name);
        memory_kib(seen, variant, is_beside) / instances as f64
    };
    add(
        "KiB (PSS) per instance, without the function",
        beside(0),
        beside(1).round(),
    );
    let all = |variant| memory_kib(seen, variant, |_| true) / instances as f64;
    add(
        "KiB (PSS) per instance, with the function",
        all(0),
        (all(1) * GOAL_MEMORY).round(),
    );
}

fn usage_of(
    seen: &UsageByVariant,
    variant: usize,
) -> impl Iterator<Item = (&str, &Vec<ProcessCost>)> {
    seen.iter()
        .filter(move |((of, _), _)| *of == variant)
        .map(|((_, name), lines)| (name.as_str(), lines))
}

/// Returns the memory of some programs of a variant, at the end.
fn memory_kib(seen: &UsageByVariant, variant: usize, counts: impl Fn(&str) -> bool) -> f64 {
    // PSS shares out pages: pages of libraries that functions use too count in part only.
    usage_of(seen, variant)
        .filter(|(name, _)| counts(name))
        .filter_map(|(_, lines)| lines.last())
        .map(|line| line.pss_kib as f64)
        .sum()
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

    #[test]
    fn memory_counts_without_and_with_the_functions() {
        let cost = |pss_kib| {
            vec![ProcessCost {
                pss_kib,
                ..ProcessCost::default()
            }]
        };
        let seen = UsageByVariant::from([
            ((0, "nearpath".to_owned()), cost(100)),
            ((0, "function".to_owned()), cost(700)),
            ((1, "nginx".to_owned()), cost(200)),
            ((1, "bench-handler".to_owned()), cost(800)),
        ]);
        let mut comparison = BenchComparison::new("test", 1);
        add_figures(&mut comparison, "any", &seen, Duration::from_secs(1), 10);
        let figures = comparison.figures().iter().skip(1);
        let figures: Vec<_> = figures.map(|one| (one.value, one.goal)).collect();
        assert_eq!(figures, [(10.0, 20.0), (80.0, 90.0)]);
    }
}
