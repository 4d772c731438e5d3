//! `idle`: warm chains that nobody calls: what they cost.
//!
//! In the table a "request" is one instance for one second: `cpu` is what that costs of all processes together, `rps` how
//! often anybody woke up in a second, all together. There are no latencies. The goal for memory is what the sidecars take.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use super::{Outcome, seconds};
use crate::census::{Census, Line};
use crate::compare::{Better, Comparison, ROUNDS, Ratio, Sample, median};
use crate::peers::many::Many;

const VARIANTS: [&str; 2] = ["ring", "sidecars"];
/// Promised: CPU time of ten warm chains of five functions, in percent of one core.
const GOAL_PERCENT: f64 = 0.5;

/// The functions themselves: the same program in every variant.
const FUNCTIONS: [&str; 2] = ["function", "nearpath-bench"];

/// Options of `idle`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// How long a measurement is, in seconds
    #[arg(long, default_value = "5", value_parser = seconds)]
    duration: Duration,

    /// How long nobody calls before the first measurement, in seconds
    #[arg(long, default_value = "10", value_parser = seconds)]
    settle: Duration,

    /// Chains
    #[arg(long, default_value_t = 10)]
    chains: usize,

    /// Functions in a chain
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=32))]
    length: u64,
}

/// What each measurement saw, by variant and name of the process.
type Seen = BTreeMap<(usize, String), Vec<Line>>;

/// Exit code 1 when a goal is missed.
pub(crate) async fn run(args: Args) -> Outcome {
    let length = args.length as usize;
    let variants = [
        Many::nearpath(args.chains, length).await?,
        Many::sidecars(args.chains, length).await?,
    ];
    for variant in &variants {
        variant.warm().await?;
    }
    tokio::time::sleep(args.settle).await;
    let (mut comparison, seen) = (
        Comparison::new("idle", args.rounds),
        RefCell::new(Seen::new()),
    );
    let case = format!("{} chains of {}", args.chains, args.length);
    let one = async |variant: usize| {
        let lines = watch(&variants[variant].pids(), args.duration).await;
        let sample = sample(&lines, args.duration, args.chains * length);
        lines.into_iter().for_each(|(name, line)| {
            seen.borrow_mut()
                .entry((variant, name))
                .or_default()
                .push(line)
        });
        Ok::<_, io::Error>(sample)
    };
    comparison.case(&case, &VARIANTS, one).await?;
    let seen = seen.into_inner();
    print(&seen, args.duration);
    figures(&mut comparison, &seen, args.duration, args.chains * length);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn watch(pids: &[u32], window: Duration) -> BTreeMap<String, Line> {
    let before = Census::take(pids);
    tokio::time::sleep(window).await;
    before.until(&Census::take(pids))
}

fn sample(lines: &BTreeMap<String, Line>, window: Duration, instances: usize) -> Sample {
    let cpu: Duration = lines.values().map(|line| line.cpu).sum();
    let wakes: u64 = lines.values().map(|line| line.wakes).sum();
    let instance_seconds = instances as f64 * window.as_secs_f64();
    Sample {
        n: instance_seconds as u64,
        failed: 0,
        p50_us: 0.0,
        p99_us: 0.0,
        rps: wakes as f64 / window.as_secs_f64(),
        cpu_us_per_request: cpu.as_nanos() as f64 / 1e3 / instance_seconds,
    }
}

/// Who woke up, and what memory it has: medians over the rounds.
fn print(seen: &Seen, window: Duration) {
    println!(
        "{:9} {:16} {:>9} {:>11} {:>9} {:>9}",
        "variant", "process", "number", "% of a core", "wakes/s", "PSS KiB"
    );
    for ((variant, name), lines) in seen {
        let wakes = median(lines.iter().map(|line| line.wakes as f64)) / window.as_secs_f64();
        let (processes, pss) = lines
            .last()
            .map_or((0, 0), |line| (line.processes, line.pss_kib));
        let percent = percent(lines, window);
        println!(
            "{:9} {name:16} {processes:>9} {percent:>11.4} {wakes:>9.1} {pss:>9}",
            VARIANTS[*variant]
        );
    }
    println!();
}

fn percent(lines: &[Line], window: Duration) -> f64 {
    median(lines.iter().map(|line| line.cpu.as_secs_f64())) / window.as_secs_f64() * 100.0
}

fn figures(comparison: &mut Comparison, seen: &Seen, window: Duration, instances: usize) {
    let of = |variant: usize| seen.iter().filter(move |((of, _), _)| *of == variant);
    let cpu = |variant| {
        of(variant)
            .map(|(_, lines)| percent(lines, window))
            .sum::<f64>()
    };
    let memory = |variant| {
        let beside = of(variant).filter(|((_, name), _)| !FUNCTIONS.contains(&name.as_str()));
        beside
            .filter_map(|(_, lines)| lines.last())
            .map(|line| line.pss_kib as f64)
            .sum::<f64>()
            / instances as f64
    };
    let figure = |name: &str, value, goal| Ratio {
        name: name.to_owned(),
        value,
        better: Better::Lower,
        goal,
    };
    comparison.figure(figure(
        "% of a core, all processes, ring",
        cpu(0),
        GOAL_PERCENT,
    ));
    comparison.figure(figure(
        "KiB (PSS) an instance beside the function itself, ring",
        memory(0),
        memory(1),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_second_is_the_unit() {
        let line = Line {
            processes: 50,
            cpu: Duration::from_millis(5),
            wakes: 40,
            pss_kib: 100,
        };
        let lines = BTreeMap::from([("function".to_owned(), line)]);
        let sample = sample(&lines, Duration::from_secs(10), 50);
        assert_eq!(
            (sample.n, sample.rps, sample.cpu_us_per_request),
            (500, 4.0, 10.0)
        );
    }
}
