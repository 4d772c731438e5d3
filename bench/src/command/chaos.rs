//! `chaos`: constant load during disturbances. Each scenario permits failures of some requests; all
//! others must succeed.
//!
//! | scenario | disturbance | permitted failures |
//! | --- | --- | --- |
//! | scale | 1 → 5 → 1 → 0 → 1 instances | none |
//! | kill | every second one of three instances is killed with -9 | requests inside it |
//! | restart | `nearpath up` stops with SIGTERM and starts again | requests sent in the gap |

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::{BenchOutcome, parse_rate, parse_seconds};
use crate::compare::{BenchComparison, BetterDirection, GoalRatio, RoundSample};
use crate::cpu::CpuSnapshot;
use crate::load::RequestTemplate;
use crate::load::closed::ConnectionReuse;
use crate::load::open::{self, OpenLoopOutcome};
use crate::load::schedule::ArrivalSchedule;
use crate::peers::nearpath::{self, NearpathServer};
use crate::tally::{RequestFailure, RequestTally};

const FUNCTION_NAME: &str = "chaos";

/// Options of `chaos`.
#[derive(clap::Args)]
pub(crate) struct ChaosArgs {
    /// Send this number of requests per second
    #[arg(long, default_value = "200", value_parser = parse_rate)]
    rate: f64,

    /// Run each scenario for this number of seconds, at least 5
    #[arg(long, default_value = "15", value_parser = parse_seconds)]
    duration: Duration,
}

/// Permitted failures of a scenario.
enum FailureBudget {
    /// Requests inside an instance when it was killed.
    Inside,
    /// Requests in flight at any time of these spans, since the start of the scenario.
    During(Vec<(Duration, Duration)>),
}

impl FailureBudget {
    fn allows_outcome(&self, done: &OpenLoopOutcome) -> bool {
        match (self, &done.outcome) {
            // A killed instance ends its requests either before the head of the response or within
            // its body.
            (Self::Inside, Err(RequestFailure::Status(_, reason))) => {
                reason == "instance_died" || reason == "response_truncated"
            }
            (Self::During(spans), Err(_)) => spans
                .iter()
                // The request's time overlaps the gap: it may have begun before it and failed in
                // it.
                .any(|(from, to)| done.intended <= *to && *from <= done.ended),
            _ => false,
        }
    }
}

/// Runs all scenarios. The exit code is 1 if a request failed without permission.
pub(crate) async fn run(args: ChaosArgs) -> BenchOutcome {
    let folder = tempfile::tempdir()?;
    let mut server = NearpathServer::start(folder.path()).await?;
    server
        .deploy_function(&nearpath::python_spec(FUNCTION_NAME)?)
        .await?;
    server.wait_available(FUNCTION_NAME, 1).await?;
    // One round: a scenario is a test with figures, and a median would hide a failure.
    let mut comparison = BenchComparison::new("chaos", 1);
    for scenario in ["scale", "kill", "restart"] {
        let (done, budget, cpu) = run_scenario(scenario, &mut server, &args).await?;
        let sample = RoundSample::from_tally(&open::tally_outcomes(&done), args.duration, cpu);
        comparison
            .measure_case(scenario, &["nearpath"], async |_| {
                Ok::<_, io::Error>(sample)
            })
            .await?;
        comparison.add_figure(failure_ratio(scenario, &done, &budget));
    }
    Ok(if comparison.finish()? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the load and the disturbance of a scenario concurrently.
async fn run_scenario(
    scenario: &str,
    server: &mut NearpathServer,
    args: &ChaosArgs,
) -> io::Result<(Vec<OpenLoopOutcome>, FailureBudget, Duration)> {
    let start = Instant::now();
    let template = RequestTemplate {
        method: Method::POST,
        ..RequestTemplate::for_get(server.addr(), "/function/chaos").map_err(io::Error::other)?
    };
    let (pid, before) = (server.pid(), CpuSnapshot::read_now(&[server.pid()]));
    // An open loop: callers that wait would hide the requests that come during a gap.
    let load = open::run_open(
        &template,
        ArrivalSchedule::new(args.rate, args.duration),
        ConnectionReuse::KeepAlive,
        start,
    );
    let disturbance = async {
        match scenario {
            "scale" => scale_repeatedly(server, start, args.duration).await,
            "kill" => kill_instances(server, start, args.duration).await,
            _ => restart_server(server, start, args.duration).await,
        }
    };
    // The disturbance must not wait for the load, nor the load for it.
    let (done, budget) = tokio::join!(load, disturbance);
    let before = if server.pid() == pid {
        before
    } else {
        CpuSnapshot::default()
    }; // after a restart: what the new one spent
    Ok((
        done?,
        budget?,
        before.spent_until(&CpuSnapshot::read_now(&[server.pid()])),
    ))
}

async fn scale_repeatedly(
    server: &NearpathServer,
    start: Instant,
    length: Duration,
) -> io::Result<FailureBudget> {
    // Zero in between: the next call must wake the function.
    for (step, replicas) in (1..).zip([5, 1, 0, 1]) {
        sleep_until(start + length * step / 5).await;
        server.scale_function(FUNCTION_NAME, replicas).await?;
    }
    server.wait_available(FUNCTION_NAME, 1).await?;
    Ok(FailureBudget::During(Vec::new()))
}

async fn kill_instances(
    server: &NearpathServer,
    start: Instant,
    length: Duration,
) -> io::Result<FailureBudget> {
    server.scale_function(FUNCTION_NAME, 3).await?;
    server.wait_available(FUNCTION_NAME, 3).await?;
    // Two seconds before the end: the last replacement must be ready within the run.
    while start.elapsed() + Duration::from_secs(2) < length {
        let (_, described) = server.describe_function(FUNCTION_NAME).await?;
        if let Some(pid) = ready_pid(&described) {
            let _ = kill_process(pid, Signal::KILL); // it may have ended by itself
        }
        sleep(Duration::from_secs(1)).await;
    }
    server.wait_available(FUNCTION_NAME, 3).await?;
    Ok(FailureBudget::Inside)
}

/// Returns the watchdog of the first ready instance, the oldest one.
fn ready_pid(described: &Value) -> Option<Pid> {
    let mut instances = described["instances"].as_array()?.iter();
    let ready = instances.find(|instance| instance["state"] == "ready")?;
    Pid::from_raw(i32::try_from(ready["pid"].as_i64()?).ok()?)
}

async fn restart_server(
    server: &mut NearpathServer,
    start: Instant,
    length: Duration,
) -> io::Result<FailureBudget> {
    // A third of load before, so that connections are kept and caches warm at the restart.
    sleep_until(start + length / 3).await;
    let from = start.elapsed();
    server.restart().await?;
    Ok(FailureBudget::During(vec![(from, start.elapsed())]))
}

/// Counts failures beyond the budget and prints them.
fn failure_ratio(scenario: &str, done: &[OpenLoopOutcome], budget: &FailureBudget) -> GoalRatio {
    let mut outside = RequestTally::default();
    for one in done
        .iter()
        .filter(|one| one.outcome.is_err() && !budget.allows_outcome(one))
    {
        outside.record_outcome(one.latency());
        eprintln!(
            "{scenario}: request due at {:?} failed at {:?}: {:?}",
            one.intended, one.ended, one.outcome
        );
    }
    if let FailureBudget::During(spans) = budget {
        spans
            .iter()
            .for_each(|(from, to)| eprintln!("{scenario}: gap from {from:?} to {to:?}"));
    }
    let name = format!("{scenario}: unexpected failures");
    GoalRatio {
        name,
        value: outside.failed_count() as f64,
        better: BetterDirection::Lower,
        goal: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(from: u64, to: u64, failure: RequestFailure) -> OpenLoopOutcome {
        OpenLoopOutcome {
            intended: Duration::from_secs(from),
            ended: Duration::from_secs(to),
            outcome: Err(failure),
        }
    }

    #[test]
    fn failures_within_the_budget_are_allowed() {
        let died = failed(1, 2, RequestFailure::Status(502, "instance_died".into()));
        assert!(FailureBudget::Inside.allows_outcome(&died));
        assert!(!FailureBudget::Inside.allows_outcome(&failed(
            1,
            2,
            RequestFailure::Status(503, "queue_timeout".into())
        )));
        let gap = FailureBudget::During(vec![(Duration::from_secs(5), Duration::from_secs(7))]);
        assert!(
            gap.allows_outcome(&failed(4, 6, RequestFailure::Broken)),
            "sent before, cut in the gap"
        );
        assert!(
            gap.allows_outcome(&failed(6, 9, RequestFailure::Connect)),
            "sent in the gap"
        );
        assert!(
            !gap.allows_outcome(&failed(1, 4, RequestFailure::Broken))
                && !gap.allows_outcome(&failed(8, 9, RequestFailure::Connect))
        );
        assert!(!FailureBudget::During(Vec::new()).allows_outcome(&died));
    }
}
