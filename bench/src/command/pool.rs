//! `pool`: connections of short-lived functions to external servers, by opener.
//!
//! In the tables of connections a "request" is one connection: from socket() to the first or to the
//! last byte of the response. `direct` is the same program without nearpath, on the same machine.

mod connections;
pub(super) mod database;
mod queries;
mod retail;

use std::process::ExitCode;
use std::time::Duration;

use nearpath_testkit::lab::LinkConditions;
use tokio::task::LocalSet;

use super::quic::NetworkPlace;
use super::{BenchOutcome, parse_seconds};
use crate::compare::{BenchComparison, ROUNDS};
use crate::pool::setup::PoolNetwork;
use crate::remote::BenchError;

/// Options of `pool`.
#[derive(clap::Args)]
pub(crate) struct PoolArgs {
    /// Set the rounds of each variant in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Set the number of connections of a measurement
    #[arg(long, default_value_t = 200)]
    count: usize,

    /// Set the one-way delays of the link, in milliseconds: half of the round trip; `loopback`: no
    /// link
    #[arg(long, value_delimiter = ',', default_value = "loopback,0,0.25,1")]
    delays: Vec<NetworkPlace>,

    /// Set the pause between two connections, in seconds
    #[arg(long, default_value = "0.002", value_parser = parse_seconds)]
    pause: Duration,

    /// Set the time before a packet is due at which the link's thread stops sleeping, in seconds
    #[arg(long, default_value = "0.00005", value_parser = parse_seconds)]
    awake: Duration,

    /// Run only cases whose name has this prefix
    #[arg(long, default_value = "")]
    case: String,
}

impl PoolArgs {
    /// Returns whether a wanted case may begin with this text.
    fn wants_case(&self, case: &str) -> bool {
        case.starts_with(&self.case) || self.case.starts_with(case)
    }
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) fn run(args: &PoolArgs) -> BenchOutcome {
    let mut comparison = BenchComparison::new("pool", args.rounds);
    for &place in &args.delays {
        connections::measure(args, place, &mut comparison)?;
    }
    // A database at no distance has its cases on loopback; a link without delay would be the same
    // again.
    for &place in args
        .delays
        .iter()
        .filter(|place| **place != NetworkPlace::Link(Duration::ZERO))
    {
        database::measure(args, place, &mut comparison)?;
    }
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs on this thread, whose namespace the sockets use.
fn run_local<T>(what: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // On the calling thread, which is in the node's namespace: a new thread would not be.
    LocalSet::new().block_on(&runtime, what)
}

/// Creates the machines at this distance.
fn build_network(args: &PoolArgs, place: NetworkPlace) -> Result<PoolNetwork, BenchError> {
    let link = match place {
        NetworkPlace::Loopback => None,
        NetworkPlace::Link(delay) => Some(LinkConditions {
            delay,
            awake: args.awake,
            ..LinkConditions::default()
        }),
    };
    PoolNetwork::new(link.as_ref())
}

/// Formats the distance like the published system.
fn round_trip_name(place: NetworkPlace) -> String {
    match place {
        NetworkPlace::Loopback => "loopback".to_owned(),
        NetworkPlace::Link(delay) => format!("round trip {} ms", delay.as_secs_f64() * 2e3),
    }
}
