//! `quic`: calls to another machine, by transport, over links with delay.
//!
//! Caller and worker have a namespace each. CPU time is that of both sides, the caller's thread and
//! the worker's process. Excluded are the handler behind the worker, which is the same for all, and
//! the link's thread, which delivers packets.

mod apps;
mod chain;
mod goals;
mod minting;
mod near;

use std::process::ExitCode;
use std::time::Duration;

use tokio::task::LocalSet;

use super::{BenchOutcome, parse_seconds};
use crate::compare::{BenchComparison, ROUNDS};
use crate::remote::drive::CallPlan;
use crate::remote::{BenchError, RemoteTransport};

/// Options of `quic`.
#[derive(clap::Args)]
pub(crate) struct QuicArgs {
    /// Set the rounds of each variant in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Set the length of a measurement in seconds
    #[arg(long, default_value = "0.3", value_parser = parse_seconds)]
    duration: Duration,

    /// Set the minimum number of calls of a measurement
    #[arg(long, default_value_t = 20)]
    least: u64,

    /// Set the one-way delays of the link, in milliseconds, or `loopback` for no link
    #[arg(long, value_delimiter = ',', default_value = "loopback,0,0.5,1,2,3")]
    delays: Vec<NetworkPlace>,

    /// Set the number of workers started for one call each, per measurement; 0: none
    #[arg(long, default_value_t = 5)]
    starts: usize,

    /// Set the number of functions of the chains; 0: none
    #[arg(long, default_value_t = 6)]
    longest: usize,

    /// Set the one-way delay of the links of the chains, in milliseconds
    #[arg(long, default_value = "0.5")]
    chain_delay: NetworkPlace,

    /// Run these applications of examples/
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    apps: Vec<apps::WantedApps>,

    /// Set the one-way delays of the links of the applications, in milliseconds, or `loopback`
    #[arg(long, value_delimiter = ',', default_value = "0.5")]
    app_delays: Vec<NetworkPlace>,

    /// Set the number of sessions to mint, in sequence and concurrently
    #[arg(long, default_value_t = 1000)]
    mints: usize,

    /// Set the time before a packet is due at which the link's thread stops sleeping, in seconds
    #[arg(long, default_value = "0", value_parser = parse_seconds)]
    awake: Duration,

    /// Run only cases whose name has this prefix
    #[arg(long, default_value = "")]
    case: String,

    /// Run only variants with these names
    #[arg(long, value_delimiter = ';')]
    variants: Vec<String>,
}

/// Network between caller and worker.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum NetworkPlace {
    /// Caller and worker are on one machine.
    Loopback,
    /// A link with this one-way delay.
    Link(Duration),
}

impl std::str::FromStr for NetworkPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "loopback" {
            return Ok(Self::Loopback);
        }
        let millis: f64 = text
            .parse()
            .map_err(|_| format!("invalid delay {text:?}: expected milliseconds or `loopback`"))?;
        Duration::try_from_secs_f64(millis / 1e3)
            .map(Self::Link)
            .map_err(|error| error.to_string())
    }
}

impl std::fmt::Display for NetworkPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loopback => f.write_str("loopback"),
            Self::Link(delay) => write!(f, "{} ms", delay.as_secs_f64() * 1e3),
        }
    }
}

impl QuicArgs {
    fn call_plan(&self) -> CallPlan {
        CallPlan {
            duration: self.duration,
            least: self.least,
        }
    }

    /// Returns the wanted ones of `transports`.
    fn wanted_transports(&self, transports: &[RemoteTransport]) -> Vec<RemoteTransport> {
        transports
            .iter()
            .filter(|transport| self.has_variant(transport.name()))
            .copied()
            .collect()
    }

    fn has_variant(&self, variant: &str) -> bool {
        self.variants.is_empty() || self.variants.iter().any(|name| name == variant)
    }

    fn wants_case(&self, case: &str) -> bool {
        // A prefix selects, so that one option names a case or a group of them.
        case.starts_with(&self.case)
    }

    /// Returns whether a wanted case may begin with this text.
    fn may_want(&self, begin: &str) -> bool {
        self.wants_case(begin) || self.case.starts_with(begin)
    }
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) fn run(args: &QuicArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("quic", args.rounds);
    // First, while no worker runs: its latency is CPU time.
    minting::measure(args, &mut comparison)?;
    for &place in &args.delays {
        near::measure(args, place, &mut comparison)?;
    }
    if args.longest > 0 {
        chain::measure(args, &mut comparison)?;
    }
    apps::measure(args, &mut comparison)?;
    goals::add_goals(&mut comparison, args.chain_delay);
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the names in tables.
fn transport_names(transports: &[RemoteTransport]) -> Vec<&'static str> {
    transports
        .iter()
        .map(|transport| transport.name())
        .collect()
}

/// Runs on this thread, whose namespace the sockets use.
fn run_local<T>(what: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // On the calling thread, which is in the caller's namespace: a new thread would not be.
    LocalSet::new().block_on(&runtime, what)
}
