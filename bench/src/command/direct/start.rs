//! Starts of instances with virtual addresses in force, and where bpf(2) fails, so that none are.
//!
//! In the table a "request" is one start. The times are those of the platform's phases. `--forward tc` has
//! no virtual addresses either, but its own program at the devices takes longer than all the rest.

use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::super::nodes::figure;
use super::super::start::measure_start;
use super::DirectArgs;
use crate::compare::{BenchComparison, RoundSample};
use crate::peers::nearpath::{NearpathServer, UpSettings, cat_spec};
use crate::peers::plain_handler::run_tool;
use crate::remote::BenchError;
use crate::tally::RequestTally;

const SWITCHED: &str = "virtual addresses";
const WITHOUT: &str = "without BPF programs";
const VARIANTS: [&str; 2] = [SWITCHED, WITHOUT];
const CASE: &str = "start of an instance";
/// Text of the log where there are none.
const UNAVAILABLE_TEXT: &str = "virtual addresses are unavailable";
/// Runs nearpath where bpf(2) fails.
const WRAPPER_SOURCE: &str = "bench/functions/without_bpf.c";
/// Goal of a start: milliseconds more than without virtual addresses.
const GOAL_MORE_MS: f64 = 0.2;

/// Servers with and without virtual addresses.
struct StartFixture {
    servers: [NearpathServer; 2],
    _folders: [TempDir; 3],
}

/// Measures starts on both servers in turn. Without a C compiler it is a remark below the table.
pub(super) async fn measure(
    args: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let fixture = match StartFixture::start().await {
        Ok(fixture) => fixture,
        Err(error) => {
            comparison.add_remark(format!("omitted: row start: {WITHOUT}: {error}"));
            return Ok(());
        }
    };
    fixture.check_logs().await?;
    let one = async |variant: usize| fixture.measure(variant, args.starts).await;
    comparison.measure_case(CASE, &VARIANTS, one).await?;
    let p50 = |variant| comparison.row_value(CASE, variant, |row| row.p50_us);
    let more = p50(SWITCHED).unwrap_or(f64::NAN) - p50(WITHOUT).unwrap_or(f64::NAN);
    let name = format!("{CASE}, ms more than {WITHOUT}, p50");
    comparison.add_figure(figure(name, more / 1e3, GOAL_MORE_MS));
    Ok(())
}

impl StartFixture {
    async fn start() -> Result<Self, BenchError> {
        let [program, own, other] = [(); 3].map(|()| tempfile::tempdir());
        let (program, own, other) = (program?, own?, other?);
        let wrapper = program.path().join("without-bpf");
        let mut cc = Command::new("cc");
        cc.args(["-O2", WRAPPER_SOURCE, "-o"]).arg(&wrapper);
        run_tool(&mut cc)?;
        let settings = UpSettings {
            program: wrapper,
            ..UpSettings::default()
        };
        let servers = [
            NearpathServer::start(own.path()).await?,
            NearpathServer::start_set(other.path(), settings).await?,
        ];
        Ok(Self {
            servers,
            _folders: [program, own, other],
        })
    }

    /// Checks by their logs that only the first server has virtual addresses.
    async fn check_logs(&self) -> Result<(), BenchError> {
        for (server, is_switched) in self.servers.iter().zip([true, false]) {
            // An instance is ready only after the node has started.
            server.deploy_function(&cat_spec("probe")?).await?;
            server.wait_available("probe", 1).await?;
            server.remove_function("probe").await?;
            if server.log_text()?.contains(UNAVAILABLE_TEXT) == is_switched {
                return Err(format!("virtual addresses: expected {is_switched}").into());
            }
        }
        Ok(())
    }

    /// Starts instances in sequence: concurrent ones would share the machine's cores.
    async fn measure(&self, variant: usize, starts: usize) -> Result<RoundSample, BenchError> {
        let mut spec = cat_spec("start")?;
        // With an edge: rows of the caller are part of its start.
        spec["annotations"] = json!({ "nearpath.io/calls": "absent" });
        let (mut tally, mut cpu_us, mut rates) = (RequestTally::default(), 0.0, 0.0);
        // One folder for all: only the first start of a server copies it.
        for _ in 0..starts {
            let (sample, _) = measure_start(&self.servers[variant], &spec, 1).await?;
            tally.record_outcome(Ok(Duration::from_secs_f64(sample.p50_us / 1e6)));
            cpu_us += sample.cpu_us_per_request;
            rates += sample.rps;
        }
        let count = starts.max(1) as f64;
        let (length, none) = (Duration::from_secs(1), Duration::ZERO);
        Ok(RoundSample {
            rps: rates / count,
            cpu_us_per_request: cpu_us / count,
            ..RoundSample::from_tally(&tally, length, none)
        })
    }
}
