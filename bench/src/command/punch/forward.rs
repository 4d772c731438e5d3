//! Python code that only forwards between two workers of the same job. Each worker has its own
//! machine behind its own NAT. The baseline is plain TCP between two machines.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nearpath_testkit::lab::LinkConditions as Line;
use nearpath_testkit::lab::nat::{IpFamily, NatKind, NatPlan, NatSite};
use serde::Deserialize;
use serde_json::json;

use super::PunchArgs;
use super::throughput::{self, ByteCarrier, cap_rate};
use crate::compare::{BenchComparison, BetterDirection, RatioGoal, RoundSample};
use crate::p2p::fixture::{ControlTransport, RENDEZVOUS_KEY, RendezvousSetup};
use crate::p2p::stream::MEGABYTE;
use crate::remote::BenchError;
use crate::tally::RequestTally;

/// The job script, and its stages.
const JOB_SCRIPT: &str = "bench/functions/forward.py";
const JOB_STAGES: [&str; 3] = ["feed", "forward", "count"];
const VARIANTS: [&str; 2] = ["plain TCP", "Python forwarder"];

/// Measures with and without a rate limit.
pub(super) async fn measure(
    args: &PunchArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let caps = [
        (format!("forward, {} Mbit/s", args.cap), Some(args.cap)),
        ("forward, no cap".to_owned(), None),
    ];
    for (case, limit) in caps.into_iter().filter(|(case, _)| args.wants_case(case)) {
        // A remark instead of an error: the other cases need no Python.
        if let Err(why) = has_sdk() {
            comparison.add_remark(format!("omitted: {case}: {why}"));
            continue;
        }
        let plain = throughput::ThroughputSetup::set_up(limit).await?;
        let job = ForwardSetup::set_up(limit).await?;
        let one = async |index: usize| match index {
            0 => {
                plain
                    .measure_carrier(ByteCarrier::Plain, args.megabytes)
                    .await
            }
            _ => job.run_job(args.seconds),
        };
        comparison.measure_case(&case, &VARIANTS, one).await?;
        let goal = RatioGoal {
            value: |row| row.rps,
            better: BetterDirection::Higher,
            goal: 0.6,
        };
        comparison.add_ratio(
            &format!("{case}, Python/plain TCP"),
            &case,
            VARIANTS[1],
            VARIANTS[0],
            goal,
        );
    }
    Ok(())
}

/// Checks that Python finds the SDK.
fn has_sdk() -> Result<(), String> {
    let mut python = Command::new("python3");
    let result = python
        .args(["-c", "from nearpath import dataflow; dataflow.Processes"])
        .output();
    match result {
        Ok(output) if output.status.success() && Path::new(JOB_SCRIPT).exists() => Ok(()),
        Ok(_) => Err(format!(
            "python3 cannot import `nearpath` (set PYTHONPATH), or {JOB_SCRIPT} is missing"
        )),
        Err(error) => Err(format!("python3: {error}")),
    }
}

/// Report of the job script.
#[derive(Deserialize)]
struct ForwardResult {
    octets: usize,
    seconds: f64,
    /// CPU time of all processes, from start to exit.
    all: f64,
    paths: serde_json::Value,
}

/// A site for each worker, and one for the leader of the job.
struct ForwardSetup {
    sites: Vec<NatSite>,
    fixture: RendezvousSetup,
    folder: tempfile::TempDir,
}

impl ForwardSetup {
    async fn set_up(limit: Option<u64>) -> Result<Self, BenchError> {
        let line = Line::plain();
        let mut fixture = RendezvousSetup::new(&line).await?;
        let mut sites = Vec::new();
        // A further site for the leader, which must not share a worker's link.
        for _ in 0..=JOB_STAGES.len() {
            let site = fixture.internet.add_site(NatPlan {
                conditions: line.clone(),
                is_plain: true,
                ..NatKind::PortRestricted.into()
            })?;
            limit.map_or(Ok(()), |limit| cap_rate(&site.first_machine().node, limit))?;
            sites.push(site);
        }
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("trust"), &fixture.pem)?;
        Ok(Self {
            sites,
            fixture,
            folder,
        })
    }

    fn run_job(&self, duration: Duration) -> Result<RoundSample, BenchError> {
        let into = |site: &NatSite| {
            let net = format!(
                "--net={}",
                site.first_machine().node.namespace_path().display()
            );
            ["nsenter".to_owned(), net]
        };
        let places: serde_json::Map<_, _> = JOB_STAGES
            .iter()
            .zip(&self.sites)
            .map(|(stage, site)| ((*stage).to_owned(), json!(into(site))))
            .collect();
        let key: String = RENDEZVOUS_KEY
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let settings = json!({
            "rendezvous": self.fixture.control_address(ControlTransport::Tls, IpFamily::V4), "trust": self.folder.path().join("trust"),
            "key": key, "places": places, "seconds": duration.as_secs_f64(),
        });
        let mut python = Command::new("python3");
        let output = self.sites[JOB_STAGES.len()]
            .first_machine()
            .node
            .run_program(python.arg(JOB_SCRIPT).arg(settings.to_string()))?;
        if !output.status.success() {
            return Err(
                format!("{JOB_SCRIPT}: {}", String::from_utf8_lossy(&output.stderr)).into(),
            );
        }
        let result: ForwardResult = serde_json::from_slice(&output.stdout)?;
        eprintln!("Python forwarder: edges {}", result.paths);
        Ok(to_sample(&result))
    }
}

/// Converts the result. CPU time includes process starts and the filling and draining of queues, so
/// it is an upper bound.
fn to_sample(result: &ForwardResult) -> RoundSample {
    let (megabytes, mut tally) = (
        result.octets as f64 / MEGABYTE as f64,
        RequestTally::default(),
    );
    let each = Duration::from_secs_f64(result.seconds / megabytes.max(1.0));
    (0..megabytes as usize).for_each(|_| tally.record_outcome(Ok(each)));
    let sample = RoundSample::from_tally(
        &tally,
        Duration::from_secs_f64(result.seconds),
        Duration::ZERO,
    );
    RoundSample {
        rps: megabytes / result.seconds,
        // Children of the job only: they have ended, so their times are final.
        cpu_us_per_request: result.all * 1e6 / megabytes,
        ..sample
    }
}
