//! `direct`: calls between functions by name, beside the same programs without nearpath.
//!
//! A caller runs inside an instance, as the code of a function does. The same programs run in network
//! namespaces that kernel devices join. CPU time is that of all processes: caller, callee and platform.

mod burst;
mod chains;
mod connection;
mod cpu;
mod many;
mod path;
mod ready;
mod redis;
mod retail;
mod socket;
mod start;
mod step;

use std::process::ExitCode;
use std::time::Duration;

use super::measure::RateOptions;
use super::nodes::{parse_millis, run_until_signal};
use super::{BenchOutcome, parse_rate, parse_seconds};
use crate::compare::BenchComparison;
use crate::remote::BenchError;

/// Options of `direct`.
#[derive(clap::Args)]
pub(crate) struct DirectArgs {
    #[command(flatten)]
    measure: RateOptions,

    /// Measure only these rows
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "connection,socket,redis,chains,retail,cpu,ready,start,burst,many,step"
    )]
    rows: Vec<DirectRow>,

    /// Set the warm-up before HTTP over nearpath, in seconds: its placement settles under load
    #[arg(long, default_value = "9", value_parser = parse_seconds)]
    settle: Duration,

    /// Set the numbers of kept connections of the rows `connection` and `redis`, one case each
    #[arg(long, value_delimiter = ',', default_value = "32,1")]
    connections: Vec<usize>,

    /// Set the number of starts in a round of the rows `redis`, `ready` and `start`
    #[arg(long, default_value_t = 10)]
    starts: usize,

    /// Set the number of concurrent starts in a round of the row `many`
    #[arg(long, default_value_t = 200)]
    instances: u64,

    /// Set the number of functions that wake at once in the row `many`
    #[arg(long, default_value_t = 100)]
    functions: usize,

    /// Set the one-way delays between machines of the rows `chains` and `retail`, in milliseconds, one case each
    #[arg(long, value_delimiter = ',', default_value = "0,0.5", value_parser = parse_millis)]
    delays: Vec<Duration>,

    /// Set the number of calls of each chain, in all rounds together
    #[arg(long, default_value_t = 100)]
    calls: usize,

    /// Set the rates of the row `cpu` in requests per second, one case each
    #[arg(long, value_delimiter = ',', default_value = "10,50,100", value_parser = parse_rate)]
    rates: Vec<f64>,

    /// Set the rates of the compiled chain of the row `cpu`, one case each
    #[arg(long, value_delimiter = ',', default_value = "250", value_parser = parse_rate)]
    compiled_rates: Vec<f64>,
}

/// Rows of the comparison, one file each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DirectRow {
    /// HTTP by name on an edge with `balance: connection`.
    Connection,
    /// TCP at a port of the callee's own: connections, round trips, bulk, denied attempts.
    Socket,
    /// Redis as a function: commands, and the first one from zero.
    Redis,
    /// Nested chains over two workers, by name and through a gateway.
    Chains,
    /// The chains of Hello, Retail! over two workers, by name and through a gateway.
    Retail,
    /// CPU time of the control node and of the workers' platform, in an open loop.
    Cpu,
    /// Time from a ready instance to calls by name, on its node and on the others.
    Ready,
    /// Starts with virtual addresses and without them.
    Start,
    /// A burst of calls of a chain that is scaled to zero.
    Burst,
    /// Starts per second, and many functions that wake at once.
    Many,
    /// Time until the autoscaler has enough replicas for a sudden load.
    Step,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
///
/// # Errors
/// The error of a row, which ends the run. The file has the rows before it.
pub(crate) fn run(args: &DirectArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("direct", args.measure.rounds);
    let measured = args
        .rows
        .iter()
        .try_for_each(|row| row.measure(args, &mut comparison));
    // Before the error of a row: those before it took long, and count.
    let is_met = comparison.finish()?;
    measured?;
    Ok(match is_met {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl DirectArgs {
    /// Returns the number of calls of each chain in a round.
    fn repetitions(&self) -> usize {
        self.calls.div_ceil(self.measure.rounds.max(1))
    }
}

impl DirectRow {
    fn measure(
        self,
        args: &DirectArgs,
        comparison: &mut BenchComparison,
    ) -> Result<(), BenchError> {
        match self {
            Self::Connection => {
                run_until_signal(async || connection::measure(args, comparison).await)
            }
            Self::Socket => run_until_signal(async || socket::measure(args, comparison).await),
            Self::Redis => run_until_signal(async || redis::measure(args, comparison).await),
            Self::Chains => each_delay(args, |delay| chains::measure(args, delay, comparison)),
            Self::Retail => each_delay(args, |delay| retail::measure(args, delay, comparison)),
            Self::Cpu => cpu::measure(args, comparison),
            Self::Start => run_until_signal(async || start::measure(args, comparison).await),
            Self::Burst => run_until_signal(async || burst::measure(args, comparison).await),
            Self::Many => run_until_signal(async || many::measure(args, comparison).await),
            Self::Step => run_until_signal(async || step::measure(args, comparison).await),
            Self::Ready => {
                // Two measurements: one machine here, four there.
                run_until_signal(async || ready::measure(args, comparison).await)?;
                super::nodes::ready::measure(args.starts, Duration::ZERO, comparison)
            }
        }
    }
}

fn each_delay(
    args: &DirectArgs,
    measure: impl FnMut(Duration) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    args.delays.iter().copied().try_for_each(measure)
}
