//! `pool`: connections of short-lived functions to servers elsewhere, by who opens them.
//!
//! In the tables of connections a "request" is one connection: from socket() to the answer's first byte, or to its last one. `direct` is the same program
//! without nearpath, on the same machine.

mod connections;
mod database;
mod retail;

use std::process::ExitCode;
use std::time::Duration;

use nearpath_testkit::lab::LinkConditions;
use tokio::task::LocalSet;

use super::quic::Place;
use super::{Outcome, seconds};
use crate::compare::{Comparison, ROUNDS};
use crate::pool::stage::Ground;
use crate::remote::Error;

/// Options of `pool`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each variant is measured in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Connections of a measurement
    #[arg(long, default_value_t = 200)]
    count: usize,

    /// Delays of the link one way, in milliseconds: half of the round trip; `loopback` for no link at all
    #[arg(long, value_delimiter = ',', default_value = "loopback,0,0.25,1")]
    delays: Vec<Place>,

    /// Between two connections, in seconds
    #[arg(long, default_value = "0.002", value_parser = seconds)]
    pause: Duration,

    /// How long before a packet is due the link's thread stops sleeping, in seconds
    #[arg(long, default_value = "0.00005", value_parser = seconds)]
    awake: Duration,

    /// Only cases whose name begins so
    #[arg(long, default_value = "")]
    case: String,
}

impl Args {
    /// Whether there are cases that are wanted among those whose names begin so.
    fn wants(&self, case: &str) -> bool {
        case.starts_with(&self.case) || self.case.starts_with(case)
    }
}

/// Exit code 1 when a goal is missed.
pub(crate) fn run(args: &Args) -> Outcome {
    let mut comparison = Comparison::new("pool", args.rounds);
    for &place in &args.delays {
        connections::measure(args, place, &mut comparison)?;
    }
    for &place in args
        .delays
        .iter()
        .filter(|place| **place != Place::Link(Duration::ZERO))
    {
        database::measure(args, place, &mut comparison)?;
    }
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// On this thread, whose namespace the sockets are in.
fn here<T>(what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, what)
}

/// The machines, so far apart.
fn land(args: &Args, place: Place) -> Result<Ground, Error> {
    let link = match place {
        Place::Loopback => None,
        Place::Link(delay) => Some(LinkConditions {
            delay,
            awake: args.awake,
            ..LinkConditions::default()
        }),
    };
    Ground::new(link.as_ref())
}

/// As the published system says it.
fn round_trip(place: Place) -> String {
    match place {
        Place::Loopback => "loopback".to_owned(),
        Place::Link(delay) => format!("round trip {} ms", delay.as_secs_f64() * 2e3),
    }
}
