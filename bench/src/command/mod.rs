//! Subcommands, one file each.

mod audit;
mod boutique;
mod chain;
mod chaos;
mod default;
mod direct;
mod edge;
mod gateway;
mod handler;
mod idle;
mod load;
mod load_boutique;
mod measure;
mod mint;
mod motion;
mod nodes;
mod orders;
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

/// Result of a subcommand: an exit code, or a printed error.
pub(crate) type BenchOutcome = Result<ExitCode, Box<dyn Error + Send + Sync>>;

/// Subcommands of the program.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Send requests to one URL, in a closed loop or at a constant rate
    Load(load::LoadArgs),
    /// Simulate users of examples/boutique
    LoadBoutique(load_boutique::LoadBoutiqueArgs),
    /// Compare connections between the ten services of a shop; needs `nearpath` and
    /// `boutique-native` in PATH
    Boutique(boutique::BoutiqueArgs),
    /// Compare an unmodified function as deployed with nginx, Envoy and of-watchdog in front of the
    /// same handler; needs `nearpath` in PATH, cc and go
    Default(default::DefaultArgs),
    /// Compare chains of functions, unmodified and with the SDK, with sidecars and with direct HTTP;
    /// needs `nearpath` in PATH and go
    Chain(chain::ChainArgs),
    /// Compare the gateway alone, which no user runs, with nginx as a reverse proxy
    ///
    /// No user runs the gateway alone, without sandbox and node. This comparison finds changes of
    /// the gateway's own cost. `default` compares what users deploy.
    Edge(edge::EdgeArgs),
    /// Measure the start of instances by phase; needs `nearpath` in PATH
    Start(start::StartArgs),
    /// Measure the CPU time of orders, by the number of deployed functions; needs `nearpath` in PATH
    Orders(orders::OrdersArgs),
    /// Measure failures while instances are scaled and killed and nearpath restarts; needs
    /// `nearpath` in PATH
    Chaos(chaos::ChaosArgs),
    /// Measure messages between processes through shared memory, by wakeup method
    Ring(ring::RingArgs),
    /// Compare implementations of a chain of two functions
    Shm(shm::ShmArgs),
    /// Measure warm chains without calls: CPU, wake-ups, memory; needs `nearpath` in PATH and go
    Idle(idle::IdleArgs),
    /// Compare a warm chain with scale to zero in the motion example; needs `nearpath` in PATH
    Motion(motion::MotionArgs),
    /// Measure bursts and idle periods of the parking example; needs `nearpath` in PATH
    Parking(parking::ParkingArgs),
    /// Count the kernel work of a request by tracing, and write docs/reference/audit.md; needs
    /// bpftrace and root
    Audit(audit::AuditArgs),
    /// Compare transports for calls to another machine; needs `nearpath-watchdog` in PATH and root
    Quic(quic::QuicArgs),
    /// Compare one application over several machines with nginx and TLS between them; needs
    /// `nearpath` in PATH, nginx, cc, go and root
    Nodes(nodes::NodesArgs),
    /// Compare calls between functions by name with the same programs without nearpath; needs
    /// `nearpath` in PATH, redis-server, cc and root
    Direct(direct::DirectArgs),
    /// Measure calls during minting for many workers, and the memory of idle QUIC connections
    Mint(mint::MintArgs),
    /// Compare warm and new connections of functions to external servers; needs `nearpath` in PATH
    /// and root
    Pool(pool::PoolArgs),
    /// Measure workers behind NATs: throughput, time to the first byte, direct paths; needs `nft`
    /// and root
    Punch(punch::PunchArgs),
    /// Compare reduce-by-key behind NATs: nearpath.dataflow, an object store, Redis; needs root,
    /// `nearpath` in PATH and Python packages
    Reduce(reduce::ReduceArgs),
    /// Write the page with the results of all comparisons, docs/reference/results.md
    Report(report::ReportArgs),
    #[command(hide = true)]
    DirectCaller(crate::by_name::caller_program::CallerArgs),
    #[command(hide = true)]
    DirectCallee(crate::by_name::socket_server::SocketServerArgs),
    #[command(hide = true)]
    PoolServer(crate::pool::server::PoolServerArgs),
    #[command(hide = true)]
    PoolDial,
    #[command(hide = true)]
    QuicSink(crate::remote::sink::QuicSinkArgs),
    #[command(hide = true)]
    QuicFront(crate::remote::front::QuicFrontArgs),
    #[command(hide = true)]
    QuicHandler(crate::remote::handler::QuicHandlerArgs),
    #[command(hide = true)]
    RingEndpoint(crate::shm_ring::RingEndpointArgs),
    /// Serve plain HTTP with a small fixed response
    Handler(handler::HandlerArgs),
    /// Run nearpath's gateway alone, with fixed endpoints
    Gateway(gateway::BareGatewayArgs),
}

/// Runs a subcommand. Everything except the gateway, which has its own threads, runs on one thread:
/// the measured programs get the rest of the machine.
pub(crate) fn run(command: BenchCommand) -> BenchOutcome {
    match command {
        BenchCommand::Load(args) => load::run(&args),
        BenchCommand::LoadBoutique(args) => on_one_thread(load_boutique::run(args)),
        BenchCommand::Boutique(args) => on_one_thread(boutique::run(args)),
        BenchCommand::Default(args) => on_one_thread(default::run(args)),
        BenchCommand::Chain(args) => on_one_thread(chain::run(args)),
        BenchCommand::Edge(args) => on_one_thread(edge::run(args)),
        BenchCommand::Start(args) => on_one_thread(start::run(args)),
        BenchCommand::Orders(args) => on_one_thread(orders::run(args)),
        BenchCommand::Chaos(args) => on_one_thread(chaos::run(args)),
        BenchCommand::Ring(args) => on_one_thread(ring::run(args)),
        BenchCommand::Shm(args) => on_one_thread(shm::run(args)),
        BenchCommand::Idle(args) => on_one_thread(idle::run(args)),
        BenchCommand::Motion(args) => on_one_thread(motion::run(args)),
        BenchCommand::Parking(args) => on_one_thread(parking::run(args)),
        BenchCommand::Audit(args) => on_one_thread(audit::run(args)),
        BenchCommand::Quic(args) => quic::run(&args),
        BenchCommand::Nodes(args) => nodes::run(&args),
        BenchCommand::Direct(args) => direct::run(&args),
        BenchCommand::DirectCaller(args) => {
            Ok(crate::by_name::caller_program::run(&args).map(|()| ExitCode::SUCCESS)?)
        }
        BenchCommand::DirectCallee(args) => {
            Ok(crate::by_name::socket_server::run(&args).map(|()| ExitCode::SUCCESS)?)
        }
        BenchCommand::Pool(args) => pool::run(&args),
        BenchCommand::Punch(args) => punch::run(args),
        BenchCommand::Reduce(args) => reduce::run(&args),
        BenchCommand::Report(args) => report::run(&args),
        BenchCommand::PoolServer(args) => {
            Ok(crate::pool::server::run(&args).map(|()| ExitCode::SUCCESS)?)
        }
        BenchCommand::PoolDial => Ok(crate::pool::dial::run().map(|()| ExitCode::SUCCESS)?),
        BenchCommand::Mint(args) => on_one_thread(mint::run(args)),
        BenchCommand::QuicSink(args) => on_one_thread(crate::remote::sink::run(args)),
        BenchCommand::QuicFront(args) => on_one_thread(crate::remote::front::run(args)),
        BenchCommand::QuicHandler(args) => on_one_thread(crate::remote::handler::run(args)),
        BenchCommand::RingEndpoint(args) => {
            Ok(crate::shm_ring::serve_ring(&args).map(|()| ExitCode::SUCCESS)?)
        }
        BenchCommand::Handler(args) => on_one_thread(handler::run(args)),
        BenchCommand::Gateway(args) => gateway::run(&args),
    }
}

fn on_one_thread(what: impl Future<Output = BenchOutcome>) -> BenchOutcome {
    // One thread: a second one would take processors from what is measured.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(what)
}

/// Parses seconds, with or without a fraction, or Go's notation, for arguments.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) => Duration::try_from_secs_f64(number).map_err(|error| error.to_string()),
        Err(_) => nearpath_types::duration::parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// Parses a positive, finite rate, for arguments.
fn parse_rate(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| format!("invalid rate {text:?}: expected a number"))?;
    (number > 0.0 && number.is_finite())
        // An infinite rate parses as f64, but has no due times.
        .then_some(number)
        .ok_or_else(|| "invalid rate: expected a number greater than 0".to_owned())
}
