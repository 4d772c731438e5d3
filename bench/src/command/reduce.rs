//! `reduce`: reduce-by-key with 104 workers, by the transport between mappers and reducers. The
//! jobs and their comparison are in Python (`bench/reduce`). This file creates their machines: some
//! behind a NAT each, and one that all of them reach.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use nearpath_testkit::lab::LinkConditions;
use nearpath_testkit::lab::nat::{IpFamily, LabInternet, NatKind, NatPlan, NatSite};
use serde::Serialize;

use super::{BenchOutcome, parse_seconds};
use crate::remote::BenchError;

/// Options of `reduce`.
#[derive(clap::Args)]
pub(crate) struct ReduceArgs {
    /// Use this Python, which has pyarrow, boto3, redis, numpy and nearpath
    #[arg(long, default_value = "python3")]
    python: PathBuf,

    /// Set the folder of the jobs
    #[arg(long, default_value = "bench/reduce")]
    jobs: PathBuf,

    /// Set the number of machines with workers, each behind its own NAT
    #[arg(long, default_value_t = 4)]
    machines: u8,

    /// Set the round trip between two machines, in seconds
    #[arg(long, default_value = "0.001", value_parser = parse_seconds)]
    round_trip: Duration,

    /// Set the slowdown that simulates a processor per worker
    #[arg(long, default_value_t = 64.0)]
    slow: f64,

    /// Pass options to the comparison, after `--`; `--help` lists them
    #[arg(last = true)]
    comparison: Vec<String>,
}

/// Description of a lab for the comparison.
#[derive(Serialize)]
struct LabDescription {
    slow: f64,
    /// Namespace of the machine that all reach, and its addresses.
    server: PathBuf,
    addresses: Vec<String>,
    /// Namespaces of the machines with workers.
    machines: Vec<PathBuf>,
}

/// Runs the comparison. The exit code is 1 if a goal is missed.
pub(crate) fn run(args: &ReduceArgs) -> BenchOutcome {
    // At full speed all workers share the processors; slowed down, each one has what a machine of
    // its own would give.
    let labs = [1.0, args.slow]
        .map(|slow| build_lab(args, slow))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let descriptions: Vec<_> = labs
        .iter()
        .map(|(internet, sites, slow)| describe_lab(internet, sites, *slow))
        .collect();
    let file = tempfile::NamedTempFile::new()?;
    // A file, since the description of 104 machines is too long for an argument.
    fs::write(file.path(), serde_json::to_vec(&descriptions)?)?;
    let status = comparison_command(args, file.path()).status()?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Creates the lab. A round trip between machines passes two links each way, and so does one to the
/// rendezvous.
fn build_lab(args: &ReduceArgs, slow: f64) -> Result<(LabInternet, Vec<NatSite>, f64), BenchError> {
    let line = LinkConditions {
        // Four links in a round trip.
        delay: args.round_trip.mul_f64(slow / 4.0),
        // No losses in queues: the transports of the jobs are compared, not their congestion
        // control.
        queue_bytes: 64 << 20,
        ..LinkConditions::default()
    };
    let mut internet = LabInternet::new(&line)?;
    let plan = NatPlan {
        conditions: line,
        ..NatKind::PortRestricted.into()
    };
    let sites = (0..args.machines)
        .map(|_| internet.add_site(plan.clone()))
        .collect::<Result<_, _>>()?;
    Ok((internet, sites, slow))
}

fn describe_lab(internet: &LabInternet, sites: &[NatSite], slow: f64) -> LabDescription {
    LabDescription {
        slow,
        server: internet.rendezvous.namespace_path(),
        addresses: internet
            .rendezvous_addresses(IpFamily::V4)
            .map(|address| address.to_string())
            .to_vec(),
        machines: sites
            .iter()
            .map(|site| site.first_machine().node.namespace_path())
            .collect(),
    }
}

fn comparison_command(args: &ReduceArgs, labs: &Path) -> Command {
    let mut command = Command::new(&args.python);
    command
        .arg(&args.jobs)
        .arg("--labs")
        .arg(labs)
        .arg("--slow")
        .arg(args.slow.to_string())
        .args(&args.comparison);
    command
}
