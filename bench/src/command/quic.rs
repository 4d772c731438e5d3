//! `quic`: calls to another machine, by the transports, over links with delay.
//!
//! Caller and worker have a namespace each. CPU time is that of both sides, the caller's thread and
//! the worker's process; not that of the handler behind the worker, which is the same for all, and
//! not that of the link, in whose thread packets are delivered.

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
    /// Rounds of each variant in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Length of a measurement in seconds
    #[arg(long, default_value = "0.3", value_parser = parse_seconds)]
    duration: Duration,

    /// Calls of a measurement at the least
    #[arg(long, default_value_t = 20)]
    least: u64,

    /// Delays of the link one way, in milliseconds, or `loopback` for no link at all
    #[arg(long, value_delimiter = ',', default_value = "loopback,0,0.5,1,2,3")]
    delays: Vec<NetworkPlace>,

    /// Workers that are started to be called once, a measurement; 0: none
    #[arg(long, default_value_t = 5)]
    starts: usize,

    /// Functions of the chains; 0: none
    #[arg(long, default_value_t = 6)]
    longest: usize,

    /// Delay of the links of the chains, one way, in milliseconds
    #[arg(long, default_value = "0.5")]
    chain_delay: NetworkPlace,

    /// Applications of the published system: those of examples/ with these names
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    apps: Vec<apps::WantedApps>,

    /// Delays of the links of the applications, one way, in milliseconds, or `loopback`
    #[arg(long, value_delimiter = ',', default_value = "0.5")]
    app_delays: Vec<NetworkPlace>,

    /// Sessions to mint one after another, and at once
    #[arg(long, default_value_t = 1000)]
    mints: usize,

    /// Time before a packet is due at which the link's thread stops sleeping, in seconds
    #[arg(long, default_value = "0", value_parser = parse_seconds)]
    awake: Duration,

    /// Only cases whose name begins so
    #[arg(long, default_value = "")]
    case: String,

    /// Only variants of these names
    #[arg(long, value_delimiter = ';')]
    variants: Vec<String>,
}

/// Network between caller and worker.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum NetworkPlace {
    /// They are on one machine.
    Loopback,
    /// A link with that delay, one way.
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
            .map_err(|_| format!("{text:?} is neither a number nor `loopback`"))?;
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

    /// Those of `ways` that are wanted.
    fn wanted_transports(&self, ways: &[RemoteTransport]) -> Vec<RemoteTransport> {
        ways.iter()
            .filter(|way| self.has_variant(way.name()))
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

    /// Returns true if a wanted case may begin with this text.
    fn may_want(&self, begin: &str) -> bool {
        self.wants_case(begin) || self.case.starts_with(begin)
    }
}

/// Exit code 1 when a goal is missed.
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

/// As a table has them.
fn transport_names(ways: &[RemoteTransport]) -> Vec<&'static str> {
    ways.iter().map(|way| way.name()).collect()
}

/// On this thread, whose namespace the sockets are in.
fn run_local<T>(what: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // On the calling thread, which is in the caller's namespace: a new thread would not be.
    LocalSet::new().block_on(&runtime, what)
}
