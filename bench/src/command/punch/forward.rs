//! Python code that only forwards, between two others of the same job, each on a machine of its own behind a NAT of its own: against plain TCP from one
//! machine to the next.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nearpath_testkit::lab::LinkConditions as Line;
use nearpath_testkit::lab::nat::{IpFamily, NatKind, NatPlan, NatSite};
use serde::Deserialize;
use serde_json::json;

use super::Args;
use super::throughput::{self, Way, cap};
use crate::compare::{Better, Comparison, Goal, Sample};
use crate::p2p::stream::MEGABYTE;
use crate::p2p::town::{KEY, Lines, Town};
use crate::remote::Error;
use crate::tally::Tally;

/// The job; it knows its stages by these names.
const SCRIPT: &str = "bench/functions/forward.py";
const STAGES: [&str; 3] = ["feed", "forward", "count"];
const VARIANTS: [&str; 2] = ["plain TCP", "Python forwards"];

/// With the cap and without.
pub(super) async fn measure(args: &Args, comparison: &mut Comparison) -> Result<(), Error> {
    let caps = [
        (format!("forward, {} Mbit/s", args.cap), Some(args.cap)),
        ("forward, no cap".to_owned(), None),
    ];
    for (case, limit) in caps.into_iter().filter(|(case, _)| args.wants(case)) {
        if let Err(why) = has_sdk() {
            comparison.remark(format!("left out: {case}: {why}"));
            continue;
        }
        let plain = throughput::Stage::set(limit).await?;
        let job = Stage::set(limit).await?;
        let one = async |index: usize| match index {
            0 => plain.carry(Way::Plain, args.megabytes).await,
            _ => job.forward(args.seconds),
        };
        comparison.case(&case, &VARIANTS, one).await?;
        let goal = Goal {
            value: |row| row.rps,
            better: Better::Higher,
            goal: 0.6,
        };
        comparison.ratio(
            &format!("{case}, Python/plain TCP"),
            &case,
            VARIANTS[1],
            VARIANTS[0],
            goal,
        );
    }
    Ok(())
}

/// Whether Python finds the SDK.
fn has_sdk() -> Result<(), String> {
    let mut python = Command::new("python3");
    let told = python
        .args(["-c", "from nearpath import dataflow; dataflow.Processes"])
        .output();
    match told {
        Ok(output) if output.status.success() && Path::new(SCRIPT).exists() => Ok(()),
        Ok(_) => Err(format!(
            "python3 does not find the package `nearpath` (PYTHONPATH), or {SCRIPT} is not here"
        )),
        Err(error) => Err(format!("python3: {error}")),
    }
}

/// What the job tells.
#[derive(Deserialize)]
struct Told {
    octets: usize,
    seconds: f64,
    /// Of all its processes, from their beginnings to their ends.
    all: f64,
    paths: serde_json::Value,
}

/// A site for each worker, and one for who leads the job.
struct Stage {
    sites: Vec<NatSite>,
    town: Town,
    folder: tempfile::TempDir,
}

impl Stage {
    async fn set(limit: Option<u64>) -> Result<Self, Error> {
        let line = Line::plain();
        let mut town = Town::new(&line).await?;
        let mut sites = Vec::new();
        for _ in 0..=STAGES.len() {
            let site = town.internet.add_site(NatPlan {
                conditions: line.clone(),
                is_plain: true,
                ..NatKind::PortRestricted.into()
            })?;
            limit.map_or(Ok(()), |limit| cap(&site.first_machine().node, limit))?;
            sites.push(site);
        }
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("trust"), &town.pem)?;
        Ok(Self {
            sites,
            town,
            folder,
        })
    }

    fn forward(&self, duration: Duration) -> Result<Sample, Error> {
        let into = |site: &NatSite| {
            let net = format!(
                "--net={}",
                site.first_machine().node.namespace_path().display()
            );
            ["nsenter".to_owned(), net]
        };
        let places: serde_json::Map<_, _> = STAGES
            .iter()
            .zip(&self.sites)
            .map(|(stage, site)| ((*stage).to_owned(), json!(into(site))))
            .collect();
        let key: String = KEY.iter().map(|byte| format!("{byte:02x}")).collect();
        let settings = json!({
            "rendezvous": self.town.place(Lines::Tls, IpFamily::V4), "trust": self.folder.path().join("trust"),
            "key": key, "places": places, "seconds": duration.as_secs_f64(),
        });
        let mut python = Command::new("python3");
        let output = self.sites[STAGES.len()]
            .first_machine()
            .node
            .run_program(python.arg(SCRIPT).arg(settings.to_string()))?;
        if !output.status.success() {
            return Err(format!("{SCRIPT}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let told: Told = serde_json::from_slice(&output.stdout)?;
        eprintln!("Python forwards: edges {}", told.paths);
        Ok(sample(&told))
    }
}

/// CPU time has the starts of the processes in it, and queues that fill and empty: it is too high rather than too low.
fn sample(told: &Told) -> Sample {
    let (megabytes, mut tally) = (told.octets as f64 / MEGABYTE as f64, Tally::default());
    let each = Duration::from_secs_f64(told.seconds / megabytes.max(1.0));
    (0..megabytes as usize).for_each(|_| tally.add(Ok(each)));
    let sample = Sample::of(
        &tally,
        Duration::from_secs_f64(told.seconds),
        Duration::ZERO,
    );
    Sample {
        rps: megabytes / told.seconds,
        cpu_us_per_request: told.all * 1e6 / megabytes,
        ..sample
    }
}
