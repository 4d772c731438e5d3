//! Time from a ready instance to an answer by name on its own node.
//!
//! The caller calls a function that is scaled to zero. The node logs "instance is ready", and the caller
//! notes when it has its answer. Both clocks are one. So the time has the forwarding of the first
//! connection and a round trip, too. For other nodes it is the row `ready` of `nodes`.

use std::time::Duration;

use super::super::nodes::figure;
use super::super::nodes::ready::{READY_TEXT, parse_events};
use super::DirectArgs;
use crate::by_name::caller_task::{CallerTask, CallerWork};
use crate::by_name::control::RunningCaller;
use crate::by_name::deployed::{NamedFunctions, full_name};
use crate::compare::{BenchComparison, RoundSample};
use crate::remote::BenchError;
use crate::tally::RequestTally;

const VARIANT: &str = "nearpath";
const CASE: &str = "instance ready, own node";
const CALLER: &str = "front";
const CALLEE: &str = "service";
/// Port by which the callee is ready, and the one that returns bytes.
const READY_PORT: u16 = 7000;
const ECHO_PORT: u16 = READY_PORT + 1;
/// Filter of logs with the line.
const LOG_FILTER: &str = "info,nearpath_node::agent=debug";
/// Goal of the p99 in milliseconds.
const GOAL_MS: f64 = 1.0;

/// A function and its caller.
struct ReadyFixture {
    functions: NamedFunctions,
    caller: RunningCaller,
}

/// Measures starts from zero.
pub(super) async fn measure(
    args: &DirectArgs,
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let fixture = ReadyFixture::start().await?;
    let mut total = RequestTally::default();
    let one = async |_: usize| {
        let mut tally = RequestTally::default();
        for _ in 0..args.starts {
            tally.record_outcome(Ok(fixture.measure_start().await?));
        }
        total.merge(&tally);
        let (length, none) = (Duration::from_secs(1), Duration::ZERO);
        Ok::<_, BenchError>(RoundSample::from_tally(&tally, length, none))
    };
    comparison.measure_case(CASE, &[VARIANT], one).await?;
    // Over the starts of all rounds: a single one has too few for a p99.
    let name = format!("p99 until an answer by name, ms, {CASE}");
    let value = total.latency_us(0.99) / 1e3;
    comparison.add_figure(figure(name, value, GOAL_MS));
    Ok(())
}

impl ReadyFixture {
    async fn start() -> Result<Self, BenchError> {
        let functions = NamedFunctions::start_logged(Some(LOG_FILTER)).await?;
        let command = format!("./nearpath-bench direct-callee --port {READY_PORT}");
        let spec = functions.program_spec(CALLEE, &command, READY_PORT);
        functions.deploy_ready(&spec).await?;
        let caller = functions.deploy_caller(CALLER, CALLEE).await?;
        Ok(Self { functions, caller })
    }

    /// Returns the time from the ready instance to the answer.
    async fn measure_start(&self) -> Result<Duration, BenchError> {
        let server = &self.functions.server;
        server.scale_function(CALLEE, 0).await?;
        server.wait_available(CALLEE, 0).await?;
        let to = format!("{CALLEE}:{ECHO_PORT}");
        let task = CallerTask::new(&to, CallerWork::FirstByte, Duration::ZERO, Duration::ZERO);
        let answer = self.caller.run_task(&task).await?;
        if answer.failed_count() > 0 {
            return Err(format!("{CASE}: {:?}", answer.failures_by_kind()).into());
        }
        let events = parse_events(&server.log_text()?, READY_TEXT);
        let mut events = events.into_iter();
        // The last one: earlier rounds have lines of their own.
        let own = events.rfind(|event| event.function == full_name(CALLEE));
        let ready = own.ok_or("the log has no ready instance")?;
        // saturating: the answer may come before the line is written.
        let micros = answer.ended_us.saturating_sub(ready.micros);
        Ok(Duration::from_micros(micros))
    }
}
