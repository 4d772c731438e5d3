//! A step of the load: time until the autoscaler has enough ready instances.

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::super::nodes::figure;
use super::DirectArgs;
use crate::compare::{BenchComparison, RoundSample};
use crate::cpu::CpuSnapshot;
use crate::load::RequestTemplate;
use crate::load::closed::ConnectionReuse;
use crate::load::open;
use crate::load::schedule::ArrivalSchedule;
use crate::peers::nearpath::NearpathServer;
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;
use crate::tally::RequestTally;

const VARIANT: &str = "nearpath";
const CASE: &str = "load step from 10 to 1000 per second";
const FUNCTION: &str = "step";
/// Rates before and after the step, in requests per second.
const LOW_RATE: f64 = 10.0;
const HIGH_RATE: f64 = 1_000.0;
/// Load of a replica that the autoscaler aims at, and the replicas that the load needs.
const TARGET_RPS: u64 = 50;
const ENOUGH: u64 = 20;
/// Time of the low rate before the step.
const LOW_PERIOD: Duration = Duration::from_secs(15);
/// Time after which a missing replica is no longer waited for.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Goal of the time in seconds.
const GOAL_S: f64 = 10.0;

/// A function that is autoscaled.
struct StepFixture {
    server: NearpathServer,
    handler: PlainHandler,
    _data: TempDir,
}

/// Measures one step for each round.
pub(super) async fn measure(
    _: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let data = tempfile::tempdir()?;
    let fixture = StepFixture {
        server: NearpathServer::start(data.path()).await?,
        handler: PlainHandler::build(HandlerLanguage::C)?,
        _data: data,
    };
    let one = async |_: usize| fixture.measure_step().await;
    comparison.measure_case(CASE, &[VARIANT], one).await?;
    let p50 = comparison.row_value(CASE, VARIANT, |row| row.p50_us);
    let name = format!("{CASE}, s until {ENOUGH} instances are ready");
    comparison.add_figure(figure(name, p50.unwrap_or(f64::NAN) / 1e6, GOAL_S));
    Ok(())
}

impl StepFixture {
    /// Returns a sample whose p50 is the time from the step until enough instances are ready.
    async fn measure_step(&self) -> Result<RoundSample, BenchError> {
        let mut spec = self.handler.spec(FUNCTION, None);
        spec["labels"] = json!({
            "com.openfaas.scale.type": "rps",
            "com.openfaas.scale.target": TARGET_RPS.to_string(),
            "com.openfaas.scale.max": "40",
        });
        self.server.deploy_function(&spec).await?;
        self.server.wait_available(FUNCTION, 1).await?;
        // Without it the autoscaler would have no average to compare with.
        self.send_load(LOW_RATE, LOW_PERIOD).await?;
        let pids = [self.server.pid()];
        let (stepped, before) = (Instant::now(), CpuSnapshot::read_now(&pids));
        // The load ends when there are enough instances, or none are waited for any more.
        let took = tokio::select! {
            took = self.wait_enough(stepped) => took?,
            load = self.send_load(HIGH_RATE, STEP_TIMEOUT) => {
                load?;
                stepped.elapsed()
            }
        };
        let cpu = before.spent_until(&CpuSnapshot::read_now(&pids));
        // Each round begins with one replica again.
        self.server.remove_function(FUNCTION).await?;
        let tally: RequestTally = [Ok(took)].into_iter().collect();
        Ok(RoundSample::from_tally(&tally, took, cpu))
    }

    async fn send_load(&self, rate: f64, length: Duration) -> Result<(), BenchError> {
        let path = format!("/function/{FUNCTION}");
        let template = RequestTemplate::for_get(self.server.addr(), &path)?;
        let schedule = ArrivalSchedule::new(rate, length);
        let start = Instant::now();
        let done = open::run_open(&template, schedule, ConnectionReuse::KeepAlive, start).await?;
        let tally = open::tally_outcomes(&done);
        if tally.failed_count() > 0 {
            eprintln!("{CASE}: {rate}: {:?}", tally.failures_by_kind());
        }
        Ok(())
    }

    async fn wait_enough(&self, stepped: Instant) -> Result<Duration, BenchError> {
        loop {
            let (_, described) = self.server.describe_function(FUNCTION).await?;
            if described["availableReplicas"].as_u64() >= Some(ENOUGH) {
                return Ok(stepped.elapsed());
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}
