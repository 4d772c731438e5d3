//! `punch`: workers behind NATs, from a pair to a chain of fifty.
//!
//! The lab has sites behind NAT routers, a real rendezvous, and the workers' own code
//! (`nearpath-p2p`). All machines are network namespaces. In the tables of throughput a "request"
//! is one megabyte (10⁶ bytes), so rps times 8 is Mbit/s. `cpu µs` is the CPU time of a gigabyte in
//! milliseconds, both sides with their kernel work. In the tables of sessions a request is one
//! session.

mod chain;
mod first;
mod forward;
mod matrix;
mod throughput;

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use nearpath_testkit::lab::LinkConditions;
use tokio::task::LocalSet;

use super::{BenchOutcome, parse_seconds};
use crate::compare::{BenchComparison, ROUNDS};
use crate::remote::BenchError;

/// Options of `punch`.
#[derive(clap::Args)]
pub(crate) struct PunchArgs {
    /// Set the rounds of each variant in each case
    #[arg(long, default_value_t = ROUNDS)]
    rounds: usize,

    /// Set the megabytes of a throughput measurement
    #[arg(long, default_value_t = 200)]
    megabytes: usize,

    /// Set the rate limit of a machine in Mbit/s, that of the published platform
    #[arg(long, default_value_t = 680)]
    cap: u64,

    /// Set round trips in milliseconds, RENDEZVOUS:PEERS; the first is at least half of the second
    #[arg(long, value_delimiter = ',', default_value = "10:20,40:80,40:40,40:20")]
    rtts: Vec<RoundTrips>,

    /// Set the number of sessions of a time measurement
    #[arg(long, default_value_t = 10)]
    sessions: usize,

    /// Set the number of sessions of each pair of the matrix, over each transport; 0: none
    #[arg(long, default_value_t = 100)]
    tries: usize,

    /// Set the number of concurrent sessions of the matrix
    #[arg(long, default_value_t = 64)]
    at_once: usize,

    /// Set the number of workers of the chain; 0: none
    #[arg(long, default_value_t = 50)]
    workers: usize,

    /// Set the rate limit of a machine in the chain in Mbit/s: low enough that the processors do
    /// not limit it
    #[arg(long, default_value_t = 20)]
    chain_cap: u64,

    /// Set the length of a rate measurement of chains and Python forwarding, in seconds
    #[arg(long, default_value = "3", value_parser = parse_seconds)]
    seconds: Duration,

    /// Run only cases whose name has this prefix: throughput, first byte, matrix, chain, forward
    #[arg(long, default_value = "")]
    case: String,

    /// Run few rounds, megabytes and sessions; the result says little about the goals
    #[arg(long)]
    quick: bool,

    /// Print the file's content instead of a table
    #[arg(long)]
    json: bool,
}

/// Round trips of a fixture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RoundTrips {
    rendezvous: Duration,
    peers: Duration,
}

impl FromStr for RoundTrips {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "invalid round trips {text:?}: expected RENDEZVOUS:PEERS in milliseconds, the first at least half of the second"
            )
        };
        let millis = |text: &str| Duration::try_from_secs_f64(text.parse::<f64>().ok()? / 1e3).ok();
        let (rendezvous, peers) = text.split_once(':').ok_or_else(bad)?;
        let trips = millis(rendezvous)
            .zip(millis(peers))
            // A site's link is part of both ways: the rest of the rendezvous' delay cannot be
            // negative.
            .filter(|(rendezvous, peers)| *rendezvous * 2 >= *peers);
        trips
            .map(|(rendezvous, peers)| Self { rendezvous, peers })
            .ok_or_else(bad)
    }
}

impl RoundTrips {
    /// Returns the link of a site: a quarter of the round trip.
    fn site_link(self) -> LinkConditions {
        LinkConditions {
            // A round trip between peers passes two site links in each direction.
            delay: self.peers / 4,
            ..LinkConditions::default()
        }
    }

    /// Returns the link of the rendezvous, with the remaining delay.
    fn rendezvous_link(self) -> LinkConditions {
        LinkConditions {
            delay: self.rendezvous / 2 - self.peers / 4,
            ..LinkConditions::default()
        }
    }
}

impl std::fmt::Display for RoundTrips {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let millis = |trip: Duration| trip.as_secs_f64() * 1e3;
        write!(
            f,
            "rendezvous {} ms, peers {} ms",
            millis(self.rendezvous),
            millis(self.peers)
        )
    }
}

impl PunchArgs {
    /// Returns whether a wanted case may begin with this text.
    fn wants_case(&self, case: &str) -> bool {
        case.starts_with(&self.case) || self.case.starts_with(case)
    }

    fn with_short_runs(mut self) -> Self {
        if self.quick {
            self.rounds = self.rounds.min(2);
            self.megabytes = self.megabytes.min(50);
            self.sessions = self.sessions.min(3);
            self.workers = self.workers.min(5);
            self.seconds = self.seconds.min(Duration::from_secs(1));
            self.tries = self.tries.min(2);
            self.rtts.truncate(1);
        }
        self
    }
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) fn run(args: PunchArgs) -> BenchOutcome {
    let args = args.with_short_runs();
    // Checked first: a missing tool would otherwise fail after minutes.
    if !nearpath_testkit::lab::nat::check_available() {
        return Err("punch needs root, and nft for NAT routers (apt-get install nftables)".into());
    }
    let mut comparison = BenchComparison::new("punch", args.rounds);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, measure_all(&args, &mut comparison))?;
    let met = if args.json {
        comparison.finish_as_json()?
    } else {
        comparison.finish()?
    };
    Ok(if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn measure_all(args: &PunchArgs, comparison: &mut BenchComparison) -> Result<(), BenchError> {
    throughput::measure(args, comparison).await?;
    for &trips in &args.rtts {
        first::measure(args, trips, comparison).await?;
    }
    chain::measure(args, comparison).await?;
    // The matrix comes last: its concurrent sessions take all processors.
    forward::measure(args, comparison).await?;
    matrix::measure(args, comparison).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_split_over_the_links() {
        let trips: RoundTrips = "40:20".parse().unwrap();
        let (site, line) = (trips.site_link().delay, trips.rendezvous_link().delay);
        assert_eq!(
            (site * 4, (site + line) * 2),
            (trips.peers, trips.rendezvous)
        );
        assert_eq!(
            "10:20"
                .parse::<RoundTrips>()
                .unwrap()
                .rendezvous_link()
                .delay,
            Duration::ZERO
        );
        for bad in ["", "10", "10:21", "a:b", "-1:2"] {
            assert!(bad.parse::<RoundTrips>().is_err(), "{bad}");
        }
    }
}
