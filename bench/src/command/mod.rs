//! One file a subcommand.

mod audit;
mod boutique;
mod chaos;
mod edge;
mod gateway;
mod handler;
mod idle;
mod load;
mod load_boutique;
mod measure;
mod mint;
mod motion;
mod parking;
mod pool;
mod punch;
mod quic;
mod reduce;
mod report;
mod ring;
mod shm;
mod shm_handler;
mod start;

use std::error::Error;
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;

/// What a subcommand ends with: an exit code, or an error that is printed.
pub(crate) type Outcome = Result<ExitCode, Box<dyn Error + Send + Sync>>;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Requests to one URL, in a closed loop or at a constant rate
    Load(load::Args),
    /// Users of examples/boutique
    #[command(alias = "customers")]
    LoadBoutique(load_boutique::Args),
    /// The shop of ten services, by the ways to connect them; needs `nearpath` and `boutique-native` in PATH
    Boutique(boutique::Args),
    /// Compare nearpath's gateway with nginx as a reverse proxy
    Edge(edge::Args),
    /// How long instances take to start, and where the time goes; needs `nearpath` in PATH
    Start(start::Args),
    /// Constant load while instances are scaled and killed and nearpath restarts; needs `nearpath` in PATH
    Chaos(chaos::Args),
    /// Messages around processes in shared memory, by each way to be woken
    Ring(ring::Args),
    /// A chain of two functions, by the ways to build it
    Shm(shm::Args),
    /// Warm chains that nobody calls: CPU, wake-ups, memory; needs `nearpath` in PATH
    Idle(idle::Args),
    /// The motion example: the warm chain beside scale to zero; needs `nearpath` in PATH
    Motion(motion::Args),
    /// The parking example: bursts of pictures, and what the time between them costs; needs `nearpath` in PATH
    Parking(parking::Args),
    /// Count by tracing what a request makes the kernel do, and write docs/reference/audit.md; needs bpftrace and root
    Audit(audit::Args),
    /// Calls to another machine, by the transports; needs `nearpath-watchdog` in PATH and root
    Quic(quic::Args),
    /// Calls beside minting for many workers, and the memory of idle QUIC connections
    Mint(mint::Args),
    /// Connections of functions to servers elsewhere, warm and new; needs `nearpath` in PATH and root
    Pool(pool::Args),
    /// Workers behind NATs: how fast, how soon, which of them meet directly; needs `nft` and root
    Punch(punch::Args),
    /// Reduce-by-key behind NATs: nearpath.dataflow, an object store, Redis; needs root, `nearpath` in PATH and Python's packages
    Reduce(reduce::Args),
    /// Write the page with the results of all comparisons, docs/reference/results.md
    Report(report::Args),
    #[command(hide = true)]
    PoolServer(crate::pool::server::Args),
    #[command(hide = true)]
    PoolDial,
    #[command(hide = true)]
    QuicSink(crate::remote::sink::Args),
    #[command(hide = true)]
    QuicFront(crate::remote::front::Args),
    #[command(hide = true)]
    QuicHandler(crate::remote::handler::Args),
    #[command(hide = true)]
    RingParty(crate::shm_ring::Args),
    /// A plain HTTP handler with a small fixed response
    Handler(handler::Args),
    /// nearpath's gateway alone, in front of endpoints that never change
    Gateway(gateway::Args),
}

/// Runs one. Everything but the gateway, which has threads of its own, lives on one thread: what is measured gets the rest
/// of the machine.
pub(crate) fn run(command: Command) -> Outcome {
    match command {
        Command::Load(args) => load::run(&args),
        Command::LoadBoutique(args) => on_one_thread(load_boutique::run(args)),
        Command::Boutique(args) => on_one_thread(boutique::run(args)),
        Command::Edge(args) => on_one_thread(edge::run(args)),
        Command::Start(args) => on_one_thread(start::run(args)),
        Command::Chaos(args) => on_one_thread(chaos::run(args)),
        Command::Ring(args) => on_one_thread(ring::run(args)),
        Command::Shm(args) => on_one_thread(shm::run(args)),
        Command::Idle(args) => on_one_thread(idle::run(args)),
        Command::Motion(args) => on_one_thread(motion::run(args)),
        Command::Parking(args) => on_one_thread(parking::run(args)),
        Command::Audit(args) => on_one_thread(audit::run(args)),
        Command::Quic(args) => quic::run(&args),
        Command::Pool(args) => pool::run(&args),
        Command::Punch(args) => punch::run(args),
        Command::Reduce(args) => reduce::run(&args),
        Command::Report(args) => report::run(&args),
        Command::PoolServer(args) => {
            Ok(crate::pool::server::run(&args).map(|()| ExitCode::SUCCESS)?)
        }
        Command::PoolDial => Ok(crate::pool::dial::run().map(|()| ExitCode::SUCCESS)?),
        Command::Mint(args) => on_one_thread(mint::run(args)),
        Command::QuicSink(args) => on_one_thread(crate::remote::sink::run(args)),
        Command::QuicFront(args) => on_one_thread(crate::remote::front::run(args)),
        Command::QuicHandler(args) => on_one_thread(crate::remote::handler::run(args)),
        Command::RingParty(args) => Ok(crate::shm_ring::serve(&args).map(|()| ExitCode::SUCCESS)?),
        Command::Handler(args) => on_one_thread(handler::run(args)),
        Command::Gateway(args) => gateway::run(&args),
    }
}

fn on_one_thread(what: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(what)
}

/// Seconds, with a fraction or without, or Go's notation: for arguments.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) => Duration::try_from_secs_f64(number).map_err(|error| error.to_string()),
        Err(_) => nearpath_types::duration::parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// A positive, finite rate: for arguments.
fn rate(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number"))?;
    (number > 0.0 && number.is_finite())
        .then_some(number)
        .ok_or_else(|| "a rate is greater than 0".to_owned())
}
