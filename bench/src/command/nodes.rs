//! `nodes`: one application over several machines, by `nearpath node` on each, beside nginx on each with
//! TLS between them.
//!
//! Namespaces represent the machines. The client runs on the first one, `m0`, which has the gateway for
//! clients. CPU time is that of both platforms on all machines. Rows with the addition `without handler`
//! are of the same measurement, without the CPU time of the functions' own programs.

mod calls;
pub(super) mod chain;
mod direct;
mod first;
pub(super) mod ready;
pub(super) mod retail;
mod scale;
mod sizes;
mod target;

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::measure::RateOptions;
use super::{BenchOutcome, parse_seconds};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, RatioGoal, ReportRow};
use crate::nodes::machines::MachineLab;
use crate::remote::BenchError;

/// Options of `nodes`.
#[derive(clap::Args)]
pub(crate) struct NodesArgs {
    #[command(flatten)]
    measure: RateOptions,

    /// Measure only these rows
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "calls,direct,first,sizes,chain,retail,ready,scale"
    )]
    rows: Vec<NodesRow>,

    /// Set the one-way delays between machines, in milliseconds, one case each
    #[arg(long, value_delimiter = ',', default_value = "0,0.5", value_parser = parse_millis)]
    delays: Vec<Duration>,

    /// Set the warm-up before a measurement of nearpath, in seconds: its placement settles under load
    #[arg(long, default_value = "9", value_parser = parse_seconds)]
    settle: Duration,

    /// Set the numbers of concurrent calls of the rows `calls` and `direct`, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    connections: Vec<usize>,

    /// Set the number of instances that become ready in a round of the rows `first` and `ready`
    #[arg(long, default_value_t = 10)]
    starts: usize,

    /// Set the number of calls in a measurement of the row `retail`
    #[arg(long, default_value_t = 20)]
    least: usize,

    /// Set the number of functions of the row `scale`, each with two endpoints on other nodes
    #[arg(long, default_value_t = 10_000)]
    functions: usize,

    /// Set the number of functions in `nearpath up` of the row `scale`; 0: none
    #[arg(long, default_value_t = 1_200)]
    deployed: usize,
}

/// Rows of the comparison, one file each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum NodesRow {
    /// Calls of a warm function on another machine.
    Calls,
    /// Calls of one function by another, directly and by the nodes.
    Direct,
    /// First calls of new instances on another machine.
    First,
    /// Bodies and responses by size, over QUIC and over TLS.
    Sizes,
    /// A chain of six functions in which each hop leaves the machine.
    Chain,
    /// The chains of Hello, Retail!.
    Retail,
    /// Time until other machines know a new instance.
    Ready,
    /// Many functions on other machines.
    Scale,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) fn run(args: &NodesArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("nodes", args.measure.rounds);
    for row in &args.rows {
        for delay in &args.delays {
            row.measure(args, *delay, &mut comparison)?;
        }
    }
    Ok(match comparison.finish()? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl NodesRow {
    fn measure(
        self,
        args: &NodesArgs,
        delay: Duration,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        match self {
            Self::Calls => calls::measure(args, delay, comparison),
            Self::Direct => direct::measure(args, delay, comparison),
            // Without a delay a handshake costs CPU time alone, which the row `calls` shows.
            Self::First if !delay.is_zero() => first::measure(args, delay, comparison),
            Self::Sizes => sizes::measure(args, delay, comparison),
            Self::Chain => chain::measure(args, delay, comparison),
            Self::Retail => retail::measure(args, delay, comparison),
            Self::Ready => ready::measure(args.starts, delay, comparison),
            // CPU time and memory do not depend on the delay.
            Self::Scale if Some(&delay) == args.delays.first() => scale::measure(args, comparison),
            Self::First | Self::Scale => Ok(()),
        }
    }
}

/// Runs a measurement on the first machine, whose namespace the client's sockets use.
pub(super) fn on_first_machine(
    lab: &MachineLab,
    work: impl AsyncFnOnce() -> Result<(), BenchError> + Send,
) -> Result<(), BenchError> {
    let first = lab.machines().first().ok_or("a lab without machines")?;
    first.node.enter(|| run_until_signal(work))
}

/// Runs a measurement on this thread. A signal ends it with an error, so that all programs end in order.
pub(super) fn run_until_signal(
    work: impl AsyncFnOnce() -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        // The row `direct` enters other namespaces: a thread must not keep an earlier one.
        .thread_keep_alive(Duration::ZERO)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (mut end, mut interrupt) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        // An error ends all nodes in order; the default action would leave their cgroups.
        tokio::select! {
            done = work() => done,
            _ = end.recv() => Err("ended by SIGTERM".into()),
            _ = interrupt.recv() => Err("ended by SIGINT".into()),
        }
    })
}

/// Returns a delay as case names have it.
pub(super) fn delay_name(delay: Duration) -> String {
    format!("{} ms", delay.as_secs_f64() * 1e3)
}

/// Parses milliseconds, for arguments.
pub(super) fn parse_millis(text: &str) -> Result<Duration, String> {
    let millis: f64 = text
        .parse()
        .map_err(|_| format!("invalid delay {text:?}: expected milliseconds"))?;
    Duration::try_from_secs_f64(millis / 1e3).map_err(|error| error.to_string())
}

/// Returns a goal of a ratio that must not be larger.
pub(super) fn max_goal(value: fn(&ReportRow) -> f64, goal: f64) -> RatioGoal {
    RatioGoal {
        value,
        better: BetterDirection::Lower,
        goal,
    }
}

/// Returns a figure that must not be larger than its goal.
pub(super) fn figure(name: String, value: f64, goal: f64) -> GoalRatio {
    GoalRatio {
        name,
        value,
        better: BetterDirection::Lower,
        goal,
    }
}
