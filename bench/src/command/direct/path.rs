//! A path between two functions, and measurements of it.

use std::time::Duration;

use super::super::measure::measure_cpu;
use super::DirectArgs;
use crate::by_name::caller_task::{CallerTask, CallerWork};
use crate::by_name::control::RunningCaller;
use crate::by_name::plain_network::PlainNetwork;
use crate::compare::{BenchComparison, RoundSample};
use crate::remote::BenchError;

/// Variants without nearpath.
pub(super) const PAIR: &str = "veth pair";
pub(super) const HUB: &str = "two veth pairs and forwarding";

/// A variant of a case: a caller, and its callee.
pub(super) struct NamedPath<'a> {
    pub(super) name: &'static str,
    caller: &'a RunningCaller,
    /// Callee without its port.
    host: String,
    /// Processes of the platform and of the programs, or their ancestors.
    pids: Vec<u32>,
    /// Set if the variant needs another warm-up than the options say.
    warm_up: Option<Duration>,
}

impl<'a> NamedPath<'a> {
    /// Returns a path by name below the process `platform`.
    pub(super) fn by_name(
        name: &'static str,
        caller: &'a RunningCaller,
        callee: &str,
        platform: u32,
    ) -> Self {
        Self {
            name,
            caller,
            host: callee.to_owned(),
            pids: vec![platform],
            warm_up: None,
        }
    }

    /// Returns a path without nearpath.
    pub(super) fn plain(name: &'static str, network: &'a PlainNetwork) -> Self {
        Self {
            name,
            caller: &network.caller,
            host: network.callee_addr().ip().to_string(),
            pids: network.pids(),
            warm_up: None,
        }
    }

    /// Returns the path with a warm-up of this length.
    pub(super) fn settling(self, warm_up: Duration) -> Self {
        Self {
            warm_up: Some(warm_up),
            ..self
        }
    }

    /// Measures calls of a port, and the CPU time of all processes.
    pub(super) async fn measure(
        &self,
        args: &DirectArgs,
        (port, work): (u16, CallerWork),
    ) -> Result<RoundSample, BenchError> {
        let warm_up = self.warm_up.unwrap_or(args.measure.warm_up());
        let length = args.measure.length();
        let task = CallerTask::new(&format!("{}:{port}", self.host), work, warm_up, length);
        // The caller starts the same window a moment later, when it has the task.
        let window = task.start_window();
        let (answer, cpu) = measure_cpu(self.caller.run_task(&task), window, &self.pids).await;
        let answer = answer.map_err(|error| format!("{}: {error}", self.name))?;
        // The table has their number alone.
        if answer.failed_count() > 0 {
            eprintln!("{}: {:?}", self.name, answer.failures_by_kind());
        }
        Ok(answer.to_sample(length, cpu))
    }
}

/// Measures a case on all paths in turn.
pub(super) async fn measure_paths(
    args: &DirectArgs,
    paths: &[NamedPath<'_>],
    (case, port, work): (&str, u16, CallerWork),
    comparison: &mut BenchComparison,
) -> Result<(), BenchError> {
    let names: Vec<_> = paths.iter().map(|path| path.name).collect();
    let one = async |variant: usize| paths[variant].measure(args, (port, work)).await;
    comparison.measure_case(case, &names, one).await
}
