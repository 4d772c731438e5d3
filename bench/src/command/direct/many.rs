//! Many starts of a static program: their rate, and functions that all wake at once.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use super::super::nodes::figure;
use super::DirectArgs;
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, RoundSample};
use crate::cpu::CpuSnapshot;
use crate::load::connection;
use crate::peers::nearpath::NearpathServer;
use crate::peers::plain_handler::{HandlerLanguage, PlainHandler};
use crate::remote::BenchError;
use crate::tally::{RequestFailure, RequestTally};

const VARIANT: &str = "nearpath";
const RATE_CASE: &str = "starts of a static program";
const WAKE_CASE: &str = "first answers of functions that wake at once";
/// Function whose instances are started.
const FUNCTION: &str = "many";
/// Goal of starts per second, and of a first answer's p99 in seconds.
const GOAL_RATE: f64 = 200.0;
const GOAL_WAKE_S: f64 = 0.5;

/// A server without functions, and a handler.
struct ManyFixture {
    server: NearpathServer,
    handler: PlainHandler,
    _data: TempDir,
}

/// Measures both cases.
pub(super) async fn measure(
    args: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let fixture = ManyFixture::start().await?;
    let one = async |_: usize| fixture.measure_starts(args.instances).await;
    comparison.measure_case(RATE_CASE, &[VARIANT], one).await?;
    let rate = comparison.row_value(RATE_CASE, VARIANT, |row| row.rps);
    comparison.add_figure(GoalRatio {
        name: format!("{RATE_CASE}, per second, {} at once", args.instances),
        value: rate.unwrap_or(f64::NAN),
        better: BetterDirection::Higher,
        goal: GOAL_RATE,
    });
    fixture.deploy_functions(args.functions).await?;
    let one = async |_: usize| fixture.measure_wakes(args.functions).await;
    comparison.measure_case(WAKE_CASE, &[VARIANT], one).await?;
    let p99 = comparison.row_value(WAKE_CASE, VARIANT, |row| row.p99_us);
    let name = format!("p99 of {} {WAKE_CASE}, s", args.functions);
    comparison.add_figure(figure(name, p99.unwrap_or(f64::NAN) / 1e6, GOAL_WAKE_S));
    Ok(())
}

fn function_name(place: usize) -> String {
    format!("wake-{place}")
}

impl ManyFixture {
    async fn start() -> Result<Self, BenchError> {
        let data = tempfile::tempdir()?;
        Ok(Self {
            server: NearpathServer::start(data.path()).await?,
            handler: PlainHandler::build(HandlerLanguage::C)?,
            _data: data,
        })
    }

    /// Starts instances of one function at once. Their rate is from the order until all are ready.
    async fn measure_starts(&self, count: u64) -> Result<RoundSample, BenchError> {
        let (server, pids) = (&self.server, [self.server.pid()]);
        let mut spec = self.handler.spec(FUNCTION, None);
        // Orders are bounded by the label, whose default is 20.
        spec["labels"] = json!({ "com.openfaas.scale.max": (count + 1).to_string() });
        server.deploy_function(&spec).await?;
        // The first start copies the image to the node, which the later ones do not pay.
        server.wait_available(FUNCTION, 1).await?;
        // From before the order: it is part of a start.
        let (begun, before) = (Instant::now(), CpuSnapshot::read_now(&pids));
        server.scale_function(FUNCTION, count + 1).await?;
        server.wait_available(FUNCTION, count + 1).await?;
        let time = begun.elapsed();
        let cpu = before.spent_until(&CpuSnapshot::read_now(&pids));
        server.remove_function(FUNCTION).await?;
        Ok(RoundSample {
            n: count,
            failed: 0,
            // Each start's own time is that of the comparison `start`.
            p50_us: 0.0,
            p99_us: 0.0,
            rps: count as f64 / time.as_secs_f64(),
            cpu_us_per_request: cpu.as_micros() as f64 / count.max(1) as f64,
        })
    }

    async fn deploy_functions(&self, count: usize) -> Result<(), BenchError> {
        for place in 0..count {
            let name = function_name(place);
            // One image for all, as functions of one program have.
            let spec = self.handler.spec(&name, None);
            self.server.deploy_function(&spec).await?;
            self.server.wait_available(&name, 1).await?;
        }
        Ok(())
    }

    /// Scales all functions to zero, and calls each once at the same time.
    async fn measure_wakes(&self, count: usize) -> Result<RoundSample, BenchError> {
        for place in 0..count {
            self.server.scale_function(&function_name(place), 0).await?;
        }
        // All have the order by now, so that the waits are short.
        for place in 0..count {
            self.server.wait_available(&function_name(place), 0).await?;
        }
        let pids = [self.server.pid()];
        let (begun, before) = (Instant::now(), CpuSnapshot::read_now(&pids));
        let calls = (0..count).map(|place| self.call_once(place));
        let outcomes = futures_util::future::join_all(calls).await;
        let tally: RequestTally = outcomes.into_iter().collect();
        let cpu = before.spent_until(&CpuSnapshot::read_now(&pids));
        if tally.failed_count() > 0 {
            eprintln!("{WAKE_CASE}: {:?}", tally.failures_by_kind());
        }
        Ok(RoundSample::from_tally(&tally, begun.elapsed(), cpu))
    }

    async fn call_once(&self, place: usize) -> Result<Duration, RequestFailure> {
        let (begun, path) = (
            Instant::now(),
            format!("/function/{}", function_name(place)),
        );
        let request = Request::get(path).header("host", "bench");
        let request = request.body(Full::<Bytes>::default());
        let request = request.map_err(|_| RequestFailure::Generator)?;
        let answer = connection::send_once(self.server.addr(), request).await?;
        answer.require_success().map(|_| begun.elapsed())
    }
}
